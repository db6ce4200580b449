"""How much each class counts where `task.class_weights` is "balanced"."""

import numpy as np
from numpy.typing import NDArray


def balanced_weights(labels_N: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Of each class n / (C n_c) over the labels that count, C the classes that occur: 1 in the mean over the labels, as
    in scikit-learn's "balanced". A class that has no label weighs 1. float64 [classes]."""
    counts = np.bincount(labels_N, minlength=classes)
    return np.where(counts > 0, len(labels_N) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def ones_weights(labels_NC: NDArray[np.int64]) -> NDArray[np.float64]:
    """With several labels a row: of each class its zeros to a one, 1 where it has none. float64 [C]."""
    ones = labels_NC.sum(axis=0)
    return np.where(ones > 0, (len(labels_NC) - ones) / np.maximum(ones, 1), 1.0)
