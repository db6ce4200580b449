"""Kernels of libraries in a model: what they change is taken back, and nothing is fetched for them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import MethodType, SimpleNamespace

import pytest
import torch
from huggingface_hub import constants

from tests.simulated_card.module_stand_ins import imported_as, modules_named
from tests.tiny_models import tiny_model
from tui_trainer.training import fused_kernels
from tui_trainer.training.fused_kernels import taken_back, use_kernels

HUB = "transformers.integrations.hub_kernels.get_kernel_mapping_transformers"
CPU = torch.device("cpu")


def everything(model):
    names = sys.modules[type(model).__module__]
    return [dict(vars(names)), *(dict(vars(module)) for module in model.modules())]


@pytest.fixture
def hub(monkeypatch):
    """The library kernels, with these layers in its cache; what it was asked."""
    asked = SimpleNamespace(cached=("RMSNorm",), mapping=None, offline=None)

    @contextmanager
    def use_kernel_mapping(mapping, *, inherit_mapping):
        assert not inherit_mapping
        asked.mapping = mapping
        yield

    def kernelize(model, *, device, mode, use_fallback):
        asked.offline = constants.HF_HUB_OFFLINE
        for module in model.modules():
            if type(module).__name__.endswith(tuple(name for name in asked.mapping if name in asked.cached) or "\0"):
                module.forward = MethodType(lambda self, x: x, module)

    modules = modules_named("kernels")
    vars(modules["kernels"]).update(
        use_kernel_mapping=use_kernel_mapping, kernelize=kernelize, Mode=SimpleNamespace(TRAINING="training")
    )
    known = dict.fromkeys(("RMSNorm", "SwiGLUMLP", "Linear", "ForCausalLMLoss", "SiLU"), "a repository")
    monkeypatch.setattr(HUB, lambda: known, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with imported_as(modules):
        yield asked


def test_kernels_of_the_hub_are_those_in_the_cache_and_neither_losses_nor_linear_layers(hub):
    model = tiny_model("llama")
    before = everything(model)
    with taken_back():
        assert fused_kernels._switch_on(model, "hub") == 5, "two norms of two layers, and the last"
        assert hub.mapping.keys() == {"RMSNorm", "SwiGLUMLP"}
        assert hub.offline and not constants.HF_HUB_OFFLINE, "offline for that time only"
    assert everything(model) == before


def test_without_any_in_the_cache_the_command_is_named_that_fetches_them(hub):
    hub.cached = ()
    with taken_back(), pytest.raises(LookupError, match="hf download kernels-community/liger-kernels"):
        fused_kernels._switch_on(tiny_model("llama"), "hub")


def test_a_run_that_goes_on_without_a_gpu_is_told_that_they_are_off():
    told = []
    run = SimpleNamespace(device=CPU)
    assert use_kernels(run, "liger", None, lambda *what: told.append(what)) == "none"
    assert [what[:2] for what in told] == [("kernels not used", "liger-kernel is for GPUs")]
    assert use_kernels(run, "none", None, lambda *what: told.append(what)) == "none" and len(told) == 1
