"""Find the largest and the fastest micro-batch of a run, with its model and data, in a separate process.

A micro-batch size survives if the largest passes of the run fit in memory. The effective batch does not change, so the
candidates divide it into equal parts. Sizes are doubled until one fails, then the search bisects."""

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
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY, even_micro_batches
from tui_trainer.planning.measured_steps import keep_micro_batch
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.records import Key
from tui_trainer.runs.wording import split_words
from tui_trainer.units import format_bytes, format_seconds, quantity
from tui_trainer.worker.asking import WorkerFailed, ask

_REQUEST = TypeAdapter(Request)


def question_of(request: Request, gpu: GpuChoice) -> dict[str, Any]:
    """Return the request and the GPU as JSON values, for a worker that measures training."""
    return {**_REQUEST.dump_python(request, mode="json"), "gpu": gpu}


def request_of(question: dict[str, Any]) -> Request:
    """Return the request in a question that `question_of` made. Other keys of the question are ignored."""
    return _REQUEST.validate_python(question)


def with_settings(request: Request, patch: Patch) -> Request:
    """Return the request with the settings of `patch` changed."""
    kept_texts = [assignment for assignment in request.assignments if assignment.partition("=")[0].strip() not in patch]
    shortcuts = {key: value for key, value in request.shortcuts.items() if key not in patch}
    changed_assignments = [f"{key}={json.dumps(value)}" for key, value in patch.items()]
    return replace(request, assignments=(*kept_texts, *changed_assignments), shortcuts=shortcuts)


# Number of surviving sizes that are timed, from the largest on.
_MOST_TIMED_SIZES = 4
_UNWRITTEN: Patch = {"logging.report_to": [], "logging.sample_steps": 0}
# Time limit for the measurement before a run whose config asks for a measured micro-batch.
_TUNE_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedMicroBatch:
    """Result of a micro-batch size that was tried. `failure_words` says why it cannot be used; empty if it can."""

    rows: int
    passes: int
    failure_words: str = ""
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    """Seconds of two steps, each with one or two passes over the largest batch."""
    step_seconds: Sequence[float] = ()
    """Seconds of each timed step, over a whole effective batch."""

    @property
    def words(self) -> str:
        """Result in words: `16 rows x 2: 300.0 MiB`, or why the size failed."""
        outcome = self.failure_words or format_bytes(self.peak_memory_bytes)
        time_words = f", {format_seconds(median(self.step_seconds))} a step" if self.step_seconds else ""
        return f"{split_words(self.rows, self.passes)}: {outcome}{time_words}"


@dataclass(kw_only=True, slots=True)
class MicroBatches:
    """Results of micro-batch sizes for steps of `step_rows` rows. `cut_short` says why not all sizes were tried."""

    step_rows: int
    tried: dict[int, TriedMicroBatch] = field(default_factory=dict)
    cut_short: str = ""

    def add(self, rows: int, **outcome: Any) -> str:
        """Add figures of a size, as fields of its TriedMicroBatch. Return the result in words."""
        micro_batch = self.tried.get(rows) or TriedMicroBatch(rows=rows, passes=-(-self.step_rows // rows))
        self.tried[rows] = replace(micro_batch, **outcome)
        return self.tried[rows].words

    @property
    def largest(self) -> int:
        """Largest size that survived, in rows; 0 if none did."""
        return max((trial.rows for trial in self.tried.values() if not trial.failure_words), default=0)

    @property
    def fastest(self) -> TriedMicroBatch | None:
        """Fastest timed size (if two are equal, the larger one); None if none was timed."""
        timed_tries = [trial for trial in self.tried.values() if trial.step_seconds and not trial.failure_words]
        return min(timed_tries, key=lambda trial: (median(trial.step_seconds), -trial.rows), default=None)


def next_rows(candidates: Sequence[int], tried: Mapping[int, bool]) -> int | None:
    """Return the size to try next, by doubling and then bisection; None once the largest surviving size is known.

    `candidates` ascend, and each is at most twice the previous one. `tried` says of each size whether it survived. If a
    larger size survived, a failure is ignored."""
    working_rows = max((rows for rows, survived in tried.items() if survived), default=0)
    failed_rows = min((rows for rows, survived in tried.items() if not survived and rows > working_rows), default=None)
    larger_sizes = [rows for rows in candidates if rows > working_rows and (failed_rows is None or rows < failed_rows)]
    if not larger_sizes:
        return None
    if failed_rows is None:
        return max(rows for rows in larger_sizes if rows <= max(2 * working_rows, larger_sizes[0]))
    return larger_sizes[len(larger_sizes) // 2]


def sizes_to_time(survived_sizes: Iterable[int]) -> list[int]:
    """Return the sizes worth timing: the largest that survived, the next of at most half that size, and so on."""
    sizes: list[int] = []
    for rows in sorted(survived_sizes, reverse=True):
        if len(sizes) < _MOST_TIMED_SIZES and (not sizes or rows <= -(-sizes[-1] // 2)):
            sizes.append(rows)
    return sizes


def micro_batch_patch(plan: Plan, rows: int) -> dict[str, Any]:
    """Return the settings for micro-batches of `rows` rows that keep the plan's effective batch."""
    if plan.config.training.gradient_accumulation_steps == "auto":
        return {MICRO_BATCH_KEY: rows}
    # If the config sets both micro-batch and accumulation, their product would otherwise change the effective batch.
    effective_patch = {} if plan.effective_batch_is_auto else {EFFECTIVE_BATCH_KEY: plan.effective_batch_size.value}
    return {MICRO_BATCH_KEY: rows, ACCUMULATION_KEY: "auto", **effective_patch}


def step_rows(plan: Plan) -> int:
    """Return how many rows one process divides into micro-batches in a step: data rows, or packed rows."""
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
    """Try micro-batch sizes of `request`, whose plan is `plan`, with the settings of `patch`.

    Candidates are by default all equal parts of a step. If the system kills the worker, the size that it was trying has
    failed, and another worker continues. Raises RunError if no size could be tried.
    """
    tries, time_limit = MicroBatches(step_rows=step_rows(plan)), TimeLimit(seconds)
    sizes = list(candidates) or even_micro_batches(tries.step_rows)
    # The request asks for one row per pass, which the plan accepts. The worker itself makes larger micro-batches.
    question = question_of(with_settings(request, {**micro_batch_patch(plan, 1), **(patch or {}), **_UNWRITTEN}), gpu)
    question |= {"candidates": sizes, "timed": timed, "step_rows": tries.step_rows}
    runs_folder = nearest_existing(Path(plan.config.output.runs_dir))
    with time_limit, tempfile.TemporaryDirectory(prefix=".tries-", dir=runs_folder) as folder:
        while True:
            left_seconds = time_limit.require()
            outcomes = {rows: not trial.failure_words for rows, trial in tries.tried.items()}
            is_timing_done = not timed or not tries.largest or tries.fastest is not None
            if next_rows(sizes, outcomes) is None and is_timing_done:
                return tries
            _ask(tries, question | {"place": folder, "tried": list(outcomes.items())}, left_seconds, time_limit, notify)
    tries.cut_short = time_limit.cut_short
    return tries


def _ask(tries: MicroBatches, question: dict[str, Any], seconds: float, limit: TimeLimit, notify: Notify) -> None:
    """Add the results of one worker, which tries sizes until it has finished or fails. Raises TimeOver."""
    tried_rows = 0

    def take_report(report: dict[str, Any]) -> None:
        nonlocal tried_rows
        if "trying" in report:
            tried_rows = int(report["trying"])
            notify(f"{report['doing']} micro-batches of {quantity(tried_rows, 'row')}")
        else:
            figure_names = ("peak_memory_bytes", "seconds", "step_seconds")
            outcome = {name: report[name] for name in figure_names if name in report}
            notify(f"  {tries.add(int(report['rows']), failure_words=report.get('failed', ''), **outcome)}")

    try:
        ask("try_micro_batches", question, timeout_seconds=seconds, sees_gpus=True, progress=take_report)
    except WorkerFailed as failure:
        limit.require()
        if not tried_rows:
            raise RunError(f"no micro-batch could be tried: {failure.reason}") from None
        notify(f"  {tries.add(tried_rows, failure_words=failure.reason)}")


def tune_micro_batch(loaded: LoadedConfig, plan: Plan, gpu: GpuChoice, progress: Progress) -> None:
    """Find the fastest micro-batch, and store it for the plan's `untuned_key`. Raises RunError if none survives."""
    sentences: list[str] = []

    def notify(sentence: str) -> None:
        sentences.append(sentence)
        progress(f"{sentence.strip()};", sum(line.startswith(" ") for line in sentences), None, "tried")

    with tempfile.TemporaryDirectory() as folder:
        config_file = Path(folder) / "config.toml"
        config_file.write_text(to_toml(loaded), encoding="utf-8")
        request = Request(config_file=config_file)
        tries = try_micro_batches(request, plan, gpu, seconds=_TUNE_SECONDS, notify=notify, timed=True)
    if not tries.largest:
        failure = next((trial.failure_words for trial in tries.tried.values() if trial.failure_words), tries.cut_short)
        hint = "run `tui-trainer rehearse` to try settings that use less memory"
        raise RunError(f"no micro-batch could be measured: {failure}; {hint}")
    # If no size was timed, the largest that survived is used.
    rows = tries.fastest.rows if tries.fastest else tries.largest
    timed_tries = [trial for trial in tries.tried.values() if trial.step_seconds and not trial.failure_words]
    if key := Key.read(plan.untuned_key):
        keep_micro_batch(key, rows, tries.step_rows, {trial.rows: trial.step_seconds for trial in timed_tries})
