"""The thread that reads keys: it does not ask ten times a second while nobody presses one, and hears each of them."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tui_trainer.ui import driver
from tui_trainer.ui.driver import ExitEvent


@pytest.fixture
def event():
    keys, _ = os.pipe()
    return ExitEvent(keys)


@pytest.fixture
def asked(event, monkeypatch):
    """`asked(0.1, 0.1)`: asks so many seconds one after the other, as Textual's thread does; how often it was held."""
    now, held = [0.0], [0]
    ready: list[int] = []

    def select(read, write, error, seconds):
        held[0] += 1
        return list(ready), [], []

    monkeypatch.setattr(driver, "monotonic", lambda: now[0])
    monkeypatch.setattr(driver, "select", select)

    def ask(*seconds, key=False):
        ready[:], held[0] = [0] if key else [], 0
        for one in seconds:
            now[0] += one
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(event.is_set).result() is False
        return held[0]

    return ask


def test_it_is_held_after_a_second_without_a_key(asked):
    assert asked(*[0.1] * 10) == 0
    assert asked(*[0.1] * 3) == 3


@pytest.mark.parametrize("how", ["while it is held", "between"])
def test_behind_a_key_it_asks_for_another_second(asked, how):
    asked(*[0.1] * 10)
    if how == "between":
        assert asked(0.01) == 0
    else:
        assert asked(0.1, key=True) == 1
    # What an escape begins is taken for a key of its own a tenth of a second later.
    assert asked(*[0.1] * 10) == 0
    assert asked(0.1) == 1


def test_the_end_lets_it_go_and_the_one_who_ends_it_is_never_held(event, monkeypatch):
    monkeypatch.setattr(event, "_quiet_rounds", 100)
    assert not event.is_set()
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(event.is_set)
        event.set()
        assert held.result(5) and event.is_set()
    event.clear()
    assert not event.is_set()
