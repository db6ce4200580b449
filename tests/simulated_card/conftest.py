"""What tests on a simulated card share."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.simulated_card.cases import open_run
from tests.simulated_card.machine import simulated_card
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning import attention
from tui_trainer.training import varlen


def pytest_collection_modifyitems(items):
    """What a card is asked for depends on torch and transformers."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("versions")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@contextmanager
def _before_torch_2_10():
    """No kernel by lengths, neither planned nor there."""
    planned = patch.object(attention, "_varlen_library", lambda machine: "")
    with planned, patch.object(varlen, "find_kernel", lambda: None):
        yield


@pytest.fixture
def run_on_card(tmp_path, models):
    """`run_on_card(task, settings, layout, folder=...)`: carries a run out, or one that was begun to its end; (the
    card, the run's folder, why it failed with its traceback)."""

    def run(task, settings=None, layout="by lengths", *, name="run", folder=None):
        with _before_torch_2_10() if layout == "by mask" else nullcontext(), simulated_card() as card:
            opened = reopen_run(folder) if folder else open_run(tmp_path, models, task, settings or {}, name)
            outcome = execute_run(opened)
        log = opened.folder.logs / "error.txt"
        traceback = log.read_text() if log.exists() else ""
        failure = f"{outcome.problems} {outcome.failure}\n{traceback}" if outcome.exit_code else ""
        return card, opened.folder, failure

    return run
