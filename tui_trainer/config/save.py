"""A Config as TOML: only what the user wrote, on top of the profiles it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from tui_trainer.config.load import LoadedConfig, all_settings, value_of
from tui_trainer.config.paths import absolute
from tui_trainer.config.sections import SCHEMA_VERSION
from tui_trainer.config.toml_files import nest


def to_toml(loaded: LoadedConfig) -> str:
    """TOML that `load` turns into the same Config on the same machine."""
    flat: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if loaded.recipe:
        name = value_of(loaded.config, "profile") or loaded.recipe.name
        flat["profile"] = absolute(name) if name.endswith(".toml") else name
    for key in all_settings():
        # A recipe may name its data from where it lies: the run has the whole path.
        from_recipe = key == "data.path" and Path(loaded.config.data.path).is_absolute()
        if (loaded.origin(key).by_user or from_recipe) and key not in flat:
            flat[key] = value_of(loaded.config, key)
    return tomli_w.dumps(nest(flat))
