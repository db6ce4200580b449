"""ROUGE and exact match, against numbers reckoned by hand and the published programs."""

import random
import re
import string

import pytest

from tui_trainer.data.samples import python_docstrings
from tui_trainer.tasks.parts.scores import SCORES, mean_scores, normalised


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


def test_rouge_l_goes_by_the_longest_common_words_of_the_plain_table():
    """The textbook's way, with a table of all beginnings."""
    draw = random.Random(7)
    for _ in range(200):
        mine, theirs = ([draw.choice("abcd") for _ in range(draw.randrange(12))] for _ in range(2))
        table = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
        for row, left in enumerate(mine, start=1):
            for column, right in enumerate(theirs, start=1):
                longer = max(table[row - 1][column], table[row][column - 1])
                table[row][column] = table[row - 1][column - 1] + 1 if left == right else longer
        expected = 2 * table[-1][-1] / max(len(mine) + len(theirs), 1)
        assert mean_scores([" ".join(mine)], [" ".join(theirs)])["rougeL"] == pytest.approx(expected), (mine, theirs)


def pairs_of_real_texts():
    """English documentation, and the same with some words dropped and some changed."""
    draw, words = random.Random(3), " ".join(row["text"] for _, row in python_docstrings()[:400]).split()
    references = [words[start : start + draw.randrange(3, 40)] for start in range(0, 2000, 40)]
    answers = [[draw.choice([word, word, word, words[0]]) for word in some[draw.randrange(2) :]] for some in references]
    return [" ".join(some) for some in answers], [" ".join(some) for some in references]


@pytest.mark.e2e
def test_rouge_of_english_is_that_of_its_own_words():
    """Its own tokenizer keeps a to z and digits; an underscore, which joins words here, parts them there."""
    answers, references = ([text.replace("_", " ") for text in texts] for texts in pairs_of_real_texts())
    # It loads nltk and SciPy's statistics, seconds in each process that collects this file.
    from rouge_score.rouge_scorer import RougeScorer

    plain = RougeScorer(["rouge1", "rouge2", "rougeL"])
    scored = [plain.score(reference, answer) for answer, reference in zip(answers, references, strict=True)]
    found = mean_scores(answers, references)
    assert 0.3 < found["rougeL"] < 0.95
    for name in ("rouge1", "rouge2", "rougeL"):
        assert found[name] == pytest.approx(sum(scores[name].fmeasure for scores in scored) / len(scored))


def squad_normalised(text):
    """`normalize_answer` of SQuAD's evaluation script, version 1.1."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def test_an_exact_match_is_that_of_squads_script():
    answers, references = pairs_of_real_texts()
    assert len(answers) == 50
    for text in (*answers, *references, "The  cat's a-b THE; an An", "\u201cthe\u201d end\u2014a"):
        assert normalised(text) == squad_normalised(text)


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
    words = "don t read_file x2".split()
    assert mean_scores(["Don't read_file(x2)!"], [" ".join(words)])["rougeL"] == 1.0
    assert mean_scores(["Don't read_file(x2)!"], [" ".join([*words, "x3"])])["rouge1"] == pytest.approx(8 / 9)
