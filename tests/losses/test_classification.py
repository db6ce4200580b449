"""The loss of a classifier and its gradients equal those of transformers on each row alone, for any micro-batch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.tiny_models import ENCODERS, SHAPES, VOCABULARY
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.tasks.sequence_classification import TASK
from tui_trainer.training.batches import Layout

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
LENGTHS = (17, 5, 9, 2, 12)
CLASSES = 3
CUTS = (1, 2, 5)


def classifier(family: str, kind: str = SINGLE):
    fields = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY, "problem_type": kind}
    labels = 1 if kind == REGRESSION else CLASSES
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**fields, **(SHAPES | ENCODERS)[family], "num_labels": labels})
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5.0)
    return model


def rows_of(kind: str, *, pairs: bool = False) -> list[TokenRow]:
    draw = np.random.default_rng(3)
    rows = []
    for number, length in enumerate(LENGTHS):
        tokens = draw.integers(3, 380, size=length, dtype=np.int32)
        if kind == REGRESSION:
            labels = np.array([number - 1.5], dtype=np.float32).view(np.int32)
        elif kind == MULTI:
            labels = draw.integers(0, 2, size=CLASSES, dtype=np.int32)
        else:
            labels = np.array([number % CLASSES], dtype=np.int32)
        more = {"token_type_ids": (np.arange(length) >= length // 2).astype(np.int32)} if pairs else {}
        rows.append(TokenRow(tokens, labels, more))
    return rows


def window(model, rows, size: int) -> list[MicroBatch]:
    return list(Layout(collate=TASK.collate(model, 9), rows_per_pass=size).micro_batches(rows))


def loss_of_each_row(model, rows, kind) -> torch.Tensor:
    """Return the mean of the losses that transformers computes for each row without padding."""
    losses = []
    for row in rows:
        if kind == REGRESSION:
            labels = torch.from_numpy(row.labels.view(np.float32).copy())
        elif kind == MULTI:
            labels = torch.from_numpy(row.labels.astype(np.float32))[None]
        else:
            labels = torch.from_numpy(row.labels.astype(np.int64))
        more = {name: torch.from_numpy(values.astype(np.int64))[None] for name, values in row.model_arguments.items()}
        losses.append(model(input_ids=torch.from_numpy(row.tokens.astype(np.int64))[None], labels=labels, **more).loss)
    return torch.stack(losses).mean()


def gradients(model, loss) -> list[torch.Tensor | None]:
    model.zero_grad()
    loss.backward()
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


# Family, kind of labels, whether a row is a pair of texts.
CASES = [
    ("bert", SINGLE, True), ("roberta", MULTI, False), ("llama", REGRESSION, False), ("distilbert", REGRESSION, False),
    ("gpt2", MULTI, False), ("qwen2", REGRESSION, False), ("electra", SINGLE, True), ("llama", SINGLE, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind", "pairs"), [*CASES[:3], *(pytest.param(*case, marks=pytest.mark.full) for case in CASES[3:])]
)
def test_loss_and_gradients_equal_those_of_transformers_for_any_micro_batch(family, kind, pairs, subtests):
    model, rows = classifier(family, kind), rows_of(kind, pairs=pairs)
    wanted = loss_of_each_row(model, rows, kind)
    expected, loss = gradients(model, wanted), ClassificationLoss(model, kind)
    for size in CUTS:
        batches = window(model, rows, size)
        count = sum(batch.label_count for batch in batches)
        mean = torch.stack([loss(batch) for batch in batches]).sum() / count
        with subtests.test(f"{size} rows in a pass"):
            assert count == len(rows) * (CLASSES if kind == MULTI else 1)
            assert mean.item() == pytest.approx(wanted.item(), rel=2e-5)
            for mine, theirs in zip(gradients(model, mean), expected, strict=True):
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-3)


def test_a_decoder_is_read_at_its_last_token_and_not_at_the_padding():
    """The pad token of the model is used, not that of the tokenizer (9), which the model would take for text."""
    model, rows = classifier("llama").eval(), rows_of(SINGLE)
    (batch,) = window(model, rows, len(rows))
    assert set(batch.inputs["input_ids"][3, 2:].tolist()) == {0}
    with torch.no_grad():
        together = ClassificationLoss(model, SINGLE).logits(batch)
        alone = torch.cat([model(input_ids=torch.from_numpy(row.tokens[None].astype(np.int64))).logits for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-3)


def test_class_weights_are_moved_to_the_device_of_the_logits():
    loss = ClassificationLoss(classifier("bert"), SINGLE, weights=(0.5, 2.0, 1.0))
    logits, labels = torch.empty(4, CLASSES, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")
    assert loss.of_logits(logits, labels).device.type == "meta"


def test_class_weights_and_smoothing_equal_those_of_torch():
    model = classifier("bert").train()
    (batch,) = window(model, rows_of(SINGLE), 5)
    weights = (0.5, 2.0, 1.0)
    with torch.no_grad():
        logits = ClassificationLoss(model, SINGLE).logits(batch)
        loss = ClassificationLoss(model, SINGLE, weights=weights, smoothing=0.1)(batch)
    log = F.log_softmax(logits, dim=-1)
    per_class = torch.tensor(weights)
    by_hand = sum(
        -0.9 * per_class[label] * row[label] - 0.1 / CLASSES * (per_class * row).sum()
        for row, label in zip(log, batch.labels, strict=True)
    )
    assert loss.item() == pytest.approx(float(by_hand), rel=1e-5)
    model.eval()
    with torch.no_grad():
        held_out = [ClassificationLoss(model, SINGLE, smoothing=share)(batch).item() for share in (0.0, 0.1)]
    assert held_out[0] == held_out[1], "held-out rows are measured without smoothing"
