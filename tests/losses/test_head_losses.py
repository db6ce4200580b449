"""Sums and losses by label, of torch's operations and of a kernel, beside cross entropy in float64.

The kernel is a stand-in that computes what Liger's does; Liger's own is interpreted in `tests/training/test_liger.py`.
"""

import pytest
import torch

from tests.simulated_card.liger_stand_in import liger_stand_in
from tui_trainer.losses.chunked_head import HeadLoss
from tui_trainer.losses.fused_cross_entropy import find_kernel, reason_against
from tui_trainer.models.modules import LogitTransform

LABELS, WIDTH, VOCABULARY, CHUNK = 22, 16, 50, 8
CAPPED = LogitTransform(scale=0.25, soft_cap=3.0)
SCALED = LogitTransform(scale=3.0)
EPS = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture
def kernel():
    with liger_stand_in():
        yield find_kernel()


def drawn(dtype, has_bias):
    draw = torch.Generator().manual_seed(1)
    shapes = ((LABELS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    given = [torch.randn(shape, generator=draw).to(dtype).requires_grad_() for shape in shapes]
    labels, factors = torch.randint(0, VOCABULARY, (LABELS,), generator=draw), torch.rand(LABELS, generator=draw)
    return (*given[:2], given[2] if has_bias else None), labels, factors


def exact(given, labels, transform, smoothing):
    """Losses by label in float64, of the very numbers."""
    hidden, weight, bias = given
    logits = (hidden @ weight.T if bias is None else hidden @ weight.T + bias) * transform.scale
    if transform.soft_cap is not None:
        logits = transform.soft_cap * torch.tanh(logits / transform.soft_cap)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize(
    ("transform", "smoothing", "has_bias", "chunk"),
    [
        (LogitTransform(), 0.0, False, CHUNK), (LogitTransform(), 0.1, True, CHUNK), (SCALED, 0.1, True, CHUNK),
        (CAPPED, 0.1, False, CHUNK), (CAPPED, 0.0, True, LABELS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["sum", "weighted", "by label"])
def test_losses_and_gradients_are_those_of_float64(
    form, transform, smoothing, has_bias, chunk, dtype, is_fused, kernel
):
    given, labels, factors = drawn(dtype, has_bias)
    head = HeadLoss(
        chunk_tokens=chunk, label_smoothing=smoothing, transform=transform, kernel=kernel if is_fused else None
    )
    hidden, weight, bias = given
    # As a loss scale and the count of labels do.
    after = 64 / LABELS
    if form == "sum":
        found, factors = head.sum(hidden, weight, labels, bias_V=bias), torch.ones(LABELS)
    elif form == "weighted":
        found = head.sum(hidden, weight, labels, bias_V=bias, weights_N=factors)
    else:
        found = head.by_label(hidden, weight, labels, bias_V=bias) @ factors
    wide = tuple(None if x is None else x.detach().double().requires_grad_() for x in given)
    wanted = exact(wide, labels, transform, smoothing) @ factors.double()
    # Logits are rounded to the dtype of the product before anything else is computed.
    assert found.item() == pytest.approx(wanted.item(), rel=EPS[dtype] / 4)
    (after * found).backward()
    (after * wanted).backward()
    for mine, theirs in zip(given, wide, strict=True):
        if mine is not None:
            assert mine.grad.dtype == dtype
            assert (mine.grad.double() - theirs.grad).norm() <= 2 * EPS[dtype] * theirs.grad.norm()


@pytest.mark.parametrize("form", ["sum", "by label"])
def test_what_fp16_cannot_hold_reaches_the_gradient(form, kernel):
    """The gradient of a logit is 1e-8 here, and would be 0 before the loss scale."""
    weight = torch.zeros(3, 1, dtype=torch.float16)
    weight[0], weight[1] = 1, -1
    for chosen in (None, kernel):
        hidden = torch.full((4, 1), 9.2, dtype=torch.float16, requires_grad=True)
        head, labels = HeadLoss(chunk_tokens=2, kernel=chosen), torch.zeros(4, dtype=torch.int64)
        found = head.sum(hidden, weight, labels) if form == "sum" else head.by_label(hidden, weight, labels).sum()
        (65536 * found).backward()
        wide = hidden.detach().double().requires_grad_()
        (65536 * exact((wide, weight.double(), None), labels, LogitTransform(), 0.0).sum()).backward()
        torch.testing.assert_close(hidden.grad.double(), wide.grad, rtol=0.02, atol=0)


@pytest.mark.parametrize("form", ["sum", "by label"])
def test_no_labels_give_gradients_of_zero(form, kernel):
    """Other processes wait for some."""
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.ones(5, 4, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    for chosen in (None, kernel):
        head, weight.grad = HeadLoss(chunk_tokens=2, kernel=chosen), None
        found = head.sum(hidden, weight, none) if form == "sum" else head.by_label(hidden, weight, none).sum()
        found.backward()
        assert found.item() == 0 and not weight.grad.any()


def test_losses_by_label_keep_no_gradient_until_they_are_asked_for():
    (hidden, weight, _), labels, _ = drawn(torch.float32, False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        HeadLoss(chunk_tokens=CHUNK).by_label(hidden, weight, labels)
    assert set(kept) == {hidden.data_ptr(), weight.data_ptr(), labels.data_ptr()}


@pytest.mark.parametrize("cap", [None, 5.0])
def test_a_kernel_that_is_a_little_off_is_not_used(cap, kernel):
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
