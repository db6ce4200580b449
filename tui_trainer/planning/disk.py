"""What a run writes."""

from __future__ import annotations

from tui_trainer.units import MIB

# Tokenizer, configuration, manifest and random state of one checkpoint, and the journal's line of one step.
SMALL_FILES_BYTES = MIB
JOURNAL_LINE_BYTES = 480


def checkpoint_bytes(parameters: int) -> int:
    """Weights and AdamW's two moments in fp32, and small files."""
    return 12 * parameters + SMALL_FILES_BYTES


def run_bytes(
    parameters: int, *, save_total_limit: int, saves: int, keeps_best: bool, total_steps: int
) -> tuple[int, str]:
    """The most that a run folder holds at one time: an old checkpoint goes only when the new one is safe.

    With early stopping the best one is kept beside the newest.
    """
    kept = min(save_total_limit + 1 + keeps_best, saves)
    final_model = 4 * parameters + SMALL_FILES_BYTES
    total = kept * checkpoint_bytes(parameters) + final_model + total_steps * JOURNAL_LINE_BYTES
    return total, f"{kept} checkpoints at a time, the final model and the journal"
