"""A LoRA layer as one function is as close to float64 as the modules of peft, and kernels are for GPUs only."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from tui_trainer.training import fused_lora
from tui_trainer.training.fused_kernels import use_kernels
from tui_trainer.training.fused_lora import difference, switch_off, switch_on

# Settings of peft, numbers of the base layers, whether autocast is on.
CASES = {
    "fp32": ({}, torch.float32, False),
    "fp32, autocast": ({}, torch.float32, True),
    "bf16, autocast": ({}, torch.bfloat16, True),
    "a scale that is no power of two": ({"lora_alpha": 7, "use_rslora": True}, torch.bfloat16, True),
}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.crosswise = nn.Linear(24, 40), nn.Linear(40, 24, bias=False), Conv1D(24, 24)

    def forward(self, x):
        return self.crosswise(self.down(nn.functional.silu(self.up(x))))


def adapted(dtype=torch.float32, **settings):
    torch.manual_seed(3)
    model = Gated().to(dtype)
    model = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": ["up", "down"], **settings}))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) / 4
    return model


def results(model, dtype, autocast=False):
    """The output, the gradient of the input and those of the adapters, in fp64."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 9, 24, generator=generator).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        y = model(x)
    (y.double() * torch.randn(y.shape, generator=generator)).sum().backward()
    trained = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    return [tensor.double() for tensor in (y.detach(), x.grad, *trained)]


def test_it_is_as_close_to_float64_as_the_modules_of_peft(subtests):
    for case, (settings, dtype, autocast) in CASES.items():
        model = adapted(dtype, **settings)
        truth = results(copy.deepcopy(model).double(), torch.float64)
        apart = results(model, dtype, autocast)
        with subtests.test(case):
            assert switch_on(model) == 2
            together = results(model, dtype, autocast)
            for exact, before, now in zip(truth, apart, together, strict=True):
                assert (now - exact).norm() <= 1.1 * (before - exact).norm() + 1e-6 * exact.norm()
                assert (now - exact).norm() <= (2e-2 if autocast else 1e-5) * exact.norm()
            switch_off(model)
            assert all(map(torch.equal, results(model, dtype, autocast), apart))


def test_it_saves_no_more_for_the_backward_pass():
    model, kept, made = adapted(), {}, []

    def measure():
        kept.clear()
        weights = {weight.untyped_storage()._cdata for weight in model.parameters()}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                kept[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.randn(512, 24, requires_grad=True))
        made.append(sum(storage.nbytes() for storage in kept.values()))

    measure()
    switch_on(model)
    measure()
    assert made[1] <= made[0]


def test_layers_with_other_features_stay_with_peft():
    for settings in ({"lora_dropout": 0.1}, {"use_dora": True}, {"target_modules": ["crosswise"]}, {"lora_bias": True}):
        assert switch_on(adapted(**settings)) == 0, settings


def test_a_layer_that_is_merged_or_off_stays_with_peft():
    model = adapted()
    x = torch.randn(3, 24)
    whole = model(x)
    switch_on(model)
    with model.disable_adapter():
        off = model(x)
    model.merge_adapter()
    torch.testing.assert_close(model(x), whole)
    model.unmerge_adapter()
    torch.testing.assert_close(model(x), whole)
    assert not torch.allclose(off, whole)


def test_recomputed_layers_have_the_same_gradients():
    model = adapted()
    expected = results(model, torch.float32)
    switch_on(model)
    plain = model.forward
    model.forward = lambda x: torch.utils.checkpoint.checkpoint(plain, x, use_reentrant=False)
    for found, wanted in zip(results(model, torch.float32), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_wrong_gradient_is_found_and_no_weight_changes(monkeypatch, subtests):
    right = fused_lora._LoraLinear.backward

    def wrong(ctx, dy):
        dx, layer, da, db, scaling = right(ctx, dy)
        return dx, layer, da * 1.1, db, scaling

    for case, (settings, dtype, autocast) in CASES.items():
        model = adapted(dtype, **settings)
        before = copy.deepcopy(model.state_dict())
        context = (lambda: torch.autocast("cpu", torch.bfloat16)) if autocast else nullcontext
        switch_on(model)
        with subtests.test(case):
            assert difference(model, context) == ""
            with monkeypatch.context() as patch:
                patch.setattr(fused_lora._LoraLinear, "backward", staticmethod(wrong))
                assert "dA of Linear" in difference(model, context)
            assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_run_resumed_without_a_gpu_reports_that_its_kernels_are_off():
    notices, run = [], SimpleNamespace(device=torch.device("cpu"))
    for kernels in ("liger", "none"):
        assert use_kernels(run, kernels, None, lambda *what: notices.append(what)) == "none"
    assert [what[:2] for what in notices] == [("kernels not used", "liger-kernel runs only on GPUs")]
