"""The checks of pretrained models on cards: planned from the catalogue, without a model and a card on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from tests.advice.machines import (
    A10,
    GTX_1080,
    H200,
    RTX_4090,
    RTX_5090_WITH_BITSANDBYTES,
    T4,
    T4_WITH_BITSANDBYTES,
    machine,
)
from tests.advice.test_every_check import FULL, finding_of
from tui_trainer.advice.checklist import all_checks, run_checks
from tui_trainer.advice.context import Context, EarlierRun
from tui_trainer.advice.gather import gather
from tui_trainer.advice.remedies import useful_remedies
from tui_trainer.config.load import LoadedConfig, Origin, Request
from tui_trainer.data.batching.pack import PaddingShares
from tui_trainer.hardware.facts import Hardware, with_cards
from tui_trainer.hardware.gpu_models import CARDS
from tui_trainer.launching.open_run import load_config

PASCAL = GTX_1080
pytestmark = pytest.mark.usefixtures("large_disk")


@pytest.fixture
def recipe(documents) -> Callable[..., LoadedConfig]:
    """`recipe("qwen-lora", {"data.packing": "false"})`: a recipe on documents with a few settings changed."""

    def load(profile: str, changes: dict[str, object] | None = None) -> LoadedConfig:
        settings = {"profile": profile, "data.path": documents, **(changes or {})}
        return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))

    return load


def context_on(loaded: LoadedConfig, hardware: Hardware, seconds: float = 3600.0) -> Context:
    """What the checks look at. The run takes `seconds`, whatever the speed of this machine is."""
    context = replace(gather(loaded, hardware=hardware), load_average=0.0, environment={}, disk_free_bytes=2000 * 2**30)
    if context.plan is None:
        return context
    plan = context.plan
    step = plan.step_seconds.model_copy(update={"value": seconds / plan.total_steps.value})
    total = plan.duration_seconds.model_copy(update={"value": seconds})
    return replace(context, plan=plan.model_copy(update={"step_seconds": step, "duration_seconds": total}))


@pytest.mark.full
def test_every_check_judges_every_recipe_on_a_card(recipe, subtests):
    # Checks must read the effective batch from the plan, where it is a number, and not from the config.
    auto = {"training.effective_batch_size": "auto"}
    for name, changes, hardware in (
        ("tinyllama-lora", {}, T4),
        ("llama-8b-lora", {}, GTX_1080),
        ("llama-8b-lora", {}, RTX_4090),
        ("qwen-lora", auto, T4),
        ("qwen-lora", {}, H200),
        ("distilgpt2-full", auto, RTX_4090),
        ("distilgpt2-full", {}, GTX_1080),
        ("scratch-llama", {}, H200),
    ):
        with subtests.test(f"{name} {changes} on {hardware.gpus[0].name}"):
            findings = run_checks(context_on(recipe(name, changes), hardware))
            assert len(findings) == len(all_checks())
            for finding in findings:
                evidence = finding.verdict.evidence
                assert finding.status != "error", evidence
                assert any(sign.isdigit() for sign in evidence) or finding.status == "n/a", evidence
                assert evidence.isascii() and "\n" not in evidence and not evidence.endswith(".")
                assert not finding.is_open or finding.fix or finding.verdict.advice, finding.name


@pytest.mark.full
def test_flash_attention_3_is_named_only_for_packed_rows_on_a_card_that_has_it(recipe):
    on_h200 = replace(H200, libraries={**H200.libraries, "flash-attn-3": "3.0.0"})
    on_rtx = replace(RTX_4090, libraries=on_h200.libraries)
    named = "flash-attn-3 3.0.0 uses their lengths instead of a mask (verified when the run starts)"
    packed, padded = {"data.packing": "true"}, {"data.packing": "false"}

    def evidence(settings: dict[str, str], hardware: Hardware) -> str:
        return finding_of("attention", context_on(recipe("qwen-lora", settings), hardware)).verdict.evidence

    assert named in evidence(packed, on_h200)
    for settings, hardware in ((packed, on_rtx), (packed, H200), (padded, on_h200)):
        assert "flash-attn-3" not in evidence(settings, hardware)


@pytest.mark.full
def test_torchao_is_proposed_where_bitsandbytes_is_not_installed(recipe):
    with_torchao = machine("NVIDIA GeForce RTX 5090", (12, 0), 31.8, torchao="0.18.0")
    context = context_on(recipe("qwen-lora", FULL), with_torchao)
    assert finding_of("optimizer", context).fix == {"training.optim": "adamw_torch_8bit"}
    chosen = recipe("qwen-lora", {**FULL, "training.optim": "adamw_torch_4bit"})
    assert "torchao's 4-bit AdamW" in finding_of("optimizer", context_on(chosen, with_torchao)).verdict.evidence
    without = machine("NVIDIA GeForce RTX 5090", (12, 0), 31.8, torchao=None)
    evidence = finding_of("libraries", context_on(chosen, without)).verdict.evidence
    assert "torchao, which is not installed" in evidence


def test_where_nothing_makes_a_model_fit_a_smaller_model_or_bitsandbytes_is_advised(recipe):
    phi = recipe("llama-8b-lora", {"model.model_name_or_path": "microsoft/phi-4"})
    nothing = finding_of("memory", context_on(phi, GTX_1080))
    assert nothing.status == "fail" and nothing.fix is None and "choose a smaller model" in nothing.verdict.advice
    without = finding_of("memory", context_on(recipe("llama-8b-lora"), T4))
    assert without.fix is None and "uv pip install bitsandbytes" in without.verdict.advice
    packed = finding_of("memory", context_on(recipe("llama-8b-lora"), T4_WITH_BITSANDBYTES)).fix
    assert packed and packed["tuning.method"] == "qlora"
    library = finding_of("libraries", context_on(recipe("mistral-7b-qlora"), T4))
    assert library.status == "fail" and "needs bitsandbytes" in library.verdict.evidence


def test_a_refusal_names_the_step_that_the_checklist_takes_to_make_a_model_fit(recipe):
    for hardware, key, value in (
        (A10, "tuning.method", "lora"),
        (RTX_5090_WITH_BITSANDBYTES, "training.optim", "adamw_8bit"),
    ):
        context = context_on(recipe("qwen-lora", FULL), hardware)
        assert finding_of("memory", context).fix == {key: value}
        basis, room = context.basis, context.basis.memory_budget
        sentences, _ = useful_remedies(basis, room.usable_share * room.free_bytes)
        named = [sentence for sentence in sentences if "installed" not in sentence]
        assert named[-1].startswith(f'{key} = "{value}"')


def test_packed_rows_are_not_counted_as_documents(recipe):
    context = context_on(recipe("qwen-lora"), RTX_4090)
    plan = context.required_plan
    assert plan.packing.value and context.max_step_rows < plan.effective_batch_size.value
    assert context.mean_row_tokens == context.config.data.max_length
    assert f"of the {context.max_step_rows} packed rows" in finding_of("batch_size", context).verdict.evidence
    assert "documents" in finding_of("accumulation", context).verdict.evidence
    padded = context_on(recipe("qwen-lora", {"data.packing": "false"}), RTX_4090)
    assert padded.mean_row_tokens < context.mean_row_tokens and padded.max_step_rows == plan.effective_batch_size.value


def test_grouping_by_length_is_named_for_a_model_that_packing_would_mix(recipe):
    context = context_on(recipe("qwen-lora"), RTX_4090)
    bloom = replace(context, plan_basis=replace(context.basis, shape=replace(context.basis.shape, model_type="bloom")))
    unpacked = context.required_plan.packing.model_copy(
        update={"value": False, "reason": "Bloom: packed documents would mix"}
    )
    bloom = replace(bloom, plan=context.required_plan.model_copy(update={"packing": unpacked}))
    shares = {
        name: PaddingShares(padded=share, grouped=0.05, packed=None) for name, share in (("uneven", 0.6), ("even", 0.1))
    }
    uneven = replace(bloom.facts, padding=lambda *_: shares["uneven"])
    finding = finding_of("padding", replace(bloom, facts=uneven))
    assert finding.status == "pass" and finding.verdict.opposite_patch == {"data.group_by_length": "auto"}
    assert "60% padding in random batches" in finding.verdict.evidence
    even = replace(bloom.facts, padding=lambda *_: shares["even"])
    assert finding_of("padding", replace(bloom, facts=even)).status == "pass"


def test_a_model_that_only_the_catalogue_knows_is_planned_and_cannot_start(recipe):
    finding = finding_of("plan", context_on(recipe("qwen-lora"), RTX_4090))
    assert finding.status == "fail" and finding.verdict.evidence.endswith("because the model is not on this machine")
    assert "tui-trainer download" in finding.verdict.advice


TWO_CARDS = replace(
    H200,
    gpus=tuple(replace(H200.gpus[0], index=index, uuid=f"GPU-0000000{index}") for index in range(2)),
    libraries={**H200.libraries, "deepspeed": "0.19.8"},
)
ADVICE_ON_MASTERS = [
    ({}, "with fp32 masters, ddp sums gradients after the backward pass"),
    ({"distributed.strategy": "fsdp"}, "fsdp gathers fp32 weights in bf16, so its shards serve as masters"),
    ({"distributed.strategy": "deepspeed-2"}, "deepspeed-2 keeps its own fp32 master weights"),
    ({"distributed.processes": 1, "model.dtype": "float32"}, "GiB with weights in bfloat16"),
    ({"distributed.processes": 1, "training.mixed_precision": "no"}, "matmuls are in fp32: from --set"),
]


@pytest.mark.full
def test_bf16_weights_with_masters_are_advised_where_they_cost_nothing_else(recipe, subtests):
    for settings, words in ADVICE_ON_MASTERS:
        with subtests.test(words):
            finding = finding_of("master_weights", context_on(recipe("qwen-lora", FULL | settings), TWO_CARDS))
            assert words in finding.verdict.evidence
            assert finding.fix == ({"model.dtype": "bfloat16"} if "GiB" in words else None)


@pytest.mark.full
def test_bf16_weights_with_masters_are_the_default_unless_only_fp32_weights_fit(recipe):
    """Rows of 128 tokens save less in activations than accumulated gradients and masters add."""
    settings = FULL | {
        "data.packing": "false", "data.max_length": 128, "training.per_device_train_batch_size": 1,
        "training.effective_batch_size": 8,
    }  # fmt: skip
    exact, auto = (
        context_on(recipe("qwen-lora", settings | more), H200).required_plan
        for more in ({"model.dtype": "float32"}, {})
    )
    assert auto.weights_dtype.value == "bfloat16" and exact.memory_bytes.value < auto.memory_bytes.value
    free = int((exact.memory_bytes.value + auto.memory_bytes.value) / 2 / 0.9)
    tight = replace(H200, gpus=(replace(H200.gpus[0], memory_free_bytes=free),))
    context = context_on(recipe("qwen-lora", settings), tight)
    assert context.required_plan.weights_dtype.value == "float32"
    assert "fp32 masters do not fit" in context.required_plan.weights_dtype.reason
    finding = finding_of("master_weights", context)
    assert finding.status == "n/a" and "more than is available" in finding.verdict.evidence


@pytest.mark.full
def test_a_mixture_of_experts_reports_that_its_experts_are_multiplied_in_fp32(recipe, tmp_path):
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"vocab_size": 384, "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 2048}
    (tmp_path / "olmoe").mkdir()
    (tmp_path / "olmoe" / "config.json").write_text(json.dumps({"model_type": "olmoe", **shape, **sizes}))
    settings = FULL | {"model.model_name_or_path": tmp_path / "olmoe", "model.init": "scratch"}
    context = context_on(recipe("qwen-lora", settings), H200)
    assert "experts are computed in fp32" in context.required_plan.weights_dtype.reason
    assert "in float32, experts are computed one by one" in context.required_plan.weights_dtype.reason
    in_bf16 = settings | {"model.dtype": "bfloat16"}
    for_card = [
        context_on(recipe("qwen-lora", in_bf16), card).required_plan.weights_dtype.reason for card in (H200, RTX_4090)
    ]
    assert "one by one" not in for_card[0] and "8.9, experts are computed one by one" in for_card[1]
    finding = finding_of("master_weights", context)
    assert any("experts are computed in the dtype" in line for line in finding.verdict.details)
    dense = finding_of("master_weights", context_on(recipe("qwen-lora", FULL), H200))
    assert not any("experts" in line for line in dense.verdict.details)


def test_smaller_and_larger_models_are_named_with_numbers(recipe):
    qwen = context_on(recipe("qwen-lora"), H200, seconds=600.0)
    verdict = finding_of("model_choice", qwen).verdict
    assert verdict.status == "pass"
    assert "smaller: " in verdict.evidence and "larger: " in verdict.evidence and "would take about" in verdict.evidence
    longer = replace(context_on(recipe("qwen-lora"), H200, seconds=7200.0), earlier=EarlierRun(name="r", steps=50))
    assert "larger: " not in finding_of("model_choice", longer).verdict.evidence
    idle = replace(longer, earlier=EarlierRun(name="r", steps=50, busy_share=0.3))
    evidence = finding_of("model_choice", idle).verdict.evidence
    assert "kept the GPU 30 % busy in run r" in evidence and "larger: " in evidence
    week = context_on(recipe("tinyllama-lora"), H200, seconds=7 * 86_400.0)
    slow = finding_of("model_choice", week).verdict
    assert slow.status == "warn" and "download" in slow.advice and "would take about" in slow.evidence
    full = context_on(recipe("llama-8b-lora", {"tuning.method": "full"}), T4)
    short = finding_of("model_choice", full).verdict
    assert short.status == "warn" and "does not fit" in short.evidence


@pytest.mark.full
def test_no_check_contradicts_the_hardware_profile_of_any_card(documents, subtests):
    base = replace(RTX_4090, libraries={**RTX_4090.libraries, "bitsandbytes": "0.48"})
    recipes = ("quickstart", "docstring-topics", "distilgpt2-full", "scratch-llama", "qwen-lora", "llama-8b-qlora")
    for card, recipe in product(CARDS, recipes):
        with subtests.test(f"{recipe} on {card.label}"):
            hardware = with_cards(base, card)
            data = () if recipe in recipes[:2] else (f"data.path={documents}",)
            loaded = load_config(Request(assignments=(f"profile={recipe}", *data)), hardware=hardware)
            opened = [finding for finding in run_checks(gather(loaded, hardware=hardware)) if finding.is_open]
            decided = [key for one in opened for key in one.fix or {} if loaded.origin(key) is Origin.HARDWARE]
            assert not decided


def test_what_a_hardware_profile_sets_is_kept_with_its_name(documents):
    settings = ("profile=distilgpt2-full", f"data.path={documents}")
    loaded = load_config(Request(assignments=settings), hardware=GTX_1080)
    found = {one.name: one for one in run_checks(gather(loaded, hardware=GTX_1080))}
    for name in ("precision", "gradient_checkpointing"):
        assert found[name].status == "pass"
        assert found[name].verdict.evidence.endswith("because hardware profile gtx-10xx-16xx sets it")
