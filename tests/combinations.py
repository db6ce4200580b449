"""Combinations of parameters: all of them with the mark e2e, and enough of them for the default run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def first_by_default(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The first `count` values for the default run; the rest has the mark e2e."""
    return [pytest.param(value, marks=() if n < count else pytest.mark.e2e) for n, value in enumerate(values)]


def in_the_sweep(*values: Any) -> Any:
    """One case of several, which is not in the default run."""
    return pytest.param(*values, marks=pytest.mark.e2e)


def each_value_once(*axes: Iterable[Any]) -> list[Any]:
    """The product of `axes`. The k-th values of all axes, shorter ones from their start again, are in the default run:
    each value of each axis is. The rest has the mark e2e.
    """
    lists = [list(axis) for axis in axes]
    default = {tuple(place % len(values) for values in lists) for place in range(max(map(len, lists)))}
    return [
        pytest.param(
            *(values[place] for values, place in zip(lists, places, strict=True)),
            marks=() if places in default else pytest.mark.e2e,
        )
        for places in product(*(range(len(values)) for values in lists))
    ]


def each_pair_once(*axes: Iterable[Any], is_possible: Callable[..., bool], rest: bool) -> list[Any]:
    """As little of the product of `axes` as has each pair of values of two axes that any of what is possible has. So
    much of it as has each value is in the default run, the others have the mark e2e. With `rest` all that is possible,
    hours of it with the mark slow."""
    possible = [values for values in product(*axes) if is_possible(*values)]
    pairs = list(_covering(possible, 2))
    default = set(_covering(pairs, 1))
    marks = {values: () if values in default else pytest.mark.e2e for values in pairs}
    return [
        pytest.param(*values, marks=marks.get(values, pytest.mark.slow))
        for values in (possible if rest else filter(marks.__contains__, possible))
    ]


def _covering(possible: Sequence[tuple[Any, ...]], together: int) -> Iterator[tuple[Any, ...]]:
    """Whichever has the most values, or pairs of values `together`, that are still missing, until none is."""
    found = {values: set(combinations(enumerate(values), together)) for values in possible}
    missing = set().union(*found.values())
    while missing:
        best = max(possible, key=lambda values: len(found[values] & missing))
        missing -= found[best]
        yield best
