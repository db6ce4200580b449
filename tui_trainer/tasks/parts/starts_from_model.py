"""The methods of tasks that find, check and build a model with its tokenizer, from pretrained or random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tui_trainer.config.changes import settings_words
from tui_trainer.config.sections import MODEL_KEY, Config, DataSection
from tui_trainer.config.token_list import ADD_TOKENS_KEY
from tui_trainer.data.batching.collate import collate_whole
from tui_trainer.data.columns.conversations import (
    Conversation,
    ConversationColumns,
    Message,
    find_conversations,
    question_of,
)
from tui_trainer.data.columns.labels import label_columns
from tui_trainer.data.columns.row import AUTO, Row, file_of, missing_column
from tui_trainer.data.columns.tagged_rows import InputWords, find_words, word_offsets
from tui_trainer.data.columns.text_columns import ColumnChoices, PairColumns, strings_of, text_of
from tui_trainer.data.preparing.byte_bpe import TEXT_SPECIAL_TOKENS, TRAINED_TOKENIZER_KEY, SpecialTokens
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.errors import DataError, Problem
from tui_trainer.models import heads, loading, unsloth
from tui_trainer.models.adapters import adapter_problems, refuse_other_labels, should_continue_adapter, starting_adapter
from tui_trainer.models.added_tokens import (
    add_to_tokenizer,
    added_tokens,
    planned_words,
    resize_for_adapter,
    resize_tables,
    token_problems,
    trained_ids,
    with_added_tokens,
)
from tui_trainer.models.chat_rendering import ConversationRenderer, Rendered
from tui_trainer.models.config_json import ConfigFields, bad_model, read_json
from tui_trainer.models.facts import Adapter, ModelFacts, find_model, require_folder
from tui_trainer.models.files.fingerprint import fingerprint
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.problems import language_problems, length_problems, model_problems
from tui_trainer.models.rope import POSITIONS, is_scaling_requested, rope_problems, scaled_config
from tui_trainer.models.shape import ModelShape, scratch_config, scratch_problems, shape_of
from tui_trainer.models.targets import head_modules
from tui_trainer.models.text_only import text_facts
from tui_trainer.models.tokenizer import count_word_tokens, missing_frame, tokenizer_facts, tokens_per_character
from tui_trainer.models.towers import tower_problems
from tui_trainer.models.writing import keep_plain_settings, pad_token_id, row_padding_id, shaping_settings
from tui_trainer.tasks.contract import InputReader, InputRow, Notify
from tui_trainer.terminal.safe_text import one_line

# Readers of the inputs for a trained model. They find the columns of a table as training does, and ignore labels and
# answers.


class TextInputs:
    """Reader of inputs (text,), or (text, second text) if a setting names the column of the second text."""

    def __init__(self, data: DataSection) -> None:
        self._data = data
        self._columns: tuple[str, ...] = ()

    def begin(self, head: Sequence[Row]) -> None:
        label, text_columns = file_of(head), strings_of(head)
        pair = self._data.text_pair_column
        if pair and pair not in text_columns:
            raise missing_column(pair, label, text_columns, key="data.text_pair_column")
        answer_columns: tuple[str, ...] = ()
        with suppress(DataError):
            answer_columns = label_columns(self._data.label_column, head, label, (self._data.text_column, pair))
        column = ColumnChoices(self._data.text_column, has_answers=False).choose(head, excluded=(*answer_columns, pair))
        self._columns = (column, pair) if pair else (column,)

    def read(self, row: Row) -> tuple[str, ...]:
        texts = tuple(text_of(row, column) for column in self._columns)
        if empty := next((name for name, text in zip(self._columns, texts, strict=True) if not text.strip()), ""):
            raise DataError(f"the column '{one_line(empty, 40)}' is empty", where=row.where)
        return texts

    def of_text(self, text: str) -> tuple[str, ...]:
        """Return the texts of an input that a user typed. A tab separates the texts of a pair."""
        first_text, separator, second_text = text.partition("\t")
        return (first_text, second_text) if separator and self._data.text_pair_column else (text,)


class QuestionInputs:
    """Reader of inputs for an encoder-decoder, with `task.source_prefix` before each."""

    def __init__(self, data: DataSection, prefix: str) -> None:
        self._pair, self._prefix = PairColumns(data.text_column, data.text_pair_column, AUTO), prefix

    def begin(self, head: Sequence[Row]) -> None:
        self._pair.choose_input(head)

    def read(self, row: Row) -> str:
        return self._prefix + self._pair.read_input(row)

    def of_text(self, text: str) -> str:
        return self._prefix + text


class ConversationInputs:
    """Reader of conversations up to the next answer of the assistant, which are rendered as prompts."""

    has_answers = False
    """Whether the rows must have answers."""

    def __init__(self, data: DataSection, renderer: ConversationRenderer) -> None:
        self._data, self.renderer, self._columns = data, renderer, ConversationColumns()

    def begin(self, head: Sequence[Row]) -> None:
        data = self._data
        self._columns = find_conversations(
            head, data.text_column, AUTO, data.text_pair_column, needs_answer=self.has_answers
        )

    def read(self, row: Row) -> Rendered:
        conversation = self._columns.read(row)
        try:
            return self.rendered(conversation, row)
        except DataError as error:
            problem = error.problems[0]
            raise DataError(problem.message, where=row.where, hint=problem.hint) from None

    def rendered(self, conversation: Conversation, row: Row) -> Rendered:
        """Return what the model reads of the conversation in a row. Raise DataError."""
        return self.renderer.render_prompt(question_of(conversation, row.where), conversation.tools)

    def of_text(self, text: str) -> Rendered:
        return self.of_messages([{"role": "user", "content": text}])

    def of_messages(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Rendered:
        return self.renderer.render_prompt(messages, tools)


class WordInputs:
    """Reader of inputs (text, (start, end) of each word in the text)."""

    def __init__(self, data: DataSection) -> None:
        self._data = data
        self._columns: InputWords | None = None

    def begin(self, head: Sequence[Row]) -> None:
        self._columns = find_words(head, self._data.text_column, self._data.label_column)

    def read(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        assert self._columns is not None, "`begin` comes first"
        return self._columns.read(row)

    def of_text(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        return text, word_offsets(text)


def logits_of(model: Any, tokenizer: Any, rows: Sequence[InputRow]) -> Any:
    """Return the logits of a model that reads whole rows: float32 [B, C], or [B, T, C] if each token has logits."""
    import torch

    token_rows = []
    for row in rows:
        arguments = {name: np.asarray(values) for name, values in row.model_arguments.items()}
        token_rows.append(TokenRow(np.asarray(row.ids), model_arguments=arguments))
    batch = collate_whole(token_rows, row_padding_id(model, pad_token_id(tokenizer)), np.zeros(0))
    inputs = {"input_ids": batch.input_ids, **batch.model_arguments}
    with torch.no_grad():
        return model(**{name: torch.from_numpy(x).to(model.device) for name, x in inputs.items()}).logits.float()


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData

# For estimates without a tokenizer: byte-level BPE on English text.
_USUAL_TOKENS_PER_CHARACTER = 0.25


class StartsFromModel:
    """The methods of tasks that find, check and build a model. `head` is the kind of head that the task trains."""

    head: heads.Head = heads.CAUSAL
    specials: SpecialTokens = TEXT_SPECIAL_TOKENS
    """Special tokens of the tokenizer that a run from scratch trains on the data."""

    def labels(self, config: Config, data: PreparedData) -> heads.Labels | None:
        return None

    def model_problems(self, config: Config) -> list[Problem]:
        model, scratch = config.model, config.is_from_scratch
        if scratch and config.tuning.method != "full":
            hint = 'set it to "full", or model.init to "pretrained"'
            message = "a model with random weights must be trained in full"
            return [Problem(message=message, key="tuning.method", hint=hint)]
        if scratch and (problems := scratch_change_problems(config)):
            return problems
        if not model.model_name_or_path:
            hint = 'give a folder or a model name (--model), or set model.init = "scratch"'
            missing_model = Problem(message="no model is set", key=MODEL_KEY, hint=hint)
            if not scratch:
                return [missing_model]
            return [*scratch_problems(model.scratch, self.head), *tower_problems(config, "")]
        stored_facts = stored_model_facts(config, self.head)
        problems = list(tower_problems(config, str(stored_facts.config.get("model_type"))))
        if not problems and not scratch:
            problems += rope_problems(stored_facts.config, config, self.head)
            problems += token_problems(stored_facts, config, continues_adapter=should_continue_adapter(config.tuning))
        if problems:
            return problems
        facts = find_model_facts(config, self.head)
        problems = [*length_problems(facts.shape, config.data.max_length), *adapter_problems(facts, config)]
        problems += [] if scratch else language_problems(facts, writes_answers=self.head == heads.ENCODER_DECODER)
        # A model that is only in the catalogue can be planned. It is refused at the start of training.
        problems += model_problems(facts, model.init, model.trust_remote_code) if facts.folder else []
        return problems

    def model_shape(self, config: Config, vocabulary: int, classes: int = 0) -> ModelShape:
        """Return the shape of the model without loading it. `vocabulary` is used only for a model from scratch."""
        if not config.is_from_scratch:
            return find_model_facts(config, self.head, classes).shape
        return shape_of(self.model_config(config, vocabulary, classes), head=self.head, labels=classes)

    def model_config(self, config: Config, vocabulary: int, classes: int = 0) -> Mapping[str, Any]:
        """Return the content of the model's config.json, for families whose memory needs a dry run."""
        if not config.model.model_name_or_path:
            length = config.data.max_length
            return scratch_config(config.model.scratch, vocabulary, self.head, max_length=length, labels=classes or 2)
        changes = {"vocab_size": vocabulary} if config.is_from_scratch else {}
        return {**find_model_facts(config, self.head, classes).config, **changes}

    def marks(self, config: Config) -> dict[str, int] | None:
        """Return the marks that the task writes around texts, with the number of tokens of each: {"<|im_end|>": 1}.
        None if there are no marks or they are unknown. Raise ConfigError."""
        return None

    def model_key(self, config: Config) -> str:
        """Return a fingerprint of the model that a run starts from, to refuse resuming with another; "" without one."""
        if not config.model.model_name_or_path:
            return ""
        return fingerprint(find_model_facts(config, self.head), with_weights=not config.is_from_scratch)

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        """Return the tokenizer that the final model is saved with."""
        if config.is_from_scratch:
            tokenizer = load_trained_tokenizer(data.tokenizer_path, config, self.specials)
        else:
            tokenizer = load_own_tokenizer(config, self.head)
            self.set_length(config, tokenizer)
        if self.head == "sequence_classification" and tokenizer.pad_token is None:
            # A decoder classifies by the last token before the padding.
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        return tokenizer

    def set_length(self, config: Config, tokenizer: Tokenizer) -> None:
        """Set the length to which a trained model's tokenizer truncates texts; causal models get prompts uncut."""
        if self.head != heads.CAUSAL:
            loading.set_truncation(tokenizer, config.data.max_length)

    def build_model(
        self,
        config: Config,
        data: PreparedData,
        tokenizer: Tokenizer,
        dtype: torch.dtype,
        device: torch.device,
        tell: Notify,
    ) -> PreTrainedModel:
        """Build the model as it is before the first step. Stored weights are loaded to `device` tensor by tensor.
        Random weights come from torch's global generator on the CPU, so a seed gives the same weights on every device.

        `tell` gets a sentence about parts that are not in the files, such as a new head. Raise ConfigError."""
        settings, labels = config.model, self.labels(config, data)
        adapter = starting_adapter(config, self.head)
        keeps_head = adapter is not None and labels is not None and self._keeps_head(config, adapter, labels)
        facts = find_model_facts(config, self.head) if settings.model_name_or_path else None
        folder = require_folder(facts) if facts else None
        if folder and unsloth.is_asked(config):
            built_model: PreTrainedModel = unsloth.load_model(folder, config, dtype, device)
        elif facts and folder and not config.is_from_scratch:
            has_adapter_config = adapter is not None and bool(adapter.config)
            built_model = loading.load_pretrained(
                folder,
                settings,
                dtype,
                device=device,
                head=self.head,
                labels=labels,
                pad_token_id=pad_token_id(tokenizer),
                tell=(lambda words: None) if keeps_head else tell,
                four_bits=FourBits.of(config, facts.shape),
                positions=facts.config if has_adapter_config or is_scaling_requested(settings.rope_scaling) else None,
            )
            if adapter:
                resize_for_adapter(built_model, adapter.fields, adapter.config)
        else:
            size = data.counts.vocabulary
            fields = loading.load_config(
                folder, config, vocabulary=size, tokenizer=tokenizer, head=self.head, labels=labels
            )
            built_model = loading.new_model(fields, settings, dtype, head=self.head)
        if adapter and not should_continue_adapter(config.tuning):
            head_names = () if labels is None or keeps_head or not facts else head_modules(facts.shape)
            built_model = loading.merge_adapter(built_model, adapter.folder, excluded=head_names)
        if facts and not config.is_from_scratch and (new_tokens := added_tokens(facts, settings)):
            resize_tables(built_model, new_tokens.embedding_rows, new_tokens.ids)
        self.set_generation(config, built_model, tokenizer)
        vars(built_model.config).pop(heads.CALIBRATION, None)  # thresholds of the run that trained this model before
        self.record_settings(config, data, built_model)
        return built_model

    def _keeps_head(self, config: Config, adapter: Adapter, labels: heads.Labels) -> bool:
        """Return whether the starting adapter has a head for these labels. Raise ConfigError if others continue."""
        adapter_labels = heads.config_label_names(read_json(adapter.folder / "config.json") or {})
        if adapter_labels and should_continue_adapter(config.tuning):
            refuse_other_labels(adapter_labels, labels.names, adapter.folder)
        return adapter_labels in ((), labels.names)

    def changes_words(self, config: Config) -> str:
        """Return text to end a sentence about the model with its new tokens and positions: `; new tokens in ...: 2`."""
        if config.is_from_scratch or not config.model.model_name_or_path:
            return ""
        stored_facts, rope = stored_model_facts(config, self.head), config.model.rope_scaling
        clauses = [planned_words(added_tokens(stored_facts, config.model), stored_facts.config.get("vocab_size") or 0)]
        if is_scaling_requested(rope):
            scaled_limit = find_model_facts(config, self.head).shape.max_position_embeddings or 0
            stored_limit = stored_facts.shape.max_position_embeddings or 0
            clauses.append(f"{rope.rope_type} positions for {scaled_limit:,} tokens instead of {stored_limit:,}")
        if ignored_settings := self.shaping_settings(config):
            settings_text = f"the model's own generation settings {settings_words(ignored_settings)}"
            clauses.append(f"{settings_text} are ignored, because they were chosen for other data")
        return "".join(f"; {clause}" for clause in clauses if clause)

    def shaping_settings(self, config: Config) -> dict[str, Any] | None:
        """Return the generation settings in the model's files that change its texts, which are ignored here. None for a
        model from scratch or without generation. Raise ConfigError."""
        if config.is_from_scratch or not config.model.model_name_or_path or self.head in heads.CLASSIFYING_HEADS:
            return None
        facts = stored_model_facts(config, self.head)
        folders = [folder for folder in (facts.folder, facts.adapter and facts.adapter.folder) if folder]
        files = (read_json(folder / name) for folder in folders for name in ("config.json", "generation_config.json"))
        return shaping_settings({name: value for content in files for name, value in (content or {}).items()})

    def missing_frame(self, config: Config) -> tuple[str, ...] | None:
        """Return the special tokens that the model needs but its tokenizer does not add to texts. Raise ConfigError."""
        if config.is_from_scratch or not config.model.model_name_or_path:
            return None
        facts = stored_model_facts(config, self.head)
        return missing_frame(facts.tokenizer_folder, facts.config) if facts.tokenizer_folder else None

    def trained_token_ids(self, config: Config) -> range:
        """Return the ids of the tokens whose embeddings train beside LoRA adapters (`models/added_tokens.py`)."""
        if config.is_from_scratch or not config.model.model_name_or_path:
            return range(0)
        facts, continues_adapter = stored_model_facts(config, self.head), should_continue_adapter(config.tuning)
        return trained_ids(facts, config, continues_adapter=continues_adapter)

    def record_settings(self, config: Config, data: PreparedData, model: Any) -> None:
        """Store settings in the config of the model that its later use depends on."""

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """Set how a model generates, whatever its files contain: first tokens, sampling and end tokens."""
        keep_plain_settings(model)

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        """Return a new reader of inputs for a model that a run with this config has trained."""
        return TextInputs(config.data)


def stored_model_facts(config: Config, head: heads.Head, classes: int = 0) -> ModelFacts:
    """Return the facts of the model as it is stored; with `model.text_only`, those of its language model alone."""
    facts = find_model(config.model.model_name_or_path, config.model.revision, head=head, labels=classes)
    return text_facts(facts) if config.model.text_only else facts


def find_model_facts(config: Config, head: heads.Head, classes: int = 0) -> ModelFacts:
    """Return the facts of the model to train, with added tokens and scaled positions. Raise ConfigError."""
    facts = stored_model_facts(config, head, classes)
    if config.is_from_scratch:
        return facts
    facts = with_added_tokens(facts, config.model)
    rope = config.model.rope_scaling
    return replace(facts, config=scaled_config(facts.config, rope)) if is_scaling_requested(rope) else facts


def scratch_change_problems(config: Config) -> list[Problem]:
    """Return a problem for each setting that adds tokens or scales positions: a model from scratch can have neither."""
    problems = rope_problems({}, config, heads.CAUSAL)
    if config.model.add_tokens.strip():
        unit = "characters" if config.task.type == "char_lm" else "tokens"
        message = f"the {unit} of a model from scratch come from its data, so no others can be added"
        problems.append(Problem(message=message, key=ADD_TOKENS_KEY, hint="remove it"))
    return problems


def load_own_tokenizer(config: Config, head: heads.Head) -> Tokenizer:
    """Load the tokenizer of the model, with added tokens. Raise ConfigError if it marks texts with a language that it
    has no token for, because transformers would use the unknown token."""
    facts = stored_model_facts(config, head)
    folder = facts.tokenizer_folder or require_folder(facts)
    tokenizer = loading.load_tokenizer(folder, config.model.trust_remote_code)
    if new_tokens := added_tokens(facts, config.model):
        add_to_tokenizer(tokenizer, new_tokens, folder)
    if is_scaling_requested(config.model.rope_scaling):
        position_limit = ConfigFields(scaled_config(facts.config, config.model.rope_scaling)).number(POSITIONS)
        tokenizer.model_max_length = max(tokenizer.model_max_length, position_limit)
    if hasattr(tokenizer, "set_src_lang_special_tokens"):
        language_ids = list(tokenizer("")["input_ids"])
        language_ids += tokenizer(text_target="")["input_ids"] if head == heads.ENCODER_DECODER else []
        if tokenizer.unk_token_id in language_ids:
            message = "the tokenizer has no token for the src_lang or tgt_lang of tokenizer_config.json"
            raise bad_model(message, "set src_lang and tgt_lang to special tokens of the tokenizer", str(folder))
    return tokenizer


def load_trained_tokenizer(path: Path, config: Config, special: SpecialTokens) -> Tokenizer:
    """Load the tokenizer that this run trained on its data."""
    tokens, has_pairs = dict(special.named_tokens), special.distinguishes_pairs
    return loading.tokenizer_of_file(path, config.data.max_length, tokens, distinguishes_pairs=has_pairs)


def estimate_tokens_per_character(config: Config, head: heads.Head, texts: Sequence[str]) -> float:
    """Return the tokens per character of these texts with the model's tokenizer, or a usual value if it is missing."""
    facts = None if config.is_from_scratch else stored_model_facts(config, head)
    measured_rate = None
    if facts and facts.tokenizer_folder:
        new_tokens = added_tokens(facts, config.model)
        measured_rate = tokens_per_character(facts.tokenizer_folder, texts, new_tokens.new_tokens if new_tokens else ())
    return measured_rate or _USUAL_TOKENS_PER_CHARACTER


def has_unknown_tokens(config: Config, head: heads.Head, texts: Sequence[str]) -> bool:
    """Return whether the model's tokenizer encodes a part of these texts as unknown; False without the tokenizer."""
    facts = stored_model_facts(config, head)
    if facts.tokenizer_folder is None:
        return False
    added = added_tokens(facts, config.model)
    token_counts = count_word_tokens(facts.tokenizer_folder, texts, added.new_tokens if added else ())
    return token_counts is not None and 0 in token_counts.values()


def tokenizer_identity(config: Config, head: heads.Head) -> tuple[str, int | None, int]:
    """Return (key, end token, number of tokens) of the tokenizer that a run will use, without loading it."""
    if config.is_from_scratch:
        return TRAINED_TOKENIZER_KEY, None, config.model.scratch.vocab_size
    model_facts = stored_model_facts(config, head)
    facts = tokenizer_facts(model_facts.tokenizer_folder) if model_facts.tokenizer_folder else None
    eos_id = facts.eos_token_id if facts else None
    if eos_id is None:
        eos_id = next(iter(model_facts.eos_token_ids), None)
    # Code that comes with the model may build another tokenizer from the same files.
    code_note = " with its code" if model_facts.has_remote_code and config.model.trust_remote_code else ""
    added = added_tokens(model_facts, config.model)
    new_tokens_note = f" with {json.dumps(added.new_tokens)}" if added and added.new_tokens else ""
    vocabulary = facts.vocabulary if facts else model_facts.shape.vocabulary
    vocabulary += len(added.new_tokens if added else ())
    return f"{model_facts.tokenizer_key or ''}{code_note}{new_tokens_note}", eos_id, vocabulary
