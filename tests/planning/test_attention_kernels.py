"""Kernels that come in packages of their own: each is looked for in its own one."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.planning.test_profiles_on_machines import loaded_on, machine
from tui_trainer.config.load import all_settings
from tui_trainer.hardware.flash_kernels import FLASH_KERNELS
from tui_trainer.hardware.libraries import LIBRARIES
from tui_trainer.planning import automatic_values as choices

H200 = machine("NVIDIA H200", (9, 0), 143771)
KEY = "model.attn_implementation"


def refusals(requested: str, **installed: str) -> list[str]:
    """What is wrong with a kernel on a machine that has these versions, by distribution with underscores."""
    packages = {name.replace("_", "-"): version for name, version in installed.items()}
    hardware = replace(H200, libraries={**H200.libraries, **packages})
    loaded = loaded_on(hardware, assignments=(f"{KEY}={requested}",))
    found = choices.precision_problems(loaded, hardware, choices.Target.of(hardware))
    return [problem.message for problem in found if problem.key == KEY]


@pytest.mark.parametrize(
    ("requested", "installed", "wanted"),
    [
        ("flash_attention_2", {"flash_attn": "2.8.3"}, ""),
        ("flash_attention_2", {"flash_attn_3": "3.0.0"}, "needs the package flash-attn, which is not installed"),
        ("flash_attention_2", {"flash_attn": "2.2.5"}, "needs flash-attn 2.3.3 or newer, and 2.2.5 is installed"),
        ("flash_attention_3", {"flash_attn_3": "3.0.0b1"}, ""),
        ("flash_attention_3", {"flash_attn": "2.8.3"}, "needs the package flash-attn-3, which is not installed"),
    ],
)
def test_a_kernel_is_looked_for_in_the_package_of_its_own_version(requested, installed, wanted):
    assert refusals(requested, **installed) == ([f"{requested} {wanted}"] if wanted else [])


def test_every_flash_kernel_that_can_be_chosen_has_its_package_as_transformers_looks_for_it():
    chosen = [name for name in all_settings()[KEY].choices if str(name).startswith("flash_attention")]
    assert set(chosen) == set(FLASH_KERNELS)
    assert {kernel.distribution for kernel in FLASH_KERNELS.values()} <= set(LIBRARIES)
    source = (Path(find_spec("transformers").origin).parent / "utils" / "import_utils.py").read_text()
    for name, kernel in FLASH_KERNELS.items():
        [asked] = re.findall(rf"def is_flash_attn_{name[-1]}_available\(.*?\n\n\n", source, re.DOTALL)
        assert f'"{kernel.distribution}" in [' in asked


def test_a_card_that_is_too_old_for_a_kernel_is_refused():
    old = machine("Tesla T4", (7, 5), 15360)
    hardware = replace(old, libraries={**old.libraries, "flash-attn": "2.8.3"})
    loaded = loaded_on(hardware, assignments=(f"{KEY}=flash_attention_2",))
    found = choices.precision_problems(loaded, hardware, choices.Target.of(hardware))
    assert [problem.message for problem in found if problem.key == KEY] == [
        "flash_attention_2: it needs compute capability 8.0, this card has 7.5"
    ]
