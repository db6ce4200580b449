"""Which micro-batches the machine survives on the largest passes of a run, and which of them is the fastest: tried with
the real model and data in a process of its own.

The effective batch stays: candidates are its equal parts. It grows by doubling until one fails, and is bisected then.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from pydantic import TypeAdapter

from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.save import to_toml
from tui_trainer.data.progress import Progress
from tui_trainer.errors import RunError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.storage import nearest_existing
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO, even_parts
from tui_trainer.planning.measured_steps import keep_micro_batch
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.records import Key
from tui_trainer.runs.wording import split_words
from tui_trainer.units import format_bytes, format_seconds
from tui_trainer.worker.asking import WorkerFailed, ask

# What is asked of a process that trains for a measurement: a request, as JSON has it.

_REQUEST = TypeAdapter(Request)


def question_of(request: Request, gpu: GpuChoice) -> dict[str, Any]:
    return {**_REQUEST.dump_python(request, mode="json"), "gpu": gpu}


def request_of(question: dict[str, Any]) -> Request:
    """What `question_of` has put in words, among other things."""
    return _REQUEST.validate_python(question)


def with_settings(request: Request, patch: Patch) -> Request:
    """The same with these settings instead."""
    own = [one for one in request.assignments if one.partition("=")[0].strip() not in patch]
    shortcuts = {key: value for key, value in request.shortcuts.items() if key not in patch}
    ours = [f"{key}={json.dumps(value)}" for key, value in patch.items()]
    return replace(request, assignments=(*own, *ours), shortcuts=shortcuts)


# Of those that survive, so many of the largest are timed.
_TIMED = 4
_UNWRITTEN: Patch = {"logging.report_to": [], "logging.sample_steps": 0}
# Before a run that asks for it.
_TUNE_SECONDS = 180.0
INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedMicroBatch:
    """One that was tried: `failed` says why it does not do. `step_seconds` are those of whole effective batches."""

    rows: int
    passes: int
    failed: str = ""
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    """Of two steps of at most two of its largest passes each."""
    step_seconds: tuple[float, ...] = ()

    @property
    def words(self) -> str:
        """`16 rows x 2: 300.0 MiB`, or why it failed."""
        found = self.failed or format_bytes(self.peak_memory_bytes)
        timed = f", {format_seconds(median(self.step_seconds))} a step" if self.step_seconds else ""
        return f"{split_words(self.rows, self.passes)}: {found}{timed}"


@dataclass(kw_only=True, slots=True)
class MicroBatches:
    """`step_rows`: what is cut. `cut_short` says why not all was tried; empty: it was."""

    step_rows: int
    tried: dict[int, TriedMicroBatch] = field(default_factory=dict)
    cut_short: str = ""

    @property
    def largest(self) -> int:
        """The largest that survived; 0: none did."""
        return max((one.rows for one in self.tried.values() if not one.failed), default=0)

    @property
    def fastest(self) -> TriedMicroBatch | None:
        """Of those that were timed, the larger one where two are as fast; None: none was."""
        timed = [one for one in self.tried.values() if one.step_seconds and not one.failed]
        return min(timed, key=lambda one: (median(one.step_seconds), -one.rows), default=None)


def next_rows(candidates: Sequence[int], tried: Mapping[int, bool]) -> int | None:
    """What to try after these, by doubling and then bisection; None: the largest that survives is found.

    `candidates` go up, none to more than twice the one before. A failure below what survived says nothing.
    """
    works = max((rows for rows, survived in tried.items() if survived), default=0)
    failed = min((rows for rows, survived in tried.items() if not survived and rows > works), default=None)
    larger = [rows for rows in candidates if rows > works and (failed is None or rows < failed)]
    if not larger:
        return None
    if failed is None:
        return max(rows for rows in larger if rows <= max(2 * works, larger[0]))
    return larger[len(larger) // 2]


def to_time(micro_batches: Mapping[int, bool]) -> list[int]:
    """Those that are worth a look at their speed: the largest that survived, and each about half of the one before."""
    found: list[int] = []
    for rows in sorted((rows for rows, survived in micro_batches.items() if survived), reverse=True):
        if len(found) < _TIMED and (not found or rows <= -(-found[-1] // 2)):
            found.append(rows)
    return found


def cut_patch(plan: Plan, rows: int) -> dict[str, Any]:
    """Micro-batches of so many rows at the effective batch of the plan."""
    if plan.config.training.gradient_accumulation_steps == "auto":
        return {MICRO: rows}
    # A micro-batch and a number of parts that were both written make another effective batch.
    effective = {} if plan.effective_batch_is_auto else {EFFECTIVE: plan.effective_batch_size.value}
    return {MICRO: rows, ACCUMULATION: "auto", **effective}


def step_rows(plan: Plan) -> int:
    """What one optimizer step is cut from in one process: rows of the data, or those that packed documents share."""
    if plan.packing.value:
        return plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value
    return -(-min(plan.effective_batch_size.value, plan.train_rows.value) // plan.processes.value)


def try_micro_batches(
    request: Request,
    plan: Plan,
    gpu: GpuChoice,
    *,
    seconds: float,
    heard: Callable[[str], None],
    patch: Patch | None = None,
    candidates: Sequence[int] = (),
    timed: bool = False,
) -> MicroBatches:
    """Of `request` with `patch`, whose plan is `plan`. `candidates`: all equal parts of a step where none are given.

    A process that the system kills has failed at what it tried last, and another one goes on. Raises RunError where
    nothing could be tried.
    """
    found = MicroBatches(step_rows=step_rows(plan))
    sizes = list(candidates) or even_parts(found.step_rows)
    # With one row in a pass, whatever memory is free: larger ones are laid out by the process itself.
    asked = question_of(with_settings(request, {**cut_patch(plan, 1), **(patch or {}), **_UNWRITTEN}), gpu)
    ends = monotonic() + seconds
    runs = nearest_existing(Path(plan.config.output.runs_dir))
    try:
        with tempfile.TemporaryDirectory(prefix=".tries-", dir=runs) as place:
            while (left := ends - monotonic()) > 0:
                known = {rows: not one.failed for rows, one in found.tried.items()}
                is_timed = not timed or not found.largest or found.fastest is not None
                if next_rows(sizes, known) is None and is_timed:
                    return found
                more = {"place": place, "candidates": sizes, "tried": list(known.items())}
                _ask(found, asked | more | {"timed": timed, "step_rows": found.step_rows}, left, heard)
        found.cut_short = f"the time limit of {format_seconds(seconds)} was reached"
    except KeyboardInterrupt:
        found.cut_short = INTERRUPTED
    return found


def tune_micro_batch(loaded: LoadedConfig, plan: Plan, gpu: GpuChoice, progress: Progress) -> None:
    """Measure what the plan's `untuned_key` is for, and keep it. Raises RunError where no micro-batch survives."""
    heard: list[str] = []

    def hear(sentence: str) -> None:
        heard.append(sentence)
        progress(f"{sentence.strip()};", sum(one.startswith(" ") for one in heard), None, "tried")

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "config.toml"
        file.write_text(to_toml(loaded), encoding="utf-8")
        request = Request(config_file=file)
        found = try_micro_batches(request, plan, gpu, seconds=_TUNE_SECONDS, heard=hear, timed=True)
    if not found.largest:
        failed = next((one.failed for one in found.tried.values() if one.failed), found.cut_short)
        hint = "run `tui-trainer rehearse` to try settings that use less memory"
        raise RunError(f"no micro-batch could be measured: {failed}; {hint}")
    # Where the time was over before one was timed, the largest that survived.
    rows = found.fastest.rows if found.fastest else found.largest
    seconds = {size: one.step_seconds for size, one in found.tried.items() if one.step_seconds and not one.failed}
    if key := Key.read(plan.untuned_key):
        keep_micro_batch(key, rows, found.step_rows, seconds)


def _ask(found: MicroBatches, question: dict[str, Any], seconds: float, heard: Callable[[str], None]) -> None:
    """What one worker finds until its end."""
    trying = 0

    def hear(told: dict[str, Any]) -> None:
        nonlocal trying
        if "trying" in told:
            trying = int(told["trying"])
            heard(f"{told['doing']} micro-batches of {trying} row{'s' if trying != 1 else ''}")
            return
        rows = int(told["rows"])
        before = found.tried.get(rows)
        one = TriedMicroBatch(
            rows=rows,
            passes=-(-found.step_rows // rows),
            failed=told.get("failed", ""),
            peak_memory_bytes=told.get("peak_memory_bytes", before.peak_memory_bytes if before else 0),
            seconds=told.get("seconds", 0.0),
            step_seconds=tuple(told.get("step_seconds", ())),
        )
        found.tried[rows] = one
        heard(f"  {one.words}")

    ends = monotonic() + seconds
    try:
        ask("try_micro_batches", question, timeout_seconds=seconds, sees_gpus=True, progress=hear)
    except WorkerFailed as failure:
        if monotonic() >= ends:
            return
        if not trying:
            raise RunError(f"no micro-batch could be tried: {failure.reason}") from None
        passes = -(-found.step_rows // trying)
        found.tried[trying] = TriedMicroBatch(rows=trying, passes=passes, failed=failure.reason)
        heard(f"  {found.tried[trying].words}")
