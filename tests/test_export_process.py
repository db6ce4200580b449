"""Exports and measurements that the screens start as processes: their progress, outcome and cancellation."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tui_trainer.config.load import Request
from tui_trainer.errors import FolderError
from tui_trainer.launching.export_process import ExportProcess, choices
from tui_trainer.launching.open_run import load_config
from tui_trainer.measure.config_process import GainProcess, SizesProcess
from tui_trainer.runs.folder import RunFolder
from tui_trainer.worker import child as children


def program(place: Path, script: str) -> Path:
    """Write a shell script that stands in for the program."""
    path = place / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


@pytest.fixture
def exporting(tmp_path, monkeypatch):
    """Return `exporting(script)`, which starts an export to `merged` by a shell script."""

    def begin(script: str) -> ExportProcess:
        monkeypatch.setattr(sys, "executable", str(program(tmp_path, script)))
        return ExportProcess(RunFolder(tmp_path / "run"), "merged")

    return begin


@pytest.fixture
def measuring(tmp_path, monkeypatch):
    """Return `measuring(kind, script)`, which starts a measurement of one kind by a shell script."""

    def begin(kind, script: str, *arguments: object):
        loaded = load_config(Request(assignments=("training.weight_decay=0.5", "output.name=a 'b'")))
        monkeypatch.setattr(sys, "executable", str(program(tmp_path, script)))
        return kind(loaded, *arguments, "none")

    return begin


def until(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def test_export_runs_the_command_and_reads_its_outcome(exporting, tmp_path):
    result = {"folder": "/runs/run/export/merged", "words": ["compared on 3 rows"], "is_good": True}
    process = exporting(f"echo \"$@\" > {tmp_path}/asked\necho a warning of some library\necho '{json.dumps(result)}'")
    assert process.alive
    until(process.poll)
    assert (tmp_path / "asked").read_text() == f"-P -m tui_trainer export {tmp_path}/run --to merged --json\n"
    assert process.is_good and process.words == ["compared on 3 rows"]
    assert process.result["folder"] == "/runs/run/export/merged"
    assert not process.poll() and not process.alive, "its end is new once"


def test_progress_is_known_during_the_export(exporting, tmp_path):
    progress = {"what": "writing", "done": 3, "total": 12, "unit": "tensors"}
    process = exporting(f"echo '{json.dumps(progress)}' >&2; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    until(lambda: process.poll() or (process.part, process.progress) == ("writing", (3.0, 12, "tensors")))
    assert process.alive
    (tmp_path / "go").touch()
    until(process.poll)
    assert not process.is_good and "exit code 0" in process.words[0]


def test_failure_is_the_message_of_the_program_and_not_a_warning(exporting):
    process = exporting("echo noise; echo 'tui-trainer: the disk is full' >&2; echo more noise; exit 1")
    until(process.poll)
    assert process.words == ["the disk is full"] and not process.result


def test_cancel_ends_all_processes_also_those_that_ignore_it_and_leaves_nothing(exporting, tmp_path, monkeypatch):
    monkeypatch.setattr(children, "_PATIENCE_SECONDS", 0.05)
    half = tmp_path / "run/export/.writing-merged"
    half.mkdir(parents=True)
    # A signal that is ignored is ignored by children, too.
    process = exporting(f"trap '' INT; sleep 600 & echo $! > {tmp_path}/child; wait; sleep 600")
    until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    process.cancel()
    until(process.poll)
    assert process.is_cancelled and "cancelled" in process.words[0] and not half.exists()
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    until(lambda: not child.exists() or child.read_text().split()[2] == "Z")


def test_export_that_is_no_longer_read_continues_to_its_end(exporting, tmp_path):
    process = exporting(
        f"trap '' PIPE; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo words; touch {tmp_path}/done"
    )
    process.stop_reading()
    (tmp_path / "go").touch()
    until((tmp_path / "done").exists)
    process.process.wait()


def test_measurement_of_checks_runs_the_command_with_the_settings_of_the_screens(measuring, tmp_path):
    process = measuring(
        GainProcess,
        f"printf '%s\\n' \"$@\" > {tmp_path}/asked\n"
        "echo 'tui-trainer: padding: round 1 of 3: current settings' >&2\necho '{}'\necho a warning >&2; exit 1",
        ("padding", "tf32"),
    )
    until(process.poll)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:4] == ["-P", "-m", "tui_trainer", "check"]
    assert asked[-5:] == ["--gpu", "none", "--measure=padding", "--measure=tf32", "--json"]
    assignments = tuple(asked[asked.index("--set") + 1 : -5 : 2])
    again = load_config(Request(assignments=assignments))
    assert again.config.training.weight_decay == 0.5 and again.config.output.name == "a 'b'"
    assert again.recipe is not None and again.recipe.name == "quickstart"
    assert process.part == "padding: round 1 of 3: current settings" and process.check == "padding"
    assert process.exit_code == 1 and not process.alive


def test_measurement_of_batch_sizes_runs_the_command_and_reads_its_patch(measuring, tmp_path):
    result = {"sentence": "done", "patch": {"training.effective_batch_size": 64}}
    process = measuring(SizesProcess, f"printf '%s\\n' \"$@\" > {tmp_path}/asked\necho '{json.dumps(result)}'")
    until(process.poll)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[3] == "tune" and "--effective" in asked and asked[-1] == "--json"
    assert process.patch == result["patch"] and process.verdict == ("done", True)


def test_run_without_a_final_model_has_no_exports_to_choose(tmp_path):
    with pytest.raises(FolderError, match="no final model yet"):
        choices(RunFolder(tmp_path))
