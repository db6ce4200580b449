"""Numbers as text. Bytes have binary units (GiB), counts decimal units (1.2 M), durations units from ms to days.

A number that would be rounded up to the next larger unit is written in that unit: 999,700 is 1 M and not 1e+03 k."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from inspect import get_annotations
from typing import Any, Final, Literal, get_type_hints

KIB = 1024
MIB = 1024**2
GIB = 1024**3
_BYTE_UNITS = (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def format_bytes(count: float | None) -> str:
    """Return bytes as text: `1.5 GiB`; `--` for None."""
    if count is None:
        return "--"
    for unit, size in _BYTE_UNITS:
        if abs(count) >= size * (1 - 0.05 / 1024):
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def format_bytes_of(part: float, whole: float) -> str:
    """Return two byte counts as text, in the unit of the second: `2.1 of 2.4 GiB`."""
    unit, size = next(((unit, size) for unit, size in _BYTE_UNITS if abs(whole) >= size), ("KiB", KIB))
    return f"{part / size:.1f} of {whole / size:.1f} {unit}"


def format_count(count: float | None) -> str:
    """Return a count as text: `1.24 M`, `640 k`, `999`; `--` for None."""
    if count is None:
        return "--"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size * 0.9995:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}" if count != int(count) else f"{int(count)}"


_SINGULAR: Final = {"are": "is", "have": "has", "do": "does"}


def quantity(count: float, noun: str, verb: str = "") -> str:
    """Return a count with `noun`, and `verb` if given, in the singular or plural: `1 row is`, `1,870 rows are`."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    if count == 1:
        return f"{number} {noun}" + (f" {_SINGULAR.get(verb, f'{verb}s')}" if verb else "")
    return f"{number} {noun}s" + (f" {verb}" if verb else "")


def format_rate(per_second: float | None, of: str) -> str:
    """Return a rate as text: `16.4 k tokens/s`, `28.3 rows/s`; `-- rows/s` for None."""
    return f"{format_count(per_second)} {of}/s"


def format_number(number: float, digits: int = 3) -> str:
    """Return a number as text with `digits` significant digits, but never a rounded integer part: `0.0312`, `2,310`."""
    return f"{number:,.0f}" if abs(number) >= 10**digits - 0.5 else f"{number:.{digits}g}"


def listed(names: Sequence[str], conjunction: str = "or") -> str:
    """Return names joined for a sentence: `a, b or c`."""
    return f" {conjunction} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def format_percent(share: float) -> str:
    """Return a share between 0 and 1 as text: `61 %`."""
    return f"{100 * share:.0f} %"


def format_seconds(seconds: float | None) -> str:
    """Return a duration as text: `0.17 ms`, `8.4 s`, `2 min 05 s`, `3 h 12 min`, `2 d 4 h`; `--` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "--"
    if seconds < 0.9995:
        digits = 2 if 0 < seconds < 0.00095 else 0
        return f"{seconds * 1000:.{digits}f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest_seconds = divmod(round(seconds), 60)
        return f"{minutes} min {rest_seconds:02d} s"
    if seconds < 86370:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"


def utc_now() -> str:
    """Return the time in UTC with milliseconds: `2026-11-20T13:45:00.123Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def format_whole_seconds(seconds: float | None) -> str:
    """Return a duration as text, in whole seconds below a minute: `41 s`."""
    return f"{seconds:.0f} s" if seconds is not None and seconds < 60 else format_seconds(seconds)


Unit = Literal["count", "rounded count", "bytes", "seconds", "number", "share", "flag", "text"]
_WRITTEN: Final[dict[Unit, Callable[[Any], str]]] = {
    "count": "{:,}".format,
    "rounded count": format_count,
    "bytes": format_bytes,
    "seconds": format_seconds,
    "number": "{:g}".format,
    "share": "{:.1%}".format,
    "flag": lambda value: "yes" if value else "no",
    "text": str,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Title and unit of a figure, which all screens and reports use.

    A figure is declared once, in the annotation of the field that holds its value, or of the property that returns it:
    `total_steps: Annotated[Planned[int], Figure(title="steps")]`. If `RunState` and `Plan` have a figure with the same
    name, `RunState` has its measured value and `Plan` its planned value."""

    title: str
    unit: Unit = "count"
    config_place: int = 0
    """Position of the figure on the Config screen, from 1; 0 if the figure is not shown there."""
    in_journal: bool = False
    """Whether the journal contains the planned value, in `PlanMade.figures`."""


SETTING_NAMES: Final = {
    "answer_rows": "generate_rows",
    "eval_rows": "max_eval_rows",
    "grouping": "group_by_length",
    "precision": "mixed_precision",
    "attention": "attn_implementation",
    "weights_dtype": "dtype",
    "loader_workers": "num_workers",
    "threads": "cpu_threads",
}
"""Names of the settings whose `auto` a figure of `Plan` resolves, keyed by figure, if they differ."""


def figure_text(figure: Figure, value: Any) -> str:
    """Return the value of a figure as text in its unit; `--` for None."""
    return "--" if value is None else _WRITTEN[figure.unit](value)


def plotted(figure: Figure, value: float) -> float:
    """Return a value in the unit that charts and trackers use: GiB for bytes."""
    return value / GIB if figure.unit == "bytes" else value


@cache
def figures_of(holder: type) -> dict[str, Figure]:
    """Return the `Figure` of each field or property of a class that has one, in the order of declaration."""
    annotated: dict[str, Any] = {}
    for base in reversed(holder.__mro__):
        annotated |= get_annotations(base)
        for name, member in vars(base).items():
            # The annotations of other properties may name types that exist only for a type checker.
            if isinstance(member, property) and "Annotated[" in str(member.fget.__annotations__.get("return")):
                annotated[name] = get_type_hints(member.fget, include_extras=True)["return"]
    metadata_by_name = ((name, getattr(annotation, "__metadata__", ())) for name, annotation in annotated.items())
    return {name: item for name, metadata in metadata_by_name for item in metadata if isinstance(item, Figure)}
