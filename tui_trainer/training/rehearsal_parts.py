"""What is rehearsed, in its order. No torch: who asks for it has none."""

from __future__ import annotations

LOADING, WORST, TYPICAL, EVALUATION = "loading", "largest micro-batch", "typical steps", "largest evaluation batch"
CHECKPOINT, FINAL, SAMPLE = "checkpoint", "final model", "sample"
PARTS = (WORST, TYPICAL, EVALUATION, CHECKPOINT, FINAL, SAMPLE)
