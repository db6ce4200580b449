"""Save and load checkpoints without pickle: trained weights, optimizer state, random state and position.

Tensors are copied to the host one file at a time, and loaded one by one, so host memory need not hold all of them. If a
model is sharded, all of its processes write files.

transformers or peft can load the folder: it has the configuration of the model or adapter, the tokenizer and whole
weights. Only the optimizer state may be written in parts.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from tui_trainer.errors import CheckpointError, RunError, system_reason
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.models.files import shards
from tui_trainer.models.loading import save_tokenizer
from tui_trainer.planning.memory.host import PINNED_BYTES
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import plan_bytes
from tui_trainer.runs.events import CheckpointSaved, RunProblem
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.attempt import attempt_twice, generator_states, restore_random
from tui_trainer.training.checkpoint_folder import PLAN, POSITION, CheckpointFolder
from tui_trainer.training.clock import BetweenStepsTimer
from tui_trainer.training.collectives import Box, box_of, fill, gather_tensor, is_in_boxes, place_like, writes_part
from tui_trainer.training.components import Components
from tui_trainer.training.job import Job
from tui_trainer.training.optimizer import unshare_memory
from tui_trainer.training.position import Position
from tui_trainer.training.ranks import SINGLE_PROCESS, Ranks, sendable
from tui_trainer.tuning.full import Method, SplitTensor

# Tensors in the files of a checkpoint: each process writes a share of them, and reads what it needs.
#
# Tensors that are whole, or that libraries must find whole, go into files that the processes write in turn. Other
# sharded tensors (`DTensor`) are written in parts. Part files name the position of each part in the format of
# torch.distributed.checkpoint (`HuggingFaceStorageWriter`), so its reader can load them. Its writer is not used: it
# copies all tensors of a process to the host twice for one file (torch 2.15), and does not sync folders.
#
# Any number of processes can read these files, with any sharding.

LEAST_BYTES = 64 * 1024
"""Least size of a file if a checkpoint has several. Smaller tensors are not split over the processes."""
# torch.distributed.checkpoint uses the same names (`_hf_utils.py`).
_PLACES, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


class TensorWriter:
    """Writer of this process's files in the folder of a checkpoint. All processes in `ranks` call the same methods.

    With several processes an exception is kept in `error`, because raising it would leave the other processes waiting.
    """

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self.folder, self._ranks, self.is_first = folder, ranks, ranks.is_first
        self.files: list[str] = []
        self.error: Exception | None = None

    def attempt(self, work: Callable[[], object]) -> None:
        """Run `work`, unless earlier work of this writer has failed."""
        if self.error:
            return
        try:
            work()
        except Exception as error:  # of the disk, of safetensors, of the tokenizers library
            if self._ranks.world_size == 1:
                raise
            self.error = error

    def write_whole(
        self,
        tensors: Mapping[str, Tensor | SplitTensor],
        single: str,
        *,
        in_one_file: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> dict[str, list[str]]:
        """Write whole tensors into several files, or into the file `single`. Return the tensor names, keyed by file."""
        rank_count, size = self._ranks.world_size, sum(tensor.nbytes for tensor in tensors.values())
        # The copies of all processes together take as much host memory as one process alone would.
        limit_bytes = size if in_one_file else min(shards.SHARD_BYTES, max(size, LEAST_BYTES * rank_count)) / rank_count
        files = shards.split({name: tensor.nbytes for name, tensor in tensors.items()}, single, limit_bytes)
        remaining_files = iter(files.items())
        host_tensors: dict[str, Tensor] = {}
        while turn_files := list(islice(remaining_files, rank_count)):
            for number, (_, names) in enumerate(turn_files):
                if number == self._ranks.rank:
                    host_tensors = _on_host(tensors, names)
                else:
                    for name in names:
                        gather_tensor(tensors[name])
            if self._ranks.rank < len(turn_files):
                self._write(host_tensors, turn_files[self._ranks.rank][0], metadata)
            host_tensors = {}
        return files

    def write_parts(self, tensors: Mapping[str, Tensor], single: str) -> None:
        """Write the parts of sharded tensors that belong to this process."""
        parts = {name: t for name, t in tensors.items() if isinstance(t, DTensor) and writes_part(t, name)}
        local = {name: tensor.to_local() for name, tensor in parts.items()}
        sizes = {name: tensor.nbytes for name, tensor in local.items()}
        split = shards.split(sizes, single, shards.SHARD_BYTES / self._ranks.world_size).values()
        for file, names in zip(shards.part_names(single, self._ranks.rank, len(split)), split, strict=True):
            places = {name: {_OFFSETS: [span.start for span in box_of(parts[name])]} for name in names}
            if names:
                self._write(_on_host(local, names), file, {"format": "pt", _PLACES: json.dumps(places)})

    def _write(self, tensors: dict[str, Tensor], file: str, metadata: dict[str, str] | None) -> None:
        self.attempt(lambda: save_file(tensors, self.folder / file, metadata=metadata))
        self.files.append(file)


def _on_host(tensors: Mapping[str, Tensor | SplitTensor], names: Iterable[str]) -> dict[str, Tensor]:
    copies, host_tensors = _HostCopies(), dict[str, Tensor]()
    for name in names:
        source = gather_tensor(tensors[name])
        host_tensors[name] = copies.begin(source.detach())
        if source is not tensors[name]:
            # `source` was gathered for this copy, and must be freed before the next tensor is gathered.
            copies.finish()
    copies.finish()
    return unshare_memory(host_tensors)


class _HostCopies:
    """Copier of GPU tensors to host memory, through two pinned buffers.

    A CUDA stream fills one buffer while this thread empties the other. A direct copy into memory that is not pinned
    would be slower, because the driver copies it piece by piece.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._buffers: list[Tensor] = []
        self._filled: list[torch.cuda.Event] = []
        self._pieces: tuple[list[tuple[Tensor, Tensor]], ...] = ([], [])
        """For each buffer, pairs of a slice of the buffer and the memory to which the slice is copied."""
        self._current, self._used_bytes, self._is_refused = 0, 0, False

    def begin(self, source: Tensor) -> Tensor:
        """Return a host copy of `source`, complete after `finish`. Until then `source` must not change."""
        if not source.is_cuda or not source.is_contiguous() or not self._has_buffers(source.device):
            return source.cpu().contiguous()
        assert self._stream
        copy = torch.empty(source.shape, dtype=source.dtype)
        source_bytes, copy_bytes = (tensor.view(-1).view(torch.uint8) for tensor in (source, copy))
        # The kernels that compute the source may not have run yet.
        self._stream.wait_stream(torch.cuda.current_stream(source.device))
        start = 0
        while start < len(source_bytes):
            if self._used_bytes == len(self._buffers[0]):
                self._turn()
            byte_count = min(len(source_bytes) - start, len(self._buffers[0]) - self._used_bytes)
            piece = self._buffers[self._current][self._used_bytes : self._used_bytes + byte_count]
            with torch.cuda.stream(self._stream):
                piece.copy_(source_bytes[start : start + byte_count], non_blocking=True)
            self._pieces[self._current].append((piece, copy_bytes[start : start + byte_count]))
            self._used_bytes += byte_count
            start += byte_count
        return copy

    def finish(self) -> None:
        """Wait until all copies are complete."""
        for _ in self._buffers:
            self._turn()

    def _turn(self) -> None:
        """Empty the other buffer into its destinations, and make it the one to fill."""
        self._filled[self._current].record(self._stream)
        self._current, self._used_bytes = 1 - self._current, 0
        pieces = self._pieces[self._current]
        if pieces:
            self._filled[self._current].synchronize()
        for piece, target in pieces:
            target.copy_(piece)
        pieces.clear()

    def _has_buffers(self, device: torch.device) -> bool:
        """Allocate the pinned buffers at the first call, and return whether the system allowed it."""
        if not self._buffers and not self._is_refused:
            try:
                self._buffers = [torch.empty(PINNED_BYTES // 2, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            except RuntimeError:
                self._is_refused = True
                return False
            self._stream, self._filled = torch.cuda.Stream(device), [torch.cuda.Event() for _ in range(2)]
        return not self._is_refused


def separate_sharded(
    tensors: Mapping[str, Tensor | SplitTensor],
) -> tuple[dict[str, Tensor | SplitTensor], dict[str, Tensor]]:
    """Return (tensors to write whole, tensors to write in parts), keyed and sorted by name."""
    parts: dict[str, Tensor] = {name: tensor for name, tensor in sorted(tensors.items()) if is_in_boxes(tensor)}
    return {name: tensors[name] for name in sorted(tensors) if name not in parts}, parts


class SavedTensors:
    """Tensors in safetensors files, whole or in parts. A tensor is read when it is requested."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._parts: dict[str, dict[tuple[int, ...], tuple[Any, Box]]] = {}
        """(file, box) of each part, keyed by tensor name and then by the first indices of the box."""
        with ExitStack() as open_files:
            for path in paths:
                file = open_files.enter_context(safe_open(path, framework="pt"))
                places = json.loads((file.metadata() or {}).get(_PLACES, "{}"))
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    sizes = file.get_slice(name).get_shape()
                    offsets = tuple(places[name][_OFFSETS]) if name in places else (0,) * len(sizes)
                    box = tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))
                    # Several processes may have written equal parts.
                    self._parts.setdefault(name, {})[offsets] = (file, box)
            self._opened = open_files.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def names(self) -> set[str]:
        return set(self._parts)

    def shape(self, name: str) -> torch.Size:
        """Return the shape of the whole tensor."""
        ends = [[dimension.stop for dimension in box] for _, box in self._parts[name].values()]
        return torch.Size(max(dimension) for dimension in zip(*ends, strict=True))

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """Read a tensor, or only a box of it, into new memory. Raises CheckpointError if a part is missing."""
        box = tuple(slice(0, size) for size in self.shape(name)) if box is None else box
        if () in self._parts[name]:
            [(file, _)] = self._parts[name].values()
            return file.get_tensor(name).clone()  # type: ignore[no-any-return]
        result: Tensor | None = None
        missing_count = _count(box)
        for file, part_box in self._parts[name].values():
            starts = [max(a.start, b.start) for a, b in zip(part_box, box, strict=True)]
            ends = [min(a.stop, b.stop) for a, b in zip(part_box, box, strict=True)]
            common_box = tuple(slice(start, max(start, end)) for start, end in zip(starts, ends, strict=True))
            if result is None:
                dtype = file.get_slice(name)[tuple(slice(0, 0) for _ in box)].dtype
                result = torch.empty([span.stop - span.start for span in box], dtype=dtype)
            if common_count := _count(common_box):
                result[_within(box, common_box)] = file.get_slice(name)[_within(part_box, common_box)]
                missing_count -= common_count
        if missing_count or result is None:
            raise CheckpointError(f"a part of the tensor {name} is missing from all files")
        return result

    def read_like(self, name: str, tensor: Tensor | SplitTensor | None) -> Tensor:
        """Read the tensor `name`: sharded like `tensor` if that has the same shape, otherwise whole on the host."""
        if not isinstance(tensor, DTensor) or self.shape(name) != tensor.shape:
            return self.read(name)
        if not is_in_boxes(tensor):
            return place_like(self.read(name), tensor)
        local_part = self.read(name, box_of(tensor))
        sharded_tensor = torch.empty_like(tensor, dtype=local_part.dtype)
        assert isinstance(sharded_tensor, DTensor)
        sharded_tensor.to_local().copy_(local_part)
        return sharded_tensor


def _within(box: Box, inner: Box) -> Box:
    """Return the box `inner` with its positions counted from the first index of `box`."""
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(box, inner, strict=True))


def _count(box: Box) -> int:
    return math.prod(span.stop - span.start for span in box)


OPTIMIZER, RANDOM = "optimizer.safetensors", "rng_state.safetensors"


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Copies of weights, optimizer state, random state and loss scale in host memory. A checkpoint is written from
    these copies while training continues."""

    weights: Mapping[str, Tensor | SplitTensor]
    state: Mapping[str, Tensor | SplitTensor]
    random: dict[str, Tensor]

    @classmethod
    def of(cls, components: Components) -> Self:
        """Copy the current state to host memory. Raises MemoryError if that is too small."""
        # Weights first, then optimizer state: both may be tensors that are created only for this copy.
        weights = _copied(components.weights())
        return cls(weights, _copied(components.optimizer.tensors()), _random(components))


def _copied(tensors: Mapping[str, Tensor | SplitTensor]) -> dict[str, Tensor]:
    copies = _on_host(tensors, tensors)
    # `_on_host` does not copy tensors that are on the host already.
    return {name: x if getattr(tensors[name], "is_cuda", False) else x.clone() for name, x in copies.items()}


def _random(components: Components, generators: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    return (generators or generator_states()) | components.mixed_precision.tensors()


def save_checkpoint(
    checkpoints: Path,
    components: Components,
    position: Position,
    plan: Plan,
    *,
    random: dict[str, Tensor] | None = None,
    copied: HostCopy | None = None,
) -> CheckpointFolder:
    """Write a checkpoint of the current state, or of the state in `copied`.

    If the model is sharded, all of its processes call this: each writes its parts, and the first process the rest.
    `plan` is the current plan, possibly with smaller passes. `random` has the random states of all processes. If
    writing fails, this removes the files and raises OSError or SafetensorError in all processes.
    """
    ranks = components.ranks if components.collectives.splits_state else SINGLE_PROCESS
    folder = ranks.run_on_first(partial(checkpoint_folder.begin, checkpoints, position.step))
    writer = TensorWriter(folder, ranks)
    try:
        _save_weights(copied.weights if copied else components.weights(), components.method, writer)
        whole_tensors, parts = separate_sharded(copied.state if copied else components.optimizer.tensors())
        writer.write_whole(whole_tensors, OPTIMIZER)
        writer.write_parts(parts, OPTIMIZER)
        if ranks.is_first:
            random = copied.random if copied else _random(components, random)
            writer.attempt(partial(_save_rest, components, position, plan, folder, random))
        described_files: dict[str, Any] = {}
        writer.attempt(lambda: described_files.update(checkpoint_folder.describe(folder, writer.files)))
        for error, files in ranks.gathered((sendable(writer.error), described_files)):
            if error:
                raise error
            described_files |= files
        return ranks.run_on_first(partial(checkpoint_folder.commit, folder, position.step, described_files))
    except BaseException:
        if ranks.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _save_rest(components: Components, position: Position, plan: Plan, folder: Path, random: dict[str, Tensor]) -> None:
    save_file(random, folder / RANDOM)
    (folder / POSITION).write_text(json.dumps(position.to_json(), indent=1))
    (folder / PLAN).write_bytes(plan_bytes(plan))
    components.method.describe(components.model, folder)
    save_tokenizer(components.tokenizer, folder)


def _save_weights(weights: Mapping[str, Tensor | SplitTensor], method: Method, out: TensorWriter) -> None:
    """Write whole weights, so that transformers and peft can load them. Sharded weights are gathered first."""
    files = out.write_whole(weights, method.weights_file, in_one_file=not method.index_file, metadata={"format": "pt"})
    if len(files) > 1 and out.is_first:
        index = json.dumps(shards.index_of(files, sum(tensor.nbytes for tensor in weights.values())), indent=1)
        out.attempt(lambda: (out.folder / method.index_file).write_text(index))


def load_checkpoint(checkpoint: CheckpointFolder, components: Components) -> Position:
    """Restore the exact state of a checkpoint in `components`, and return its position.

    Raises CheckpointError if the checkpoint does not fit the model.
    """
    load_weights(checkpoint.path, components)
    with SavedTensors(shards.all_files_of(checkpoint.path, OPTIMIZER)) as files:
        tensors = components.optimizer.trained_by_name
        groups = groupby(sorted(files.names, key=_parameter_of), key=_parameter_of)
        components.optimizer.load_shards(
            {name: files.read_like(name, tensors.get(parameter)) for name in names} for parameter, names in groups
        )
    random_states = load_file(checkpoint.path / RANDOM)
    restore_random(random_states, components.ranks.rank)
    components.mixed_precision.load_tensors(random_states)
    position = Position.from_json(json.loads((checkpoint.path / POSITION).read_bytes()))
    if position.step != checkpoint.step:
        raise CheckpointError(f"{checkpoint.path.name} contains the training state of step {position.step}")
    return position


def _parameter_of(name: str) -> str:
    return name.rpartition(".")[0]


def load_weights(folder: Path, components: Components) -> None:
    """Copy the weights of a checkpoint into the model. Raises CheckpointError if names or shapes differ."""
    weights = components.weights()
    with SavedTensors(shards.all_files_of(folder, components.method.weights_file)) as saved_tensors:
        # Sorted, because all processes must fill sharded tensors in the same order.
        for name in sorted(saved_tensors.names & weights.keys()):
            if saved_tensors.shape(name) != weights[name].shape:
                raise CheckpointError(f"{folder.name}: {name} has a different shape in this model")
            fill(weights[name], saved_tensors.read_like(name, weights[name]))
        odd_names = saved_tensors.names ^ weights.keys()
    if odd_names:
        suffix = f" and {len(odd_names) - 1} more" if len(odd_names) > 1 else ""
        problem = f"does not have the weights of this model: only one of them has {min(odd_names)}{suffix}"
        raise CheckpointError(f"{folder.name} {problem}")
    components.collectives.update_copies()


# The checkpoints of a run are written, reported and removed.

WRITE_ERRORS = (OSError, SafetensorError, MemoryError)
_FAILED_SAVES_IN_A_ROW = 3
# A checkpoint with one of these reasons may be written while training continues.
_BACKGROUND_REASONS = ("scheduled", "requested")


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of a run. All processes of the run call `save`."""

    job: Job
    components: Components
    journal: JournalWriter
    between_steps: BetweenStepsTimer
    saved_step: int
    failure: str = ""
    """Error of the last attempt to save; empty if it succeeded."""
    _failed_steps: set[int] = field(default_factory=set)
    _writer: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "checkpoint"))
    _pending: "tuple[Future[CheckpointFolder], Position, str, float] | None" = None
    """The checkpoint being written in the background: its future, position, reason, and the seconds training waited."""

    def save(self, position: Position, plan: Plan, reason: str) -> bool:
        """Write a checkpoint of this step if there is none, and return whether it exists or is being written."""
        self.finish()
        if position.step == self.saved_step:
            return True
        self.journal.sync()
        started_at, ranks = perf_counter(), self.components.ranks
        random_states: dict[str, Tensor] = {}
        if ranks.world_size > 1:
            for tensors in ranks.gathered(generator_states(ranks.rank)):
                random_states |= tensors
        write = partial(save_checkpoint, self.job.folder.checkpoints, self.components)
        position = deepcopy(position)
        try:
            if reason in _BACKGROUND_REASONS and (host_copy := self._host_copy()):
                future = self._writer.submit(write, position, plan, copied=host_copy)
                self._pending = future, position, reason, perf_counter() - started_at
                return True
            write = partial(write, position, plan, random=random_states)
            if self.components.collectives.splits_state:
                saved_folder = write()
            else:
                saved_folder = ranks.run_on_first(partial(attempt_twice, write, self.components.device))
        except WRITE_ERRORS as error:
            return self._failed(position, error)
        self._saved(saved_folder, position, reason, perf_counter() - started_at)
        return True

    def finish(self, *, waits: bool = True) -> None:
        """Report the checkpoint that was written in the background, if any.

        If `waits` is false and the checkpoint is still being written, do nothing. Raises RunError after three failed
        saves in a row.
        """
        if self._pending is None or not (waits or self._pending[0].done()):
            return
        (future, position, reason, seconds), self._pending = self._pending, None
        started_at = perf_counter()
        try:
            saved_folder = future.result()
        except WRITE_ERRORS as error:
            self._failed(position, error)
        else:
            self._saved(saved_folder, position, reason, seconds + perf_counter() - started_at)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and end the writer thread. A failed save raises nothing."""
        with suppress(RunError):
            self.finish()
        self._writer.shutdown()

    def _host_copy(self) -> HostCopy | None:
        """Return a host copy from which to write in the background; None if training must wait for the checkpoint."""
        setting, device = self.job.plan.config.checkpoint.save_in_background, self.components.device
        is_on = device.type == "cuda" if setting == "auto" else setting
        if not is_on or self.components.ranks.host_group is not None:
            return None
        sources = (self.components.weights, self.components.optimizer.tensors)
        needed_bytes = sum(tensor.nbytes for tensors in sources for tensor in tensors().values())
        if needed_bytes + shards.SHARD_BYTES > memory_available_now():
            return None
        try:
            return attempt_twice(partial(HostCopy.of, self.components), device)
        except MemoryError:
            return None

    def _failed(self, position: Position, error: Exception) -> bool:
        self._failed_steps.add(position.step)
        self.failure = str(error)
        message = f"the checkpoint of step {position.step} could not be written: {system_reason(error)}"
        if len(self._failed_steps) >= _FAILED_SAVES_IN_A_ROW:
            raise RunError(f"{message}. This was the third failure in a row. {self.resume_sentence()}") from error
        self._problem(position.step, "save failed", message, "the previous checkpoint is kept")
        return False

    def _saved(self, saved: CheckpointFolder, position: Position, reason: str, seconds: float) -> None:
        """Report a written checkpoint, and remove older ones. Training waited `seconds` for it."""
        self.saved_step, self.failure = position.step, ""
        self._failed_steps.clear()
        self.between_steps.count(seconds)
        self.journal.append(
            CheckpointSaved(
                step=saved.step,
                path=str(saved.path.relative_to(self.job.folder.root)),
                bytes=saved.bytes,
                seconds=round(seconds, 3),
                reason=reason,
            )
        )
        if self.components.ranks.is_first:
            self._rotate(position)

    def resume_sentence(self) -> str:
        """Return a sentence that names the last checkpoint and the command that resumes from it."""
        folder, step = self.job.folder, self.saved_step
        if not folder.root.is_dir():
            return f"The run folder no longer exists: {folder.root}"
        resume_command = f"`tui-trainer resume {shell_word(folder.name)}`"
        if not step:
            return f"There is no earlier checkpoint: once there is space, {resume_command} starts from the beginning"
        return f"The checkpoint of step {step} is kept: once there is space, resume from it with {resume_command}"

    def _rotate(self, position: Position) -> None:
        config = self.job.plan.config
        spared_steps = [position.best_step] if config.evaluation.early_stopping_patience else []
        try:
            checkpoint_folder.rotate(self.job.folder.checkpoints, config.checkpoint.save_total_limit, spared_steps)
        except OSError as error:
            message = f"an old checkpoint could not be removed: {system_reason(error)}"
            self._problem(position.step, "rotation failed", message, "the old checkpoint still takes up space")

    def _problem(self, step: int, kind: str, message: str, hint: str) -> None:
        self.journal.append(RunProblem(step=step, kind=kind, message=message, hint=hint))
