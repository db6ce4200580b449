"""The signs that are drawn with: full Unicode, or ASCII for terminals and fonts that have no more."""

from __future__ import annotations

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
