"""A report in words: facts in, sections out. How they are drawn is for `markdown.py` and `page.py`.

Texts are plain and may be foreign: whoever writes them out makes them harmless.
"""

import json
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tui_trainer.doctor.examine import examine
from tui_trainer.planning.summary import model_words, place_words, tuning_words
from tui_trainer.reporting.curves import Chart
from tui_trainer.reporting.facts import RunFacts, Start
from tui_trainer.reporting.model_rows import Rows
from tui_trainer.runs.overview import metric_value
from tui_trainer.runs.result import LABELLING, best_before, ending_words, grade_of
from tui_trainer.runs.score_words import number, plain
from tui_trainer.runs.sums import spread_ends
from tui_trainer.runs.targets import targets_of
from tui_trainer.units import format_bytes, format_count, format_number, format_seconds

_MOST_EVALUATIONS = 20
_MOST_PROBLEMS = 50
_MOST_SAMPLES = 3
_MOST_SAMPLE_LINES = 30
_VALUE_CHARACTERS = 300
_JOULES_IN_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values below each other."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` below the titles `head`."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Text:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """As it is, in letters of one width."""

    text: str


Block = Pairs | Table | Text | Code | Chart


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


def sections(facts: RunFacts) -> list[Section]:
    made = [Section(title, tuple(make(facts))) for title, make in _SECTIONS.items()]
    return [section for section in made if section.blocks]


def title(facts: RunFacts) -> str:
    return f"{facts.folder.name}: {facts.status_words}"


def key_figures(facts: RunFacts) -> Rows:
    state, model = facts.state, facts.model
    rows = [
        ("held-out loss", "--" if model.eval_loss is None else f"{model.eval_loss:.4f}"),
        ("training loss", "--" if model.train_loss is None else f"{model.train_loss:.4f}"),
        *((plain(name), number(value)) for name, value in list(model.scores.items())[:2]),
        ("steps", f"{state.step:,}" + (f" of {state.total_steps:,}" if state.step < state.total_steps else "")),
        ("time of steps", format_seconds(model.training_seconds)),
        ("peak memory", format_bytes(facts.costs.peak_memory_bytes)),
    ]
    return [row for row in rows if row[1] != "--"]


def _outcome(facts: RunFacts) -> Iterator[Block]:
    state, finished, failed = facts.state, facts.state.finished, facts.state.failed
    lines = []
    if failed is not None:
        log = f" The traceback is in {failed.log_path}." if failed.log_path else ""
        lines.append(f"It failed: {failed.message}.{log}")
    elif finished is None:
        gone = "Its process is gone, and it did not note why."
        lines.append(gone if facts.status == "interrupted" else "It is under way.")
    else:
        lines.append(f"It {ending_words(state)}.")
    if facts.status in ("failed", "stopped", "interrupted"):
        lines.append(f"`tui-trainer resume {facts.folder.name}` goes on with it.")
    if best := best_before(state):
        lines.append(f"It was better before: held-out loss {best.loss:.4f} at step {best.step:,}.")
    yield Text(tuple(lines))
    if state.steps or state.evals:
        yield Pairs([(f"loss: {name}", value) for name, value in facts.model.loss_rows()])
    if rows := facts.model.score_rows():
        yield Pairs(rows)


def _targets(facts: RunFacts) -> Iterator[Block]:
    if targets := targets_of(facts.state):
        over = facts.status in ("finished", "stopped", "failed")
        rows = [(target.words, "not known" if over and target.met is None else target.verdict) for target in targets]
        yield Pairs(rows)


def _asked(facts: RunFacts) -> Iterator[Block]:
    plan = facts.plan
    if plan is not None:
        profiles = f"recipe {plan.recipe or 'none'}, hardware profile {plan.hardware_profile or 'none'}"
        yield Pairs(
            [
                ("task", plan.config.task.type),
                ("model", f"{model_words(plan)}; {tuning_words(plan)}"),
                ("data", plan.config.data.path),
                ("presets", profiles),
                ("place", place_words(plan)),
            ]
        )
    if facts.plan_fault:
        yield Text((f"What the plan states is left out: {facts.plan_fault}.",))
    if facts.asked:
        rows = tuple((one.key, _value(one.value), _value(one.default)) for one in facts.asked)
        yield Text(("Settings that differ from their defaults:",))
        yield Table(("setting", "value", "default"), rows)


def _trained(facts: RunFacts) -> Iterator[Block]:
    if facts.plan is not None and facts.state.steps:
        yield Pairs(facts.model.setting_rows(facts.plan))


def _evaluations(facts: RunFacts) -> Iterator[Block]:
    evals = facts.state.evals
    if not evals:
        return
    names = tuple(dict.fromkeys(name for done in evals for name in done.scores))
    chosen = [evals[end - 1] for end in spread_ends(len(evals), _MOST_EVALUATIONS)]
    best = max((done.step for done in evals if done.best), default=None)
    rows = []
    for done in chosen:
        scores = (number(done.scores[name]) if name in done.scores else "--" for name in names)
        rows.append((f"{done.step:,}" + (" (best)" if done.step == best else ""), f"{done.loss:.4f}", *scores))
    yield Table(("step", "held-out loss", *map(plain, names)), tuple(rows))
    if len(evals) > len(chosen):
        yield Text((f"{len(chosen)} of {len(evals)} evaluations, evenly spread.",))
    if (value := metric_value(evals[-1], facts.metric)) is not None and facts.metric != "loss":
        yield Text((f"The best is chosen by {plain(facts.metric)}, {number(value)} at the last one.",))


def _history(facts: RunFacts) -> Iterator[Block]:
    if len(facts.starts) > 1 or (facts.starts and facts.status == "interrupted"):
        silent = "no word: killed" if facts.status == "interrupted" else "not yet"
        *before, last = facts.starts
        rows = (*(_start_row(start, "no word: killed") for start in before), _start_row(last, silent))
        yield Table(("begun (UTC)", "from step", "to step", "for", "ended"), rows)
    problems = list(facts.state.problems)[-_MOST_PROBLEMS:]
    if problems:
        told = tuple((f"{one.step:,}", one.kind, "; ".join(filter(None, (one.message, one.hint)))) for one in problems)
        yield Table(("step", "problem", "what happened"), told)
    if not facts.starts:
        yield Text(("Its journal holds no start.",))
    if facts.journal_damage:
        yield Text((f"{facts.journal_damage[0].upper()}{facts.journal_damage[1:]}.",))


def _start_row(start: Start, silent: str) -> tuple[str, ...]:
    """`silent`: what it means that the start noted no end."""
    came_from = "new" if start.from_step is None else f"{start.from_step:,}"
    begun, taken = start.at[:19].replace("T", " "), format_seconds(start.seconds)
    return begun, came_from, f"{start.last_step:,}", taken, start.ending or silent


def _data(facts: RunFacts) -> Iterator[Block]:
    data = facts.state.data
    if data is None:
        return
    yield Pairs(
        [
            ("rows to train on", f"{data.rows:,}"),
            ("tokens", f"{data.tokens:,}"),
            ("documents", f"{data.documents:,}"),
            ("rows held out", f"{data.eval_rows:,} ({data.eval_tokens:,} tokens)"),
            ("vocabulary", f"{data.vocabulary:,}"),
        ]
    )
    notes = list(data.notes)
    if facts.plan is not None:
        notes += [source.words() for source in facts.plan.sources]
    if notes:
        yield Text(tuple(dict.fromkeys(notes)))


def _costs(facts: RunFacts) -> Iterator[Block]:
    state, costs = facts.state, facts.costs
    if not state.started_at:
        return
    energy = "--"
    if costs.energy_joules is not None:
        mean = f", {costs.power_watts:.0f} W in the mean" if costs.power_watts is not None else ""
        energy = f"{costs.energy_joules / _JOULES_IN_KWH:.3g} kWh{mean}"
    rows = [
        ("from start to end", format_seconds(costs.seconds)),
        ("steps", format_seconds(costs.step_seconds)),
        ("evaluations", f"{format_seconds(costs.evaluation_seconds)} ({len(state.evals)})"),
        ("checkpoints", f"{format_seconds(costs.checkpoint_seconds)} ({len(state.checkpoints)})"),
        ("throughput", grade_of(state) or "--"),
        ("GPU-hours", "--" if costs.gpu_hours is None else f"{costs.gpu_hours:.2f}"),
        ("energy of the GPU", energy),
        ("samples per second", "--" if costs.samples_per_second is None else f"{costs.samples_per_second:.1f}"),
        ("tokens per second", format_count(costs.tokens_per_second)),
        ("peak memory", format_bytes(costs.peak_memory_bytes)),
        ("of it the libraries", format_bytes(costs.library_memory_bytes)),
        ("planned for training", format_bytes(costs.planned_memory_bytes)),
        ("planned time", format_seconds(costs.planned_seconds)),
        ("disk", format_bytes(costs.disk_bytes)),
    ]
    yield Pairs([row for row in rows if row[1] != "--"])


def _doctor(facts: RunFacts) -> Iterator[Block]:
    if not facts.state.steps:
        return
    verdict = examine(facts.state)
    if verdict.leading is None:
        yield Text((f"{verdict.healthy[:1].upper()}{verdict.healthy[1:]}.",))
    if verdict.findings:
        found = [(one, one.found) for one in verdict.findings]
        rows = tuple((one.cost_words, it.cause, it.evidence, one.remedy_words or "--") for one, it in found)
        yield Table(("costs", "cause", "evidence", "in the next run"), rows)


def _exports(facts: RunFacts) -> Iterator[Block]:
    if facts.exports:
        rows = (_export_row(name, certificate) for name, certificate in facts.exports.items())
        yield Table(("format", "held-out loss", "size", "ms a row", "certificate"), tuple(rows))


def _export_row(name: str, certificate: dict[str, Any]) -> tuple[str, ...]:
    faults = certificate.get("faults")
    verdict = "as it was trained" if certificate.get("is_good") is True else f"not as it was trained: {_value(faults)}"
    return (
        f"{certificate.get('format')} (export/{name})",
        _from_to(certificate, "loss", lambda value: f"{value:.4f}"),
        _from_to(certificate, "bytes", format_bytes),
        _from_to(certificate, "seconds_per_row", lambda value: format_number(1e3 * value, 2)),
        verdict,
    )


def _from_to(certificate: dict[str, Any], name: str, words: Callable[[float], str]) -> str:
    """`2.8981 -> 2.8984`: of the trained model, and of the exported one."""
    both = (certificate.get(which) for which in ("trained", "exported"))
    values = [found.get(name) if isinstance(found, dict) else None for found in both]
    return " \u2192 ".join(words(value) if isinstance(value, int | float) else "--" for value in values)


def _samples(facts: RunFacts) -> Iterator[Block]:
    border = "" if facts.state.task in LABELLING else "\u00b7"
    for sample in list(facts.state.samples)[-_MOST_SAMPLES:]:
        yield Text((f"After step {sample.step:,}:",))
        lines = f"{sample.prompt}{border}{sample.text}".split("\n")
        left_out = len(lines) - _MOST_SAMPLE_LINES
        yield Code("\n".join(lines[:_MOST_SAMPLE_LINES]))
        if left_out > 0:
            yield Text((f"and {left_out:,} more lines.",))


def _again(facts: RunFacts) -> Iterator[Block]:
    folder, plan = facts.folder, facts.plan
    name = f"{folder.name}-again"[:64]
    yield Code(shlex.join(["tui-trainer", "--no-ui", str(folder.config), "--set", f"output.name={name}"]))
    if facts.config_text:
        yield Text((f"{folder.config.name}:",))
        yield Code(facts.config_text.rstrip())
    if plan is not None:
        keys = [
            ("prepared data", plan.data_key),
            ("base weights", plan.model_key),
            ("commit of the base model", plan.model_commit),
            ("card", plan.gpu_uuid),
        ]
        yield Pairs([("seed", str(plan.config.training.seed)), *(pair for pair in keys if pair[1])])
    if facts.state.versions:
        yield Pairs(list(facts.state.versions.items()))


_SECTIONS: dict[str, Callable[[RunFacts], Iterator[Block]]] = {
    "What happened": _outcome,
    "Targets": _targets,
    "Curves": lambda facts: iter(facts.charts),
    "Evaluations": _evaluations,
    "Problems and resumes": _history,
    "What was asked": _asked,
    "How it was trained": _trained,
    "Data": _data,
    "Costs": _costs,
    "What the doctor says": _doctor,
    "Exports": _exports,
    "What it writes": _samples,
    "How to do it again": _again,
}


def chart_summary(chart: Chart) -> Table:
    """A chart where there are no pictures: where each curve begins, ends and turns."""
    rows = []
    for curve in chart.curves:
        if curve.points:
            values = [value for _, value in curve.points]
            figures = (values[0], values[-1], min(values), max(values))
            rows.append((curve.name, *map(short_number, figures)))
    return Table((chart.title, "first", "last", "lowest", "highest"), tuple(rows))


def short_number(value: float) -> str:
    """Four digits, and no more zeros than they need: `1.5e-4` for 0.00015."""
    if 0 < abs(value) < 1e-3:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}" if math.isfinite(value) else "--"


def _value(value: Any) -> str:
    if isinstance(value, str) and value:
        return value[:_VALUE_CHARACTERS]
    return json.dumps(value, default=str)[:_VALUE_CHARACTERS]
