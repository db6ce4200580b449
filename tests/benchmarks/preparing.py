"""Seconds from JSONL to rows of tokens on disk: chat messages, labelled texts, texts and tagged words.

    uv run python tests/benchmarks/preparing.py [--rows 1000000] [--against OTHER_CHECKOUT] [--rounds 3]
    uv run python tests/benchmarks/preparing.py --rows 400000 --words 20 120 --processes 1 2 --datasets

Each measurement is a process of its own with an empty cache; what compares runs in turn, on the same rows, and medians
and their ratio are printed. Beside the seconds stand those of all cores, of this process and its children together: a
busy machine takes longer, and hardly more of them.

With --against the other is an earlier checkout, in this environment. With --datasets it is `datasets` with as many
processes: `load_dataset` of the JSON, then a batched `map` with the same tokenizer and template, which gives the same
tokens (texts are compared row by row; conversations are rendered up to the answer and as a whole, as TRL does).

What a run takes with more processes follows from its parts: the seconds of the first process alone, which nobody else
can take over, plus the start of the others, which all of them do at once, plus their work divided by their number. The
start is told from the work by a second run on a quarter of the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
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
WITH_DATASETS = ("chat", "text")
MANY = 32
Measured = dict[str, float]


def rows_of(shape: str, count: int, words_of_row: Sequence[int]) -> Iterator[dict[str, Any]]:
    draw = random.Random(1)
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randint(*words_of_row))
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


def timed(work: Callable[[], Measured]) -> Measured:
    """What `work` gives, with the seconds that it took: by the clock, of this process, and of its children."""

    def children_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    started, own, others = time.perf_counter(), time.process_time(), children_seconds()
    found = work()
    seconds = time.perf_counter() - started
    return {**found, "seconds": seconds, "own": time.process_time() - own, "others": children_seconds() - others}


def digest(rows: Iterator[Any]) -> int:
    """Of rows of int32 in any order."""
    import xxhash

    return sum(xxhash.xxh3_64_intdigest(row) for row in rows) % 2**48


def prepared_in(folder: Path, shape: str, processes: int, max_length: int) -> Measured:
    """By this program, in this process."""
    import transformers  # what it takes is not ours

    from tui_trainer.config.load import Request
    from tui_trainer.data.preparing.token_rows import Rows
    from tui_trainer.launching.open_run import load_config
    from tui_trainer.tasks import find_task

    task_name, model = TASKS[shape]
    settings = {
        "task.type": task_name,
        "model.model_name_or_path": folder / model,
        "data.path": folder / f"{shape}.jsonl",
        "data.max_length": max_length,
        "data.num_proc": processes,
    } | ({"task.chat_template": "chatml"} if task_name == "chat" else {})
    loaded = load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))
    task = find_task(task_name)
    transformers.AutoTokenizer.from_pretrained(folder / model)
    made = []

    def work() -> Measured:
        made.append(task.prepare(loaded.config, loaded.data, Path(cache), lambda *_: None))
        return {}

    with tempfile.TemporaryDirectory(dir=folder) as cache:
        found, [data] = timed(work), made
        counts, sides = data.counts, [Rows(path) for path in (data.train_path, data.eval_path) if path]
        found["digest"] = digest(side.row(index).tobytes() for side in sides for index in range(len(side)))
        return found | {
            "rows": counts.train_rows + counts.eval_rows,
            "tokens": counts.train_tokens + counts.eval_tokens,
        }


def mapped_in(folder: Path, shape: str, processes: int, max_length: int) -> Measured:
    """By `datasets`, in this process."""
    import datasets
    import numpy as np
    from transformers import AutoTokenizer

    from tui_trainer.models.chat_rendering import template_text

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(folder / TASKS[shape][1])
    template = template_text("chatml")

    def texts(batch: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer(batch["text"], return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*ids, tokenizer.eos_token_id][:max_length] for ids in found]}

    def conversations(batch: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"input_ids": [], "labels": []}
        asked = [messages[:-1] for messages in batch["messages"]]
        more = {"chat_template": template, "return_dict": False}
        prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, **more)
        for before, ids in zip(prompts, tokenizer.apply_chat_template(batch["messages"], **more), strict=True):
            found["input_ids"].append(ids[:max_length])
            found["labels"].append([*[-100] * len(before), *ids[len(before) :]][:max_length])
        return found

    made = []

    def work() -> Measured:
        path, cache = str(folder / f"{shape}.jsonl"), str(folder / "datasets")
        rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=cache)
        convert = conversations if shape == "chat" else texts
        made.append(rows.map(convert, batched=True, num_proc=processes, remove_columns=rows.column_names))
        return {}

    found, [data] = timed(work), made
    each = (np.array(row, dtype=np.int32) for some in data.iter(1000) for row in some["input_ids"])
    lengths: list[int] = []
    found["digest"] = digest(row.tobytes() for row in each if lengths.append(len(row)) is None)
    return found | {"rows": len(data), "tokens": sum(lengths)}


def measure(checkout: Path | None, folder: Path, shape: str, processes: int, max_length: int) -> Measured:
    """By the program of a checkout, or by `datasets`, in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--shapes", shape, "--processes", str(processes)]
    command += ["--max-length", str(max_length), *([] if checkout else ["--datasets"])]
    environment = os.environ | {"TUI_TRAINER_HOME": str(folder / "home"), "PYTHONPATH": str(checkout or HERE)}
    with tempfile.TemporaryDirectory(dir=folder) as home:
        environment["HF_HOME"] = home
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        who = checkout or "datasets"
        raise SystemExit(f"{who}, {shape}: {done.stderr.strip().splitlines()[-1]}")
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(rounds: Sequence[Measured]) -> Measured:
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def seconds_of_many(whole: Measured, quarter: Measured, processes: int) -> tuple[float, float, float]:
    """(seconds that no other process can take over, seconds to start one, seconds with MANY of them)."""
    work = (whole["others"] - quarter["others"]) / 0.75
    start = max(0.0, whole["others"] - work) / processes
    return whole["own"], start, whole["own"] + start + work / MANY


def write_rows(path: Path, shape: str, count: int, words: Sequence[int]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows_of(shape, count, words))


def compare(asked: argparse.Namespace, folder: Path, shape: str, processes: int) -> None:
    others: list[Path | None] = [asked.against.resolve()] if asked.against else []
    others += [None] if asked.datasets else []
    who = [HERE, *others]
    found: list[list[list[Measured]]] = []
    for rows in [asked.rows, *([asked.rows // 4] if asked.datasets and processes > 1 else [])]:
        write_rows(folder / f"{shape}.jsonl", shape, rows, asked.words)
        rounds = [
            [measure(one, folder, shape, processes, asked.max_length) for one in who] for _ in range(asked.rounds)
        ]
        found.append([list(of_one) for of_one in zip(*rounds, strict=True)])
    here, *there = (medians(of_one) for of_one in found[0])
    print(f"{shape}, {asked.rows:,} rows of {asked.words[0]} to {asked.words[1]} words, {processes} process(es):")
    for one, of_one in zip(who, [here, *there], strict=True):
        name = "here" if one == HERE else str(one or "datasets")
        cores = of_one["own"] + of_one["others"]
        ratio = "" if one == HERE else f", {of_one['seconds'] / here['seconds']:.2f} times the seconds of here"
        same = "" if one == HERE or of_one["digest"] != here["digest"] else ", the same tokens"
        print(
            f"  {name:10} {of_one['seconds']:7.2f} s, {cores:7.2f} s of cores ({of_one['own']:.2f} of the first)"
            f", {of_one['rows']:,.0f} rows, {of_one['tokens']:,.0f} tokens{ratio}{same}"
        )
    if len(found) > 1:
        parts = [
            seconds_of_many(medians(whole), medians(quarter), processes)
            for whole, quarter in zip(found[0], found[1], strict=True)
        ]
        for one, (serial, start, many) in zip(who, parts, strict=True):
            if not medians(found[0][who.index(one)])["others"]:
                continue  # an earlier program did not wait for its processes, so theirs is not known
            name = "here" if one == HERE else str(one or "datasets")
            ratio = "" if one == HERE else f", {many / parts[0][2]:.2f} times those of here"
            print(
                f"  {name:10} {MANY} processes: {serial:.2f} s alone + {start:.2f} s start + work = {many:.2f} s{ratio}"
            )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, nargs=2, default=(4, 12), metavar=("LEAST", "MOST"))
    parser.add_argument("--processes", type=int, nargs="*", default=[1])
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--datasets", action="store_true")
    parser.add_argument("--shapes", nargs="*", choices=TASKS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder:
        one = mapped_in if asked.datasets else prepared_in
        print(json.dumps(one(asked.folder, asked.shapes[0], asked.processes[0], asked.max_length)))
        return
    shapes = asked.shapes or (WITH_DATASETS if asked.datasets else list(TASKS))
    if asked.datasets and (no_twin := set(shapes) - {*WITH_DATASETS}):
        raise SystemExit(f"--datasets compares {' and '.join(WITH_DATASETS)}, not {', '.join(sorted(no_twin))}")
    sys.path.insert(0, str(HERE))
    from tests.tiny_models import save_tiny_model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in sorted({model for _, model in TASKS.values()}):
            save_tiny_model(folder / model, model)
        for shape in shapes:
            for processes in asked.processes:
                compare(asked, folder, shape, processes)


if __name__ == "__main__":
    main()
