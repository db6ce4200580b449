"""Which micro-batches the machine survives on the largest passes of a run, and which of them is the fastest: tried with
the real model and data in a process of its own.

The effective batch stays: candidates are its equal parts. It grows by doubling until one fails, and is bisected then.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.save import to_toml
from tui_trainer.data.progress import Progress
from tui_trainer.errors import RunError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.storage import nearest_existing
from tui_trainer.measure.turns import Notify, TimeLimit
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO, even_parts
from tui_trainer.planning.measured_steps import keep_micro_batch
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.records import Key
from tui_trainer.runs.wording import split_words
from tui_trainer.units import format_bytes, format_seconds, quantity
from tui_trainer.worker.asking import WorkerFailed, ask

_REQUEST = TypeAdapter(Request)


def question_of(request: Request, gpu: GpuChoice) -> dict[str, Any]:
    """Return a request as JSON, for a process that trains for a measurement."""
    return {**_REQUEST.dump_python(request, mode="json"), "gpu": gpu}


def request_of(question: dict[str, Any]) -> Request:
    """Return the request that `question_of` has written, among other things."""
    return _REQUEST.validate_python(question)


def with_settings(request: Request, patch: Patch) -> Request:
    """Return the request with other values of these settings."""
    kept = [assignment for assignment in request.assignments if assignment.partition("=")[0].strip() not in patch]
    shortcuts = {key: value for key, value in request.shortcuts.items() if key not in patch}
    changed = [f"{key}={json.dumps(value)}" for key, value in patch.items()]
    return replace(request, assignments=(*kept, *changed), shortcuts=shortcuts)


# How many of those that survive are timed, the largest first.
_TIMED = 4
_UNWRITTEN: Patch = {"logging.report_to": [], "logging.sample_steps": 0}
# Before a run whose micro-batch is to be measured.
_TUNE_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedMicroBatch:
    """A micro-batch that was tried. `failed` says why it cannot be used."""

    rows: int
    passes: int
    failed: str = ""
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    """Of two steps of at most two of its largest passes each."""
    step_seconds: Sequence[float] = ()
    """Of whole effective batches."""

    @property
    def words(self) -> str:
        """`16 rows x 2: 300.0 MiB`, or why it failed."""
        outcome = self.failed or format_bytes(self.peak_memory_bytes)
        timed = f", {format_seconds(median(self.step_seconds))} a step" if self.step_seconds else ""
        return f"{split_words(self.rows, self.passes)}: {outcome}{timed}"


@dataclass(kw_only=True, slots=True)
class MicroBatches:
    """The micro-batches of `step_rows` rows that were tried. `cut_short` says why not all were; empty if they were."""

    step_rows: int
    tried: dict[int, TriedMicroBatch] = field(default_factory=dict)
    cut_short: str = ""

    def add(self, rows: int, **outcome: Any) -> str:
        """Add what a worker reports of a micro-batch to what is known of it. Return it in words."""
        before = self.tried.get(rows) or TriedMicroBatch(rows=rows, passes=-(-self.step_rows // rows))
        self.tried[rows] = replace(before, **outcome)
        return self.tried[rows].words

    @property
    def largest(self) -> int:
        """The largest that survived; 0 if none did."""
        return max((tried.rows for tried in self.tried.values() if not tried.failed), default=0)

    @property
    def fastest(self) -> TriedMicroBatch | None:
        """The fastest of those that were timed, the larger one of two that are as fast; None if none was timed."""
        timed = [tried for tried in self.tried.values() if tried.step_seconds and not tried.failed]
        return min(timed, key=lambda tried: (median(tried.step_seconds), -tried.rows), default=None)


def next_rows(candidates: Sequence[int], tried: Mapping[int, bool]) -> int | None:
    """Return what to try after these, by doubling and then bisection; None once the largest that survives is known.

    `candidates` ascend, and none is more than twice the one before. A failure below what survived says nothing.
    """
    works = max((rows for rows, survived in tried.items() if survived), default=0)
    failed = min((rows for rows, survived in tried.items() if not survived and rows > works), default=None)
    larger = [rows for rows in candidates if rows > works and (failed is None or rows < failed)]
    if not larger:
        return None
    if failed is None:
        return max(rows for rows in larger if rows <= max(2 * works, larger[0]))
    return larger[len(larger) // 2]


def to_time(survived: Iterable[int]) -> list[int]:
    """Return the micro-batches worth timing: the largest that survived, and each about half of the one before."""
    sizes: list[int] = []
    for rows in sorted(survived, reverse=True):
        if len(sizes) < _TIMED and (not sizes or rows <= -(-sizes[-1] // 2)):
            sizes.append(rows)
    return sizes


def cut_patch(plan: Plan, rows: int) -> dict[str, Any]:
    """Return settings for micro-batches of so many rows at the effective batch of the plan."""
    if plan.config.training.gradient_accumulation_steps == "auto":
        return {MICRO: rows}
    # A micro-batch and a number of parts that were both written make another effective batch.
    effective = {} if plan.effective_batch_is_auto else {EFFECTIVE: plan.effective_batch_size.value}
    return {MICRO: rows, ACCUMULATION: "auto", **effective}


def step_rows(plan: Plan) -> int:
    """Return what a process cuts a step from: rows of the data, or those that packed documents share."""
    if plan.packing.value:
        return plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value
    return -(-min(plan.effective_batch_size.value, plan.train_rows.value) // plan.processes.value)


def try_micro_batches(
    request: Request,
    plan: Plan,
    gpu: GpuChoice,
    *,
    seconds: float,
    notify: Notify,
    patch: Patch | None = None,
    candidates: Sequence[int] = (),
    timed: bool = False,
) -> MicroBatches:
    """Try micro-batches of `request` with `patch`, by default all equal parts of a step; `plan` is that of `request`.

    A process that the system kills has failed at what it tried last, and another one continues. Raises RunError if
    nothing could be tried.
    """
    tries, limit = MicroBatches(step_rows=step_rows(plan)), TimeLimit(seconds)
    sizes = list(candidates) or even_parts(tries.step_rows)
    # With one row in a pass, whatever memory is free: larger ones are laid out by the process itself.
    question = question_of(with_settings(request, {**cut_patch(plan, 1), **(patch or {}), **_UNWRITTEN}), gpu)
    question |= {"candidates": sizes, "timed": timed, "step_rows": tries.step_rows}
    runs = nearest_existing(Path(plan.config.output.runs_dir))
    with limit, tempfile.TemporaryDirectory(prefix=".tries-", dir=runs) as folder:
        while True:
            left = limit.require()
            survived = {rows: not tried.failed for rows, tried in tries.tried.items()}
            is_timed = not timed or not tries.largest or tries.fastest is not None
            if next_rows(sizes, survived) is None and is_timed:
                return tries
            _ask(tries, question | {"place": folder, "tried": list(survived.items())}, left, limit, notify)
    tries.cut_short = limit.cut_short
    return tries


def _ask(tries: MicroBatches, question: dict[str, Any], seconds: float, limit: TimeLimit, notify: Notify) -> None:
    """Add what one worker tries until its end. Raises TimeOver."""
    trying = 0

    def take(report: dict[str, Any]) -> None:
        nonlocal trying
        if "trying" in report:
            trying = int(report["trying"])
            notify(f"{report['doing']} micro-batches of {quantity(trying, 'row')}")
        else:
            names = ("peak_memory_bytes", "seconds", "step_seconds")
            outcome = {name: report[name] for name in names if name in report}
            notify(f"  {tries.add(int(report['rows']), failed=report.get('failed', ''), **outcome)}")

    try:
        ask("try_micro_batches", question, timeout_seconds=seconds, sees_gpus=True, progress=take)
    except WorkerFailed as failure:
        limit.require()
        if not trying:
            raise RunError(f"no micro-batch could be tried: {failure.reason}") from None
        notify(f"  {tries.add(trying, failed=failure.reason)}")


def tune_micro_batch(loaded: LoadedConfig, plan: Plan, gpu: GpuChoice, progress: Progress) -> None:
    """Measure and store what the plan's `untuned_key` is for. Raises RunError if no micro-batch survives."""
    sentences: list[str] = []

    def notify(sentence: str) -> None:
        sentences.append(sentence)
        progress(f"{sentence.strip()};", sum(line.startswith(" ") for line in sentences), None, "tried")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(to_toml(loaded), encoding="utf-8")
        request = Request(config_file=file)
        tries = try_micro_batches(request, plan, gpu, seconds=_TUNE_SECONDS, notify=notify, timed=True)
    if not tries.largest:
        failed = next((tried.failed for tried in tries.tried.values() if tried.failed), tries.cut_short)
        hint = "run `tui-trainer rehearse` to try settings that use less memory"
        raise RunError(f"no micro-batch could be measured: {failed}; {hint}")
    # If the time was over before one was timed, the largest that survived.
    rows = tries.fastest.rows if tries.fastest else tries.largest
    timed = {size: tried.step_seconds for size, tried in tries.tried.items() if tried.step_seconds and not tried.failed}
    if key := Key.read(plan.untuned_key):
        keep_micro_batch(key, rows, tries.step_rows, timed)
