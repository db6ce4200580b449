"""The labels of a table: their column, their kind, and what each value means."""

import pytest

from tui_trainer.data.columns.labels import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    LabelReader,
    infer_label_kind,
    label_columns,
    sort_class_names,
)
from tui_trainer.data.columns.row import Row
from tui_trainer.errors import DataError


def rows(*values, column="label"):
    return [Row(f"rows.jsonl, line {number}", {"text": "a", column: value}) for number, value in enumerate(values, 1)]


def read(kind, *values):
    reader = LabelReader(["label"], kind)
    return [reader.number(row) if kind == REGRESSION else reader.names(row) for row in rows(*values)]


USUAL_NAMES = [
    (["text", "label"], "label"), (["text", "Category"], "Category"), (["score", "label", "text"], "label"),
    (["review", "stars"], "stars"),
]  # fmt: skip


def test_a_usual_name_is_the_label_column(subtests):
    for names, found in USUAL_NAMES:
        with subtests.test(names=names):
            assert label_columns("auto", [Row("f, line 1", dict.fromkeys(names, "x"))], "f") == (found,)
    # A missing label column is reported with the nearest name.
    with pytest.raises(DataError, match=r"no column 'lable'; did you mean 'label'\? .* data.label_column"):
        label_columns("lable", rows("x"), "rows.jsonl")
    with pytest.raises(DataError, match=r"no column has a usual name for labels.*columns found: text, what"):
        label_columns("auto", rows("x", column="what"), "rows.jsonl")


KINDS = [
    (["joy", "anger"], SINGLE_LABEL), ([0, 1, 2, None], SINGLE_LABEL), ([True, False], SINGLE_LABEL), (["0", "1"],
    SINGLE_LABEL),
    ([4.0, 5.0], SINGLE_LABEL), ([4.0, 4.5], REGRESSION), (["1", "2.5"], REGRESSION), ([["a"], []], MULTI_LABEL),
    (["1", "x", "2.5"], SINGLE_LABEL), ([str(n) for n in range(31)] + ["other"], SINGLE_LABEL), (list(range(30)),
    SINGLE_LABEL),
]  # fmt: skip


def test_the_kind_of_labels_follows_from_the_first_rows(subtests):
    for values, kind in KINDS:
        with subtests.test(values=values):
            assert infer_label_kind(values, "rows.jsonl", "score") == kind
    # Many different whole numbers need a decision of the user.
    with pytest.raises(DataError, match=r"'label' holds 31 different whole numbers .*task.problem_type to \"single"):
        infer_label_kind(range(31), "rows.jsonl", "label")


def test_values_become_names():
    assert read(SINGLE_LABEL, " joy ", "anger") == [("joy",), ("anger",)]
    assert read(SINGLE_LABEL, 3, 4.0, 10) == [("3",), ("4",), ("10",)]
    assert read(SINGLE_LABEL, True, False) == [("true",), ("false",)]
    assert read(SINGLE_LABEL, ["joy"], '["anger"]', {"sad": 1, "joy": 0}) == [("joy",), ("anger",), ("sad",)]
    assert read(MULTI_LABEL, ["b", "a"], []) == [("a", "b"), ()]
    assert read(MULTI_LABEL, "y, x", "", "y") == [("x", "y"), (), ("y",)]
    assert read(REGRESSION, 1, "2.5", -3.25) == [1.0, 2.5, -3.25]


BAD_LABELS = [
    (SINGLE_LABEL, [None], "rows.jsonl, line 1: the label is missing"),
    (SINGLE_LABEL, ["  "], "the label is empty"),
    (SINGLE_LABEL, ["joy", 1], "line 2: the label is a number, but earlier labels are strings"),
    (SINGLE_LABEL, [1, "joy"], "line 2: the label is a string, but earlier labels are numbers"),
    (SINGLE_LABEL, [1, 1.5], "the label 1.5 is not a whole number; to train on numbers, set task.problem_type ="),
    (SINGLE_LABEL, [["a", "b"]],
     'the label is a list of 2 labels; for several labels per row, set task.problem_type ='),
    (SINGLE_LABEL, [{"a": "b"}], "the label is an object, not a name"),
    (SINGLE_LABEL, ["x", ["y"]], "line 2: the labels are a list, but earlier labels are names"),
    (MULTI_LABEL, [{"a": 0.5}], "the label 'a' is 0.5 instead of 0 or 1"),
    (SINGLE_LABEL, ["a" * 201], "the label is too long: 201 characters; if the column is the text"),
    (SINGLE_LABEL, ["\ud800"], "half a character"),
    (MULTI_LABEL, [[0, 1, 0]], "the label '0' is listed twice; list the names"),
    (MULTI_LABEL, ["x", ["x"]], "line 2: the labels are a list, but earlier labels are names"),
    (MULTI_LABEL, [3], "the labels are a number, not a list"),
    (MULTI_LABEL, [[["a"]]], "the label is a list, not a name"),
    (REGRESSION, ["high"], "the label is 'high', not a number"),
    (REGRESSION, [True], "the label is a boolean, not a number"),
    (REGRESSION, [float("nan")], "the label is not a finite number"),
    (REGRESSION, [1e39], "the label is not a finite number"),
]  # fmt: skip


def test_a_bad_label_is_reported_in_one_sentence(subtests):
    for kind, values, words in BAD_LABELS:
        with subtests.test(kind=kind, values=values):
            with pytest.raises(DataError) as caught:
                read(kind, *values)
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)
    # Lists of 0 and 1 must have one length.
    reader = LabelReader(["label"], MULTI_LABEL, [[0, 1], [1, 0]])
    assert [reader.names(row) for row in rows([0, 1], [1.0, 1.0])] == [("1",), ("0", "1")]
    for value in ([0, 1, 1], [0, 2]):
        with pytest.raises(DataError, match="earlier labels are lists of 2 values, a 0 or 1 for each class"):
            reader.names(*rows(value))
    # Minus one is not a label.
    reader = LabelReader(["label"], SINGLE_LABEL, [0, 1])
    with pytest.raises(DataError, match="the label is -1, which stands for a missing label"):
        reader.names(*rows(-1))


def test_class_names_have_a_fixed_order_or_that_of_the_model():
    assert sort_class_names(["10", "9", "-1"]) == ("-1", "9", "10")
    assert sort_class_names(["joy", "anger", "10"]) == ("10", "anger", "joy")
    # The order of a model with the same class names is kept.
    known = {"0": "negative", "1": "neutral", "2": "positive"}
    assert sort_class_names(["positive", "neutral", "negative"], known) == ("negative", "neutral", "positive")
    assert sort_class_names(["positive", "neutral"], known) == ("neutral", "positive")
    assert sort_class_names(["b", "a"], {"0": "LABEL_0", "1": "LABEL_1"}) == ("a", "b")
