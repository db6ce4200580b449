"""Combinations of parameters: all of them with the mark e2e, and enough of them for the default run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


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
