"""Machines that are made up keep the memory that they were given; documents for models that have no numbers here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tui_trainer.hardware.probe import probe, with_memory_now
from tui_trainer.planning import plan as planning
from tui_trainer.units import GIB


@pytest.fixture(autouse=True)
def memory_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the free memory anew only for this machine. Outside of tests that is done for every machine."""
    gathering = importlib.import_module("tui_trainer.advice.gather")
    monkeypatch.setattr(
        gathering, "with_memory_now", lambda machine: with_memory_now(machine) if machine == probe() else machine
    )


@pytest.fixture
def large_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The free space of this machine's disk must not decide."""
    monkeypatch.setattr(planning, "disk_free_bytes", lambda folder: 2000 * GIB)


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 texts of 5 to 190 words, for recipes that name no data."""
    path = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    texts = (" ".join(f"word{(number + 1) * n % 97}" for n in range(5 + 37 * number % 190)) for number in range(200))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
