"""Process that feeds trackers during a run: `python -m tui_trainer.tracking.reader FOLDER NAME...`.

It only reads the journal, so that a slow or broken tracker cannot delay or end the run. Each tracker has its own
thread. Each message for the user is one line of JSON on standard output."""

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from tui_trainer.runs.folder import RunFolder, make_private_folder
from tui_trainer.runs.lock import read_lock_owner
from tui_trainer.runs.overview import overview
from tui_trainer.tracking.contract import find_tracker, tracker_problems
from tui_trainer.tracking.feeder import Feeder, ReportProblem

_POLL_SECONDS = 1.0
_HANGS_AFTER_SECONDS = 120.0
_LAST_SECONDS = 90.0


def main(arguments: Sequence[str]) -> None:
    root, *names = arguments
    report = _report_through(os.dup(1))
    # Libraries print to standard output too. Their output goes to the log.
    os.dup2(2, 1)
    os.nice(10)
    folder = RunFolder(Path(root))
    tracking_folder = folder.root / "tracking"
    with suppress(FileExistsError):
        make_private_folder(tracking_folder)
    # Wait for the reader of an earlier start of the run, which may still be sending.
    lock_fd = os.open(tracking_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    for problem in tracker_problems(names):
        report(problem.message, problem.hint)
    feeders = [Feeder(folder, find_tracker(name), report) for name in names if not tracker_problems([name])]
    follow(feeders, lambda: read_lock_owner(folder.lock) is not None, lambda: overview(folder).status)
    # An ordinary exit would wait for a thread that hangs.
    os._exit(0)


def follow(
    feeders: Sequence[Feeder],
    is_alive: Callable[[], bool],
    status: Callable[[], str],
    *,
    poll_seconds: float = _POLL_SECONDS,
    hangs_after_seconds: float = _HANGS_AFTER_SECONDS,
    last_seconds: float = _LAST_SECONDS,
) -> None:
    """Send events to all trackers until the run has ended, then what is left, for at most `last_seconds`."""
    end_event = threading.Event()

    def work(feeder: Feeder) -> None:
        while not end_event.wait(poll_seconds):
            feeder.feed()
        while not feeder.end(status()):
            sleep(poll_seconds)

    threads = [threading.Thread(target=work, args=(feeder,), daemon=True) for feeder in feeders]
    for thread in threads:
        thread.start()
    reported_names, deadline = set[str](), float("inf")
    while any(thread.is_alive() for thread in threads) and monotonic() < deadline:
        if not end_event.is_set() and not is_alive():
            end_event.set()
            deadline = monotonic() + last_seconds
        for feeder in feeders:
            name, busy_since = feeder.tracker.name, feeder.busy_since
            if name not in reported_names and busy_since is not None and monotonic() - busy_since > hangs_after_seconds:
                reported_names.add(name)
                feeder.report(f"{name} does not answer", "training continues without it")
        for thread in threads:
            thread.join(poll_seconds / len(threads))


def _report_through(fd: int) -> ReportProblem:
    def report(message: str, hint: str) -> None:
        line = json.dumps({"message": message, "hint": hint}) + "\n"
        print(line, end="", file=sys.stderr, flush=True)
        with suppress(OSError):  # the process that reads the pipe has ended
            os.write(fd, line.encode())

    return report


if __name__ == "__main__":
    main(sys.argv[1:])
