"""Panes of the config screen as lines: the settings, and what the plan says of them.

The memory is one bar by part against that of the card, or of the machine. `~` stands before what is estimated. Kinds of
parts have a sign and a colour each, so that the bar is read without colours as well.
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
from tui_trainer.config.save import document_text
from tui_trainer.hardware.facts import Hardware
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.wording import UNDER_A_MINUTE, plan_time
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.screens.config_model import ConfigModel, Editor, name_cells, reason
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, beside, labelled, pad, paragraph, title_rule, width_of
from tui_trainer.ui.widgets.lists import MARK_CELLS
from tui_trainer.ui.widgets.settings_table import preset_cells, shortened, value_cells
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import GIB, figure_text, format_bytes, format_count, format_seconds, quantity

LABEL_CELLS = 8
# A share of the memory from which a run may meet its end, and one where it surely does not.
FULL_SHARE = 0.9
_COLUMN_CELLS = (25, 18, 16, 0)
_NO_PLAN = "no plan: fix the problems first"
GROUP_CELLS = 25
_DETAIL_CELLS = 9
_PLAN_ROWS = 9


class RowKind(NamedTuple):
    """Parts of a plan that are drawn as one: name, sign in Unicode and in ASCII, colour, and the names of the parts."""

    name: str
    sign: str
    ascii_sign: str
    role: Role
    parts: tuple[str, ...] = ()

    def drawn(self, glyphs: Glyphs) -> str:
        return self.ascii_sign if glyphs.ascii else self.sign


REST = RowKind("the rest", "░", ":", "dim")
OTHERS = RowKind("in use", "/", "/", "rule")
KINDS = (
    RowKind("weights", "█", "#", "accent", ("weights", "towers", "master weights", "16-bit copies")),
    RowKind("gradients", "▚", "%", "chart_raw", ("gradients",)),
    RowKind("optimizer", "▓", "+", "warn", ("optimizer", "update")),
    RowKind("activations", "▒", "=", "good", ("activations", "one layer", "temporaries", "backward pass")),
    RowKind("head and loss", "▞", "o", "chart_smooth", ("head and loss",)),
    REST,
)
_KIND_OF = {part: kind for kind in KINDS for part in kind.parts}


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes by kind in the order of the bar, first what others hold; and the memory that they are taken from."""

    segments: tuple[tuple[RowKind, int], ...]
    budget: MemoryBudget

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int]], budget: MemoryBudget) -> "MemoryUse":
        sums = dict.fromkeys(KINDS, 0)
        for name, count in parts:
            sums[_KIND_OF.get(name, REST)] += count
        total, free = budget.total_bytes, budget.free_bytes
        others = OTHERS, 0 if total is None or free is None else max(total - free, 0)
        return cls((others, *((kind, count) for kind, count in sums.items() if count)), budget)


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """`cells`: (name, text) of each number; `memory_share` of what is free where it computes, None when not known."""

    cells: tuple[tuple[str, str], ...]
    memory_share: float | None
    memory_use: MemoryUse

    @classmethod
    def of(cls, plan: Plan, budget: MemoryBudget) -> "PlanSummary":
        share = plan.memory_bytes.value / budget.free_bytes if budget.free_bytes else None
        percent = "" if share is None else " <1%" if 0 < share < 0.01 else f" {share:.0%}"
        cells = tuple((name, text + percent * (name == "memory")) for name, text in figures(plan).items())
        return cls(cells, share, MemoryUse.of([(part.name, part.bytes) for part in plan.memory_parts], budget))

    def role_of(self, name: str, usual: Role) -> Role:
        share = (self.memory_share or 0) if name == "memory" else 0
        return "bad" if share > 1 else "warn" if share > FULL_SHARE else usual


def figures(plan: Plan) -> dict[str, str]:
    """What it takes; `~` stands before what is estimated."""
    placed = sorted((one for one in plan.shown_figures() if one[1].config_place), key=lambda one: one[1].config_place)
    texts = {name: figure_text(figure, planned.value) for name, figure, planned in placed}
    texts["duration_seconds"] = plan_time(plan)
    if (steps := plan.total_steps.value) >= 100_000:  # the narrowest terminal has room for so much
        texts["total_steps"] = format_count(steps)
    return {
        figure.title: texts[name] if planned.exact or texts[name] in ("--", UNDER_A_MINUTE) else f"~{texts[name]}"
        for name, figure, planned in placed
    }


def memory_budget(plan: Plan, hardware: Hardware, memory_free_bytes: int | None) -> MemoryBudget:
    """The memory where a plan computes: of its card, or of the machine with what is free there now."""
    gpu = next((card for card in hardware.gpus if card.cuda_uuid == plan.gpu_uuid), None)
    if plan.device == "cuda" and gpu is not None:
        return MemoryBudget.of(hardware, TrainingDevice(device="cuda", reason=plan.device_reason, gpu=gpu))
    machine = MemoryBudget.of(hardware, TrainingDevice(device="cpu", reason=plan.device_reason, gpu=None))
    return replace(machine, free_bytes=memory_free_bytes)


def estimate_lines(
    plan: PlanSummary | None, preset: PlanSummary | None, planning: bool, waits_for: str = ""
) -> list[Line]:
    """Two lines: what is planned now, and what the recipe alone would give where that differs; else blank."""
    label: Span = (("plan..." if planning else "plan").ljust(LABEL_CELLS), "dim")
    if plan is None:
        return [[label, (f" {waits_for}" if planning else _NO_PLAN, "dim")], []]
    now = [label, *_figures(plan, "dim" if planning else "text")]
    if preset is None or preset == plan:
        return [now, []]
    return [now, [("recipe".ljust(LABEL_CELLS), "dim"), *_figures(preset, "dim")]]


def _figures(plan: PlanSummary, role: Role) -> Line:
    """In columns, so that a number that grows by a digit moves none of the others."""
    line: Line = []
    for (name, text), cells in zip(plan.cells, _COLUMN_CELLS, strict=False):
        room = max(cells - len(name) - 1, len(text) + 1)
        line += [(f"{name} ", "dim"), (text.ljust(room) if cells else text, plan.role_of(name, role))]
    return line


def estimate_column(
    plan: PlanSummary | None, preset: PlanSummary | None, planning: bool, waits_for: str = ""
) -> list[Line]:
    """One number a line, with that of the recipe beside it where it differs."""
    if plan is None:
        return [[((f"planning: {waits_for}" if waits_for else "planning ...") if planning else _NO_PLAN, "dim")]]
    lines: list[Line] = []
    presets = dict((preset or plan).cells)
    for name, text in plan.cells:
        before = presets.get(name, "--")
        number: Span = (text.ljust(22), plan.role_of(name, "dim" if planning else "text"))
        line: Line = [(name.ljust(LABEL_CELLS), "dim"), number]
        lines.append([*line, (f"recipe {before}", "dim")] if before != text else line)
    return [*lines, [("planning" if planning else "~ estimated until the data is prepared", "dim")]]


def memory_lines(use: MemoryUse | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Two lines, the bar and its legend; blank without a plan, or where nobody says how much memory there is."""
    if use is None or not use.budget.total_bytes:
        return [[], []]
    total_bytes, label = use.budget.total_bytes, "card" if use.budget.where == "the GPU" else "machine"
    size = format_bytes(total_bytes)
    cells = max(width - LABEL_CELLS - len(size) - 1, 1)
    bar: Line = [(label.ljust(LABEL_CELLS), "dim"), *_bar(use, total_bytes, cells, glyphs), (f" {size}", "dim")]
    return [bar, _legend(use, total_bytes, width, glyphs)]


def _bar(use: MemoryUse, total_bytes: int, cells: int, glyphs: Glyphs) -> list[Span]:
    """What others hold, the parts, what stays free; cells beyond the end of the memory stand behind a line."""
    counts = [count for _, count in use.segments]
    taken = sum(counts)
    scale = cells / max(total_bytes, taken)
    ends = _ends(counts, scale, cells)
    limit = round(total_bytes * scale)
    drawn: list[Span] = []
    for (kind, _), start, end in zip(use.segments, [0, *ends], ends, strict=False):
        drawn += [(kind.drawn(glyphs), kind.role if cell < limit else "bad") for cell in range(start, end)]
    drawn += [(glyphs.bar_empty, "dim")] * (cells - len(drawn))
    if taken > total_bytes:
        drawn[min(limit, cells - 1)] = (glyphs.vertical, "bad")
    return [("".join(sign for sign, _ in run), role) for role, run in groupby(drawn, key=lambda cell: cell[1])]


def _ends(counts: list[int], scale: float, cells: int) -> list[int]:
    """Where each segment ends, in cells. The plan has a cell however little it takes, so that it is seen."""
    ends = [round(total * scale) for total in accumulate(counts)]
    if ends[-1] > ends[0] or len(counts) == 1:
        return ends
    largest = max(range(1, len(counts)), key=counts.__getitem__)
    others = min(ends[0], cells - 1)
    return [others + (place >= largest) for place in range(len(counts))]


def _legend(use: MemoryUse, total_bytes: int, width: int, glyphs: Glyphs) -> Line:
    """What stays free, and the largest kinds as far as there is room for them; what others hold, where it is much."""
    entries = sorted(use.segments, key=lambda pair: -pair[1])
    left = total_bytes - sum(count for _, count in entries)
    end: Line = [(f"{glyphs.bar_empty} ", "dim"), (f"{format_bytes(left)} free", "text")]
    if left < 0:
        end = [(f"{glyphs.bad} {format_bytes(-left)} over the limit", "bad")]
    line: Line = [(" " * LABEL_CELLS, "dim")]
    room = width - LABEL_CELLS - sum(len(text) for text, _ in end)
    for kind, count in entries:
        words = f"{kind.name} {format_bytes(count)}  "
        if count and len(words) + 2 <= room:
            line += [(f"{kind.drawn(glyphs)} ", kind.role), (words, "text")]
            room -= len(words) + 2
    return [*line, *end]


class ConfigPanes:
    """A method `(width, height) -> lines` for each pane. `key` is the setting under the cursor."""

    def __init__(self, bench: Workbench, model: ConfigModel) -> None:
        self._bench, self._model, self._glyphs = bench, model, bench.glyphs
        self.key, self.is_filtering = "", False
        self.editor: Editor | None = None
        self._free = 0

    def summary(self, width: int, _: int) -> list[Line]:
        document, glyphs = self._model.document, self._glyphs
        between: Span = (f"  {glyphs.dot}  ", "dim")
        changed, problems, unsaved = len(document.changes()), len(document.problems), len(document.unsaved())
        right: Line = [(f"{glyphs.good} no problems", "good")]
        if problems:
            right = [(f"{glyphs.bad} {quantity(problems, 'problem')}", "bad")]
        left: Line = [("recipe ", "dim"), (one_line(document.recipe_name) or "none", "bold"), between]
        left += [(f"{changed} changed", "bold" if changed else "dim"), between]
        if document.file is None:
            left.append((f"no file yet, {quantity(unsaved, 'unsaved change')}" if unsaved else "no file yet", "dim"))
            return [beside(left, right, width)]
        saved: Span = (f" ({glyphs.changed} {unsaved} unsaved)", "accent") if unsaved else (" (saved)", "dim")
        taken = sum(cell_len(text) for text, _ in [*left, saved, *right])
        name = shortened(one_line(str(document.file)), max(width - taken - 3, 12), glyphs)
        return [beside([*left, (name, "text"), saved], right, width)]

    def groups(self, *_size: int) -> list[Line]:
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
        for sign, meaning in ((glyphs.changed, "differs from recipe"), (glyphs.bad, "problem"), ("~", "estimated")):
            lines.append([(f"  {sign} {meaning}", "dim")])
        return lines

    def names(self, width: int, _: int) -> list[Line]:
        model = self._model
        kind = ", changed only" if model.only_changed else ", all" if model.show_all else ""
        line = " " * MARK_CELLS + pad(f"setting{kind}", name_cells() + 1)
        line += pad("value", value_cells(width, name_cells()) + 1)
        shown, every = sum(bool(row.key) for row in model.rows), sum(len(settings) for *_, settings in groups())
        right: Line = [(f"{shown} of {every}", "dim")]
        if not model.show_all and not model.filter:
            right += [(", ", "dim"), (self._bench.app.key_of("config.show_all"), "key"), (" all", "dim")]
        has_room = preset_cells(width) and cell_len(f"{line}recipe ") + width_of(right) <= width
        line = f"{line}recipe" if has_room else line.rstrip()
        return [beside([("" if self.is_filtering else line, "dim")], right, width)]

    def details(self, width: int, height: int) -> list[Line]:
        if not self.key:
            query = self._model.filter
            words = f"No setting matches {one_line(query, 40)!r}." if query else "Nothing differs from the recipe."
            return [title_rule("", width, self._glyphs), [(words, "dim")]]
        setting = all_settings()[self.key]
        lines = detail_lines(self._model, setting, self.editor, width, height - 1, self._glyphs)
        return [title_rule(self.key, width, self._glyphs), *lines]

    def plan(self, width: int, height: int) -> list[Line]:
        """Memory, time, disk and steps; what the presets give; the memory by part. A rule where there is room."""
        plan, before = self._plans()
        bench = self._bench
        lines = [*estimate_lines(plan, before, bench.is_planning, bench.fitting), *self._memory(plan, width)]
        return [*([title_rule("", width, self._glyphs)] if height > len(lines) else []), *lines]

    def plan_column(self, width: int, _: int) -> list[Line]:
        plan, before = self._plans()
        bench = self._bench
        estimates = estimate_column(plan, before, bench.is_planning, bench.fitting)
        lines = [title_rule("Plan", width, self._glyphs), *estimates]
        if (made := bench.plan) is not None and (step := made.step_seconds).value is not None:
            words = one_line(f"a step takes {format_seconds(step.value)}: {step.reason}")
            lines += paragraph(words, width, "dim")
        return [*lines, *[[]] * (1 + _PLAN_ROWS - len(lines)), *self._memory(plan, width)]

    def toml(self, width: int, height: int) -> list[Line]:
        """What would be saved; what is not saved yet is bold."""
        unsaved = self._model.document.unsaved()
        lines: list[Line] = [title_rule("Text to save", width, self._glyphs)]
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

    def memory_has_changed(self) -> bool:
        """Whether the free memory is another than before, as finely as it is drawn: that changes without a key."""
        before, whole = self._free, self._bench.hardware.memory_bytes or GIB
        self._free = self._bench.memory_free_bytes * 1000 // whole
        return self._free != before

    def _memory(self, plan: PlanSummary | None, width: int) -> list[Line]:
        return memory_lines(plan.memory_use if plan else None, width, self._glyphs)

    def _plans(self) -> list[PlanSummary | None]:
        """Of the config and of the presets alone, beside the memory that is free now."""
        bench = self._bench
        return [
            PlanSummary.of(plan, memory_budget(plan, bench.hardware, bench.memory_free_bytes)) if plan else None
            for plan in (bench.plan, bench.preset_plan)
        ]


def detail_lines(
    model: ConfigModel, setting: Setting, editor: Editor | None, width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """Problem, why this run does not read it, help, the value, what decided an `auto`, what it takes, effects; whole
    parts only, the last ones left out first."""
    document, unread = model.document, model.unread.get(setting.key, "")
    known = [reason(problem) for problem in document.problems_of(setting.key)]
    problems = [editor.error] if editor and editor.error else known
    told = [line for text in problems if text for line in paragraph(one_line(f"{glyphs.bad} {text}"), width, "bad")]
    if len(told) > height > 0:
        more = f"{glyphs.ellipsis} {len(told) - height + 1} more lines: the preview shows all"
        told = [*told[: height - 1], [(more, "dim")]]
    parts = [told]
    if editor and editor.options:
        parts.append(_option_lines(editor, width, height - len(parts[0]), glyphs))
    if unread:
        parts.append(paragraph(f"Not used: {unread}.", width, "warn"))
    parts.append(paragraph(setting.help, width))
    takes = setting.expected
    if document.where(setting.key) != "default":
        takes += f" (default {display_text(setting, setting.default)})"
    rows = {
        "value": _value_and_source(model, setting),
        "reason": model.decided(setting.key)[1],
        "type": "" if editor and editor.closed else takes,
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
    cells = min(max(map(cell_len, options)) + 4, width)
    columns = max(width // cells, 1)
    rows = max(min(height, 1 + (len(options) - 1) // columns), 1)
    start = max(editor.chosen, 0) // (rows * columns) * rows * columns
    drawn: Line = []
    for place in range(start, min(start + rows * columns, len(options))):
        chosen = place == editor.chosen
        sign = glyphs.pointer if chosen else " "
        drawn.append((pad(f"{sign} {options[place]}", cells), "cursor" if chosen else "text"))
    return [drawn[at : at + columns] for at in range(0, len(drawn), columns)]


def _last_part(setting: Setting, option: str) -> str:
    """Of a path the part that is not in the field already."""
    if setting.completes not in ("file", "files", "folder"):
        return option
    if setting.completes == "files":
        option = last_path(option)[1]
    folder, slash, _ = option.rstrip("/").rpartition("/")
    return option[len(folder) + len(slash) :]


def _value_and_source(model: ConfigModel, setting: Setting) -> str:
    document, key = model.document, setting.key
    where = document.where(key)
    source = {EDITED_HERE: "edited", "default": "default"}.get(where, f"from {where}")
    preset = f"; recipe: {display_text(setting, document.preset_value(key))}" if document.is_changed(key) else ""
    return f"{model.value_text(key)} ({source}{preset}{'; advanced' * setting.advanced})"
