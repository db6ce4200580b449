"""3 Checklist: is it ready, and is it fast? Fixes are applied to the config, and undone, with one key."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding

from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import Action
from tui_trainer.ui.page import Page, bindings
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.line_list import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.scroller import Scroller
from tui_trainer.ui.widgets.section import Area, Section
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.checklist.contract import Finding
    from tui_trainer.ui.screens.checklist_view import ChecklistModel


_WIDTHS = [(0, "-narrow"), (120, "-wide")]


class ChecklistPage(Page):
    place = "checklist"
    # Not in the registry: it does nothing but name the key that does.
    BINDINGS: ClassVar = [*bindings("checklist"), Binding("enter", "offer_fix", show=False)]
    CSS_PATH = "checklist.tcss"
    HORIZONTAL_BREAKPOINTS = _WIDTHS

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._listed: list[Finding] = []
        self._list = LineList(self._row, lambda: (len(self._listed), self.model.cursor))
        self._finding = Scroller(Pane(self._finding_lines), glyphs=bench.glyphs, id="chosen")

    @cached_property
    def model(self) -> ChecklistModel:
        """Made when it is first needed: what it imports is not needed by the first screen."""
        from tui_trainer.ui.screens.checklist_view import ChecklistModel

        return ChecklistModel()

    def body(self) -> ComposeResult:
        yield Pane(self._counts, id="counts")
        with Area(id="parts"):
            with Area(id="findings"):
                yield Section(lambda: ("checks", ""), lambda *_: [])
                yield self._list
            with Area(id="finding"):
                yield Section(lambda: ("finding", ""), lambda *_: [])
                yield self._finding

    def on_line_list_scrolled(self) -> None:
        self.query_one("#counts", Pane).redraw()

    def redraw(self) -> None:
        if self.is_shown and self.is_attached:
            self._listed = self.model.visible
            super().redraw()

    def _counts(self, width: int, _: int) -> list[Line]:
        from tui_trainer.ui.screens.checklist_view import counts_line

        first, rows = self._list.seen_places.start, self._list.size.height
        return [counts_line(self.model, first, rows, width, self.bench.glyphs)]

    def _row(self, place: int, width: int) -> Line:
        from tui_trainer.ui.screens.checklist_view import finding_row

        is_chosen, cells = place == self.model.cursor, self.model.title_cells
        return finding_row(self._listed[place], is_chosen, cells, width, self.bench.glyphs)

    def _finding_lines(self, width: int, _: int) -> list[Line]:
        from tui_trainer.ui.screens.checklist_view import finding_lines

        chosen = self.model.selected
        return finding_lines(chosen, width, self.bench.glyphs) if chosen else []

    def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        """A click on a line."""
        self._move(event.place - self.model.cursor)
        self.action_offer_fix()

    def _move(self, lines: int) -> None:
        self.model.move(lines)
        self._finding.to_top()

    def action_offer_fix(self) -> None:
        """Say which key applies the fix of the chosen check."""
        chosen = self.model.selected
        if chosen and chosen.fix and chosen.is_open:
            self.bench.tell(f"{self.bench.app.key_of('checklist.apply')} applies: {_changes(chosen)}")
        self.bench.app.draw()

    def found(self, findings: list[Finding]) -> None:
        """Newer findings."""
        self.model.replace(findings)
        if not self.is_shown:
            # Nobody looks at the list: the worst may come first again.
            self.model.sort()

    def available(self, action: Action) -> bool:
        if action.name == "apply":
            chosen = self.model.selected
            return chosen is not None and bool(chosen.fix) and chosen.is_open
        if action.name == "apply_all":
            return any(finding.fix and finding.is_open for finding in self.model.findings)
        if action.name == "undo":
            return self.bench.document is not None and self.bench.document.can_undo
        return True

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._move(-self._list.size.height)

    def action_page_down(self) -> None:
        self._move(self._list.size.height)

    def action_first(self) -> None:
        self._move(-len(self.model.visible))

    def action_last(self) -> None:
        self._move(len(self.model.visible))

    def action_apply(self) -> None:
        """The fix of the chosen check goes into the config."""
        finding = self.model.selected
        if finding is None or not finding.fix:
            return
        problems = self.bench.apply(finding.fix, f"the fix of {finding.title}")
        if problems:
            self.bench.tell(str(problems[0]), "bad")
        else:
            self.bench.tell(f"applied: {_changes(finding)}; {self._undo_key} takes it back", "good")

    def action_apply_all(self) -> None:
        """Every fix, each seen in the light of those before it, as one change."""
        document = self.bench.document
        if document is None or document.loaded is None:
            return
        loaded, revision = document.loaded, document.revision
        self.bench.tell("applying ...", "dim")

        def work() -> tuple[int, dict[str, object]]:
            from tui_trainer.checklist.gather import gather
            from tui_trainer.checklist.run import apply_fixes

            return revision, apply_fixes(loaded, gather)[1]

        self.bench.background.do("fixes", work, self._apply_all)

    def _apply_all(self, result: tuple[int, dict[str, object]]) -> None:
        revision, changes = result
        if self.bench.document is None or self.bench.document.revision != revision:
            self.bench.tell("nothing applied: the settings changed meanwhile", "warn")
            self.bench.app.draw()
            return
        problems = self.bench.apply(changes, f"{len(changes)} fixed settings")
        said = str(problems[0]) if problems else f"{len(changes)} settings changed; {self._undo_key} takes them back"
        self.bench.tell(said, "bad" if problems else "good")
        self.bench.app.draw()

    @property
    def _undo_key(self) -> str:
        return self.bench.app.key_of("checklist.undo")

    def action_undo(self) -> None:
        document = self.bench.document
        if document is not None:
            self.bench.tell(document.undo() or "nothing to undo")
            self.bench.config_changed()

    def action_open_only(self) -> None:
        self.model.open_only = not self.model.open_only

    def action_again(self) -> None:
        self.model.sort()
        self.bench.tell("checking ...", "dim")
        self.bench.config_changed()


def _changes(finding: Finding) -> str:
    return one_line(", ".join(f"{key} = {value}" for key, value in (finding.fix or {}).items()))
