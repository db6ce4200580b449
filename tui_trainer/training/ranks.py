"""The processes that train one model together, as each of them sees the others. A run of one process has `ALONE`.

What they tell each other about the run (counts, requests, what came of a save) goes through the host, so that nobody
waits for a device; sums of losses go where they were computed.
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
# A checkpoint of a large model to a slow disk, while the others wait.
_LONGEST_WAIT = timedelta(hours=2)


@dataclass(slots=True)
class Ranks:
    """This process is number `number` of `count`. All of them call the same methods in the same order."""

    number: int = 0
    count: int = 1
    host: Any = None
    """The group for values of the host."""
    has_news: Callable[[], object] = lambda: False
    """Whether there is something that all should hear before the next step."""
    hears_news: bool = field(default=True, init=False)
    """Whether it said so at the last step."""
    times: GroupTimes = field(init=False)

    def __post_init__(self) -> None:
        self.times = GroupTimes(self.number, self.count)

    @property
    def is_first(self) -> bool:
        """The one that writes the journal, checkpoints and the final model."""
        return self.number == 0

    def sum_counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """The same numbers of all processes added up; once for each step, with what they tell each other then."""
        if self.count == 1:
            return tuple(counts)
        numbers = torch.tensor([*counts, int(bool(self.has_news())), *self.times.to_tell()])
        dist.all_reduce(numbers, group=self.host)
        summed = numbers.tolist()
        self.hears_news = bool(summed[len(counts)])
        self.times.hear(summed[len(counts) + 1 :])
        return tuple(summed[: len(counts)])

    def highest(self, *numbers: int) -> tuple[int, ...]:
        """Of each of these, the largest that a process has."""
        if self.count == 1:
            return numbers
        found = torch.tensor(numbers)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.host)
        return tuple(found.tolist())

    def sum(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each of these 0-dim tensors over all processes, on the device of each."""
        if self.count == 1:
            return dict(numbers)
        together = torch.stack(list(numbers.values()))
        dist.all_reduce(together)
        return dict(zip(numbers, together.unbind(), strict=True))

    def agreed(self, value: T) -> T:
        """What the first process has for it."""
        if self.count == 1:
            return value
        box = [value if self.is_first else None]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]  # type: ignore[return-value]

    def gathered(self, value: T) -> list[T]:
        """What each has, by number."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self.host)
        return found

    def by_first(self, work: Callable[[], T]) -> T:
        """What the first process makes, for all: its result, or its error."""
        if self.count == 1:
            return work()
        result: Any = None
        error: Exception | None = None
        if self.is_first:
            try:
                result = work()
            except Exception as raised:  # whatever it is: the others must not wait for a result
                error = raised
        told, result = self.agreed((sendable(error), result))
        if told is not None:
            raise error or told
        return result  # type: ignore[no-any-return]

    def require_same(self, what: dict[str, object]) -> None:
        """Raises RunError where processes do not have the same, which would make each learn something else."""
        everyone = self.gathered(what)
        for number, other in enumerate(everyone):
            for name, value in everyone[0].items():
                if other[name] != value:
                    message = f"process {number} has {name} {other[name]}, but process 0 has {value}"
                    raise RunError(f"{message}; all processes must train the same model on the same data")


ALONE = Ranks()


def sendable(error: Exception | None) -> Exception | None:
    """An error that another process can make again, of its type where that can be had."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # some take other arguments than they keep
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def join_ranks(device: torch.device, *, offloads: bool = False) -> Ranks:
    """This process among those that torchrun has started; `offloads`: with parts of the model on the host. Raises
    RunError when the others do not come.
    """
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_card = device.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_card and offloads else "nccl" if on_card else "gloo"
    # With parts on the host norms and checkpoints go through it, and what is split from a group that has a `device_id`
    # goes over cards only.
    device_id = device if backend == "nccl" else None
    try:
        dist.init_process_group(backend, timeout=_LONGEST_WAIT, device_id=device_id)
        host: Any = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT) if on_card else dist.group.WORLD
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(f"the {count} processes could not connect: {error}") from error
    return Ranks(number=number, count=count, host=host)
