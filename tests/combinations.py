"""Combinations of parameters: a few without a mark, the others with the marks e2e or slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def first_by_default(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return all values as parameters. All but the first `count` have the mark e2e."""
    return [pytest.param(value, marks=() if n < count else pytest.mark.e2e) for n, value in enumerate(values)]


def in_the_sweep(*values: Any) -> Any:
    """Return a parameter with the mark e2e."""
    return pytest.param(*values, marks=pytest.mark.e2e)


def each_pair_once(*axes: Iterable[Any], is_possible: Callable[..., bool], rest: bool) -> list[Any]:
    """Return possible combinations that cover each pair of values of two axes.

    Those that cover each single value have no mark, the others e2e. With `rest`, all other possible combinations follow
    with the mark slow; they take hours.
    """
    possible = [values for values in product(*axes) if is_possible(*values)]
    pairs = list(_covering(possible, 2))
    default = set(_covering(pairs, 1))
    marks = {values: () if values in default else pytest.mark.e2e for values in pairs}
    return [
        pytest.param(*values, marks=marks.get(values, pytest.mark.slow))
        for values in (possible if rest else filter(marks.__contains__, possible))
    ]


def _covering(possible: Sequence[tuple[Any, ...]], together: int) -> Iterator[tuple[Any, ...]]:
    """Yield combinations greedily until all values (or groups of `together` values) are covered."""
    found = {values: set(combinations(enumerate(values), together)) for values in possible}
    missing = set().union(*found.values())
    while missing:
        best = max(possible, key=lambda values: len(found[values] & missing))
        missing -= found[best]
        yield best
