"""What came of runs of several processes, and Python that spoils one of them at a step."""

from __future__ import annotations

from safetensors.torch import load_file

from tui_trainer.runs.events import StepDone
from tui_trainer.runs.journal import read_all

AT_STEP = """
import os, signal
from tui_trainer.training import session
take = session.Session.take_step
def spoilt(self, step):
    if step == {step}:
        {what}
    return take(self, step)
session.Session.take_step = spoilt
"""
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


def spoilt(step, what):
    return AT_STEP.format(step=step, what=what)


STOPS = "from tui_trainer.runs import controls\n" + spoilt(
    5, "self.ranks.is_first and controls.request(self.job.folder.control, 'stop')"
)


def losses(folder):
    """Of each step, the last time that it was taken."""
    return {event.step: event.loss_sum for event in read_all(folder.journal) if isinstance(event, StepDone)}


def weights(folder):
    """Of the model, or of its adapter."""
    [path] = folder.model.glob("*.safetensors")
    return load_file(path)


def events(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def same(mine, theirs):
    one, two = weights(mine), weights(theirs)
    is_alike = losses(mine) == losses(theirs) and one.keys() == two.keys()
    return is_alike and all(tensor.equal(two[name]) for name, tensor in one.items())
