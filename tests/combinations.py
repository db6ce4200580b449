"""Lists of parameters: a few without a mark, the others with the mark e2e."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_by_default(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return all values as parameters. All but the first `count` have the mark e2e."""
    return [pytest.param(value, marks=() if n < count else pytest.mark.e2e) for n, value in enumerate(values)]


def in_the_sweep(*values: Any) -> Any:
    """Return a parameter with the mark e2e."""
    return pytest.param(*values, marks=pytest.mark.e2e)
