"""The signs that are drawn with: full Unicode, or ASCII for terminals and fonts that have no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """One set. `eighths` goes from an empty cell to a full one, `levels` from the lowest bar of a sparkline up."""

    ascii: bool
    eighths: str
    bar_empty: str
    levels: str
    rule: str
    vertical: str
    ellipsis: str
    good: str
    warn: str
    bad: str
    none: str
    pointer: str
    changed: str
    eval_mark: str
    dot: str
    times: str
    arrow: str


UNICODE = Glyphs(
    ascii=False,
    eighths=" ▏▎▍▌▋▊▉█",
    bar_empty="·",
    levels="▁▂▃▄▅▆▇█",
    rule="─",
    vertical="│",
    ellipsis="…",
    good="✓",
    warn="!",
    bad="✗",
    none="\u2013",
    pointer="▸",
    changed="●",
    eval_mark="◆",
    dot="·",
    times="\u00d7",
    arrow="→",
)
ASCII = Glyphs(
    ascii=True,
    eighths=" #",
    bar_empty=".",
    levels=".:-=+*#",
    rule="-",
    vertical="|",
    ellipsis="~",
    good="ok",
    warn="!",
    bad="x",
    none="-",
    pointer=">",
    changed="*",
    eval_mark="o",
    dot=".",
    times="x",
    arrow="->",
)


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """A horizontal bar of `width` cells for a share of 0 to 1; blanks with `--` for None."""
    if share is None:
        return "--".ljust(width)[:width]
    share = min(max(share, 0.0), 1.0)
    steps = len(glyphs.eighths) - 1
    filled = round(share * width * steps)
    full, part = divmod(filled, steps)
    drawn = glyphs.eighths[-1] * full + (glyphs.eighths[part] if part else "")
    return drawn + glyphs.bar_empty * (width - len(drawn))
