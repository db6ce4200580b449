"""What is said about the setting under the cursor, and what is offered while it is typed."""

from __future__ import annotations

from tui_trainer.config.document import EDITED_HERE, Document
from tui_trainer.config.editing import display_text
from tui_trainer.config.fields import Setting
from tui_trainer.config.mixture import last_path
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_editor import Editor, reason
from tui_trainer.ui.screens.config_model import value_text
from tui_trainer.ui.spans import Line, wrapped

LABEL_CELLS = 9


def detail_lines(
    document: Document, setting: Setting, editor: Editor | None, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Problem, help, what it takes, where it comes from, effects; whole parts only, the last ones left out first."""
    problems = [editor.error] if editor else [reason(problem) for problem in document.problems_of(setting.key)]
    parts: list[list[Line]] = [
        [[(line, "bad")] for text in problems if text for line in wrapped(one_line(f"{glyphs.bad} {text}"), width)]
    ]
    if editor and editor.options:
        parts.append(_option_lines(editor, width, height - len(parts[0]), glyphs))
    parts += [
        [[(line, "text")] for line in wrapped(setting.help, width)],
        _labelled("takes", "" if editor and editor.closed else _takes(document, setting), width),
        _labelled("value", _now(document, setting), width),
        _labelled("memory", setting.memory, width),
        _labelled("speed", setting.speed, width),
    ]
    lines: list[Line] = []
    for part in parts:
        if len(lines) + len(part) <= height:
            lines += part
    return lines


def _option_lines(editor: Editor, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The options in columns of equal width, the chosen one pointed at; a page of them when there are many."""
    options = [one_line(_last_part(editor.setting, option)) for option in editor.options]
    cells = min(max(map(len, options)) + 4, width)
    columns = max(width // cells, 1)
    rows = max(min(height, 1 + (len(options) - 1) // columns), 1)
    page = rows * columns
    start = max(editor.chosen, 0) // page * page
    lines: list[Line] = []
    for row in range(start, min(start + page, len(options)), columns):
        line: Line = []
        for place in range(row, min(row + columns, len(options))):
            chosen = place == editor.chosen
            sign = glyphs.pointer if chosen else " "
            line.append((f"{sign} {options[place]}".ljust(cells)[:cells], "cursor" if chosen else "text"))
        lines.append(line)
    return lines


def _last_part(setting: Setting, option: str) -> str:
    """Of a path the part that is not in the field already."""
    if setting.completes not in ("file", "files", "folder"):
        return option
    if setting.completes == "files":
        option = last_path(option)[1]
    folder, slash, _ = option.rstrip("/").rpartition("/")
    return option[len(folder) + len(slash) :]


def _takes(document: Document, setting: Setting) -> str:
    """What fits, and the default, unless the line of the value names it."""
    if document.where(setting.key) == "default":
        return setting.expected
    return f"{setting.expected} (default {display_text(setting, setting.default)})"


def _now(document: Document, setting: Setting) -> str:
    value, preset = document.value(setting.key), document.preset_value(setting.key)
    where = document.where(setting.key)
    from_where = {EDITED_HERE: EDITED_HERE, "default": "the default"}.get(where, f"from {where}")
    text = f"{value_text(setting, value)}, {from_where}"
    if document.is_changed(setting.key):
        text += f" (preset {display_text(setting, preset)})"
    return f"{text}; advanced" if setting.advanced else text


def _labelled(label: str, text: str, width: int) -> list[Line]:
    """The label in a column of its own, the text beside it on as many lines as it takes."""
    lines = wrapped(one_line(text), width - LABEL_CELLS) if text else []
    return [[((" " if at else label).ljust(LABEL_CELLS), "dim"), (line, "text")] for at, line in enumerate(lines)]
