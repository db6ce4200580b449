"""Reading finished runs, and comparing a resumed run with one that never stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file

from tests.runs.journals import read_all
from tests.trained_runs import stopping_after
from tui_trainer.errors import EXIT_DONE, EXIT_STOPPED
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import Outcome, execute_run
from tui_trainer.runs.events import Event
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.overview import overview
from tui_trainer.training.session import Session

Kind = TypeVar("Kind", bound=Event)
TinyRun = Callable[..., tuple[RunFolder, Outcome]]
# So small that the evaluation after the only step is that of the model with which the run began.
STILL = {"training.learning_rate": 1e-12, "training.max_steps": 1}


def of_kind(run: RunFolder, kind: type[Kind]) -> list[Kind]:
    return [event for event in read_all(run.journal) if isinstance(event, kind)]


def loss_of(run: RunFolder) -> float | None:
    """Return the last held-out loss, in nats a token or row."""
    return overview(run).eval_loss


def weights_in(run: RunFolder) -> dict[str, torch.Tensor]:
    """Return the tensors of the final model, or of its adapter."""
    return {name: tensor for path in run.model.glob("*.safetensors") for name, tensor in load_file(path).items()}


def stopped_run(tiny_run: TinyRun, name: str, changes: Mapping[str, Any], step: int) -> RunFolder:
    """Train until the step after which the run is asked to stop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "take_step", stopping_after(step))
        folder, outcome = tiny_run(name, changes)
    assert outcome.exit_code == EXIT_STOPPED and not folder.model.exists()
    return folder


def assert_resumes_to_the_bit(tiny_run: TinyRun, changes: Mapping[str, Any], step: int = 6) -> tuple[RunFolder, ...]:
    """Compare a run with one that is stopped after `step` and resumed; return both."""
    whole, outcome = tiny_run("whole", changes)
    assert outcome.exit_code == EXIT_DONE, outcome
    part = stopped_run(tiny_run, "part", changes, step)
    assert execute_run(reopen_run(part)).exit_code == EXIT_DONE
    expected, weights = weights_in(whole), weights_in(part)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
    assert loss_of(part) == loss_of(whole)
    return whole, part
