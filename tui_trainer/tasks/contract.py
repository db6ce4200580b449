"""What every task offers. Files here are light to import: torch and transformers only inside functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress
from tui_trainer.errors import Problem
from tui_trainer.models.shape import ModelShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tui_trainer.data.cache import Counts, PreparedData
    from tui_trainer.data.estimate import DataEstimate
    from tui_trainer.losses.micro_batch import MicroBatch


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
    packed_rows: float | None = None
    """Rows of `data.max_length` that an effective batch fills when its documents share rows; None: they are full."""

    @classmethod
    def counted(
        cls, counts: Counts, *, row_tokens: float, longest_row: int, packed_rows: float | None = None
    ) -> DataFacts:
        """Of prepared data."""
        return cls(
            rows=counts.train_rows,
            eval_rows=counts.eval_rows,
            tokens=counts.train_tokens,
            eval_tokens=counts.eval_tokens,
            vocabulary=counts.vocabulary,
            exact=True,
            reason="counted in the prepared data",
            row_tokens=row_tokens,
            longest_row=longest_row,
            packed_rows=packed_rows,
        )

    @classmethod
    def guessed(
        cls, guess: DataEstimate, *, row_tokens: float, longest_row: int, packed_rows: float | None = None
    ) -> DataFacts:
        """Of data that was only looked at."""
        return cls(
            rows=guess.rows,
            eval_rows=guess.eval_rows,
            tokens=guess.tokens,
            eval_tokens=guess.eval_tokens,
            vocabulary=guess.vocabulary,
            exact=False,
            reason=guess.reason,
            row_tokens=row_tokens,
            longest_row=longest_row,
            packed_rows=packed_rows,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """Held-out loss of simple models in nats per token, by name, over `eval_tokens` labels."""

    losses: dict[str, float]
    eval_tokens: int


class Task(Protocol):
    """One way to learn. Its loss is a sum, not a mean: `training/step.py` divides once, over the whole batch."""

    name: str
    title: str

    def problems(self, config: Config) -> list[Problem]:
        """What this task cannot do with these settings, known before data and machine are looked at."""

    def model_shape(self, config: Config, vocabulary: int) -> ModelShape:
        """The model in numbers, without loading it. `vocabulary` counts where it is made from the data."""

    def model_config(self, config: Config, vocabulary: int) -> Mapping[str, Any]:
        """What the model's config.json says, for families whose memory only a dry run can tell."""

    def model_key(self, config: Config) -> str:
        """Names the weights that a run starts from, so that it does not go on with others; empty: random ones."""

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        """How much data there is, without preparing it. Raises DataError."""

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        """Rows of token ids, made once and kept under a key of content and settings. Raises DataError."""

    def facts(self, config: Config, data: PreparedData) -> DataFacts:
        """How much data there is, exactly."""

    def baselines(self, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        """What simple models reach on the rows that evaluation reads; None when there is nothing to compare."""

    def load_tokenizer(self, config: Config, data: PreparedData) -> PreTrainedTokenizerBase:
        """The tokenizer that the final model is saved with."""

    def build_model(
        self, config: Config, data: PreparedData, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype
    ) -> PreTrainedModel:
        """The model before the first step; random weights come from torch's global generator. Raises ConfigError."""

    def loss(self, model: Any, *, chunk_tokens: int) -> Callable[[MicroBatch], Tensor]:
        """Nats of a forward pass, summed over its labels; `chunk_tokens` > 0: the logits of so many at a time."""
