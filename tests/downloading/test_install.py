"""Extras and libraries installed into the environment of the program, by an installer that only reports its call."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tui_trainer.cli import main
from tui_trainer.downloading.environment import extras
from tui_trainer.exporting.contract import all_formats
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.tracking.contract import tracker_names


@pytest.fixture
def uv(tmp_path, monkeypatch) -> Path:
    """An installer on PATH that writes its arguments into the returned file and fails where `fail` lies beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(
        f"#!/bin/sh\necho \"$@\" > '{folder}/called'\necho 'Resolved 1 package'\necho\necho 'Installed x'\n"
        f"test ! -e '{folder}/fail'\n"
    )
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "called"


def test_extras_are_those_of_the_package_with_their_versions():
    found = extras()
    assert {"gpu", "onnx", "torchao", "track"} <= set(found)
    assert any(one.startswith("onnxruntime") and "1.21" in one for one in found["onnx"])


def test_without_yes_the_offer_is_printed_and_nothing_is_installed(uv, capsys):
    assert main(["install", "track", "wandb", "--json"]) == 3
    offer = json.loads(capsys.readouterr().out)["offer"]
    assert sys.prefix in offer[0] and "uv pip install --python" in offer[1]
    assert "tensorboard" in offer[1] and offer[1].endswith("wandb")
    assert not uv.exists()


def test_libraries_of_settings_formats_and_trackers_can_be_installed(uv, capsys):
    needed = {library for method in TUNING_METHODS.values() for library in method.libraries}
    needed |= {optimizer.library for optimizer in OPTIMIZERS.values() if optimizer.library}
    needed |= {library for one in all_formats() for library in one.libraries} | {*tracker_names(), "deepspeed"}
    assert main(["install", *needed, "--json"]) == 3
    offer = json.loads(capsys.readouterr().out)["offer"][1]
    assert all(library in offer for library in needed) and "1.19" in offer


def test_an_installation_shows_the_lines_of_the_installer_and_asks_for_a_restart(uv, capsys):
    assert main(["install", "torchao", "--yes"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "tui-trainer: Resolved 1 package\ntui-trainer: Installed x\n"
    assert "restart tui-trainer if it is running" in shown.out
    assert uv.read_text().startswith(f"pip install --python {sys.executable} torchao")


def test_a_failed_installation_is_reported_with_the_last_line_of_the_installer(uv, capsys):
    uv.with_name("fail").touch()
    assert main(["install", "torchao", "--yes"]) == 1
    assert "failed: Installed x" in capsys.readouterr().err
