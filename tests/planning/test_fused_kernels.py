"""`model.kernels`: what auto chooses on each machine, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tests.advice.test_on_gpus import H200, PASCAL
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fused_kernels import LIGER_FAMILIES, fused_kernels, kernel_problems

LIGER = replace(H200, libraries={**H200.libraries, "liger-kernel": "0.8.5"})
CPU = replace(LIGER, gpus=(), driver=None)


def planned(hardware: Hardware, family: str = "llama", **settings):
    """Return the chosen kernels, the reason and the refusals."""
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    loaded, target = load_config(Request(assignments=assignments)), TrainingDevice.of(hardware)
    shape = SimpleNamespace(model_type=family)
    found = fused_kernels(loaded, hardware, target, shape)
    problems = kernel_problems(loaded, hardware, target, shape)
    return found.value, found.reason, " ".join(problem.message for problem in problems)


def test_auto_takes_liger_on_a_card_and_family_that_have_it():
    assert planned(LIGER) == ("liger", "auto: liger-kernel 0.8.5 supports llama", "")
    assert len(LIGER_FAMILIES) > 15 and planned(LIGER, "qwen3")[0] == "liger"


def test_kernels_need_a_c_compiler_and_the_headers_of_python(monkeypatch):
    with_triton = replace(LIGER, libraries={**LIGER.libraries, "triton": "3.6.0"})
    assert planned(with_triton)[0] == "liger"
    for reason in ("no C compiler (gcc) is installed", "the headers of Python (Python.h) are not installed"):
        with monkeypatch.context() as context:
            if "headers" in reason:
                context.setattr("sysconfig.get_path", lambda name: "/nowhere")
            else:
                context.setenv("CC", "no-such-compiler")
            assert planned(with_triton) == ("none", f"auto: fused kernels cannot be compiled, because {reason}", "")


WITHOUT_KERNELS = [
(H200, "llama", {}, "liger-kernel is not installed"),
(CPU, "llama", {}, "this run is on the CPU"),
(LIGER, "gpt2", {}, "does not support gpt2"),
(replace(PASCAL, libraries=LIGER.libraries), "llama", {}, "7.0, and this GPU has 6.1"),
(replace(LIGER, libraries={**LIGER.libraries, "triton": None}), "llama", {}, "triton"),
(LIGER, "llama", {"training__torch_compile": "true"}, "compiled layers fuse the same"),
(LIGER, "llama", {"training__deterministic": "true"}, "kernels are deterministic"),
(LIGER, "llama", {"model__kernels": "none"}, "from --set"),
]  # fmt: skip


def test_auto_takes_no_fused_kernels_elsewhere_and_gives_the_reason(subtests):
    for hardware, family, settings, reason in WITHOUT_KERNELS:
        with subtests.test(reason):
            value, found, problems = planned(hardware, family, **settings)
            assert (value, problems) == ("none", "") and reason in found


REFUSED = [
(H200, "llama", "liger", "liger-kernel is not installed"),
(CPU, "llama", "liger", "on the CPU"),
(LIGER, "gpt2", "liger", "does not support gpt2"),
]  # fmt: skip


def test_kernels_requested_by_name_that_cannot_run_are_refused(subtests):
    for hardware, family, kernels, refusal in REFUSED:
        with subtests.test(refusal):
            value, _, problems = planned(hardware, family, model__kernels=kernels)
            assert value == kernels and refusal in problems


def test_kernels_requested_by_name_stay_with_compiled_layers():
    settings = {"model__kernels": "liger", "training__torch_compile": "true"}
    assert planned(LIGER, **settings)[::2] == ("liger", "")
