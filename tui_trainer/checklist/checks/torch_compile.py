"""Small operations fused into few kernels read and write memory less often.

Source: Ansel et al., PyTorch 2, ASPLOS 2024.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.hardware.gpu_models import TENSOR_CORES_FROM, dotted
from tui_trainer.units import format_seconds

_KEY = "training.torch_compile"
# The compiler takes a minute or more: a gain of a tenth must bring back three times that before it is worth it.
_COMPILER_SECONDS, _LEAST_GAIN, _TIMES_REPAID = 60.0, 0.1, 3
# A character model of 4.9 M parameters in bf16, one core: 3369 tokens a second, compiled by layers 3718.
_ON_A_CPU = "on a CPU it gained 10 % (measured when it was built), where a C++ compiler is installed"
_WORTH_SECONDS = _TIMES_REPAID * _COMPILER_SECONDS / _LEAST_GAIN


@check(
    order=130,
    title="Model compiled",
    is_for_speed=True,
    published="1.41x as fast on an A100, the geometric mean of over 180 models (PyTorch 2, ASPLOS 2024)",
)
def look(context: Context) -> Verdict:
    steps, step = context.planned.total_steps.value, context.step_seconds
    seconds = None if step is None else steps * step
    why_not = _why_not(context, seconds)
    length = f"{steps:,} steps" if seconds is None else f"{steps:,} steps of {format_seconds(seconds)} in all"
    if context.config.training.torch_compile:
        if why_not:
            return warned(f"on for {length}: {why_not}", fix={_KEY: False}, switch="torch.compile on")
        sentence = f"on for {length}: each layer is compiled once"
        return passed(sentence, switch="torch.compile on", opposite={_KEY: False})
    why_not = why_not or (_ON_A_CPU if context.basis.target.gpu is None else "")
    if why_not or seconds is None:
        here = "not here" if "serves" in why_not or "triton" in why_not else "off"
        reason = why_not or "a step is not measured yet"
        other = None if here == "not here" else {_KEY: True}
        return not_applicable(f"off for {length}: {reason}", switch=f"torch.compile: {here}", opposite=other)
    sentence = f"off for {length}, which would pay for the minute that the compiler takes"
    return warned(sentence, fix={_KEY: True}, switch="torch.compile: off")


def _why_not(context: Context, seconds: float | None) -> str:
    gpu = context.basis.target.gpu
    if gpu and gpu.capability and gpu.capability < TENSOR_CORES_FROM:
        return f"the compiler serves compute capability 7.0 and newer, this card has {dotted(gpu.capability)}"
    if gpu and context.hardware.libraries and context.hardware.libraries.get("triton") is None:
        return "triton, which it needs on a GPU, is not installed"
    if seconds is not None and seconds < _WORTH_SECONDS:
        return f"shorter than {format_seconds(_WORTH_SECONDS)}, it does not repay the minute that the compiler takes"
    return ""
