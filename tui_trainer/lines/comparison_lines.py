"""A comparison of runs as lines: one column for each run, or if the width is too small, one line for each value."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from tui_trainer.lines.plan_and_events import loss_words, steps_words, table_lines
from tui_trainer.runs.comparison import ComparedRun, Comparison, value_words
from tui_trainer.runs.result import display_name, format_score
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import figure_text, figures_of

_VALUE_WIDTH = 60

_ROWS: tuple[tuple[str, Callable[[ComparedRun], str]], ...] = (
    ("state", attrgetter("status_words")),
    ("task", lambda run: run.task or "--"),
    ("steps", steps_words),
    ("training loss", lambda run: loss_words(run.loss)),
    ("held-out loss", lambda run: loss_words(run.eval_loss)),
    ("best held-out loss", lambda run: _at_step(run.best_eval_loss, run.best_eval_step)),
    ("metric", lambda run: run.metric if run.best is not None else "--"),
    ("best", lambda run: _at_step(run.best, run.best_step)),
    ("targets", lambda run: run.targets or "--"),
)


def comparison_lines(comparison: Comparison, width: int, signs: Sequence[str] = ()) -> list[str]:
    """Return the figures, scores and settings of the compared runs. `signs` replace run names as column titles."""
    runs = comparison.runs
    rows = [[label, *map(cell_text, runs)] for label, cell_text in _ROWS]
    if all(run.metric == "loss" for run in runs):
        rows = [row for row in rows if row[0] not in ("metric", "best")]
    for name, figure in figures_of(ComparedRun).items():
        rows.append([figure.title, *(figure_text(figure, getattr(run, name)) for run in runs)])
    for name, figure in figures_of(RunState).items():
        rows.append([figure.title, *(figure_text(figure, run.figures.get(name)) for run in runs)])
    rows = [row for row in rows if {*row[1:]} != {"--"}]
    for name in dict.fromkeys(name for run in runs for name in run.scores):
        scores = (format_score(run.scores[name]) if name in run.scores else "--" for run in runs)
        rows.append([display_name(name), *scores])
    setting_rows = [
        [one_line(difference.key), *(one_line(value_words(value), _VALUE_WIDTH) for value in difference.values)]
        for difference in comparison.differences
    ]
    titles = list(signs) or [one_line(run.name) for run in runs]
    if len(set(titles)) < len(titles):
        titles = [one_line(str(run.path)) for run in runs]
    lines = _section(["", *titles], rows, width)
    if not setting_rows:
        return [*lines, "", "same settings"]
    return [*lines, "", *_section(["different settings", *titles], setting_rows, width)]


def _section(head: list[str], rows: list[list[str]], width: int) -> list[str]:
    table = [head, *rows]
    if sum(max(map(len, cells)) + 2 for cells in zip(*table, strict=True)) - 2 <= width:
        return table_lines(table, width)
    name_width = max(map(len, head[1:]))
    lines = [head[0]] if head[0] else []
    for label, *values in rows:
        value_lines = (f"  {name:<{name_width}}  {value}" for name, value in zip(head[1:], values, strict=True))
        lines += [label, *(one_line(line, width) for line in value_lines)]
    return lines


def _at_step(value: float | None, step: int | None) -> str:
    return "--" if value is None else f"{value:.3f} at {step}"
