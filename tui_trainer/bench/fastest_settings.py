"""The fastest settings of a run at its effective batch and its loss, found by measuring within a bounded time.

First the largest micro-batch that survives the largest passes. Then each alternative once beside the config as it is;
the faster ones are taken one upon the other, where pairs of turns in fresh processes say that they are faster than
those pairs differ among themselves. What failed is never taken, and what the others found stands in a table.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from statistics import median
from time import monotonic
from typing import Any

from tui_trainer.advice.fixes import patched
from tui_trainer.advice.measured_gains import Gain
from tui_trainer.advice.rules.data_loading import WORKERS
from tui_trainer.advice.rules.kernels import ATTENTION, COMPILE
from tui_trainer.advice.rules.machine import THREADS
from tui_trainer.bench.gains import refuse_beside_a_run
from tui_trainer.bench.rounds import Measured, Rounds
from tui_trainer.bench.training import ask_for_steps, figures, no_change, others_words, steps_variant, table
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request, all_settings
from tui_trainer.errors import ConfigError, InputError, RunError
from tui_trainer.hardware.diagnosis import GpuChoice, lack_of_compiler
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.micro_batches import INTERRUPTED, MicroBatches, cut_patch, to_time, try_micro_batches
from tui_trainer.launching.open_run import load_config, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.planning.automatic_values import MIXED
from tui_trainer.planning.batch_cut import GROUP_BY_LENGTH, MICRO, PACKING
from tui_trainer.planning.fused_kernels import KERNELS
from tui_trainer.planning.plan import CHECKPOINTING, Plan
from tui_trainer.runs.wording import split_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_seconds, utc_now
from tui_trainer.worker.asking import WorkerFailed

# What could make a run faster and learn the same: other positions of the settings that decide how a step is computed.
#
# The effective batch stays. What the plan refuses, or what would change nothing, is named with the reason.

# The attention that `auto` is.
_AUTOMATIC_ATTENTION = ("auto", "sdpa")
# Of the tokens that rows of the longest would have.
_FULL = 0.98
_MOST_WORKERS, _LARGER_CUTS, _SMALLER_CUTS = 2, 2, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """One of a `group` is taken. `reason`: why it is not measured; `barred`: why it is not taken, however fast;
    `after`: the name of one that has to be faster before this is measured."""

    group: str
    patch: Patch
    name: str
    reason: str = ""
    barred: str = ""
    after: str = ""


def alternatives(
    loaded: LoadedConfig, plan: Plan, hardware: Hardware, tries: MicroBatches, gpu: GpuChoice
) -> Iterator[Alternative]:
    """Those of this config, the most promising first."""
    for one in (*_lengths(plan), *_cuts(plan, tries), *_switches(plan, hardware, tries)):
        yield one if one.group == "cut" else replace(one, reason=one.reason or _reason(loaded, plan, one.patch, gpu))


def settings_words(patch: Patch) -> str:
    """`group_by_length = true, num_workers = 2`."""
    return ", ".join(f"{key.rpartition('.')[2]} = {json.dumps(value)}" for key, value in patch.items())


def _lengths(plan: Plan) -> Iterator[Alternative]:
    if not plan.packing.value:
        full = plan.train_tokens.value >= _FULL * plan.train_rows.value * plan.longest_row
        reason = "has no effect here: all rows have about the same length" if full else ""
        yield replace(_one(GROUP_BY_LENGTH, not plan.config.data.group_by_length), reason=reason)
    yield _one(PACKING, not plan.packing.value)


def _cuts(plan: Plan, tries: MicroBatches) -> Iterator[Alternative]:
    """The largest micro-batch that survived and some smaller ones, and the one that failed first above it."""
    now = plan.per_device_train_batch_size.value
    survived = {rows: True for rows, one in tries.tried.items() if not one.failed}
    larger = to_time({rows: True for rows in survived if rows > now})
    smaller = to_time({rows: True for rows in survived if rows <= now // 2 or now > tries.largest})
    for rows in larger[:_LARGER_CUTS]:
        yield _cut(plan, tries, rows)
    # Where half of the rows is no faster, a quarter is not either.
    before = ""
    for rows in smaller[:_SMALLER_CUTS]:
        yield replace(_cut(plan, tries, rows), after=before)
        before = _cut(plan, tries, rows).name
    failed = [rows for rows, one in tries.tried.items() if one.failed and rows > tries.largest]
    if failed:
        yield replace(_cut(plan, tries, min(failed)), reason=tries.tried[min(failed)].failed)


def _cut(plan: Plan, tries: MicroBatches, rows: int) -> Alternative:
    return Alternative(group="cut", patch=cut_patch(plan, rows), name=split_words(rows, -(-tries.step_rows // rows)))


def _switches(plan: Plan, hardware: Hardware, tries: MicroBatches) -> Iterator[Alternative]:
    config = plan.config
    lack = "" if config.training.torch_compile else lack_of_compiler(hardware.libraries, plan.device)
    yield replace(_one(COMPILE, not config.training.torch_compile), reason=lack)
    if config.training.gradient_checkpointing:
        yield _one(CHECKPOINTING, False)
    elif tries.largest < tries.step_rows:
        # It makes room for larger passes, which may pay for what is computed twice.
        rows = min(2 * tries.largest, tries.step_rows)
        patch = {CHECKPOINTING: True, **cut_patch(plan, rows)}
        yield Alternative(
            group="cut", patch=patch, name=f"gradient_checkpointing = true, {_cut(plan, tries, rows).name}"
        )
    yield from _numbers(plan)
    current = config.model.attn_implementation
    for name in all_settings()[ATTENTION].choices:
        if name != current and name != "auto" and not {name, current} <= set(_AUTOMATIC_ATTENTION):
            yield _one(ATTENTION, name)
    yield _one(KERNELS, "none" if plan.kernels.value != "none" else "auto")
    workers = range(_MOST_WORKERS + 1) if plan.device == "cuda" else range(2)
    for count in workers:
        if count != plan.loader_workers.value:
            yield _one(WORKERS, count)
    if plan.loader_workers.value:
        yield _one("dataloader.prefetch_factor", 2 * config.dataloader.prefetch_factor)
    if plan.device == "cpu" and plan.threads.value > 1:
        yield _one(THREADS, plan.threads.value // 2)
    if not config.training.gradient_checkpointing and tries.largest >= tries.step_rows:
        yield _one(CHECKPOINTING, True)


def _numbers(plan: Plan) -> Iterator[Alternative]:
    """Precisions: what the plan would choose itself, and fp32, which loses nothing; another one is shown alone."""
    for value, precision in (("bf16", "bf16"), ("fp16", "fp16"), ("no", "fp32")):
        if precision != plan.precision.value:
            keeps = precision in (plan.best_precision, "fp32")
            why = "" if keeps else f"for comparison only: the plan chooses {plan.best_precision} here"
            yield replace(_one(MIXED, value), barred=why)


def _one(key: str, value: Any) -> Alternative:
    return Alternative(group=key, patch={key: value}, name=settings_words({key: value}))


def _reason(loaded: LoadedConfig, plan: Plan, patch: Patch, gpu: GpuChoice) -> str:
    """Why steps with these settings cannot be measured, or would be the same; empty: they can."""
    try:
        return no_change(plan, estimated_plan(patched(loaded, patch), gpu=gpu), patch)
    except InputError as error:
        return one_line("; ".join(problem.message for problem in error.problems), 300)


AS_IT_IS, OTHER_SEED = "as it is", "as it is, another seed"
DEFAULT_IS_BEST = "the current settings are best: nothing was measurably faster"
_NOT_MEASURED = "not measured"
_TRIES_SHARE, _SCREEN_SHARE = 0.25, 0.6
# Of a turn, and how many; what its process takes beside the steps is some seconds.
_TURN_SECONDS, _LEAST_STEPS, _MOST_STEPS, _STEPS = 4.0, 8, 40, 12
_PAIRS, _BASELINE_EVERY = 4, 4
# Less than this in one turn is not looked at again.
_WORTH_PAIRS = 1.01
# Two pairs that say so are enough.
_CLEARLY = 1.25
# A loss is no worse where rounding or another seed would do as much.
_LOSS_ROUNDING, _SEEDS = 0.005, 2.0
# The name of an alternative that is a micro-batch, of several rows and passes.
_SPLIT = re.compile(r"([2-9]|\d\d+) x ([2-9]|\d\d+)")


_Rows = list[tuple[Measured, Alternative]]


class _Over(Exception):
    """There is no time for another turn."""


@dataclass(kw_only=True)
class Tuned:
    """`measured[0]` is the config as it is; `patch` is empty where nothing is faster. `gains` lead from the one to the
    other. `is_too_large`: as it is, memory runs out."""

    plan: Plan
    tries: MicroBatches
    measured: list[Measured]
    patch: Patch = field(default_factory=dict)
    gains: list[Gain] = field(default_factory=list)
    is_too_large: bool = False
    cut_short: str = ""

    @property
    def speed_up(self) -> float | None:
        return prod(gain.speed_up or 1.0 for gain in self.gains) if self.gains else None

    @property
    def pairs(self) -> int:
        return sum(len(gain.ratios) for gain in self.gains)

    @property
    def sentence(self) -> str:
        if self.is_too_large:
            return f"the current settings do not fit in memory; these do: {settings_words(self.patch)}"
        if self.patch:
            spread = self.gains[0].spread if len(self.gains) == 1 else None
            words = f"{self.pairs} comparisons" + ("" if spread is None else f", +-{spread * 100:.0f} %")
            return f"{self.speed_up:.2f} times as fast as now ({words}): {settings_words(self.patch)}"
        left = sum(one.reason.startswith(_NOT_MEASURED) for one in self.measured)
        if left:
            return f"nothing was measurably faster; no time was left for {left} settings (raise --minutes)"
        return DEFAULT_IS_BEST

    def as_json(self) -> dict[str, Any]:
        variants = figures(Rounds(measured=self.measured, cut_short=self.cut_short))
        return {
            "sentence": self.sentence,
            "patch": dict(self.patch),
            "speed_up": self.speed_up,
            "pairs": self.pairs,
            "effective_batch_size": self.plan.effective_batch_size.value,
            "largest_micro_batch": self.tries.largest or None,
            "micro_batches": [
                {"rows": one.rows, "passes": one.passes, "failed": one.failed,
                 "peak_memory_bytes": one.peak_memory_bytes or None}
                for one in sorted(self.tries.tried.values(), key=lambda one: one.rows)
            ],
            "variants": variants,
            "disturbed_by": others_words(variants, probe().usable_cores),
            "cut_short": self.cut_short,
        }  # fmt: skip


@dataclass(kw_only=True)
class Tuning:
    """`told` gets a sentence for each step of the search."""

    request: Request
    gpu: GpuChoice
    seconds: float
    told: Callable[[str], None]

    def find(self) -> Tuned:
        """Raises InputError for a config that cannot be planned and where a run trains, RunError where not even the
        smallest micro-batch survives."""
        loaded = load_config(self.request, gpu=self.gpu)
        plan = estimated_plan(loaded, gpu=self.gpu)
        if problems := start_problems(loaded):
            raise ConfigError(problems)
        refuse_beside_a_run("tune")
        self._begun, self._ends = monotonic(), monotonic() + self.seconds
        self.told(f"finding the largest micro-batch for {plan.effective_batch_size.value} rows per step")
        tries = try_micro_batches(self.request, plan, self.gpu, seconds=_TRIES_SHARE * self.seconds, heard=self.told)
        if not tries.largest and tries.cut_short not in ("", INTERRUPTED):
            raise RunError(f"{tries.cut_short} before any micro-batch was tried; allow more time with --minutes")
        if not tries.largest and not tries.cut_short:
            failed = next(iter(tries.tried.values())).failed
            hint = "`tui-trainer rehearse` finds settings that need less memory"
            raise RunError(f"not even the smallest micro-batch fits in memory: {failed}; {hint}")
        self._turn_seconds = _TURN_SECONDS
        self._steps = self._steps_of(plan, tries)
        found = Tuned(plan=plan, tries=tries, measured=[self._variant(AS_IT_IS, {})], cut_short=tries.cut_short)
        if tries.cut_short != INTERRUPTED:
            found.cut_short = ""
            others = list(alternatives(loaded, plan, probe(), tries, self.gpu))
            try:
                self._search(found, others)
            except _Over:
                found.cut_short = f"the time limit of {format_seconds(self.seconds)} was reached"
            except KeyboardInterrupt:
                found.cut_short = INTERRUPTED
        for one in found.measured:
            if not one.answers and not one.reason:
                one.reason = f"{_NOT_MEASURED}: {found.cut_short or 'no time was left'}"
        return found

    # ------------------------------------------------------------- the search

    def _search(self, found: Tuned, others: Sequence[Alternative]) -> None:
        """Fills `found` as it goes, so that whatever ends it leaves what is known."""
        best = found.measured[0]
        rows = [(self._variant(one.name, one.patch, one.reason), one) for one in others]
        found.measured += [row for row, _ in rows]
        largest = found.tries.largest
        if largest and largest < found.plan.per_device_train_batch_size.value:
            best.reason = "out of memory with the largest batches"
            found.is_too_large, found.patch = True, cut_patch(found.plan, largest)
            best = next(row for row, _ in rows if row.variant.question["patch"] == found.patch)
        taken: set[str] = set()
        for row, one in self._screen(best, rows):
            if one.group in taken:
                continue
            upon = dict(best.variant.question["patch"])
            both = row if not upon else self._variant(f"{best.variant.name}, {one.name}", upon | dict(one.patch))
            if both is not row:
                found.measured.append(both)
            gain = self._compared(best, both)
            both.reason = both.reason or self._why_not(found, best, both, one, gain)
            if not both.reason:
                taken.add(one.group)
                found.patch, best = {**found.patch, **one.patch}, both
                found.gains.append(gain)
        if len(taken) > 1 and not found.is_too_large:
            whole = self._compared(found.measured[0], best)
            found.gains = [whole]
            if not whole.is_difference:
                found.patch, found.gains = {}, []

    def _screen(self, best: Measured, rows: _Rows) -> _Rows:
        """One turn of each beside those of `best`; which were faster, the fastest first."""
        until = self._begun + _SCREEN_SHARE * self.seconds
        self._turn(best)
        if not best.answers:
            raise RunError(f"the current settings cannot be measured: {best.reason}")
        number = 0
        for row, one in rows:
            other = next((row for row, _ in rows if row.variant.name == one.after), None)
            if other is not None and other.answers and not self._is_faster(other, best):
                row.reason = row.reason or f"skipped: {one.after} was not faster"
            if row.reason or row is best:
                continue
            number += 1
            has_found = any(self._is_faster(row, best) for row, one in rows if not one.barred)
            if has_found and monotonic() + self._turn_seconds > until:
                break
            self._turn(row)
            if number % _BASELINE_EVERY == 0:
                self._turn(best)
        faster = [(row, one) for row, one in rows if row is not best and self._is_faster(row, best)]
        for row, one in faster:
            row.reason = one.barred
        faster.sort(key=lambda pair: -(pair[0].median("tokens_per_second") or 0.0))
        return [(row, one) for row, one in faster if not one.barred]

    @staticmethod
    def _is_faster(row: Measured, best: Measured) -> bool:
        now, base = row.median("tokens_per_second"), best.median("tokens_per_second")
        return not row.reason and now is not None and base is not None and now > _WORTH_PAIRS * base

    def _compared(self, before: Measured, after: Measured) -> Gain:
        """Pairs of turns, the order turned round each time, until they say enough."""
        ratios: list[float] = []
        for number in range(_PAIRS):
            for one in (before, after) if number % 2 == 0 else (after, before):
                self._turn(one)
                if one.reason:
                    return Gain(at=utc_now(), reason=one.reason)
            ratios.append(after.answers[-1]["tokens_per_second"] / before.answers[-1]["tokens_per_second"])
            gain = Gain(at=utc_now(), ratios=tuple(ratios), steps=self._steps)
            if number and (min(ratios) > _CLEARLY or max(ratios) < 1):
                break
        return gain

    def _why_not(self, found: Tuned, before: Measured, after: Measured, one: Alternative, gain: Gain) -> str:
        """Empty: it is taken."""
        turns = before.values("tokens_per_second")
        # Of its turns among themselves: twice their median deviation, so that one slow turn does not count.
        spread = 2 * median(abs(rate - median(turns)) for rate in turns) / median(turns) if turns else 0.0
        if gain.speed_up is None or not gain.is_difference or gain.speed_up - 1 <= spread:
            return "not measurably faster"
        loss, was = after.median("loss") or 0.0, before.median("loss") or 0.0
        if loss - was > _LOSS_ROUNDING * abs(was) and loss - was > _SEEDS * self._seed_difference(found, was):
            return f"faster, but rejected: its loss is {loss:.3f} instead of {was:.3f} after the same steps"
        if one.patch.get(COMPILE):
            start = (after.median("wall_seconds") or 0.0) - (before.median("wall_seconds") or 0.0)
            saved = found.plan.total_steps.value * (
                (before.median("step_seconds") or 0.0) - (after.median("step_seconds") or 0.0)
            )
            if saved < start:
                return (
                    f"faster, but rejected: the start takes {format_seconds(start)} longer, and "
                    f"{found.plan.total_steps.value} steps save {format_seconds(max(saved, 0.0))}"
                )
        return self._runs_out(found, after)

    def _seed_difference(self, found: Tuned, loss: float) -> float:
        """How far from this loss the config as it is ends with another seed: other rows first, other dropout masks."""
        row = next((one for one in found.measured if one.variant.name == OTHER_SEED), None)
        if row is None:
            row = self._variant(OTHER_SEED, {"training.seed": found.plan.config.training.seed ^ 1})
            found.measured.append(row)
            self._turn(row)
        other = row.median("loss")
        return abs(other - loss) if other is not None else 0.0

    def _runs_out(self, found: Tuned, after: Measured) -> str:
        """Whether the largest passes survive these settings as well; those of the micro-batch alone did already."""
        patch = dict(after.variant.question["patch"])
        if set(patch) <= {*cut_patch(found.plan, 1), WORKERS, THREADS}:
            return ""
        rows = int(patch.get(MICRO, found.plan.per_device_train_batch_size.value))
        self.told(f"trying the largest batches with {settings_words(patch)}")
        tries = try_micro_batches(
            self.request,
            found.plan,
            self.gpu,
            seconds=self._ends - monotonic(),
            heard=self.told,
            patch=patch | cut_patch(found.plan, 1),
            candidates=[rows],
        )
        if tries.cut_short == INTERRUPTED:
            raise KeyboardInterrupt
        if not tries.tried:
            raise _Over
        return tries.tried[rows].failed

    # ------------------------------------------------------------- turns

    def _variant(self, name: str, patch: Patch, reason: str = "") -> Measured:
        return Measured(variant=steps_variant(name, self.request, self.gpu, self._steps, patch), reason=reason)

    def _turn(self, one: Measured) -> None:
        """Adds an answer, or the reason why there is none. Raises _Over where there is no time."""
        left, started = self._ends - monotonic(), monotonic()
        if left < self._turn_seconds:
            raise _Over
        self.told(f"measuring {one.variant.name}; {format_seconds(left)} left")
        try:
            answer = ask_for_steps(one.variant, not one.answers, left)
        except WorkerFailed as failure:
            if monotonic() >= self._ends:
                raise _Over from None
            one.reason = failure.reason or str(failure)
            self.told(f"  failed: {one.reason}")
            return
        seconds = monotonic() - started
        one.answers.append(answer | {"wall_seconds": seconds})
        if not one.variant.question["patch"].get(COMPILE):
            self._turn_seconds = max(self._turn_seconds, seconds)
        self.told(f"  {format_seconds(answer['step_seconds'])}/step, {answer['tokens_per_second']:,.0f} tokens/s")

    @staticmethod
    def _steps_of(plan: Plan, tries: MicroBatches) -> int:
        """Of a turn: the same of all, so that their losses can be compared. By what the largest passes took."""
        rows = min(plan.per_device_train_batch_size.value, tries.largest)
        one = tries.tried.get(max((size for size in tries.tried if size <= rows), default=0))
        if one is None or not one.seconds:
            return _STEPS
        step_seconds = one.seconds / 2 / min(one.passes, 2) * one.passes
        return min(max(int(_TURN_SECONDS / step_seconds), _LEAST_STEPS), _MOST_STEPS)


def micro_batch_line(tries: MicroBatches) -> str:
    """`largest micro-batch 32 of 32 rows; 64 failed`."""
    failed = sorted(rows for rows, one in tries.tried.items() if one.failed)
    words = f"largest micro-batch: {tries.largest or 'none'} of {tries.step_rows} rows"
    words += f"; {', '.join(map(str, failed))} failed" if failed else ""
    return words + (f"; {tries.cut_short}" if tries.cut_short else "")


def measured_table(found: Mapping[str, Any], width: int) -> list[str]:
    """What was measured, as many columns as fit; `found` as `Tuned.as_json` gives it."""
    rows = table(found["variants"])
    return table_lines(rows, width, right=rows[0][1:]) if len(rows) > 1 else []


def notes_of(found: Mapping[str, Any]) -> list[str]:
    """What the columns are; then what failed, what changes nothing, and what was not taken, each with the reason."""
    columns = "speed-up: ratio of tokens/s; loss: held-out loss"
    if split := next((match for row in found["variants"] if (match := _SPLIT.fullmatch(row["name"]))), None):
        columns = f"{split[0]}: {split[1]} rows per micro-batch, {split[2]} micro-batches per step; {columns}"
    disturbed = [found["disturbed_by"]] if found["disturbed_by"] else []
    return [columns, *disturbed] + [f"{row['name']}: {row['reason']}" for row in found["variants"] if row["reason"]]
