"""Compute values of each prepared row once before training, such as log probabilities of a reference model.

Rows are computed in blocks. Each finished block is saved in the folder of the prepared data, under a key of everything
that the values depend on. A resumed run therefore continues after the last saved block, and another run with the same
key computes nothing.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import xxhash
from numpy.typing import NDArray

from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import GroupOutOfMemory, RunError, room_hint, system_reason
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.runs.events import Progress
from tui_trainer.runs.folder import write_atomically
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.attempt import MemoryShortage, attempt
from tui_trainer.training.components import Components
from tui_trainer.training.evaluate import EvaluationGivenUp, passes_of_all
from tui_trainer.training.job import Job

Values = NDArray[np.float32]
# A large data set is divided into 200 blocks.
_LEAST_ROWS, _MOST_BLOCKS = 256, 200
_PROGRESS_SECONDS = 1.0


class RowReader:
    """Reader that computes values of one file's rows by a task's `RowPass`. Each process computes some blocks."""

    def __init__(
        self,
        job: Job,
        components: Components,
        journal: JournalWriter,
        is_interrupted: Callable[[], bool],
        rows: Rows,
        chosen: Sequence[int] | NDArray[np.int64],
    ) -> None:
        """Divide the rows that the run uses into blocks. `chosen` has their row numbers in ascending order."""
        assert components.row_pass is not None
        self._pass, self._components, self._journal = components.row_pass, components, journal
        self._is_interrupted = is_interrupted
        self._rows, self._layout = rows, components.eval_layout
        row_numbers = np.asarray(chosen, dtype=np.int64)
        block_rows = max(_LEAST_ROWS, -(-len(row_numbers) // _MOST_BLOCKS))
        self._blocks = [row_numbers[start : start + block_rows] for start in range(0, len(row_numbers), block_rows)]
        self._block = self._blocks[0]
        self._folder = job.data.folder / f"values-{self._key(job, row_numbers)}"
        self._done = self._total = 0
        self._reported = monotonic()

    def read(self) -> Values:
        """Return the values of all rows, fp32 [rows, width]. Rows that are not chosen have NaN, after a stop all rows.

        Raises RunError if values cannot be saved, or if a pass of one row takes too much memory.
        """
        ranks, result = self._components.ranks, np.full((len(self._rows), self._pass.width), np.nan, dtype=np.float32)
        # Each node may have its own folder, with other saved blocks.
        saved_numbers = {number for numbers in ranks.gathered(list(self._kept())) for number in numbers}
        missing_numbers = [number for number in range(len(self._blocks)) if number not in saved_numbers]
        is_complete = self._read_blocks(missing_numbers[ranks.rank :: ranks.world_size])
        parts = ranks.gathered(self._kept() if is_complete else None)
        if None in parts:
            # A process was stopped. Others may not have seen the stop yet.
            ranks.has_news_anywhere = True
            return result
        for part in parts:
            for number, values in (part or {}).items():
                result[self._blocks[number]] = values
        return result

    def _key(self, job: Job, places: NDArray[np.int64]) -> str:
        plan, config = job.plan, job.plan.config
        facts = {
            "rows": [self._rows.path.name, xxhash.xxh3_128_hexdigest(places.tobytes()), len(self._blocks)],
            "pass": [config.task.type, dict(self._pass.key), self._pass.width],
            "model": [plan.model_key, config.model.model_dump(mode="json"), config.training.seed],
            "numbers": [plan.precision.value, plan.weights_dtype.value, config.quantization.model_dump(mode="json")],
        }
        return str(xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode()))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04}.npy"

    def _kept(self) -> dict[int, Values]:
        """Return the values of the blocks that are complete on this machine's disk, keyed by block number."""
        loaded_blocks = ((number, self._load(number)) for number in range(len(self._blocks)))
        return {number: values for number, values in loaded_blocks if values is not None}

    def _load(self, number: int) -> Values | None:
        try:
            values: Values = np.load(self._path(number), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        expected_shape = len(self._blocks[number]), self._pass.width
        return values if values.shape == expected_shape and values.dtype == np.float32 else None

    def _keep(self, number: int, values: Values) -> None:
        buffer = io.BytesIO()
        np.save(buffer, values)
        try:
            self._folder.mkdir(exist_ok=True)
            write_atomically(self._path(number), buffer.getvalue())
        except OSError as error:
            message = f"the results of the rows could not be written to {self._folder}: {system_reason(error)}"
            raise RunError(f"{message}; {room_hint(error, self._folder)}") from error

    def _read_blocks(self, numbers: list[int]) -> bool:
        """Compute and save these blocks, in smaller passes if memory runs out. Return False after a stop."""
        components = self._components
        self._total, self._done = sum(len(self._blocks[number]) for number in numbers), 0
        while True:
            left_numbers = [number for number in numbers if self._load(number) is None]
            result = attempt(partial(self._read_left, left_numbers), components.device)
            if not isinstance(result, MemoryShortage):
                return result
            if components.collectives.splits_weights and components.ranks.world_size > 1:
                # The other processes wait inside a forward pass of the sharded model.
                place = f"in process {components.ranks.rank} while {self._pass.activity}"
                raise GroupOutOfMemory(f"out of memory {place} ({result.words})")
            documents = [self._rows.example(int(index)) for index in self._block]
            smaller_layout = self._layout.halved(documents)
            if smaller_layout is None:
                tokens = max(map(len, documents))
                message = f"out of memory while {self._pass.activity}, with one row per pass ({result.words})"
                raise RunError(f"{message}: the longest row has {tokens:,} tokens. Lower data.max_length in a new run")
            self._layout = smaller_layout

    def _read_left(self, numbers: list[int]) -> bool:
        components = self._components
        components.model.eval()
        try:
            with components.collectives.no_gradient_context(), components.mixed_precision.autocast():
                spare = partial(next, self._spare_passes())
                passes = passes_of_all(components, self._passes(numbers), spare, self._is_interrupted)
                for (batch, places, values), _ in passes:
                    row_values = self._pass.values(batch.to(components.device))
                    values[places] = row_values.float().cpu().numpy()
        except EvaluationGivenUp:
            return False
        finally:
            components.model.train()
        return True

    def _passes(self, numbers: list[int]) -> Iterator[tuple[MicroBatch, list[int], Values]]:
        """Yield (micro-batch, indices of its rows in the block, array of the block's values for the caller to fill)."""
        for number in numbers:
            self._block = self._blocks[number]
            documents = [self._rows.example(int(index)) for index in self._block]
            indices = {id(document): index for index, document in enumerate(documents)}
            values = np.empty((len(documents), self._pass.width), dtype=np.float32)
            for group in self._layout.passes(documents):
                yield self._layout.micro_batch(group), [indices[id(row)] for rows in group for row in rows], values
            self._keep(number, values)
            self._done += len(documents)
            self._report()

    def _spare_passes(self) -> Iterator[tuple[MicroBatch, list[int], Values]]:
        """Yield micro-batches for a process that has no more rows. Their values are dropped."""
        while True:
            row = self._rows.example(int(self._blocks[0][0]))
            yield self._layout.micro_batch([[row]]), [0], np.empty((1, self._pass.width), dtype=np.float32)

    def _report(self) -> None:
        if monotonic() - self._reported >= _PROGRESS_SECONDS or self._done == self._total:
            self._reported = monotonic()
            event = Progress(what=self._pass.activity, done=self._done, total=self._total, unit="rows")
            self._journal.append(event)
