"""Threads for slow work, so that no key press has to wait. Each thread does one piece of work after another.

The threads never touch the screen: results are handled in the event loop. They are daemon threads, because no work has
to be finished before the program ends.
"""

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

Work = Callable[[], Any]
Answer = Callable[[Any], None]


class GivenUp(Exception):
    """Raised by work whose result is no longer needed. The answer callback is not called then."""


class Background:
    """Queues of named work. New work replaces waiting work of the same name.

    Each lane has its own thread, so a disk or a process that does not respond delays only its own lane.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Callable[[Exception], None]) -> None:
        self._loop = loop
        # Callbacks run in this context, because Textual finds its application there.
        self._context = copy_context()
        self._on_failure = failed
        self._waiting: dict[str, OrderedDict[str, tuple[Work, Answer]]] = {}
        self._busy_with: dict[str, str] = {}
        self._newest: Counter[str] = Counter()
        """Number of requests so far, by the name of the work."""
        self._changed = threading.Condition()
        self._is_over = False

    def run_work(self, name: str, work: Work, answer: Answer, lane: str = "") -> None:
        """Run `work` in the lane's thread, then `answer(result)` in the event loop unless newer work has this name."""
        with self._changed:
            if lane not in self._waiting:
                self._waiting[lane] = OrderedDict()
                threading.Thread(target=self._work_on, args=(lane,), name=f"background {lane}", daemon=True).start()
            self._newest[name] += 1
            self._waiting[lane].pop(name, None)
            self._waiting[lane][name] = (work, answer)
            self._changed.notify_all()

    def end(self) -> None:
        """Call no more callbacks."""
        self._is_over = True

    def is_busy(self, name: str) -> bool:
        with self._changed:
            return name in self._names

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._names

    def finish(self, name: str, patience_seconds: float) -> None:
        """Wait until the named work is over. Call only after the screens have closed: this blocks the event loop."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._names, patience_seconds)

    @property
    def _names(self) -> set[str]:
        return {*self._busy_with.values(), *(name for lane_work in self._waiting.values() for name in lane_work)}

    def _work_on(self, lane: str) -> None:
        waiting_work = self._waiting[lane]
        while True:
            with self._changed:
                while not waiting_work:
                    self._changed.wait()
                name, (work, answer) = waiting_work.popitem(last=False)
                self._busy_with[lane] = name
                request_number = self._newest[name]
            callback: Callable[[], None] | None = None
            try:
                try:
                    result = work()
                except ImportError:
                    # transformers replaces its module while it is imported, so a thread that asks it for a name at
                    # the same moment gets the former module, which has no names.
                    result = work()
                callback = partial(self._answer, name, request_number, answer, result)
            except GivenUp:
                pass
            except Exception as error:  # reported in the event loop
                callback = partial(self._on_failure, error)
            with self._changed:
                # Both under the lock: once the work counts as over, its callback is scheduled, and not before.
                if callback and not self._is_over:
                    with suppress(RuntimeError):  # the event loop is closed
                        self._loop.call_soon_threadsafe(callback, context=self._context)
                del self._busy_with[lane]
                self._changed.notify_all()

    def _answer(self, name: str, number: int, answer: Answer, result: Any) -> None:
        if self._is_over or number != self._newest[name]:
            return
        try:
            answer(result)
        except Exception as error:  # asyncio would only log the error
            self._on_failure(error)
