"""Rules about the data types that a run computes with."""

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Verdict, not_applicable, passed, rule, symptom, warned
from tui_trainer.advice.run_view import RunView
from tui_trainer.hardware.gpu_models import version_text
from tui_trainer.hardware.processor import BF16_FLAGS
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.automatic_values import DTYPE_KEY, PRECISION_KEY
from tui_trainer.planning.basis import with_settings
from tui_trainer.planning.processes import SPLITTING, ZERO_STAGES
from tui_trainer.planning.training_setup import Dtype
from tui_trainer.units import format_bytes

# Memory per weight at the peak of an accumulated step with AdamW. A bf16 weight has an fp32 copy, moments, a gradient
# and a sum. An fp32 weight has a 16-bit copy, moments and a gradient.
_BYTES = "with gradient accumulation and AdamW, training takes 20 bytes for each bf16 weight, 18 for each fp32 weight"
_RECKONED = (
    "with bf16 weights, Qwen3-1.7B (2 x 4096 tokens, H100) trains 14 % faster with 7.0 GiB less of activations, "
    "estimated by python -m tests.benchmarks.roofline --only 1.7b-full 1.7b-full-bf16; not measured on a GPU yet"
)
_NO_BF16 = "the GPU does not support bf16"
_EXPERTS = "experts are computed in the dtype of the weights, because autocast does not cover grouped_mm"
_TF32 = "training.tf32"
# Model families of transformers whose modelling files contain convolutions.
_CONVOLVING = frozenset(
    """bamba canine convbert falcon_h1 falcon_mamba funnel jamba lfm2 mamba mamba2 nemotron_h qwen3_next squeezebert
    zamba zamba2""".split()
)


@symptom("fp32 despite native 16-bit", least_share=0)
def slow_precision(view: RunView) -> Cause | None:
    """16-bit matmuls are faster and halve activations, if the processor supports them natively."""
    plan = view.plan
    if plan is None or plan.precision != "fp32" or plan.best_precision in ("", "fp32"):
        return None
    gain, best_type = plan.precision_gain, plan.best_precision
    gain_text = f"{best_type} is {gain:.2f} times as fast for {plan.precision_gain_of}, measured here" if gain else ""
    no_gain = f"the gain of {best_type} has not been measured on this machine"
    return Cause(
        cause=f"The run computes in fp32, although this machine supports {best_type} natively.",
        evidence=f"forward and backward in fp32 take {view.seconds_of_step_words(view.compute_seconds)}; "
        f"{gain_text or no_gain}",
        share=max(1 - 1 / gain, 0.0) * view.share_of_time(view.compute_seconds) if gain else 0.0,
        fix={PRECISION_KEY: "auto"} if gain is None or gain > 1 else None,
        advice="" if gain else "measure it: tui-trainer check --measure precision",
        is_measured=bool(gain),
    )


@rule(
    "Mixed precision", 100, PRECISION_KEY, fallback="auto", is_for_speed=True, symptoms=(slow_precision,),
    published_gain="memory of activations nearly halved (arXiv:1710.03740)",
)  # fmt: skip
def precision(context: Context) -> Verdict:
    """16-bit matmuls are faster and halve activations, if the processor supports them natively.

    Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740.
    """
    planned = context.required_plan.precision
    loaded = with_settings(context.loaded, {PRECISION_KEY: "auto"})
    auto_choice = choices.precision(loaded, context.hardware, context.basis.target, context.basis.shape)
    switch = f"precision: {planned.value}"
    if planned.value != auto_choice.value:
        sentence = f"{planned.value}, {planned.reason}; auto would choose {auto_choice.value}: {auto_choice.reason}"
        return warned(sentence, fix={PRECISION_KEY: "auto"}, switch_state=switch)
    sentence = f"{planned.value}: {auto_choice.reason}"
    if planned.value == "fp32":
        target = context.basis.target
        has_bf16 = target.has_native_bf16 if target.gpu else context.hardware.cpu_flags & BF16_FLAGS
        return not_applicable(
            sentence, switch_state=switch, opposite_patch={PRECISION_KEY: "bf16"} if has_bf16 else None
        )
    return passed(sentence, switch_state=switch, opposite_patch={PRECISION_KEY: "no"})


@rule("bf16 weights with fp32 masters", 105, DTYPE_KEY, fallback="auto", is_for_speed=True)
def master_weights(context: Context) -> Verdict:
    """Full fine-tuning with bf16 weights and fp32 master copies needs fewer casts and stores fewer activations than
    fp32 weights.

    The optimizer updates the copy (the fp32 master weights of arXiv:1710.03740, section 3.1), so that no small update
    is lost. Autocast casts fp32 weights once and the input of each linear layer anew, computes norms in fp32, and adds
    up the results of layers in fp32."""
    planned, basis = context.required_plan.weights_dtype, context.basis
    weights_text = f"weights are kept in {planned.value}: {planned.reason}"
    if basis.setup.has_adapter:
        sentence = "none: frozen weights are never updated, and adapters train in fp32"
        return not_applicable(sentence, weights_text, switch_state="fp32 masters: none")
    if planned.value == "bfloat16" and basis.target.has_native_bf16 is False:
        sentence = f"on, but {_NO_BF16}, so all operations except matmuls are emulated"
        return warned(sentence, weights_text, fix={DTYPE_KEY: "auto"}, switch_state="fp32 masters on")
    if planned.value == "bfloat16":
        sentence = f"on: {_memory_comparison(context, 'float32')}"
        return passed(sentence, weights_text, switch_state="fp32 masters on", opposite_patch={DTYPE_KEY: "float32"})
    off_switch = "fp32 masters: off"
    if why_not := _why_impossible(context):
        return not_applicable(f"off: {why_not}", weights_text, switch_state=off_switch)
    # If bf16 weights are not known to be faster, the gain can be measured.
    if basis.target.gpu is None or basis.shape.head != "causal_lm":
        on_gpu, opposite = basis.target.gpu is not None, {DTYPE_KEY: "bfloat16"}
        why_not = "the gain was estimated for decoders only" if on_gpu else "bf16 weights are recommended on GPUs only"
        return not_applicable(f"off: {why_not}", weights_text, switch_state=off_switch, opposite_patch=opposite)
    experts = (_EXPERTS,) if basis.shape.has_grouped_experts else ()
    sentence, details = f"off: {_memory_comparison(context, 'bfloat16')}", (_RECKONED, _BYTES, *experts, weights_text)
    limit, other_bytes = basis.memory_budget.budget_bytes, basis.with_patch({DTYPE_KEY: "bfloat16"}).needed_bytes()
    if limit is not None and context.required_plan.memory_bytes.value <= limit < other_bytes:
        return not_applicable(f"{sentence}, more than is available", *details, switch_state=off_switch)
    return warned(sentence, *details, fix={DTYPE_KEY: "bfloat16"}, switch_state=off_switch)


def _memory_comparison(context: Context, other: Dtype) -> str:
    now_text = format_bytes(context.required_plan.memory_bytes.value)
    other_text = format_bytes(context.basis.with_patch({DTYPE_KEY: other}).needed_bytes())
    return f"peak memory {now_text}, {other_text} with weights in {other}"


def _why_impossible(context: Context) -> str:
    """Return as a clause why bf16 weights bring no gain here, or need no measurement; empty if they may bring one."""
    plan, target = context.required_plan, context.basis.target
    strategy = plan.strategy.value
    if target.gpu is not None and not target.has_native_bf16:
        return _NO_BF16 if target.has_native_bf16 is False else "the GPU does not report whether it supports bf16"
    if plan.precision.value != "bf16":
        return f"matmuls are in {plan.precision.value}: {plan.precision.reason}"
    if not plan.is_group:
        return ""
    if strategy in ZERO_STAGES:
        return f"{strategy} keeps its own fp32 master weights, whatever the precision of the weights"
    if strategy in SPLITTING:
        return f"{strategy} gathers fp32 weights in bf16, so its shards serve as masters"
    return f"with fp32 masters, {strategy} sums gradients after the backward pass; with fp32 weights, during it"


@rule(
    "TF32 and cuDNN autotune", 110, _TF32, is_for_speed=True,
    published_gain="8x the rate of fp32 matmuls on an A100 (its data sheet)",
)  # fmt: skip
def tf32(context: Context) -> Verdict:
    """Ampere and newer GPUs multiply fp32 much faster if ten bits of mantissa are enough.

    Source: NVIDIA A100 data sheet."""
    gpu, precision = context.basis.target.gpu, context.required_plan.precision.value
    note = f"; cuDNN autotune: {why_no_autotune(context.basis.shape.model_type)}"
    if gpu is None:
        return not_applicable(f"TF32 needs a GPU, and this run uses none{note}", switch_state=f"TF32: no GPU{note}")
    abilities = gpu.abilities
    if abilities is None or gpu.capability is None:
        sentence = "the GPU does not report whether it supports TF32"
        return not_applicable(sentence, switch_state=f"TF32: not reported{note}")
    if not abilities.tf32:
        sentence = f"this GPU has compute capability {version_text(gpu.capability)}, but TF32 requires 8.0"
        return not_applicable(sentence, switch_state=f"TF32: not on this GPU{note}")
    if context.config.training.tf32:
        operations = f"operations not computed in {precision}"
        operations = "all matmuls, which are in fp32" if precision == "fp32" else operations
        return passed(f"on, for {operations}", switch_state=f"TF32 on{note}", opposite_patch={_TF32: False})
    if precision == "fp32":
        return warned("off, although all matmuls are in fp32", fix={_TF32: True}, switch_state=f"TF32: off{note}")
    sentence = f"off; matmuls are in {precision}, so TF32 would change little"
    return passed(sentence, switch_state=f"TF32: off{note}", opposite_patch={_TF32: True})


def why_no_autotune(model_type: str) -> str:
    """Return why this program does not use `torch.backends.cudnn.benchmark` (cuDNN tries out kernels) for a model."""
    if model_type in _CONVOLVING:
        return "off, because cuDNN would benchmark each of many row lengths"
    return "n/a, because this model has no convolutions to tune"
