"""What tests of imports compare: settings, and why keys are left out."""

from __future__ import annotations

from tui_trainer.importing.imported import Imported
from tui_trainer.importing.rules import Why


def reasons(imported: Imported) -> dict[str, Why]:
    return {left.key: left.why for left in imported.left_out}


def check(imported: Imported, settings: dict, left_out: dict | None = None) -> None:
    """Check settings, where None is one that is not written, and some of the reasons why keys are left out."""
    assert {key: imported.values.get(key) for key in settings} == settings
    found = reasons(imported)
    assert {key: found.get(key) for key in left_out or {}} == (left_out or {})
