"""Panes of the Config screen as lines: the summary, the groups, the chosen setting, and the plan.

The memory bar shows how the plan's parts fill the memory of the GPU or machine, each kind with its sign and colour.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

from rich.cells import cell_len

from tui_trainer.config.document import EDITED_HERE
from tui_trainer.config.editing import display_text
from tui_trainer.config.explain import groups
from tui_trainer.config.fields import Setting
from tui_trainer.config.load import all_settings
from tui_trainer.config.mixture import last_path
from tui_trainer.hardware.facts import Hardware
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.wording import UNDER_A_MINUTE, plan_time
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui import spans
from tui_trainer.ui.screens.config_model import ConfigModel, Editor, name_cells, reason
from tui_trainer.ui.spans import (
    Glyphs,
    Line,
    Role,
    Span,
    both_ends_line,
    labelled,
    pad,
    paragraph,
    title_rule,
    width_of,
)
from tui_trainer.ui.widgets.lists import MARK_CELLS
from tui_trainer.ui.widgets.settings_table import preset_cells, shortened, value_cells
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import figure_text, format_bytes, format_count, format_seconds, quantity

LABEL_CELLS = 8
_PLAN_LINES = 4
# A run that is planned to use more than this share of the free memory may run out of it.
FULL_SHARE = 0.9
_COLUMN_CELLS = (25, 18, 16, 0)
GROUP_CELLS = 25
_DETAIL_CELLS = 9


class MemoryKind(NamedTuple):
    """A kind of memory, with sign and role in the memory bar. `parts` names the parts of a plan that belong to it."""

    name: str
    sign: str
    ascii_sign: str
    role: Role
    parts: tuple[str, ...] = ()

    def glyph(self, glyphs: Glyphs) -> str:
        return self.ascii_sign if glyphs.ascii else self.sign


REST = MemoryKind("the rest", "░", ":", "dim")
OTHERS = MemoryKind("in use", "/", "/", "rule")
KINDS = (
    MemoryKind("weights", "█", "#", "accent", ("weights", "towers", "master weights", "16-bit copies")),
    MemoryKind("gradients", "▚", "%", "chart_raw", ("gradients",)),
    MemoryKind("optimizer", "▓", "+", "warn", ("optimizer", "update")),
    MemoryKind("activations", "▒", "=", "good", ("activations", "one layer", "temporaries", "backward pass")),
    MemoryKind("head and loss", "▞", "o", "chart_smooth", ("head and loss",)),
    REST,
)
_KIND_OF = {part: kind for kind in KINDS for part in kind.parts}


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Content of the memory bar: bytes of each kind in order, other processes first, and the memory budget."""

    segments: tuple[tuple[MemoryKind, int], ...]
    budget: MemoryBudget

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int]], budget: MemoryBudget) -> "MemoryUse":
        kind_bytes = dict.fromkeys(KINDS, 0)
        for part_name, part_bytes in parts:
            kind_bytes[_KIND_OF.get(part_name, REST)] += part_bytes
        total_bytes, free_bytes = budget.total_bytes, budget.free_bytes
        others = OTHERS, 0 if total_bytes is None or free_bytes is None else max(total_bytes - free_bytes, 0)
        return cls((others, *((kind, size_bytes) for kind, size_bytes in kind_bytes.items() if size_bytes)), budget)


def figure_texts(plan: Plan) -> dict[str, str]:
    """Return the figures of a plan as texts, by title. A `~` marks an estimate."""
    rows = sorted((row for row in plan.shown_figures() if row[1].config_place), key=lambda row: row[1].config_place)
    texts = {name: figure_text(figure, planned.value) for name, figure, planned in rows}
    texts["duration_seconds"] = plan_time(plan)
    if (steps := plan.total_steps.value) >= 100_000:  # the narrowest terminal has no room for more digits
        texts["total_steps"] = format_count(steps)
    is_final = {name: planned.exact or texts[name] in ("--", UNDER_A_MINUTE) for name, _, planned in rows}
    return {figure.title: f"{'' if is_final[name] else '~'}{texts[name]}" for name, figure, _ in rows}


def memory_budget(plan: Plan, hardware: Hardware, memory_free_bytes: int | None) -> MemoryBudget:
    """Return the memory of the plan's GPU; for a plan on the CPU, the memory of the machine with its free bytes."""
    gpu = next((card for card in hardware.gpus if card.cuda_uuid == plan.gpu_uuid), None)
    if plan.device == "cuda" and gpu is not None:
        return MemoryBudget.of(hardware, TrainingDevice(device="cuda", reason=plan.device_reason, gpu=gpu))
    machine = MemoryBudget.of(hardware, TrainingDevice(device="cpu", reason=plan.device_reason, gpu=None))
    return replace(machine, free_bytes=memory_free_bytes)


def estimate_lines(plan: Plan, free_bytes: int | None, is_planning: bool) -> list[Line]:
    """Return two lines: the plan's figures in columns, and the time of one step with the reason for this estimate."""
    line: Line = [(_plan_label(is_planning), "dim")]
    for (title, text), column_cells in zip(figure_texts(plan).items(), _COLUMN_CELLS, strict=False):
        role: Role = "dim" if is_planning else "text"
        if title == "memory" and free_bytes:
            memory_share = plan.memory_bytes.value / free_bytes
            text += " <1%" if 0 < memory_share < 0.01 else f" {memory_share:.0%}"
            role = "bad" if memory_share > 1 else "warn" if memory_share > FULL_SHARE else role
        # The columns have room for one more digit, so that a growing figure does not move the others.
        text_cells = max(column_cells - len(title) - 1, len(text) + 1) if column_cells else 0
        line += [(f"{title} ", "dim"), (text.ljust(text_cells), role)]
    seconds = plan.step_seconds
    note = "" if seconds.value is None else one_line(f"a step takes {format_seconds(seconds.value)}: {seconds.reason}")
    return [line, [(" " * LABEL_CELLS + note, "dim")]]


def _plan_label(is_planning: bool) -> str:
    return ("plan..." if is_planning else "plan").ljust(LABEL_CELLS)


def memory_lines(use: MemoryUse, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the memory bar and its legend. If the memory size is unknown, return two blank lines."""
    if not use.budget.total_bytes:
        return [[], []]
    total_bytes, label = use.budget.total_bytes, "card" if use.budget.where == "the GPU" else "machine"
    size = format_bytes(total_bytes)
    bar_cells = max(width - LABEL_CELLS - len(size) - 1, 1)
    line: Line = [(label.ljust(LABEL_CELLS), "dim"), *_bar(use, total_bytes, bar_cells, glyphs), (f" {size}", "dim")]
    return [line, _legend(use, total_bytes, width, glyphs)]


def _bar(use: MemoryUse, total_bytes: int, cells: int, glyphs: Glyphs) -> list[Span]:
    """Return the memory bar. What exceeds the memory is red, and a line marks the end of the memory."""
    segment_bytes = [size for _, size in use.segments]
    cells_per_byte = cells / max(total_bytes, sum(segment_bytes))
    end_cells = _ends(segment_bytes, cells_per_byte, cells)
    limit_cell = round(total_bytes * cells_per_byte)
    signs: list[Span] = []
    for (kind, _), start, end in zip(use.segments, [0, *end_cells], end_cells, strict=False):
        signs += [(kind.glyph(glyphs), kind.role if cell < limit_cell else "bad") for cell in range(start, end)]
    signs += [(glyphs.bar_empty, "dim")] * (cells - len(signs))
    if sum(segment_bytes) > total_bytes:
        signs[min(limit_cell, cells - 1)] = (glyphs.vertical, "bad")
    return [("".join(sign for sign, _ in part), role) for role, part in groupby(signs, key=lambda cell: cell[1])]


def _ends(segment_bytes: list[int], scale: float, cells: int) -> list[int]:
    """Return where each segment of the bar ends, in cells. The plan gets at least one cell, so that it is visible."""
    end_cells = [round(total_bytes * scale) for total_bytes in accumulate(segment_bytes)]
    if end_cells[-1] > end_cells[0] or len(segment_bytes) == 1:
        return end_cells
    largest_index = max(range(1, len(segment_bytes)), key=segment_bytes.__getitem__)
    return [min(end_cells[0], cells - 1) + (index >= largest_index) for index in range(len(segment_bytes))]


def _legend(use: MemoryUse, total_bytes: int, width: int, glyphs: Glyphs) -> Line:
    """Return the legend of the bar: the largest kinds of memory that fit, and the free memory."""
    segments = sorted(use.segments, key=lambda segment: -segment[1])
    free_bytes = total_bytes - sum(size_bytes for _, size_bytes in segments)
    free_line: Line = [(f"{glyphs.bar_empty} ", "dim"), (f"{format_bytes(free_bytes)} free", "text")]
    if free_bytes < 0:
        free_line = [(f"{glyphs.bad} {format_bytes(-free_bytes)} more than there is", "bad")]
    line: Line = [(" " * LABEL_CELLS, "dim")]
    room_cells = width - LABEL_CELLS - width_of(free_line)
    for kind, size_bytes in segments:
        entry = f"{kind.name} {format_bytes(size_bytes)}  "
        if size_bytes and len(entry) + 2 <= room_cells:
            line += [(f"{kind.glyph(glyphs)} ", kind.role), (entry, "text")]
            room_cells -= len(entry) + 2
    return [*line, *free_line]


class ConfigPanes:
    """Panes of the Config screen. Each method draws one of them. `key` is the chosen setting; empty for none."""

    def __init__(self, bench: Workbench, model: ConfigModel) -> None:
        self._bench, self._model, self._glyphs = bench, model, bench.glyphs
        self.key, self.is_filtering = "", False
        self.editor: Editor | None = None

    def summary(self, width: int, _: int) -> list[Line]:
        document, glyphs = self._model.document, self._glyphs
        dot: Span = (f"  {glyphs.dot}  ", "dim")
        changed_count, problem_count = len(document.changes()), len(document.problems)
        unsaved = len(document.unsaved_values())
        no_problems: Line = [(f"{glyphs.good} can start", "good")]
        right: Line = [(f"{glyphs.bad} {quantity(problem_count, 'problem')}", "bad")] if problem_count else no_problems
        left: Line = [("recipe ", "dim"), (one_line(document.recipe_name) or "none", "bold"), dot]
        left += [(f"{changed_count} changed", "bold" if changed_count else "dim"), dot]
        if document.file is None:
            left.append((f"no file yet, {quantity(unsaved, 'unsaved change')}" if unsaved else "no file yet", "dim"))
            return [both_ends_line(left, right, width)]
        saved_note: Span = (f" ({glyphs.changed} {unsaved} unsaved)", "accent") if unsaved else (" (saved)", "dim")
        path_cells = max(width - width_of([*left, saved_note, *right]) - 3, 12)
        file_name = shortened(one_line(str(document.file)), path_cells, glyphs)
        return [both_ends_line([*left, (file_name, "text"), saved_note], right, width)]

    def groups(self, *_size: int) -> list[Line]:
        document, glyphs = self._model.document, self._glyphs
        lines: list[Line] = [[("  group", "dim"), ("changed".rjust(GROUP_CELLS - 7), "dim")]]
        for _, title, settings in groups():
            keys = [setting.key for setting in settings]
            lines.append([
                (f"{glyphs.pointer if self.key in keys else ' '} ", "accent"),
                (title.ljust(GROUP_CELLS - 6), "bold" if self.key in keys else "text"),
                (glyphs.bad if any(map(document.problems_of, keys)) else " ", "bad"),
                (str(sum(map(document.is_changed, keys)) or "").rjust(3), "accent"),
            ])  # fmt: skip
        meanings = ((glyphs.changed, "differs from recipe"), (glyphs.bad, "problem"), ("~", "estimated"))
        legend: list[Line] = [[(f"  {sign} {meaning}", "dim")] for sign, meaning in meanings]
        return [*lines, [], *legend]

    def names(self, width: int, _: int) -> list[Line]:
        model = self._model
        filter_note = ", changed only" if model.only_changed else ", all" if model.show_all else ""
        count = f"{sum(bool(row.key) for row in model.rows)} of {sum(len(settings) for *_, settings in groups())}"
        if self.is_filtering:
            return [both_ends_line([], [(count, "dim")], width)]
        titles = " " * MARK_CELLS + pad(f"setting{filter_note}, {count}", name_cells() + 1)
        titles += pad("value", value_cells(width, name_cells()) + 1) + "recipe" * bool(preset_cells(width))
        all_key: Line = [(self._bench.app.key_of("config.show_all"), "key"), (" all", "dim")]
        return [both_ends_line([(titles.rstrip(), "dim")], [] if model.show_all else all_key, width)]

    def details(self, width: int, height: int) -> list[Line]:
        if not self.key:
            query = self._model.filter
            message = f"No setting matches {one_line(query, 40)!r}." if query else "Nothing differs from the recipe."
            return [title_rule("", width, self._glyphs), [(message, "dim")]]
        lines = detail_lines(self._model, all_settings()[self.key], self.editor, width, height - 1, self._glyphs)
        return [title_rule(self.key, width, self._glyphs), *lines]

    def plan(self, width: int, height: int) -> list[Line]:
        """Return the plan and the memory bar, or why there is no plan. If the height allows, a rule is above them."""
        bench, glyphs = self._bench, self._glyphs
        if plan := bench.plan:
            budget = memory_budget(plan, bench.hardware, bench.memory_free_bytes)
            use = MemoryUse.of([(part.name, part.bytes) for part in plan.memory_parts], budget)
            lines = estimate_lines(plan, budget.free_bytes, bench.is_planning)
            lines += memory_lines(use, width, glyphs)
        else:
            problems = [] if bench.is_planning else self._model.document.problems
            text = f"no plan: {one_line(str(problems[0]))}" if problems else bench.fitting_text
            label = _plan_label(bench.is_planning)
            lines = labelled(label, text, LABEL_CELLS, width, "bad" if problems else "dim")[:_PLAN_LINES]
            # The pane keeps its height.
            lines += [[] for _ in range(_PLAN_LINES - len(lines))]
        return [*([title_rule("", width, glyphs)] if height > len(lines) else []), *lines]


def detail_lines(
    model: ConfigModel, setting: Setting, editor: Editor | None, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Return lines about a setting, the most important parts first. A part that does not fit is left out."""
    document, unused_reason = model.document, model.unused_settings.get(setting.key, "")
    problems = [reason(problem) for problem in document.problems_of(setting.key)]
    if editor and editor.error:
        problems = [editor.error]
    errors = [line for text in problems if text for line in paragraph(one_line(f"{glyphs.bad} {text}"), width, "bad")]
    if len(errors) > height > 0:
        more_text = f"{glyphs.ellipsis} {len(errors) - height + 1} more lines: the preview shows all"
        errors = [*errors[: height - 1], [(more_text, "dim")]]
    parts = [errors]
    if editor and editor.options:
        parts.append(_option_lines(editor, width, height - len(errors), glyphs))
    if unused_reason:
        parts.append(paragraph(f"Not used: {unused_reason}.", width, "warn"))
    is_default = document.where(setting.key) == "default"
    default_note = "" if is_default else f" (default {display_text(setting, setting.default)})"
    rows = {
        "value": _value_and_source(model, setting),
        "reason": model.planned_value(setting.key)[1],
        "type": "" if editor and editor.has_fixed_choices else f"{setting.expected_words}{default_note}",
        "memory": setting.memory,
        "speed": setting.speed,
    }
    parts.append(paragraph(setting.help, width))
    parts += [spans.labelled(label, one_line(text), _DETAIL_CELLS, width) for label, text in rows.items() if text]
    lines: list[Line] = []
    for part in parts:
        if len(lines) + len(part) <= height:
            lines += part
    return lines


def _option_lines(editor: Editor, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return the options in columns of equal width. If they do not fit, return the page with the chosen option."""
    labels = [one_line(_last_part(editor.setting, option)) for option in editor.options]
    option_cells = min(max(map(cell_len, labels)) + 4, width)
    column_count = max(width // option_cells, 1)
    row_count = max(min(height, 1 + (len(labels) - 1) // column_count), 1)
    option_spans: Line = [(pad(f"  {option}", option_cells), "text") for option in labels]
    if editor.chosen >= 0:
        option_spans[editor.chosen] = (pad(f"{glyphs.pointer} {labels[editor.chosen]}", option_cells), "cursor")
    page_start = max(editor.chosen, 0) // (row_count * column_count) * row_count * column_count
    page = option_spans[page_start : page_start + row_count * column_count]
    return [page[row_start : row_start + column_count] for row_start in range(0, len(page), column_count)]


def _last_part(setting: Setting, option: str) -> str:
    """Return the last name of an option that is a path, because its folder is in the field; else the whole option."""
    if setting.completes not in ("file", "files", "folder"):
        return option
    if setting.completes == "files":
        option = last_path(option)[1]
    folder, slash, _ = option.rstrip("/").rpartition("/")
    return option[len(folder) + len(slash) :]


def _value_and_source(model: ConfigModel, setting: Setting) -> str:
    document, key = model.document, setting.key
    origin = document.where(key)
    source = {EDITED_HERE: "edited", "default": "default"}.get(origin, f"from {origin}")
    recipe_note = f"; recipe: {display_text(setting, document.preset_value(key))}" if document.is_changed(key) else ""
    return f"{model.value_text(key)} ({source}{recipe_note}{'; advanced' * setting.advanced})"
