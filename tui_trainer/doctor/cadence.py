"""How seldom something must be for its share of the time to be small."""

import math


def seldom(each_seconds: float, step_seconds: float, share: float) -> int:
    """Steps between two of what takes `each_seconds`, so that it takes that share of the time; two digits."""
    steps = max(1, math.ceil(each_seconds * (1 - share) / (share * step_seconds))) if step_seconds > 0 else 1
    digits = int(10 ** max(len(str(steps)) - 2, 0))
    return -(-steps // digits) * digits
