"""`python -m tui_trainer.bench.rehearsal_child`: a rehearsal on the real model and data.

Reads from standard input what to rehearse. Prints a line of JSON for each part that begins, and one for each that is
over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from tui_trainer.bench.training_child import opened_session, request_of
from tui_trainer.launching.start import load_config
from tui_trainer.models.child import answer_question
from tui_trainer.runs.events import LibrariesLoaded
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import read_all
from tui_trainer.training.rehearsal_parts import LOADING


def tell(**words: Any) -> None:
    """To who has asked; what libraries print goes elsewhere."""
    print(json.dumps(words), file=sys.__stdout__, flush=True)


def rehearse(question: dict[str, Any]) -> dict[str, Any]:
    """`question` has config_file, profile, shortcuts, assignments, gpu, place, parts."""
    place = Path(question["place"])
    folder = RunFolder.create(place, "rehearsal")
    tell(part=LOADING)
    started = perf_counter()
    with opened_session(load_config(request_of(question), gpu=question["gpu"]), folder, question["gpu"]) as session:
        resident = next(one.resident_bytes for one in read_all(folder.journal) if isinstance(one, LibrariesLoaded))
        tell(part=LOADING, seconds=perf_counter() - started, resident_bytes=resident)
        from tui_trainer.training.rehearsal import Rehearsal

        Rehearsal(session, tell).run(question["parts"])
        return {}


if __name__ == "__main__":
    answer_question(rehearse)
