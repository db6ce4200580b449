"""What other tools have under names that a person may write here: why it is not here, and what to take instead."""

from __future__ import annotations

from typing import Final

STRATEGY: Final = "distributed.strategy"

VALUES: Final = {
    (STRATEGY, "tp"): "layers are not split by width: fsdp splits a model that is too large for one card",
}
"""By setting and value."""
SETTINGS: Final = {
    "model.provider": "Hugging Face's libraries build the model; Unsloth needs older versions of them than are here",
}
