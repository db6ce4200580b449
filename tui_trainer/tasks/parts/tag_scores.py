"""How well tags of words are predicted: by the entities that they mark, or word by word where they mark none.

An entity is right when its first word, its last word and its type are. Precision is the share of the predicted ones
that are right, recall the share of the true ones that are found, F1 2 PR / (P + R); over all types together (micro), as
conlleval has it. Nothing predicted, or nothing to find, counts as 0. What is an entity: `data/columns/tags.py`.
"""

from collections import Counter
from collections.abc import Sequence
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


class EntityCounts:
    """For tags that mark entities. `accuracy` is of the words, O included."""

    def __init__(self) -> None:
        self._true: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._right: Counter[str] = Counter()
        self._words = self._right_words = 0

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        wanted, found = entities(true), entities(predicted)
        self._true.update(entity.kind for entity in wanted)
        self._predicted.update(entity.kind for entity in found)
        self._right.update(entity.kind for entity in set(wanted).intersection(found))
        self._words += len(true)
        self._right_words += sum(map(str.__eq__, true, predicted))

    def scores(self) -> Scores:
        counts = self._right, self._predicted, self._true
        precision, recall, f1, _ = _rates(*(count.total() for count in counts))
        accuracy = self._right_words / max(self._words, 1)
        return Scores(
            values={"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy},
            table_title="entity",
            table_columns=_COLUMNS,
            table_rows={
                kind: _rates(*(count[kind] for count in counts))
                for kind in sorted(self._true.keys() | self._predicted.keys())
            },
        )


def _rates(right: int, predicted: int, true: int) -> tuple[float, float, float, int]:
    """Precision, recall, F1, and what there was to find."""
    return right / max(predicted, 1), right / max(true, 1), 2 * right / max(predicted + true, 1), true


class WordCounts:
    """For tags that stand for themselves, such as parts of speech. Macro F1: the mean over the tags that are there or
    were predicted."""

    def __init__(self) -> None:
        self._counts: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        right = (one for one, other in zip(true, predicted, strict=True) if one == other)
        for count, tags in zip(self._counts, (right, predicted, true), strict=True):
            count.update(tags)

    def scores(self) -> Scores:
        right, predicted, true = self._counts
        table = {tag: _rates(*(count[tag] for count in self._counts)) for tag in sorted({*predicted, *true})}
        macro_f1 = sum(f1 for _, _, f1, _ in table.values()) / max(len(table), 1)
        return Scores(
            values={"accuracy": right.total() / max(true.total(), 1), "macro_f1": macro_f1},
            table_title="tag",
            table_columns=_COLUMNS,
            table_rows=table,
        )


def counts_for(scheme: str) -> TagCounts:
    return WordCounts() if scheme == "plain" else EntityCounts()


def metrics_of(scheme: str) -> tuple[str, ...]:
    return TAG_METRICS if scheme == "plain" else ENTITY_METRICS
