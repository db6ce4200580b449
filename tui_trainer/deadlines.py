"""When something has to be done: a time of day, a day and a time, or a length that counts from the start."""

import re
from datetime import datetime, time, timedelta

_UNITS = {"d": 86_400, "h": 3600, "min": 60, "m": 60, "s": 1}
_LENGTH = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:d|h|min|m|s)\s*)+", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", re.IGNORECASE)


def length_seconds(text: str) -> float | None:
    """Seconds of `3h`, `1h30m` or `90 min`; None for a time."""
    if not _LENGTH.fullmatch(text.strip()):
        return None
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(text))


def due(text: str, start: datetime) -> datetime:
    """When a run that starts at `start` has to be done, in the time zone of this machine; a time of day is the next
    one. Raises ValueError for a text that is no deadline."""
    if seconds := length_seconds(text):
        return start.astimezone() + timedelta(seconds=seconds)
    bare = text.strip()
    if "-" in bare:
        return datetime.fromisoformat(bare).astimezone()
    clock = time.fromisoformat(bare)
    # Which day it is depends on the zone, where the time names one.
    there = start.astimezone(clock.tzinfo)
    found = datetime.combine(there.date(), clock)
    if found.astimezone() <= there:
        found += timedelta(days=1)
    return found.astimezone()


def clock_words(moment: datetime, now: datetime) -> str:
    """`18:00`, with the day where that is another one: `2026-11-24 07:30`; seconds within a quarter of an hour."""
    local, here = moment.astimezone(), now.astimezone()
    short = abs((local - here).total_seconds()) < 900
    clock = f"{local:%H:%M:%S}" if short else f"{local:%H:%M}"
    return clock if local.date() == here.date() else f"{local:%Y-%m-%d} {clock}"
