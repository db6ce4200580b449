"""Lines under a rule with a title.

python -m tui_trainer.ui.widgets.section
"""

from __future__ import annotations

from collections.abc import Callable

from tui_trainer.ui.chart.axes import title_rule
from tui_trainer.ui.glyphs import ASCII, UNICODE
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane


class Section(Pane):
    """What `draw(width, height)` returns, below a rule with the two texts of `heading()` at its left and its right.

    As high as its lines, unless its style gives another height.
    """

    DEFAULT_CSS = "Section { height: auto; }"

    def __init__(
        self, heading: Callable[[], tuple[str, str]], draw: Callable[[int, int], list[Line]], *, id: str | None = None
    ) -> None:
        super().__init__(self._with_heading, id=id)
        self._heading, self._draw_rows = heading, draw

    def _with_heading(self, width: int, height: int) -> list[Line]:
        glyphs = ASCII if self.app.has_class("-ascii") else UNICODE
        title, note = self._heading()
        right: Line = [(note, "dim")] if note else []
        return [title_rule([(title, "title")], right, width, glyphs), *self._draw_rows(width, height - 1)]


if __name__ == "__main__":
    from textual.app import App, ComposeResult

    class Demo(App[None]):
        """Two of them."""

        def compose(self) -> ComposeResult:
            for title, rows in (("plan", 2), ("events", 3)):
                lines: list[Line] = [[(f"line {at}", "text")] for at in range(rows)]
                yield Section(lambda title=title: (title, "a note"), lambda *_, lines=lines: lines)

    Demo().run()
