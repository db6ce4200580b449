"""4 Train: the run as it goes, and what can be asked of it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod

from textual.app import ComposeResult
from textual.events import MouseScrollDown, MouseScrollUp

from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs import controls
from tui_trainer.ui.actions import Action
from tui_trainer.ui.chart.drawing import METRICS, MOST_HALVINGS, ChartView
from tui_trainer.ui.doctor_dialog import DoctorDialog
from tui_trainer.ui.exporting import ExportDialog
from tui_trainer.ui.page import NO_REPORT, NOTHING_TO_DO, KeyHints, Page, TopLine, bindings
from tui_trainer.ui.screens.train_scene import TrainScene
from tui_trainer.ui.screens.train_view import PARTS, visible_parts
from tui_trainer.ui.starting import offer_lines, offer_resume, offer_stop
from tui_trainer.ui.trying import offer_try
from tui_trainer.ui.watch import tail_of
from tui_trainer.ui.widgets.loss_chart import LossChart
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.section import Area, Section
from tui_trainer.ui.workbench import Workbench

_LOG_ROWS = 200
_OF_THE_RUN = ("pause", "save", "evaluate", "stop")
_OF_A_RUN = (
    *_OF_THE_RUN, "try_model", "export", "report", "doctor", "table", "clear", "smoothing", "log_scale", "metric",
    "zoom_in", "zoom_out", "zoom_all", "tail", "cross_left", "cross_right",
)  # fmt: skip
_BELOW_THE_CHART = (
    "preparation", "speed", "rates", "parts", "ranks", "tuning", "doctor", "gauges", "result", "readings-here", "log",
    "table",
)  # fmt: skip
_BESIDE_THE_CHART = ("machine", "readings", "times", "plan", "targets", "switched-on", "epochs", "samples")
_CHANGED_BY_THE_CLOCK = ("gauges", "machine", "log")


def _of_the_chart(method: Callable[..., None], *arguments: int) -> "Callable[[TrainPage], None]":
    return lambda page: method(page._chart, *arguments)


class TrainPage(Page):
    """Which of its parts have something to show is decided by `visible_parts`; where they stand, by the style sheet."""

    place = "train"
    BINDINGS = bindings("train")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide"), (180, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (42, "-tall")]  # noqa: RUF012

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._shown_scene: TrainScene | None = None
        self._by_clock: object = None
        self._log_open = self._table_open = self._frozen = False
        self._events_back = 0

    def body(self) -> ComposeResult:
        yield from map(self._part, ("invitation", "run", "progress"))
        with Area(id="columns"):
            with Area(id="left"):
                yield LossChart(lambda: self._scene.run, id="chart")
                yield from map(self._part, _BELOW_THE_CHART)
                with Area(id="small"):
                    for metric in list(METRICS)[1:]:
                        # Disabled, because they are read and not worked with.
                        small = ChartView(metric=metric, compact=True)
                        yield LossChart(lambda: self._scene.run, small, disabled=True)
                yield self._part("events")
            with Area(id="right"):
                yield from map(self._part, _BESIDE_THE_CHART)

    def _part(self, name: str) -> Pane:
        draw, heading = PARTS[name]
        if heading is None:
            return Pane(lambda width, height: draw(self._scene, width, height), id=name)
        kind = EventList if name == "events" else Section
        return kind(lambda: heading(self._scene), lambda width, height: draw(self._scene, width, height), id=name)

    @property
    def _scene(self) -> TrainScene:
        """What the picture is made from; made anew by `redraw`."""
        if self._shown_scene is None:
            self._shown_scene = self._look()
        return self._shown_scene

    def _look(self) -> TrainScene:
        bench, run, key_of = self.bench, self.bench.run, self.bench.app.key_of
        name = run.folder.name if run else ""
        return TrainScene(
            state=run.state if run else None,
            glyphs=bench.glyphs,
            gauges=bench.gauges or Gauges(),
            sparks=bench.sparks,
            events=tuple(run.events) if run else (),
            log_lines=self._log(),
            what_is_on=bench.what_is_on,
            verdict=run.doctor.verdict if run else None,
            is_beside=bench.run_is_ours_and_alive,
            interrupted=run is not None and run.is_interrupted,
            log_open=self._log_open,
            table_open=self._table_open,
            frozen=self._frozen,
            events_back=self._events_back,
            key_of=key_of,
            report=str(run.folder.report) if run and run.state.finished and run.folder.report.is_file() else "",
            resume=f"press {key_of('train.pause')}, or type: tui-trainer resume {name}",
            run_folder=str(run.folder.root) if run else "",
            offer=[] if run else self._offer(),
        )

    def on_mount(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        """Show the parts that have something to show, in the places of this phase of a run."""
        scene, visible = self._scene, visible_parts(self._scene)
        self.set_class(scene.state is None, "-no-run")
        self.set_class(not scene.run.steps, "-no-steps")
        self.set_class(scene.is_over, "-over")
        for name in (*PARTS, "chart", "small", "right"):
            self.query_one(f"#{name}").set_class(name not in visible, "-absent")

    def redraw(self) -> None:
        if not (self.is_shown and self.is_mounted):
            return
        if not self._frozen:
            self._shown_scene = self._look()
            self._arrange()
        for pane in self.query(Pane):
            if pane.is_on_screen and (not self._frozen or isinstance(pane, TopLine | KeyHints)):
                pane.redraw()

    def tick(self) -> None:
        """Only what the clock changes is looked at; the rest waits for news of the run."""
        if self._frozen or not (self.is_active and self.is_mounted):
            return
        by_clock = self.bench.gauges or Gauges(), self.bench.sparks, self._log()
        if by_clock == self._by_clock:
            return
        self._by_clock = by_clock
        self._shown_scene = replace(self._scene, gauges=by_clock[0], sparks=by_clock[1], log_lines=by_clock[2])
        for name in _CHANGED_BY_THE_CLOCK:
            pane = self.query_one(f"#{name}", Pane)
            if pane.is_on_screen:
                pane.redraw()

    def run_changed(self) -> None:
        """Another run is on the table: its curves begin anew."""
        self._frozen, self._events_back = False, 0
        if self.is_mounted:
            for chart in self.query(LossChart):
                chart.forget()

    def _offer(self) -> list[str]:
        bench = self.bench
        if bench.plan is None or bench.is_planning:
            return ["the plan is being made ..." if bench.is_planning else "the config has a problem: 2 shows it"]
        return offer_lines(bench.plan)

    def _log(self) -> list[str]:
        guard = self.bench.guard
        if not self._log_open or guard is None:
            return []
        return tail_of(guard.log_path, _LOG_ROWS)

    # ---------------------------------------------------------- the run

    def refusal(self, action: Action) -> str:
        run, name = self.bench.run, action.name
        if name not in _OF_A_RUN or (name == "table" and self._table_open):
            return ""
        if run is None:
            return f"nothing is training; {self.bench.app.key_of('app.start')} starts"
        if name in _OF_THE_RUN:
            can_go_on = name == "pause" and (run.is_interrupted or run.state.status in ("stopped", "failed"))
            return "" if run.alive or can_go_on else "the run is over"
        if name == "try_model" and run.alive:
            return "it can be tried when the run has stopped or ended"
        if name == "try_model":
            return "" if run.state.checkpoints or run.state.finished else NOTHING_TO_DO
        if name == "export":
            finished = run.state.finished
            return "" if finished and finished.model_path and not run.alive else "this run has no final model yet"
        if name == "doctor":
            return "" if run.doctor.verdict is not None and run.state.steps else NOTHING_TO_DO
        if name == "report":
            return "" if run.folder.report.is_file() else NO_REPORT
        if name == "table":
            has_table = any(done.table_rows for done in run.state.evals)
            return "" if has_table else "no evaluation of this run has a table of classes so far"
        if self._frozen:
            return f"the picture is held still: {self.bench.app.key_of('train.freeze')} goes on"
        is_there = self.is_mounted and self._chart.view.cross_step is not None if name == "clear" else run.state.steps
        return "" if is_there else NOTHING_TO_DO

    def label_of(self, action: Action) -> str:
        run = self.bench.run
        if action.name == "pause" and run is not None and (not run.alive or run.state.phase == "paused"):
            return "resume"
        return action.label

    def action_pause(self) -> None:
        """Pause, or go on; a run that has stopped is resumed from its checkpoint."""
        run = self.bench.run
        if run is not None and run.alive:
            self.bench.ask_run("resume" if run.state.phase == "paused" else "pause")
        else:
            offer_resume(self.bench)

    def _ask(self, action: controls.Action) -> None:
        self.bench.ask_run(action)

    action_save, action_evaluate = partialmethod(_ask, "save"), partialmethod(_ask, "evaluate")

    def action_stop(self) -> None:
        offer_stop(self.bench)

    def action_try_model(self) -> None:
        offer_try(self.bench)

    def action_export(self) -> None:
        if self.bench.run is not None:
            self.bench.app.open(ExportDialog(self.bench, self.bench.run.folder))

    def action_report(self) -> None:
        if self.bench.run is not None:
            self.copy_path(self.bench.run.folder.report)

    def action_doctor(self) -> None:
        if self.bench.run is not None:
            self.bench.app.open(DoctorDialog(self.bench, self.bench.run))

    # --------------------------------------------------------- the view

    @property
    def _chart(self) -> LossChart:
        return self.query_one("#chart", LossChart)

    def action_smoothing(self) -> None:
        self._chart.next_smoothing()
        smoothing = self._chart.view.smoothing
        self.bench.tell(f"smoothing {smoothing:g}" if smoothing else "no smoothing")

    def action_log_scale(self) -> None:
        refusal = self._chart.toggle_log()
        self.bench.tell(refusal or ("logarithmic" if self._chart.view.log else "linear"))

    def action_metric(self) -> None:
        self._chart.next_metric()
        self.bench.tell(self._chart.view.metric)

    action_zoom_in = _of_the_chart(LossChart.zoom, 1)
    action_zoom_out = _of_the_chart(LossChart.zoom, -1)
    action_zoom_all = _of_the_chart(LossChart.zoom, -MOST_HALVINGS)
    action_tail = _of_the_chart(LossChart.toggle_tail)
    action_cross_left = _of_the_chart(LossChart.move_cross, -1)
    action_cross_right = _of_the_chart(LossChart.move_cross, 1)
    action_clear = _of_the_chart(LossChart.clear_cross)

    def action_log(self) -> None:
        self._log_open = not self._log_open
        guard = self.bench.guard
        if self._log_open and (guard is None or guard.log_path is None):
            self.bench.tell("there is no log: the state folder cannot be written", "warn")

    def action_table(self) -> None:
        self._table_open = not self._table_open

    def action_freeze(self) -> None:
        """Hold the picture still, or let it go on."""
        frozen, self._frozen = not self._frozen, False
        if frozen:
            self._shown_scene = replace(self._look(), frozen=True)
            self.query_one("#events", Pane).redraw()
        self._frozen = self._chart.disabled = frozen

    def action_up(self) -> None:
        self._events_back = min(self._events_back + 1, max(len(self._scene.events) - 1, 0))

    def action_down(self) -> None:
        self._events_back = max(self._events_back - 1, 0)


class EventList(Section):
    """What has happened, newest last; the wheel goes back."""

    screen: TrainPage  # type: ignore[assignment]

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.screen.action_do("up")

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.screen.action_do("down")
