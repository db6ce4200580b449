"""Lines under a rule with a title, and a container for them.

python -m tui_trainer.ui.widgets.section
"""

from collections.abc import Callable

from textual.strip import Strip
from textual.widget import Widget

from tui_trainer.ui.spans import Line, title_rule
from tui_trainer.ui.theme import role_styles
from tui_trainer.ui.widgets.pane import Pane


class Area(Widget):
    """A container without a colour where nothing stands: Textual's filter for NO_COLOR makes the default black."""

    def render_line(self, y: int) -> Strip:
        return Strip.blank(self.size.width, role_styles(self.app)["text"])


class Section(Pane):
    """What `draw(width, height)` returns, below a rule with the two texts of `heading()` at its left and its right.

    As high as its lines, unless its style gives another height.
    """

    DEFAULT_CSS = "Section { height: auto; }"

    def __init__(
        self, heading: Callable[[], tuple[str, str]], draw: Callable[[int, int], list[Line]], *, id: str | None = None
    ) -> None:
        def with_heading(width: int, height: int) -> list[Line]:
            title, note = heading()
            return [title_rule(title, width, self.glyphs, note), *draw(width, height - 1)]

        super().__init__(with_heading, id=id)


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    Demo(lambda: [Section(lambda: ("plan", "a note"), lambda *_: [[("first line", "text")]])]).run()
