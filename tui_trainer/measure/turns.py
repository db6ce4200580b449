"""Measure variants of one piece of work in turns, each turn in a fresh process.

A fresh process has its own memory peak, and a crash ends only one variant. Turns alternate, so that other load on the
machine affects all variants alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from types import TracebackType
from typing import Any

from tui_trainer.errors import InputError
from tui_trainer.units import format_seconds
from tui_trainer.worker.asking import WorkerFailed

INTERRUPTED = "interrupted"
CURRENT = "current settings"
NOT_MEASURED = "not measured"
Notify = Callable[[str], None]
"""Callback that shows a one-sentence notice to the user."""
Ask = Callable[["Variant", bool, float], dict[str, Any]]
"""Callback that measures a variant once: (variant, whether it is its first turn, seconds left). Raises WorkerFailed."""


@dataclass(kw_only=True, slots=True)
class Variant:
    """One change to measure. `answers` has the figures of each turn so far.

    `reason` says why the variant is not measured, why it failed, or why it is not chosen."""

    name: str
    patch: Mapping[str, Any] = field(default_factory=dict)
    """Changed settings keyed by name, or options for running a model."""
    reason: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)

    def values(self, name: str) -> list[float]:
        return [answer[name] for answer in self.answers if answer.get(name) is not None]

    def median(self, name: str) -> float | None:
        return median(values) if (values := self.values(name)) else None

    def spread_share(self, name: str) -> float | None:
        return spread_of(self.values(name))


def spread_of(values: Sequence[float]) -> float | None:
    """Return half of the range of the values, as a share of their median; None for a single value."""
    return (max(values) - min(values)) / 2 / median(values) if len(values) > 1 and median(values) else None


class TimeOver(Exception):
    """Raised if there is no time for another turn."""


class TimeLimit:
    """Context manager that ends its block on TimeOver or Ctrl+C. `cut_short` then says which; otherwise it is empty."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.cut_short = seconds, ""
        self._ends = monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        return self._ends - monotonic()

    def require(self, seconds: float = 0.0) -> float:
        """Return the seconds that are left. Raises TimeOver if they are not more than `seconds`."""
        if (left_seconds := self.left_seconds) <= seconds:
            raise TimeOver
        return left_seconds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, KeyboardInterrupt):
            self.cut_short = INTERRUPTED
        elif isinstance(error, TimeOver):
            self.cut_short = f"the time limit of {format_seconds(self.seconds)} was reached"
        else:
            return False
        return True


def pick_variants(variants: Sequence[Variant], only: Sequence[str]) -> list[Variant]:
    """Return the baseline (the first variant) and all variants with a word of `only` in their names.

    If `only` is empty, return all. Raises InputError if no name has one of the words."""
    picked_variants = [variant for variant in variants if not only or any(word in variant.name for word in only)]
    if not picked_variants:
        names = ", ".join(variant.name for variant in variants)
        raise InputError(f"no variant has {' or '.join(only)} in its name", hint=f"variants: {names}")
    return picked_variants if variants[0] in picked_variants else [variants[0], *picked_variants]


def measure_in_turns(
    variants: Sequence[Variant], ask: Ask, limit: TimeLimit, *, rounds: int, notify: Notify, needs_all: bool = False
) -> None:
    """Measure each variant without a reason once per round, for up to `rounds` rounds within the time limit.

    With `needs_all`, stop as soon as a variant has failed."""
    longest_seconds = 0.0
    with limit:
        for round_number in range(rounds):
            for variant in [candidate for candidate in variants if not candidate.reason]:
                if needs_all and any(any_variant.reason for any_variant in variants):
                    return
                left_seconds, started_at = limit.require(longest_seconds if round_number else 0.0), monotonic()
                notify(f"round {round_number + 1} of {rounds}: {variant.name}")
                try:
                    variant.answers.append(ask(variant, not variant.answers, left_seconds))
                except WorkerFailed as failure:
                    variant.reason = failure.reason or str(failure)
                turn_seconds = monotonic() - started_at
                longest_seconds = max(longest_seconds, turn_seconds)
                notify(f"  {variant.reason or 'measured'}, {format_seconds(turn_seconds)}")
    explain_unmeasured(variants, limit.cut_short)


def explain_unmeasured(variants: Sequence[Variant], why: str) -> None:
    """Set `why` as the reason of each variant that has neither an answer nor a reason."""
    for variant in variants:
        if why and not variant.answers and not variant.reason:
            variant.reason = f"{NOT_MEASURED}: {why}"


Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""Functions that turn a row into the text of a cell, keyed by the title of the column."""


def table_of(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of a table: the titles, then the cells of each row that has figures."""
    return [[*columns], *([show(row) for show in columns.values()] for row in rows if row["turns"])]


def turns_words(rounds: int) -> str:
    return ("one round" if rounds == 1 else f"medians of up to {rounds} rounds") + ", each in a fresh process"


def with_spread(value: float, spread: float | None) -> str:
    """Return a median and its spread in words: `12.3 ±4%`."""
    return f"{value:,.1f}" + ("" if spread is None else f" ±{spread:.0%}")


def reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return `NAME: REASON` for each row that has no figures or was not chosen."""
    return [f"{row['name']}: {row['reason']}" for row in rows if row["reason"]]
