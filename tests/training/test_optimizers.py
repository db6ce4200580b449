"""Every optimizer resumes from its saved state to the bit, and no gradient that is not finite reaches a weight."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from torch import nn

from tests.tiny_models import tiny_model
from tui_trainer.config.sections import TrainingSection, TuningSection
from tui_trainer.errors import CheckpointError, RunError
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.training.optimizer import RunOptimizer, round_weights
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.tuning import find_method

HERE = ("adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "muon")
CPU = torch.device("cpu")


def small_model(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def optimizer_of(model, optim="adamw_torch_fused", **settings) -> RunOptimizer:
    return RunOptimizer(model, TrainingSection(optim=optim, weight_decay=0.1, **settings), lr=0.01)


def train(model, optimizer, steps, first=0, lr=0.01):
    for step in range(first, first + steps):
        draw = torch.Generator().manual_seed(step)
        dtype = next(model.parameters()).dtype
        loss = model(torch.randn(5, 8, generator=draw).to(dtype)).square().float().sum()
        loss.backward()
        optimizer.apply(loss.detach(), lr=lr, max_grad_norm=1.0)
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def test_a_saved_state_is_resumed_to_the_bit(subtests):
    for optim in HERE:
        for dtype in (torch.float32, torch.bfloat16):
            with subtests.test(f"{optim} {dtype}"):
                assert_resumes_to_the_bit(optim, dtype)


def assert_resumes_to_the_bit(optim, dtype):
    model = small_model(dtype)
    optimizer = optimizer_of(model, optim)
    train(model, optimizer, 3)
    state = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = train(model, optimizer, 4, first=3)
    again = small_model(dtype)
    again.load_state_dict(weights)
    other = optimizer_of(again, optim)
    other.load_shards([dict(state)])
    assert torch.equal(train(again, other, 4, first=3), expected)
    if optim == "adamw_torch_fused":
        forgetful = small_model(dtype)
        forgetful.load_state_dict(weights)
        assert not torch.equal(train(forgetful, optimizer_of(forgetful, optim), 4, first=3), expected), "the control"


def test_fused_and_plain_adamw_take_the_same_steps_and_each_others_state():
    fused, plain, ends = "adamw_torch_fused", "adamw_torch", {}
    for optim, other in ((fused, plain), (plain, fused)):
        model, again = small_model(), small_model()
        optimizer, taken = optimizer_of(model, optim), optimizer_of(again, other)
        start = train(model, optimizer, 0)
        half = train(model, optimizer, 10)
        again.load_state_dict(model.state_dict())
        taken.load_shards([{name: tensor.clone() for name, tensor in optimizer.tensors().items()}])
        ends[optim] = half, train(model, optimizer, 10, first=10), train(again, taken, 10, first=10)
        assert bool(optimizer.torch_optimizer.defaults["fused"]) is (optim == fused)
        assert (half - start).abs().max() > 0.05, "the control"
    for one, other in zip(*ends.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for _, alone, taken in ends.values():
        torch.testing.assert_close(alone, taken, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_moves_nothing(subtests):
    for optim in HERE:
        for poison in (float("nan"), float("inf")):
            model = small_model()
            optimizer = optimizer_of(model, optim)
            train(model, optimizer, 2)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            loss = model(torch.full((1, 8), poison)).sum()
            loss.backward()
            norm = optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0)
            with subtests.test(f"{optim} {poison}"):
                assert not torch.isfinite(norm)
                assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
                assert all(parameter.grad is None for parameter in model.parameters())
                after = train(model, optimizer, 1)
                assert not torch.equal(after, torch.cat([p.flatten() for p in before])), "the next step moves weights"


@pytest.mark.parametrize("optim", HERE)
def test_masters_are_updated_like_fp32_weights_to_the_bit(optim):
    """Gradients in bf16 are summed over three passes and clipped. The model has the masters, rounded."""
    model, exact = small_model(torch.bfloat16), small_model()
    exact.load_state_dict(model.state_dict())
    start = [weight.detach().clone() for weight in model.parameters()]
    optimizer, reference = optimizer_of(model, optim), optimizer_of(exact, optim)
    draw = torch.Generator().manual_seed(5)
    for _ in range(20):
        for _ in range(3):
            for weight, twin in zip(model.parameters(), exact.parameters(), strict=True):
                weight.grad = torch.randn(weight.shape, generator=draw).bfloat16()
                twin.grad = weight.grad.float() + (0.0 if twin.grad is None else twin.grad)
            optimizer.collect()
        norms = [each.apply(torch.ones(()), lr=1e-4, max_grad_norm=1.0) for each in (optimizer, reference)]
        assert norms[0] == norms[1] > 1.0
    for name, twin in exact.named_parameters():
        assert torch.equal(optimizer.masters[name], twin)
        assert torch.equal(model.get_parameter(name), twin.bfloat16())
    masters = {f"{name}.master" for name in optimizer.masters}
    state = optimizer.tensors()
    assert all(torch.equal(state[name], value) for name, value in reference.tensors().items())
    assert state.keys() - reference.tensors().keys() == masters
    assert any(not torch.equal(weight, before) for weight, before in zip(model.parameters(), start, strict=True))


def test_masters_begin_with_the_weights_as_they_are_stored():
    model, stored = tiny_model("llama"), tiny_model("llama").state_dict()
    round_weights(model, torch.bfloat16)
    optimizer = RunOptimizer(model, TrainingSection(), lr=0.01)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert all(torch.equal(master, stored[name]) for name, master in optimizer.masters.items())
    assert any(not torch.equal(p.float(), stored[name]) for name, p in model.named_parameters())


def test_the_state_of_another_model_is_refused():
    model = small_model()
    optimizer = optimizer_of(model)
    train(model, optimizer, 1)
    state = optimizer.tensors()
    fresh = optimizer_of(small_model())
    with pytest.raises(CheckpointError, match="lacks"):
        fresh.load_shards([{name: tensor for name, tensor in state.items() if not name.endswith("exp_avg")}])
    with pytest.raises(CheckpointError, match=r"unknown tensors, such as those of 7\.weight"):
        fresh.load_shards([state | {"7.weight.step": torch.tensor(1.0)}])
    with pytest.raises(CheckpointError, match="a different shape"):
        fresh.load_shards([{name: tensor[:1] if "0.weight.exp" in name else tensor for name, tensor in state.items()}])


def test_the_state_of_another_adafactor_is_refused():
    model = small_model()
    optimizer = optimizer_of(model, "adafactor")
    state = {f"{name}.step": torch.tensor(3.0) for name, _ in model.named_parameters()}
    with pytest.raises(CheckpointError, match="lacks RMS"):
        optimizer.load_shards([state | {"0.weight.row_var": torch.ones(16, 1), "0.weight.col_var": torch.ones(1, 8)}])


def test_a_missing_bitsandbytes_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(RunError, match="needs bitsandbytes"):
        optimizer_of(small_model(), "adamw_8bit")


class PagedAdamW(torch.optim.Optimizer):
    """Like that of bitsandbytes: the first step makes the states in paged memory, and marks them as paged."""

    def __init__(self, groups, lr, betas, eps):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})
        self.pages = []

    def init_state(self, group, parameter, group_index, index):
        assert self.param_groups[group_index] is group and group["params"][index] is parameter
        pages = {key: torch.zeros_like(parameter) for key in ("state1", "state2")}
        for page in pages.values():
            page.is_paged = True
            self.pages.append(page)
        self.state[parameter].update({"step": 0, **pages})

    @torch.no_grad()
    def step(self):
        for group_index, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if not self.state[parameter]:
                    self.init_state(group, parameter, group_index, index)
                state = self.state[parameter]
                state["step"] += 1
                state["state1"].lerp_(parameter.grad, 0.1)
                state["state2"].lerp_(parameter.grad.square(), 0.01)
                parameter.sub_(group["lr"] * state["state1"] / (state["state2"].sqrt() + state["step"]))


@pytest.fixture
def paged(monkeypatch):
    found = SimpleNamespace(PagedAdamW32bit=PagedAdamW)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(optim=found))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", found)
    return "paged_adamw_32bit"


def test_paged_states_stay_in_their_pages_on_resume(paged):
    model = small_model()
    optimizer = optimizer_of(model, paged)
    train(model, optimizer, 3)
    saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = train(model, optimizer, 4, first=3)
    again = small_model()
    again.load_state_dict(weights)
    other = optimizer_of(again, paged)
    other.load_shards([dict(saved)])
    states = [state[key] for state in other.torch_optimizer.state.values() for key in ("state1", "state2")]
    assert len(states) == 8 and all(tensor.is_paged for tensor in states)
    assert {tensor.data_ptr() for tensor in states} == {page.data_ptr() for page in other.torch_optimizer.pages}
    assert {state["step"] for state in other.torch_optimizer.state.values()} == {3}
    assert torch.equal(train(again, other, 4, first=3), expected)
    assert len(other.torch_optimizer.pages) == 8, "the first step makes no second state"


def test_a_state_that_does_not_fit_the_pages_is_refused(paged):
    model = small_model()
    optimizer = optimizer_of(model, paged)
    train(model, optimizer, 1)
    saved = optimizer.tensors()
    fresh = optimizer_of(small_model(), paged)
    with pytest.raises(CheckpointError, match=r"0\.weight does not match: state1 is torch\.uint8"):
        fresh.load_shards([{n: t.to(torch.uint8) if n.endswith("weight.state1") else t for n, t in saved.items()}])
    with pytest.raises(CheckpointError, match=r"0\.weight has missing or unexpected entries: absmax1"):
        fresh.load_shards([saved | {"0.weight.absmax1": torch.zeros(1)}])


def test_a_scaled_loss_that_overflows_halves_its_scale_and_moves_nothing():
    model = small_model()
    optimizer, numbers = optimizer_of(model), MixedPrecision("fp16", CPU)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scales = []
    for _ in range(3):
        loss = model(torch.ones(1, 8)).sum() * 1e36
        numbers.backward(loss)
        optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0, scaler=numbers.scaler)
        scales.append(float(numbers.tensors()["loss_scale"]))
    assert scales == [32768.0, 16384.0, 8192.0]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    other = MixedPrecision("fp16", CPU)
    other.load_tensors(numbers.tensors())
    assert float(other.tensors()["loss_scale"]) == 8192.0
    with pytest.raises(CheckpointError, match="loss scale"):
        other.load_tensors({})


@pytest.mark.parametrize("optim", ["adafactor", "adamw_torch_fused", "sgd"])
def test_a_run_whose_every_step_overflowed_can_be_resumed(optim):
    model, numbers = small_model(), MixedPrecision("fp16", CPU)
    optimizer = optimizer_of(model, optim)
    loss = model(torch.ones(1, 8)).sum() * 1e36
    numbers.backward(loss)
    optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0, scaler=numbers.scaler)
    again = optimizer_of(small_model(), optim)
    again.load_shards([optimizer.tensors()])
    assert again.tensors().keys() == optimizer.tensors().keys()


def test_a_model_with_an_unused_weight_can_be_resumed():
    model = small_model()
    model.unused = nn.Linear(2, 2)
    optimizer = optimizer_of(model)
    loss = model[:3](torch.ones(1, 8)).sum()
    loss.backward()
    optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0)
    again = optimizer_of(model)
    again.load_shards([optimizer.tensors()])
    assert again.tensors().keys() == optimizer.tensors().keys()
    assert not any("unused" in name for name in optimizer.tensors())


def test_a_table_that_all_parameters_share_can_be_saved(tmp_path):
    """bitsandbytes keeps one table of 8-bit values for all parameters; safetensors refuses shared memory."""
    optimizer, table = optimizer_of(small_model(), "sgd"), torch.linspace(-1, 1, 256)
    optimizer.spec = OPTIMIZERS["adamw_8bit"]
    for parameter in optimizer.trained_by_name.values():
        state = torch.zeros_like(parameter, dtype=torch.uint8)
        optimizer.torch_optimizer.state[parameter] = {"state1": state, "state2": state + 1, "qmap1": table, "step": 3}
    save_file(optimizer.tensors(), tmp_path / "optimizer.safetensors")
    saved = load_file(tmp_path / "optimizer.safetensors")
    assert torch.equal(saved["0.weight.qmap1"], table)
    assert torch.equal(saved["2.weight.qmap1"], table)


def test_a_scaled_loss_goes_with_16_bit_weights():
    """A card without bf16 computes in fp16, and `model.dtype` may still be bfloat16."""
    norms = []
    for precision in ("fp16", "fp32"):
        model, numbers = small_model(torch.bfloat16), MixedPrecision(precision, CPU)
        loss = model(torch.ones(3, 8, dtype=torch.bfloat16)).float().square().sum()
        numbers.backward(loss)
        optimizer = optimizer_of(model)
        norms.append(float(optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0, scaler=numbers.scaler)))
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def test_a_scaled_loss_gives_the_gradient_of_an_unscaled_one():
    results = []
    for numbers in (MixedPrecision("fp16", CPU), MixedPrecision("fp32", CPU)):
        model = small_model()
        optimizer = optimizer_of(model)
        loss = model(torch.ones(3, 8)).square().sum()
        numbers.backward(loss)
        norm = optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0, scaler=numbers.scaler)
        results.append((float(norm), torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=0)


def adapters(model, make, steps=3):
    """Return the adapters after some steps of the optimizer that `make` builds for the model."""
    take = make(model)
    for step in range(steps):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(4, 40, (2, 8), generator=draw)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        take(loss.detach())
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def test_loraplus_equals_that_of_peft():
    def model():
        torch.manual_seed(1)
        made = tiny_model("llama")
        return find_method("lora").apply(made, TuningSection(method="lora", r=4), seed=5, autocast=False)

    def ours(model, ratio=16.0):
        optimizer = RunOptimizer(model, TrainingSection(weight_decay=0.0), lr=0.01, loraplus_lr_ratio=ratio)
        return partial(optimizer.apply, lr=0.01, max_grad_norm=0.0)

    def theirs(model):
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=0.01, loraplus_lr_ratio=16.0, fused=True)
        return lambda loss: (optimizer.step(), optimizer.zero_grad())

    mine, wanted, plain = (adapters(model(), make) for make in (ours, theirs, partial(ours, ratio=1.0)))
    assert mine.keys() == wanted.keys() and any("lora_B" in name for name in mine)
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)
    assert any(not torch.equal(mine[name], plain[name]) for name in wanted)
