"""Each command where there is no home folder, where it cannot be written, in a folder of a name that is not UTF-8 or
that is gone, and with standard output closed: an exit code of the four that there are, and no traceback."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.combinations import in_the_sweep
from tests.programs import run_program, start_program
from tests.tiny_models import save_tiny_model
from tests.trained_runs import asked_row, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.cli.application import app
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, ConfigError
from tui_trainer.launching import torchrun as rendezvous
from tui_trainer.launching.open_run import load_config

CONFIG = """
[task]
type = "causal_lm"
[data]
path = "data.jsonl"
max_length = 16
[model]
init = "scratch"
[model.scratch]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
vocab_size = 300
[training]
max_steps = 2
cpu_threads = 1
effective_batch_size = 4
[evaluation]
eval_steps = 0
[logging]
sample_steps = 0
"""
COMMANDS: Mapping[str, list[str]] = {
    "": ["--help"],
    "train": ["my.toml", "--no-ui"],
    "plan": ["my.toml"],
    "check": ["my.toml"],
    "preview": ["my.toml"],
    "rehearse": ["my.toml"],
    "tune": ["my.toml", "--minutes", "0.2"],
    "profiles": [],
    "explain": ["training.seed"],
    "guide": [],
    "diagnose": [],
    "import": ["other.yaml", "--to", "imported.toml"],
    "download": ["nobody/nothing", "--yes"],
    "install": [],
    "runs": [],
    "attach": ["RUN", "--no-ui"],
    "ask": ["RUN", "save"],
    "stop": ["RUN"],
    "resume": ["RUN", "--no-ui"],
    "doctor": ["RUN"],
    "report": ["RUN"],
    "compare": ["RUN", "RUN"],
    "label": ["RUN", "--tags", "baseline"],
    "rename": ["RUN", "another"],
    "delete": ["RUN", "--yes"],
    "submit": ["my.toml", "--dry-run"],
    "join": ["RUN", "--node-rank", "1"],
    "track": ["RUN", "--to", "tensorboard"],
    "generate": ["RUN", "a text", "--max-new-tokens", "2"],
    "chat": ["RUN", "--max-new-tokens", "2"],
    "predict": ["RUN", "--data", "asked.jsonl", "--out", "out.jsonl", "--max-new-tokens", "2"],
    "evaluate": ["RUN"],
    "export": ["RUN", "--to", "adapter"],
    "bench": ["RUN", "--rows", "1", "--rounds", "1", "--only", "one by one"],
    "publish": ["RUN", "--to", "me/it", "--yes"],
}
NOBODY = """
import pwd
def unknown(*_):
    raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
"""
# A node waits for the first one for minutes.
IMPATIENT = """
from tui_trainer.launching import torchrun as rendezvous
rendezvous.WAIT_SECONDS = 0.5
"""
DELETED = """
import os, shutil
shutil.rmtree(os.getcwd())
"""
_HOMES = "HOME USER LOGNAME TUI_TRAINER_HOME XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME HF_HOME".split()
# In these the commands of the default run are tried in each place.
FEW = ("train", "plan", "runs", "explain")


@dataclass(frozen=True)
class Start:
    """How a program is started. `code` and `words`: of every command; None: as elsewhere."""

    environment: Callable[[Path], dict[str, str]] = lambda place: dict(os.environ)
    prelude: str = ""
    folder: Callable[[Path], Path] = lambda place: place
    code: int | None = None
    words: str = ""


def without_home(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _HOMES} | more


def renamed(place: Path) -> Path:
    """To a name in Latin-1."""
    return place.rename(os.fsdecode(os.fsencode(place) + b"-caf\xe9"))


NO_HOME = "there is no home folder: HOME is not set, and the system does not know the user"
STARTS = {
    "no home": Start(lambda place: without_home(), NOBODY, code=EXIT_BAD_INPUT, words=NO_HOME),
    "TUI_TRAINER_HOME for a home": Start(lambda place: without_home(TUI_TRAINER_HOME=str(place / "state")), NOBODY),
    "a home that cannot be": Start(lambda place: without_home(HOME="/proc/x")),
    "a file for a home": Start(lambda place: without_home(HOME=str(place / "my.toml"))),
    "a home that is not UTF-8": Start(
        lambda place: without_home(HOME="/tmp/\udce9"), code=EXIT_BAD_INPUT, words=r"HOME is not UTF-8: /tmp/\xe9"
    ),
    "a folder that is not UTF-8": Start(
        folder=renamed, code=EXIT_BAD_INPUT, words=r"is started is not UTF-8: {place}-caf\xe9; `cd` to another one"
    ),
    "a folder that is gone": Start(prelude=DELETED, code=EXIT_BAD_INPUT, words="was deleted; `cd` to another"),
}


def test_every_command_is_swept():
    main(["--version"])
    assert {"", *typer.main.get_command(app).commands} == set(COMMANDS)


@pytest.fixture
def place(tmp_path, finished):
    """A folder to start in, with a finished run."""
    place = tmp_path / "place"
    place.mkdir()
    shutil.copytree(finished("causal_lm").root, place / "runs/causal_lm")
    write_rows(place / "data.jsonl", [training_row("causal_lm", n) for n in range(40)])
    write_rows(place / "asked.jsonl", [asked_row("causal_lm", n) for n in range(3)])
    (place / "my.toml").write_text(CONFIG)
    (place / "other.yaml").write_text("r: 8\nlora_alpha: 16\npeft_type: LORA\n")
    return place


def words_of(command: str) -> list[str]:
    return [*filter(None, [command]), *("./runs/causal_lm" if word == "RUN" else word for word in COMMANDS[command])]


def _impatient(command: str) -> str:
    return IMPATIENT if command == "join" else ""


def has_no_traceback(done: Any) -> bool:
    codes = (EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED)
    return done.returncode in codes and "Traceback" not in done.stdout + done.stderr


def runs_in(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "runs").iterdir())


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("command", [name if name in FEW else in_the_sweep(name) for name in COMMANDS])
def test_no_command_ends_in_a_traceback(command, name, place):
    start = STARTS[name]
    environment, folder = start.environment(place), start.folder(place)
    done = run_program(
        words_of(command), environment=environment, folder=folder, prelude=start.prelude + _impatient(command)
    )
    assert has_no_traceback(done), done
    if start.code is None or not command:
        return
    assert (done.returncode, done.stdout) == (start.code, ""), done
    (line,) = done.stderr.splitlines()
    assert start.words.format(place=place) in line
    assert not folder.exists() or runs_in(folder) == ["causal_lm"], "nothing was made"


@pytest.mark.parametrize("command", [name if name in FEW else in_the_sweep(name) for name in COMMANDS])
def test_a_closed_output_ends_no_command_in_a_traceback(command, place, tmp_path):
    with (tmp_path / "errors").open("w+b") as errors, open(os.devnull, "r+b") as null:  # noqa: PTH123
        files = [null.fileno(), null.fileno(), errors.fileno()]
        program = start_program(words_of(command), files=files, closed=[1], folder=place, prelude=_impatient(command))
        assert program.wait(300) in (EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED)
        errors.seek(0)
        assert b"Traceback" not in errors.read()


@pytest.mark.parametrize("language", [{"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=str)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=pytest.mark.e2e if name in FEW else pytest.mark.slow)
        for name in COMMANDS
        if name != "join"
    ],
)
def test_no_command_minds_the_language_of_the_shell(command, language, place):
    """A program of its own, as the language is read when the interpreter starts; `join` would wait for minutes."""
    left = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    command_line = [sys.executable, "-m", "tui_trainer", *words_of(command)]
    done = subprocess.run(
        command_line, cwd=place, env=left | language, capture_output=True, errors="replace", stdin=subprocess.DEVNULL
    )
    assert has_no_traceback(done), done


def test_where_a_home_cannot_be_written_the_message_names_what_to_set(place):
    environment = without_home(HOME="/proc/x")
    done = run_program(words_of("train"), environment=environment, folder=place)
    assert done.returncode == EXIT_BAD_INPUT
    assert done.stderr.count("set TUI_TRAINER_HOME to a folder that can be written to") == 1, done.stderr
    done = run_program(words_of("rename"), environment=environment, folder=place)
    assert done.returncode == EXIT_DONE and "Set TUI_TRAINER_HOME to a folder that can be written to" in done.stderr


def test_a_run_trains_where_nobody_knows_the_user(place):
    """The state and what was prepared lie in TUI_TRAINER_HOME, and no folder is called `~`."""
    home = place.with_name("state")
    environment = without_home(TUI_TRAINER_HOME=str(home))
    done = run_program(words_of("train"), environment=environment, folder=place, prelude=NOBODY)
    assert done.returncode == EXIT_DONE, done
    assert len(runs_in(place)) == 2 and (home / "runs.jsonl").is_file() and (home / "cache").is_dir()
    assert not list(place.rglob("~"))


MEASURING = frozenset(("rehearse", "tune", "bench", "diagnose"))


@pytest.mark.parametrize("command", [in_the_sweep(name) if name in MEASURING else name for name in COMMANDS])
def test_the_name_of_a_folder_acts_on_no_terminal_and_begins_no_line(command, place, monkeypatch, capsys):
    monkeypatch.chdir(place.rename(place.with_name("x\x1b]0;title\x07\x9b2J\nBEGUN[bold]")))
    monkeypatch.setattr(sys, "stdin", io.StringIO("a text\n"))
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.5)
    assert main(words_of(command)) in (EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED)
    found = capsys.readouterr()
    shown = found.out + found.err
    assert not {sign for sign in shown if unicodedata.category(sign) == "Cc"} - {"\n"}, shown
    assert not any(line.startswith("BEGUN") for line in shown.splitlines()), shown


LATIN = "caf\udce9"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "my.toml", "--no-ui", "--data", f"{LATIN}.jsonl"],
        ["train", "my.toml", "--no-ui", "--set", f"output.runs_dir={LATIN}"],
        ["plan", f"{LATIN}.toml"],
        ["--no-ui", "--model", LATIN],
        ["export", f"runs/{LATIN}", "--to", "adapter"],
        ["submit", "my.toml", "--set", f"output.runs_dir={LATIN}", "--yes"],
    ],
    ids=" ".join,
)
def test_a_path_that_is_not_utf8_is_refused_before_anything_is_made(words, place, monkeypatch, capsys):
    shutil.copy(place / "data.jsonl", place / f"{LATIN}.jsonl")
    shutil.copy(place / "my.toml", place / f"{LATIN}.toml")
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert main(words) == EXIT_BAD_INPUT
    assert r"an argument is not UTF-8: " in (told := capsys.readouterr().err) and r"caf\xe9" in told
    assert sorted(place.rglob("*")) == before


def test_a_link_to_a_folder_that_is_not_utf8_is_no_place_for_runs(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / LATIN).mkdir()
    (place / "link").symlink_to(LATIN)
    assert main(["train", "my.toml", "--no-ui", "--set", "output.runs_dir=link"]) == EXIT_BAD_INPUT
    assert r"output.runs_dir: leads to a path that is not UTF-8: " in capsys.readouterr().err
    assert not list((place / LATIN).iterdir())


def test_a_setting_of_the_screens_that_is_not_utf8_is_a_problem_of_its_own():
    with pytest.raises(ConfigError, match=r"^--data: data.path: is not UTF-8: caf\\xe9\.jsonl; rename") as refusal:
        load_config(Request(shortcuts={"data.path": f"{LATIN}.jsonl"}))
    assert len(refusal.value.problems) == 1


@pytest.mark.parametrize("path", ["rows", "rows/*.jsonl"])
def test_files_in_folders_of_data_and_of_a_model_may_have_names_that_are_not_utf8(path, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "rows").mkdir()
    for name in ("a", LATIN):
        shutil.copy(place / "data.jsonl", place / f"rows/{name}.jsonl")
    model = save_tiny_model(place / "llama", "llama")
    (model / f"{LATIN}.txt").write_text("a note")
    words = ["train", "my.toml", "--no-ui", "--data", path, "--model", str(model), "--set", "model.init=pretrained"]
    assert main(words) == EXIT_DONE
    with (place / f"rows/{LATIN}.jsonl").open("a") as file:
        file.write("{\n")
    capsys.readouterr()
    assert main(words) == EXIT_BAD_INPUT
    assert "caf<U+DCE9>.jsonl" in capsys.readouterr().err
