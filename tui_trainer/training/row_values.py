"""What is found out about each prepared row once, before training, and then lies beside it in every batch.

Rows are read in blocks, and a block is kept as soon as it is read, in the folder of the prepared data and under a key
of all that its values depend on: a run that was killed goes on with the block that it was at, and another one with the
same key reads nothing.
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
from tui_trainer.training.attempt import Shortage, attempt
from tui_trainer.training.components import Components
from tui_trainer.training.evaluate import EvaluationGivenUp, passes_of_all
from tui_trainer.training.job import Job

Values = NDArray[np.float32]
# Of a large data set a block is a two hundredth.
_LEAST_ROWS, _MOST_BLOCKS = 256, 200
_PROGRESS_SECONDS = 1.0


class RowReader:
    """Reads the rows of one file by a task's `RowPass`, in all processes of a run: each some of the blocks."""

    def __init__(
        self,
        job: Job,
        components: Components,
        journal: JournalWriter,
        is_interrupted: Callable[[], bool],
        rows: Rows,
        chosen: Sequence[int] | NDArray[np.int64],
    ) -> None:
        """`chosen`: the rows that the run uses, ascending."""
        assert components.row_pass is not None
        self._pass, self._components, self._journal = components.row_pass, components, journal
        self._is_interrupted = is_interrupted
        self._rows, self._layout = rows, components.eval_layout
        places = np.asarray(chosen, dtype=np.int64)
        size = max(_LEAST_ROWS, -(-len(places) // _MOST_BLOCKS))
        self._blocks = [places[start : start + size] for start in range(0, len(places), size)]
        self._block = self._blocks[0]
        self._folder = job.data.folder / f"values-{self._key(job, places)}"
        self._done = self._total = 0
        self._reported = monotonic()

    def read(self) -> Values:
        """fp32 [rows, width]; NaN for rows that are not chosen, and everywhere where a stop has cut it short. Raises
        RunError where they cannot be kept, or one row in a pass takes too much memory."""
        ranks, found = self._components.ranks, np.full((len(self._rows), self._pass.width), np.nan, dtype=np.float32)
        # Each node may have a folder of its own.
        known = {number for numbers in ranks.gathered(list(self._kept())) for number in numbers}
        missing = [number for number in range(len(self._blocks)) if number not in known]
        own = missing[ranks.number :: ranks.count]
        is_whole = self._read_blocks(own)
        parts = ranks.gathered(self._kept() if is_whole else None)
        if None in parts:
            # A stop, which some may have seen before the others.
            ranks.hears_news = True
            return found
        for part in parts:
            for number, values in (part or {}).items():
                found[self._blocks[number]] = values
        return found

    def _key(self, job: Job, places: NDArray[np.int64]) -> str:
        plan, config = job.plan, job.plan.config
        about = {
            "rows": [self._rows.path.name, xxhash.xxh3_128_hexdigest(places.tobytes()), len(self._blocks)],
            "pass": [config.task.type, dict(self._pass.key), self._pass.width],
            "model": [plan.model_key, config.model.model_dump(mode="json"), config.training.seed],
            "numbers": [plan.precision.value, plan.weights_dtype.value, config.quantization.model_dump(mode="json")],
        }
        return str(xxhash.xxh3_128_hexdigest(json.dumps(about, sort_keys=True).encode()))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04}.npy"

    def _kept(self) -> dict[int, Values]:
        """Blocks that are on this disk, whole."""
        loaded = ((number, self._load(number)) for number in range(len(self._blocks)))
        return {number: values for number, values in loaded if values is not None}

    def _load(self, number: int) -> Values | None:
        try:
            found: Values = np.load(self._path(number), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        expected = len(self._blocks[number]), self._pass.width
        return found if found.shape == expected and found.dtype == np.float32 else None

    def _keep(self, number: int, values: Values) -> None:
        written = io.BytesIO()
        np.save(written, values)
        try:
            self._folder.mkdir(exist_ok=True)
            write_atomically(self._path(number), written.getvalue())
        except OSError as error:
            message = f"the results of the rows could not be written to {self._folder}: {system_reason(error)}"
            raise RunError(f"{message}; {room_hint(error, self._folder)}") from error

    def _read_blocks(self, own: list[int]) -> bool:
        """Whether all of these are kept now. In smaller passes from where memory ran out."""
        components = self._components
        self._total = sum(len(self._blocks[number]) for number in own)
        self._done = 0
        while True:
            left = [number for number in own if self._load(number) is None]
            result = attempt(partial(self._read_left, left), components.device)
            if not isinstance(result, Shortage):
                return result
            if components.together.splits_weights and components.ranks.count > 1:
                # The others wait in the passes of the layers that all of them hold.
                raise GroupOutOfMemory(
                    f"out of memory in process {components.ranks.number} while {self._pass.what} ({result.words})"
                )
            documents = [self._rows.example(int(index)) for index in self._block]
            smaller = self._layout.halved(documents)
            if smaller is None:
                longest = max(map(len, documents))
                message = f"out of memory while {self._pass.what}, with one row per pass ({result.words})"
                raise RunError(f"{message}: the longest row has {longest:,} tokens. Lower data.max_length in a new run")
            self._layout = smaller

    def _read_left(self, numbers: list[int]) -> bool:
        components = self._components
        components.model.eval()
        try:
            with components.together.looking(), components.mixed_precision.autocast():
                spare = partial(next, self._spare())
                for (batch, places, values), _ in passes_of_all(
                    components, self._passes(numbers), spare, self._is_interrupted
                ):
                    of_rows = self._pass.values(batch.to(components.device))
                    values[places] = of_rows.float().cpu().numpy()
        except EvaluationGivenUp:
            return False
        finally:
            components.model.train()
        return True

    def _passes(self, numbers: list[int]) -> Iterator[tuple[MicroBatch, list[int], Values]]:
        """(a pass, the places of its rows in their block, the values of that block)."""
        for number in numbers:
            self._block = self._blocks[number]
            documents = [self._rows.example(int(index)) for index in self._block]
            places = {id(document): place for place, document in enumerate(documents)}
            values = np.empty((len(documents), self._pass.width), dtype=np.float32)
            for passed in self._layout.passes(documents):
                yield self._layout.micro_batch(passed), [places[id(row)] for rows in passed for row in rows], values
            self._keep(number, values)
            self._done += len(documents)
            self._report()

    def _spare(self) -> Iterator[tuple[MicroBatch, list[int], Values]]:
        """For processes that have no more rows: read, and put nowhere."""
        while True:
            row = self._rows.example(int(self._blocks[0][0]))
            yield self._layout.micro_batch([[row]]), [0], np.empty((1, self._pass.width), dtype=np.float32)

    def _report(self) -> None:
        if monotonic() - self._reported >= _PROGRESS_SECONDS or self._done == self._total:
            self._reported = monotonic()
            event = Progress(what=self._pass.what, done=self._done, total=self._total, unit="rows")
            self._journal.append(event)
