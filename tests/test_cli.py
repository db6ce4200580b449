"""The first things that a person types."""

import pytest

from tui_trainer import lines
from tui_trainer.cli import main
from tui_trainer.runs.events import EvalDone, RunFinished
from tui_trainer.runs.state import RunState


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"]])
def test_help_is_shown_as_it_is(words, capsys):
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage: tui-trainer")
    assert shown.err == ""


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") == 2


@pytest.mark.parametrize("option", [["--profile", "quickstart"], ["--task", "char_lm"], ["--set", "training.seed=1"]])
def test_options_may_come_first(option, capsys):
    assert main([*option]) == 2
    assert "add --no-ui" in capsys.readouterr().err


def test_data_in_the_place_of_a_config_is_told_apart(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    assert main(["--no-ui", "texts"]) == 2
    assert "--data texts" in capsys.readouterr().err


@pytest.mark.parametrize(("last", "warned"), [(1.0, False), (1.3, True)])
def test_a_run_that_was_clearly_better_before_says_so(last, warned):
    state = RunState()
    for step, loss in ((10, 1.0), (20, last)):
        state.apply(EvalDone(step=step, loss_sum=loss, tokens=1, loss=loss, seconds=1, scheduled=True, best=False))
    state.apply(RunFinished(step=20, reason="done", loss=0.5, eval_loss=last, seconds=9.0, model_path="model"))
    told = [line for line in lines.end_lines(state, "run", "/runs/run") if "better before" in line]
    assert bool(told) == warned
    assert not warned or "step 10" in told[0]
