"""What comes after training, asked of runs that are not what they should be: one sentence, and nothing is left."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trained_runs import asked_row, write_rows
from tui_trainer.cli import main
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import remember

COMMANDS = {
    "export": ["--to", "onnx"],
    "evaluate": [],
    "predict": ["--data", "rows.jsonl", "--out", "out.jsonl"],
    "generate": ["The"],
    "chat": [],
    "bench": ["--rounds", "1"],
    "report": ["--out", "report"],
    "track": ["--to", "tensorboard"],
    "publish": ["--to", "me/model", "--yes"],
}
# What reads the journal alone.
OF_THE_JOURNAL = {"report", "track"}
LONG = "a" * 5000
HOSTILE = "x\x1b[2J\u202e/../../etc"
NO_RUNS = ("../x", "/etc", "/", "../../../../etc/passwd", "", HOSTILE, "nobody", "~nobody/x", LONG)


def unfinished(run: RunFolder) -> str:
    shutil.rmtree(run.model)
    shutil.rmtree(run.checkpoints)
    return "its checkpoints are gone as well, so nothing can write it again"


def of_another_version(run: RunFolder) -> str:
    plan = json.loads(run.plan.read_text())
    plan["plan_version"] = 99
    plan["versions"] = {"tui-trainer": "9.9"}
    run.plan.write_text(json.dumps(plan))
    return "was written by tui-trainer 9.9"


def without_weights(run: RunFolder) -> str:
    (run.model / "model.safetensors").unlink()
    return "there are no weights"


def with_torn_weights(run: RunFolder) -> str:
    weights = run.model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return "is not what the run wrote"


def without_a_tokenizer(run: RunFolder) -> str:
    for path in run.model.glob("tokenizer*"):
        path.unlink()
    return "is not what the run wrote"


def with_a_torn_config(run: RunFolder) -> str:
    (run.model / "config.json").write_text("{")
    return "is not what the run wrote"


def with_a_torn_plan(run: RunFolder) -> str:
    run.plan.write_text(run.plan.read_text()[:100])
    shutil.rmtree(run.checkpoints)
    return "plan.json is damaged"


# Of a run whose plan alone is wrong, publish asks the hub.
WEIGHTS = {"export", "evaluate", "predict", "generate", "chat"}
FAULTS = {
    unfinished: {*COMMANDS} - OF_THE_JOURNAL,
    of_another_version: WEIGHTS | {"bench"},
    with_a_torn_plan: WEIGHTS | {"bench"},
    without_weights: {*COMMANDS} - OF_THE_JOURNAL,
    with_torn_weights: {*COMMANDS} - OF_THE_JOURNAL,
    without_a_tokenizer: {*COMMANDS} - OF_THE_JOURNAL,
    with_a_torn_config: {*COMMANDS} - OF_THE_JOURNAL,
}


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> RunFolder:
    """A finished run that a test may spoil, and the folder that a user stands in."""
    shutil.copytree(finished("causal_lm").root, tmp_path / "runs/mine")
    folder = RunFolder.open(tmp_path / "runs/mine")
    assert remember(folder.root) is None
    write_rows(tmp_path / "rows.jsonl", [asked_row("causal_lm", n) for n in range(3)])
    monkeypatch.setattr("sys.stdin", io.StringIO("The\n"))
    monkeypatch.setattr("tui_trainer.exporting.contract.find_spec", lambda _: True)
    return folder


def files(place: Path) -> dict[str, bytes]:
    left_out = {"home", "lock"}
    found = (path for path in place.rglob("*") if path.is_file() and not left_out & {*path.relative_to(place).parts})
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def refused(arguments: list[str], words: str, place: Path, capsys: pytest.CaptureFixture[str], code: int = 2) -> None:
    before = files(place)
    assert main(arguments) == code, arguments
    told = capsys.readouterr().err.rpartition("\r")[2].strip("\n")
    assert any(word in told for word in words.split("|")), told
    assert "Traceback" not in told and told.count("\n") == 0, told
    assert "\x1b[2J" not in told and "\u202e" not in told
    assert files(place) == before


@pytest.mark.parametrize(
    ("spoil", "command"),
    [(spoil, command) for spoil, commands in FAULTS.items() for command in COMMANDS if command in commands],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_run_that_is_not_whole_is_refused_in_one_sentence_and_nothing_is_left(spoil, command, run, tmp_path, capsys):
    refused([command, run.name, *COMMANDS[command]], spoil(run), tmp_path, capsys)


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_what_reads_the_journal_alone_takes_every_run(spoil, run, tmp_path):
    spoil(run)
    assert main(["report", run.name, "--out", str(tmp_path / "report")]) == 0
    assert main(["report", run.name, "--json"]) == 0
    assert (tmp_path / "report/report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("command", "name"),
    zip(COMMANDS, NO_RUNS, strict=True),
)
def test_a_name_of_no_run_is_refused_in_one_sentence(command, name, run, tmp_path, capsys):
    refused([command, name, *COMMANDS[command]], "", tmp_path, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "--to", "../model"], "there is no format"),
        (["export", "--to", HOSTILE], "there is no format"),
        (["export", "--to", "merged"], "is a whole model already"),
        (["export", "--to", "onnx", "--out", "rows.jsonl"], "not empty"),
        (["export", "--to", "onnx", "--out", "rows.jsonl/x"], "cannot be made"),
        (["export", "--to", "onnx", "--out", f"rows.jsonl/{HOSTILE}"], "cannot be made"),
        (["export", "--to", "onnx", "--out", LONG], "cannot be locked: File name too long"),
        (["evaluate", "--data", LONG], "aaa"),
        (["evaluate", "--against", LONG], "aaa"),
        (["predict", "--data", LONG, "--out", "o"], "aaa"),
        (["predict", "--data", "rows.jsonl", "--out", LONG], "cannot be used: File name too long"),
        (["report", "--out", LONG], "cannot be written"),
        (["evaluate", "--data", "gone.jsonl"], "gone.jsonl"),
        (["evaluate", "--data", HOSTILE], "x"),
        (["evaluate", "--against", "nobody"], "nobody"),
        (["evaluate", "--against", "../x"], "../x|/x"),
        (["predict", "--data", "gone.jsonl", "--out", "o"], "gone.jsonl"),
        (["predict", "--data", "rows.jsonl", "--out", "gone/o"], "its folder does not exist"),
        (["predict", "--data", "rows.jsonl", "--out", "."], "is a folder"),
        (["predict", "--data", "rows.jsonl", "--out", "rows.jsonl"], "is the data itself"),
        (["predict", "--data", "rows.jsonl", "--out", HOSTILE], "its folder does not exist"),
        (["predict", "--data", "rows.jsonl", "--out", "o", "--field", "text"], "--field"),
        (["chat", "--against", "base"], "no base model"),
        (["bench", "--only", HOSTILE], "no variant has"),
        (["report", "--out", "rows.jsonl"], "cannot be written"),
        (["track", "--to", "../x"], "there is no tracker"),
        (["track", "--to", HOSTILE], "there is no tracker"),
        (["publish", "--to", "../x", "--yes"], "is no name on the hub"),
        (["publish", "--to", f"me/{HOSTILE}", "--yes"], "is no name on the hub"),
        (["publish", "--to", "me/model", "--export", "../model", "--yes"], "has no export"),
        (["publish", "--to", "me/model", "--export", HOSTILE, "--yes"], "has no export"),
    ],
)
def test_an_argument_that_leads_astray_is_refused_in_one_sentence(arguments, words, run, tmp_path, capsys):
    command, *options = arguments
    refused([command, run.name, *options], words, tmp_path, capsys)


def test_a_disk_that_is_full_is_told_and_nothing_half_made_is_left(run, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tui_trainer.exporting.export.shutil.disk_usage", lambda _: SimpleNamespace(free=5))
        refused(["export", run.name, "--to", "onnx"], ", 5 B are free", tmp_path, capsys)
    with monkeypatch.context() as patch:
        patch.setattr("tui_trainer.reporting.page.write_atomically", full)
        refused(["report", run.name], "cannot be written: the disk is full (No space left on device)", tmp_path, capsys)
    with monkeypatch.context() as patch:
        # It may have room again: then the same command goes on.
        # Not for the lock beside it.
        patch.setattr("tui_trainer.exporting.predicting.os", SimpleNamespace(**{**vars(os), "fsync": full}))
        assert main(["predict", run.name, *COMMANDS["predict"]]) == 1
        assert (
            "cannot be written: the disk is full (No space left on device); the same command goes on"
            in capsys.readouterr().err
        )
    assert main(["predict", run.name, *COMMANDS["predict"]]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3 and not list(tmp_path.glob("*.partial*"))
