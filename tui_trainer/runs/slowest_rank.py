"""Which of several processes the others wait for, and how long.

All of them end what they do together at the same time, so the one that spends the least time on it came last: it is the
slowest, and what the others spend more is what they wait for it.
"""

from dataclasses import dataclass
from statistics import median

from tui_trainer.runs.state import RunState
from tui_trainer.units import format_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """`lag_seconds` a step, of `step_seconds`, the others wait for it; `communication_seconds` it takes without any
    waiting."""

    rank: int
    lag_seconds: float
    communication_seconds: float
    step_seconds: float

    @property
    def words(self) -> str:
        """`slowest: rank 3, +14 % (12 ms a step), communication 6 %`."""
        rest = self.step_seconds - self.lag_seconds
        lag_share = self.lag_seconds / rest if rest > 0 else 0.0
        lag = f"+{100 * lag_share:.0f} % ({format_seconds(self.lag_seconds)} a step)"
        share = min(self.communication_seconds / self.step_seconds, 1.0) if self.step_seconds > 0 else 0.0
        return f"slowest: rank {self.rank}, {lag}, communication {100 * share:.0f} %"


def slowest_rank(state: RunState) -> SlowestRank | None:
    """Over the last minute or two; None for a run of one process, and before it is known."""
    columns = [event.communication_seconds for event in state.rank_times if len(event.communication_seconds) > 1]
    if not columns or not state.recent:
        return None
    # Of those with as many processes as the last.
    alike = [one for one in columns if len(one) == len(columns[-1])]
    each = [sum(column) / len(alike) for column in zip(*alike, strict=True)]
    rank = min(range(len(each)), key=each.__getitem__)
    others = median(seconds for number, seconds in enumerate(each) if number != rank)
    return SlowestRank(
        rank=rank,
        lag_seconds=others - each[rank],
        communication_seconds=each[rank],
        step_seconds=sum(done.step_seconds for done in state.recent) / len(state.recent),
    )
