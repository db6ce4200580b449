"""A separate process in which the user tries a run's model, also while a run trains.

The process uses a GPU that has room, else the CPU with a lower priority than training, and its own random generator."""

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
from tui_trainer.hardware.storage import call_with_deadline
from tui_trainer.models.writing import Sampling
from tui_trainer.planning.fit import GPU_SHARE
from tui_trainer.planning.memory.gpu import CONTEXT_BYTES, answering_bytes
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import LockOwner, read_lock_owner
from tui_trainer.runs.registry import newest_runs
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes
from tui_trainer.worker.asking import Worker, WorkerFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDevice:
    """Device on which a model is tried. `words` gives it with the reason. On a GPU, torch may allocate `card_bytes`."""

    words: str
    card_uuid: str = ""
    """UUID of the GPU; empty for the CPU."""
    card_bytes: int = 0


ON_THE_CPU = ModelDevice(words="on the CPU")


def find_device(
    run: RunFolder, hardware: Hardware, tokens: int, *, gpu: GpuChoice = None, models: int = 1, seen_bytes: int = 0
) -> ModelDevice:
    """Return the GPU with the most room if the model fits there, else the CPU. Waits for the driver.

    Counts the weights of `models` models, rows of `tokens` more tokens than in training, and the memory that active
    runs on the GPU may still take. `seen_bytes` is the peak GPU memory of this run so far."""
    hardware_now = probe.with_memory_now(hardware)
    allowed_cards = [card for card in usable_gpus(hardware_now) if gpu in (None, card.index)]
    cards = [card for card in allowed_cards if card.cuda_uuid and card.memory_free_bytes is not None]
    if not cards:
        return ON_THE_CPU
    try:
        trained_model = TrainedModel.of(run, unfinished=True)
        shape, setup = trained_model.plan.model_shape(), trained_model.plan.training_setup
        row_tokens = trained_model.plan.config.data.max_length + tokens
        needed_bytes = models * answering_bytes(shape, setup, trained_model.loaded_bytes, row_tokens)
    except InputError as error:
        message = "the GPU memory that the model needs is unknown"
        return ModelDevice(words=f"{ON_THE_CPU.words}: {message}: {one_line(str(error), 200)}")
    claims = list(_claims(run, seen_bytes))
    claimed = {each.index: sum(size for uuid, size in claims if uuid in (each.uuid, each.cuda_uuid)) for each in cards}
    room_bytes = {each.index: int(GPU_SHARE * ((each.memory_free_bytes or 0) - claimed[each.index])) for each in cards}
    card = max(cards, key=lambda each: room_bytes[each.index])
    free_bytes, claimed_bytes = room_bytes[card.index], claimed[card.index]
    claimed_text = f", besides {format_bytes(claimed_bytes)} reserved for runs on this GPU" if claimed_bytes else ""
    room_words = f"{format_bytes(max(free_bytes, 0))} free{claimed_text}"
    needed_text = f"{'the model needs' if models == 1 else 'both models need'} {format_bytes(needed_bytes)}"
    if needed_bytes > free_bytes:
        return ModelDevice(words=f"{ON_THE_CPU.words}: {needed_text}, but GPU {card.index} has {room_words}")
    words = f"on GPU {card.index}: {needed_text} of {room_words}"
    # The limit leaves the planned memory to the runs on this GPU.
    return ModelDevice(words=words, card_uuid=card.cuda_uuid, card_bytes=free_bytes - CONTEXT_BYTES)


def _training_owner(run: RunFolder) -> LockOwner | None:
    """Return the process that trains the run; None if no process, or another command, holds the run's lock."""
    holder = read_lock_owner(run.lock)
    return None if holder is None or holder.command else holder


def _claims(run: RunFolder, seen_bytes: int) -> Iterator[tuple[str, int]]:
    """Yield for active runs the GPU and the bytes that they may still take: the planned peak less the present use."""
    nvml = nvml_room.session()
    for folder in {run_folder.root.resolve(): run_folder for run_folder in (*newest_runs(), run)}.values():
        if (holder := _training_owner(folder)) is None:
            continue
        with suppress(InputError):
            plan = plan_of(folder)
            for uuid in (plan.gpu_uuids or (plan.gpu_uuid,)) if plan.device == "cuda" else ():
                read_usage = partial(nvml.gpu_in_use, uuid, holder.pid) if nvml else lambda: None
                usage: tuple[Gpu, int | None] | None = call_with_deadline(nvml_room.DEADLINE_SECONDS, read_usage)
                # In a container the driver cannot match processes.
                used_bytes = usage[1] if usage and usage[1] is not None else seen_bytes if folder is run else 0
                yield uuid, max(plan.memory_bytes.value - used_bytes, 0)


class ModelProcess(Worker):
    """Worker process that keeps models loaded. It ends when it is idle, and the next question starts it again."""

    def __init__(self, place: ModelDevice = ON_THE_CPU) -> None:
        super().__init__("try_model", sees_gpus=bool(place.card_uuid))
        self.place = place

    def write(self, question: dict[str, Any], show: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Generate text, wait for it and return the answer. Raises RunError.

        `show` gets each piece of the text; an error that it raises ends the process."""
        if self.place.card_uuid:
            question = question | {"card": {"uuid": self.place.card_uuid, "bytes": self.place.card_bytes}}
        try:
            with self.lowest_priority():
                answer: dict[str, Any]
                answer = self.ask("try_model", question, progress=lambda figures: show(figures["piece"]))
        except WorkerFailed as error:
            raise RunError(error.reason or f"the process with the model {error}") from None
        return answer


class ChildWriter:
    """A Writer (`exporting/generate.py`) that uses a `ModelProcess`.

    `has_moved_to_cpu` is true if the GPU ran out of memory and the process continued on the CPU."""

    def __init__(self, process: ModelProcess, run: RunFolder, *, base: bool = False) -> None:
        """Load the run's final model or newest checkpoint; with `base`, its initial model. Raises RunError."""
        self._process, self._question = process, {"run": str(run.root), "base": base}
        answer = process.write(self._question)
        self.source, self.continues = str(answer["source"]), bool(answer["continues"])
        self.has_moved_to_cpu = bool(answer["moved"])

    def answer(self, text: str, sampling: Sampling) -> str:
        return str(self._ask(sampling, text=text)["text"])

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        return int(self._ask(sampling, show, text=prompt)["left_out"])

    def reply(self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], None]) -> int:
        return int(self._ask(sampling, show, messages=list(messages))["left_out"])

    def _ask(self, sampling: Sampling, show: Callable[[str], None] = lambda _: None, **more: Any) -> dict[str, Any]:
        answer = self._process.write({**self._question, "sampling": asdict(sampling), **more}, show)
        # The process may have ended meanwhile, and have loaded a newer checkpoint at its next start.
        self.source, self.has_moved_to_cpu = str(answer["source"]), bool(answer["moved"])
        return answer
