"""The outermost frame of a run: executes the run, and records how it ended in an Outcome and in the journal."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from threading import Thread

from tui_trainer import errors
from tui_trainer.advice.remedies import less_memory_advice
from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress as ProgressLine
from tui_trainer.errors import Problem
from tui_trainer.hardware.environment import threads_spinning
from tui_trainer.hardware.processor import load_of_others
from tui_trainer.launching import prepare
from tui_trainer.launching.gauge_writer import GaugeWriter
from tui_trainer.launching.merged_base import with_merged_base
from tui_trainer.launching.open_run import OpenRun
from tui_trainer.launching.torchrun import RankEnded, command_words, train_in_group, uses_other_processes
from tui_trainer.planning.measured_steps import StepKey, is_busy, keep_calibration, keep_measured_peak
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import write_plan_file
from tui_trainer.planning.planned import exact
from tui_trainer.planning.records import Key, device_key
from tui_trainer.planning.retarget import with_smaller_passes
from tui_trainer.reporting.page import write_report
from tui_trainer.runs import events, registry
from tui_trainer.runs.folder import RunFolder, open_log, write_atomically
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.runs.state import GAUGES_EVERY_SECONDS
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.training.job import EndReason, Job, Result
from tui_trainer.units import quantity
from tui_trainer.worker.asking import shapes_worker
from tui_trainer.worker.child import Child

# A separate process feeds the trackers, so that none of their code runs here. A thread of this process reads its
# messages, writes them to the journal, and ends when that process ends.

_MODULE = "tui_trainer.tracking.reader"
_TRACKERS_LOG_NAME = "tracking.txt"


def start_trackers(config: Config, folder: RunFolder, journal: JournalWriter) -> None:
    """Start the process that feeds the trackers named in the config. A failure is recorded and does not end the run."""
    tracker_names = list(dict.fromkeys(names_in(config.logging.report_to)))
    if not tracker_names:
        return
    command = [sys.executable, "-P", "-m", _MODULE, str(folder.root), *tracker_names]
    # The GPU belongs to the run: hide it from libraries that would use it.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        with open_log(folder.logs / _TRACKERS_LOG_NAME) as log:
            process = Child(command, environment, errors=log)
        Thread(target=_record_problems, args=(process, journal), name="tui-trainer-trackers", daemon=True).start()
    except (OSError, RuntimeError) as error:
        hint = f"`tui-trainer track {shell_word(folder.name)}` uploads the run later"
        journal.append(events.RunProblem(kind="tracker", message=f"no tracker could be started: {error}", hint=hint))


def _record_problems(reader: Child, journal: JournalWriter) -> None:
    with reader:
        for fields in reader.read_objects():
            with suppress(LookupError):
                journal.read_newest_step()
                problem = events.RunProblem(kind="tracker", message=str(fields["message"]), hint=str(fields["hint"]))
                journal.append_from_thread(problem)


_LOG_NAME = "error.txt"
_EARLIER_RUNS = count()
# Restarts without a newer checkpoint in between: more restarts do not help against a failure that recurs each time.
_MOST_RESTARTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended. `problems` is set if the input was wrong, and `failure` if the run could not continue."""

    exit_code: int
    problems: tuple[Problem, ...] = ()
    failure: str = ""


class _StopRequested(Exception):
    """Raised if a stop is requested before the first step."""


def execute_run(run: OpenRun, *, gauges_every_seconds: float = GAUGES_EVERY_SECONDS) -> Outcome:
    """Execute a run from its current step to its end, and release its lock. Errors are part of the returned Outcome."""
    gauges = GaugeWriter(run.journal, period_seconds=gauges_every_seconds)
    outcome: Outcome | None = None
    gauges.start()
    try:
        outcome = _execute(run, gauges)
        return outcome
    finally:
        gauges.stop()
        try:
            # From here on no traceback refers to the model. A run that was refused early has not loaded torch.
            if "tui_trainer.training.process" in sys.modules:
                from tui_trainer.training.process import free_run_memory

                free_run_memory()
            if outcome is None or not is_refused(run, outcome):
                _write_report(run)
        finally:
            run.journal.close()
            run.lock.release()


def is_refused(run: OpenRun, outcome: Outcome) -> bool:
    """Return whether the program refused a new run before it had a plan, so that its folder can be deleted."""
    return run.is_new and bool(outcome.problems) and not run.folder.plan.exists()


def _execute(run: OpenRun, gauges: GaugeWriter) -> Outcome:
    """Execute the run, and turn an exception into an Outcome and a journal event."""
    journal = run.journal
    try:
        reason = _prepare_and_train(run, gauges)
        return Outcome(exit_code=errors.EXIT_STOPPED if reason == "stopped" else errors.EXIT_DONE)
    except _StopRequested:
        step = _saved_step(run.folder)
        journal.append(events.RunFinished(step=step, reason="stopped", loss=None, eval_loss=None, seconds=0.0))
        return Outcome(exit_code=errors.EXIT_STOPPED)
    except errors.InputError as error:
        journal.append(events.RunFailed(step=_saved_step(run.folder), message=str(error)))
        return Outcome(exit_code=errors.EXIT_BAD_INPUT, problems=error.problems)
    except errors.RunError as error:
        journal.append(events.RunFailed(step=_saved_step(run.folder), message=str(error)))
        return Outcome(exit_code=errors.EXIT_FAILED, failure=str(error))
    except Exception as error:  # the outermost frame records any failure
        return _record_failure(run, error)


def _write_report(run: OpenRun) -> None:
    """Write the run's report. A failure is recorded in the journal and does not change how the run ended."""
    try:
        write_report(run.folder)
    except Exception as error:
        message = f"the report could not be written: {one_line(str(error), 200) or type(error).__name__}"
        hint = f"run `tui-trainer report {shell_word(run.folder.name)}` to try again"
        step = _saved_step(run.folder)
        run.journal.append(events.RunProblem(step=step, kind="no report", message=message, hint=hint))


def _prepare_and_train(run: OpenRun, gauges: GaugeWriter) -> EndReason:
    """Prepare, plan and train, and return the reason why training ended."""
    journal = run.journal
    checkpoint = _newest_checkpoint(run.folder, journal)
    step = checkpoint.step if checkpoint else 0
    journal.append(_start_event(run, run.plan, checkpoint), events.PhaseChanged(phase="preparing", step=step))

    def progress(activity: str, done: float, total: float | None, unit: str) -> None:
        journal.append(events.Progress(what=activity, done=done, total=total, unit=unit))
        _raise_if_stopped(run)

    journal.append(*(replace(report, step=step) for report in run.reports))
    if run.plan:
        if run.moved_words:
            # If the run continues on another device, its plan names that device from now on.
            write_plan_file(run.folder, run.plan)
            hint = "the effective batch is the same, but the results may not be bit-identical"
            step = _saved_step(run.folder)
            journal.append(events.RunProblem(step=step, kind="another device", message=run.moved_words, hint=hint))
        prepare.report_changed_versions(run.plan, journal, step)
        plan, data = run.plan, prepare.planned_data(run.plan, journal, progress, step)
    else:
        assert run.loaded is not None, "a run has a plan or a config"
        loaded = with_merged_base(run.loaded, run.folder, progress)
        plan, data = prepare.exact_plan(loaded, run.folder, journal, progress, gpu=run.gpu, tunes=True)
    gauges.watch_card_of(plan)
    prepare.announce(plan, journal, command_words(plan, run.folder))
    # Trackers start after the plan, because a run that is refused must not appear in a tracker.
    start_trackers(plan.config, run.folder, journal)
    baselines = prepare.measure_baselines(plan, data, journal)
    _raise_if_stopped(run)
    journal.append(events.PhaseChanged(phase="loading", step=step))
    versions = prepare.versions()
    job = Job(plan=plan, data=data, folder=run.folder, checkpoint=checkpoint, baselines=baselines, versions=versions)
    # On a CPU a later run reuses heap memory that an earlier run of this process took, so its peak says little.
    is_first = next(_EARLIER_RUNS) == 0
    is_alone = plan.device == "cpu" and not is_busy(load_of_others(), plan.threads.value * plan.processes_per_node)
    with shapes_worker.lowest_priority(), threads_spinning(alone=is_alone):
        if uses_other_processes(plan):
            # The first process of the group writes the journal, including the gauges.
            gauges.stop()
            result, plan = _train_in_group(run, job, progress)
        else:
            # torch and transformers take seconds to load, so they are imported only after the input was accepted.
            from tui_trainer.training.run import run as train

            result = train(job, journal, run.controls)
    if result.step_seconds is not None:
        keep_step_seconds(plan, result.step_seconds, run.folder)
    if result.peak_memory_bytes and (is_first or plan.device == "cuda" or uses_other_processes(plan)):
        keep_peak(plan, result.peak_memory_bytes)
    return result.reason


def _raise_if_stopped(run: OpenRun) -> None:
    """Raise _StopRequested if a stop was requested. Other requests are executed after the first step."""
    if run.controls.has_stop():
        raise _StopRequested


def _train_in_group(run: OpenRun, job: Job, progress: ProgressLine) -> tuple[Result, Plan]:
    """Train in several processes. Return the result and the plan, whose micro-batch may have been reduced.

    If a process ends too early, all processes restart from the newest checkpoint: at most `_MOST_RESTARTS` times if no
    newer checkpoint is saved in between. After running out of memory, the micro-batch is halved."""
    journal, tries_left = run.journal, _MOST_RESTARTS
    while True:
        try:
            return train_in_group(job, run.controls, progress, journal.set_other_writer_error), job.plan
        except (RankEnded, errors.GroupOutOfMemory) as error:
            failure = error
        finally:
            journal.take_over()
        controls, journal_events = run.controls, JournalReader(run.folder.journal).stream()
        controls.last_earlier_id = last_answered_id(controls.last_earlier_id, journal_events)
        previous_step = job.checkpoint.step if job.checkpoint else 0
        checkpoint = _newest_checkpoint(run.folder, journal)
        step = checkpoint.step if checkpoint else 0
        hint = f"all processes restart after step {step}"
        event = events.RunProblem(step=step, kind="process ended", message=str(failure), hint=hint)
        if isinstance(failure, errors.GroupOutOfMemory):
            event = reduction = _halve_micro_batch(job.plan, event)
            reason = f"{failure}, with {quantity(reduction.rows_before, 'row')} per pass"
            smaller_plan = with_smaller_passes(job.plan, reduction, reason)
            # If one process of a sharded model runs out of memory in an evaluation, the others wait for it forever.
            eval_rows = min(reduction.rows, -(-smaller_plan.per_device_eval_batch_size.value // 2))
            changes = {"per_device_eval_batch_size": exact(eval_rows, "as in training")}
            job = replace(job, plan=smaller_plan.model_copy(update=changes))
            write_plan_file(job.folder, job.plan)
        if step > previous_step:
            tries_left = _MOST_RESTARTS
        elif not isinstance(failure, errors.GroupOutOfMemory):  # those end by themselves, at one row
            tries_left -= 1
        if not tries_left or controls.has_stop():
            raise failure
        journal.append(event)
        job = replace(job, checkpoint=checkpoint)
        start_event = _start_event(run, job.plan, checkpoint, again=True)
        journal.append(start_event, events.PhaseChanged(phase="loading", step=step))


def last_answered_id(before: int, journal_events: Iterable[events.Event]) -> int:
    """Return the id of the last request that the next group of processes must not execute again.

    It is the last request confirmed since the last start, else `before`. A pause that still holds is executed again."""
    last_id_of_action: dict[str, int] = {}
    for event in journal_events:
        if isinstance(event, events.RunStarted):
            last_id_of_action = {}
        elif isinstance(event, events.ControlApplied):
            last_id_of_action[event.action] = event.request_id
    if last_id_of_action.get("pause", 0) > last_id_of_action.get("resume", 0):
        return last_id_of_action["pause"] - 1
    return max(last_id_of_action.values(), default=before)


def _halve_micro_batch(plan: Plan, event: events.RunProblem) -> events.MicroBatchReduced:
    """Return the event that halves the micro-batch after `event` (out of memory). Raises RunError if it has one row."""
    rows_before = plan.per_device_train_batch_size.value
    if rows_before == 1:
        settings = less_memory_advice(plan, plan.longest_row)
        problem = f"{event.message}, with one row per pass"
        raise errors.RunError(f"{problem}. To use less memory, start a new run with {settings}")
    rows = -(-rows_before // 2)
    return events.MicroBatchReduced(
        step=event.step,
        kind="out of memory",
        message=event.message,
        hint=f"{event.hint} with {quantity(rows, 'row')} per pass",
        what="training",
        rows_before=rows_before,
        rows=rows,
        passes=-(-rows_before * plan.gradient_accumulation_steps.value // rows),
    )


def keep_step_seconds(plan: Plan, step_seconds: float, folder: RunFolder) -> None:
    """Store the measured seconds of a step for later plans, with the load of other programs if they slow it down."""
    is_on_gpu, threads = plan.device == "cuda", plan.threads.value
    load = None if is_on_gpu else load_of_others()
    load = load if is_busy(load, threads * plan.processes_per_node) else None
    device = device_key(plan.cpu_name, threads, plan.device_name if is_on_gpu else "")
    # A plan of an earlier version may have a key in another format.
    if key := StepKey.read(plan.shape_key):
        flops, root = plan.step_flops, str(folder.root)
        keep_calibration(device, key, step_seconds=step_seconds, flops=flops, load=load or 0.0, folder=root)


def keep_peak(plan: Plan, peak_bytes: int) -> None:
    """Store the measured peak memory of a run for later plans."""
    if memory_key := Key.read(plan.memory_key):
        rows, eval_rows = plan.per_device_train_batch_size.value, plan.per_device_eval_batch_size.value
        keep_measured_peak(memory_key, rows, eval_rows, peak_bytes)


def _saved_step(folder: RunFolder) -> int:
    """Return the step of the newest checkpoint; 0 without one, or if the folder cannot be read."""
    with suppress(OSError):
        return max(checkpoint_folder.steps_saved(folder.checkpoints), default=0)
    return 0


def _newest_checkpoint(folder: RunFolder, journal: JournalWriter) -> CheckpointFolder | None:
    """Return the checkpoint to resume from, after removing unfinished and renaming damaged checkpoints."""
    try:
        checkpoint_folder.clear_leftovers(folder.checkpoints)
    except OSError as error:
        message = f"could not remove an unfinished checkpoint: {errors.system_reason(error)}"
        journal.append(events.RunProblem(kind="leftovers", message=message))
    damage_messages: list[str] = []
    checkpoint = checkpoint_folder.newest_whole(folder.checkpoints, damage_messages.append)
    consequence = f"resumes from step {checkpoint.step}" if checkpoint else "starts over, as no checkpoint is left"
    hint = f"the run {consequence}; the damaged checkpoint is kept as damaged-step-N"
    for message in damage_messages:
        journal.append(events.RunProblem(kind="checkpoint damaged", message=message, hint=hint))
    checkpoint_folder.set_aside_after(folder.checkpoints, checkpoint.step if checkpoint else 0)
    return checkpoint


def _start_event(
    run: OpenRun, plan: Plan | None, checkpoint: CheckpointFolder | None, *, again: bool = False
) -> events.RunStarted:
    """Return the event of a start. `again` marks a restart of the training without a restart of the program."""
    config = plan.config if plan else run.loaded.config if run.loaded else None
    step = checkpoint.step if checkpoint else 0
    # The folder of a Slurm job is made on submission, so its first start opens an existing folder.
    is_first_start = run.is_new or not run.folder.journal.stat().st_size
    return events.RunStarted(
        step=step,
        name=run.folder.name,
        task=config.task.type if config else "",
        device=plan.device if plan else "cpu",
        pid=os.getpid(),
        total_steps=plan.total_steps.value if plan else 0,
        resumed_from_step=None if is_first_start and not again else step,
        versions=prepare.versions(),
    )


def _record_failure(run: OpenRun, error: Exception) -> Outcome:
    """Write the traceback to a log and the failure to the journal, and return the Outcome."""
    log = run.folder.logs / _LOG_NAME
    message = f"{type(error).__name__}: {one_line(str(error), 300)}"
    try:
        write_atomically(log, traceback.format_exc().encode("utf-8", "replace"))
        log_path, log_words = str(log.relative_to(run.folder.root)), f"The traceback is in {log}"
    except OSError as log_error:
        log_path, log_words = None, f"The traceback could not be written: {errors.system_reason(log_error)}"
    run.journal.append(events.RunFailed(step=_saved_step(run.folder), message=message, log_path=log_path))
    return Outcome(exit_code=errors.EXIT_FAILED, failure=f"{message}. {log_words}")


class RunThread:
    """One run in a thread of this process. `outcome` is set once `alive` is false.

    The thread is not a daemon and `main()` joins it, because an exit must not interrupt a save. It has no callbacks:
    read its events from the journal, and write requests other than a stop to `control.json`."""

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._work, name="training", daemon=False)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request a stop. Signal handlers may call this, and it does not depend on the disk."""
        self.run.controls.stop()

    def join(self, timeout_seconds: float | None = None) -> None:
        self._thread.join(timeout_seconds)

    def _work(self) -> None:
        self.outcome = outcome = execute_run(self.run)
        if is_refused(self.run, outcome):
            discard(self.run)


def discard(run: OpenRun) -> None:
    """Delete the folder of a run that was refused before it had a plan, and its entry in the index."""
    try:
        was_deleted = run.folder.discard()
    except errors.FolderError:
        return
    if was_deleted:
        registry.remove_from_index(run.folder.root)
