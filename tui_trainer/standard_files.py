"""Standard input, output and error, any of which may be closed or have nobody at the other end."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from tui_trainer.errors import EXIT_FAILED
from tui_trainer.safe_text import one_line

# A terminal that sends Ctrl+C to a whole process group may reach this process twice, once through its parent.
ONE_PRESS_SECONDS = 0.3


def open_standard_files() -> None:
    """Where a standard file is closed, the first file that is opened would take its number, and prints go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def tell(sentence: str) -> None:
    """One line on standard error, whatever stands in the sentence. That nobody hears it changes no exit code."""
    if sys.stderr is not None:  # print() would take None for standard output
        with suppress(OSError, ValueError):
            print(f"tui-trainer: {one_line(sentence)}", file=sys.stderr, flush=True)


class Interrupts:
    """The first Ctrl+C asks for an end, the second one is it. `say_last` is called before it."""

    def __init__(self, say_last: Callable[[], None] = lambda: None) -> None:
        self._first: float | None = None
        self._say_last = say_last

    def note(self) -> None:
        now = monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first > ONE_PRESS_SECONDS:
            tell("left at once, without saving; `tui-trainer resume` goes on from the last checkpoint")
            self._say_last()
            os._exit(EXIT_FAILED)


def show_progress(what: str, done: float, total: float | None, unit: str) -> None:
    """How far work is that comes before a run, in place on a terminal's last line; gone when it is done."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    share = f"{done / total:4.0%} of " if total else ""
    line = "" if total and done >= total else f"{what} {share}{total or done:,.0f} {unit}"
    with suppress(OSError, ValueError):
        # Without wrapping: half of a line that is too long for the terminal would stay there.
        print(f"\r\x1b[K\x1b[?7l{one_line(line, 79)}\x1b[?7h", end="", file=sys.stderr, flush=True)


def write_progress(what: str, done: float, total: float | None, unit: str) -> None:
    """The same as a line of JSON on standard error, for programs."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(json.dumps({"what": what, "done": done, "total": total, "unit": unit}), file=sys.stderr, flush=True)


def silence_output() -> None:
    """What is still in the buffer would raise once more when the interpreter flushes it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
