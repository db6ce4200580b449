"""The attention kernel of a plan: chosen by card, model and rows, with a reason, or refused."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.benchmarks import attention_table
from tests.planning.test_profiles_on_machines import FACTS, loaded_on, machine
from tui_trainer.config.load import all_settings
from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.hardware.gpu_models import FLASH_KERNELS
from tui_trainer.hardware.libraries import LIBRARIES
from tui_trainer.launching.prepare import announce
from tui_trainer.lines.plan_and_events import event_line, plan_lines
from tui_trainer.models.modules import AttentionFacts
from tui_trainer.models.shape import scratch_shape
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning import plan as planning
from tui_trainer.planning.attention import AttentionMachine, AttentionRows, attention_of
from tui_trainer.runs.events import PlanMade
from tui_trainer.runs.state import RunState

H200 = machine("NVIDIA H200", (9, 0), 143771)
KEY = "model.attn_implementation"


def refusals(requested: str, hardware: Hardware = H200, **installed: str) -> list[str]:
    """Return the problems with a kernel on a machine with these versions of packages (underscores for hyphens)."""
    packages = {name.replace("_", "-"): version for name, version in installed.items()}
    hardware = replace(hardware, libraries={**hardware.libraries, **packages})
    loaded = loaded_on(hardware, assignments=(f"{KEY}={requested}",))
    found = choices.precision_problems(loaded, hardware, choices.TrainingDevice.of(hardware))
    return [problem.message for problem in found if problem.key == KEY]


PACKAGES = [
    ("flash_attention_2", {"flash_attn": "2.8.3"}, ""),
    ("flash_attention_2", {"flash_attn_3": "3.0.0"}, "needs the package flash-attn, which is not installed"),
    ("flash_attention_2", {"flash_attn": "2.2.5"}, "needs flash-attn 2.3.3 or newer, but 2.2.5 is installed"),
    ("flash_attention_3", {"flash_attn_3": "3.0.0b1"}, ""),
    ("flash_attention_3", {"flash_attn": "2.8.3"}, "needs the package flash-attn-3, which is not installed"),
]


def test_a_flash_kernel_needs_its_own_package_in_a_new_enough_version(subtests):
    for requested, installed, wanted in PACKAGES:
        with subtests.test(f"{requested} with {installed}"):
            assert refusals(requested, **installed) == ([f"{requested} {wanted}"] if wanted else [])


@pytest.mark.full
def test_each_flash_kernel_names_the_package_that_transformers_looks_for():
    chosen = [name for name in all_settings()[KEY].choices if str(name).startswith("flash_attention")]
    assert set(chosen) == set(FLASH_KERNELS)
    assert {kernel.distribution for kernel in FLASH_KERNELS.values()} <= set(LIBRARIES)
    source = (Path(find_spec("transformers").origin).parent / "utils" / "import_utils.py").read_text()
    for name, kernel in FLASH_KERNELS.items():
        [asked] = re.findall(rf"def is_flash_attn_{name[-1]}_available\(.*?\n\n\n", source, re.DOTALL)
        assert f'"{kernel.distribution}" in [' in asked


def test_a_kernel_that_the_card_is_too_old_for_is_refused():
    t4 = machine("Tesla T4", (7, 5), 15360)
    wanted = ["flash_attention_2 needs compute capability 8.0, but this GPU has 7.5"]
    assert refusals("flash_attention_2", t4, flash_attn="2.8.3") == wanted


KERNELS = [
    # Without keys that are copied, torch 2.11 would be left with all scores on old cards and in fp32.
    ("2.11.0", "Llama-3.1-8B", "T4", "fp16", "padded", "memory-efficient", True),
    ("2.11.0", "Llama-3.1-8B", "H100", "fp32", "padded", "memory-efficient", True),
    ("2.15.0", "Llama-3.1-8B", "T4", "fp16", "padded", "memory-efficient", False),
    ("2.15.0", "Llama-3.1-8B", "T4", "fp16", "packed", "memory-efficient", True),
    ("2.11.0", "gpt2", "T4", "fp16", "padded", "memory-efficient", False),
    # cuDNN builds a plan for each width.
    ("2.11.0", "Llama-3.1-8B", "H100", "bf16", "padded", "flash", False),
    ("2.11.0", "Llama-3.1-8B", "H100", "bf16", "full", "cuDNN", False),
    ("2.11.0", "Llama-3.1-8B", "RTX 4090", "bf16", "full", "flash", False),
    ("2.11.0", "Llama-3.1-8B", "RTX 3090", "bf16", "packed", "flash by lengths", False),
    ("2.11.0", "gemma-2b", "H100", "bf16", "full", "flash", False),
    ("2.11.0", "gemma-2-2b", "H100", "bf16", "full", "eager", False),
    ("2.11.0", "gemma-3-1b", "RTX 4090", "bf16", "padded", "memory-efficient", True),
    ("2.11.0", "Mistral-7B-v0.1", "RTX 4090", "bf16", "padded", "flash", False),
    ("2.11.0", "gpt2", "H100", "bf16", "packed", "cuDNN", False),
    ("2.11.0", "DeepSeek-V2-Lite", "H100", "bf16", "full", "memory-efficient", False),
    ("2.11.0", "gpt-oss-20b", "H100", "bf16", "packed", "eager", False),
    ("2.11.0", "bert-base", "H100", "bf16", "padded", "memory-efficient", False),
    ("2.11.0", "bert-base", "RTX 3090", "bf16", "full", "flash", False),
    ("2.11.0", "t5-base", "H100", "bf16", "full", "memory-efficient", False),
]


COMMON = [case for case in KERNELS if case[1] in ("Llama-3.1-8B", "gpt2")]
OTHERS = [case for case in KERNELS if case not in COMMON]


@pytest.mark.dry_run
@pytest.mark.parametrize("cases", [COMMON, pytest.param(OTHERS, marks=pytest.mark.full)], ids=["common", "others"])
def test_the_attention_kernel_depends_on_card_model_and_rows(cases, subtests):
    for torch, model, card, precision, rows, kernel, repeats in cases:
        with subtests.test(f"torch {torch}, {model}, {card}, {precision}, {rows}"):
            hardware = AttentionMachine(
                device="cuda", capability=attention_table.CARDS[card], precision=precision, libraries={"torch": torch}
            )
            shape = attention_table.shape_of_model(model)
            found = attention_of(shape, attention_table.ROWS[rows], hardware, "auto")
            assert (found.kernel, found.repeats_keys) == (kernel, repeats), found.words


@pytest.mark.dry_run
@pytest.mark.full
def test_every_model_on_every_card_has_a_kernel_with_a_reason_and_a_source():
    table = {
        (torch, one.model, one.card, one.precision, one.rows): one.attention
        for torch in ("2.11.0", "2.15.0")
        for one in attention_table.cells(torch)
    }
    pairs = {(model, card) for _, model, card, *_ in table}
    assert pairs == set(product(attention_table.MODELS, attention_table.CARDS))
    assert (len(attention_table.MODELS), len(table)) == (12, 2 * 324)
    assert all(found.kernel and found.kernel != "math" and found.reason and found.source for found in table.values())
    assert {key[1] for key, found in table.items() if found.hidden_wait} == {"Phi-3.5-mini"}


def test_a_head_size_without_a_fused_kernel_keeps_all_scores():
    odd = replace(scratch_shape(ScratchSection(), 100), attention=AttentionFacts(head_size=70, value_size=70))
    rows = AttentionRows(packed=False, longest=64, widths_vary=True)
    on_t4 = AttentionMachine(device="cuda", capability=(7, 5), precision="fp16", libraries={"torch": "2.11.0"})
    found = attention_of(odd, rows, on_t4, "auto")
    assert (found.kernel, found.keeps_scores) == ("math", True)
    assert "memory-efficient needs head sizes that are multiples of 8, but the model has 70" in found.reason


def test_sdpa_is_refused_for_a_model_that_caps_its_scores(tmp_path):
    from tests.tiny_models import save_tiny_model

    save_tiny_model(tmp_path / "gemma2", "gemma2", head_dim=16)
    loaded = loaded_on(H200, assignments=(f"model.model_name_or_path={tmp_path / 'gemma2'}", f"{KEY}=sdpa"))
    with pytest.raises(ConfigError, match="sdpa does not support the soft cap that gemma2 has on attention scores"):
        planning.make(loaded, H200, FACTS)


def test_plan_journal_and_train_screen_show_the_kernel_with_its_reason():
    from tui_trainer.ui.screens.train_view import TrainScene, plan_rows
    from tui_trainer.ui.spans import ASCII

    plan = planning.make(loaded_on(H200, "qwen-lora", ("data.packing=false",)), H200, FACTS)
    why = "flash, because cuDNN builds an execution plan for each row length, and row lengths vary"
    told: list[PlanMade] = []
    announce(plan, SimpleNamespace(append=told.append), "")
    assert plan.attention.words == told[0].attention == why
    [line] = [line for line in plan_lines(plan) if line.startswith("attention ")]
    assert line.split(maxsplit=1)[1] == why.replace(", because", " =")
    state = RunState()
    assert f"attention: {why}" in event_line(told[0], state).splitlines()
    state.plan = told[0]
    shown = plan_rows(TrainScene(state=state, glyphs=ASCII, gauges=Gauges(), sparks={}), 200, 50)
    assert why in ["".join(text for text, _ in row).partition("attention")[2].strip() for row in shown]
