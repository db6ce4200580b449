"""How well classes and numbers are predicted, by scikit-learn's definitions, and how much each class counts where
`task.class_weights` is "balanced".

F1 of a class is 2 TP / (2 TP + FP + FN), and 0 where nothing has it and nothing was taken for it. Macro: the mean over
the classes that occur in labels or predictions, with several labels a row over all; weighted: over the labels; micro:
of the sums. Scores of numbers are an expression of numpy each, and spare the import.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.labels import Kind
from tui_trainer.tasks.contract import Scores

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
    columns, rows = _shown_table(labels_N, predicted_N, names)
    return Scores(
        values=class_values(labels_N, predicted_N),
        table_title="true class / predicted",
        table_columns=columns,
        table_rows=rows,
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


def _shown_table(
    labels_N: Ints, predicted_N: Ints, names: Sequence[str]
) -> tuple[tuple[str, ...], Mapping[str, Sequence[float]]]:
    """int64 [C, C]: row t, column p counts the rows of class t that were taken for p."""
    classes = len(names)
    flat = np.bincount(labels_N * classes + predicted_N, minlength=classes * classes)
    counts_CC = flat.reshape(classes, classes)
    shown = _largest(counts_CC.sum(axis=1))
    rest = [at for at in range(len(names)) if at not in set(shown)]
    groups = [[at] for at in shown] + ([rest] if rest else [])
    labels = tuple(names[at] for at in shown) + ((f"({len(rest)} others)",) if rest else ())
    table = [[int(counts_CC[np.ix_(row, column)].sum()) for column in groups] for row in groups]
    return labels, dict(zip(labels, table, strict=True))


def balanced_weights(labels_N: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Of each class n / (C n_c) over the labels that count, C the classes that occur: 1 in the mean over the labels, as
    in scikit-learn's "balanced". A class that has no label weighs 1. float64 [classes]."""
    counts = np.bincount(labels_N, minlength=classes)
    return np.where(counts > 0, len(labels_N) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def ones_weights(labels_NC: NDArray[np.int64]) -> NDArray[np.float64]:
    """With several labels a row: of each class its zeros to a one, 1 where it has none. float64 [C]."""
    ones = labels_NC.sum(axis=0)
    return np.where(ones > 0, (len(labels_NC) - ones) / np.maximum(ones, 1), 1.0)
