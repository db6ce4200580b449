"""A name with its time and memory is a choice; a sentence about smaller models is none.

Source: Sanh et al., DistilBERT, arXiv:1910.01108.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import is_short
from tui_trainer.errors import InputError
from tui_trainer.models.catalogue import CatalogueEntry, all_entries
from tui_trainer.models.facts import find_model
from tui_trainer.planning.basis import with_settings
from tui_trainer.planning.duration import training_flops
from tui_trainer.tasks import find_task
from tui_trainer.units import format_bytes, format_count, format_seconds

_KEY = "model.model_name_or_path"
_DAY_SECONDS, _SHORT_SECONDS = 86_400.0, 3600.0
# What differs less is another model and no smaller one.
_SMALLER, _LARGER = 0.8, 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Other:
    """Another model in the place of this one. Seconds are None where only a measured step can tell."""

    name: str
    parameters: int
    seconds: float | None
    memory_bytes: int

    @property
    def words(self) -> str:
        """`distilbert/distilgpt2, 81.9 M, would take about 2 h 10 min with 2.1 GiB`."""
        takes = "" if self.seconds is None else f" would take about {format_seconds(self.seconds)}"
        return f"{self.name}, {format_count(self.parameters)},{takes} with {format_bytes(self.memory_bytes)}"


@check(
    order=202,
    title="Smaller and larger models",
    published="DistilBERT is 40 % smaller and 60 % faster than BERT (arXiv:1910.01108)",
)
def look(context: Context) -> Verdict:
    plan, config = context.planned, context.config
    kinds = find_task(config.task.type).architectures
    if config.is_from_scratch or not kinds:
        return not_applicable("this model is made from scratch: its size is a setting, not a choice of names")
    own, budget = plan.parameters.value, context.basis.room.budget_bytes
    smaller = _fitting(context, _sorted(kinds, 0, _SMALLER * own, reverse=True), budget)
    words = f"{format_count(own)} parameters"
    too_long = context.duration_seconds is not None and context.duration_seconds > _DAY_SECONDS
    if is_short(context) or too_long:
        reason = "do not fit" if is_short(context) else "take longer than 1 day"
        quick = next((one for one in smaller if (one.seconds or 0) <= _DAY_SECONDS), None)
        if quick is None:
            none = f"{words} {reason}, and no model of the catalogue is small enough"
            return warned(none, advice="lower data.max_length, or take less of the data: data.max_rows")
        here = find_model(quick.name).folder is not None
        advice = "" if here else f"tui-trainer download {quick.name}, then --model {quick.name}"
        return warned(f"{words} {reason}; {quick.words}", fix={_KEY: quick.name} if here else None, advice=advice)
    details = [f"smaller: {one.words}" for one in islice(smaller, 1)]
    if context.duration_seconds is not None and context.duration_seconds <= _SHORT_SECONDS:
        # Here there is time for more.
        larger = _sorted(kinds, _LARGER * own, float("inf"), reverse=False)
        fits = next((one for one in _fitting(context, larger, budget) if (one.seconds or 0) <= _DAY_SECONDS), None)
        details += [f"larger: {fits.words}"] if fits else []
    return passed("; ".join([words, *details]), *details)


def _sorted(kinds: tuple[str, ...], low: float, high: float, *, reverse: bool) -> list[CatalogueEntry]:
    def fits(entry: CatalogueEntry) -> bool:
        kind = str((entry.config.get("architectures") or [""])[0])
        return low <= entry.parameters <= high and kind.endswith(kinds)

    return sorted(filter(fits, all_entries()), key=lambda entry: entry.parameters, reverse=reverse)


def _fitting(context: Context, entries: list[CatalogueEntry], budget: float | None) -> Iterator[_Other]:
    for entry in entries:
        other = _instead(context, entry)
        if other is not None and (budget is None or other.memory_bytes <= budget):
            yield other


def _instead(context: Context, entry: CatalogueEntry) -> _Other | None:
    """The same run with this model; None where it cannot be planned."""
    plan, basis = context.planned, context.basis
    loaded = with_settings(context.loaded, {_KEY: entry.name, "model.revision": "main"})
    try:
        shape = find_task(context.config.task.type).model_shape(loaded.config, plan.vocabulary.value, plan.classes)
        if shape.max_position_embeddings and shape.max_position_embeddings < plan.longest_row:
            return None
        needed = replace(basis, loaded=loaded, shape=shape).needed_bytes()
    except (InputError, LookupError, ValueError):
        return None
    flops = partial(training_flops, setup=basis.setup, tokens=1, row_tokens=plan.longest_row)
    times = flops(shape) / flops(basis.shape)
    seconds = None if context.duration_seconds is None else context.duration_seconds * times
    return _Other(name=entry.name, parameters=shape.parameters, seconds=seconds, memory_bytes=needed)
