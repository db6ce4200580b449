"""Runs in the background: in a process with its own session, which outlives its starter and the terminal."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic, sleep
from typing import Final

from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import InputError, RunError, system_reason
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.command_process import program
from tui_trainer.launching.open_run import OpenRun, open_new
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import RunStarted
from tui_trainer.runs.folder import RunFolder, open_log
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.slurm import Allocation
from tui_trainer.worker.child import Child, exit_phrase

_LOG_NAME: Final = "detached.txt"
_POLL_SECONDS: Final = 0.1
# The process first reads the plan and probes the machine, which takes seconds, or a minute on a slow disk.
_PATIENCE_SECONDS: Final = 300.0


def refuse_within_job() -> None:
    """Raise InputError inside a Slurm job, because Slurm ends all processes of a job together."""
    if Allocation.of_this_process():
        message = "a background process would end with this Slurm job"
        raise InputError(message, hint="omit --detach, or use `tui-trainer submit` for a separate job")


def open_detached(loaded: LoadedConfig, estimate: Plan, *, gpu: GpuChoice = None) -> OpenRun:
    """Create a run that another process will execute, and release its lock. Raises InputError as `open_new` does."""
    refuse_within_job()
    run = open_new(loaded, estimate, gpu=gpu)
    run.journal.close()
    run.lock.release()
    return run


def resume_detached(
    folder: RunFolder, *, gpu: GpuChoice = None, processes: int | None = None, nodes: int | None = None
) -> int:
    """Resume a run in a background process. Return the pid of the process once the run has started.

    Raises InputError if the run is already active, and RunError with the output of the process if it ends before the
    run has started."""
    refuse_within_job()
    RunLock(folder.lock).refuse()
    reader = JournalReader(folder.journal)
    reader.read_new()
    option_values = {"--gpu": gpu, "--processes": processes, "--nodes": nodes}
    options = [word for name, value in option_values.items() if value is not None for word in (name, str(value))]
    command = program("resume", str(folder.root), "--no-ui", *options)
    with ExitStack() as files:
        try:
            log = files.enter_context(open_log(folder.logs / _LOG_NAME))
            child = Child(command, output=log, errors=log)
        except OSError as error:
            raise RunError(f"no background process could be started: {system_reason(error)}") from error
        files.callback(child.stop_reading)
        deadline = monotonic() + _PATIENCE_SECONDS
        while not any(isinstance(event, RunStarted) for event in reader.read_new()):
            if (exit_code := child.exit_code) is not None:
                raise RunError(f"the background process {exit_phrase(exit_code)}: {child.last_words or 'no output'}")
            if monotonic() > deadline:
                child.close()
                raise RunError(f"the background process did not start the run within {_PATIENCE_SECONDS:.0f} s")
            sleep(_POLL_SECONDS)
        # The process outlives this one, which does not wait for it.
        child.forget()
        return child.process.pid
