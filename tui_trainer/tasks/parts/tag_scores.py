"""How well tags of words are predicted: by the entities that they mark, or word by word where they mark none.

An entity is right when its first word, its last word and its type are. Precision is the share of the predicted ones
that are right, recall the share of the true ones that are found, F1 2 PR / (P + R); over all types together (micro), as
conlleval has it. Nothing predicted, or nothing to find, counts as 0. What is an entity: `data/columns/tags.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from tui_trainer.data.columns.tags import entities
from tui_trainer.tasks.contract import Scores

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
TAG_METRICS = ("accuracy", "macro_f1")
METRICS = tuple(dict.fromkeys(ENTITY_METRICS + TAG_METRICS))
_COLUMNS = ("precision", "recall", "f1", "support")


class TagCounts(Protocol):
    """Collects the tags of sentences, true ones and predicted ones."""

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        """One sentence: as many of each as it has words."""

    def scores(self) -> Scores:
        """Over all of them."""


class _Hits:
    """Of each kind, how many there are, how many were predicted, and how many of these are right."""

    def __init__(self) -> None:
        self.true: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.right: Counter[str] = Counter()

    def of(self, kind: str) -> tuple[float, float, float, int]:
        """Precision, recall, F1 and the number of true ones."""
        return rates(self.right[kind], self.predicted[kind], self.true[kind])

    def of_all(self) -> tuple[float, float, float, int]:
        return rates(self.right.total(), self.predicted.total(), self.true.total())

    def table(self) -> Mapping[str, Sequence[float]]:
        """A row for each kind that is there or was predicted."""
        return {kind: self.of(kind) for kind in sorted(self.true.keys() | self.predicted.keys())}


def rates(right: int, predicted: int, true: int) -> tuple[float, float, float, int]:
    """Precision, recall, F1, and what there was to find."""
    precision, recall = right / max(predicted, 1), right / max(true, 1)
    return precision, recall, 2 * right / max(predicted + true, 1), true


class EntityCounts:
    """For tags that mark entities. `accuracy` is of the words, O included."""

    def __init__(self) -> None:
        self._hits = _Hits()
        self._words = self._right_words = 0

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        wanted, found = entities(true), entities(predicted)
        self._hits.true.update(entity.kind for entity in wanted)
        self._hits.predicted.update(entity.kind for entity in found)
        self._hits.right.update(entity.kind for entity in set(wanted).intersection(found))
        self._words += len(true)
        self._right_words += sum(map(str.__eq__, true, predicted))

    def scores(self) -> Scores:
        precision, recall, f1, _ = self._hits.of_all()
        accuracy = self._right_words / max(self._words, 1)
        return Scores(
            values={"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy},
            table_title="entity",
            table_columns=_COLUMNS,
            table_rows=self._hits.table(),
        )


class WordCounts:
    """For tags that stand for themselves, such as parts of speech. Macro F1: the mean over the tags that are there or
    were predicted."""

    def __init__(self) -> None:
        self._hits = _Hits()

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        self._hits.true.update(true)
        self._hits.predicted.update(predicted)
        self._hits.right.update(one for one, other in zip(true, predicted, strict=True) if one == other)

    def scores(self) -> Scores:
        table = self._hits.table()
        accuracy = self._hits.right.total() / max(self._hits.true.total(), 1)
        macro_f1 = sum(f1 for _, _, f1, _ in table.values()) / max(len(table), 1)
        return Scores(
            values={"accuracy": accuracy, "macro_f1": macro_f1},
            table_title="tag",
            table_columns=_COLUMNS,
            table_rows=table,
        )


def counts_for(scheme: str) -> TagCounts:
    return WordCounts() if scheme == "plain" else EntityCounts()


def metrics_of(scheme: str) -> tuple[str, ...]:
    return TAG_METRICS if scheme == "plain" else ENTITY_METRICS
