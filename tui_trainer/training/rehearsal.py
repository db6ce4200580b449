"""Rehearse the parts of a run that would fail late: largest batches, a checkpoint, the final model, a sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.hardware.out_of_memory import clear_error_frames, free_memory, is_out_of_memory
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.models.files import shards
from tui_trainer.planning.basis import EVAL_BATCH
from tui_trainer.planning.batch_cut import MICRO_BATCH_KEY
from tui_trainer.runs.folder import folder_size
from tui_trainer.runs.state import WARM_UP_STEPS, read_run
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training import checkpoint
from tui_trainer.training.attempt import MemoryShortage, attempt
from tui_trainer.training.batches import Batches, micro_batches_of_rows
from tui_trainer.training.collectives import gather_tensor
from tui_trainer.training.components import Components
from tui_trainer.training.evaluate import evaluate
from tui_trainer.training.job import CHECKPOINT, EVALUATION, FINAL, SAMPLE, TYPICAL, WORST
from tui_trainer.training.recorder import peak_memory_bytes, start_peak
from tui_trainer.training.session import Session
from tui_trainer.units import quantity

# The forward pass that takes most memory is tried, also with other micro-batch sizes.

# The largest batch is searched in the first steps only, because later steps have similar batches.
_MOST_STEPS = 50_000


def largest_pass(batches: Batches, total_steps: int) -> tuple[int, NDArray[np.int64]]:
    """Return (step, row numbers) of the run's forward pass with most tokens, including padding."""
    rows, layout = batches.rows, batches.layout
    largest_size, largest_step_and_rows = -1.0, (1, batches.order.at(1))
    for step in range(1, min(total_steps, _MOST_STEPS) + 1):
        chosen_rows = batches.order.at(step)
        if layout.packed_width:
            size = float(rows.lengths[chosen_rows].sum())
        else:
            chosen_rows = chosen_rows[np.argsort(-rows.longest[chosen_rows], kind="stable")][: layout.rows_per_pass]
            size = float(rows.longest[chosen_rows[0]] * rows.documents[chosen_rows].sum())
        if size > largest_size:
            largest_size, largest_step_and_rows = size, (step, chosen_rows)
    return largest_step_and_rows


def train_on(components: Components, batch: MicroBatch, passes: int) -> None:
    """Make two steps, each of `passes` passes over one batch. In the second step the optimizer state is in memory."""
    for _ in range(2):
        # `float` waits for the GPU, because work in its queue may still fail.
        float(components.take_step(1, lambda: [batch] * passes).grad_norm)


def measure_work(components: Components, resident_bytes: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of `work`, with its `seconds` and with `peak_memory_bytes` above `resident_bytes`.

    If `work` raises, the figures are `failed` (the message) and `is_memory`. Memory is freed afterwards.
    """
    start_peak(components.device)
    started_at = perf_counter()
    try:
        figures = work()
    except Exception as error:  # any failure of the model, the disk or the memory is a result
        message = one_line(str(error), 300) or type(error).__name__
        figures = {"failed": message, "is_memory": is_out_of_memory(error)}
        clear_error_frames(error)
    peak_bytes = max(peak_memory_bytes(components.device) - resident_bytes, 0)
    figures |= {"seconds": perf_counter() - started_at, "peak_memory_bytes": peak_bytes}
    components.discard_step()
    free_memory()
    return figures


@dataclass(frozen=True, slots=True)
class MicroBatchTries:
    """Trials of micro-batch sizes in an open session."""

    session: Session
    resident_bytes: int
    """Memory of the loaded libraries, which the plan does not count."""

    def try_steps(self, rows: int, passes: int) -> dict[str, Any]:
        """Try steps of `passes` passes over the largest batch of `rows` rows. Return its peak memory, or `failed`."""
        components, batches = self.session.components, self.session.components.batches
        components.set_layout(replace(batches.layout, rows_per_pass=rows))
        _, chosen_rows = largest_pass(batches, self.session.plan.total_steps.value)
        documents = [batches.rows.example(int(index)) for index in chosen_rows]

        def train() -> dict[str, Any]:
            batch = max(batches.layout.micro_batches(documents), key=attrgetter("position_count")).to(components.device)
            work = partial(train_on, components, batch, passes=min(passes, 2))
            result = attempt(work, components.device, components.discard_step)
            return {"failed": f"out of memory ({result.words})"} if isinstance(result, MemoryShortage) else {}

        # Kernels may also refuse this number of rows.
        return measure_work(components, self.resident_bytes, train)

    def step_seconds(self, rows: int, first: int, count: int) -> list[float]:
        """Make `count` steps from step `first` on, in micro-batches of `rows` rows. Return the seconds of each step."""
        components, batches = self.session.components, self.session.components.batches
        components.set_layout(replace(batches.layout, rows_per_pass=rows))

        def step_batches(step: int) -> list[MicroBatch]:
            return [batch.to(components.device) for batch in batches.micro_batches_of(step)]

        durations = []
        for step in range(first, first + count):
            started_at = perf_counter()
            float(components.take_step(1, partial(step_batches, step)).grad_norm)
            durations.append(perf_counter() - started_at)
        return durations


_SHOWN_TOKENS = 40
_STEPS, _TYPICAL_SECONDS, _EVALUATION_PASSES = 14, 15.0, 4


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Rehearsal of a run: functions for its parts, which use an open session."""

    session: Session
    report: Callable[..., None]
    """Callback that gets the name of each part when it starts, and again with its figures when it ends."""
    resident_bytes: int
    """Memory of the loaded libraries, which the plan does not count."""

    def run(self, parts: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Run these parts, and return the figures of each part. Stop early only if the model cannot train at all."""
        functions = {
            WORST: self._worst,
            TYPICAL: self._typical,
            EVALUATION: self._evaluation,
            CHECKPOINT: self._checkpoint,
            FINAL: self._final,
            SAMPLE: self._sample,
        }
        figures_of: dict[str, dict[str, Any]] = {}
        for name in parts:
            self.report(part=name)
            figures = figures_of[name] = measure_work(self.session.components, self.resident_bytes, functions[name])
            self.report(part=name, **figures)
            if name in (WORST, TYPICAL) and "failed" in figures and "works_with" not in figures:
                break
        return figures_of

    def _worst(self) -> dict[str, Any]:
        """Train two steps on the largest batch, in smaller passes if memory runs out, and return figures.

        If the plan has several passes per step, these steps have two, so that gradients of a first pass are in memory.
        """
        components, batches = self.session.components, self.session.components.batches
        step, chosen_rows = largest_pass(batches, self.session.plan.total_steps.value)
        documents = [batches.rows.example(int(index)) for index in chosen_rows]
        longest_row = int(chosen_rows[batches.rows.lengths[chosen_rows].argmax()])
        beginning = str(components.tokenizer.decode(batches.rows.row(longest_row)[:_SHOWN_TOKENS].tolist()))
        figures = {
            "step": step, "row": longest_row + 1, "begins": one_line(beginning, 60),
            "longest": int(batches.rows.lengths[longest_row]), "median_length": float(np.median(batches.rows.lengths)),
        }  # fmt: skip
        planned_layout = batches.layout
        while True:
            batch = max(batches.layout.micro_batches(documents), key=attrgetter("position_count")).to(components.device)
            is_whole = batches.layout is planned_layout and self.session.plan.gradient_accumulation_steps.value == 1
            work = partial(train_on, components, batch, passes=1 if is_whole else 2)
            result = attempt(work, components.device, components.discard_step)
            figures["rows"] = batch.sample_count
            if not isinstance(result, MemoryShortage):
                break
            smaller_layout = batches.layout.halved(documents)
            if smaller_layout is None:
                return figures | {"failed": f"out of memory ({result.words})", "is_memory": True}
            components.set_layout(smaller_layout)
        if batches.layout is planned_layout:
            return figures
        return figures | _smaller_works(MICRO_BATCH_KEY, planned_layout.rows_per_pass, batches.layout.rows_per_pass)

    def _typical(self) -> dict[str, Any]:
        started_at, session = perf_counter(), self.session
        last_step = min(_STEPS, session.plan.total_steps.value)
        for step in range(1, last_step + 1):
            session.take_step(step)
            session.flush()
            if step > WARM_UP_STEPS + 2 and perf_counter() - started_at > _TYPICAL_SECONDS:
                break
        step_seconds = read_run(session.job.folder).step_seconds
        seconds = step_seconds[WARM_UP_STEPS:] or step_seconds
        low, _, high = quantiles([*seconds, *seconds], n=4)
        return {"steps": len(seconds), "step_seconds": median(seconds), "least_seconds": low, "most_seconds": high}

    def _evaluation(self) -> dict[str, Any]:
        """Evaluate the largest batch, in smaller passes if memory runs out, and then time some typical passes."""
        session, components = self.session, self.session.components
        if session.job.data.eval_path is None:
            return {"skipped": "there is no held-out data"}
        rows = Rows(session.job.data.eval_path)
        indices = evenly_spaced(len(rows), session.plan.eval_rows.value)
        planned_layout, lengths = components.eval_layout, rows.lengths[np.asarray(indices)]
        longest_first = [indices[index] for index in np.argsort(-lengths, kind="stable")]
        figures: dict[str, Any] = {"longest": int(lengths.max()), "row": int(longest_first[0]) + 1}
        while True:
            layout = components.eval_layout
            largest_batch = next(micro_batches_of_rows(rows, longest_first[: layout.rows_per_pass], layout))
            result = attempt(partial(evaluate, components, [largest_batch]), components.device)
            figures["rows"] = largest_batch.sample_count
            if not isinstance(result, MemoryShortage):
                break
            smaller_layout = layout.halved([rows.example(number) for number in longest_first[: layout.rows_per_pass]])
            if smaller_layout is None:
                return figures | {"failed": f"out of memory ({result.words})", "is_memory": True}
            components.eval_layout = smaller_layout
        timed_count = layout.rows_per_pass * _EVALUATION_PASSES
        timed_rows = [indices[index] for index in evenly_spaced(len(indices), timed_count)]
        evaluation = evaluate(components, micro_batches_of_rows(rows, timed_rows, layout))
        assert evaluation is not None, "an evaluation is abandoned only by `go_on`"
        figures["evaluation_seconds"] = evaluation.seconds * len(indices) / len(timed_rows)
        if layout is planned_layout:
            return figures
        return figures | _smaller_works(EVAL_BATCH, planned_layout.rows_per_pass, layout.rows_per_pass)

    def _checkpoint(self) -> dict[str, Any]:
        """Save a checkpoint, compare its files with the tensors in memory, load it, and return its size and time."""
        components, folder = self.session.components, self.session.job.folder
        started_at = perf_counter()
        result = checkpoint.save_checkpoint(folder.checkpoints, components, self.session.position, self.session.plan)
        save_seconds = perf_counter() - started_at
        state = components.optimizer.tensors()
        files = (components.weights(), components.method.weights_file), (state, checkpoint.OPTIMIZER)
        for tensors, single_name in files:
            names = set(tensors)
            for path in shards.files_of(result.path, single_name):
                for name, tensor in load_file(path).items():
                    names.discard(name)
                    if not torch.equal(tensor, gather_tensor(tensors[name]).cpu()):
                        raise OSError(f"the tensor {name} differs after it was read back")
            if names:
                raise OSError(f"the tensor {min(names)} was written but is missing from its file")
        checkpoint.load_checkpoint(result, components)
        return {"bytes": result.bytes, "save_seconds": save_seconds}

    def _final(self) -> dict[str, Any]:
        self.session.write_final_model()
        return {"bytes": folder_size(self.session.job.folder.model).bytes}

    def _sample(self) -> dict[str, Any]:
        if not self.session.plan.sample_every_steps.value:
            return {"skipped": "logging.sample_steps = 0"}
        self.session.sample()
        state = read_run(self.session.job.folder)
        if state.samples:
            return {"sample_seconds": state.samples[-1].seconds}
        return {"failed": "; ".join(problem.message for problem in state.problems if problem.kind == "no text")}


def _smaller_works(key: str, planned: int, rows: int) -> dict[str, Any]:
    failure = f"out of memory with {quantity(planned, 'row')} per pass, but not with {rows}"
    return {"failed": failure, "is_memory": True, "works_with": {key: rows}}
