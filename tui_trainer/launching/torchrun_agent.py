"""torchrun that reports in JSON which process failed: `python -m tui_trainer.launching.torchrun_agent ARGUMENTS`."""

import json
import os
import signal
import sys
from threading import Thread
from typing import Final

# Time from the end of one process until the others are killed; shorter than `AGENT_SECONDS` of `launching/torchrun.py`.
SHUTDOWN_SECONDS: Final = 3


def end_by_parent_only() -> None:
    """Make this process ignore SIGTERM unless its parent sent it. Call this before there are threads.

    When a machine shuts down or a job is cancelled, all processes of a run get SIGTERM. The parent then requests a
    checkpoint, which this process has to write."""
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # This process ends its loader workers.
        os.register_at_fork(after_in_child=_let_sigterm_through)
        Thread(target=_end_by_parent, daemon=True).start()


def _let_sigterm_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    _let_sigterm_through()
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Run torchrun. Return 1 if a process failed; the last line of the output then names that process."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # Slurm sends this before the time limit. The program that started this process then requests a checkpoint.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    options = run.parse_args(arguments)  # type: ignore[no-untyped-call]
    # Newer versions of torch wait 30 s by default.
    options.shutdown_timeout = SHUTDOWN_SECONDS
    try:
        run.run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        first_failure = error.get_first_failure()
        # If a process was killed, those that wait for it fail. The agent itself ends the other processes by SIGTERM.
        killed_ranks = [item for item in error.failures.items() if -signal.SIGTERM != item[1].exitcode < 0]
        rank, failure = (*killed_ranks, first_failure)[0]
        print(json.dumps({"rank": rank, "exit_code": failure.exitcode}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    end_by_parent_only()
    sys.exit(main(sys.argv[1:]))
