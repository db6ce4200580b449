"""`python -m tui_trainer.bench.micro_batch_child`: micro-batches tried on the real model and data.

Reads from standard input what to try. Prints a line of JSON before each one, and one with what came of it.
"""

import signal
from pathlib import Path
from typing import Any

from tui_trainer.bench.rehearsal_child import tell
from tui_trainer.bench.training_child import session_of
from tui_trainer.launching.micro_batches import next_rows, to_time
from tui_trainer.models.child import answer_question

_ROUNDS, _STEPS, _TIMED_SECONDS = 3, 4, 30.0


def find(question: dict[str, Any]) -> dict[str, Any]:
    """`question` has a request, gpu, place, candidates, tried, step_rows, timed."""
    tried = {int(rows): bool(survived) for rows, survived in question["tried"]}
    with session_of(question, Path(question["place"]), f"tries-{len(tried)}") as (session, resident):
        from tui_trainer.training.worst_batch import MicroBatchTries

        tries = MicroBatchTries(session, resident)
        has_failed = False
        while (rows := next_rows(question["candidates"], tried)) is not None:
            tell(trying=rows, doing="trying")
            found = tries.survives(rows, passes=-(-question["step_rows"] // rows))
            if has_failed and "failed" in found:
                # What a failure leaves behind in the heap may be why: a new process says.
                return {}
            tried[rows] = "failed" not in found
            has_failed = has_failed or not tried[rows]
            tell(rows=rows, **found)
        if question["timed"]:
            _time(tries, to_time(tried), session.plan.total_steps.value)
        return {}


def _time(tries: Any, sizes: list[int], total_steps: int) -> None:
    """The same steps with each of these, in turns; the first of each round, with its new sizes, counts for nothing."""
    seconds: dict[int, list[float]] = {rows: [] for rows in sizes}
    spent = 0.0
    for number in range(_ROUNDS):
        first = 1 + number * _STEPS % max(total_steps - _STEPS, 1)
        for rows in sizes:
            tell(trying=rows, doing="timing")
            measured = tries.step_seconds(rows, first, _STEPS)
            spent += sum(measured)
            seconds[rows] += measured[1:]
        if spent > _TIMED_SECONDS:
            break
    for rows, measured in seconds.items():
        tell(rows=rows, step_seconds=measured)


def find_in_time(question: dict[str, Any]) -> dict[str, Any]:
    """The same within its `seconds`: a kernel that takes longer is ended with the process."""
    signal.setitimer(signal.ITIMER_REAL, question["seconds"])
    return find(question)


if __name__ == "__main__":
    answer_question(find_in_time)
