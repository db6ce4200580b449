"""What would make a plan fit: one ladder of settings, in the order of what they cost.

A plan that is refused names the rungs, each with the memory that it would then take; the checklist makes a fix of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tui_trainer.config.changes import settings_words
from tui_trainer.errors import ConfigError
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.planning.basis import EVAL_BATCH, Basis
from tui_trainer.planning.batching import MICRO
from tui_trainer.units import format_bytes

CHUNK, CHECKPOINTING = "training.loss_chunk_tokens", "training.gradient_checkpointing"
OPTIMIZER, METHOD, LENGTH = "training.optim", "tuning.method", "data.max_length"
BITSANDBYTES = "bitsandbytes"
_CHUNK_TOKENS = 1024
_SHORTEST = 128
# A change that saves less of the memory is not worth its price.
_LEAST_SAVING = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """Settings that save memory; `costs`: words on what else they do; `needs`: a library that is not installed."""

    patch: Mapping[str, Any]
    costs: str = ""
    needs: str = ""
    drops_data: bool = False

    @property
    def sentence(self) -> str:
        """`training.gradient_checkpointing = true, a quarter slower`."""
        needs = f"with {self.needs} installed" if self.needs else ""
        return ", ".join(filter(None, (settings_words(self.patch), self.costs, needs)))


def ladder(basis: Basis) -> Iterator[Rung]:
    """Each without those below it, and only what is not in force yet.

    Logits in chunks cost hardly anything, checkpointing a quarter of the time. An optimizer in 8 bits keeps its
    state, LoRA trains other weights, and Adafactor has no momentum. Shorter rows drop what was to be learnt.
    """
    setup, on_card = basis.setup, basis.setup.device == "cuda"
    scratch, libraries = basis.config.is_from_scratch, basis.hardware.libraries
    if basis.shape.logits and (not setup.loss_chunk_tokens or setup.loss_chunk_tokens > _CHUNK_TOKENS):
        yield Rung(patch={CHUNK: _CHUNK_TOKENS})
    if not setup.gradient_checkpointing:
        yield Rung(patch={CHECKPOINTING: True}, costs="a quarter slower")
    of_libraries, plain = _smaller_optimizers(basis)
    for name in of_libraries:
        library = OPTIMIZERS[name].library
        yield Rung(patch={OPTIMIZER: name}, needs="" if libraries.get(library) else library)
    if not setup.has_adapter and not scratch:
        yield Rung(patch={METHOD: "lora"})
    if on_card and not setup.four_bits and not scratch:
        yield Rung(
            patch={METHOD: "qlora"}, costs="a quarter slower", needs="" if libraries.get(BITSANDBYTES) else BITSANDBYTES
        )
    for name in plain:
        yield Rung(patch={OPTIMIZER: name})
    length = basis.config.data.max_length
    while length > _SHORTEST:
        length = max(length // 2, _SHORTEST)
        yield Rung(patch={LENGTH: length}, drops_data=True)


def remedies(basis: Basis, budget: float) -> list[str]:
    """Sentences such as `training.gradient_checkpointing = true (12.1 GiB)`, each with all before it in force.

    What saves nothing here is left out. The list ends with the first that fits, or says that none does.
    """
    found: list[str] = []
    least, shorter = basis.needed_bytes(), ""
    passes = [Rung(patch={MICRO: _smaller_pass(basis, budget)})]
    if basis.config.evaluation.per_device_eval_batch_size != "auto":
        passes.append(Rung(patch={EVAL_BATCH: "auto"}))
    for rung in (*passes, *ladder(basis)):
        try:
            changed = basis.changed(rung.patch)
        except ConfigError:
            continue
        needed = changed.needed_bytes()
        if needed > (1 - _LEAST_SAVING) * least:
            continue
        basis, least = changed, needed
        sentence = f"{rung.sentence} ({format_bytes(needed)})"
        if rung.drops_data and shorter:
            # Of all halves, quarters, ... one is named: the first that fits, or the last.
            found.remove(shorter)
        shorter = sentence if rung.drops_data else ""
        found.append(sentence)
        if needed <= budget:
            return found
    return [*found, "none of this is enough: choose a smaller model" if found else "choose a smaller model"]


def _smaller_pass(basis: Basis, budget: float) -> int:
    """The largest half, quarter, ... of the rows in a pass that fits; 1 where none does."""
    halves = (basis.micro_batch >> halvings for halvings in range(1, basis.micro_batch.bit_length()))
    return next((rows for rows in halves if basis.needed_bytes(rows) <= budget), 1)


def _smaller_optimizers(basis: Basis) -> tuple[list[str], list[str]]:
    """(those of libraries that run here, those that need none), the nearest first. Of libraries that are not here the
    first is named, on a GPU only: one is enough."""
    smaller = OPTIMIZERS[basis.setup.optim].smaller
    of_libraries = [name for name in smaller if OPTIMIZERS[name].library]
    on_card, libraries = basis.setup.device == "cuda", basis.hardware.libraries
    here = [name for name in of_libraries if libraries.get(OPTIMIZERS[name].library)]
    here = [name for name in here if on_card or not OPTIMIZERS[name].needs_gpu]
    plain = [name for name in smaller if not OPTIMIZERS[name].library]
    return (here or of_libraries[:1] if on_card else here), plain
