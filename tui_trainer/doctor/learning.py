"""What the curve of a run tells about its learning rate."""


def two_digits(rate: float) -> float:
    """`0.00033`: a rate as one would write it."""
    return float(f"{rate:.2g}")
