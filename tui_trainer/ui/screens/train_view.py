"""The parts of the Train screen while a run trains: each gives the lines of a scene for a width and a height."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from typing import Final

from rich.cells import cell_len

from tui_trainer.advice.examine import Examination
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.lines.plan_and_events import event_line, gauges_words
from tui_trainer.runs.events import EvalDone, PlanMade, StepDone
from tui_trainer.runs.result import (
    ScoreWords,
    beaten_words,
    best_by,
    better_words,
    ended_after_words,
    ending_words,
    exceeds_plan,
    held_out_loss,
    kept_at_words,
    kept_weights,
    memory_words,
    metric_value,
    newest_scores,
    number,
    planned_epoch_seconds,
    rated_speed,
    score_words,
    scores_of,
    targets_of,
)
from tui_trainer.runs.state import STOPPED_EARLY, GaugeSummary, RunState, slowest_rank
from tui_trainer.runs.steps_and_eta import eta_seconds, figure_rows, speed_rows, time_words
from tui_trainer.runs.wording import (
    batch_words,
    gone_words,
    plan_time_words,
    rows_words,
    sample_words,
    sentence,
    trained_words,
)
from tui_trainer.tasks import holds_conversations, labels_rows, loss_unit
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.keymap import in_keys
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, bar, beside, fit, hanging, rows_of, width_of
from tui_trainer.units import MIB, counted, format_count, format_seconds

_WIDE_RESULT = 100
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
_SCREENS_BYTES: Final = 32 * MIB
_MOST_EPOCHS: Final = 7
_SAMPLE_LINES: Final = 24
_STANDING_NAME: Final = 17
_LABEL: Final = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainScene:
    """Events are texts with roles, newest last.

    `is_beside`: the run is alive in this process, so the machine's gauges are the run's. `has_screens`: its process
    shows screens. `interrupted`: it has not ended, and its process is gone. `events_back` counts the newest events that
    are scrolled away. Events and log lines are filtered by `words`. The part `large` has all the room. `starting` is
    what a start that was requested waits for, `offer` are sentences on what a start would do. `report` is the path of
    the run's page, empty without one.
    """

    state: RunState | None
    glyphs: Glyphs
    gauges: Gauges
    sparks: Mapping[str, Sequence[float]]
    events: Sequence[tuple[str, Role]] = ()
    log_lines: Sequence[str] = ()
    what_is_on: Sequence[str] = ()
    verdict: Examination | None = None
    is_beside: bool = True
    has_screens: bool = True
    interrupted: bool = False
    log_open: bool = False
    table_open: bool = False
    large: str = ""
    frozen: bool = False
    events_back: int = 0
    words: str = ""
    key_of: Callable[[str], str] = str
    report: str = ""
    run_folder: str = ""
    starting: str = ""
    offer: Sequence[str] = ()

    @property
    def run(self) -> RunState:
        return self.state or RunState()

    @property
    def is_over(self) -> bool:
        return bool(self.run.failed or self.run.finished) or self.interrupted

    @property
    def newest_table(self) -> EvalDone | None:
        return next((done for done in reversed(self.run.evals) if done.table_rows), None)

    def beaten(self, is_beaten: bool) -> Span:
        sign, role = verdict_of(is_beaten, self.glyphs)
        return f"{sign} {beaten_words(is_beaten)}", role

    def shown(self, text: str) -> str:
        """Foreign text on one line, made harmless, and in ASCII where only that may appear."""
        return self.glyphs.only(one_line(text))

    def wrapped(self, text: str, width: int, most: int = 8, role: Role = "text", indent: str = "") -> list[Line]:
        """Foreign text in lines of at most `width` cells; the last of `most` ends with an ellipsis if there is more."""
        ellipsis = f" {self.glyphs.ellipsis}"
        rows = rows_of(self.shown(text), width, subsequent_indent=indent, max_lines=most, placeholder=ellipsis)
        return [[(row, role)] for row in rows[:most]]

    def labelled(self, label: str, text: str, width: int, cells: int, role: Role = "text") -> list[Line]:
        return hanging([(label.ljust(cells), "dim")], self.wrapped(text, width - cells, role=role))

    def run_line(self, width: int, _: int) -> list[Line]:
        state = self.run
        word = state.phase if state.phase in ("loading", "saving") else state.status
        if state.status in ("finished", "stopped", "failed"):
            word = state.status_words
        elif self.interrupted:
            word = "interrupted"
        line: Line = [("  ", "text"), (word.ljust(_STATUS_WIDTH), _STATUS_ROLES[word])]
        if state.total_steps:
            total = f"{state.total_steps:,}"
            line += [("  step ", "dim"), (f"{state.step:>{len(total)},}", "text"), (f" of {total}", "dim")]
        eta = None if self.interrupted else eta_seconds(state)
        right: Line = [("  ETA ", "dim"), (f"{format_seconds(eta):>12}", "text")] if eta else []
        if width_of(line) + width_of(right) > width:
            right = []
        # The journal has the name that the run began with: it may have been renamed since.
        run_name = PurePath(self.run_folder).name or state.name
        name: Line = [(self.shown(run_name[:_NAME_LIMIT]), "bold")]
        room = max(width - width_of(line) - width_of(right), 0)
        return [beside([*fit(name, min(room, width_of(name)), self.glyphs.ellipsis), *line], right, width)]

    def progress_line(self, width: int, _: int) -> list[Line]:
        state = self.run
        if state.progress is not None:
            return [self.work_line(width)]
        share = state.share_done
        percent = "    --" if share is None else f"{int(share * 100):>4} %"
        losses = _losses(state)
        if width_of(losses) + len(percent) >= width:
            return [fit([(percent, "text"), *losses], width, self.glyphs.ellipsis)]
        length = min(width - width_of(losses) - 6, _LONGEST_BAR)
        drawn: Line = [(bar(share, length, self.glyphs), "accent")] if length >= 8 else []
        return [beside([*drawn, (percent, "text")], losses, width)]

    def work_line(self, width: int) -> Line:
        """`tokenising ████····  42 %  of 1.2 M characters`; without a total only how much is done."""
        progress, glyphs = self.run.progress, self.glyphs
        if progress is None:
            return []
        what, unit = self.shown(progress.what)[:40], self.shown(progress.unit)[:20]
        if not progress.total:
            return fit(
                [(f"{what}  ", "text"), (f"{format_count(progress.done)} {unit}", "dim")], width, glyphs.ellipsis
            )
        share = min(max(progress.done / progress.total, 0.0), 1.0)
        end: Line = [(f"  {int(share * 100):>3} %", "text"), (f" of {format_count(progress.total)} {unit}", "dim")]
        length = min(width - len(what) - 2 - width_of(end), _LONGEST_BAR)
        drawn: Line = [(bar(share, length, glyphs), "accent")] if length >= 4 else []
        return fit([(f"{what}  ", "text"), *drawn, *end], width, glyphs.ellipsis)

    def rates_line(self, width: int, _: int) -> list[Line]:
        last, rows = self.run.last_step, self.run.samples_per_second
        fields = [
            (f"{format_count(self.run.tokens_per_second):>6}", " tokens/s   "),
            (f"{format_count(rows):>6}", " rows/s   "),
            (f"{format_seconds(_mean_seconds(self.run)):>7}", "/step   lr "),
            (f"{last.lr:.2e}" if last else "--      ", "   gradient " if width >= 80 else "   norm "),
            (f"{last.grad_norm:<6.3g}" if last else "--    ", ""),
        ]
        return [[span for value, unit in fields for span in ((value, "text"), (unit, "dim"))]]

    def scores_line(self, width: int, _: int) -> list[Line]:
        """What is measured of the steps beside their loss."""
        line: Line = []
        for score in score_words(self.run.training_scores, {}):
            line += [(f"{self.shown(score.name)} ", "dim"), (f"{number(score.value)}   ", "text")]
        return [fit(line, width, self.glyphs.ellipsis)] if line else []

    def parts_line(self, width: int, _: int) -> list[Line]:
        shares = part_shares(self.run.recent)
        line: Line = []
        for at, (name, role) in enumerate(list(_PARTS.items())[:-1]):
            value = "--" if shares is None else f"{shares[at] * 100:.0f}"
            line += [(f"{name} ", role), (f"{value:>2} %  ", "text")]
        room = width - width_of(line)
        return [[*line, *stack(shares, room)] if shares and room >= _SHORTEST_STACK else line]

    def ranks_line(self, width: int, _: int) -> list[Line]:
        """`slowest: rank 3, makes each step 14 % longer (12 ms), communication 6 %`."""
        found = slowest_rank(self.run)
        return [fit([(found.words, "text")], width, self.glyphs.ellipsis)] if found else []

    def doctor_line(self, width: int, _: int) -> list[Line]:
        """`doctor  Waiting for data: 61 % of the time, 0.42 of 1.69 s/step  d more`."""
        verdict = self.verdict
        if verdict is None:
            return []
        leading = verdict.leading
        found: Line = [("doctor  ", "dim"), (verdict.healthy, "text")]
        if leading is not None:
            role: Role = "bad" if leading.found.is_fault else "warn"
            evidence = self.shown(leading.found.evidence)
            cost = "" if leading.cost_words in evidence else f"{leading.cost_words}, "
            found = [("doctor  ", "dim"), (f"{leading.symptom.title}: ", role), (f"{cost}{evidence}", "text")]
        more: Line = [("  ", "text"), (self.key_of("train.doctor"), "key"), (" more", "dim")]
        return [beside(fit(found, max(width - width_of(more), 8), self.glyphs.ellipsis), more, width)]

    def parts_rows(self, width: int, _: int) -> list[Line]:
        shares, mean_seconds = part_shares(self.run.recent), _mean_seconds(self.run)
        if shares is None or mean_seconds is None:
            return []
        room = min(width - 28, 30)
        return [
            [(f"{name:<{_LABEL}}", "text"), (bar(share, room, self.glyphs), role), (f"{share * 100:4.0f} %", "text"),
             (f"{format_seconds(share * mean_seconds):>10}", "dim")]
            for (name, role), share in zip(_PARTS.items(), shares, strict=True)
        ]  # fmt: skip

    def readings_rows(self, width: int, _: int) -> list[Line]:
        """What the run's own process used of its machine: at its last reading, and in all of them."""
        last, whole = GaugeSummary(), self.run.gauge_summary
        for reading in list(self.run.gauges)[-1:]:
            last.add(reading)
        lines: list[Line] = []
        for name, summary in [("last", last)] + [("whole run", whole)] * (whole.readings > 1):
            # The sign of a degree is not ASCII.
            lines += self.labelled(name, gauges_words(summary).replace("\u00b0", ""), width, _LABEL)
        return lines

    def epoch_rows(self, *_: int) -> list[Line]:
        planned = planned_epoch_seconds(self.run.plan)
        # Without a plan there is no column for it.
        beside = "" if planned is None else f"{format_seconds(planned):>12}"
        head = "epoch   mean loss        time    rows/s  tokens/s" + ("     planned" if beside else "")
        rows: list[Line] = [[(head, "dim")]]
        for done in self.run.epochs[-_MOST_EPOCHS:]:
            rates = f"{format_count(done.samples_per_second):>8}  {format_count(done.tokens_per_second):>8}"
            seconds = format_seconds(done.seconds)
            rows.append([(f"{done.epoch:>5}   {done.mean_loss:>9.4f}  {seconds:>10}  {rates}{beside}", "text")])
        return rows

    def sample_rows(self, width: int, _: int) -> list[Line]:
        rows: list[Line] = []
        for sample in reversed(self.run.samples):
            prompt, text = sample_words(sample.prompt, sample.text, 2 * width)
            block: list[Line] = [[(f"after step {sample.step}", "dim")]]
            block += hanging([("  ", "text")], self.wrapped(prompt, width - 2, most=2, role="dim"))
            arrow = f"  {self.glyphs.arrow} "
            block += self.labelled(arrow, text, width, len(arrow))
            if len(rows) + len(block) > _SAMPLE_LINES and not self.large:
                return rows or block[:_SAMPLE_LINES]
            rows += block
        return rows

    def event_rows(self, width: int, height: int) -> list[Line]:
        events = self.found_events
        if not events and self.words:
            return [[(f"no matches in {counted(len(self.events), 'event')}", "dim")]]
        end = max(len(events) - max(self.events_back, 0), min(height, len(events)))
        lines: list[Line] = []
        for text, role in reversed(events[:end]):
            rows = self.wrapped(text, width, most=2, role=role, indent="  ")
            if len(lines) + len(rows) > height:
                break
            lines = [*rows, *lines]
        return lines

    @property
    def found_events(self) -> Sequence[tuple[str, Role]]:
        return [one for one in self.events if has_words(one[0], self.words)] if self.words else self.events

    def events_heading(self) -> tuple[str, str]:
        """When the last checkpoint was written, in steps: what a crash would cost."""
        state = self.run
        if self.words:
            key, count = self.key_of("train.clear"), f"{len(self.found_events)} of {len(self.events)}"
            return f"events with {self.shown(self.words)}: {count}", f"{key} shows all"
        if self.frozen:
            return "events", f"frozen: {self.key_of('train.freeze')} unfreezes"
        if not state.checkpoints:
            return "events", "not saved yet"
        age = max(state.step - state.checkpoints[-1].step, 0)
        ago = f", {counted(age, 'step'):>10} ago" if age else ""
        return "events", f"saved at step {state.checkpoints[-1].step}{ago}"

    def log_rows(self, _: int, height: int) -> list[Line]:
        if not self.log_lines:
            return [[("nothing has been written to standard output or standard error", "dim")]]
        found = [text for text in self.log_lines if has_words(text, self.words)] or ["no matches"]
        return [[(self.shown(text), "dim")] for text in (found[-height:] if height > 0 else [])]

    def tuning_line(self, *_: int) -> list[Line]:
        """`LoRA r 16 on TinyLlama-1.1B: 9.01 M of 1.1 G parameters are trainable (0.82 %)`."""
        plan = self.run.plan
        if plan is None:
            return []
        name = _field(f"LoRA r {plan.lora_rank} on " if plan.lora_rank else "", self._base_name(plan))
        words = trained_words(plan)
        return [[*name, *_field(": ", words), (" are trainable", "dim")]]

    def standing_heading(self) -> tuple[str, str]:
        done = self.run.evals[-1] if self.run.evals else None
        return "scores", f"after step {done.step:,}" if done else "no evaluation yet"

    def standing_rows(self, width: int, _: int) -> list[Line]:
        """What the task measures: now, the best and where it was, and what is to be beaten; and which weights stay."""
        state = self.run
        losses, scores = (state.baselines.losses, state.baselines.scores) if state.baselines else ({}, {})
        rows: list[Line] = [[(f"{'':<{_STANDING_NAME}}{'now':>8}{'best':>8}{'at step':>8}  to beat", "dim")]]
        last = state.evals[-1] if state.evals else None
        if last is not None and best_by(state, "loss") is not None:
            hardest = min(losses.items(), key=lambda item: item[1], default=None)
            rows.append(self._standing(ScoreWords("held-out loss", last.loss, hardest, True), "loss", "{:.4f}".format))
        measured = last.scores if last else {}
        for name, score in zip(measured, score_words(measured, scores), strict=True):
            rows.append(self._standing(score, name))
        for score in score_words(state.training_scores, {}):
            rows.append(self._standing(replace(score, name=f"{score.name}, training")))
        kept = kept_weights(state)
        if words := kept.best_words:
            rows += self.labelled("best", words, width, _LABEL)
        if (words := kept.patience_words) and not self.is_over:
            rows += self.labelled("patience", words, width, _LABEL)
        keeps = f"weights of step {kept.step:,}" if kept.patience or self.is_over else "weights of the last step"
        return [*rows, *self.labelled("final", keeps, width, _LABEL)] if state.evals else rows

    def _standing(self, score: ScoreWords, metric: str = "", show: Callable[[float], str] = number) -> Line:
        """One row: the newest value, the best of `metric` and where it was, and what is to be beaten."""
        done = best_by(self.run, metric)
        best, at = (show(metric_value(done, metric) or 0.0), f"{done.step:,}") if done else ("", "")
        line = fit([(self.shown(score.name), "dim")], _STANDING_NAME, self.glyphs.ellipsis)
        line += [(f"{show(score.value):>8}", "text"), (f"{best:>8}", "bold"), (f"{at:>8}", "dim")]
        if score.baseline is not None:
            sign, role = verdict_of(score.beaten, self.glyphs)
            what, value = score.baseline
            line += [(f"  {sign} ", role), (f"{show(value)} ", "text"), (self.shown(what), "dim")]
        return line

    def plan_rows(self, width: int, _: int) -> list[Line]:
        state, plan, data = self.run, self.run.plan, self.run.data
        if plan is None:
            return []
        device = self.shown(state.device) or "--"
        model = [("model", f"{format_count(plan.parameters)} parameters on {device}")]
        if is_tuned(plan):
            words = trained_words(plan)
            model = [("model", f"{self._base_name(plan)} on {device}")]
            model.append(("LoRA", f"r {plan.lora_rank}, {words}") if plan.lora_rank else ("trains", words))
        rows = [
            *model,
            ("data", rows_words(data.rows, data.tokens) if data else "--"),
            ("batch", batch_words(plan)),
            ("steps", f"{plan.total_steps:,}, {plan.steps_per_epoch:,} per epoch"),
            *([("attention", self.shown(plan.attention))] if plan.attention else []),
            *figure_rows(state),
        ]
        words = ", ".join(filter(None, (memory_words(state), self.memory_advice)))
        role: Role = "warn" if self.exceeds_plan else "text"
        memory = self.labelled("memory", words, width, _LABEL, role)
        time = self.labelled("time", time_words(state), width, _LABEL)
        return [*(_field(f"{name:<{_LABEL}}", text) for name, text in rows), *memory, *time]

    @property
    def exceeds_plan(self) -> bool:
        """Whether the run takes clearly more memory than planned."""
        # On a CPU the screens share the process, and no plan includes them.
        has_screens = self.has_screens and not self.run.device.startswith("cuda")
        return exceeds_plan(self.run, _SCREENS_BYTES if has_screens else 0)

    @property
    def memory_advice(self) -> str:
        """What it means for the user if memory exceeds the plan; empty if it does not."""
        if self.exceeds_plan:
            return "which is no problem while memory is free; later plans use the measured peak"
        return "which is within tolerance" if "more than planned" in memory_words(self.run) else ""

    def _base_name(self, plan: PlanMade) -> str:
        return self.shown(plan.came_from or plan.base_model.rstrip("/").rpartition("/")[2])


def has_words(text: str, words: str) -> bool:
    """All of them, in any order and case."""
    folded = text.casefold()
    return all(word in folded for word in words.casefold().split())


def _losses(state: RunState) -> Line:
    epochs = ""
    if state.plan is not None and state.plan.steps_per_epoch:
        total = state.total_steps / state.plan.steps_per_epoch
        epochs = f" of {total:.2f}" if total < 10 else f" of {total:.1f}"
    # What is not known takes the cells of what will be.
    held_out = held_out_loss(state)
    fields = [
        ("epoch", f"{state.last_step.epoch:.2f}" if state.last_step else "0.00"),
        ("loss", "--    " if state.loss_smoothed is None else f"{state.loss_smoothed:.4f}"),
        ("held out", "--    " if held_out is None else f"{held_out:.4f}"),
    ]
    # One score stands for all: that which the best evaluation goes by, else the first.
    scores, metric = newest_scores(state), state.plan.metric if state.plan else ""
    shown = score_words({metric: scores[metric]} if metric in scores else scores, {})[:1]
    fields += [(score.name, number(score.value)) for score in shown]
    line = [span for label, value in fields for span in _field(f"   {label} ", value)]
    return [*line[:2], (epochs, "dim"), *line[2:]]


def _field(label: str, value: str, role: Role = "text") -> Line:
    return [(label, "dim"), (value, role)]


def _mean_seconds(state: RunState) -> float | None:
    return sum(done.step_seconds for done in state.recent) / len(state.recent) if state.recent else None


def part_shares(steps: Collection[StepDone]) -> list[float] | None:
    """The shares of a step that go to data, forward, backward, optimizer and the rest; None without time."""
    whole = sum(done.step_seconds for done in steps)
    if whole <= 0:
        return None
    shares = [sum(getattr(done, f"{name}_seconds") for done in steps) / whole for name in list(_PARTS)[:-1]]
    return [*shares, max(1 - sum(shares), 0.0)]


def stack(shares: Sequence[float], width: int) -> list[Span]:
    """The shares as `width` cells of the parts' first letters: `dffffbbbbbbo`, and points for the rest."""
    spans: list[Span] = []
    begin, total = 0, 0.0
    for (name, role), share in zip(_PARTS.items(), shares, strict=True):
        total += share
        end, sign = (width, ".") if name == "rest" else (round(total * width), name[0])
        spans.append((sign * (end - begin), role))
        begin = max(begin, end)
    return [span for span in spans if span[0]]


def is_tuned(plan: PlanMade | None) -> bool:
    return plan is not None and bool(plan.base_model) and plan.trained_parameters is not None


# What the Train screen says when no step is being made: before a run, while it is prepared, and after its end; and
# what a task measures beside the loss.

_READING_WIDTH: Final = 100
_STORY_LABEL: Final = 9
_SPEED_LABEL: Final = 12
_NAME_WIDTH: Final = 16
_SHORT_NAME, _LONGEST_NAME = 5, 24


def invitation(scene: TrainScene, width: int, _: int) -> list[Line]:
    room = min(width, _READING_WIDTH) - 4
    if scene.starting:
        phase: Line = [(f"{scene.glyphs.pointer} ", "accent"), (scene.starting, "text")]
        note = scene.wrapped("You can use other screens meanwhile.", room, role="dim")
        return _indented([[], [("A new run is being prepared.", "bold")], [], phase, [], *note, []])
    press: Line = [("Press ", "text"), (scene.key_of("app.start"), "key")]
    press.append((" to start. You see the plan first and confirm it.", "text"))
    lines: list[Line] = [[], [("Nothing is training yet.", "bold")], [], press, []]
    for text in scene.offer:
        lines += scene.labelled(f"{scene.glyphs.dot} ", text, room, 2)
    ending = "A run continues if the connection is lost. You can stop and resume it at any step."
    return _indented([*lines, [], *scene.wrapped(ending, room, role="dim"), []])


def preparation(scene: TrainScene, width: int, _: int) -> list[Line]:
    state, glyphs = scene.run, scene.glyphs
    data, plan, loading, training = state.data, state.plan, state.phase == "loading", state.status == "training"
    done = "" if data is None else rows_words(data.rows, data.tokens)
    planned = f"{counted(plan.total_steps, 'step')}, {plan_time_words(plan)}" if plan else ""
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
            lines.append([("   ", "text"), *scene.work_line(min(width, _READING_WIDTH) - 5)])
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
            sign, role = verdict_of(target.met, scene.glyphs)
            label = f"{sign} {target.verdict}"
            lines += hanging([(label.ljust(_STORY_LABEL), role)], scene.wrapped(target.words, width - _STORY_LABEL))
        if words := better_words(state):
            lines += scene.wrapped(words, width, role="warn")
    rows, (graded, is_slow) = speed_rows(state), rated_speed(state)
    # Where there is room for them, the rows at the end say it.
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
    # Last, as a small terminal has no place for them.
    for label, words in rows:
        lines += scene.labelled(label, words, width, _SPEED_LABEL)
    return lines


def _against_baselines(scene: TrainScene, loss: float) -> list[Line]:
    state = scene.run
    unit = f"{loss_unit(state.task)}{kept_at_words(state)}"
    lines: list[Line] = [[("held out ", "dim"), (f"{loss:.4f}", "bold"), (unit, "dim")]]
    for name, other in (state.baselines.losses if state.baselines else {}).items():
        label = f"  {scene.shown(name)[:16]:<17}"
        lines.append(
            [(" " * _STORY_LABEL, "text"), (f"{other:.4f}", "text"), (label, "dim"), scene.beaten(loss < other)]
        )
    return lines


def _score_row(scene: TrainScene, score: ScoreWords) -> Line:
    name = fit([(scene.shown(score.name), "dim")], _NAME_WIDTH, scene.glyphs.ellipsis)
    line: Line = [*name, (f" {number(score.value)}", "bold")]
    if score.baseline is None:
        return line
    # The name of the baseline comes last: it is what may be cut.
    to_beat = f"  {number(score.baseline[1])} {scene.shown(score.baseline[0])}"
    return [*line, ("  ", "text"), scene.beaten(bool(score.beaten)), (to_beat, "dim")]


def verdict_of(is_met: bool | None, glyphs: Glyphs) -> Span:
    return (glyphs.dot, "dim") if is_met is None else (glyphs.good, "good") if is_met else (glyphs.bad, "bad")


def target_rows(scene: TrainScene, *_: int) -> list[Line]:
    targets = targets_of(scene.run)
    return [[verdict_of(target.met, scene.glyphs), (f" {scene.shown(target.words)}", "text")] for target in targets]


def scores_heading(scene: TrainScene) -> tuple[str, str]:
    done = scene.newest_table
    if done is None:
        return "scores", ""
    title = f"scores: {scene.shown(done.table_title)}" if done.table_title else "scores"
    return title, f"after step {done.step:,}"


def score_rows(scene: TrainScene, width: int, height: int) -> list[Line]:
    if done := scene.newest_table:
        return table_rows(done, width, height, scene.glyphs)
    return [[("no evaluation has a table of scores yet", "dim")]]


def table_rows(done: EvalDone, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """A row of numbers for each class. Columns that are classes with long names have their row's number as a title, so
    that twenty of them fit; what does not fit is counted."""
    names, titles = ([glyphs.only(one_line(name)) for name in found] for found in (done.table_rows, done.table_columns))
    square = list(done.table_columns) == list(done.table_rows)
    numbered = square and max(map(cell_len, names)) > _SHORT_NAME
    if numbered:
        names = [f"{at:>3} {name[:_LONGEST_NAME]}" for at, name in enumerate(names, 1)]
        titles = [str(at) for at in range(1, len(names) + 1)]
    cells = _cells(done, square)
    widest = max(len(text) for text in (*titles, *(cell for row in cells for cell in row))) + 2
    label = min(max(map(cell_len, names)), _LONGEST_NAME + 4 * numbered)
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
    return [*lines, [(f"{words} do not fit here", "dim")]] if words else lines


def _cells(done: EvalDone, square: bool) -> list[list[str]]:
    """Counts are whole, shares have two decimals: a column is one or the other."""
    rows = list(done.table_rows.values())
    formats = [
        "{:.0f}" if square or (all(float(value).is_integer() for value in column) and max(column) > 1) else "{:.2f}"
        for column in zip(*rows, strict=True)
    ]
    return [[shape.format(value) for shape, value in zip(formats, row, strict=True)] for row in rows]
