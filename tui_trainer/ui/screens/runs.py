"""The Runs screen: all runs on this disk, what can be done with each of them, and several of them compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar, Final, TypeVar

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import ScreenResume

from tui_trainer.errors import FolderError, InputError, Problem
from tui_trainer.lines.plan_and_events import age_words
from tui_trainer.runs import delete_and_rename
from tui_trainer.runs.comparison import LEAST_RUNS, MOST_RUNS, Difference, differing_settings
from tui_trainer.runs.folder import RunFolder, read_fields
from tui_trainer.runs.labels import label, parsed_note, parsed_tags
from tui_trainer.runs.overview import Overviews, RunOverview
from tui_trainer.runs.registry import list_problem
from tui_trainer.runs.state import FollowedJournal, RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.chart import LossChart
from tui_trainer.ui.command_dialogs import ExportDialog
from tui_trainer.ui.commands import more_answers, offer_more
from tui_trainer.ui.dialogs import Answer, Row, TextDialog
from tui_trainer.ui.keymap import Action
from tui_trainer.ui.page import NO_REPORT, FilteredPage, ListPage, bindings
from tui_trainer.ui.run_dialogs import offer_try
from tui_trainer.ui.screens import runs_view as view
from tui_trainer.ui.screens.compare_dialog import CompareDialog
from tui_trainer.ui.spans import Line, both_ends_line, paragraph
from tui_trainer.ui.starting import offer_resume, offer_stop, take_settings_of
from tui_trainer.ui.widgets.lists import LineList
from tui_trainer.ui.widgets.pane import KeyedPane, Pane
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import format_bytes, quantity

T = TypeVar("T")
WIDE: Final = 120
"""Least width, in cells, at which the details of the chosen run are beside the list."""
_READ_EVERY_TICKS = 3
# Planning and checks use the same thread as the measuring of sizes, so one measuring must not take longer.
_MEASURING_SECONDS = 0.2
_READING, _MEASURING, _LOOKING, _DELETING = "list of runs", "sizes of runs", "chosen run", "deleting"
_JOURNALS_KEPT = 8
_NAMES_SHOWN = 6


def refusal(action: str, run: RunOverview, stop_key: str) -> str:
    """Return why an action is not possible for a run; empty if it is possible."""
    if action in ("open", "resume", "stop", "mark", "new", "rename", "tags", "note") and not run.is_run:
        return f"{run.name} is {'not a run folder' if run.status == 'no run folder' else run.status}"
    if action == "stop" and not run.alive:
        queue_note = "is waiting in the queue: open the run to stop it"
        return f"{run.name} {queue_note if run.status == 'submitted' else 'is not running'}"
    if action in ("resume", "rename", "delete") and run.alive:
        return f"{run.name} is running; {stop_key} stops it"
    if action == "resume" and run.status == "finished" and run.has_model:
        return f"{run.name} is finished: there is nothing to resume"
    if action == "more" and (not run.is_run or run.alive):
        return f"{run.name} {'is running' if run.alive else f'is {run.status}'}"
    if action == "export" and run.status != "finished":
        return f"{run.name} is {run.status}: only a finished run has a model to export"
    if action == "delete" and run.status == "no run folder":
        return "this folder was not created by a run and is kept"
    return ""


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """Details of the chosen run: its journal, and the settings in which it differs from the earlier run
    `earlier_run_name`."""

    journal: FollowedJournal
    differences: tuple[Difference, ...] = ()
    earlier_run_name: str = ""
    """Name of the earlier run; empty if there is none of the same task."""
    is_ancestor: bool = False


def read_details(run: RunOverview, runs: Sequence[RunOverview], journal: FollowedJournal) -> ChosenRun:
    """Read new events of the run's journal, and compare its settings with those of an earlier run. May be slow."""
    folder = RunFolder(run.path)
    journal.read_new()
    links = read_fields(folder.plan).get("ancestors")
    link = links[-1] if isinstance(links, list) and links else None
    ancestor_name = str(link["name"]) if isinstance(link, dict) and link.get("method") and "name" in link else ""
    if (earlier_run := view.run_before(run, runs, ancestor_name)) is None:
        return ChosenRun(journal)
    differences = differing_settings([RunFolder(earlier_run.path), folder])
    return ChosenRun(journal, differences, earlier_run.name, is_ancestor=earlier_run.name == ancestor_name)


class RunsPage(FilteredPage, ListPage):
    place = "runs"
    filter_words = "words model: data: task: state: #tag loss<1.5 accuracy>0.8 size_gib>10"
    BINDINGS = bindings("runs")
    AUTO_FOCUS = ""
    table: LineList
    chart: LossChart
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    ACTS: ClassVar[dict[str, Callable[[RunsPage], object]]] = {
        "resume": lambda page: offer_resume(page.bench, page.folder),
        "stop": lambda page: offer_stop(page.bench, page.folder),
        "sort": lambda page: page.model.sort_by_next(page.table.size.width),
        "reverse": lambda page: page.model.sort_by(page.model.order),
        "copy": lambda page: page.copy_path(page.folder.root),
        "more": lambda page: page.offer_more(),
        "report": lambda page: page.copy_report(),
        "mark": lambda page: page.model.toggle_mark(),
        "mark_all": lambda page: page.model.toggle_all(),
        "metric": lambda page: page.chart.next_metric(),
        "compare": lambda page: page.bench.app.open(CompareDialog(page.bench, list(map(RunFolder, page.model.marked)))),
    }

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.model: view.RunsModel = view.RunsModel()
        self._overviews = Overviews()
        self.table = LineList(
            lambda index, width: view.run_row(self.model, index, _now(), width, bench.glyphs),
            lambda: (len(self.model.shown_runs), self.model.chosen_index),
            titles=lambda width: view.run_titles(self.model, width, bench.glyphs),
            empty=lambda: view.empty_words(self.model, bench.app.key_of("app.start")),
        )
        self._summary_pane = KeyedPane(self._summary, id="summary", from_left=False)
        self.chart = LossChart(lambda: chosen.journal.state if (chosen := self._chosen_run) else RunState(), id="curve")
        self._ticks = 0
        self._last_own_run = bench.local_run
        self._measured: dict[Path, object] = {}
        """State of each run's folder (see `_folder_state`) when the folder's size was last measured."""
        self._looked_at: OrderedDict[Path | None, tuple[object, ChosenRun]] = OrderedDict()
        """Details of the runs that were chosen last, each with the progress of the run when it was read."""

    def body(self) -> ComposeResult:
        with Container(id="workspace"):
            with Container(id="list"):
                yield self.table
                yield self._filter
                yield Pane(lambda width, _: paragraph(self.model.problem, width, "bad") if self.model.problem else [],
                           id="wrong")  # fmt: skip
            with Container(id="beside"):
                yield Pane(self._detail_lines, id="details")
                yield self.chart
                yield Pane(self._differences, id="differences")
        yield self._summary_pane

    def on_line_list_scrolled(self) -> None:
        self._summary_pane.redraw()

    def redraw(self) -> None:
        if self.is_shown and self.is_attached:
            self._show_chosen()
            super().redraw()

    @property
    def is_wide(self) -> bool:
        return self.size.width >= WIDE

    @property
    def _chosen_run(self) -> ChosenRun | None:
        """Details of the chosen run; None if they are still being read, or if no run is chosen."""
        return self._looked_at[self.model.path][1] if self.model.path in self._looked_at else None

    def _show_chosen(self) -> None:
        """Read the details of the chosen run if they are visible and out of date. Only one run is read at a time."""
        run, chosen = self.model.chosen, self._chosen_run
        self.chart.display = self.is_wide and chosen is not None and bool(chosen.journal.state.steps)
        if not self.is_wide or run is None or not run.is_run or self.bench.background.is_busy(_LOOKING):
            return
        progress, last_look = (run.last_event_at[:16], run.alive, run.step), self._looked_at.get(run.path)
        if last_look is not None and last_look[0] == progress:
            return
        journal = last_look[1].journal if last_look else FollowedJournal(RunFolder(run.path))

        def store(chosen: ChosenRun) -> None:
            self._looked_at[run.path] = progress, chosen
            self._looked_at.move_to_end(run.path)
            while len(self._looked_at) > _JOURNALS_KEPT:
                self._looked_at.popitem(last=False)
            self.bench.app.draw()

        self.bench.background.run_work(
            _LOOKING, partial(read_details, run, self.model.all_runs or (), journal), store, _LOOKING
        )

    def _differences(self, width: int, _: int) -> list[Line]:
        run, details = self.model.chosen, self._chosen_run
        if not self.is_wide or run is None or not run.is_run:
            return []
        if details is None:
            return [[("reading the journal ...", "dim")]]
        if not details.earlier_run_name:
            return paragraph("no earlier run of this task to compare with", width, "dim")
        return view.difference_lines(
            details.differences, details.earlier_run_name, details.is_ancestor, width, self.bench.glyphs
        )

    def _detail_lines(self, width: int, _: int) -> list[Line]:
        run = self.model.chosen
        return view.detail_lines(run, _now(), width, self.bench.glyphs, is_wide=self.is_wide) if run else []

    def _summary(self, width: int, _: int) -> list[Line]:
        seen_rows, count = self.table.visible_indices, len(self.model.shown_runs)
        position = f"{seen_rows.start + 1}-{seen_rows.stop} of {count}" if len(seen_rows) < count else ""
        note: Line = [(f"; {self.bench.exports.words}", "accent")] if self.bench.exports.words else []
        if self.model.marked and not note:
            for name in ("compare", "export", "delete"):
                note += [("   ", "text"), (self.bench.app.key_of(f"runs.{name}"), "key"), (f" {name}", "accent")]
        return [both_ends_line([(view.summary(self.model), "dim"), *note], [(position, "dim")], width)]

    def live_state(self) -> object:
        now, runs = _now(), self.model.shown_runs
        return self.bench.exports.words, [age_words(runs[index], now) for index in self.table.visible_indices]

    def on_screen_resume(self, event: ScreenResume) -> None:
        run, last_run, self._last_own_run = self.bench.local_run, self._last_own_run, self.bench.local_run
        if run is not None and run is not last_run:
            self.model.path = run.folder.root
        self._read()

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _READ_EVERY_TICKS == 0 and not self.bench.background.is_busy(_READING):
            self._read()

    def _read(self) -> None:
        if self.is_shown:
            document = self.bench.document
            folders = dict.fromkeys(["runs", *([str(document.value("output.runs_dir"))] if document else [])])

            def read() -> tuple[list[RunOverview], list[RunOverview], str]:
                runs = self._overviews.read(map(Path, folders))
                unmeasured_runs = [run for run in runs if self._measured.get(run.path) != _folder_state(run)]
                return runs, unmeasured_runs, "" if runs else str(list_problem() or "")

            self.bench.background.run_work(_READING, read, self._take_runs)

    def _take_runs(self, result: tuple[list[RunOverview], list[RunOverview], str]) -> None:
        """Show the runs, and measure the folders whose size may have changed."""
        runs, unmeasured_runs, self.model.without_list = result
        if runs != self.model.all_runs:
            self.model.set_runs(runs)
            # A deleted run's details must not be shown for a new run of the same name.
            for path in set(self._looked_at) - {run.path for run in runs}:
                del self._looked_at[path]
            self.bench.app.draw()
        # The chosen run comes first, because the user sees its size.
        unmeasured_runs.sort(key=lambda run: run.path != self.model.path)
        if unmeasured_runs and self.is_shown and not self.bench.background.is_busy(_MEASURING):
            self.bench.background.run_work(_MEASURING, partial(self._measure, unmeasured_runs), lambda _: self._read())

    def _measure(self, runs: list[RunOverview]) -> None:
        deadline = monotonic() + _MEASURING_SECONDS
        for run in runs:
            self._measured[run.path] = _folder_state(run)
            if run.status not in ("no run folder", "gone"):
                self._overviews.measure(run.path)
            if monotonic() > deadline:
                return

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self.model.choose(message.place)
        if message.is_double_click:
            self.action_do("open")
        self.bench.app.draw()

    def on_line_list_title_clicked(self, message: LineList.TitleClicked) -> None:
        self.model.sort_by(message.name)
        self.bench.app.draw()

    def move(self, lines: int) -> None:
        self.model.choose(self.model.chosen_index + lines)

    @property
    def page_lines(self) -> int:
        return self.table.size.height - 2

    def action_clear(self) -> None:
        if self.is_typing or self._filter.value:
            self._filter.value = ""
            self.action_take()
        else:
            self.model.marked = []

    def on_input_changed(self) -> None:
        self.model.narrow(self._filter.value)
        self.bench.app.draw()

    def action_take(self) -> None:
        self.model.narrow(self._filter.value)
        self.leave_filter()

    def action_choose(self, steps: int) -> None:
        self.model.narrow(self._filter.value)
        self.move(steps)
        self.bench.app.draw()

    def refusal(self, action: Action) -> str:
        run = self.model.chosen
        if action.name in ("filter", "again", "sort"):
            return ""
        if action.name == "metric":
            has_chart = self.is_wide and run is not None and run.is_run
            return "" if has_chart else f"curves need a terminal of at least {WIDE} columns"
        if action.name == "reverse":
            return "" if self.model.order else f"sort by a column first: press {self.bench.app.key_of('runs.sort')}"
        if action.name == "clear":
            can_clear = self.is_typing or self.model.words or self.model.marked
            return "" if can_clear else "no filter and no marks to clear"
        if action.name == "compare":
            can_compare = LEAST_RUNS <= len(self.model.marked) <= MOST_RUNS
            return "" if can_compare else f"mark two to six runs with {self.bench.app.key_of('runs.mark')}"
        if action.name in ("delete", "export") and self.model.marked:
            return ""
        if run is None:
            return "no run is selected"
        if action.name in ("rename", "delete") and self.bench.exports.is_exporting(run.path):
            return f"{run.name} is being exported"
        return refusal(action.name, run, self.bench.app.key_of("runs.stop"))

    @property
    def _chosen(self) -> RunOverview:
        assert self.model.chosen is not None, "an action of a run is available only with one"
        return self.model.chosen

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self._chosen.path)

    def copy_report(self) -> None:
        report = self.folder.report

        def copy(exists: bool) -> None:
            if exists:
                self.copy_path(report)
            else:
                self.bench.show_notice(f"copy report: {NO_REPORT}", "dim")
            self.bench.app.draw()

        # In the background, because the disk may be slow.
        self.bench.background.run_work("report", report.is_file, copy)

    def action_open(self) -> None:
        run = self.bench.run
        if run is not None and run.folder == self.folder:
            self.bench.show_on_train(run)
        else:
            self.bench.attach_to(self.folder)

    def more_answers(self) -> list[Answer]:
        run = self._chosen
        return more_answers(self.bench, self.folder, run.task, run.model, has_model=run.status == "finished")

    def offer_more(self) -> None:
        try_model = partial(self.bench.attach_to, self.folder, then=partial(offer_try, self.bench))
        answers: list[Answer] = [("x", "export", partial(self.action_do, "export")), ("w", "try the model", try_model)]
        is_finished = self._chosen.status == "finished"
        offer_more(self.bench, self.folder, [*(answers if is_finished else []), *self.more_answers()])

    def action_again(self) -> None:
        self._measured.clear()
        self._read()

    def label_of(self, action: Action) -> str:
        count = len(self.model.marked)
        return f"{action.label} {count}" if count and action.name in ("delete", "export") else action.label

    def action_export(self) -> None:
        folders = [RunFolder(path) for path in self.model.marked]
        self.bench.app.open(ExportDialog(self.bench, folders or [self.folder]))

    def action_tags(self) -> None:
        prompt, tags = "Words to filter by (`#word`). Leave empty to remove all tags.", " ".join(self._chosen.tags)
        self._ask_for(f"Tags of {self._chosen.name}", prompt, tags, lambda text: partial(label, tags=parsed_tags(text)))

    def action_note(self) -> None:
        run, prompt = self._chosen, "One line. Leave empty to remove the note."
        self._ask_for(f"Note on {run.name}", prompt, run.note, lambda text: partial(label, note=parsed_note(text)))

    def _ask_for(
        self, heading: str, words: str, text: str, parse: Callable[[str], Callable[[Path], T]],
        done: Callable[[T], object] = lambda _: None,
    ) -> None:  # fmt: skip
        """Ask for a text. `parse` returns the work for this text or raises InputError; `done` gets its result."""
        path = self._chosen.path

        def accept(text: str) -> str | None:
            try:
                work = parse(text)
            except InputError as error:
                return _reason(error)
            self.bench.background.run_work(f"label {path}", partial(_result_or_message, work, path), take_answer)
            return None

        def take_answer(answer: T | str) -> None:
            dialog.finish_or_refuse(answer if isinstance(answer, str) else "")
            if not isinstance(answer, str):
                done(answer)
            elif dialog.is_closed:
                self.bench.show_notice(answer, "bad")
            self._read()
            self.bench.app.draw()

        dialog = TextDialog(heading, [(words, "dim"), ""], text, accept)
        self.bench.app.open(dialog)

    def action_rename(self) -> None:
        path, bench = self._chosen.path, self.bench
        own_run = bench.local_run if bench.local_run and bench.local_run.folder.root == path else None

        def rename(name: str, path: Path) -> tuple[str, Problem | None]:
            if own_run is not None:
                # Read the rest of the journal before its folder moves: it may say how the run ended.
                own_run.read_new_events()
            return name, delete_and_rename.rename(path, name)

        def show_result(answer: tuple[str, Problem | None]) -> None:
            name, problem = answer
            bench.show_notice(str(problem) if problem else f"renamed to {name}", "warn" if problem else "good")
            self.model.path = path.with_name(name)
            if own_run is not None:
                own_run.apply_new_events()
                own_run.folder = RunFolder(self.model.path)
            if bench.run is not None and bench.run.folder.root == path:
                bench.attach_to(RunFolder(self.model.path), go=False)

        prompt = "The run folder is renamed as well."
        self._ask_for(f"Rename {path.name}", prompt, path.name, lambda name: partial(rename, name.strip()), show_result)

    def action_delete(self) -> None:
        bench, runs = self.bench, self.model.marked_runs or [self._chosen]
        running_note = f"is running, so it is kept; {bench.app.key_of('runs.stop')} stops it"
        refusals = [f"{run.name} {running_note}" for run in runs if run.alive]
        refusals += [
            f"{run.name} is being exported, so it is kept" for run in runs if bench.exports.is_exporting(run.path)
        ]
        runs = [run for run in runs if not run.alive and not bench.exports.is_exporting(run.path)]
        if not runs:
            bench.show_notice("; ".join(refusals), "warn")
            return
        bench.show_notice("checking how much space the deletion frees ...", "dim")
        work = partial(_results_or_messages, delete_and_rename.bytes_to_free, [run.path for run in runs])
        bench.background.run_work("deleting", work, partial(self._ask_to_delete, runs, refusals))

    def _ask_to_delete(self, runs: Sequence[RunOverview], refused: Sequence[str], sizes: Sequence[int | str]) -> None:
        """Ask before deleting runs. `sizes`: for each run the bytes that this frees, or why it cannot be deleted."""
        run_sizes = list(zip(runs, sizes, strict=True))
        refused = [*refused, *(f"{run.name}: {reason}" for run, reason in run_sizes if isinstance(reason, str))]
        runs = [run for run, size in run_sizes if not isinstance(size, str)]
        self.bench.notice = None
        if not runs:
            self.bench.show_notice("; ".join(refused), "bad")
        self.bench.app.draw()
        if not runs or self.bench.app.takes_text:
            return
        total_text, are_many = format_bytes(sum(size for size in sizes if not isinstance(size, str))), len(runs) > 1
        rows: list[Row] = [f"Frees {total_text}: journals, checkpoints, models and exports."]
        if all(run.status == "gone" for run in runs):
            rows = ["Only the list of runs changes, because nothing is left on the disk."]
        rows += [(one_line(str(run.path)), "dim") for run in runs[:_NAMES_SHOWN]]
        rows += [(f"and {len(runs) - _NAMES_SHOWN} more", "dim")] * (len(runs) > _NAMES_SHOWN)
        shown_paths = {run.path for run in self.model.shown_runs}
        if hidden_count := sum(run.path not in shown_paths for run in runs):
            rows.append((f"{quantity(hidden_count, 'run')} hidden by the filter will be deleted too", "warn"))
        rows += [(one_line(reason), "warn") for reason in refused]
        heading = f"Delete {f'{len(runs)} runs' if are_many else one_line(runs[0].name, 50)}?"
        answer = f"delete {len(runs)}" if are_many else "delete"
        self.bench.app.ask(heading, rows, [("y", answer, partial(self._delete_all, runs))])

    def _delete_all(self, runs: Sequence[RunOverview]) -> None:
        bench, are_many = self.bench, len(runs) > 1
        paths = [run.path for run in runs]

        def report(answers: Sequence[delete_and_rename.Deleted | str]) -> None:
            results = [answer for answer in answers if not isinstance(answer, str)]
            reasons = [f"{path.name}: {answer}" for path, answer in zip(paths, answers, strict=True)
                       if isinstance(answer, str)]  # fmt: skip
            texts = results[0].words(runs[0].name) if results and not are_many else []
            if are_many:
                texts = [f"deleted {len(results)} runs: {format_bytes(sum(run.freed_bytes for run in results))} freed"]
                if kept_count := sum(bool(run.kept) for run in results):
                    texts.append(f"folders not removed because of other files in them: {kept_count}")
            bench.show_notice("; ".join([*texts, *reasons]), "bad" if reasons else "good")
            bench.app.draw()
            self._read()

        if bench.run is not None and bench.run.folder.root in paths and not bench.run.alive:
            bench.show_run(None)
        if bench.local_run is not None and bench.local_run.folder.root in paths and not bench.local_run.alive:
            bench.local_run = None
        bench.show_notice(f"deleting {f'{len(runs)} runs' if are_many else runs[0].name} ...", "dim")
        # The name contains the paths, so that a later deletion does not replace one that is still waiting.
        bench.background.run_work(
            f"deleting {paths}", partial(_results_or_messages, delete_and_rename.delete, paths), report, _DELETING
        )

    def action_new(self) -> None:
        name, load = one_line(self._chosen.name, 40), partial(take_settings_of, self.bench, self.folder)
        if not self.bench.has_unsaved_edits:
            load()
            return
        rows = ["You have changed settings that are not saved. Undo restores them."]
        answers = [("enter", "load the run's settings", load)]
        self.bench.app.ask(f"Replace your settings with those of {name}?", rows, answers)


def _folder_state(run: RunOverview) -> object:
    """Return a value that changes when the size of a run's folder must be measured again. Reads the disk."""
    if run.alive:  # once a minute; for a run that is not active, when its folders change
        return run.last_event_at[:16]
    folder, modified_ns = RunFolder(run.path), list[int]()
    for path in (folder.root, folder.exports, folder.checkpoints, folder.model):
        with suppress(OSError):
            modified_ns.append(path.stat().st_mtime_ns)
    return modified_ns


def _now() -> datetime:
    return datetime.now(UTC)


def _result_or_message(work: Callable[[Path], T], path: Path) -> T | str:
    """Return the result of `work(path)`. For a FolderError, return its message, without the path."""
    try:
        return work(path)
    except FolderError as error:
        return _reason(error)


def _results_or_messages(work: Callable[[Path], T], paths: Sequence[Path]) -> list[T | str]:
    return [_result_or_message(work, path) for path in paths]


def _reason(error: InputError) -> str:
    problem = error.problems[0]
    return one_line(f"{problem.message}; {problem.hint}".removesuffix("; "))
