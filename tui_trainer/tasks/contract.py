"""What every task offers. Files here are light to import: torch and transformers only inside functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tui_trainer.data.collate import Batch
    from tui_trainer.data.prepare import PreparedData


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """How much there is to learn from. Exact once the data is prepared, else estimated from file sizes."""

    rows: int
    eval_rows: int
    tokens: int
    eval_tokens: int
    vocabulary: int
    exact: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """Held-out loss of simple models in nats per token, by name, over `eval_tokens` labels."""

    losses: dict[str, float]
    eval_tokens: int


class Task(Protocol):
    """One way to learn. `loss` returns a sum, not a mean: `training/step.py` divides once, over the whole batch."""

    name: str
    title: str

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        """How much data there is, without preparing it. Raises DataError."""

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        """Rows of token ids, made once and kept under a key of content and settings. Raises DataError."""

    def facts(self, data: PreparedData) -> DataFacts:
        """How much data there is, exactly."""

    def baselines(self, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        """What simple models reach on the rows that evaluation reads; None when there is nothing to compare."""

    def load_tokenizer(self, data: PreparedData) -> PreTrainedTokenizerBase:
        """The tokenizer that the final model is saved with."""

    def build_model(self, config: Config, data: PreparedData, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The model before the first step, its random weights drawn from torch's global generator."""

    def collate(self, rows: Sequence[NDArray[np.int32]], tokenizer: PreTrainedTokenizerBase) -> Batch:
        """One micro-batch, padded to its longest row."""

    def loss_sum(self, model: PreTrainedModel, input_ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """Cross entropy in nats, summed over the labels that are not -100."""
