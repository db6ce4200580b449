"""What the Train screen says when no step is being made: before a run, while it is prepared, and after its end; and
what a task measures beside the loss."""

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.result import best_before, ending_words, kept_step, newest_scores
from tui_trainer.runs.score_words import ScoreWords, baselines_line, number, score_words
from tui_trainer.runs.state import RunState
from tui_trainer.runs.targets import Target, targets_of
from tui_trainer.safe_text import one_line
from tui_trainer.tasks import labels_rows, loss_unit
from tui_trainer.ui.screens.train_lines import TrainScene
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, fit
from tui_trainer.units import format_count, format_seconds

_READING_WIDTH: Final = 100
_LABEL: Final = 9
_NAME_WIDTH: Final = 16
_LONGEST_NAME: Final = 24
_BASELINE_WIDTH: Final = 36


def invitation(scene: TrainScene, width: int, _: int) -> list[Line]:
    room = min(width, _READING_WIDTH) - 4
    press: Line = [("Press ", "text"), (scene.key_of("app.start"), "key")]
    press.append((" to start. You see the plan first, and confirm it.", "text"))
    lines: list[Line] = [[], [("Nothing is training yet.", "bold")], [], press, []]
    for text in scene.offer:
        lines += scene.labelled(f"{scene.glyphs.dot} ", text, room, 2)
    ending = "The run goes on when the connection is lost, and can be stopped and resumed at any step."
    return _indented([*lines, [], *scene.wrapped(ending, room, role="dim"), []])


def preparation(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, glyphs = scene.run, scene.glyphs
    data, plan, loading, training = state.data, state.plan, state.phase == "loading", state.status == "training"
    done = "" if data is None else f"{data.rows:,} rows, {format_count(data.tokens)} tokens"
    planned = "" if plan is None else f"{plan.total_steps:,} steps, about {format_seconds(plan.duration_seconds)}"
    is_read, is_planned = data is not None, plan is not None
    stages = [
        ("reading and preparing the data", is_read, not is_read and not loading, done),
        ("making the exact plan", is_planned, is_read and not is_planned, planned),
        ("loading libraries and the model", training, loading or (is_planned and not training), ""),
        ("first step", False, training, ""),
    ]
    lines: list[Line] = []
    for text, over, now, note in stages:
        sign = glyphs.good if over else glyphs.pointer if now else glyphs.dot
        role: Role = "good" if over else "accent" if now else "dim"
        lines.append([(sign.ljust(3), role), (text.ljust(33), "text" if now or over else "dim"), (note, "dim")])
        if now and state.progress is not None:
            lines.append([("   ", "text"), *scene.work_line(min(width, _READING_WIDTH) - 5)])
    if (baselines := state.baselines) is not None:
        beat = ", ".join(f"{scene.shown(name)} {loss:.4f}" for name, loss in baselines.losses.items())
        unit = loss_unit(state.task) if beat else ""
        beat = beat or scene.shown(baselines_line(baselines.scores))
        lines += [[], [("to beat: ", "dim"), (beat, "text"), (unit, "dim")]]
    return _indented(lines)


def _indented(lines: Sequence[Line]) -> list[Line]:
    return [[("  ", "text"), *line] if line else [] for line in lines]


def ending(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, failed, finished = scene.run, scene.run.failed, scene.run.finished
    if failed is None and finished is not None and finished.reason != "stopped":
        return _result(scene, width)
    lines: list[Line] = []
    if failed is not None:
        lines = scene.wrapped(failed.message, width, most=4, role="bad") or [[("failed without a message", "bad")]]
        if path := failed.log_path:
            path = path if path.startswith("/") else f"{scene.run_folder or '.'}/{path}"
            lines += scene.labelled("log", path, width, _LABEL)
    elif finished is not None:
        lines = [[(f"{_headline(state)}.", "bold")]]
    elif scene.interrupted:
        lines = [[("Its process is gone: it was killed, or the machine went down.", "bad")]]
    else:
        return []
    where = "from the beginning: no checkpoint was written"
    if state.checkpoints:
        where = f"from step {state.checkpoints[-1].step:,}, as if it had never stopped"
    lines += scene.labelled("go on", scene.resume, width, _LABEL, "key")
    return [*lines, *scene.labelled("", where, width, _LABEL)]


def _headline(state: RunState) -> str:
    words = ending_words(state)
    return f"{words[:1].upper()}{words[1:]}"


def _result(scene: TrainScene, width: int) -> list[Line]:
    state, finished = scene.run, scene.run.finished
    assert finished is not None
    words = f"{_headline(state)}, {format_seconds(finished.seconds)} of training."
    lines = scene.wrapped(words, width, role="bold")
    if finished.eval_loss is not None:
        lines += _against_baselines(scene, finished.eval_loss)
        baselines = state.baselines.scores if state.baselines else {}
        lines += [_score_row(scene, score) for score in score_words(newest_scores(state), baselines)]
        for target in targets_of(state):
            sign, role = verdict_of(target, scene.glyphs)
            words = scene.shown(target.words)
            lines.append([("target   ", "dim"), (f"{words} ", "text"), (f"{sign} {target.verdict}", role)])
        if best := best_before(state):
            lines.append([(f"it was better before: {best.loss:.4f} at step {best.step:,}", "warn")])
    if finished.model_path:
        is_adapter = state.plan is not None and bool(state.plan.lora_rank)
        what, path = "adapter" if is_adapter else "model", f"{scene.run_folder or '.'}/{finished.model_path}"
        lines += scene.labelled(what, path, width, _LABEL)
        if state.plan is not None and is_adapter:
            lines += scene.labelled("on", state.plan.base_model, width, _LABEL)
        does = "says what it makes of" if labels_rows(state.task) else "continues"
        words = f"  the model {does} a text that you type"
        lines.append([("try it".ljust(_LABEL), "dim"), (scene.key_of("train.try_model"), "key"), (words, "text")])
        words = "  in another form: merged, ONNX, int8, GGUF"
        lines.append([("export".ljust(_LABEL), "dim"), (scene.key_of("train.export"), "key"), (words, "text")])
    if scene.report:
        lines += scene.labelled(
            "report", f"{scene.report}  ({scene.key_of('train.report')} copies the path)", width, _LABEL
        )
    return lines


def _against_baselines(scene: TrainScene, loss: float) -> list[Line]:
    state = scene.run
    kept = kept_step(state)
    at = "" if kept is None else f", at step {kept:,}"
    lines: list[Line] = [[("held out ", "dim"), (f"{loss:.4f}", "bold"), (f"{loss_unit(state.task)}{at}", "dim")]]
    for name, other in (state.baselines.losses if state.baselines else {}).items():
        label = f"  {scene.shown(name)[:16]:<16}"
        lines.append([(" " * _LABEL, "text"), (f"{other:.4f}", "text"), (label, "dim"), scene.beaten(loss < other)])
    return lines


def _score_row(scene: TrainScene, score: ScoreWords) -> Line:
    name = f"{scene.shown(score.name)[:_NAME_WIDTH]:<{_NAME_WIDTH}} "
    line: Line = [(name, "dim"), (number(score.value), "bold")]
    if score.baseline is None:
        return line
    what, value = score.baseline
    beside = fit([(f"  {scene.shown(what)} {number(value)} ", "dim")], _BASELINE_WIDTH, scene.glyphs.ellipsis)
    return [*line, *beside, scene.beaten(bool(score.beaten))]


def verdict_of(target: Target, glyphs: Glyphs) -> Span:
    met = target.met
    return (glyphs.dot, "dim") if met is None else (glyphs.good, "good") if met else (glyphs.bad, "bad")


def target_rows(scene: TrainScene, *_: int) -> list[Line]:
    targets = targets_of(scene.run)
    return [[verdict_of(target, scene.glyphs), (f" {scene.shown(target.words)}", "text")] for target in targets]


def scores_heading(scene: TrainScene) -> tuple[str, str]:
    done = scene.newest_table
    if done is None:
        return "scores", ""
    title = f"scores: {scene.shown(done.table_title)}" if done.table_title else "scores"
    return title, f"after step {done.step:,}"


def score_rows(scene: TrainScene, width: int, height: int) -> list[Line]:
    if done := scene.newest_table:
        return table_rows(done, width, height, scene.glyphs)
    return [[("no evaluation with a table of classes so far", "dim")]]


def table_rows(done: EvalDone, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """A row of numbers for each class. Columns that are classes too have their row's number as a title, so that twenty
    of them fit; what does not fit is counted."""
    names, titles = ([glyphs.only(one_line(name)) for name in found] for found in (done.table_rows, done.table_columns))
    square = list(done.table_columns) == list(done.table_rows)
    if square:
        names = [f"{at:>3} {name[:_LONGEST_NAME]}" for at, name in enumerate(names, 1)]
        titles = [str(at) for at in range(1, len(names) + 1)]
    cells = _cells(done, square)
    widest = max(len(text) for text in (*titles, *(cell for row in cells for cell in row))) + 2
    label = min(max(map(cell_len, names)), _LONGEST_NAME + 4 * square)
    columns = max(min((width - label) // widest, len(titles)), 1)
    rows = min(len(names), most - 1 - (columns < len(titles) or len(names) > most - 1))
    lines: list[Line] = [[(" " * label, "dim"), *((f"{title:>{widest}}", "dim") for title in titles[:columns])]]
    for at in range(max(rows, 0)):
        lines.append(fit([(names[at], "text")], label, glyphs.ellipsis))
        for column, cell in enumerate(cells[at][:columns]):
            # What was taken for its own class stands on the diagonal.
            role: Role = "dim" if cell == "0" else "good" if square and column == at else "text"
            lines[-1].append((f"{cell:>{widest}}", role))
    missing = [(len(titles) - columns, "columns"), (len(names) - rows, "rows")]
    words = " and ".join(f"{count} {what}" for count, what in missing if count)
    return [*lines, [(f"{words} more do not fit here", "dim")]] if words else lines


def _cells(done: EvalDone, square: bool) -> list[list[str]]:
    """Counts are whole, shares have two decimals: a column is one or the other."""
    rows = list(done.table_rows.values())
    formats = [
        "{:.0f}" if square or (all(float(value).is_integer() for value in column) and max(column) > 1) else "{:.2f}"
        for column in zip(*rows, strict=True)
    ]
    return [[shape.format(value) for shape, value in zip(formats, row, strict=True)] for row in rows]
