"""The config screen as lines: what it starts from, the table, what the row means, what it costs.

At 80 columns one column; from 120 on the details stand on the right; from 180 on groups, table, and details with the
plan and the TOML that would be saved.
"""

from __future__ import annotations

from rich.cells import cell_len

from tui_trainer.config.groups import groups
from tui_trainer.config.save import document_text
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_details import detail_lines, title_of
from tui_trainer.ui.screens.config_estimate import PlanSummary, estimate_column, estimate_lines
from tui_trainer.ui.screens.config_memory import memory_lines
from tui_trainer.ui.screens.config_model import ConfigModel
from tui_trainer.ui.screens.config_recipes_view import recipe_lines
from tui_trainer.ui.screens.config_table_view import head_line, shortened, table_lines, title_rule
from tui_trainer.ui.spans import Line, Span, beside, fit

WIDE, WIDEST = 120, 180
DETAIL_LINES = 6
# A rule, two lines of figures, the bar of the memory and its legend.
PLAN_LINES = 5
GROUP_CELLS = 25
DETAIL_CELLS, WIDEST_DETAIL_CELLS = 44, 72
DIVIDER_CELLS = 3


def page_rows(width: int, height: int) -> int:
    """Rows of the table on a screen of this size."""
    above, below = 2, 0 if width >= WIDEST else PLAN_LINES if width >= WIDE else PLAN_LINES + DETAIL_LINES
    return max(height - above - below, 1)


def draw_config(
    model: ConfigModel,
    *,
    plan: PlanSummary | None,
    preset_plan: PlanSummary | None = None,
    planning: bool = False,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    """Exactly `height` lines of `width` cells. `planning`: a new plan is under way, `plan` is the one before it.

    The model learns how many rows the page has, so that its next move scrolls by what is seen; nothing else changes.
    """
    model.resize(page_rows(width, height))
    body = height - 1
    if model.chooser:
        lines = recipe_lines(model.chooser, width, body, glyphs)
    elif width >= WIDEST:
        lines = _three_columns(model, plan, preset_plan, planning, width, body, glyphs)
    elif width >= WIDE:
        lines = _two_columns(model, width, body - PLAN_LINES, glyphs)
        lines += [title_rule("", width, glyphs), *_plan_lines(plan, preset_plan, planning, width, glyphs)]
    else:
        lines = _table(model, width, body - DETAIL_LINES - PLAN_LINES, glyphs)
        details = detail_lines(model, width, DETAIL_LINES, glyphs)
        lines += [title_rule(title_of(model), width, glyphs), *_filled(details, DETAIL_LINES)]
        lines += _plan_lines(plan, preset_plan, planning, width, glyphs)
    lines = [_top_line(model, width, glyphs), *_filled(lines, body)]
    return [fit(_drawable(line, glyphs), width, glyphs.ellipsis) for line in lines]


def _plan_lines(
    plan: PlanSummary | None, preset_plan: PlanSummary | None, planning: bool, width: int, glyphs: Glyphs
) -> list[Line]:
    """Memory, time, disk and steps; what the presets give; the memory by part."""
    bar = memory_lines(plan.memory_use if plan else None, width, glyphs)
    return [*estimate_lines(plan, preset_plan, planning), *bar]


def _top_line(model: ConfigModel, width: int, glyphs: Glyphs) -> Line:
    """What it starts from, what was changed, the file and whether it is saved; problems at the end."""
    document = model.document
    between: Span = (f"  {glyphs.dot}  ", "dim")
    changed, problems = len(document.changes()), len(document.problems)
    right: Line = [("no problems" if not problems else f"{glyphs.bad} {_count(problems, 'problem')}", "bad")]
    if not problems:
        right = [(f"{glyphs.good} no problems", "good")]
    unsaved = len(document.unsaved())
    saved: Line = [(f" ({glyphs.changed} {unsaved} unsaved)", "accent")] if unsaved else [(" (saved)", "dim")]
    left: Line = [("recipe ", "dim"), (one_line(document.recipe_name) or "none", "bold"), between]
    left += [(f"{changed} changed", "bold" if changed else "dim"), between]
    if document.file is None:
        return beside([*left, (f"no file yet, {unsaved} unsaved" if unsaved else "no file yet", "dim")], right, width)
    taken = sum(cell_len(text) for text, _ in [*left, *saved, *right])
    name = shortened(one_line(str(document.file)), max(width - taken - 3, 12), glyphs)
    return beside([*left, (name, "text"), *saved], right, width)


def _table(model: ConfigModel, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    return [head_line(model, width, glyphs), *_filled(table_lines(model, width, height - 1, glyphs), height - 1)]


def _two_columns(model: ConfigModel, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    left = width - DETAIL_CELLS - DIVIDER_CELLS
    details = detail_lines(model, DETAIL_CELLS, height - 2, glyphs)
    right = [title_rule(title_of(model), DETAIL_CELLS, glyphs), *details]
    return _columns([(_table(model, left, height, glyphs), left), (right, DETAIL_CELLS)], height, glyphs)


def _three_columns(
    model: ConfigModel,
    plan: PlanSummary | None,
    preset_plan: PlanSummary | None,
    planning: bool,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    cells = WIDEST_DETAIL_CELLS
    middle = width - GROUP_CELLS - cells - 2 * DIVIDER_CELLS
    details = detail_lines(model, cells, height // 3, glyphs)
    right = [title_rule(title_of(model), cells, glyphs), *_filled(details, 12), []]
    right += [title_rule("Plan", cells, glyphs), *_filled(estimate_column(plan, preset_plan, planning), 5)]
    right += [*memory_lines(plan.memory_use if plan else None, cells, glyphs), []]
    right += [title_rule("Saved as", cells, glyphs), *_toml_lines(model, height - len(right) - 1, glyphs)]
    columns = [
        (_group_lines(model, glyphs), GROUP_CELLS),
        (_table(model, middle, height, glyphs), middle),
        (right, cells),
    ]
    return _columns(columns, height, glyphs)


def _columns(columns: list[tuple[list[Line], int]], height: int, glyphs: Glyphs) -> list[Line]:
    """Side by side, with a thin line between them."""
    divider: Span = (f" {glyphs.vertical} ", "rule")
    filled = [[fit(line, cells, glyphs.ellipsis) for line in _filled(lines, height)] for lines, cells in columns]
    return [
        [span for place, part in enumerate(parts) for span in ([divider, *part] if place else part)]
        for parts in zip(*filled, strict=True)
    ]


def _group_lines(model: ConfigModel, glyphs: Glyphs) -> list[Line]:
    """Every group with what was changed in it, and the problems; the one with the cursor is pointed at."""
    here = model.rows[model.cursor].table if model.rows else ""
    lines: list[Line] = [[("  group", "dim"), ("changed".rjust(GROUP_CELLS - 7), "dim")]]
    for table, title, settings in groups():
        keys = [setting.key for setting in settings]
        changed = sum(model.document.is_changed(key) for key in keys)
        troubled = any(model.document.problems_of(key) for key in keys)
        is_here = bool(model.rows) and table == here
        count = str(changed) if changed else ""
        lines.append(
            [
                (f"{glyphs.pointer if is_here else ' '} ", "accent"),
                (title.ljust(GROUP_CELLS - 6), "bold" if is_here else "text"),
                (glyphs.bad if troubled else " ", "bad"),
                (count.rjust(3), "accent"),
            ]
        )
    lines.append([])
    for sign, words in ((glyphs.changed, "differs from presets"), (glyphs.bad, "problem"), ("~", "estimated")):
        lines.append([(f"  {sign} {words}", "dim")])
    return lines


def _toml_lines(model: ConfigModel, height: int, glyphs: Glyphs) -> list[Line]:
    """What would be saved; what is not saved yet is bold."""
    unsaved = model.document.unsaved()
    lines: list[Line] = []
    table = ""
    for text in document_text(model.document).splitlines():
        if text.startswith("["):
            table = text.strip("[]") + "."
        key = table + text.partition(" =")[0]
        lines.append([(one_line(text), "bold" if key in unsaved else "dim" if text.startswith("[") else "text")])
    if len(lines) > height:
        lines = [*lines[: height - 1], [(f"{glyphs.ellipsis} {len(lines) - height + 1} more lines", "dim")]]
    return lines


def _filled(lines: list[Line], height: int) -> list[Line]:
    return [*lines[:height], *([[]] * (height - len(lines)))]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _drawable(line: Line, glyphs: Glyphs) -> Line:
    """In the ASCII set other characters are question marks of the same width."""
    if not glyphs.ascii:
        return line
    return [("".join(sign if sign.isascii() else "?" * cell_len(sign) for sign in text), role) for text, role in line]
