"""Panes of the config screen as lines."""

from __future__ import annotations

from rich.cells import cell_len

from tui_trainer.config.document import Document
from tui_trainer.config.groups import groups
from tui_trainer.config.load import all_settings
from tui_trainer.config.save import document_text
from tui_trainer.planning.plan import Plan
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_details import detail_lines
from tui_trainer.ui.screens.config_editor import Editor
from tui_trainer.ui.screens.config_estimate import PlanSummary, estimate_column, estimate_lines
from tui_trainer.ui.screens.config_memory import memory_budget, memory_lines
from tui_trainer.ui.screens.config_model import ConfigModel, name_cells
from tui_trainer.ui.spans import Line, Span, beside, pad, title_rule
from tui_trainer.ui.widgets.settings_table import MARK_CELLS, shortened, value_cells
from tui_trainer.ui.workbench import Workbench

GROUP_CELLS = 25
_PLAN_ROWS = 5


class ConfigPanes:
    """A method `(width, height) -> lines` for each pane. `key` is the setting under the cursor."""

    def __init__(self, bench: Workbench, model: ConfigModel) -> None:
        self._bench, self._model, self._glyphs = bench, model, bench.glyphs
        self.key, self.is_filtering = "", False
        self.editor: Editor | None = None

    def summary(self, width: int, _: int) -> list[Line]:
        return [summary_line(self._model.document, width, self._glyphs)]

    def groups(self, *_: int) -> list[Line]:
        return group_lines(self._model.document, self.key, self._glyphs)

    def names(self, width: int, _: int) -> list[Line]:
        """The names of the columns with the number of settings shown; only that beside the filter."""
        model = self._model
        kind = ", changed only" if model.only_changed else ", with advanced" if model.show_advanced else ""
        line = " " * MARK_CELLS + pad(f"setting{kind}", name_cells() + 1)
        line += pad("value", value_cells(width, name_cells()) + 1) + "preset"
        return [beside([("" if self.is_filtering else line, "dim")], [(model.count, "dim")], width)]

    def details(self, width: int, height: int) -> list[Line]:
        if not self.key:
            query = self._model.filter
            words = f"No setting matches {one_line(query, 40)!r}." if query else "Nothing differs from the presets."
            return [title_rule("", width, self._glyphs), [(words, "dim")]]
        setting = all_settings()[self.key]
        lines = detail_lines(self._model.document, setting, self.editor, width, height - 1, self._glyphs)
        return [title_rule(self.key, width, self._glyphs), *lines]

    def plan(self, width: int, height: int) -> list[Line]:
        """Memory, time, disk and steps; what the presets give; the memory by part. A rule where there is room."""
        plan, before = self._plans()
        lines = [*estimate_lines(plan, before, self._bench.is_planning), *self._memory(plan, width)]
        return [*([title_rule("", width, self._glyphs)] if height > len(lines) else []), *lines]

    def plan_column(self, width: int, _: int) -> list[Line]:
        plan, before = self._plans()
        lines = [title_rule("Plan", width, self._glyphs), *estimate_column(plan, before, self._bench.is_planning)]
        return [*lines, *[[]] * (1 + _PLAN_ROWS - len(lines)), *self._memory(plan, width)]

    def toml(self, width: int, height: int) -> list[Line]:
        lines = toml_lines(self._model.document, height - 1, self._glyphs)
        return [title_rule("Saved as", width, self._glyphs), *lines]

    def by_clock(self, width: int) -> object:
        """What changes without a key: the memory that is free."""
        return [(one.cells, self._memory(one, width)) for one in self._plans() if one]

    def _memory(self, plan: PlanSummary | None, width: int) -> list[Line]:
        return memory_lines(plan.memory_use if plan else None, width, self._glyphs)

    def _plans(self) -> list[PlanSummary | None]:
        """Of the config and of the presets alone, beside the memory that is free now."""
        bench = self._bench

        def summary(plan: Plan | None) -> PlanSummary | None:
            return PlanSummary.of(plan, memory_budget(plan, bench.hardware, bench.memory_free_bytes)) if plan else None

        return [summary(bench.plan), summary(bench.preset_plan)]


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
