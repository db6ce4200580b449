"""The choice of the text column, and how it is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError

LONG = "a long text with many words in it " * 5


def chosen(*rows: dict[str, object], wanted: str = "auto") -> str:
    return ColumnChoices(wanted).choose([Row(f"train.csv, line {at}", row) for at, row in enumerate(rows, 2)])


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TEXT_COLUMNS = [
    ({"content": LONG, "text": "short"}, "text"),
    ({"title": LONG, "Content": "short"}, "Content"),
    ({"body": LONG, "content": "short"}, "content"),
    ({"id": 7, "prompt": "the only one"}, "prompt"),
    ({"id": "7", "score": "-1.5e3", "prompt": "no number"}, "prompt"),
    ({"question": "short", "summary": LONG}, "summary"),
    ({"text": 5, "prompt": "a"}, "text"),
]


def test_the_text_column_is_found(subtests):
    for row, column in TEXT_COLUMNS:
        with subtests.test(row=row):
            assert chosen(row) == column


UNCLEAR = [
    ({"id": 1, "title": "what?", "notes": "that."}, "several columns could be the text; set data.text_column"),
    ({"id": 1, "n": "5"}, "no column holds text; columns found: id, n"),
    ({"id": "a7", "n": 5}, "no column is clearly the text; set data.text_column to one of id"),
    ({"id": "two words", "talk": [["a long talk", "b"]]}, "several columns could be the text"),
    ({"id": LONG, "messages": 5}, '(messages), not texts; to train on these rows, set task.type = "chat"'),
    ({"question": "what?", "answer": LONG}, "the rows are pairs of input and answer (question, answer)"),
    ({"id": LONG, "tokens": ["a"], "ner_tags": [0]}, 'task.type = "token_classification"'),
]  # fmt: skip


def test_an_unclear_choice_is_an_error_that_names_the_columns(subtests):
    for row, message in UNCLEAR:
        with subtests.test(row=row):
            with pytest.raises(DataError) as caught:
                chosen(row)
            assert message in str(caught.value)
            assert str(caught.value).startswith("train.csv: ")
    # Only text columns are proposed.
    with pytest.raises(DataError, match=r"set data.text_column to one of title, notes$"):
        chosen({"id": 1, "title": "what?", "notes": "that."})


def test_a_named_column_is_used_and_a_misspelt_one_is_corrected():
    assert chosen({"text": "a", "body": "b"}, wanted="body") == "body"
    with pytest.raises(DataError) as caught:
        chosen({"id": 1, "content": "b"}, wanted="contnet")
    assert str(caught.value) == (
        "train.csv: there is no column 'contnet'; did you mean 'content'? columns found: id, content; "
        "set data.text_column to the right column"
    )


def test_missing_columns_are_reported_once_or_with_their_line(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, *[{"body": "x"}] * 300)
    with pytest.raises(DataError) as caught:
        list(open_source(str(tmp_path), "text").documents())
    assert [problem.where for problem in caught.value.problems] == ["a.jsonl (also b.jsonl)"]
    # A row without the column is reported with its line.
    path = write(tmp_path / "a.jsonl", {"text": "x"}, {"body": "y"}, {"text": "z"})
    with pytest.raises(DataError, match=r"a.jsonl, line 2: the row has no column 'text'; columns found: body"):
        list(open_source(str(path)).documents())


def notes_of(path: Path, wanted: str = "auto") -> tuple[str, ...]:
    choices = ColumnChoices(wanted)
    list(open_source(str(path), wanted).documents(choices=choices))
    return choices.notes()


def test_notes_name_the_chosen_column_and_the_other_ones(tmp_path):
    path = write(tmp_path / "train.jsonl", {"id": 1, "title": "T", "content": "C", "\x1b[2J": 1})
    (note,) = notes_of(path)
    assert note == "the text is in the column 'content' of train.jsonl (other candidates: \u241b[2J, id, title)"
    assert notes_of(path, "content") == (note,)
    # Rows that hold a text alone need no note.
    assert notes_of(write(tmp_path / "a.jsonl", {"text": "x"})) == ()


def test_files_with_the_same_columns_use_the_same_column(tmp_path):
    write(tmp_path / "a.jsonl", {"title": "q", "notes": LONG})
    write(tmp_path / "b.jsonl", {"notes": "short", "title": LONG})
    assert [document.text for document in open_source(str(tmp_path)).documents()] == [LONG, "short"]
    assert notes_of(tmp_path) == (
        "the text is in the column 'notes' of a.jsonl and 1 more file (other candidates: title)",
    )


def test_the_column_of_the_first_file_is_used_in_files_with_more_columns(tmp_path):
    write(tmp_path / "a.jsonl", {"notes": "the only one"})
    write(tmp_path / "b.jsonl", {"notes": "short", "title": LONG})
    assert [document.text for document in open_source(str(tmp_path)).documents()] == ["the only one", "short"]
