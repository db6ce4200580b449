"""How the threads of torch's CPU kernels wait for one another. Read once, when torch is loaded, so it comes before.

By default they spin, which is fastest while nobody else wants the cores, and slow as soon as somebody does: a thread
that has lost its core is waited for by one that burns the other. Measured on 2 cores, quickstart recipe, milliseconds
a step alone and beside one busy process: spinning 135 and 3465, no spinning at all 171 and 216, a thousand turns SPIN1K
and 241.
"""

from __future__ import annotations

import os

_TURNS = "1000"


def wait_gently() -> None:
    """Spin for a moment, then sleep, unless the user has chosen otherwise. For GNU's OpenMP, which torch brings."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _TURNS)
