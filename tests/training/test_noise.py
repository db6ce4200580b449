"""NEFTune adds noise to the input embeddings, in training only."""

from __future__ import annotations

import math

import torch

from tests.tiny_models import TRAINED, tiny_model
from tui_trainer.config.sections import TuningSection
from tui_trainer.training.components import add_noise
from tui_trainer.tuning import find_method

ALPHA = 5.0
IDS = torch.arange(4, 20).reshape(2, 8)


def logits_of(model) -> torch.Tensor:
    more = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    return model(input_ids=IDS, **more).logits


def test_every_family_reads_noise_in_training_only(subtests):
    for family in sorted({*TRAINED, "t5", "bart", "bert", "distilbert", "modernbert"}):
        with subtests.test(family):
            assert_reads_noise_in_training_only(family)


def assert_reads_noise_in_training_only(family):
    model = tiny_model(family).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.layerdrop = 0.0
    noise: list[torch.Tensor] = []
    add_noise(model, ALPHA)
    reads = model.get_encoder() if model.config.is_encoder_decoder else model
    embeddings = reads.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, given, out: noise.append(out - module.weight[IDS]))
    with torch.no_grad():
        torch.manual_seed(3)
        one = logits_of(model)
        other = logits_of(model)
        torch.manual_seed(3)
        assert torch.equal(one, logits_of(model)) and not torch.equal(one, other)
        model.eval()
        assert torch.equal(logits_of(model), logits_of(model))
    most = ALPHA / math.sqrt(IDS.shape[1] * noise[0].shape[-1])
    if not hasattr(embeddings, "embed_scale"):
        assert 0.8 * most < noise[0].abs().max() <= most * 1.0001
        assert not noise[-1].any()


def test_an_adapted_model_reads_noise_too():
    model = find_method("lora").apply(tiny_model("llama"), TuningSection(method="lora", r=4), seed=5, autocast=False)
    add_noise(model, ALPHA)
    with torch.no_grad():
        assert not torch.equal(logits_of(model.train()), logits_of(model))
