"""Full disks, files that cannot be removed, texts that cannot be written: no good weights are lost."""

import math
import shutil
from importlib.metadata import version
from itertools import product
from threading import Event

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.runs.journals import read_all
from tests.trained_runs import stopping_after
from tests.training.finished_runs import of_kind
from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.reporting.facts import facts_of
from tui_trainer.runs.events import RunFinished, RunProblem, RunStarted, TextSampled
from tui_trainer.runs.state import apply_events
from tui_trainer.training import checkpoint, checkpoint_folder, session
from tui_trainer.training.checkpoint_folder import steps_saved
from tui_trainer.training.evaluate import Evaluation
from tui_trainer.training.position import Position
from tui_trainer.training.session import Session

PATIENT = {"training.max_steps": 12, "evaluation.eval_steps": 2, "evaluation.early_stopping_patience": 5}


@pytest.fixture
def saves_fail_at(monkeypatch):
    """`saves_fail_at.add(3)`: the disk is full when step 3 is saved."""
    steps: set[int] = set()
    save = checkpoint.save_checkpoint

    def failing(checkpoints, components, position, plan, **random):
        if position.step in steps:
            raise OSError(28, "No space left on device")
        return save(checkpoints, components, position, plan, **random)

    monkeypatch.setattr(checkpoint, "save_checkpoint", failing)
    return steps


@pytest.fixture
def held_out_losses(monkeypatch):
    """`held_out_losses += [3.0, 2.0]`: the losses of the evaluations, one after the other."""
    losses: list[float] = []
    monkeypatch.setattr(
        session,
        "combine_results",
        lambda components, parts: Evaluation(loss_sum=100 * losses.pop(0), tokens=100, seconds=0.1),
    )
    return losses


@pytest.mark.parametrize(
    ("losses", "unsaved", "weights_step", "held_out"),
    [
        pytest.param([3.0, 2.0, 4.0, 4.5], {4}, "step 2 (the best evaluation)", "3.0000", id="another best"),
        pytest.param([3.0, 2.0, math.nan, math.nan], {2, 4}, "step 8", "nan", id="no best", marks=pytest.mark.full),
    ],
)
def test_card_and_report_name_the_weights_that_the_model_has(
    losses, unsaved, weights_step, held_out, tiny_run, saves_fail_at, held_out_losses
):
    saves_fail_at |= unsaved
    held_out_losses += losses
    folder, outcome = tiny_run("failing", PATIENT | {"training.max_steps": 8})
    assert outcome.exit_code == EXIT_DONE
    card = (folder.model / "README.md").read_text()
    facts = facts_of(folder)
    rows = dict([*facts.model.setting_rows(facts.plan), *facts.model.loss_rows()])
    assert (rows["weights of"], rows["held out"]) == (weights_step, held_out)
    assert f"| weights of | {weights_step} |" in card and f"| held out | {held_out} |" in card


def test_a_damaged_best_checkpoint_is_reported_and_the_last_weights_are_kept(tiny_run, monkeypatch):
    losses = iter([1.0, *[2.0] * 10])
    judge = Position.judge

    def judge_other(self, _loss, _metric, threshold, scores):
        loss = next(losses)
        return judge(self, loss, -loss, threshold=threshold)

    monkeypatch.setattr(Position, "judge", judge_other)
    write = Session.write_final_model

    def damage_first(self):
        (self.job.folder.checkpoints / "step-2" / "model.safetensors").write_bytes(b"flipped")
        write(self)

    monkeypatch.setattr(Session, "write_final_model", damage_first)
    folder, outcome = tiny_run("damaged", PATIENT | {"training.max_steps": 8})
    assert outcome.exit_code == EXIT_DONE
    assert "step-2" in of_kind(folder, RunProblem)[0].message
    final, last = (AutoModelForCausalLM.from_pretrained(path) for path in (folder.model, folder.checkpoints / "step-8"))
    assert all(torch.equal(a, b) for a, b in zip(final.parameters(), last.parameters(), strict=True))


def test_a_resumed_run_reports_a_lost_best_checkpoint_and_looks_for_the_best_anew(
    tiny_run, held_out_losses, monkeypatch
):
    held_out_losses += [1.0, 2.0, 2.0, 1.5]
    with monkeypatch.context() as patch:
        patch.setattr(Session, "take_step", stopping_after(3))
        folder, outcome = tiny_run("interrupted", PATIENT | {"training.max_steps": 8})
    assert outcome.exit_code == EXIT_STOPPED
    shutil.rmtree(folder.checkpoints / "step-2")
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    problem = next(one for one in of_kind(folder, RunProblem) if one.kind == "best checkpoint lost")
    assert "step-2" in problem.message
    assert of_kind(folder, RunFinished)[-1].model_step == 8


def test_training_continues_while_a_checkpoint_is_written(tiny_run, saves_fail_at, monkeypatch):
    saves_fail_at.add(6)
    save, take_step, went_on = checkpoint.save_checkpoint, Session.take_step, Event()

    def save_late(checkpoints, components, position, plan, **more):
        if position.step == 3:
            assert went_on.wait(600), "training waits for the checkpoint"
        return save(checkpoints, components, position, plan, **more)

    def step_and_report(self, step):
        take_step(self, step)
        if step == 5:
            went_on.set()

    settings = {"checkpoint.save_steps": 3, "checkpoint.save_total_limit": 5}
    whole, _ = tiny_run("whole", settings)
    monkeypatch.setattr(checkpoint, "save_checkpoint", save_late)
    monkeypatch.setattr(Session, "take_step", step_and_report)
    folder, outcome = tiny_run("beside", settings | {"checkpoint.save_in_background": "true"})
    assert outcome.exit_code == EXIT_DONE
    assert steps_saved(folder.checkpoints) == [10, 9, 3]
    assert [(one.step, one.kind) for one in of_kind(folder, RunProblem)] == [(6, "save failed")]
    for step, name in product((3, 9, 10), ("model.safetensors", "optimizer.safetensors", "rng_state.safetensors")):
        one, other = (run.checkpoints / f"step-{step}" / name for run in (whole, folder))
        assert one.read_bytes() == other.read_bytes(), f"{name} of step {step}"


def test_a_stop_that_cannot_save_fails(tiny_run, saves_fail_at, monkeypatch):
    saves_fail_at.add(5)
    monkeypatch.setattr(Session, "take_step", stopping_after(5))
    folder, outcome = tiny_run("full", {"checkpoint.save_steps": 3})
    assert outcome.exit_code == EXIT_FAILED
    assert "step 5" in outcome.failure
    assert steps_saved(folder.checkpoints) == [3]
    assert apply_events(read_all(folder.journal)).status == "failed"


@pytest.mark.full
def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(tiny_run, monkeypatch):
    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(checkpoint_folder, "remove", busy)
    folder, outcome = tiny_run("busy", {"checkpoint.save_steps": 3, "checkpoint.save_total_limit": 1})
    assert outcome.exit_code == EXIT_DONE
    assert "busy" in of_kind(folder, RunProblem)[0].message
    assert steps_saved(folder.checkpoints) == [10, 9, 6, 3]


@pytest.mark.full
def test_a_tokenizer_that_cannot_be_written_is_only_a_failed_save(tiny_run, monkeypatch):
    save, failures = PreTrainedTokenizerFast.save_pretrained, []

    def failing(self, *args, **kwargs):
        if not failures:
            failures.append(1)
            raise Exception("No space left on device (os error 28)")
        return save(self, *args, **kwargs)

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", failing)
    folder, outcome = tiny_run("full", {"checkpoint.save_steps": 3})
    assert outcome.exit_code == EXIT_DONE
    assert "No space left" in of_kind(folder, RunProblem)[0].message
    assert steps_saved(folder.checkpoints) == [10, 9]


@pytest.mark.full
def test_a_tokenizer_that_cannot_be_written_beside_the_final_model_names_the_command_to_resume(
    reference_run, tiny_run, monkeypatch
):
    whole, save = reference_run(), PreTrainedTokenizerFast.save_pretrained

    def failing(self, folder, **more):
        if "model" in folder.name:
            raise Exception("No space left on device (os error 28)")
        return save(self, folder, **more)

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "save_pretrained", failing)
        folder, outcome = tiny_run("full")
    assert outcome.exit_code == EXIT_FAILED
    assert "the final model could not be written" in outcome.failure
    assert "resume from it with `tui-trainer resume full`" in outcome.failure and "traceback" not in outcome.failure
    assert steps_saved(folder.checkpoints) == [10] and not folder.model.exists()
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    written, expected = ((run.model / "model.safetensors").read_bytes() for run in (folder, whole))
    assert written == expected


@pytest.mark.full
def test_resuming_a_finished_run_reports_its_results_again(tiny_run):
    folder, _ = tiny_run("whole")
    before = of_kind(folder, RunFinished)[0]
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    after = of_kind(folder, RunFinished)[1]
    assert (after.loss, after.eval_loss, after.step) == (before.loss, before.eval_loss, before.step)
    assert after.loss is not None
    assert of_kind(folder, RunStarted)[1].resumed_from_step == 10


@pytest.mark.full
def test_resuming_with_other_versions_of_libraries_is_reported(tiny_run, monkeypatch):
    folder, _ = tiny_run("old")
    folder.plan.write_text(folder.plan.read_text().replace(f'"torch": "{version("torch")}"', '"torch": "2.9.0"'))
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    assert f"torch 2.9.0 is now {version('torch')}" in of_kind(folder, RunProblem)[0].message


def test_an_evaluation_that_is_not_finite_is_never_the_best():
    position = Position(step=2)
    assert not position.judge(math.nan, -math.nan, threshold=0.0)
    position.step = 4
    assert position.judge(3.0, -3.0, threshold=0.0)
    assert (position.best_eval_loss, position.best_step) == (3.0, 4)


def test_an_evaluation_that_is_only_as_good_is_not_better():
    position = Position(step=2)
    assert position.judge(3.0, -3.0, threshold=0.0)
    for step, loss, threshold in ((4, 3.0, 0.0), (6, 2.5, 0.5)):
        position.step = step
        assert not position.judge(loss, -loss, threshold=threshold)
    assert (position.best_step, position.evaluations_without_improvement) == (2, 2)


SAMPLING = {"training.max_steps": 6, "logging.sample_steps": 2}


def failing_generate(monkeypatch, error):
    """Make the second text fail; return a list with an entry for each text that was asked for."""
    asked = []
    generate = LlamaForCausalLM.generate

    def fails(self, *args, **kwargs):
        asked.append(1)
        if len(asked) == 2:
            torch.rand(3)  # it had begun to draw
            raise error
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "generate", fails)
    return asked


TEXT_ERRORS = [
    (ValueError("`max_new_tokens` is odd\nhere"), "could not generate a sample: ValueError: `max_new_tokens` is odd"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "not enough memory to generate a sample"),
]


@pytest.mark.full
@pytest.mark.parametrize(("error", "words"), TEXT_ERRORS, ids=["value", "memory"])
def test_a_text_that_cannot_be_written_is_reported_and_changes_no_weight(
    reference_run, tiny_run, monkeypatch, error, words
):
    whole = reference_run(SAMPLING)
    asked = failing_generate(monkeypatch, error)
    folder, outcome = tiny_run("failing", SAMPLING)
    assert outcome.exit_code == EXIT_DONE, outcome
    (problem,) = of_kind(folder, RunProblem)
    assert (problem.kind, problem.step) == ("no text", 4) and words in problem.message and problem.hint
    assert len(asked) == 3 and [event.step for event in of_kind(folder, TextSampled)] == [2, 6]
    assert (whole.model / "model.safetensors").read_bytes() == (folder.model / "model.safetensors").read_bytes()


@pytest.mark.full
def test_an_error_inside_a_kernel_ends_the_run(tiny_run, monkeypatch):
    failing_generate(monkeypatch, RuntimeError("CUDA error: device-side assert triggered"))
    folder, outcome = tiny_run("broken", SAMPLING)
    assert outcome.exit_code == EXIT_FAILED and "device-side assert" in outcome.failure
    assert not of_kind(folder, RunProblem)
