"""Calibrate a classifier on held-out rows: a temperature for its logits, and a threshold for each of several labels.

Shapes: logits_NC are float [rows, labels], and targets_NC have 0 or 1 for each label. If a row has one label, each row
of targets_NC has a single 1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.labels import MULTI_LABEL, Kind
from tui_trainer.tasks.parts.thresholds import thresholds_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15
"""Bins of the calibration error. Source: Guo et al., arXiv:1706.04599, section 5."""
LEAST_ROWS = 3
"""Rows with a label that choose a threshold for it alone. With fewer, one mislabelled row would decide.

Simulated labels of 1 to 30 % of 80 rows have a macro F1 of 0.66 on other rows with 3, of 0.65 with 5, and of 0.61 at
the threshold 0.5."""
HALVED_ROWS = 100
"""Number of rows from which on rows are scored with thresholds and a temperature that were chosen on other rows."""
# A temperature that is fitted to fewer wrong answers depends on single rows; without any, it would become 0.
_LEAST_MISTAKES = 10
_MOST_TEMPERATURE = 10.0
_BISECTIONS = 40
# Larger evaluations are calibrated on evenly spaced rows, so that this takes a second at most.
_MOST_LOGITS = 5_000_000


def calibrate(
    logits_NC: Floats, labels: Ints, kind: Kind, names: Sequence[str], divide_logits: Callable[[float], bool]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return (calibration for config.json, scores that show its effect). `labels`: int [N], or [N, C] of 0 and 1.

    `divide_logits` divides the logits of the model itself by a temperature, and returns False if it cannot. From 100
    rows on, each half of the rows is scored with what the other half chose. With fewer rows the scores are of the rows
    that chose, and their names begin with `optimistic`."""
    stride = -(-logits_NC.size // _MOST_LOGITS)
    logits_NC, labels = logits_NC[::stride], labels[::stride]
    targets_NC = labels if kind == MULTI_LABEL else np.eye(len(names), dtype=np.int64)[labels]
    temperature = find_temperature(logits_NC, targets_NC, kind)
    can_divide = temperature != 1 and divide_logits(temperature)
    calibration: dict[str, Any] = {"rows": len(logits_NC), "temperature": temperature if can_divide else 1.0}
    if kind == MULTI_LABEL:
        counts_of_names = zip(names, targets_NC.sum(axis=0), strict=True)
        thresholds = find_thresholds(probabilities(logits_NC / calibration["temperature"], kind), targets_NC)
        calibration["thresholds"] = dict(zip(names, thresholds.round(6).tolist(), strict=True))
        calibration["labels_with_common_threshold"] = [name for name, count in counts_of_names if count < LEAST_ROWS]
    every_row = np.arange(len(logits_NC))
    is_halved = len(every_row) >= HALVED_ROWS
    halves = [(every_row[::2], every_row[1::2]), (every_row[1::2], every_row[::2])]
    scored_NC, predicted_NC = np.empty(logits_NC.shape), np.empty(logits_NC.shape, dtype=np.int64)
    for choosing, scored in halves if is_halved else [(every_row, every_row)]:
        divisor = find_temperature(logits_NC[choosing], targets_NC[choosing], kind) if can_divide else 1.0
        chosen_NC, scored_NC[scored] = (probabilities(logits_NC[rows] / divisor, kind) for rows in (choosing, scored))
        if kind == MULTI_LABEL:
            predicted_NC[scored] = scored_NC[scored] > find_thresholds(chosen_NC, targets_NC[choosing])
    scores = {"calibration_error": calibration_error(scored_NC, targets_NC, kind)}
    if kind == MULTI_LABEL:
        scores = threshold_scores(scored_NC, predicted_NC, targets_NC) | scores
    prefix = "" if is_halved else "optimistic_"
    scores = {(name if name == _PRECISION else prefix + name): value for name, value in scores.items()}
    scores["calibration_error_before"] = calibration_error(probabilities(logits_NC, kind), targets_NC, kind)
    return calibration | {name: value for name, value in scores.items() if "error" in name}, scores


def calibrated_scores(
    logits_NC: Floats, labels: Ints, kind: Kind, names: Sequence[str], calibration: Mapping[str, Any]
) -> dict[str, float]:
    """Return the scores of a calibrated model, whose logits are those after its temperature, on any rows."""
    targets_NC = labels if kind == MULTI_LABEL else np.eye(len(names), dtype=np.int64)[labels]
    values_NC = probabilities(logits_NC, kind)
    scores = {"calibration_error": calibration_error(values_NC, targets_NC, kind)}
    if kind != MULTI_LABEL:
        return scores
    predicted_NC = (values_NC > np.array(thresholds_of(calibration, names))).astype(np.int64)
    return threshold_scores(values_NC, predicted_NC, targets_NC) | scores


def probabilities(logits_NC: Floats, kind: Kind) -> Floats:
    """Return the sigmoid of each logit if a row has several labels, else the softmax of each row."""
    if kind == MULTI_LABEL:
        return np.asarray(np.exp(-np.logaddexp(0, -logits_NC)))
    exponentials_NC = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    return np.asarray(exponentials_NC / exponentials_NC.sum(axis=1, keepdims=True))


def find_temperature(logits_NC: Floats, targets_NC: Ints, kind: Kind) -> float:
    """Return the divisor of the logits that minimizes the negative log-likelihood, from 0.1 to 10.

    The likelihood is that of the targets, as a softmax or as independent sigmoids. It is convex in 1 / temperature, so
    the sign of its slope decides each bisection. Return 1 with under 10 errors. Source: arXiv:1706.04599, 4.2."""
    wrong = ((logits_NC > 0) != targets_NC) if kind == MULTI_LABEL else logits_NC.argmax(1) != targets_NC.argmax(1)
    if wrong.sum() < _LEAST_MISTAKES:
        return 1.0
    low, high = -np.log(_MOST_TEMPERATURE), np.log(_MOST_TEMPERATURE)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_too_sure = ((probabilities(logits_NC / np.exp(middle), kind) - targets_NC) * logits_NC).sum() > 0
        low, high = (middle, high) if is_too_sure else (low, middle)
    return round(float(np.exp((low + high) / 2)), 6)


def find_thresholds(probabilities_NC: Floats, targets_NC: Ints) -> Floats:
    """Return the threshold of each label with the largest F1 on these rows, float64 [C].

    Labels that fewer than `LEAST_ROWS` rows have share the threshold with the largest F1 over all labels together."""
    common = _best_threshold(probabilities_NC.ravel(), targets_NC.ravel())
    columns, is_rare = zip(probabilities_NC.T, targets_NC.T, strict=True), targets_NC.sum(axis=0) < LEAST_ROWS
    thresholds = [common if rare else _best_threshold(*column) for column, rare in zip(columns, is_rare, strict=True)]
    return np.array(thresholds)


def _best_threshold(values: Floats, targets: Ints) -> float:
    """Return the threshold with the largest F1, halfway between two values; 0.5 if no target is 1."""
    if not targets.any():
        return 0.5
    order = np.argsort(-values, kind="stable")
    values = np.append(values[order], 0.0)
    f1_values = 2 * np.cumsum(targets[order]) / (np.arange(1, len(order) + 1) + targets.sum())
    # Equal values are predicted together.
    last_position = int(np.where(values[:-1] > values[1:], f1_values, 0).argmax())
    return float(values[last_position] + values[last_position + 1]) / 2


def calibration_error(probabilities_NC: Floats, targets_NC: Ints, kind: Kind) -> float:
    """Return the expected calibration error: the mean difference between probability and frequency in 15 equal bins.

    A row with one label counts with its most likely label, else with each. Source: arXiv:1706.04599, section 2."""
    if kind == MULTI_LABEL:
        values, is_right = probabilities_NC.ravel(), targets_NC.ravel()
    else:
        rows, best_classes = np.arange(len(targets_NC)), probabilities_NC.argmax(axis=1)
        values, is_right = probabilities_NC[rows, best_classes], targets_NC[rows, best_classes]
    bins = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, weights=is_right - values, minlength=BINS)).sum() / len(values))


_PRECISION = "average_precision"


def threshold_scores(probabilities_NC: Floats, predicted_NC: Ints, targets_NC: Ints) -> dict[str, float]:
    """Return macro and micro F1 with thresholds, and the mean average precision of the labels that some row has."""
    from sklearn.metrics import average_precision_score

    correct, claimed, actual = (values.sum(axis=0) for values in (predicted_NC * targets_NC, predicted_NC, targets_NC))
    columns = zip(targets_NC.T, probabilities_NC.T, strict=True)
    precisions = [average_precision_score(target, values) for target, values in columns if target.any()]
    return {
        "macro_f1_with_thresholds": float((2 * correct / np.maximum(claimed + actual, 1)).mean()),
        "micro_f1_with_thresholds": float(2 * correct.sum() / max(claimed.sum() + actual.sum(), 1)),
        _PRECISION: float(np.mean(precisions)) if precisions else 0.0,
    }
