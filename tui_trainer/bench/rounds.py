"""Variants of one piece of work, measured in turns, each time in a fresh process: so its peak memory is its own, one
that crashes ends only its own line, and what else the machine does falls on all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Any

from tui_trainer.errors import InputError
from tui_trainer.units import format_seconds
from tui_trainer.worker.asking import WorkerFailed

Ask = Callable[["Variant", bool, float], dict[str, Any]]
"""Given a variant, whether this is its first turn, and the seconds that it may take. Raises WorkerFailed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """`reason` says why it does not apply here; empty: it is measured."""

    name: str
    question: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class Measured:
    """One answer for each turn that was taken, or the reason why there is none."""

    variant: Variant
    answers: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    def values(self, name: str) -> list[float]:
        return [answer[name] for answer in self.answers if answer.get(name) is not None]

    def median(self, name: str) -> float | None:
        return median(found) if (found := self.values(name)) else None

    def spread(self, name: str) -> float | None:
        """Half of the way from the least to the most, as a share of the median; None for one turn."""
        found = self.values(name)
        return (max(found) - min(found)) / 2 / median(found) if len(found) > 1 and median(found) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What was measured, and why that is not all that was asked for; empty: it is."""

    measured: Sequence[Measured]
    cut_short: str


def chosen(variants: Sequence[Variant], only: Sequence[str]) -> list[Variant]:
    """The first, with which the others are compared, and those with a word of `only` in their names; without any all.
    Raises InputError where there are none."""
    found = [one for one in variants if not only or any(word in one.name for word in only)]
    if not found:
        names = ", ".join(one.name for one in variants)
        raise InputError(f"no variant has {' or '.join(only)} in its name", hint=f"there are: {names}")
    return found if variants[0] in found else [variants[0], *found]


def measure_in_turns(
    variants: Sequence[Variant],
    ask: Ask,
    *,
    rounds: int,
    seconds: float,
    told: Callable[[str], None],
    needs_all: bool = False,
) -> Bench:
    """All variants once, then all once more, until `seconds` are over or Ctrl+C is pressed. `needs_all`: none is asked
    once one of them has failed."""
    found = [Measured(variant=variant, reason=variant.reason) for variant in variants]
    ends, longest, cut_short = monotonic() + seconds, 0.0, ""
    try:
        for number in range(rounds):
            for one in [one for one in found if not one.reason]:
                if needs_all and any(other.reason for other in found):
                    break
                left, started = ends - monotonic(), monotonic()
                if left <= (longest if number else 0):
                    cut_short = f"{format_seconds(seconds)} were over"
                    one.reason = "" if one.answers else f"not measured: {cut_short}"
                    continue
                told(f"round {number + 1} of {rounds}: {one.variant.name}")
                try:
                    one.answers.append(ask(one.variant, not one.answers, left))
                except WorkerFailed as failure:
                    one.reason = failure.reason or str(failure)
                longest = max(longest, monotonic() - started)
                told(f"  {one.reason or 'measured'}, {format_seconds(monotonic() - started)}")
    except KeyboardInterrupt:
        cut_short = "interrupted"
        for one in found:
            one.reason = one.reason or ("" if one.answers else "not measured: interrupted")
    return Bench(measured=found, cut_short=cut_short)


Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""What a column shows of a row, by its title."""


def table_of(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The titles, and the cells of the rows that have figures."""
    return [[*columns], *([show(row) for show in columns.values()] for row in rows if row["turns"])]


def with_spread(value: float, spread: float | None) -> str:
    """`12.3 ±4%`, a median and half of its spread."""
    return f"{value:,.1f}" + ("" if spread is None else f" ±{spread:.0%}")
