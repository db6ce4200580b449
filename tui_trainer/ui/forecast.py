"""What follows from the config on the table: its plan, the plan of the presets alone, the findings of the checklist.

All of it is made in the background; an answer to an older config than the one on the table counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import InputError, Problem
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.ui.spans import Role

if TYPE_CHECKING:
    from tui_trainer.checklist.contract import Finding
    from tui_trainer.config.changes import Edits
    from tui_trainer.config.document import Document
    from tui_trainer.config.profiles import Profile
    from tui_trainer.planning.plan import Plan
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.background import Background


class Forecast:
    """The half of the workbench that is about what has not begun yet."""

    app: TrainerApp
    background: Background

    def __init__(self, hardware: Hardware, chosen_gpu: GpuChoice) -> None:
        self.hardware, self.chosen_gpu = hardware, chosen_gpu
        self.document: Document | None = None
        self.plan: Plan | None = None
        self.preset_plan: Plan | None = None
        self.plan_problems: tuple[Problem, ...] = ()
        self.findings: list[Finding] = []
        self.old_edits: Edits = {}
        """Unsaved edits of an earlier session that nobody has decided on yet."""
        self.start_wanted = False
        """Somebody pressed start before there was a plan."""
        self._planned_revision = -1
        self._preset_recipe = ""

    @property
    def memory_free_bytes(self) -> int:
        """What can be had now; the rest of `hardware` is as old as its look."""
        return memory_available_now()

    def offer_start(self) -> None:
        """Say what would happen; one more key begins."""
        raise NotImplementedError

    def tell(self, text: str, role: Role = "text") -> None:
        """A sentence in the last line."""
        raise NotImplementedError

    @property
    def is_planning(self) -> bool:
        """Whether the plan on the screen is older than the config on the screen."""
        return self.document is None or self._planned_revision != self.document.revision

    def _choose_hardware(self, wish: str) -> tuple[Profile | None, str]:
        from tui_trainer.planning.hardware_match import choose_hardware_profile

        return choose_hardware_profile(wish, self.hardware, self.chosen_gpu)

    def config_changed(self) -> None:
        """Plan and check anew, behind the keys: the newest config wins."""
        document = self.document
        if document is None:
            return
        self._keep_draft(document)
        loaded, problems, revision = document.loaded, document.own_problems, document.revision
        gpu = self.chosen_gpu
        if loaded is None or problems:
            self._planned((revision, None, problems))
            self._checked((revision, []))
            return

        def plan() -> tuple[int, Plan | None, tuple[Problem, ...]]:
            from tui_trainer.launching.prepare import estimated_plan

            try:
                return revision, estimated_plan(loaded, gpu=gpu), ()
            except InputError as error:
                # What is wrong with files names a file and no setting: it belongs beside the path.
                return revision, None, tuple(replace(one, key=one.key or "data.path") for one in error.problems)

        self.background.do("plan", plan, self._planned)
        self._plan_presets(document)

    def machine_changed(self) -> None:
        """Another card is chosen, or the machine was looked at again: what follows from it is made anew."""
        if self.document is not None:
            self._preset_recipe = ""
            self.document.machine_changed()
            self.config_changed()

    def _keep_draft(self, document: Document) -> None:
        """Unsaved edits survive a lost connection; those of an earlier session that wait for an answer lie below."""
        from tui_trainer.launching.drafts import keep_draft

        if problem := keep_draft(document, below=self.old_edits):
            self.tell(str(problem), "warn")

    def _plan_presets(self, document: Document) -> None:
        """What the recipe alone would cost: to compare with, once something differs from it."""
        recipe = document.recipe_name
        if not document.changes() or not recipe:
            self.preset_plan, self._preset_recipe = None, ""
            return
        if recipe == self._preset_recipe:
            return
        self._preset_recipe, gpu = recipe, self.chosen_gpu

        def plan() -> Plan | None:
            from tui_trainer.config.load import Request, load
            from tui_trainer.launching.prepare import estimated_plan

            try:
                return estimated_plan(load(Request(profile=recipe), self._choose_hardware), gpu=gpu)
            except InputError:
                return None

        self.background.do("preset plan", plan, self._presets_planned)

    def _presets_planned(self, plan: Plan | None) -> None:
        self.preset_plan = plan
        self.app.draw()

    def _planned(self, result: tuple[int, Plan | None, tuple[Problem, ...]]) -> None:
        if self.document is None or result[0] != self.document.revision:
            return
        self._planned_revision, self.plan, self.plan_problems = result
        self.document.note_problems(self.plan_problems)
        if self.start_wanted and not self.app.takes_text:
            self.offer_start()
        self.check_again()
        self.app.draw()

    def check_again(self) -> None:
        """Run all checks on the config as it is."""
        document = self.document
        if document is None or document.loaded is None:
            return
        loaded, revision, plan, hardware = document.loaded, document.revision, self.plan, self.hardware
        gpu = self.chosen_gpu

        def check() -> tuple[int, list[Finding]]:
            from tui_trainer.checklist.gather import gather
            from tui_trainer.checklist.run import run_checks

            return revision, run_checks(gather(loaded, hardware=hardware, plan=plan, gpu=gpu))

        self.background.do("checks", check, self._checked)

    def _checked(self, result: tuple[int, list[Finding]]) -> None:
        if self.document is None or result[0] != self.document.revision:
            return
        self.findings = result[1]
        self.app.checked(self.findings)
        self.app.draw()

    @property
    def what_is_on(self) -> list[str]:
        """What speeds training up here, or why not, from the checks that look at it."""
        return [one.verdict.switch for one in self.findings if one.verdict.switch]

    def checks_mark(self) -> tuple[str, Role]:
        """`2!` for what is open, `ok`, or nothing while it is not known."""
        if not self.findings:
            return "", "dim"
        from tui_trainer.ui.screens.checklist_view import summary

        open_ones = [finding for finding in self.findings if finding.is_open]
        worst: Role = "bad" if any(finding.status != "warn" for finding in open_ones) else "warn"
        return summary(self.findings), worst if open_ones else "good"

    def apply(self, patch: Mapping[str, Any], label: str) -> tuple[Problem, ...]:
        """A fix of the checklist as one step that is undone at once."""
        if self.document is None:
            return ()
        problems = self.document.patch(patch, label)
        if not problems:
            self.config_changed()
        return problems
