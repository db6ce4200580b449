"""Which rows of a step each of several processes takes: about as many tokens each."""

import numpy as np
from numpy.typing import NDArray


def share_of(lengths: NDArray[np.int64], number: int, count: int) -> NDArray[np.int64]:
    """Places, ascending, of the rows that process `number` of `count` takes. Rows are dealt back and forth, the
    longest first; with fewer rows than processes some get none.
    """
    order = np.argsort(-lengths, kind="stable")
    rounds, places = np.divmod(np.arange(len(order)), count)
    dealt_to = np.where(rounds % 2 == 0, places, count - 1 - places)
    return np.sort(order[dealt_to == number])
