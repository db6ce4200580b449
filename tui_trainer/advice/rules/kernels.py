"""Rules about attention, fused kernels and compiled layers, which take fewer passes over memory."""

from dataclasses import replace
from statistics import median

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Verdict, failed, not_applicable, passed, rule, symptom, warned
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.sections import is_known_attention
from tui_trainer.hardware.diagnosis import lack_of_compiler
from tui_trainer.hardware.gpu_models import TENSOR_CORES_FROM, version_text
from tui_trainer.models import unsloth
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.fused_kernels import (
    FUSED_ADAPTERS,
    KERNELS,
    LIBRARY,
    fused_kernels_obstacle,
    unfused_adapters_reason,
)
from tui_trainer.runs.wording import planned_time_words
from tui_trainer.units import format_bytes, format_percent, format_seconds

GROUP = "Speed"
COMPILE = "training.torch_compile"
# Compiling takes a minute or more. It is worth that if a gain of a tenth saves three minutes.
_WORTH_SECONDS = 3 * 60.0 / 0.1
# Measured for a character model of 4.9 M parameters in bf16 on one core: 3369 tokens a second, 3718 if compiled.
_ON_A_CPU = "on a CPU, compiling gains about 10 % (benchmark on one core) and needs a C++ compiler"
# A step with compilation takes seconds. A step that only has long rows takes at most a few times as long as usual.
_TIMES_AS_LONG = 5.0
# Recompilation long after the start shows in the newest steps.
_SEEN_STEPS = 500
ATTENTION = "model.attn_implementation"
_ATTENTION_DROPOUT = "model.scratch.attention_dropout"
_MASK_IS_FREE = "a document mask costs nothing on a CPU: 54 ms with it, 59 ms with a causal mask (benchmark)"
_PROBED = (
    "before the first step, logits and gradients with and without liger are compared; if they differ, liger is not used"
)
_LORA_DROPOUT = "tuning.lora_dropout"
_ONLY_OVERFITTING = "dropout helps only if the model overfits (the held-out loss rises)"


@symptom("Repeated compilation")
def compiles_again(view: RunView) -> Cause | None:
    """If later epochs are as slow as the first, compiling does not pay off."""
    plan, seconds = view.plan, view.state.step_seconds[-_SEEN_STEPS:]
    if plan is None or not plan.torch_compile or len(seconds) < 20:
        return None
    later_seconds = seconds[len(seconds) // 4 :]
    usual_seconds = median(later_seconds)
    extra_seconds = [step - usual_seconds for step in later_seconds if step > _TIMES_AS_LONG * usual_seconds]
    share = sum(extra_seconds) / sum(later_seconds) if sum(later_seconds) > 0 else 0.0
    if len(extra_seconds) < 2:
        return None
    return Cause(
        cause="Layers are recompiled long after the first steps.",
        evidence=(
            f"{len(extra_seconds)} steps took over {_TIMES_AS_LONG:g} times as long as usual, "
            f"which costs {format_percent(share)} of the time"
        ),
        share=share,
        fix={COMPILE: False},
        advice="or use rows of equal length: packing, or documents truncated to data.max_length",
    )


@rule(
    "Model compiled",
    130,
    COMPILE,
    is_for_speed=True,
    published_gain="1.41x as fast on an A100, the geometric mean of over 180 models (PyTorch 2, ASPLOS 2024)",
    symptoms=(compiles_again,),
)
def torch_compile(context: Context) -> Verdict:
    """Small operations fused into few kernels read and write memory less often.

    Source: Ansel et al., PyTorch 2, ASPLOS 2024.
    """
    steps, step_seconds = context.required_plan.total_steps.value, context.step_seconds
    seconds = None if step_seconds is None else steps * step_seconds
    why_impossible = _why_no_compiler(context)
    why_not = why_impossible
    if not why_not and seconds is not None and seconds < _WORTH_SECONDS:
        least_text = format_seconds(_WORTH_SECONDS)
        why_not = f"compiling takes a minute, which pays off only in runs of {least_text} or more"
    time_text = planned_time_words(seconds, is_measured=context.required_plan.has_measured_steps)
    length_text = f"{steps:,} steps" if seconds is None else f"{steps:,} steps, {time_text}"
    if context.config.training.torch_compile:
        if why_not:
            return warned(f"on for {length_text}: {why_not}", fix={COMPILE: False}, switch_state="torch.compile on")
        sentence = f"on for {length_text}: each layer is compiled once"
        return passed(sentence, switch_state="torch.compile on", opposite_patch={COMPILE: False})
    why_not = why_not or (_ON_A_CPU if context.basis.target.gpu is None else "")
    if why_not or seconds is None:
        reason = why_not or "no step has been measured yet"
        switch = "torch.compile: not possible" if why_impossible else "torch.compile: off"
        opposite = None if why_impossible else {COMPILE: True}
        return not_applicable(f"off for {length_text}: {reason}", switch_state=switch, opposite_patch=opposite)
    sentence = f"off for {length_text}: compiling takes a minute, but would save more than that"
    return warned(sentence, fix={COMPILE: True}, switch_state="torch.compile: off")


def _why_no_compiler(context: Context) -> str:
    """Return as a clause why layers cannot be compiled here; empty if they can be."""
    gpu = context.basis.target.gpu
    if unsloth.is_asked(context.config):
        return "Unsloth compiles its own layers and cannot be combined with torch.compile"
    if gpu and gpu.capability and gpu.capability < TENSOR_CORES_FROM:
        return (
            f"the compiler supports compute capability 7.0 and newer, and this GPU has {version_text(gpu.capability)}"
        )
    missing_tool = lack_of_compiler(context.hardware.libraries, "cuda") if gpu else ""
    return f"torch.compile cannot run on a GPU, because {missing_tool}" if missing_tool else ""


@rule(
    "Fused attention",
    140,
    ATTENTION,
    _ATTENTION_DROPOUT,
    fallback="auto",
    is_for_speed=True,
    published_gain="GPT-2 at 1,024 tokens trains 3x as fast (arXiv:2205.14135)",
)
def attention(context: Context) -> Verdict:
    """A fused kernel never writes the attention scores of all token pairs to memory.

    Source: Dao et al., FlashAttention, arXiv:2205.14135.
    """
    basis, requested = context.basis, context.config.model.attn_implementation
    if requested == "eager":
        sentence = f"eager attention stores all attention scores: {_peak_and_fused_peak(basis)}"
        return warned(sentence, fix={ATTENTION: "auto"}, switch_state="fused attention: off")
    attention = context.required_plan.attention
    if attention.keeps_scores and (dropout := basis.shape.attention_dropout):
        is_set_here = dropout == context.config.model.scratch.attention_dropout
        key = f"{_ATTENTION_DROPOUT} = 0" if is_set_here else "attention_dropout 0 in the model's config.json"
        return warned(
            f"attention_dropout {dropout:g} stores all attention scores: {_peak_and_fused_peak(basis)}",
            "benchmark with width 192 on one core: attention reaches 44 % of the matmul rate with dropout, "
            "58 % without",
            # No fix: dropout is part of what is learnt, not only of how fast.
            advice=f"{key} is faster; {_ONLY_OVERFITTING}",
            switch_state="fused attention: off (dropout)",
            opposite_patch={_ATTENTION_DROPOUT: 0.0} if is_set_here else None,
        )
    if attention.keeps_scores:
        sentence = f"{attention.words}; this kernel stores all attention scores"
        advice = "flex_attention supports soft caps and stores no scores" if basis.shape.attention.soft_cap else ""
        return warned(sentence, advice=advice, switch_state=f"fused attention: off, {attention.kernel}")
    details = [_MASK_IS_FREE] if basis.setup.packed and basis.setup.device == "cpu" else []
    if context.earlier and context.earlier.attention_rejection:
        details.append(f"run {context.earlier.name}: {context.earlier.attention_rejection}")
    if not is_known_attention(requested):
        details.append("this kernel is tried at the start; sdpa is the fallback")
    return passed(
        f"{attention.words}: no attention scores stored, {_peak_and_fused_peak(basis)}",
        *details,
        switch_state=f"fused attention on: {attention.kernel}",
        opposite_patch={ATTENTION: "eager"},
    )


def _peak_and_fused_peak(basis: Basis) -> str:
    """Return the planned peak memory as text, and that with the fused kernel if it differs."""
    fused_basis = basis.with_patch({ATTENTION: "auto", _ATTENTION_DROPOUT: 0.0})
    size, fused_size = (format_bytes(planned.needed_bytes()) for planned in (basis, fused_basis))
    return f"peak memory {size}" + (f", {fused_size} with the fused kernel" if fused_size != size else "")


@rule("Fused kernels", 145, KERNELS, fallback="auto")
def kernels(context: Context) -> Verdict:
    """Fused norms, gated MLPs and rotary embeddings take one pass over memory each and store fewer activations.

    Source: Hsu et al., Liger Kernel, arXiv:2410.10989.
    """
    basis, planned, training = context.basis, context.required_plan.kernels, context.config.training
    libraries, family = basis.hardware.libraries, basis.shape.model_type
    version = libraries.get(LIBRARY)
    if planned.value == "none":
        why_not = fused_kernels_obstacle(basis.hardware, basis.target, basis.shape)
        is_unsuited = training.torch_compile or training.deterministic
        if context.config.model.kernels == "none" and not why_not and not is_unsuited:
            installed_text = f"{LIBRARY} {version} is installed and supports {family}"
            sentence = f'off because of model.kernels = "none", but {installed_text}'
            return warned(sentence, fix={KERNELS: "auto"}, switch_state="fused kernels: off")
        with_liger = replace(basis.hardware, libraries={**libraries, LIBRARY: "installed"})
        helps = version is None and not fused_kernels_obstacle(with_liger, basis.target, basis.shape)
        advice = f"to use fused kernels: uv pip install {LIBRARY}" if helps else ""
        reason = why_not or planned.reason.removeprefix("auto: ")
        return not_applicable(f"none: {reason}", advice=advice, switch_state="fused kernels: none")
    name, switch = f"{LIBRARY} {version or ''}".strip(), f"fused kernels: {LIBRARY}"
    if training.torch_compile:
        # Liger-Kernel #1330, B300.
        sentence = f"{name} in compiled layers: a compiled SwiGLU was 3.1 times as fast as Liger's (published)"
        return warned(sentence, fix={KERNELS: "auto"}, switch_state=switch)
    if training.deterministic:
        sentence = f"{name}: torch cannot check whether it is deterministic"
        return warned(sentence, fix={KERNELS: "auto"}, switch_state=switch)
    sentence = f"{name} for {family} models; the gain has not been measured on a GPU yet"
    return passed(sentence, _PROBED, switch_state=switch, opposite_patch={KERNELS: "none"})


@symptom("Unsloth not in use", needs_steps=False, least_share=0)
def unsloth_missing(view: RunView) -> Cause | None:
    """Unsloth skips models that it does not support: the run then uses plain transformers, in an older version."""
    messages = [problem.message for problem in view.state.problems if problem.kind == unsloth.KERNELS_MISSING]
    if not messages:
        return None
    return Cause(
        cause="Unsloth was requested, but the model uses none of its kernels.",
        evidence=messages[-1],
        # The run is not slower than without Unsloth, but not faster either.
        share=0.0,
        fix={unsloth.PROVIDER: "transformers"},
    )


@rule("Unsloth features", 146, unsloth.PROVIDER, name="unsloth", symptoms=(unsloth_missing,))
def unsloth_parts(context: Context) -> Verdict:
    """Unsloth's speed-up (2x by its README) comes from fused kernels, a chunked loss and rows without padding, which
    are settings here."""
    plan, shape = context.required_plan, context.basis.shape
    family, earlier = shape.model_type, context.earlier
    fix = {unsloth.PROVIDER: "transformers"}
    if why_not := _why_no_unsloth(context):
        is_asked = unsloth.is_asked(context.config)
        return failed(why_not, fix=fix) if is_asked else not_applicable(why_not)
    if unsloth.is_asked(context.config):
        switch = "Unsloth on"
        if earlier and earlier.unsloth_parts_sentence:
            sentence = f"run {earlier.name}: {earlier.unsloth_parts_sentence}"
            return (
                passed(sentence, switch_state=switch)
                if earlier.has_unsloth
                else warned(sentence, fix=fix, switch_state=switch)
            )
        if family not in unsloth.FAMILIES:
            sentence = f"{unsloth.PROVIDER} = {unsloth.PACKAGE_NAME}, which has no kernels for {family} models"
            return warned(sentence, fix=fix, switch_state=switch)
        sentence = f"Unsloth supports {family} models; the modules that it replaces are counted before the first step"
        return not_applicable(sentence, switch_state=switch)
    if family not in unsloth.FAMILIES:
        return not_applicable(f"Unsloth has no kernels for {family} models")
    states = {
        "fused kernels": plan.kernels.value != "none",
        "logits in chunks": bool(plan.loss_chunk_tokens.value),
        "packed rows without padding": plan.packing.value,
        "compiled layers": context.config.training.torch_compile,
    }
    names = [name for name, is_on in states.items() if is_on]
    sentence = f"{len(names)} of Unsloth's {len(states)} optimisations are on: {', '.join(names) or 'none'}"
    off_text = f"off: {', '.join(name for name in states if name not in names) or 'nothing'}"
    if len(names) * 2 >= len(states):
        return passed(sentence, off_text)
    return warned(sentence, off_text, advice=f"uv pip install {LIBRARY}, or set {COMPILE} = true")


def _why_no_unsloth(context: Context) -> str:
    """Return as a clause why Unsloth cannot run here; empty if it can."""
    platform, gpu = context.hardware.platform, context.basis.target.gpu
    if context.config.is_from_scratch:
        return "Unsloth supports pretrained models only, and this model is trained from scratch"
    if not platform.startswith(unsloth.PLATFORM):
        return f"Unsloth runs on Linux and in WSL with an NVIDIA GPU, but this machine runs {platform}"
    if gpu is None:
        return "Unsloth needs an NVIDIA GPU, and this run is on the CPU"
    if gpu.capability and gpu.capability < TENSOR_CORES_FROM:
        return f"Unsloth needs compute capability 7.0, and this GPU has {version_text(gpu.capability)}"
    return ""


@rule("Fused adapters", 147, FUSED_ADAPTERS, _LORA_DROPOUT, is_for_speed=True)
def fused_adapters(context: Context) -> Verdict:
    """A layer and its LoRA adapter in one function take fewer passes over memory than two separate modules."""
    tuning = context.config.tuning
    if not (why_not := unfused_adapters_reason(context.config, context.required_plan.strategy.value)):
        layers = sum(layer.count for layer in context.basis.setup.adapted(context.basis.shape))
        return passed(
            f"{layers:,} layers are fused with their adapters",
            "before the first step, a fused layer of each kind is compared with peft's; if one differs, none is fused",
            switch_state="fused adapters: on",
            opposite_patch={FUSED_ADAPTERS: False},
        )
    if tuning.has_adapter and tuning.lora_dropout:
        new_basis = context.basis.with_patch({_LORA_DROPOUT: 0.0})
        old_size, new_size = (format_bytes(basis.needed_bytes()) for basis in (context.basis, new_basis))
        stored_text = f"peak memory {old_size}, {new_size} without dropout"
        return warned(
            f"dropout stores a mask and a copy of each adapted layer's input: {stored_text}",
            "estimate for an 8B model with rows of 4,096 tokens: dropout makes steps a sixth longer",
            # No fix: dropout is part of what is learnt, not only of how fast.
            advice=f"{_LORA_DROPOUT} = 0 is faster; {_ONLY_OVERFITTING}",
            switch_state="fused adapters: none (dropout)",
            opposite_patch={_LORA_DROPOUT: 0.0},
        )
    if tuning.has_adapter and not tuning.fused_adapters:
        return warned(f"off: {why_not}", fix={FUSED_ADAPTERS: True}, switch_state="fused adapters: off")
    return not_applicable(f"none: {why_not}", switch_state="fused adapters: none")
