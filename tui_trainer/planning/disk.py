"""What a run writes."""

from __future__ import annotations

from tui_trainer.planning.regime import Regime
from tui_trainer.units import MIB

# Tokenizer, configuration, manifest and random state of one checkpoint, and the journal's line of one step.
SMALL_FILES_BYTES = MIB
JOURNAL_LINE_BYTES = 480
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of state for each trained parameter, on the disk as in memory.
STATE_BYTES = {
    "adamw_torch_fused": 8.0,
    "adafactor": 0.1,
    "sgd": 0.0,
    "adamw_8bit": 2.1,
    "paged_adamw_8bit": 2.1,
    "paged_adamw_32bit": 8.0,
}


def checkpoint_bytes(regime: Regime) -> tuple[int, str]:
    """The trained weights, their fp32 copies where they have 16 bits, the optimiser's state, and small files."""
    each = _trained_bytes_each(regime)
    copies = 4 if each < 4 else 0
    per_parameter = each + copies + STATE_BYTES[regime.optim]
    what = "weights and two moments" if regime.optim == "adamw_torch_fused" else f"weights and {regime.optim}'s state"
    reason = f"{per_parameter:g} bytes a trained parameter: {what}"
    return int(per_parameter * regime.trained_parameters) + SMALL_FILES_BYTES, reason


def final_model_bytes(parameters: int, regime: Regime) -> int:
    """The whole model, or with LoRA the adapter."""
    trained = regime.trained_parameters if regime.has_adapter else parameters
    return _trained_bytes_each(regime) * trained + SMALL_FILES_BYTES


def run_bytes(
    checkpoint: int, final_model: int, *, save_total_limit: int, saves: int, keeps_best: bool, total_steps: int
) -> tuple[int, str]:
    """The most that a run folder holds at one time: an old checkpoint goes only when the new one is safe.

    With early stopping the best one is kept beside the newest.
    """
    kept = min(save_total_limit + 1 + keeps_best, saves)
    total = kept * checkpoint + final_model + total_steps * JOURNAL_LINE_BYTES
    return total, f"{kept} checkpoints at a time, the final model and the journal"


def _trained_bytes_each(regime: Regime) -> int:
    return 4 if regime.has_adapter else DTYPE_BYTES[regime.weights]
