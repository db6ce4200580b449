"""The first things that a person types."""

from pathlib import Path

import pytest

from tui_trainer import lines
from tui_trainer.cli import main
from tui_trainer.runs.events import EvalDone, RunFinished
from tui_trainer.runs.registry import RunSummary
from tui_trainer.runs.state import RunState


@pytest.mark.parametrize("words", [["help"], ["-h"], ["--help"]])
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
    assert main([*option, "--json"]) == 2
    assert "add --no-ui" in capsys.readouterr().err


def test_without_a_terminal_the_way_without_screens_is_named(capsys, monkeypatch):
    monkeypatch.setattr("os.isatty", lambda number: False)
    assert main([]) == 2
    assert "tui-trainer --no-ui" in capsys.readouterr().err


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_terminal_that_cannot_place_a_cursor_is_refused(term, capsys, monkeypatch):
    monkeypatch.setattr("os.isatty", lambda number: True)
    monkeypatch.setenv("TERM", term)
    assert main([]) == 2
    told = capsys.readouterr().err
    assert "TERM" in told and "--no-ui" in told


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


@pytest.mark.parametrize(("width", "has_folder"), [(80, False), (1000, True)])
def test_the_table_of_runs_fits_the_terminal(width, has_folder):
    summary = RunSummary(
        name="quickstart-20261120-180238", path=Path("/data/runs/quickstart-20261120-180238"), status="interrupted",
        step=100000, total_steps=200000, loss=1.5, eval_loss=None, started_at="2026-11-20T18:02:38.000Z", alive=False,
    )  # fmt: skip
    table = lines.run_lines([summary], width)
    assert max(map(len, table)) <= width
    assert ("/data/runs" in table[1]) == has_folder
    assert "100000/200000" in table[1]
