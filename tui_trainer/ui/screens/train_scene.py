"""All that one picture of the Train screen is made from."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tui_trainer.doctor.contract import Verdict
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, fit, hanging


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainScene:
    """Events are texts with roles, newest last.

    `is_beside` when the run is alive in this process, so that the machine's gauges are the run's; `interrupted` when it
    has not ended and its process is gone; `events_back` counts the newest events that are scrolled away; `offer` are
    sentences on what a start would do; `report` is the path of the run's page, empty
    without one; `resume` is what to press or type to go on.
    """

    state: RunState | None
    glyphs: Glyphs
    gauges: Gauges
    sparks: Mapping[str, Sequence[float]]
    events: Sequence[tuple[str, Role]] = ()
    log_lines: Sequence[str] = ()
    what_is_on: Sequence[str] = ()
    verdict: Verdict | None = None
    is_beside: bool = True
    interrupted: bool = False
    log_open: bool = False
    table_open: bool = False
    frozen: bool = False
    events_back: int = 0
    key_of: Callable[[str], str] = str
    report: str = ""
    resume: str = "tui-trainer resume last"
    run_folder: str = ""
    offer: Sequence[str] = ()

    @property
    def run(self) -> RunState:
        """The run, an empty one before there is one."""
        return self.state or RunState()

    @property
    def is_over(self) -> bool:
        return bool(self.run.failed or self.run.finished) or self.interrupted

    def shown(self, text: str) -> str:
        """Foreign text on one line, made harmless, and in ASCII where only that may appear."""
        return self.glyphs.only(one_line(text))

    def wrapped(self, text: str, width: int, most: int = 8, role: Role = "text", indent: str = "") -> list[Line]:
        """Foreign text in lines of at most `width` cells; the last of `most` ends with an ellipsis if there is more."""
        rows = textwrap.wrap(
            self.shown(text), width, subsequent_indent=indent, max_lines=most, break_on_hyphens=False,
            placeholder=f" {self.glyphs.ellipsis}",
        )  # fmt: skip
        # Signs that take two cells make a row wider than textwrap counts.
        return [fit([(row, role)], min(cell_len(row), width)) for row in rows]

    def labelled(self, label: str, text: str, width: int, cells: int, role: Role = "text") -> list[Line]:
        return hanging([(label.ljust(cells), "dim")], self.wrapped(text, width - cells, role=role))
