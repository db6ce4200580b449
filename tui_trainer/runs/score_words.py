"""Scores of a run in words, each beside what a simple model reaches: `accuracy 0.83 (most frequent class 0.31)`.

The baseline of a score is named "NAME of WHAT" (`tasks/contract.py`), such as "accuracy of the most frequent class".
"""

from collections.abc import Mapping
from dataclasses import dataclass

_OF = " of "
_LESS_IS_BETTER = frozenset({"mse", "mae"})


@dataclass(frozen=True, slots=True)
class ScoreWords:
    """`name` for people, `value`, and what is to be beaten, if that is known: (what it is, its value)."""

    name: str
    value: float
    baseline: tuple[str, float] | None
    less_is_better: bool

    @property
    def beaten(self) -> bool | None:
        if self.baseline is None:
            return None
        return self.value < self.baseline[1] if self.less_is_better else self.value > self.baseline[1]

    def __str__(self) -> str:
        beside = f" ({self.baseline[0]} {number(self.baseline[1])})" if self.baseline else ""
        return f"{self.name} {number(self.value)}{beside}"


def score_words(scores: Mapping[str, float], baselines: Mapping[str, float]) -> list[ScoreWords]:
    """All scores, in their order; of several baselines of one score the first."""
    known: dict[str, tuple[str, float]] = {}
    for title, value in baselines.items():
        name, of, what = title.partition(_OF)
        if of:
            known.setdefault(name, (what.removeprefix("the "), value))
    return [ScoreWords(plain(name), value, known.get(name), name in _LESS_IS_BETTER) for name, value in scores.items()]


def scores_line(scores: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """`accuracy 0.83 (most frequent class 0.31), macro F1 0.80`."""
    return ", ".join(map(str, score_words(scores, baselines)))


def baselines_line(baselines: Mapping[str, float]) -> str:
    """`accuracy 0.31 and macro F1 0.06 of the most frequent class`, what belongs together said once."""
    groups: dict[str, list[str]] = {}
    for title, value in baselines.items():
        name, _, what = title.partition(_OF)
        groups.setdefault(what, []).append(f"{plain(name)} {number(value)}")
    return "; ".join(" and ".join(values) + (f" of {what}" if what else "") for what, values in groups.items())


def plain(name: str) -> str:
    """`macro_f1` as `macro F1`."""
    return name.replace("_", " ").replace("f1", "F1")


def number(value: float) -> str:
    """Three decimals; of a larger number four digits."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"
