"""Tables of every format: they give the same rows, strings stay strings, and errors are reported."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tui_trainer.data import decoding
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.csv_rows import guess_delimiter
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError

TEXTS = [
    "plain",
    "NA",
    "null",
    "None",
    "007",
    "1e5",
    "",
    " ",
    'with "quotes", a comma; and a semicolon',
    "two\nlines",
    "a\ttab",
    "ünï 漢字 🐑",
    "\u2028 separator",
    "trailing space ",
]
Rows = list[dict[str, object]]


def table_of(rows: Rows) -> pa.Table:
    return pa.table({name: [row[name] for row in rows] for name in rows[0]})


def csv_bytes(rows: Rows, delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return text.getvalue().encode()


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(table_of(rows), path, row_group_size=5)


def write_arrow_file(path: Path, rows: Rows) -> None:
    with pa.ipc.new_file(path, table_of(rows).schema) as writer:
        writer.write_table(table_of(rows), max_chunksize=4)


def write_arrow_stream(path: Path, rows: Rows) -> None:
    with pa.ipc.new_stream(path, table_of(rows).schema) as writer:
        writer.write_table(table_of(rows), max_chunksize=4)


def json_lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_on_windows(text: str) -> bytes:
    return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()


FORMS: dict[str, tuple[str, Callable[[Path, Rows], object]]] = {
    "jsonl": ("a.jsonl", lambda path, rows: path.write_bytes(json_lines(rows))),
    "lines in .json": ("a.json", lambda path, rows: path.write_bytes(json_lines(rows))),
    "list": ("a.json", lambda path, rows: path.write_text(json.dumps(rows))),
    "indented list": ("a.json", lambda path, rows: path.write_text(json.dumps(rows, indent=2, ensure_ascii=False))),
    "inside": ("a.json", lambda path, rows: path.write_text(json.dumps({"version": "1", "data": rows, "x": {}}))),
    "indented inside": ("a.json", lambda path, rows: path.write_text(json.dumps({"data": rows, "n": 1}, indent=1))),
    "json.gz": ("a.json.gz", lambda path, rows: path.write_bytes(gzip.compress(json.dumps(rows).encode()))),
    "json with a mark": (
        "a.json",
        lambda path, rows: path.write_bytes(
            b"\xef\xbb\xbf" + json.dumps(rows, indent=1).replace("\n", "\r\n").encode()
        ),
    ),
    "csv": ("a.csv", lambda path, rows: path.write_bytes(csv_bytes(rows, ","))),
    "semicolons": ("a.csv", lambda path, rows: path.write_bytes(csv_bytes(rows, ";"))),
    "tabs": ("a.csv", lambda path, rows: path.write_bytes(csv_bytes(rows, "\t"))),
    "tsv": ("a.tsv", lambda path, rows: path.write_bytes(csv_bytes(rows, "\t"))),
    "csv.gz": ("a.csv.gz", lambda path, rows: path.write_bytes(gzip.compress(csv_bytes(rows, ",")))),
    "csv with a mark": ("a.csv", lambda path, rows: path.write_bytes(b"\xef\xbb\xbf" + csv_bytes(rows, ","))),
    "parquet": ("a.parquet", write_parquet),
    "arrow file": ("a.arrow", write_arrow_file),
    "feather": ("a.feather", write_arrow_file),
    "arrow stream": ("a.arrow", write_arrow_stream),
}


def texts(path: Path | str, **options: str) -> list[str]:
    return [document.text for document in open_source(str(path), **options).documents()]


def complaint(path: Path | str, **options: str) -> DataError:
    with pytest.raises(DataError) as caught:
        texts(path, **options)
    assert all("\n" not in str(problem) for problem in caught.value.problems)
    return caught.value


def test_every_format_gives_the_same_rows(tmp_path, subtests):
    for number, (case, (name, write)) in enumerate(FORMS.items()):
        with subtests.test(case):
            (folder := tmp_path / str(number)).mkdir()
            write(folder / name, [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
            assert texts(folder / name) == TEXTS
            assert texts(folder / name, text_column="id") == [str(number) for number in range(len(TEXTS))]


@pytest.mark.full
def test_a_line_of_thirty_megabytes_is_one_row(tmp_path):
    rows = [{"text": "word " * 6_000_000}, {"text": "behind"}]
    for name in ("long.jsonl", "long.json"):
        (tmp_path / name).write_bytes(json_lines(rows))
        assert texts(tmp_path / name) == [row["text"] for row in rows]


def test_every_string_type_is_read(tmp_path, subtests):
    for kind in [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]:
        with subtests.test(kind=kind):
            table = pa.table({"n": [1, 2, 3], "text": pa.array(["a", "b", "a"]).cast(kind)})
            with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
                writer.write_table(table)
            pq.write_table(table, tmp_path / "a.parquet")
            assert texts(tmp_path / "a.arrow") == texts(tmp_path / "a.parquet") == ["a", "b", "a"]


def test_files_of_several_formats_in_a_folder_are_read_in_order(tmp_path):
    for place, (name, write) in enumerate(FORMS.values()):
        write(tmp_path / f"{place:02}-{name}", [{"text": f"text of {place}"}])
    (tmp_path / "99.txt").write_text("plain")
    assert texts(tmp_path) == [*(f"text of {place}" for place in range(len(FORMS))), "plain"]


def test_a_folder_saved_by_datasets_gives_its_data_files_alone(tmp_path, subtests):
    for number, write in enumerate([write_arrow_file, write_arrow_stream]):
        with subtests.test(write.__name__):
            (folder := tmp_path / str(number)).mkdir()
            for shard in range(2):
                write(folder / f"data-0000{shard}-of-00002.arrow", [{"text": f"shard {shard}"}])
            write(folder / "cache-1234.arrow", [{"text": "the same once more"}])
            listed = [{"filename": f"data-0000{shard}-of-00002.arrow"} for shard in range(2)]
            (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_split": "train"}))
            (folder / "dataset_info.json").write_text('{"features": {}}')
            assert texts(folder) == ["shard 0", "shard 1"]


def test_a_saved_folder_without_a_training_split_asks_for_one(tmp_path, subtests):
    for number, (splits, why) in enumerate([(("first", "second"), "train"), (("train_a", "train_b"), "several")]):
        with subtests.test(splits=splits):
            (folder := tmp_path / str(number)).mkdir()
            (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
            for split in splits:
                (folder / split).mkdir()
                write_arrow_stream(folder / split / "data-00000-of-00001.arrow", [{"text": split}])
            message = str(complaint(folder))
            assert "several splits" in message and why in message and f"such as {folder / splits[0]}" in message
            assert texts(folder / splits[0]) == [splits[0]]


def test_a_json_file_without_a_list_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{\n "text": "alone",\n "n": 1\n}')
    assert texts(tmp_path / "a.json") == ["alone"]
    (tmp_path / "a.json").write_text('{\n "text": "one",\n "n": 1\n}\n{\n "text": "two"\n}')
    assert texts(tmp_path / "a.json") == ["one", "two"]
    # A `state.json` without Arrow files beside it is data.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "state.json").write_text('[{"text": "Ohio"}]')
    assert texts(tmp_path / "folder") == ["Ohio"]


def test_csv_records_may_be_long_and_span_lines(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"a\nb"\n\n2,c\n3\n')
    assert "a.csv, line 6: the row has 1 field, but the header has 2" in str(complaint(tmp_path / "a.csv"))
    # A field of a megabyte is read.
    (tmp_path / "a.csv").write_text(f"id,text\n1,{'x' * 1_000_000}\n")
    assert [len(text) for text in texts(tmp_path / "a.csv")] == [1_000_000]


DELIMITERS = [
    ("text\na, b\nc\n", ","),
    ("id;text\n1;hello, world\n2;one, two, three\n", ";"),
    ("id,text\n1,a; b; c\n2,d\n", ","),
    ("id\ttext\n1\ta, b\n", "\t"),
    ('id;text\n1;"a;b\nc"\n', ";"),
    ("text\nonly; one; column\n", ","),
    ("", ","),
]


def test_the_delimiter_is_the_character_that_divides_all_rows_alike(subtests, tmp_path):
    for content, delimiter in DELIMITERS:
        with subtests.test(content=content):
            assert guess_delimiter(content.splitlines(keepends=True)) == delimiter
    # A guessed delimiter is noted.
    (tmp_path / "a.csv").write_text("id;text\n1;x\n")
    choices = ColumnChoices("auto")
    assert [found.text for found in open_source(str(tmp_path / "a.csv")).documents(choices=choices)] == ["x"]
    assert "a.csv: the columns are separated by ';'" in choices.notes()


def test_json_read_in_small_pieces_gives_the_same_rows(tmp_path, monkeypatch, subtests):
    for chunk in [1, 2, 3, 7, 64]:
        with subtests.test(chunk=chunk):
            monkeypatch.setattr(decoding, "CHUNK_BYTES", chunk)
            values = ["é" * 5, "a\\b", '"', "漢字", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")]
            rows = [{"n": -1.5e-7, "deep": [[{"a": [True, None]}]], "text": text} for text in values]
            for ascii_only in (True, False):
                content = {"k": 1234567, "data": rows, "end": "x"}
                (tmp_path / "a.json").write_text(json.dumps(content, ensure_ascii=ascii_only))
                assert texts(tmp_path / "a.json") == values


MANY = 30_000
LARGE: dict[str, Callable[[Path, Rows], object]] = {
    "large.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "inside.json": lambda path, rows: path.write_text(json.dumps({"data": rows})),
    "large.csv": lambda path, rows: path.write_bytes(csv_bytes(rows, ",")),
    "large.parquet": lambda path, rows: pq.write_table(table_of(rows), path, row_group_size=MANY, use_dictionary=False),
    "large.arrow": write_arrow_file,
}


@pytest.mark.full
def test_a_large_table_is_read_in_bounded_memory(tmp_path, subtests):
    for name in LARGE:
        with subtests.test(name=name):
            words = random.Random(0).choices([f"word{number}" for number in range(5000)], k=200_000)
            text = " ".join(words)
            rows: Rows = [{"id": number, "text": text[number * 7 : number * 7 + 1000]} for number in range(MANY)]
            LARGE[name](tmp_path / name, rows)
            del rows
            source = open_source(str(tmp_path / name))
            arrow_before = pa.total_allocated_bytes()
            largest_arrow = 0
            tracemalloc.start()
            characters = 0
            for number, document in enumerate(source.documents()):
                characters += len(document.text)
                if number % 500 == 0:
                    largest_arrow = max(largest_arrow, pa.total_allocated_bytes() - arrow_before)
            largest = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert characters == MANY * 1000
            assert largest < 12_000_000, f"{largest:,} bytes for a file of {characters:,} characters"
            assert largest_arrow < 12_000_000


def test_arguments_of_other_tools_do_not_become_nulls_of_a_call(tmp_path, subtests):
    for name in ["calls.parquet", "calls.arrow"]:
        with subtests.test(name=name):
            rows = [
                {"messages": [{"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": [1, 2]}}]}]},
                {"messages": [{"role": "assistant", "tool_calls": [{"name": "look", "arguments": {"place": "x"}}]}]},
            ]
            table = pa.Table.from_pylist(rows)
            if name.endswith("parquet"):
                pq.write_table(table, tmp_path / name)
            else:
                with pa.ipc.new_file(str(tmp_path / name), table.schema) as file:
                    file.write_table(table)
            found = open_source(str(tmp_path / name)).rows(ProblemList(), choices=ColumnChoices(""))
            assert [row.values for row in found] == rows
