"""Facts that decide the attention kernel, read from models of every family that has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel

from tests.tiny_models import SHAPES, tiny_model
from tui_trainer.config.sections import ModelSection
from tui_trainer.models.loading import new_model
from tui_trainer.models.modules import soft_cap_of

pytestmark = pytest.mark.full

GATED = {**SHAPES["llama"], "head_dim": 8}
SIX = torch.arange(3, 9)[None]
# Those with text alone: VideoPrism sees pictures, and T5Gemma is built from two configs.
CAPPED, WITH_OTHERS = {"gemma2", "vaultgemma"}, {"t5gemma", "videoprism"}


@pytest.fixture
def shapes(monkeypatch):
    for family in CAPPED | {"gemma3_text", "nanochat"}:
        monkeypatch.setitem(SHAPES, family, GATED)


def test_every_family_with_a_soft_cap_is_known():
    folder = Path(transformers.__file__).parent / "models"
    files = sorted(folder.glob("*/modeling_*.py"))
    handing = {path.parent.name for path in files if re.search(r"softcap=self\.\w+", path.read_text(encoding="utf-8"))}
    assert len(files) > 300 and handing == CAPPED | WITH_OTHERS


@pytest.mark.parametrize("family", sorted(CAPPED))
def test_scores_are_capped_even_if_transformers_would_choose_sdpa(family, shapes, monkeypatch):
    """transformers 5.17 reports SDPA as supported and ignores the cap there."""
    config = tiny_model(family, attn_logit_softcapping=0.01).config
    for cls in (Gemma2PreTrainedModel, *_classes_of(family)):
        monkeypatch.setattr(cls, "_supports_sdpa", True)
    config._attn_implementation_internal = None
    model = new_model(config, ModelSection(), torch.float32).eval()
    assert soft_cap_of(model) == 0.01
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        capped = model(SIX).logits
        for module in model.modules():
            if hasattr(module, "attn_logit_softcapping"):
                module.attn_logit_softcapping = None
        assert (model(SIX).logits - capped).abs().max() > 1e-6


@pytest.mark.parametrize("family", ["gemma3_text", "nanochat", "llama"])
def test_a_cap_of_logits_alone_is_no_soft_cap_of_scores(family, shapes):
    assert soft_cap_of(tiny_model(family)) == 0.0


def _classes_of(family: str) -> list[type]:
    module = __import__(f"transformers.models.{family}.modeling_{family}", fromlist=["_"])
    return [cls for cls in vars(module).values() if isinstance(cls, type) and hasattr(cls, "_supports_sdpa")]
