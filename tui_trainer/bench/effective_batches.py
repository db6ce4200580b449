"""How many rows behind a step make this machine full: each size is measured until memory is full or more rows are no
faster.

Each in a process of its own: first the largest pass of the run, then some of its steps. A size is twice the one before.
It goes on until one gains less than `GAIN` on the one before and a larger one was seen to be no faster than that. In
the time that is left each is measured again, and the faster turn counts: what others take of a machine slows it down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from tui_trainer.bench.gains import refuse_beside_a_run
from tui_trainer.bench.rounds import Columns, table_of
from tui_trainer.bench.training import ask_for_steps, steps_variant
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.errors import ConfigError, InputError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.processor import load_of_others
from tui_trainer.launching.micro_batches import INTERRUPTED, with_settings
from tui_trainer.launching.open_run import load_config, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO
from tui_trainer.planning.effective_batch import LEAST_STEPS, most_rows_of_step
from tui_trainer.planning.learning_rates import LEARNING_RATE, peak_rate, scaled, usual_scaling
from tui_trainer.planning.measured_steps import is_busy
from tui_trainer.planning.plan import Plan
from tui_trainer.units import format_bytes, format_seconds
from tui_trainer.worker.asking import WorkerFailed

GAIN = 1.05
"""Times as fast a row as with half of the rows; what gains less is not worth a larger batch."""
_LEAST_ROWS, _MOST_STEPS, _LEAST_STEPS, _TURN_SECONDS, _MOST_TURNS = 8, 40, 8, 4.0, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredBatch:
    """One size. `failed`: why there are no figures. `memory_bytes` is the peak of its largest pass and of its steps.
    Speeds are those of the fastest of its turns."""

    rows: int
    learning_rate: float
    failed: str = ""
    rows_per_second: float = 0.0
    tokens_per_second: float = 0.0
    step_seconds: float = 0.0
    utilisation_share: float | None = None
    memory_bytes: int = 0
    turns: int = 1

    def again(self, other: "MeasuredBatch | None") -> "MeasuredBatch":
        """With another turn of the same size, where there was one."""
        if other is None or other.failed:
            return self
        faster = max(self, other, key=lambda one: one.rows_per_second)
        most_bytes = max(self.memory_bytes, other.memory_bytes)
        return replace(faster, turns=self.turns + other.turns, memory_bytes=most_bytes)

    def as_json(self) -> dict[str, Any]:
        names = ("rows_per_second", "tokens_per_second", "step_seconds", "utilisation_share", "memory_bytes")
        return {
            "rows": self.rows,
            "learning_rate": self.learning_rate,
            "failed": self.failed,
            "turns": 0 if self.failed else self.turns,
            **{name: None if self.failed else getattr(self, name) for name in names},
        }


@dataclass(kw_only=True)
class MeasuredBatches:
    """`most_rows`: what leaves enough steps of the run's epochs. `ended`: why no larger size was measured."""

    plan: Plan
    most_rows: int
    sizes: list[MeasuredBatch] = field(default_factory=list)
    ended: str = ""
    cut_short: str = ""
    is_busy: bool = False
    """Others computed on the cores meanwhile, so that the figures are poor."""

    @property
    def measured(self) -> list[MeasuredBatch]:
        return [one for one in self.sizes if not one.failed]

    @property
    def best(self) -> MeasuredBatch | None:
        """The planned number; a larger one that is faster, of those that leave enough steps, as long as it gains much
        on the one before; or a smaller one that is faster than all of these."""
        sizes = [one for one in self.measured if one.rows <= max(self.most_rows, self.now)]
        larger = [one for one in sizes if one.rows >= self.now]
        best = larger[0] if larger else None
        for one in (*larger[1:], *(one for one in sizes if one.rows < self.now)):
            if best is None or one.rows_per_second >= GAIN * best.rows_per_second:
                best = one
        return best

    @property
    def slower_from(self) -> int | None:
        """The first size above the fastest with which a row takes much longer than with that; None: none was seen."""
        if (fastest := self.fastest) is None:
            return None
        larger = [one for one in self.measured if one.rows > fastest.rows]
        return next((one.rows for one in larger if one.rows_per_second * GAIN < fastest.rows_per_second), None)

    @property
    def fastest(self) -> MeasuredBatch | None:
        return max(self.measured, key=lambda one: one.rows_per_second, default=None)

    @property
    def now(self) -> int:
        return self.plan.effective_batch_size.value

    @property
    def patch(self) -> Patch:
        """Settings with the better batch and its learning rate; empty where it is the one that is planned."""
        best = self.best
        if best is None or best.rows == self.now:
            return {}
        written = self.plan.config.training.gradient_accumulation_steps != "auto"
        found: dict[str, Any] = {EFFECTIVE: best.rows, LEARNING_RATE: best.learning_rate}
        return found | ({ACCUMULATION: "auto"} if written else {})

    @property
    def sentence(self) -> str:
        best, at_now = self.best, next((one for one in self.measured if one.rows == self.now), None)
        if best is None:
            return f"nothing was measured: {self.ended or self.cut_short}"
        words = f"{best.rows} rows per step"
        if best.rows == self.now:
            words = f"{self.now} rows per step, as planned: no other size is {GAIN - 1:.0%} faster per row"
        elif at_now:
            times = best.rows_per_second / at_now.rows_per_second
            words += (
                f" are {times:.2f} times as fast per row as {self.now}; use the learning rate {best.learning_rate:g}"
            )
        fastest = self.fastest
        if fastest and fastest.rows > self.most_rows and fastest is not best:
            words += f"; {fastest.rows} would be faster, but would leave fewer than {LEAST_STEPS} steps"
        slower = f"slower again with {self.slower_from} rows" if self.slower_from else "no larger size was slower"
        busy = "other programs keep this machine busy: measure again when it is idle" if self.is_busy else ""
        return "; ".join(filter(None, (words, slower, self.ended, busy)))

    def as_json(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            "patch": dict(self.patch),
            "effective_batch_size": self.now,
            "most_rows": self.most_rows,
            "slower_from": self.slower_from,
            "sizes": [one.as_json() for one in self.sizes],
            "ended": self.ended,
            "cut_short": self.cut_short,
            "is_busy": self.is_busy,
        }


@dataclass(kw_only=True)
class EffectiveBatches:
    """`told` gets a sentence for each step; Ctrl+C ends it with what is known, and so do `seconds`."""

    request: Request
    gpu: GpuChoice
    seconds: float
    told: Callable[[str], None]

    def find(self) -> MeasuredBatches:
        """Raises InputError for a config that cannot be planned, and where a run trains."""
        loaded = load_config(self.request, gpu=self.gpu)
        plan = estimated_plan(loaded, gpu=self.gpu)
        if problems := start_problems(loaded):
            raise ConfigError(problems)
        refuse_beside_a_run("tune")
        found = MeasuredBatches(plan=plan, most_rows=most_rows_of_step(loaded.config, plan.train_rows.value))
        ends = monotonic() + self.seconds
        rows = _first(plan.effective_batch_size.value, plan.processes.value)
        try:
            while not (ended := self._ended(found, rows)):
                if monotonic() >= ends or not (one := self._measure(loaded, found, rows, ends)):
                    found.cut_short = f"the time limit of {format_seconds(self.seconds)} was reached"
                    break
                found.sizes.append(one)
                rows *= 2
            found.ended = ended
            for number in list(range(len(found.sizes))) * (_MOST_TURNS - 1):
                if not (one := found.sizes[number]).failed and monotonic() < ends:
                    found.sizes[number] = one.again(self._measure(loaded, found, one.rows, ends))
        except KeyboardInterrupt:
            found.cut_short = INTERRUPTED
        found.is_busy = plan.device == "cpu" and is_busy(load_of_others(), plan.threads.value)
        return found

    @staticmethod
    def _ended(found: MeasuredBatches, rows: int) -> str:
        """Why `rows` are not measured any more; empty: they are."""
        if found.sizes and (failed := found.sizes[-1].failed):
            return f"{found.sizes[-1].rows} rows failed: {failed}"
        if rows > found.plan.train_rows.value:
            return f"the data has only {found.plan.train_rows.value:,} rows"
        # The planned number is always among them.
        if rows <= found.now or len(found.measured) < 3:
            return ""
        before, last, newest = (one.rows_per_second for one in found.measured[-3:])
        if last < GAIN * before and newest < GAIN * last:
            return f"above {found.measured[-3].rows} rows, each doubling gains less than {GAIN - 1:.0%}"
        return ""

    def _measure(self, loaded: LoadedConfig, found: MeasuredBatches, rows: int, ends: float) -> MeasuredBatch | None:
        """None where the time was over before anything was known of so many rows."""
        planned, training = found.plan, loaded.config.training
        rate = _rate(planned, loaded, rows)
        micro = training.per_device_train_batch_size
        share = -(-rows // planned.processes.value)
        # What a profile or the user has for a pass stays; else a pass takes all rows, until memory is full.
        patch = {EFFECTIVE: rows, MICRO: min(micro, share) if isinstance(micro, int) else share, ACCUMULATION: "auto"}
        seconds = ends - monotonic()
        self.told(f"measuring {rows} rows per step; {format_seconds(seconds)} left")
        before = next((one for one in reversed(found.measured) if one.rows <= rows), None)
        steps = _MOST_STEPS
        if before:
            steps = min(max(int(_TURN_SECONDS / (2 * before.step_seconds)), _LEAST_STEPS), _MOST_STEPS)
        variant = steps_variant(str(rows), self.request, self.gpu, steps, patch)
        extra = {"largest_pass": True, "seconds": 3 * _TURN_SECONDS, "least_steps": _LEAST_STEPS}
        variant = replace(variant, question={**variant.question, **extra})
        failed, answer = "", dict[str, Any]()
        try:
            estimated_plan(load_config(with_settings(self.request, patch), gpu=self.gpu), gpu=self.gpu)
            answer = ask_for_steps(variant, True, seconds)
            failed = answer.get("failed", "")
        except InputError as error:
            failed = "; ".join(problem.message for problem in error.problems)
        except WorkerFailed as failure:
            if monotonic() >= ends:
                return None
            failed = failure.reason or str(failure)
        if failed:
            self.told(f"  failed: {failed}")
            return MeasuredBatch(rows=rows, learning_rate=rate, failed=failed)
        one = MeasuredBatch(
            rows=rows,
            learning_rate=rate,
            rows_per_second=answer["samples_per_second"],
            tokens_per_second=answer["tokens_per_second"],
            step_seconds=answer["step_seconds"],
            utilisation_share=answer["utilisation_share"],
            memory_bytes=max(answer["largest_pass_bytes"], answer["peak_memory_bytes"]),
        )
        self.told(f"  {one.rows_per_second:,.1f} rows/s, {format_bytes(one.memory_bytes)}")
        return one


def _first(now: int, processes: int) -> int:
    """The planned number halved as often as leaves a few rows, so that doubling comes back to it."""
    while now % 2 == 0 and now // 2 >= max(_LEAST_ROWS, processes):
        now //= 2
    return now


def _rate(plan: Plan, loaded: LoadedConfig, rows: int) -> float:
    """The planned learning rate for so many rows, within what its optimizer takes."""
    before, optim = plan.learning_rate.value, loaded.config.training.optim
    found = scaled(before, usual_scaling(optim), plan.effective_batch_size.value, rows)
    return min(found, max(before, peak_rate(loaded.config, plan.parameters.value).most))


_COLUMNS: Columns = {
    "rows/step": lambda row: str(row["rows"]),
    "rows/s": lambda row: f"{row['rows_per_second']:,.1f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "ms/step": lambda row: f"{1e3 * row['step_seconds']:,.1f}",
    "busy": lambda row: "--" if row["utilisation_share"] is None else f"{row['utilisation_share']:.0%}",
    "memory": lambda row: format_bytes(int(row["memory_bytes"])),
    "learning rate": lambda row: f"{row['learning_rate']:g}",
}


def sizes_table(found: Mapping[str, Any]) -> list[list[str]]:
    """A line for each size that has figures; `found` as `MeasuredBatches.as_json` gives it."""
    return table_of(_COLUMNS, found["sizes"])
