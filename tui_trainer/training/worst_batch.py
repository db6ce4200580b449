"""The forward pass of a run that takes most memory, and micro-batches of other sizes tried on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.hardware.out_of_memory import free_memory, is_out_of_memory, let_go
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.safe_text import one_line
from tui_trainer.training.attempt import Shortage, attempt
from tui_trainer.training.batches import Batches
from tui_trainer.training.components import Components
from tui_trainer.training.recorder import peak_memory_bytes, start_peak
from tui_trainer.training.session import Session

# Steps of which the rows are looked through for the largest batch; more than that are like them.
_MOST_STEPS = 50_000


def largest_pass(batches: Batches, total_steps: int) -> tuple[int, NDArray[np.int64]]:
    """(step, its rows) of the forward pass with most tokens, padding counted, of all that the run will make."""
    rows, layout = batches.rows, batches.layout
    largest, found = -1.0, (1, batches.order.at(1))
    for step in range(1, min(total_steps, _MOST_STEPS) + 1):
        chosen = batches.order.at(step)
        if layout.packed_width:
            size = float(rows.lengths[chosen].sum())
        else:
            chosen = chosen[np.argsort(-rows.longest[chosen], kind="stable")][: layout.rows]
            size = float(rows.longest[chosen[0]] * rows.documents[chosen].sum())
        if size > largest:
            largest, found = size, (step, chosen)
    return found


def train_on(components: Components, batch: MicroBatch, passes: int) -> None:
    """Two steps of so many passes over one batch: the second has the optimizer's state as well."""
    for _ in range(2):
        # What a card has only been asked for is not over yet, and may still fail.
        float(components.take_step(1, lambda: [batch] * passes).grad_norm)


def measured(components: Components, resident_bytes: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures that `work` gives, or `failed`, with its seconds and peak memory beyond `resident_bytes`; nothing of
    it is held afterwards."""
    start_peak(components.device)
    started = perf_counter()
    try:
        figures = work()
    except Exception as error:  # whatever a model, a disk or a full memory raises is what is looked for
        figures = {
            "failed": one_line(str(error), 300) or type(error).__name__,
            "is_memory": is_out_of_memory(error),
        }
        let_go(error)
    peak = max(peak_memory_bytes(components.device) - resident_bytes, 0)
    figures |= {"seconds": perf_counter() - started, "peak_memory_bytes": peak}
    components.give_up_step()
    free_memory()
    return figures


@dataclass(frozen=True, slots=True)
class MicroBatchTries:
    """`resident_bytes`: of the libraries, which the plan does not count."""

    session: Session
    resident_bytes: int

    def survives(self, rows: int, passes: int) -> dict[str, Any]:
        """The largest pass of so many rows, as in steps of so many passes: its peak memory, or `failed`."""
        components, batches = self.session.components, self.session.components.batches
        components.lay_out_anew(replace(batches.layout, rows=rows))
        _, chosen = largest_pass(batches, self.session.plan.total_steps.value)
        documents = [batches.rows.example(int(index)) for index in chosen]

        def train() -> dict[str, Any]:
            batch = max(batches.layout.window(documents), key=attrgetter("positions")).to(components.device)
            work = partial(train_on, components, batch, passes=min(passes, 2))
            found = attempt(work, components.device, components.give_up_step)
            return {"failed": f"out of memory ({found.words})"} if isinstance(found, Shortage) else {}

        # A kernel that does not take so many rows is what is looked for as well.
        return measured(components, self.resident_bytes, train)

    def step_seconds(self, rows: int, first: int, count: int) -> list[float]:
        """Of so many whole steps in micro-batches of so many rows, from the step `first` on."""
        components, batches = self.session.components, self.session.components.batches
        components.lay_out_anew(replace(batches.layout, rows=rows))

        def window(step: int) -> list[MicroBatch]:
            return [batch.to(components.device) for batch in batches.at(step)]

        found = []
        for step in range(first, first + count):
            started = perf_counter()
            float(components.take_step(1, partial(window, step)).grad_norm)
            found.append(perf_counter() - started)
        return found
