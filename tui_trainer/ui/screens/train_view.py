"""Sections of the Train screen about a run's work: status, progress, speed, diagnosis, plan, events and log."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from tui_trainer.advice.examine import Examination
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.lines.plan_and_events import gauges_words
from tui_trainer.runs import result
from tui_trainer.runs.events import EvalDone, PlanMade, StepDone
from tui_trainer.runs.state import STOPPED_EARLY, GaugeSummary, RunState, slowest_rank
from tui_trainer.runs.steps_and_eta import eta_seconds, figure_rows, time_words
from tui_trainer.runs.wording import batch_words, rows_words, trained_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, bar, both_ends_line, fit, hanging, rows_of, width_of
from tui_trainer.units import format_count, format_seconds, quantity

_STATUS_ROLES: Final[dict[str, Role]] = {
    "preparing": "accent", "loading": "accent", "training": "good", "paused": "warn", "saving": "accent",
    "finished": "good", "stopped early": "good", "stopped": "warn", "failed": "bad", "interrupted": "bad",
}  # fmt: skip
_STATUS_WIDTH: Final = max(len(word) for word in _STATUS_ROLES if word != STOPPED_EARLY)
_LONGEST_BAR: Final = 60
_NAME_LIMIT: Final = 60
_PARTS: Final[dict[str, Role]] = {
    "data": "warn", "forward": "chart_smooth", "backward": "accent", "optimizer": "chart_eval", "rest": "dim",
}  # fmt: skip
_SHORTEST_STACK: Final = 6
LABEL: Final = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainScene:
    """State of the Train screen, from which functions compute its sections.

    `events` are texts with roles, the newest last; `events_back` of the newest are scrolled away. `words` filters
    events and log lines. `trains_on_this_machine`: the run is alive in this process, so the machine's gauges are those
    of the run. `interrupted`: the run has not ended, but its process is gone. `enlarged_section` names a section that
    fills the screen. `starting_words` names the work that a requested start waits for; `offer` has sentences about what
    a start would do. `background_run` names an active run that is not shown. `report` is the path of the run's report.
    """

    state: RunState | None
    glyphs: Glyphs
    gauges: Gauges
    sparks: Mapping[str, Sequence[float]]
    events: Sequence[tuple[str, Role]] = ()
    log_lines: Sequence[str] = ()
    enabled_options: Sequence[str] = ()
    examination: Examination | None = None
    trains_on_this_machine: bool = True
    interrupted: bool = False
    log_open: bool = False
    table_open: bool = False
    enlarged_section: str = ""
    frozen: bool = False
    events_back: int = 0
    words: str = ""
    key_of: Callable[[str], str] = str
    report: str = ""
    run_folder: str = ""
    starting_words: str = ""
    background_run: str = ""
    offer: Sequence[str] = ()

    @property
    def run(self) -> RunState:
        return self.state or RunState()

    @property
    def is_over(self) -> bool:
        return self.run.has_ended or self.interrupted

    @property
    def newest_table(self) -> EvalDone | None:
        return next((event for event in reversed(self.run.evals) if event.table_rows), None)

    def verdict(self, is_met: bool | None, words: str = "") -> Span:
        """Return `words` after the sign for good (True), bad (False) or unknown (None)."""
        glyphs = self.glyphs
        sign = glyphs.dot if is_met is None else glyphs.good if is_met else glyphs.bad
        return f"{sign} {words}".rstrip(), "dim" if is_met is None else "good" if is_met else "bad"

    def to_safe_text(self, text: str) -> str:
        """Return text from a file on one line, without control characters, and in ASCII if the terminal needs that."""
        return self.glyphs.replace_unsupported(one_line(text))

    def wrapped(self, text: str, width: int, most: int = 8, role: Role = "text", indent: str = "") -> list[Line]:
        """Return text from a file as up to `most` lines of `width` cells. An ellipsis shows that it was cut."""
        ellipsis = f" {self.glyphs.ellipsis}"
        rows = rows_of(self.to_safe_text(text), width, subsequent_indent=indent, max_lines=most, placeholder=ellipsis)
        return [[(row, role)] for row in rows[:most]]

    def labelled(self, label: str, text: str, width: int, cells: int, role: Role = "text") -> list[Line]:
        return hanging([(label.ljust(cells), "dim")], self.wrapped(text, width - cells, role=role))

    @property
    def matching_events(self) -> Sequence[tuple[str, Role]]:
        return [event for event in self.events if has_words(event[0], self.words)] if self.words else self.events

    def base_name(self, plan: PlanMade) -> str:
        return self.to_safe_text(plan.came_from or plan.base_model.rstrip("/").rpartition("/")[2])


def run_line(scene: TrainScene, width: int, _: int) -> list[Line]:
    state = scene.run
    status = state.phase if state.phase in ("loading", "saving") else state.status
    if state.status in ("finished", "stopped", "failed"):
        status = state.status_words
    elif scene.interrupted:
        status = "interrupted"
    line: Line = [("  ", "text"), (status.ljust(_STATUS_WIDTH), _STATUS_ROLES[status])]
    if state.total_steps:
        total_text = f"{state.total_steps:,}"
        line += [("  step ", "dim"), (f"{state.step:>{len(total_text)},}", "text"), (f" of {total_text}", "dim")]
    seconds_left = None if scene.interrupted else eta_seconds(state)
    eta_spans: Line = [("  ETA ", "dim"), (f"{format_seconds(seconds_left):>12}", "text")] if seconds_left else []
    if width_of(line) + width_of(eta_spans) > width:
        eta_spans = []
    # The journal keeps the first name of a renamed run, so the folder's name is shown.
    run_name = PurePath(scene.run_folder).name or state.name
    name: Line = [(scene.to_safe_text(run_name[:_NAME_LIMIT]), "bold")]
    name_cells = max(width - width_of(line) - width_of(eta_spans), 0)
    left = [*fit(name, min(name_cells, width_of(name)), scene.glyphs.ellipsis), *line]
    return [both_ends_line(left, eta_spans, width)]


def progress_line(scene: TrainScene, width: int, _: int) -> list[Line]:
    state = scene.run
    if state.progress is not None:
        return [work_line(scene, width)]
    share_done = state.share_done
    percent = "    --" if share_done is None else f"{int(share_done * 100):>4} %"
    losses = _losses(state)
    if width_of(losses) + len(percent) >= width:
        return [fit([(percent, "text"), *losses], width, scene.glyphs.ellipsis)]
    bar_cells = min(width - width_of(losses) - 6, _LONGEST_BAR)
    progress_bar: Line = [(bar(share_done, bar_cells, scene.glyphs), "accent")] if bar_cells >= 8 else []
    return [both_ends_line([*progress_bar, (percent, "text")], losses, width)]


def work_line(scene: TrainScene, width: int) -> Line:
    """Return `tokenising ████····  42 %  of 1.2 M characters`, or only the amount done if there is no total."""
    if (progress := scene.run.progress) is None:
        return []
    work_text, unit = f"{scene.to_safe_text(progress.what)[:40]}  ", scene.to_safe_text(progress.unit)[:20]
    if not progress.total:
        return [(work_text, "text"), (f"{format_count(progress.done)} {unit}", "dim")]
    share = min(max(progress.done / progress.total, 0.0), 1.0)
    end_spans: Line = [(f"  {int(share * 100):>3} %", "text"), (f" of {format_count(progress.total)} {unit}", "dim")]
    bar_cells = min(width - len(work_text) - width_of(end_spans), _LONGEST_BAR)
    progress_bar: Line = [(bar(share, bar_cells, scene.glyphs), "accent")] if bar_cells >= 4 else []
    return [(work_text, "text"), *progress_bar, *end_spans]


def rates_line(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, last = scene.run, scene.run.last_step
    fields = [
        (f"{format_count(state.tokens_per_second):>6}", " tokens/s   "),
        (f"{format_count(state.samples_per_second):>6}", " rows/s   "),
        (f"{format_seconds(_mean_seconds(state)):>7}", "/step   lr "),
        (f"{last.lr:.2e}" if last else "--      ", "   gradient " if width >= 80 else "   norm "),
        (f"{last.grad_norm:<6.3g}" if last else "--    ", ""),
    ]
    return [[span for value, unit in fields for span in ((value, "text"), (unit, "dim"))]]


def parts_line(scene: TrainScene, width: int, _: int) -> list[Line]:
    shares = part_shares(scene.run.recent_sums)
    line: Line = []
    for index, (name, role) in enumerate(list(_PARTS.items())[:-1]):
        percent = "--" if shares is None else f"{shares[index] * 100:.0f}"
        line += [(f"{name} ", role), (f"{percent:>2} %  ", "text")]
    bar_cells = width - width_of(line)
    return [[*line, *stack(shares, bar_cells)] if shares and bar_cells >= _SHORTEST_STACK else line]


def ranks_line(scene: TrainScene, *_: int) -> list[Line]:
    """Return a line such as `slowest: rank 3, makes each step 14 % longer (12 ms), communication 6 %`."""
    return [[(slowest.words, "text")]] if (slowest := slowest_rank(scene.run)) else []


def doctor_line(scene: TrainScene, width: int, _: int) -> list[Line]:
    """Return a line such as `doctor  Waiting for data: 61 % of the time, 0.42 of 1.69 s/step  H more`."""
    if scene.examination is None:
        return []
    verdict: Line = [(scene.examination.healthy_sentence, "text")]
    if (finding := scene.examination.leading_finding) is not None:
        evidence = scene.to_safe_text(finding.cause.evidence)
        cost_note = "" if finding.cost_words in evidence else f"{finding.cost_words}, "
        role: Role = "bad" if finding.cause.is_fault else "warn"
        verdict = [(f"{finding.symptom.title}: ", role), (f"{cost_note}{evidence}", "text")]
    more_spans: Line = [("  ", "text"), (scene.key_of("train.doctor"), "key"), (" more", "dim")]
    left = fit([("doctor  ", "dim"), *verdict], max(width - width_of(more_spans), 8), scene.glyphs.ellipsis)
    return [both_ends_line(left, more_spans, width)]


def parts_rows(scene: TrainScene, width: int, _: int) -> list[Line]:
    shares, mean_seconds = part_shares(scene.run.recent_sums), _mean_seconds(scene.run)
    if shares is None or mean_seconds is None:
        return []
    bar_cells = min(width - 28, 30)
    return [
        [(f"{name:<{LABEL}}", "text"), (bar(share, bar_cells, scene.glyphs), role), (f"{share * 100:4.0f} %", "text"),
         (f"{format_seconds(share * mean_seconds):>10}", "dim")]
        for (name, role), share in zip(_PARTS.items(), shares, strict=True)
    ]  # fmt: skip


def readings_rows(scene: TrainScene, width: int, _: int) -> list[Line]:
    """Return the gauges of the run's process and machine in words: at the last reading, and over the whole run."""
    last_reading, whole_run = GaugeSummary(), scene.run.gauge_summary
    for reading in list(scene.run.gauges)[-1:]:
        last_reading.add(reading)
    lines: list[Line] = []
    for name, summary in [("last", last_reading)] + [("whole run", whole_run)] * (whole_run.readings > 1):
        # The degree sign is not ASCII.
        lines += scene.labelled(name, gauges_words(summary).replace("\u00b0", ""), width, LABEL)
    return lines


def tuning_line(scene: TrainScene, *_: int) -> list[Line]:
    """Return a line such as `LoRA r 16 on TinyLlama-1.1B: 9.01 M of 1.1 G parameters are trainable (0.82 %)`."""
    if (plan := scene.run.plan) is None:
        return []
    name = _field(f"LoRA r {plan.lora_rank} on " if plan.lora_rank else "", scene.base_name(plan))
    return [[*name, *_field(": ", trained_words(plan)), (" are trainable", "dim")]]


def plan_rows(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, plan, data = scene.run, scene.run.plan, scene.run.data
    if plan is None:
        return []
    device = scene.to_safe_text(state.device) or "--"
    model = [("model", f"{format_count(plan.parameters)} parameters on {device}")]
    if is_tuned(plan):
        description = trained_words(plan)
        model = [("model", f"{scene.base_name(plan)} on {device}")]
        model.append(("LoRA", f"r {plan.lora_rank}, {description}") if plan.lora_rank else ("trains", description))
    rows = [
        *model,
        ("data", rows_words(data.rows, data.tokens) if data else "--"),
        ("batch", batch_words(plan)),
        ("steps", f"{plan.total_steps:,}, {plan.steps_per_epoch:,} per epoch"),
        *([("attention", scene.to_safe_text(plan.attention))] if plan.attention else []),
        *figure_rows(state),
    ]
    exceeds_plan, advice = result.exceeds_plan(state), ""
    if exceeds_plan:
        advice = "fine while memory is free"
        if state.resumed_from_step is None:  # other peaks are not kept
            advice += "; later plans use the measured peak"
    description = ", ".join(filter(None, (result.memory_words(state), advice)))
    memory_lines = scene.labelled("memory", description, width, LABEL, "warn" if exceeds_plan else "text")
    time_lines = scene.labelled("time", time_words(state), width, LABEL)
    return [*(_field(f"{name:<{LABEL}}", text) for name, text in rows), *memory_lines, *time_lines]


def event_rows(scene: TrainScene, width: int, height: int) -> list[Line]:
    events = scene.matching_events
    if not events and scene.words:
        return [[(f"no matches in {quantity(len(scene.events), 'event')}", "dim")]]
    end_index = max(len(events) - max(scene.events_back, 0), min(height, len(events)))
    lines: list[Line] = []
    for text, role in reversed(events[:end_index]):
        rows = scene.wrapped(text, width, most=2, role=role, indent="  ")
        if len(lines) + len(rows) > height:
            break
        lines = [*rows, *lines]
    return lines


def events_heading(scene: TrainScene) -> tuple[str, str]:
    """Return the title, and a note: the filter, or how many steps ago the last checkpoint was saved."""
    state = scene.run
    if scene.words:
        key, count_text = scene.key_of("train.clear"), f"{len(scene.matching_events)} of {len(scene.events)}"
        return f"events with {scene.to_safe_text(scene.words)}: {count_text}", f"{key} shows all"
    if scene.frozen:
        return "events", f"frozen: {scene.key_of('train.freeze')} unfreezes"
    if not state.checkpoints:
        return "events", "no checkpoint yet"
    age_steps = max(state.step - state.checkpoints[-1].step, 0)
    age_note = f", {quantity(age_steps, 'step'):>10} ago" if age_steps else ""
    return "events", f"saved at step {state.checkpoints[-1].step}{age_note}"


def log_rows(scene: TrainScene, _: int, height: int) -> list[Line]:
    if not scene.log_lines:
        return [[("nothing has been written to standard output or standard error", "dim")]]
    matching_lines = [text for text in scene.log_lines if has_words(text, scene.words)] or ["no matches"]
    return [[(scene.to_safe_text(text), "dim")] for text in (matching_lines[-height:] if height > 0 else [])]


def has_words(text: str, words: str) -> bool:
    """Return whether the text contains each word of `words`, in any order and case."""
    folded = text.casefold()
    return all(word in folded for word in words.casefold().split())


def _losses(state: RunState) -> Line:
    epochs_note = ""
    if state.plan is not None and state.plan.steps_per_epoch:
        total_epochs = state.total_steps / state.plan.steps_per_epoch
        epochs_note = f" of {total_epochs:.2f}" if total_epochs < 10 else f" of {total_epochs:.1f}"
    # A placeholder for an unknown value is as wide as the value, so that nothing moves.
    held_out_loss = result.held_out_loss(state)
    fields = [
        ("epoch", f"{state.last_step.epoch:.2f}" if state.last_step else "0.00"),
        ("loss", "--    " if state.loss_smoothed is None else f"{state.loss_smoothed:.4f}"),
        ("held out", "--    " if held_out_loss is None else f"{held_out_loss:.4f}"),
    ]
    # There is room for one score: the metric that chooses the best evaluation, otherwise the first score.
    scores, metric = result.newest_scores(state), state.plan.metric if state.plan else ""
    shown_scores = result.score_words({metric: scores[metric]} if metric in scores else scores, {})[:1]
    fields += [(score.name, result.format_score(score.value)) for score in shown_scores]
    line = [span for label, value in fields for span in _field(f"   {label} ", value)]
    return [*line[:2], (epochs_note, "dim"), *line[2:]]


def _field(label: str, value: str) -> Line:
    return [(label, "dim"), (value, "text")]


def _mean_seconds(state: RunState) -> float | None:
    return sum(step.step_seconds for step in state.recent_sums) / len(state.recent_sums) if state.recent_sums else None


def part_shares(steps: Collection[StepDone]) -> list[float] | None:
    """Return the share of step time of each part (data, forward, ..., rest); None if no time was measured."""
    total_seconds = sum(step.step_seconds for step in steps)
    if total_seconds <= 0:
        return None
    shares = [sum(getattr(step, f"{name}_seconds") for step in steps) / total_seconds for name in list(_PARTS)[:-1]]
    return [*shares, max(1 - sum(shares), 0.0)]


def stack(shares: Sequence[float], width: int) -> list[Span]:
    """Return a bar of `width` cells with the first letter of each part: `dffffbbbbbbo`, and dots for the rest."""
    spans: list[Span] = []
    drawn_cells, total_share = 0, 0.0
    for (name, role), share in zip(_PARTS.items(), shares, strict=True):
        total_share += share
        end_cell, sign = (width, ".") if name == "rest" else (round(total_share * width), name[0])
        spans.append((sign * (end_cell - drawn_cells), role))
        drawn_cells = max(drawn_cells, end_cell)
    return [span for span in spans if span[0]]


def is_tuned(plan: PlanMade | None) -> bool:
    return plan is not None and bool(plan.base_model) and plan.trained_parameters is not None
