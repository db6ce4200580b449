"""Two to six runs beside each other: their curves over one axis, what came of them, and the settings that differ."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from textual.containers import VerticalScroll
from textual.widget import Widget

from tui_trainer.comparison_lines import comparison_lines
from tui_trainer.errors import InputError
from tui_trainer.runs.comparison import Comparison, CurvePoint, compare
from tui_trainer.runs.folder import RunFolder
from tui_trainer.safe_text import one_line
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.screens.runs_view import SIGNS
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.curves import ROLES, Curve, Curves
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench

_FIELDS: Final = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}


class CompareDialog(Dialog):
    heading = "Compare"
    keys = (("x", "steps, tokens, seconds"), ("y", "log scale"), ("up down", "scroll"), ("escape", "close"))

    def __init__(self, bench: Workbench, folders: Sequence[RunFolder]) -> None:
        super().__init__()
        self._bench, self._folders = bench, folders
        self._answer: Comparison | str | None = None
        self._curves = Curves()

    def inside(self) -> Iterable[Widget]:
        with VerticalScroll(id="inside", can_focus=False):
            yield Pane(lambda *_: self._legend())
            yield self._curves
            yield Pane(lambda width, _: self.lines(width))

    def on_mount(self) -> None:
        self._bench.background.do("comparison", self._compare, self._compared)

    def _compare(self) -> Comparison | str:
        try:
            return compare(self._folders)
        except (InputError, OSError) as error:
            return one_line(str(error))

    def _compared(self, answer: Comparison | str) -> None:
        self._answer = answer
        if self.is_attached:
            self._show_curves()
            self.redraw()

    def _show_curves(self) -> None:
        if isinstance(self._answer, Comparison):
            self._curves.curves = [
                Curve(sign=sign, points=self._points(run.train_curve), marks=self._points(run.eval_curve))
                for sign, run in zip(SIGNS, self._answer.runs, strict=False)
            ]

    def _points(self, curve: Sequence[CurvePoint]) -> list[tuple[float, float]]:
        x_of = attrgetter(_FIELDS[self._curves.unit])
        return [(float(x_of(point)), point.loss) for point in curve]

    def _legend(self) -> list[Line]:
        mark = self.glyphs.eval_mark
        names: list[Line] = [
            [(f"{sign} ", role), (one_line(folder.name), "text"), (f"  {one_line(str(folder.root.parent))}", "dim")]
            for sign, role, folder in zip(SIGNS, ROLES, self._folders, strict=False)
        ]
        scale = ", logarithmic" if self._curves.is_log else ""
        return [*names, [(f"training loss over {self._curves.unit}{scale}; {mark} held-out loss", "dim")]]

    def lines(self, width: int) -> list[Line]:
        if not isinstance(self._answer, Comparison):
            return [[(self._answer or "reading the journals ...", "text")]]
        rows = comparison_lines(self._answer, width, SIGNS[: len(self._answer.runs)])
        return [[(row, "text")] for row in ["", *rows]]

    def press(self, key: str, character: str | None) -> bool:
        if key == "x":
            units = list(_FIELDS)
            self._curves.unit = units[(units.index(self._curves.unit) + 1) % len(units)]
            self._show_curves()
        elif key == "y":
            self._curves.is_log = not self._curves.is_log
        return True
