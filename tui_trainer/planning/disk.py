"""Compute how many bytes a run writes, and describe the problem of a disk with less free space.

`full_disk_words` of `errors.py` describes a disk that becomes full during a run.
"""

from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.parts import initial_adapter_bytes, state_bytes
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import MIB, format_bytes, quantity

# Tokenizer, configuration, manifest and random state of one checkpoint, and the journal's line of one step.
SMALL_FILES_BYTES = MIB
JOURNAL_LINE_BYTES = 480
# Saving a checkpoint takes as long as writing this many bytes more, because each of its files is synced. Checkpoints of
# 0.3 and of 9.9 MB took 24 to 109 ms and 50 to 88 ms on 2 busy cores of an AMD EPYC.
SAVE_FIXED_BYTES = 16e6


def checkpoint_bytes(shape: ModelShape, setup: TrainingSetup) -> tuple[int, str]:
    """Return the bytes of a checkpoint: trained weights, fp32 copies of 16-bit ones, optimizer state, small files."""
    bytes_each, trained = _trained_bytes_each(setup), setup.trained_parameters
    copy_bytes = 4 if bytes_each < 4 else 0
    size = (bytes_each + copy_bytes) * trained + state_bytes(shape, setup, trained) + initial_adapter_bytes(setup)
    if not setup.has_adapter:
        size += bytes_each * sum(shape.towers.values())
    state = OPTIMIZERS[setup.optim].state_words or f"{setup.optim}'s state"
    weights_text = "weights, fp32 master weights" if copy_bytes else "weights"
    return size + SMALL_FILES_BYTES, f"{size / max(trained, 1):.3g} bytes/trained parameter: {weights_text} and {state}"


def final_model_bytes(parameters: int, setup: TrainingSetup) -> int:
    """Return the bytes of the final model, or with LoRA of the adapter."""
    trained_count = setup.trained_parameters if setup.has_adapter else parameters
    return _trained_bytes_each(setup) * trained_count + initial_adapter_bytes(setup) + SMALL_FILES_BYTES


def run_bytes(
    checkpoint: int, final_model_size: int, *, save_total_limit: int, saves: int, keeps_best: bool, total_steps: int
) -> tuple[int, str]:
    """Return the most bytes that a run folder holds at a time, and the reason.

    An old checkpoint is deleted only after the new one is complete. Early stopping keeps the best one as well.
    """
    checkpoint_count = min(save_total_limit + 1 + keeps_best, saves)
    total_bytes = checkpoint_count * checkpoint + final_model_size + total_steps * JOURNAL_LINE_BYTES
    return total_bytes, f"{quantity(checkpoint_count, 'checkpoint')} at a time, the final model and the journal"


def space_words(what: str, needed_bytes: float, free_bytes: float) -> str:
    """Return the needed and the free space in words: `the run writes up to 3.0 GiB, 1.2 GiB are free`."""
    return f"{what} {format_bytes(needed_bytes)}, {format_bytes(free_bytes)} are free"


def _trained_bytes_each(setup: TrainingSetup) -> int:
    return 4 if setup.has_adapter or setup.weights == "float32" else 2
