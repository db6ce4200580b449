"""Search within bounded time for better settings of a run: the fastest settings, or the best number of rows per step.

The search for the fastest settings keeps the effective batch and the loss. It first finds the largest micro-batch that
survives the largest passes. Then it measures each alternative once, in turns with the current settings. It adds the
faster alternatives one after another if pairs of turns in fresh processes show a gain larger than their spread.
Settings that failed are never chosen.

The search for the best number of rows (`EffectiveBatches`) doubles the rows per step until memory is full, or until two
doublings in a row gain less than `LEAST_GAIN`. Each turn takes the largest pass of the run and then some steps. In the
remaining time each size is measured again, and its fastest turn counts, because other load only slows turns down."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from operator import attrgetter
from statistics import median
from typing import Any, Self

from tui_trainer.advice.fixes import load_patched
from tui_trainer.advice.measured_gains import Gain
from tui_trainer.advice.rules.data_loading import WORKERS
from tui_trainer.advice.rules.kernels import ATTENTION, COMPILE
from tui_trainer.advice.rules.machine import THREADS
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request, all_settings
from tui_trainer.errors import ConfigError, InputError, RunError
from tui_trainer.hardware.diagnosis import GpuChoice, lack_of_compiler
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.hardware.processor import load_of_others
from tui_trainer.launching.open_run import load_config, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.measure import micro_batches, steps, turns
from tui_trainer.measure.micro_batches import MicroBatches, try_micro_batches
from tui_trainer.measure.steps import ask_for_steps, short_run
from tui_trainer.measure.turns import Variant
from tui_trainer.planning import batch_cut
from tui_trainer.planning.automatic_values import PRECISION_KEY
from tui_trainer.planning.effective_batch import LEAST_STEPS_OF_A_RUN, most_rows_of_step
from tui_trainer.planning.fused_kernels import KERNELS
from tui_trainer.planning.learning_rates import LEARNING_RATE, peak_rate, scaled, usual_scaling
from tui_trainer.planning.measured_steps import is_busy
from tui_trainer.planning.plan import CHECKPOINTING, Plan
from tui_trainer.runs.wording import split_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes, format_seconds, quantity, utc_now
from tui_trainer.worker.asking import WorkerFailed

# Time and steps of a turn in a search. The process of a turn takes some seconds more to start.
_TURN_SECONDS, _LEAST_STEPS, _MOST_STEPS = 4.0, 8, 40


@dataclass(kw_only=True)
class Search:
    """Base of the searches, with at most `seconds`. `notify` gets a sentence about each turn.

    Raises InputError if the config cannot be planned or started, or while a run trains on this machine."""

    request: Request
    gpu: GpuChoice
    seconds: float
    notify: turns.Notify

    def __post_init__(self) -> None:
        self.loaded = load_config(self.request, gpu=self.gpu)
        self.plan = estimated_plan(self.loaded, gpu=self.gpu)
        if problems := start_problems(self.loaded):
            raise ConfigError(problems)
        steps.refuse_while_training("tune")
        self.limit = turns.TimeLimit(self.seconds)

    @staticmethod
    def steps_of_a_turn(step_seconds: float) -> int:
        """Return how many steps a turn needs so that turns can be compared."""
        return min(max(int(_TURN_SECONDS / step_seconds), _LEAST_STEPS), _MOST_STEPS)

    @property
    def cut_short(self) -> str:
        """Why the search ended early; empty if it did not."""
        return self.limit.cut_short

    def take_turn(self, variant: Variant, ask: Callable[[float], dict[str, Any]], least_seconds: float = 0.0) -> bool:
        """Measure a variant once, and add the answer or the reason of a failure to it. Return whether it succeeded.

        Raises TimeOver if no more than `least_seconds` are left, or if the turn does not end in time."""
        left_seconds = self.limit.require(least_seconds)
        self.notify(f"measuring {variant.name}; {format_seconds(left_seconds)} left")
        try:
            variant.answers.append(ask(left_seconds))
        except WorkerFailed as failure:
            # `require` raises TimeOver, because a failure at the time limit says nothing about the variant.
            self.limit.require()
            variant.reason = failure.reason or str(failure)
            self.notify(f"  failed: {variant.reason}")
            return False
        return True


# Alternatives change how a step is computed, but not what is learnt: the effective batch does not change. An
# alternative that the plan refuses, or that would change nothing, has a `reason`.

# Both names select the same attention.
_AUTOMATIC_ATTENTION = ("auto", "sdpa")
# Rows are full if they have this share of the tokens that rows of the longest length would have.
_EQUAL_LENGTHS_SHARE = 0.98
_MOST_WORKERS, _LARGER_CUTS, _SMALLER_CUTS = 2, 2, 2


@dataclass(kw_only=True, slots=True)
class Alternative(Variant):
    """A variant that belongs to a `group`. At most one variant of a group is chosen.

    `exclusion_reason` says why this one is never chosen. `faster_prerequisite` names the alternative that must be
    faster than the current settings before this one is measured."""

    group: str
    exclusion_reason: str = ""
    faster_prerequisite: str = ""


def alternatives(
    loaded: LoadedConfig, plan: Plan, hardware: Hardware, tries: MicroBatches, gpu: GpuChoice
) -> Iterator[Alternative]:
    """Yield the alternatives to the settings of this config, the most promising first."""
    for alternative in (*_lengths(plan), *_micro_batch_alternatives(plan, tries), *_switches(plan, hardware, tries)):
        if alternative.group != "cut" and not alternative.reason:
            reason = steps.why_not_measurable(plan, alternative.patch, partial(load_patched, loaded), gpu)
            alternative.reason = one_line(reason, 300)
        yield alternative


def short_words(patch: Patch) -> str:
    """Return the settings of a patch without their sections: `group_by_length = true, num_workers = 2`."""
    return ", ".join(f"{key.rpartition('.')[2]} = {json.dumps(value)}" for key, value in patch.items())


def _lengths(plan: Plan) -> Iterator[Alternative]:
    if not plan.packing.value:
        has_equal_lengths = plan.train_tokens.value >= _EQUAL_LENGTHS_SHARE * plan.train_rows.value * plan.longest_row
        reason = "has no effect here: all rows have about the same length" if has_equal_lengths else ""
        yield replace(_setting(batch_cut.GROUP_BY_LENGTH, not plan.config.data.group_by_length), reason=reason)
    yield _setting(batch_cut.PACKING, not plan.packing.value)


def _micro_batch_alternatives(plan: Plan, tries: MicroBatches) -> Iterator[Alternative]:
    """Yield other micro-batch sizes: the largest that survived, some smaller ones, and the smallest that failed."""
    current_rows = plan.per_device_train_batch_size.value
    sizes = [rows for rows, trial in tries.tried.items() if not trial.failure_words]
    larger_sizes = micro_batches.sizes_to_time(rows for rows in sizes if rows > current_rows)
    most_rows = current_rows // 2 if current_rows <= tries.largest else tries.largest
    smaller_sizes = micro_batches.sizes_to_time(rows for rows in sizes if rows <= most_rows)
    for rows in larger_sizes[:_LARGER_CUTS]:
        yield _micro_batch_alternative(plan, tries, rows)
    # If half of the rows per pass is no faster, a quarter is not either.
    previous_name = ""
    for rows in smaller_sizes[:_SMALLER_CUTS]:
        yield replace(_micro_batch_alternative(plan, tries, rows), faster_prerequisite=previous_name)
        previous_name = _micro_batch_alternative(plan, tries, rows).name
    failed_tries = [trial for trial in tries.tried.values() if trial.failure_words and trial.rows > tries.largest]
    if failed_tries:
        smallest = min(failed_tries, key=attrgetter("rows"))
        yield replace(_micro_batch_alternative(plan, tries, smallest.rows), reason=smallest.failure_words)


def _micro_batch_alternative(plan: Plan, tries: MicroBatches, rows: int) -> Alternative:
    name = split_words(rows, -(-tries.step_rows // rows))
    return Alternative(group="cut", patch=micro_batches.micro_batch_patch(plan, rows), name=name)


def _switches(plan: Plan, hardware: Hardware, tries: MicroBatches) -> Iterator[Alternative]:
    config = plan.config
    compiler_reason = "" if config.training.torch_compile else lack_of_compiler(hardware.libraries, plan.device)
    yield replace(_setting(COMPILE, not config.training.torch_compile), reason=compiler_reason)
    if config.training.gradient_checkpointing:
        yield _setting(CHECKPOINTING, False)
    elif tries.largest < tries.step_rows:
        # Checkpointing makes room for larger passes, whose gain may exceed the cost of computing activations twice.
        rows = min(2 * tries.largest, tries.step_rows)
        patch = {CHECKPOINTING: True, **micro_batches.micro_batch_patch(plan, rows)}
        name = f"gradient_checkpointing = true, {_micro_batch_alternative(plan, tries, rows).name}"
        yield Alternative(group="cut", patch=patch, name=name)
    yield from _precisions(plan)
    current_attention = config.model.attn_implementation
    for value in all_settings()[ATTENTION].choices:
        if value not in (current_attention, "auto") and not {value, current_attention} <= set(_AUTOMATIC_ATTENTION):
            yield _setting(ATTENTION, value)
    yield _setting(KERNELS, "none" if plan.kernels.value != "none" else "auto")
    worker_counts = range(_MOST_WORKERS + 1) if plan.device == "cuda" else range(2)
    for count in worker_counts:
        if count != plan.loader_workers.value:
            yield _setting(WORKERS, count)
    if plan.loader_workers.value:
        yield _setting("dataloader.prefetch_factor", 2 * config.dataloader.prefetch_factor)
    if plan.device == "cpu" and plan.threads.value > 1:
        yield _setting(THREADS, plan.threads.value // 2)
    if not config.training.gradient_checkpointing and tries.largest >= tries.step_rows:
        yield _setting(CHECKPOINTING, True)


def _precisions(plan: Plan) -> Iterator[Alternative]:
    """Yield other precisions. Only fp32 and the plan's choice may be chosen; others are for comparison."""
    for setting_value, precision in (("bf16", "bf16"), ("fp16", "fp16"), ("no", "fp32")):
        if precision != plan.precision.value:
            is_choosable = precision in (plan.best_precision, "fp32")
            reason = "" if is_choosable else f"for comparison only: the plan chooses {plan.best_precision} here"
            yield replace(_setting(PRECISION_KEY, setting_value), exclusion_reason=reason)


def _setting(key: str, value: Any) -> Alternative:
    return Alternative(group=key, patch={key: value}, name=short_words({key: value}))


OTHER_SEED = "current settings, another seed"
DEFAULT_IS_BEST = "the current settings are best, because nothing was measurably faster"
_TRIES_SHARE, _SCREEN_SHARE = 0.25, 0.6
# Number of steps in a turn if the time of a step is unknown.
_STEPS = 12
_PAIRS, _BASELINE_EVERY = 4, 4
# An alternative is compared further only if its first turn is this many times as fast as the current settings.
_PAIRS_FROM_RATIO = 1.01
# Two pairs of turns are enough for a gain above this factor.
_CLEAR_GAIN_RATIO = 1.25
# A higher loss is accepted if rounding (share of the loss) or another seed (multiple of its difference) explains it.
_LOSS_ROUNDING, _SEED_DIFFERENCE_FACTOR = 0.005, 2.0
# Name of an alternative that changes the micro-batch, such as `8 x 4`: rows and passes.
_SPLIT_NAME = re.compile(r"([2-9]|\d\d+) x ([2-9]|\d\d+)")


@dataclass(kw_only=True)
class Tuning(Search):
    """Search for the fastest settings. `measured[0]` is the variant with the current settings.

    `patch` has the changes that make it faster, empty if there are none, and `gains` the measured gain of each."""

    tries: MicroBatches = field(default_factory=lambda: MicroBatches(step_rows=0))
    measured: list[Variant] = field(default_factory=list)
    patch: Patch = field(default_factory=dict)
    gains: list[Gain] = field(default_factory=list)
    is_too_large: bool = False
    """Whether the current settings run out of memory."""

    def find(self) -> Self:
        """Search until nothing is left to try, the time is over, or the user presses Ctrl+C.

        Raises RunError if not even the smallest micro-batch survives.
        """
        self.notify(f"finding the largest micro-batch for {self.plan.effective_batch_size.value} rows per step")
        tries = self.tries = self._try_micro_batches(_TRIES_SHARE * self.seconds)
        if not tries.largest and tries.cut_short not in ("", turns.INTERRUPTED):
            raise RunError(f"{tries.cut_short} before any micro-batch was tried; allow more time with --minutes")
        if not tries.largest and not tries.cut_short:
            failure = next(iter(tries.tried.values())).failure_words
            hint = "`tui-trainer rehearse` finds settings that need less memory"
            raise RunError(f"not even the smallest micro-batch fits in memory: {failure}; {hint}")
        self._turn_seconds = _TURN_SECONDS
        self._steps = self._steps_of_all_turns()
        self.measured = [Variant(name=turns.CURRENT)]
        with self.limit:
            if tries.cut_short == turns.INTERRUPTED:
                raise KeyboardInterrupt
            self._search(list(alternatives(self.loaded, self.plan, probe(), tries, self.gpu)))
        turns.explain_unmeasured(self.measured, self.cut_short or "no time was left")
        return self

    def _search(self, others: Sequence[Alternative]) -> None:
        """Add results to the attributes step by step, so that they are kept if the search is interrupted."""
        best_variant = self.measured[0]
        self.measured += others
        largest_rows = self.tries.largest
        if largest_rows and largest_rows < self.plan.per_device_train_batch_size.value:
            best_variant.reason = "out of memory with the largest batches"
            self.is_too_large, self.patch = True, micro_batches.micro_batch_patch(self.plan, largest_rows)
            best_variant = next(other for other in others if other.patch == self.patch)
        taken_groups: set[str] = set()
        for alternative in self._screen(best_variant, others):
            if alternative.group in taken_groups:
                continue
            combined: Variant = alternative
            if best_variant.patch:
                patch = {**best_variant.patch, **alternative.patch}
                combined = Variant(name=f"{best_variant.name}, {alternative.name}", patch=patch)
                self.measured.append(combined)
            gain = self._compare(best_variant, combined)
            combined.reason = combined.reason or self._why_rejected(best_variant, combined, alternative.patch, gain)
            if not combined.reason:
                taken_groups.add(alternative.group)
                self.patch, best_variant = {**self.patch, **alternative.patch}, combined
                self.gains.append(gain)
        if len(taken_groups) > 1 and not self.is_too_large:
            whole_gain = self._compare(self.measured[0], best_variant)
            self.gains = [whole_gain]
            if not whole_gain.is_difference:
                self.patch, self.gains = {}, []

    def _screen(self, best: Variant, others: Sequence[Alternative]) -> list[Alternative]:
        """Measure `best` and each alternative in turns. Return the alternatives that are faster, the fastest first."""
        self._take_turn(best)
        if not best.answers:
            raise RunError(f"the current settings cannot be measured: {best.reason}")
        measured_count = 0
        for alternative in others:
            larger_cut = next((other for other in others if other.name == alternative.faster_prerequisite), None)
            if larger_cut is not None and larger_cut.answers and not self._is_faster(larger_cut, best):
                alternative.reason = alternative.reason or f"skipped: {alternative.faster_prerequisite} was not faster"
            if alternative.reason or alternative is best:
                continue
            measured_count += 1
            has_faster = any(self._is_faster(other, best) for other in others if not other.exclusion_reason)
            if has_faster and self.limit.left_seconds - self._turn_seconds < (1 - _SCREEN_SHARE) * self.seconds:
                break
            self._take_turn(alternative)
            if measured_count % _BASELINE_EVERY == 0:
                self._take_turn(best)
        faster_candidates = [other for other in others if other is not best and self._is_faster(other, best)]
        for alternative in faster_candidates:
            alternative.reason = alternative.exclusion_reason
        faster_candidates.sort(key=lambda other: -(other.median("tokens_per_second") or 0.0))
        return [other for other in faster_candidates if not other.exclusion_reason]

    @staticmethod
    def _is_faster(variant: Variant, best: Variant) -> bool:
        rate, best_rate = variant.median("tokens_per_second"), best.median("tokens_per_second")
        if variant.reason or rate is None or best_rate is None:
            return False
        return rate > _PAIRS_FROM_RATIO * best_rate

    def _compare(self, before: Variant, after: Variant) -> Gain:
        """Take pairs of turns in alternating order until the result is clear, and return the gain of `after`."""
        for pair_number in range(_PAIRS):
            for variant in (before, after) if pair_number % 2 == 0 else (after, before):
                self._take_turn(variant)
                if variant.reason:
                    return Gain(at=utc_now(), reason=variant.reason)
            gain = Gain.of_pairs(before.answers[-pair_number - 1 :], after.answers[-pair_number - 1 :], self._steps)
            if pair_number and (min(gain.ratios) > _CLEAR_GAIN_RATIO or max(gain.ratios) < 1):
                break
        return gain

    def _why_rejected(self, before: Variant, after: Variant, patch: Patch, gain: Gain) -> str:
        """Return why `patch`, which leads from `before` to `after`, is not chosen; empty if it is."""
        rates = before.values("tokens_per_second")
        # The spread is twice the median deviation of the turns, so that one slow turn has no effect.
        spread = 2 * median(abs(rate - median(rates)) for rate in rates) / median(rates) if rates else 0.0
        if gain.speed_up is None or not gain.is_difference or gain.speed_up - 1 <= spread:
            return "not measurably faster"
        loss, old_loss = after.median("loss") or 0.0, before.median("loss") or 0.0
        is_above_rounding = loss - old_loss > _LOSS_ROUNDING * abs(old_loss)
        if is_above_rounding and loss - old_loss > _SEED_DIFFERENCE_FACTOR * self._seed_difference(old_loss):
            return f"faster, but rejected: its loss is {loss:.3f} instead of {old_loss:.3f} after the same steps"
        if patch.get(COMPILE):
            start_seconds = (after.median("wall_seconds") or 0.0) - (before.median("wall_seconds") or 0.0)
            total_steps = self.plan.total_steps.value
            saving = total_steps * ((before.median("step_seconds") or 0.0) - (after.median("step_seconds") or 0.0))
            if saving < start_seconds:
                return (
                    f"faster, but rejected: the start takes {format_seconds(start_seconds)} longer, and "
                    f"{total_steps} steps save only {format_seconds(max(saving, 0.0))}"
                )
        return self._why_out_of_memory(after.patch)

    def _seed_difference(self, loss: float) -> float:
        """Return the difference between `loss` and the loss with another seed, which changes dropout and row order."""
        other_seed = next((variant for variant in self.measured if variant.name == OTHER_SEED), None)
        if other_seed is None:
            other_seed = Variant(name=OTHER_SEED, patch={"training.seed": self.plan.config.training.seed ^ 1})
            self.measured.append(other_seed)
            self._take_turn(other_seed)
        other_loss = other_seed.median("loss")
        return abs(other_loss - loss) if other_loss is not None else 0.0

    def _why_out_of_memory(self, patch: Patch) -> str:
        """Return why the largest passes fail with these settings; empty if they survive."""
        # Micro-batch sizes alone have already been tried.
        if set(patch) <= {*micro_batches.micro_batch_patch(self.plan, 1), WORKERS, THREADS}:
            return ""
        rows = int(patch.get(batch_cut.MICRO_BATCH_KEY, self.plan.per_device_train_batch_size.value))
        self.notify(f"trying the largest batches with {short_words(patch)}")
        patch = {**patch, **micro_batches.micro_batch_patch(self.plan, 1)}
        tries = self._try_micro_batches(self.limit.left_seconds, patch=patch, candidates=[rows])
        if tries.cut_short == turns.INTERRUPTED:
            raise KeyboardInterrupt
        if not tries.tried:
            raise turns.TimeOver
        return tries.tried[rows].failure_words

    def _try_micro_batches(self, seconds: float, **more: Any) -> MicroBatches:
        return try_micro_batches(self.request, self.plan, self.gpu, seconds=seconds, notify=self.notify, **more)

    def _take_turn(self, variant: Variant) -> None:
        """Measure a variant once, and add its answer or the reason of a failure. Raises TimeOver."""
        left_seconds, request = self.limit.left_seconds, short_run(self.request, self._steps, {})
        ask_steps = partial(ask_for_steps, request, self.gpu, self._steps, variant.patch)
        if not self.take_turn(variant, ask_steps, self._turn_seconds):
            return
        answer, turn_seconds = variant.answers[-1], left_seconds - self.limit.left_seconds
        answer["wall_seconds"] = turn_seconds
        if not variant.patch.get(COMPILE):
            self._turn_seconds = max(self._turn_seconds, turn_seconds)
        self.notify(f"  {format_seconds(answer['step_seconds'])}/step, {answer['tokens_per_second']:,.0f} tokens/s")

    def _steps_of_all_turns(self) -> int:
        """Return the number of steps in each turn, estimated from the seconds of the largest passes.

        All turns take the same number of steps, so that their losses can be compared."""
        rows = min(self.plan.per_device_train_batch_size.value, self.tries.largest)
        micro_batch = self.tries.tried.get(max((size for size in self.tries.tried if size <= rows), default=0))
        if micro_batch is None or not micro_batch.seconds:
            return _STEPS
        return self.steps_of_a_turn(micro_batch.seconds / 2 / min(micro_batch.passes, 2) * micro_batch.passes)

    @property
    def speed_up(self) -> float | None:
        return prod(gain.speed_up or 1.0 for gain in self.gains) if self.gains else None

    @property
    def pairs(self) -> int:
        return sum(len(gain.ratios) for gain in self.gains)

    @property
    def sentence(self) -> str:
        if self.is_too_large:
            return f"the current settings do not fit in memory; these do: {short_words(self.patch)}"
        if self.patch:
            spread = self.gains[0].spread if len(self.gains) == 1 else None
            comparison_words = f"{self.pairs} comparisons" + ("" if spread is None else f", +-{spread * 100:.0f} %")
            return f"{self.speed_up:.2f} times as fast as now ({comparison_words}): {short_words(self.patch)}"
        if unmeasured_count := sum(variant.reason.startswith(turns.NOT_MEASURED) for variant in self.measured):
            return f"nothing was measurably faster; no time was left for {unmeasured_count} settings (raise --minutes)"
        return DEFAULT_IS_BEST

    def lines(self, width: int) -> list[str]:
        result = self.as_json()
        return [micro_batch_line(self.tries), *measured_table(result, width), *notes_of(result)]

    def as_json(self) -> dict[str, Any]:
        variants = steps.figures_of(self.measured)
        return {
            "sentence": self.sentence,
            "patch": dict(self.patch),
            "speed_up": self.speed_up,
            "pairs": self.pairs,
            "effective_batch_size": self.plan.effective_batch_size.value,
            "largest_micro_batch": self.tries.largest or None,
            "micro_batches": [
                {"rows": trial.rows, "passes": trial.passes, "failed": trial.failure_words,
                 "peak_memory_bytes": trial.peak_memory_bytes or None}
                for trial in sorted(self.tries.tried.values(), key=attrgetter("rows"))
            ],
            "variants": variants,
            "disturbed_by": steps.others_words(variants, probe().usable_cores),
            "cut_short": self.cut_short,
        }  # fmt: skip


def micro_batch_line(tries: MicroBatches) -> str:
    """Return the result of the micro-batch search: `largest micro-batch: 32 of 32 rows; 64 failed`."""
    failed_sizes = sorted(rows for rows, trial in tries.tried.items() if trial.failure_words)
    line = f"largest micro-batch: {tries.largest or 'none'} of {quantity(tries.step_rows, 'row')}"
    line += f"; {', '.join(map(str, failed_sizes))} failed" if failed_sizes else ""
    return line + (f"; {tries.cut_short}" if tries.cut_short else "")


def measured_table(result: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines of the table of variants, with as many columns as fit, from the JSON of `Tuning`."""
    rows = steps.table(result["variants"])
    return table_lines(rows, width, right=rows[0][1:]) if len(rows) > 1 else []


def notes_of(result: Mapping[str, Any]) -> list[str]:
    """Return lines about the meaning of the columns, and about why variants failed or were not chosen."""
    legend = "speed-up: ratio of tokens/s; loss: held-out loss"
    if cut := next((match for row in result["variants"] if (match := _SPLIT_NAME.fullmatch(row["name"]))), None):
        legend = f"{cut[0]}: {cut[1]} rows per micro-batch, {cut[2]} micro-batches per step; {legend}"
    disturbance_lines = [result["disturbed_by"]] if result["disturbed_by"] else []
    return [legend, *disturbance_lines, *turns.reasons(result["variants"])]


LEAST_GAIN = 1.05
"""A batch is worthwhile if it processes at least this many times as many rows per second as half the batch."""
_COLUMNS_WORDS = "busy: share of the GPU or of the CPU threads in use; memory: peak, including the run's longest rows"
_LEAST_ROWS, _MOST_TURNS = 8, 3


@dataclass(kw_only=True, slots=True)
class Size(Variant):
    """Variant whose steps have `rows` rows. Its fastest turn gives its speed."""

    rows: int
    learning_rate: float

    @property
    def fastest_turn(self) -> Mapping[str, Any]:
        return max(self.answers, key=lambda answer: float(answer["samples_per_second"]), default={})

    @property
    def rows_per_second(self) -> float:
        return float(self.fastest_turn["samples_per_second"])

    def as_json(self) -> dict[str, Any]:
        fastest_turn = self.fastest_turn
        return {
            "rows": self.rows,
            "learning_rate": self.learning_rate,
            "failed": self.reason,
            "turns": len(self.answers),
            "rows_per_second": fastest_turn.get("samples_per_second"),
            **{name: fastest_turn.get(name) for name in ("tokens_per_second", "step_seconds", "utilisation_share")},
            "memory_bytes": max(map(_peak_bytes, self.answers), default=None),
        }


def _peak_bytes(answer: Mapping[str, Any]) -> int:
    """Return the peak memory of a turn: the larger of the peaks of its largest pass and of its steps."""
    return max(int(answer["largest_pass_bytes"]), int(answer["peak_memory_bytes"]))


@dataclass(kw_only=True)
class EffectiveBatches(Search):
    """Search for the best number of rows per step. `end_reason` says why no larger number was measured."""

    sizes: list[Size] = field(default_factory=list)
    end_reason: str = ""
    is_busy: bool = False
    """Whether other programs used the cores during the measurement, so that its figures are unreliable."""

    def find(self) -> Self:
        """Measure until the search ends, the time is over, or the user presses Ctrl+C."""
        rows = self.planned_step_rows
        # The search starts with the planned rows, halved while they are even and not few.
        while rows % 2 == 0 and rows // 2 >= max(_LEAST_ROWS, self.plan.processes.value):
            rows //= 2
        with self.limit:
            while not (reason := self._why_no_more(rows)):
                size = self._size(rows)
                self._measure(size)
                self.sizes.append(size)
                rows *= 2
            self.end_reason = reason
            with suppress(turns.TimeOver):
                for size in self.measured * (_MOST_TURNS - 1):
                    self._measure(size)
                    # A size that was measured once works, so a later failure is ignored.
                    size.reason = ""
        self.is_busy = self.plan.device == "cpu" and is_busy(load_of_others(), self.plan.threads.value)
        return self

    def _why_no_more(self, rows: int) -> str:
        """Return why steps of `rows` rows are not measured; empty if they are."""
        if self.sizes and (failure := self.sizes[-1].reason):
            return f"{self.sizes[-1].rows} rows per step failed: {failure}"
        if rows > self.plan.train_rows.value:
            return f"the data has only {self.plan.train_rows.value:,} rows"
        # The planned number of rows and smaller ones are always measured.
        if rows <= self.planned_step_rows or len(self.measured) < 3:
            return ""
        before_speed, middle_speed, newest_speed = (size.rows_per_second for size in self.measured[-3:])
        if middle_speed < LEAST_GAIN * before_speed and newest_speed < LEAST_GAIN * middle_speed:
            rows_text = f"above {self.measured[-3].rows} rows per step"
            return f"{rows_text}, each doubling makes training less than {LEAST_GAIN - 1:.0%} faster"
        return ""

    def _size(self, rows: int) -> Size:
        micro, share = self.loaded.config.training.per_device_train_batch_size, -(-rows // self.plan.processes.value)
        # A micro-batch that the config sets is kept. Otherwise a pass takes all rows, until memory is full.
        patch = {
            batch_cut.MICRO_BATCH_KEY: min(micro, share) if isinstance(micro, int) else share,
            batch_cut.ACCUMULATION_KEY: "auto",
        }
        name = f"{rows} rows per step"
        patch = {batch_cut.EFFECTIVE_BATCH_KEY: rows, **patch}
        return Size(name=name, patch=patch, rows=rows, learning_rate=self._learning_rate(rows))

    def _learning_rate(self, rows: int) -> float:
        """Return the planned learning rate scaled to this many rows, within the limit of the optimizer."""
        planned_rate, config = self.plan.learning_rate.value, self.loaded.config
        scaled_rate = scaled(planned_rate, usual_scaling(config.training.optim), self.planned_step_rows, rows)
        return min(scaled_rate, max(planned_rate, peak_rate(config, self.plan.parameters.value).most))

    def _measure(self, size: Size) -> None:
        """Measure a size once, and add its answer or the reason of a failure. Raises TimeOver."""
        last_size = next((other for other in reversed(self.measured) if other.rows <= size.rows), None)
        count = self.steps_of_a_turn(2 * last_size.fastest_turn["step_seconds"]) if last_size else _MOST_STEPS

        def ask_steps(seconds: float) -> dict[str, Any]:
            try:
                request = micro_batches.with_settings(self.request, size.patch)
                estimated_plan(load_config(request, gpu=self.gpu), gpu=self.gpu)
            except InputError as error:
                raise WorkerFailed("cannot be planned", steps.problem_words(error)) from None
            options = {"largest_pass": True, "seconds": 3 * _TURN_SECONDS, "least_steps": _LEAST_STEPS}
            return ask_for_steps(short_run(self.request, count, {}), self.gpu, count, size.patch, seconds, **options)

        if self.take_turn(size, ask_steps):
            answer = size.answers[-1]
            self.notify(f"  {answer['samples_per_second']:,.1f} rows/s, {format_bytes(_peak_bytes(answer))}")

    @property
    def measured(self) -> list[Size]:
        return [size for size in self.sizes if not size.reason]

    @property
    def planned_step_rows(self) -> int:
        """Number of rows per step in the plan."""
        return self.plan.effective_batch_size.value

    @property
    def most_rows(self) -> int:
        """Largest number of rows per step with which the epochs of the run still have enough steps."""
        return most_rows_of_step(self.loaded.config.training.num_train_epochs, self.plan.train_rows.value)

    @property
    def best(self) -> Size | None:
        """Recommended size: the planned one, unless another is at least `LEAST_GAIN` times as fast; None without sizes.

        Sizes that would leave too few steps are not recommended."""
        allowed_sizes = [size for size in self.measured if size.rows <= max(self.most_rows, self.planned_step_rows)]
        larger_sizes = [size for size in allowed_sizes if size.rows >= self.planned_step_rows]
        best_size = larger_sizes[0] if larger_sizes else None
        for size in (*larger_sizes[1:], *(size for size in allowed_sizes if size.rows < self.planned_step_rows)):
            if best_size is None or size.rows_per_second >= LEAST_GAIN * best_size.rows_per_second:
                best_size = size
        return best_size

    @property
    def fastest(self) -> Size | None:
        return max(self.measured, key=lambda size: size.rows_per_second, default=None)

    @property
    def first_slower_rows(self) -> int | None:
        """Rows of the smallest size that is larger than the fastest size and clearly slower; None if there is none."""
        if (fastest := self.fastest) is None:
            return None
        slower_sizes = [size for size in self.measured if size.rows_per_second * LEAST_GAIN < fastest.rows_per_second]
        return next((size.rows for size in slower_sizes if size.rows > fastest.rows), None)

    @property
    def patch(self) -> Patch:
        """Settings for the best size and its learning rate; empty if the planned size is the best."""
        best_size = self.best
        if best_size is None or best_size.rows == self.planned_step_rows:
            return {}
        is_accumulation_set = self.plan.config.training.gradient_accumulation_steps != "auto"
        accumulation_patch = {batch_cut.ACCUMULATION_KEY: "auto"} if is_accumulation_set else {}
        patch = {batch_cut.EFFECTIVE_BATCH_KEY: best_size.rows, LEARNING_RATE: best_size.learning_rate}
        return patch | accumulation_patch

    @property
    def sentence(self) -> str:
        best_size = self.best
        planned_size = next((size for size in self.measured if size.rows == self.planned_step_rows), None)
        if best_size is None:
            return f"nothing was measured: {self.end_reason or self.cut_short}"
        size_words = f"{best_size.rows} rows per step"
        if best_size.rows == self.planned_step_rows:
            size_words += f", as planned: no other size is {LEAST_GAIN - 1:.0%} faster per row"
        elif planned_size:
            speed_up = best_size.rows_per_second / planned_size.rows_per_second
            size_words += f" are {speed_up:.2f} times as fast per row as {self.planned_step_rows} rows"
            size_words += f"; use the learning rate {best_size.learning_rate:g}"
        fastest = self.fastest
        if fastest and fastest.rows > self.most_rows and fastest is not best_size:
            size_words += f"; {fastest.rows} rows would be faster, but leave fewer than {LEAST_STEPS_OF_A_RUN} steps"
        slower_words = f"slower again with {self.first_slower_rows} rows" if self.first_slower_rows else ""
        busy_words = "other programs keep this machine busy: measure again when it is idle" if self.is_busy else ""
        return "; ".join(filter(None, (size_words, slower_words, self.end_reason, busy_words)))

    def lines(self, width: int) -> list[str]:
        """Return the lines of the table of sizes and of the meaning of its columns; none without figures."""
        cells = sizes_table(self.as_json())
        return [*table_lines(cells, width, right=cells[0][1:]), _COLUMNS_WORDS] if self.measured else []

    def as_json(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            "patch": dict(self.patch),
            "effective_batch_size": self.planned_step_rows,
            "most_rows": self.most_rows,
            "slower_from": self.first_slower_rows,
            "sizes": [size.as_json() for size in self.sizes],
            "ended": self.end_reason,
            "cut_short": self.cut_short,
            "is_busy": self.is_busy,
        }


_SIZE_COLUMNS: turns.Columns = {
    "rows/step": lambda row: str(row["rows"]),
    "rows/s": lambda row: f"{row['rows_per_second']:,.1f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "ms/step": lambda row: f"{1e3 * row['step_seconds']:,.1f}",
    **steps.BUSY,
    "memory": lambda row: format_bytes(int(row["memory_bytes"])),
    "learning rate": lambda row: f"{row['learning_rate']:g}",
}


def sizes_table(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of the table of sizes, with titles, from the JSON of `EffectiveBatches`."""
    return turns.table_of(_SIZE_COLUMNS, result["sizes"])
