"""4 Train: the run as it goes, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from tui_trainer.hardware.gauges import Gauges
from tui_trainer.ui.actions import Action
from tui_trainer.ui.page import Page, bindings
from tui_trainer.ui.screens.gauges_view import HALF_WIDTH, GaugeTrail, gauge_lines
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.runs.state import RunState
    from tui_trainer.ui.chart.loss_chart import LossChart
    from tui_trainer.ui.chart.small_charts import SmallCharts

_LOG_ROWS = 200
_RUN_ALIVE = frozenset({"pause", "save", "evaluate", "stop"})
_WITH_STEPS = frozenset(
    {"smoothing", "log_scale", "metric", "zoom_in", "zoom_out", "zoom_all", "tail", "cross_left", "cross_right"}
)


class TrainPage(Page):
    place = "train"
    BINDINGS = bindings("train")

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._charts: tuple[LossChart, SmallCharts] | None = None
        self._trail = GaugeTrail()
        self._log_open = False
        self._table_open = False
        self._events_back = 0
        self._frozen: tuple[tuple[int, int], list[Line]] | None = None

    def body(self) -> Iterable[Pane]:
        yield Pane(self.draw)

    def draw(self, width: int, height: int) -> list[Line]:
        if self._frozen and self._frozen[0] == (width, height):
            return self._frozen[1]
        from tui_trainer.ui.screens.train_view import TrainScene, TrainViewOptions, draw_train

        bench, run = self.bench, self.bench.run
        chart, small_charts = self.charts
        name = run.folder.name if run else ""
        options = TrainViewOptions(
            log_open=self._log_open,
            table_open=self._table_open,
            frozen=self._frozen is not None,
            interrupted=run is not None and run.is_interrupted,
            events_back=self._events_back,
            start_key=bench.app.key_of("app.start"),
            try_key=bench.app.key_of("train.try_model"),
            freeze_key=bench.app.key_of("train.freeze"),
            resume=f"press {bench.app.key_of('train.pause')}, or type: tui-trainer resume {name}",
            run_folder=str(run.folder.root) if run else "",
            offer=self._offer(),
        )
        scene = TrainScene(
            state=run.state if run else None,
            chart=chart,
            small_charts=small_charts,
            gauges=bench.gauges or Gauges(),
            sparks=self._trail.sparks(monotonic()),
            events=tuple(run.events) if run else (),
            log_lines=self._log(),
            what_is_on=bench.what_is_on,
            options=options,
        )
        return draw_train(scene, width=width, height=height, glyphs=bench.glyphs)

    @property
    def charts(self) -> tuple[LossChart, SmallCharts]:
        """Made when they are first drawn."""
        if self._charts is None:
            from tui_trainer.ui.chart.loss_chart import LossChart
            from tui_trainer.ui.chart.small_charts import SmallCharts

            self._charts = LossChart(), SmallCharts()
        return self._charts

    def run_changed(self) -> None:
        """Another run is on the table: its curves begin anew."""
        self._charts = None
        self._frozen = None
        self._events_back = 0

    def tick(self) -> None:
        if gauges := self.bench.gauges:
            self._trail.take(gauges, monotonic())

    def by_clock(self, width: int) -> object:
        if self._frozen is not None:
            return ()
        gauges, sparks = self.bench.gauges or Gauges(), self._trail.sparks(monotonic())
        # In a narrow column and in a wide one the bars have other lengths.
        drawn = [gauge_lines(gauges, sparks, cells, self.bench.glyphs) for cells in (HALF_WIDTH, 2 * HALF_WIDTH)]
        return drawn, self._log()

    def _offer(self) -> list[str]:
        bench = self.bench
        if bench.plan is None or bench.is_planning:
            return ["the plan is being made ..." if bench.is_planning else "the config has a problem: 2 shows it"]
        from tui_trainer.ui.starting import offer_lines

        return offer_lines(bench.plan)

    def _log(self) -> list[str]:
        guard = self.bench.guard
        if not self._log_open or guard is None:
            return []
        from tui_trainer.ui.watch import tail_of

        return tail_of(guard.log_path, _LOG_ROWS)

    @property
    def _state(self) -> RunState | None:
        return self.bench.run.state if self.bench.run else None

    # ---------------------------------------------------------- the run

    def available(self, action: Action) -> bool:
        run = self.bench.run
        if action.name == "pause":
            return run is not None and (run.alive or run.is_interrupted or run.state.status in ("stopped", "failed"))
        if action.name in _RUN_ALIVE:
            return run is not None and run.alive
        if action.name in _WITH_STEPS:
            return run is not None and len(run.state.steps) > 0
        if action.name == "clear":
            return self.charts[0].cross_step is not None
        if action.name == "try_model":
            return run is not None and not run.alive and bool(run.state.checkpoints or run.state.finished)
        if action.name == "table":
            return self._table_open or (run is not None and any(done.table_rows for done in run.state.evals))
        return True

    def why_not(self, action: Action) -> str:
        run = self.bench.run
        if run is None:
            return f"{action.label}: nothing is training; {self.bench.app.key_of('app.start')} starts"
        if action.name == "try_model" and run.alive:
            return "the model can be tried when the run has stopped or ended"
        if action.name == "table":
            return "no evaluation of this run has a table of classes so far"
        if action.name in _RUN_ALIVE:
            return f"{action.label}: the run is over"
        return super().why_not(action)

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
            from tui_trainer.ui.starting import offer_resume

            offer_resume(self.bench)

    def action_save(self) -> None:
        self.bench.ask_run("save")

    def action_evaluate(self) -> None:
        self.bench.ask_run("evaluate")

    def action_stop(self) -> None:
        """Save and stop, after one more key."""
        from tui_trainer.ui.starting import offer_stop

        offer_stop(self.bench)

    def action_try_model(self) -> None:
        """Let the newest weights continue a text."""
        from tui_trainer.ui.trying import offer_try

        offer_try(self.bench)

    # --------------------------------------------------------- the view

    def action_smoothing(self) -> None:
        self.bench.tell(self.charts[0].cycle_smoothing())

    def action_log_scale(self) -> None:
        if state := self._state:
            refusal = self.charts[0].toggle_log(state)
            self.bench.tell(refusal or ("logarithmic" if self.charts[0].log else "linear"))

    def action_metric(self) -> None:
        self.bench.tell(self.charts[0].cycle_metric())

    def action_zoom_in(self) -> None:
        self.charts[0].zoom_in()

    def action_zoom_out(self) -> None:
        self.charts[0].zoom_out()

    def action_zoom_all(self) -> None:
        self.charts[0].zoom_reset()

    def action_tail(self) -> None:
        self.charts[0].toggle_tail()

    def action_cross_left(self) -> None:
        self.charts[0].move_cross(-1)

    def action_cross_right(self) -> None:
        self.charts[0].move_cross(1)

    def action_clear(self) -> None:
        self.charts[0].clear_cross()

    def action_log(self) -> None:
        self._log_open = not self._log_open
        guard = self.bench.guard
        if self._log_open and (guard is None or guard.log_path is None):
            self.bench.tell("there is no log: the state folder cannot be written", "warn")

    def action_table(self) -> None:
        self._table_open = not self._table_open

    def action_freeze(self) -> None:
        """Hold the picture still, or let it go on."""
        if self._frozen is not None:
            self._frozen = None
            return
        self._frozen = ((0, 0), [])
        width, height = self.bench.app.body_size
        self._frozen = ((width, height), self.picture(width, height))

    def action_up(self) -> None:
        run = self.bench.run
        self._events_back = min(self._events_back + 1, max(len(run.events) - 1, 0) if run else 0)

    def action_down(self) -> None:
        self._events_back = max(self._events_back - 1, 0)
