"""Words with tags: CoNLL files, the columns of tables, and rows that cannot be used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.tagged_rows import find_tag_columns
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError

CONLL = """-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

# id 5 domain=en
# NN B-NP O
hashtag NN I-NP O


Paris NNP I-NP B-LOC
"""


def rows_in(path: Path) -> tuple[list[Row], ProblemList]:
    problems = ProblemList()
    return list(open_source(str(path)).rows(problems, choices=ColumnChoices("auto"))), problems


def test_a_conll_file_gives_its_sentences(tmp_path, subtests):
    for name in ["a.conll", "a.bio", "a.iob2", "a.iob", "a.bioes", "a.conll.gz"]:
        for line_end in ["\n", "\r\n"]:
            for mark in ["", "\ufeff"]:
                with subtests.test(name=name, line_end=line_end, mark=mark):
                    content = (mark + CONLL.replace("\n", line_end)).encode()
                    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
                    rows, problems = rows_in(tmp_path / name)
                    assert problems.count == 0
                    assert [row.values["tokens"] for row in rows] == [["EU", "rejects"], ["#", "hashtag"], ["Paris"]]
                    assert [row.values["ner_tags"] for row in rows] == [["B-ORG", "O"], ["O", "O"], ["B-LOC"]]
                    assert [row.where for row in rows] == [f"{name}, line {line}" for line in (3, 7, 11)]
    # Tabs separate columns if there are any.
    (tmp_path / "a.bio").write_text("New York\tB-LOC\nof\tO\n\nold one\tO")
    rows, _ = rows_in(tmp_path / "a.bio")
    assert [row.values["tokens"] for row in rows] == [["New York", "of"], ["old one"]]


def test_bad_lines_are_reported_and_the_other_sentences_are_kept(tmp_path):
    (tmp_path / "a.conll").write_text("a O\nb\n\nc O\n\nd N O\ne O\n\n\tO\n\nf\t\n")
    rows, problems = rows_in(tmp_path / "a.conll")
    assert [row.values["tokens"] for row in rows] == [["c"]]
    assert [f"{problem.where}: {problem.message}" for problem in problems.shown_problems] == [
        "a.conll, line 2 (also 11): the line has a word but no tag",
        "a.conll, line 6: the line has 3 columns, but the first line of the file has 2",
        "a.conll, line 9: the line has a tag but no word",
    ]
    # Latin 1 in a conll file is reported with its line.
    (tmp_path / "a.conll").write_bytes(b"a O\n\ncaf\xe9 O\n")
    _, problems = rows_in(tmp_path / "a.conll")
    assert problems.shown_problems[0].where == "a.conll, line 3" and "Latin-1" in problems.shown_problems[0].message


def test_a_conll_file_is_text_for_tasks_that_read_text(tmp_path):
    (tmp_path / "a.conll").write_text(CONLL)
    texts = [document.text for document in open_source(str(tmp_path / "a.conll")).documents()]
    assert texts == ["EU rejects", "# hashtag", "Paris"]


def head(*values: dict) -> list[Row]:
    return [Row(f"a.jsonl, line {number}", value) for number, value in enumerate(values, start=1)]


WORDS = {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}
SPANS = [[0, 1, "X"]]


USUAL_COLUMNS = [
    (WORDS, "tokens", "ner_tags", False),
    ({"id": 3, "words": ["a"], "pos_tags": ["N"], "labels": ["O"]}, "words", "labels", False),
    ({"Tokens": ["a"], "UPOS": ["N"]}, "Tokens", "UPOS", False),
    ({"text": "a b", **WORDS}, "tokens", "ner_tags", False),
    ({"text": "a b", "entities": SPANS}, "text", "entities", True),
    ({"text": "a b", "label": SPANS}, "text", "label", True),
    ({"text": "a b", "spans": []}, "text", "spans", True),
    ({"text": "a b", "tokens": [{"text": "a"}], "spans": [{"start": 0, "end": 1, "label": "X"}]}, "text", "spans",
     True),
    ({"sentence": "a b", "tags": "O O"}, "sentence", "tags", False),
]  # fmt: skip


def test_columns_with_usual_names_are_found(subtests):
    for row, words, tags, spans in USUAL_COLUMNS:
        with subtests.test(row=row):
            found = find_tag_columns(head(row), "auto", "auto")
            assert (found.words, found.tags, found.tags_are_spans) == (words, tags, spans)
            assert f"'{words}'" in found.note and f"'{tags}'" in found.note
    # Named columns are used.
    rows = head({"tokens": ["a"], "ner_tags": ["O"], "mine": ["B-X"]})
    assert find_tag_columns(rows, "auto", "mine").tags == "mine"
    assert find_tag_columns(rows, "tokens", "mine").note == ""
    assert find_tag_columns(head({"a": "x y", "b": SPANS}), "a", "b").tags_are_spans


UNCLEAR_COLUMNS = [
    (WORDS, "toknes", "auto", "no column 'toknes'.*did you mean 'tokens'?.*data.text_column"),
    (WORDS, "auto", "ner_tag", "no column 'ner_tag'.*did you mean 'ner_tags'?.*data.label_column"),
    ({"tokens": ["a"], "id": 1}, "auto", "auto", "no column holds the tags of 'tokens'.*data.label_column"),
    ({"id": 1}, "auto", "auto", "no column holds words or a text.*data.text_column"),
    ({"tokens": ["a"], "ner_tags": [0]}, "auto", "auto", "'ner_tags' are numbers, which have no names.*Parquet"),
]


def test_unclear_columns_are_an_error_that_names_the_setting(subtests):
    for row, words, tags, message in UNCLEAR_COLUMNS:
        with subtests.test(message), pytest.raises(DataError, match=rf"^a.jsonl: .*{message}"):
            find_tag_columns(head(row), words, tags)


def test_white_space_and_printed_lists_become_lists():
    columns = find_tag_columns(head({"words": "a b", "tags": "O B-X"}), "auto", "auto")
    for words, tags in (("a  b", "O B-X"), ("['a', 'b']", '["O", "B-X"]'), (["a", "b"], ("O", "B-X"))):
        tagged = columns.read(Row("a.csv, line 2", {"words": words, "tags": tags}))
        assert (tagged.words, tagged.tags) == (["a", "b"], ["O", "B-X"])
    assert columns.read(Row("a", {"words": "[ a", "tags": "O O"})).words == ["[", "a"]
    assert columns.read(Row("a", {"words": "[ a ]", "tags": "O O O"})).words == ["[", "a", "]"]


BAD_ROWS = [
    (["a", "b"], ["O"], "the row has 2 words but 1 tag"),
    ([], [], "the row has no words"),
    (["a", ""], ["O", "O"], "word 2 is empty"),
    (["a", None], ["O", "O"], "word 2 is null, not a string"),
    (["a", 3], ["O", "O"], "word 2 is a number, not a string"),
    (["a", "b"], ["O", 7], "tag 2 is the number 7, which has no name"),
    (["a", "b"], ["O", None], "tag 2 is null"),
    (["a", "b"], ["O", " "], "tag 2 is empty"),
    (None, ["O"], "'tokens' is null, not a list of words"),
    (["a"], 3, "'ner_tags' is a number, not a list of tags"),
    (["\ud800"], ["O"], "surrogate"),
]


def test_bad_rows_are_reported_with_their_place(subtests):
    for words, tags, message in BAD_ROWS:
        with subtests.test(words=words, tags=tags):
            columns = find_tag_columns(head(WORDS), "auto", "auto")
            with pytest.raises(DataError, match=rf"^a.jsonl, line 7: .*{message}"):
                columns.read(Row("a.jsonl, line 7", {"tokens": words, "ner_tags": tags}))
    # A row without the column is reported.
    columns = find_tag_columns(head(WORDS), "auto", "auto")
    with pytest.raises(DataError, match=r"no column 'ner_tags'.*columns found: tokens"):
        columns.read(Row("a", {"tokens": ["a"]}))


def test_tag_names_are_read_from_a_parquet_file_of_datasets(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"ner_tags": {"feature": {"names": ["O", "B-X"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    table = pa.table({"tokens": [["a", "b"], ["c"]], "ner_tags": [[0, 1], [5]]})
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(about), tmp_path / "a.parquet")
    rows, _ = rows_in(tmp_path / "a.parquet")
    columns = find_tag_columns(rows, "auto", "auto")
    assert columns.read(rows[0]).tags == ["O", "B-X"]
    with pytest.raises(DataError, match="tag 1 is the number 5, which has no name"):
        columns.read(rows[1])
