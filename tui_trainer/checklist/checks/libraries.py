"""A torch that does not fit the driver falls back to the CPU without a word."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, not_applicable, passed, warned
from tui_trainer.hardware.diagnosis import torch_problem
from tui_trainer.hardware.gpu_models import dotted
from tui_trainer.methods.optimizers import DEFAULT, OPTIMIZERS
from tui_trainer.methods.tuning_methods import TUNING_METHODS


@check(order=30, title="Libraries fit the driver", needs_plan=False)
def look(context: Context) -> Verdict:
    hardware = context.hardware
    if missing := _missing(context):
        return missing
    torch = hardware.libraries.get("torch")
    named = f"torch {torch}" if torch else "torch"
    if hardware.driver is None:
        return not_applicable(f"no NVIDIA driver on this machine: {named} only has to work on the CPU")
    gpu = context.gpu
    if gpu is None:
        return not_applicable(f"no GPU of this machine can be used now: {named} only has to work on the CPU")
    if problem := torch_problem(hardware, gpu):
        found = f"{problem.sentence} ({named})" if torch else problem.sentence
        return warned(found, advice=problem.remedy or "train on the CPU, or on a newer card")
    built, served = hardware.torch_cuda, hardware.driver.cuda
    if built is None or served is None:
        return not_applicable(f"the driver does not say which CUDA it serves; {named} is not compared with it")
    newer = "; within one major version a newer build works" if built > served else ""
    return passed(f"{named} is built for CUDA {dotted(built)}, the driver serves {dotted(served)}{newer}")


def _missing(context: Context) -> Verdict | None:
    """A library that the settings need and that is not installed; nothing where versions were not read."""
    installed, config = context.hardware.libraries, context.config
    method = config.tuning.method
    for library in TUNING_METHODS[method].libraries:
        if installed.get(library, "") is None:
            sentence = f'tuning.method = "{method}" needs {library}, which is not installed'
            return failed(sentence, advice=f"install it: uv pip install {library}")
    library = OPTIMIZERS[config.training.optim].library
    if library and installed.get(library, "") is None:
        sentence = f'training.optim = "{config.training.optim}" needs {library}, which is not installed'
        return failed(sentence, fix={"training.optim": DEFAULT}, advice=f"uv pip install {library}")
    return None
