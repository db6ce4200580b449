"""What a loss needs to know of the whole effective batch before its first backward pass."""

from collections.abc import Sequence
from dataclasses import replace

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.several_parts import NamedLoss, Sums, idle_sums
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks
from tui_trainer.training.together import Together


def with_terms(
    loss: NamedLoss,
    window: Sequence[MicroBatch],
    counts: dict[str, int],
    mixed_precision: MixedPrecision,
    ranks: Ranks,
    together: Together,
) -> list[MicroBatch]:
    """The same passes, each with the terms of the window of all processes: one pass more over it, without gradients.
    `counts` are those of that window."""
    terms = Sums.of_terms(loss)
    with together.looking(), mixed_precision.autocast():
        for batch in window:
            found = loss.terms_of(batch)
            terms.add(idle_sums(found) if batch.is_idle else found)
    terms.values, terms.counts = ranks.sum(terms.values), counts
    means = terms.means()
    return [replace(batch, terms=means) for batch in window]
