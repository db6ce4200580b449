"""Answers the requests in `control.json` between two steps: pause, resume, save, evaluate, stop.

None of them changes a later loss: evaluation and saving draw nothing from the random state that training uses.
"""

import time

from tui_trainer.runs.controls import Controls
from tui_trainer.runs.events import ControlApplied, PhaseChanged
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.session import Session

_PAUSE_POLL_SECONDS = 0.1


class ControlHandler:
    def __init__(self, controls: Controls, session: Session, journal: JournalWriter) -> None:
        self._controls = controls
        self._session = session
        self._journal = journal
        self._paused = False
        self._stop = False
        session.ranks.has_news = controls.waiting

    def wants_stop(self) -> bool:
        """Do what was asked since the last step; waits here while paused."""
        self._answer()
        while self._paused and not self._stop:
            time.sleep(_PAUSE_POLL_SECONDS)
            self._answer()
        return self._stop

    def _answer(self) -> None:
        """Where several processes train together, all answer what the first has read, and at the same step: where it
        has said that there is something, or while they wait for it."""
        ranks = self._session.ranks
        if not (ranks.hears_news or self._paused):
            return
        for request in ranks.agreed(self._controls.wanted() if ranks.is_first else []):
            match request.action:
                case "pause":
                    self._pause(True)
                case "resume":
                    self._pause(False)
                case "save":
                    self._session.save("requested")
                case "evaluate":
                    self._session.evaluate(scheduled=False)
                case "stop":
                    self._stop = True
            step = self._session.position.step
            self._journal.append(ControlApplied(step=step, action=request.action, request_id=request.id))

    def _pause(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        self._session.flush()
        self._session.between.forget()
        step = self._session.position.step
        self._journal.append(PhaseChanged(step=step, phase="paused" if paused else "training"))
