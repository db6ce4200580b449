"""Runs one experiment of `tests.gpu.day` to its end, whatever that is: done, failed, at its limit, or cut short.

    python -m tests.gpu.keeper NAME --results FILE --work FOLDER --limit SECONDS --parent PID -- COMMAND

Adds the line of its end to the results. The command is given a folder of its own, which is
removed afterwards, and ends with every process that it started, whatever session these are in: on Linux they are handed
to the keeper when their parents end. A keeper whose own parent is killed is asked to stop by the kernel. What a killed
keeper leaves, `day` ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic

import psutil

from tests.gpu.results import SKIPPED, append, now

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_POLL_SECONDS, _ERROR_LINES, _LINE_CHARACTERS = 0.1, 15, 500
# A process in the driver may take seconds to go.
_LONGEST_END_SECONDS = 30.0


def adopt_orphans() -> None:
    """Become the parent of all processes below this one whose own parents end."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> bool:
    """Kill every process below this one; whether none is left."""
    until = monotonic() + _LONGEST_END_SECONDS
    while (found := psutil.Process().children(recursive=True)) and monotonic() < until:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=1)
    return not found


def keep(
    name: str,
    command: list[str],
    results: Path,
    work: Path,
    *,
    limit_seconds: float,
    may_take_seconds: float,
    stop: Event,
) -> None:
    """Run the command to its end: `done`, `skipped`, `failed`, `timeout`, or `interrupted`: by a signal, or by a limit
    that is shorter than what it may take."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    started, output = monotonic(), work / "output.txt"
    state, reason = "done", ""
    with output.open("wb") as file:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=work)
    while child.poll() is None and monotonic() - started < limit_seconds and not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
    if stop.is_set():
        state, reason = "interrupted", "the call was stopped"
    elif child.poll() is None and limit_seconds < may_take_seconds:
        state, reason = "interrupted", f"the call ended after {limit_seconds:.0f} s of it"
    elif child.poll() is None:
        state, reason = "timeout", f"not done in {limit_seconds:.0f} s"
    elif child.returncode:
        state, reason = "failed", f"exit code {child.returncode}"
    if not end_descendants():
        reason += "; a process of it could not be ended"
    text = output.read_text(encoding="utf-8", errors="replace")
    said = [row[:_LINE_CHARACTERS] for row in text.splitlines() if row.strip()][-_ERROR_LINES:]
    if state == "failed" and child.returncode == SKIPPED:
        state, reason, said = "skipped", said[-1] if said else "", []
    append(results, {"name": name, "state": state, "reason": reason, "seconds": round(monotonic() - started, 1),
                     "at": now(), "error": said if state in ("failed", "timeout") else []})  # fmt: skip
    shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--may-take", type=float, default=0.0)
    parser.add_argument("--parent", type=int, required=True)
    chosen = parser.parse_args(sys.argv[1:at])
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != chosen.parent:
        stop.set()
    adopt_orphans()
    keep(chosen.name, sys.argv[at + 1 :], chosen.results, chosen.work, limit_seconds=chosen.limit,
         may_take_seconds=chosen.may_take, stop=stop)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
