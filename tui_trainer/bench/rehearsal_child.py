"""`python -m tui_trainer.bench.rehearsal_child`: a rehearsal on the real model and data.

Reads from standard input what to rehearse. Prints a line of JSON for each part that begins, and one for each that is
over.
"""

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from tui_trainer.bench.training_child import session_of
from tui_trainer.launching.carry_out import keep_peak, keep_step_seconds
from tui_trainer.models.child import answer_question
from tui_trainer.training.rehearsal_parts import LOADING, TYPICAL, WORST

# Fewer say little about a step; the next plan goes by those of `launching/carry_out.py`.
_STEPS = 8


def tell(**words: Any) -> None:
    """To who has asked; what libraries print goes elsewhere."""
    print(json.dumps(words), file=sys.__stdout__, flush=True)


def rehearse(question: dict[str, Any]) -> dict[str, Any]:
    """`question` has config_file, profile, shortcuts, assignments, gpu, place, parts."""
    tell(part=LOADING)
    started = perf_counter()
    with session_of(question, Path(question["place"]), "rehearsal") as (session, resident):
        tell(part=LOADING, seconds=perf_counter() - started)
        from tui_trainer.training.rehearsal import Rehearsal

        found = Rehearsal(session, tell, resident).run(question["parts"])
        # Where memory ran out the passes are others than those of the key.
        is_planned = session.plan.shape_key and "works_with" not in found.get(WORST, {})
        if is_planned and (typical := found.get(TYPICAL, {})).get("steps", 0) >= _STEPS:
            keep_step_seconds(session.plan, typical["step_seconds"], perf_counter() - started)
        # Of the largest pass and of everything else that a run does: no smaller than what the run will need.
        if found and not any("failed" in one or "works_with" in one for one in found.values()):
            keep_peak(session.plan, max(one["peak_memory_bytes"] for one in found.values()))
        return {}


if __name__ == "__main__":
    answer_question(rehearse)
