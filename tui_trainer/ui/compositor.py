"""Textual's compositor, sending only the part of a line that changed.

Textual cuts a dirty stretch at its right end only: everything from the left edge of the widget on is sent again. For a
canvas as wide as the screen that is most of each line, and eight times the bytes of a Train screen at 200x50.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor
from textual.screen import Screen


class TightUpdate(ChopsUpdate):
    """Stretches `(line, first cell, cell behind the last)`, cut at both ends."""

    def render_segments(self, console: Console) -> str:
        """The bytes for the terminal."""
        sequences: list[str] = []
        for y, x1, x2 in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                first, last = max(x, x1), min(end, x2)
                if strip is not None and first < last:
                    sequences.append(Control.move_to(first, y).segment.text)
                    sequences.append(strip.crop(first - x, last - x).render(console))
        return "".join(sequences)


class TightCompositor(Compositor):
    """Says what changed with tight stretches."""

    def render_partial_update(self) -> ChopsUpdate | None:
        update = super().render_partial_update()
        return None if update is None else TightUpdate(update.chops, update.spans, update.chop_ends)


class BareScreen(Screen[object], inherit_bindings=False):
    """A screen that sends what changed, and has none of Textual's own keys: the registry has them all."""

    def __init__(self) -> None:
        super().__init__(id="_default")
        self._compositor = TightCompositor()
