"""What the Train screen shows: which of its parts, and what draws each of them."""

from collections.abc import Callable
from typing import Final

from tui_trainer.runs.slowest_rank import slowest_rank
from tui_trainer.runs.targets import targets_summary
from tui_trainer.ui.screens import train_lines as lines
from tui_trainer.ui.screens import train_story as story
from tui_trainer.ui.screens.gauges_view import target_words
from tui_trainer.ui.screens.train_scene import TrainScene
from tui_trainer.ui.spans import Line

Draw = Callable[[TrainScene, int, int], list[Line]]
Heading = Callable[[TrainScene], tuple[str, str]]


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
        "progress": has_steps, "readings": reads_itself, "plan": state.plan is not None,
        "targets": state.plan is not None and bool(targets_summary(state)), "epochs": state.epochs,
        "doctor": has_steps and scene.verdict is not None and scene.verdict.is_known and not scene.table_open,
        "ranks": slowest_rank(state) is not None and "rates" in parts,
        "times": state.recent, "switched-on": scene.what_is_on, "samples": state.samples,
    }  # fmt: skip
    return frozenset(parts | {name for name, there in of_the_run.items() if there})


def _memory(scene: TrainScene) -> str:
    words = lines.memory_words(scene.run) if scene.run.steps else ""
    targets = targets_summary(scene.run).partition(",")[0]
    parts = [f"targets {targets}" if targets else "", f"memory {words}" if words else ""]
    return ", ".join(filter(None, parts))


def _readings_heading(scene: TrainScene) -> tuple[str, str]:
    return "its process", f"read at step {scene.run.gauges[-1].step:,}" if scene.run.gauges else ""


def _only(title: str) -> Heading:
    return lambda _: (title, "")


# What each part draws in a width and a height, and, where it stands under a rule, the texts at its left and right end.
PARTS: Final[dict[str, tuple[Draw, Heading | None]]] = {
    "invitation": (story.invitation, None),
    "run": (lines.run_line, None),
    "progress": (lines.progress_line, None),
    "preparation": (story.preparation, None),
    "speed": (lambda *_: [], lambda scene: ("speed" if scene.run.steps else "machine", _memory(scene))),
    "rates": (lines.rates_line, None),
    "parts": (lines.parts_line, None),
    "ranks": (lines.ranks_line, None),
    "tuning": (lines.tuning_line, None),
    "doctor": (lines.doctor_line, None),
    "gauges": (lines.gauges, None),
    "result": (story.ending, lambda scene: ("result", _memory(scene))),
    "readings-here": (lines.readings_rows, _readings_heading),
    "log": (lines.log_rows, _only("log")),
    "table": (story.score_rows, story.scores_heading),
    "events": (lines.event_rows, lines.events_heading),
    "machine": (lines.gauges, lambda scene: ("machine", target_words(scene.glyphs))),
    "readings": (lines.readings_rows, _readings_heading),
    "times": (lines.parts_rows, _only("time of a step")),
    "plan": (lines.plan_rows, _only("plan")),
    "targets": (story.target_rows, lambda scene: ("targets", targets_summary(scene.run))),
    "switched-on": (lines.switched_on, _only("switched on")),
    "epochs": (lines.epoch_rows, _only("epochs")),
    "samples": (lines.sample_rows, _only("what it writes")),
}
