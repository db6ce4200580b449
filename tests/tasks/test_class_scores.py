"""Scores of classes and numbers, against values worked out by hand, and those of numpy against scikit-learn's."""

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import confusion_matrix, mean_absolute_error, mean_squared_error, r2_score

from tui_trainer.tasks.parts.scores import class_scores, multi_label_scores, number_scores

NAMES = ("a", "b", "c", "d")


def test_accuracy_and_f1_of_one_label_a_row():
    # a: 2 of 3 found, none wrong: 2*2/(4+0+1) = 0.8; b: 1 of 1, 1 wrong: 2/3; c: 0 of 1, 1 wrong: 0; d never occurs.
    labels, predicted = np.array([0, 0, 0, 1, 2]), np.array([0, 0, 2, 1, 1])
    scores = class_scores(labels, predicted, NAMES)
    assert scores.values == pytest.approx({
        "accuracy": 3 / 5, "macro_f1": (0.8 + 2 / 3 + 0) / 3, "weighted_f1": (3 * 0.8 + 2 / 3 + 0) / 5,
    })  # fmt: skip
    assert scores.table_columns == NAMES
    assert {name: list(row) for name, row in scores.table_rows.items()} == {
        "a": [2, 0, 1, 0], "b": [0, 1, 0, 0], "c": [0, 1, 0, 0], "d": [0, 0, 0, 0],
    }  # fmt: skip


def test_a_table_of_many_classes_has_the_largest_and_the_rest_together():
    labels = np.concatenate([np.full(3, place) for place in range(20)] + [[20, 21, 21]])
    predicted = np.where(labels == 20, 0, labels)
    scores = class_scores(labels, predicted, [f"c{n}" for n in range(22)])
    assert scores.table_columns == (*(f"c{n}" for n in range(20)), "(2 others)")
    assert list(scores.table_rows["(2 others)"]) == [1, *[0] * 19, 2]
    assert sum(map(sum, scores.table_rows.values())) == len(labels)


def test_scores_of_several_labels_a_row():
    labels = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
    predicted = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 0, 0]])
    scores = multi_label_scores(labels, predicted, ("x", "y", "z"))
    # x: 2 right. y: 1 missed. z: 1 right, 1 wrong, 1 missed: 2/4.
    assert scores.values == pytest.approx(
        {"exact_match": 0.5, "macro_f1": (1 + 0 + 0.5) / 3, "micro_f1": 6 / (6 + 1 + 2)}
    )
    assert list(scores.table_rows["z"]) == [0.5, 0.5, 0.5, 2]


def test_scores_of_numbers():
    labels, predicted = np.array([1.0, 2.0, 3.0, 6.0]), np.array([1.0, 3.0, 3.0, 5.0])
    values = number_scores(labels, predicted).values
    assert values["mse"] == pytest.approx(0.5) and values["mae"] == pytest.approx(0.5)
    assert values["r2"] == pytest.approx(1 - 2 / 14)
    assert values["pearson"] == pytest.approx(np.corrcoef(labels, predicted)[0, 1])
    assert number_scores(labels, np.full(4, 2.0)).values["pearson"] == 0.0


def test_scores_of_numbers_are_those_of_the_libraries():
    draw = np.random.default_rng(4)
    for _ in range(20):
        labels = draw.normal(3, 2, size=50)
        predicted = draw.normal(labels, 1.5)
        assert number_scores(labels, predicted).values == pytest.approx({
            "mse": mean_squared_error(labels, predicted), "mae": mean_absolute_error(labels, predicted),
            "pearson": pearsonr(labels, predicted).statistic, "r2": r2_score(labels, predicted),
        })  # fmt: skip


def test_the_table_is_the_confusion_matrix():
    draw = np.random.default_rng(4)
    labels, predicted = draw.integers(0, 4, size=(2, 60))
    table = class_scores(labels, predicted, NAMES).table_rows
    assert list(table.values()) == confusion_matrix(labels, predicted).tolist()


def test_scores_of_what_never_occurs_are_zero_without_a_warning():
    nothing, one = np.zeros((3, 2), dtype=np.int64), np.array([1, 1, 1])
    scores = multi_label_scores(nothing, nothing, ("x", "y"))
    assert scores.values == {"exact_match": 1, "macro_f1": 0, "micro_f1": 0}
    assert list(scores.table_rows["x"]) == [0, 0, 0, 0]
    alone = np.array([[1], [0], [1]])
    assert multi_label_scores(alone, np.ones_like(alone), ("x",)).values == pytest.approx(
        {"exact_match": 2 / 3, "macro_f1": 4 / 5, "micro_f1": 4 / 5}
    )
    assert class_scores(one, one, NAMES).values == {"accuracy": 1, "macro_f1": 1, "weighted_f1": 1}
    assert class_scores(one, 0 * one, NAMES).values == {"accuracy": 0, "macro_f1": 0, "weighted_f1": 0}
    assert number_scores(np.ones(1), np.ones(1)).values == {"mse": 0, "mae": 0, "pearson": 0, "r2": 0}
