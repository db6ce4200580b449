"""Machines that are made up keep the memory that they were given; documents for models that have no numbers here."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tui_trainer.hardware.probe import probe, with_memory_now


@pytest.fixture(autouse=True)
def memory_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of this machine is the free memory read anew, as it is of every machine outside of tests."""
    gathering = importlib.import_module("tui_trainer.advice.gather")
    monkeypatch.setattr(
        gathering, "with_memory_now", lambda machine: with_memory_now(machine) if machine == probe() else machine
    )


@pytest.fixture
def documents(tmp_path: Path) -> Callable[[list[int]], Path]:
    """`documents([5, 190])`: a JSONL file of texts of so many words."""

    def write(lengths: list[int]) -> Path:
        path = tmp_path / "documents.jsonl"
        texts = (
            " ".join(f"word{(number + 1) * n % 97}" for n in range(length)) for number, length in enumerate(lengths)
        )
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    return write
