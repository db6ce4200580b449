"""Answers requests between two steps: pause, resume, save, evaluate, stop.

None of them changes a later loss: evaluation and saving draw nothing from the random state that training uses.
"""

import time
from dataclasses import dataclass
from itertools import chain

from tui_trainer.runs.controls import Controls
from tui_trainer.runs.events import ControlApplied, PhaseChanged
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.session import Session

_PAUSE_POLL_SECONDS = 0.1


@dataclass(slots=True)
class ControlHandler:
    controls: Controls
    session: Session
    journal: JournalWriter
    _paused: bool = False
    _stop: bool = False

    def __post_init__(self) -> None:
        ranks = self.session.ranks
        ranks.has_news = self.controls.has_news if ranks.is_first else lambda: self.controls.is_stopped_here

    def wants_stop(self) -> bool:
        """Do what was asked since the last step; waits here while paused."""
        self._answer()
        while self._paused and not self._stop:
            time.sleep(_PAUSE_POLL_SECONDS)
            self._answer()
        return self._stop

    def _answer(self) -> None:
        """Where several processes train together, all answer what the first has read and a stop that any was told, and
        at the same step: where one has said that there is something, or while they wait for it."""
        ranks = self.session.ranks
        if not (ranks.hears_news or self._paused):
            return
        requests = dict.fromkeys(chain(*ranks.gathered(self.controls.wanted(of_file=ranks.is_first))))
        # It would have given up an evaluation under way, so it does not wait for one that has not begun.
        stops = any(request.action == "stop" for request in requests)
        for request in requests:
            match request.action:
                case "pause":
                    self._pause(True)
                case "resume":
                    self._pause(False)
                case "save":
                    self.session.save("requested")
                case "evaluate" if not stops:
                    self.session.evaluate(scheduled=False)
                case "stop":
                    self._stop = True
            step = self.session.position.step
            self.journal.append(ControlApplied(step=step, action=request.action, request_id=request.id))

    def _pause(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        self.session.flush()
        self.session.between.forget()
        step = self.session.position.step
        self.journal.append(PhaseChanged(step=step, phase="paused" if paused else "training"))
