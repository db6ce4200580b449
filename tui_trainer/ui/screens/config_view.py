"""Panes of the config screen as lines: what it starts from, the groups, and what would be saved."""

from __future__ import annotations

from rich.cells import cell_len

from tui_trainer.config.document import Document
from tui_trainer.config.groups import groups
from tui_trainer.config.save import document_text
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Span, beside
from tui_trainer.ui.widgets.settings_table import shortened

GROUP_CELLS = 25


def summary_line(document: Document, width: int, glyphs: Glyphs) -> Line:
    """What it starts from, what was changed, the file and whether it is saved; problems at the end."""
    between: Span = (f"  {glyphs.dot}  ", "dim")
    changed, problems, unsaved = len(document.changes()), len(document.problems), len(document.unsaved())
    right: Line = [(f"{glyphs.good} no problems", "good")]
    if problems:
        right = [(f"{glyphs.bad} {problems} problem{'s' if problems > 1 else ''}", "bad")]
    left: Line = [("recipe ", "dim"), (one_line(document.recipe_name) or "none", "bold"), between]
    left += [(f"{changed} changed", "bold" if changed else "dim"), between]
    if document.file is None:
        return beside([*left, (f"no file yet, {unsaved} unsaved" if unsaved else "no file yet", "dim")], right, width)
    saved: Span = (f" ({glyphs.changed} {unsaved} unsaved)", "accent") if unsaved else (" (saved)", "dim")
    taken = sum(cell_len(text) for text, _ in [*left, saved, *right])
    name = shortened(one_line(str(document.file)), max(width - taken - 3, 12), glyphs)
    return beside([*left, (name, "text"), saved], right, width)


def group_lines(document: Document, key: str, glyphs: Glyphs) -> list[Line]:
    """Every group with what was changed in it, and the problems; the one of the key is pointed at."""
    lines: list[Line] = [[("  group", "dim"), ("changed".rjust(GROUP_CELLS - 7), "dim")]]
    for _, title, settings in groups():
        keys = [setting.key for setting in settings]
        changed = sum(map(document.is_changed, keys))
        line: Line = [
            (f"{glyphs.pointer if key in keys else ' '} ", "accent"),
            (title.ljust(GROUP_CELLS - 6), "bold" if key in keys else "text"),
            (glyphs.bad if any(map(document.problems_of, keys)) else " ", "bad"),
            ((str(changed) if changed else "").rjust(3), "accent"),
        ]
        lines.append(line)
    lines.append([])
    for sign, words in ((glyphs.changed, "differs from presets"), (glyphs.bad, "problem"), ("~", "estimated")):
        lines.append([(f"  {sign} {words}", "dim")])
    return lines


def toml_lines(document: Document, height: int, glyphs: Glyphs) -> list[Line]:
    """What would be saved; what is not saved yet is bold."""
    unsaved = document.unsaved()
    lines: list[Line] = []
    table = ""
    for text in document_text(document).splitlines():
        if text.startswith("["):
            table = text.strip("[]") + "."
        key = table + text.partition(" =")[0]
        lines.append([(one_line(text), "bold" if key in unsaved else "dim" if text.startswith("[") else "text")])
    if len(lines) > height:
        lines = [*lines[: height - 1], [(f"{glyphs.ellipsis} {len(lines) - height + 1} more lines", "dim")]]
    return lines
