"""The columns of an input and its answer, under the names that data sets on the hub use."""

import pytest

from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.text_columns import PairColumns
from tui_trainer.errors import DataError

SQUAD = {
    "id": "1", "title": "Paris", "context": "The tower is in Paris.", "question": "Where is it?",
    "answers": {"text": ["in Paris", "Paris"], "answer_start": [13, 16]},
}  # fmt: skip


def pair_of(values, *, text="auto", beside="", target="auto"):
    """Return input and answer of a single row, and the notes."""
    columns = PairColumns(text, beside, target)
    row = Row("rows.jsonl, line 1", values)
    columns.choose([row])
    return (*columns.read(row), *columns.notes())


USUAL_PAIRS = [
    ({"id": 3, "document": "Long.", "summary": "Short."}, "Long.", "Short."),
    ({"article": "Long.", "highlights": "Short.", "id": "x"}, "Long.", "Short."),
    ({"dialogue": "Hi. Ho.", "summary": "They greet.", "id": "1"}, "Hi. Ho.", "They greet."),
    ({"text": "Long.", "summary": "Short.", "title": "A bill"}, "Long.", "Short."),
    ({"question": "Who?", "answer": "I."}, "Who?", "I."),
    (SQUAD, "question: Where is it? context: The tower is in Paris.", "in Paris"),
    ({"instruction": "Add.", "input": "1 2", "output": "3"}, "instruction: Add. input: 1 2", "3"),
    ({"instruction": "Sing.", "input": "", "output": "La"}, "Sing.", "La"),
    ({"source": "ja", "target": "yes"}, "ja", "yes"),
    ({"input": "f(x)", "output": "Calls."}, "f(x)", "Calls."),
    ({"prompt": "One,", "completion": "two."}, "One,", "two."),
    ({"Question ": "Who?", "ANSWER": ["I.", "me"]}, "Who?", "I."),
    ({"translation": {"en": "yes", "de": "ja"}}, "yes", "ja"),
]


def test_usual_names_are_found(subtests):
    for values, source, target in USUAL_PAIRS:
        with subtests.test(values=values):
            assert pair_of(values)[:2] == (source, target)


def test_named_columns_are_used_and_the_other_one_is_found():
    values = {"body": "Long.", "summary": "Short.", "abstract": "Middle."}
    assert pair_of(values, text="body", target="abstract")[:2] == ("Long.", "Middle.")
    assert pair_of(values, text="body")[:2] == ("Long.", "Short.")
    assert pair_of({"text": "Long.", "tldr": "Short."}, target="tldr")[:2] == ("Long.", "Short.")
    assert pair_of({"translation": {"en": "yes", "de": "ja"}}, text="de", target="en")[:2] == ("ja", "yes")
    assert pair_of(SQUAD, text="question", beside="title")[0] == "question: Where is it? title: Paris"
    # Notes name the columns that were used.
    assert pair_of(SQUAD)[2] == (
        "the input is 'question' and 'context' of rows.jsonl; the answer is 'answers' (not read: id, title)"
    )
    message = pair_of({"translation": {"en": "yes", "de": "ja"}})[2]
    assert message.startswith(
        "the input is 'en' of rows.jsonl; the answer is 'de'; to translate in another direction, set data."
    )


WRONG_COLUMNS = [
    ({"documnet": "a", "summary": "b"}, {}, ("an input", 'data.text_column = "documnet"')),
    ({"article": "a", "sumary": "b"}, {}, ("answer to 'article'", 'data.target_column = "sumary"')),
    ({"a": "x", "b": "y"}, {}, ("input and answer", "found: a, b", '"a" and data.target_column = "b"')),
    ({"translation": {"en": "a", "de": "b", "fr": "c"}}, {}, ("several languages: en, de, fr", "data.text_column")),
    ({"article": "a", "summary": "b"}, {"target": "sumary"}, ("'sumary'", "did you mean 'summary'?")),
    ({"article": "a", "summary": "b"}, {"text": "artikel"}, ("did you mean 'article'?", "data.text_column")),
    ({"question": "a", "answer": "b"}, {"beside": "contxt"}, ("'contxt'", "data.text_pair_column")),
]


def test_a_missing_column_is_reported_with_the_nearest_name(subtests):
    for values, settings, words in WRONG_COLUMNS:
        with subtests.test(values=values, settings=settings):
            with pytest.raises(DataError) as caught:
                pair_of(values, **settings)
            message = str(caught.value)
            assert message.startswith("rows.jsonl: ")
            assert all(word in message for word in words), message


BAD_ROWS = [
    ({"summary": None}, ("the column 'summary' is null", "write a text")),
    ({"summary": " \n"}, ("the column 'summary' is empty", "write a text")),
    ({"summary": 7}, ("the column 'summary' is a number, not a string",)),
    ({"summary": []}, ("the column 'summary' is empty",)),
    ({"summary": [None]}, ("the column 'summary' is null",)),
    ({"summary": {"start": 1}}, ("the column 'summary' is an object",)),
    ({"document": None}, ("the column 'document' is null",)),
    ({"document": ""}, ("the column 'document' is empty",)),
    ({"document": "a \ud800"}, ("line 2",)),
]


def test_a_bad_row_is_reported_with_its_place(subtests):
    for values, words in BAD_ROWS:
        with subtests.test(values=values):
            columns = PairColumns("auto", "", "auto")
            good = {"document": "Long.", "summary": "Short."}
            columns.choose([Row("rows.jsonl, line 1", good)])
            with pytest.raises(DataError) as caught:
                columns.read(Row("rows.jsonl, line 2", {**good, **values}))
            assert str(caught.value).startswith("rows.jsonl, line 2: ")
            assert all(word in str(caught.value) for word in words), caught.value
    # A row without the column is reported.
    columns = PairColumns("auto", "", "auto")
    columns.choose([Row("a.jsonl, line 1", {"document": "Long.", "summary": "Short."})])
    with pytest.raises(DataError, match=r"line 9: the row has no column 'summary'; columns found: document"):
        columns.read(Row("a.jsonl, line 9", {"document": "Long."}))
