"""`python -m tests.limited_rehearsal`: a rehearsal with little address space left once its model is built."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from tui_trainer.training import rehearsal
from tui_trainer.units import MIB
from tui_trainer.worker.answering import answer_questions

LEFT_BYTES = 150 * MIB


class LimitedRehearsal(rehearsal.Rehearsal):
    def run(self, *parts: Any) -> Any:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + LEFT_BYTES, used + LEFT_BYTES))
        return super().run(*parts)


if __name__ == "__main__":
    rehearsal.Rehearsal = LimitedRehearsal  # type: ignore[misc]
    answer_questions(sys.argv[1:])
