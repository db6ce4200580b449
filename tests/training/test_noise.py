"""NEFTune: noise on the embeddings of what a model reads, in training alone."""

from __future__ import annotations

import math

import pytest
import torch

from tests.tiny_models import TRAINED, tiny_model
from tui_trainer.config.sections import TuningSection
from tui_trainer.training.components import add_noise
from tui_trainer.tuning import find_method

ALPHA = 5.0
IDS = torch.arange(4, 20).reshape(2, 8)


def hidden_of(model) -> torch.Tensor:
    more = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    return model(input_ids=IDS, **more).logits


@pytest.mark.parametrize("family", sorted({*TRAINED, "t5", "bart", "bert", "distilbert", "modernbert"}))
def test_every_family_reads_noise_in_training_and_none_else(family):
    model = tiny_model(family).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.layerdrop = 0.0
    found: list[torch.Tensor] = []
    add_noise(model, ALPHA)
    reads = model.get_encoder() if model.config.is_encoder_decoder else model
    embeddings = reads.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, given, out: found.append(out - module.weight[IDS]))
    with torch.no_grad():
        torch.manual_seed(3)
        one = hidden_of(model)
        other = hidden_of(model)
        torch.manual_seed(3)
        assert torch.equal(one, hidden_of(model)) and not torch.equal(one, other)
        model.eval()
        assert torch.equal(hidden_of(model), hidden_of(model))
    most = ALPHA / math.sqrt(IDS.shape[1] * found[0].shape[-1])
    if not hasattr(embeddings, "embed_scale"):
        assert 0.8 * most < found[0].abs().max() <= most * 1.0001
        assert not found[-1].any()


def test_an_adapted_model_reads_it_too():
    model = find_method("lora").apply(tiny_model("llama"), TuningSection(method="lora", r=4), seed=5, autocast=False)
    add_noise(model, ALPHA)
    with torch.no_grad():
        assert not torch.equal(hidden_of(model.train()), hidden_of(model))
