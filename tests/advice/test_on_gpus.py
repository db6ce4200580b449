"""What the checks say of pretrained models on cards: planned from the catalogue, no model and no card here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tui_trainer.advice.checklist import Finding, all_checks, run_checks
from tui_trainer.advice.context import Context
from tui_trainer.advice.gather import gather
from tui_trainer.advice.remedies import remedy_sentences
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning import plan as planning
from tui_trainer.units import GIB

LIBRARIES = {
    "torch": "2.15.0",
    "pip": "26.0",
    "peft": "0.18",
    "bitsandbytes": None,
    "triton": "3.4",
    "flash-attn": None,
}
LENGTHS = [5 + 37 * n % 190 for n in range(400)]


def machine(name: str, capability: tuple[int, int], gib: float, **libraries: str | None) -> Hardware:
    """A machine with one idle card, and a torch that serves it."""
    memory = int(gib * GIB)
    card = Gpu(index=0, name=name, capability=capability, memory_bytes=memory, memory_free_bytes=int(0.97 * memory))
    return Hardware(
        cpu_name="Test CPU",
        usable_cores=8,
        memory_bytes=64 * GIB,
        memory_available_bytes=60 * GIB,
        platform="Linux",
        python_version="3.11",
        gpus=(card,),
        driver=Driver(version="580", cuda=(13, 0)),
        torch_cuda=(12, 6) if capability < (7, 5) else (13, 0),
        libraries=LIBRARIES | libraries,
    )


T4 = machine("Tesla T4", (7, 5), 15)
PASCAL = machine("NVIDIA GeForce GTX 1080 Ti", (6, 1), 11)
RTX = machine("NVIDIA GeForce RTX 4090", (8, 9), 24)
A10 = machine("NVIDIA A10", (8, 6), 22.5)
H200 = machine("NVIDIA H200", (9, 0), 141)
WITH_BITSANDBYTES = machine("NVIDIA GeForce RTX 5090", (12, 0), 31.8, bitsandbytes="0.48")
T4_WITH_BITSANDBYTES = machine("Tesla T4", (7, 5), 15, bitsandbytes="0.48")


@pytest.fixture(autouse=True)
def large_disk(monkeypatch):
    """Whatever is free on this machine's."""
    monkeypatch.setattr(planning, "disk_free_bytes", lambda folder: 2000 * GIB)


@pytest.fixture
def asked(documents):
    """`asked(profile, {"data.packing": "false"})`: a recipe on documents with a few settings changed."""
    path = documents(LENGTHS)

    def load(profile: str, changes: dict[str, object] | None = None) -> LoadedConfig:
        settings = {"profile": profile, "data.path": path, **(changes or {})}
        return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))

    return load


def seen(loaded: LoadedConfig, hardware: Hardware, seconds: float = 3600.0) -> Context:
    """What the checks look at; the run takes so many seconds, however long this machine thinks."""
    context = replace(gather(loaded, hardware=hardware), load_average=0.0, environment={}, disk_free_bytes=2000 * GIB)
    if context.plan is None:
        return context
    plan = context.plan
    step = plan.step_seconds.model_copy(update={"value": seconds / plan.total_steps.value})
    total = plan.duration_seconds.model_copy(update={"value": seconds})
    return replace(context, plan=plan.model_copy(update={"step_seconds": step, "duration_seconds": total}))


def found(name: str, context: Context) -> Finding:
    return next(finding for finding in run_checks(context) if finding.name == name)


FULL = {"tuning.method": "full", "training.learning_rate": "auto"}


@pytest.mark.parametrize("hardware", [T4, PASCAL, RTX, H200], ids=["t4", "pascal", "rtx", "h200"])
@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        *((name, {}) for name in ("tinyllama-lora", "llama-8b-lora", "qwen-lora", "distilgpt2-full", "scratch-llama")),
        # Read by checks before a plan has made it a number, were it read from the config.
        ("qwen-lora", {"training.effective_batch_size": "auto"}),
        ("distilgpt2-full", {"training.effective_batch_size": "auto"}),
    ],
)
def test_every_check_looks_at_every_recipe_on_every_card(asked, recipe, changes, hardware):
    findings = run_checks(seen(asked(recipe, changes), hardware))
    assert len(findings) == len(all_checks())
    for finding in findings:
        evidence = finding.verdict.evidence
        assert finding.status != "error", evidence
        assert any(sign.isdigit() for sign in evidence) or finding.status == "n/a", evidence
        assert evidence.isascii() and "\n" not in evidence and not evidence.endswith(".")
        assert not finding.is_open or finding.fix or finding.verdict.advice, finding.name


def test_flash_attention_3_is_named_where_packed_rows_are_tried_with_it(asked):
    on_h200 = replace(H200, libraries={**H200.libraries, "flash-attn-3": "3.0.0"})
    on_rtx = replace(RTX, libraries=on_h200.libraries)
    named = "flash-attn-3 3.0.0 takes their lengths without a mask, if it passes the probe"
    packed, padded = {"data.packing": "true"}, {"data.packing": "false"}
    assert named in found("attention", seen(asked("qwen-lora", packed), on_h200)).verdict.evidence
    for settings, hardware in ((packed, on_rtx), (packed, H200), (padded, on_h200)):
        assert "flash-attn-3" not in found("attention", seen(asked("qwen-lora", settings), hardware)).verdict.evidence


def test_torchao_stands_in_for_bitsandbytes_where_that_is_not_here(asked):
    hardware = machine("NVIDIA GeForce RTX 5090", (12, 0), 31.8, torchao="0.18.0")
    context = seen(asked("qwen-lora", FULL), hardware)
    assert found("optimizer", context).fix == {"training.optim": "adamw_torch_8bit"}
    chosen = asked("qwen-lora", {**FULL, "training.optim": "adamw_torch_4bit"})
    verdict = found("optimizer", seen(chosen, hardware)).verdict
    assert "torchao's AdamW in 4 bits" in verdict.evidence
    without = machine("NVIDIA GeForce RTX 5090", (12, 0), 31.8, torchao=None)
    assert "torchao, which is not installed" in found("libraries", seen(chosen, without)).verdict.evidence


def test_the_ladder_to_fit_goes_from_the_cheapest_step_to_the_dearest(asked):
    many_rows = {
        "data.packing": "false",
        "training.effective_batch_size": 64,
        "training.per_device_train_batch_size": 64,
    }
    rows = found("memory", seen(asked("tinyllama-lora", many_rows), T4)).fix
    assert (
        rows
        and set(rows) == {"training.per_device_train_batch_size"}
        and rows["training.per_device_train_batch_size"] < 64
    )
    no_checkpoints = {"training.gradient_checkpointing": "false"}
    assert found("memory", seen(asked("llama-8b-lora", no_checkpoints), RTX)).fix == {
        "training.gradient_checkpointing": True
    }
    assert found("memory", seen(asked("qwen-lora", FULL), RTX)).fix == {"tuning.method": "lora"}
    eight_bits = found("memory", seen(asked("qwen-lora", FULL), WITH_BITSANDBYTES)).fix
    assert eight_bits == {"training.optim": "adamw_8bit"}
    nothing = found("memory", seen(asked("llama-8b-lora", {"model.model_name_or_path": "microsoft/phi-4"}), PASCAL))
    assert nothing.status == "fail" and nothing.fix is None and "choose a smaller model" in nothing.verdict.advice


@pytest.mark.parametrize(
    ("hardware", "last"),
    [(A10, {"tuning.method": "lora"}), (WITH_BITSANDBYTES, {"training.optim": "adamw_8bit"})],
)
def test_a_refusal_and_the_checklist_climb_one_ladder(asked, hardware, last):
    context = seen(asked("qwen-lora", FULL), hardware)
    assert found("memory", context).fix == last
    basis, room = context.basis, context.basis.room
    named = [
        sentence for sentence in remedy_sentences(basis, room.share * room.free_bytes) if "installed" not in sentence
    ]
    [(key, value)] = last.items()
    assert named[-1].startswith(f'{key} = "{value}"')


def test_weights_in_4_bits_are_the_last_step_where_there_is_what_packs_them(asked):
    packed = found("memory", seen(asked("llama-8b-lora"), T4_WITH_BITSANDBYTES)).fix
    assert packed and packed["tuning.method"] == "qlora"
    assert found("model_size", seen(asked("llama-8b-lora"), T4_WITH_BITSANDBYTES)).fix == {"tuning.method": "qlora"}
    without = found("memory", seen(asked("llama-8b-lora"), T4))
    assert without.fix is None and "uv pip install bitsandbytes" in without.verdict.advice
    library = found("libraries", seen(asked("mistral-7b-qlora"), T4))
    assert library.status == "fail" and "needs bitsandbytes" in library.verdict.evidence


def test_packed_rows_are_not_documents(asked):
    context = seen(asked("qwen-lora"), RTX)
    plan = context.planned
    assert plan.packing.value and context.step_rows < plan.effective_batch_size.value
    assert context.row_tokens == context.config.data.max_length
    assert f"of {context.step_rows} packed rows" in found("batch_size", context).verdict.evidence
    assert "documents" in found("accumulation", context).verdict.evidence
    padded = seen(asked("qwen-lora", {"data.packing": "false"}), RTX)
    assert padded.row_tokens < context.row_tokens and padded.step_rows == plan.effective_batch_size.value


def test_a_model_that_packing_would_mix_is_grouped_by_length(asked, documents):
    loaded = asked("qwen-lora")
    context = seen(loaded, RTX)
    bloom = replace(context, plan_basis=replace(context.basis, shape=replace(context.basis.shape, model_type="bloom")))
    unpacked = context.planned.packing.model_copy(
        update={"value": False, "reason": "Bloom: packed documents would mix"}
    )
    bloom = replace(bloom, plan=context.planned.model_copy(update={"packing": unpacked}))
    uneven = replace(bloom.facts, row_tokens=100.0, longest_row=900)
    finding = found("padding", replace(bloom, facts=uneven))
    assert (
        finding.fix == {"data.group_by_length": True} and "up to 89% of a pass is padding" in finding.verdict.evidence
    )
    even = replace(bloom.facts, row_tokens=100.0, longest_row=150)
    assert found("padding", replace(bloom, facts=even)).status == "pass"


def test_a_model_that_only_the_catalogue_knows_is_planned_and_cannot_start(asked):
    finding = found("plan", seen(asked("qwen-lora"), RTX))
    assert finding.status == "fail" and "can be planned, but it is not on this machine" in finding.verdict.evidence
    assert "tui-trainer download" in finding.verdict.advice


TWO = replace(
    H200,
    gpus=tuple(replace(H200.gpus[0], index=index, uuid=f"GPU-0000000{index}") for index in range(2)),
    libraries={**H200.libraries, "deepspeed": "0.19.8"},
)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "ddp sums fp32 gradients of masters after the backward pass"),
        ({"distributed.strategy": "fsdp"}, "fsdp gathers fp32 weights in bf16: its parts are the masters"),
        ({"distributed.strategy": "deepspeed-2"}, "deepspeed-2 keeps fp32 masters of its own"),
        ({"distributed.processes": 1}, "GiB with weights in bfloat16"),
        ({"distributed.processes": 1, "training.mixed_precision": "no"}, "products are in fp32: from --set"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bf16_weights_with_masters_are_advised_where_they_cost_nothing_else(asked, settings, words):
    finding = found("master_weights", seen(asked("qwen-lora", FULL | settings), TWO))
    assert words in finding.verdict.evidence
    assert finding.fix == ({"model.dtype": "bfloat16"} if "GiB" in words else None)


def test_they_are_not_advised_where_the_memory_would_not_be_enough(asked):
    """Rows of 128 tokens save less in activations than accumulated gradients and masters add."""
    settings = FULL | {
        "data.packing": "false", "data.max_length": 128, "training.per_device_train_batch_size": 1,
        "training.effective_batch_size": 8,
    }  # fmt: skip
    plans = [seen(asked("qwen-lora", settings | more), H200).planned for more in ({}, {"model.dtype": "bfloat16"})]
    needed = [plan.memory_bytes.value for plan in plans]
    assert needed[0] < needed[1]
    free = int(sum(needed) / 2 / 0.9)
    tight = replace(H200, gpus=(replace(H200.gpus[0], memory_free_bytes=free),))
    context = seen(asked("qwen-lora", settings), tight)
    budget = context.basis.room.budget_bytes
    assert budget is not None and needed[0] <= budget < needed[1]
    finding = found("master_weights", context)
    assert finding.status == "n/a" and "more than there is" in finding.verdict.evidence


def test_a_mixture_of_experts_says_that_its_experts_are_multiplied_in_fp32(asked, tmp_path):
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"vocab_size": 384, "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 2048}
    (tmp_path / "olmoe").mkdir()
    (tmp_path / "olmoe" / "config.json").write_text(json.dumps({"model_type": "olmoe", **shape, **sizes}))
    settings = FULL | {"model.model_name_or_path": tmp_path / "olmoe", "model.init": "scratch"}
    context = seen(asked("qwen-lora", settings), H200)
    assert "experts are multiplied in fp32" in context.planned.weights_dtype.reason
    finding = found("master_weights", context)
    assert any("products of experts are in bf16 then" in line for line in finding.verdict.details)
    dense = found("master_weights", seen(asked("qwen-lora", FULL), H200))
    assert not any("experts" in line for line in dense.verdict.details), "the control"
