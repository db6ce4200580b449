"""What tasks give and take; what each offers is in `parts/task.py`. Light to import: no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from tui_trainer.data.batching.collate import Rounding
    from tui_trainer.data.batching.pack import PaddingShares
    from tui_trainer.data.columns.row import Row
    from tui_trainer.data.preparing.cache import Counts
    from tui_trainer.data.preparing.row_selection import SourceRows
    from tui_trainer.data.preparing.token_rows import Tokens
    from tui_trainer.data.sources.splits import SplitUse
    from tui_trainer.losses.micro_batch import MicroBatch
    from tui_trainer.losses.several_parts import Found


Notify = Callable[[str], None]
"""Callback that shows a notice of one sentence to the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """How much there is to learn from. Exact once the data is prepared, else estimated from file sizes.

    `rows` are documents where a row is one, else pieces of one long text; `labels` are all next tokens to learn.
    """

    rows: int
    eval_rows: int
    tokens: int
    eval_tokens: int
    vocabulary: int
    exact: bool
    reason: str
    row_tokens: float = 0.0
    """Mean of the tokens that a row puts into the model."""
    longest_row: int = 0
    """Tokens of the longest one, or of the longest document where rows are several."""
    row_documents: int = 1
    """Documents of a row at the most."""
    packed_rows: float | None = None
    """Rows of `data.max_length` that an effective batch fills when its documents share rows; None: they never do."""
    fills: Callable[[int], float] | None = field(default=None, compare=False)
    """`packed_rows` for so many documents; None where they never share rows."""
    padding: Callable[[int, int, Rounding | None], PaddingShares] | None = field(default=None, compare=False)
    """Computes the shares of padding from the rows of a step and of a micro-batch and the rounding of widths.

    None if no length is known, and if rows are cut from one text or contain several documents.
    """
    classes: int = 0
    """Labels that a classifier tells apart; 0 where there are none, or they are not known yet."""
    target_tokens: int = 0
    """Tokens of the longest answer, where a model writes answers apart from what it reads."""
    sources: tuple[SourceRows, ...] = ()
    """What comes of each source, where there are several."""
    splits: tuple[SplitUse, ...] = ()
    """What becomes of the splits that the files of the sources are."""
    counts: Counts | None = None
    """All that was counted; None before the data is prepared."""
    notes: tuple[str, ...] = ()
    """What was found in the data, in words; none before it is prepared."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What was learnt about the data on the way (`PreparedData.details`)."""

    @property
    def document_tokens(self) -> float:
        """Mean of the tokens that a document puts into the model."""
        return self.row_tokens / self.row_documents

    def of_batch(self, documents: int) -> DataFacts:
        """The same where a step has so many documents."""
        return replace(self, packed_rows=self.fills(min(documents, self.rows))) if self.fills else self

    @property
    def is_stream(self) -> bool:
        """Whether rows are cut from one long text, so that all but the last are full."""
        return self.packed_rows is None and not self.classes and not self.target_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """Held-out loss of simple models in nats per token, by name, over `eval_tokens` labels."""

    losses: dict[str, float]
    eval_tokens: int
    scores: dict[str, float] = field(default_factory=dict)
    """By what they are: {"accuracy of the most frequent class": 0.31}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a task measures on held-out rows besides the loss, and one table of it: a row of numbers for each class."""

    values: Mapping[str, float]
    table_title: str = ""
    table_columns: tuple[str, ...] = ()
    table_rows: Mapping[str, Sequence[float]] = field(default_factory=dict)


class InputReader(Protocol):
    """How a task reads what its model is asked about, whether or not there are answers beside it."""

    def begin(self, head: Sequence[Row]) -> None:
        """Choose the columns, by the first rows. Raises DataError when they cannot be told."""

    def read(self, row: Row) -> Any:
        """The input of one row. Raises DataError, with its place, for one that cannot be used."""

    def of_text(self, text: str) -> Any:
        """The same of a text that somebody typed."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input as the model gets it: token ids, and its other arguments. `is_cut`: some of it did not fit."""

    ids: Sequence[int] | Tokens
    content: Any = None
    more: Mapping[str, Sequence[int] | Tokens] = field(default_factory=dict)
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.ids)


Objective = Callable[["MicroBatch"], "Found"]
"""What is minimised, with the model in it: the loss of a forward pass, summed over `batch.label_count` labels, with the
graph behind it; or a `NamedLoss` of several parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPass:
    """What is to be found out about each prepared row once, before training, with the model as it begins: by a pass
    over all rows that a run uses, without gradients and without dropout. It then is in `batch.row_values`.

    `what`, said while it runs: "reading rows". `values(batch)`: fp32 [samples, width], in the order of the prepared
    rows. `key`, as JSON has it: all that values depend on besides the rows, the model and its precision.
    """

    what: str
    width: int
    values: Callable[[MicroBatch], Tensor]
    key: Mapping[str, Any] = field(default_factory=dict)


class Scorer(Protocol):
    """Collects predictions over one evaluation. Nothing in `observe` waits for the device."""

    seen: list[tuple[Tensor, ...]]
    """Of each forward pass, what `scores` is made of. Where several processes evaluate, the first has all of it."""

    def observe(self, batch: MicroBatch) -> Found:
        """A forward pass, its predictions kept; the summed loss, as the objective has it."""

    def scores(self) -> Scores:
        """Over everything that was observed."""
