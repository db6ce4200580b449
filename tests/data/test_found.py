"""The description of a data source: files, format, column."""

import gzip
import json

import pytest

from tui_trainer.config.paths import data_of
from tui_trainer.config.sections import Config, DataSection, TaskSection
from tui_trainer.data.preparing.estimate import source_words
from tui_trainer.data.sources.source import open_source
from tui_trainer.planning.summary import data_words

pytestmark = pytest.mark.full


def rows(path, column="body", count=4):
    path.write_text(
        "".join(json.dumps({"id": n, column: f"the {n}th text of some words"}) + "\n" for n in range(count))
    )
    return path


def words(path, text_column="auto", reads_text=True) -> str:
    return source_words(open_source(str(path), text_column), reads_text=reads_text)


def test_a_table_is_described_with_its_format_and_its_text_column(tmp_path):
    path = rows(tmp_path / "a.jsonl")
    size = path.stat().st_size
    assert words(path) == f"a.jsonl ({size} B), JSON Lines, the text in the column 'body'"
    assert words(path, reads_text=False) == f"a.jsonl ({size} B), JSON Lines"
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert words(packed).endswith("JSON Lines, the text in the column 'body'")


def test_files_of_several_formats_are_counted(tmp_path):
    rows(tmp_path / "a.jsonl")
    rows(tmp_path / "b.jsonl", column="text")
    (tmp_path / "c.csv").write_text("body,n\nsome words,1\nand more,2\n")
    told = words(tmp_path)
    assert "(3 files, " in told and ", 2 JSON Lines and 1 CSV, " in told
    assert told.endswith("the text in the columns 'body' and 'text'")


def test_plain_text_has_no_column_and_a_sample_no_format(tmp_path):
    (tmp_path / "a.md").write_text("some words")
    assert words(tmp_path / "a.md") == "a.md (10 B), plain text"
    assert words("sample:python-reference").startswith("sample:python-reference (")


def test_broken_files_are_described_without_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "good words"}\n{"bo\n\x1b[2J')
    assert "JSON Lines" in words(path) and "\x1b" not in words(path)
    assert words(path, text_column="another") == f"a.jsonl ({path.stat().st_size} B), JSON Lines"
    assert words(rows(tmp_path / "b.jsonl", column="text\x1b[2J")).endswith("'text\u241b[2J'")


def test_a_plan_describes_its_training_and_evaluation_data(tmp_path):
    data = DataSection(path=str(rows(tmp_path / "a.jsonl")), eval_path=str(rows(tmp_path / "b.jsonl", "text")))
    config = Config(data=data, task=TaskSection(type="causal_lm"))
    told = data_words(config, data_of(config))
    assert [line.partition(" (")[0] for line in told] == ["trains on a.jsonl", "is evaluated on b.jsonl"]
    assert told[0].endswith("the text in the column 'body'") and told[1].endswith("the text in the column 'text'")
    table = Config(data=data, task=TaskSection(type="token_classification"))
    assert "column" not in "".join(data_words(table, data_of(table)))
