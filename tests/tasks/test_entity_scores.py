"""Scores of entities and of tags on the tagged Python of this package, against seqeval, conlleval and scikit-learn."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain, pairwise

import pytest
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score
from sklearn.metrics import classification_report as tag_report

from tui_trainer.data.columns.tagged_rows import entities
from tui_trainer.data.samples import python_tokens
from tui_trainer.tasks.parts.scores import TagCounts

# `startOfChunk` and `endOfChunk` of conlleval (version of 2004-01-26): tags before and now.
STARTS = {"BB", "IB", "OB", "OI", "EE", "EI", "OE"}
ENDS = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}


def sentences(scheme: str) -> list[list[str]]:
    found = [list(row["ner_tags"]) for _, row in python_tokens()][:400]
    return [in_scheme(tags, scheme) for tags in found]


def in_scheme(tags: list[str], scheme: str) -> list[str]:
    """IOB2 written in another way."""
    found = list(tags)
    for start, end, kind in entities(tags):
        if scheme == "IOB1" and not (start and found[start - 1].endswith(f"-{kind}")):
            found[start] = f"I-{kind}"
        elif scheme == "BIOES":
            found[start:end] = [f"S-{kind}"] if end == start + 1 else [
                f"B-{kind}", *[f"I-{kind}"] * (end - start - 2), f"E-{kind}"]  # fmt: skip
    return found


def damaged(tagged: list[list[str]], seed: int) -> list[list[str]]:
    """Every seventh tag or so is another one of all that there are, so that entities begin and end anywhere."""
    draw, known = random.Random(seed), sorted({tag for tags in tagged for tag in tags})
    return [[draw.choice(known) if draw.random() < 0.15 else tag for tag in tags] for tags in tagged]


def conlleval(true: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 over all types, by the rules of the Perl script."""

    def chunks(tags: list[str]) -> set[tuple[int, int, str]]:
        found, start = set(), 0
        for at, (before, now) in enumerate(pairwise(["O", *tags, "O"])):
            (prefix, _, kind), (next_prefix, _, next_kind) = before.partition("-"), now.partition("-")
            other = kind != next_kind
            if prefix != "O" and (prefix + next_prefix in ENDS or other):
                found.add((start, at, kind))
            if next_prefix != "O" and (prefix + next_prefix in STARTS or other):
                start = at
        return found

    count: Counter[str] = Counter()
    for mine, theirs in zip(map(chunks, true), map(chunks, predicted), strict=True):
        count += Counter(true=len(mine), predicted=len(theirs), right=len(mine & theirs))
    precision, recall = count["right"] / count["predicted"], count["right"] / count["true"]
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall)}


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
@pytest.mark.parametrize("seed", [1, 2])
def test_entities_are_scored_as_by_seqeval_and_by_conlleval(scheme, seed):
    true = sentences(scheme)
    predicted = damaged(true, seed)
    counts = TagCounts("IOB2")
    for mine, theirs in zip(true, predicted, strict=True):
        counts.add(mine, theirs)
    found = counts.scores()
    assert 0.2 < found.values["f1"] < 0.95
    expected = {"f1": f1_score, "precision": precision_score, "recall": recall_score, "accuracy": accuracy_score}
    for name, score in expected.items():
        assert found.values[name] == pytest.approx(score(true, predicted)), name
    report = classification_report(true, predicted, output_dict=True, zero_division=0)
    kinds = set(report) - {"micro avg", "macro avg", "weighted avg"}
    assert set(found.table_rows) == kinds and len(kinds) >= 3
    for kind in kinds:
        names = ("precision", "recall", "f1-score", "support")
        assert found.table_rows[kind] == pytest.approx([report[kind][name] for name in names]), kind
    if scheme != "BIOES":
        assert conlleval(true, predicted) == pytest.approx(
            {name: found.values[name] for name in ("precision", "recall", "f1")}
        )


def test_plain_tags_are_scored_as_by_scikit_learn():
    true = sentences("IOB2")
    predicted = damaged(true, 3)
    assert TagCounts("plain").scores().values == {"accuracy": 0.0, "macro_f1": 0.0}
    counts = TagCounts("plain")
    for mine, theirs in zip(true, predicted, strict=True):
        counts.add(mine, theirs)
    found = counts.scores()
    flat = [list(chain.from_iterable(tagged)) for tagged in (true, predicted)]
    report = tag_report(*flat, output_dict=True, zero_division=0)
    assert found.values == pytest.approx({"accuracy": report["accuracy"], "macro_f1": report["macro avg"]["f1-score"]})
    assert len(found.table_rows) >= 5


def test_a_tag_that_is_never_predicted_is_zero_without_a_warning():
    assert TagCounts("plain").scores().values == {"accuracy": 0.0, "macro_f1": 0.0}
    counts = TagCounts("plain")
    counts.add(["N", "V"], ["N", "X"])
    assert counts.scores().table_rows == {"N": (1, 1, 1, 1), "V": (0, 0, 0, 1), "X": (0, 0, 0, 0)}
