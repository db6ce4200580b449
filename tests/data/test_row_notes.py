"""Notes on prepared rows: which were cut, how long whole ones would be, which rows were bad."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tui_trainer.data.columns.reader import Encoded, Example, Reader
from tui_trainer.data.preparing.cache import Cut, PreparedData
from tui_trainer.data.preparing.prepare import cut_rows, prepare, write_cut_rows
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.preparing.tokenizing import TextReader
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError


class Words(Reader):
    """A token for each word; `label` is the class."""

    columns = ("input_ids",)
    learns = False
    width = 8

    def begin(self, head):
        pass

    def read(self, row):
        if not row.values["text"]:
            raise DataError("the text is empty", where=row.where)
        return Example(str(row.values["text"]), None, str(row.values["label"]))

    def settle(self):
        pass

    def encode(self, examples):
        rows = [list(map(len, example.text.split())) for example in examples]
        return [Encoded({"input_ids": row[: self.width]}, 1, len(row) > self.width) for row in rows]

    def vocabulary(self):
        return 100

    def details(self):
        return {"classes": 2}

    def notes(self):
        return []


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(tmp_path: Path, words: list[int], labels: str = "ab", **more) -> PreparedData:
    """Rows of so many words of four letters, every one another."""
    rows = [
        {"text": " ".join(f"{number:02}{place:02}" for place in range(count)), "label": labels[number % len(labels)]}
        for number, count in enumerate(words)
    ]
    path = write(tmp_path / f"rows-{len(list(tmp_path.iterdir()))}.jsonl", rows)
    plain = {"rows": "examples", "max_length": 8, "eval_fraction": 0.0, "seed": 0, "tokenizer": "words"}
    cut = Cut(**{**plain, "skip_bad_rows": True, **more})
    return prepare([open_source(str(path))], Words(), cut, tmp_path / "cache")


def test_rows_of_a_table_are_marked_if_they_were_cut(tmp_path):
    for rows in (1, 8, 9, 1000):
        cut = np.random.default_rng(rows).random(rows) < 0.3
        write_cut_rows(tmp_path, cut)
        assert cut_rows(tmp_path, rows).tolist() == cut.tolist()
    (tmp_path / "cut_rows.npy").write_bytes(b"nothing")
    assert cut_rows(tmp_path, 1) is None and cut_rows(tmp_path / "elsewhere", 1) is None
    words = [3, 20, 8, 9, 1]
    data = table(tmp_path, words)
    rows = Rows(data.train_path)
    assert rows.lengths.tolist() == [min(8, count) for count in words]
    assert cut_rows(data.folder, len(rows)).tolist() == [count > 8 for count in words]
    assert data.counts.truncated_rows == 2
    data = table(tmp_path, [12] * 10 + [3] * 30, eval_fraction=0.3)
    rows = Rows(data.train_path)
    marks = cut_rows(data.folder, len(rows))
    assert 20 < len(rows) < 40 and marks.tolist() == (rows.lengths == 8).tolist() and 0 < marks.sum() < 10


def test_the_length_that_keeps_99_percent_of_the_rows_whole_is_estimated(tmp_path):
    words = [4] * 180 + list(range(9, 29))
    found = table(tmp_path, words).details["length_for_99_percent"]
    assert found == pytest.approx(np.quantile(words, 0.99, method="higher"), rel=0.2)
    assert table(tmp_path, [4] * 50).details["length_for_99_percent"] == 4
    assert "length_for_99_percent" not in table(tmp_path, [9] * 5).details, "no row is whole"


def test_classes_and_bad_rows_are_counted(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": "a b", "label": "joy"}, {"text": "", "label": "joy"}] * 12)
    (tmp_path / "more.jsonl").write_text('{"text": "c", "label": "anger"}\n')
    cut = Cut(rows="examples", max_length=8, eval_fraction=0.0, seed=0, tokenizer="words", skip_bad_rows=True)
    data = prepare([open_source(str(tmp_path / "*.jsonl"))], Words(), cut, tmp_path / "cache")
    assert data.details["classes"] == 2 and data.details["class_rows"] == {"joy": 12, "anger": 1}
    bad = data.details["bad_rows"]
    assert len(bad) == 1 and data.counts.bad_rows == 12
    assert (
        bad[0]["where"].endswith(f"{path.name}, line 2 (12 times, also 4, 6, ...)")
        and bad[0]["message"] == "the text is empty"
    )
    again = prepare([open_source(str(tmp_path / "*.jsonl"))], Words(), cut, tmp_path / "cache")
    assert again.from_cache and again.details == data.details


def test_pieces_of_a_document_are_marked(tmp_path, subtests):
    for length in [4, 100]:
        with subtests.test(length=length):
            path = write(tmp_path / "texts.jsonl", [{"text": text} for text in ("a b", "a b c d e f g h i", "x y z")])
            cut = Cut(rows="documents", max_length=length, eval_fraction=0.0, seed=0, tokenizer="words")
            encode = lambda texts: [list(map(ord, text.split())) for text in texts]  # noqa: E731
            reader = TextReader(encode, eos_id=2, vocabulary=300)
            data = prepare([open_source(str(path))], reader, cut, tmp_path / "cache")
            marks = cut_rows(data.folder, len(Rows(data.train_path))).tolist()
            assert marks == ([False, True, True, True, False] if length == 4 else [False] * 3)
