"""Runs that train with Unsloth in its own environment: another Python with a stand-in for the library."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from pathlib import Path
from types import MethodType, SimpleNamespace

import pytest
import torch

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, tiny_model
from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.downloading import environment
from tui_trainer.errors import ConfigError
from tui_trainer.launching.open_run import load_config, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models import unsloth
from tui_trainer.runs.events import EvalDone, PlanMade, RunProblem, StepDone

pytestmark = pytest.mark.full
STAND_IN = Path(__file__).with_name("unsloth_stand_in.py")


@pytest.fixture
def made(private_home, tmp_path) -> Path:
    """An environment as `install` leaves it, whose Python is this one and has the stand-in."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(STAND_IN, packages / "unsloth.py")
    folder = unsloth.environment_folder()
    python = unsloth.environment_python(folder)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    unsloth.record_installation(folder, "2026.10.9")
    return folder


def asked(tmp_path: Path, **changes: object) -> dict[str, object]:
    model = tmp_path / "llama"
    if not model.exists():
        save_tiny_model(model, "llama")
    data = write_rows(tmp_path / "rows.jsonl", [training_row("causal_lm", n) for n in range(40)])
    wanted = {
        **SETTINGS, "task.type": "causal_lm", "data.path": data, "model.model_name_or_path": model,
        "model.provider": "unsloth", "model.init": "pretrained", "data.packing": "false",
        "output.runs_dir": tmp_path / "runs",
    }  # fmt: skip
    return wanted | {key.replace("__", "."): value for key, value in changes.items()}


def words_of(settings: dict[str, object]) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def losses(folder: Path) -> tuple[list[float], list[float]]:
    events = read_all(folder / "journal.jsonl")
    steps = {event.step: event.loss_sum for event in events if isinstance(event, StepDone)}
    return [steps[step] for step in sorted(steps)], [event.loss for event in events if isinstance(event, EvalDone)]


@pytest.mark.parametrize(("family", "attention"), [("gemma2", "eager"), ("llama", "sdpa")])
def test_a_model_with_capped_scores_gets_an_attention_that_supports_them(family, attention, tmp_path, monkeypatch):
    model, settings = tiny_model(family), asked(tmp_path)
    model.config._attn_implementation = "sdpa"
    loader = SimpleNamespace(from_pretrained=lambda **_: (model, None))
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=loader))
    config = load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))).config
    loaded = unsloth.load_model(tmp_path / "llama", config, torch.float32, torch.device("cpu"))
    assert loaded.config._attn_implementation == attention


def test_modules_with_a_forward_pass_of_unsloth_are_counted():
    """The forward pass may belong to a class or a module, and may be wrapped."""
    model = tiny_model("llama")
    modules = len(list(model.modules()))
    assert unsloth.count_patched_modules(model) == (0, modules)
    fast, compiled = (lambda self, *inputs: inputs), (lambda self, *inputs: inputs)
    fast.__module__, compiled.__module__ = "unsloth.models.llama", "unsloth_compiled_module_llama"
    layers = model.model.layers
    layers[0].mlp.forward = MethodType(fast, layers[0].mlp)
    layers[1].self_attn.forward = MethodType(
        functools.wraps(compiled)(lambda self, *inputs: inputs), layers[1].self_attn
    )
    assert unsloth.count_patched_modules(model) == (2, modules)


@pytest.mark.e2e
def test_it_trains_in_its_environment_with_the_same_losses(made, tmp_path):
    """The stand-in computes what transformers does, so each loss is equal."""
    wanted = asked(tmp_path, tuning__method="lora", training__max_steps=6, output__name="one", checkpoint__save_steps=2)
    assert main(["--no-ui", *words_of(wanted)]) == 0
    first = tmp_path / "runs" / "one"
    found = losses(first)
    log = (first / "logs" / "rank-0.txt").read_text()
    assert "Unsloth has loaded" in log
    [plan] = [event for event in read_all(first / "journal.jsonl") if isinstance(event, PlanMade)]
    assert "tui_trainer.models.unsloth tui_trainer.launching.rank_process" in plan.command
    [missing] = [event for event in read_all(first / "journal.jsonl") if isinstance(event, RunProblem)]
    assert missing.kind == unsloth.KERNELS_MISSING and "computes 0 of" in missing.message
    # Adapters and layers that are one function round once less.
    apart = {"tuning.fused_adapters": "false"}
    plain = wanted | apart | {"model.provider": "transformers", "output.name": "two"}
    assert main(["--no-ui", *words_of(plain)]) == 0
    assert found == losses(tmp_path / "runs" / "two") and len(found[0]) == 6


@pytest.mark.e2e
def test_a_rehearsal_runs_in_its_environment(made, tmp_path, capsys):
    wanted = asked(tmp_path, tuning__method="lora", training__max_steps=20)
    assert main(["rehearse", *words_of(wanted), "--gpu", "none", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["faults"] == [] and told[-1]["step_seconds"]
    assert (tmp_path / "packages" / "loaded").exists()


REFUSED = [
    ("task.type", "sequence_classification", 'is "sequence_classification", which is not supported with'),
    ("model.init", "scratch", "set it to .pretrained., or model.provider = transformers"),
    ("model.kernels", "liger", 'is "liger"'),
    ("model.attn_implementation", "eager", 'is "eager"'),
    ("tuning.use_dora", "true", "set it to false"),
    ("training.torch_compile", "true", "set it to false"),
    ("data.packing", "true", "set it to .auto."),
    ("distributed.processes", 2, "is 2"),
    ("distributed.nodes", 2, "is 2"),
    ("distributed.cpu_offload", "true", "set it to false"),
]


def test_settings_that_it_does_not_support_are_refused_before_the_start(made, tmp_path, subtests):
    for key, value, words in REFUSED:
        settings = asked(tmp_path) | {key: value}
        loaded = load_config(Request(assignments=tuple(f"{name}={one}" for name, one in settings.items())))
        with subtests.test(key), pytest.raises(ConfigError, match=words):
            estimated_plan(loaded)


def test_its_plan_has_one_process_and_padded_rows(made, tmp_path):
    settings = asked(tmp_path) | {"data.packing": "auto", "distributed.processes": "auto"}
    loaded = load_config(Request(assignments=tuple(f"{name}={one}" for name, one in settings.items())))
    plan = estimated_plan(loaded)
    assert (plan.processes.value, plan.packing.value, plan.kernels.value) == (1, False, "none")
    assert "unsloth" in plan.shape_key and "Unsloth" in plan.processes.reason
    assert start_problems(loaded) == []


def test_without_its_environment_the_command_that_makes_it_is_named(made, tmp_path, monkeypatch, capsys):
    """The environment may be of another version of the program, without its Python, or missing."""
    wanted = words_of(asked(tmp_path))
    for breaks in (
        lambda: monkeypatch.setattr(unsloth, "requirements", lambda: ["unsloth", "another"]),
        lambda: unsloth.environment_python(made).unlink(),
        lambda: shutil.rmtree(made),
    ):
        breaks()
        assert unsloth.installed_version() == ""
        assert main(["--no-ui", *wanted]) == 2
        assert "install it with `tui-trainer install unsloth`" in capsys.readouterr().err
        assert not list((tmp_path / "runs").glob("*"))


class Uv:
    """Stands in for uv, first in PATH: makes an environment, or fails."""

    def __init__(self, monkeypatch, folder, fails=""):
        folder.mkdir(exist_ok=True)
        self._log, program = folder / "commands", folder / "uv"
        python = unsloth.environment_python(Path("$last"))
        program.write_text(
            f"""#!/bin/sh
            echo uv "$@" >> {self._log}
            [ "$1" = "{fails}" ] && exit 1
            for last; do :; done
            if [ "$1" = venv ]; then
                mkdir -p "{python.parent}" && printf '#!/bin/sh\\necho 2026.10.9\\n' > "{python}" && chmod +x "{python}"
            fi
            """
        )
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    @property
    def commands(self):
        return [line.split() for line in self._log.read_text().splitlines()] if self._log.exists() else []


def test_install_shows_its_commands_and_makes_what_a_run_looks_for(private_home, monkeypatch, capsys, tmp_path):
    uv = Uv(monkeypatch, tmp_path / "bin")
    assert main(["install", "unsloth"]) == 2
    shown = capsys.readouterr()
    assert "uv pip install" in shown.out and "add --yes" in shown.err and uv.commands == []
    assert main(["install", "unsloth", "--yes"]) == 0
    assert unsloth.installed_version() == "2026.10.9"
    installed = uv.commands[1]
    assert installed[:3] == ["uv", "pip", "install"] and "unsloth" in installed
    assert any(one.startswith("transformers") for one in installed) and not any("extra" in one for one in installed)
    assert [path.name for path in unsloth.environment_folder().parent.iterdir()] == ["unsloth"]


def test_a_failed_install_keeps_the_previous_environment(private_home, monkeypatch, capsys, tmp_path):
    Uv(monkeypatch, tmp_path / "bin")
    assert main(["install", "unsloth", "--yes"]) == 0
    Uv(monkeypatch, tmp_path / "bin", fails="pip")
    assert main(["install", "unsloth", "--yes"]) == 1
    assert "`uv pip` failed (exit code 1)" in capsys.readouterr().err
    assert unsloth.installed_version() == "2026.10.9"
    assert [path.name for path in unsloth.environment_folder().parent.iterdir()] == ["unsloth"]


def test_install_names_a_misspelt_library_and_a_missing_uv(private_home, monkeypatch, capsys):
    assert main(["install", "unslot"]) == 2
    assert "did you mean unsloth?" in capsys.readouterr().err
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert main(["install", "unsloth", "--yes"]) == 2
    assert "run `pip install uv`" in capsys.readouterr().err
