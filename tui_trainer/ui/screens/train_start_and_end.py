"""What the Train screen shows while no step is made: before a run, during its preparation, and after its end."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from tui_trainer.lines.plan_and_events import event_line
from tui_trainer.runs.result import (
    ScoreWords,
    beaten_words,
    better_words,
    ended_after_words,
    ending_words,
    kept_at_words,
    number,
    rated_speed,
    scores_of,
    targets_of,
)
from tui_trainer.runs.steps_and_eta import speed_rows
from tui_trainer.runs.wording import gone_words, plan_time_words, rows_words, sentence
from tui_trainer.tasks import holds_conversations, labels_rows, loss_unit
from tui_trainer.ui.keymap import in_keys
from tui_trainer.ui.screens.train_view import TrainScene, work_line
from tui_trainer.ui.spans import Line, Role, fit
from tui_trainer.units import quantity

_WIDE_RESULT: Final = 100
_READING_WIDTH: Final = 100
_STORY_LABEL: Final = 9
_SPEED_LABEL: Final = 12
_NAME_WIDTH: Final = 16
_BASELINE_WIDTH: Final = 18


def invitation(scene: TrainScene, width: int, _: int) -> list[Line]:
    """Return how to start a run, or what a start that was requested waits for."""
    room = min(width, _READING_WIDTH) - 4
    title = "A new run is being prepared."
    line: Line = [(f"{scene.glyphs.pointer} ", "accent"), (scene.starting, "text")]
    if not scene.starting:
        title, line = "Nothing is training yet.", [("Press ", "text"), (scene.key_of("app.start"), "key")]
        line.append((" to start. You see the plan first and confirm it.", "text"))
    lines: list[Line] = [[], [(title, "bold")], [], line, []]
    for text in scene.offer:
        lines += scene.labelled(f"{scene.glyphs.dot} ", text, room, 2)
    ending = "A run continues if the connection is lost. You can stop and resume it at any step."
    return _indented([*lines, [], *scene.wrapped(ending, room, role="dim"), []])


def preparation(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, glyphs = scene.run, scene.glyphs
    data, plan, loading, training = state.data, state.plan, state.phase == "loading", state.status == "training"
    done = "" if data is None else rows_words(data.rows, data.tokens)
    planned = f"{quantity(plan.total_steps, 'step')}, {plan_time_words(plan)}" if plan else ""
    is_read, is_planned = data is not None, plan is not None
    stages = [
        ("reading and preparing the data", is_read, not is_read and not loading, done),
        ("computing the exact plan", is_planned, is_read and not is_planned, planned),
        ("loading libraries and the model", training, loading or (is_planned and not training), ""),
        ("first step", False, training, ""),
    ]
    lines: list[Line] = []
    for text, over, now, note in stages:
        sign = glyphs.good if over else glyphs.pointer if now else glyphs.dot
        role: Role = "good" if over else "accent" if now else "dim"
        lines.append([(sign.ljust(3), role), (text.ljust(33), "text" if now or over else "dim"), (note, "dim")])
        if now and state.progress is not None:
            lines.append([("   ", "text"), *work_line(scene, min(width, _READING_WIDTH) - 5)])
    if state.baselines is not None and (words := event_line(state.baselines, state)):
        lines += [[], *scene.wrapped(words, min(width, _READING_WIDTH) - 2)]
    return _indented(lines)


def _indented(lines: Sequence[Line]) -> list[Line]:
    return [[("  ", "text"), *line] if line else [] for line in lines]


def ending(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, failed, finished = scene.run, scene.run.failed, scene.run.finished
    if failed is None and finished is not None and finished.reason != "stopped":
        return _result(scene, width)
    lines: list[Line] = []
    if failed is not None:
        message = in_keys(failed.message).strip() or "failed without a message"
        lines = scene.wrapped(message, width, most=4, role="bad")
        if path := failed.log_path:
            path = path if path.startswith("/") else f"{scene.run_folder or '.'}/{path}"
            lines += scene.labelled("log", path, width, _STORY_LABEL)
    elif finished is not None:
        lines = [[(sentence(ending_words(state)), "bold")]]
    elif scene.interrupted:
        gone = gone_words(state, scene.key_of("train.pause"))
        return scene.wrapped(f"{gone}. The process was killed, or the machine went down.", width, role="bad")
    else:
        return []
    where = "from the beginning: no checkpoint was written"
    if state.checkpoints:
        where = f"from step {state.checkpoints[-1].step:,}, exactly as if it had never stopped"
    lines += scene.labelled("resume", f"press {scene.key_of('train.pause')}", width, _STORY_LABEL, "key")
    return [*lines, *scene.labelled("", where, width, _STORY_LABEL)]


def _result(scene: TrainScene, width: int) -> list[Line]:
    state, finished = scene.run, scene.run.finished
    assert finished is not None
    lines = scene.wrapped(sentence(ended_after_words(state)), width, role="bold")
    if finished.eval_loss is not None:
        lines += _against_baselines(scene, finished.eval_loss)
        lines += [_score_row(scene, score) for score in scores_of(state)]
        for target in targets_of(state):
            verdict, role = scene.verdict(target.met, target.verdict)
            lines += scene.labelled("target", f"{verdict}: {target.words}", width, _STORY_LABEL, role)
        if words := better_words(state):
            lines += scene.wrapped(words, width, role="warn")
    rows, (graded, is_slow) = speed_rows(state), rated_speed(state)
    # A wide screen has the grade in the rows at the end.
    if rows and width < _WIDE_RESULT and graded:
        lines += scene.labelled("speed", graded, width, _STORY_LABEL, "warn" if is_slow else "text")
        rows = [(label, more) for label, words in rows if (more := words.removeprefix(graded).removeprefix("; "))]
    acts: list[tuple[str, str]] = []
    if finished.model_path:
        is_adapter = state.plan is not None and bool(state.plan.lora_rank)
        what, path = "adapter" if is_adapter else "model", f"{scene.run_folder or '.'}/{finished.model_path}"
        lines += scene.labelled(what, path, width, _STORY_LABEL)
        if state.plan is not None and is_adapter:
            lines += scene.labelled("base", state.plan.base_model, width, _STORY_LABEL)
        does = "classify" if labels_rows(state.task) else "answer" if holds_conversations(state.task) else "continue"
        acts = [("try_model", f"{does} a text you type"), ("export", "export")]
    acts += [("report", "copy report path")] * bool(scene.report)
    keys: list[Line] = [[(scene.key_of(f"train.{act}"), "key"), (f" {words}   ", "text")] for act, words in acts]
    lines += [[("next".ljust(_STORY_LABEL), "dim"), *chain(*keys)]] if keys else []
    # Last, because a small terminal has no room for them.
    for label, words in rows:
        lines += scene.labelled(label, words, width, _SPEED_LABEL)
    return lines


def _against_baselines(scene: TrainScene, loss: float) -> list[Line]:
    state = scene.run
    unit = f"{loss_unit(state.task)}{kept_at_words(state)}"
    lines: list[Line] = [[("held out ", "dim"), (f"{loss:.4f}", "bold"), (unit, "dim")]]
    for name, other in (state.baselines.losses if state.baselines else {}).items():
        label = fit([(f"  {scene.shown(name)}", "dim")], _BASELINE_WIDTH, scene.glyphs.ellipsis)
        verdict = scene.verdict(loss < other, beaten_words(loss < other))
        lines.append([(f"{' ' * _STORY_LABEL}{other:.4f}", "text"), *label, (" ", "text"), verdict])
    return lines


def _score_row(scene: TrainScene, score: ScoreWords) -> Line:
    name = fit([(scene.shown(score.name), "dim")], _NAME_WIDTH, scene.glyphs.ellipsis)
    line: Line = [*name, (f" {number(score.value)}", "bold")]
    if score.baseline is None:
        return line
    # The name of the baseline is last because it may be cut.
    to_beat = f"  {number(score.baseline[1])} {scene.shown(score.baseline[0])}"
    return [*line, ("  ", "text"), scene.verdict(score.beaten, beaten_words(score.beaten)), (to_beat, "dim")]
