"""Summed and per-label losses of the head, by torch's operations and by a kernel, compared with float64.

The kernel is a stand-in that computes what Liger's does. Liger's own kernel is interpreted in
`tests/training/test_liger.py`.
"""

from itertools import product

import pytest
import torch

from tests.simulated_card.card import CUDA
from tests.simulated_card.liger_stand_in import calls, liger_stand_in
from tests.simulated_card.machine import simulated_card
from tui_trainer.losses.chunked_head import HeadLoss
from tui_trainer.losses.fused_cross_entropy import find_kernel, reason_against
from tui_trainer.models.modules import LogitTransform

LABELS, WIDTH, VOCABULARY, CHUNK = 22, 16, 50, 8
CAPPED = LogitTransform(scale=0.25, soft_cap=3.0)
SCALED = LogitTransform(scale=3.0)
EPS = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
# Transform of the logits, label smoothing, whether the head has a bias, chunk size in labels.
HEADS = [
    (LogitTransform(), 0.0, False, CHUNK), (LogitTransform(), 0.1, True, CHUNK), (SCALED, 0.1, True, CHUNK),
    (CAPPED, 0.1, False, CHUNK), (CAPPED, 0.0, True, LABELS),
]  # fmt: skip


@pytest.fixture(scope="module")
def kernel():
    """The kernel is found once: each stand-in of a library searches all loaded modules, which takes half a second."""
    with liger_stand_in():
        return find_kernel()


def draw_inputs(dtype, has_bias):
    draw = torch.Generator().manual_seed(1)
    shapes = ((LABELS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    given = [torch.randn(shape, generator=draw).to(dtype).requires_grad_() for shape in shapes]
    labels, factors = torch.randint(0, VOCABULARY, (LABELS,), generator=draw), torch.rand(LABELS, generator=draw)
    return (*given[:2], given[2] if has_bias else None), labels, factors


def exact(given, labels, transform, smoothing):
    """Return the losses by label of the same inputs, computed in float64."""
    hidden, weight, bias = given
    logits = (hidden @ weight.T if bias is None else hidden @ weight.T + bias) * transform.scale
    if transform.soft_cap is not None:
        logits = transform.soft_cap * torch.tanh(logits / transform.soft_cap)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def test_losses_and_gradients_equal_float64(kernel, subtests):
    for head, dtype, form, is_fused in product(HEADS, EPS, ("sum", "weighted", "by label"), (False, True)):
        with subtests.test(f"{head} {dtype} {form} {'kernel' if is_fused else 'torch'}"):
            assert_equals_float64(*head, dtype, form, kernel if is_fused else None)


def assert_equals_float64(transform, smoothing, has_bias, chunk, dtype, form, kernel):
    given, labels, factors = draw_inputs(dtype, has_bias)
    head = HeadLoss(chunk_tokens=chunk, label_smoothing=smoothing, transform=transform, kernel=kernel)
    hidden, weight, bias = given
    if form == "sum":
        loss, factors = head.sum(hidden, weight, labels, bias_V=bias), torch.ones(LABELS)
    elif form == "weighted":
        loss = head.sum(hidden, weight, labels, bias_V=bias, weights_N=factors)
    else:
        loss = head.label_losses(hidden, weight, labels, bias_V=bias) @ factors
    wide = tuple(None if x is None else x.detach().double().requires_grad_() for x in given)
    wanted = exact(wide, labels, transform, smoothing) @ factors.double()
    # Logits are rounded to the dtype of the product before anything else is computed.
    assert loss.item() == pytest.approx(wanted.item(), rel=EPS[dtype] / 4)
    # A loss is multiplied by the loss scale and divided by the number of labels.
    (64 / LABELS * loss).backward()
    (64 / LABELS * wanted).backward()
    for mine, theirs in zip(given, wide, strict=True):
        if mine is not None:
            assert mine.grad.dtype == dtype
            assert (mine.grad.double() - theirs.grad).norm() <= 2 * EPS[dtype] * theirs.grad.norm()


def test_the_factor_of_a_loss_is_not_rounded_to_16_bits():
    def gradient(factor: float) -> torch.Tensor:
        (hidden, weight, _), labels, _ = draw_inputs(torch.bfloat16, has_bias=False)
        (factor * HeadLoss(chunk_tokens=CHUNK).sum(hidden, weight, labels)).backward()
        return hidden.grad.double()

    # 1/377 rounded to bf16 is too large by 0.13 %, for each element alike.
    whole, part = gradient(1), gradient(1 / 377)
    assert ((part * whole).sum() / (whole * whole).sum()).item() == pytest.approx(1 / 377, rel=3e-4)


@pytest.mark.full
def test_a_kernel_for_16_bit_logits_takes_fewer_warps_from_blackwell_on(kernel, monkeypatch):
    with simulated_card():
        for capability, dtype, warps in ((9, torch.bfloat16, 32), (10, torch.bfloat16, 8), (10, torch.float32, 32)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, major=capability: (major, 0))
            logits, labels = torch.randn(3, 5, dtype=dtype).to(CUDA), torch.tensor([1, 2, 3]).to(CUDA)
            kernel(logits, labels, label_smoothing=0.0, soft_cap=None, gradient_scale=None)
            assert calls.warps == warps, (capability, dtype)


@pytest.mark.parametrize("form", ["sum", "by label"])
def test_gradients_too_small_for_fp16_survive_by_the_loss_scale(form, kernel):
    """The gradient of a logit is 1e-8 here, and would be 0 before the loss scale."""
    weight = torch.zeros(3, 1, dtype=torch.float16)
    weight[0], weight[1] = 1, -1
    for chosen in (None, kernel):
        hidden = torch.full((4, 1), 9.2, dtype=torch.float16, requires_grad=True)
        head, labels = HeadLoss(chunk_tokens=2, kernel=chosen), torch.zeros(4, dtype=torch.int64)
        loss = head.sum(hidden, weight, labels) if form == "sum" else head.label_losses(hidden, weight, labels).sum()
        (65536 * loss).backward()
        wide = hidden.detach().double().requires_grad_()
        (65536 * exact((wide, weight.double(), None), labels, LogitTransform(), 0.0).sum()).backward()
        torch.testing.assert_close(hidden.grad.double(), wide.grad, rtol=0.02, atol=0)


@pytest.mark.parametrize("form", ["sum", "by label"])
def test_no_labels_give_gradients_of_zero(form, kernel):
    """Other processes wait for a gradient, even if this one has no labels."""
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.ones(5, 4, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    for chosen in (None, kernel):
        head, weight.grad = HeadLoss(chunk_tokens=2, kernel=chosen), None
        loss = head.sum(hidden, weight, none) if form == "sum" else head.label_losses(hidden, weight, none).sum()
        loss.backward()
        assert loss.item() == 0 and not weight.grad.any()


def test_losses_by_label_save_only_their_inputs_for_backward():
    (hidden, weight, _), labels, _ = draw_inputs(torch.float32, False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        HeadLoss(chunk_tokens=CHUNK).label_losses(hidden, weight, labels)
    assert set(kept) == {hidden.data_ptr(), weight.data_ptr(), labels.data_ptr()}


@pytest.mark.parametrize("cap", [None, 5.0])
def test_an_inaccurate_kernel_is_refused(cap, kernel):
    settings = {"label_smoothing": 0.1, "soft_cap": cap}
    cpu = torch.device("cpu")
    for dtype in EPS:
        assert reason_against(kernel, cpu, dtype, 1000, **settings) == ""

    def coarse(logits, labels, **more):
        return kernel(logits, labels, **more).bfloat16().float()

    def shifted(logits, labels, **more):
        losses = kernel(logits, labels, **more)
        if more["gradient_scale"] is not None:  # then the gradient stands in the place of the logits
            logits[:, 1:] *= 1.02
        return losses

    assert reason_against(coarse, cpu, torch.bfloat16, 1000, **settings).startswith("losses differ")
    assert reason_against(shifted, cpu, torch.bfloat16, 1000, **settings).startswith("gradients differ")
