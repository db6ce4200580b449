"""KTO's loss equals the formula of its paper, computed from all logits, however the rows share passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.losses.test_preference import batch_of, gradients, log_probabilities, pair_rows
from tests.tiny_models import tiny_model
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.losses.kto import KtoLoss
from tui_trainer.losses.named_losses import NamedLossSums
from tui_trainer.losses.router_loss import RouterLoss
from tui_trainer.tasks.kto import pair_accuracy

BETA, WEIGHTS = 0.7, (1.5, 0.8)


def marked_rows(count: int, reference: tuple[float, float] = (-20.0, -20.0)) -> list[TokenRow]:
    """Return rows with two documents and a mark. Every third answer is undesirable."""
    values = np.array(reference, dtype=np.float32)
    return [
        replace(row, row_label=np.array([number % 3 > 0], dtype=np.int32), values=row.values * 0 + values)
        for number, row in enumerate(pair_rows(count))
    ]


def expected_values(model, rows: list[TokenRow]) -> tuple[torch.Tensor, float, torch.Tensor]:
    """Return the loss of the paper's equation 7, its KL term and the gains of the own answers."""
    sums = torch.stack([torch.stack(log_probabilities(model, row)[0]) for row in rows])
    gains = sums - torch.tensor(np.stack([row.values for row in rows]))
    kl = max(0.0, gains[:, 1].mean().item())
    losses = []
    for row, gain in zip(rows, gains[:, 0], strict=True):
        weight, sign = (WEIGHTS[0], 1) if row.row_label else (WEIGHTS[1], -1)
        losses.append(weight - weight * torch.sigmoid(sign * BETA * (gain - kl)))
    return torch.stack(losses).mean(), kl, gains[:, 0]


def in_passes(loss, batches) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss of an effective batch and its scores, as the training loop adds them up."""
    terms, totals = NamedLossSums.of_terms(loss), NamedLossSums.of(loss)
    terms.count(batches)
    with torch.no_grad():
        for batch in batches:
            terms.add(loss.terms_of(batch))
    totals.count(batches)
    results = [loss(replace(batch, terms=terms.means())) for batch in batches]
    for result in results:
        totals.add(result)
    return sum(totals.loss(result) for result in results), totals.reported_means()


def test_the_loss_equals_its_formula_in_every_layout(subtests):
    # The other answers are more likely than under the first reference, and less likely than under the second one.
    for reference in ((-20.0, -24.0), (-20.0, -1.0)):
        rows = marked_rows(6, reference)
        layouts = {
            "padded": [batch_of([rows])],
            "one by one": [batch_of([[row]]) for row in rows],
            "two and four": [batch_of([rows[:2]]), batch_of([rows[2:]])],
            "packed": [batch_of([rows[:4], rows[4:]], packed=True)],
        }
        model = tiny_model("llama")
        wanted, kl, gains = expected_values(model, rows)
        assert (kl > 0) == (reference[1] < -1)
        expected = gradients(model, wanted)
        assert max(gradient.abs().max() for gradient in expected) > 1e-2
        are_desirable = torch.tensor([bool(row.row_label) for row in rows])
        for (name, batches), chunk_tokens in ((item, size) for item in layouts.items() for size in (0, 3)):
            with subtests.test(f"{reference}, {name}, chunks of {chunk_tokens}"):
                loss, scores = in_passes(KtoLoss(model, beta=BETA, weights=WEIGHTS, chunk_tokens=chunk_tokens), batches)
                assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
                assert scores["kl"] == pytest.approx(kl, rel=1e-5)
                assert scores["reward_chosen"] == pytest.approx(BETA * gains[are_desirable].mean().item(), rel=1e-4)
                assert scores["reward_rejected"] == pytest.approx(BETA * gains[~are_desirable].mean().item(), rel=1e-4)
                for ours, theirs in zip(gradients(model, loss), expected, strict=True):
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_answers_that_are_all_desirable_have_no_means_of_others():
    rows = [replace(row, row_label=np.array([1], dtype=np.int32)) for row in marked_rows(3)]
    _, scores = in_passes(KtoLoss(tiny_model("llama"), beta=BETA, weights=WEIGHTS), [batch_of([rows])])
    assert scores.keys() == {"kl", "reward_chosen", "logp_chosen"}


def test_the_router_loss_of_experts_keeps_the_kl_term():
    model, batch = tiny_model("mixtral"), batch_of([marked_rows(3, (-20.0, -60.0))])
    alone, _ = in_passes(loss := KtoLoss(model, beta=BETA, weights=WEIGHTS), [batch])
    together, scores = in_passes(RouterLoss(loss, model, 0.01), [batch])
    assert together.item() == pytest.approx(alone.item() + scores["router_loss"], rel=1e-5)


def test_the_accuracy_is_the_share_of_pairs_of_a_desirable_and_an_undesirable_answer(subtests):
    marks = np.array([True, True, False, False])
    cases = (([4.0, 3.0, 2.0, 1.0], 1.0), ([1.0, 2.0, 3.0, 4.0], 0.0), ([3.0, 1.0, 2.0, 0.0], 0.75),
             ([0.0, 0.0, 0.0, 0.0], 0.5), ([2.05, 0.0, 2.0, 1.0], 0.375))  # fmt: skip
    for values, accuracy in cases:
        with subtests.test(str(values)):
            assert pair_accuracy(np.array(values), marks, equal=0.1) == accuracy
    assert pair_accuracy(np.array([1.0]), np.array([True])) is None
