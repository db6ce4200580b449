"""Norms, gated MLPs and rotary embeddings in one pass over memory each, with fewer activations kept.

Source: Hsu et al., Liger Kernel, arXiv:2410.10989.
"""

from dataclasses import replace

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.planning.fused_kernels import KEY, LIBRARY, lack

_PROBED = (
    "logits and gradients are compared with the model's own before the first step, and where they differ it is off"
)


@check(order=145, title="Fused kernels", fallback={KEY: "auto"})
def look(context: Context) -> Verdict:
    basis, planned = context.basis, context.planned.kernels
    compiled, deterministic = (getattr(context.config.training, key) for key in ("torch_compile", "deterministic"))
    if planned.value == "none":
        return _without(context, compiled or deterministic)
    name, switch = f"{LIBRARY} {basis.hardware.libraries.get(LIBRARY) or ''}".strip(), f"fused kernels: {LIBRARY}"
    if compiled:
        # Liger-Kernel #1330, B300.
        sentence = f"{name} in compiled layers: a compiled SwiGLU was 3.1 times as fast as Liger's (published)"
        return warned(sentence, fix={KEY: "auto"}, switch=switch)
    if deterministic:
        return warned(f"{name}: torch cannot tell whether it gives the same bits", fix={KEY: "auto"}, switch=switch)
    sentence = f"{name} for {basis.shape.model_type}; not measured on a card yet"
    return passed(sentence, _PROBED, switch=switch, opposite={KEY: "none"})


def _without(context: Context, other_way: bool) -> Verdict:
    basis, planned = context.basis, context.planned.kernels
    why_not = lack(basis.hardware, basis.target, basis.shape)
    version = basis.hardware.libraries.get(LIBRARY)
    if context.config.model.kernels == "none" and not why_not and not other_way:
        installed = f"{LIBRARY} {version} is installed and knows {basis.shape.model_type}"
        return warned(f'off by model.kernels = "none": {installed}', fix={KEY: "auto"}, switch="fused kernels: off")
    reason = why_not or planned.reason.removeprefix("auto: ")
    with_it = replace(basis.hardware, libraries={**basis.hardware.libraries, LIBRARY: "installed"})
    would_do = version is None and not lack(with_it, basis.target, basis.shape)
    advice = f"uv pip install {LIBRARY}, and they are tried" if would_do else ""
    return not_applicable(f"none: {reason}", advice=advice, switch="fused kernels: none")
