"""What torch compiles with: triton for a GPU, a C++ compiler for the CPU. Nothing is imported."""

import os
import shutil
from collections.abc import Mapping

from tui_trainer.hardware.diagnosis import Device


def lack_of_compiler(libraries: Mapping[str, str | None], device: Device) -> str:
    """What is not installed of it, as a clause; empty where all is."""
    if device == "cuda":
        return "" if libraries.get("triton") else "triton is not installed"
    # Source: _cpp_compiler_search in torch/_inductor/cpp_builder.py.
    known = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
    return "" if any(map(shutil.which, known)) else "no C++ compiler (g++) is installed"
