"""Preference losses equal their papers' formulas, computed from all logits, however the pairs share passes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from tests.tiny_models import tiny_model
from tui_trainer.data.batching.collate import IGNORE, collate, collate_packed
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.named_losses import NamedLossSums
from tui_trainer.losses.preference import LossSettings, PreferenceLoss
from tui_trainer.losses.router_loss import RouterLoss
from tui_trainer.methods.preference_losses import PREFERENCE_LOSSES

SETTINGS = LossSettings(beta=0.7, simpo_gamma=0.4, label_smoothing=0.1)
SFT_WEIGHT = 0.3


def pair_rows(count: int) -> list[TokenRow]:
    """Return pairs whose prompts and answers have different lengths."""
    draw = np.random.default_rng(3)
    rows = []
    for number in range(count):
        prompt = draw.integers(3, 380, 3 + number)
        answers = [draw.integers(3, 380, length) for length in (2 + number % 4, 5 - number % 3)]
        tokens = np.concatenate([np.concatenate([prompt, answer]) for answer in answers]).astype(np.int32)
        labels = np.concatenate([np.concatenate([np.full(len(prompt), IGNORE), answer]) for answer in answers])
        lengths = np.array([len(prompt) + len(answer) for answer in answers], dtype=np.int32)
        values = draw.normal(-20, 3, 2).astype(np.float32)
        rows.append(TokenRow(tokens, labels.astype(np.int32), document_lengths=lengths, values=values))
    return rows


def batch_of(rows: list[list[TokenRow]], *, packed: bool = False) -> MicroBatch:
    """Return a pass over rows, or over rows that share packed rows."""
    layout = RowLayout(
        collate=partial(collate, pad_id=0), collate_packed=partial(collate_packed, pad_id=0), rows_per_pass=8,
        packed_width=256 if packed else 0,
    )  # fmt: skip
    return micro_batch(layout.batch(rows if packed else [[row] for row in rows[0]]))


def log_probabilities(model, row: TokenRow) -> tuple[list[torch.Tensor], list[int]]:
    """Return the log-probability and the number of tokens of both answers of a pair, each document alone."""
    sums, counts = [], []
    for document in row.documents:
        ids = torch.from_numpy(document.tokens.astype(np.int64))
        scores = model(input_ids=ids[None], use_cache=False).logits[0, :-1].double().log_softmax(-1)
        is_label = torch.from_numpy(document.labels[1:] != IGNORE)
        sums.append(scores[torch.arange(len(ids) - 1), ids[1:]][is_label].sum())
        counts.append(int(is_label.sum()))
    return sums, counts


def formula(loss_type: str, sums, counts, reference) -> torch.Tensor:
    """Return the loss of one pair by the formula of its paper, in the notation of that paper."""
    beta, gamma, epsilon = SETTINGS.beta, SETTINGS.simpo_gamma, SETTINGS.label_smoothing
    (pi_w, pi_l), (n_w, n_l), (ref_w, ref_l) = sums, counts, reference
    difference = (pi_w - ref_w) - (pi_l - ref_l)
    mean_difference = (pi_w - ref_w) / n_w - (pi_l - ref_l) / n_l
    log_sigmoid = torch.nn.functional.logsigmoid
    if loss_type == "orpo":
        odds_w, odds_l = ((mean := (pi / n).exp()) / (1 - mean) for pi, n in ((pi_w, n_w), (pi_l, n_l)))
        return -beta * log_sigmoid((odds_w / odds_l).log())
    return {
        "sigmoid": -log_sigmoid(beta * difference),
        "ipo": (mean_difference - 1 / (2 * beta)) ** 2,
        "robust": (-(1 - epsilon) * log_sigmoid(beta * difference) + epsilon * log_sigmoid(-beta * difference))
        / (1 - 2 * epsilon),
        "sigmoid_norm": -log_sigmoid(beta * mean_difference),
        "simpo": -log_sigmoid(beta / n_w * pi_w - beta / n_l * pi_l - gamma),
        "cpo": -log_sigmoid(beta * pi_w - beta * pi_l),
    }[loss_type]


def expected_loss(model, loss_type: str, rows: list[TokenRow]) -> torch.Tensor:
    """Return the mean over the pairs, and the weighted mean over the tokens of the chosen answers."""
    total, nats, tokens = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        sums, counts = log_probabilities(model, row)
        reference = row.values.tolist() if PREFERENCE_LOSSES[loss_type].has_reference else (0.0, 0.0)
        total = total + formula(loss_type, sums, counts, reference)
        nats, tokens = nats - sums[0], tokens + counts[0]
    return total / len(rows) + SFT_WEIGHT * nats / tokens


def loss_in_passes(model, loss_type: str, batches, chunk_tokens: int = 0) -> torch.Tensor:
    """Return the loss of an effective batch, as the training loop adds it up."""
    loss = PreferenceLoss(model, loss_type, SETTINGS, sft_weight=SFT_WEIGHT, chunk_tokens=chunk_tokens)
    totals = NamedLossSums.of(loss)
    totals.count(batches)
    return sum(totals.loss(loss(batch)) for batch in batches)


def gradients(model, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_each_loss_equals_its_formula_in_every_layout(subtests):
    rows = pair_rows(6)
    layouts = {
        "padded": [batch_of([rows])],
        "one by one": [batch_of([[row]]) for row in rows],
        "two and four": [batch_of([rows[:2]]), batch_of([rows[2:]])],
        "packed": [batch_of([rows[:4], rows[4:]], packed=True)],
    }
    for loss_type in PREFERENCE_LOSSES:
        model = tiny_model("llama")
        wanted = expected_loss(model, loss_type, rows)
        expected = gradients(model, wanted)
        for (name, batches), chunk_tokens in ((item, size) for item in layouts.items() for size in (0, 3)):
            with subtests.test(f"{loss_type}, {name}, chunks of {chunk_tokens}"):
                loss = loss_in_passes(model, loss_type, batches, chunk_tokens)
                assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
                for ours, theirs in zip(gradients(model, loss), expected, strict=True):
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_scores_are_those_of_the_pairs_and_equal_answers_count_as_half_right():
    rows = pair_rows(3)
    model = tiny_model("llama")
    batch = batch_of([rows])
    make = partial(PreferenceLoss, model, "sigmoid", SETTINGS)
    with torch.no_grad():
        gains = torch.stack([torch.stack(log_probabilities(model, row)[0]) for row in rows]) - batch.row_values
        sums = make()(batch)
        margins = gains[:, 0] - gains[:, 1]
        assert sums["accuracy"].item() == int((margins > 0).sum())
        assert sums["reward_margin"].item() == pytest.approx(0.7 * margins.sum().item(), rel=1e-5)
        assert sums["reward_chosen"].item() == pytest.approx(0.7 * gains[:, 0].sum().item(), rel=1e-5)
        # Before the first step, the model equals its reference.
        for row, values in zip(rows, make().reference_values(batch), strict=True):
            row.values[:] = values
        sums = make()(batch_of([rows[::-1]]))
    assert sums["accuracy"].item() == 1.5
    assert sums["preference"].item() == pytest.approx(3 * math.log(2), rel=1e-5)


def test_the_router_loss_of_experts_is_added_to_the_parts_of_the_loss():
    rows = pair_rows(3)
    model, batch = tiny_model("mixtral"), batch_of([rows])
    loss = PreferenceLoss(model, "orpo", SETTINGS, sft_weight=SFT_WEIGHT)
    with_routers = RouterLoss(loss, model, 0.01)
    alone, sums = loss(batch), with_routers(batch)
    assert with_routers.parts.keys() == {"preference", "likelihood", "router_loss"}
    assert sums.keys() == {*alone, "router_loss"} and sums["router_loss"] > 0
    assert sums["preference"].item() == pytest.approx(alone["preference"].item(), rel=1e-5)
    assert with_routers.counts(batch) == {"pairs": 3, "chosen_tokens": 9, "tokens": batch.token_count}


def test_the_odds_of_a_certain_answer_are_finite():
    """The probability of a short answer may round to 1."""
    loss = PreferenceLoss(tiny_model("llama"), "orpo", SETTINGS)
    certain = torch.tensor([[0.0, -30.0]], requires_grad=True)
    loss.log_probabilities = lambda batch: (certain, torch.ones_like(certain))
    [row] = pair_rows(1)
    result = loss(batch_of([[row]]))["preference"]
    result.backward()
    assert result.isfinite() and certain.grad.isfinite().all()
