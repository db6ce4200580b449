"""Memory of a card with a part of a model: the plan against torch's tracker around the product's own step."""

from __future__ import annotations

import pytest

from tests.benchmarks.split_memory import Case, compare

pytestmark = [pytest.mark.e2e]


@pytest.mark.parametrize(("method", "cards"), [("full", 8), ("lora", 2)])
def test_a_part_of_a_model_takes_the_planned_memory(method, cards):
    """Take embedding, head and a few layers as wide as those of 8 B parameters."""
    passes = 2 if cards > 2 else 1
    planned, tracked = compare(Case(shape="8b", layers=3, method=method, cards=cards, tokens=1024, accumulation=passes))
    assert tracked * 0.97 < planned < tracked * 1.1
