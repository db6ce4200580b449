"""A trained model on the rows of a table: in batches of rows of similar length, the predictions in the rows' order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.choice import Choice
from tui_trainer.data.sources.source import Source, open_source
from tui_trainer.errors import RunError
from tui_trainer.exporting.predicted_file import AskedRows, PredictedFile
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.hardware.out_of_memory import free_memory, is_out_of_memory, let_go
from tui_trainer.models.writing import Sampling, ignores_left_padding
from tui_trainer.tasks.contract import InputRow
from tui_trainer.tasks.parts.task import Task
from tui_trainer.units import format_seconds

FIELD = "prediction"
# Rows that are written at once, and from which batches of similar lengths are made: so many batches.
_BATCHES_OF_A_PART = 8
# Of a batch whose size nobody names: rows, and tokens with the padding.
_ROWS, _TOKENS = 64, 16_384


@dataclass(slots=True)
class Predictor:
    """A loaded model. `batch_size` 0: as many rows as `_TOKENS` allow; either is halved where memory is short."""

    task: Task
    config: Config
    model: Any
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    batch_size: int = 0
    _pads: bool | None = None
    _most_rows: int = 1 << 30

    def predict(self, contents: Sequence[Any], told: Callable[[int], None] = lambda rows: None) -> list[dict[str, Any]]:
        """What the model makes of what the input reader gave. `told` hears how many rows each pass was."""
        rows = self.task.encode_inputs(self.config, self.model, self.tokenizer, contents, self.sampling)
        found: dict[int, dict[str, Any]] = {}
        for batch in self._batches(rows):
            found |= zip(batch, self._pass([rows[at] for at in batch]), strict=True)
            told(len(batch))
        return [{**found[at], "truncated": True} if row.is_cut else found[at] for at, row in enumerate(rows)]

    def _batches(self, rows: Sequence[InputRow]) -> Iterator[list[int]]:
        """Numbers of rows, the longest first: what does not fit into memory shows at once."""
        order = sorted(range(len(rows)), key=lambda at: -len(rows[at]))
        batch: list[int] = []
        for at in order:
            if batch:
                automatic = min(_ROWS, _TOKENS // (len(rows[batch[0]]) * self.sampling.num_beams))
                most_rows = max(1, min(self.batch_size or automatic, self._most_rows))
                if len(batch) >= most_rows or not self._may_share(rows[batch[0]], rows[at]):
                    yield batch
                    batch = []
            batch.append(at)
        if batch:
            yield batch

    def _may_share(self, one: InputRow, other: InputRow) -> bool:
        """Whether a shorter row may be filled up beside a longer one. A model that writes is asked once."""
        if self.task.tells_padding or len(one) == len(other):
            return True
        if self._pads is None:
            self._pads = ignores_left_padding(self.model, self.tokenizer, list(other.ids))
        return self._pads

    def _pass(self, rows: Sequence[InputRow]) -> list[dict[str, Any]]:
        """In halves where there is not enough memory for all, from then on as well."""
        try:
            with torch.inference_mode():
                return self.task.predict(self.config, self.model, self.tokenizer, rows, self.sampling)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise RunError(f"there is not enough memory for a row of {len(rows[0]):,} tokens") from None
            let_go(error)
        free_memory()
        half = self._most_rows = len(rows) // 2
        return [one for part in (rows[:half], rows[half:]) for one in self._pass(part)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested:
    """Predictions to make: for the rows of `data`, into `out`, under the name `field`. `columns`: of the text and the
    second text, () as the run has them."""

    data: str
    out: Path
    sampling: Sampling
    batch_size: int = 0
    columns: tuple[str, ...] = ()
    field: str = FIELD
    skips_bad_rows: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """`rows_before` of the rows were there already."""

    rows: int
    rows_before: int
    seconds: float
    notes: tuple[str, ...]


def predict_file(
    trained: TrainedModel, asked: Requested, device: Callable[[], torch.device], progress: Progress
) -> Done:
    """Raises InputError for data and a file that cannot be used, before the model is loaded."""
    config, sampling = trained.config, asked.sampling
    named = dict(zip(("text_column", "text_pair_column"), asked.columns, strict=False))
    config = config.model_copy(update={"data": config.data.model_copy(update=named)})
    source = open_source(asked.data, config.data.text_column, Choice(measured=True))
    part_rows = _BATCHES_OF_A_PART * (asked.batch_size or _ROWS)
    file = PredictedFile(asked.out, _identity(trained, asked, source), part_rows)
    file.refuse(source.files, overwrite=asked.overwrite)
    rows = AskedRows(source, trained.task.input_reader(config, load_tokenizer(trained)))
    count = rows.count(asked.field, skips_bad_rows=asked.skips_bad_rows, told=progress)
    read = (f"of its splits one is predicted: {source.description}",) if source.others else ()
    notes, before = (*read, *rows.problems.notes()), file.rows_before()
    progress("loading the model", 0, None, "")
    predictor = load_predictor(trained, device(), sampling, asked.batch_size)
    speed = _Speed(count, before, progress)

    def predict(part: int, contents: list[Any]) -> list[dict[str, Any]]:
        torch.manual_seed(sampling.seed + part)
        return predictor.predict(contents, speed.add)

    file.write(iter(rows), predict, asked.field)
    return Done(rows=count, rows_before=before, seconds=speed.seconds, notes=notes)


def _identity(trained: TrainedModel, asked: Requested, source: Source) -> dict[str, Any]:
    """What two commands have in common whose predictions may stand in one file."""
    weights = sorted(trained.folder.glob("*.safetensors"))
    return {
        "run": str(trained.run.root),
        "weights": [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weights],
        "data": [source.path, *zip(map(str, source.files), source.signature(), strict=False)],
        "sampling": asdict(asked.sampling),
        "batch size": asked.batch_size,
        "column": asked.columns,
        "field": asked.field,
        "treatment of bad rows": asked.skips_bad_rows,
    }


class _Speed:
    """Rows a second and the time that is left, told as rows are done."""

    def __init__(self, rows: int, before: int, progress: Progress) -> None:
        self._rows, self._before, self._done, self._progress = rows, before, before, progress
        self._started = perf_counter()
        self.add(0)

    @property
    def seconds(self) -> float:
        return perf_counter() - self._started

    def add(self, rows: int) -> None:
        self._done += rows
        rate = (self._done - self._before) / max(self.seconds, 1e-9)
        left = format_seconds((self._rows - self._done) / rate) if rate else "--"
        self._progress("predicting", self._done, self._rows, f"rows, {rate:,.0f} rows/s, {left} left")


def load_predictor(trained: TrainedModel, device: torch.device, sampling: Sampling, batch_size: int = 0) -> Predictor:
    """The model of a run on a device: on a CPU in fp32 unless that takes too much memory, an adapter merged into it."""
    dtype = trained.compared_dtype if device.type == "cpu" else "auto"
    model = trained.load(dtype=dtype, merge=True).to(device)
    return Predictor(trained.task, trained.config, model, load_tokenizer(trained), sampling, batch_size)
