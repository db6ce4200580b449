"""Machines that are made up keep the memory that they were given."""

from __future__ import annotations

import importlib

import pytest

from tui_trainer.hardware.probe import probe, with_memory_now


@pytest.fixture(autouse=True)
def memory_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of this machine is the free memory read anew, as it is of every machine outside of tests."""
    gathering = importlib.import_module("tui_trainer.checklist.gather")
    monkeypatch.setattr(
        gathering, "with_memory_now", lambda machine: with_memory_now(machine) if machine == probe() else machine
    )
