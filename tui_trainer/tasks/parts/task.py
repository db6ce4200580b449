"""What every task offers. Files here are light to import: torch and transformers only inside functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.data.batching.collate import (
    Collate,
    CollatePacked,
    Rounding,
    coarse,
    collate_packed,
    even,
    in_even_widths,
    packed_in_coarse_widths,
)
from tui_trainer.errors import Problem
from tui_trainer.models.writing import Sampling
from tui_trainer.tasks.contract import InputRow, Objective, RowPass, Scorer
from tui_trainer.tasks.parts.learns_from_data import LearnsFromData
from tui_trainer.tasks.parts.starts_from_model import StartsFromModel, model_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.data.preparing.token_rows import TokenRow
    from tui_trainer.losses.micro_batch import MicroBatch


# Families whose answers more padding changes, though they are told of it: they mix positions without a mask (fnet),
# pool or convolve over them (funnel, canine, yoso), or read the last one (xlnet). Tiny models of each, 13 tokens alone
# and with 3 of padding: logits moved by 0.6 % of the largest (yoso) to more than all of it.
_PADDING_COUNTS = frozenset({"xlnet", "fnet", "funnel", "canine", "yoso"})


class Task(StartsFromModel, LearnsFromData, ABC):
    """One way to learn. Its loss is a sum, not a mean: `training/step.py` divides once, over the whole batch."""

    title: str
    reads: tuple[str, ...]
    """Which settings of [task] mean something to it, by name."""
    loads_to_score: tuple[str, ...] = ()
    """Modules that its scores load at the first evaluation."""
    pipeline_tag: str
    """What a model hub calls the use of its models (`pipeline_tag` of a card)."""
    architectures: tuple[str, ...] = ()
    """How the classes of models end that are tuned for it, as `architectures` of a config.json has them."""
    usual_length: tuple[int, int] | None = None
    """Tokens from which and up to which the rows of pretrained models are as a rule."""
    loss_unit: str = "nats/token"
    """Of the loss; empty where a row has one label or a number."""
    labels_rows: bool = False
    """Whether its models give labels or numbers; else they write texts."""
    answers_in_evaluations: bool = False
    """Whether evaluations let the model write answers to some rows (`answer_scores`)."""
    holds_conversations: bool = False
    """Whether a trained model is tried in a conversation, with its chat template."""
    unsloth: bool = False
    """Whether Unsloth loads its models: decoders of text with the head of a language model."""
    is_only_by_columns: bool = False
    """Whether rows are learnt by it only where they have its columns: it is not what says what is wrong with others."""
    metrics: tuple[str, ...] = ()
    """What `evaluation.metric_for_best_model` may name besides "loss"; of each more is better."""
    unfit_families: tuple[tuple[str, str], ...] = ()
    """Families of models that it cannot train, each with the reason as the end of a sentence."""
    usual_families: str = ""
    """Families to use instead, in words."""
    continues: bool = False
    """Whether a trained model is tried by letting it go on with a text; else by its `answer` to one."""

    def problems(self, config: Config) -> list[Problem]:
        """What this task cannot do with these settings, known before data and machine are looked at."""
        found = self.model_problems(config) + self.data_problems(config)
        if self.unfit_families and config.model.model_name_or_path and not config.is_from_scratch:
            own = model_of(config, self.head).config.get("model_type")
            hint = f"use another encoder, such as {self.usual_families}"
            unfit = (f"{family} {reason}" for family, reason in self.unfit_families if family == own)
            found += [Problem(message=message, key=MODEL_KEY, hint=hint) for message in unfit]
        return found

    @abstractmethod
    def collate(self, model: Any, pad_id: int) -> Collate:
        """How rows that share none become a forward pass. `model` tells what it wants, such as a first token."""

    def collate_packed(self, pad_id: int) -> CollatePacked:
        """How rows that share rows become one, where the task `packs`: their documents one after another."""
        return partial(collate_packed, pad_id=pad_id)

    def collate_in_run(
        self, config: Config, model: Any, pad_id: int, longest_row: int, *, size_costs: bool = False
    ) -> Collate:
        """As training and the preview of it have it: in widths by `width_rounding`, `longest_row` at the most."""
        own = self.collate(model, pad_id)
        rounding = self.width_rounding(model.config.model_type, size_costs=size_costs)
        if rounding is None:
            return own
        return in_even_widths(own, pad_id, longest_row, config.task.max_target_length, rounding)

    def collate_packed_in_run(self, pad_id: int, longest_row: int, *, size_costs: bool = False) -> CollatePacked:
        """The same of rows that share rows: what fills them up is a document of its own."""
        own = self.collate_packed(pad_id)
        return packed_in_coarse_widths(own, longest_row) if size_costs else own

    def width_rounding(self, model_type: str, *, size_costs: bool = False) -> Rounding | None:
        """How widths of padded rows are rounded up; None: each pass is as wide as its longest row. `size_costs`:
        matmuls of each size cost a kernel (`TrainingSetup.compiles_each_size`)."""
        if model_type in _PADDING_COUNTS or not (self.tells_padding or size_costs):
            return None
        return coarse if size_costs else even

    @abstractmethod
    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        """The loss; `chunk_tokens` > 0: the logits of so many labels at a time."""

    def choices(self, config: Config, data: PreparedData) -> int:
        """Of how many tokens or classes a label is one, so that a model that prefers none has a loss of ln(choices); 0
        where the loss is another one."""
        return 0

    def row_pass(self, config: Config, data: PreparedData, objective: Any) -> RowPass | None:
        """What the loss has to know of each row before training; None: nothing. `objective` is what this task made."""
        return None

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer | None:
        """A new one for each evaluation; None where the loss says it all. `objective` is what this task made."""
        return None

    def compared_logits(self, model: Any, batch: MicroBatch) -> Tensor:
        """float32 [N, C], of the places that have a label, or of whole rows: what an exported model is compared by."""
        logits: Tensor = model(**batch.inputs).logits.float()
        return logits.flatten(0, 1)[batch.places] if len(batch.places) else logits

    def answer_scores(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[TokenRow]
    ) -> Mapping[str, float]:
        """Scores of what the model writes for some held-out rows, without chance; {} where nothing is written."""
        return {}

    @abstractmethod
    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """(what was given, at most so many tokens that the model makes of it) for a person to look at. The caller seeds
        torch."""

    @abstractmethod
    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """What the input reader gave, as the model gets it. Nothing of it depends on the other inputs."""

    @abstractmethod
    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """What a trained model makes of each row, as JSON has it, in one pass over all of them. The caller has seeded
        torch and set the model to evaluate."""

    @abstractmethod
    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        """The same for people."""

    def answer(self, config: Config, model: Any, tokenizer: Tokenizer, text: str, sampling: Sampling) -> str:
        """What a trained model makes of a text that a person typed, for `tui-trainer generate`: one prediction."""
        asked = self.input_reader(config, tokenizer).of_text(text)
        rows = self.encode_inputs(config, model, tokenizer, [asked], sampling)
        return self.prediction_words(self.predict(config, model, tokenizer, rows, sampling)[0])
