"""A LoRA layer as one function is as close to float64 as the modules of peft, and kernels are for GPUs only."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.benchmarks.roofline import CASES as CASES_OF_ROOFLINE
from tests.benchmarks.roofline import count
from tui_trainer.planning.duration import OPERATIONS_OF_ADAPTER, OPERATIONS_OF_SEPARATE_ADAPTER
from tui_trainer.training import fused_lora
from tui_trainer.training.fused_kernels import use_kernels
from tui_trainer.training.fused_lora import FusedAdapters
from tui_trainer.training.precision import MixedPrecision

SMALL = CASES_OF_ROOFLINE["1.7b-lora"].config | {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 1000}
FP32, BF16 = (MixedPrecision(name, torch.device("cpu")) for name in ("fp32", "bf16"))
# Settings of peft, numbers of the base layers, those of matmuls.
CASES = {
    "fp32": ({}, torch.float32, FP32),
    "fp32, autocast": ({}, torch.float32, BF16),
    "bf16, autocast": ({}, torch.bfloat16, BF16),
    "a scale that is no power of two": ({"lora_alpha": 7, "use_rslora": True}, torch.bfloat16, BF16),
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


def results(model, dtype, mixed_precision=FP32):
    """The output, the gradient of the input and those of the adapters, in fp64."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 9, 24, generator=generator).to(dtype).requires_grad_()
    with mixed_precision.autocast():
        y = model(x)
    (y.double() * torch.randn(y.shape, generator=generator)).sum().backward()
    trained = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    return [tensor.double() for tensor in (y.detach(), x.grad, *trained)]


def errors(tensors, truth):
    return [float((one - exact).norm() / exact.norm()) for one, exact in zip(tensors, truth, strict=True)]


def test_it_is_as_close_to_float64_as_the_modules_of_peft(subtests):
    for case, (settings, dtype, mixed_precision) in CASES.items():
        model = adapted(dtype, **settings)
        truth = results(copy.deepcopy(model).double(), torch.float64)
        apart = results(model, dtype, mixed_precision)
        with subtests.test(case):
            adapters = FusedAdapters(model, mixed_precision)
            assert adapters.switch_on() == 2
            fused = results(model, dtype, mixed_precision)
            with adapters.copies():
                with_copies = results(model, dtype, mixed_precision)
            for ours in (fused, with_copies):
                # Of all tensors together: of one alone, rounding is a matter of luck.
                assert sum(errors(ours, truth)) <= 1.1 * sum(errors(apart, truth)) + 1e-6
                assert max(errors(ours, truth)) <= (2e-2 if mixed_precision.is_coarse else 1e-5)
            adapters.switch_off()
            assert all(map(torch.equal, results(model, dtype, mixed_precision), apart))


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
    FusedAdapters(model, FP32).switch_on()
    measure()
    assert made[1] <= made[0]


def test_layers_with_other_features_stay_with_peft():
    for settings in ({"lora_dropout": 0.1}, {"use_dora": True}, {"target_modules": ["crosswise"]}, {"lora_bias": True}):
        assert FusedAdapters(adapted(**settings), FP32).switch_on() == 0, settings


def test_a_layer_that_is_merged_or_off_stays_with_peft():
    model = adapted()
    x = torch.randn(3, 24)
    whole = model(x)
    FusedAdapters(model, FP32).switch_on()
    with model.disable_adapter():
        off = model(x)
    model.merge_adapter()
    torch.testing.assert_close(model(x), whole)
    model.unmerge_adapter()
    torch.testing.assert_close(model(x), whole)
    assert not torch.allclose(off, whole)


def test_recomputed_layers_have_the_same_gradients():
    for mixed_precision in (FP32, BF16):
        model = adapted()
        adapters = FusedAdapters(model, mixed_precision)
        adapters.switch_on()
        with adapters.copies():
            expected = results(model, torch.float32, mixed_precision)
            plain = model.forward
            model.forward = lambda x, plain=plain: torch.utils.checkpoint.checkpoint(plain, x, use_reentrant=False)
            assert all(map(torch.equal, results(model, torch.float32, mixed_precision), expected))


def test_copies_are_those_of_the_weights_now_and_no_part_of_the_model():
    model = adapted()
    adapters, names = FusedAdapters(model, BF16), model.state_dict().keys()
    adapters.switch_on()
    with torch.inference_mode(), adapters.copies():
        before = results_of_reading(model)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    with adapters.copies():
        assert model.state_dict().keys() == names
        trained = results(model, torch.float32, BF16)
        now = results_of_reading(model)
    adapters.switch_off()
    assert not torch.allclose(now, before, rtol=0.1)
    torch.testing.assert_close(now, results_of_reading(model), rtol=0.02, atol=0.02)
    for ours, theirs in zip(trained, results(model, torch.float32, BF16), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.02 * float(theirs.norm()))


def results_of_reading(model):
    with BF16.autocast(), torch.no_grad():
        return model(torch.randn(5, 24, generator=torch.Generator().manual_seed(1)))


def test_a_wrong_gradient_is_found_and_no_weight_changes(monkeypatch, subtests):
    right = fused_lora._LoraLinear.backward

    def wrong(ctx, dy):
        dx, dtype, base, da, *others = right(ctx, dy)
        return dx, dtype, base, da * 1.1, *others

    for case, (settings, dtype, mixed_precision) in CASES.items():
        model = adapted(dtype, **settings)
        before = copy.deepcopy(model.state_dict())
        adapters = FusedAdapters(model, mixed_precision)
        adapters.switch_on()
        with subtests.test(case):
            assert adapters.describe_difference() == ""
            with monkeypatch.context() as patch:
                patch.setattr(fused_lora._LoraLinear, "backward", staticmethod(wrong))
                assert "dA of Linear" in adapters.describe_difference()
            assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.full
def test_plans_count_the_operations_that_adapters_add_to_a_layer():
    def operations(name, dropout="0"):
        settings = (*CASES_OF_ROOFLINE[name].settings, f"tuning.lora_dropout={dropout}")
        counts = [
            count(
                replace(CASES_OF_ROOFLINE[name], config=SMALL | {"num_hidden_layers": layers}, settings=settings),
                library_kernels=True, shares_keys=True,
            ).one_pass.total().kernels
            for layers in (2, 3)
        ]  # fmt: skip
        return counts[1] - counts[0]

    whole, matrices = operations("1.7b-full-bf16"), 7
    assert operations("1.7b-lora") == whole + matrices * OPERATIONS_OF_ADAPTER
    assert operations("1.7b-lora", "0.1") == whole + matrices * OPERATIONS_OF_SEPARATE_ADAPTER


def test_a_run_resumed_without_a_gpu_reports_that_its_kernels_are_off():
    notices, run = [], SimpleNamespace(device=torch.device("cpu"))
    for kernels in ("liger", "none"):
        assert use_kernels(run, kernels, None, lambda *what: notices.append(what)) == "none"
    assert [what[:2] for what in notices] == [("kernels not used", "liger-kernel runs only on GPUs")]
