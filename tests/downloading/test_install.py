"""Extras and libraries installed into the environment of the program: what would be done, what was, and what failed."""

from __future__ import annotations

import json
import sys

import pytest

from tui_trainer.cli import main
from tui_trainer.downloading import environment
from tui_trainer.downloading.environment import extras, install_here
from tui_trainer.errors import RunError


@pytest.fixture
def uv(monkeypatch):
    monkeypatch.setattr(environment.shutil, "which", lambda name: "/bin/uv")


def test_extras_are_those_of_the_package_with_their_versions():
    found = extras()
    assert {"gpu", "onnx", "torchao", "track"} <= set(found)
    assert any(one.startswith("onnxruntime") and "1.21" in one for one in found["onnx"])


def test_as_json_it_is_told_what_would_be_done_and_nothing_is(uv, monkeypatch, capsys):
    monkeypatch.setattr(environment.subprocess, "Popen", None)
    assert main(["install", "track", "wandb", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert sys.prefix in told["offer"][0] and "uv pip install --python" in told["offer"][1]
    assert "tensorboard" in told["offer"][1] and told["offer"][1].endswith("wandb")


def test_what_the_installer_says_is_told_line_by_line_and_its_failure_is_a_sentence():
    heard: list[str] = []
    code = "print('Resolved 1 package'); print(); print('Installed x'); raise SystemExit({})"
    words = install_here([sys.executable, "-c", code.format(0)], heard.append)
    assert heard == ["Resolved 1 package", "Installed x"] and words[0].startswith("installed by ")
    with pytest.raises(RunError, match="has failed: Installed x"):
        install_here([sys.executable, "-c", code.format(2)], heard.append)


def test_installed_says_that_a_restart_is_needed(uv, monkeypatch, capsys):
    installed = []

    def install(command, told):
        installed.append(command)
        return ["done"]

    monkeypatch.setattr(environment, "install_here", install)
    assert main(["install", "torchao", "--yes"]) == 0
    assert "after a restart" in capsys.readouterr().out and installed[0][-1].startswith("torchao")
