"""The Checklist screen as lines: what was found in a list, and the chosen finding in full beside or below it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.cells import cell_len

from tui_trainer.checklist.contract import STATUSES, Finding, Status
from tui_trainer.checklist.run import counts
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, beside, fit, pad, width_of, wrapped

_SIDE_BY_SIDE_COLUMNS: Final = 120
_DETAIL_LINES, _DETAIL_SHARE, _WIDEST_DETAIL = 10, 0.37, 74
_LABEL_COLUMNS: Final = 7
_ROLES: Final[dict[Status, Role]] = {"pass": "good", "warn": "warn", "fail": "bad", "error": "bad", "n/a": "dim"}
_COUNTED: Final[tuple[Status, ...]] = ("pass", "warn", "fail", "n/a", "error")
_LEAST_EVIDENCE: Final = 12


def summary(findings: Sequence[Finding]) -> str:
    """`2!` when two should be looked at, `1x 2!` when one of three fails, `ok`, or nothing before the first look."""
    bad = sum(finding.status in ("fail", "error") for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    marks = [f"{bad}x"] * bool(bad) + [f"{warned}!"] * bool(warned)
    return " ".join(marks) or ("ok" if findings else "")


@dataclass
class ChecklistModel:
    """What is shown and what is chosen. The worst come first, as of `sort`: a fix does not move its line away."""

    findings: list[Finding] = field(default_factory=list)
    cursor: int = 0
    open_only: bool = False
    _order: dict[str, int] = field(default_factory=dict)

    def replace(self, findings: Iterable[Finding]) -> None:
        """Newer findings at the places of those before; the same check stays chosen."""
        chosen = self.selected
        self.findings = list(findings)
        if any(finding.name not in self._order for finding in self.findings):
            self.sort()
        self.findings.sort(key=lambda finding: self._order[finding.name])
        self._choose(chosen.name if chosen else "")

    def sort(self) -> None:
        """The worst first and chosen, what does not apply last; within a status in the order of the checks."""
        self.findings.sort(key=lambda finding: (STATUSES.index(finding.status), finding.check.order))
        self._order = {finding.name: place for place, finding in enumerate(self.findings)}
        self.cursor = 0

    @property
    def visible(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_open or not self.open_only]

    @property
    def selected(self) -> Finding | None:
        """The chosen finding; None when nothing is listed."""
        visible = self.visible
        return visible[min(self.cursor, len(visible) - 1)] if visible else None

    def move(self, lines: int) -> None:
        """Down by so many lines, up when negative; stops at both ends."""
        self.cursor = min(max(self.cursor + lines, 0), max(len(self.visible) - 1, 0))

    def first(self) -> None:
        self.cursor = 0

    def last(self) -> None:
        self.cursor = max(len(self.visible) - 1, 0)

    def page(self, pages: int, *, width: int, height: int) -> None:
        """Down by so many pages of a screen of this size, up when negative."""
        self.move(pages * list_rows(width, height))

    def toggle_open_only(self) -> None:
        """Only what should be looked at, or all; the chosen check stays chosen where it is still listed."""
        chosen = self.selected
        self.open_only = not self.open_only
        self._choose(chosen.name if chosen else "")

    def _choose(self, name: str) -> None:
        names = [finding.name for finding in self.visible]
        self.cursor = names.index(name) if name in names else min(self.cursor, max(len(names) - 1, 0))


def list_rows(width: int, height: int) -> int:
    """Lines of the list on a screen of this size."""
    detail = 0 if width >= _SIDE_BY_SIDE_COLUMNS else min(_DETAIL_LINES, height // 2) + 1
    return max(1, height - 2 - detail)


def draw_checklist(model: ChecklistModel, *, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Exactly `height` lines of `width` cells: counts, list, and the chosen finding below it or, if wide, beside it."""
    rows = list_rows(width, height)
    top = [_counts_line(model, rows, width, glyphs)]
    if width < _SIDE_BY_SIDE_COLUMNS:
        detail = _detail(model.selected, width, height - rows - 3, glyphs)
        body = [*_list(model, width, rows, glyphs), _rule("finding", width, glyphs), *detail]
        top.append(_rule("checks", width, glyphs))
    else:
        right = min(int(width * _DETAIL_SHARE), _WIDEST_DETAIL)
        left = width - right - 3
        detail = _detail(model.selected, right, rows, glyphs)
        pairs = zip(_list(model, left, rows, glyphs), detail, strict=True)
        between: Line = [(f" {glyphs.vertical} ", "rule")]
        body = [[*line, *between, *beside_it] for line, beside_it in pairs]
        ruled: Line = [(glyphs.rule * 3, "rule")]
        top.append([*_rule("checks", left, glyphs), *ruled, *_rule("finding", right, glyphs)])
    lines = [fit(line, width, glyphs.ellipsis) for line in [*top, *body]][:height]
    return lines + [fit([], width)] * (height - len(lines))


def _counts_line(model: ChecklistModel, rows: int, width: int, glyphs: Glyphs) -> Line:
    found = counts(model.findings)
    line: Line = []
    for status in _COUNTED:
        if status == "error" and not found[status]:
            continue
        role: Role = _ROLES[status] if found[status] else "dim"
        line += [(f" {found[status]:>2}", role), (f" {status} ", "dim" if status == "n/a" else "text")]
    listed, start = len(model.visible), _start(model, rows)
    words = "only open  " if model.open_only else ""
    if listed > rows:
        words += f"{start + 1}-{min(start + rows, listed)} of {listed} "
    return _ends(line, [(words, "dim")], width, glyphs)


def _ends(left: Line, right: Line, width: int, glyphs: Glyphs) -> Line:
    """`left` at the beginning and `right` at the end, cut with a sign of this set."""
    return beside(fit(left, max(width - width_of(right), 0), glyphs.ellipsis), right, width)


def _rule(title: str, width: int, glyphs: Glyphs) -> Line:
    head = f"{glyphs.rule * 2} "
    rest = max(width - len(head) - len(title) - 1, 0)
    return [(head, "rule"), (title, "title"), (f" {glyphs.rule * rest}", "rule")]


def _start(model: ChecklistModel, rows: int) -> int:
    """The first line listed: whole pages, so that moving the choice within one moves nothing else."""
    listed = len(model.visible)
    return max(0, min(min(model.cursor, max(listed - 1, 0)) // rows * rows, listed - rows))


def _list(model: ChecklistModel, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    if not model.visible:
        words = "nothing is open: press o for all checks" if model.findings else "looking ..."
        return [fit([(f"  {words}", "dim")], width), *[fit([], width)] * (rows - 1)]
    start, titles = _start(model, rows), max(cell_len(finding.title) for finding in model.findings)
    shown = model.visible[start : start + rows]
    lines = [_row(finding, finding is model.selected, titles, width, glyphs) for finding in shown]
    return lines + [fit([], width)] * (rows - len(lines))


def _row(finding: Finding, is_chosen: bool, titles: int, width: int, glyphs: Glyphs) -> Line:
    """Pointer, mark, title, as much of the evidence as fits, and `fix` where one key mends it."""
    faint: Role = "dim" if finding.status == "n/a" else "text"
    title: Role = "cursor" if is_chosen else faint
    mark = pad(_mark(finding.status, glyphs), 2)
    line: Line = [
        (f"{glyphs.pointer if is_chosen else ' '} ", "accent"),
        (mark, _ROLES[finding.status]),
        (f" {finding.title:<{titles}}", title),
    ]
    fix: Line = [(" fix ", "accent")] if finding.fix else [("     ", "text")]
    room = width - width_of(line) - width_of(fix)
    if room < _LEAST_EVIDENCE:
        return fit(line, width, glyphs.ellipsis)
    evidence: Line = [(f"  {_plain(finding.verdict.evidence, glyphs)}", "dim")]
    return [*line, *fit(evidence, room, glyphs.ellipsis), *fix]


def _mark(status: Status, glyphs: Glyphs) -> str:
    signs: dict[Status, str] = {"pass": glyphs.good, "warn": glyphs.warn, "fail": glyphs.bad, "n/a": glyphs.none}
    return signs.get(status, "?")


def _detail(finding: Finding | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The finding in full. Where it does not fit, what comes last gives way, and a line says so."""
    lines = [] if finding is None else _detail_lines(finding, width, glyphs)
    if len(lines) > height:
        lines = [*lines[: height - 1], [(f"{glyphs.ellipsis} {len(lines) - height + 1} lines more", "dim")]]
    lines = [fit(line, width, glyphs.ellipsis) for line in lines]
    return lines + [fit([], width)] * (height - len(lines))


def _detail_lines(finding: Finding, width: int, glyphs: Glyphs) -> list[Line]:
    check, verdict = finding.check, finding.verdict
    sign = "" if _mark(finding.status, glyphs) == "ok" else f"{_mark(finding.status, glyphs)} "
    status: Line = [(f"{sign}{finding.status}", _ROLES[finding.status])]
    lines: list[Line] = [_ends([(finding.title, "bold")], status, width, glyphs)]
    lines += [[(text, "text")] for text in wrapped(_plain(verdict.evidence, glyphs), width)]
    for change in finding.changes:
        words = f"{change.key}: {_value(change.old, glyphs)} {glyphs.arrow} {_value(change.new, glyphs)}"
        lines += _labelled("fix", words, width, "accent")
    if verdict.advice:
        lines += _labelled("do", _plain(verdict.advice, glyphs), width, "text")
    if check.claim or finding.fix:
        claim = f"; the guides claim: {check.claim}" if check.claim else ""
        lines += _labelled("gain", f"{finding.gain_words}{claim}", width, "text")
    lines += _labelled("why", check.why, width, "text")
    lines += _labelled("guides", ", ".join(check.guides) or "none: a check of our own", width, "dim")
    for place, detail in enumerate(verdict.details):
        lines += _labelled("" if place else "more", _plain(detail, glyphs), width, "dim")
    return lines


def _labelled(label: str, text: str, width: int, role: Role) -> list[Line]:
    parts = wrapped(text, width - _LABEL_COLUMNS)
    labels = [label, *[""] * len(parts)]
    return [[(f"{name:<{_LABEL_COLUMNS}}", "dim"), (part, role)] for name, part in zip(labels, parts, strict=False)]


def _value(value: Any, glyphs: Glyphs) -> str:
    return _plain(json.dumps(value), glyphs)


def _plain(text: str, glyphs: Glyphs) -> str:
    """Foreign text made harmless; without a sign outside ASCII where the terminal has no other."""
    line = one_line(text)
    return line.encode("ascii", "replace").decode() if glyphs.ascii else line
