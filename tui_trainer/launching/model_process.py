"""A run's model in a process of its own, to be tried, beside a run that trains as well: on a card that has room for it,
else on the CPU, where nobody else wants the cores. What it draws is of its own generator.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tui_trainer.data.columns.conversations import Message
from tui_trainer.errors import InputError, RunError
from tui_trainer.exporting.trained_model import TrainedModel, plan_of
from tui_trainer.hardware import nvml as nvml_room
from tui_trainer.hardware import probe
from tui_trainer.hardware.diagnosis import GpuChoice, usable_gpus
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.storage import within
from tui_trainer.models.writing import Sampling
from tui_trainer.planning.fit import GPU_SHARE
from tui_trainer.planning.memory.gpu import CONTEXT_BYTES, answering_bytes
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import LockOwner, owner
from tui_trainer.runs.registry import newest_runs
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes
from tui_trainer.worker.asking import Worker, WorkerFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a model is tried, in `words` with the reason. On a card torch may allocate `card_bytes` there; without
    `card_uuid` it is the CPU."""

    words: str
    card_uuid: str = ""
    card_bytes: int = 0


ON_THE_CPU = Place(words="on the CPU")


def find_place(
    run: RunFolder, hardware: Hardware, tokens: int, *, gpu: GpuChoice = None, models: int = 1, seen_bytes: int = 0
) -> Place:
    """The card with the most room where the weights of so many models of the run fit, with rows of the run's longest
    and so many `tokens` more, beside what the runs on it may still take; else the CPU. `seen_bytes` are those that the
    run has had on its card at its peak. Asks the driver, and blocks."""
    now = probe.with_memory_now(hardware)
    asked_for = [card for card in usable_gpus(now) if gpu in (None, card.index)]
    cards = [card for card in asked_for if card.cuda_uuid and card.memory_free_bytes is not None]
    if not cards:
        return ON_THE_CPU
    try:
        trained = TrainedModel.of(run, unfinished=True)
        shape, setup = trained.plan.model_shape(), trained.plan.training_setup
        row = trained.plan.config.data.max_length + tokens
        needed = models * answering_bytes(shape, setup, trained.loaded_bytes, row)
    except InputError as error:
        unknown = "the GPU memory that the model needs is unknown"
        return Place(words=f"{ON_THE_CPU.words}: {unknown}: {one_line(str(error), 200)}")
    claims = list(_claims(run, seen_bytes))
    claimed = {one.index: sum(size for uuid, size in claims if uuid in (one.uuid, one.cuda_uuid)) for one in cards}
    rooms = {one.index: int(GPU_SHARE * ((one.memory_free_bytes or 0) - claimed[one.index])) for one in cards}
    card = max(cards, key=lambda one: rooms[one.index])
    room, still = rooms[card.index], claimed[card.index]
    beside = f", besides {format_bytes(still)} reserved for runs on this GPU" if still else ""
    room_words = f"{format_bytes(max(room, 0))} free{beside}"
    if needed > room:
        return Place(words=f"{ON_THE_CPU.words}: needs {format_bytes(needed)}, but GPU {card.index} has {room_words}")
    words = f"on GPU {card.index}: needs {format_bytes(needed)} of {room_words}"
    # It never takes what a run was planned to take.
    return Place(words=words, card_uuid=card.cuda_uuid, card_bytes=room - CONTEXT_BYTES)


def _trains(run: RunFolder) -> LockOwner | None:
    holder = owner(run.lock)
    return None if holder is None or holder.command else holder


def _claims(run: RunFolder, seen_bytes: int) -> Iterator[tuple[str, int]]:
    """What runs that are alive may still take: (card, bytes), by their planned peak and what they have now."""
    nvml = nvml_room.session()
    for folder in {one.root.resolve(): one for one in (*newest_runs(), run)}.values():
        if (holder := _trains(folder)) is None:
            continue
        with suppress(InputError):
            plan = plan_of(folder)
            for uuid in (plan.gpu_uuids or (plan.gpu_uuid,)) if plan.device == "cuda" else ():
                look = partial(nvml.in_use, uuid, holder.pid) if nvml else lambda: None
                found: tuple[Gpu, int | None] | None = within(nvml_room.DEADLINE_SECONDS, look)
                # In a container the driver does not know its processes.
                has = found[1] if found and found[1] is not None else seen_bytes if folder is run else 0
                yield uuid, max(plan.memory_bytes.value - has, 0)


class ModelProcess(Worker):
    """Holds the models that it was asked for, until nobody has asked for a while: the next question loads anew."""

    def __init__(self, place: Place = ON_THE_CPU) -> None:
        super().__init__("try_model", sees_gpus=bool(place.card_uuid))
        self.place = place

    def write(self, asked: dict[str, Any], show: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Blocks. `show` gets what is written, piece by piece; what it raises ends the process. Raises RunError."""
        if self.place.card_uuid:
            asked = asked | {"card": {"uuid": self.place.card_uuid, "bytes": self.place.card_bytes}}
        try:
            with self.giving_way():
                answer: dict[str, Any] = self.ask("try_model", asked, progress=lambda figures: show(figures["piece"]))
        except WorkerFailed as error:
            raise RunError(error.reason or f"the process with the model {error}") from None
        return answer


class ChildWriter:
    """What `exporting/generate.py` calls a Writer, in that process. `moved` where the card's memory ran out, and the
    process went on on the CPU."""

    def __init__(self, process: ModelProcess, run: RunFolder, *, base: bool = False) -> None:
        """Load the final model, else the newest checkpoint; with `base` the one that the run began with. Raises
        RunError."""
        self._process, self._asked = process, {"run": str(run.root), "base": base}
        about = process.write(self._asked)
        self.source, self.continues, self.moved = str(about["source"]), bool(about["continues"]), bool(about["moved"])

    def answer(self, text: str, sampling: Sampling) -> str:
        return str(self._ask(sampling, text=text)["text"])

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        return int(self._ask(sampling, show, text=prompt)["left_out"])

    def reply(self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], None]) -> int:
        return int(self._ask(sampling, show, messages=list(messages))["left_out"])

    def _ask(self, sampling: Sampling, show: Callable[[str], None] = lambda _: None, **more: Any) -> dict[str, Any]:
        answer = self._process.write({**self._asked, "sampling": asdict(sampling), **more}, show)
        # It may have ended in between, and have loaded a newer checkpoint.
        self.source, self.moved = str(answer["source"]), bool(answer["moved"])
        return answer
