"""What libraries read from the environment once, when they are loaded or first used.

The program sets it when it starts, so it holds for every run of the process and for child processes. What the user has
set stays.
"""

import os
from collections.abc import Mapping

from tui_trainer.errors import Problem

# How the threads of torch's CPU kernels wait for one another. By default they spin, which is fastest while nobody else
# wants the cores, and slow as soon as somebody does: a thread that has lost its core is waited for by one that burns
# the other. Measured on 2 cores, quickstart recipe, milliseconds a step alone and beside one busy process: spinning 137
# and 3465, three thousand turns 140 and 340, none at all 175 and 216 (medians of three runs alone, one run beside the
# other process).
_SPIN, _TURNS, _WAIT_POLICY = "GOMP_SPINCOUNT", "3000", "OMP_WAIT_POLICY"
# The values with which cuBLAS gives the same bits each time. Source: NVIDIA, cuBLAS, "Results Reproducibility"; torch
# refuses matmuls in its deterministic mode with any other.
_WORKSPACE, _DETERMINISTIC = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
# CUDA counts the fastest card first, the driver by PCI bus, as `visible_gpus.py` reads bare numbers.
_ORDER = "CUDA_DEVICE_ORDER"


def prepare_environment() -> None:
    """To be called before torch is loaded."""
    if _WAIT_POLICY not in os.environ:
        # For GNU's OpenMP, which torch brings.
        os.environ.setdefault(_SPIN, _TURNS)
    os.environ.setdefault(_WORKSPACE, _DETERMINISTIC[0])
    os.environ.setdefault(_ORDER, "PCI_BUS_ID")


def determinism_problems(environment: Mapping[str, str] = os.environ) -> list[Problem]:
    """Why a GPU cannot compute the same bits each time in this process."""
    value = environment.get(_WORKSPACE, "")
    if value in _DETERMINISTIC:
        return []
    message = f"{_WORKSPACE} is {value!r} in the environment, with which matmuls are not deterministic"
    hint = f"unset it, or set it to {_DETERMINISTIC[0]}, and start the program anew"
    return [Problem(message=message, key="training.deterministic", hint=hint)]
