"""Tables that cannot be read: the message names the file, the place and what to do, in one sentence."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tui_trainer.data import decoding
from tui_trainer.data.columns import text_columns as columns
from tui_trainer.data.sources import csv_rows, json_rows
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError


def complaint(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        list(open_source(str(path)).documents())
    assert all("\n" not in str(problem) for problem in caught.value.problems)
    return caught.value


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def arrow_bytes(kind: str, folder: Path, table: pa.Table) -> bytes:
    path = folder / "whole"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=5)
    else:
        with {"arrow": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind](path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    content = path.read_bytes()
    path.unlink()
    return content


BROKEN = {
    "empty json": ("a.json", b"", "contains no text"),
    "empty list": ("a.json", b"[]", "contains no text"),
    "empty object": ("a.json", b"{}", "contains no text"),
    "blank json": ("a.json", b" \n\n", "contains no text"),
    "empty csv": ("a.csv", b"", "contains no text"),
    "header alone": ("a.csv", b"id,text\n", "contains no text"),
    "empty arrow": ("a.arrow", b"", "contains no text"),
    "json number": ("a.json", b"12", "line 1, column 1: the file is neither a list nor an object; expected a list"),
    "list of strings": ("a.json", b'["a"]', "a.json, item 1: the row is a string, not an object"),
    "broken item": ("a.json", b'[{"text": "a"},\n {"text": oops}]',
     "a.json, line 2, column 11: broken JSON: Expecting value, near \u00ab"),
    "torn list": ("a.json", b'[{"text": "a"}, {"text": "b', "broken JSON: Unterminated string"),
    "list not closed": ("a.json", b'[{"text": "a"}', "line 1, column 15: expected ',', found the end of the file"),
    "list without comma": ("a.json", b'[{"text": "a"} {"text": "b"}]', "column 16: expected ',', found '{'"),
    "more after the list": ("a.json", b'[{"text": "a"}] x', "'x' after the end of the JSON"),
    "two lists": ("a.json", b'{"a": [{"text": "x"}], "b": [{"text": "y"}]}', "a second list, 'b', after 'a'"),
    "nested json": ("a.json", b'[{"text": ' + b"[" * 200_000, "nested too deeply"),
    "long number": ("a.json", b'[{"text": ' + b"9" * 5000 + b"}]", "the JSON cannot be read"),
    "null text": ("a.json", b'[{"text": null}]', "a.json, item 1: the column 'text' is null, not a string"),
    "latin-1 json": ("a.json", b'[{"text":\n"caf\xe9"}]', "line 2: the text is not UTF-8 (0xe9 at byte offset 14"),
    "utf-16 json": ("a.json", '[{"text": "x"}]'.encode("utf-16"), "probably UTF-16"),
    "surrogate": ("a.json", b'[{"text": "ab\\ud800"}]', "character 3 of the text is a lone surrogate (\\ud800"),
    "false gz": ("a.json.gz", b"[]", "not a valid gzip file"),
    "cut gz": ("a.csv.gz", first_half(gzip.compress(b"text\n" + os.urandom(4000).hex().encode())), "truncated"),
    "ragged": ("a.csv", b"id,text\n1,a,b\n",
     "a.csv, line 2: the row has 3 fields, but the header has 2; put texts that contain ','"),
    "open quote": ("a.csv", b'id,text\n1,"a\n2,b\n',
     "a.csv, line 2: a double quote opened in this row is not closed"),
    "quote inside": ("a.csv", b'id,text\n1,"a" b\n', "a.csv, line 2: there is a double quote in the middle of a text"),
    "two of a name": ("a.csv", b"text,text\na,b\n", "a.csv, line 1: two columns are named 'text'"),
    "latin-1 csv": ("a.csv", b"text\ncaf\xe9\n", "a.csv, line 2: the text is not UTF-8 (0xe9 at byte offset 8"),
    "utf-16 csv": ("a.csv", "id,text\n1,x\n".encode("utf-16"), "probably UTF-16"),
    "binary csv": ("a.csv", b"text,\0\n", "the file is binary"),
    "old line ends": ("a.csv", b"id,text\r1,a\r2,b\r", "bare carriage return"),
    "no parquet": ("a.parquet", b"text\nnot parquet at all", "a.parquet: not a valid Parquet file"),
    "empty parquet": ("a.parquet", b"", "a.parquet: not a valid Parquet file"),
    "no arrow": ("a.arrow", b"text\nnot arrow at all", "a.arrow: not a valid Arrow file"),
    "old feather": ("a.feather", b"FEA1 and more", "version 1 are not supported; convert the file to Parquet"),
}  # fmt: skip


def test_a_broken_table_is_reported_in_one_sentence(tmp_path, subtests):
    for number, (case, (name, content, message)) in enumerate(BROKEN.items()):
        with subtests.test(case):
            (folder := tmp_path / str(number)).mkdir()
            (folder / name).write_bytes(content)
            error = complaint(folder / name)
            assert message in str(error)
            assert len(error.problems) == 1


def test_a_truncated_file_is_reported_in_one_sentence(tmp_path, subtests):
    for kind in ["parquet", "arrow", "stream"]:
        with subtests.test(kind=kind):
            content = arrow_bytes(kind, tmp_path, pa.table({"text": [os.urandom(400).hex() for _ in range(20)]}))
            path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
            for size in (9, len(content) // 3, len(content) // 2):
                path.write_bytes(content[:size])
                error = complaint(path)
                assert "not a valid" in str(error) and len(error.problems) == 1


def test_a_null_and_a_damaged_text_are_reported_with_their_row(tmp_path, subtests):
    for kind in ["parquet", "arrow"]:
        with subtests.test(kind=kind):
            path = tmp_path / f"a.{kind}"
            path.write_bytes(arrow_bytes(kind, tmp_path, pa.table({"text": ["a", None, "c"]})))
            message = f"a.{kind}, row 2: the column 'text' is null, not a string; the row: {{\"text\": null}}"
            assert str(complaint(path)) == message
            wrong = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
            path.write_bytes(arrow_bytes(kind, tmp_path, pa.table({"text": wrong})))
            assert f"a.{kind}, row 1 or after: not a valid" in str(complaint(path))


def test_a_flipped_bit_in_an_arrow_file_never_crashes_the_process(tmp_path):
    content = arrow_bytes(
        "arrow", tmp_path, pa.table({"id": range(40), "text": ["x" * number for number in range(40)]})
    )
    path, chance, outcomes = tmp_path / "a.arrow", random.Random(0), set()
    for _ in range(60):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            list(open_source(str(path)).documents())
            outcomes.add("read")
        except DataError as error:
            assert all("\n" not in str(problem) for problem in error.problems)
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


TOO_LONG = [
    ("a.csv", "id,text\n1,LONG\n", "a.csv, line 2: a text is longer than 100 B, or a double quote is not closed"),
    ("a.json", '[{"text": "LONG"}]', "a.json, line 1, column 2: the row is longer than 100 B; split the row"),
    ("a.jsonl", '{"text": "LONG"}\n', "a.jsonl, line 1: the text is longer than 100 B"),
]


def test_a_text_over_the_limit_is_refused(tmp_path, monkeypatch, subtests):
    for module in (columns, csv_rows, json_rows):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 20)
    for name, content, message in TOO_LONG:
        with subtests.test(name=name):
            (tmp_path / name).write_text(content.replace("LONG", "x" * 301))
            assert message in str(complaint(tmp_path / name))


def test_a_mistake_far_into_a_list_is_reported_with_line_and_column(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 64)
    good = '{"text": "fine"},\n' * 500
    (tmp_path / "a.json").write_text(f'[{good}{{"text": nope}}\n]')
    assert "a.json, line 501, column 10: broken JSON" in str(complaint(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text("[" + good.replace("\n", "") + '{"text": nope}]')
    assert f"a.json, line 1, column {1 + 17 * 500 + 10}: broken JSON" in str(complaint(tmp_path / "a.json"))


def test_rows_before_a_mistake_are_still_read(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": null}, {"text": "b"}, oops]')
    found = []
    with pytest.raises(DataError) as caught:
        found.extend(document.text for document in open_source(str(tmp_path / "a.json")).documents())
    assert [problem.where for problem in caught.value.problems] == ["a.json, item 2", "a.json, line 1, column 48"]
    assert found == ["a", "b"]
