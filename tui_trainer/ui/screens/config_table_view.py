"""The table of settings as lines: mark, name, value, and the preset's value where it differs."""

from __future__ import annotations

from functools import cache

from rich.cells import cell_len

from tui_trainer.config.editing import display_text
from tui_trainer.config.groups import groups
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_details import value_role, value_text
from tui_trainer.ui.screens.config_model import ConfigModel
from tui_trainer.ui.screens.config_rows import Row
from tui_trainer.ui.spans import Line, Role, Span, pad

MARK_CELLS = 3
PRESET_CELLS = 23
WIDEST_VALUE = 44
_MOST_SIGNS_A_CELL = 4


@cache
def name_cells() -> int:
    """The longest name of all settings, shown or not: a filter moves no column."""
    return max(len(setting.name) for _, _, settings in groups() for setting in settings)


def value_cells(width: int) -> int:
    return min(width - MARK_CELLS - name_cells() - 1 - 1 - PRESET_CELLS, WIDEST_VALUE)


def head_line(model: ConfigModel, width: int, glyphs: Glyphs) -> Line:
    """The names of the columns with the number of settings shown, or the filter that is typed."""
    shown = sum(row.setting is not None for row in model.rows)
    count = f"{shown} of {model.setting_count}"
    if model.is_filtering or model.filter.text:
        typed = text_with_cursor(model.filter.text, model.filter.cursor, width - 20, model.is_filtering)
        room = width - 2 - len(count)
        return [("/ ", "accent"), *_padded(typed, room), (count, "dim")]
    kind = ", changed only" if model.only_changed else ", with advanced" if model.show_advanced else ""
    line = " " * MARK_CELLS + pad(f"setting{kind}", name_cells() + 1) + pad("value", value_cells(width) + 1) + "preset"
    return [(pad(line, width - len(count)), "dim"), (count, "dim")]


def table_lines(model: ConfigModel, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The rows on the page. When the model was told another height, the page is the one around the cursor."""
    rows = model.rows
    first = max(min(model.scroll, len(rows) - height), 0)
    if not first <= model.cursor < first + height:
        first = max(min(model.cursor - height + 1, len(rows) - height), 0)
    lines = [
        _heading(row, width, glyphs) if row.setting is None else _setting_line(model, row, width, glyphs)
        for row in rows[first : first + height]
    ]
    if not rows:
        words = "no setting matches the filter" if model.filter.text else "nothing differs from the presets"
        lines = [[(" " * MARK_CELLS + words, "dim")]]
    return lines


def _heading(row: Row, width: int, glyphs: Glyphs) -> Line:
    return title_rule(row.title, width, glyphs)


def title_rule(title: str, width: int, glyphs: Glyphs, note: str = "") -> Line:
    """A rule with a title near its beginning and a note near its end."""
    if not title:
        return [(glyphs.rule * width, "rule")]
    right = f" {note} " if note else ""
    rest = width - 4 - cell_len(title) - cell_len(right) - (2 if note else 0)
    line: Line = [(glyphs.rule * 2, "rule"), (f" {title} ", "title"), (glyphs.rule * max(rest, 0), "rule")]
    return [*line, (right, "dim"), (glyphs.rule * 2, "rule")] if note else line


def _setting_line(model: ConfigModel, row: Row, width: int, glyphs: Glyphs) -> Line:
    setting = row.setting
    assert setting is not None
    here = setting.key == model.key
    document, cells = model.document, value_cells(width)
    value = document.value(setting.key)
    changed = document.is_changed(setting.key)
    line: Line = [(glyphs.pointer if here else " ", "accent"), _sign(model, setting.key, glyphs), (" ", "text")]
    line += _name(row, glyphs)
    if here and model.editor:
        line += _editor_cell(model, cells, glyphs)
    else:
        text = shortened(value_text(setting, value), cells, glyphs)
        line.append((pad(text, cells), "bold" if changed else value_role(value)))
    preset = display_text(setting, document.preset_value(setting.key)) if changed else ""
    line += [(" ", "text"), (pad(shortened(preset, PRESET_CELLS, glyphs), PRESET_CELLS), "dim")]
    return [(text, role if role == "edit" else "cursor") for text, role in line] if _whole(model, here) else line


def _whole(model: ConfigModel, here: bool) -> bool:
    """The whole row is marked, except while it is typed into: then the field is."""
    return here and not (model.editor and not model.editor.closed)


def _sign(model: ConfigModel, key: str, glyphs: Glyphs) -> Span:
    if model.document.problems_of(key):
        return glyphs.bad, "bad"
    return (glyphs.changed, "accent") if model.document.is_changed(key) else (" ", "text")


def _name(row: Row, glyphs: Glyphs) -> Line:
    setting = row.setting
    assert setting is not None
    plain: Role = "dim" if setting.advanced else "text"
    spans: Line = []
    for place, letter in enumerate(setting.name):
        role: Role = "accent" if place in row.matched else plain
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + letter, role)
        else:
            spans.append((letter, role))
    return [*spans, (" " * (name_cells() + 1 - len(setting.name)), plain)]


def _editor_cell(model: ConfigModel, cells: int, glyphs: Glyphs) -> Line:
    """The field that is typed into, in brackets, with the cursor in sight."""
    editor = model.editor
    assert editor is not None
    if editor.closed:
        return [(pad(f"[{editor.options[editor.chosen]}]", cells), "edit")]
    typed = text_with_cursor(editor.line.text, editor.line.cursor, cells - 2, True)
    return [("[", "edit"), *_padded(typed, cells - 2, "edit"), ("]", "edit")]


def text_with_cursor(text: str, cursor: int, cells: int, typing: bool) -> Line:
    """The part of a text around the cursor, and the sign under it; one cell for each character."""
    shown = (
        one_line(text)
        if cell_len(one_line(text)) == len(text)
        else "".join(c if cell_len(c) == 1 and one_line(c) == c else "?" for c in text)
    )
    start = max(0, cursor - cells + 1)
    if not typing:
        return [(shown[:cells], "text")]
    end = start + cells
    under = shown[cursor] if cursor < len(shown) else " "
    spans: Line = [(shown[start:cursor], "edit"), (under, "cursor"), (shown[cursor + 1 : end], "edit")]
    return [span for span in spans if span[0]]


def _padded(line: Line, cells: int, role: Role = "text") -> Line:
    taken = sum(cell_len(text) for text, _ in line)
    return [*line, (" " * (cells - taken), role)]


def shortened(text: str, cells: int, glyphs: Glyphs) -> str:
    """A text that is too long keeps its end, which tells paths apart; the details show it in full."""
    if cell_len(text) <= cells:
        return text
    # What is far longer is first cut to a length that is measured quickly.
    text = text[-_MOST_SIGNS_A_CELL * cells :]
    while cell_len(text) > cells - 1:
        text = text[1:]
    return glyphs.ellipsis + text
