"""What other tools have under names that a person may write here: why it is not here, and what to take instead."""

from typing import Final

STRATEGY: Final = "distributed.strategy"

VALUES: Final = {
    (STRATEGY, "deepspeed-2"): "what DeepSpeed's ZeRO 2 splits, fsdp splits by torch alone, and the weights as well",
    (STRATEGY, "deepspeed-3"): "what DeepSpeed's ZeRO 3 splits, fsdp splits by torch alone",
}
"""By setting and value."""
