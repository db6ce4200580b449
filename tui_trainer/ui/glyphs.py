"""The signs that are drawn with: full Unicode, or ASCII for terminals and fonts that have no more."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """One set. `eighths` goes from an empty cell to a full one, `levels` from the lowest bar of a sparkline up."""

    ascii: bool = False
    eighths: str = " ▏▎▍▌▋▊▉█"
    bar_empty: str = "·"
    target: str = "░"
    levels: str = "▁▂▃▄▅▆▇█"
    rule: str = "─"
    vertical: str = "│"
    corner: str = "└"
    tick_down: str = "┬"
    tick_left: str = "┤"
    above: str = "▴"
    below: str = "▾"
    ellipsis: str = "…"
    good: str = "✓"
    warn: str = "!"
    bad: str = "✗"
    none: str = "\u2013"
    pointer: str = "▸"
    changed: str = "●"
    eval_mark: str = "◆"
    dot: str = "·"
    times: str = "\u00d7"
    arrow: str = "→"

    def only(self, text: str) -> str:
        """The text, in ASCII where only that may appear."""
        return text.encode("ascii", "replace").decode() if self.ascii else text


UNICODE = Glyphs()
ASCII = Glyphs(
    ascii=True, eighths=" #", bar_empty=".", target="=", levels=".:-=+*#", rule="-", vertical="|", corner="+",
    tick_down="+", tick_left="+", above="^", below="v", ellipsis="~", good="ok", bad="x", none="-", pointer=">",
    changed="*", eval_mark="o", dot=".", times="x", arrow="->",
)  # fmt: skip


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """A horizontal bar of `width` cells for a share of 0 to 1; blanks with `--` for None."""
    if share is None:
        return "--".ljust(width)[:width]
    steps = len(glyphs.eighths) - 1
    full, part = divmod(round(min(max(share, 0.0), 1.0) * width * steps), steps)
    drawn = glyphs.eighths[-1] * full + glyphs.eighths[part].strip()
    return drawn + glyphs.bar_empty * (width - len(drawn))


def sparkline(
    values: Sequence[float | None], width: int, glyphs: Glyphs, *, low: float | None = None, high: float | None = None
) -> str:
    """The newest values at the right end of exactly `width` cells; more values than cells are averaged in groups.

    None, NaN and infinity are gaps. Without `low` and `high` the range is that of the values.
    """
    # Groups are counted from the first value: those that are full do not change when values are added.
    size = max(math.ceil(len(values) / max(width, 1)), 1)
    means = [_mean(values[begin : begin + size]) for begin in range(0, len(values) if width > 0 else 0, size)]
    known = [mean for mean in means if mean is not None]
    bottom = min(known, default=0.0) if low is None else low
    top = max(known, default=1.0) if high is None else high
    last = len(glyphs.levels) - 1
    signs = ""
    for mean in means:
        share = 0.5 if mean is None or top <= bottom else (mean - bottom) / (top - bottom)
        signs += " " if mean is None else glyphs.levels[min(max(round(share * last), 0), last)]
    return signs.rjust(width)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
