"""A changed base model or a changed final model is refused by every command that opens it.

The adapter is that of a run of an earlier version.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.old_runs import events, install
from tests.test_publishing import FakeApi
from tui_trainer.cli import main
from tui_trainer.errors import FolderError
from tui_trainer.exporting import publishing
from tui_trainer.exporting.generate import Writer
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.models.files.fingerprint import file_fingerprints
from tui_trainer.planning import plan_file as base_model
from tui_trainer.planning.plan_file import changed_base, commit_of, with_own_commit
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import add_to_index

CHANGED = "the model has changed since this run started"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return install(tmp_path)


def scale_weights(file: Path, factor: float = 1.05) -> None:
    save_file({name: tensor * factor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


def other_weights(base: Path) -> None:
    scale_weights(base / "model.safetensors")


def another_tokenizer(base: Path) -> None:
    text = (base / "tokenizer.json").read_text()
    (base / "tokenizer.json").write_text(text.replace('"<eos>"', '"<end>"'))


def another_config(base: Path) -> None:
    text = (base / "config.json").read_text()
    (base / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))


COMMANDS: dict[str, list[str]] = {
    "generate": ["finished", "What is 3 plus 4?"],
    "chat": ["finished"],
    "evaluate": ["finished"],
    "evaluate its folder": ["runs/finished/model"],
    "evaluate its checkpoint": ["runs/finished/checkpoints/step-40"],
    "predict": ["finished", "--data", "data/conversations.jsonl", "--out", "out.jsonl"],
    "export": ["finished", "--to", "merged"],
    "bench": ["finished", "--rounds", "1"],
    "publish": ["finished", "--to", "me/model", "--yes"],
}


def test_changed_base_of_an_adapter_is_refused_by_every_command(runs, monkeypatch, capsys, subtests):
    monkeypatch.setattr(publishing, "_api", FakeApi)
    other_weights(runs.parent / "base")
    certificate = (runs / "finished/export/merged/certificate.json").read_bytes()
    for command, arguments in COMMANDS.items():
        with subtests.test(command):
            assert main([command.split()[0], *arguments]) == 2
            message = capsys.readouterr().err.rpartition("\r")[2]
            assert CHANGED in message and str(runs.parent / "base") in message and "restore the old model" in message
            assert (runs / "finished/export/merged/certificate.json").read_bytes() == certificate
            assert not (runs.parent / "out.jsonl").exists()


@pytest.mark.parametrize("change", [another_tokenizer, another_config])
def test_changed_tokenizer_or_config_is_a_changed_base(change, runs, capsys):
    change(runs.parent / "base")
    assert main(["generate", "finished", "What is 3 plus 4?"]) == 2
    assert CHANGED in capsys.readouterr().err
    with pytest.raises(FolderError, match=CHANGED):  # as the screens do
        Writer(RunFolder.open(runs / "finished"))


def test_base_that_was_moved_is_accepted(runs):
    shutil.move(runs.parent / "base", runs.parent / "moved")
    config = runs / "finished/model/adapter_config.json"
    config.write_text(config.read_text().replace(str(runs.parent / "base"), str(runs.parent / "moved")))
    assert TrainedModel.of(RunFolder.open(runs / "finished")).base == runs.parent / "moved"
    other_weights(runs.parent / "moved")
    with pytest.raises(FolderError, match=CHANGED):
        TrainedModel.of(RunFolder.open(runs / "finished"))


@pytest.mark.full
def test_export_of_a_model_with_another_loss_than_its_run_fails(runs, capsys):
    """The earlier version of this run did not record the fingerprints of its model."""
    scale_weights(runs / "finished/model/adapter_model.safetensors", 0.3)
    [run_loss] = [event["eval_loss"] for event in events(runs / "finished") if event["event"] == "RunFinished"]
    assert main(["export", "finished", "--to", "merged"]) == 1
    shown = capsys.readouterr()
    assert f"instead of {run_loss:.4f} (allowed difference" in shown.out and "failed-" in shown.err
    found = json.loads((runs / "finished/export/failed-merged/certificate.json").read_text())
    assert not found["is_good"] and found["run_loss"] == run_loss and len(found["faults"]) == 1
    assert found["trained"]["loss"] > run_loss * 1.02 and found["logit_difference"] < 1e-3


# The model that the run wrote


def copy_of(finished: Callable[..., RunFolder], root: Path) -> RunFolder:
    """Copy a finished run whose whole model was trained."""
    shutil.copytree(finished("causal_lm").root, root)
    assert add_to_index(root) is None
    return RunFolder(root)


def scaled(model: Path) -> str:
    scale_weights(model / "model.safetensors")
    return "model.safetensors"


def half_written(model: Path) -> str:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    return "model.safetensors"


def with_another_tokenizer(model: Path) -> str:
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + "\n")
    return "tokenizer.json"


def without_a_tokenizer(model: Path) -> str:
    (model / "tokenizer.json").unlink()
    return "tokenizer.json"


CHANGES: tuple[Callable[[Path], str], ...] = (scaled, half_written, with_another_tokenizer, without_a_tokenizer)


def test_changed_model_is_refused_with_the_file_and_the_way_out(finished, tmp_path, capsys, subtests):
    for change in CHANGES:
        with subtests.test(change.__name__):
            run = copy_of(finished, tmp_path / "runs" / change.__name__)
            file = change(run.model)
            for command, *options in (["generate", "The"], ["export", "--to", "merged"], ["resume", "--no-ui"]):
                assert main([command, run.name, *options]) == 2
                message = capsys.readouterr().err
                assert f"the folder `model` has changed since the run wrote it: {file}" in message
                assert (
                    f"move {run.model} elsewhere, then `tui-trainer resume {run.name}` writes the model again"
                    in message
                )


def test_notes_and_generation_settings_may_be_edited(finished, tmp_path, capsys):
    whole = copy_of(finished, tmp_path / "runs/whole")
    (whole.model / "README.md").write_text("mine")
    (whole.model / "generation_config.json").write_text('{"temperature": 0.5}')
    (whole.model / "notes.txt").write_text("mine")
    assert main(["generate", "whole", "The"]) == 0
    found = json.loads(whole.journal.read_text().splitlines()[-1])["model_files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= found.keys()
    assert found.items() <= file_fingerprints(whole.model).items()


@pytest.mark.full
def test_changed_base_is_left_out_of_the_evaluation_of_a_fully_tuned_model(tiny_llama_run, capsys):
    run, base = tiny_llama_run
    assert main(["evaluate", run.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reference"] is not None
    other_weights(base)
    assert main(["evaluate", run.name, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["reference"] is None and CHANGED in shown.err and "not compared with" in shown.err


@pytest.fixture
def tiny_llama_run(tmp_path: Path) -> tuple[RunFolder, Path]:
    from tests.tiny_models import save_tiny_model
    from tests.trained_runs import train

    base = save_tiny_model(tmp_path / "llama", "llama")
    changes = {
        "model.init": "pretrained",
        "model.model_name_or_path": base,
        "training.max_steps": 2,
        "tuning.method": "full",
    }
    return train(tmp_path, "causal_lm", changes), Path(base)


# A model of the hub


def test_model_of_the_hub_is_read_at_the_commit_of_the_start(runs, tmp_path, monkeypatch):
    place = tmp_path / "hub/models--org--base"
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(runs.parent / "base", place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs/main").write_text("a" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    plan = TrainedModel.of(RunFolder.open(runs / "finished")).plan
    config = base_model.with_changes(plan.config, {"model.model_name_or_path": "org/base"})
    assert commit_of(config) == "a" * 40 and commit_of(plan.config) == ""
    plan = plan.model_copy(update={"config": config, "model_commit": "a" * 40})
    other_weights(place / "snapshots" / ("b" * 40))
    (place / "refs/main").write_text("b" * 40)
    problem = changed_base(plan)
    assert problem and problem.where == "org/base" and "a" * 40 in problem.hint
    pinned = with_own_commit(plan)
    assert pinned.config.model.revision == "a" * 40 and changed_base(pinned) is None
    shutil.rmtree(place / "snapshots" / ("a" * 40))
    assert with_own_commit(plan) == plan
