"""What ails a run, the costliest first, and its settings with the remedies for the next one."""

from tui_trainer.config.changes import settings_words
from tui_trainer.doctor.contract import Finding, Verdict
from tui_trainer.planning.deadline_ways import way_line
from tui_trainer.runs.events import WayInTime
from tui_trainer.safe_text import one_line
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.spans import Line, Role, folded, labelled
from tui_trainer.ui.starting import take_settings_of
from tui_trainer.ui.watch import WatchedRun
from tui_trainer.ui.workbench import Workbench

_LABEL = 5


class DoctorDialog(Dialog):
    """The verdict as of now: it is made anew while the dialog is open."""

    heading = "Doctor"

    def __init__(self, bench: Workbench, run: WatchedRun) -> None:
        super().__init__()
        self._bench, self._run = bench, run
        if self._verdict and self._verdict.fix:
            self.keys = (("a", "apply to the config"), *self.keys)
        if self._ways:
            self.keys = (("1-3", "be in time"), *self.keys)

    @property
    def _verdict(self) -> Verdict | None:
        return self._run.doctor.verdict

    def lines(self, width: int) -> list[Line]:
        verdict = self._verdict
        if verdict is None:
            return []
        rows: list[Line] = []
        if verdict.leading is None:
            rows += [*folded([(verdict.healthy, "good" if verdict.is_known else "dim")], width), []]
        for one in verdict.findings:
            rows += [*self._finding(one, width), []]
        return [*rows, *self._deadline(width)] if self._ways else rows[:-1]

    @property
    def _ways(self) -> list[WayInTime]:
        at_risk = self._run.state.at_risk
        return at_risk.ways if at_risk else []

    def _deadline(self, width: int) -> list[Line]:
        """That the run will be late, and what the next one can be made with."""
        at_risk = self._run.state.at_risk
        rows: list[Line] = folded([(at_risk.message if at_risk else "", "warn")], width)
        for number, way in enumerate(self._ways, 1):
            rows += labelled(str(number), self.glyphs.only(one_line(way_line(way))), _LABEL, width, "accent")
        return rows

    def _finding(self, one: Finding, width: int) -> list[Line]:
        found, only = one.found, self.glyphs.only
        role: Role = "bad" if found.is_fault else "warn" if one.matters else "text"
        head: Line = [(one.title, role), (f"  {one.cost_words}", "bold")]
        told = [("", only(found.cause)), ("", only(found.evidence)), ("set", settings_words(found.fix or {}))]
        told += [("do", only(found.advice)), ("why", one.diagnosis.why), ("see", ", ".join(one.diagnosis.guides))]
        rows = [head]
        for label, text in told:
            if text:
                kind: Role = "accent" if label == "set" else "dim" if label in ("why", "see") else "text"
                rows += labelled(label, text, _LABEL, width, kind)
        return rows

    def press(self, key: str, character: str | None) -> bool:
        patches = {str(number): way.patch for number, way in enumerate(self._ways, 1)}
        if self._verdict and self._verdict.fix:
            patches["a"] = self._verdict.fix
        if character not in patches:
            return True
        take_settings_of(self._bench, self._run.folder, patches[character])
        return False
