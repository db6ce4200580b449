"""What is said of data before it is prepared."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tui_trainer.data.preparing.cache import Cut, PreparedData
from tui_trainer.data.preparing.estimate import DataEstimate, Rate, beginning_of, estimate, size_of
from tui_trainer.data.preparing.prepare import prepare
from tui_trainer.data.preparing.tokenizing import TextReader
from tui_trainer.data.sources.source import Source, open_source, open_sources

CUT = Cut(rows="documents", max_length=8, eval_fraction=0.2, seed=42, tokenizer="words")


def encode(texts: Sequence[str]) -> list[list[int]]:
    """One token a word."""
    return [list(map(int, re.findall(r"\d+", text))) for text in texts]


def prepared(source: Source, cut: Cut, cache: Path) -> PreparedData:
    return prepare([source], TextReader(encode, eos_id=1, vocabulary=1000), cut, cache)


def guessed(rate: Rate, *sources: Source, **changes) -> DataEstimate:
    reader = TextReader(encode, eos_id=1, vocabulary=1000)
    return estimate(sources, reader, replace(CUT, **changes), rate, frame_tokens=1)


def write(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.arrow"])
def test_an_estimate_is_near_the_counts_in_every_form(tmp_path, name):
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(7)
    lengths = [max(2, int(chance.lognormvariate(1.8, 0.7))) for _ in range(9000)]
    texts = [" ".join(str(chance.randrange(100, 999)) for _ in range(length)) for length in lengths]
    path = tmp_path / name
    table = pa.table({"id": list(range(len(texts))), "text": texts})
    if name == "a.parquet":
        pq.write_table(table, path)
    elif name == "a.arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    elif name == "a.json":
        path.write_text(json.dumps([{"text": text} for text in texts]))
    elif name == "a.csv":
        path.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    else:
        write(path, texts)
    counts = prepared(open_source(str(path)), CUT, tmp_path / "cache").counts
    rate = sum(lengths) / sum(map(len, texts))
    guess = guessed(lambda texts: rate, open_source(str(path)))
    assert guess.tokens - guess.labels == pytest.approx(counts.train_documents, rel=0.06)
    assert guess.tokens == pytest.approx(counts.train_tokens, rel=0.06)
    assert guess.labels == pytest.approx(counts.train_labels, rel=0.06)
    assert guess.rows == pytest.approx(counts.train_rows, rel=0.06)
    assert guess.eval_rows == pytest.approx(counts.eval_rows, rel=0.08)
    assert guess.longest_row == counts.longest_row == 8
    assert np.mean(guess.lengths) == pytest.approx(counts.train_labels / counts.train_rows, rel=0.06)


def test_an_estimate_of_texts_and_of_two_sources_counts_files_as_documents(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("1234 " * (10 * number + 10))
    held_out = write(tmp_path / "eval.jsonl", ["1 2 3"] * 3)
    source = open_source(f"{tmp_path}/*.txt")
    guess = guessed(lambda texts: 0.2, source, open_source(str(held_out)), max_length=16)
    assert (guess.tokens - guess.labels, guess.eval_rows) == (12, 3)
    assert guess.tokens == sum(10 * number + 11 for number in range(12))
    assert guess.rows == sum(-(-(10 * number + 10) // 16) for number in range(12))


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_an_estimate_uses_the_long_rows_before_the_one_that_was_not_read_whole(tmp_path, name):
    text = "12 lines\n" * 3000
    quoted = f'"{text}"\n'
    whole = json.dumps([{"text": text}] * 100) if name == "a.json" else "text\n" + quoted * 100
    (tmp_path / name).write_text(whole)
    guess = guessed(lambda texts: 1.0, open_source(str(tmp_path / name)), eval_fraction=0)
    assert guess.tokens - guess.labels == pytest.approx(100, rel=0.05)
    assert guess.tokens == pytest.approx(100 * (len(text) + 1), rel=0.05)


def test_a_source_shows_its_beginning(tmp_path):
    write(tmp_path / "a.jsonl", ["one", "", "two"])
    (tmp_path / "b.txt").write_text("x" * 500_000)
    (tmp_path / "c.jsonl").write_text("oops")
    shown = beginning_of(size_of(open_source(str(tmp_path))))
    assert set(shown) >= {"one", "two"}
    assert len(shown) == 3 and sum(map(len, shown)) < 100_000


def test_an_estimate_follows_the_weights_and_the_tokens_of_each_source(tmp_path):
    chance = random.Random(3)

    def texts(count: int, digits: int) -> list[str]:
        low = 10 ** (digits - 1)
        return [
            " ".join(str(chance.randrange(low, 10 * low)) for _ in range(chance.randrange(2, 30))) for _ in range(count)
        ]

    paths = [write(tmp_path / "a.jsonl", texts(6000, 2)), write(tmp_path / "b.jsonl", texts(3000, 9))]
    source, changes = open_sources([str(path) for path in paths]), {"weights": (0.25, 2.5), "max_rows": 2500}
    data = prepared(source, replace(CUT, **changes), tmp_path / "cache")
    guess = guessed(_words_a_character, source, **changes)
    counts, near = data.counts, 0.06
    assert guess.tokens - guess.labels == pytest.approx(counts.train_documents, rel=near)
    assert guess.tokens == pytest.approx(counts.train_tokens, rel=near)
    assert guess.labels == pytest.approx(counts.train_labels, rel=near)
    assert guess.rows == pytest.approx(counts.train_rows, rel=near)
    assert guess.eval_tokens == pytest.approx(counts.eval_tokens, rel=near)
    assert np.mean(guess.lengths) == pytest.approx(counts.train_labels / counts.train_rows, rel=near)
    used = [one["rows_per_epoch"] for one in data.details["sources"]]
    assert [one.rows_per_epoch for one in guess.sources] == pytest.approx(used, rel=near)


def _words_a_character(texts: Sequence[str]) -> float:
    return sum(len(text.split()) for text in texts) / sum(map(len, texts))
