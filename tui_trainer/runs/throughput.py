"""How good a rate is beside the best that this machine has reached with steps of the same shape."""

from tui_trainer.runs.state import RunState
from tui_trainer.units import format_count

# From guide E, which calls 2,000 rows a second excellent on one card: 1,500 are good, 1,000 acceptable, below 500
# there is a problem. Here the best is this machine's own.
_GRADES = ((0.95, "excellent"), (0.75, "good"), (0.5, "acceptable"), (0.25, "slow"), (0.0, "a problem"))


def grade(samples_per_second: float, best: float | None) -> str:
    """`good, 82 % of the best here (1.42 k)`; empty where none is known."""
    if not best or samples_per_second <= 0:
        return ""
    share = samples_per_second / best
    word = next(word for least, word in _GRADES if share >= least)
    return f"{word}, {share * 100:.0f} % of the best here ({format_count(best)} rows/s)"


def grade_of(state: RunState) -> str:
    """Of a whole run so far; empty where none is known."""
    seconds, rows = sum(state.step_seconds), state.plan.effective_batch_size if state.plan else 0
    rate = state.samples_per_second or (len(state.steps) * rows / seconds if seconds else 0.0)
    return grade(rate, state.plan.best_samples_per_second if state.plan else None)
