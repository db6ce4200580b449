"""Rows a second from a large table to tokens on disk, against plain `datasets.map`, and the memory that it takes.

    uv run python tests/benchmarks/tables.py [--megabytes 200]

One JSONL of texts with a label, one WordPiece tokenizer. Each measurement is a process of its own: ours with one and
with two processes, ours again from the cache, and `datasets.map(batched=True)` with the same tokenizer and the same
truncation. `datasets` reads the file into its own cache first; that is counted, as reading is counted in ours.
Memory is the most that a process and its children have resident, above what it has after its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

os.environ.setdefault("HF_HUB_OFFLINE", "1")
MAX_LENGTH = 128
CLASSES = ("bug", "feature", "question")


def write_rows(path: Path, megabytes: int) -> int:
    """Sentences of Python's documentation, in any order. Returns the number of rows."""
    from tui_trainer.data.samples import find_sample

    texts = find_sample("python-reference").content()
    lines = [line.strip() for _, text in texts for line in text.splitlines() if len(line.strip()) > 40]
    draw, rows = random.Random(1), 0
    with path.open("w") as file:
        while file.tell() < megabytes * 1_000_000:
            text = " ".join(draw.choices(lines, k=draw.randint(1, 6)))
            file.write(json.dumps({"text": text, "label": draw.choice(CLASSES)}) + "\n")
            rows += 1
    return rows


def save_model(folder: Path) -> None:
    """A BERT of no size, with a WordPiece tokenizer trained on real text."""
    from tests.tiny_models import save_tiny_model

    save_tiny_model(folder, "bert")


class Peak:
    """The most bytes that this process and its children have resident, above what it has now."""

    def __enter__(self) -> Peak:
        import psutil

        self._process = psutil.Process()
        self._start, self.bytes, self._over = self._resident(), 0, Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.bytes = max(self.bytes, self._resident() - self._start)

    def _resident(self) -> int:
        import psutil

        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total


def ours(folder: Path, processes: int) -> dict[str, float]:
    from tui_trainer.config.load import Request
    from tui_trainer.launching.open_run import load_config
    from tui_trainer.tasks import find_task

    settings = {
        "task.type": "sequence_classification",
        "model.model_name_or_path": str(folder / "model"),
        "data.path": str(folder / "rows.jsonl"),
        "data.max_length": MAX_LENGTH,
        "data.num_proc": processes,
    }
    loaded = load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))
    task = find_task(loaded.config.task.type)
    import transformers  # what it takes is not ours

    transformers.AutoTokenizer.from_pretrained(folder / "model")
    with Peak() as peak:
        started = perf_counter()
        data = task.prepare(loaded.config, loaded.data, folder / "cache", lambda *_: None)
        seconds = perf_counter() - started
    rows = data.counts.train_rows + data.counts.eval_rows
    return {"rows": rows, "seconds": seconds, "peak": peak.bytes, "from_cache": data.from_cache}


def plain(folder: Path) -> dict[str, float]:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    with Peak() as peak:
        started = perf_counter()
        rows = datasets.load_dataset(
            "json", data_files=str(folder / "rows.jsonl"), split="train", cache_dir=str(folder / "datasets")
        )
        mapped = rows.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=MAX_LENGTH),
            batched=True,
            remove_columns=["text"],
        )
        seconds = perf_counter() - started
    return {"rows": len(mapped), "seconds": seconds, "peak": peak.bytes, "from_cache": False}


def measure(folder: Path, what: str) -> dict[str, float]:
    """In a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--measure", what]
    environment = os.environ | {"TUI_TRAINER_HOME": str(folder / "home"), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        found = plain(asked.folder) if asked.measure == "datasets" else ours(asked.folder, int(asked.measure))
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.path.insert(0, str(Path(__file__).parents[2]))
        save_model(folder / "model")
        print(f"{write_rows(folder / 'rows.jsonl', asked.megabytes):,} rows, {asked.megabytes} MB")
        for what, words in (
            ("1", "ours, one process"),
            ("1", "the same again, from the cache"),
            ("2", "ours, two processes"),
            ("datasets", "datasets.map(batched=True)"),
        ):
            if what == "2":
                subprocess.run(["rm", "-rf", str(folder / "cache")], check=True)
            found = measure(folder, what)
            rate = found["rows"] / found["seconds"]
            memory = found["peak"] / 1e6
            print(f"{words:32} {found['seconds']:7.1f} s  {rate:10,.0f} rows/s  {memory:7.0f} MB more at the peak")


if __name__ == "__main__":
    main()
