"""What the pages share: the machine, the config being edited, its plan and its checks, and the run.

Slow things happen in `Background`; their results arrive here, in the event loop. Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gauges import Gauges, GaugeSampler
from tui_trainer.safe_text import one_line
from tui_trainer.ui.forecast import Forecast
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Role

if TYPE_CHECKING:
    from tui_trainer.config.document import Document
    from tui_trainer.config.load import LoadedConfig, Request
    from tui_trainer.errors import Problem
    from tui_trainer.launching.drafts import Draft
    from tui_trainer.runs.controls import Action as Wish
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.background import Background
    from tui_trainer.ui.terminal import TerminalGuard
    from tui_trainer.ui.watch import WatchedRun

_NOTICE_SECONDS = 6
TRAIN_PAGE = 3
TRYING = "try"
_RUNS_LOOKED_AT = 20


class Leaving(Enum):
    """Why the screens went away."""

    QUIT = "asked to"
    LOST = "connection lost"
    TERMINATED = "terminated"


def _living_runs() -> list[RunFolder]:
    """The newest runs of this disk that some process carries out now."""
    from tui_trainer.runs.lock import owner
    from tui_trainer.runs.registry import known_runs

    return [folder for folder in known_runs()[-_RUNS_LOOKED_AT:] if owner(folder.lock) is not None]


class Workbench(Forecast):
    """Everything that is not a picture."""

    def __init__(
        self,
        make_request: Callable[[], Request],
        hardware: Hardware,
        glyphs: Glyphs,
        *,
        gpu: GpuChoice = None,
        attach_to: RunFolder | None = None,
    ) -> None:
        super().__init__(hardware, gpu)
        self.glyphs = glyphs
        self.guard: TerminalGuard | None = None
        self.current = 0
        self.notice: tuple[str, Role] | None = None
        self._notice_seconds = 0
        self.run: WatchedRun | None = None
        self.leaving: Leaving | None = None
        self.leave_when_over = False
        self._stop_unasked = False
        self._make_request = make_request
        self._attach_to = attach_to
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
        if self.run is None:
            self.background.do("runs", _living_runs, self._found_runs)

    def _found_runs(self, living: list[RunFolder]) -> None:
        """Runs that train already, as after a lost connection: watch one, rather than start another beside it."""
        from tui_trainer.ui import starting

        if living and self.run is None and not self.app.takes_text:
            starting.offer_to_watch(self, living)

    def end(self) -> None:
        """The screens are gone: nobody looks at the gauges any more."""
        self._sampler.stop()

    def _open_document(self) -> tuple[Document, Draft | None]:
        from tui_trainer.config.document import Document
        from tui_trainer.launching.drafts import draft_for
        from tui_trainer.launching.start import name_problems, with_rows_that_fit
        from tui_trainer.planning.conflicts import setting_problems

        request = self._make_request()

        def judge(loaded: LoadedConfig) -> list[Problem]:
            return [*setting_problems(loaded), *name_problems(loaded)]

        return Document(request, self._choose_hardware, judge, with_rows_that_fit), draft_for(request)

    def _opened(self, result: tuple[Document, Draft | None]) -> None:
        self.document, draft = result
        self.app.opened(self.document)
        self.old_edits = draft.edits if draft else {}
        self.config_changed()
        if draft is not None:
            self.app.offer_draft(draft)

    def tick(self) -> bool:
        """Once a second. Whether anything is to be shown that was not there before."""
        notice, has_news = self.notice, self.poll_run()
        self._notice_seconds -= 1
        if self.notice and self._notice_seconds <= 0 and self.notice[1] != "bad":
            self.notice = None
        if self._stop_unasked and self.run_is_alive:
            self.ask_run("stop")
        self._tell_refusal()
        if self.leave_when_over and not self.run_is_alive:
            self.leave()
        return has_news or self.notice != notice

    def by_clock(self) -> object:
        """What every screen shows of a run that changes without news in its journal."""
        return self.run_is_alive, self.run is not None and self.run.is_interrupted

    def _tell_refusal(self) -> None:
        """What was wrong with a run that was refused before its first step; such a run has left no folder."""
        run = self.run
        if run is None or run.alive or not run.refusals or run.folder.root.exists():
            return
        from tui_trainer.ui import starting

        self.run = None
        self.app.run_changed()
        starting.tell_refusal(self, run.refusals)

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
    def is_writing_text(self) -> bool:
        """Whether a model is being tried right now."""
        return hasattr(self, "background") and self.background.is_busy(TRYING)

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

    def take_run(self, run: WatchedRun) -> None:
        """This run is on the table now: its curves, its disk."""
        self.run = run
        self._sampler.folder = run.folder.root
        self.app.run_changed()
        self.go(TRAIN_PAGE)

    def attach_to(self, folder: RunFolder) -> None:
        """Watch a run of another process, or one that has ended."""
        from tui_trainer.ui.watch import WatchedRun

        run = WatchedRun(folder)
        run.poll()
        self.take_run(run)
        self.app.draw()

    def ask_run(self, wish: Wish) -> str:
        """Ask the run for something; what it did is in its journal a moment later. Why not, when it cannot be asked.

        A stop that cannot be asked for is asked for again at each tick.
        """
        if self.run is None or not self.run.alive:
            return ""
        problem = self.run.ask(wish)
        if wish == "stop":
            self._stop_unasked = bool(problem)
        self.tell(problem or f"asked to {wish}", "bad" if problem else "dim")
        self.app.soon()
        return problem

    def offer_start(self) -> None:
        """Say what would happen; one more key begins."""
        from tui_trainer.ui import starting

        starting.offer_start(self)

    def offer_quit(self) -> None:
        """Leave, after an answer where one is needed."""
        from tui_trainer.ui import starting

        starting.offer_quit(self)
