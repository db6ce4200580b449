"""The files of a report: written whole or not at all, and private as all of a run is."""

from pathlib import Path

from tui_trainer.reporting.facts import facts_of
from tui_trainer.reporting.markdown import to_markdown
from tui_trainer.reporting.page import to_html
from tui_trainer.runs.folder import RunFolder, write_atomically

NAMES = ("report.md", "report.html")


def write_report(folder: RunFolder, out: Path | None = None) -> list[Path]:
    """Into `out`, a folder that is there, or the run's own. Returns the files. Raises OSError."""
    facts, paths = facts_of(folder), [(out or folder.root) / name for name in NAMES]
    for path, text in zip(paths, (to_markdown(facts), to_html(facts)), strict=True):
        write_atomically(path, text.encode("utf-8", "replace"), durable=False)
    return paths
