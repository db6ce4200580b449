"""What tests of tasks share."""

from __future__ import annotations

import pytest

from tui_trainer.planning import fit
from tui_trainer.planning.dry_run import DryRun


@pytest.fixture(autouse=True)
def no_dry_run(monkeypatch):
    """A plan counts the memory of these families in a child process that loads torch, for seconds; that is tested
    elsewhere."""
    monkeypatch.setattr(fit, "measure_layer", lambda *args, **kwargs: DryRun(layer=None, reason="not counted in tests"))
