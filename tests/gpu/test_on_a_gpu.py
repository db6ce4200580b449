"""On a real GPU: runs end to end, what the kernels compute, and what the plan says about memory.

uv run pytest -m gpu tests/gpu
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend
from transformers import AutoModelForCausalLM

from tests.benchmarks import attention_table
from tests.runs.journals import read_all
from tests.tiny_models import TRAINED, save_tiny_model, texts, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.hardware.gpu_models import BF16_FROM
from tui_trainer.hardware.libraries import read_versions
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning.attention import CUDNN, EAGER, AttentionMachine, attention_of, planned_mask_reason
from tui_trainer.planning.measured_steps import NOT_ALLOCATED
from tui_trainer.runs.events import EvalDone, GaugesRead, MicroBatchReduced, RunProblem, StepDone
from tui_trainer.training import varlen

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


@pytest.fixture
def tune(tmp_path):
    """Return `tune(family, changes)`, which executes a run on the GPU, with options of `execute_run`, and returns its
    folder. A family may be the name of a folder that a test has filled."""
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
        outcome = execute_run(opened, **options)
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
    assert execute_run(reopen_run(after)).exit_code == 0
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
    masked = planned_mask_reason(shape, attention_table.ROWS[rows])
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
    assert execute_run(reopen_run(folder)).exit_code == 0
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
