"""Shapes of well-known models, so that they can be planned before anything is downloaded. An unknown name is None.

Each row of `catalogue.json` repeats what the model's own page on the hub says: the fields of its config.json that
decide the shape, and the count of its weights, which a test compares with the model as transformers builds it. A model
whose count could not be confirmed in this way has no row.
`python -m tests.catalogue_rows CONFIG.json --name NAME` makes one.

Rows of encoders, alone or with a decoder, tell nothing of files with weights: old ones hold heads beside the model,
which a task makes anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueEntry:
    name: str
    parameters: int
    """Exact, of the architecture that its config.json names; weights that two layers share are counted once."""
    weights_bytes: int | None
    """Of all tensors in its safetensors files, which may hold more than the parameters: `source` says so. None where
    they were not looked at."""
    gated: bool
    """Whether the hub asks for an account that has agreed to its terms; the hub has the last word."""
    license: str
    """By the hub's name for it."""
    source: str
    config: Mapping[str, Any]
    """As in its config.json, without what does not decide the shape."""


@cache
def all_entries() -> tuple[CatalogueEntry, ...]:
    """Every row, family by family."""
    return tuple(CatalogueEntry(name=name, **row) for name, row in json.loads(DATA.read_text("utf-8")).items())


def find_shape(name: str) -> CatalogueEntry | None:
    """The row of a model by its name on the hub, upper and lower case alike.

    The organisation may be left out where only one has a model of that name: `distilgpt2`.
    """
    wanted = name.strip().lower()
    for entry in all_entries():
        if entry.name.lower() == wanted:
            return entry
    alike = [entry for entry in all_entries() if entry.name.rpartition("/")[2].lower() == wanted]
    return alike[0] if len(alike) == 1 else None
