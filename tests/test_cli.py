"""The first commands of a new user, and the lines that commands print."""

import json
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
from tui_trainer.lines.guides import FOLDER
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


def test_help_is_printed_for_every_way_of_asking(capsys):
    for words in (["help"], ["-h"], ["--help"]):
        assert main(words) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith("Usage: tui-trainer") and printed.err == ""
    assert main(["help", "plan"]) == 0
    assert capsys.readouterr().out.startswith("Usage: tui-trainer plan")


def test_help_lists_every_command_once_with_its_whole_first_sentence(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    below = shown[shown.index("Training:") :]
    listed = [line.split()[0] for line in below.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(listed) == 37 and sorted(listed) == sorted(typer.main.get_command(app).commands)
    assert "..." not in below and max(map(len, below.splitlines())) <= 80


def test_unknown_option_names_the_help_of_its_command(capsys):
    for words, hint in (
        (["preview", "--rows", "1"], "`tui-trainer preview --help` lists its options"),
        (["bench", "train", "--step", "1"], "`tui-trainer bench train --help` lists its options"),
        (["--nope"], "`tui-trainer train --help` lists its options"),
    ):
        assert main(words) == 2
        assert hint in capsys.readouterr().err


def test_setting_or_recipe_without_its_option_names_the_option(tmp_path, capsys):
    (tmp_path / "char-lm").write_text("")
    for words, told in (
        (["quickstart", "training.max_steps=20"], "argument training.max_steps=20; write --profile quickstart --set "),
        (["--no-ui", "a.toml", "x.y=1 2", "char-rnn"], "unexpected arguments x.y=1 2 char-rnn; write --set 'x.y=1 2'"),
        (["plan", "a.toml", "finetune"], "unexpected argument finetune; write --profile finetune\n"),
        (["plan", "a.toml", "char-lm"], "unexpected argument char-lm; only one config can be given: put the settings"),
        (["--no-ui", "quickstart"], "quickstart: is not a config file; write --profile quickstart\n"),
        (["plan", "hardware_profile=none"], "none: is not a config file; write --set hardware_profile=none\n"),
    ):
        assert main(words) == 2
        assert told in capsys.readouterr().err


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") == 2


def test_options_of_train_may_come_first(capsys):
    for option in (["--profile", "quickstart"], ["--task", "char_lm"], ["--set", "training.seed=1"]):
        assert main([*option, "--json"]) == 2
        assert "add --no-ui" in capsys.readouterr().err


def test_start_without_a_terminal_names_no_ui(capsys, monkeypatch):
    monkeypatch.setattr("os.isatty", lambda number: False)
    assert main([]) == 2
    assert "tui-trainer --no-ui" in capsys.readouterr().err


def test_terminal_that_cannot_place_a_cursor_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("os.isatty", lambda number: True)
    for term in ("dumb", "", "unknown"):
        monkeypatch.setenv("TERM", term)
        assert main([]) == 2
        message = capsys.readouterr().err
        assert "TERM" in message and "--no-ui" in message


def test_data_given_as_a_config_is_recognised(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    assert main(["--no-ui", "texts"]) == 2
    assert "--data texts" in capsys.readouterr().err


def test_end_of_a_run_proposes_chat_or_generate_or_scores_of_answers():
    for task, command in (("chat", "chat"), ("causal_lm", "generate"), ("reward", "predict")):
        state = RunState(task=task)
        state.apply(RunFinished(step=20, reason="done", loss=0.5, eval_loss=1.0, seconds=9.0, model_path="model"))
        [line] = [line for line in lines.end_lines(state, "run", "/runs/run") if line.startswith("try it")]
        assert line.removesuffix(" --data FILE --out FILE") == f"try it         tui-trainer {command} run"


def test_end_of_a_run_that_was_clearly_better_before_says_so():
    for last, is_warned in ((1.0, False), (1.3, True)):
        state = RunState()
        for step, loss in ((10, 1.0), (20, last)):
            state.apply(EvalDone(step=step, loss_sum=loss, tokens=1, loss=loss, seconds=1, scheduled=True, best=False))
        state.apply(RunFinished(step=20, reason="done", loss=0.5, eval_loss=last, seconds=9.0, model_path="model"))
        warnings = [line for line in lines.end_lines(state, "run", "/runs/run") if "was better" in line]
        assert bool(warnings) == is_warned and all("step 10" in line for line in warnings)


NOW = datetime(2026, 11, 21, 18, 2, 38, tzinfo=UTC)


def test_table_of_runs_fits_the_terminal():
    run = RunOverview(
        name="quickstart-20261120-180238", path=Path("/data/runs/quickstart-20261120-180238"), status="interrupted",
        step=100000, total_steps=200000, loss=1.5, started_at="2026-11-20T18:02:38.000Z",
        last_event_at="2026-11-20T18:02:38.000Z",
    )  # fmt: skip
    for width, has_folder in ((80, False), (1000, True)):
        table = lines.run_lines([run], width, NOW)
        assert max(map(len, table)) <= width
        assert ("/data/runs" in table[1]) == has_folder and "100000/200000" in table[1]


def test_age_of_a_run_is_never_negative():
    for at, words in {
        "2026-11-21T15:02:38.000Z": "3 h 00 min",
        "2026-11-21T18:02:50.000Z": "0 ms",
        "2026-11-21T18:04:00.000Z": "clock ahead",
        "": "--",
        "yesterday": "--",
        "2026-11-21T18:02:50": "--",
    }.items():
        run = RunOverview(name="a", path=Path("a"), status="finished", last_event_at=at)
        assert lines.age_words(run, NOW) == words, at


def planned(recipe: str, machine: Hardware) -> planning.Plan:
    return planning.make(load_config(Request(profile=recipe)), machine, FACTS)


def test_first_lines_name_the_device_the_precision_and_the_trainable_share():
    on_card = lines.start_lines("run", "/runs/run", planned("tinyllama-lora", replace(MACHINE, gpus=(CARD,))))
    assert "trains on GPU 0, Tesla T4 in fp16; 12.6 M of 1.1 G parameters (1.1 %) are trainable" in on_card
    on_cpu = lines.start_lines("run", "/runs/run", planned("quickstart", MACHINE))
    words = "trains on the CPU (Test CPU, 2 threads) in fp32: no NVIDIA GPU was found on this machine; all "
    assert any(line.startswith(words) and line.endswith("are trainable") for line in on_cpu)


def test_plan_prints_each_choice_with_its_reason_and_omits_what_is_off():
    on_card = lines.plan_lines(planned("tinyllama-lora", replace(MACHINE, gpus=(CARD,))))
    on_cpu = lines.plan_lines(planned("quickstart", MACHINE))
    choices = {
        "packing": "yes ~",
        "trainable": "12.6 M = 1.15% of the model",
        "precision": "fp16 = no bf16 with compute capability 7.5",
        "weights": "float16 = the weights are frozen",
        "learning rate": "0.0002 = ",
        "loss chunk tokens": "2,048 = ",
        "loader threads": "1 = ",
    }
    for label, shown in choices.items():
        (line,) = [line for line in on_card if line.startswith(f"{label} ")]
        assert shown in line
    assert on_card[-1].endswith("memory is GPU memory") and "in addition to the loaded libraries" in on_cpu[-1]
    for label in ("trainable", "loss chunk tokens", "loader threads"):
        assert not any(line.startswith(label) for line in on_cpu)


def test_large_counts_have_thousands_separators():
    prepared = DataPrepared(
        from_cache=True, rows=2626, eval_rows=1292, tokens=336_000, eval_tokens=1, documents=1045, eval_documents=1012,
        vocabulary=30522, seconds=0.2,
    )  # fmt: skip
    line = lines.event_line(prepared, RunState())
    assert line is not None and all(
        words in line for words in ("2,626 rows", "1,045 doc", "1,292 rows held", "1,012 doc", "30,522")
    )


def test_full_disk_under_standard_output_is_reported(monkeypatch, capsys):
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["profiles"]) == 1
        monkeypatch.undo()
    assert "could not write to standard output: the disk is full (No space left" in capsys.readouterr().err


def test_output_file_in_a_missing_folder_is_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="its folder does not exist"):
        refuse_existing(tmp_path / "nothing" / "tuned.toml", "--write")


def test_where_lists_each_place_with_its_size_and_the_guide_explains_it(tmp_path, capsys, monkeypatch):
    home, settings, hub = tmp_path / "home", tmp_path / "settings", tmp_path / "hub"
    for name, folder in (("TUI_TRAINER_HOME", home), ("XDG_CONFIG_HOME", settings), ("HF_HUB_CACHE", hub)):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.chdir(tmp_path)
    (home / "cache/rows").mkdir(parents=True)
    (home / "cache/rows/tokens").write_bytes(bytes(2048))
    (home / "measured.sqlite3").write_bytes(bytes(700))
    assert main(["where"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"prepared data     2.0 KiB  {home}/cache" in lines
    assert f"measurements        700 B  {home}/measured.sqlite3" in lines
    assert f"your keys       not there  {settings}/tui-trainer/keys.toml" in lines
    assert main(["where", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["hub cache"] == {"name": "hub cache", "path": str(hub), "exists": False, "bytes": None}
    assert (found["prepared data"]["bytes"], found["runs"]["path"]) == (2048, str(tmp_path / "runs"))
    page = (FOLDER / "files.md").read_text(encoding="utf-8")
    assert [name for name in found if f"| {name} |" not in page] == [] and len(lines) == len(found)
