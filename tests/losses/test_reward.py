"""The loss of a reward model and its gradients are those of its formula on each answer alone, for any micro-batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.losses.test_classification import REGRESSION, classifier
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLossSums
from tui_trainer.losses.reward import RewardLoss
from tui_trainer.tasks.reward import TASK
from tui_trainer.training.batches import Layout

CENTERING = 0.3
MARGINS = (0.0, 1.5, 0.25, 3.0, 0.0)


def pair_rows(margins=MARGINS) -> list[TokenRow]:
    """Return pairs of answers of different lengths, with these margins."""
    draw = np.random.default_rng(3)
    rows = []
    for number, margin in enumerate(margins):
        lengths = np.array([7 + number, 12 - 2 * number], dtype=np.int32)
        tokens = draw.integers(3, 380, lengths.sum(), dtype=np.int32)
        labels = np.array([margin], dtype=np.float32).view(np.int32)
        rows.append(TokenRow(tokens, labels, document_lengths=lengths))
    return rows


def passes(model, rows, size: int) -> list[MicroBatch]:
    return list(Layout(collate=TASK.collate(model, 9), rows_per_pass=size).micro_batches(rows))


def scores_of(model, row: TokenRow) -> list[torch.Tensor]:
    """Return the scores that transformers computes for both answers of a pair, each without padding."""
    return [model(torch.from_numpy(document.tokens.astype(np.int64))[None]).logits[0, 0] for document in row.documents]


def loss_of_formula(model, rows, margins=MARGINS) -> torch.Tensor:
    losses = []
    for row, margin in zip(rows, margins, strict=True):
        better, worse = scores_of(model, row)
        losses.append(-torch.log(1 / (1 + torch.exp(worse - better + margin))) + CENTERING * (better + worse) ** 2)
    return torch.stack(losses).mean()


def loss_in_passes(loss, batches) -> torch.Tensor:
    """Return the loss of an effective batch, as the training loop adds it up."""
    totals = NamedLossSums.of(loss)
    totals.count(batches)
    return sum(totals.loss(loss(batch)) for batch in batches)


def gradients(model, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_the_loss_equals_its_formula_for_any_micro_batch(subtests):
    rows = pair_rows()
    for family in ("llama", "gpt2"):
        model = classifier(family, REGRESSION)
        expected = loss_of_formula(model, rows)
        expected_gradients = gradients(model, expected)
        for size in (1, 2, 5):
            with subtests.test(f"{family}, {size} pairs in a pass"):
                loss = loss_in_passes(RewardLoss(model, centering=CENTERING), passes(model, rows, size))
                assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
                for ours, theirs in zip(gradients(model, loss), expected_gradients, strict=True):
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_scores_are_those_of_the_pairs_and_margins_of_the_data_do_not_change_them():
    model, rows = classifier("llama", REGRESSION), pair_rows()
    rows.append(TokenRow(np.tile(rows[0].documents[0].tokens, 2), rows[0].labels, document_lengths=np.array([7, 7])))
    [batch] = passes(model, rows, 6)
    with torch.no_grad():
        scores = torch.tensor([scores_of(model, row) for row in rows])
        sums = RewardLoss(model)(batch)
    margins = scores[:, 0] - scores[:, 1]
    assert sums.keys() == {"preference", "accuracy", "reward_margin", "reward_chosen", "reward_rejected"}
    # Equal answers count as half right.
    assert sums["accuracy"].item() == int((margins > 1e-4).sum()) + 0.5
    assert sums["reward_margin"].item() == pytest.approx(margins.sum().item(), rel=1e-4)
    assert sums["reward_chosen"].item() == pytest.approx(scores[:, 0].sum().item(), rel=1e-4)
    assert sums["reward_rejected"].item() == pytest.approx(scores[:, 1].sum().item(), rel=1e-4)
