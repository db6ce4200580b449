"""Panes of the config screen as lines."""

from rich.cells import cell_len

from tui_trainer.config.document import EDITED_HERE, Document
from tui_trainer.config.editing import display_text
from tui_trainer.config.fields import Setting
from tui_trainer.config.groups import groups
from tui_trainer.config.load import all_settings
from tui_trainer.config.mixture import last_path
from tui_trainer.config.save import document_text
from tui_trainer.planning.plan import Plan
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_model import ConfigModel, Editor, name_cells, reason, value_text
from tui_trainer.ui.screens.config_plan import PlanSummary, estimate_column, estimate_lines, memory_budget, memory_lines
from tui_trainer.ui.spans import Line, Span, beside, labelled, pad, paragraph, title_rule
from tui_trainer.ui.widgets.settings_table import MARK_CELLS, shortened, value_cells
from tui_trainer.ui.workbench import Workbench

GROUP_CELLS = 25
_DETAIL_CELLS = 9
_PLAN_ROWS = 5


class ConfigPanes:
    """A method `(width, height) -> lines` for each pane. `key` is the setting under the cursor."""

    def __init__(self, bench: Workbench, model: ConfigModel) -> None:
        self._bench, self._model, self._glyphs = bench, model, bench.glyphs
        self.key, self.is_filtering = "", False
        self.editor: Editor | None = None

    def summary(self, width: int, _: int) -> list[Line]:
        """What it starts from, what was changed, the file and whether it is saved; problems at the end."""
        document, glyphs = self._model.document, self._glyphs
        between: Span = (f"  {glyphs.dot}  ", "dim")
        changed, problems, unsaved = len(document.changes()), len(document.problems), len(document.unsaved())
        right: Line = [(f"{glyphs.good} no problems", "good")]
        if problems:
            right = [(f"{glyphs.bad} {problems} problem{'s' if problems > 1 else ''}", "bad")]
        left: Line = [("recipe ", "dim"), (one_line(document.recipe_name) or "none", "bold"), between]
        left += [(f"{changed} changed", "bold" if changed else "dim"), between]
        if document.file is None:
            left.append((f"no file yet, {unsaved} unsaved" if unsaved else "no file yet", "dim"))
            return [beside(left, right, width)]
        saved: Span = (f" ({glyphs.changed} {unsaved} unsaved)", "accent") if unsaved else (" (saved)", "dim")
        taken = sum(cell_len(text) for text, _ in [*left, saved, *right])
        name = shortened(one_line(str(document.file)), max(width - taken - 3, 12), glyphs)
        return [beside([*left, (name, "text"), saved], right, width)]

    def groups(self, *_size: int) -> list[Line]:
        """Every group with what was changed in it, and the problems; the one of the key is pointed at."""
        document, glyphs = self._model.document, self._glyphs
        lines: list[Line] = [[("  group", "dim"), ("changed".rjust(GROUP_CELLS - 7), "dim")]]
        for _, title, settings in groups():
            keys = [setting.key for setting in settings]
            changed = sum(map(document.is_changed, keys))
            lines.append([
                (f"{glyphs.pointer if self.key in keys else ' '} ", "accent"),
                (title.ljust(GROUP_CELLS - 6), "bold" if self.key in keys else "text"),
                (glyphs.bad if any(map(document.problems_of, keys)) else " ", "bad"),
                ((str(changed) if changed else "").rjust(3), "accent"),
            ])  # fmt: skip
        lines.append([])
        for sign, meaning in ((glyphs.changed, "differs from presets"), (glyphs.bad, "problem"), ("~", "estimated")):
            lines.append([(f"  {sign} {meaning}", "dim")])
        return lines

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
        """What would be saved; what is not saved yet is bold."""
        unsaved = self._model.document.unsaved()
        lines: list[Line] = [title_rule("Saved as", width, self._glyphs)]
        table = ""
        for text in document_text(self._model.document).splitlines():
            if text.startswith("["):
                table = text.strip("[]") + "."
            key = table + text.partition(" =")[0]
            lines.append([(one_line(text), "bold" if key in unsaved else "dim" if text.startswith("[") else "text")])
        if len(lines) > height:
            rest: Line = [(f"{self._glyphs.ellipsis} {len(lines) - height + 1} more lines", "dim")]
            lines = [*lines[: height - 1], rest]
        return lines

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


def detail_lines(
    document: Document, setting: Setting, editor: Editor | None, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Problem, help, what it takes, where it comes from, effects; whole parts only, the last ones left out first."""
    problems = [editor.error] if editor else [reason(problem) for problem in document.problems_of(setting.key)]
    parts: list[list[Line]] = [
        [line for text in problems if text for line in paragraph(one_line(f"{glyphs.bad} {text}"), width, "bad")]
    ]
    if editor and editor.options:
        parts.append(_option_lines(editor, width, height - len(parts[0]), glyphs))
    parts.append(paragraph(setting.help, width))
    takes = setting.expected
    if document.where(setting.key) != "default":
        takes += f" (default {display_text(setting, setting.default)})"
    rows = {
        "takes": "" if editor and editor.closed else takes,
        "value": _value_and_source(document, setting),
        "memory": setting.memory,
        "speed": setting.speed,
    }
    parts += [labelled(label, one_line(text), _DETAIL_CELLS, width) for label, text in rows.items() if text]
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
    start = max(editor.chosen, 0) // (rows * columns) * rows * columns
    drawn: Line = []
    for place in range(start, min(start + rows * columns, len(options))):
        chosen = place == editor.chosen
        sign = glyphs.pointer if chosen else " "
        drawn.append((f"{sign} {options[place]}".ljust(cells)[:cells], "cursor" if chosen else "text"))
    return [drawn[at : at + columns] for at in range(0, len(drawn), columns)]


def _last_part(setting: Setting, option: str) -> str:
    """Of a path the part that is not in the field already."""
    if setting.completes not in ("file", "files", "folder"):
        return option
    if setting.completes == "files":
        option = last_path(option)[1]
    folder, slash, _ = option.rstrip("/").rpartition("/")
    return option[len(folder) + len(slash) :]


def _value_and_source(document: Document, setting: Setting) -> str:
    where = document.where(setting.key)
    source = {EDITED_HERE: EDITED_HERE, "default": "the default"}.get(where, f"from {where}")
    text = f"{value_text(setting, document.value(setting.key))}, {source}"
    if document.is_changed(setting.key):
        text += f" (preset {display_text(setting, document.preset_value(setting.key))})"
    return f"{text}; advanced" if setting.advanced else text
