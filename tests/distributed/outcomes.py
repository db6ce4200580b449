"""Runs of several processes beside those of one: how to train and compare them, and Python that breaks a process."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from tests.runs.journals import read_all
from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import EvalDone, StepDone

STEPS = 8
TWO = {"distributed.processes": 2}
SPLIT = TWO | {"distributed.strategy": "fsdp"}
FULL = {"tuning.method": "full"}
LORA = {"tuning.method": "lora", "tuning.r": 4, "tuning.target_modules": "all-linear"}
ACCUMULATED = {"training.per_device_train_batch_size": 1}
# Neither two nor four divides it, and the last step of an epoch has fewer rows than processes.
UNEVEN = {"training.effective_batch_size": 7}
# Python that runs in a process before it trains, and breaks it at a step.
AT_STEP = """
import os, signal
from tui_trainer.runs import controls
from tui_trainer.training import session
take = session.Session.take_step
def breaking(self, step):
    if step == {step}:
        {action}
    return take(self, step)
session.Session.take_step = breaking
"""


def at_step(step, action):
    return AT_STEP.format(step=step, action=action)


DIES = "os.kill(os.getpid(), signal.SIGKILL)"
STOPS = at_step(5, "self.ranks.is_first and controls.request(self.job.folder.control, 'stop')")


def train(tmp_path, name, task, changes):
    """Return the folder of a finished run of eight steps on 41 rows."""
    data = write_rows(tmp_path / f"{task}.jsonl", [training_row(task, n) for n in range(41)])
    settings = SETTINGS | {
        "task.type": task,
        "training.max_steps": STEPS,
        "evaluation.eval_steps": 4,
        "logging.logging_steps": 3,
        "output.runs_dir": tmp_path / "runs",
        "output.name": name,
        # Adam takes a step of the same size even for a gradient that is nearly 0.
        "training.adam_epsilon": 1e-3,
    }
    assignments = tuple(f"{key}={value}" for key, value in (settings | changes).items())
    run = open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(data)})))
    outcome = execute_run(run)
    assert outcome.exit_code == 0, (outcome, *(path.read_text() for path in run.folder.logs.glob("rank-*.txt")))
    return run.folder


def from_model(path):
    return {"model.init": "pretrained", "model.model_name_or_path": path}


def events(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def losses(folder):
    """Return the loss of each step, of the last time that it was taken."""
    return {event.step: event.loss_sum for event in events(folder, StepDone)}


def weights(folder):
    """Return the tensors of the final model or adapter."""
    [path] = folder.model.glob("*.safetensors")
    return load_file(path)


def same(mine, theirs):
    """Return whether two runs have the same losses and weights to the bit."""
    one, two = weights(mine), weights(theirs)
    is_alike = losses(mine) == losses(theirs) and one.keys() == two.keys()
    return is_alike and all(tensor.equal(two[name]) for name, tensor in one.items())


def check_equal(alone, together, later_rel=1e-6, weights_abs=1e-5):
    """Check that two runs counted, learnt and scored the same.

    Losses and norms of the first step are of the same weights: they agree to 1e-6 whatever the optimizer rounds.
    """
    steps, other = events(alone, StepDone), events(together, StepDone)
    assert len(steps) == len(other) == STEPS
    for one, two in zip(steps, other, strict=True):
        counts = [(step.step, step.tokens, step.input_tokens, step.samples) for step in (one, two)]
        assert counts[0] == counts[1]
        rel = 1e-6 if one.step == 1 else later_rel
        assert two.loss_sum == pytest.approx(one.loss_sum, rel=rel)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=rel)
    for one, two in zip(events(alone, EvalDone), events(together, EvalDone), strict=True):
        assert (one.tokens, one.table_rows) == (two.tokens, two.table_rows)
        assert two.loss == pytest.approx(one.loss, rel=later_rel)
        assert one.scores == pytest.approx(two.scores, rel=later_rel)
    mine, theirs = weights(alone), weights(together)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert (tensor - theirs[name]).abs().max() < weights_abs, name
