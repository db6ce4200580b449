"""A part of the sweeps of terminals. `python -m tests.faults.random_keys` presses thousands of keys, and
`python -m tests.faults.terminal_sweep` repeats every way to leave a run."""

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
def test_no_key_ends_the_screens_in_an_error(size):
    from tests.faults.random_keys import press_at_random

    assert press_at_random(400, 7, size) >= 1


@pytest.mark.parametrize("way", ["leave, close while training", "SIGSTOP, fg, SIGSTOP, bg, fg in the screens"])
def test_a_run_outlives_what_its_terminal_goes_through(way):
    from tests.faults.terminal_sweep import sweep

    assert sweep(way, "script", 1) == []
