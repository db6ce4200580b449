"""Scores of all tasks, compared to values that were computed by hand."""

import numpy as np
import pytest

from tui_trainer.tasks import question_answering
from tui_trainer.tasks.parts.scores import (
    SCORES,
    TagCounts,
    class_scores,
    mean_scores,
    multi_label_scores,
    normalised,
    number_scores,
)

NAMES = ("a", "b", "c", "d")

ROUGE = [
    # 5 of 6 words, 3 of 5 pairs, and "the cat on the mat" in order.
    ("the cat sat on the mat", "the cat lay on the mat", 5 / 6, 3 / 5, 5 / 6),
    # All 4 words of 4 and 5; one pair, "police killed", of 3 and 4; in order "police killed gunman".
    ("police killed gunman the", "the police killed a gunman", 8 / 9, 2 / 7, 6 / 9),
    # A word counts as often as both have it: 2 x 1 / (3 + 1).
    ("the the the", "the", 2 / 4, 0.0, 2 / 4),
    ("Walks, fast!", "walks FAST", 1.0, 1.0, 1.0),
    ("walked", "walks", 0.0, 0.0, 0.0),
    ("", "a word", 0.0, 0.0, 0.0),
    ("नमस्ते दुनिया", "नमस्ते दुनिया", 1.0, 1.0, 1.0),
    # Words are letters, digits and underscores in lower case.
    ("Don't read_file(x2)!", "don t read_file x2", 1.0, 1.0, 1.0),
    ("Don't read_file(x2)!", "don t read_file x2 x3", 8 / 9, 6 / 7, 8 / 9),
]


def test_rouge_of_two_texts(subtests):
    for answer, reference, *expected in ROUGE:
        with subtests.test(f"{answer!r} for {reference!r}"):
            scores = mean_scores([answer], [reference])
            assert tuple(scores) == SCORES
            assert [scores[name] for name in ("rouge1", "rouge2", "rougeL")] == pytest.approx(expected)


def test_exact_match_ignores_case_articles_and_punctuation(subtests):
    for answer, reference, is_same in (
        ("The Eiffel Tower.", "eiffel tower", True),
        ("a  cat", "the cat", True),
        ("in 1889", "1889", False),
        ("theatre", "atre", False),
        ("", "the", True),
    ):
        with subtests.test(f"{answer!r} for {reference!r}"):
            assert (normalised(answer) == normalised(reference)) is is_same
            assert mean_scores([answer], [reference])["exact_match"] == float(is_same)


def test_scores_of_texts_are_means_over_the_rows():
    scores = mean_scores(["one two", "three"], ["one two", "four"])
    assert scores == {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5, "exact_match": 0.5}


# Expected: those of `evaluate-v2.0.py` of SQuAD by hand, in shares where the script gives percent.
SQUAD = [
    ("the Paris.", ["Paris"], 1, 1),  # case, articles and punctuation do not count
    ("Ada  Lovelace", ["ada lovelace"], 1, 1),
    ("Ada King Lovelace", ["Ada Lovelace"], 0, 0.8),  # precision 2/3, recall 1
    ("Ada Ada", ["Ada"], 0, 2 / 3),  # a word counts as often as it is in both
    ("London", ["Paris"], 0, 0),
    ("in 1843", ["the year 1843", "1843"], 0, 2 / 3),  # the nearest of several answers
    ("a year 1843", ["1843", "year 1843 it was"], 0, 2 / 3),
    ("", [], 1, 1),  # there is no answer, and none was given
    ("Paris", [], 0, 0),
    ("", ["Paris"], 0, 0),
    ("", ["the"], 1, 1),  # an answer of articles alone is none
    ("a", ["b"], 0, 0),
    ("!?", ["Paris", "?"], 0, 0),
]


def test_scores_of_answers_to_questions_are_those_of_squad(subtests):
    for answer, true, exact, f1 in SQUAD:
        with subtests.test(f"{answer!r} for {true}"):
            scores = question_answering.mean_scores([(answer, true)])
            assert scores == {"exact_match": exact, "f1": pytest.approx(f1)}
    several = [("a b", ["b"]), ("x", ["y"]), ("", [])]
    assert question_answering.mean_scores(several) == {"exact_match": 2 / 3, "f1": pytest.approx(2 / 3)}


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


def test_a_table_of_many_classes_has_the_largest_and_one_row_for_the_others():
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


def test_scores_of_classes_that_never_occur_are_zero_without_a_warning():
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


def test_entities_count_where_type_and_both_ends_agree():
    counts = TagCounts("IOB2")
    # True: PER 0-2, LOC 3-4. Predicted: PER 0-2 right, LOC 2-4 with a wrong begin.
    counts.add("B-PER I-PER O B-LOC".split(), "B-PER I-PER B-LOC I-LOC".split())
    # True: PER 0-1, PER 1-2. Predicted: PER 0-2, one entity for two.
    counts.add("B-PER B-PER".split(), "B-PER I-PER".split())
    # True: LOC 1-2. Predicted: LOC 1-2 as an I- that nothing begins, which counts; ORG 2-3, which is none.
    counts.add("O B-LOC O".split(), "O I-LOC S-ORG".split())
    scores = counts.scores()
    assert scores.values == pytest.approx({"precision": 2 / 5, "recall": 2 / 5, "f1": 2 / 5, "accuracy": 4 / 9})
    assert scores.table_columns == ("precision", "recall", "f1", "support")
    assert scores.table_rows["PER"] == pytest.approx((1 / 2, 1 / 3, 2 / 5, 3))
    assert scores.table_rows["LOC"] == pytest.approx((1 / 2, 1 / 2, 1 / 2, 2))
    assert scores.table_rows["ORG"] == pytest.approx((0, 0, 0, 0))
    for predicted in ("B-LOC I-LOC", "B-PER O", "O B-PER", "B-PER B-PER"):
        counts = TagCounts("IOB2")
        counts.add("B-PER I-PER".split(), predicted.split())
        assert counts.scores().values["f1"] == 0, predicted


def test_the_same_entities_in_bioes_and_iob2_have_the_same_scores():
    bioes, iob2 = TagCounts("IOB2"), TagCounts("IOB2")
    bioes.add("B-A I-A E-A S-B".split(), "B-A I-A E-A S-B".split())
    iob2.add("B-A I-A I-A B-B".split(), "B-A I-A I-A B-B".split())
    assert bioes.scores().table_rows == iob2.scores().table_rows
    assert bioes.scores().values["f1"] == 1


def test_scores_of_sentences_without_entities_are_zero():
    counts = TagCounts("IOB2")
    counts.add(["O"], ["O"])
    assert counts.scores().values == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


def test_plain_tags_have_accuracy_and_macro_f1():
    assert TagCounts("plain").scores().values == {"accuracy": 0.0, "macro_f1": 0.0}
    counts = TagCounts("plain")
    counts.add("N V N .".split(), "N N N .".split())
    scores = counts.scores()
    # N: 2 right, 3 predicted, 2 true; V: none; "." all.
    assert scores.values == pytest.approx({"accuracy": 3 / 4, "macro_f1": (4 / 5 + 0 + 1) / 3})
    assert scores.table_rows["N"] == pytest.approx((2 / 3, 1, 4 / 5, 2))
    assert (scores.table_rows["V"], scores.table_rows["."]) == ((0, 0, 0, 1), (1, 1, 1, 1))
