"""Commands without a home folder, in unreadable, deleted or oddly named folders, and with standard output closed.

Each ends with one of the four exit codes and without a traceback.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.programs import run_program
from tests.trained_runs import asked_row, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.cli.application import app
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, ConfigError
from tui_trainer.launching.open_run import load_config

CODES = (EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED)
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
    "where": [],
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
    "gate": ["RUN", "--max-new-tokens", "2"],
    "export": ["RUN", "--to", "adapter"],
    "bench": ["RUN", "--rows", "1", "--rounds", "1", "--only", "one by one"],
    "publish": ["RUN", "--to", "me/it", "--yes"],
}
UNKNOWN_USER = """
import pwd
def unknown(*_):
    raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
"""
# A node waits for the first node for minutes.
SHORT_WAIT = """
from tui_trainer.launching import torchrun
torchrun.WAIT_SECONDS = 0.5
"""
HOME_VARIABLES = "HOME USER LOGNAME TUI_TRAINER_HOME XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME HF_HOME".split()
# These measure for minutes.
MEASURING = ("rehearse", "tune", "bench", "diagnose")


@dataclass(frozen=True)
class Start:
    """How a program is started. `code` and `words` hold for every command but `--help`; None: the usual exit codes."""

    environment: Callable[[Path], dict[str, str]] = lambda place: dict(os.environ)
    prelude: str = ""
    is_deleted: bool = False
    folder: Callable[[Path], Path] = lambda place: place
    code: int | None = None
    words: str = ""


PLAIN = Start()


def without_home(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in HOME_VARIABLES} | more


def renamed_to_latin_1(place: Path) -> Path:
    return place.rename(os.fsdecode(os.fsencode(place) + b"-caf\xe9"))


NO_HOME = "there is no home folder: HOME is not set, and the system has no entry for user"
STARTS = {
    "no home": Start(lambda place: without_home(), UNKNOWN_USER, code=EXIT_BAD_INPUT, words=NO_HOME),
    "TUI_TRAINER_HOME for a home": Start(
        lambda place: without_home(TUI_TRAINER_HOME=str(place / "state")), UNKNOWN_USER
    ),
    "a home that cannot be": Start(lambda place: without_home(HOME="/proc/x")),
    "a file for a home": Start(lambda place: without_home(HOME=str(place / "my.toml"))),
    "a home that is not UTF-8": Start(
        lambda place: without_home(HOME="/tmp/\udce9"), code=EXIT_BAD_INPUT, words=r"HOME is not UTF-8: /tmp/\xe9"
    ),
    "a folder that is not UTF-8": Start(
        folder=renamed_to_latin_1,
        code=EXIT_BAD_INPUT,
        words=r"current folder is not UTF-8: {place}-caf\xe9; `cd` to another folder",
    ),
    "a folder that is gone": Start(is_deleted=True, code=EXIT_BAD_INPUT, words="was deleted; `cd` to another"),
}


def test_table_of_commands_is_complete():
    main(["--version"])  # imports all commands
    assert {"", *typer.main.get_command(app).commands} == set(COMMANDS)


def make_place(place: Path, run: Path) -> Path:
    """Make a folder to start in, with a copy of a finished run."""
    place.mkdir()
    shutil.copytree(run, place / "runs/causal_lm")
    write_rows(place / "data.jsonl", [training_row("causal_lm", n) for n in range(40)])
    write_rows(place / "asked.jsonl", [asked_row("causal_lm", n) for n in range(3)])
    (place / "my.toml").write_text(CONFIG)
    (place / "other.yaml").write_text("r: 8\nlora_alpha: 16\npeft_type: LORA\n")
    return place


@pytest.fixture
def place(tmp_path, finished):
    return make_place(tmp_path / "place", finished("causal_lm").root)


def words_of(command: str) -> list[str]:
    return [*filter(None, [command]), *("./runs/causal_lm" if word == "RUN" else word for word in COMMANDS[command])]


# All commands of a start, one after the other in one program.
ALL = """
import io, json, os, shutil, sys
from tui_trainer.cli import main
{prelude}
ended = []
for words, folder, is_deleted, is_closed in json.loads({commands!r}):
    os.chdir(folder)
    if is_deleted:
        shutil.rmtree(os.getcwd())
    sys.stdin = io.StringIO("a text")
    output, error = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True) for _ in range(2))
    sys.stdout, sys.stderr = output, error
    if is_closed:
        os.close(1)
        sys.stdout = sys.__stdout__ = None
    code = main(words)
    ended.append([code, *(file.buffer.getvalue().decode() for file in (output, error))])
with open({out!r}, "w") as file:
    json.dump(ended, file)
"""


def carried_out(commands: Sequence[str], tmp_path: Path, run: Path, start: Start = PLAIN, is_closed: bool = False):
    """Yield each command, its place and how it ended, of one program started so."""
    places = [make_place(tmp_path / f"{command or 'help'}", run) for command in commands]
    folders = [start.folder(place) for place in places]
    asked = [
        [words_of(command), str(folder), start.is_deleted, is_closed]
        for command, folder in zip(commands, folders, strict=True)
    ]
    out = tmp_path / "ended.json"
    prelude = ALL.format(prelude=SHORT_WAIT + start.prelude, commands=json.dumps(asked), out=str(out))
    environment = start.environment(places[0])
    done = run_program([], environment=environment, folder=tmp_path, prelude=prelude, module="")
    assert done.returncode == 0, done
    for command, place, folder, (code, output, error) in zip(
        commands, places, folders, json.loads(out.read_text()), strict=True
    ):
        yield command, place, folder, subprocess.CompletedProcess(command, code, output, error)


def assert_no_traceback(done: Any) -> None:
    assert done.returncode in CODES and "Traceback" not in done.stdout + done.stderr, done


def runs_in(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "runs").iterdir())


def start_all(name: str, commands: Sequence[str], tmp_path: Path, run: Path, subtests: pytest.Subtests) -> None:
    """Start commands in places of their own, and check how each ends."""
    start = STARTS[name]
    for command, place, folder, done in carried_out(commands, tmp_path, run, start):
        with subtests.test(command):
            assert_no_traceback(done)
            if start.code is None or not command:
                continue
            assert (done.returncode, done.stdout) == (start.code, ""), done
            (line,) = done.stderr.splitlines()
            assert start.words.format(place=place) in line
            assert not folder.exists() or runs_in(folder) == ["causal_lm"], "nothing was made"


@pytest.mark.parametrize("name", ["no home", "a folder that is not UTF-8", "a folder that is gone"])
def test_plan_reports_a_missing_home_or_folder_without_a_traceback(name, tmp_path, finished, subtests):
    start_all(name, ["plan"], tmp_path, finished("causal_lm").root, subtests)


@pytest.mark.e2e
@pytest.mark.parametrize("name", STARTS)
def test_every_command_reports_a_missing_home_or_folder(name, tmp_path, finished, subtests):
    commands = [one for one in COMMANDS if STARTS[name].code is not None or one not in MEASURING]
    start_all(name, commands, tmp_path, finished("causal_lm").root, subtests)


@pytest.mark.e2e
def test_every_command_with_a_closed_standard_output_ends_without_a_traceback(tmp_path, finished, subtests):
    commands = [command for command in COMMANDS if command not in MEASURING]
    for command, _, _, done in carried_out(commands, tmp_path, finished("causal_lm").root, is_closed=True):
        with subtests.test(command):
            assert_no_traceback(done)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("command", "language"),
    [("plan", {"LANG": "C"}), ("explain", {"LC_ALL": "POSIX"}), ("train", {"LC_ALL": "C", "PYTHONUTF8": "0"})],
)
def test_common_commands_work_in_every_language_of_the_shell(command, language, place):
    """The interpreter reads the language when it starts, so each command is a new process."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    command_line = [sys.executable, "-m", "tui_trainer", *words_of(command)]
    done = subprocess.run(
        command_line, cwd=place, env=others | language, capture_output=True, errors="replace",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert_no_traceback(done)


@pytest.mark.full
def test_unwritable_home_is_reported_with_the_variable_to_set(place):
    environment = without_home(HOME="/proc/x")
    done = run_program(words_of("train"), environment=environment, folder=place)
    assert done.returncode == EXIT_BAD_INPUT
    assert done.stderr.count("set TUI_TRAINER_HOME to a writable folder") == 1, done.stderr
    done = run_program(words_of("rename"), environment=environment, folder=place)
    assert done.returncode == EXIT_DONE and "Set TUI_TRAINER_HOME to a writable folder" in done.stderr


@pytest.mark.full
def test_run_trains_without_a_known_user_and_keeps_its_state_in_tui_trainer_home(place):
    home = place.with_name("state")
    environment = without_home(TUI_TRAINER_HOME=str(home))
    done = run_program(words_of("train"), environment=environment, folder=place, prelude=UNKNOWN_USER)
    assert done.returncode == EXIT_DONE, done
    assert len(runs_in(place)) == 2 and (home / "runs.jsonl").is_file() and (home / "cache").is_dir()
    assert not list(place.rglob("~")), "no folder is called ~"


def show_hostile_folder_name(command: str, tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command in a folder whose name holds terminal codes and a line break, and check what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        folder = make_place(tmp_path / f"place-{command}", run)
        patch.chdir(folder.rename(folder.with_name(f"{command}\x1b]0;title\x07\x9b2J\nBEGUN[bold]")))
        patch.setattr(sys, "stdin", io.StringIO("a text\n"))
        patch.setattr("tui_trainer.launching.torchrun.WAIT_SECONDS", 0.5)
        assert main(words_of(command)) in CODES
    printed = "".join(capsys.readouterr())
    assert not {sign for sign in printed if unicodedata.category(sign) == "Cc"} - {"\n"}, printed
    assert not any(line.startswith("BEGUN") for line in printed.splitlines()), printed


@pytest.mark.full
def test_name_of_a_folder_controls_no_terminal_and_begins_no_line(tmp_path, finished, capsys, subtests):
    for command in COMMANDS:
        with subtests.test(command):
            show_hostile_folder_name(command, tmp_path, finished("causal_lm").root, capsys)


LATIN = "caf\udce9"
LATIN_ARGUMENTS = [
    ["train", "my.toml", "--no-ui", "--data", f"{LATIN}.jsonl"],
    ["train", "my.toml", "--no-ui", "--set", f"output.runs_dir={LATIN}"],
    ["plan", f"{LATIN}.toml"],
    ["--no-ui", "--model", LATIN],
    ["export", f"runs/{LATIN}", "--to", "adapter"],
    ["submit", "my.toml", "--set", f"output.runs_dir={LATIN}", "--yes"],
]


def test_path_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, subtests):
    monkeypatch.chdir(tmp_path)
    for name in ("my.toml", f"{LATIN}.toml"):
        Path(name).write_text(CONFIG)
    for name in ("data.jsonl", f"{LATIN}.jsonl"):
        write_rows(Path(name), [training_row("causal_lm", n) for n in range(40)])
    (tmp_path / LATIN).mkdir()
    (tmp_path / "link").symlink_to(LATIN)
    before = sorted(tmp_path.rglob("*"))
    for words in LATIN_ARGUMENTS:
        with subtests.test(ascii(" ".join(words))):
            assert main(words) == EXIT_BAD_INPUT
            message = capsys.readouterr().err
            assert r"an argument is not UTF-8: " in message and r"caf\xe9" in message
            assert sorted(tmp_path.rglob("*")) == before
    with subtests.test("a link to such a folder"):
        assert main(["train", "my.toml", "--no-ui", "--set", "output.runs_dir=link"]) == EXIT_BAD_INPUT
        assert r"output.runs_dir: leads to a path that is not UTF-8: " in capsys.readouterr().err
        assert not list((tmp_path / LATIN).iterdir())
    with subtests.test("a setting of the screens"):
        with pytest.raises(ConfigError, match=r"^--data: data.path: is not UTF-8: caf\\xe9\.jsonl; rename") as refusal:
            load_config(Request(shortcuts={"data.path": f"{LATIN}.jsonl"}))
        assert len(refusal.value.problems) == 1


@pytest.mark.full
@pytest.mark.parametrize("path", ["rows", "rows/*.jsonl"])
def test_files_in_folders_of_data_and_of_a_model_may_have_names_that_are_not_utf8(path, place, monkeypatch, capsys):
    from tests.tiny_models import save_tiny_model

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
