"""`python -m tui_trainer.launching.torchrun_agent ARGUMENTS`: torchrun, which says in JSON which process ended it."""

import json
import os
import signal
import sys
from threading import Thread
from typing import Final

# From the end of one process until the others are killed, which is before `launching/torchrun.py` loses its patience.
SHUTDOWN_SECONDS: Final = 3


def end_by_parent_only() -> None:
    """From now on SIGTERM ends this process only where its parent has sent it. To be called before there are threads.

    A machine that shuts down and a job that is cancelled send it to all processes of a run: the program among them asks
    for a checkpoint, which those that it would end have to write.
    """
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # Loader workers are ended by this process, which is their parent.
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
    """Exit code 1 where a process has failed; then the last line of the output names it."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # Of Slurm, before the time limit: for the program that has started this, which asks for a checkpoint.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    asked = run.parse_args(arguments)  # type: ignore[no-untyped-call]
    # Of newer versions: 30 s where nothing is said.
    asked.shutdown_timeout = SHUTDOWN_SECONDS
    try:
        run.run(asked)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        first = error.get_first_failure()
        # One that was killed lets those fail that wait for it. The agent itself ends the others by SIGTERM.
        killed = [one for one in error.failures.items() if -signal.SIGTERM != one[1].exitcode < 0]
        rank, failure = (*killed, first)[0]
        print(json.dumps({"rank": rank, "exit_code": failure.exitcode}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    end_by_parent_only()
    sys.exit(main(sys.argv[1:]))
