"""Errors in the data, collected while it is read so that they are reported together. Errors of many rows that differ
only in numbers and quoted values are reported once, with the first positions."""

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
class _Similar:
    """Errors that differ only in numbers and quoted values: the first one, their count, and some further positions."""

    first: Problem
    count: int = 0
    places: list[str] = field(default_factory=list)

    def problem(self, *, all_rows: bool = False) -> Problem:
        """Return the first error with the positions of others: `x.jsonl, line 4 (also 9, 17)`, and their count if some
        are left out: `x.jsonl, line 4 (1,000 times, also 9, 17, ...)`."""
        if self.count == 1:
            return self.first
        beginning = f"{self.first.where.rpartition(' ')[0]} "
        other_places = [position.removeprefix(beginning) for position in self.places]
        positions = f"also {', '.join(other_places)}"
        if self.count > 1 + len(other_places):
            positions = f"{self.count:,} times, {positions}, ..."
        if all_rows:
            positions = f"all {self.count:,} rows{'' if other_places != self.places else ' of several files'}"
        return replace(self.first, where=f"{self.first.where} ({positions})")


@dataclass(slots=True)
class ProblemList:
    """The first error of each kind, and the number of all. `file_errors`: errors that ended the reading of a file."""

    count: int = 0
    file_errors: list[Problem] = field(default_factory=list)
    _kinds: dict[tuple[str, ...], _Similar] = field(default_factory=dict)

    def add(self, error: DataError, row: Mapping[str, object] | None = None) -> None:
        """Add an error. `row` holds the values of the unusable row, from which the error gets an excerpt."""
        for problem in error.problems:
            self.count += 1
            kind = (problem.key, _kind_of(problem.message), _kind_of(problem.hint))
            if kind not in self._kinds:
                if len(self._kinds) == SHOWN_PROBLEMS:
                    continue
                self._kinds[kind] = _Similar(replace(problem, excerpt=excerpt_of(row, problem.message) if row else ""))
            similar = self._kinds[kind]
            similar.count += 1
            if 1 < similar.count <= _SHOWN_PLACES:
                similar.places.append(problem.where)

    def add_all(self, of_rows: Iterable[tuple[tuple[Problem, ...], Mapping[str, object] | None]]) -> None:
        """Add the errors of the next rows, which `RecordedProblems` collected in another process."""
        for problems, row in of_rows:
            self.add(DataError(problems), row)

    @property
    def shown_problems(self) -> list[Problem]:
        """The first problem of each kind that is kept. Only the first few kinds are kept."""
        return [similar.problem() for similar in self._kinds.values()]

    @property
    def _more(self) -> int:
        return self.count - sum(similar.count for similar in self._kinds.values())

    def notes(self) -> list[str]:
        """Return a note about skipped rows: how many there are, and the first problems."""
        if not self.count:
            return []
        last_clause = [f"and {self._more:,} other problems"] if self._more else []
        rows_were = "unusable row was" if self.count == 1 else "unusable rows were"
        return [f"{self.count:,} {rows_were} skipped: " + "; ".join([*map(str, self.shown_problems), *last_clause])]

    def raise_any(self, *, skips_rows: bool = False, fix: str = "", all_rows: bool = False) -> None:
        """Raise DataError for the collected errors, with `fix` as a hint. `all_rows`: no row is usable. With
        `skips_rows`, only errors that ended the reading of a file are raised."""
        if skips_rows:
            if self.file_errors:
                raise DataError(self.file_errors)
            return
        if self.count:
            is_one_kind = all_rows and len(self._kinds) == 1 and not self.file_errors
            *problems, last_problem = [similar.problem(all_rows=is_one_kind) for similar in self._kinds.values()]
            if self._more:
                problems.append(last_problem)
                last_problem = Problem(message=f"and {self._more:,} other problems")
            if fix and self.count > len(self.file_errors):
                last_problem = replace(last_problem, hint="; ".join(filter(None, (last_problem.hint, fix))))
            raise DataError([*problems, last_problem])


@dataclass(slots=True)
class RecordedProblems(ProblemList):
    """All errors of some rows, each with its row, collected in one process for the `ProblemList` of another."""

    problems_of_rows: list[tuple[tuple[Problem, ...], Mapping[str, object] | None]] = field(default_factory=list)

    def add(self, error: DataError, row: Mapping[str, object] | None = None) -> None:
        self.problems_of_rows.append((error.problems, row))


def _kind_of(text: str) -> str:
    return _NUMBER.sub("0", _VALUE.sub("''", text))


def excerpt_of(row: Mapping[str, object], message: str) -> str:
    """Return a row as JSON that is short and safe to show: first the columns and list items that `message` names."""
    names = sorted(row, key=lambda name: f"'{name}'" not in message)
    item = _ITEM.search(message)
    item_index = int(item[1]) - 1 if item else 0
    excerpt = {str(name): _shortened(row[name], item_index) for name in names[:_SHOWN_ITEMS]} | _mark_of_cut(names)
    return one_line(json.dumps(excerpt, ensure_ascii=False, default=str), _EXCERPT)


def _shortened(value: Any, first_index: int = 0) -> Any:
    if isinstance(value, str):
        return one_line(value, _SHOWN_VALUE)
    if isinstance(value, list):
        ellipsis = ["\u2026"] if 0 < first_index < len(value) else []
        items = value[len(ellipsis) and first_index :]
        return [*ellipsis, *map(_shortened, items[:_SHOWN_ITEMS]), *_mark_of_cut(items)]
    if isinstance(value, dict):
        return {str(name): _shortened(item) for name, item in list(value.items())[:_SHOWN_ITEMS]} | _mark_of_cut(value)
    return value


def _mark_of_cut(values: Sized) -> dict[str, str]:
    """Return an entry such as {"…": "3 more"} for values that are not shown. For a list, only its key is shown."""
    return {"\u2026": f"{len(values) - _SHOWN_ITEMS} more"} if len(values) > _SHOWN_ITEMS else {}
