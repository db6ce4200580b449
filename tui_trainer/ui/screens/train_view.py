"""What the Train screen shows, as pure functions: which of its parts, and the lines of each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens import train_lines as lines
from tui_trainer.ui.screens import train_story as story
from tui_trainer.ui.screens.gauges_view import gauge_lines, target_words
from tui_trainer.ui.spans import Line, Role

_WIDEST_GAUGES: Final = 100
_EPOCHS: Final = 7
_SAMPLE_LINES: Final = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainScene:
    """All that one picture of the Train screen is made from. Events are texts with roles, newest last.

    `is_beside` when the run is alive in this process, so that the machine's gauges are the run's; `interrupted` when it
    has not ended and its process is gone; `events_back` counts the newest events that are scrolled away; `offer` are
    sentences on what a start would do; `resume` is what to press or type to go on.
    """

    state: RunState | None
    glyphs: Glyphs
    gauges: Gauges
    sparks: Mapping[str, Sequence[float]]
    events: Sequence[tuple[str, Role]] = ()
    log_lines: Sequence[str] = ()
    what_is_on: Sequence[str] = ()
    is_beside: bool = True
    interrupted: bool = False
    log_open: bool = False
    table_open: bool = False
    frozen: bool = False
    events_back: int = 0
    start_key: str = "t"
    try_key: str = "w"
    freeze_key: str = "Space"
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


def visible_parts(scene: TrainScene) -> frozenset[str]:
    """The parts that have something to show now; the style sheet leaves some out on small terminals."""
    if scene.state is None:
        return frozenset({"invitation", "speed", "gauges"})
    state = scene.state
    has_steps, reads_itself = bool(state.steps), bool(state.gauges) and not scene.is_beside
    parts = {"run", "events", "right", "machine", "chart" if has_steps else "preparation"}
    if scene.table_open:
        parts.add("table")
    elif scene.log_open:
        parts |= {"log", "result"} if scene.is_over else {"log"}
    elif scene.is_over:
        parts |= {"result", "small"} if has_steps else {"result"}
    elif has_steps:
        parts |= {"speed", "rates", "parts", "gauges", "small"} | ({"tuning"} if lines.is_tuned(state.plan) else set())
    else:
        parts |= {"speed", "gauges"}
    if reads_itself and not scene.table_open and not scene.log_open:
        parts = parts - {"gauges"} | {"readings-here"}
    of_the_run = {
        "progress": has_steps, "readings": reads_itself, "plan": state.plan is not None, "epochs": state.epochs,
        "times": state.recent, "switched-on": scene.what_is_on, "samples": state.samples,
    }  # fmt: skip
    return frozenset(parts | {name for name, there in of_the_run.items() if there})


def _gauges(scene: TrainScene, width: int, _: int) -> list[Line]:
    return gauge_lines(scene.gauges, scene.sparks, min(width, _WIDEST_GAUGES), scene.glyphs)


def _readings(scene: TrainScene, width: int, _: int) -> list[Line]:
    return lines.readings_rows(scene.run, width, scene.glyphs)


def _result(scene: TrainScene, width: int, _: int) -> list[Line]:
    return story.ending(
        scene.run, scene.run_folder or ".", scene.try_key, scene.resume, scene.interrupted, width, scene.glyphs
    )


def _switched_on(scene: TrainScene, width: int, _: int) -> list[Line]:
    return [line for text in scene.what_is_on
            for line in lines.wrapped(text, width, scene.glyphs, most=2, indent="  ")]  # fmt: skip


def _memory(scene: TrainScene) -> str:
    words = lines.memory_words(scene.run) if scene.run.steps else ""
    return f"memory {words}" if words else ""


def _events_note(scene: TrainScene) -> str:
    return f"held still: {scene.freeze_key} goes on" if scene.frozen else lines.saved_words(scene.run)


def _readings_note(scene: TrainScene) -> str:
    return f"read at step {scene.run.gauges[-1].step:,}" if scene.run.gauges else ""


Draw = Callable[[TrainScene, int, int], list[Line]]
Heading = Callable[[TrainScene], tuple[str, str]]
# What each part draws in a width and a height, and, where it stands under a rule, the texts at its left and right end.
PARTS: Final[dict[str, tuple[Draw, Heading | None]]] = {
    "invitation": (lambda s, w, _: [[], *story.invitation(s.start_key, s.offer, w, s.glyphs), []], None),
    "run": (lambda s, w, _: [lines.run_line(s.run, s.interrupted, w, s.glyphs)], None),
    "progress": (lambda s, w, _: [lines.progress_line(s.run, w, s.glyphs)], None),
    "preparation": (lambda s, w, _: story.preparation(s.run, w, s.glyphs), None),
    "speed": (lambda *_: [], lambda s: ("speed" if s.run.steps else "machine", _memory(s))),
    "rates": (lambda s, w, _: [lines.rates_line(s.run, w)], None),
    "parts": (lambda s, w, _: [lines.parts_line(s.run, w)], None),
    "tuning": (lambda s, *_: [lines.tuning_line(s.run.plan, s.glyphs)] if s.run.plan else [], None),
    "gauges": (_gauges, None),
    "result": (_result, lambda s: ("result", _memory(s))),
    "readings-here": (_readings, lambda s: ("its process", _readings_note(s))),
    "log": (lambda s, _, h: lines.log_rows(s.log_lines, h, s.glyphs), lambda s: ("log", "")),
    "table": (lambda s, w, h: story.score_rows(s.run, w, h, s.glyphs), lambda s: story.scores_heading(s.run, s.glyphs)),
    "events": (
        lambda s, w, h: lines.event_rows(s.events, w, h, s.events_back, s.glyphs),
        lambda s: ("events", _events_note(s)),
    ),
    "machine": (_gauges, lambda s: ("machine", target_words(s.glyphs))),
    "readings": (_readings, lambda s: ("its process", _readings_note(s))),
    "times": (lambda s, w, _: lines.parts_rows(s.run, w, s.glyphs), lambda s: ("time of a step", "")),
    "plan": (lambda s, *_: lines.plan_rows(s.run, s.glyphs), lambda s: ("plan", "")),
    "switched-on": (_switched_on, lambda s: ("switched on", "")),
    "epochs": (lambda s, *_: lines.epoch_rows(s.run, _EPOCHS), lambda s: ("epochs", "")),
    "samples": (
        lambda s, w, _: lines.sample_rows(s.run, w, _SAMPLE_LINES, s.glyphs),
        lambda s: ("what it writes", ""),
    ),
}
