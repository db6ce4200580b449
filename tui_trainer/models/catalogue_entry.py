"""One row of the catalogue of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueEntry:
    """One model of the hub."""

    name: str
    config: Mapping[str, Any]
    """As in its config.json, without what does not decide the shape."""
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


def page(name: str, weights_bytes: int | None) -> str:
    """Where the numbers of a row stand."""
    files = "" if weights_bytes is None else " and the metadata of its safetensors files"
    return f"huggingface.co/{name}: config.json{files}"
