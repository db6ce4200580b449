"""What every task offers. Files here are light to import: torch and transformers only inside functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress
from tui_trainer.errors import Problem
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.writing import Sampling

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.batching.collate import Collate
    from tui_trainer.data.columns.row import Row
    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.data.preparing.counts import Counts
    from tui_trainer.data.preparing.mixture import SourceRows
    from tui_trainer.data.preparing.token_rows import TokenRow, Tokens
    from tui_trainer.data.sources.named_splits import SplitUse
    from tui_trainer.losses.micro_batch import MicroBatch


Tell = Callable[[str], None]
"""Told in a sentence what a person should know."""


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
    """Rows of `data.max_length` that an effective batch fills when its documents share rows; None: they never do."""
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
    details: Mapping[str, Any] = field(default_factory=dict)
    """What was learnt about the data on the way (`PreparedData.details`)."""

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


class Objective(Protocol):
    """What is minimised. It holds the model."""

    def __call__(self, batch: MicroBatch) -> Tensor:
        """The loss of a forward pass, summed over `batch.label_count` labels, with the graph behind it."""


class Scorer(Protocol):
    """Collects predictions over one evaluation. Nothing in `observe` waits for the device."""

    seen: list[tuple[Tensor, ...]]
    """Of each forward pass, what `scores` is made of. Where several processes evaluate, the first has all of it."""

    def observe(self, batch: MicroBatch) -> Tensor:
        """A forward pass, its predictions kept; the summed loss, as the objective has it."""

    def scores(self) -> Scores:
        """Over everything that was observed."""


class Task(Protocol):
    """One way to learn. Its loss is a sum, not a mean: `training/step.py` divides once, over the whole batch."""

    name: str
    title: str
    reads: tuple[str, ...]
    """Which settings of [task] mean something to it, by name."""
    packs: bool
    """Whether several documents may share a row: only where each token learns from those before it."""
    tells_padding: bool
    """Whether the model is told which inputs are padding, so that more of it changes nothing."""
    metrics: tuple[str, ...]
    """What `evaluation.metric_for_best_model` may name besides "loss"; of each more is better."""
    continues: bool
    """Whether a trained model is tried by letting it go on with a text; else by its `answer` to one."""

    def problems(self, config: Config) -> list[Problem]:
        """What this task cannot do with these settings, known before data and machine are looked at."""

    def model_shape(self, config: Config, vocabulary: int, classes: int = 0) -> ModelShape:
        """The model in numbers, without loading it. `vocabulary` counts where it is made from the data."""

    def model_config(self, config: Config, vocabulary: int, classes: int = 0) -> Mapping[str, Any]:
        """What the model's config.json says, for families whose memory only a dry run can tell."""

    def model_key(self, config: Config) -> str:
        """Names the model that a run starts from, so that it does not go on with another; empty: none is named."""

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        """How much data there is, without preparing it. Raises DataError."""

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        """Rows of token ids, made once and kept under a key of content and settings. Raises DataError."""

    def prepare_file(
        self,
        config: Config,
        path: str,
        tokenizer: Tokenizer,
        model_config: Mapping[str, Any],
        folder: Path,
        progress: Progress,
    ) -> PreparedData:
        """Other data as rows for a trained model, with its tokens and labels, in `folder`: all on the training side.
        Raises DataError."""

    def facts(self, config: Config, data: PreparedData) -> DataFacts:
        """How much data there is, exactly."""

    def baselines(self, config: Config, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        """What simple models reach on the rows that evaluation reads; None when there is nothing to compare."""

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        """The tokenizer that the final model is saved with."""

    def build_model(
        self,
        config: Config,
        data: PreparedData,
        tokenizer: Tokenizer,
        dtype: torch.dtype,
        device: torch.device,
        tell: Tell,
    ) -> PreTrainedModel:
        """The model before the first step; stored weights are loaded to `device` tensor by tensor, and random ones come
        from torch's global generator, on the CPU: a seed gives the same ones on every device.

        `tell` gets a sentence about what the files do not bring, such as a new head. Raises ConfigError.
        """

    def collate(self, model: Any, pad_id: int) -> Collate:
        """How rows that share none become a forward pass. `model` tells what it wants, such as a first token."""

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        """The loss; `chunk_tokens` > 0: the logits of so many labels at a time."""

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer | None:
        """A new one for each evaluation; None where the loss says it all. `objective` is what this task made."""

    def answer_scores(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[TokenRow]
    ) -> Mapping[str, float]:
        """Scores of what the model writes for some held-out rows, without chance; {} where nothing is written."""

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow
    ) -> tuple[str, str]:
        """(what was given, what the model makes of it) for a person to look at. The caller seeds torch."""

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """How a model begins and ends what it writes. An adapter is loaded with the settings of its base model."""

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        """A new one. `config` is that of a run, here and in what follows."""

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """What the input reader gave, as the model gets it. Nothing of it depends on the other inputs."""

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """What a trained model makes of each row, as JSON has it, in one pass over all of them. The caller has seeded
        torch and set the model to evaluate."""

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        """The same for people."""

    def answer(self, config: Config, model: Any, tokenizer: Tokenizer, text: str, sampling: Sampling) -> str:
        """What a trained model makes of a text that a person typed, for `tui-trainer generate`: one prediction."""
