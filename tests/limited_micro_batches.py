"""`python -m tests.limited_micro_batches`: micro-batches with little address space left once the model is built."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from tui_trainer.training import rehearsal as worst_batch
from tui_trainer.units import MIB
from tui_trainer.worker.answering import answer_questions

LEFT_BYTES = 80 * MIB


class LimitedTries(worst_batch.MicroBatchTries):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + LEFT_BYTES, used + LEFT_BYTES))


if __name__ == "__main__":
    worst_batch.MicroBatchTries = LimitedTries  # type: ignore[misc]
    answer_questions(sys.argv[1:])
