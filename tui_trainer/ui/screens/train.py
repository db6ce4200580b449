"""The Train screen: which of its sections are shown, how each is drawn, and the actions on its run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.events import MouseScrollDown, MouseScrollUp

from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs.result import exceeds_plan, memory_words, targets_summary
from tui_trainer.runs.state import slowest_rank
from tui_trainer.tasks import scores_answers
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.chart import MOST_HALVINGS, ChartView, LossChart
from tui_trainer.ui.command_dialogs import ExportDialog
from tui_trainer.ui.commands import more_answers, offer_more
from tui_trainer.ui.curves import HELD_OUT_LOSS, LOSS, METRICS, metric_of, metrics_of
from tui_trainer.ui.dialogs import Answer, KeyLine
from tui_trainer.ui.keymap import Action, name_keys_for_commands
from tui_trainer.ui.page import NO_REPORT, NOTHING_TO_DO, FilteredPage, TopLine, bindings
from tui_trainer.ui.palette import Command, MarkingPalette
from tui_trainer.ui.run_dialogs import DoctorDialog, offer_try
from tui_trainer.ui.screens import train_scores as scores
from tui_trainer.ui.screens import train_start_and_end as story
from tui_trainer.ui.screens import train_view as view
from tui_trainer.ui.screens.train_view import TrainScene
from tui_trainer.ui.spans import Line, next_of
from tui_trainer.ui.starting import offer_detach, offer_lines, offer_resume, offer_stop
from tui_trainer.ui.watch import WatchedRun, tail_of
from tui_trainer.ui.widgets.gauge import gauge_lines
from tui_trainer.ui.widgets.pane import Area, KeyedPane, Pane, Scroller, Section
from tui_trainer.ui.workbench import Workbench

_WIDEST_GAUGES: Final = 100
Draw = Callable[[TrainScene, int, int], list[Line]]
Heading = Callable[[TrainScene], tuple[str, str | Line]]
_LOG_ROWS = 200
_MOST_CURVES, _LOSSES = 2, (LOSS, HELD_OUT_LOSS)
_LEAST_FOR_TWO = 8
_ENLARGEABLE_SECTIONS = ("charts", "result", "events", "log", "samples")
_RUN_REQUESTS = ("pause", "save", "evaluate", "stop")
_ACTIONS_WITHOUT_RUN = ("log", "freeze", "up", "down")
_ACTIONS_WHILE_FROZEN = (*_RUN_REQUESTS, "freeze", "doctor", "try_model", "export", "report", "more")
_CHANGED_BY_THE_CLOCK = ("gauges", "machine", "log")


def visible_parts(scene: TrainScene) -> frozenset[str]:
    """Return the names of the sections that are shown for this state."""
    if scene.state is None:
        return frozenset({"left", "invitation", "speed", "gauges"})
    if scene.enlarged_section:
        side = "right" if scene.enlarged_section in _BESIDE_THE_CHART else "left"
        return frozenset({"run", "progress", side, scene.enlarged_section})
    state = scene.state
    has_steps, has_own_gauges = bool(state.steps), bool(state.gauges) and not scene.trains_on_this_machine
    parts = {"run", "events", "left", "right", "machine", "charts" if has_steps else "preparation"}
    if scene.table_open:
        parts.add("table")
    elif scene.log_open:
        parts |= {"log", "result"} if scene.is_over else {"log"}
    elif scene.is_over:
        parts |= {"result", "small"} if has_steps else {"result"}
    elif has_steps:
        parts |= {"speed", "rates", "parts", "gauges", "small"} | ({"tuning"} if view.is_tuned(state.plan) else set())
    else:
        parts |= {"speed", "gauges"}
    if has_own_gauges and not scene.table_open and not scene.log_open:
        parts = parts - {"gauges"} | {"readings-here"}
    contents = {
        "progress": has_steps, "readings": has_own_gauges, "plan": state.plan is not None,
        "targets": state.plan is not None and bool(targets_summary(state)), "epochs": state.epochs,
        "doctor": has_steps and scene.examination is not None and scene.examination.is_known and not scene.table_open,
        "scores": bool(state.training_scores) and "rates" in parts,
        "ranks": slowest_rank(state) is not None and "rates" in parts,
        "standing": state.evals or state.training_scores,
        "times": state.recent_sums, "switched-on": scene.enabled_options, "samples": state.samples,
    }  # fmt: skip
    return frozenset(parts | {name for name, has_content in contents.items() if has_content})


def _memory(scene: TrainScene) -> Line:
    memory, targets = memory_words(scene.run) if scene.run.steps else "", targets_summary(scene.run).partition(",")[0]
    line: Line = [(f"targets {targets}{', ' if memory else ''}", "dim")] if targets else []
    return [*line, (f"memory {memory}", "warn" if exceeds_plan(scene.run) else "dim")] if memory else line


def _readings_heading(scene: TrainScene) -> tuple[str, str]:
    return "process", f"read at step {scene.run.gauges[-1].step:,}" if scene.run.gauges else ""


def _enabled_lines(scene: TrainScene, width: int, _: int) -> list[Line]:
    return [row for text in scene.enabled_options for row in scene.wrapped(text, width, 2, indent="  ")]


def _gauges(scene: TrainScene, width: int, _: int) -> list[Line]:
    return gauge_lines(scene.gauges, scene.sparks, min(width, _WIDEST_GAUGES), scene.glyphs)


# Drawing function of each section, and its heading: a title, a function for both ends of the rule, or None for no rule.
Parts = dict[str, tuple[Draw, Heading | str | None]]
_ABOVE_THE_CHART: Final[Parts] = {
    "invitation": (story.invitation, None), "run": (view.run_line, None), "progress": (view.progress_line, None),
}  # fmt: skip
_BELOW_THE_CHART: Final[Parts] = {
    "preparation": (story.preparation, None),
    "speed": (lambda *_: [], lambda scene: ("speed" if scene.run.steps else "machine", _memory(scene))),
    "rates": (view.rates_line, None), "scores": (scores.scores_line, None), "parts": (view.parts_line, None),
    "ranks": (view.ranks_line, None), "tuning": (view.tuning_line, None), "doctor": (view.doctor_line, None),
    "gauges": (_gauges, None),
    "result": (story.ending, lambda scene: ("result", _memory(scene))),
    "readings-here": (view.readings_rows, _readings_heading),
    "log": (view.log_rows, "log"),
    "table": (scores.score_rows, scores.scores_heading),
}  # fmt: skip
_BESIDE_THE_CHART: Final[Parts] = {
    "standing": (scores.standing_rows, scores.standing_heading),
    "machine": (_gauges, lambda scene: ("machine", f"{scene.glyphs.target} target")),
    "readings": (view.readings_rows, _readings_heading),
    "times": (view.parts_rows, "step time"),
    "targets": (scores.target_rows, lambda scene: ("targets", targets_summary(scene.run))),
    "epochs": (scores.epoch_rows, "epochs"),
    "samples": (scores.sample_rows, "samples"),
    # Sections that never change come last, because there may be no room for them.
    "plan": (view.plan_rows, "plan"),
    "switched-on": (_enabled_lines, "options"),
}
_EVENTS: Final[Parts] = {"events": (view.event_rows, view.events_heading)}
PARTS: Final[Parts] = _ABOVE_THE_CHART | _BELOW_THE_CHART | _EVENTS | _BESIDE_THE_CHART
_ENDED = "the run has ended"
# Condition under which an action on the run is possible, and the reason to show if it is not.
_NEEDS: Final[dict[str, tuple[Callable[[WatchedRun], object], str]]] = {
    **dict.fromkeys(_RUN_REQUESTS, (lambda run: run.takes_requests, _ENDED)),
    "pause": (lambda run: run.takes_requests or
              (not run.alive and (run.is_interrupted or run.state.status in ("stopped", "failed"))), _ENDED),
    "detach": (lambda run: run.takes_requests and run.is_trained_here,
               "no run trains in this window, so you can quit: a run in another process continues"),
    "try_model": (lambda run: run.state.checkpoints or run.state.finished, NOTHING_TO_DO),
    "more": (lambda run: not run.alive, "the run is still active"),
    "export": (lambda run: not run.alive and (end := run.state.finished) and end.model_path,
               "this run has no final model yet"),
    "doctor": (lambda run: run.doctor.examination is not None and run.state.steps, NOTHING_TO_DO),
    "report": (lambda run: run.has_report, NO_REPORT),
    "table": (lambda run: any(done.table_rows for done in run.state.evals),
              "no evaluation of this run has a table of scores yet"),
    "filter": (lambda _: True, ""),
}  # fmt: skip


class TrainPage(FilteredPage):
    """The Train screen. `visible_parts` chooses the sections to show, and the style sheet places them."""

    place = "train"
    filter_words, choose_words = "words in events and in the log", "older, newer"
    AUTO_FOCUS = ""
    BINDINGS = bindings("train")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide"), (180, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (42, "-tall")]  # noqa: RUF012
    ACTS: ClassVar[dict[str, Callable[["TrainPage"], object]]] = {
        "save": lambda page: page.bench.ask_run("save"),
        "evaluate": lambda page: page.bench.ask_run("evaluate"),
        "stop": lambda page: offer_stop(page.bench),
        "detach": lambda page: offer_detach(page.bench),
        "try_model": lambda page: offer_try(page.bench),
        "export": lambda page: page.bench.app.open(ExportDialog(page.bench, [page.run.folder])),
        "report": lambda page: page.copy_path(page.run.folder.report),
        "more": lambda page: page.offer_more(),
        "doctor": lambda page: page.bench.app.open(DoctorDialog(page.bench, page.run)),
        "zoom_in": lambda page: page.chart.zoom(1),
        "zoom_out": lambda page: page.chart.zoom(-1),
        "zoom_all": lambda page: page.chart.zoom(-MOST_HALVINGS),
        "tail": lambda page: page.chart.toggle_tail(),
        "cross_left": lambda page: page.chart.move_cross(-1),
        "cross_right": lambda page: page.chart.move_cross(1),
        "up": lambda page: page.scroll_events(1),
        "down": lambda page: page.scroll_events(-1),
    }

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._shown_scene: TrainScene | None = None
        self._drawn_live_state: object = None
        self._log_open = self._table_open = self._frozen = False
        self._enlarged_section = ""
        self._events_back = 0
        self._curves_of, self._curves = "", [LOSS]
        """Task that the curves were chosen for, and the names of their metrics."""
        self.chart: LossChart = LossChart(lambda: self._scene.run, id="chart")
        self.second: LossChart = LossChart(lambda: self._scene.run, id="second")
        self.chart.other_chart, self.second.other_chart = self.second, self.chart

    def body(self) -> ComposeResult:
        yield from map(self._part, _ABOVE_THE_CHART)
        with Area(id="columns"):
            with Area(id="left"):
                with Charts(id="charts"):
                    yield self.chart
                    yield self.second
                yield from map(self._part, _BELOW_THE_CHART)
                with Area(id="small"):
                    for metric in list(METRICS)[1:]:
                        yield LossChart(lambda: self._scene.run, ChartView(metric=metric, compact=True))
                yield self._part("events")
                yield self._filter
            yield Scroller(*map(self._part, _BESIDE_THE_CHART), id="right")

    def _part(self, name: str) -> Pane:
        draw, heading = PARTS[name]

        def draw_scene(width: int, height: int) -> list[Line]:
            return draw(self._scene, width, height)

        if heading is None:
            return KeyedPane(draw_scene, id=name)
        kind = EventList if name == "events" else Section
        return kind(lambda: (heading, "") if isinstance(heading, str) else heading(self._scene), draw_scene, id=name)

    @property
    def _scene(self) -> TrainScene:
        if self._shown_scene is None:
            self._shown_scene = self._make_scene()
        return self._shown_scene

    def _make_scene(self) -> TrainScene:
        bench, run, key_of = self.bench, self.bench.run, self.bench.app.key_of
        return TrainScene(
            state=run.state if run else None, glyphs=bench.glyphs, gauges=bench.gauges or Gauges(), sparks=bench.sparks,
            events=[(name_keys_for_commands(text), role) for text, role in run.events] if run else (),
            log_lines=self._log(),
            enabled_options=[state for finding in bench.findings if (state := finding.verdict.switch_state)],
            examination=run.doctor.examination if run else None, trains_on_this_machine=bench.is_training_here,
            interrupted=run is not None and run.is_interrupted, log_open=self._log_open, table_open=self._table_open,
            enlarged_section=self._enlarged_section, frozen=self._frozen, events_back=self._events_back, key_of=key_of,
            words=self._filter.value.strip(),
            report=str(run.folder.report) if run and run.state.finished and run.has_report else "",
            run_folder=str(run.folder.root) if run else "", offer=[] if run else self._offer(),
            starting_words=bench.start_words, background_run=bench.background_run_words,
        )  # fmt: skip

    def on_mount(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        scene, visible_names = self._scene, visible_parts(self._scene)
        self.set_class(scene.state is None, "-no-run")
        self.set_class(not scene.run.steps, "-no-steps")
        self.set_class(scene.is_over, "-over")
        self.set_class(bool(scene.enlarged_section), "-large")
        for name in (*PARTS, "charts", "small", "left", "right"):
            self.query_one(f"#{name}").set_class(name not in visible_names, "-absent")
        self.take_curves()

    def take_curves(self) -> None:
        """Draw the curves that the user has chosen for the run's task. The task is known once the journal names it."""
        state = self._scene.run
        if state.task and state.task != self._curves_of:
            self._curves_of = state.task
            self._curves = self.bench.app.preferences.curves_of(state.task)[:_MOST_CURVES] or [LOSS]
        # A score can be drawn only after its first evaluation.
        metric_names = [name for name in self._curves if metric_of(state, name)] or [LOSS]
        self.chart.show_metric(metric_names[0])
        self.second.show_metric(metric_names[-1])
        for chart in (self.chart, self.second):
            if self.bench.app.preferences.log_scale and chart.view.metric in _LOSSES and not chart.view.log:
                chart.toggle_log()
        height = self.query_one("#charts").size.height
        self.second.set_class(len(metric_names) == 1 or 0 < height < _LEAST_FOR_TWO, "-absent")

    def redraw(self) -> None:
        if not (self.is_shown and self.is_mounted):
            return
        if not self._frozen:
            self._shown_scene = self._make_scene()
            self._arrange()
        for pane in self.query(Pane):
            if isinstance(pane, TopLine | KeyLine) or pane.id == "notice" or (pane.is_on_screen and not self._frozen):
                pane.redraw()

    def tick(self) -> None:
        """Redraw the sections that change with time: gauges and log. The other sections wait for news of the run."""
        clock_state = self.bench.gauges or Gauges(), self.bench.sparks, self._log()
        if self._frozen or clock_state == self._drawn_live_state:
            return
        self._drawn_live_state = clock_state
        self._shown_scene = replace(self._scene, gauges=clock_state[0], sparks=clock_state[1], log_lines=clock_state[2])
        for name in _CHANGED_BY_THE_CLOCK:
            pane = self.query_one(f"#{name}", Pane)
            if pane.is_on_screen:
                pane.redraw()

    def run_changed(self) -> None:
        self._frozen, self._table_open, self._enlarged_section, self._events_back = False, False, "", 0
        self._curves_of, self._curves = "", [LOSS]
        if self.is_mounted:
            for chart in self.query(LossChart):
                chart.forget()

    def _offer(self) -> list[str]:
        bench = self.bench
        if bench.start_wanted:
            return ["any other key cancels the start; Config keeps the settings"]
        if bench.plan is None or bench.is_planning:
            key = bench.app.key_of("app.go_config")
            return ["planning ..." if bench.is_planning else f"the config has a problem: press {key} to see it"]
        return offer_lines(bench.plan)

    def _log(self) -> list[str]:
        guard = self.bench.guard
        return tail_of(guard.log_path, _LOG_ROWS) if self._log_open and guard else []

    def refusal(self, action: Action) -> str:
        run, name = self.bench.run, action.name
        if self._frozen and name not in _ACTIONS_WHILE_FROZEN:
            return f"the display is frozen: press {self.bench.app.key_of('train.freeze')} to unfreeze it"
        if name in _ACTIONS_WITHOUT_RUN or (name == "table" and self._table_open):
            return ""
        if run is None:
            return f"no run; press {self.bench.app.key_of('app.start')} to start one"
        if name == "try_model" and scores_answers(run.state.task):
            return "a reward model writes no text: `tui-trainer predict` scores rows with a prompt and an answer"
        if name == "try_model" and run.alive and not run.state.checkpoints:
            return f"no checkpoint to try yet: press {self.bench.app.key_of('train.save')} to save one"
        if name == "clear":
            can_clear = self._filter.value or self._enlarged_section or self.chart.view.cross_step is not None
            return "" if can_clear else NOTHING_TO_DO
        is_possible, reason = _NEEDS.get(name, (lambda run: run.state.steps, NOTHING_TO_DO))
        return "" if is_possible(run) else reason

    def label_of(self, action: Action) -> str:
        run = self.bench.run
        if action.name == "pause" and run is not None and (not run.takes_requests or run.state.phase == "paused"):
            return "resume"
        return action.label

    def action_pause(self) -> None:
        run = self.bench.run
        if run is not None and run.takes_requests:
            self.bench.ask_run("resume" if run.state.phase == "paused" else "pause")
        else:
            offer_resume(self.bench)

    @property
    def run(self) -> WatchedRun:
        """The run on this screen. Use only in actions that are refused without a run."""
        assert self.bench.run is not None
        return self.bench.run

    def more_answers(self) -> list[Answer]:
        export_action = next(action for action in self.bench.app.keymap.actions_on("train") if action.name == "export")
        state, has_model = self.run.state, not self.refusal(export_action)
        base = state.plan.base_model if state.plan else ""
        return more_answers(self.bench, self.run.folder, state.task, base, has_model=has_model)

    def offer_more(self) -> None:
        actions = {action.name: action for action in self.bench.app.keymap.actions_on("train")}
        answers: list[Answer] = [(key, actions[name].label, partial(self.action_do, name))
                                 for key, name in (("x", "export"), ("w", "try_model"))
                                 if not self.refusal(actions[name])]  # fmt: skip
        offer_more(self.bench, self.run.folder, [*answers, *self.more_answers()])

    def action_smoothing(self) -> None:
        self.chart.next_smoothing()
        smoothing = self.chart.view.smoothing
        self.bench.show_notice(f"smoothing {smoothing:g}" if smoothing else "no smoothing")

    def action_log_scale(self) -> None:
        refusal = self.chart.toggle_log()
        if self.second.view.log != self.chart.view.log:
            self.second.toggle_log()
        if not refusal and self.chart.view.metric in _LOSSES:
            self.bench.app.preferences.log_scale = self.chart.view.log
            self.bench.app.preferences.save()
        self.bench.show_notice(refusal or ("logarithmic" if self.chart.view.log else "linear"))

    def action_metric(self) -> None:
        self.chart.next_metric()
        self._draw_curves([self.chart.view.metric, *self._curves[1:]])
        self.bench.show_notice(one_line(self.chart.view.metric))

    def action_curves(self) -> None:
        state, glyphs, metrics = self._scene.run, self.bench.glyphs, metrics_of(self._scene.run)
        # Names of scores come from the journal, so they are made safe to show.
        names_by_text = {glyphs.replace_unsupported(one_line(name)): name for name in metrics}
        commands = [Command(name=text, help=metrics[name].newest(state), do=lambda: None)
                    for text, name in names_by_text.items()]  # fmt: skip
        marked_texts = [text for text, name in names_by_text.items() if name in self._curves]
        self.bench.app.open(MarkingPalette(
            "Choose one or two curves", commands, marked_texts, _MOST_CURVES,
            lambda chosen: self._draw_curves([names_by_text[text] for text in chosen]),
        ))  # fmt: skip

    def _draw_curves(self, names: list[str]) -> None:
        """Draw these curves, and save them as the choice for the task."""
        self._curves = list(dict.fromkeys(names))
        preferences = self.bench.app.preferences
        preferences.curves[self._scene.run.task] = self._curves
        preferences.save()
        self.bench.app.draw()

    def action_log(self) -> None:
        self._log_open, self._enlarged_section = not self._log_open, ""
        guard = self.bench.guard
        if self._log_open and (guard is None or guard.log_path is None):
            message = "no log: the state folder is not writable; set TUI_TRAINER_HOME to a writable folder"
            self.bench.show_notice(message, "warn")

    def action_table(self) -> None:
        self._table_open, self._enlarged_section = not self._table_open, ""

    def action_large(self) -> None:
        visible_names = visible_parts(replace(self._scene, enlarged_section=""))
        self._enlarged_section = next_of(
            ["", *(name for name in _ENLARGEABLE_SECTIONS if name in visible_names)], self._enlarged_section
        )

    def action_freeze(self) -> None:
        is_frozen, self._frozen = not self._frozen, False
        if is_frozen:
            self._shown_scene = replace(self._make_scene(), frozen=True)
            self.query_one("#events", Pane).redraw()
        self._frozen = self.chart.disabled = self.second.disabled = is_frozen

    def scroll_events(self, lines_back: int) -> None:
        if self._enlarged_section == "samples":
            self.query_one("#right", Scroller).scroll_lines(-lines_back)
            return
        self._events_back = min(max(self._events_back + lines_back, 0), max(len(self._scene.matching_events) - 1, 0))

    def action_clear(self) -> None:
        if self.is_typing or self._filter.value:
            self._filter.value = ""
            self.action_take()
        elif self._enlarged_section:
            self._enlarged_section = ""
        else:
            self.chart.clear_cross()

    def on_input_changed(self) -> None:
        self._events_back = 0
        self.bench.app.draw()

    action_take = FilteredPage.leave_filter

    def action_choose(self, steps: int) -> None:
        self.scroll_events(-steps)
        self.bench.app.draw()


class Charts(Area):
    """Container of the curves. How many are shown depends on its height, which is known only after the layout."""

    screen: TrainPage  # type: ignore[assignment]

    def on_resize(self) -> None:
        self.screen.take_curves()


class EventList(Section):
    screen: TrainPage  # type: ignore[assignment]

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.screen.action_do("up")

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.screen.action_do("down")
