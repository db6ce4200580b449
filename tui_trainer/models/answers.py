"""What a model consists of and what its layers compute, as a process with torch has found it: asked once, and kept.

Answers about the recipes and the models of the catalogue are shipped in `shipped_answers.json`, so that their first
plan asks nobody; `python -m tests.ship_answers` writes it. All others are kept on the disk, by version of transformers.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tui_trainer.hardware.places import prepared_data_folder
from tui_trainer.runs.folder import write_atomically
from tui_trainer.worker.asking import WorkerFailed, shapes_worker
from tui_trainer.worker.questions import QUESTIONS

_SHIPPED = Path(__file__).with_name("shipped_answers.json")
# A busy machine takes minutes to load torch.
_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Answers:
    """To the questions of one name. Those of another form of questions and answers, which `format_version` counts, are
    not believed."""

    name: str
    format_version: int
    _known: dict[str, Any] = field(default_factory=dict)
    """What this process was told already, failures too: the screens plan anew after each edit."""

    def ask(self, question: Mapping[str, Any], timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
        """The answer, which is JSON; the first one about a model takes seconds. Raises WorkerFailed."""
        text = json.dumps(question, sort_keys=True, default=str)
        key = self.key(text)
        if key not in self._known:
            self._known[key] = self._find(key, text, timeout_seconds)
        if isinstance(found := self._known[key], WorkerFailed):
            raise found
        return found

    def key(self, question: str) -> str:
        import xxhash

        module = QUESTIONS[self.name].partition(":")[0]
        return xxhash.xxh3_128(f"{self.format_version} {module} {question}".encode()).hexdigest()

    def _find(self, key: str, question: str, timeout_seconds: float) -> Any:
        if key in (shipped := shipped_answers()):
            return shipped[key]
        place = prepared_data_folder(os.environ) / "answers" / metadata.version("transformers") / f"{key}.json"
        with suppress(OSError, ValueError):
            return json.loads(place.read_text("utf-8"))
        try:
            found = shapes_worker.ask(self.name, json.loads(question), timeout_seconds=timeout_seconds)
        except WorkerFailed as failure:
            return failure
        # What cannot be written costs seconds the next time, and nothing else.
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, json.dumps(found).encode())
        return found


@cache
def shipped_answers() -> dict[str, Any]:
    """By key; none where the file is not there."""
    with suppress(OSError, ValueError):
        return dict(json.loads(_SHIPPED.read_text("utf-8")))
    return {}
