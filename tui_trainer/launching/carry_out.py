"""The outermost frame of a run: whatever happens inside becomes an Outcome and a line in the journal."""

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
from time import monotonic

from tui_trainer.advice.remedies import less_memory
from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress as ProgressLine
from tui_trainer.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    FolderError,
    GroupOutOfMemory,
    InputError,
    Problem,
    RunError,
    system_reason,
)
from tui_trainer.hardware.environment import threads_spinning
from tui_trainer.hardware.processor import load_of_others, load_of_threads
from tui_trainer.launching import prepare
from tui_trainer.launching.gauge_writer import GaugeWriter
from tui_trainer.launching.merged_base import with_merged_base
from tui_trainer.launching.open_run import OpenRun
from tui_trainer.launching.torchrun import RankEnded, command_words, train_together, trains_apart
from tui_trainer.planning.continued_elsewhere import with_smaller_passes
from tui_trainer.planning.measured_steps import StepKey, is_busy, keep_calibration, keep_measured_peak
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import write_plan_file
from tui_trainer.planning.planned import exact
from tui_trainer.planning.records import Key, device_key
from tui_trainer.reporting.page import write_report
from tui_trainer.runs import registry
from tui_trainer.runs.events import (
    ControlApplied,
    Event,
    MicroBatchReduced,
    PhaseChanged,
    Progress,
    RunFailed,
    RunFinished,
    RunProblem,
    RunStarted,
)
from tui_trainer.runs.folder import RunFolder, open_log, write_atomically
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.runs.state import GAUGES_EVERY_SECONDS
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.training.checkpoint_folder import (
    CheckpointFolder,
    clear_leftovers,
    newest_whole,
    set_aside_after,
    steps_saved,
)
from tui_trainer.training.job import Job, Reason, Result
from tui_trainer.units import quantity
from tui_trainer.worker.asking import shapes_worker
from tui_trainer.worker.child import Child

# The process that feeds the trackers of a run, started beside it. What it has to say becomes a line in the journal.
#
# Nothing of a tracker runs here: this process only waits for lines, in a thread that ends with them.

_MODULE = "tui_trainer.tracking.reader"
_TRACKERS_LOG_NAME = "tracking.txt"


def start_trackers(config: Config, folder: RunFolder, journal: JournalWriter) -> None:
    """Start it where the config names trackers. That it cannot be started is a problem and ends nothing."""
    names = list(dict.fromkeys(names_in(config.logging.report_to)))
    if not names:
        return
    command = [sys.executable, "-P", "-m", _MODULE, str(folder.root), *names]
    # The card is the run's: a library that looks for one finds none.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        with open_log(folder.logs / _TRACKERS_LOG_NAME) as log:
            reader = Child(command, environment, errors=log)
        Thread(target=_pass_on, args=(reader, journal), name="tui-trainer-trackers", daemon=True).start()
    except (OSError, RuntimeError) as error:
        hint = f"`tui-trainer track {shell_word(folder.name)}` uploads the run later"
        journal.append(RunProblem(kind="tracker", message=f"no tracker could be started: {error}", hint=hint))


def _pass_on(reader: Child, journal: JournalWriter) -> None:
    with reader:
        for told in reader.objects():
            with suppress(LookupError):
                journal.read_newest_step()
                journal.append_beside(RunProblem(kind="tracker", message=str(told["message"]), hint=str(told["hint"])))


_LOG_NAME = "error.txt"
_EARLIER_RUNS = count()
# Without a newer checkpoint: what ends a process each time is not mended by another try.
_MOST_RESTARTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended. `problems` when the input was wrong, `failure` when the run could not go on."""

    exit_code: int
    problems: tuple[Problem, ...] = ()
    failure: str = ""


class _StopRequested(Exception):
    """Asked to stop before the first step."""


def carry_out(run: OpenRun, *, gauges_every_seconds: float = GAUGES_EVERY_SECONDS) -> Outcome:
    """Do a run from where it stands to its end. Raises nothing; gives the lock back."""
    gauges = GaugeWriter(run.journal, period_seconds=gauges_every_seconds)
    outcome: Outcome | None = None
    gauges.start()
    try:
        outcome = _outcome(run, gauges)
        return outcome
    finally:
        gauges.stop()
        try:
            # Here, where no traceback holds the model any more. One that was refused before torch was loaded has none.
            if "tui_trainer.training.process" in sys.modules:
                from tui_trainer.training.process import give_memory_back

                give_memory_back()
            if outcome is None or not is_refused(run, outcome):
                _write_report(run)
        finally:
            run.journal.close()
            run.lock.release()


def is_refused(run: OpenRun, outcome: Outcome) -> bool:
    """Whether nothing came of a new run: it was refused before it had a plan, and its folder goes."""
    return run.is_new and bool(outcome.problems) and not run.folder.plan.exists()


def _outcome(run: OpenRun, gauges: GaugeWriter) -> Outcome:
    journal = run.journal
    try:
        reason = _story(run, gauges)
        return Outcome(exit_code=EXIT_STOPPED if reason == "stopped" else EXIT_DONE)
    except _StopRequested:
        journal.append(
            RunFinished(step=_saved_step(run.folder), reason="stopped", loss=None, eval_loss=None, seconds=0.0)
        )
        return Outcome(exit_code=EXIT_STOPPED)
    except InputError as error:
        journal.append(RunFailed(step=_saved_step(run.folder), message=str(error)))
        return Outcome(exit_code=EXIT_BAD_INPUT, problems=error.problems)
    except RunError as error:
        journal.append(RunFailed(step=_saved_step(run.folder), message=str(error)))
        return Outcome(exit_code=EXIT_FAILED, failure=str(error))
    except Exception as error:  # the outermost frame: whatever it was, it is told and the lock is given back
        return _failed(run, error)


def _write_report(run: OpenRun) -> None:
    """What came of the run, for people. That it cannot be written ends no run, whatever the reason."""
    try:
        write_report(run.folder)
    except Exception as error:
        message = f"the report could not be written: {one_line(str(error), 200) or type(error).__name__}"
        hint = f"run `tui-trainer report {shell_word(run.folder.name)}` to try again"
        step = _saved_step(run.folder)
        run.journal.append(RunProblem(step=step, kind="no report", message=message, hint=hint))


def _story(run: OpenRun, gauges: GaugeWriter) -> Reason:
    journal = run.journal
    checkpoint = _newest_checkpoint(run.folder, journal)
    step = checkpoint.step if checkpoint else 0
    journal.append(_started(run, run.plan, checkpoint), PhaseChanged(phase="preparing", step=step))

    def progress(what: str, done: float, total: float | None, unit: str) -> None:
        journal.append(Progress(what=what, done=done, total=total, unit=unit))
        _stop_if_asked(run)

    journal.append(*(replace(report, step=step) for report in run.reports))
    if run.plan:
        if run.moved:
            # A run that goes on elsewhere says so, and so does its plan from now on.
            write_plan_file(run.folder, run.plan)
            hint = "the effective batch is the same, but the results may not be bit-identical"
            step = _saved_step(run.folder)
            journal.append(RunProblem(step=step, kind="another device", message=run.moved, hint=hint))
        prepare.tell_changed_versions(run.plan, journal, step)
        plan, data = run.plan, prepare.planned_data(run.plan, journal, progress, step)
    else:
        assert run.loaded is not None, "a run has a plan or a config"
        loaded = with_merged_base(run.loaded, run.folder, progress)
        plan, data = prepare.exact_plan(loaded, run.folder, journal, progress, gpu=run.gpu, tunes=True)
    gauges.watch_card_of(plan)
    prepare.announce(plan, journal, command_words(plan, run.folder))
    # Not before the plan: what is refused leaves nothing behind.
    start_trackers(plan.config, run.folder, journal)
    baselines = prepare.measure_baselines(plan, data, journal)
    _stop_if_asked(run)
    journal.append(PhaseChanged(phase="loading", step=step))
    versions = prepare.versions()
    job = Job(plan=plan, data=data, folder=run.folder, checkpoint=checkpoint, baselines=baselines, versions=versions)
    started = monotonic()
    # On a CPU, what an earlier run has left in the heap of this process is there before, and taken again.
    is_first = next(_EARLIER_RUNS) == 0
    alone = plan.device == "cpu" and not is_busy(load_of_others(), plan.threads.value * plan.processes_per_node)
    with shapes_worker.giving_way(), threads_spinning(alone=alone):
        if trains_apart(plan):
            # The first of them writes the journal, readings of the machine included.
            gauges.stop()
            result, plan = _train_together(run, job, progress)
        else:
            # torch and transformers take seconds to load: only now, when nothing in the input is left to refuse.
            from tui_trainer.training.run import run as train

            result = train(job, journal, run.controls)
    if result.step_seconds is not None:
        keep_step_seconds(plan, result.step_seconds, monotonic() - started)
    if result.peak_memory_bytes and (is_first or plan.device == "cuda" or trains_apart(plan)):
        keep_peak(plan, result.peak_memory_bytes)
    return result.reason


def _stop_if_asked(run: OpenRun) -> None:
    """Raises _StopRequested; other requests wait for the first step."""
    if run.controls.has_stop():
        raise _StopRequested


def _train_together(run: OpenRun, job: Job, progress: ProgressLine) -> tuple[Result, Plan]:
    """In several processes: what came of it, and the plan that they had at the end. Where one of them ends before the
    run does, all begin anew at the newest checkpoint, as long as there is a newer one each time, or some times without.
    """
    journal, tries_left = run.journal, _MOST_RESTARTS
    while True:
        try:
            return train_together(job, run.controls, progress, journal.set_other_writer_error), job.plan
        except (RankEnded, GroupOutOfMemory) as error:
            failure = error
        finally:
            journal.take_over()
        run.controls.asked_before = answered(run.controls.asked_before, JournalReader(run.folder.journal).stream())
        before = job.checkpoint.step if job.checkpoint else 0
        checkpoint = _newest_checkpoint(run.folder, journal)
        step = checkpoint.step if checkpoint else 0
        hint = f"all processes restart after step {step}"
        event = RunProblem(step=step, kind="process ended", message=str(failure), hint=hint)
        if isinstance(failure, GroupOutOfMemory):
            event = reduced = _reduction(job.plan, event)
            reason = f"{failure}, with {quantity(reduced.rows_before, 'row')}"
            smaller = with_smaller_passes(job.plan, reduced, reason)
            # A process that runs out of it in the evaluation of a split model would let the others wait.
            eval_rows = min(reduced.rows, -(-smaller.per_device_eval_batch_size.value // 2))
            changes = {"per_device_eval_batch_size": exact(eval_rows, "as in training")}
            job = replace(job, plan=smaller.model_copy(update=changes))
            write_plan_file(job.folder, job.plan)
        if step > before:
            tries_left = _MOST_RESTARTS
        elif not isinstance(failure, GroupOutOfMemory):  # each begins with half the rows, and one row is the end
            tries_left -= 1
        if not tries_left or run.controls.has_stop():
            raise failure
        journal.append(event)
        job = replace(job, checkpoint=checkpoint)
        journal.append(_started(run, job.plan, checkpoint, again=True), PhaseChanged(phase="loading", step=step))


def answered(before: int, events: Iterable[Event]) -> int:
    """The last request that is not for the next group: of those that one has answered since the last start, but for a
    pause that holds; `before`, where it has answered none."""
    last: dict[str, int] = {}
    for event in events:
        if isinstance(event, RunStarted):
            last = {}
        elif isinstance(event, ControlApplied):
            last[event.action] = event.request_id
    if last.get("pause", 0) > last.get("resume", 0):
        return last["pause"] - 1
    return max(last.values(), default=before)


def _reduction(plan: Plan, event: RunProblem) -> MicroBatchReduced:
    """Half the rows in a pass of each process. Raises RunError at one row."""
    before = plan.per_device_train_batch_size.value
    if before == 1:
        less = less_memory(plan, plan.longest_row)
        raise RunError(f"{event.message}, with one row per pass. To use less memory, start a new run with {less}")
    rows = -(-before // 2)
    return MicroBatchReduced(
        step=event.step,
        kind="out of memory",
        message=event.message,
        hint=f"{event.hint} with {quantity(rows, 'row')} per pass",
        what="training",
        rows_before=before,
        rows=rows,
        passes=-(-before * plan.gradient_accumulation_steps.value // rows),
    )


def keep_step_seconds(plan: Plan, step_seconds: float, busy_seconds: float) -> None:
    """For the next plan of such a run. `busy_seconds`: for how long this process has been at it."""
    on_card, threads = plan.device == "cuda", plan.threads.value
    load = None if on_card else load_of_others(load_of_threads(threads * plan.processes_per_node, busy_seconds))
    device = device_key(plan.cpu_name, threads, plan.device_name if on_card else "")
    # A plan of an earlier version may have a key of another form.
    if key := StepKey.read(plan.shape_key):
        keep_calibration(device, key, step_seconds=step_seconds, flops=plan.step_flops, busy=is_busy(load, threads))


def keep_peak(plan: Plan, peak_bytes: int) -> None:
    """For the next plan of such a run."""
    if key := Key.read(plan.memory_key):
        rows, eval_rows = plan.per_device_train_batch_size.value, plan.per_device_eval_batch_size.value
        keep_measured_peak(key, rows, eval_rows, peak_bytes)


def _saved_step(folder: RunFolder) -> int:
    """0 also where the folder cannot be read any more: that may be why a run ends."""
    with suppress(OSError):
        return max(steps_saved(folder.checkpoints), default=0)
    return 0


def _newest_checkpoint(folder: RunFolder, journal: JournalWriter) -> CheckpointFolder | None:
    """What to go on from; leftovers of a kill are cleared, and damaged checkpoints lose their names."""
    try:
        clear_leftovers(folder.checkpoints)
    except OSError as error:
        journal.append(
            RunProblem(kind="leftovers", message=f"could not remove an unfinished checkpoint: {system_reason(error)}")
        )
    damages: list[str] = []
    checkpoint = newest_whole(folder.checkpoints, damages.append)
    goes_on = f"resumes from step {checkpoint.step}" if checkpoint else "starts over, as no checkpoint is left"
    hint = f"the run {goes_on}; the damaged checkpoint is kept as damaged-step-N"
    journal.append(*(RunProblem(kind="checkpoint damaged", message=damage, hint=hint) for damage in damages))
    set_aside_after(folder.checkpoints, checkpoint.step if checkpoint else 0)
    return checkpoint


def _started(
    run: OpenRun, plan: Plan | None, checkpoint: CheckpointFolder | None, *, again: bool = False
) -> RunStarted:
    """`again`: within the same start of the program."""
    config = plan.config if plan else run.loaded.config if run.loaded else None
    step = checkpoint.step if checkpoint else 0
    # The folder of a job is made when it is submitted.
    begins = run.is_new or not run.folder.journal.stat().st_size
    return RunStarted(
        step=step,
        name=run.folder.name,
        task=config.task.type if config else "",
        device=plan.device if plan else "cpu",
        pid=os.getpid(),
        total_steps=plan.total_steps.value if plan else 0,
        resumed_from_step=None if begins and not again else step,
        versions=prepare.versions(),
    )


def _failed(run: OpenRun, error: Exception) -> Outcome:
    log = run.folder.logs / _LOG_NAME
    message = f"{type(error).__name__}: {one_line(str(error), 300)}"
    try:
        write_atomically(log, traceback.format_exc().encode("utf-8", "replace"))
        log_path, where = str(log.relative_to(run.folder.root)), f"The traceback is in {log}"
    except OSError as unwritten:
        log_path, where = None, f"The traceback could not be written: {system_reason(unwritten)}"
    run.journal.append(RunFailed(step=_saved_step(run.folder), message=message, log_path=log_path))
    return Outcome(exit_code=EXIT_FAILED, failure=f"{message}. {where}")


# A run in a thread of this process, owned and joined by `main()`: it is no daemon, so that no exit tears a save.
#
# The thread never calls back. What it does is read from the journal; what it should do is written to `control.json`,
# but
# for a stop.


class RunThread:
    """One run. `outcome` is there once `alive` is false."""

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
        """Ask for it, as a signal handler may. It is answered whatever the disk does."""
        self.run.controls.stop()

    def join(self, timeout_seconds: float | None = None) -> None:
        self._thread.join(timeout_seconds)

    def _work(self) -> None:
        self.outcome = outcome = carry_out(self.run)
        if is_refused(self.run, outcome):
            discard(self.run)


def discard(run: OpenRun) -> None:
    """Take back the folder of a run that was refused before it had a plan."""
    try:
        gone = run.folder.discard()
    except FolderError:
        return
    if gone:
        registry.forget(run.folder.root)
