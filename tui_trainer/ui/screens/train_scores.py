"""Sections of the Train screen about measurements of a run: scores, baselines, targets, epochs and samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rich.cells import cell_len

from tui_trainer.runs import result
from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.result import ScoreWords, format_score, score_words
from tui_trainer.runs.wording import sample_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.screens.train_view import LABEL, TrainScene
from tui_trainer.ui.spans import Glyphs, Line, Role, fit, hanging
from tui_trainer.units import format_count, format_seconds, quantity

_MOST_EPOCHS: Final = 7
_SAMPLE_LINES: Final = 24
# Width of the names in the table of scores, and the cells that its numbers need.
_STANDING_NAME, _STANDING_NUMBERS = 17, 36
# Columns are numbered if a class name is longer than the first number. The second is the longest name in a row.
_SHORT_NAME, _LONGEST_NAME = 5, 24


def scores_line(scene: TrainScene, *_: int) -> list[Line]:
    """Return a line with the scores that are measured during training steps; no line without such scores."""
    line: Line = []
    for score in score_words(scene.run.training_scores, {}):
        line += [(f"{scene.to_safe_text(score.name)} ", "dim"), (f"{format_score(score.value)}   ", "text")]
    return [line] if line else []


def standing_heading(scene: TrainScene) -> tuple[str, str]:
    return "scores", f"after step {scene.run.evals[-1].step:,}" if scene.run.evals else "no evaluation yet"


def standing_rows(scene: TrainScene, width: int, _: int) -> list[Line]:
    """Return a table of the scores with newest value, best value and baseline, and which weights are kept."""
    state = scene.run
    baseline_losses, baseline_scores = (state.baselines.losses, state.baselines.scores) if state.baselines else ({}, {})
    scores: list[tuple[ScoreWords, str, Callable[[float], str]]] = []
    event = state.evals[-1] if state.evals else None
    if event is not None and result.best_by(state, "loss") is not None:
        baseline = min(baseline_losses.items(), key=lambda item: item[1], default=None)
        scores.append((ScoreWords("held-out loss", event.loss, baseline, True), "loss", "{:.4f}".format))
    newest_scores = event.scores if event else {}
    for name, score in zip(newest_scores, score_words(newest_scores, baseline_scores), strict=True):
        scores.append((score, name, format_score))
    for score in score_words(state.training_scores, {}):
        scores.append((replace(score, name=f"{score.name}, training"), "", format_score))
    longest_name = max((cell_len(scene.to_safe_text(score.name)) for score, *_ in scores), default=0)
    cells = max(min(longest_name, width - _STANDING_NUMBERS), _STANDING_NAME)
    rows: list[Line] = [[(f"{'':<{cells}}{'now':>8}{'best':>8}{'at step':>8}  to beat", "dim")]]
    rows += [_standing(scene, *score, cells) for score in scores]
    weights = result.kept_weights(state)
    if weights.best_words:
        rows += scene.labelled("best", weights.best_words, width, LABEL)
    if weights.patience_words and not scene.is_over:
        rows += scene.labelled("patience", weights.patience_words, width, LABEL)
    final = f"weights of step {weights.step:,}" if weights.patience or scene.is_over else "weights of the last step"
    return [*rows, *scene.labelled("final", final, width, LABEL)] if state.evals else rows


def _standing(scene: TrainScene, score: ScoreWords, metric: str, show: Callable[[float], str], name_cells: int) -> Line:
    """Return the row of a score: its newest value, its best value with the step (judged by `metric`), its baseline."""
    event = result.best_by(scene.run, metric)
    best, step = (show(result.metric_value(event, metric) or 0.0), f"{event.step:,}") if event else ("", "")
    line = fit([(scene.to_safe_text(score.name), "dim")], name_cells, scene.glyphs.ellipsis)
    line += [(f"{show(score.value):>8}", "text"), (f"{best:>8}", "bold"), (f"{step:>8}", "dim")]
    if score.baseline is not None:
        name, value = score.baseline
        verdict = scene.verdict(score.beats_baseline)
        line += [("  ", "text"), verdict, (f" {show(value)} ", "text"), (scene.to_safe_text(name), "dim")]
    return line


def epoch_rows(scene: TrainScene, *_: int) -> list[Line]:
    planned_seconds = result.planned_epoch_seconds(scene.run.plan)
    # Without a plan, there is no column for planned times.
    planned_cell = "" if planned_seconds is None else f"{format_seconds(planned_seconds):>12}"
    head = "epoch   mean loss        time    rows/s  tokens/s" + ("     planned" if planned_cell else "")
    rows: list[Line] = [[(head, "dim")]]
    for epoch in scene.run.epochs[-_MOST_EPOCHS:]:
        rates_text = f"{format_count(epoch.samples_per_second):>8}  {format_count(epoch.tokens_per_second):>8}"
        epoch_text = f"{epoch.epoch:>5}   {epoch.mean_loss:>9.4f}  {format_seconds(epoch.seconds):>10}  {rates_text}"
        rows.append([(epoch_text + planned_cell, "text")])
    return rows


def sample_rows(scene: TrainScene, width: int, _: int) -> list[Line]:
    """Return the newest samples that fit, the newest first."""
    rows: list[Line] = []
    for sample in reversed(scene.run.samples):
        lines = scene.wrapped(sample_words(sample.prompt, sample.text, 2 * width), width - 2, most=6)
        block: list[Line] = [[(f"after step {sample.step}", "dim")], *hanging([("  ", "text")], lines)]
        if len(rows) + len(block) > _SAMPLE_LINES and not scene.enlarged_section:
            return rows or block[:_SAMPLE_LINES]
        rows += block
    return rows


def target_rows(scene: TrainScene, *_: int) -> list[Line]:
    return [[scene.verdict(target.met), (f" {scene.to_safe_text(target.words)}", "text")]
            for target in result.targets_of(scene.run)]  # fmt: skip


def scores_heading(scene: TrainScene) -> tuple[str, str]:
    event = scene.newest_table
    title = f"scores: {scene.to_safe_text(event.table_title)}" if event and event.table_title else "scores"
    return title, f"after step {event.step:,}" if event else ""


def score_rows(scene: TrainScene, width: int, height: int) -> list[Line]:
    empty_lines: list[Line] = [[("no evaluation has a table of scores yet", "dim")]]
    return table_rows(event, width, height, scene.glyphs) if (event := scene.newest_table) else empty_lines


def table_rows(done: EvalDone, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """Return the evaluation's table, one row per class, in up to `most` lines. The last line counts what does not fit.

    If the columns are classes with long names, the title of a column is the number of its class, to save width.
    """
    headings = done.table_rows, done.table_columns
    names, titles = ([glyphs.replace_unsupported(one_line(name)) for name in texts] for texts in headings)
    is_square = list(done.table_columns) == list(done.table_rows)
    is_numbered = is_square and max(map(cell_len, names)) > _SHORT_NAME
    if is_numbered:
        titles = [str(row) for row in range(1, len(names) + 1)]
        names = [f"{row:>3} {name[:_LONGEST_NAME]}" for row, name in enumerate(names, 1)]
    cells = _cells(done, is_square)
    cell_width = max(len(text) for text in (*titles, *(cell for row in cells for cell in row))) + 2
    name_width = min(max(map(cell_len, names)), _LONGEST_NAME + 4 * is_numbered)
    column_count = max(min((width - name_width) // cell_width, len(titles)), 1)
    row_count = min(len(names), most - 1 - (column_count < len(titles) or len(names) > most - 1))
    title_spans: Line = [(f"{title:>{cell_width}}", "dim") for title in titles[:column_count]]
    lines: list[Line] = [[(" " * name_width, "dim"), *title_spans]]
    for row in range(max(row_count, 0)):
        lines.append(fit([(names[row], "text")], name_width, glyphs.ellipsis))
        for column, cell in enumerate(cells[row][:column_count]):
            # In a confusion matrix, correct predictions are on the diagonal.
            role: Role = "dim" if cell == "0" else "good" if is_square and column == row else "text"
            lines[-1].append((f"{cell:>{cell_width}}", role))
    omitted_counts = [(len(titles) - column_count, "column"), (len(names) - row_count, "row")]
    omitted_text = " and ".join(quantity(count, noun) for count, noun in omitted_counts if count)
    return [*lines, [(f"too little room for {omitted_text}", "dim")]] if omitted_text else lines


def _cells(done: EvalDone, is_square: bool) -> list[list[str]]:
    """Return the numbers of the table as texts. A column has either whole numbers or two decimals."""
    rows = list(done.table_rows.values())
    decimals = [0 if is_square or (all(float(value).is_integer() for value in column) and max(column) > 1) else 2
                for column in zip(*rows, strict=True)]  # fmt: skip
    return [[f"{value:.{places}f}" for value, places in zip(row, decimals, strict=True)] for row in rows]
