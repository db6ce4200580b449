"""Mistakes in the data, collected while it is read, so that one look shows all of them."""

from dataclasses import dataclass, field, replace

from tui_trainer.errors import DataError, Problem

SHOWN_PROBLEMS = 10


@dataclass(slots=True)
class ProblemList:
    """The first mistakes in full, and the number of all. `ends` are those behind which a file could not be read."""

    shown: list[Problem] = field(default_factory=list)
    count: int = 0
    ends: list[Problem] = field(default_factory=list)

    def add(self, error: DataError) -> None:
        self.count += len(error.problems)
        self.shown.extend(error.problems[: SHOWN_PROBLEMS - len(self.shown)])

    def notes(self) -> list[str]:
        """The same for rows that are passed over: how many, and the first of them."""
        if not self.count:
            return []
        more = [f"and {self.count - len(self.shown):,} more"] if self.count > len(self.shown) else []
        what = "row that cannot be used is" if self.count == 1 else "rows that cannot be used are"
        return [f"{self.count:,} {what} left out: " + "; ".join([*(str(problem) for problem in self.shown), *more])]

    def raise_any(self, *, skips_rows: bool = False, fix: str = "") -> None:
        """`skips_rows`: rows that cannot be used are passed over; the rest of a file never is. `fix` says how."""
        if skips_rows:
            if self.ends:
                raise DataError(self.ends)
            return
        more = self.count - len(self.shown)
        if self.count:
            *shown, last = self.shown
            if more:
                shown, last = self.shown, Problem(message=f"and {more:,} more problems")
            if fix and self.count > len(self.ends):
                last = replace(last, hint="; ".join(filter(None, (last.hint, fix))))
            raise DataError([*shown, last])
