"""ROUGE and exact match, against numbers reckoned by hand."""

import random

import pytest

from tui_trainer.tasks.parts.answers import SCORES, mean_scores, normalised, words_of
from tui_trainer.tasks.parts.answers import _longest_common as longest_common


@pytest.mark.parametrize(
    ("answer", "reference", "rouge1", "rouge2", "rouge_l"),
    [
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
    ],
)
def test_rouge_is_what_is_reckoned_by_hand(answer, reference, rouge1, rouge2, rouge_l):
    found = mean_scores([answer], [reference])
    assert tuple(found) == SCORES
    assert [found["rouge1"], found["rouge2"], found["rougeL"]] == pytest.approx([rouge1, rouge2, rouge_l])


def test_the_longest_common_words_are_those_of_the_plain_table():
    """The textbook's way, with a table of all beginnings."""
    draw = random.Random(7)
    for _ in range(200):
        mine, theirs = ([draw.choice("abcd") for _ in range(draw.randrange(12))] for _ in range(2))
        table = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
        for row, left in enumerate(mine, start=1):
            for column, right in enumerate(theirs, start=1):
                longer = max(table[row - 1][column], table[row][column - 1])
                table[row][column] = table[row - 1][column - 1] + 1 if left == right else longer
        assert longest_common(mine, theirs) == table[-1][-1], (mine, theirs)


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("The Eiffel Tower.", "eiffel tower", True),
        ("a  cat", "the cat", True),
        ("in 1889", "1889", False),
        ("theatre", "atre", False),
        ("", "the", True),
    ],
)
def test_an_exact_match_forgives_case_articles_and_punctuation(answer, reference, same):
    assert (normalised(answer) == normalised(reference)) is same
    assert mean_scores([answer], [reference])["exact_match"] == float(same)


def test_scores_are_means_over_the_rows():
    found = mean_scores(["one two", "three"], ["one two", "four"])
    assert found == {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5, "exact_match": 0.5}


def test_words_are_letters_digits_and_underscores_in_lower_case():
    assert words_of("Don't read_file(x2)!") == ["don", "t", "read_file", "x2"]
