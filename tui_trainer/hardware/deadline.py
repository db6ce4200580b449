"""A question that may never be answered: a driver that hangs, a file server that is gone."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, ask: Callable[[], T]) -> T | None:
    """What `ask` returns, or None when it takes longer; then its daemon thread is left behind and stops nobody."""
    answers: list[T] = []
    thread = Thread(target=lambda: answers.append(ask()), name="tui-trainer-asks", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None
