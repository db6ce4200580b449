"""Seconds from JSONL to rows of tokens on disk: chat messages, labelled texts, texts and tagged words.

    uv run python tests/benchmarks/preparing.py [--rows 1000000] [--against OTHER_CHECKOUT] [--rounds 3]

Each measurement is a process of its own, with one process for the tokens and an empty cache. With --against both
checkouts run in turn, in this environment, on the same rows, and their medians and their ratio are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = Path(__file__).resolve().parents[2]
WORDS = "many sheep stood on the hill and one of them sang a song that no other had heard before".split()
TASKS = {
    "chat": ("chat", "llama"),
    "text+label": ("sequence_classification", "roberta"),
    "text": ("causal_lm", "llama"),
    "tokens+tags": ("token_classification", "roberta"),
}


def rows_of(shape: str, count: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(1)
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randint(4, 12))
        text = " ".join(words)
        if shape == "chat":
            turns = [{"role": "user", "content": f"{number}: {text}?"}, {"role": "assistant", "content": text}]
            yield {"id": number, "messages": turns}
        elif shape == "tokens+tags":
            yield {"tokens": words, "ner_tags": [draw.choice(("O", "O", "B-PER")) for _ in words]}
        else:
            yield {"id": number, "text": f"{number}: {text}"} | (
                {"label": draw.choice(("joy", "anger"))} if shape == "text+label" else {}
            )


def prepared_in(folder: Path, shape: str) -> tuple[float, int]:
    """(seconds, training and evaluation rows) in this process."""
    from tui_trainer.config.load import Request
    from tui_trainer.launching.open_run import load_config
    from tui_trainer.tasks import find_task

    task_name, model = TASKS[shape]
    settings = {
        "task.type": task_name,
        "model.model_name_or_path": folder / model,
        "data.path": folder / f"{shape}.jsonl",
        "data.max_length": 128,
        "data.num_proc": 1,
    } | ({"task.chat_template": "chatml"} if task_name == "chat" else {})
    config = load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))).config
    task = find_task(task_name)
    import transformers  # what it takes is not ours

    transformers.AutoTokenizer.from_pretrained(folder / model)
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        started = perf_counter()
        counts = task.prepare(config, Path(cache), lambda *_: None).counts
        return perf_counter() - started, counts.train_rows + counts.eval_rows


def measure(checkout: Path, folder: Path, shape: str) -> tuple[float, int]:
    """The same by the program of a checkout, in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--shapes", shape]
    environment = os.environ | {"TUI_TRAINER_HOME": str(folder / "home"), "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}, {shape}: {done.stderr.strip().splitlines()[-1]}")
    seconds, rows = json.loads(done.stdout.splitlines()[-1])
    return seconds, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--shapes", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder:
        print(json.dumps(prepared_in(asked.folder, *asked.shapes)))
        return
    sys.path.insert(0, str(HERE))
    from tests.tiny_models import save_tiny_model

    checkouts = [HERE, *([asked.against.resolve()] if asked.against else [])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in sorted({model for _, model in TASKS.values()}):
            save_tiny_model(folder / model, model)
        for shape in asked.shapes:
            path = folder / f"{shape}.jsonl"
            with path.open("w") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows_of(shape, asked.rows))
            rounds = [[measure(checkout, folder, shape) for checkout in checkouts] for _ in range(asked.rounds)]
            path.unlink()
            here, *other = (median(seconds for seconds, _ in of_one) for of_one in zip(*rounds, strict=True))
            rows = " or ".join(f"{rows:,}" for rows in sorted({rows for one in rounds for _, rows in one}))
            against = f", {other[0]:.2f} s there, ratio {here / other[0]:.3f}" if other else ""
            print(f"{shape:12} {asked.rows:,} rows, {rows} prepared: {here:.2f} s here{against}", flush=True)


if __name__ == "__main__":
    main()
