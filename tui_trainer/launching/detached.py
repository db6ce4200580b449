"""A run in a process of a session of its own: it outlives the program that starts it, and its terminal."""

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
from tui_trainer.worker.child import Child, ending

_LOG_NAME: Final = "detached.txt"
_POLL_SECONDS: Final = 0.1
# It reads the plan and looks at the machine before it begins: seconds, on a slow disk a minute.
_PATIENCE_SECONDS: Final = 300.0


def refuse_within_job() -> None:
    """Raises InputError within a job of Slurm, which ends all of its processes with it."""
    if Allocation.here():
        message = "a background process would end with this Slurm job"
        raise InputError(message, hint="omit --detach, or use `tui-trainer submit` for a separate job")


def make_run(loaded: LoadedConfig, estimate: Plan, *, gpu: GpuChoice = None) -> OpenRun:
    """A new run that nobody carries out yet: its lock is given back. Raises InputError as `open_new` does."""
    refuse_within_job()
    run = open_new(loaded, estimate, gpu=gpu)
    run.journal.close()
    run.lock.release()
    return run


def go_on_detached(
    folder: RunFolder, *, gpu: GpuChoice = None, processes: int | None = None, nodes: int | None = None
) -> int:
    """Go on with a run that nobody carries out, from where it stands: the pid of the process that does, once it has
    begun. Raises RunError with its own words where it ends before, and InputError where another carries the run out."""
    refuse_within_job()
    RunLock(folder.lock).refuse()
    reader = JournalReader(folder.journal)
    reader.read_new()
    asked = {"--gpu": gpu, "--processes": processes, "--nodes": nodes}
    options = [word for name, value in asked.items() if value is not None for word in (name, str(value))]
    command = program("resume", str(folder.root), "--no-ui", *options)
    with ExitStack() as files:
        try:
            log = files.enter_context(open_log(folder.logs / _LOG_NAME))
            child = Child(command, output=log, errors=log)
        except OSError as error:
            raise RunError(f"no background process could be started: {system_reason(error)}") from error
        files.callback(child.stop_reading)
        until = monotonic() + _PATIENCE_SECONDS
        while not any(isinstance(event, RunStarted) for event in reader.read_new()):
            if (code := child.exit_code) is not None:
                raise RunError(f"the background process {ending(code)}: {child.last_words or 'no output'}")
            if monotonic() > until:
                child.close()
                raise RunError(f"the background process did not start the run within {_PATIENCE_SECONDS:.0f} s")
            sleep(_POLL_SECONDS)
        # It outlives this process, which does not wait for it.
        child.forget()
        return child.process.pid
