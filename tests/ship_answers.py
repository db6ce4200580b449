"""Writes `shipped_answers.json`: what a first plan asks about each recipe, on a machine of each hardware profile, and
about each model of the catalogue with each head that it can have.

    uv run python -m tests.ship_answers            # two minutes; also after a new recipe, preset or catalogue row
    uv run python -m tests.ship_answers --check    # which answers are missing or differ; exit code 1 if any

What is no longer asked is left out. What is shipped is believed for a question that is asked as before, but for a
twentieth of these, other ones each time; with --anew all are asked, which takes many times as long.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.planning.test_profiles_on_machines import ANY_MODEL, FACTS, HARDWARE, RECIPES, loaded_on, machine_of
from tui_trainer.errors import ConfigError
from tui_trainer.models import counting
from tui_trainer.models import counting as answers
from tui_trainer.models.catalogue import all_entries
from tui_trainer.models.counting import Answers
from tui_trainer.models.heads import CLASSIFYING_HEADS, supported_heads
from tui_trainer.models.shape import shape_of
from tui_trainer.planning import plan as planning
from tui_trainer.planning.memory import dry_run
from tui_trainer.worker.asking import WorkerFailed

SHORT = replace(FACTS, row_tokens=50.0, longest_row=90, packed_rows=1.0)  # documents that are packed where they can be
ANSWERED = replace(FACTS, target_tokens=64)
ASKED_AGAIN_SHARE = 0.05
_PLACE = Path(answers.__file__).with_name("shipped_answers.json")


@contextmanager
def recorded(believed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All answers that are given meanwhile, by key, each asked anew that is not believed."""
    found: dict[str, Any] = {}
    find = Answers._find

    def finding(self: Answers, key: str, question: str, timeout_seconds: float) -> Any:
        answer = find(self, key, question, timeout_seconds)
        if not isinstance(answer, WorkerFailed):
            found[key] = answer
        return answer

    for asked in (counting.answers, dry_run.answers):
        asked._cache.clear()
    with (
        tempfile.TemporaryDirectory() as home,
        patch.object(answers, "prepared_data_folder", lambda environment: Path(home)),
        patch.object(answers, "shipped_answers", lambda: believed),
        patch.object(Answers, "_find", finding),
    ):
        yield found


def ask(believed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the first plans ask, answered now but for what is believed."""
    with recorded(believed) as found, patch.object(planning, "disk_free_bytes", lambda path: None):
        machines = {name: machine_of(name) for name in HARDWARE}
        machines["cpu with bf16"] = replace(machine_of("cpu"), cpu_flags=frozenset({"avx512_bf16"}))
        for name, hardware in machines.items():
            for recipe in RECIPES:
                loaded = loaded_on(hardware, recipe, ANY_MODEL if recipe == "finetune" else ())
                for facts in (FACTS, SHORT, ANSWERED):
                    with suppress(ConfigError):  # too large for that machine
                        planning.make(loaded, hardware, facts)
            print(f"{name}: {len(found)} answers", flush=True)
        for entry in all_entries():
            for head in supported_heads(str(entry.config["model_type"])):
                shape_of(entry.config, head=head, labels=2 if head in CLASSIFYING_HEADS else 0)
        print(f"models of the catalogue: {len(found)} answers", flush=True)
    return found


def main() -> None:
    shipped = json.loads(_PLACE.read_text("utf-8"))
    believes = "--anew" not in sys.argv[1:]
    found = ask({key: shipped[key] for key in shipped if believes and random.random() > ASKED_AGAIN_SHARE})
    missing, needless = found.keys() - shipped.keys(), shipped.keys() - found.keys()
    differing = [key for key in found.keys() & shipped.keys() if found[key] != shipped[key]]
    words = f"of {len(found)} answers {len(missing)} were missing and {len(differing)} differed"
    print(f"{words}, {len(needless)} more are no longer asked")
    if "--check" in sys.argv[1:]:
        sys.exit(bool(missing or differing or needless))
    lines = (f"{json.dumps(key)}: {json.dumps(found[key], separators=(',', ':'))}" for key in sorted(found))
    _PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
