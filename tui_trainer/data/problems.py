"""Mistakes in the data, collected while it is read, so that one look shows all of them: equal ones of many rows are one
problem with its first places."""

import json
import re
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from tui_trainer.errors import DataError, Problem
from tui_trainer.terminal.safe_text import one_line

SHOWN_PROBLEMS, _SHOWN_PLACES = 5, 3
_EXCERPT, _SHOWN_VALUE, _SHOWN_ITEMS = 100, 32, 4
_NUMBER = re.compile(r"\d+")
_VALUE = re.compile(r"(?<!column )'[^']*'")
_ITEM = re.compile(r"\b(?:message|turn|span|word|tag) (\d+)\b")


@dataclass(slots=True)
class _Equal:
    """Mistakes that differ only in numbers and quoted values: the first one, and where the next ones are."""

    first: Problem
    count: int = 0
    places: list[str] = field(default_factory=list)

    def problem(self, *, all_rows: bool = False) -> Problem:
        """`x.jsonl, line 4 (3 times, also 9, 17)`."""
        if self.count == 1:
            return self.first
        beginning = f"{self.first.where.rpartition(' ')[0]} "
        also = [place.removeprefix(beginning) for place in self.places]
        more = ", ..." if self.count > 1 + len(also) else ""
        often = f"{self.count:,} times, also {', '.join(also)}{more}"
        if all_rows:
            often = f"all {self.count:,} rows{'' if also != self.places else ' of several files'}"
        return replace(self.first, where=f"{self.first.where} ({often})")


@dataclass(slots=True)
class ProblemList:
    """The first kinds of mistakes, and the number of all. `ends` are those behind which a file could not be read."""

    count: int = 0
    ends: list[Problem] = field(default_factory=list)
    _kinds: dict[tuple[str, ...], _Equal] = field(default_factory=dict)

    def add(self, error: DataError, row: Mapping[str, object] | None = None) -> None:
        """`row`: the values of the row that cannot be used."""
        for problem in error.problems:
            self.count += 1
            kind = (problem.key, _kind_of(problem.message), _kind_of(problem.hint))
            if kind not in self._kinds:
                if len(self._kinds) == SHOWN_PROBLEMS:
                    continue
                self._kinds[kind] = _Equal(replace(problem, excerpt=excerpt_of(row, problem.message) if row else ""))
            equal = self._kinds[kind]
            equal.count += 1
            if 1 < equal.count <= _SHOWN_PLACES:
                equal.places.append(problem.where)

    def add_all(self, of_rows: Iterable[tuple[tuple[Problem, ...], Mapping[str, object] | None]]) -> None:
        """What `RecordedProblems` has of the rows that follow."""
        for problems, row in of_rows:
            self.add(DataError(problems), row)

    @property
    def shown(self) -> list[Problem]:
        """One for each of the first kinds."""
        return [kind.problem() for kind in self._kinds.values()]

    @property
    def _more(self) -> int:
        return self.count - sum(kind.count for kind in self._kinds.values())

    def notes(self) -> list[str]:
        """The same for rows that are passed over: how many, and the first of them."""
        if not self.count:
            return []
        more = [f"and {self._more:,} other problems"] if self._more else []
        what = "unusable row was" if self.count == 1 else "unusable rows were"
        return [f"{self.count:,} {what} skipped: " + "; ".join([*map(str, self.shown), *more])]

    def raise_any(self, *, skips_rows: bool = False, fix: str = "", all_rows: bool = False) -> None:
        """`skips_rows`: rows that cannot be used are passed over; the rest of a file never is. `fix` says how.
        `all_rows`: no row can be used."""
        if skips_rows:
            if self.ends:
                raise DataError(self.ends)
            return
        if self.count:
            is_one_kind = all_rows and len(self._kinds) == 1 and not self.ends
            *shown, last = [kind.problem(all_rows=is_one_kind) for kind in self._kinds.values()]
            if self._more:
                shown, last = [*shown, last], Problem(message=f"and {self._more:,} other problems")
            if fix and self.count > len(self.ends):
                last = replace(last, hint="; ".join(filter(None, (last.hint, fix))))
            raise DataError([*shown, last])


@dataclass(slots=True)
class RecordedProblems(ProblemList):
    """Every mistake with its row, of a few rows, for the list of another process."""

    of_rows: list[tuple[tuple[Problem, ...], Mapping[str, object] | None]] = field(default_factory=list)

    def add(self, error: DataError, row: Mapping[str, object] | None = None) -> None:
        self.of_rows.append((error.problems, row))


def _kind_of(text: str) -> str:
    return _NUMBER.sub("0", _VALUE.sub("''", text))


def excerpt_of(row: Mapping[str, object], message: str) -> str:
    """A piece of a row as JSON, safe to show, from the columns and the items of lists on that the message names."""
    names = sorted(row, key=lambda name: f"'{name}'" not in message)
    item = _ITEM.search(message)
    first = int(item[1]) - 1 if item else 0
    shown = {str(name): _shortened(row[name], first) for name in names[:_SHOWN_ITEMS]} | _mark_of_cut(names)
    return one_line(json.dumps(shown, ensure_ascii=False, default=str), _EXCERPT)


def _shortened(value: Any, first: int = 0) -> Any:
    if isinstance(value, str):
        return one_line(value, _SHOWN_VALUE)
    if isinstance(value, list):
        skipped = ["\u2026"] if 0 < first < len(value) else []
        rest = value[len(skipped) and first :]
        return [*skipped, *map(_shortened, rest[:_SHOWN_ITEMS]), *_mark_of_cut(rest)]
    if isinstance(value, dict):
        return {str(name): _shortened(item) for name, item in list(value.items())[:_SHOWN_ITEMS]} | _mark_of_cut(value)
    return value


def _mark_of_cut(values: Sized) -> dict[str, str]:
    """Return what stands for the values that are not shown. A list takes its key."""
    return {"\u2026": f"{len(values) - _SHOWN_ITEMS} more"} if len(values) > _SHOWN_ITEMS else {}
