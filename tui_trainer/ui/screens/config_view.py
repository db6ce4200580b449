"""Panes of the config screen as lines: the settings, and what the plan says of them.

The memory is one bar by part against that of the card, or of the machine. `~` stands before what is estimated. Kinds of
parts have a sign and a colour each, so that the bar is read without colours as well.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from rich.cells import cell_len

from tui_trainer.config.document import EDITED_HERE, ConfigDocument
from tui_trainer.config.editing import (
    EMPTY,
    Direction,
    bump,
    choices,
    completions,
    display_text,
    edit_text,
    parse,
    toml_text,
    unit_text,
)
from tui_trainer.config.explain import groups
from tui_trainer.config.fields import Setting
from tui_trainer.config.load import all_settings
from tui_trainer.config.mixture import last_path
from tui_trainer.config.save import document_text
from tui_trainer.errors import Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.unread_settings import unread_settings
from tui_trainer.runs.wording import UNDER_A_MINUTE, planned_time
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, beside, labelled, pad, paragraph, title_rule, width_of
from tui_trainer.ui.widgets.lists import MARK_CELLS
from tui_trainer.ui.widgets.settings_table import ListRow, preset_cells, shortened, value_cells
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import GIB, figure_text, format_bytes, format_count, format_seconds

# The config screen without a screen: which rows its table has, what is typed into one of them, and what is changed in
# the document.
#
# Methods that change something return a sentence for the message line where there is something to say.

# Letters in order, anywhere: shown only where nothing fits better.
LOOSE = 1000
# Nothing that belongs to a word stands before it.
_WORD = r"(?<![^\W_])"


@cache
def name_cells() -> int:
    return max(len(setting.name) for _, _, settings in groups() for setting in settings)


def settings_count(count: int) -> str:
    return f"{count} setting{'' if count == 1 else 's'}"


@dataclass(kw_only=True, slots=True)
class Editor:
    """`options` are what `text` can be completed to, when it is `closed` all that the setting takes.

    `chosen` is the place of one of them, or -1; `begun` is what was typed to choose in a closed editor. Files and
    folders are looked for by whoever has time for it (`look`): their disk may be slow, and hold thousands of them.
    """

    setting: Setting
    text: str
    original: str
    names: Iterable[str] = ()
    closed: bool = False
    options: tuple[str, ...] = ()
    chosen: int = -1
    error: str = ""
    begun: str = ""
    looked_for: str | None = None
    """Which text the options are of; None: nobody has looked for any."""
    completes_soon: bool = False

    @classmethod
    def open(cls, setting: Setting, value: Any, names: Iterable[str] = ()) -> "Editor":
        """Begins with the text of the value, never with a placeholder."""
        text = edit_text(setting, value)
        editor = cls(setting=setting, text=text, original=text, names=names)
        # A switch that may also be "auto" takes that as well.
        if closed := tuple(dict.fromkeys((*setting.choices, *choices(setting)))) if choices(setting) else ():
            editor.closed, editor.options = True, tuple(display_text(setting, choice) for choice in closed)
            editor.chosen = next((place for place, choice in enumerate(closed) if choice == value), 0)
            editor.text = editor.options[editor.chosen]
        else:
            editor._look_now()
        return editor

    @property
    def is_looking(self) -> bool:
        """Whether its options are files or folders that nobody has looked for yet."""
        return self.setting.completes in ("file", "files", "folder") and self.looked_for is None

    def look(self, text: str) -> tuple[str, ...]:
        """What a text can be completed to, for `found`."""
        return tuple(completions(self.setting, text, names=self.names))

    def found(self, text: str, options: tuple[str, ...]) -> None:
        """Counts for nothing where something else was typed meanwhile."""
        if self.is_looking and text == self.text:
            self.looked_for, self.options = text, options
            if self.completes_soon:
                self.complete()

    def _look_now(self) -> None:
        self.looked_for, self.completes_soon, self.options = None, False, ()
        if not self.is_looking:
            self.options = self.look(self.text)

    def typed(self, text: str) -> None:
        self.text, self.chosen = text, -1
        self._look_now()
        value = parse(self.setting, text)
        self.error = reason(value) if isinstance(value, Problem) and not self.options else ""

    def choose(self, steps: int) -> None:
        if self.options:
            self.chosen = steps - 1 if self.chosen < 0 and steps > 0 else self.chosen + steps
            self.chosen %= len(self.options)
            self.text, self.error = self.options[self.chosen], ""

    def complete(self) -> None:
        """As far as all options agree; then one option after the other."""
        if self.is_looking:
            self.completes_soon = True
            return
        common = os.path.commonprefix(self.options)  # noqa: RUF071 - names are cut between any two letters
        if len(common) <= len(self.text) or not common.startswith(self.text):
            self.choose(1)
        else:
            self.typed(common)

    def jump(self, letters: str) -> None:
        """To the option that begins with all that was typed; a first letter again goes to the next one with it."""
        for begun in (self.begun + letters.lower(), letters.lower()):
            starting = [place for place, option in enumerate(self.options) if option.lower().startswith(begun)]
            if starting:
                later = [place for place in starting if place > self.chosen]
                self.chosen = (starting if len(begun) > 1 else later or starting)[0]
                self.text, self.begun = self.options[self.chosen], begun
                return


def reason(problem: Problem) -> str:
    return f"{problem.message}; {problem.hint}" if problem.hint else problem.message


class ConfigModel:
    """`names` are completions by key that config does not know itself (samples, tasks)."""

    def __init__(
        self, document: ConfigDocument, names: Mapping[str, Sequence[str]] | None = None, *, has_gpu: bool = True
    ) -> None:
        self.document, self.names, self._has_gpu = document, names or {}, has_gpu
        self.only_changed = self.show_all = False
        self.filter = ""
        self._rows: tuple[object, list[ListRow]] = (None, [])
        self._unread: tuple[object, dict[str, str]] = (None, {})

    @property
    def rows(self) -> list[ListRow]:
        """Headings and settings that are shown now: the same list while nothing changed."""
        document = self.document
        columns = document.loaded.columns if document.loaded else {}
        state = (document.revision, document.problems, self.only_changed, self.show_all, self.filter, columns)
        if self._rows[0] != state:
            rows = table_rows(document, self._wanted(), self.unread, self.filter)
            if not (self.only_changed or self.show_all or self.filter):
                rows.append(ListRow(name=self._folded_words({row.key for row in rows})))
            self._rows = (state, rows)
        return self._rows[1]

    @property
    def unread(self) -> dict[str, str]:
        """Settings that mean nothing to this run, and why; of the last config that could be read."""
        document = self.document
        if document.loaded is not None and self._unread[0] != document.revision:
            self._unread = (document.revision, unread_settings(document.loaded.config, has_gpu=self._has_gpu))
        return self._unread[1]

    def _folded_words(self, shown: set[str]) -> str:
        """What is not shown: settings that are rarely changed, and those that mean nothing here."""
        folded = [setting for _, _, settings in groups() for setting in settings if setting.key not in shown]
        unread = sum(setting.key in self.unread for setting in folded)
        rare = len(folded) - unread
        parts = [f"{rare} rarely changed"] * bool(rare) + [f"{unread} not used by this run"] * bool(unread)
        return f"{len(folded)} more settings: {', '.join(parts)}; + shows them"

    @property
    def count(self) -> str:
        shown, every = sum(bool(row.key) for row in self.rows), sum(len(settings) for _, _, settings in groups())
        return f"{shown} of {every}"

    def _wanted(self) -> frozenset[str]:
        """What was changed and what has a problem is always shown; a filter looks at all."""
        everything = not self.only_changed and (self.show_all or bool(self.filter))
        troubled = {problem.key for problem in self.document.problems}
        return frozenset(
            setting.key
            for _, _, settings in groups()
            for setting in settings
            if everything
            or self.document.is_changed(setting.key)
            or (not self.only_changed and self._is_everyday(setting))
            or (not self.only_changed and setting.key in troubled)
        )

    def _is_everyday(self, setting: Setting) -> bool:
        return not setting.advanced and setting.key not in self.unread

    def reveal(self, key: str) -> None:
        if not any(row.key == key for row in self.rows):
            self.filter, self.only_changed, self.show_all = "", False, True

    def next_problem(self, key: str) -> tuple[str, str]:
        """(the next setting with a problem, round the end; a problem that no setting has, where all were seen)."""
        keys = [setting.key for _, _, settings in groups() for setting in settings]
        troubled = [one for one in keys if self.document.problems_of(one)]
        elsewhere = [one_line(str(problem)) for problem in self.document.problems if problem.key not in keys]
        here = keys.index(key) if key in keys else 0
        further = [one for one in troubled if keys.index(one) > here]
        if not troubled:
            return "", elsewhere[0] if elsewhere else "no problems"
        return (further or troubled)[0], elsewhere[0] if elsewhere and not further else ""

    def edit(self, key: str) -> Editor:
        return Editor.open(all_settings()[key], self.document.value(key), self.names.get(key, ()))

    def take(self, editor: Editor) -> bool:
        """The typed value. What does not fit stays in the editor, with the reason; what nobody changed as it is."""
        value = parse(editor.setting, editor.text)
        problem = value if isinstance(value, Problem) else None
        if problem is None and (editor.closed or editor.text != editor.original):
            problem = self.document.set(editor.setting.key, value)
        editor.error = reason(problem) if problem else ""
        return problem is None

    def bump(self, key: str, direction: Direction) -> str:
        setting, old = all_settings()[key], self.document.value(key)
        new = bump(setting, old, direction)
        if new == old:
            known = {int, float} & set(setting.kinds)
            return f"{setting.name} cannot go {'higher' if direction > 0 else 'lower'}" if known else _EDIT_IT
        problem = self.document.set(key, new)
        return str(problem) if problem else ""

    def toggle(self, key: str) -> str:
        return self.bump(key, 1) if choices(all_settings()[key]) else _EDIT_IT

    def reset(self, key: str) -> str:
        setting, document = all_settings()[key], self.document
        if not document.is_changed(key) and not document.is_edited(key):
            return f"{setting.name} already has the recipe's value"
        document.reset(key)
        return f"{setting.name} reset to {display_text(setting, document.value(key))}"

    def reset_all(self) -> str:
        before = len(self.document.changes())
        self.document.reset_all()
        count = before - len(self.document.changes())
        return f"reset {settings_count(count)}; undo restores them" if count else "nothing to reset"

    def copied_text(self, key: str) -> str:
        return f"{key} = {toml_text(self.document.value(key))}"


def table_rows(
    document: ConfigDocument, wanted: frozenset[str], unread: Mapping[str, str], query: str
) -> list[ListRow]:
    """The wanted settings under their headings; with a query only those that match, the best group and row first."""
    matches = {key: match for key in wanted if (match := match_of(query, all_settings()[key]))}
    best = min((rank for rank, _ in matches.values()), default=0)
    found: list[tuple[int, list[ListRow]]] = []
    for _, title, settings in groups():
        shown = [one for one in settings if one.key in matches and (matches[one.key][0] < LOOSE or best >= LOOSE)]
        shown.sort(key=lambda one: matches[one.key][0])
        if shown:
            rows = [_row(document, one, matches[one.key][1], one.key in unread) for one in shown]
            found.append((matches[shown[0].key][0], [ListRow(name=title), *rows]))
    found.sort(key=lambda pair: pair[0])
    return [row for _, rows in found for row in rows]


def _row(document: ConfigDocument, setting: Setting, matched: tuple[int, ...], is_unread: bool) -> ListRow:
    value, changed = document.value(setting.key), document.is_changed(setting.key)
    found = document.loaded.columns.get(setting.key, value) if document.loaded else value
    text = value_text(setting, value) if found == value else f"{one_line(found)} (found)"
    return ListRow(
        key=setting.key, name=setting.name, value=text, matched=matched, is_changed=changed,
        preset=display_text(setting, document.preset_value(setting.key)) if changed else "",
        has_problem=bool(document.problems_of(setting.key)), is_advanced=setting.advanced or is_unread,
        is_placeholder=value in ("", EMPTY, "auto"),
    )  # fmt: skip


def value_text(setting: Setting, value: object) -> str:
    return f"{display_text(setting, value)} {unit_text(setting, value)}".rstrip()


def match_of(query: str, setting: Setting) -> tuple[int, tuple[int, ...]] | None:
    """How well a query fits (0 is best) and which letters of the name it found; None when it does not fit.

    Best is the beginning of the name, then the beginning of a word in it, any part of it, a part of the whole key, what
    the help begins with (`lora` finds r, whose help is `LoRA: ...`), beginnings of words (`lr` finds learning_rate),
    and from LOOSE on letters in order anywhere in the name.
    """
    if not query:
        return 0, ()
    query = query.lower().replace(" ", "_")
    name, key = setting.name.lower(), setting.key.lower()
    place = name.find(query)
    if place >= 0:
        word = place == 0 or name[place - 1] == "_"
        return (0 if place == 0 else 1 if word else 2), tuple(range(place, place + len(query)))
    if query in key:
        start = key.index(query) - (len(key) - len(name))
        return 3, tuple(at for at in range(start, start + len(query)) if at >= 0)
    if setting.help.lower().startswith(f"{query}:"):
        return 4, ()
    if (letters := _in_order(query, name, at_words=True)) is not None:
        return 10 + letters[-1] - letters[0], letters
    if (letters := _in_order(query, name, at_words=False)) is not None:
        return LOOSE + letters[-1] - letters[0], letters
    return None


def _in_order(query: str, text: str, *, at_words: bool) -> tuple[int, ...] | None:
    """Places of the letters one after the other; `at_words`: each begins a word or follows the one before it."""
    begin, between = (rf".*?{_WORD}", rf"(?:|.*?{_WORD})") if at_words else (".*?", ".*?")
    letters = between.join(f"({re.escape(letter)})" for letter in query)
    found = re.match(begin + letters, text) if len(query) <= len(text) else None
    return tuple(found.start(place) for place in range(1, len(query) + 1)) if found else None


LABEL_CELLS = 8
# A share of the memory from which a run may meet its end, and one where it surely does not.
FULL_SHARE = 0.9
_COLUMN_CELLS = (25, 18, 16, 0)
_NO_PLAN, _EDIT_IT = "no plan: fix the problems first", "press Enter to edit it"
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
    texts["duration_seconds"] = planned_time(plan.duration_seconds.value, is_measured=plan.has_measured_steps)
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
            right = [(f"{glyphs.bad} {problems} problem{'s' if problems > 1 else ''}", "bad")]
        left: Line = [("recipe ", "dim"), (one_line(document.recipe_name) or "none", "bold"), between]
        left += [(f"{changed} changed", "bold" if changed else "dim"), between]
        if document.file is None:
            left.append(
                (f"no file yet, {unsaved} unsaved change{'s' * (unsaved > 1)}" if unsaved else "no file yet", "dim")
            )
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
        right: Line = [(model.count, "dim")]
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
        lines = detail_lines(
            self._model.document,
            setting,
            self.editor,
            self._model.unread.get(self.key, ""),
            width,
            height - 1,
            self._glyphs,
        )
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
    document: ConfigDocument, setting: Setting, editor: Editor | None, unread: str, width: int, height: int,
    glyphs: Glyphs,
) -> list[Line]:  # fmt: skip
    """Problem, why this run does not read it, help, what it takes, where it comes from, effects; whole parts only, the
    last ones left out first."""
    problems = [editor.error] if editor else [reason(problem) for problem in document.problems_of(setting.key)]
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
        "type": "" if editor and editor.closed else takes,
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


def _value_and_source(document: ConfigDocument, setting: Setting) -> str:
    key, where = setting.key, document.where(setting.key)
    source = {EDITED_HERE: "edited", "default": "default"}.get(where, f"from {where}")
    preset = f"; recipe: {display_text(setting, document.preset_value(key))}" if document.is_changed(key) else ""
    return f"{value_text(setting, document.value(key))} ({source}{preset}{'; advanced' * setting.advanced})"
