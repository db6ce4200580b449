"""Its gain is that of fused kernels, of a loss in chunks and of rows without padding, which are switches here.

Source: Unsloth's README.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"})


@check(
    order=146,
    title="What Unsloth would bring",
    published="2x as fast (Unsloth's README)",
)
def look(context: Context) -> Verdict:
    plan, shape = context.planned, context.basis.shape
    if context.config.is_from_scratch:
        return not_applicable("a model from scratch; Unsloth is for pretrained ones")
    if plan.device != "cuda":
        return not_applicable("Unsloth needs a GPU, and this run is on the CPU")
    if shape.model_type not in _FAMILIES:
        return not_applicable(f"Unsloth does not know {shape.model_type} models")
    parts = {
        "fused kernels": plan.kernels.value != "none",
        "logits in chunks": bool(plan.loss_chunk_tokens.value),
        "packed rows without padding": plan.packing.value,
        "compiled layers": context.config.training.torch_compile,
    }
    on = [name for name, is_on in parts.items() if is_on]
    sentence = f"{len(on)} of {len(parts)} of what it does is on here: {', '.join(on) or 'none'}"
    off = [name for name, is_on in parts.items() if not is_on]
    if len(on) * 2 >= len(parts):
        return passed(sentence, f"off: {', '.join(off) or 'nothing'}")
    advice = "uv pip install liger-kernel, or set training.torch_compile = true"
    return warned(sentence, f"off: {', '.join(off)}", advice=advice)
