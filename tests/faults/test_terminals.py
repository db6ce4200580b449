"""A part of the sweeps of terminals. `python -m tests.faults.random_keys` presses thousands of keys, and
`python -m tests.faults.terminal_sweep` repeats every way to leave a run."""

import pytest

pytestmark = pytest.mark.e2e


def test_no_key_ends_the_screens_in_an_error():
    from tests.faults.random_keys import press_at_random

    assert press_at_random(400, 7, (60, 20)) >= 1


def test_a_run_outlives_its_terminal():
    from tests.faults.terminal_sweep import sweep

    assert sweep("leave, close while training", "script", 1) == []
