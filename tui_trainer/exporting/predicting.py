"""Predict the rows of a file with a trained model, and write the predictions as JSON lines in the order of the rows.

Predictions are written to OUT.partial in parts of some hundred rows, and OUT.partial is renamed when it is complete.
OUT.partial.json describes the command: the same command continues after the last complete part, and another command is
refused. An interrupted and continued command writes the same bytes as an uninterrupted one."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BufferedRandom
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from tui_trainer.config.sections import Config
from tui_trainer.data.columns.reader import read_rows
from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.source import DataChoice, Source, open_source
from tui_trainer.errors import DataError, FolderError, RunError, system_reason
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.hardware.diagnosis import GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.out_of_memory import clear_error_frames, free_memory, is_out_of_memory
from tui_trainer.hardware.probe import probe
from tui_trainer.hardware.visible_gpus import card_index
from tui_trainer.models.writing import Sampling, ignores_left_padding
from tui_trainer.runs.folder import sync_folder, write_atomically
from tui_trainer.runs.json_fields import replace_non_finite
from tui_trainer.runs.lock import FileLock
from tui_trainer.tasks.contract import InputReader, InputRow
from tui_trainer.tasks.parts.task import Task
from tui_trainer.units import format_rate, format_seconds

FIELD = "prediction"
# Number of batches in a part. The rows of a part are sorted by length into batches, and written together.
_BATCHES_OF_A_PART = 8
# Most rows, and most tokens including padding, in a batch whose size the user did not set.
_ROWS, _TOKENS = 64, 16_384


@dataclass(slots=True)
class InputRows:
    """Iterable of (row, model input) over a source. Rows that cannot be read are skipped and counted in `problems`."""

    source: Source
    reader: InputReader
    problems: ProblemList = field(default_factory=ProblemList)

    def __iter__(self) -> Iterator[tuple[Row, Any]]:
        self.problems = ProblemList()
        for part in self.source.parts:
            yield from read_rows(self.reader, _rows_of(part, self.problems), self.problems)

    def count(self, field_name: str, *, skips_bad_rows: bool, progress: Progress) -> int:
        """Read all rows, and return their number. Raises DataError for rows that cannot be used."""
        row_count = 0
        for row, _ in self:
            if field_name in row.values:
                hint = "choose another name with --field"
                raise DataError(f"the row already has a field '{field_name}'", where=row.where, hint=hint)
            row_count += 1
            if not row_count % 500:
                progress("reading", row_count, None, "rows")
        progress("reading", row_count, row_count, "rows")
        hint = "use --on-bad-rows skip to skip rows that cannot be used" if row_count else ""
        self.problems.raise_any(skips_rows=skips_bad_rows and row_count > 0, fix=hint, all_rows=not row_count)
        if not row_count:
            raise DataError("no rows found", where=self.source.description, hint="add at least one row")
        return row_count


def _rows_of(source: Source, problems: ProblemList) -> Iterator[Row]:
    """Yield the rows of a source. A file of plain text is a single row."""
    is_table = source.sample and source.sample.is_table
    if all(entry.holds_rows for entry in source.entries) if source.entries else is_table:
        yield from source.rows(problems, choices=ColumnChoices(""))
        return
    for document in source.documents(problems=problems):
        yield Row(document.where, {"text": document.text})


class PredictedFile:
    """File of predictions that grows part by part. `command` has everything that determines them, as JSON values."""

    def __init__(self, out: Path, command: Mapping[str, Any], part_rows: int) -> None:
        self.out, self._command, self._part_rows = out, {**command, "part_rows": part_rows}, part_rows
        self.partial = out.with_name(f"{out.name}.partial")
        self._command_file = out.with_name(f"{out.name}.partial.json")

    @contextmanager
    def locked(self, sources: Sequence[Path], *, overwrite: bool) -> Iterator[None]:
        """Return a context that locks the file. Raises FolderError if the file cannot be written or is in use."""
        where = str(self.out)
        try:
            self._command_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # for example a name that is too long
            message = f"cannot be used: {system_reason(error)}"
            raise FolderError(message, where=where, hint="choose another file") from None
        if self.out.is_dir():
            raise FolderError("is a folder", where=where, hint="--out must be a file")
        if not self.out.parent.is_dir():
            raise FolderError("its folder does not exist", where=where, hint="create it or change --out")
        if not os.access(self.out.parent, os.W_OK | os.X_OK):
            raise FolderError("its folder is not writable", where=where, hint="choose another file with --out")
        with FileLock(self.out.with_name(f"{self.out.name}.partial.lock"), "predict", self.out):
            self._refuse_overwriting(sources, overwrite)
            yield

    def _refuse_overwriting(self, sources: Sequence[Path], overwrite: bool) -> None:
        """Raise FolderError if the file exists, or if another command has left it unfinished, unless `overwrite`."""
        where = str(self.out)
        if any(self.out.exists() and path.exists() and path.samefile(self.out) for path in sources):
            raise FolderError("is one of the input files", where=where, hint="choose another file with --out")
        if self.out.exists() and not overwrite:
            raise FolderError("already exists", where=where, hint="use --overwrite to replace it")
        if not self.partial.exists():
            self._command_file.unlink(missing_ok=True)
        elif other_command := self._other_command():
            if not overwrite:
                hint = "run the first command again to continue the predictions, or add --overwrite to start over"
                raise FolderError(f"was started with {other_command}", where=str(self.partial), hint=hint)
            self.partial.unlink()
            self._command_file.unlink(missing_ok=True)

    def _other_command(self) -> str:
        """Return how the command that began the unfinished file differs from the present one; empty if it does not."""
        try:
            before = json.loads(self._command_file.read_bytes())
            names = [name for name, value in json.loads(json.dumps(self._command)).items() if before.get(name) != value]
        except (OSError, ValueError, AttributeError):
            return "an unknown command"
        return f"different settings ({', '.join(names[:3]).replace('_', ' ')})" if names else ""

    def write(
        self, rows: Iterator[tuple[Row, Any]], predict: Callable[[int, list[Any]], list[dict[str, Any]]], name: str
    ) -> None:
        """Write a line for each row: its own fields, and its prediction as the field `name`.

        `predict` gets the number of a part and the inputs of its rows. Call it within `locked`. Raises RunError if the
        file cannot be written."""
        try:
            with self._open() as file:
                part_number = self._keep_complete_parts(file)
                rows = islice(rows, part_number * self._part_rows, None)
                while pairs := list(islice(rows, self._part_rows)):
                    predictions = predict(part_number, [content for _, content in pairs])
                    for (row, _), prediction in zip(pairs, predictions, strict=True):
                        file.write(_line({**row.values, name: prediction}))
                    file.flush()
                    os.fsync(file.fileno())
                    part_number += 1
            self.partial.replace(self.out)
            self._command_file.unlink(missing_ok=True)
            sync_folder(self.out.absolute().parent)
        except OSError as error:
            reason = f"{system_reason(error)}; rerun the same command to continue"
            raise RunError(f"{self.out} cannot be written: {reason}") from None

    def rows_before(self) -> int:
        try:
            with self.partial.open("rb") as file:
                return self._part_rows * (sum(line.endswith(b"\n") for line in file) // self._part_rows)
        except FileNotFoundError:
            return 0

    def _open(self) -> BufferedRandom:
        if not self.partial.exists():
            write_atomically(self._command_file, json.dumps(self._command, indent=1).encode())
        fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        return os.fdopen(fd, "r+b")

    def _keep_complete_parts(self, file: BufferedRandom) -> int:
        """Truncate the file after its last complete part, and return the number of parts."""
        part_count = parts_end = position = 0
        for number, line in enumerate(file, start=1):
            position += len(line)
            if line.endswith(b"\n") and not number % self._part_rows:
                part_count, parts_end = part_count + 1, position
        file.seek(parts_end)
        file.truncate()
        return part_count


def _line(values: Mapping[str, Any]) -> bytes:
    """Return a row as a JSON line. Values without a JSON type, such as dates, become text."""
    try:
        return (json.dumps(replace_non_finite(values), ensure_ascii=False, default=str) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(replace_non_finite(values), default=str) + "\n").encode()


@dataclass(slots=True)
class Predictor:
    """Loaded model and its batch size (0: rows that fit into `_TOKENS`). The size is halved when memory runs out."""

    task: Task
    config: Config
    model: Any
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    batch_size: int = 0
    _pads: bool | None = None
    _most_rows: int = 1 << 30

    def predict(self, contents: Sequence[Any], add: Callable[[int], None] = lambda rows: None) -> list[dict[str, Any]]:
        """Return the predictions for inputs of the task's reader. `add` gets the number of rows of each pass."""
        rows = self.task.encode_inputs(self.config, self.model, self.tokenizer, contents, self.sampling)
        predictions: dict[int, dict[str, Any]] = {}
        for indices in self._batches(rows):
            predictions |= zip(indices, self._pass([rows[index] for index in indices]), strict=True)
            add(len(indices))
        return [{**predictions[i], "truncated": True} if row.is_cut else predictions[i] for i, row in enumerate(rows)]

    def _batches(self, rows: Sequence[InputRow]) -> Iterator[list[int]]:
        """Yield batches of row indices, the longest rows first, so that too little memory is noticed at once."""
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        batch_indices: list[int] = []
        for index in order:
            if batch_indices:
                automatic_rows = min(_ROWS, _TOKENS // (len(rows[batch_indices[0]]) * self.sampling.num_beams))
                most_rows = max(1, min(self.batch_size or automatic_rows, self._most_rows))
                if len(batch_indices) >= most_rows or not self._may_share(rows[batch_indices[0]], rows[index]):
                    yield batch_indices
                    batch_indices = []
            batch_indices.append(index)
        if batch_indices:
            yield batch_indices

    def _may_share(self, longer: InputRow, shorter: InputRow) -> bool:
        """Return whether the shorter row may be padded to share a batch. A generating model is tested once."""
        if self.task.masks_padding or len(longer) == len(shorter):
            return True
        if self._pads is None:
            self._pads = ignores_left_padding(self.model, self.tokenizer, list(shorter.ids))
        return self._pads

    def forward(self, rows: Sequence[InputRow]) -> list[dict[str, Any]]:
        """Return the predictions of a batch that fits into memory."""
        return self.task.predict(self.config, self.model, self.tokenizer, rows, self.sampling)

    def _pass(self, rows: Sequence[InputRow]) -> list[dict[str, Any]]:
        """Return the predictions of a batch. If memory runs out, halve this batch and the size of all later ones."""
        try:
            with torch.inference_mode():
                return self.forward(rows)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise RunError(f"out of memory for a single row of {len(rows[0]):,} tokens") from None
            clear_error_frames(error)
        free_memory()
        half_rows = self._most_rows = len(rows) // 2
        return [*self._pass(rows[:half_rows]), *self._pass(rows[half_rows:])]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionRequest:
    """Request to predict the rows of `data`, and to write the predictions to `out` as the field `field`. `columns`
    names the columns of the text and of a second text. If it is empty, they are those of the run."""

    data: str
    out: Path
    sampling: Sampling
    batch_size: int = 0
    columns: tuple[str, ...] = ()
    field: str = FIELD
    skips_bad_rows: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionResult:
    """Result of `predict_file`. An earlier command had already predicted `rows_before` of the rows."""

    rows: int
    rows_before: int
    seconds: float
    notes: tuple[str, ...]


def predict_file(
    trained: TrainedModel, request: PredictionRequest, device: Callable[[], torch.device], progress: Progress
) -> PredictionResult:
    """Predict the rows of a file. Raises InputError before loading the model if data or output file cannot be used."""
    config, sampling = trained.config, request.sampling
    chosen_columns = dict(zip(("text_column", "text_pair_column"), request.columns, strict=False))
    config = config.model_copy(update={"data": config.data.model_copy(update=chosen_columns)})
    source = open_source(request.data, config.data.text_column, DataChoice(is_evaluation=True))
    part_rows = _BATCHES_OF_A_PART * (request.batch_size or _ROWS)
    predicted_file = PredictedFile(request.out, _identity(trained, request, source), part_rows)
    with predicted_file.locked(source.files, overwrite=request.overwrite):
        rows = InputRows(source, trained.task.input_reader(config, load_tokenizer(trained)))
        row_count = rows.count(request.field, skips_bad_rows=request.skips_bad_rows, progress=progress)
        split_note = f"the data has several splits; only this one is used: {source.description}"
        notes = (*[split_note] * bool(source.other_splits), *rows.problems.notes())
        rows_before = predicted_file.rows_before()
        progress("loading the model", 0, None, "")
        predictor = load_predictor(trained, device(), sampling, request.batch_size)
        speed = _Speed(row_count, rows_before, progress)

        def predict(part: int, contents: list[Any]) -> list[dict[str, Any]]:
            torch.manual_seed(sampling.seed + part)
            return predictor.predict(contents, speed.add)

        predicted_file.write(iter(rows), predict, request.field)
    return PredictionResult(rows=row_count, rows_before=rows_before, seconds=speed.seconds, notes=notes)


def _identity(trained: TrainedModel, request: PredictionRequest, source: Source) -> dict[str, Any]:
    """Return everything that must be equal for a second command to continue the file of a first one."""
    weight_files = sorted(trained.folder.glob("*.safetensors"))
    return {
        "run": str(trained.run.root),
        "weights": [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weight_files],
        "data": [source.path, *zip(map(str, source.files), source.signature(), strict=False)],
        "sampling": asdict(request.sampling),
        "batch size": request.batch_size,
        "column": request.columns,
        "field": request.field,
        "treatment of bad rows": request.skips_bad_rows,
    }


class _Speed:
    """Reporter of progress, with rows per second and the remaining time."""

    def __init__(self, rows: int, before: int, progress: Progress) -> None:
        self._rows, self._rows_before, self._done_rows, self._progress = rows, before, before, progress
        self._started_at = perf_counter()
        self.add(0)

    @property
    def seconds(self) -> float:
        return perf_counter() - self._started_at

    def add(self, rows: int) -> None:
        self._done_rows += rows
        speed = (self._done_rows - self._rows_before) / max(self.seconds, 1e-9)
        left_words = format_seconds((self._rows - self._done_rows) / speed) if speed else "--"
        unit = f"rows, {format_rate(speed, 'rows')}, {left_words} left"
        self._progress("predicting", self._done_rows, self._rows, unit)


def load_predictor(trained: TrainedModel, device: torch.device, sampling: Sampling, batch_size: int = 0) -> Predictor:
    """Load the model of a run with its adapter merged. On a CPU it is in fp32, unless that takes too much memory."""
    dtype = trained.compared_dtype if device.type == "cpu" else "auto"
    model = trained.load(dtype=dtype, merge=True).to(device)
    return Predictor(trained.task, trained.config, model, load_tokenizer(trained), sampling, batch_size)


def inference_device(choice: GpuChoice) -> torch.device:
    """Return the device on which this process predicts. Raises InputError for a GPU that does not exist.

    For a GPU, cuDNN's attention is disabled: it builds a plan for each width of rows, and the width changes with each
    batch and each generated token (`planning/attention.py`)."""
    hardware = probe()
    gpu, _ = choose_gpu(hardware, choice)
    if gpu is None or training_device(hardware, gpu)[0] != "cuda":
        return torch.device("cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", card_index(gpu.cuda_uuid))
