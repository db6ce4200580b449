"""Shapes of well-known models, which can be planned before anything is downloaded.

Each entry of `catalogue.json` repeats the model's page on the hub: the fields of its config.json that decide the shape,
and the number of its weights, which a test compares with the model that transformers builds. Models whose number of
weights could not be confirmed have no entry. `python -m tests.catalogue_rows CONFIG.json --name NAME` makes one.

Entries of encoders and encoder-decoders do not describe weight files, because older files contain heads that a task
replaces.
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
    """Exact number of weights of the architecture in config.json; shared weights count once."""
    weights_bytes: int | None
    """Bytes of all stored tensors, or None. Files may have more than the architecture; `source` then says so."""
    gated: bool
    """Whether the hub requires an account that accepted the model's terms, when the entry was written."""
    license: str
    """The hub's name of the license."""
    source: str
    config: Mapping[str, Any]
    """The fields of its config.json that decide the shape."""


@cache
def all_entries() -> tuple[CatalogueEntry, ...]:
    """Return every entry, family by family."""
    return tuple(CatalogueEntry(name=name, **row) for name, row in json.loads(DATA.read_text("utf-8")).items())


def find_catalogue_entry(name: str) -> CatalogueEntry | None:
    """Return the entry of a model by its name on the hub, in any case, or None.

    The organisation may be omitted where only one has a model of that name: `distilgpt2`."""
    lower_name = name.strip().lower()
    for entry in all_entries():
        if entry.name.lower() == lower_name:
            return entry
    matching_entries = [entry for entry in all_entries() if entry.name.rpartition("/")[2].lower() == lower_name]
    return matching_entries[0] if len(matching_entries) == 1 else None
