"""Whether a run that goes on is done by its deadline: looked at from its first steps on, told once, with ways out."""

from datetime import UTC, datetime, timedelta
from time import perf_counter

from tui_trainer.deadlines import clock_words
from tui_trainer.planning.deadline_ways import measured_switches, run_seconds, seconds_left, way_line, ways_to_make_it
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import DeadlineAtRisk
from tui_trainer.runs.state import WARM_UP_STEPS
from tui_trainer.training.session import Session
from tui_trainer.units import format_seconds

# Few slow steps tell as much as many quick ones; within these the run is told.
_ENOUGH_STEPS, _ENOUGH_SECONDS, _FIRST_STEPS = 8, 20.0, 20
# Later it is looked at now and then.
_EVERY_STEPS = 50
# So late is within what steps differ.
_TOLERATED_SHARE = 0.02


class DeadlineWatch:
    """Does nothing for a run without a deadline."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._deadline = session.plan.deadline
        self._first = session.position.step
        self._measured, self._taken = 0, 0.0
        self._step_began = 0.0
        self._began = None if self._first else datetime.now(UTC)

    def step_begins(self) -> None:
        self._step_began = perf_counter()

    def look(self) -> DeadlineAtRisk | None:
        """What is to be told after this step: once, when the run turns out to be late."""
        deadline, session = self._deadline, self._session
        if deadline is None:
            return None
        step = session.position.step
        is_time = step - self._first <= _FIRST_STEPS or (step - self._first) % _EVERY_STEPS == 0
        if is_time:
            session.flush()  # the device has done what it was given
        if step - self._first <= WARM_UP_STEPS:
            return None
        self._measured, self._taken = self._measured + 1, self._taken + perf_counter() - self._step_began
        is_enough = self._measured >= _ENOUGH_STEPS or self._taken >= _ENOUGH_SECONDS
        if not is_time or not is_enough:
            return None
        step_seconds, now = self._taken / self._measured, datetime.now(UTC)
        if step - self._first > _FIRST_STEPS:
            self._measured, self._taken = 0, 0.0
        left = run_seconds(session.plan, step_seconds, after=step)
        late = (now + timedelta(seconds=left) - deadline.at).total_seconds()
        if late <= _TOLERATED_SHARE * left:
            return None
        self._deadline = None
        return _at_risk(session.plan, step, step_seconds, now + timedelta(seconds=left), self._began)


def _at_risk(plan: Plan, step: int, step_seconds: float, expected: datetime, began: datetime | None) -> DeadlineAtRisk:
    deadline, now = plan.deadline, datetime.now(UTC)
    assert deadline is not None, "only a run with a deadline is watched"
    # What the beginning of this run took, that of the next one takes again.
    beginning = max((began - deadline.start).total_seconds(), 0.0) if began else 0.0
    ways = ways_to_make_it(plan, step_seconds, seconds_left(plan) - beginning, measured_switches(plan))
    done, by = clock_words(expected, now), clock_words(deadline.at, now)
    named = "; ".join(f"({number}) {way_line(way)}" for number, way in enumerate(ways, 1))
    return DeadlineAtRisk(
        step=step,
        kind="deadline",
        message=f"this run will be done at about {done}, not by {by}: {format_seconds(step_seconds)} a step",
        hint=f"the next one is, with {named}" if ways else "no run of this kind fits into the time that is left",
        due=deadline.at.astimezone(UTC).isoformat(),
        expected=expected.isoformat(),
        step_seconds=step_seconds,
        ways=list(ways),
    )
