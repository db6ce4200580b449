"""5 Runs: all runs of this disk, the newest first; what can be done with each of them, and several compared."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.events import ScreenResume

from tui_trainer.errors import FolderError, Problem
from tui_trainer.lines import age_words
from tui_trainer.runs import at_rest
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.overview import Overviews, RunOverview
from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import Action
from tui_trainer.ui.dialogs import Row, TextDialog
from tui_trainer.ui.page import NO_REPORT, ListPage, bindings
from tui_trainer.ui.run_dialogs import ExportDialog
from tui_trainer.ui.screens import runs_view as view
from tui_trainer.ui.screens.runs_view import CompareDialog, RunsModel
from tui_trainer.ui.spans import Line, beside
from tui_trainer.ui.starting import offer_resume, offer_stop, take_settings_of
from tui_trainer.ui.widgets.fields import LineField
from tui_trainer.ui.widgets.lists import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import format_bytes

T = TypeVar("T")
_READ_EVERY_TICKS = 3
# Sizes are measured in the thread of all slow work, which plans and checks as well.
_MEASURING_SECONDS = 0.2
_READING, _MEASURING = "list of runs", "sizes of runs"


class RunsPage(ListPage):
    place = "runs"
    BINDINGS = bindings("runs")
    AUTO_FOCUS = ""
    ACTS: ClassVar[dict[str, Callable[["RunsPage"], object]]] = {
        "resume": lambda page: offer_resume(page.bench, page.folder),
        "stop": lambda page: offer_stop(page.bench, page.folder),
        "copy": lambda page: page.copy_path(page.folder.root),
        "report": lambda page: page.copy_report(),
        "export": lambda page: page.bench.app.open(ExportDialog(page.bench, page.folder)),
        "compare": lambda page: page.bench.app.open(CompareDialog(page.bench, list(map(RunFolder, page.model.marked)))),
    }

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.model: RunsModel = RunsModel()
        self._overviews = Overviews()
        self._list = LineList(
            self._row, lambda: (len(self.model.shown), self.model.place), id="runs",
            empty=lambda: view.empty_words(self.model, self.bench.app.key_of("app.start")),
        )  # fmt: skip
        self._filter = LineField(id="filter")
        self._filter.placeholder = "name, state, task or model"
        self._ticks = 0
        self._measured: dict[Path, object] = {}
        """At which `_stage` of its run the size of a folder was measured."""

    def body(self) -> ComposeResult:
        yield Pane(lambda width, _: [view.head(width)], id="head")
        yield self._list
        yield self._filter
        yield Pane(self._details, id="details")
        yield Pane(self._summary, id="summary")

    def _row(self, place: int, width: int) -> Line:
        return view.run_row(self.model.shown[place], self.model, width, _now(), self.bench.glyphs)

    def _details(self, width: int, _: int) -> list[Line]:
        chosen = self.model.chosen
        return view.detail_lines(chosen, _now(), width, self.bench.glyphs) if chosen else []

    def _summary(self, width: int, _: int) -> list[Line]:
        seen, count = self._list.seen_places, len(self.model.shown)
        where = f"{seen.start + 1}-{seen.stop} of {count}" if len(seen) < count else ""
        return [beside([(view.summary(self.model), "dim")], [(where, "dim")], width)]

    def by_clock(self) -> object:
        now, shown = _now(), self.model.shown
        return [age_words(shown[place], now) for place in self._list.seen_places]

    def on_screen_resume(self, event: ScreenResume) -> None:
        self._read()

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _READ_EVERY_TICKS == 0 and not self.bench.background.is_busy(_READING):
            self._read()

    def _read(self) -> None:
        if self.is_shown:
            document = self.bench.document
            folders = dict.fromkeys(["runs", *([str(document.value("output.runs_dir"))] if document else [])])
            overviews = self._overviews
            self.bench.background.do(_READING, lambda: overviews.read(map(Path, folders)), self._found)

    def _found(self, found: list[RunOverview]) -> None:
        if found != self.model.found:
            self.model.take(found)
            self.bench.app.draw()
        # The chosen one first: its size is waited for.
        stale = [one for one in found if self._measured.get(one.path) != _stage(one) and one.status != "gone"]
        stale.sort(key=lambda one: one.path != self.model.path)
        if stale and self.is_shown and not self.bench.background.is_busy(_MEASURING):
            self.bench.background.do(_MEASURING, partial(self._measure, stale), lambda _: self._read())

    def _measure(self, stale: list[RunOverview]) -> None:
        until = monotonic() + _MEASURING_SECONDS
        for one in stale:
            if one.status != "no run folder":
                self._overviews.measure(one.path)
            self._measured[one.path] = _stage(one)
            if monotonic() > until:
                return

    def on_line_list_scrolled(self) -> None:
        self.query_one("#summary", Pane).redraw()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self.model.choose(message.place)
        if message.opens:
            self.bench.app.carry_out("runs.open")
        self.bench.app.draw()

    def move(self, lines: int) -> None:
        self.model.choose(self.model.place + lines)

    @property
    def page_lines(self) -> int:
        return self._list.size.height - 1

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        return [("enter", "done"), ("escape", "clear"), ("up down", "choose")]

    def action_filter(self) -> None:
        self._filter.add_class("-shown")
        self._filter.focus()

    def action_clear(self) -> None:
        if self.is_typing or self._filter.value:
            self._filter.value = ""
            self.model.narrow("")
            self._leave_filter()
        else:
            self.model.marked = []

    def on_input_changed(self) -> None:
        self.model.narrow(self._filter.value)
        self.bench.app.draw()

    def action_take(self) -> None:
        self.model.narrow(self._filter.value)
        self._leave_filter()

    def action_cancel(self) -> None:
        self.action_clear()
        self.bench.app.draw()

    def action_choose(self, steps: int) -> None:
        self.model.narrow(self._filter.value)
        self.move(steps)
        self.bench.app.draw()

    def _leave_filter(self) -> None:
        self.set_focus(None)
        self._filter.set_class(bool(self._filter.value), "-shown")
        self.call_after_refresh(self.bench.app.draw)

    def refusal(self, action: Action) -> str:
        one = self.model.chosen
        if action.name in ("filter", "again"):
            return ""
        if action.name == "clear":
            some = self.is_typing or self.model.words or self.model.marked
            return "" if some else "there is no filter and no mark"
        if action.name == "compare":
            return "" if self.model.can_compare else f"mark two to six runs with {self.bench.app.key_of('runs.mark')}"
        if one is None:
            return "no run is shown"
        if action.name in ("rename", "delete") and self.bench.exports.is_of(one.path):
            return f"{one.name} is being exported"
        return view.refusal(action.name, one, self.bench.app.key_of("runs.stop"))

    @property
    def _chosen(self) -> RunOverview:
        assert self.model.chosen is not None, "an action of a run is available only with one"
        return self.model.chosen

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self._chosen.path)

    def copy_report(self) -> None:
        report = self.folder.report

        def looked(is_there: bool) -> None:
            if is_there:
                self.copy_path(report)
            else:
                self.bench.tell(f"copy report: {NO_REPORT}", "dim")
            self.bench.app.draw()

        self.bench.background.do("report", report.is_file, looked)

    def action_open(self) -> None:
        folder, run = self.folder, self.bench.run
        if run is not None and run.folder == folder:
            self.bench.take_run(run)
        elif self.bench.run_is_ours_and_alive:
            self.bench.tell("a run of this process is alive: the Train screen stays with it", "warn")
        else:
            self.bench.attach_to(folder)

    def action_again(self) -> None:
        self._measured.clear()
        self._read()

    def action_mark(self) -> None:
        if refusal := self.model.toggle_mark():
            self.bench.tell(refusal, "warn")
        else:
            self.move(1)

    def action_rename(self) -> None:
        path = self._chosen.path
        rows: list[Row] = [("Its folder is renamed as well.", "dim"), ""]
        dialog = TextDialog(f"Rename {path.name}", rows, path.name, lambda name: self._rename(path, name, dialog))
        self.bench.app.open(dialog)

    def _rename(self, path: Path, name: str, dialog: TextDialog) -> None:
        bench, name = self.bench, name.strip()
        own = bench.own_run if bench.own_run and bench.own_run.folder.root == path else None

        def work() -> Problem | str | None:
            if own is not None:
                # To its end, where its journal still lies: the shell is told how it ended.
                own.look()
            return _tried(lambda path: at_rest.rename(path, name), path)

        def renamed(problem: Problem | str | None) -> None:
            dialog.answered(problem if isinstance(problem, str) else "")
            if isinstance(problem, str):
                if dialog.is_closed:
                    bench.tell(problem, "bad")
                    bench.app.draw()
                return
            bench.tell(str(problem) if problem else f"renamed to {name}", "warn" if problem else "good")
            self.model.path = path.with_name(name)
            if own is not None:
                own.take()
                own.folder = RunFolder(self.model.path)
            if bench.run is not None and bench.run.folder.root == path:
                bench.attach_to(RunFolder(self.model.path), go=False)
            self._read()
            bench.app.draw()

        bench.background.do(f"rename {path}", work, renamed)

    def action_delete(self) -> None:
        one = self._chosen
        self.bench.tell("looking what that frees ...", "dim")
        self.bench.background.do(
            "deleting", partial(_tried, at_rest.bytes_to_free, one.path), partial(self._ask_to_delete, one)
        )

    def _ask_to_delete(self, one: RunOverview, freed: int | str) -> None:
        self.bench.notice = (freed, "bad") if isinstance(freed, str) else None
        self.bench.app.draw()
        if isinstance(freed, str) or self.bench.app.takes_text:
            return
        what = f"{format_bytes(freed)} are freed: its journal, checkpoints, model and exports."
        if one.status == "gone":
            what = "It is only taken off the list: its folder is gone."
        rows: list[Row] = [what, (one_line(str(one.path)), "dim")]
        answers = [("D", "delete it", partial(self._delete, one))]
        self.bench.app.ask(f"Delete {one_line(one.name, 50)}?", rows, answers)

    def _delete(self, one: RunOverview) -> None:
        bench = self.bench
        bench.tell(f"deleting {one.name} ...", "dim")
        if bench.run is not None and bench.run.folder.root == one.path and not bench.run.alive:
            bench.put_on_the_table(None)
        if bench.own_run is not None and bench.own_run.folder.root == one.path and not bench.own_run.alive:
            bench.own_run = None
        # By its own name: to look at another run must not take its place while it waits.
        name = f"deleting {one.path}"
        bench.background.do(name, partial(_tried, at_rest.delete, one.path), partial(self._deleted, one))

    def _deleted(self, one: RunOverview, deleted: at_rest.Deleted | str) -> None:
        if isinstance(deleted, str):
            self.bench.tell(deleted, "bad")
        else:
            kept = f"; what no run made stays there: {', '.join(deleted.kept)}" if deleted.kept else ""
            self.bench.tell(f"deleted {one.name}: {format_bytes(deleted.freed_bytes)} freed{kept}", "good")
        self.bench.app.draw()
        self._read()

    def action_new(self) -> None:
        one = self._chosen
        if not self.bench.has_unsaved_edits:
            take_settings_of(self.bench, RunFolder(one.path))
            return
        rows = ["Settings that you changed are in no file yet. Undo brings them back."]
        answers = [("enter", "take those of the run", partial(take_settings_of, self.bench, RunFolder(one.path)))]
        self.bench.app.ask(f"Replace them by those of {one_line(one.name, 40)}?", rows, answers)


def _stage(one: RunOverview) -> object:
    """The minute of the last event, as the folder of a run that lives is measured once a minute; and whether it lives,
    as what is written at its end, the model above all, counts as well."""
    return one.last_event_at[:16], one.alive


def _now() -> datetime:
    return datetime.now(UTC)


def _tried(work: Callable[[Path], T], path: Path) -> T | str:
    """What comes of it, or why the folder is left alone: without the path, which the list shows."""
    try:
        return work(path)
    except FolderError as error:
        problem = error.problems[0]
        return one_line(f"{problem.message}; {problem.hint}" if problem.hint else problem.message)
