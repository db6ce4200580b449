"""The fused kernel never writes the scores of each pair of tokens to memory.

Source: Dao et al., FlashAttention, arXiv:2205.14135.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.config.sections import is_known_attention
from tui_trainer.hardware.gpu_models import FLASH_KERNELS
from tui_trainer.planning.memory.parts import ModelMemory
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import format_bytes

_KEY = "model.attn_implementation"
_DROPOUT = "model.scratch.attention_dropout"
_MASK_IS_FREE = "a mask of documents costs nothing on a CPU: 54 ms with it, 59 ms causal (measured when it was built)"


@check(
    order=140,
    title="Fused attention",
    is_for_speed=True,
    published="GPT-2 at 1,024 tokens trains 3x as fast (arXiv:2205.14135)",
    fallback={_KEY: "auto"},
)
def look(context: Context) -> Verdict:
    basis, requested = context.basis, context.config.model.attn_implementation
    gpu, kernel = basis.target.gpu, FLASH_KERNELS.get(requested)
    if kernel and gpu and gpu.capability and (reason := kernel.too_old(gpu.capability)):
        return warned(f"{requested}: {reason}", fix={_KEY: "auto"}, switch="fused attention: not this one")
    fused = _activations(context, context.basis.changed({_KEY: "auto", _DROPOUT: 0.0}).setup)
    if requested == "eager":
        kept = _activations(context, basis.setup)
        sentence = f"eager attention keeps all scores: {_compared(kept, fused)}"
        return warned(sentence, fix={_KEY: "auto"}, switch="fused attention: off")
    attention = context.planned.attention
    if attention.keeps_scores and basis.shape.attention_dropout:
        return _with_dropout(context, fused)
    if attention.keeps_scores:
        sentence = f"{attention.words}; it keeps all scores: {_activations(context, basis.setup)} of activations"
        advice = "flex_attention knows soft caps and keeps no scores" if basis.shape.attention.soft_cap else ""
        return warned(sentence, advice=advice, switch=f"fused attention: off, {attention.kernel}")
    details = [_MASK_IS_FREE] if basis.setup.packed and basis.setup.device == "cpu" else []
    if context.earlier and context.earlier.attention:
        details.append(f"run {context.earlier.name}: {context.earlier.attention}")
    if not is_known_attention(requested):
        details.append("it is tried at the start, and sdpa is used where it fails")
    sentence = f"{attention.words}: {fused} of activations, no scores kept"
    return passed(sentence, *details, switch=f"fused attention on: {attention.kernel}", opposite={_KEY: "eager"})


def _with_dropout(context: Context, fused: str) -> Verdict:
    shape, scratch = context.basis.shape, context.config.model.scratch
    kept = _activations(context, context.basis.setup)
    own = shape.attention_dropout == scratch.attention_dropout
    what = f"{_DROPOUT} = 0" if own else "attention_dropout 0 in the model's config.json"
    return warned(
        f"attention_dropout {shape.attention_dropout:g} keeps all scores: {_compared(kept, fused)}",
        "a width of 192 reached 44 % of the rate of matmuls with dropout, 58 % without (measured on one core)",
        # No fix: dropout is part of what is learnt, not only of how fast.
        advice=f"{what} is faster; dropout works against overfitting where the held-out loss begins to rise",
        switch="fused attention: off, there is dropout",
        opposite={_DROPOUT: 0.0} if own else None,
    )


def _compared(kept: str, fused: str) -> str:
    """Of a model with dropout of its own, only what is kept with it is known."""
    return f"{kept} of activations" + (f", {fused} with the fused kernel" if fused != kept else "")


def _activations(context: Context, setup: TrainingSetup) -> str:
    """Bytes, in words, that the layers keep of one pass; under checkpointing one layer at a time."""
    shape, length = context.basis.shape, context.config.data.max_length
    layers = 1 if setup.gradient_checkpointing else shape.layers
    tokens = context.planned.per_device_train_batch_size.value * length
    return format_bytes(layers * tokens * ModelMemory(shape, setup, length).counted.kept)
