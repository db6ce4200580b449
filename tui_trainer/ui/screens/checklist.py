"""3 Checklist: is it ready, and is it fast? Fixes are applied to the config, and undone, with one key."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult

from tui_trainer.checklist.contract import ALL, Finding
from tui_trainer.checklist.guides import GUIDES
from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.planning.deadline_ways import way_line
from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import Action
from tui_trainer.ui.page import NOTHING_TO_DO, ListPage, bindings
from tui_trainer.ui.processes import BESIDE_A_RUN
from tui_trainer.ui.screens.checklist_view import ChecklistModel, counts_line, finding_lines, finding_row
from tui_trainer.ui.spans import Line, labelled
from tui_trainer.ui.widgets.line_list import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.scroller import Scroller
from tui_trainer.ui.widgets.section import Area, Section
from tui_trainer.ui.workbench import Workbench

_WAYS = 70


class ChecklistPage(ListPage):
    place = "checklist"
    BINDINGS = bindings("checklist")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.model = ChecklistModel()
        self.model.replace(bench.findings)
        self._listed: list[Finding] = []
        self._list = LineList(self._row, lambda: (len(self._listed), self.model.cursor))
        self._finding = Scroller(Pane(self._finding_lines), id="chosen")

    def body(self) -> ComposeResult:
        yield Pane(self._counts, id="counts")
        with Area(id="parts"):
            with Area(id="findings"):
                yield Section(lambda: ("checks", self.bench.measuring.words), lambda *_: [])
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
        first, rows = self._list.seen_places.start, self._list.size.height
        return [counts_line(self.model, first, rows, width, self.bench.glyphs)]

    def _row(self, place: int, width: int) -> Line:
        is_chosen, cells = place == self.model.cursor, self.model.title_cells
        return finding_row(self._listed[place], is_chosen, cells, width, self.bench.glyphs)

    def _finding_lines(self, width: int, _: int) -> list[Line]:
        chosen = self.model.selected
        return finding_lines(chosen, width, self.bench.glyphs) if chosen else []

    def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        self.move(event.place - self.model.cursor)
        if self._chosen_fix:
            self.action_show_fix()
        self.bench.app.draw()

    def move(self, lines: int) -> None:
        self.model.move(lines)
        self._finding.scroll_lines(-self._finding.scrolled.virtual_size.height)

    @property
    def page_lines(self) -> int:
        return self._list.size.height

    def found(self, findings: list[Finding]) -> None:
        self.model.replace(findings)
        if not self.is_shown:
            # Nobody looks at the list: the worst may come first again.
            self.model.sort()

    def refusal(self, action: Action) -> str:
        if action.name in ("apply", "show_fix"):
            return "" if self._chosen_fix else "there is no fix to apply"
        if action.name == "apply_all":
            return "" if any(one.fix and one.is_open for one in self.model.findings) else NOTHING_TO_DO
        if action.name in ("measure", "measure_all"):
            return self._why_not_measured([self.model.selected] if action.name == "measure" else self.model.findings)
        if action.name == "cancel":
            return "" if self.bench.measuring.alive else NOTHING_TO_DO
        document = self.bench.document
        return NOTHING_TO_DO if action.name == "undo" and not (document and document.can_undo) else ""

    def _why_not_measured(self, wanted: Sequence[Finding | None]) -> str:
        reasons = [one.why_not_measured for one in wanted if one is not None]
        if all(reasons):
            return reasons[0] if len(reasons) == 1 else NOTHING_TO_DO
        if self.bench.measuring.alive:
            return f"one at a time: {self.bench.app.key_of('checklist.cancel')} ends what is being measured"
        for other in (self.bench.rehearsals, self.bench.tunings):
            if other.alive:
                return f"{other.what} goes on: one at a time"
        return BESIDE_A_RUN if self.bench.run_is_alive else ""

    def by_clock(self, width: int) -> object:
        return self.bench.measuring.words

    @property
    def _chosen_fix(self) -> Finding | None:
        """The chosen finding, where a key mends it."""
        chosen = self.model.selected
        return chosen if chosen and chosen.fix and chosen.is_open else None

    def action_show_fix(self) -> None:
        if chosen := self._chosen_fix:
            self.bench.tell(
                f"{self.bench.app.key_of('checklist.apply')} applies: {one_line(settings_words(chosen.fix or {}))}"
            )

    def action_apply(self) -> None:
        """The fix of the chosen check goes into the config; where there are several, one of them."""
        chosen = self._chosen_fix
        if chosen is None:
            return
        if len(ways := chosen.verdict.ways) > 1:
            lines = [
                line for number, way in enumerate(ways, 1) for line in labelled(str(number), way_line(way), 2, _WAYS)
            ]
            answers = [
                (str(number), "apply", partial(self._take, chosen, way.patch)) for number, way in enumerate(ways, 1)
            ]
            self.bench.app.ask(f"{chosen.title}: one of these is enough", lines, answers)
        else:
            self._take(chosen, chosen.fix or {})

    def _take(self, chosen: Finding, patch: Patch) -> None:
        done = f"applied: {one_line(settings_words(patch))}; {self._undo_key} takes it back"
        self._patch(patch, f"the fix of {chosen.title}", done)

    def _patch(self, changes: Mapping[str, Any], label: str, done: str) -> None:
        problems = self.bench.apply(changes, label)
        self.bench.tell(str(problems[0]) if problems else done, "bad" if problems else "good")

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
        done = f"{len(changes)} settings changed; {self._undo_key} takes them back"
        self._patch(changes, f"{len(changes)} fixed settings", done)
        self.bench.app.draw()

    @property
    def _undo_key(self) -> str:
        return self.bench.app.key_of("checklist.undo")

    def action_undo(self) -> None:
        if document := self.bench.document:
            self.bench.note_change(document.undo())

    def action_measure(self) -> None:
        if chosen := self.model.selected:
            self._measure(chosen.name)

    def action_measure_all(self) -> None:
        self._measure(ALL)

    def _measure(self, name: str) -> None:
        if reason := self.bench.measuring.start(name):
            self.bench.tell(reason, "bad")

    def action_cancel(self) -> None:
        self.bench.measuring.cancel()

    def action_open_only(self) -> None:
        self.model.open_only = not self.model.open_only

    def action_guide(self) -> None:
        self.model.next_guide()
        guide = self.model.guide
        self.bench.tell(f"guide {guide}: {GUIDES[guide][1]}" if guide else "all checks")

    def action_again(self) -> None:
        self.model.sort()
        self.bench.tell("checking ...", "dim")
        self.bench.config_changed()
