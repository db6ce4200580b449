"""A limit on the processor time that one rendering of a chat template takes: a loop in it may have no end.

A thread looks on and raises an exception in the one that renders. Processor time, not the clock: a program may be
suspended, and a machine busy with others.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
# The longest conversations take a fraction of a second.
LIMIT_SECONDS = 5.0
_LOOKS_EVERY_SECONDS = 0.25
_IDLE_LOOKS = 40


class RenderingTooLongError(Exception):
    """It took more than `LIMIT_SECONDS` of processor time, and was ended."""


class _Ended(BaseException):
    """Raised from outside, at any moment: no `except Exception` of a library may take it."""


@dataclass(slots=True, eq=False)
class _Rendering:
    """Of one thread. `done` and `is_raised` are each written by one side before it reads the other's."""

    thread: int
    clock: int
    until: float
    done: bool = False
    is_raised: bool = False
    is_taken_back: bool = False
    has_arrived: bool = False


@dataclass(slots=True)
class _Watch:
    renderings: set[_Rendering] = field(default_factory=set)
    starting: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None

    def add(self, rendering: _Rendering) -> None:
        with self.starting:
            self.renderings.add(rendering)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._look_on, name="chat template", daemon=True)
                self.thread.start()

    def _look_on(self) -> None:
        idle = 0
        while True:
            time.sleep(_LOOKS_EVERY_SECONDS)
            found = list(self.renderings)
            for one in found:
                if not one.is_raised and time.clock_gettime(one.clock) > one.until:
                    self._end(one)
            idle = 0 if found else idle + 1
            with self.starting:
                if idle > _IDLE_LOOKS and not self.renderings:
                    self.thread = None
                    return

    def _end(self, one: _Rendering) -> None:
        one.is_raised = True
        if one.done:
            one.is_taken_back = True
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(one.thread), ctypes.py_object(_Ended))


_watch = _Watch()


def _begin_anew() -> None:
    """In a forked process, which has none of the threads."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_begin_anew)


def limited(render: Callable[[], T]) -> T:
    """What `render` gives. Raises RenderingTooLongError."""
    thread = threading.get_ident()
    clock = time.pthread_getcpuclockid(thread)
    one = _Rendering(thread, clock, time.clock_gettime(clock) + LIMIT_SECONDS)
    watch = _watch
    try:
        watch.add(one)
        try:
            return render()
        except _Ended:
            one.has_arrived = True
            raise
        finally:
            one.done = True
            # What was raised arrives here, and nowhere behind.
            while one.is_raised and not (one.is_taken_back or one.has_arrived):
                time.sleep(0.001)
    except _Ended:
        raise RenderingTooLongError from None
    finally:
        watch.renderings.discard(one)
