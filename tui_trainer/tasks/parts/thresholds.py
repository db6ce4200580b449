"""Read the thresholds of a classifier of several labels from its config.json.

An ONNX export contains a copy of this file, so it imports nothing from the package.
"""

from collections.abc import Mapping, Sequence
from typing import Any

DEFAULT = 0.5


def thresholds_of(calibration: Mapping[str, Any] | None, names: Sequence[str]) -> list[float]:
    """Return the probability above which each label is predicted: 0.5 for a model without chosen thresholds."""
    chosen_thresholds = (calibration or {}).get("thresholds") or {}
    return [float(chosen_thresholds.get(name, DEFAULT)) for name in names]


def label_words(probabilities: Mapping[str, float], labels: Sequence[str], limit: int) -> list[str]:
    """Return text such as `joy 0.41 (predicted)` for the `limit` most likely labels and for all predicted `labels`."""
    ordered_names = sorted(probabilities, key=lambda name: -probabilities[name])
    shown_names = [name for rank, name in enumerate(ordered_names) if rank < limit or name in labels]
    return [f"{name} {probabilities[name]:.2f}{' (predicted)' * (name in labels)}" for name in shown_names]
