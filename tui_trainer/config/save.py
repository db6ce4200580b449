"""A Config as TOML: only what the user wrote, on top of the profiles it starts from."""

from __future__ import annotations

from typing import Any

import tomli_w

from tui_trainer.config.load import LoadedConfig, all_settings, value_of
from tui_trainer.config.sections import SCHEMA_VERSION
from tui_trainer.config.toml_files import nest


def to_toml(loaded: LoadedConfig) -> str:
    """TOML that `load` turns into the same Config on the same machine."""
    flat: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if loaded.recipe:
        flat["profile"] = value_of(loaded.config, "profile") or loaded.recipe.name
    for key in all_settings():
        if loaded.origin(key).by_user and key not in flat:
            flat[key] = value_of(loaded.config, key)
    return tomli_w.dumps(nest(flat))
