"""Pause, save, evaluate and stop by the control file; none of them changes a loss."""

import threading

import pytest

from tui_trainer.errors import EXIT_DONE, EXIT_STOPPED
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import open_again, open_new
from tui_trainer.runs import controls
from tui_trainer.runs.events import CheckpointSaved, ControlApplied, EvalDone, PhaseChanged, StepDone
from tui_trainer.runs.journal import read_all
from tui_trainer.runs.state import fold
from tui_trainer.training.session import Session

DROPOUT = {"model.scratch.attention_dropout": 0.2, "training.gradient_accumulation_steps": 2}


def figures(folder) -> list[tuple[object, ...]]:
    steps = [event for event in read_all(folder.journal) if isinstance(event, StepDone)]
    return [(e.step, e.loss_sum, e.tokens, e.lr, e.grad_norm) for e in steps]


@pytest.fixture
def ask_at(monkeypatch):
    """`ask_at[3] = ["save"]`: the requests arrive right after that step, as another process would write them."""
    candidates: dict[int, list[str]] = {}
    take = Session.take_step

    def take_and_ask(self, step):
        take(self, step)
        for action in candidates.get(step, []):
            controls.request(self.job.folder.control, action)

    monkeypatch.setattr(Session, "take_step", take_and_ask)
    return candidates


def test_pressing_keys_leaves_every_figure_equal(reference_run, tiny_run, ask_at):
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
    [DROPOUT, {"training.neftune_noise_alpha": 5.0}, {"training.optim": "muon"}],
    ids=["dropout", "noise", "muon"],
)
def test_a_stop_saves_and_the_resumed_curve_has_no_gap(reference_run, tiny_run, ask_at, changes):
    plain = reference_run(changes)
    ask_at[6] = ["stop"]
    stopped, outcome = tiny_run("stopped", changes)
    assert outcome.exit_code == EXIT_STOPPED
    assert fold(read_all(stopped.journal)).status == "stopped"
    assert not stopped.model.exists()
    ask_at.clear()

    assert carry_out(open_again(stopped)).exit_code == EXIT_DONE
    state = fold(read_all(stopped.journal))
    assert state.resumed_from_step == 6
    assert list(state.steps) == list(range(1, 11))
    assert figures(stopped) == figures(plain)
    assert (stopped.model / "model.safetensors").read_bytes() == (plain.model / "model.safetensors").read_bytes()


def test_a_stop_does_not_wait_for_an_evaluation_that_was_asked_for_before_it(tiny_run, ask_at):
    ask_at[3] = ["evaluate", "save", "stop"]
    folder, outcome = tiny_run("stopped")
    assert outcome.exit_code == EXIT_STOPPED
    events = read_all(folder.journal)
    assert [event for event in events if isinstance(event, EvalDone)] == []
    assert [event.reason for event in events if isinstance(event, CheckpointSaved)] == ["requested"]


def test_a_paused_run_waits_until_it_is_told_to_go_on(tiny_config, ask_at):
    ask_at[3] = ["pause"]
    run = open_new(tiny_config("paused"))

    def phases() -> list[str]:
        return [event.phase for event in read_all(run.folder.journal) if isinstance(event, PhaseChanged)]

    def resume_once_paused() -> None:
        while "paused" not in phases():
            pass
        controls.request(run.folder.control, "resume")

    other = threading.Thread(target=resume_once_paused)
    other.start()
    assert carry_out(run).exit_code == EXIT_DONE
    other.join()
    assert phases() == ["preparing", "loading", "training", "paused", "training", "saving"]
    assert fold(read_all(run.folder.journal)).step == 10


def test_a_stop_before_the_first_step_leaves_a_run_that_starts_from_the_beginning(tiny_run):
    folder, outcome = tiny_run("early", before=lambda run: controls.request(run.folder.control, "stop"))
    assert outcome.exit_code == EXIT_STOPPED
    assert carry_out(open_again(folder)).exit_code == EXIT_DONE
    assert list(fold(read_all(folder.journal)).steps) == list(range(1, 11))


def test_a_run_begun_with_a_relative_path_is_resumed_from_another_folder(tiny_run, tmp_path, monkeypatch):
    relative = {"data.path": "sheep.txt", "output.runs_dir": "runs"}
    folder, _ = tiny_run("here", relative, before=lambda run: controls.request(run.folder.control, "stop"))
    assert not folder.plan.exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert carry_out(open_again(folder)).exit_code == EXIT_DONE
