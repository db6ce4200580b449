"""Estimates of rows and tokens before the data is prepared."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.readers import Characters, write
from tui_trainer.data.preparing.cache import PreparedData, RowSettings
from tui_trainer.data.preparing.estimate import Estimate, Rate, estimate, size_of, text_excerpts
from tui_trainer.data.preparing.prepare import prepare
from tui_trainer.data.preparing.tokenizing import CharacterReader, TextReader
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.data.sources.source import Source, open_source, open_sources

DOCUMENTS = RowSettings(rows="documents", max_length=8, eval_fraction=0.2, seed=42, tokenizer="words")
STREAM = RowSettings(rows="stream", max_length=16, eval_fraction=0.2, seed=42, tokenizer="characters")
TABLE = RowSettings(rows="examples", max_length=8, eval_fraction=0.1, seed=1, tokenizer="characters")


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Return one token for each word."""
    return [list(map(int, re.findall(r"\d+", text))) for text in texts]


def words_per_character(texts: Sequence[str]) -> float:
    return sum(len(text.split()) for text in texts) / sum(map(len, texts))


READERS: dict[str, Callable[[], object]] = {
    "documents": lambda: TextReader(encode, eos_id=1, vocabulary=1000),
    "stream": CharacterReader,
    "examples": Characters,
}


def prepared(source: Source, cut: RowSettings, folder: Path) -> PreparedData:
    return prepare(ResolvedData.of(source), READERS[cut.rows](), cut, folder)


def guessed(cut: RowSettings, *sources: Source, rate: Rate = lambda texts: 1.0) -> Estimate:
    return estimate(sources, READERS[cut.rows](), cut, rate, frame_tokens=int(cut.rows != "examples"))


def numbers(chance: random.Random, count: int, digits: int, *lengths: int) -> list[str]:
    """Return texts of numbers with so many digits."""
    low = 10 ** (digits - 1)
    drawn = lengths or [chance.randrange(2, 30) for _ in range(count)]
    return [" ".join(str(chance.randrange(low, 10 * low)) for _ in range(length)) for length in drawn]


def near_the_counts(guess: Estimate, data: PreparedData, near: float) -> None:
    """Check an estimate against what was prepared."""
    counts = data.counts
    assert guess.counts.train_tokens == pytest.approx(counts.train_tokens, rel=near)
    assert guess.counts.train_rows == pytest.approx(counts.train_rows, rel=near)
    assert guess.counts.eval_rows == pytest.approx(counts.eval_rows, rel=0.08)
    assert guess.counts.eval_tokens == pytest.approx(counts.eval_tokens, rel=0.08)
    assert np.mean(guess.lengths) == pytest.approx(np.mean(data.lengths), rel=near)
    guessed_rows, used = (
        [source["rows_per_epoch"] for source in built.details.get("sources", ())] for built in (guess, data)
    )
    assert len(guessed_rows) == len(used) and guessed_rows == pytest.approx(used, rel=near)


def check_format(name: str, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(7)
    lengths = [max(2, int(chance.lognormvariate(1.8, 0.7))) for _ in range(4000)]
    texts = numbers(chance, 0, 3, *lengths)
    path = folder / name
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
    data = prepared(open_source(str(path)), DOCUMENTS, folder / "cache")
    guess = guessed(DOCUMENTS, open_source(str(path)), rate=words_per_character)
    near_the_counts(guess, data, 0.06)
    assert guess.counts.train_labels == pytest.approx(data.counts.train_labels, rel=0.06)
    assert guess.counts.train_tokens - guess.counts.train_labels == pytest.approx(data.counts.train_documents, rel=0.06)
    assert guess.counts.longest_row == data.counts.longest_row == 8


def test_an_estimate_of_json_lines_is_near_the_counts(tmp_path):
    check_format("a.jsonl", tmp_path)


@pytest.mark.full
def test_an_estimate_of_every_format_is_near_the_counts(tmp_path, subtests):
    for name in ("a.json", "a.csv", "a.parquet", "a.arrow"):
        with subtests.test(name):
            check_format(name, tmp_path)


def test_an_estimate_of_a_table_is_near_the_counts(tmp_path):
    rows = [{"text": "x" * (1 + index % 7), "label": index % 2} for index in range(8000)]
    source = open_source(str(write(tmp_path / "train.jsonl", rows)))
    guess = guessed(TABLE, source)
    near_the_counts(guess, prepared(source, TABLE, tmp_path / "cache"), 0.02)
    assert guess.counts.longest_row == 7


def test_an_estimate_of_a_stream_is_near_the_counts(tmp_path):
    chance = random.Random(0)
    stories = ["".join(chance.choices("abcdefgh \n", k=120)) + chr(0x4E00 + n) for n in range(30)]
    source = open_source(str(write(tmp_path / "a.jsonl", stories * 40)))
    guess, counts = guessed(STREAM, source), prepared(source, STREAM, tmp_path / "cache").counts
    assert guess.counts.train_tokens == pytest.approx(counts.train_tokens, rel=0.02)
    assert guess.counts.eval_tokens == pytest.approx(counts.eval_tokens, rel=0.05)
    assert guess.counts.train_rows == pytest.approx(counts.train_rows, rel=0.02)
    assert guess.counts.vocabulary == pytest.approx(counts.vocabulary, abs=8)
    limited = guessed(replace(STREAM, eval_fraction=0.5, max_chars=1000), source)
    assert limited.counts.train_tokens + limited.counts.eval_tokens == pytest.approx(1008, abs=5)


def test_an_estimate_follows_the_weights_and_the_lengths_of_each_source(tmp_path):
    chance = random.Random(3)
    texts = [numbers(chance, 6000, 2), numbers(chance, 3000, 9)]
    source = open_sources([str(write(tmp_path / f"{n}.jsonl", rows)) for n, rows in enumerate(texts)])
    cut = replace(DOCUMENTS, weights=(0.25, 2.5), max_rows=2500)
    guess, data = guessed(cut, source, rate=words_per_character), prepared(source, cut, tmp_path / "cache")
    near_the_counts(guess, data, 0.06)
    assert guess.counts.train_labels == pytest.approx(data.counts.train_labels, rel=0.06)


@pytest.mark.full
def test_an_estimate_of_tables_follows_the_weights_and_the_lengths_of_each_source(tmp_path):
    tables = [
        [{"text": sign * (shortest + index % 3), "label": index % 2} for index in range(count)]
        for sign, shortest, count in (("x", 1, 20_000), ("y", 4, 9000))
    ]
    source = open_sources([str(write(tmp_path / f"{n}.jsonl", rows)) for n, rows in enumerate(tables)])
    cut = replace(TABLE, weights=(0.2, 3.0))
    near_the_counts(guessed(cut, source), prepared(source, cut, tmp_path / "cache"), 0.02)


def test_an_estimate_of_text_files_counts_each_as_a_document(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("1234 " * (10 * number + 10))
    held_out = open_source(str(write(tmp_path / "eval.jsonl", ["1 2 3"] * 3)))
    cut = replace(DOCUMENTS, max_length=16)
    guess = guessed(cut, open_source(f"{tmp_path}/*.txt"), held_out, rate=lambda texts: 0.2)
    assert (guess.counts.train_tokens - guess.counts.train_labels, guess.counts.eval_rows) == (12, 3)
    assert guess.counts.train_tokens == sum(10 * number + 11 for number in range(12))
    assert guess.counts.train_rows == sum(-(-(10 * number + 10) // 16) for number in range(12))


def test_an_estimate_leaves_out_the_row_that_was_not_read_whole(tmp_path, subtests):
    text = "12 lines\n" * 3000
    contents = {
        "a.jsonl": (json.dumps({"text": text}) + "\n") * 100,
        "a.json": json.dumps([{"text": text}] * 100),
        "a.csv": "text\n" + f'"{text}"\n' * 100,
    }
    for name, content in contents.items():
        with subtests.test(name):
            (tmp_path / name).write_text(content)
            guess = guessed(replace(DOCUMENTS, eval_fraction=0), open_source(str(tmp_path / name)))
            assert guess.counts.train_tokens - guess.counts.train_labels == pytest.approx(100, rel=0.05)
            assert guess.counts.train_tokens == pytest.approx(100 * (len(text) + 1), rel=0.05)


def test_an_estimate_of_a_gz_file_reports_the_assumed_compression(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(20_000).hex().encode()))
    guess = guessed(replace(STREAM, eval_fraction=0), open_source(str(path)))
    assert guess.counts.train_tokens == pytest.approx(3 * path.stat().st_size, abs=2)
    assert "assumed to unpack to 3 times" in guess.reason


def test_broken_files_do_not_stop_an_estimate(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'oops\n[1]\n{"text": 5}\n\xff\n')
    (tmp_path / "b.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "c.txt").write_bytes(b"\xff" * 100)
    assert guessed(replace(STREAM, eval_fraction=0.1), open_source(str(tmp_path))).counts.train_tokens < 200


def test_the_estimate_of_a_sample_counts_its_characters(tmp_path):
    source, cut = open_source("sample:python-reference"), replace(STREAM, max_length=256, eval_fraction=0.1)
    guess, counts = guessed(cut, source), prepared(source, cut, tmp_path).counts
    assert guess.counts.train_tokens + guess.counts.eval_tokens == counts.train_tokens + counts.eval_tokens
    assert guess.counts.train_rows == pytest.approx(counts.train_rows, rel=0.02)


def test_the_beginning_of_a_source_is_shown_without_broken_or_very_long_parts(tmp_path):
    write(tmp_path / "a.jsonl", ["one", "", "two"])
    (tmp_path / "b.txt").write_text("x" * 500_000)
    (tmp_path / "c.jsonl").write_text("oops")
    shown = text_excerpts(size_of(open_source(str(tmp_path))))
    assert set(shown) >= {"one", "two"}
    assert len(shown) == 3 and sum(map(len, shown)) < 100_000
