"""The largest and the fastest micro-batch of a run, tried with its real model and data in a process of its own.

A size survives if the largest passes of the run fit in memory. The effective batch stays, so the candidates are its
equal parts. They grow by doubling until one fails; then the search bisects."""

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
    others = [assignment for assignment in request.assignments if assignment.partition("=")[0].strip() not in patch]
    shortcuts = {key: value for key, value in request.shortcuts.items() if key not in patch}
    changed = [f"{key}={json.dumps(value)}" for key, value in patch.items()]
    return replace(request, assignments=(*others, *changed), shortcuts=shortcuts)


# Number of surviving micro-batches that are timed, from the largest.
_TIMED = 4
_UNWRITTEN: Patch = {"logging.report_to": [], "logging.sample_steps": 0}
# Time limit before a run whose micro-batch is to be measured.
_TUNE_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedMicroBatch:
    """A micro-batch that was tried. `failed` says why it cannot be used."""

    rows: int
    passes: int
    failed: str = ""
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    """Seconds of two steps with at most two of its largest passes each."""
    step_seconds: Sequence[float] = ()
    """Seconds of each whole effective batch."""

    @property
    def words(self) -> str:
        """`16 rows x 2: 300.0 MiB`, or why it failed."""
        outcome = self.failed or format_bytes(self.peak_memory_bytes)
        timed = f", {format_seconds(median(self.step_seconds))} a step" if self.step_seconds else ""
        return f"{split_words(self.rows, self.passes)}: {outcome}{timed}"


@dataclass(kw_only=True, slots=True)
class MicroBatches:
    """Micro-batches of `step_rows` rows that were tried. `cut_short` says why not all were; empty if they were."""

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
        """Largest one that survived; 0 if none did."""
        return max((tried.rows for tried in self.tried.values() if not tried.failed), default=0)

    @property
    def fastest(self) -> TriedMicroBatch | None:
        """Fastest one that was timed, the larger of two equal ones; None if none was timed."""
        timed = [tried for tried in self.tried.values() if tried.step_seconds and not tried.failed]
        return min(timed, key=lambda tried: (median(tried.step_seconds), -tried.rows), default=None)


def next_rows(candidates: Sequence[int], tried: Mapping[int, bool]) -> int | None:
    """Return the size to try next, by doubling and then bisection; None once the largest surviving one is known.

    `candidates` ascend, and none is more than twice the one before. A failure below a size that survived does not
    count."""
    works = max((rows for rows, survived in tried.items() if survived), default=0)
    failed = min((rows for rows, survived in tried.items() if not survived and rows > works), default=None)
    larger = [rows for rows in candidates if rows > works and (failed is None or rows < failed)]
    if not larger:
        return None
    if failed is None:
        return max(rows for rows in larger if rows <= max(2 * works, larger[0]))
    return larger[len(larger) // 2]


def sizes_to_time(survived: Iterable[int]) -> list[int]:
    """Return the micro-batches worth timing: the largest that survived, and each about half of the one before."""
    sizes: list[int] = []
    for rows in sorted(survived, reverse=True):
        if len(sizes) < _TIMED and (not sizes or rows <= -(-sizes[-1] // 2)):
            sizes.append(rows)
    return sizes


def cut_patch(plan: Plan, rows: int) -> dict[str, Any]:
    """Return the settings for micro-batches of this many rows at the effective batch of the plan."""
    if plan.config.training.gradient_accumulation_steps == "auto":
        return {MICRO: rows}
    # A micro-batch and a number of parts that were both written make another effective batch.
    effective = {} if plan.effective_batch_is_auto else {EFFECTIVE: plan.effective_batch_size.value}
    return {MICRO: rows, ACCUMULATION: "auto", **effective}


def step_rows(plan: Plan) -> int:
    """Return the rows that a process divides in a step: rows of the data, or rows of packed documents."""
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
    # The plan has one row per pass, so it fits in any memory. The process itself lays out larger ones.
    question = question_of(with_settings(request, {**cut_patch(plan, 1), **(patch or {}), **_UNWRITTEN}), gpu)
    question |= {"candidates": sizes, "timed": timed, "step_rows": tries.step_rows}
    runs = nearest_existing(Path(plan.config.output.runs_dir))
    with limit, tempfile.TemporaryDirectory(prefix=".tries-", dir=runs) as folder:
        while True:
            left_seconds = limit.require()
            survived = {rows: not tried.failed for rows, tried in tries.tried.items()}
            is_timed = not timed or not tries.largest or tries.fastest is not None
            if next_rows(sizes, survived) is None and is_timed:
                return tries
            _ask(tries, question | {"place": folder, "tried": list(survived.items())}, left_seconds, limit, notify)
    tries.cut_short = limit.cut_short
    return tries


def _ask(tries: MicroBatches, question: dict[str, Any], seconds: float, limit: TimeLimit, notify: Notify) -> None:
    """Add what one worker tries until it ends. Raises TimeOver."""
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
    """Measure and store the micro-batch for the `untuned_key` of the plan. Raises RunError if none survives."""
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
    # Without a timed micro-batch, the largest that survived.
    rows = tries.fastest.rows if tries.fastest else tries.largest
    timed = {size: tried.step_seconds for size, tried in tries.tried.items() if tried.step_seconds and not tried.failed}
    if key := Key.read(plan.untuned_key):
        keep_micro_batch(key, rows, tries.step_rows, timed)
