"""3 Checklist: is it ready, and is it fast? Fixes are applied to the config, and undone, with one key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import Action
from tui_trainer.ui.page import Page, bindings
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.checklist.contract import Finding
    from tui_trainer.ui.screens.checklist_view import ChecklistModel


class ChecklistPage(Page):
    place = "checklist"
    BINDINGS = bindings("checklist")

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._body_size = (80, 22)
        self._model: ChecklistModel | None = None

    @property
    def model(self) -> ChecklistModel:
        """Made when it is first needed: what it imports is not needed by the first screen."""
        if self._model is None:
            from tui_trainer.ui.screens.checklist_view import ChecklistModel

            self._model = ChecklistModel()
        return self._model

    def body(self) -> Iterable[Pane]:
        yield Pane(self.draw)

    def draw(self, width: int, height: int) -> list[Line]:
        from tui_trainer.ui.screens.checklist_view import draw_checklist

        self._body_size = (width, height)
        return draw_checklist(self.model, width=width, height=height, glyphs=self.bench.glyphs)

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
        self.model.move(-1)

    def action_down(self) -> None:
        self.model.move(1)

    def action_page_up(self) -> None:
        width, height = self._body_size
        self.model.page(-1, width=width, height=height)

    def action_page_down(self) -> None:
        width, height = self._body_size
        self.model.page(1, width=width, height=height)

    def action_first(self) -> None:
        self.model.first()

    def action_last(self) -> None:
        self.model.last()

    def action_apply(self) -> None:
        """The fix of the chosen check goes into the config."""
        finding = self.model.selected
        if finding is None or not finding.fix:
            return
        problems = self.bench.apply(finding.fix, f"the fix of {finding.title}")
        if problems:
            self.bench.tell(str(problems[0]), "bad")
        else:
            changes = ", ".join(f"{key} = {value}" for key, value in finding.fix.items())
            self.bench.tell(f"applied: {one_line(changes)}; {self._undo_key} takes it back", "good")

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
        self.model.toggle_open_only()

    def action_again(self) -> None:
        self.model.sort()
        self.bench.tell("checking ...", "dim")
        self.bench.config_changed()
