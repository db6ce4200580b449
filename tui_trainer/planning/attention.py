"""Choose the attention kernel of a run, with the reason, from the GPU, the precision, the rows and the model.

The order and the refusals are those of torch's `scaled_dot_product_attention`. Sources: `priority_order`,
`use_flash_attention`, `use_mem_efficient_attention` and `check_prefer_cudnn_attention` in
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, and its docstring, of torch 2.11 and 2.15; how transformers calls
it: integrations/sdpa_attention.py and masking_utils.py of 5.17 and 5.24. Needs no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from tui_trainer.config.sections import is_known_attention
from tui_trainer.hardware.diagnosis import Device
from tui_trainer.hardware.gpu_models import FLASH_KERNELS, HOPPER, Version, version_text
from tui_trainer.hardware.libraries import numbers_of
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.training_setup import Precision

BY_LENGTHS, CUDNN, FLASH, EFFICIENT, MATH = "flash by lengths", "cuDNN", "flash", "memory-efficient", "math"
EAGER, ON_CPU = "eager", "torch's CPU kernel"
# torch's attention by lengths came with 2.10. Its memory-efficient kernel takes fewer heads of keys than of queries in
# 2.15, by the docstring, and refuses them in 2.11 (check_batch_size_and_num_heads_dense without enable_gqa). Versions
# in between are treated like 2.11, because repeated keys are correct with all.
_TORCH_WITH_VARLEN, _EFFICIENT_SHARES_SINCE = (2, 10), (2, 15)
_FLASH_FROM: Version = (8, 0)
_FLASH_LARGEST_HEAD, _CUDNN_LARGEST_HEAD = 256, 128
# check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120: their shared memory holds no backward pass.
_SMALL_AMPERE: tuple[Version, ...] = ((8, 6), (8, 9), (12, 0))
# Major capabilities on which torch asks cuDNN first.
_CUDNN_FIRST = (9, 10)
_SDP_UTILS = "torch sdp_utils.cpp"


class Attention(BaseModel):
    """Attention kernel of most passes. `repeats_keys` is true if keys and values are copied for each query head, and
    `keeps_scores` if all scores of a pass exist at one time."""

    model_config = ConfigDict(frozen=True)

    kernel: str
    reason: str
    source: str = ""
    repeats_keys: bool = False
    hidden_wait: str = ""
    """Reason why the CPU waits for the GPU in each pass, as a clause; empty if it does not."""

    @property
    def keeps_scores(self) -> bool:
        return self.kernel in (MATH, EAGER)

    @property
    def because(self) -> str:
        repeat_clause = "; this kernel needs keys and values repeated for each query head" if self.repeats_keys else ""
        wait_clause = f"; {self.hidden_wait}" if self.hidden_wait else ""
        return f"{self.reason}{repeat_clause}{wait_clause}"

    @property
    def words(self) -> str:
        """Kernel and reason in words: `memory-efficient, because flash needs ...`; empty in older plans."""
        return f"{self.kernel}, because {self.because}" if self.kernel else ""


NOT_PLANNED = Attention(kernel="", reason="not in the plan")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRows:
    """The rows that attention reads. `longest` is in tokens. With `widths_vary`, a pass is as wide as its longest."""

    packed: bool
    longest: int
    widths_vary: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMachine:
    """The device of the run. `capability` is None for a CPU, and for GPUs that do not report it. `libraries` holds
    versions by distribution."""

    device: Device
    capability: Version | None
    precision: Precision
    libraries: Mapping[str, str | None]
    deterministic: bool = False


def attention_of(shape: ModelShape, rows: AttentionRows, machine: AttentionMachine, requested: str) -> Attention:
    """Return the kernel of a run whose `model.attn_implementation` is `requested`."""
    attention = _forced_kernel(shape, requested) or _of_sdpa(shape, rows, machine)
    wait_reason = ""
    if machine.device == "cuda" and (kind := shape.attention.waiting_rope):
        wait_reason = f"RoPE of type {kind} reads the longest position from the GPU in each pass, so the host waits "
        wait_reason += "for the GPU"
    return attention.model_copy(update={"hidden_wait": wait_reason})


def _forced_kernel(shape: ModelShape, requested: str) -> Attention | None:
    """Return the kernel if the settings or the model leave torch no choice; None if torch chooses."""
    facts = shape.attention
    if requested not in ("auto", "sdpa"):
        note = "" if is_known_attention(requested) else "; the plan assumes as much memory as for sdpa"
        return Attention(kernel=requested, reason=f"model.attn_implementation requests it{note}", source="config")
    if facts.soft_cap:
        reason = f"SDPA does not support the model's soft cap of {facts.soft_cap:g} on scores"
        return Attention(kernel=EAGER, reason=reason, source="transformers modeling_gemma2.py, _supports_sdpa of 5.24")
    if not facts.has_sdpa:
        reason = f"{shape.model_type} uses its own attention"
        return Attention(kernel=EAGER, reason=reason, source=f"transformers modeling_{shape.model_type}.py")
    return None


def _of_sdpa(shape: ModelShape, rows: AttentionRows, machine: AttentionMachine) -> Attention:
    if machine.device == "cpu":
        return _on_cpu(shape)
    if rows.packed and not (refusal := _lengths_refusal(shape, machine)):
        reason = f"documents are packed, and {_varlen_library(machine)} uses their lengths instead of a mask "
        reason += "(verified when the run starts)"
        return Attention(kernel=BY_LENGTHS, reason=reason, source="torch nn/attention/varlen.py; flash-attn's README")
    mask_reason = planned_mask_reason(shape, rows)
    refusals = [f"variable-length attention {refusal}"] if rows.packed else []
    for kernel, refusal, source in _refused(shape, rows, machine, mask_reason):
        if refusal:
            refusals.append(f"{kernel} {refusal}")
            continue
        repeats_keys = _repeats_keys(shape, machine, kernel, mask_reason)
        reason = "; ".join(refusals) if refusals else "it is torch's first choice"
        return Attention(kernel=kernel, reason=reason, source=source, repeats_keys=repeats_keys)
    return Attention(kernel=MATH, reason="; ".join(refusals), source=_SDP_UTILS)


def _on_cpu(shape: ModelShape) -> Attention:
    source = "torch sdp_utils_cpp.cpp, use_flash_attention_cpp"
    for feature, is_used in (
        ("dropout", shape.attention_dropout),
        ("learned bias, which this model has instead of a mask", shape.attention.learnt_bias),
    ):
        if is_used:
            return Attention(kernel=MATH, reason=f"torch's CPU kernel supports no {feature}", source=source)
    return Attention(kernel=ON_CPU, reason="it stores no attention scores, with or without a mask", source=source)


def planned_mask_reason(shape: ModelShape, rows: AttentionRows) -> str:
    """Return why a pass needs an attention mask; empty if it needs none. An encoder without padding needs none."""
    facts = shape.attention
    if facts.learnt_bias:
        return "a learned bias"
    if rows.packed:
        return "a document mask"
    if facts.is_chunked:
        return "a chunk mask"
    if 0 < facts.window <= rows.longest:
        return f"a sliding window of {facts.window} tokens"
    return "a padding mask" if shape.head != CAUSAL and rows.widths_vary else ""


def _refused(
    shape: ModelShape, rows: AttentionRows, machine: AttentionMachine, mask_reason: str
) -> Iterator[tuple[str, str, str]]:
    """Yield (kernel, why torch refuses it or "", source) for torch's kernels, in the order that torch tries them."""
    capability, facts = machine.capability, shape.attention
    if capability and capability[0] in _CUDNN_FIRST:
        yield CUDNN, _cudnn_refusal(shape, rows, machine), f"{_SDP_UTILS}, check_prefer_cudnn_attention"
    yield FLASH, _flash_refusal(shape, machine, mask_reason), f"{_SDP_UTILS}, use_flash_attention"
    # minimum_gemm_alignment: what tensor cores and vector loads take.
    is_16_bit, is_ampere = machine.precision != "fp32", capability is not None and capability >= (8, 0)
    divisor = 8 if is_16_bit else 4 if is_ampere else 1
    bad_sizes = [size for size in (facts.head_size, facts.value_size) if size % divisor]
    refusal = f"needs head sizes that are multiples of {divisor}, but the model has {bad_sizes[0]}" if bad_sizes else ""
    yield EFFICIENT, refusal, f"{_SDP_UTILS}, use_mem_efficient_attention"


def _cudnn_refusal(shape: ModelShape, rows: AttentionRows, machine: AttentionMachine) -> str:
    facts, largest_head = shape.attention, max(shape.attention.head_size, shape.attention.value_size)
    if machine.precision == "fp32":
        return "supports 16 bits only"
    if machine.deterministic:
        return "has no deterministic backward pass"
    if largest_head > _CUDNN_LARGEST_HEAD:
        return f"supports head sizes up to {_CUDNN_LARGEST_HEAD}, but the model has {largest_head}"
    if facts.learnt_bias:
        return "computes no gradient for a learned bias"
    # cuDNN builds a plan for each shape, forward and backward, in tenths of a second. If a pass is as wide as its
    # longest row, nearly every pass has a new shape. Widths rounded to 128 would leave few shapes, but add 64 tokens to
    # a row on average, a tenth of the work for rows of 600. The next kernel costs a part of attention's time, which is
    # itself about a tenth of a step at 4,096 tokens and less below (computed, not measured).
    if rows.widths_vary:
        return "builds an execution plan for each row length, and row lengths vary"
    return ""


def _flash_refusal(shape: ModelShape, machine: AttentionMachine, mask_reason: str) -> str:
    capability, facts = machine.capability, shape.attention
    if capability is None:
        return "needs compute capability 8.0, but the GPU does not report its capability"
    if capability < _FLASH_FROM:
        return f"needs compute capability {version_text(_FLASH_FROM)}, and this GPU has {version_text(capability)}"
    if machine.precision == "fp32":
        return "supports 16 bits only"
    if mask_reason:
        return f"supports no mask, but {mask_reason} is needed"
    if facts.head_size != facts.value_size:
        return f"needs values and keys of the same size, but they have {facts.value_size} and {facts.head_size}"
    if facts.head_size > _FLASH_LARGEST_HEAD:
        return f"supports head sizes up to {_FLASH_LARGEST_HEAD}, but the model has {facts.head_size}"
    if capability in _SMALL_AMPERE and 192 < facts.head_size <= 224:
        return f"has no backward pass for head size {facts.head_size} on capability {version_text(capability)}"
    return ""


def _lengths_refusal(shape: ModelShape, machine: AttentionMachine) -> str:
    """Return why attention in packed rows cannot use the lengths of documents; empty if it can. No kernel is tested."""
    facts = shape.attention
    if refusal := _flash_refusal(shape, machine, ""):
        return refusal
    if facts.is_chunked:
        return "does not support the model's chunked attention"
    if facts.learnt_bias:
        return "does not support a learned bias"
    if shape.attention_dropout:
        return f"does not support dropout, but the model has attention dropout {shape.attention_dropout:g}"
    if not _varlen_library(machine):
        return "needs torch 2.10 or the package flash-attn"
    return ""


def _varlen_library(machine: AttentionMachine) -> str:
    """Return the kernel for packed rows that `training/varlen.py` tries first at the start; empty without any."""
    libraries, is_hopper = machine.libraries, machine.capability is not None and machine.capability[0] == HOPPER
    torch_version = libraries.get("torch")
    torch_has_kernel = torch_version is None or numbers_of(torch_version) >= _TORCH_WITH_VARLEN
    for name, is_tried in (("flash_attention_3", is_hopper), ("flash_attention_2", not torch_has_kernel)):
        if is_tried and not FLASH_KERNELS[name].missing_reason(libraries):
            package = FLASH_KERNELS[name].distribution
            return f"{package} {libraries[package]}"
    return "torch" if torch_has_kernel else ""


def _repeats_keys(shape: ModelShape, machine: AttentionMachine, kernel: str, mask_reason: str) -> bool:
    """Return whether keys and values are copied for each query head before the kernel gets them."""
    facts = shape.attention
    if shape.key_value_heads >= shape.attention_heads:
        return False
    # transformers itself copies them for a mask and for such heads (use_gqa_in_sdpa).
    if mask_reason or not facts.head_size == facts.value_size <= _FLASH_LARGEST_HEAD:
        return True
    torch_version = machine.libraries.get("torch")
    return kernel == EFFICIENT and (torch_version is None or numbers_of(torch_version) < _EFFICIENT_SHARES_SINCE)
