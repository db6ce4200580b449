"""The Checklist screen: findings of the checks about the config, their fixes, and the measured gain of each fix."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import ClassVar, Final, get_args

from rich.cells import cell_len
from textual.app import ComposeResult

from tui_trainer.advice.checklist import ALL, Finding, count_statuses, patch_words
from tui_trainer.advice.contract import STATUSES, Group, Status
from tui_trainer.config.changes import Change, settings_words
from tui_trainer.config.load import all_settings, value_of
from tui_trainer.config.sections import Config
from tui_trainer.planning.plan import Plan
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.commands import install
from tui_trainer.ui.dialogs import ChoiceDialog
from tui_trainer.ui.keymap import Action
from tui_trainer.ui.own_processes import RUN_TRAINING_REFUSAL
from tui_trainer.ui.page import NOTHING_TO_DO, ListPage, bindings
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, both_ends_line, fit, labelled, pad, paragraph, width_of
from tui_trainer.ui.starting import ask_to_apply
from tui_trainer.ui.widgets.lists import ChoiceList, LineList
from tui_trainer.ui.widgets.pane import Area, Pane, Scroller, Section
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import quantity

_LABEL_COLUMNS: Final = 7
_ROLES: Final[dict[Status, Role]] = {"pass": "good", "warn": "warn", "fail": "bad", "error": "bad", "n/a": "dim"}
_COUNTED: Final[tuple[Status, ...]] = ("pass", "warn", "fail", "n/a", "error")
_GROUPS: Final[tuple[Group, ...]] = get_args(Group)
_LEAST_EVIDENCE: Final = 12
# Cells of the heading line that its note cannot use.
_HEADING_CELLS: Final = 16
# The command with which checks advise to install a library.
_INSTALL_COMMAND: Final = re.compile(r"uv pip install ([a-z][\w-]*)")


def _mark(status: Status, glyphs: Glyphs) -> str:
    signs: dict[Status, str] = {"pass": glyphs.good, "warn": glyphs.warn, "fail": glyphs.bad, "n/a": glyphs.none}
    return signs.get(status, "?")


def finding_lines(
    finding: Finding, width: int, glyphs: Glyphs, config: Config | None = None, plan: Plan | None = None
) -> list[Line]:
    """Return the details of a finding, the settings of its check, and what the doctor looks for during a run."""
    rule, verdict, mark = finding.rule, finding.verdict, _mark(finding.status, glyphs)
    status: Line = [(f"{'' if mark == 'ok' else f'{mark} '}{finding.status}", _ROLES[finding.status])]
    title = fit([(finding.title, "bold")], max(width - width_of(status), 0), glyphs.ellipsis)
    lines: list[Line] = [both_ends_line(title, status, width)]
    lines += paragraph(one_line(verdict.evidence), width)
    for change in finding.changes:
        lines += labelled("fix", one_line(change.words(glyphs.arrow)), _LABEL_COLUMNS, width, "accent")
    if verdict.advice:
        lines += labelled("do", one_line(verdict.advice), _LABEL_COLUMNS, width)
    if rule.published_gain or finding.alternative:
        published = f"; published: {rule.published_gain}" if rule.published_gain else ""
        lines += labelled("gain", f"{finding.gain_words}{published}", _LABEL_COLUMNS, width)
    lines += labelled("why", rule.why, _LABEL_COLUMNS, width)
    for index, detail in enumerate(verdict.details):
        lines += labelled("" if index else "more", one_line(detail), _LABEL_COLUMNS, width, "dim")
    for key, value in ({key: value_of(config, key) for key in rule.settings} if config else {}).items():
        lines += labelled("now", patch_words({key: value}), _LABEL_COLUMNS, width)
        lines += labelled("", all_settings()[key].help, _LABEL_COLUMNS, width, "dim")
    symptoms = [symptom for symptom in rule.symptoms if plan is None or symptom.can_occur(plan)]
    lines += paragraph("During a run, the doctor would report:", width, "dim") if symptoms else []
    for symptom in symptoms:
        lines += labelled("", f"{symptom.title}: {symptom.why}", _LABEL_COLUMNS, width, "dim")
    return lines


class ChecklistPage(ListPage):
    place = "checklist"
    BINDINGS = bindings("checklist")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (180, "-wide")]  # noqa: RUF012
    ACTS: ClassVar[dict[str, Callable[["ChecklistPage"], object]]] = {
        "measure_all": lambda page: page.measure(ALL),
        "setting": lambda page: page.bench.app.show_setting(page._setting),
        "cancel": lambda page: page.bench.gain_measurements.cancel(),
        "install": lambda page: install(page.bench, page._named_libraries),
    }

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._findings: list[Finding] = []
        self._order: dict[str, int] = {}
        """Position of each check, by name, when the list was last sorted. Applying a fix does not move its row."""
        self._open_only, self._chosen_name = False, ""
        self._list: ChoiceList[Finding | str] = ChoiceList(self._row, is_heading=lambda row: isinstance(row, str))
        self._details_pane = Scroller(Pane(self._finding_lines), id="chosen")
        self.set_findings(bench.findings)

    def body(self) -> ComposeResult:
        yield Pane(self._counts, id="counts")
        with Area(id="parts"):
            with Area(id="findings"):
                yield Section(self._heading, lambda *_: [])
                yield self._list
            with Area(id="finding"):
                yield Section(lambda: ("finding", ""), lambda *_: [])
                yield self._details_pane

    def _heading(self) -> tuple[str, str]:
        # The progress of a measurement is cut here, because a note that is too long would not be shown at all.
        return "checks", one_line(self.bench.gain_measurements.words, max(self._list.size.width - _HEADING_CELLS, 0))

    def on_line_list_scrolled(self) -> None:
        self.query_one("#counts", Pane).redraw()

    def _counts(self, width: int, _: int) -> list[Line]:
        bench, status_counts, glyphs = self.bench, count_statuses(self._findings), self.bench.glyphs
        seen_rows, is_check = self._list.visible_indices, [isinstance(row, Finding) for row in self._list.rows]
        line: Line = []
        for status in _COUNTED:
            if status != "error" or status_counts[status]:
                role: Role = _ROLES[status] if status_counts[status] else "dim"
                line += [(f" {status_counts[status]:>2}", role), (f" {status} ", "dim" if status == "n/a" else "text")]
        note = "only open checks  " if self._open_only else ""
        if not self._findings:
            note = "checking ... "
            if bench.document is not None and bench.document.loaded is None:
                note = f"the config has a problem: press {bench.app.key_of('app.go_config')} to see it "
        elif not is_check:
            note = f"no open checks: press {bench.app.key_of('checklist.open_only')} to show all "
        elif len(is_check) > self._list.size.height:
            note += f"{sum(is_check[: seen_rows.start]) + 1}-{sum(is_check[: seen_rows.stop])} of {sum(is_check)} "
        return [both_ends_line(fit(line, max(width - cell_len(note), 0), glyphs.ellipsis), [(note, "dim")], width)]

    def _row(self, finding: Finding | str, width: int) -> Line:
        if isinstance(finding, str):
            return [(f" {finding}", "title")]
        glyphs, title_cells = self.bench.glyphs, max(cell_len(row.title) for row in self._findings)
        line: Line = [(f" {pad(_mark(finding.status, glyphs), 2)}", _ROLES[finding.status])]
        line.append((f" {finding.title:<{title_cells}}", "dim" if finding.status == "n/a" else "text"))
        fix: Span = (" fix ", "accent") if finding.fix else ("     ", "text")
        room_cells = width - width_of([*line, fix])
        evidence: Line = [(f"  {one_line(finding.verdict.evidence)}", "dim")]
        return line if room_cells < _LEAST_EVIDENCE else [*line, *fit(evidence, room_cells, glyphs.ellipsis), fix]

    def _finding_lines(self, width: int, _: int) -> list[Line]:
        bench, chosen = self.bench, self._chosen
        return finding_lines(chosen, width, bench.glyphs, self._config, bench.plan) if chosen else []

    @property
    def _chosen(self) -> Finding | None:
        return row if isinstance(row := self._list.chosen, Finding) else None

    @property
    def _config(self) -> Config | None:
        document = self.bench.document
        return document.loaded.config if document and document.loaded else None

    def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        self.move(0)
        if event.is_double_click:
            self.action_show()
        elif finding := self._chosen_fix:
            key = self.bench.app.key_of("checklist.apply")
            self.bench.show_notice(f"press {key} to apply {one_line(settings_words(finding.fix or {}))}")
        self.bench.app.draw()

    def move(self, lines: int) -> None:
        self._list.move(lines)
        if finding := self._chosen:
            self._chosen_name = finding.name
        self._details_pane.scroll_lines(-self._details_pane.scrolled.virtual_size.height)

    @property
    def page_lines(self) -> int:
        return self._list.size.height

    def set_findings(self, findings: list[Finding]) -> None:
        self._findings = list(findings)
        # Rows must not move under the user's eyes, so the list is sorted again only while it is not shown.
        if not self.is_shown or any(finding.name not in self._order for finding in findings):
            self._sort()
        self._findings.sort(key=lambda finding: self._order[finding.name])
        self._show_list()

    def _sort(self) -> None:
        """Sort the groups and the findings in each group, the worst status first. Choose the first finding."""
        self._findings.sort(key=lambda finding: (STATUSES.index(finding.status), finding.rule.order))
        worst_statuses = {finding.rule.group: STATUSES.index(finding.status) for finding in reversed(self._findings)}
        self._findings.sort(key=lambda finding: (worst_statuses[finding.rule.group], _GROUPS.index(finding.rule.group)))
        self._order = {finding.name: index for index, finding in enumerate(self._findings)}
        self._chosen_name = self._findings[0].name if self._findings else ""

    def _show_list(self) -> None:
        """Show the findings. The chosen check stays chosen; if it is not listed any more, the next one is chosen."""
        findings = [finding for finding in self._findings if finding.is_open or not self._open_only]
        rows = [row for group, part in groupby(findings, lambda finding: finding.rule.group) for row in (group, *part)]
        order, position = self._order, self._order.get(self._chosen_name, 0)
        indexes = (index for index, row in enumerate(rows) if isinstance(row, Finding) and order[row.name] >= position)
        self._list.show(rows, next(indexes, len(rows) - 1))

    def refusal(self, action: Action) -> str:
        if action.name in ("measure", "measure_all"):
            return self._why_not_measured([self._chosen] if action.name == "measure" else self._findings)
        document = self.bench.document
        conditions: dict[str, Callable[[], object]] = {
            "show": lambda: self._chosen,
            "apply": lambda: self._chosen_fix,
            "apply_all": lambda: any(finding.fix and finding.is_open for finding in self._findings),
            "setting": lambda: self._setting,
            "install": lambda: self._named_libraries,
            "cancel": lambda: self.bench.gain_measurements.running_process,
            "undo": lambda: document and document.can_undo,
        }
        reasons = {"apply": "this check has no fix to apply", "install": "this check has nothing to install",
                   "setting": "this check is not about a setting"}  # fmt: skip
        can_do = conditions.get(action.name, lambda: True)()
        return "" if can_do else reasons.get(action.name, NOTHING_TO_DO)

    def _why_not_measured(self, findings: Sequence[Finding | None]) -> str:
        reasons = [finding.why_not_measured for finding in findings if finding is not None]
        if all(reasons):
            return reasons[0] if len(reasons) == 1 else NOTHING_TO_DO
        if self.bench.gain_measurements.running_process:
            return f"already measuring: {self.bench.app.key_of('checklist.cancel')} stops the measurement"
        if other_process := self.bench.other_running_measurement(self.bench.gain_measurements):
            return f"{other_process.command_name} is still running: only one measurement at a time"
        return RUN_TRAINING_REFUSAL if self.bench.run_is_alive else ""

    def live_state(self) -> object:
        return self.bench.gain_measurements.words

    @property
    def _setting(self) -> str:
        return self._chosen.setting if self._chosen else ""

    @property
    def _chosen_fix(self) -> Finding | None:
        finding = self._chosen
        return finding if finding and finding.fix and finding.is_open else None

    def action_show(self) -> None:
        if finding := self._chosen:
            answers = [("a", "apply fix", self.action_apply)] if self._chosen_fix else []
            answers += [("c", "open setting", partial(self.action_do, "setting"))] if self._setting else []
            glyphs, config, plan = self.bench.glyphs, self._config, self.bench.plan
            draw = partial(finding_lines, finding, glyphs=glyphs, config=config, plan=plan)
            self.bench.app.open(ChoiceDialog("Finding", draw, answers))

    def action_apply(self) -> None:
        if finding := self._chosen_fix:
            self.bench.apply(finding.fix or {}, f"the fix for {finding.title}")

    def action_apply_all(self) -> None:
        if (document := self.bench.document) is None or document.loaded is None:
            return
        loaded_config, revision = document.loaded, document.revision
        self.bench.show_notice("finding fixes that can be combined ...", "dim")

        def work() -> tuple[int, dict[str, object]]:
            from tui_trainer.advice.checklist import apply_fixes
            from tui_trainer.advice.gather import gather

            return revision, apply_fixes(loaded_config, gather)[1]

        self.bench.background.run_work("fixes", work, self._apply_all)

    def _apply_all(self, result: tuple[int, dict[str, object]]) -> None:
        revision, patch = result
        bench, document = self.bench, self.bench.document
        bench.notice = None
        if document is None or document.revision != revision:
            bench.show_notice("no fix was applied, because the settings changed meanwhile: try again", "warn")
        elif not patch:
            bench.show_notice("there are no fixes to apply", "warn")
        elif not bench.app.takes_text:
            count = quantity(len(patch), "setting")
            changes = [Change(key=key, old=document.value(key), new=new) for key, new in patch.items()]
            ask_to_apply(bench, f"Change {count}?", changes, partial(bench.apply, patch, f"{count} from the checklist"))
        bench.app.draw()

    @property
    def _named_libraries(self) -> list[str]:
        """Libraries that the chosen check advises to install."""
        verdict = self._chosen.verdict if self._chosen else None
        command = _INSTALL_COMMAND.search(f"{verdict.evidence}\n{verdict.advice}") if verdict else None
        return [command[1]] if command else []

    def action_undo(self) -> None:
        if document := self.bench.document:
            self.bench.note_change(document.undo())

    def action_measure(self) -> None:
        if finding := self._chosen:
            self.measure(finding.name)

    def measure(self, name: str) -> None:
        if reason := self.bench.gain_measurements.start(name):
            self.bench.show_notice(reason, "bad")

    def action_open_only(self) -> None:
        self._open_only = not self._open_only
        self._show_list()

    def action_again(self) -> None:
        self._sort()
        self._show_list()
        self.bench.show_notice("checking ...", "dim")
        self.bench.config_changed()
