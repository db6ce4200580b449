"""Commands that use a finished run, given damaged runs and bad arguments: one sentence, and nothing is left behind."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trained_runs import asked_row, write_rows
from tui_trainer.cli import main
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import add_to_index

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
READ_THE_JOURNAL_ALONE = {"report", "track"}
READ_THE_MODEL = {*COMMANDS} - READ_THE_JOURNAL_ALONE
READ_THE_PLAN = READ_THE_MODEL - {"publish"}
LONG = "a" * 5000
HOSTILE = "x\x1b[2J\u202e/../../etc"
NO_RUNS = ("../x", "/etc", "/", "../../../../etc/passwd", "", HOSTILE, "nobody", "~nobody/x", LONG)


def without_model(run: RunFolder) -> str:
    shutil.rmtree(run.model)
    shutil.rmtree(run.checkpoints)
    return "the checkpoints are gone as well, so the model cannot be written again"


def of_another_version(run: RunFolder) -> str:
    plan = json.loads(run.plan.read_text())
    plan["plan_version"] = 99
    plan["versions"] = {"tui-trainer": "9.9"}
    run.plan.write_text(json.dumps(plan))
    return "was written by tui-trainer 9.9"


def with_a_torn_plan(run: RunFolder) -> str:
    run.plan.write_text(run.plan.read_text()[:100])
    shutil.rmtree(run.checkpoints)
    return "plan.json is damaged"


def without_weights(run: RunFolder) -> str:
    (run.model / "model.safetensors").unlink()
    return "contains no weights"


def with_torn_weights(run: RunFolder) -> str:
    weights = run.model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return "has changed since the run"


FAULTS: dict[Callable[[RunFolder], str], set[str]] = {
    without_model: READ_THE_MODEL,
    of_another_version: READ_THE_PLAN,
    with_a_torn_plan: READ_THE_PLAN,
    without_weights: READ_THE_MODEL,
    with_torn_weights: READ_THE_MODEL,
}


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> RunFolder:
    """A copy of a finished run, in the folder that the commands start in."""
    monkeypatch.setattr("sys.stdin", io.StringIO("The\n"))
    monkeypatch.setattr("tui_trainer.exporting.contract.find_spec", lambda _: True)
    write_rows(tmp_path / "rows.jsonl", [asked_row("causal_lm", n) for n in range(3)])
    root = shutil.copytree(finished("causal_lm").root, tmp_path / "runs/mine")
    assert add_to_index(root) is None
    return RunFolder.open(root)


def files(place: Path) -> dict[str, bytes]:
    ignored = {"home", "lock"}
    found = (path for path in place.rglob("*") if path.is_file() and not ignored & {*path.relative_to(place).parts})
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def assert_refused(arguments: list[str], words: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check exit code 2, one line that holds one of the words (separated by |), and that no file changed."""
    before = files(place)
    capsys.readouterr()
    assert main(arguments) == 2, arguments
    message = capsys.readouterr().err.rpartition("\r")[2].strip("\n")
    assert any(word in message for word in words.split("|")), message
    assert "Traceback" not in message and message.count("\n") == 0, message
    assert "\x1b[2J" not in message and "\u202e" not in message
    assert files(place) == before


def check_damage(spoil: Callable[[RunFolder], str], run: RunFolder, place: Path, capsys, subtests) -> None:
    """Damage a run, and check which commands refuse it. A report needs the journal alone, so it is always written."""
    words = spoil(run)
    for command in COMMANDS:
        if command in FAULTS[spoil]:
            with subtests.test(command):
                assert_refused([command, run.name, *COMMANDS[command]], words, place, capsys)
    with subtests.test("report"):
        assert main(["report", run.name, "--out", str(place / "report")]) == 0
        assert (place / "report/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("spoil", [without_model, of_another_version, with_torn_weights])
def test_damaged_run_is_refused_in_one_sentence_by_everything_that_needs_the_damaged_part(
    spoil, run, tmp_path, capsys, subtests
):
    check_damage(spoil, run, tmp_path, capsys, subtests)


@pytest.mark.full
@pytest.mark.parametrize("spoil", [with_a_torn_plan, without_weights])
def test_run_with_other_damage_is_refused_in_one_sentence(spoil, run, tmp_path, capsys, subtests):
    check_damage(spoil, run, tmp_path, capsys, subtests)


ARGUMENTS: list[tuple[list[str], str]] = [
    (["export", "--to", "../model"], "unknown export format"),
    (["export", "--to", HOSTILE], "unknown export format"),
    (["export", "--to", "merged"], "is already a full model"),
    (["export", "--to", "onnx", "--out", "rows.jsonl"], "not empty"),
    (["export", "--to", "onnx", "--out", "rows.jsonl/x"], "cannot be created"),
    (["export", "--to", "onnx", "--out", f"rows.jsonl/{HOSTILE}"], "cannot be created"),
    (["export", "--to", "onnx", "--out", LONG], "File name too long"),
    (["evaluate", "--data", LONG], "aaa"),
    (["evaluate", "--against", LONG], "aaa"),
    (["predict", "--data", LONG, "--out", "o"], "aaa"),
    (["predict", "--data", "rows.jsonl", "--out", LONG], "cannot be used: File name too long"),
    (["report", "--out", LONG], "could not write the report: File name too long"),
    (["evaluate", "--data", "gone.jsonl"], "gone.jsonl"),
    (["evaluate", "--data", HOSTILE], "x"),
    (["evaluate", "--against", "nobody"], "nobody"),
    (["evaluate", "--against", "../x"], "../x|/x"),
    (["predict", "--data", "gone.jsonl", "--out", "o"], "gone.jsonl"),
    (["predict", "--data", "rows.jsonl", "--out", "gone/o"], "its folder does not exist"),
    (["predict", "--data", "rows.jsonl", "--out", "/proc/x"], "/proc/x: cannot create a file in /proc: No such file"),
    (["predict", "--data", "rows.jsonl", "--out", "."], "is a folder"),
    (["predict", "--data", "rows.jsonl", "--out", "rows.jsonl"], "is one of the input files"),
    (["predict", "--data", "rows.jsonl", "--out", HOSTILE], "its folder does not exist"),
    (["predict", "--data", "rows.jsonl", "--out", "o", "--field", "text"], "--field"),
    (["chat", "--against", "base"], "no base model"),
    (["bench", "--only", HOSTILE], "no variant has"),
    (["report", "--out", "rows.jsonl"], "could not write the report: File exists"),
    (["track", "--to", "../x"], "there is no tracker"),
    (["track", "--to", HOSTILE], "there is no tracker"),
    (["publish", "--to", "../x", "--yes"], "is not a valid repository name"),
    (["publish", "--to", f"me/{HOSTILE}", "--yes"], "is not a valid repository name"),
    (["publish", "--to", "me/model", "--export", "../model", "--yes"], "has no export"),
    (["publish", "--to", "me/model", "--export", HOSTILE, "--yes"], "has no export"),
]


def test_bad_arguments_are_refused_in_one_sentence(run, tmp_path, capsys, subtests):
    for (command, *options), words in ARGUMENTS:
        with subtests.test(ascii(" ".join([command, *options]))[:80]):
            assert_refused([command, run.name, *options], words, tmp_path, capsys)
    for command, name in zip(COMMANDS, NO_RUNS, strict=True):
        with subtests.test(f"{command} of {name[:40]!a}"):
            assert_refused([command, name, *COMMANDS[command]], "", tmp_path, capsys)


def test_full_disk_is_reported_and_nothing_half_written_is_left(run, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tui_trainer.exporting.export.shutil.disk_usage", lambda _: SimpleNamespace(free=5))
        assert_refused(["export", run.name, "--to", "onnx"], ", 5 B are free", tmp_path, capsys)
    disk_is_full = ": the disk is full (No space left on device)"
    with monkeypatch.context() as patch:
        patch.setattr("tui_trainer.reporting.page.write_atomically", full)
        assert_refused(["report", run.name], f"could not write the report{disk_is_full}", tmp_path, capsys)
    with monkeypatch.context() as patch:
        # Not `os.fsync` itself, which the lock beside the predictions calls too.
        patch.setattr("tui_trainer.exporting.predicting.os", SimpleNamespace(**{**vars(os), "fsync": full}))
        assert main(["predict", run.name, *COMMANDS["predict"]]) == 1
        assert f"cannot be written{disk_is_full}; rerun the same command to continue" in capsys.readouterr().err
    assert main(["predict", run.name, *COMMANDS["predict"]]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3 and not list(tmp_path.glob("*.partial*"))
