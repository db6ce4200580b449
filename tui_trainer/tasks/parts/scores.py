"""How well classes and numbers are predicted, by scikit-learn's definitions, and how much each class counts where
`task.class_weights` is "balanced".

F1 of a class is 2 TP / (2 TP + FP + FN), and 0 where nothing has it and nothing was taken for it. Macro: the mean over
the classes that occur in labels or predictions, with several labels a row over all; weighted: over the labels; micro:
of the sums. Scores of numbers are an expression of numpy each, and spare the import.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from tui_trainer.config.sections import Config
from tui_trainer.data.columns.labels import Kind
from tui_trainer.data.columns.tagged_rows import entities
from tui_trainer.errors import Problem
from tui_trainer.tasks.contract import Scores
from tui_trainer.terminal.safe_text import one_line

# The metric that names the best model: what is said where it is not measured.

METRIC_KEY = "evaluation.metric_for_best_model"


def metric_problems(config: Config, measured: Iterable[str], where: str) -> list[Problem]:
    """The metric asked for is not among those `measured`; `where`: by which task, or with which labels."""
    wanted, known = config.evaluation.metric_for_best_model, ("loss", *measured)
    if wanted in known:
        return []
    near = get_close_matches(wanted, known, n=1) or [name for name in known if name in wanted or wanted in name]
    guess = f"did you mean {near[0]}? " if near else ""
    message = f"{one_line(wanted, 40)} is not measured {where}"
    return [Problem(message=message, key=METRIC_KEY, hint=f"{guess}available: {', '.join(known)}")]


METRICS_OF: dict[Kind, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "macro_f1", "weighted_f1"),
    "multi_label_classification": ("exact_match", "macro_f1", "micro_f1"),
    "regression": ("pearson", "r2"),
}
ALL_METRICS = tuple(dict.fromkeys(name for names in METRICS_OF.values() for name in names))
MOST_CLASSES = 20
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def class_scores(labels_N: Ints, predicted_N: Ints, names: Sequence[str]) -> Scores:
    """Of one label a row: numbers of classes, int64 [N] each. The table is the confusion matrix, true classes below
    each other; of more than 20 classes the largest, and the others together."""
    classes = len(names)
    flat = np.bincount(labels_N * classes + predicted_N, minlength=classes * classes)
    counts_CC = flat.reshape(classes, classes)  # rows of a true class, columns of what was predicted
    shown = _largest(counts_CC.sum(axis=1))
    rest = [at for at in range(classes) if at not in set(shown)]
    groups = [[at] for at in shown] + ([rest] if rest else [])
    columns = tuple(names[at] for at in shown) + ((f"({len(rest)} others)",) if rest else ())
    table = [[int(counts_CC[np.ix_(row, column)].sum()) for column in groups] for row in groups]
    return Scores(
        values=class_values(labels_N, predicted_N),
        table_title="true class / predicted",
        table_columns=columns,
        table_rows=dict(zip(columns, table, strict=True)),
    )


def class_values(labels_N: Ints, predicted_N: Ints) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score

    f1 = {
        f"{average}_f1": float(f1_score(labels_N, predicted_N, average=average, zero_division=0))
        for average in ("macro", "weighted")
    }
    return {"accuracy": float(accuracy_score(labels_N, predicted_N)), **f1}


def multi_label_scores(labels_NC: Ints, predicted_NC: Ints, names: Sequence[str]) -> Scores:
    """Of several labels a row: 0 or 1 for each class. The table has what is counted of each class."""
    from sklearn.metrics import f1_score, precision_recall_fscore_support

    # A single column would be taken for one label a row: a class that never occurs stands beside.
    labels, predicted = (np.pad(values, ((0, 0), (0, 1))) for values in (labels_NC, predicted_NC))
    found = precision_recall_fscore_support(labels, predicted, zero_division=0)
    precision, recall, f1, support = (column[:-1].tolist() for column in found)
    return Scores(
        values={
            "exact_match": float((labels_NC == predicted_NC).all(axis=1).mean()),
            "macro_f1": sum(f1) / len(f1),
            "micro_f1": float(f1_score(labels, predicted, average="micro", zero_division=0)),
        },
        table_title="class",
        table_columns=("precision", "recall", "f1", "rows"),
        table_rows={
            names[at]: (precision[at], recall[at], f1[at], support[at]) for at in _largest(labels_NC.sum(axis=0))
        },
    )


def number_scores(labels_N: Floats, predicted_N: Floats) -> Scores:
    """Of numbers: squared and absolute error, Pearson's correlation, and the share of the variance that is told (r2).

    Correlation and r2 are 0 where the numbers of one side are all the same.
    """
    error = predicted_N - labels_N
    spread, own = labels_N - labels_N.mean(), predicted_N - predicted_N.mean()
    norm = float(np.sqrt((spread**2).sum() * (own**2).sum()))
    variance = float((spread**2).sum())
    return Scores(
        values={
            "mse": float((error**2).mean()),
            "mae": float(np.abs(error).mean()),
            "pearson": float((spread * own).sum()) / norm if norm else 0.0,
            "r2": 1 - float((error**2).sum()) / variance if variance else 0.0,
        }
    )


def _largest(rows_C: Ints) -> list[int]:
    """The classes with the most rows, in the order of their numbers."""
    chosen = np.argsort(-rows_C, kind="stable")[:MOST_CLASSES]
    return sorted(int(at) for at in chosen)


def balanced_weights(labels_N: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Of each class n / (C n_c) over the labels that count, C the classes that occur: 1 in the mean over the labels, as
    in scikit-learn's "balanced". A class that has no label weighs 1. float64 [classes]."""
    counts = np.bincount(labels_N, minlength=classes)
    return np.where(counts > 0, len(labels_N) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def ones_weights(labels_NC: NDArray[np.int64]) -> NDArray[np.float64]:
    """With several labels a row: of each class its zeros to a one, 1 where it has none. float64 [C]."""
    ones = labels_NC.sum(axis=0)
    return np.where(ones > 0, (len(labels_NC) - ones) / np.maximum(ones, 1), 1.0)


# How well tags of words are predicted: by the entities that they mark, or word by word where they mark none.
#
# An entity is right when its first word, its last word and its type are. Precision is the share of the predicted ones
# that are right, recall the share of the true ones that are found, F1 2 PR / (P + R); over all types together (micro),
# as
# conlleval has it. Nothing predicted, or nothing to find, counts as 0. What is an entity:
# `data/columns/tagged_rows.py`.

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
TAG_METRICS = ("accuracy", "macro_f1")
METRICS = tuple(dict.fromkeys(ENTITY_METRICS + TAG_METRICS))
_COLUMNS = ("precision", "recall", "f1", "support")


class TagCounts:
    """Collects the tags of sentences. Of tags that mark entities `accuracy` is of the words, O included; tags that
    stand for themselves (`plain`), such as parts of speech, have the mean of F1 over those that are there or were
    predicted."""

    def __init__(self, scheme: str) -> None:
        self._is_plain = scheme == "plain"
        self._counts: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
        self._words = self._right_words = 0

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        """One sentence: as many of each as it has words."""
        right = [one for one, other in zip(true, predicted, strict=True) if one == other]
        self._words += len(true)
        self._right_words += len(right)
        named: tuple[Iterable[str], ...] = right, predicted, true
        if not self._is_plain:
            wanted, found = entities(true), entities(predicted)
            named = tuple([entity.kind for entity in some] for some in (set(wanted).intersection(found), found, wanted))
        for count, names in zip(self._counts, named, strict=True):
            count.update(names)

    def scores(self) -> Scores:
        _, predicted, true = self._counts
        table = {name: _rates(*(count[name] for count in self._counts)) for name in sorted({*predicted, *true})}
        values = {"accuracy": self._right_words / max(self._words, 1)}
        if self._is_plain:
            values["macro_f1"] = sum(f1 for _, _, f1, _ in table.values()) / max(len(table), 1)
        else:
            precision, recall, f1, _ = _rates(*(count.total() for count in self._counts))
            values = {"f1": f1, "precision": precision, "recall": recall, **values}
        title = "tag" if self._is_plain else "entity"
        return Scores(values=values, table_title=title, table_columns=_COLUMNS, table_rows=table)


def _rates(right: int, predicted: int, true: int) -> tuple[float, float, float, int]:
    """Precision, recall, F1, and what there was to find."""
    return right / max(predicted, 1), right / max(true, 1), 2 * right / max(predicted + true, 1), true


def metrics_of(scheme: str) -> tuple[str, ...]:
    return TAG_METRICS if scheme == "plain" else ENTITY_METRICS


# How near a written answer comes to its reference: ROUGE and exact match, each between 0 and 1.
#
# ROUGE here compares words as they stand: runs of letters, digits and underscores in lower case, without stemming, so
# "walks" and "walked" are two words. Figures of programs that stem are a little higher. `rouge-score` compares words
# of
# a to z alone, and takes a second for two texts of a thousand words: on English the figures here are equal to its own.
# Sources: Lin, ROUGE: a package for automatic evaluation of summaries (2004); Rajpurkar et al., arXiv:1606.05250,
# section 6.1, for exact match.

SCORES = ("rouge1", "rouge2", "rougeL", "exact_match")
_WORD = re.compile(r"\w+")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def mean_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean of each of SCORES over pairs of an answer and its reference. There is one pair or more."""
    scored = [_scores(answer, reference) for answer, reference in zip(answers, references, strict=True)]
    return {name: sum(scores[name] for scores in scored) / len(scored) for name in SCORES}


def _scores(answer: str, reference: str) -> Mapping[str, float]:
    mine, theirs = words_of(answer), words_of(reference)
    return {
        "rouge1": _rouge_n(mine, theirs, 1),
        "rouge2": _rouge_n(mine, theirs, 2),
        "rougeL": _f1(_longest_common(mine, theirs), len(mine), len(theirs)),
        "exact_match": float(normalised(answer) == normalised(reference)),
    }


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def normalised(text: str) -> str:
    """As SQuAD compares answers: lower case, without punctuation, English articles and spare white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _rouge_n(mine: Sequence[str], theirs: Sequence[str], n: int) -> float:
    """F1 of the runs of n words, each counted as often as it is in both."""
    runs = [Counter(zip(*(words[start:] for start in range(n)), strict=False)) for words in (mine, theirs)]
    return _f1((runs[0] & runs[1]).total(), runs[0].total(), runs[1].total())


def _longest_common(mine: Sequence[str], theirs: Iterable[str]) -> int:
    """Words of the longest common subsequence, with one bit of a whole number for each word of `mine`.

    Source: Hyyro, Bit-parallel LCS-length computation revisited (2004).
    """
    places: dict[str, int] = {}
    for place, word in enumerate(mine):
        places[word] = places.get(word, 0) | 1 << place
    everything = (1 << len(mine)) - 1
    open_places = everything
    for word in theirs:
        met = open_places & places.get(word, 0)
        open_places = (open_places + met | open_places - met) & everything
    return len(mine) - open_places.bit_count()


def _f1(common: int, mine: int, theirs: int) -> float:
    return 2 * common / (mine + theirs) if common else 0.0
