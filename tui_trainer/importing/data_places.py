"""Where other tools say their data is. Most of them take a path and a name on the hub in the same place."""

from __future__ import annotations

from typing import Any

from tui_trainer.data.sources.hub import PREFIX
from tui_trainer.hub_layout import could_be_on_the_hub, is_hub_name
from tui_trainer.local_paths import is_here


def data_place(value: Any) -> Any:
    """`owner/name` as `hub:owner/name` where no such path is here; everything else as it is."""
    is_name = isinstance(value, str) and "/" in value and could_be_on_the_hub(value) and not is_here(value)
    return f"{PREFIX}{value}" if is_name else value


def data_set_name(value: Any) -> Any:
    """The same where the name is never a file's. Raises ValueError for a name without its owner."""
    if isinstance(value, str) and is_hub_name(value) and "/" not in value and not is_here(value):
        raise ValueError("data sets of the hub are named with their owner here; set data.path to hub:owner/name")
    return data_place(value)
