"""Which model of the catalogue is the next smaller one, and which the next larger that fits: by name, with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import is_short, memory_budget
from tui_trainer.config.changes import Patch
from tui_trainer.deadlines import clock_words
from tui_trainer.errors import InputError
from tui_trainer.models.catalogue import CatalogueEntry, all_entries
from tui_trainer.models.facts import find_model
from tui_trainer.planning.automatic_values import is_from_scratch
from tui_trainer.planning.basis import with_settings
from tui_trainer.planning.deadline_ways import outlook
from tui_trainer.planning.duration import training_flops
from tui_trainer.tasks import find_task
from tui_trainer.units import format_bytes, format_count

_KEY = "model.model_name_or_path"
_DAY_SECONDS, _SHORT_SECONDS = 86_400.0, 3600.0
# What differs less is another model and no smaller one.
_SMALLER, _LARGER = 0.8, 1.5
_KINDS = {
    "causal_lm": ("ForCausalLM", "LMHeadModel"),
    "chat": ("ForCausalLM", "LMHeadModel"),
    "seq2seq": ("ForConditionalGeneration",),
    "sequence_classification": ("ForMaskedLM", "ForSequenceClassification"),
    "token_classification": ("ForMaskedLM",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Other:
    """Another model in the place of this one. Seconds are None where only a measured step can tell."""

    name: str
    parameters: int
    seconds: float | None
    memory_bytes: int

    @property
    def patch(self) -> Patch:
        return {_KEY: self.name}

    @property
    def words(self) -> str:
        """`distilbert/distilgpt2, 81.9 M, would be done at 16:40 with 2.1 GiB`."""
        now = datetime.now().astimezone()
        done = (
            ""
            if self.seconds is None
            else f" would be done at {clock_words(now + timedelta(seconds=self.seconds), now)}"
        )
        return f"{self.name}, {format_count(self.parameters)},{done} with {format_bytes(self.memory_bytes)}"


def look(context: Context) -> Verdict:
    plan, config = context.planned, context.config
    if is_from_scratch(config) or config.task.type not in _KINDS:
        return not_applicable("this model is made from scratch: its size is a setting, not a choice of names")
    own, budget = plan.parameters.value, memory_budget(context)
    smaller = next(_fitting(context, _sorted(config.task.type, 0, _SMALLER * own, reverse=True), budget), None)
    limit = _seconds_limit(context)
    words = f"{format_count(own)} parameters"
    too_long = context.duration_seconds is not None and context.duration_seconds > limit
    if is_short(context) or too_long:
        reason = "do not fit" if is_short(context) else f"take longer than {_limit_words(context)}"
        quick = _quick_enough(context, budget, limit)
        if quick is None:
            none = f"{words} {reason}, and no model of the catalogue is small enough"
            return warned(none, advice="lower data.max_length, or take less of the data: data.max_rows")
        here = find_model(quick.name).folder is not None
        advice = "" if here else f"tui-trainer download {quick.name}, then --model {quick.name}"
        return warned(f"{words} {reason}; {quick.words}", fix=quick.patch if here else None, advice=advice)
    details = [f"smaller: {smaller.words}"] if smaller else []
    if context.duration_seconds is not None and context.duration_seconds <= _SHORT_SECONDS:
        # Here there is time for more.
        larger = _sorted(config.task.type, _LARGER * own, float("inf"), reverse=False)
        fits = next((one for one in _fitting(context, larger, budget) if (one.seconds or 0) <= limit), None)
        details += [f"larger: {fits.words}"] if fits else []
    return passed("; ".join([words, *details]), *details)


def _sorted(task: str, low: float, high: float, *, reverse: bool) -> list[CatalogueEntry]:
    kinds = _KINDS[task]
    found = [
        entry
        for entry in all_entries()
        if low <= entry.parameters <= high and str((entry.config.get("architectures") or [""])[0]).endswith(kinds)
    ]
    return sorted(found, key=lambda entry: entry.parameters, reverse=reverse)


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
    rows = plan.longest_row
    times = training_flops(shape, basis.setup, tokens=1, row_tokens=rows) / training_flops(
        basis.shape, basis.setup, tokens=1, row_tokens=rows
    )
    seconds = context.duration_seconds
    return _Other(
        name=entry.name,
        parameters=shape.parameters,
        seconds=None if seconds is None else seconds * times,
        memory_bytes=needed,
    )


def _quick_enough(context: Context, budget: float | None, limit: float) -> _Other | None:
    """The largest of the smaller ones that fits into memory and time."""
    smaller = _sorted(context.config.task.type, 0, _SMALLER * context.planned.parameters.value, reverse=True)
    return next((one for one in _fitting(context, smaller, budget) if (one.seconds or 0) <= limit), None)


def _seconds_limit(context: Context) -> float:
    found = outlook(context.planned)
    return min(_DAY_SECONDS, found.seconds_left) if found else _DAY_SECONDS


def _limit_words(context: Context) -> str:
    return "the deadline leaves" if outlook(context.planned) else "1 day"


CHECK = Check(
    look,
    order=202,
    title="Smaller and larger models",
    guides=("A quick win 1", "D underutilisation 5"),
    claim="2-3x faster, 40 % less memory with distilgpt2 (guide A)",
    why="A name with its time and memory is a choice; a sentence about smaller models is none.",
)
