"""Presets that do not fit what the user chose: the value is changed, and that is told."""

from dataclasses import replace
from typing import Any

from tui_trainer.config.load import Layer, LoadedConfig, value_of


def fitted(loaded: LoadedConfig, key: str, value: Any, why: str) -> LoadedConfig:
    """The same with another value for a setting in a table. `why` ends the note that tells it, and what
    is said of the place that the value comes from.

    For values of presets and defaults only: what the user wrote is refused where it does not fit, and not changed.
    """
    table, _, name = key.rpartition(".")
    before, origin = value_of(loaded.config, key), loaded.where(key)
    section = value_of(loaded.config, table).model_copy(update={name: value})
    layer = Layer(origin=loaded.origin(key), where=f"{origin}, but {why}", values={key: value})
    return replace(
        loaded,
        config=loaded.config.model_copy(update={table: section}),
        layers={**loaded.layers, key: layer},
        notes=(*loaded.notes, f"{key} is {value} and not {before} ({origin}): {why}"),
    )
