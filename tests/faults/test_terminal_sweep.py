"""The sweep of terminals, once, with a real shell: `python -m tests.faults.terminal_sweep` repeats every way."""

import pytest

from tests.faults.terminal_sweep import sweep


@pytest.mark.e2e
@pytest.mark.parametrize("way", ["leave, close while training", "SIGSTOP, fg, SIGSTOP, bg, fg in the screens"])
def test_a_run_outlives_what_its_terminal_goes_through(way):
    assert sweep(way, "script", 1) == []
