"""A journal at a glance: its head, its tail, and a few places between for a curve of its losses.

Journals have hundreds of megabytes, and a list shows hundreds of them: of most steps not even the line is read, and of
those that are read few become events.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tui_trainer.runs.events import Event
from tui_trainer.runs.journal import events_in
from tui_trainer.runs.json_fields import parsed
from tui_trainer.runs.state import RunState, fold, smoothing_window
from tui_trainer.units import KIB

HEAD_BYTES: Final = 16 * KIB
TAIL_BYTES: Final = 256 * KIB
# At least 50 steps and what stands between them; of the tail before it only the last evaluation counts.
_END_BYTES: Final = 48 * KIB
CURVE_POINTS: Final = 24
# Four steps: two of them are whole wherever the block begins.
_BLOCK_BYTES: Final = 2 * KIB
MOST_BYTES_READ: Final = HEAD_BYTES + TAIL_BYTES + CURVE_POINTS * _BLOCK_BYTES
_STEPS_OF_A_POINT: Final = 2
_STEP, _PROGRESS = b'{"event": "StepDone"', b'{"event": "Progress"'
_EVALUATION = b'\n{"event": "EvalDone"'
_OFTEN = (_STEP, _PROGRESS)


@dataclass(frozen=True, slots=True)
class JournalEnds:
    """What a journal's ends say.

    `state` is the fold of head and tail, with only the last of the steps and without Progress. `loss` is the final one
    or the mean of the last steps, as `RunState.loss_smoothed`; `loss_curve` are up to 24 training losses of all of it.
    """

    state: RunState
    loss: float | None
    loss_curve: tuple[float, ...]
    last_event_at: str


def read_ends(fd: int) -> JournalEnds:
    """Reads at most `MOST_BYTES_READ` of an open journal. Raises OSError.

    In a larger one an evaluation further back than its end is not seen.
    """
    size_bytes, state = os.fstat(fd).st_size, RunState()
    is_whole = size_bytes <= TAIL_BYTES
    if not is_whole:
        fold(_seldom_events(os.pread(fd, HEAD_BYTES, 0).split(b"\n")), state)
        state.finished = state.failed = None  # an end so early was followed by much more
    lines = _tail_lines(os.pread(fd, TAIL_BYTES, max(size_bytes - TAIL_BYTES, 0)), is_whole=is_whole)
    last_event_at = state.started_at
    for event in _seldom_events(lines):
        state.apply(event)
        last_event_at = event.at or last_event_at
    loss = state.finished.loss if state.finished else None
    steps = [line for line in lines if line.startswith(_STEP)] if is_whole or loss is None else []
    if loss is None:
        recent = _valid(map(_loss, steps[-smoothing_window(state.step) :]), state.step)
        loss = sum(one.loss_sum for one in recent) / sum(one.tokens for one in recent) if recent else None
    if is_whole:
        ends = spread_ends(len(steps), CURVE_POINTS)
        groups = [steps[max(end - _STEPS_OF_A_POINT, 0) : end] for end in ends]
    else:
        groups = list(_at_places(fd, size_bytes))
    curve = _valid(map(_mean, groups), state.step)
    return JournalEnds(state, loss, tuple(one.loss_sum / one.tokens for one in curve), last_event_at)


class _Loss(NamedTuple):
    """The loss of a step, or of several up to `step`; there are tokens."""

    step: int
    loss_sum: float
    tokens: int


def _loss(line: bytes) -> _Loss | None:
    """Of the line of a step, in a third of the time that its event takes; None where it is not finite."""
    try:
        data = parsed(line)
        found = _Loss(data["step"], data["loss_sum"], data["tokens"])
        return found if found.tokens > 0 and math.isfinite(found.loss_sum) else None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None  # NaN stands there as a text


def _mean(lines: list[bytes]) -> _Loss | None:
    losses = [loss for line in lines if (loss := _loss(line))]
    if not losses:
        return None
    return _Loss(losses[-1].step, sum(one.loss_sum for one in losses), sum(one.tokens for one in losses))


def _valid(losses: Iterable[_Loss | None], last_step: int) -> list[_Loss]:
    """Without steps that a resumed run has done again, or has left behind."""
    found: list[_Loss] = []
    for loss in losses:
        if loss is None or loss.step > last_step:
            continue
        while found and found[-1].step >= loss.step:
            found.pop()
        found.append(loss)
    return found


def _tail_lines(tail: bytes, *, is_whole: bool) -> list[bytes]:
    """All lines of a whole journal; else those at the end, after the last evaluation before them."""
    if is_whole:
        return tail.split(b"\n")
    start = max(len(tail) - _END_BYTES, 0)
    if tail.find(_STEP, start) < 0:
        start = 0
    lines = tail[start:].split(b"\n")
    place = tail.rfind(_EVALUATION)
    return lines if place < 0 or place >= start else [tail[place + 1 :].split(b"\n", 1)[0], *lines]


def _seldom_events(lines: list[bytes]) -> Iterator[Event]:
    """The events of lines: of the steps only the last, and no Progress but on the last line."""
    last_step = next((place for place in reversed(range(len(lines))) if lines[place].startswith(_STEP)), 0)
    after = last_step + 1
    before, behind = (
        [line for line in part if not line.startswith(_OFTEN)] for part in (lines[:last_step], lines[after:])
    )
    end = [line for line in lines[-2:-1] if line.startswith(_PROGRESS)]
    return events_in(b"\n".join([*before, *lines[last_step:after], *behind, *end]))


def spread_ends(count: int, most: int) -> list[int]:
    """Where up to `most` equal parts of `count` things end, the last at `count`."""
    parts = min(count, most)
    return [count * (place + 1) // parts for place in range(parts)]


def means(xs: Sequence[float], values: Sequence[float], most: int) -> list[tuple[float, float]]:
    """Up to `most` means of values that follow each other, each at the place of the last of them; of finite ones."""
    points, start = [], 0
    for end in spread_ends(min(len(xs), len(values)), most):
        finite = [value for value in values[start:end] if math.isfinite(value)]
        if finite:
            points.append((xs[end - 1], sum(finite) / len(finite)))
        start = end
    return points


def _at_places(fd: int, size_bytes: int) -> Iterator[list[bytes]]:
    for place in range(CURVE_POINTS):
        block = os.pread(fd, _BLOCK_BYTES, (size_bytes - _BLOCK_BYTES) * place // (CURVE_POINTS - 1))
        yield [line for line in block.split(b"\n")[1:-1] if line.startswith(_STEP)][-_STEPS_OF_A_POINT:]
