"""Data that every Python carries: `sample:NAME` works without a network. One file is one sample: SAMPLE, and how it is
made."""

import difflib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

PREFIX = "sample:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One built-in data set. `content` has (where, columns) of the rows of a table, or (where, text), always in one
    order."""

    name: str
    title: str
    description: str
    content: Callable[[], Sequence[tuple[str, Any]]]
    is_table: bool = True


@cache
def samples() -> dict[str, Sample]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found: list[Sample] = [import_module(f"{__name__}.{name}").SAMPLE for name in modules]
    return {sample.name: sample for sample in found}


def find_sample(name: str) -> Sample:
    """Raises DataError with the nearest name and the list when there is no such sample."""
    known = samples()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {PREFIX}{near[0]}? " if near else ""
    listed = ", ".join(f"{PREFIX}{sample.name} ({sample.title})" for sample in known.values())
    raise DataError(f"there is no sample named '{one_line(name, 60)}'", hint=f"{guess}samples: {listed}")
