"""Every configuration of the guides on a machine without a GPU: it trains one step, or is refused with what works.

Each block is imported by the command. A tiny model replaces the one that its guide is about, and a small file the data.
All else reaches the run as it was imported. A refusal comes before there is a run folder, and the block trains its step
once the hints are followed word for word.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.logging import disable_progress_bar

from tests.combinations import first_by_default
from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.cli import main
from tui_trainer.config.changes import is_same_value
from tui_trainer.config.load import Request, all_settings, value_of
from tui_trainer.errors import InputError, Problem
from tui_trainer.hardware.probe import probe
from tui_trainer.importing.imported import import_file
from tui_trainer.launching.open_run import OpenRun, load_config, open_new
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import RunProblem, StepDone

pytestmark = pytest.mark.full

CONFIGS = Path(__file__).parent / "configs"
BLOCKS = sorted(path.name for path in CONFIGS.glob("guide_*"))
MODEL, TASK, DATA, LENGTH = "model.model_name_or_path", "task.type", "data.path", "data.max_length"
PROVIDER = "model.provider"
METHOD, PRECISION, OPTIM = "tuning.method", "training.mixed_precision", "training.optim"
ATTENTION, DTYPE = "model.attn_implementation", "model.dtype"

# What is refused on a CPU without bf16, in the order of the messages. Every other block trains as it is.
REFUSED: dict[str, tuple[str, ...]] = {
    "guide_a_01.yaml": (MODEL,),
    "guide_a_03.yaml": (PRECISION,),
    "guide_b_03.yaml": (PRECISION,),
    "guide_b_flags.yaml": (ATTENTION,),
    "guide_c_02.json": (PRECISION,),
    "guide_c_05.json": (METHOD,),
    "guide_c_08.json": (OPTIM,),
    "guide_c_15.json": (PRECISION, METHOD),
    "guide_c_16.json": (PRECISION, METHOD),
    "guide_c_17.json": (PRECISION, METHOD),
    "guide_c_18.json": (PRECISION, METHOD),
    "guide_c_19.json": (PRECISION, METHOD),
    "guide_c_20.json": (PRECISION, METHOD),
    "guide_c_21.json": (PRECISION,),
}
# What the message says, and the settings in its hint.
WHY: dict[str, tuple[str, dict[str, str]]] = {
    MODEL: ("is a masked language model", {TASK: "sequence_classification"}),
    PRECISION: ("fp16 needs a GPU|this CPU does not support bf16", {PRECISION: "auto"}),
    ATTENTION: ("flash_attention_2 needs a GPU", {ATTENTION: "auto"}),
    METHOD: ("qlora needs a GPU", {METHOD: "lora", DTYPE: "bfloat16"}),
    OPTIM: ("paged_adamw_32bit needs a GPU", {OPTIM: "adafactor"}),
}
# Compiling takes a minute.
COMPILED = ("guide_b_compile.yaml", "guide_c_compile.json", "guide_e_03.yaml")
AS_THEY_STAND = [name for name in BLOCKS if name not in {*REFUSED, *COMPILED}]

# What a block is about: A trains distilgpt2 and a BERT by name, B TinyLlama, C Llama and what its headings name, D
# tells tweets apart and tags their words, E reads characters.
_FAMILY = {
    "guide_a": "gpt2", "guide_a_01": "bert", "guide_b": "llama", "guide_c": "llama", "guide_c_16": "qwen2",
    "guide_c_17": "t5", "guide_d": "distilbert", "guide_e": "",
}  # fmt: skip
_TASK = {
    "guide_a": "causal_lm", "guide_b": "causal_lm", "guide_c": "causal_lm", "guide_c_17": "seq2seq",
    "guide_d": "sequence_classification", "guide_d_card_of_12_gb": "token_classification", "guide_e": "char_lm",
}  # fmt: skip
_ONE_STEP = {"training.max_steps": 1, "logging.sample_steps": 0, "evaluation.generate_rows": 0}
_NARROW = {
    "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1, "model.scratch.num_attention_heads": 2,
}  # fmt: skip
_SHORT_ROWS = 16


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory) -> Callable[[str], Path]:
    """`stand_in(family)`: a tiny model of that family. With rotary attention it reads 2048 tokens, the most any block
    uses."""
    root = tmp_path_factory.mktemp("stand-ins")
    disable_progress_bar()

    def folder(family: str) -> Path:
        longer = {"max_position_embeddings": 2048} if family in ("llama", "qwen2") else {}
        return root / family if (root / family).exists() else save_tiny_model(root / family, family, **longer)

    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch) -> Callable[..., None]:
    """A machine without a GPU whose CPU has no bf16. `machine(flag)` gives the CPU that flag."""

    def make(*flags: str) -> None:
        facts = replace(probe(), gpus=(), nvidia_pci_devices=0, cpu_flags=frozenset({"avx2", *flags}))
        for user in ("launching.open_run", "launching.prepare"):
            monkeypatch.setattr(f"tui_trainer.{user}.probe", lambda: facts)

    make()
    return make


@dataclass(frozen=True)
class Block:
    """A block of a guide, imported into `file`, and the settings that it lacks for a run."""

    name: str
    file: Path
    imported: dict[str, Any]
    lacking: dict[str, Any]

    def assignments(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the arguments of `--set`, with data made for the task."""
        folder = self.file.parent
        settings = {**self.lacking, **changes}
        settings |= {DATA: data_of(settings[TASK], folder), "output.runs_dir": folder / "runs", "output.name": "run"}
        return tuple(f"{key}={value}" for key, value in settings.items())

    def open(self, changes: Mapping[str, Any]) -> OpenRun:
        """Open the run as `tui-trainer --no-ui` does. Raise InputError before any folder is made."""
        return open_new(load_config(Request(config_file=self.file, assignments=self.assignments(changes))))


@pytest.fixture
def block(stand_in, tmp_path) -> Callable[[str], Block]:
    """`block(name)`: a block imported by the command."""

    def make(name: str) -> Block:
        file, guide, stem = tmp_path / "imported.toml", name[: len("guide_a")], Path(name).stem
        assert main(["import", str(CONFIGS / name), "--to", str(file)]) == 0
        imported = import_file(CONFIGS / name).values
        family = _FAMILY.get(stem, _FAMILY[guide])
        lacking = {
            **_ONE_STEP,
            TASK: _TASK.get(stem, _TASK[guide]),
            **({MODEL: stand_in(family)} if family else _NARROW),
        }
        if imported.get(PROVIDER) == "unsloth":
            # There is no environment of its own here.
            lacking[PROVIDER] = "transformers"
        if LENGTH not in imported:
            lacking[LENGTH] = _SHORT_ROWS
        return Block(name, file, imported, lacking)

    return make


def data_of(task: str, folder: Path) -> Path:
    """Write a hundred rows with the columns that the task needs."""
    path, rows = folder / f"{task}.jsonl", []
    for number, text in enumerate(texts(100)):
        words, answer = text.split(), text.partition(" is ")[2]
        tags = ["B-NUMBER" if word[0].isdigit() else "O" for word in words]
        row: dict[str, Any] = {
            "seq2seq": {"input": text, "output": answer},
            "sequence_classification": {"text": text, "label": ("odd", "even")[number % 2]},
            "token_classification": {"tokens": words, "ner_tags": tags},
        }.get(task, {"text": text})
        rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows))
    return path


def settings_in_hint(problem: Problem) -> dict[str, str]:
    """Return the settings in a hint: `key = value`, or the first word that is a value of the refused setting."""
    if reported := re.findall(r'(\w+\.\w+) = "?(\w+)', problem.hint):
        return dict(reported)
    choices = all_settings()[problem.key].choices
    return {problem.key: next(word for word in re.findall(r"\w+", problem.hint) if word in choices)}


def refusals(block: Block) -> tuple[tuple[Problem, ...], dict[str, str], OpenRun]:
    """Follow hints until nothing is refused. Return the problems, the settings of the hints, and the opened run."""
    reported: list[Problem] = []
    changes: dict[str, str] = {}
    while True:
        try:
            return tuple(reported), changes, block.open(changes)
        except InputError as error:
            assert not (block.file.parent / "runs").exists()
            assert not {problem.key for problem in error.problems} & {problem.key for problem in reported}, error
            reported += error.problems
            for problem in error.problems:
                changes |= settings_in_hint(problem)


def train(block: Block, run: OpenRun, changes: Mapping[str, str]) -> list[RunProblem]:
    """Carry the run out and check its one step and its plan. Return the problems that it reported."""
    outcome = execute_run(run)
    assert outcome.exit_code == 0, outcome
    events = list(read_all(run.folder.journal))
    [step] = [event for event in events if isinstance(event, StepDone)]
    assert step.step == 1 and step.loss is not None and math.isfinite(step.loss)
    plan = read_plan(run.folder)
    assert plan is not None and plan.device == "cpu" and plan.total_steps.value == 1
    kept = block.imported.keys() - block.lacking.keys() - changes.keys()
    assert kept >= block.imported.keys() - {MODEL, PROVIDER} - changes.keys()
    assert all(is_same_value(value_of(plan.config, key), block.imported[key]) for key in kept)
    return [event for event in events if isinstance(event, RunProblem)]


@pytest.mark.parametrize("name", first_by_default(AS_THEY_STAND, 3))
def test_a_block_trains_one_step(name, block):
    imported = block(name)
    train(imported, imported.open({}), {})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU needs a C++ compiler")
@pytest.mark.parametrize("name", COMPILED)
def test_a_block_that_compiles_trains_one_step(name, block):
    imported = block(name)
    assert imported.imported["training.torch_compile"] is True
    *other_mode, compiled = train(imported, imported.open({}), {})
    assert compiled.kind == "compiled", compiled
    # CUDA graphs do not go with gradients that are summed over several passes.
    assert [event.kind for event in other_mode] == ["another compile mode"] * (name == "guide_b_compile.yaml")


# The first that is refused for each reason.
EACH_REFUSAL = list({keys: name for name, keys in reversed(REFUSED.items())}.values())[::-1]


@pytest.mark.parametrize("name", first_by_default(EACH_REFUSAL, 2))
def test_a_block_that_a_cpu_cannot_train_is_refused_and_trains_with_its_hints(name, block, capsys):
    imported = block(name)
    words = [word for one in imported.assignments({}) for word in ("--set", one)]
    capsys.readouterr()
    assert main(["--no-ui", str(imported.file), *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and REFUSED[name][0] in shown.err
    assert not (imported.file.parent / "runs").exists()
    reported, changes, run = refusals(imported)
    assert [problem.key for problem in reported] == list(REFUSED[name])
    for problem in reported:
        message, settings = WHY[problem.key]
        assert re.search(message, problem.message) and settings_in_hint(problem) == settings
    train(imported, run, changes)


def test_a_cpu_with_bf16_trains_it_in_place_of_fp16(block, machine):
    machine("avx512_bf16")
    imported = block("guide_a_03.yaml")
    _, changes, run = refusals(imported)
    assert changes == {PRECISION: "bf16"}
    train(imported, run, changes)
