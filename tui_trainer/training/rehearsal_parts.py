"""What is rehearsed, in its order. No torch: who asks for it has none."""

LOADING, WORST, TYPICAL, EVALUATION = "loading", "largest micro-batch", "typical steps", "largest evaluation batch"
CHECKPOINT, FINAL, SAMPLE = "checkpoint", "final model", "sample"
PARTS = (WORST, TYPICAL, EVALUATION, CHECKPOINT, FINAL, SAMPLE)
