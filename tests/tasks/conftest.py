"""What tests of tasks share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def every_task_without_dry_run(no_dry_run):
    """Their families have no formula."""
