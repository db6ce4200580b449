"""Scores of predicted classes, tags, numbers and answers, and the weights of classes with `task.class_weights` =
"balanced".

The definitions are those of scikit-learn. F1 of a class is 2 TP / (2 TP + FP + FN), and 0 if it has no labels and no
predictions. The macro average is over the classes that occur in labels or predictions, or over all classes if a row has
several labels; the weighted average is over the labels; micro is the F1 of the summed counts. Scores of numbers need
only numpy, which avoids an import of scikit-learn.
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

METRIC_KEY = "evaluation.metric_for_best_model"


def metric_problems(config: Config, measured: Iterable[str], where: str) -> list[Problem]:
    """Return a problem if the metric that selects the best model is not among `measured`, the metrics of the task.
    `where` ends the message with the task or the kind of labels."""
    metric, available = config.evaluation.metric_for_best_model, ("loss", *measured)
    if metric in available:
        return []
    similar_metrics = get_close_matches(metric, available, n=1)
    similar_metrics = similar_metrics or [name for name in available if name in metric or metric in name]
    suggestion = f"did you mean {similar_metrics[0]}? " if similar_metrics else ""
    message = f"{one_line(metric, 40)} is not measured {where}"
    return [Problem(message=message, key=METRIC_KEY, hint=f"{suggestion}available: {', '.join(available)}")]


METRICS_OF: dict[Kind, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "macro_f1", "weighted_f1"),
    "multi_label_classification": ("exact_match", "macro_f1", "micro_f1"),
    "regression": ("pearson", "r2"),
}
ALL_METRICS = tuple(dict.fromkeys(name for names in METRICS_OF.values() for name in names))
MOST_TABLE_CLASSES = 20
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def class_scores(labels_N: Ints, predicted_N: Ints, names: Sequence[str]) -> Scores:
    """Return the scores of predicted against true labels, one per row, int64 [N]. The table is the confusion matrix,
    with a row for each true class. Of more than 20 classes it shows the largest, and the others together."""
    class_count = len(names)
    flat_counts = np.bincount(labels_N * class_count + predicted_N, minlength=class_count * class_count)
    counts_CC = flat_counts.reshape(class_count, class_count)  # [true class, predicted class]
    shown_classes = _largest(counts_CC.sum(axis=1))
    other_classes = [number for number in range(class_count) if number not in set(shown_classes)]
    groups = [[number] for number in shown_classes] + ([other_classes] if other_classes else [])
    columns = tuple(names[number] for number in shown_classes)
    columns += (f"({len(other_classes)} others)",) if other_classes else ()
    table = [[int(counts_CC[np.ix_(row, column)].sum()) for column in groups] for row in groups]
    return Scores(
        values=class_values(labels_N, predicted_N),
        table_title="true class / predicted",
        table_columns=columns,
        table_rows=dict(zip(columns, table, strict=True)),
    )


def class_values(labels_N: Ints, predicted_N: Ints) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score

    f1_values = {
        f"{average}_f1": float(f1_score(labels_N, predicted_N, average=average, zero_division=0))
        for average in ("macro", "weighted")
    }
    return {"accuracy": float(accuracy_score(labels_N, predicted_N)), **f1_values}


def multi_label_scores(labels_NC: Ints, predicted_NC: Ints, names: Sequence[str]) -> Scores:
    """Return the scores of several labels per row, 0 or 1 for each class. The table has the scores of each class."""
    from sklearn.metrics import f1_score, precision_recall_fscore_support

    # scikit-learn takes a single column for one label per row, so a class that never occurs is added.
    labels, predicted = (np.pad(values, ((0, 0), (0, 1))) for values in (labels_NC, predicted_NC))
    class_columns = precision_recall_fscore_support(labels, predicted, zero_division=0)
    precision, recall, f1, support = (column[:-1].tolist() for column in class_columns)
    shown_classes = _largest(labels_NC.sum(axis=0))
    return Scores(
        values={
            "exact_match": float((labels_NC == predicted_NC).all(axis=1).mean()),
            "macro_f1": sum(f1) / len(f1),
            "micro_f1": float(f1_score(labels, predicted, average="micro", zero_division=0)),
        },
        table_title="class",
        table_columns=("precision", "recall", "f1", "rows"),
        table_rows={names[x]: (precision[x], recall[x], f1[x], support[x]) for x in shown_classes},
    )


def number_scores(labels_N: Floats, predicted_N: Floats) -> Scores:
    """Return squared and absolute error, Pearson's correlation, and the explained share of the variance (r2).

    Correlation and r2 are 0 if the numbers of one side are all equal."""
    error = predicted_N - labels_N
    label_deviation, predicted_deviation = labels_N - labels_N.mean(), predicted_N - predicted_N.mean()
    deviation_norm = float(np.sqrt((label_deviation**2).sum() * (predicted_deviation**2).sum()))
    label_squares = float((label_deviation**2).sum())
    return Scores(
        values={
            "mse": float((error**2).mean()),
            "mae": float(np.abs(error).mean()),
            "pearson": float((label_deviation * predicted_deviation).sum()) / deviation_norm if deviation_norm else 0.0,
            "r2": 1 - float((error**2).sum()) / label_squares if label_squares else 0.0,
        }
    )


def _largest(rows_C: Ints) -> list[int]:
    """Return the numbers of the classes that have the most rows, in increasing order of the numbers."""
    return sorted(np.argsort(-rows_C, kind="stable")[:MOST_TABLE_CLASSES].tolist())


def balanced_weights(labels_N: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Return the weight n / (C n_c) of each class c, float64 [classes], where n_c of the n labels are c, and C classes
    occur. The mean over the labels is 1, as in scikit-learn's "balanced". A class without labels has weight 1."""
    counts = np.bincount(labels_N, minlength=classes)
    return np.where(counts > 0, len(labels_N) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def positive_weights(labels_NC: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the number of rows without each class per row with it, float64 [C]; 1 for a class that no row has."""
    rows_with_class = labels_NC.sum(axis=0)
    return np.where(rows_with_class > 0, (len(labels_NC) - rows_with_class) / np.maximum(rows_with_class, 1), 1.0)


# Tags are scored by the entities that they mark, or word by word if they mark none. An entity is correct if its first
# word, its last word and its type are. Precision is the correct share of the predicted entities, recall the predicted
# share of the true ones, F1 is 2 PR / (P + R), all over the sum of all types (micro), as in conlleval. They are 0
# without entities. `data/columns/tagged_rows.py` defines entities.

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
TAG_METRICS = ("accuracy", "macro_f1")
METRICS = tuple(dict.fromkeys(ENTITY_METRICS + TAG_METRICS))
_COLUMNS = ("precision", "recall", "f1", "support")


class TagCounts:
    """Counts of true and predicted tags, and their scores. For tags that mark entities, `accuracy` is over all words, O
    included. For other tags (`plain`), such as parts of speech, macro F1 is over the tags in labels or predictions."""

    def __init__(self, scheme: str) -> None:
        self._is_plain = scheme == "plain"
        self._counts: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
        self._words = self._correct_words = 0

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        """Add one sentence, with a true and a predicted tag for each word."""
        correct_tags = [tag for tag, prediction in zip(true, predicted, strict=True) if tag == prediction]
        self._words += len(true)
        self._correct_words += len(correct_tags)
        names_by_count: tuple[Iterable[str], ...] = correct_tags, predicted, true
        if not self._is_plain:
            true_entities, found_entities = entities(true), entities(predicted)
            groups = (set(true_entities).intersection(found_entities), found_entities, true_entities)
            names_by_count = tuple([entity.kind for entity in group] for group in groups)
        for counter, names in zip(self._counts, names_by_count, strict=True):
            counter.update(names)

    def scores(self) -> Scores:
        _, predicted, true = self._counts
        table = {name: _rates(*(count[name] for count in self._counts)) for name in sorted({*predicted, *true})}
        metric_values = {"accuracy": self._correct_words / max(self._words, 1)}
        if self._is_plain:
            metric_values["macro_f1"] = sum(f1 for _, _, f1, _ in table.values()) / max(len(table), 1)
        else:
            precision, recall, f1, _ = _rates(*(count.total() for count in self._counts))
            metric_values = {"f1": f1, "precision": precision, "recall": recall, **metric_values}
        title = "tag" if self._is_plain else "entity"
        return Scores(values=metric_values, table_title=title, table_columns=_COLUMNS, table_rows=table)


def _rates(correct: int, predicted: int, true: int) -> tuple[float, float, float, int]:
    """Return precision, recall, F1, and `true`, from counts of correct, predicted and true items."""
    return correct / max(predicted, 1), correct / max(true, 1), 2 * correct / max(predicted + true, 1), true


def metrics_for_scheme(scheme: str) -> tuple[str, ...]:
    return TAG_METRICS if scheme == "plain" else ENTITY_METRICS


# Generated answers are compared with their references by ROUGE and exact match, each from 0 to 1. A word of ROUGE is a
# run of letters, digits and underscores in lower case, without stemming (which gives slightly higher scores). On
# English, the scores equal those of `rouge-score`, which knows only the letters a to z and takes a second for two texts
# of a thousand words. Sources: Lin, ROUGE: a package for automatic evaluation of summaries (2004); Rajpurkar et al.,
# arXiv:1606.05250, section 6.1, for exact match.

SCORES = ("rouge1", "rouge2", "rougeL", "exact_match")
_WORD = re.compile(r"\w+")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def mean_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the mean of each of SCORES over pairs of an answer and its reference. There is at least one pair."""
    scores_of_pairs = [_scores(answer, reference) for answer, reference in zip(answers, references, strict=True)]
    return {name: sum(scores[name] for scores in scores_of_pairs) / len(scores_of_pairs) for name in SCORES}


def _scores(answer: str, reference: str) -> Mapping[str, float]:
    words, expected_words = words_of(answer), words_of(reference)
    return {
        "rouge1": _rouge_n(words, expected_words, 1),
        "rouge2": _rouge_n(words, expected_words, 2),
        "rougeL": _f1(_longest_common(words, expected_words), len(words), len(expected_words)),
        "exact_match": float(normalised(answer) == normalised(reference)),
    }


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def normalised(text: str) -> str:
    """Return an answer as SQuAD compares it: in lower case, without punctuation, English articles and extra blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _rouge_n(words: Sequence[str], expected: Sequence[str], n: int) -> float:
    """Return the F1 of the common n-grams. A repeated n-gram counts as often as both texts have it."""
    token_lists = ([text[start:] for start in range(n)] for text in (words, expected))
    ngrams, expected_ngrams = (Counter(zip(*tokens, strict=False)) for tokens in token_lists)
    return _f1((ngrams & expected_ngrams).total(), ngrams.total(), expected_ngrams.total())


def _longest_common(words: Sequence[str], expected: Iterable[str]) -> int:
    """Return the length of the longest common subsequence of two texts. Each word of `words` is one bit of an integer.

    Source: Hyyro, Bit-parallel LCS-length computation revisited (2004)."""
    positions_of_words: dict[str, int] = {}
    for position, word in enumerate(words):
        positions_of_words[word] = positions_of_words.get(word, 0) | 1 << position
    all_bits = (1 << len(words)) - 1
    unmatched_bits = all_bits
    for word in expected:
        matched_bits = unmatched_bits & positions_of_words.get(word, 0)
        unmatched_bits = (unmatched_bits + matched_bits | unmatched_bits - matched_bits) & all_bits
    return len(words) - unmatched_bits.bit_count()


def _f1(common: int, predicted: int, expected: int) -> float:
    return 2 * common / (predicted + expected) if common else 0.0
