"""What the pages share: the machine, the config being edited, its plan and its checks, and the run.

Slow things happen in `Background`; their results arrive here, in the event loop. Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import InputError, Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gauges import Gauges, GaugeSampler
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Role

if TYPE_CHECKING:
    from tui_trainer.checklist.contract import Finding
    from tui_trainer.config.document import Document
    from tui_trainer.config.load import Request
    from tui_trainer.config.profiles import Profile
    from tui_trainer.launching.drafts import Draft
    from tui_trainer.planning.plan import Plan
    from tui_trainer.runs.controls import Action as Wish
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.background import Background
    from tui_trainer.ui.terminal import TerminalGuard
    from tui_trainer.ui.watch import WatchedRun

_NOTICE_SECONDS = 6
TRAIN_PAGE = 3


class Leaving(Enum):
    """Why the screens went away."""

    QUIT = "asked to"
    LOST = "connection lost"
    TERMINATED = "terminated"


class Workbench:
    """Everything that is not a picture."""

    app: TrainerApp
    background: Background

    def __init__(
        self,
        make_request: Callable[[], Request],
        hardware: Hardware,
        glyphs: Glyphs,
        *,
        gpu: int | None = None,
        attach_to: RunFolder | None = None,
    ) -> None:
        self.hardware, self.glyphs, self.chosen_gpu = hardware, glyphs, gpu
        self.guard: TerminalGuard | None = None
        self.current = 0
        self.notice: tuple[str, Role] | None = None
        self._notice_seconds = 0
        self.document: Document | None = None
        self.plan: Plan | None = None
        self.preset_plan: Plan | None = None
        self.plan_problems: tuple[Problem, ...] = ()
        self.findings: list[Finding] = []
        self.run: WatchedRun | None = None
        self.leaving: Leaving | None = None
        self.leave_when_over = False
        self.start_wanted = False
        self._make_request = make_request
        self._attach_to = attach_to
        self._planned_revision = -1
        self._preset_recipe = ""
        self._checked_revision = -1
        self._sampler = GaugeSampler()

    def attach(self, app: TrainerApp, background: Background) -> None:
        """The application that shows this, and its thread for slow work."""
        self.app, self.background = app, background

    def begin(self) -> None:
        """The first screen is up: open the config, and look at the gauges."""
        self._sampler.start()
        if self._attach_to is not None:
            self.attach_to(self._attach_to)
        self.background.do("document", self._open_document, self._opened)

    def end(self) -> None:
        """The screens are gone: nobody looks at the gauges any more."""
        self._sampler.stop()

    def _open_document(self) -> tuple[Document, Draft | None]:
        from tui_trainer.config.document import Document
        from tui_trainer.launching.drafts import draft_for
        from tui_trainer.planning.rules import setting_problems

        request = self._make_request()
        document = Document(request, self._choose_hardware, setting_problems)
        return document, draft_for(request)

    def _choose_hardware(self, wish: str) -> tuple[Profile | None, str]:
        from tui_trainer.planning.hardware_match import choose_hardware_profile

        return choose_hardware_profile(wish, self.hardware, self.chosen_gpu)

    def _opened(self, result: tuple[Document, Draft | None]) -> None:
        self.document, draft = result
        self.app.opened(self.document)
        self.config_changed()
        if draft is not None:
            self.app.offer_draft(draft)

    def tick(self) -> None:
        """Once a second."""
        self.poll_run()
        self._notice_seconds -= 1
        if self.notice and self._notice_seconds <= 0 and self.notice[1] != "bad":
            self.notice = None
        if self.leave_when_over and not self.run_is_alive:
            self.leave()

    def leave(self) -> None:
        """Give the terminal back because the user wants to go."""
        self.app.leave(Leaving.QUIT)

    @property
    def gauges(self) -> Gauges | None:
        """The machine's newest gauges; None while there are none, or when they are too old to be believed."""
        return None if self._sampler.stale else self._sampler.latest

    def tell(self, text: str, role: Role = "text") -> None:
        """A sentence in the last line, until the next key or, when it is no error, for some seconds."""
        self.notice = (one_line(text), role)
        self._notice_seconds = _NOTICE_SECONDS

    def go(self, page: int) -> None:
        self.current = page

    @property
    def has_unsaved_edits(self) -> bool:
        return self.document is not None and self.document.is_unsaved

    @property
    def is_planning(self) -> bool:
        """Whether the plan on the screen is older than the config on the screen."""
        return self.document is None or self._planned_revision != self.document.revision

    @property
    def is_checking(self) -> bool:
        return self.document is None or self._checked_revision != self.document.revision

    def config_changed(self) -> None:
        """Plan and check anew, behind the keys: the newest config wins."""
        document = self.document
        if document is None:
            return
        loaded, problems, revision = document.loaded, document.problems, document.revision
        if loaded is None or problems:
            self._planned((revision, None, problems))
            self._checked((revision, []))
            return

        def plan() -> tuple[int, Plan | None, tuple[Problem, ...]]:
            from tui_trainer.launching.prepare import estimated_plan

            try:
                return revision, estimated_plan(loaded), ()
            except InputError as error:
                return revision, None, error.problems

        self.background.do("plan", plan, self._planned)
        self._plan_presets(document)

    def _plan_presets(self, document: Document) -> None:
        """What the recipe alone would cost: to compare with, once something differs from it."""
        recipe = document.recipe_name
        if not document.changes() or not recipe:
            self.preset_plan, self._preset_recipe = None, ""
            return
        if recipe == self._preset_recipe:
            return
        self._preset_recipe = recipe

        def plan() -> Plan | None:
            from tui_trainer.config.load import Request, load
            from tui_trainer.launching.prepare import estimated_plan

            try:
                return estimated_plan(load(Request(profile=recipe), self._choose_hardware))
            except InputError:
                return None

        self.background.do("preset plan", plan, self._presets_planned)

    def _presets_planned(self, plan: Plan | None) -> None:
        self.preset_plan = plan
        self.app.draw()

    def _planned(self, result: tuple[int, Plan | None, tuple[Problem, ...]]) -> None:
        self._planned_revision, self.plan, self.plan_problems = result
        if self.start_wanted and not self.is_planning:
            self.offer_start()
        self.check_again()
        self.app.draw()

    def check_again(self) -> None:
        """Run all checks on the config as it is."""
        document = self.document
        if document is None or document.loaded is None:
            return
        loaded, revision, plan, hardware = document.loaded, document.revision, self.plan, self.hardware

        def check() -> tuple[int, list[Finding]]:
            from tui_trainer.checklist.gather import gather
            from tui_trainer.checklist.run import run_checks

            return revision, run_checks(gather(loaded, hardware=hardware, plan=plan))

        self.background.do("checks", check, self._checked)

    def _checked(self, result: tuple[int, list[Finding]]) -> None:
        self._checked_revision, self.findings = result
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

    @property
    def run_is_alive(self) -> bool:
        return self.run is not None and self.run.alive

    @property
    def run_is_ours_and_alive(self) -> bool:
        """Whether this process would end a run by ending."""
        return self.run_is_alive and self.run is not None and self.run.is_ours

    def poll_run(self) -> bool:
        """Take in what the run has written since. Whether anything was new."""
        return self.run is not None and self.run.poll()

    def attach_to(self, folder: RunFolder) -> None:
        """Watch a run of another process, or one that has ended."""
        from tui_trainer.ui.watch import WatchedRun

        self.run = WatchedRun(folder)
        self.run.poll()
        self.app.run_changed()
        self.go(TRAIN_PAGE)
        self.app.draw()

    def ask_run(self, wish: Wish) -> None:
        """Ask the run for something; what it did is in its journal a moment later."""
        if self.run is None or not self.run.alive:
            return
        problem = self.run.ask(wish)
        self.tell(problem or f"asked to {wish}", "bad" if problem else "dim")
        self.app.soon()

    def offer_start(self) -> None:
        """Say what would happen; one more key begins."""
        from tui_trainer.ui import starting

        starting.offer_start(self)

    def offer_quit(self) -> None:
        """Leave, after an answer where one is needed."""
        from tui_trainer.ui import starting

        starting.offer_quit(self)
