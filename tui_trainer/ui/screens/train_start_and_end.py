"""Sections of the Train screen while no steps are trained: before a run, while it is prepared, and after its end."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from tui_trainer.lines.plan_and_events import event_line
from tui_trainer.runs import result
from tui_trainer.runs.result import ScoreWords, beaten_words
from tui_trainer.runs.steps_and_eta import speed_rows
from tui_trainer.runs.wording import interrupted_words, plan_time_words, rows_words, sentence
from tui_trainer.tasks import holds_conversations, labels_rows, loss_unit, scores_answers
from tui_trainer.ui.keymap import name_keys_for_commands
from tui_trainer.ui.screens.train_view import TrainScene, work_line
from tui_trainer.ui.spans import Line, Role, fit
from tui_trainer.units import quantity

_WIDE_RESULT: Final = 100
_READING_WIDTH: Final = 100
_STORY_LABEL, _SPEED_LABEL = 9, 12
_NAME_WIDTH, _BASELINE_WIDTH = 28, 18


def invitation(scene: TrainScene, width: int, _: int) -> list[Line]:
    """Return how to start a run; if a start was requested, the work that it waits for."""
    text_cells, title = min(width, _READING_WIDTH) - 4, scene.background_run or "Nothing is training yet."
    line: Line = [("Press ", "text"), (scene.key_of("app.start"), "key")]
    line.append((" to start. You see the plan first and confirm it.", "text"))
    if scene.starting_words:
        title = "A new run is being prepared."
        line = [(f"{scene.glyphs.pointer} ", "accent"), (scene.starting_words, "text")]
    lines: list[Line] = [[], [(title, "bold")], [], line, []]
    for text in scene.offer:
        lines += scene.labelled(f"{scene.glyphs.dot} ", text, text_cells, 2)
    closing_text = "A run continues if the connection is lost. You can stop and resume it at any step."
    return _indented([*lines, [], *scene.wrapped(closing_text, text_cells, role="dim"), []])


def preparation(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, glyphs = scene.run, scene.glyphs
    data, plan, is_loading, is_training = state.data, state.plan, state.phase == "loading", state.status == "training"
    rows_text = "" if data is None else rows_words(data.rows, data.tokens)
    plan_text = f"{quantity(plan.total_steps, 'step')}, {plan_time_words(plan)}" if plan else ""
    is_read, is_planned = data is not None, plan is not None
    stages = [
        ("reading and preparing the data", is_read, not is_read and not is_loading, rows_text),
        ("computing the exact plan", is_planned, is_read and not is_planned, plan_text),
        ("loading libraries and the model", is_training, is_loading or (is_planned and not is_training), ""),
        ("first step", False, is_training, ""),
    ]
    lines: list[Line] = []
    for name, is_done, is_now, note in stages:
        sign = glyphs.good if is_done else glyphs.pointer if is_now else glyphs.dot
        role: Role = "good" if is_done else "accent" if is_now else "dim"
        lines.append([(sign.ljust(3), role), (name.ljust(33), "text" if is_now or is_done else "dim"), (note, "dim")])
        if is_now and state.progress is not None:
            lines.append([("   ", "text"), *work_line(scene, min(width, _READING_WIDTH) - 5)])
    if state.baselines is not None and (baseline_text := event_line(state.baselines, state)):
        lines += [[], *scene.wrapped(baseline_text, min(width, _READING_WIDTH) - 2)]
    return _indented(lines)


def _indented(lines: Sequence[Line]) -> list[Line]:
    return [[("  ", "text"), *line] if line else [] for line in lines]


def ending(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, failure, finished = scene.run, scene.run.failed, scene.run.finished
    if failure is None and finished is not None and finished.reason != "stopped":
        return _result(scene, width)
    lines: list[Line] = []
    if failure is not None:
        message = name_keys_for_commands(failure.message).strip() or "the run failed without an error message"
        lines = scene.wrapped(message, width, most=4, role="bad")
        if path := failure.log_path:
            path = path if path.startswith("/") else f"{scene.run_folder or '.'}/{path}"
            lines += scene.labelled("log", path, width, _STORY_LABEL)
    elif finished is not None:
        lines = [[(sentence(result.ending_words(state)), "bold")]]
    elif scene.interrupted:
        gone_text = interrupted_words(state, scene.key_of("train.pause"))
        return scene.wrapped(f"{gone_text}. The process was killed, or the machine went down.", width, role="bad")
    else:
        return []
    resume_point = "from the beginning, because no checkpoint was written"
    if state.checkpoints:
        resume_point = f"from step {state.checkpoints[-1].step:,}, exactly as if it had never stopped"
    lines += scene.labelled("resume", f"press {scene.key_of('train.pause')}", width, _STORY_LABEL, "key")
    return [*lines, *scene.labelled("", resume_point, width, _STORY_LABEL)]


def _result(scene: TrainScene, width: int) -> list[Line]:
    state, finished = scene.run, scene.run.finished
    assert finished is not None
    lines = scene.wrapped(sentence(result.ended_after_words(state)), width, role="bold")
    if finished.eval_loss is not None:
        lines += _against_baselines(scene, finished.eval_loss)
        lines += [_score_row(scene, score) for score in result.scores_of(state)]
        for target in result.targets_of(state):
            verdict, role = scene.verdict(target.met, target.verdict)
            lines += scene.labelled("target", f"{verdict}: {target.words}", width, _STORY_LABEL, role)
        if text := result.better_words(state):
            lines += scene.wrapped(text, width, role="warn")
    rows, (grade, is_slow) = speed_rows(state), result.rated_speed(state)
    # On a wide screen, the grade stays in the rows at the end.
    if rows and width < _WIDE_RESULT and grade:
        lines += scene.labelled("speed", grade, width, _STORY_LABEL, "warn" if is_slow else "text")
        rows = [(label, tail) for label, text in rows if (tail := text.removeprefix(grade).removeprefix("; "))]
    actions: list[tuple[str, str]] = []
    if finished.model_path:
        is_adapter = state.plan is not None and bool(state.plan.lora_rank)
        path = f"{scene.run_folder or '.'}/{finished.model_path}"
        lines += scene.labelled("adapter" if is_adapter else "model", path, width, _STORY_LABEL)
        if state.plan is not None and is_adapter:
            lines += scene.labelled("base", state.plan.base_model, width, _STORY_LABEL)
        verb = "classify" if labels_rows(state.task) else "answer" if holds_conversations(state.task) else "continue"
        actions = [] if scores_answers(state.task) else [("try_model", f"{verb} a text you type")]
        actions.append(("export", "export"))
    actions += [("report", "copy report path")] * bool(scene.report)
    spans: list[Line] = [[(scene.key_of(f"train.{name}"), "key"), (f" {text}   ", "text")] for name, text in actions]
    lines += [[("next".ljust(_STORY_LABEL), "dim"), *chain(*spans)]] if spans else []
    # These rows are last, because a small terminal has no room for them.
    for label, text in rows:
        lines += scene.labelled(label, text, width, _SPEED_LABEL)
    return lines


def _against_baselines(scene: TrainScene, loss: float) -> list[Line]:
    state = scene.run
    unit = f"{loss_unit(state.task)}{result.kept_at_words(state)}"
    lines: list[Line] = [[("held out ", "dim"), (f"{loss:.4f}", "bold"), (unit, "dim")]]
    for name, baseline in (state.baselines.losses if state.baselines else {}).items():
        label = fit([(f"  {scene.to_safe_text(name)}", "dim")], _BASELINE_WIDTH, scene.glyphs.ellipsis)
        verdict = scene.verdict(loss < baseline, beaten_words(loss < baseline))
        lines.append([(f"{' ' * _STORY_LABEL}{baseline:.4f}", "text"), *label, (" ", "text"), verdict])
    return lines


def _score_row(scene: TrainScene, score: ScoreWords) -> Line:
    name = fit([(scene.to_safe_text(score.name), "dim")], _NAME_WIDTH, scene.glyphs.ellipsis)
    line: Line = [*name, (f" {result.format_score(score.value)}", "bold")]
    if score.baseline is None:
        return line
    # The name of the baseline is last, because the end of the line may be cut.
    to_beat = f"  {result.format_score(score.baseline[1])} {scene.to_safe_text(score.baseline[0])}"
    verdict = scene.verdict(score.beats_baseline, beaten_words(score.beats_baseline))
    return [*line, ("  ", "text"), verdict, (to_beat, "dim")]
