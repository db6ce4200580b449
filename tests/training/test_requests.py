"""Pause, save, evaluate and stop by the control file. None of them changes a loss."""

import threading
import time

import pytest

from tests.runs.journals import read_all
from tui_trainer.errors import EXIT_DONE, EXIT_STOPPED
from tui_trainer.launching.open_run import open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs import controls
from tui_trainer.runs.events import CheckpointSaved, ControlApplied, EvalDone, PhaseChanged, RunProblem, StepDone
from tui_trainer.runs.state import apply_events
from tui_trainer.training.checkpoint_folder import steps_saved
from tui_trainer.training.session import Session

DROPOUT = {"model.scratch.attention_dropout": 0.2, "training.gradient_accumulation_steps": 2}


def figures(folder) -> list[tuple[object, ...]]:
    steps = [event for event in read_all(folder.journal) if isinstance(event, StepDone)]
    return [(e.step, e.loss_sum, e.tokens, e.lr, e.grad_norm) for e in steps]


@pytest.fixture
def ask_at(monkeypatch):
    """`ask_at[3] = ["save"]`: the requests arrive right after that step, as another process would write them."""
    requests: dict[int, list[str]] = {}
    take = Session.take_step

    def take_and_ask(self, step):
        take(self, step)
        for action in requests.get(step, []):
            controls.request(self.job.folder.control, action)

    monkeypatch.setattr(Session, "take_step", take_and_ask)
    return requests


def test_requests_leave_every_figure_equal(reference_run, tiny_run, ask_at):
    plain = reference_run(DROPOUT)
    ask_at |= {2: ["save", "evaluate"], 4: ["pause", "save", "resume"], 7: ["evaluate", "evaluate"], 9: ["save"]}
    pressed, outcome = tiny_run("pressed", DROPOUT)
    assert outcome.exit_code == EXIT_DONE

    events = read_all(pressed.journal)
    assert sum(isinstance(event, ControlApplied) for event in events) == 8
    assert sum(isinstance(event, EvalDone) and not event.scheduled for event in events) == 3
    assert [event.reason for event in events if isinstance(event, CheckpointSaved)] == ["requested"] * 3 + ["scheduled"]
    assert {"paused"} <= {event.phase for event in events if isinstance(event, PhaseChanged)}
    assert len(figures(plain)) == 10
    assert figures(pressed) == figures(plain)


@pytest.mark.parametrize(
    "changes",
    [
        DROPOUT,
        pytest.param({"training.neftune_noise_alpha": 5.0}, marks=pytest.mark.full),
        pytest.param({"training.optim": "muon"}, marks=pytest.mark.full),
    ],
    ids=["dropout", "noise", "muon"],
)
def test_a_stopped_run_is_resumed_to_the_bit(reference_run, tiny_run, ask_at, changes):
    plain = reference_run(changes)
    ask_at[6] = ["stop"]
    stopped, outcome = tiny_run("stopped", changes)
    assert outcome.exit_code == EXIT_STOPPED
    assert apply_events(read_all(stopped.journal)).status == "stopped"
    assert not stopped.model.exists()
    ask_at.clear()

    assert execute_run(reopen_run(stopped)).exit_code == EXIT_DONE
    state = apply_events(read_all(stopped.journal))
    assert state.resumed_from_step == 6
    assert list(state.steps) == list(range(1, 11))
    assert figures(stopped) == figures(plain)
    assert (stopped.model / "model.safetensors").read_bytes() == (plain.model / "model.safetensors").read_bytes()


def test_a_stop_does_not_wait_for_an_earlier_request_to_evaluate(tiny_run, ask_at):
    ask_at[3] = ["evaluate", "save", "stop"]
    folder, outcome = tiny_run("stopped")
    assert outcome.exit_code == EXIT_STOPPED
    events = read_all(folder.journal)
    assert [event for event in events if isinstance(event, EvalDone)] == []
    assert [event.reason for event in events if isinstance(event, CheckpointSaved)] == ["requested"]


def test_a_paused_run_waits_until_it_is_resumed(tiny_config, ask_at, monkeypatch):
    """The request to resume arrives while the run sleeps for the third time."""
    ask_at[3] = ["pause"]
    run, naps, sleep, thread = open_new(tiny_config("paused")), [], time.sleep, threading.current_thread()

    def phases() -> list[str]:
        return [event.phase for event in read_all(run.folder.journal) if isinstance(event, PhaseChanged)]

    def nap(seconds: float) -> None:
        if threading.current_thread() is not thread or phases()[-1:] != ["paused"]:
            return sleep(seconds)
        naps.append(seconds)
        if len(naps) == 3:
            controls.request(run.folder.control, "resume")
        return None

    monkeypatch.setattr(time, "sleep", nap)
    assert execute_run(run).exit_code == EXIT_DONE
    assert len(naps) == 3
    assert phases() == ["preparing", "loading", "training", "paused", "training", "saving"]
    assert apply_events(read_all(run.folder.journal)).step == 10


def test_a_run_stopped_before_its_first_step_is_resumed_from_any_folder(tiny_run, tmp_path, monkeypatch):
    relative = {"data.path": "she*.txt", "output.runs_dir": "runs"}
    folder, outcome = tiny_run("early", relative, before=lambda run: controls.request(run.folder.control, "stop"))
    assert outcome.exit_code == EXIT_STOPPED and not folder.plan.exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    assert list(apply_events(read_all(folder.journal)).steps) == list(range(1, 11))


@pytest.mark.full
def test_a_request_made_while_the_data_is_prepared_waits_for_the_first_step(tiny_run):
    folder, outcome = tiny_run("early", before=lambda run: controls.request(run.folder.control, "save"))
    assert outcome.exit_code == EXIT_DONE
    assert steps_saved(folder.checkpoints) == [10]
    assert "ControlApplied" in folder.journal.read_text()


@pytest.mark.full
def test_a_request_to_evaluate_without_held_out_text_is_answered(tiny_run, ask_at):
    ask_at[3] = ["evaluate"]
    folder, outcome = tiny_run("none", {"data.eval_fraction": 0, "evaluation.eval_steps": 2})
    assert outcome.exit_code == EXIT_DONE
    problems = [event.kind for event in read_all(folder.journal) if isinstance(event, RunProblem)]
    assert problems == ["nothing to evaluate"]


@pytest.mark.full
def test_a_stop_cuts_an_evaluation_short_and_the_resumed_run_repeats_it(tiny_run, monkeypatch):
    changes = {"evaluation.eval_steps": 4, "evaluation.per_device_eval_batch_size": 1, "checkpoint.save_steps": 4}
    whole, _ = tiny_run("whole", changes)
    evaluate = Session.evaluate

    def stop_first(self, *, scheduled):
        if self.position.step == 4:
            controls.request(self.job.folder.control, "stop")
        evaluate(self, scheduled=scheduled)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "evaluate", stop_first)
        folder, outcome = tiny_run("stopped", changes)
    assert outcome.exit_code == EXIT_STOPPED

    def evaluations(run):
        return [(e.step, e.loss_sum, e.best) for e in read_all(run.journal) if isinstance(e, EvalDone)]

    assert evaluations(folder) == []
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    assert [step for step, *_ in evaluations(whole)] == [4, 8, 10]
    assert evaluations(folder) == evaluations(whole)
