"""Scores compared to those of rouge-score, SQuAD's script, scikit-learn, SciPy and seqeval."""

from __future__ import annotations

import random
import re
import string
from itertools import chain

import numpy as np
import pytest
from scipy.stats import pearsonr
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score
from sklearn.metrics import classification_report as tag_report
from sklearn.metrics import confusion_matrix, mean_absolute_error, mean_squared_error, r2_score

from tui_trainer.data.columns.tagged_rows import entities
from tui_trainer.data.samples import find_sample
from tui_trainer.tasks.parts.scores import TagCounts, class_scores, mean_scores, normalised, number_scores

pytestmark = pytest.mark.full


def pairs_of_real_texts():
    """Return excerpts of English documentation, and the same with some words left out and some replaced."""
    draw, words = (
        random.Random(3),
        " ".join(row["text"] for _, row in find_sample("python-docstrings").content()[:400]).split(),
    )
    references = [words[start : start + draw.randrange(3, 40)] for start in range(0, 2000, 40)]
    answers = [[draw.choice([word, word, word, words[0]]) for word in some[draw.randrange(2) :]] for some in references]
    return [" ".join(some) for some in answers], [" ".join(some) for some in references]


@pytest.mark.e2e
def test_rouge_of_english_texts_is_that_of_rouge_score():
    """Its tokenizer keeps a to z and digits; an underscore joins words here and separates them there."""
    answers, references = ([text.replace("_", " ") for text in texts] for texts in pairs_of_real_texts())
    # It loads nltk, which takes seconds in each process that collects this file.
    from rouge_score.rouge_scorer import RougeScorer

    plain = RougeScorer(["rouge1", "rouge2", "rougeL"])
    scored = [plain.score(reference, answer) for answer, reference in zip(answers, references, strict=True)]
    scores = mean_scores(answers, references)
    assert 0.3 < scores["rougeL"] < 0.95
    for name in ("rouge1", "rouge2", "rougeL"):
        assert scores[name] == pytest.approx(sum(score[name].fmeasure for score in scored) / len(scored))


def squad_normalised(text):
    """`normalize_answer` of SQuAD's evaluation script, version 1.1."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def test_texts_are_normalised_as_by_squads_script():
    answers, references = pairs_of_real_texts()
    assert len(answers) == 50
    for text in (*answers, *references, "The  cat's a-b THE; an An", "\u201cthe\u201d end\u2014a"):
        assert normalised(text) == squad_normalised(text)


def test_scores_of_numbers_and_classes_are_those_of_scikit_learn():
    draw = np.random.default_rng(4)
    for _ in range(20):
        labels = draw.normal(3, 2, size=50)
        predicted = draw.normal(labels, 1.5)
        assert number_scores(labels, predicted).values == pytest.approx({
            "mse": mean_squared_error(labels, predicted), "mae": mean_absolute_error(labels, predicted),
            "pearson": pearsonr(labels, predicted).statistic, "r2": r2_score(labels, predicted),
        })  # fmt: skip
    labels, predicted = draw.integers(0, 4, size=(2, 60))
    table = class_scores(labels, predicted, ("a", "b", "c", "d")).table_rows
    assert list(table.values()) == confusion_matrix(labels, predicted).tolist()


def sentences(scheme: str) -> list[list[str]]:
    tagged = [list(row["ner_tags"]) for _, row in find_sample("python-tokens").content()][:400]
    return [in_scheme(tags, scheme) for tags in tagged]


def in_scheme(tags: list[str], scheme: str) -> list[str]:
    """Rewrite IOB2 in another scheme."""
    rewritten = list(tags)
    for start, end, kind in entities(tags):
        if scheme == "IOB1" and not (start and rewritten[start - 1].endswith(f"-{kind}")):
            rewritten[start] = f"I-{kind}"
        elif scheme == "BIOES":
            rewritten[start:end] = [f"S-{kind}"] if end == start + 1 else [
                f"B-{kind}", *[f"I-{kind}"] * (end - start - 2), f"E-{kind}"]  # fmt: skip
    return rewritten


def damaged(tagged: list[list[str]], seed: int) -> list[list[str]]:
    """Replace about every seventh tag by any other, so that entities start and end anywhere."""
    draw, known = random.Random(seed), sorted({tag for tags in tagged for tag in tags})
    return [[draw.choice(known) if draw.random() < 0.15 else tag for tag in tags] for tags in tagged]


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
@pytest.mark.parametrize("seed", [1, 2])
def test_scores_of_entities_are_those_of_seqeval(scheme, seed):
    true = sentences(scheme)
    predicted = damaged(true, seed)
    counts = TagCounts("IOB2")
    for mine, theirs in zip(true, predicted, strict=True):
        counts.add(mine, theirs)
    scores = counts.scores()
    assert 0.2 < scores.values["f1"] < 0.95
    expected = {"f1": f1_score, "precision": precision_score, "recall": recall_score, "accuracy": accuracy_score}
    for name, score in expected.items():
        assert scores.values[name] == pytest.approx(score(true, predicted)), name
    report = classification_report(true, predicted, output_dict=True, zero_division=0)
    kinds = set(report) - {"micro avg", "macro avg", "weighted avg"}
    assert set(scores.table_rows) == kinds and len(kinds) >= 3
    for kind in kinds:
        names = ("precision", "recall", "f1-score", "support")
        assert scores.table_rows[kind] == pytest.approx([report[kind][name] for name in names]), kind


def test_scores_of_plain_tags_are_those_of_scikit_learn():
    true = sentences("IOB2")
    predicted = damaged(true, 3)
    counts = TagCounts("plain")
    for mine, theirs in zip(true, predicted, strict=True):
        counts.add(mine, theirs)
    scores = counts.scores()
    flat = [list(chain.from_iterable(tagged)) for tagged in (true, predicted)]
    report = tag_report(*flat, output_dict=True, zero_division=0)
    assert scores.values == pytest.approx({"accuracy": report["accuracy"], "macro_f1": report["macro avg"]["f1-score"]})
    assert len(scores.table_rows) >= 5
