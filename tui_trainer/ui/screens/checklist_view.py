"""The parts of the Checklist screen: counts, a line of the list, the chosen finding in full. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len

from tui_trainer.checklist.contract import STATUSES, Finding, Status
from tui_trainer.checklist.guides import GUIDES, of_guide
from tui_trainer.checklist.run import counts
from tui_trainer.planning.deadline_ways import way_line
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, beside, fit, labelled, pad, paragraph, width_of

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
    """What is listed, by name of the check. The worst come first, as of `sort`: a fix does not move its line away."""

    findings: list[Finding] = field(default_factory=list)
    chosen: str = ""
    open_only: bool = False
    guide: str = ""
    """The letter of a guide: only what is on its list; empty: all."""
    title_cells: int = 0
    _order: dict[str, int] = field(default_factory=dict)

    def replace(self, findings: Iterable[Finding]) -> None:
        """Newer findings at the places of those before; the same check stays chosen."""
        self.findings = list(findings)
        self.title_cells = max((cell_len(finding.title) for finding in self.findings), default=0)
        if any(finding.name not in self._order for finding in self.findings):
            self.sort()
        self.findings.sort(key=lambda finding: self._order[finding.name])

    def sort(self) -> None:
        """The worst first and chosen, what does not apply last; within a status in the order of the checks."""
        self.findings.sort(key=lambda finding: (STATUSES.index(finding.status), finding.check.order))
        self._order = {finding.name: place for place, finding in enumerate(self.findings)}
        self.chosen = self.findings[0].name if self.findings else ""

    def move(self, lines: int) -> None:
        """Choose so many lines further down, further up when negative; stops at both ends."""
        if visible := self.visible:
            self.chosen = visible[min(max(self.cursor + lines, 0), len(visible) - 1)].name

    @property
    def visible(self) -> list[Finding]:
        listed = of_guide(self.findings, self.guide) if self.guide else self.findings
        return [finding for finding in listed if finding.is_open or not self.open_only]

    def next_guide(self) -> None:
        """The lists of the guides one after the other, then all checks again."""
        names = ["", *GUIDES]
        self.guide = names[(names.index(self.guide) + 1) % len(names)]
        self.chosen = self.visible[0].name if self.visible else self.chosen

    @property
    def selected(self) -> Finding | None:
        visible = self.visible
        return visible[self.cursor] if visible else None

    @property
    def cursor(self) -> int:
        """The place of the chosen check; of the one that took its place when it is not listed any more."""
        visible = [finding.name for finding in self.visible]
        if self.chosen in visible:
            return visible.index(self.chosen)
        before = self._order.get(self.chosen, 0)
        places = [place for place, one in enumerate(self.visible) if self._order[one.name] >= before]
        return places[0] if places else max(len(self.visible) - 1, 0)


def counts_line(model: ChecklistModel, first: int, rows: int, width: int, glyphs: Glyphs) -> Line:
    """How many of each status; at the end which lines of the list are shown, from the `first` on."""
    found, listed = counts(model.findings), len(model.visible)
    line: Line = []
    for status in _COUNTED:
        if status == "error" and not found[status]:
            continue
        role: Role = _ROLES[status] if found[status] else "dim"
        line += [(f" {found[status]:>2}", role), (f" {status} ", "dim" if status == "n/a" else "text")]
    words = f"guide {model.guide}  " if model.guide else ""
    words += "only open  " if model.open_only else ""
    if not listed:
        words = "nothing is open: press o for all checks " if model.findings else "looking ... "
    elif listed > rows:
        words += f"{first + 1}-{min(first + rows, listed)} of {listed} "
    return _ends(line, [(words, "dim")], width, glyphs)


def _ends(left: Line, right: Line, width: int, glyphs: Glyphs) -> Line:
    """`left` at the beginning and `right` at the end, cut with a sign of this set."""
    return beside(fit(left, max(width - width_of(right), 0), glyphs.ellipsis), right, width)


def finding_row(finding: Finding, is_chosen: bool, titles: int, width: int, glyphs: Glyphs) -> Line:
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
    evidence: Line = [(f"  {one_line(finding.verdict.evidence)}", "dim")]
    return [*line, *fit(evidence, room, glyphs.ellipsis), *fix]


def _mark(status: Status, glyphs: Glyphs) -> str:
    signs: dict[Status, str] = {"pass": glyphs.good, "warn": glyphs.warn, "fail": glyphs.bad, "n/a": glyphs.none}
    return signs.get(status, "?")


def finding_lines(finding: Finding, width: int, glyphs: Glyphs) -> list[Line]:
    check, verdict = finding.check, finding.verdict
    sign = "" if _mark(finding.status, glyphs) == "ok" else f"{_mark(finding.status, glyphs)} "
    status: Line = [(f"{sign}{finding.status}", _ROLES[finding.status])]
    lines: list[Line] = [_ends([(finding.title, "bold")], status, width, glyphs)]
    lines += paragraph(one_line(verdict.evidence), width)
    for change in finding.changes if not verdict.ways else ():
        words = f"{change.key}: {one_line(json.dumps(change.old))} {glyphs.arrow} {one_line(json.dumps(change.new))}"
        lines += labelled("fix", words, _LABEL_COLUMNS, width, "accent")
    for number, way in enumerate(verdict.ways, 1):
        lines += labelled(f"way {number}", one_line(way_line(way)), _LABEL_COLUMNS, width, "accent")
    if verdict.advice:
        lines += labelled("do", one_line(verdict.advice), _LABEL_COLUMNS, width)
    if check.claim or finding.alternative:
        claim = f"; the guides claim: {check.claim}" if check.claim else ""
        lines += labelled("gain", f"{finding.gain_words}{claim}", _LABEL_COLUMNS, width)
    lines += labelled("why", check.why, _LABEL_COLUMNS, width)
    lines += labelled("guides", ", ".join(check.guides) or "none: a check of our own", _LABEL_COLUMNS, width, "dim")
    for place, detail in enumerate(verdict.details):
        lines += labelled("" if place else "more", one_line(detail), _LABEL_COLUMNS, width, "dim")
    return lines
