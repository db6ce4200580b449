"""Some of `python -m tests.faults.random_keys`, which presses thousands."""

import pytest

from tests.faults.random_keys import press_at_random


@pytest.mark.e2e
@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
def test_no_key_ends_the_screens_in_an_error(size):
    assert press_at_random(400, 7, size) >= 1
