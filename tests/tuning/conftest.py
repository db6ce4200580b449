"""A tiny model in a folder, for all tests of tuning methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def base(tmp_path: Path) -> Callable[..., Any]:
    """`base(family)`: a model from a folder, so that an adapter can name what it belongs to; the same each time."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.tiny_models import save_tiny_model

    def load(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
        folder = tmp_path / family
        if not folder.exists():
            save_tiny_model(folder, family, **changes)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    return load
