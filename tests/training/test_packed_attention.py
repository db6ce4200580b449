"""Several packed rows in one pass, for every attention that a config can choose, forward and backward."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from tests import flash_stand_in as flash_stand_ins
from tests.flash_stand_in import NAMES as FLASH
from tests.flash_stand_in import attend, flash_stand_in
from tests.runs.journals import read_all
from tests.tiny_models import SHAPES, save_tiny_model, texts, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.attention import BY_LENGTHS, NOT_PLANNED, Attention
from tui_trainer.runs.events import PACKED_WITH_MASK, EvalDone, RunProblem, StepDone
from tui_trainer.training import probes as leak_probe
from tui_trainer.training import varlen
from tui_trainer.training.components import Components
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.varlen import Kernel

pytestmark = pytest.mark.full
CPU = torch.device("cpu")
GATED = {**SHAPES["llama"], "head_dim": 8}
# Windows are shorter than documents; Gemma 2 caps its scores, Nemotron and StableLM do not pass lengths on.
FAMILIES = {
    "llama": {},
    "gpt2": {},
    "mistral": {"sliding_window": 6},
    "gemma2": {**GATED, "sliding_window": 6},
    "gemma3_text": {**GATED, "sliding_window": 6},
    "nemotron": GATED,
    "stablelm": GATED,
}


@pytest.fixture(scope="module")
def documents():
    draw = np.random.default_rng(5)
    return [draw.integers(3, 380, size=length, dtype=np.int32) for length in (12, 7, 19, 4, 9, 15, 6)]


@pytest.fixture
def shapes(monkeypatch):
    for family in FAMILIES.keys() - SHAPES.keys():
        monkeypatch.setitem(SHAPES, family, GATED)


class Rows(list):
    def row(self, index):
        return self[index]


def components_of(model) -> Components:
    """Return the part of the components that chooses how documents are packed."""
    found = Components.__new__(Components)
    found.model, found.device, found.mixed_precision = model, CPU, MixedPrecision("fp32", CPU)
    found.tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    found.plan = SimpleNamespace(packing=SimpleNamespace(value=True), longest_row=64, attention=NOT_PLANNED)
    return found


def learnt(model, batches):
    """Return the summed loss and the gradient of these passes."""
    model.zero_grad()
    loss = NextTokenLoss(model)
    total = sum(loss(batch) for batch in batches)
    total.backward()
    return total.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(found[1], expected[1], atol=1e-4 * float(expected[1].abs().max()), rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        (family, name)
        for number, family in enumerate(FAMILIES)
        for place, name in enumerate(("sdpa", "eager", *FLASH))
        # Each family and each attention, though not with one another.
        if number % 3 == place % 3 and (family, name) != ("gemma2", "sdpa")
    ],
)
def test_two_packed_rows_give_the_loss_and_gradient_of_their_documents(family, attention, documents, shapes):
    notices = []
    with flash_stand_in() as calls:
        model = tiny_model(family, **FAMILIES[family])
        model.set_attn_implementation(attention)
        alone = learnt(model, [micro_batch(collate([document], 0)) for document in documents])
        width, by_lengths = components_of(model)._probe_packing(Rows(documents), lambda *what: notices.append(what))
        before = calls.by_lengths
        batch = micro_batch(collate_packed([documents[:3], documents[3:]], 0), by_lengths=by_lengths)
        packed = learnt(model, [batch])
    assert_same(packed, alone)
    assert (calls.by_lengths > before) == (attention in FLASH)
    assert model.config._attn_implementation == attention, "what was chosen stays"
    assert (width, notices) == (64, [])


def _flex_in_plain_products(monkeypatch):
    """Register SDPA and its mask under the name of flex_attention, which is compiled for a GPU."""
    for interface in (AttentionInterface, AttentionMaskInterface):
        monkeypatch.setitem(interface._global_mapping, "flex_attention", interface._global_mapping["sdpa"])


@pytest.mark.versions
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention", *FLASH])
def test_a_leak_of_several_rows_alone_is_found_for_every_attention(attention, documents, monkeypatch):
    """The masks know documents at batch size 1 only, like the positions of flash attention."""
    _flex_in_plain_products(monkeypatch)
    find = masking_utils.find_packed_sequence_indices
    model, notices = tiny_model("llama"), []
    with flash_stand_in():
        model.set_attn_implementation(attention)
        assert (
            leak_probe.packing_difference(components_of(model), Rows(documents), by_lengths=attention in FLASH) is None
        )
        monkeypatch.setattr(
            masking_utils, "find_packed_sequence_indices", lambda ids: find(ids) if len(ids) == 1 else None
        )
        # The lengths are not passed on either.
        monkeypatch.setattr(varlen, "switch_on", lambda *_: "not here")
        monkeypatch.setattr(varlen, "goes_by_lengths", lambda *_: False)
        components = components_of(model)
        assert components._probe_packing(Rows(documents), lambda *what: notices.append(what)) == (0, False)
    assert [kind for kind, *_ in notices] == ["not packed"]
    assert model.training and all(module.training for module in model.modules())


def varlen_kernel(query, key, value, ends_q, ends_k, longest_q, longest_k, *, scale=None, window_size=(-1, -1),
                  enable_gqa=False):  # fmt: skip
    return attend(query, key, value, ends_q, ends_k, scale, True, window_size, 0.0)


def wrong_beyond_a_block(query, key, value, ends_q, ends_k, longest_q, longest_k, *, scale=None, window_size=(-1, -1),
                         enable_gqa=False):  # fmt: skip
    """A kernel that ignores the ends of documents of more than 128 tokens."""
    if longest_q > 128:
        ends_q = ends_k = torch.tensor([0, len(query)], dtype=torch.int32)
    return attend(query, key, value, ends_q, ends_k, scale, True, window_size, 0.0)


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, ends, scale):
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return attend(query, key, value, ends, ends, scale, True, (-1, -1), 0.0)

    @staticmethod
    def backward(ctx, gradient):
        ends = torch.tensor([0, len(gradient)], dtype=torch.int32)
        with torch.enable_grad():
            three = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            found = torch.autograd.grad(attend(*three, ends, ends, ctx.scale, True, (-1, -1), 0.0), three, gradient)
        return (*found, None, None)


def wrong_backward(query, key, value, ends_q, ends_k, longest_q, longest_k, *, scale=None, window_size=(-1, -1),
                   enable_gqa=False):  # fmt: skip
    """A kernel whose backward pass ignores the ends of documents."""
    return _WrongBackward.apply(query, key, value, ends_q, scale)


@pytest.mark.versions
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("kernel", "expected"), [
    (varlen_kernel, None), (wrong_beyond_a_block, "logits"), (wrong_backward, "gradients"),
])  # fmt: skip
def test_the_probe_tries_long_documents_and_the_backward_pass(kernel, expected, precision, documents):
    model = tiny_model("llama", max_position_embeddings=256)
    components = components_of(model)
    components.mixed_precision = MixedPrecision(precision, CPU)
    AttentionInterface.register(varlen.ATTENTION_NAME, varlen.attention_by(Kernel("stand-in", kernel)))
    model.set_attn_implementation(varlen.ATTENTION_NAME)
    found = leak_probe.packing_difference(components, Rows(documents), by_lengths=True)
    assert (found or "").startswith(expected or "\0") == (expected is not None), found
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.versions
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_the_kernel_of_torch_gets_the_window_of_each_layer(family, documents, shapes):
    model = tiny_model(family, **FAMILIES[family])
    alone = learnt(model, [micro_batch(collate([document], 0)) for document in documents])
    AttentionInterface.register(varlen.ATTENTION_NAME, varlen.attention_by(Kernel("stand-in", varlen_kernel)))
    model.set_attn_implementation(varlen.ATTENTION_NAME)
    packed = [micro_batch(collate_packed([documents[:3], documents[3:]], 0), by_lengths=True)]
    assert_same(learnt(model, packed), alone)


@pytest.fixture
def flash_run(tmp_path, monkeypatch):
    """`flash_run(attention)`: the events of a run of four steps, and the calls of the kernels of the library."""
    monkeypatch.setattr(choices, "_refusals", lambda *_: ())
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(120)))
    save_tiny_model(tmp_path / "llama", "llama")

    def run(attention):
        settings = {
            "data.max_length": 64, "training.effective_batch_size": 8, "training.learning_rate": 0.01,
            "training.max_steps": 4, "evaluation.eval_steps": 2, "tuning.method": "full", "data.packing": "true",
            "training.per_device_train_batch_size": 4, "output.runs_dir": tmp_path / attention,
            "logging.sample_steps": 0, "model.attn_implementation": attention, "evaluation.generate_rows": 0,
        }  # fmt: skip
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        shortcuts = {"data.path": str(path), "model.model_name_or_path": str(tmp_path / "llama")}
        with flash_stand_in() as calls:
            opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
            outcome = execute_run(opened)
        assert outcome.exit_code == 0, outcome
        return list(read_all(opened.folder.journal)), calls

    return run


def losses_of(events):
    return [event.loss for event in events if isinstance(event, StepDone | EvalDone)]


def test_a_run_with_flash_attention_has_the_losses_of_sdpa(flash_run):
    """Several packed rows a pass, in training and on held-out text, through the code of transformers."""
    (expected, _), (events, calls) = flash_run("sdpa"), flash_run("flash_attention_2")
    assert not [event for event in events + expected if isinstance(event, RunProblem)]
    assert losses_of(events) == pytest.approx(losses_of(expected), rel=1e-4)
    assert calls.by_lengths
    assert calls.plain == 2 * (1 + 5 + 1), "two layers: beside SDPA, documents one by one in the probe, and the control"


def test_flash_attention_with_other_results_is_not_used(flash_run, monkeypatch):
    monkeypatch.setattr(flash_stand_ins, "attend", lambda *arguments: 1.01 * attend(*arguments))
    (expected, _), (events, _) = flash_run("sdpa"), flash_run("flash_attention_2")
    (problem,) = [event for event in events if isinstance(event, RunProblem)]
    assert problem.kind == "attention changed" and "flash_attention_2 is not used: logits differ by" in problem.message
    assert losses_of(events) == losses_of(expected)


def test_the_kernel_of_flash_attention_3_is_tried_before_that_of_torch_on_hopper_alone(monkeypatch, documents):
    """It is called with its own argument names, and no heads are repeated for it."""
    third, own = Kernel("flash-attn-3", flash_stand_ins.flash_attn_varlen_func), Kernel("torch", varlen.find_kernel())
    monkeypatch.setattr(varlen, "_of_library", lambda name: third if name == "flash_attention_3" else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert varlen.kernels(torch.device("cuda")) == [third, own]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert varlen.kernels(torch.device("cuda")) == varlen.kernels(CPU) == [own]

    model = tiny_model("mistral", sliding_window=6)
    alone = learnt(model, [micro_batch(collate([document], 0)) for document in documents])
    AttentionInterface.register(varlen.ATTENTION_NAME, varlen.attention_by(third))
    model.set_attn_implementation(varlen.ATTENTION_NAME)
    packed = [micro_batch(collate_packed([documents[:3], documents[3:]], 0), by_lengths=True)]
    assert_same(learnt(model, packed), alone)
    assert flash_stand_ins.calls.by_lengths


def out_of_memory(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def broken(*_, **__):
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def packing_with(documents, monkeypatch):
    """`packing_with(kernel)`: the width, whether lengths are used, and the notices of a start planned by lengths."""

    def start(function):
        notices = []
        monkeypatch.setattr(varlen, "find_kernel", lambda: function)
        components = components_of(tiny_model("llama"))
        components.plan.attention = Attention(kernel=BY_LENGTHS, reason="documents are packed")
        return components._probe_packing(Rows(documents), lambda *words: notices.append(words)), notices

    return start


def test_the_reason_against_attention_by_lengths_is_reported_once(packing_with):
    def fails(*_, enable_gqa=False, **__):
        raise RuntimeError("no kernel image is available for execution")

    found, [(kind, message, _)] = packing_with(fails)
    assert (found, kind) == ((64, False), PACKED_WITH_MASK)
    assert message == (
        "variable-length attention is not used (torch: RuntimeError: no kernel image is available for execution)"
    )


@pytest.mark.parametrize(
    ("kernel", "error"), [(out_of_memory, torch.OutOfMemoryError), (broken, torch.AcceleratorError)]
)
def test_a_broken_card_and_a_lack_of_memory_are_raised(kernel, error, packing_with):
    with pytest.raises(error):
        packing_with(kernel)


@pytest.mark.parametrize(("family", "attention", "expected"), [
    ("llama", "sdpa", True), ("llama", "eager", False), ("gemma2", None, False),
])  # fmt: skip
def test_attention_by_lengths_stands_in_for_sdpa_only(family, attention, expected):
    """Gemma 2 caps its scores: neither SDPA nor the kernel does, so the probe could not see the difference."""
    model = tiny_model(family)
    if attention:
        model.set_attn_implementation(attention)
    before = model.config._attn_implementation
    (kernel,) = varlen.kernels(CPU)
    assert (not varlen.switch_on(model, kernel)) == expected
    assert model.config._attn_implementation == (varlen.ATTENTION_NAME if expected else before)
