"""What is said about the setting under the cursor, and what is offered while it is typed."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from tui_trainer.config.document import EDITED_HERE
from tui_trainer.config.editing import EMPTY, display_text, unit_text
from tui_trainer.config.fields import Setting
from tui_trainer.config.mixture import last_path
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_editor import Editor
from tui_trainer.ui.screens.config_model import ConfigModel
from tui_trainer.ui.spans import Line, Role

LABEL_CELLS = 9


def title_of(model: ConfigModel) -> str:
    """The key of the row, for the rule above the details."""
    return model.setting.key if model.setting else ""


def detail_lines(model: ConfigModel, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Problem, help, what it takes, where it comes from, effects; whole parts only, the last ones left out first."""
    setting = model.setting
    if setting is None:
        return [[(_empty_words(model), "dim")]]
    parts = [_problem_lines(model, setting, width, glyphs)]
    if model.editor and model.editor.options:
        room = height - len(parts[0])
        parts.append(_option_lines(model.editor, width, room, glyphs))
    parts += [
        [[(line, "text")] for line in wrap(setting.help, width, break_on_hyphens=False)],
        _labelled("takes", "" if model.editor and model.editor.closed else _takes(model, setting), width),
        _labelled("value", _now(model, setting), width),
        _labelled("memory", setting.memory, width),
        _labelled("speed", setting.speed, width),
    ]
    lines: list[Line] = []
    for part in parts:
        if len(lines) + len(part) <= height:
            lines += part
    return lines


def _problem_lines(model: ConfigModel, setting: Setting, width: int, glyphs: Glyphs) -> list[Line]:
    if model.editor:
        sentences = [model.editor.error] if model.editor.error else []
    else:
        problems = model.document.problems_of(setting.key)
        sentences = [f"{p.message}; {p.hint}" if p.hint else p.message for p in problems]
    return [[(line, "bad")] for text in sentences for line in wrapped(f"{glyphs.bad} {text}", width)]


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


def _takes(model: ConfigModel, setting: Setting) -> str:
    """What fits, and the default, unless the line of the value names it."""
    if model.document.where(setting.key) == "default":
        return setting.expected
    return f"{setting.expected} (default {display_text(setting, setting.default)})"


def _now(model: ConfigModel, setting: Setting) -> str:
    document = model.document
    value, preset = document.value(setting.key), document.preset_value(setting.key)
    where = document.where(setting.key)
    from_where = {EDITED_HERE: EDITED_HERE, "default": "the default"}.get(where, f"from {where}")
    text = f"{value_text(setting, value)}, {from_where}"
    if document.is_changed(setting.key):
        text += f" (preset {display_text(setting, preset)})"
    return f"{text}; advanced" if setting.advanced else text


def value_text(setting: Setting, value: Any) -> str:
    """The value with its unit."""
    unit = unit_text(setting, value)
    return f"{display_text(setting, value)} {unit}" if unit else display_text(setting, value)


def value_role(value: Any) -> Role:
    return "dim" if value in ("", EMPTY, "auto") else "text"


def _labelled(label: str, text: str, width: int) -> list[Line]:
    """The label in a column of its own, the text beside it on as many lines as it takes."""
    lines = wrapped(text, width - LABEL_CELLS)
    heads = [label.ljust(LABEL_CELLS), *[" " * LABEL_CELLS] * len(lines)]
    return [[(head, "dim"), (line, "text")] for head, line in zip(heads, lines, strict=False)]


def wrapped(text: str, width: int) -> list[str]:
    """The text on lines of at most `width` characters; a word is cut only where it is longer than a line."""
    return wrap(one_line(text), width, break_on_hyphens=False)


def _empty_words(model: ConfigModel) -> str:
    if model.filter.text:
        return f"No setting matches {one_line(model.filter.text, 40)!r}."
    return "Nothing differs from the presets."
