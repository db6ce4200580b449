"""Memory of a card with a part of a model, as planned and as torch's tracker counts the product's own step."""

from __future__ import annotations

import pytest

from tests.benchmarks.split_memory import Case, compare

pytestmark = [pytest.mark.e2e]


@pytest.mark.parametrize(("method", "cards"), [("full", 8), ("lora", 2)])
def test_a_card_has_what_is_planned_for_its_part(method, cards):
    """Embedding, head and layers as wide as those of 8 B parameters, a few of them."""
    passes = 2 if cards > 2 else 1
    planned, tracked = compare(Case(shape="8b", layers=3, method=method, cards=cards, tokens=1024, accumulation=passes))
    assert tracked * 0.97 < planned < tracked * 1.1
