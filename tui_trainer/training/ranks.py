"""Connect the processes that train one model together. A run of one process uses `SINGLE_PROCESS`.

Messages about the run (counts, requests, results of a save) go through the host, so that no process waits for a device.
Sums of losses go through the device that computed them.
"""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tui_trainer.errors import RunError
from tui_trainer.training.clock import GroupTimes

T = TypeVar("T")
# Long enough for a checkpoint of a large model on a slow disk.
_LONGEST_WAIT = timedelta(hours=2)


@dataclass(slots=True)
class Ranks:
    """Process `rank` of `world_size`, and what it tells the others. All must call the same methods in order."""

    rank: int = 0
    world_size: int = 1
    host_group: Any = None
    """Process group for values on the host."""
    has_news: Callable[[], object] = lambda: False
    """Function that returns whether this process has requests, such as a stop, for all processes."""
    has_news_anywhere: bool = field(default=True, init=False)
    """Whether `has_news` was true in any process at the last step."""
    times: GroupTimes = field(init=False)

    def __post_init__(self) -> None:
        self.times = GroupTimes(self.rank, self.world_size)

    @property
    def is_first(self) -> bool:
        """Whether this process writes the journal, checkpoints and the final model."""
        return self.rank == 0

    def sum_counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the sum of each count over all processes. Called once in a step, it also exchanges `has_news`."""
        if self.world_size == 1:
            return tuple(counts)
        numbers = torch.tensor([*counts, int(bool(self.has_news())), *self.times.take()])
        dist.all_reduce(numbers, group=self.host_group)
        sums = numbers.tolist()
        self.has_news_anywhere = bool(sums[len(counts)])
        self.times.add_all(sums[len(counts) + 1 :])
        return tuple(sums[: len(counts)])

    def maximum(self, *numbers: int) -> tuple[int, ...]:
        """Return the maximum of each number over all processes."""
        if self.world_size == 1:
            return numbers
        maxima = torch.tensor(numbers)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=self.host_group)
        return tuple(maxima.tolist())

    def sum(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sum of each 0-dim tensor over all processes, keyed by name, on the device."""
        if self.world_size == 1:
            return dict(numbers)
        stacked_numbers = torch.stack(list(numbers.values()))
        dist.all_reduce(stacked_numbers)
        return dict(zip(numbers, stacked_numbers.unbind(), strict=True))

    def agreed(self, value: T) -> T:
        """Return, in every process, the value that the first process passes."""
        if self.world_size == 1:
            return value
        box = [value if self.is_first else None]
        dist.broadcast_object_list(box, src=0, group=self.host_group)
        return box[0]  # type: ignore[return-value]

    def gathered(self, value: T) -> list[T]:
        """Return, in every process, the values that all processes pass, ordered by process number."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.host_group)
        return values

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process only. Every process returns its result, or raises its error."""
        if self.world_size == 1:
            return work()
        result: Any = None
        error: Exception | None = None
        if self.is_first:
            try:
                result = work()
            except Exception as exception:  # any error: the others must not wait for a result
                error = exception
        sent_error, result = self.agreed((sendable(error), result))
        if sent_error is not None:
            raise error or sent_error
        return result  # type: ignore[no-any-return]

    def require_same(self, values: dict[str, object]) -> None:
        """Raise RunError if processes differ in any of the values, which are keyed by names for messages."""
        rank_values = self.gathered(values)
        for number, other_values in enumerate(rank_values):
            for name, value in rank_values[0].items():
                if other_values[name] != value:
                    message = f"process {number} has {name} {other_values[name]}, but process 0 has {value}"
                    raise RunError(f"{message}; all processes must train the same model on the same data")


SINGLE_PROCESS = Ranks()


def sendable(error: Exception | None) -> Exception | None:
    """Return the error, or a RuntimeError with its message if the error cannot be pickled for another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # the constructor of some errors takes other arguments than they keep
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def join_ranks(device: torch.device, *, offloads: bool = False) -> Ranks:
    """Connect to the other processes that torchrun has started. Raises RunError if they do not connect.

    `offloads` is true if parts of the model are on the host.
    """
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    is_on_gpu = device.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if is_on_gpu and offloads else "nccl" if is_on_gpu else "gloo"
    # With parts of the model on the host, norms and checkpoints need a group for CPU tensors. Subgroups of a group with
    # a `device_id` could only use GPUs.
    device_id = device if backend == "nccl" else None
    try:
        dist.init_process_group(backend, timeout=_LONGEST_WAIT, device_id=device_id)
        host: Any = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT) if is_on_gpu else dist.group.WORLD
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(f"the {count} processes could not connect: {error}") from error
    return Ranks(rank=number, world_size=count, host_group=host)
