"""How well tags of words are predicted: by the entities that they mark, or word by word where they mark none.

An entity is right when its first word, its last word and its type are. Precision is the share of the predicted ones
that are right, recall the share of the true ones that are found, F1 2 PR / (P + R); over all types together (micro), as
conlleval has it. Nothing predicted, or nothing to find, counts as 0. What is an entity: `data/columns/tags.py`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from tui_trainer.data.columns.tags import entities
from tui_trainer.tasks.contract import Scores

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
TAG_METRICS = ("accuracy", "macro_f1")
METRICS = tuple(dict.fromkeys(ENTITY_METRICS + TAG_METRICS))
_COLUMNS = ("precision", "recall", "f1", "support")


class TagCounts:
    """Collects the tags of sentences. Of tags that mark entities `accuracy` is of the words, O included; tags that
    stand for themselves (`plain`), such as parts of speech, have the mean of F1 over those that are there or were
    predicted."""

    def __init__(self, scheme: str) -> None:
        self._is_plain = scheme == "plain"
        self._counts: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
        self._words = self._right_words = 0

    def add(self, true: Sequence[str], predicted: Sequence[str]) -> None:
        """One sentence: as many of each as it has words."""
        right = [one for one, other in zip(true, predicted, strict=True) if one == other]
        self._words += len(true)
        self._right_words += len(right)
        named: tuple[Iterable[str], ...] = right, predicted, true
        if not self._is_plain:
            wanted, found = entities(true), entities(predicted)
            named = tuple([entity.kind for entity in some] for some in (set(wanted).intersection(found), found, wanted))
        for count, names in zip(self._counts, named, strict=True):
            count.update(names)

    def scores(self) -> Scores:
        _, predicted, true = self._counts
        table = {name: _rates(*(count[name] for count in self._counts)) for name in sorted({*predicted, *true})}
        values = {"accuracy": self._right_words / max(self._words, 1)}
        if self._is_plain:
            values["macro_f1"] = sum(f1 for _, _, f1, _ in table.values()) / max(len(table), 1)
        else:
            precision, recall, f1, _ = _rates(*(count.total() for count in self._counts))
            values = {"f1": f1, "precision": precision, "recall": recall, **values}
        title = "tag" if self._is_plain else "entity"
        return Scores(values=values, table_title=title, table_columns=_COLUMNS, table_rows=table)


def _rates(right: int, predicted: int, true: int) -> tuple[float, float, float, int]:
    """Precision, recall, F1, and what there was to find."""
    return right / max(predicted, 1), right / max(true, 1), 2 * right / max(predicted + true, 1), true


def metrics_of(scheme: str) -> tuple[str, ...]:
    return TAG_METRICS if scheme == "plain" else ENTITY_METRICS
