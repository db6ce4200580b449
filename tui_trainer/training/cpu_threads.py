"""How the threads of torch's CPU kernels wait for one another. Read once, when torch is loaded, so it comes before.

By default they spin, which is fastest while nobody else wants the cores, and slow as soon as somebody does: a thread
that has lost its core is waited for by one that burns the other. Measured on 2 cores, quickstart recipe, milliseconds
a step alone and beside one busy process: spinning 137 and 3465, three thousand turns 140 and 340, none at all 175 and
216 (medians of three runs alone, one run beside the other process).
"""

from __future__ import annotations

import os

_TURNS = "3000"


def wait_gently() -> None:
    """Spin for a moment, then sleep, unless the user has chosen otherwise. For GNU's OpenMP, which torch brings."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _TURNS)
