"""Work that would make a key press wait: in a thread, piece after piece.

The thread never touches the screen: it is answered in the event loop. It is a daemon: nothing that it does needs
finishing.
"""

from __future__ import annotations

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
    """Raised by work that nobody waits for any more: there is no answer."""


class Background:
    """Pieces of work by name: a new one takes the place of one of the same name that has not begun.

    Each lane has a thread of its own: what waits for a disk that does not answer, or for a process that never does,
    holds up nothing of another lane.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Callable[[Exception], None]) -> None:
        self._loop = loop
        # Answers are heard where this was made: Textual looks there for its application.
        self._context = copy_context()
        self._failed = failed
        self._waiting: dict[str, OrderedDict[str, tuple[Work, Answer]]] = {}
        self._busy_with: dict[str, str] = {}
        self._newest: Counter[str] = Counter()
        """How often work of each name was asked for."""
        self._changed = threading.Condition()
        self._is_over = False

    def do(self, name: str, work: Work, answer: Answer, lane: str = "") -> None:
        """Do `work` soon; `answer` gets its result in the event loop, unless newer work of this name came meanwhile."""
        with self._changed:
            if lane not in self._waiting:
                self._waiting[lane] = OrderedDict()
                threading.Thread(target=self._work_on, args=(lane,), name=f"background {lane}", daemon=True).start()
            self._newest[name] += 1
            self._waiting[lane].pop(name, None)
            self._waiting[lane][name] = (work, answer)
            self._changed.notify_all()

    def end(self) -> None:
        """Nobody hears answers any more."""
        self._is_over = True

    def is_busy(self, name: str) -> bool:
        with self._changed:
            return name in self._names

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._names

    def finish(self, name: str, patience_seconds: float) -> None:
        """Wait for work that must not be lost. Only for when there are no screens any more that would stand still."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._names, patience_seconds)

    @property
    def _names(self) -> set[str]:
        return {*self._busy_with.values(), *(name for waiting in self._waiting.values() for name in waiting)}

    def _work_on(self, lane: str) -> None:
        waiting = self._waiting[lane]
        while True:
            with self._changed:
                while not waiting:
                    self._changed.wait()
                name, (work, answer) = waiting.popitem(last=False)
                self._busy_with[lane] = name
                number = self._newest[name]
            tell: Callable[[], None] | None = None
            try:
                tell = partial(self._answer, name, number, answer, work())
            except GivenUp:
                pass
            except Exception as error:  # what it was is told in the event loop, where it would have happened
                tell = partial(self._failed, error)
            with self._changed:
                # In one: who hears the answer finds the work over, and who finds it over will have heard.
                if tell and not self._is_over:
                    with suppress(RuntimeError):  # the loop is closed: the screen is gone
                        self._loop.call_soon_threadsafe(tell, context=self._context)
                del self._busy_with[lane]
                self._changed.notify_all()

    def _answer(self, name: str, number: int, answer: Answer, result: Any) -> None:
        if self._is_over or number != self._newest[name]:
            return
        try:
            answer(result)
        except Exception as error:  # an error of ours: it must not end in asyncio's log
            self._failed(error)
