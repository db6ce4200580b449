"""The types that tasks take and return. `parts/task.py` defines the methods of a task. torch is not imported."""

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
    from tui_trainer.losses.named_losses import LossResult

Notify = Callable[[str], None]
"""Callback that shows a notice of one sentence to the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """The size of the data: exact once prepared, else estimated. `rows` counts documents, or pieces of one text."""

    rows: int
    eval_rows: int
    tokens: int
    eval_tokens: int
    vocabulary: int
    exact: bool
    reason: str
    row_tokens: float = 0.0
    """Mean number of input tokens of a row."""
    longest_row: int = 0
    """Number of tokens of the longest row, or of the longest document if a row has several."""
    row_documents: int = 1
    """Maximum number of documents in a row."""
    packed_rows: float | None = None
    """Mean number of rows of `data.max_length` that the documents of a step fill; None if they do not share rows."""
    compute_packed_rows: Callable[[int], float] | None = field(default=None, compare=False)
    """Function that computes `packed_rows` from the number of documents; None if documents never share rows."""
    padding: Callable[[int, int, Rounding | None], PaddingShares] | None = field(default=None, compare=False)
    """Function that computes the shares of padding from the rows of a step, the rows of a micro-batch, and a rounding.

    None if no length is known, and if rows are cut from one text or contain several documents."""
    class_count: int = 0
    """Number of labels of a classifier; 0 for other tasks and if unknown."""
    target_tokens: int = 0
    """Number of tokens of the longest answer of an encoder-decoder."""
    sources: tuple[SourceRows, ...] = ()
    """The rows of each source; empty for a single source."""
    splits: tuple[SplitUse, ...] = ()
    """How the splits in the files of each source are used."""
    counts: Counts | None = None
    """All counts of the preparation; None before the data is prepared."""
    notes: tuple[str, ...] = ()
    """Sentences about the data; empty before it is prepared."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Other facts about the prepared data (`PreparedData.details`)."""

    @property
    def document_tokens(self) -> float:
        """Mean number of input tokens of a document."""
        return self.row_tokens / self.row_documents

    def of_batch(self, documents: int) -> DataFacts:
        """Return the facts with the `packed_rows` of a step that has this number of documents."""
        if self.compute_packed_rows is None:
            return self
        return replace(self, packed_rows=self.compute_packed_rows(min(documents, self.rows)))

    @property
    def is_stream(self) -> bool:
        """Whether rows are cut from one long text, so that all but the last are full."""
        return self.packed_rows is None and not self.class_count and not self.target_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """Held-out losses of simple models for comparison, by name, in nats per token over `eval_tokens` labels."""

    losses: dict[str, float]
    eval_tokens: int
    scores: dict[str, float] = field(default_factory=dict)
    """Scores of simple models by description: {"accuracy of the most frequent class": 0.31}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Scores of a task on held-out rows, other than the loss, and a table with a row of numbers for each class."""

    values: Mapping[str, float]
    table_title: str = ""
    table_columns: tuple[str, ...] = ()
    table_rows: Mapping[str, Sequence[float]] = field(default_factory=dict)


class InputReader(Protocol):
    """Reader of inputs for a trained model: from a table, with or without answers, or from typed text."""

    def begin(self, head: Sequence[Row]) -> None:
        """Choose the columns from the first rows. Raise DataError if they are ambiguous."""

    def read(self, row: Row) -> Any:
        """Return the input of one row. Raise DataError, which names the row, if it cannot be used."""

    def of_text(self, text: str) -> Any:
        """Return the input of a text that a user typed."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """One encoded input: token ids, and other arguments of the model. `is_cut`: it was truncated."""

    ids: Sequence[int] | Tokens
    content: Any = None
    model_arguments: Mapping[str, Sequence[int] | Tokens] = field(default_factory=dict)
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.ids)


Objective = Callable[["MicroBatch"], "LossResult"]
"""Function that runs a forward pass and returns the loss, summed over `batch.label_count` labels and with its graph for
the backward pass, or a `NamedLoss` of several parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPass:
    """A pass over all rows of a run before training, with the initial model and without gradients and dropout. Its
    values are in `batch.row_values` during training.

    `activity` describes the pass to the user: "reading rows". `values(batch)` returns fp32 [samples, width] in the
    order of the prepared rows. `key`, JSON, holds what the values depend on besides rows, model and precision."""

    activity: str
    width: int
    values: Callable[[MicroBatch], Tensor]
    key: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Effect of a calibration on the final model: its scores, and its held-out loss if a temperature changed that."""

    scores: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None


class Scorer(Protocol):
    """Collector of the predictions of one evaluation. `observe` never waits for the device."""

    seen: list[tuple[Tensor, ...]]
    """The predictions of each forward pass. If several processes evaluate, the first one receives all of them."""

    def observe(self, batch: MicroBatch) -> LossResult:
        """Run a forward pass, store its predictions, and return the loss as the objective does."""

    def scores(self) -> Scores:
        """Return the scores of all observed predictions."""
