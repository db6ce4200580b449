"""On a real GPU: runs end to end, what the kernels compute, and what the plan says about memory.

uv run pytest -m gpu tests/gpu
"""

from __future__ import annotations

import json
import shutil
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend
from transformers import AutoModelForCausalLM

from tests.benchmarks import attention_table
from tests.compilations import counted_compilations
from tests.runs.journals import read_all
from tests.tiny_models import PACKED, TRAINED, save_tiny_model, texts, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.hardware.gpu_models import BF16_FROM
from tui_trainer.hardware.libraries import read_versions
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_again, open_new
from tui_trainer.launching.prepare import read_plan
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning.attention import CUDNN, EAGER, AttentionMachine, attention_of, planned_mask
from tui_trainer.planning.measured_steps import NOT_ALLOCATED
from tui_trainer.runs.events import EvalDone, GaugesRead, MicroBatchReduced, RunProblem, StepDone
from tui_trainer.training import varlen
from tui_trainer.training.precision import keep_rotary_exact

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


@pytest.fixture
def tune(tmp_path):
    """`tune(family, changes)`: carries a run out on the GPU, with more options of `carry_out`; its folder. A family may
    be the name of a folder that a test has filled."""
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(120)))

    def run(family: str, changes: dict | None = None, **options):
        model = tmp_path / family
        if not model.exists():
            save_tiny_model(model, family)
        settings = {
            "data.max_length": 64, "training.effective_batch_size": 8, "training.learning_rate": 0.01,
            "training.max_steps": 12, "evaluation.eval_steps": 0.5, "checkpoint.save_steps": 4,
            "logging.sample_steps": 6, "output.runs_dir": tmp_path / "runs", **(changes or {}),
        }  # fmt: skip
        shortcuts = {"data.path": settings.pop("data.path", str(path)), "model.model_name_or_path": str(model)}
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
        outcome = carry_out(opened, **options)
        assert outcome.exit_code == 0, outcome
        # A run that falls back learns the same, so whatever asks for compiled layers would pass without them.
        assert "not compiled" not in {event.kind for event in of_kind(opened.folder, RunProblem)}
        return opened.folder

    return run


@pytest.fixture
def long_documents(tmp_path):
    """Of 150 tokens and more, for which Hopper and Blackwell have another kernel."""
    lines = texts(800)
    path = tmp_path / "long.jsonl"
    documents = [" ".join(lines[at : at + 12]) for at in range(0, len(lines), 8)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return {"data.path": str(path), "data.max_length": 512, "data.packing": "true", "training.deterministic": "true"}


def test_long_documents_give_the_same_bits_alone_after_other_runs_and_resumed_after_those(
    tune, tmp_path, long_documents
):
    """cuDNN's attention by lengths has no deterministic backward pass, and cuBLAS reads its setting once."""
    save_tiny_model(tmp_path / "wide", "llama", hidden_size=256, head_dim=64, max_position_embeddings=512)
    changes = {**long_documents, "tuning.method": "full", "training.learning_rate": 0.001}
    alone = tune("wide", {**changes, "output.name": "alone"})
    tune("gpt2", {"output.name": "other", "training.mixed_precision": "fp16"})
    tune("llama", {"output.name": "compiled", "training.torch_compile": "true"})
    after = tune("wide", {**changes, "output.name": "after"})
    shutil.rmtree(after.checkpoints / "step-12")
    whole = (after.model / "model.safetensors").read_bytes()
    shutil.rmtree(after.model)
    tune("llama", {"output.name": "between", "tuning.method": "lora"})
    assert carry_out(open_again(after)).exit_code == 0
    resumed = (after.model / "model.safetensors").read_bytes()
    assert (alone.model / "model.safetensors").read_bytes() == whole == resumed


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_run_takes_of_the_card_and_of_the_host_what_is_planned(method, tune, tmp_path, long_documents):
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
             "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 512}  # fmt: skip
    save_tiny_model(tmp_path / "wide", "llama", **shape)
    changes = {**long_documents, "tuning.method": method, "training.deterministic": "false", "training.max_steps": 4}
    folder = tune("wide", changes, gauges_every_seconds=0.02)
    plan, steps = read_plan(folder), of_kind(folder, StepDone)
    planned = sum(part.bytes for part in plan.memory_parts if part.name not in NOT_ALLOCATED)
    assert planned == pytest.approx(max(step.peak_memory_bytes for step in steps), rel=0.1)
    host = [event.process_memory_bytes for event in of_kind(folder, GaugesRead) if event.process_memory_bytes]
    assert host and max(host) <= 1.1 * plan.host_memory_bytes.value


def test_a_compiled_run_compiles_nothing_after_the_first_of_each(tune):
    with counted_compilations() as found:
        tune("llama", {"training.torch_compile": "true", "evaluation.eval_steps": 4, "logging.sample_steps": 4})
    assert 0 < found["__init__"][0] <= 4
    assert found["take_step"] == [0] * 12
    assert found["evaluate"][0] <= 2 and not any(found["evaluate"][1:])
    assert found["sample"] and not any(found["sample"])


def test_a_run_that_is_over_leaves_the_card_empty_and_its_peak_behind(tune):
    tune("llama", {"training.max_steps": 2})
    # The workspaces of cuBLAS stay with the process.
    assert torch.cuda.memory_allocated() < 80 * 2**20
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def of_kind(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def test_a_run_writes_what_it_uses_of_its_own_card(tune):
    folder = tune("llama", gauges_every_seconds=0.01)
    cards = [gpu for event in of_kind(folder, GaugesRead) if event.step for gpu in event.gpus]
    assert cards
    for card in cards:
        assert 0 < card.memory_used_bytes <= card.memory_bytes
        assert card.utilization_share is None or 0 <= card.utilization_share <= 1
        assert card.process_memory_bytes is None or card.process_memory_bytes <= card.memory_used_bytes


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("family", TRAINED)
def test_every_family_learns_on_the_gpu(family, method, tune):
    folder = tune(family, {"tuning.method": method})
    plan = read_plan(folder)
    assert plan.device == "cuda"
    assert plan.packing.value
    steps = of_kind(folder, StepDone)
    assert steps[-1].loss < 0.9 * steps[0].loss
    assert of_kind(folder, EvalDone)[-1].loss < steps[0].loss
    assert not of_kind(folder, RunProblem)
    assert all(step.forward_seconds > 0 and step.backward_seconds > 0 for step in steps)
    if method == "full":
        assert AutoModelForCausalLM.from_pretrained(folder.model)


@pytest.mark.parametrize("switch", [{}, {"training.gradient_checkpointing": "true"}], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_beside_weights_in_4_bits_a_model_learns_and_its_adapter_goes_beside_those_in_full(family, switch, tune):
    pytest.importorskip("bitsandbytes")
    folder = tune(family, {"tuning.method": "qlora", **switch})
    steps = of_kind(folder, StepDone)
    assert steps[-1].loss < 0.9 * steps[0].loss
    assert not of_kind(folder, RunProblem)
    from peft import PeftModel

    whole = AutoModelForCausalLM.from_pretrained(read_plan(folder).config.model.model_name_or_path)
    assert PeftModel.from_pretrained(whole, folder.model).merge_and_unload()


@pytest.mark.parametrize("switch", [
    {"training.gradient_checkpointing": "true"},
    {"training.mixed_precision": "no"},
    {"training.mixed_precision": "fp16"},
    {"model.dtype": "bfloat16"},
    {"training.torch_compile": "true"},
    {"training.loss_chunk_tokens": 32},
    {"dataloader.num_workers": 0},
    {"training.deterministic": "true"},
], ids=str)  # fmt: skip
def test_switches_learn_the_same_on_the_gpu(switch, tune):
    ends = []
    for name, changes in (("plain", {}), ("switched", switch)):
        folder = tune("llama", {"output.name": name, "tuning.method": "full", **changes})
        ends.append(of_kind(folder, EvalDone)[-1].loss)
    assert ends[1] == pytest.approx(ends[0], rel=0.05)


def test_a_resumed_run_is_the_same_with_deterministic_kernels(tune):
    changes = {"training.deterministic": "true", "tuning.method": "full"}
    whole = tune("llama", {**changes, "output.name": "whole"})
    parted = tune("llama", {**changes, "output.name": "parted"})
    shutil.rmtree(parted.checkpoints / "step-12")
    shutil.rmtree(parted.model)
    assert carry_out(open_again(parted)).exit_code == 0
    ends = [(folder.model / "model.safetensors").read_bytes() for folder in (whole, parted)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("family", PACKED)
def test_attention_by_lengths_gives_the_logits_of_each_document_alone(family):
    model = tiny_model(family).to(GPU).eval()
    kernels = varlen.kernels(GPU, model) if torch.cuda.get_device_capability() >= (8, 0) else []
    if not kernels:
        pytest.skip("no kernel for attention by lengths here")
    draw = np.random.default_rng(5)
    documents = [draw.integers(3, 380, size=length, dtype=np.int32) for length in (12, 7, 19, 4, 9)]
    batch = micro_batch(collate_packed([documents], 0), by_lengths=True).to(GPU)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        alone = torch.cat([model(**micro_batch(collate([d], 0)).to(GPU).inputs).logits[0] for d in documents]).float()
        for kernel in kernels:
            assert not varlen.switch_on(model, kernel)
            packed = model(**batch.inputs, use_cache=False).logits[0].float()
            assert (packed - alone).abs().max() < 0.05 * alone.abs().max()
            varlen.switch_off(model)


@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("lengths", [(40,), (300,), (700,), (40, 300, 700)], ids=str)
def test_attention_by_lengths_is_that_of_sdpa_for_each_document(lengths, head):
    """On Hopper and Blackwell torch takes cuDNN's kernel for documents beyond 128 tokens and Flash below, and each has
    a backward pass of its own."""
    kernels = varlen.kernels(GPU) if torch.cuda.get_device_capability() >= (8, 0) else []
    if not kernels:
        pytest.skip("no kernel for attention by lengths here")
    draw = torch.Generator().manual_seed(3)
    shapes = ((4, sum(lengths), head), (2, sum(lengths), head), (2, sum(lengths), head))
    three = [torch.randn(1, *shape, generator=draw).bfloat16().to(GPU).requires_grad_() for shape in shapes]
    slope = torch.randn(1, sum(lengths), 4, head, generator=draw).bfloat16().to(GPU)
    ends = torch.tensor([0, *lengths]).cumsum(0).int().to(GPU)
    told = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends)
    told |= dict.fromkeys(("max_length_q", "max_length_k"), max(lengths))
    expected = []
    for start, end in pairwise([0, *accumulate(lengths)]):
        alone = [x.detach()[:, :, start:end].float().requires_grad_() for x in three]
        result = F.scaled_dot_product_attention(*alone, is_causal=True, enable_gqa=True).transpose(1, 2)
        expected.append((result, *torch.autograd.grad(result, alone, slope[:, start:end].float())))
    results, *gradients = (torch.cat(parts, dim=1 + (at > 0)) for at, parts in enumerate(zip(*expected, strict=True)))
    for kernel in kernels:
        found, _ = varlen.attention_by(kernel)(nn.Module(), *three, None, **told)
        assert (found.float() - results).abs().max() < 0.02 * results.abs().max()
        for one, gradient in zip(torch.autograd.grad(found, three, slope), gradients, strict=True):
            assert (one.float() - gradient).norm() < 0.02 * gradient.norm()


@pytest.mark.parametrize("rows", ["padded", "full"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("model", attention_table.MODELS)
def test_torch_takes_the_kernel_that_is_planned(model, precision, rows):
    """By its own choice for such heads, with the mask and the repeated keys of the plan."""
    shape, capability = attention_table.shape_of_model(model), torch.cuda.get_device_capability()
    if precision == "bf16" and capability < BF16_FROM:
        pytest.skip("the GPU does not support bf16")
    machine = AttentionMachine(device="cuda", capability=capability, precision=precision, libraries=read_versions())
    planned = attention_of(shape, attention_table.ROWS[rows], machine, "auto")
    if planned.kernel == EAGER:
        pytest.skip("the model computes attention with itself")
    facts, keys = shape.attention, shape.attention_heads if planned.repeats_keys else shape.key_value_heads
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    sizes = ((shape.attention_heads, facts.head_size), (keys, facts.head_size), (keys, facts.value_size))
    three = [torch.zeros(1, heads, 256, size, device=GPU, dtype=dtype).requires_grad_() for heads, size in sizes]
    masked = planned_mask(shape, attention_table.ROWS[rows])
    mask = torch.zeros(1, shape.attention_heads, 256, 256, device=GPU, dtype=dtype, requires_grad=facts.learnt_bias)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(planned.kernel == CUDNN)
    try:
        chosen = SDPBackend(
            torch._fused_sdp_choice(
                *three,
                attn_mask=mask if masked else None,
                dropout_p=shape.attention_dropout,
                is_causal=not masked,
                enable_gqa=keys < shape.attention_heads,
            )
        )
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    names = {"cuDNN": "CUDNN", "flash": "FLASH", "memory-efficient": "EFFICIENT", "math": "MATH"}
    assert chosen.name.removesuffix("_ATTENTION") == names[planned.kernel], planned.words


@pytest.mark.parametrize("optim", ["paged_adamw_8bit", "adamw_8bit"])
@pytest.mark.parametrize("method", ["qlora", "full"])
def test_an_optimizer_in_8_bits_goes_on_from_its_saved_state(method, optim, tune):
    pytest.importorskip("bitsandbytes")
    changes = {"tuning.method": method, "training.optim": optim, "tuning.r": 64}
    folder = tune("llama", changes)
    whole = [step.loss for step in of_kind(folder, StepDone)]
    shutil.rmtree(folder.checkpoints / "step-12")
    shutil.rmtree(folder.model)
    assert carry_out(open_again(folder)).exit_code == 0
    again = [step.loss for step in of_kind(folder, StepDone)][len(whole) :]
    assert again == pytest.approx(whole[8:], rel=1e-2)
    assert not of_kind(folder, RunProblem)


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"])
def test_two_packed_rows_have_the_loss_of_their_documents_alone(attention):
    """Documents on both sides of the kernels' blocks of 128 tokens."""
    if package := {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}.get(attention):
        pytest.importorskip(package)
    draw = np.random.default_rng(5)
    documents = [draw.integers(3, 380, size=length, dtype=np.int32) for length in (12, 140, 19, 150, 9)]
    model = tiny_model("llama", head_dim=32, max_position_embeddings=256).to(GPU)
    model.set_attn_implementation(attention)
    loss, weights = NextTokenLoss(model), list(model.parameters())
    rows = collate_packed([documents[:3], documents[3:]], 0)
    with torch.autocast("cuda", torch.bfloat16):
        alone = sum(loss(micro_batch(collate([document], 0)).to(GPU)) for document in documents)
        gradient = torch.autograd.grad(alone, weights)
    norm = sum(x.square().sum() for x in gradient).sqrt()
    kernels = varlen.kernels(GPU, model) if torch.cuda.get_device_capability() >= (8, 0) else []
    # What was chosen, and in SDPA's place each kernel by lengths.
    for kernel in (None, *(kernels if attention == "sdpa" else ())):
        by_lengths = varlen.goes_by_lengths(model)
        if kernel is not None:
            assert not varlen.switch_on(model, kernel)
            by_lengths = True
        with torch.autocast("cuda", torch.bfloat16):
            packed = loss(micro_batch(rows, by_lengths=by_lengths).to(GPU))
            found = torch.autograd.grad(packed, weights)
        varlen.switch_off(model)
        assert packed.item() == pytest.approx(alone.item(), rel=1e-3)
        assert sum((x - y).square().sum() for x, y in zip(found, gradient, strict=True)).sqrt() < 0.1 * norm


def test_steps_that_the_card_has_no_memory_for_go_again_in_smaller_passes(tune):
    """The allocator may take three fifths of what they need; nothing is injected."""
    wide = {
        "training.effective_batch_size": 96, "training.per_device_train_batch_size": 96, "training.max_steps": 3,
        "training.deterministic": "true", "data.packing": "false", "evaluation.eval_steps": 0,
        "logging.sample_steps": 0,
    }  # fmt: skip
    steps = of_kind(tune("llama", wide | {"output.name": "unlimited"}), StepDone)
    own = torch.cuda.memory_allocated()
    limit = own + 0.6 * (max(step.peak_memory_bytes for step in steps) - own)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        limited = tune("llama", wide | {"output.name": "limited"})
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    reduced = of_kind(limited, MicroBatchReduced)
    assert reduced and reduced[0].rows < 96
    smaller = tune("llama", wide | {"training.per_device_train_batch_size": reduced[-1].rows, "output.name": "smaller"})
    assert [event.loss_sum for event in of_kind(limited, StepDone)] == [
        event.loss_sum for event in of_kind(smaller, StepDone)
    ]


def test_a_chunked_loss_takes_less_memory_and_gives_the_same_gradient():
    draw = np.random.default_rng(2)
    rows = [draw.integers(3, 380, size=129, dtype=np.int32) for _ in range(32)]
    batch = micro_batch(collate(rows, 0)).to(GPU)
    results = []
    for chunk in (0, 256):
        model = tiny_model("llama").to(GPU)
        loss = NextTokenLoss(model, chunk_tokens=chunk)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        value = loss(batch)
        value.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((value.item(), gradient, torch.cuda.max_memory_allocated() - before))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4)
    torch.testing.assert_close(results[1][1], results[0][1], atol=1e-2, rtol=1e-2)
    assert results[1][2] < results[0][2]


@pytest.mark.parametrize("rows", [1, 2])
def test_rotary_angles_of_late_positions_are_exact_also_in_a_run_with_tf32(rows):
    model = tiny_model("llama").to(GPU)
    keep_rotary_exact(model)
    rotary, positions = model.model.rotary_emb, torch.arange(8192, device=GPU).expand(rows, -1)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        cosines, _ = rotary(torch.zeros(1, device=GPU), positions)
    finally:
        torch.set_float32_matmul_precision(before)
    angles = positions.double()[..., None] * rotary.inv_freq.double()
    expected = torch.cat((angles, angles), dim=-1).cos()
    # An fp32 angle of 8,192 is exact to 2^-11.
    assert (cosines.double() - expected).abs().max() < 2**-10
