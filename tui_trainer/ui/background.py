"""Work that would make a key press wait: done one piece after the other in a thread, answered in the event loop.

The thread never touches the screen. It is a daemon: nothing that it does needs finishing.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import copy_context
from typing import Any


class GivenUp(Exception):
    """Raised by work that nobody waits for any more: there is no answer."""


Work = Callable[[], Any]
Answer = Callable[[Any], None]


class Background:
    """Pieces of work by name: a new one takes the place of one of the same name that has not begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Callable[[Exception], None]) -> None:
        self._loop = loop
        # Answers are heard where this was made: Textual looks there for its application.
        self._context = copy_context()
        self._failed = failed
        self._waiting: OrderedDict[str, tuple[Work, Answer]] = OrderedDict()
        self._changed = threading.Condition()
        self._busy_with = ""
        self._thread = threading.Thread(target=self._work_on, name="background", daemon=True)
        self._thread.start()

    def do(self, name: str, work: Work, answer: Answer) -> None:
        """Do `work` soon; `answer` gets its result in the event loop, unless newer work of this name came meanwhile."""
        with self._changed:
            self._waiting.pop(name, None)
            self._waiting[name] = (work, answer)
            self._changed.notify()

    def is_busy(self, name: str) -> bool:
        """Whether work of this name waits or is being done."""
        with self._changed:
            return name in self._waiting or self._busy_with == name

    def _work_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                name, (work, answer) = self._waiting.popitem(last=False)
                self._busy_with = name
            try:
                self._tell(self._answer, (name, answer, work()))
            except GivenUp:
                pass
            except Exception as error:  # what it was is told in the event loop, where it would have happened
                self._tell(self._failed, error)
            with self._changed:
                self._busy_with = ""

    def _answer(self, answered: tuple[str, Answer, Any]) -> None:
        name, answer, result = answered
        with self._changed:
            outdated = name in self._waiting
        if outdated:
            return
        try:
            answer(result)
        except Exception as error:  # an error of ours: it must not end in asyncio's log
            self._failed(error)

    def _tell(self, hear: Callable[[Any], None], what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(hear, what, context=self._context)
        except RuntimeError:  # the loop is closed: the screen is gone
            return
