"""The first things that a person types."""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from tui_trainer.cli import main
from tui_trainer.cli.application import app
from tui_trainer.config.load import Request
from tui_trainer.config.toml_files import refuse_existing
from tui_trainer.errors import InputError
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.planning import plan as planning
from tui_trainer.runs.events import DataPrepared, EvalDone, RunFinished
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.state import RunState
from tui_trainer.tasks.contract import DataFacts

GIB = 2**30
MACHINE = Hardware(
    cpu_name="Test CPU", usable_cores=2, memory_bytes=64 * GIB, memory_available_bytes=60 * GIB, platform="Linux",
    python_version="3.11",
)  # fmt: skip
CARD = Gpu(index=0, name="Tesla T4", capability=(7, 5), memory_bytes=15 * GIB, memory_free_bytes=14 * GIB)
FACTS = DataFacts(
    rows=900, eval_rows=100, tokens=90_000, eval_tokens=9000, vocabulary=32_000, exact=False, reason="made up",
    row_tokens=100.0, longest_row=300, packed_rows=1.9,
)  # fmt: skip


@pytest.mark.parametrize("words", [["help"], ["-h"], ["--help"]])
def test_help_is_shown_as_it_is(words, capsys):
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage: tui-trainer")
    assert shown.err == ""


def test_help_shows_every_command_once_with_its_first_sentence_in_full(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    below = shown[shown.index("To train:") :]
    listed = [line.split()[0] for line in below.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(listed) == 34 and sorted(listed) == sorted(typer.main.get_command(app).commands)
    assert "..." not in below and max(map(len, below.splitlines())) <= 80


@pytest.mark.parametrize(("words", "hint"), [
    (["preview", "--rows", "1"], "`tui-trainer preview --help` lists its options"),
    (["bench", "train", "--step", "1"], "`tui-trainer bench train --help` lists its options"),
    (["--nope"], "`tui-trainer train --help` lists its options"),
])  # fmt: skip
def test_an_option_that_there_is_not_names_the_help_of_its_command(words, hint, capsys):
    assert main(words) == 2
    assert hint in capsys.readouterr().err


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


@pytest.mark.parametrize(("task", "command"), [("chat", "chat"), ("causal_lm", "generate")])
def test_what_has_learnt_to_converse_is_tried_in_a_conversation(task, command):
    state = RunState(task=task)
    state.apply(RunFinished(step=20, reason="done", loss=0.5, eval_loss=1.0, seconds=9.0, model_path="model"))
    assert f"try it         tui-trainer {command} run" in lines.end_lines(state, "run", "/runs/run")


@pytest.mark.parametrize(("last", "warned"), [(1.0, False), (1.3, True)])
def test_a_run_that_was_clearly_better_before_says_so(last, warned):
    state = RunState()
    for step, loss in ((10, 1.0), (20, last)):
        state.apply(EvalDone(step=step, loss_sum=loss, tokens=1, loss=loss, seconds=1, scheduled=True, best=False))
    state.apply(RunFinished(step=20, reason="done", loss=0.5, eval_loss=last, seconds=9.0, model_path="model"))
    told = [line for line in lines.end_lines(state, "run", "/runs/run") if "better before" in line]
    assert bool(told) == warned
    assert not warned or "step 10" in told[0]


NOW = datetime(2026, 11, 21, 18, 2, 38, tzinfo=UTC)


@pytest.mark.parametrize(("width", "has_folder"), [(80, False), (1000, True)])
def test_the_table_of_runs_fits_the_terminal(width, has_folder):
    run = RunOverview(
        name="quickstart-20261120-180238", path=Path("/data/runs/quickstart-20261120-180238"), status="interrupted",
        step=100000, total_steps=200000, loss=1.5, started_at="2026-11-20T18:02:38.000Z",
        last_event_at="2026-11-20T18:02:38.000Z",
    )  # fmt: skip
    table = lines.run_lines([run], width, NOW)
    assert max(map(len, table)) <= width
    assert ("/data/runs" in table[1]) == has_folder
    assert "100000/200000" in table[1]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("2026-11-21T15:02:38.000Z", "3 h 00 min"),
        ("2026-11-21T18:02:50.000Z", "0 ms"),
        ("2026-11-21T18:04:00.000Z", "clock ahead"),
        ("", "--"),
        ("yesterday", "--"),
        ("2026-11-21T18:02:50", "--"),
    ],
)
def test_an_age_is_never_below_zero(at, words):
    run = RunOverview(name="a", path=Path("a"), status="finished", last_event_at=at)
    assert lines.age_words(run, NOW) == words


def planned(recipe: str, machine: Hardware) -> planning.Plan:
    return planning.make(load_config(Request(profile=recipe)), machine, FACTS)


def test_the_greeting_says_where_it_trains_in_what_numbers_and_how_much_moves():
    on_card = lines.start_lines("run", "/runs/run", planned("tinyllama-lora", replace(MACHINE, gpus=(CARD,))))
    assert "trains on GPU 0, Tesla T4 in fp16; 12.6 M of 1.1 G parameters (1.1 %) are trainable" in on_card
    on_cpu = lines.start_lines("run", "/runs/run", planned("quickstart", MACHINE))
    words = "trains on the CPU (Test CPU, 2 threads) in fp32: no NVIDIA GPU was found on this machine; all "
    assert any(line.startswith(words) and line.endswith("are trainable") for line in on_cpu)


def test_the_plan_tells_each_choice_with_its_reason_and_leaves_out_what_is_off():
    on_card = lines.plan_lines(planned("tinyllama-lora", replace(MACHINE, gpus=(CARD,))))
    on_cpu = lines.plan_lines(planned("quickstart", MACHINE))
    told = {
        "packing": "yes ~",
        "trained parameters": "12.6 M = 1.15% of the model",
        "precision": "fp16 = compute capability 7.5",
        "weights": "float16 = they are frozen",
        "learning rate": "0.0002 = ",
        "tokens of a loss": "2,048 = ",
        "loader threads": "1 = ",
    }
    for label, shown in told.items():
        (line,) = [line for line in on_card if line.startswith(f"{label} ")]
        assert shown in line
    assert on_card[-1].endswith("memory is that of the card") and "with its libraries loaded" in on_cpu[-1]
    for label in ("trained parameters", "tokens of a loss", "loader threads"):
        assert not any(line.startswith(label) for line in on_cpu)


def test_large_counts_of_data_and_steps_have_their_thousands_apart():
    prepared = DataPrepared(
        from_cache=True, rows=2626, eval_rows=1292, tokens=336_000, eval_tokens=1, documents=1045, eval_documents=1012,
        vocabulary=30522, seconds=0.2,
    )  # fmt: skip
    line = lines.event_line(prepared, RunState())
    assert line is not None and all(
        words in line for words in ("2,626 rows", "1,045 doc", "1,292 rows held", "1,012 doc", "30,522")
    )


def test_help_of_a_command_is_its_own(capsys):
    assert main(["help", "plan"]) == 0
    assert capsys.readouterr().out.startswith("Usage: tui-trainer plan")


def test_a_folder_that_was_deleted_is_told_in_a_sentence(tmp_path, monkeypatch, capsys):
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(["plan"]) == 2
    assert "was deleted" in capsys.readouterr().err


def test_an_output_without_room_is_told_in_a_sentence(monkeypatch, capsys):
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["profiles"]) == 1
        monkeypatch.undo()
    assert "cannot be written: the disk is full (No space left" in capsys.readouterr().err


def test_a_file_in_a_folder_that_there_is_not_is_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="its folder does not exist"):
        refuse_existing(tmp_path / "nothing" / "tuned.toml", "--write")
