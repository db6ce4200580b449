"""The base class of all tasks. torch and transformers are imported only inside of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import GATE_SUITE, MODEL_KEY, Config
from tui_trainer.data.batching.collate import (
    Collate,
    CollatePacked,
    Rounding,
    collate_packed,
    round_collate_widths,
    round_packed_widths,
    round_up_coarsely,
    round_up_to_multiple,
)
from tui_trainer.errors import DataError, Problem
from tui_trainer.models.writing import Sampling
from tui_trainer.tasks.contract import Calibration, InputRow, Objective, RowPass, Scorer
from tui_trainer.tasks.parts.free_answers import ANSWER_TOKENS
from tui_trainer.tasks.parts.learns_from_data import LearnsFromData
from tui_trainer.tasks.parts.starts_from_model import StartsFromModel, find_model_facts
from tui_trainer.tasks.parts.suite import Reply, SuiteRow, refuse_unsuitable, rows_to_keep

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.data.preparing.token_rows import TokenRow
    from tui_trainer.losses.micro_batch import MicroBatch

# Families whose results depend on padding despite the attention mask: they mix positions without a mask (fnet), pool or
# convolve over them (funnel, canine, yoso), or read the last one (xlnet). With tiny models and 3 tokens of padding
# after 13, logits changed by 0.6 % of the largest (yoso) to more than 100 %.
_PADDING_SENSITIVE = frozenset({"xlnet", "fnet", "funnel", "canine", "yoso"})


class Task(StartsFromModel, LearnsFromData, ABC):
    """Base class of a kind of training. Its loss is a sum: `training/step.py` divides once, over the whole batch."""

    title: str
    used_settings: tuple[str, ...]
    """Names of the settings of [task] that the task uses."""
    loads_to_score: tuple[str, ...] = ()
    """Modules that the task imports at the first evaluation, to compute scores."""
    pipeline_tag: str
    """The hub's name for the use of the task's models, such as "text-generation", for model cards."""
    architectures: tuple[str, ...] = ()
    """Endings of the names of suitable model classes, as in `architectures` of a config.json: "ForCausalLM"."""
    usual_length: tuple[int, int] | None = None
    """Usual minimum and maximum row length of pretrained models, in tokens."""
    loss_unit: str = "nats/token"
    """Unit of the loss, for example "nats/token"; empty if a row has one label or a number."""
    labels_rows: bool = False
    """Whether models of the task predict labels or numbers rather than texts."""
    usual_answer_rows: int = 0
    """Usual number of held-out rows that the model answers in an evaluation, for `answer_scores`; 0: it never does."""
    holds_conversations: bool = False
    """Whether a user tries a trained model in a conversation, with its chat template."""
    scores_answers: bool = False
    """Whether a trained model scores the last answer of a conversation, so that it cannot be tried with one text."""
    supports_unsloth: bool = False
    """Whether Unsloth can load models for the task: text decoders with a causal head."""
    is_only_by_columns: bool = False
    """Whether only its columns show that data is for this task, which then reports no errors of other data."""
    metrics: tuple[str, ...] = ()
    """Metrics that `evaluation.metric_for_best_model` can name besides "loss"; for all of them, higher is better."""
    unfit_families: tuple[tuple[str, str], ...] = ()
    """Model families that the task cannot train, each with the reason as the end of a sentence."""
    usual_families: str = ""
    """Model families to suggest instead of the unfit ones, in words."""
    continues: bool = False
    """Whether a user tries a trained model by letting it continue a text, rather than by its `answer` to one."""

    def problems(self, config: Config) -> list[Problem]:
        """Return a problem for each setting that the task does not support, without looking at data and machine."""
        problems = self.model_problems(config) + self.data_problems(config)
        try:
            self.suite_rows(config)
        except DataError as error:
            problems += [replace(problem, key=GATE_SUITE) for problem in error.problems]
        if self.unfit_families and config.model.model_name_or_path and not config.is_from_scratch:
            model_type = find_model_facts(config, self.head).config.get("model_type")
            hint = f"use another encoder, such as {self.usual_families}"
            messages = (f"{family} {reason}" for family, reason in self.unfit_families if family == model_type)
            problems += [Problem(message=message, key=MODEL_KEY, hint=hint) for message in messages]
        return problems

    @abstractmethod
    def collate(self, model: Any, pad_id: int) -> Collate:
        """Return the function that collates unpacked rows for `model`, which may need a first token, for example."""

    def collate_packed(self, pad_id: int) -> CollatePacked:
        """Return the function that collates packed rows, whose documents follow one another, if the task `can_pack`."""
        return partial(collate_packed, pad_id=pad_id)

    def collate_in_run(
        self, config: Config, model: Any, pad_id: int, longest_row: int, *, size_costs: bool = False
    ) -> Collate:
        """Return the function that collates rows in training and its preview. It rounds widths up, to `longest_row` at
        most, and coarsely if each new size compiles a kernel (`size_costs`)."""
        exact_collate = self.collate(model, pad_id)
        rounding = self.width_rounding(model.config.model_type, size_costs=size_costs)
        if rounding is None:
            return exact_collate
        return round_collate_widths(exact_collate, pad_id, longest_row, config.task.max_target_length, rounding)

    def collate_packed_in_run(self, pad_id: int, longest_row: int, *, size_costs: bool = False) -> CollatePacked:
        """Return the function that collates packed rows in training. With `size_costs`, it rounds their width up."""
        exact_collate = self.collate_packed(pad_id)
        return round_packed_widths(exact_collate, longest_row) if size_costs else exact_collate

    def width_rounding(self, model_type: str, *, size_costs: bool = False) -> Rounding | None:
        """Return the function that rounds up the widths of padded rows, or None to pad to the longest row.
        `size_costs`: each new size of a matrix compiles a kernel (`TrainingSetup.compiles_each_size`)."""
        if model_type in _PADDING_SENSITIVE or not (self.masks_padding or size_costs):
            return None
        return round_up_coarsely if size_costs else round_up_to_multiple

    @abstractmethod
    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        """Return the loss function. If `chunk_tokens` > 0, it computes the logits of that many labels at a time."""

    def rate_factor(self, config: Config) -> tuple[float, str]:
        """Return the usual learning rate as a share of that for predicting tokens or labels, and the name of the loss
        that it is for; (1, "") for these."""
        return 1.0, ""

    def loss_figures(self, config: Config) -> dict[str, tuple[float, str]]:
        """Return the values of those settings of the loss that may be `auto`, with reasons, by the settings' names."""
        return {}

    def choice_count(self, config: Config, data: PreparedData) -> int:
        """Return the number of values of a label, for the loss ln(choices) of a uniform prediction, else 0."""
        return 0

    def row_pass(self, config: Config, data: PreparedData, objective: Any) -> RowPass | None:
        """Return a pass that computes values of each row before training, or None. `objective`: this task's loss."""
        return None

    def reference_config(self, config: Config) -> Config | None:
        """Return the config with which another model is loaded for the `row_pass`; None: the model that the run starts
        from. Raise ConfigError as `find_model` does."""
        return None

    def reference_key(self, config: Config) -> str:
        """Return a fingerprint of the model of `reference_config`; "" if there is none."""
        reference = self.reference_config(config)
        return self.model_key(reference) if reference else ""

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer | None:
        """Return a new scorer for one evaluation, or None if the task has no scores. `objective`: this task's loss."""
        return None

    def calibrates(self, data: PreparedData) -> bool:
        """Return whether the final model is calibrated on held-out rows (`calibrate`)."""
        return False

    def calibrate(
        self,
        data: PreparedData,
        model: Any,
        objective: Any,
        observed: Sequence[tuple[Tensor, ...]],
        batch: MicroBatch | None,
    ) -> Calibration:
        """Calibrate the final model, in place, from what the scorer has `observed` of the held-out rows. `batch` is one
        micro-batch of them, or None if the weights cannot be changed. The caller sets the model to evaluation mode."""
        return Calibration()

    def compared_logits(self, model: Any, batch: MicroBatch) -> Tensor:
        """Return logits of labelled positions or whole rows, float32 [N, C], to compare with an exported model."""
        logits: Tensor = model(**batch.inputs).logits.float()
        return logits.flatten(0, 1)[batch.label_positions] if len(batch.label_positions) else logits

    def answer_rows(self, config: Config) -> int:
        """Return the number of held-out rows that the model answers in an evaluation."""
        rows = config.evaluation.generate_rows
        return self.usual_answer_rows if rows == "auto" else rows if self.usual_answer_rows else 0

    def suite_rows(self, config: Config) -> list[SuiteRow]:
        """Return the rows of `evaluation.gate_suite` that the model answers in an evaluation. Raises DataError."""
        rows = rows_to_keep(config.evaluation.gate_suite) if self.usual_answer_rows else []
        refuse_unsuitable(rows, self.name, [], holds_conversations=self.holds_conversations)
        return rows

    def suite_replies(self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[SuiteRow]) -> list[Reply]:
        """Return the greedy answer to each row of a suite; [] if the task generates none."""
        return []

    def answer_tokens(self, config: Config) -> int:
        """Return the maximum number of new tokens of such an answer."""
        return min(ANSWER_TOKENS, config.data.max_length)

    def answer_scores(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[TokenRow]
    ) -> Mapping[str, float]:
        """Return the scores of the model's greedy answers to some held-out rows; {} if it generates none."""
        return {}

    @abstractmethod
    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return (input, output) of one row as text, with at most `new_tokens` new tokens. The caller seeds torch."""

    @abstractmethod
    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """Encode inputs, which are the results of `input_reader`. The encoding of one does not depend on the others."""

    @abstractmethod
    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """Return predictions for each row, as JSON objects, in one pass. The caller seeds torch and calls eval()."""

    @abstractmethod
    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        """Return a prediction of `predict` as text for users."""

    def answer(self, config: Config, model: Any, tokenizer: Tokenizer, text: str, sampling: Sampling) -> str:
        """Return the prediction for a text that a user typed, as text, for `tui-trainer generate`."""
        content = self.input_reader(config, tokenizer).of_text(text)
        rows = self.encode_inputs(config, model, tokenizer, [content], sampling)
        return self.prediction_words(self.predict(config, model, tokenizer, rows, sampling)[0])
