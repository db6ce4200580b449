"""The checklists of the guides as views of ours: their items in their order, each with the checks that look at it."""

import re
from collections.abc import Sequence

from tui_trainer.checklist.contract import Check, Finding

GUIDES = {
    "A": ("A quick win", "quick wins of guide A, a trainer of small language models"),
    "C": ("C checklist", "before training, guide C: LoRA of large models on one card"),
    "D": ("D quick win", "quick wins of guide D, classes and tags on rented cards"),
    "E": ("E should see", "what one should see, guide E: a character model from scratch"),
}
"""By their letters: how the places in them begin, and what they are. Guide B has no list."""


def items_of(check: Check, guide: str) -> list[int]:
    """The numbers of the items that a check looks at; none where it is not on the list of that guide."""
    numbered = re.compile(re.escape(GUIDES[guide][0]) + r" (\d+)")
    return sorted(int(match[1]) for place in check.guides if (match := numbered.match(place)))


def of_guide(findings: Sequence[Finding], guide: str) -> list[Finding]:
    """Those of one guide, in its order."""
    listed = [one for one in findings if items_of(one.check, guide)]
    return sorted(listed, key=lambda one: (items_of(one.check, guide), one.check.order))
