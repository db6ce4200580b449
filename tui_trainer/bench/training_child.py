"""`python -m tui_trainer.bench.training_child`: some steps of one config by the program's own session, in a process
that has loaded nothing else.

Reads from standard input what to train and prints what the journal says of it, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.prepare import exact_plan, versions
from tui_trainer.launching.start import load_config
from tui_trainer.models.child import answer_question
from tui_trainer.runs.events import EvalDone, Event, LibrariesLoaded, RunProblem, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter, read_all

if TYPE_CHECKING:
    from tui_trainer.training.session import Session

# Steps before the measured ones: memory is taken and caches are filled.
WARM_UP_STEPS = 2


def measure(question: dict[str, Any]) -> dict[str, Any]:
    """`question` has config_file, profile, shortcuts, assignments, gpu, steps."""
    with TemporaryDirectory(prefix="bench-") as place:
        folder = RunFolder.create(Path(place), "turn")
        _train(load_config(request_of(question), gpu=question["gpu"]), folder, question)
        return _figures(read_all(folder.journal))


def question_of(request: Request, gpu: GpuChoice) -> dict[str, Any]:
    """A request as JSON has it."""
    return {
        "config_file": str(request.config_file) if request.config_file else "",
        "profile": request.profile,
        "shortcuts": dict(request.shortcuts),
        "assignments": list(request.assignments),
        "gpu": gpu,
    }


def request_of(question: dict[str, Any]) -> Request:
    """What `question_of` has put in words."""
    file = question["config_file"]
    return Request(
        config_file=Path(file) if file else None,
        profile=question["profile"],
        assignments=tuple(question["assignments"]),
        shortcuts=question["shortcuts"],
    )


def _train(loaded: LoadedConfig, folder: RunFolder, question: dict[str, Any]) -> None:
    """Its steps and one evaluation; nothing is saved."""
    with opened_session(loaded, folder, question["gpu"]) as session:
        for step in range(1, question["steps"] + WARM_UP_STEPS + 1):
            session.take_step(step)
        session.evaluate(scheduled=False)


@contextmanager
def opened_session(loaded: LoadedConfig, folder: RunFolder, gpu: GpuChoice) -> Iterator[Session]:
    """What a run of these settings has before its first step, as `launching/carry_out.py` and `training/run.py` make
    it. Raises InputError."""
    journal = JournalWriter(folder.journal)
    plan, data = exact_plan(loaded, folder, journal, lambda *_: None, gpu=gpu)
    from tui_trainer.training.compiled import compiler
    from tui_trainer.training.fused_kernels import taken_back
    from tui_trainer.training.job import Job
    from tui_trainer.training.process import settings_of
    from tui_trainer.training.recorder import memory_before
    from tui_trainer.training.session import Session

    job = Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions=versions())
    with settings_of(plan), taken_back(), compiler() if loaded.config.training.torch_compile else nullcontext():
        before = memory_before(plan.config) if plan.device == "cpu" else None
        journal.append(LibrariesLoaded(resident_bytes=before))
        session = Session(job, journal, lambda: False)
        try:
            yield session
        finally:
            session.close()
            journal.close()


def _figures(events: list[Event]) -> dict[str, Any]:
    steps = [event for event in events if isinstance(event, StepDone)]
    held_out = [event.loss for event in events if isinstance(event, EvalDone)]
    measured = steps[WARM_UP_STEPS:]
    return {
        "step_seconds": median(step.step_seconds for step in measured),
        "samples_per_second": median(step.samples / step.step_seconds for step in measured),
        "tokens_per_second": median(step.input_tokens / step.step_seconds for step in measured),
        "peak_memory_bytes": max(step.peak_memory_bytes for step in steps),
        "loss": held_out[-1] if held_out else steps[-1].loss,
        "problems": {event.kind: event.message for event in events if isinstance(event, RunProblem)},
    }


if __name__ == "__main__":
    answer_question(measure)
