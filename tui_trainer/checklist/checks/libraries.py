"""Do the installed torch and the driver speak the same CUDA?"""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed, warned

# The builds that PyTorch publishes for torch 2.9 and newer, by the CUDA generation that the driver serves.
_WHEELS = {12: "cu126", 13: "cu130"}


def look(context: Context) -> Verdict:
    hardware = context.hardware
    torch = hardware.libraries.get("torch")
    named = f"torch {torch}" if torch else "torch"
    if hardware.driver is None:
        return not_applicable(f"no NVIDIA driver on this machine: {named} only has to work on the CPU")
    served = hardware.driver.cuda
    if served is None:
        return not_applicable(f"the driver does not say which CUDA it serves; {named} is not compared with it")
    if hardware.torch_cuda is None:
        sentence = f"{named} is built for the CPU, the driver serves CUDA {_dotted(served)}: no run can use the GPU"
        return warned(sentence, advice=_install(served))
    built = hardware.torch_cuda
    if built[0] > served[0]:
        sentence = f"{named} is built for CUDA {_dotted(built)}, the driver serves {_dotted(served)}: it cannot use it"
        return warned(sentence, advice=_install(served))
    newer = "; within one major version a newer build works" if built > served else ""
    return passed(f"{named} is built for CUDA {_dotted(built)}, the driver serves {_dotted(served)}{newer}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _install(served: tuple[int, int]) -> str:
    wheel = _WHEELS.get(served[0])
    if wheel is None:
        return f"update the NVIDIA driver: torch 2.9 and newer need CUDA 12 or 13, it serves {_dotted(served)}"
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}"


CHECK = Check(
    name="libraries",
    order=30,
    title="torch fits the driver",
    guides=("E diagnostic tool", "E still slow 3"),
    claim="",
    why="A torch that does not fit the driver falls back to the CPU without a word.",
    look=look,
    needs_plan=False,
)
