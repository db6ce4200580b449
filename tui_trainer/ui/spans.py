"""Lines of styled text as plain data, and the characters to draw them, so that views are tested without a terminal.

A span is a text with a role, and `theme.py` gives each role its style. Widths are in terminal cells. Text from outside
the program must pass `safe_text` before it becomes a span.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rich.cells import cell_len, chop_cells, set_cell_size

from tui_trainer.terminal.safe_text import one_line, show_control_characters
from tui_trainer.ui.keymap import name_keys_for_commands
from tui_trainer.units import format_bytes

Role = Literal[
    "text", "dim", "bold", "accent", "good", "warn", "bad", "rule",
    "title",  # heading of a section
    "key",  # a key that can be pressed
    "cursor",  # the chosen row
    "edit",  # a field in which the user types
    "chart_raw", "chart_smooth", "chart_eval", "chart_cross",
]  # fmt: skip
# `textwrap` needs room for an indent and an ellipsis.
_NARROWEST = 3
_BAR_CELLS = 24
T = TypeVar("T")
Span = tuple[str, Role]
Line = list[Span]


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """Characters to draw with. `eighths` fill a cell from empty to full; `levels` are the bars of a sparkline."""

    ascii: bool = False
    eighths: str = " ▏▎▍▌▋▊▉█"
    bar_empty: str = "·"
    target: str = "░"
    levels: str = "▁▂▃▄▅▆▇█"
    rule: str = "─"
    vertical: str = "│"
    corner: str = "└"
    tick_down: str = "┬"
    tick_left: str = "┤"
    above: str = "▴"
    below: str = "▾"
    ellipsis: str = "…"
    good: str = "✓"
    warn: str = "!"
    bad: str = "✗"
    none: str = "\u2013"
    pointer: str = "▸"
    changed: str = "●"
    eval_mark: str = "◆"
    dot: str = "·"
    arrow: str = "→"

    def replace_unsupported(self, text: str) -> str:
        """Return the text. In ASCII mode, question marks replace all other characters."""
        return text.encode("ascii", "replace").decode() if self.ascii else text


UNICODE = Glyphs()
ASCII = Glyphs(
    ascii=True, eighths=" #", bar_empty=".", target="=", levels=".:-=+*#", rule="-", vertical="|", corner="+",
    tick_down="+", tick_left="+", above="^", below="v", ellipsis="~", good="ok", bad="x", none="-", pointer=">",
    changed="*", eval_mark="o", dot=".", arrow="->",
)  # fmt: skip


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """Return a horizontal bar of `width` cells for a share of 0 to 1, or `--` for None."""
    if share is None:
        return "--".ljust(width)[:width]
    steps = len(glyphs.eighths) - 1
    full_cells, part_steps = divmod(round(min(max(share, 0.0), 1.0) * width * steps), steps)
    text = glyphs.eighths[-1] * full_cells + glyphs.eighths[part_steps].strip()
    return text + glyphs.bar_empty * (width - len(text))


def progress_line(activity: str, done: float, total: float, unit: str, width: int, glyphs: Glyphs) -> Line:
    """Return the progress of work as `████····  reading, 3 of 10 rows`, safe to show."""
    format_amount = format_bytes if unit == "bytes" else "{:,.0f}".format
    amount = f"{format_amount(done)} of {format_amount(total)}{'' if unit == 'bytes' else f' {one_line(unit)}'}"
    return fit([(bar(done / total, _BAR_CELLS, glyphs), "accent"), (f" {one_line(activity)}, {amount}", "text")], width)


def sparkline(
    values: Sequence[float | None], width: int, glyphs: Glyphs, *, low: float | None = None, high: float | None = None
) -> str:
    """Return a sparkline of exactly `width` cells with the newest value at the right end. Surplus values are averaged.

    None, NaN and infinity are gaps. Without `low` and `high`, the range is that of the values.
    """
    # Groups are counted from the first value, so that full groups do not change when values are added.
    size = max(math.ceil(len(values) / max(width, 1)), 1)
    means = [_mean(values[start : start + size]) for start in range(0, len(values) if width > 0 else 0, size)]
    finite_means = [mean for mean in means if mean is not None]
    bottom = min(finite_means, default=0.0) if low is None else low
    top = max(finite_means, default=1.0) if high is None else high
    last_level = len(glyphs.levels) - 1
    signs = ""
    for mean in means:
        share = 0.5 if mean is None or top <= bottom else (mean - bottom) / (top - bottom)
        signs += " " if mean is None else glyphs.levels[min(max(round(share * last_level), 0), last_level)]
    return signs.rjust(width)


def _mean(values: Sequence[float | None]) -> float | None:
    finite_values = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite_values) / len(finite_values) if finite_values else None


def width_of(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def fit(line: Line, width: int, ellipsis: str = "\u2026") -> Line:
    """Return the line with exactly `width` cells: padded with blanks, or cut with an ellipsis at its end."""
    missing_cells = width - width_of(line)
    if missing_cells >= 0:
        return [*line, (" " * missing_cells, "text")] if missing_cells else line
    cells_left, cut_spans = max(width - cell_len(ellipsis), 0), []
    role: Role = "text"
    for text, role in line:
        if cell_len(text) > cells_left:
            cut_spans.append((set_cell_size(text, cells_left), role))
            break
        cut_spans.append((text, role))
        cells_left -= cell_len(text)
    return [*cut_spans, (set_cell_size(ellipsis, min(width, cell_len(ellipsis))), role)]


def cursor_line(line: Line) -> Line:
    """Return the line in the style of a chosen row."""
    return [(text, "cursor") for text, _ in line]


pad = set_cell_size
"""Function that returns a text with exactly so many cells: padded with blanks, or cut without an ellipsis."""


def both_ends_line(left: Line, right: Line, width: int) -> Line:
    """Return a line with `left` at its start and `right` at its end. If both do not fit, `left` is cut."""
    left_cells = width - width_of(right)
    has_blank = any(text.endswith(" ") for text, _ in left[-1:]) or any(text.startswith(" ") for text, _ in right[:1])
    if left_cells > 1 and width_of(left) > left_cells - (not has_blank):
        return [*fit(left, left_cells - 1), (" ", "text"), *right]
    return [*fit(left, left_cells), *right] if left_cells > 0 else fit(right, width)


def title_rule(title: str | Line, width: int, glyphs: Glyphs, note: str | Line = "") -> Line:
    """Return a rule of `width` cells with a title at the left and, if there is room, a note at the right."""
    if not title:
        return [(glyphs.rule * width, "rule")]
    head: Line = [(f"{glyphs.rule * 2} ", "rule"), *([(title, "title")] if isinstance(title, str) else title)]
    head.append((" ", "rule"))
    tail: Line = [(" ", "rule"), *([(note, "dim")] if isinstance(note, str) else note), (f" {glyphs.rule * 2}", "rule")]
    rule_cells = width - width_of(head) - width_of(tail)
    if not note or rule_cells < 0:
        tail, rule_cells = [], width - width_of(head)
    return fit([*head, (glyphs.rule * max(rule_cells, 0), "rule"), *tail], width, glyphs.ellipsis)


def wrapped(text: str, width: int) -> list[str]:
    """Return the text as lines of at most `width` cells, with commands replaced by their keys.

    A word that is too long is broken. An empty text is one empty line.
    """
    lines, line = list[str](), ""
    for word in name_keys_for_commands(text).split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        # A path is broken between its parts, so that a double click selects whole names.
        while cell_len(word) > width and (end := chop_cells(word, max(width, 2))[0].rfind("/") + 1) > 1:
            lines.append(word[:end])
            word = word[end:]
        # A line has room for at least one wide character.
        *full_lines, line = chop_cells(f"{line} {word}" if line else word, max(width, 2)) or [""]
        lines += full_lines
    return [*lines, line] if line or not lines else lines


def rows_of(text: str, width: int, **options: Any) -> list[str]:
    """Return the text as lines of at most `width` cells. Blanks in it are kept, unless it has wide characters."""
    rows = textwrap.wrap(text, max(width, _NARROWEST), break_on_hyphens=False, **options)
    return rows if all(cell_len(row) <= width for row in rows) else wrapped(text, width)


def paragraph(text: str, width: int, role: Role = "text") -> list[Line]:
    return [[(row, role)] for row in wrapped(text, width)]


def hanging(start: Line, rows: Iterable[Line]) -> list[Line]:
    """Return the rows with `start` before the first one, and the others indented by the width of `start`."""
    indent: Line = [(" " * width_of(start), "text")]
    return [[*(indent if index else start), *row] for index, row in enumerate(rows)]


def labelled(label: str, text: str, cells: int, width: int, role: Role = "text") -> list[Line]:
    return hanging([(pad(label, cells), "dim")], paragraph(text, width - cells, role))


def change_lines(changes: Sequence[Sequence[str]], width: int, glyphs: Glyphs) -> list[Line]:
    """Return lines such as `training.seed  1 -> 2` for changes, which are (setting, old value, new value)."""
    max_cells = max((cell_len(key) for key, _, _ in changes), default=0) + 2
    rows = ((key, one_line(f"{old} {glyphs.arrow} {new}"), min(max_cells, max(cell_len(key) + 2, width // 2)))
            for key, old, new in changes)  # fmt: skip
    return [line for key, change, label_cells in rows for line in labelled(key, change, label_cells, width)]


def wrap_if_long(line: Line, width: int) -> list[Line]:
    """Return the line, wrapped if it is too long. A line of several spans is not wrapped."""
    if len(line) != 1 or width_of(line) <= width:
        return [line]
    return paragraph(line[0][0], width, line[0][1])


def make_safe(line: Line, width: int) -> Line:
    """Return the line with visible signs instead of control characters. A safe line is returned unchanged."""
    if all(show_control_characters(text) == text and "\n" not in text and "\t" not in text for text, _ in line):
        return line
    return fit([(one_line(text), role) for text, role in line], width)


def next_of(choices: Sequence[T], present: T) -> T:
    """Return the choice after `present`; the first one after the last, or if `present` is no choice."""
    return choices[(choices.index(present) + 1) % len(choices)] if present in choices else choices[0]


def text_of(lines: Iterable[Line]) -> str:
    """Return lines as plain text without trailing blanks."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
