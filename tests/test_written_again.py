"""Missing parts of a run: its model, plan and checkpoints are written again where the result is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.old_runs import install
from tests.runs.journals import read_all
from tui_trainer.cli import main
from tui_trainer.errors import EXIT_DONE, FolderError
from tui_trainer.exporting.trained_model import TrainedModel, weights_folder_of
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import RunFinished, RunProblem, RunStarted
from tui_trainer.runs.folder import RunFolder, files_below
from tui_trainer.runs.registry import add_to_index
from tui_trainer.training.checkpoint_folder import PLAN, commit, damage_of

STOPPING = {"evaluation.eval_steps": 2, "evaluation.early_stopping_patience": 2, "training.learning_rate": 2.0}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files, without the model card, which names the duration."""
    return {name: (folder / name).read_bytes() for name in files_below(folder) if name != "README.md"}


def problems(run: RunFolder, kind: str) -> list[str]:
    found = [one for one in read_all(run.journal) if isinstance(one, RunProblem) and one.kind == kind]
    return [f"{one.message}; {one.hint}".rstrip("; ") for one in found]


def forget_the_end(run: RunFolder) -> None:
    """Remove the end from the journal, as if the run had been killed."""
    lines = run.journal.read_text().splitlines(keepends=True)
    run.journal.write_text("".join(line for line in lines if '"RunFinished"' not in line))


@pytest.fixture
def run(reference_run, tmp_path) -> RunFolder:
    """The copy of a finished run with checkpoints after 8 and 10 steps, trained once for all tests."""
    root = shutil.copytree(reference_run({"checkpoint.save_steps": 4}).root, tmp_path / "runs/mine")
    add_to_index(root)
    return RunFolder(root)


# The final model


def test_resume_writes_a_missing_model_again_from_the_last_checkpoint(run, capsys):
    before = contents(run.model)
    shutil.rmtree(run.model)
    for command in (["export", "mine", "--to", "merged"], ["publish", "mine", "--to", "me/model", "--yes"]):
        assert main(command) == 2
        message = capsys.readouterr().err
        assert "the folder `model` of this run is gone; `tui-trainer resume mine` writes the model again" in message
    assert main(["resume", "mine", "--no-ui"]) == 0
    assert contents(run.model) == before
    words = "the run is finished, but its folder `model` is gone. The model is written again from step-10 (last step)"
    assert problems(run, "model gone") == [words] and words in capsys.readouterr().out
    assert len([one for one in read_all(run.journal) if isinstance(one, RunFinished)]) == 2
    TrainedModel.of(run)
    assert main(["resume", "mine", "--no-ui"]) == 0
    assert "mine is finished; its model is in" in capsys.readouterr().err


@pytest.mark.full
def test_resume_writes_the_missing_adapter_of_an_old_run_again(tmp_path):
    run = RunFolder.open(install(tmp_path) / "finished")
    before = (run.model / "adapter_model.safetensors").read_bytes()
    shutil.rmtree(run.model)
    assert main(["resume", "finished", "--no-ui"]) == 0
    assert (run.model / "adapter_model.safetensors").read_bytes() == before
    assert TrainedModel.of(run).base == tmp_path / "base"


@pytest.mark.full
def test_missing_model_after_early_stopping_is_written_from_the_best_evaluation(tiny_run):
    run, _ = tiny_run("mine", {**STOPPING, "training.max_steps": 40})
    [finished] = [one for one in read_all(run.journal) if isinstance(one, RunFinished)]
    best = json.loads((run.checkpoints / f"step-{finished.step}" / "position.json").read_text())["best_step"]
    assert finished.reason == "early stopping" and 0 < best < finished.step
    before = contents(run.model)
    shutil.rmtree(run.model)
    assert weights_folder_of(run).name == f"step-{best}"
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    assert contents(run.model) == before
    assert problems(run, "model gone")[0].endswith(f"is written again from step-{best} (best evaluation)")
    shutil.rmtree(run.model)
    (run.checkpoints / f"step-{best}" / "position.json").unlink()
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    words = (
        f"from step-{finished.step} (last step), because step-{best} with the best evaluation is damaged: position.json"
    )
    assert words in problems(run, "model gone")[1] and contents(run.model) != before


@pytest.mark.full
def test_missing_model_without_its_last_checkpoint_is_trained_again_to_the_same_weights(run):
    before = contents(run.model)
    shutil.rmtree(run.model)
    shutil.rmtree(run.checkpoints / "step-10")
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    assert contents(run.model) == before
    words = "from step-8, the latest intact checkpoint, after training steps 9 to 10 again"
    assert words in problems(run, "model gone")[0]


def test_missing_model_without_checkpoints_is_refused(run, capsys):
    shutil.rmtree(run.model)
    for checkpoint in run.checkpoints.iterdir():
        shutil.rmtree(checkpoint)
    before = run.journal.read_bytes()
    for command in (["resume", "mine", "--no-ui"], ["generate", "mine", "The"], ["export", "mine", "--to", "merged"]):
        assert main(command) == 2, command
        message = capsys.readouterr().err
        assert (
            "the folder `model` of this run is gone; the checkpoints are gone as well, so the model cannot" in message
        )
    assert run.journal.read_bytes() == before and not run.model.exists()


# Checkpoints


@pytest.mark.full
def test_checkpoint_without_a_manifest_is_reported_and_kept(run):
    weights = (run.checkpoints / "step-10/model.safetensors").read_bytes()
    (run.checkpoints / "step-10/manifest.json").unlink()
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    message = "step-10: manifest.json is missing; the run resumes from step 8; the damaged checkpoint is kept as "
    assert problems(run, "checkpoint damaged") == [f"{message}damaged-step-N"]
    assert (run.checkpoints / "damaged-step-10/model.safetensors").read_bytes() == weights
    assert damage_of(run.checkpoints / "step-10", 10) is None


# The plan


def torn(run: RunFolder) -> str:
    run.plan.write_bytes(run.plan.read_bytes()[:100])
    return "plan.json is damaged"


def zeroed(run: RunFolder) -> str:
    run.plan.write_bytes(bytes(run.plan.stat().st_size))
    return "plan.json is damaged"


def missing(run: RunFolder) -> str:
    run.plan.unlink()
    return "plan.json is missing"


@pytest.mark.parametrize(
    "spoil", [torn, pytest.param(zeroed, marks=pytest.mark.full), pytest.param(missing, marks=pytest.mark.full)]
)
def test_damaged_or_missing_plan_is_restored_from_the_newest_checkpoint(spoil, run):
    plan = run.plan.read_bytes()
    shutil.rmtree(run.checkpoints / "step-10")
    fault = spoil(run)
    TrainedModel.of(run)
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    [words] = problems(run, "plan put back")
    assert words.startswith(fault) and words.endswith("plan.json was restored from step-8")
    assert run.plan.read_bytes() == plan


def without_copies(run: RunFolder) -> None:
    """Make the checkpoints those of an earlier version, without a copy of the plan."""
    for path in list(run.checkpoints.iterdir()):
        step = int(path.name.removeprefix("step-"))
        (path / PLAN).unlink()
        (path / "manifest.json").unlink()
        beside = path.rename(path.with_name(f".writing-step-{step}"))
        commit(beside, step)


@pytest.mark.full
@pytest.mark.parametrize("spoil", [torn, missing])
def test_resume_without_a_plan_is_refused_if_no_checkpoint_has_a_copy(spoil, run):
    without_copies(run)
    fault = spoil(run)
    before = contents(run.root)
    with pytest.raises(FolderError) as refused:
        reopen_run(run)
    assert fault in str(refused.value) and "step-10, which an earlier version wrote, has no copy" in str(refused.value)
    assert "a new plan from config.toml might differ" in str(refused.value)
    assert f"tui-trainer {run.config} --set output.name=mine-anew" in str(refused.value)
    assert {**contents(run.root), "run.lock": b""} == {**before, "run.lock": b""}


@pytest.mark.full
def test_run_that_starts_over_makes_its_plan_again(run):
    before = contents(run.model)
    shutil.rmtree(run.model)
    for checkpoint in run.checkpoints.iterdir():
        shutil.rmtree(checkpoint)
    forget_the_end(run)
    fault = torn(run)
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    [words] = problems(run, "plan made again")
    assert words.startswith(fault) and "no complete checkpoint is left, so the run starts over" in words
    assert contents(run.model) == before


# The config


def resumed(run: RunFolder) -> list[str]:
    for path in (run.checkpoints / "step-10", run.model):
        shutil.rmtree(path)
    forget_the_end(run)
    assert execute_run(reopen_run(run)).exit_code == EXIT_DONE
    return problems(run, "config edited")


@pytest.mark.full
def test_edited_config_of_a_run_is_reported_with_the_command_that_applies_it(run):
    text = run.config.read_text()
    assert resumed(run) == []
    edited = text.replace("learning_rate = 0.01", "learning_rate = 0.5").replace("logging_steps = 5\n", "")
    run.config.write_text(edited)
    [message] = resumed(run)
    assert message.startswith("config.toml was edited: training.learning_rate = 0.5 (0.01 in this run)")
    assert "logging.logging_steps was removed" in message and "save_steps" not in message
    assert f"tui-trainer {run.config} --set output.name=mine-anew`" in message
    run.config.write_text(text + "[moon]\nx = 1\n")
    assert "config.toml was edited, but cannot be read" in resumed(run)[-1]
    started = [one for one in read_all(run.journal) if isinstance(one, RunStarted)]
    assert [one.resumed_from_step for one in started] == [None, 8, 8, 8]


def test_configs_of_old_runs_do_not_count_as_edited(tmp_path):
    for name in ("full", "lora"):
        opened = reopen_run(RunFolder.open(install(tmp_path / name) / name))
        opened.lock.release()
        assert not opened.reports
