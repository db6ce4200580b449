"""Textual's compositor, sending only the part of a line that changed: the one place with private names of Textual.

Textual cuts a changed stretch at its right end only: everything from the left edge of the widget on is sent again. For
a chart as wide as the screen that is most of each line, and eight times the bytes of a Train screen at 200x50. A
Textual that has other names sends its own, longer updates; `tests/ui/test_tight_updates.py` fails then.
"""

from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.control import Control
from textual.screen import Screen


def tighten(screen: Screen[Any]) -> None:
    """Let a screen that was just made send tight updates, if this Textual can."""
    with suppress(ImportError, AttributeError):
        from textual._compositor import ChopsUpdate, Compositor

        class TightUpdate(ChopsUpdate):
            """Stretches `(line, first cell, cell behind the last)`, cut at both ends."""

            def render_segments(self, console: Console) -> str:
                sequences: list[str] = []
                for y, x1, x2 in self.spans:
                    for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                        first, last = max(x, x1), min(end, x2)
                        if strip is not None and first < last:
                            sequences.append(Control.move_to(first, y).segment.text)
                            sequences.append(strip.crop(first - x, last - x).render(console))
                return "".join(sequences)

        class TightCompositor(Compositor):
            def render_partial_update(self) -> ChopsUpdate | None:
                update = super().render_partial_update()
                return None if update is None else TightUpdate(update.chops, update.spans, update.chop_ends)

        if isinstance(screen._compositor, Compositor):
            screen._compositor = TightCompositor()
