"""`python -m tui_trainer.bench.training_child`: some steps of one config by the program's own session, in a process
that has loaded nothing else.

Reads from standard input what to train and prints what the journal says of it, as JSON.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tui_trainer.launching.prepare import exact_plan, versions
from tui_trainer.launching.questions import request_of
from tui_trainer.launching.start import load_config
from tui_trainer.models.child import answer_question
from tui_trainer.models.unsloth import change_over
from tui_trainer.runs.events import EvalDone, Event, RunProblem, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter, read_all

if TYPE_CHECKING:
    from tui_trainer.training.session import Session

# Steps before the measured ones: memory is taken and caches are filled.
WARM_UP_STEPS = 2
# Times the median of seconds a token.
_SLOW_FACTOR = 3.0


def measure(question: dict[str, Any]) -> dict[str, Any]:
    """`question` has config_file, profile, shortcuts, assignments, gpu, steps, folder."""
    # Its steps and one evaluation; nothing is saved.
    with session_of(question, Path(question["folder"]), "turn") as (session, _):
        for step in range(1, question["steps"] + WARM_UP_STEPS + 1):
            session.take_step(step)
        session.evaluate(scheduled=False)
    return _figures(read_all(session.job.folder.journal))


@contextmanager
def session_of(question: dict[str, Any], place: Path, name: str) -> "Iterator[tuple[Session, int]]":
    """What a run of these settings has before its first step, and the resident bytes of the libraries, which its plan
    does not count. Its folder is `name` in `place`. Raises InputError."""
    loaded = load_config(request_of(question), gpu=question["gpu"])
    change_over(loaded.config, question)
    folder = RunFolder.create(place, name)
    with JournalWriter(folder.journal) as journal:
        plan, data = exact_plan(loaded, folder, journal, lambda *_: None, gpu=question["gpu"])
        from tui_trainer.training.job import Job
        from tui_trainer.training.ranks import Ranks
        from tui_trainer.training.run import opened_session

        job = Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions=versions())
        with opened_session(job, journal, lambda: False) as (session, resident):
            # Of several processes one is measured: what the first would do.
            session.batches.ranks = Ranks(count=plan.processes.value)
            yield session, resident


def _figures(events: list[Event]) -> dict[str, Any]:
    steps = [event for event in events if isinstance(event, StepDone)]
    held_out = [event.loss for event in events if isinstance(event, EvalDone)]
    measured = steps[WARM_UP_STEPS:]
    # Where rows are grouped by length, short steps are many and say little of a run: all together count. A step that
    # something else held up counts as if it had been a slow one.
    slowest = _SLOW_FACTOR * median(step.step_seconds / step.input_tokens for step in measured)
    seconds = sum(min(step.step_seconds, slowest * step.input_tokens) for step in measured)
    return {
        "step_seconds": median(step.step_seconds for step in measured),
        "samples_per_second": sum(step.samples for step in measured) / seconds,
        "tokens_per_second": sum(step.input_tokens for step in measured) / seconds,
        "peak_memory_bytes": max(step.peak_memory_bytes for step in steps),
        "loss": held_out[-1] if held_out else steps[-1].loss,
        "problems": {event.kind: event.message for event in events if isinstance(event, RunProblem)},
    }


if __name__ == "__main__":
    answer_question(measure)
