"""Reports of a run as Markdown and as one HTML page. The page has no script and requests nothing.

Text of a run is escaped, so that it cannot become a heading, a link, a table cell or HTML."""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tui_trainer.advice.examine import examine
from tui_trainer.planning.summary import model_words, place_words, tuning_words
from tui_trainer.reporting.curves import Chart, Curve, Points
from tui_trainer.reporting.facts import Rows, RunFacts, costs_of, facts_of
from tui_trainer.runs import result
from tui_trainer.runs.comparison import value_words
from tui_trainer.runs.folder import RunFolder, write_atomically
from tui_trainer.runs.result import display_name, format_score
from tui_trainer.runs.state import spread_ends
from tui_trainer.runs.wording import sentence
from tui_trainer.tasks import labels_rows
from tui_trainer.terminal.safe_text import escape_markdown, one_line, shell_word, show_control_characters
from tui_trainer.units import format_bytes, format_number, format_seconds

# Sections contain plain text from anywhere. The functions at the end of this file escape it.

# Most rows in the table of evaluations, and in that of epochs.
_MOST_ROWS = 20
_MOST_PROBLEMS = 50
_MOST_SAMPLES = 3
_MOST_SAMPLE_LINES = 30
_VALUE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Table:
    """Table with the column titles `head`. Without titles, each row is a name and a value."""

    rows: Sequence[tuple[str, ...]]
    head: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text in a monospaced font."""

    text: str


Block = str | Table | Code | Chart
"""Part of a section. A string is a paragraph."""


def sections(facts: RunFacts) -> list[tuple[str, list[Block]]]:
    """Return (title, content) of each section that is not empty."""
    return [(title, blocks) for title, make in _SECTIONS.items() if (blocks := list(make(facts)))]


def title(facts: RunFacts) -> str:
    return f"{facts.folder.name}: {facts.listed_run.status_words}"


def key_figures(facts: RunFacts) -> Rows:
    state, model = facts.state, facts.model
    rows = [
        ("held-out loss", "--" if model.eval_loss is None else f"{model.eval_loss:.4f}"),
        ("training loss", "--" if model.train_loss is None else f"{model.train_loss:.4f}"),
        *((display_name(name), format_score(value)) for name, value in list(model.scores.items())[:2]),
        ("steps", f"{state.step:,}" + (f" of {state.total_steps:,}" if state.step < state.total_steps else "")),
        ("time of steps", format_seconds(model.training_seconds)),
        ("peak memory", format_bytes(state.peak_memory_bytes or None)),
    ]
    return [row for row in rows if row[1] != "--"]


def _outcome(facts: RunFacts) -> Iterator[Block]:
    state, finish_event, failure_event = facts.state, facts.state.finished, facts.state.failed
    if failure_event is not None:
        log_text = f" The traceback is in {failure_event.log_path}." if failure_event.log_path else ""
        yield f"The run failed: {failure_event.message}.{log_text}"
    elif finish_event is None:
        message = "The process of the run stopped without an error message."
        yield message if facts.listed_run.status == "interrupted" else "The run is active."
    else:
        yield f"The run {result.ending_words(state)}."
    if facts.listed_run.status in ("failed", "stopped", "interrupted"):
        yield f"Resume the run with `tui-trainer resume {shell_word(facts.folder.name)}`."
    if words := result.better_words(state):
        yield sentence(words)
    if state.steps or state.evals:
        yield Table([(f"loss: {name}", value) for name, value in facts.model.loss_rows()])
    if rows := facts.model.score_rows():
        yield Table(rows)


def _targets(facts: RunFacts) -> Iterator[Block]:
    if targets := result.targets_of(facts.state):
        is_over = facts.listed_run.status in ("finished", "stopped", "failed")
        rows = [(it.words, "unknown" if is_over and it.met is None else it.verdict) for it in targets]
        yield Table(rows)


def _settings(facts: RunFacts) -> Iterator[Block]:
    plan = facts.plan
    if plan is not None:
        recipe_text = f"{plan.recipe or 'none'}, hardware profile {plan.hardware_profile or 'none'}"
        yield Table(
            [
                ("task", plan.config.task.type),
                ("model", f"{model_words(plan)}; {tuning_words(plan)}"),
                ("data", plan.config.data.path),
                ("recipe", recipe_text),
                ("place", place_words(plan)),
            ]
        )
    if facts.plan_fault:
        yield f"The plan is not shown: {facts.plan_fault}."
    if facts.changed_settings:
        yield "Settings that differ from their defaults:"
        settings = facts.changed_settings
        rows = [(it.key, *(value_words(value)[:_VALUE_CHARACTERS] for value in it.values)) for it in settings]
        yield Table(rows, ("setting", "value", "default"))


def _training(facts: RunFacts) -> Iterator[Block]:
    if facts.plan is not None and facts.state.steps:
        yield Table(facts.model.setting_rows(facts.plan))


def _evenly_spaced(rows: Sequence[tuple[str, ...]], head: tuple[str, ...], noun: str) -> Iterator[Block]:
    """Yield a table of at most `_MOST_ROWS` rows, evenly spaced, and a note if rows are left out."""
    if rows:
        chosen_rows = [rows[end - 1] for end in spread_ends(len(rows), _MOST_ROWS)]
        yield Table(chosen_rows, head)
        if len(rows) > len(chosen_rows):
            yield f"The table has {len(chosen_rows)} of {len(rows)} {noun}, evenly spaced."


def _evaluations(facts: RunFacts) -> Iterator[Block]:
    evals, metric = facts.state.evals, facts.listed_run.metric
    score_names = tuple(dict.fromkeys(name for event in evals for name in event.scores))
    best_step = max((event.step for event in evals if event.best), default=None)
    rows = []
    for event in evals:
        scores = (format_score(event.scores[name]) if name in event.scores else "--" for name in score_names)
        rows.append((f"{event.step:,}" + (" (best)" if event.step == best_step else ""), f"{event.loss:.4f}", *scores))
    yield from _evenly_spaced(rows, ("step", "held-out loss", *map(display_name, score_names)), "evaluations")
    if evals and metric != "loss" and (value := result.metric_value(evals[-1], metric)) is not None:
        yield f"The best evaluation is chosen by {display_name(metric)}; the last one reached {format_score(value)}."


def _epochs(facts: RunFacts) -> Iterator[Block]:
    plan_text, rows = format_seconds(result.planned_epoch_seconds(facts.state.plan)), []
    for event in facts.state.epochs:
        speed, grade = event.samples_per_second, result.grade(facts.state, event.samples_per_second) or "--"
        epoch, loss, time_text = f"{event.epoch:,}", f"{event.mean_loss:.4f}", format_seconds(event.seconds)
        rows.append((epoch, loss, time_text, plan_text, f"{speed:.1f}", grade))
    yield from _evenly_spaced(rows, ("epoch", "mean loss", "time of steps", "planned", "rows/s", "grade"), "epochs")


def _history(facts: RunFacts) -> Iterator[Block]:
    state, starts = facts.state, facts.state.starts
    if len(starts) > 1 or (starts and facts.listed_run.status == "interrupted"):
        silent_ending = "killed" if facts.listed_run.status == "interrupted" else "not yet"
        rows = []
        for start in starts:
            origin = "new" if start.from_step is None else f"{start.from_step:,}"
            # A start without a recorded end was killed, unless it is the newest one.
            ending_text = start.ending or (silent_ending if start is starts[-1] else "killed")
            duration = format_seconds(start.seconds)
            rows.append((start.at[:19].replace("T", " "), origin, f"{start.last_step:,}", duration, ending_text))
        yield Table(rows, ("started (UTC)", "from step", "to step", "duration", "ended"))
    if problems := list(state.problems)[-_MOST_PROBLEMS:]:
        texts = ("; ".join(filter(None, (problem.message, problem.hint))) for problem in problems)
        fault_rows = [(f"{problem.step:,}", problem.kind, text) for problem, text in zip(problems, texts, strict=True)]
        yield Table(fault_rows, ("step", "problem", "message"))
    if not starts:
        yield "The journal does not record the start of this run."
    if state.journal_damage:
        yield sentence(state.journal_damage)


def _data(facts: RunFacts) -> Iterator[Block]:
    data = facts.state.data
    if data is None:
        return
    yield Table(
        [
            ("training rows", f"{data.rows:,}"),
            ("tokens", f"{data.tokens:,}"),
            ("documents", f"{data.documents:,}"),
            ("held-out rows", f"{data.eval_rows:,} ({data.eval_tokens:,} tokens)"),
            ("vocabulary", f"{data.vocabulary:,}"),
        ]
    )
    sources = facts.plan.sources if facts.plan is not None else ()
    yield from dict.fromkeys([*data.notes, *(source.words() for source in sources)])


def _costs(facts: RunFacts) -> Iterator[Block]:
    if facts.state.started_at:
        rows = [(title, write(value)) for _, value, title, write in costs_of(facts) if title and value is not None]
        yield Table([row for row in rows if row[1] != "--"])


def _doctor(facts: RunFacts) -> Iterator[Block]:
    if not facts.state.steps:
        return
    verdict = examine(facts.state)
    if verdict.leading_finding is None:
        yield sentence(verdict.healthy_sentence)
    if verdict.findings:
        pairs = [(finding, finding.cause) for finding in verdict.findings]
        rows = [(cause.cost_words, fault.cause, fault.evidence, cause.remedy_words or "--") for cause, fault in pairs]
        yield Table(rows, ("costs", "cause", "evidence", "in the next run"))


def _exports(facts: RunFacts) -> Iterator[Block]:
    if facts.exports:
        rows = [_export_row(name, certificate) for name, certificate in facts.exports.items()]
        yield Table(rows, ("format", "held-out loss", "size", "ms/row", "certificate"))


def _export_row(name: str, certificate: dict[str, Any]) -> tuple[str, ...]:
    verdict = "matches the trained model"
    if certificate.get("is_good") is not True:
        faults_text = value_words(certificate.get("faults"))[:_VALUE_CHARACTERS]
        verdict = f"differs from the trained model: {faults_text}"
    return (
        f"{certificate.get('format')} (export/{name})",
        _before_and_after(certificate, "loss", lambda value: f"{value:.4f}"),
        _before_and_after(certificate, "bytes", format_bytes),
        _before_and_after(certificate, "seconds_per_row", lambda value: format_number(1e3 * value, 2)),
        verdict,
    )


def _before_and_after(certificate: dict[str, Any], name: str, words: Callable[[float], str]) -> str:
    """Return a figure of the trained model and the same of its export, such as `0.4120 → 0.4131`."""
    models = (certificate.get(key) for key in ("trained", "exported"))
    values = [model.get(name) if isinstance(model, dict) else None for model in models]
    return " \u2192 ".join(words(value) if isinstance(value, int | float) else "--" for value in values)


def _samples(facts: RunFacts) -> Iterator[Block]:
    separator = "" if labels_rows(facts.state.task) else "\u00b7"
    for sample in list(facts.state.samples)[-_MOST_SAMPLES:]:
        yield f"After step {sample.step:,}:"
        lines = f"{sample.prompt}{separator}{sample.text}".split("\n")
        hidden_line_count = len(lines) - _MOST_SAMPLE_LINES
        yield Code("\n".join(lines[:_MOST_SAMPLE_LINES]))
        if hidden_line_count > 0:
            yield f"and {hidden_line_count:,} more lines."


def _reproduction(facts: RunFacts) -> Iterator[Block]:
    folder, plan = facts.folder, facts.plan
    name = f"{folder.name}-again"[:64]
    yield Code(shlex.join(["tui-trainer", "--no-ui", str(folder.config), "--set", f"output.name={name}"]))
    if facts.config_text:
        yield f"{folder.config.name}:"
        yield Code(facts.config_text.rstrip())
    if plan is not None:
        rows = [("seed", str(plan.config.training.seed)), ("prepared data", plan.data_key),
                ("base weights", plan.model_key), ("commit of the base model", plan.model_commit),
                ("GPU", plan.gpu_uuid)]  # fmt: skip
        yield Table([row for row in rows if row[1]])
    if facts.state.versions:
        yield Table(list(facts.state.versions.items()))


_SECTIONS: dict[str, Callable[[RunFacts], Iterator[Block]]] = {
    "Outcome": _outcome,
    "Targets": _targets,
    "Curves": lambda facts: iter(facts.charts),
    "Evaluations": _evaluations,
    "Epochs": _epochs,
    "Problems and resumes": _history,
    "Settings": _settings,
    "Training": _training,
    "Data": _data,
    "Costs": _costs,
    "Diagnosis": _doctor,
    "Exports": _exports,
    "Samples": _samples,
    "Reproduce this run": _reproduction,
}


def chart_summary(chart: Chart) -> Table:
    """Return the table that replaces a chart in Markdown: first, last, lowest and highest value of each curve."""
    rows = []
    for curve in chart.curves:
        if curve.points:
            values = [value for _, value in curve.points]
            figures = (values[0], values[-1], min(values), max(values))
            rows.append((curve.name, *map(short_number, figures)))
    return Table(rows, (chart.title, "first", "last", "lowest", "highest"))


def short_number(value: float) -> str:
    """Return a value with four significant digits, without trailing zeros: `1.5e-4` for 0.00015."""
    if 0 < abs(value) < 1e-3:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}" if math.isfinite(value) else "--"


# Charts are inline SVG. The style of the page has their fonts and colours.

COLOUR_COUNT = 6
_WIDTH, _HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 10, 30
_CHART_TICKS = 5
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Frame:
    """Ranges of a chart's axes, and the conversion of values to positions in the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def chart_figure(chart: Chart) -> str:
    curves = [curve for curve in chart.curves if curve.points]
    point_lists = _stack_curves(curves) if chart.stacked else [curve.points for curve in curves]
    xs = [x for points in point_lists for x, _ in points]
    values = [y for points in point_lists for _, y in points] + [value for _, value in chart.levels]
    y_ticks = nice_ticks(min(0.0, *values) if chart.from_zero else min(values), max(values))
    frame = _Frame(min(0.0, *xs), max(xs), y_ticks[0], y_ticks[-1])
    parts = [_axes(frame, y_ticks)]
    for name, value in chart.levels:
        y, right_x = frame.y(value), _WIDTH - _RIGHT
        parts.append(f'<path class="level" d="M{_LEFT} {y:.1f}H{right_x}"/>')
        parts.append(f'<text x="{right_x}" y="{y - 4:.1f}" text-anchor="end">{as_html(name)}</text>')
    parts += [f'<path class="level" d="M{frame.x(step):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>' for step in chart.resumed_at]
    curve_shapes = [_curve(frame, point_lists, index, stacked=chart.stacked) for index in range(len(point_lists))]
    name, picture = as_html(chart.title), "".join([*parts, *reversed(curve_shapes)])
    return (
        f'<figure><figcaption>{name} <span class="dim">by {as_html(chart.x_unit)}</span></figcaption>'
        f'<div class="legend">{_legend(chart, curves)}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">{picture}</svg></figure>'
    )


def _curve(frame: _Frame, lines: Sequence[Points], index: int, *, stacked: bool) -> str:
    points, colour = lines[index], f"c{index % COLOUR_COUNT}"
    if stacked:
        floor_points = lines[index - 1] if index else [(x, frame.y_low) for x, _ in points]
        return f'<polygon class="{colour}" points="{frame.path([*points, *reversed(floor_points)])}"/>'
    dots = points if len(points) <= 40 else points[-1:]
    marks = "".join(f'<circle class="{colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.5"/>' for x, y in dots)
    return f'<polyline class="{colour}" points="{frame.path(points)}"/>{marks}'


def _stack_curves(curves: Sequence[Curve]) -> list[Points]:
    """Return the points of stacked curves: each curve is added to the sum of those before it. All have the same x."""
    heights, point_lists = [0.0] * min(len(curve.points) for curve in curves), []
    for curve in curves:
        heights = [height + y for height, (_, y) in zip(heights, curve.points, strict=False)]
        point_lists.append([(x, y) for (x, _), y in zip(curve.points, heights, strict=False)])
    return point_lists


def _axes(frame: _Frame, y_ticks: Sequence[float]) -> str:
    right_x = _WIDTH - _RIGHT
    parts = []
    for tick in y_ticks:
        y = frame.y(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right_x}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{axis_number(tick)}</text>')
    label_y = _HEIGHT - _BOTTOM + 18
    x_ticks = [tick for tick in nice_ticks(frame.x_low, frame.x_high) if frame.x_low <= tick <= frame.x_high]
    for tick in x_ticks:
        anchor = "end" if frame.x(tick) > right_x - 20 else "middle"
        parts.append(f'<text x="{frame.x(tick):.1f}" y="{label_y}" text-anchor="{anchor}">{axis_number(tick)}</text>')
    return "".join(parts)


def axis_number(value: float) -> str:
    """Return the label of a tick: `20k` for 20000, and `1.5e-4` for 0.00015."""
    if 0 < abs(value) < 1e-3:
        return short_number(value)
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.6g}"


def nice_ticks(low: float, high: float) -> list[float]:
    """Return at most seven round numbers at equal distances. They cover the range from `low` to `high`."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    power = 10.0 ** math.floor(math.log10((high - low) / _CHART_TICKS))
    step = next(step for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (step := power * factor) <= _CHART_TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _legend(chart: Chart, curves: Sequence[Curve]) -> str:
    last_values = [short_number(curve.points[-1][1]) for curve in curves]
    entries = [(f"c{i % COLOUR_COUNT}", curves[i].name, value) for i, value in enumerate(last_values)]
    entries += [("level", name, short_number(value)) for name, value in chart.levels]
    if chart.resumed_at:
        steps_text = ", ".join(f"{step:,}" for step in chart.resumed_at[:_MOST_NAMED])
        entries.append(("level", "resumed after", steps_text + " ..." * (len(chart.resumed_at) > _MOST_NAMED)))
    spans = (f'<span><i class="{kind}"></i>{as_html(name)} <b>{value}</b></span>' for kind, name, value in entries)
    return "".join(spans)


def as_html(text: str) -> str:
    return escape(one_line(text))


_TICKS = re.compile("`+")


def to_markdown(facts: RunFacts) -> str:
    lines = [f"# {escape_markdown(title(facts))}", "", *_markdown(Table(key_figures(facts)))]
    for heading, blocks in sections(facts):
        lines += [f"## {heading}", "", *(line for block in blocks for line in _markdown(block))]
    return "\n".join(lines)


def _markdown(block: Block) -> list[str]:
    match block:
        case Chart():
            return _markdown(chart_summary(block))
        case Table(rows=rows, head=head):
            table_rows = [head or ("", ""), *rows] if rows else []
            lines = ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in table_rows]
            return [*lines[:1], "| " + " | ".join(["---"] * len(table_rows[0])) + " |", *lines[1:], ""] if rows else []
        case Code(text=text):
            # The fence must be longer than any sequence of backticks in the text.
            fence = "`" * max(3, *(len(ticks) + 1 for ticks in _TICKS.findall(text)), 3)
            return [fence, show_control_characters(text), fence, ""]
        case str():
            return [escape_markdown(block), ""]


# The browser must load and run nothing, even if text of a run contained markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = "\n" + Path(__file__).with_name("page.css").read_text(encoding="utf-8")
_COLOURS = "".join(
    f"polyline.c{i} {{ stroke: var(--c{i}); }} polygon.c{i}, circle.c{i} {{ fill: var(--c{i}); }}"
    f" .legend i.c{i} {{ background: var(--c{i}); }}\n"
    for i in range(COLOUR_COUNT)
)
NAMES = ("report.md", "report.html")
_BAD = frozenset({"failed", "interrupted"})


def to_html(facts: RunFacts) -> str:
    run_name, status_text = as_html(facts.folder.name), as_html(facts.listed_run.status_words)
    figures_html = "".join(f"<div>{as_html(label)}<b>{as_html(value)}</b></div>" for label, value in key_figures(facts))
    css_class = "bad" if facts.listed_run.status in _BAD else "good" if facts.listed_run.status == "finished" else "dim"
    sections_html = "".join(
        f"<section><h2>{as_html(heading)}</h2>{_html_all(blocks)}</section>\n" for heading, blocks in sections(facts)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{as_html(title(facts))}</title><style>{_STYLE}{_COLOURS}</style></head>\n<body>"
        f'<h1>{run_name} <b class="{css_class}">{status_text}</b></h1>\n<div class="figures">{figures_html}</div>\n'
        f"{sections_html}<footer>Written by tui-trainer from the journal of the run.</footer></body></html>\n"
    )


def _html_all(blocks: Sequence[Block]) -> str:
    if all(isinstance(block, Chart) for block in blocks):
        return f'<div class="charts">{"".join(map(_html, blocks))}</div>'
    return "".join(map(_html, blocks))


def _html(block: Block) -> str:
    match block:
        case Chart():
            return chart_figure(block)
        case Table(rows=rows, head=()):
            cells_html = "".join(f"<tr><th>{as_html(name)}</th><td>{as_html(value)}</td></tr>" for name, value in rows)
            return f'<div class="table"><table class="pairs">{cells_html}</table></div>'
        case Table(rows=rows, head=head):
            titles_html = "".join(f"<th>{as_html(cell)}</th>" for cell in head)
            cells_html = "".join(f"<tr>{''.join(f'<td>{as_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
            return f'<div class="table"><table><tr>{titles_html}</tr>{cells_html}</table></div>'
        case Code(text=text):
            return f"<pre>{escape(show_control_characters(text))}</pre>"
        case str():
            return f"<p>{as_html(block)}</p>"


def write_report(folder: RunFolder, out: Path | None = None) -> list[Path]:
    """Write the Markdown and the HTML report to the folder `out`, or to the run folder. Only the user can read them.

    Return the paths of the files. Raises OSError."""
    facts, paths = facts_of(folder), [(out or folder.root) / name for name in NAMES]
    for path, text in zip(paths, (to_markdown(facts), to_html(facts)), strict=True):
        write_atomically(path, text.encode("utf-8", "replace"), durable=False)
    return paths
