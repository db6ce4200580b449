"""What a run starts from: a pretrained model or random weights, with its tokenizer, for any head."""

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
from tui_trainer.config.token_list import TOKENS
from tui_trainer.data.batching.collate import collate_whole
from tui_trainer.data.columns.conversations import ConversationColumns, Message, find_conversations, question_of
from tui_trainer.data.columns.labels import label_columns
from tui_trainer.data.columns.row import AUTO, Row, file_of, missing_column
from tui_trainer.data.columns.tagged_rows import InputWords, find_words, word_offsets
from tui_trainer.data.columns.text_columns import ColumnChoices, PairColumns, strings_of, text_of
from tui_trainer.data.preparing.byte_bpe import FOR_TEXT, TRAINED_HERE, Specials
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.errors import DataError, Problem
from tui_trainer.models import unsloth
from tui_trainer.models.adapters import adapter_of, adapter_problems, goes_on, refuse_other_labels
from tui_trainer.models.added_tokens import (
    added_tokens,
    give_tokens,
    grow,
    grow_as_trained,
    planned_words,
    token_problems,
    trained_ids,
    with_added_tokens,
)
from tui_trainer.models.chat_rendering import ConversationRenderer, Rendered
from tui_trainer.models.config_json import ConfigFields, bad_model, read_json
from tui_trainer.models.facts import Adapter, ModelFacts, find_model, require_folder
from tui_trainer.models.files.fingerprint import fingerprint
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER, Head, Labels, own_labels
from tui_trainer.models.loading import (
    cut_as_trained,
    load_config,
    load_pretrained,
    load_tokenizer,
    merge_adapter,
    new_model,
    tokenizer_of_file,
)
from tui_trainer.models.problems import language_problems, length_problems, model_problems
from tui_trainer.models.rope import POSITIONS, rope_problems, scaled_config
from tui_trainer.models.rope import is_asked_for as rope_is_asked_for
from tui_trainer.models.shape import ModelShape, scratch_config, scratch_problems, shape_of
from tui_trainer.models.targets import head_modules
from tui_trainer.models.text_only import text_facts
from tui_trainer.models.tokenizer import missing_frame, pieces_of, tokenizer_facts, tokens_per_character
from tui_trainer.models.towers import refusals
from tui_trainer.models.writing import keep_plain_settings, pad_token_id, row_padding_id, shaping_settings
from tui_trainer.tasks.contract import InputReader, InputRow, Notify
from tui_trainer.terminal.safe_text import one_line

# What a trained model is asked about: the inputs in the rows of a table, whether or not there are answers beside them.
#
# Columns are found as for training; labels and answers are passed over.


class TextInputs:
    """(text,) of each row, or (text, second text) where the settings name a column for it."""

    def __init__(self, data: DataSection) -> None:
        self._data = data
        self._columns: tuple[str, ...] = ()

    def begin(self, head: Sequence[Row]) -> None:
        label, found = file_of(head), strings_of(head)
        pair = self._data.text_pair_column
        if pair and pair not in found:
            raise missing_column(pair, label, found, key="data.text_pair_column")
        answers: tuple[str, ...] = ()
        with suppress(DataError):
            answers = label_columns(self._data.label_column, head, label, (self._data.text_column, pair))
        text = ColumnChoices(self._data.text_column, has_answers=False).choose(head, without=(*answers, pair))
        self._columns = (text, pair) if pair else (text,)

    def read(self, row: Row) -> tuple[str, ...]:
        texts = tuple(text_of(row, column) for column in self._columns)
        if empty := next((name for name, text in zip(self._columns, texts, strict=True) if not text.strip()), ""):
            raise DataError(f"the column '{one_line(empty, 40)}' is empty", where=row.where)
        return texts

    def of_text(self, text: str) -> tuple[str, ...]:
        """The texts of a pair are parted by a tab."""
        first, tab, second = text.partition("\t")
        return (first, second) if tab and self._data.text_pair_column else (text,)


class QuestionInputs:
    """The input of each row, as a model that answers texts learnt it, behind `task.source_prefix`."""

    def __init__(self, data: DataSection, prefix: str) -> None:
        self._pair, self._prefix = PairColumns(data.text_column, data.text_pair_column, AUTO), prefix

    def begin(self, head: Sequence[Row]) -> None:
        self._pair.choose_input(head)

    def read(self, row: Row) -> str:
        return self._prefix + self._pair.read_input(row)

    def of_text(self, text: str) -> str:
        return self._prefix + text


class ConversationInputs:
    """Each conversation up to where the assistant is to say something, rendered."""

    def __init__(self, data: DataSection, renderer: ConversationRenderer) -> None:
        self._data, self._renderer, self._columns = data, renderer, ConversationColumns()

    def begin(self, head: Sequence[Row]) -> None:
        data = self._data
        self._columns = find_conversations(head, data.text_column, AUTO, data.text_pair_column, needs_answer=False)

    def read(self, row: Row) -> Rendered:
        conversation = self._columns.read(row)
        messages = question_of(conversation, row.where)
        try:
            return self._renderer.render_prompt(messages, conversation.tools)
        except DataError as error:
            problem = error.problems[0]
            raise DataError(problem.message, where=row.where, hint=problem.hint) from None

    def of_text(self, text: str) -> Rendered:
        return self.of_messages([{"role": "user", "content": text}])

    def of_messages(self, messages: Sequence[Message]) -> Rendered:
        return self._renderer.render_prompt(messages)


class WordInputs:
    """The words of each row and where they stand in its text."""

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
    """float32, [B, C] or [B, T, C], of a model that reads whole rows."""
    import torch

    tokens = [
        TokenRow(np.asarray(row.ids), more={name: np.asarray(values) for name, values in row.more.items()})
        for row in rows
    ]
    batch = collate_whole(tokens, row_padding_id(model, pad_token_id(tokenizer)), np.zeros(0))
    inputs = {"input_ids": batch.input_ids, **batch.more}
    with torch.no_grad():
        return model(**{name: torch.from_numpy(each).to(model.device) for name, each in inputs.items()}).logits.float()


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData

# Of byte-level BPE on English text, where no tokenizer is at hand to count with.
_USUAL_TOKENS_PER_CHARACTER = 0.25


class StartsFromModel:
    """The part of a task that finds, plans and builds its model. `head` is what the model ends with."""

    head: Head = CAUSAL
    specials: Specials = FOR_TEXT
    """Of the tokenizer that is trained on the data, where none comes with the model."""

    def labels(self, config: Config, data: PreparedData) -> Labels | None:
        return None

    def model_problems(self, config: Config) -> list[Problem]:
        model, scratch = config.model, config.is_from_scratch
        if scratch and config.tuning.method != "full":
            hint = 'set it to "full", or model.init to "pretrained"'
            message = "random weights cannot be frozen: all of them must be trainable"
            return [Problem(message=message, key="tuning.method", hint=hint)]
        if scratch and (refused := changes_of_scratch(config)):
            return refused
        if not model.model_name_or_path:
            hint = 'give a folder or a model name (--model), or set model.init = "scratch"'
            missing = Problem(message="no model is set", key=MODEL_KEY, hint=hint)
            return [*scratch_problems(model.scratch, self.head), *refusals(config, "")] if scratch else [missing]
        stored = stored_model_of(config, self.head)
        refused = list(refusals(config, str(stored.config.get("model_type"))))
        if not refused and not scratch:
            refused += rope_problems(stored.config, config, self.head)
            refused += token_problems(stored, config, goes_on=goes_on(config.tuning))
        if refused:
            return refused
        facts = model_of(config, self.head)
        found = [*length_problems(facts.shape, config.data.max_length), *adapter_problems(facts, config)]
        found += [] if scratch else language_problems(facts, writes_answers=self.head == ENCODER_DECODER)
        # A model that only the catalogue knows can be planned; it is refused when it should be trained.
        return found if facts.folder is None else found + model_problems(facts, model.init, model.trust_remote_code)

    def model_shape(self, config: Config, vocabulary: int, classes: int = 0) -> ModelShape:
        """The model in numbers, without loading it. `vocabulary` counts where it is made from the data."""
        if not config.is_from_scratch:
            return model_of(config, self.head, classes).shape
        return shape_of(self.model_config(config, vocabulary, classes), head=self.head, labels=classes)

    def model_config(self, config: Config, vocabulary: int, classes: int = 0) -> Mapping[str, Any]:
        """What the model's config.json says, for families whose memory only a dry run can tell."""
        if not config.model.model_name_or_path:
            length = config.data.max_length
            return scratch_config(config.model.scratch, vocabulary, self.head, max_length=length, labels=classes or 2)
        changes = {"vocab_size": vocabulary} if config.is_from_scratch else {}
        return {**model_of(config, self.head, classes).config, **changes}

    def marks(self, config: Config) -> dict[str, int] | None:
        """The marks that its texts are written with, and how many tokens each is; None where it has none, or nobody can
        tell. Raises ConfigError."""
        return None

    def model_key(self, config: Config) -> str:
        """Names the model that a run starts from, so that it does not go on with another; empty: none is named."""
        if not config.model.model_name_or_path:
            return ""
        return fingerprint(model_of(config, self.head), with_weights=not config.is_from_scratch)

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        """The tokenizer that the final model is saved with."""
        if config.is_from_scratch:
            return made_tokenizer(data.tokenizer_path, config, self.specials)
        tokenizer = own_tokenizer(config, self.head)
        self.set_length(config, tokenizer)
        return tokenizer

    def set_length(self, config: Config, tokenizer: Tokenizer) -> None:
        """Where a trained model's tokenizer cuts what the model reads. A text that is continued is not cut: the model
        reads as much of it as it has places for."""
        if self.head != CAUSAL:
            cut_as_trained(tokenizer, config.data.max_length)

    def build_model(
        self,
        config: Config,
        data: PreparedData,
        tokenizer: Tokenizer,
        dtype: torch.dtype,
        device: torch.device,
        tell: Notify,
    ) -> PreTrainedModel:
        """The model before the first step; stored weights are loaded to `device` tensor by tensor, and random ones come
        from torch's global generator, on the CPU: a seed gives the same ones on every device.

        `tell` gets a sentence about what the files do not bring, such as a new head. Raises ConfigError.
        """
        model, labels = config.model, self.labels(config, data)
        adapter = adapter_of(config, self.head)
        keeps_head = adapter is not None and labels is not None and self._keeps_head(config, adapter, labels)
        facts = model_of(config, self.head) if model.model_name_or_path else None
        folder = require_folder(facts) if facts else None
        if folder and unsloth.is_asked(config):
            made: PreTrainedModel = unsloth.load_model(folder, config, dtype, device)
        elif facts and folder and not config.is_from_scratch:
            has_own = adapter is not None and bool(adapter.config)
            made = load_pretrained(
                folder,
                model,
                dtype,
                device=device,
                head=self.head,
                labels=labels,
                pad_token_id=pad_token_id(tokenizer),
                tell=(lambda words: None) if keeps_head else tell,
                four_bits=FourBits.of(config, facts.shape),
                positions=facts.config if has_own or rope_is_asked_for(model.rope_scaling) else None,
            )
            if adapter:
                grow_as_trained(made, adapter.fields, adapter.config)
        else:
            size = data.counts.vocabulary
            shape = load_config(folder, config, vocabulary=size, tokenizer=tokenizer, head=self.head, labels=labels)
            made = new_model(shape, model, dtype, head=self.head)
        if adapter and not goes_on(config.tuning):
            new = () if labels is None or keeps_head or not facts else head_modules(facts.shape)
            made = merge_adapter(made, adapter.folder, without=new)
        if facts and not config.is_from_scratch and (added := added_tokens(facts, model)):
            grow(made, added.rows, added.ids)
        self.set_generation(config, made, tokenizer)
        self.record_settings(config, data, made)
        return made

    def _keeps_head(self, config: Config, adapter: Adapter, labels: Labels) -> bool:
        """Whether the head of a classifier's adapter is for the labels of the data. Raises ConfigError for an adapter
        that goes on with others."""
        before = own_labels(read_json(adapter.folder / "config.json") or {})
        if before and goes_on(config.tuning):
            refuse_other_labels(before, labels.names, adapter.folder)
        return before in ((), labels.names)

    def changes_words(self, config: Config) -> str:
        """The tokens and positions that the settings give the model, as the end of a sentence about it."""
        if config.is_from_scratch or not config.model.model_name_or_path:
            return ""
        stored, rope = stored_model_of(config, self.head), config.model.rope_scaling
        found = [planned_words(added_tokens(stored, config.model), stored.config.get("vocab_size") or 0)]
        if rope_is_asked_for(rope):
            reach = model_of(config, self.head).shape.max_position_embeddings or 0
            found.append(
                f"{rope.rope_type} positions for {reach:,} tokens instead of "
                f"{stored.shape.max_position_embeddings or 0:,}"
            )
        if shaping := self.shaping_settings(config):
            own = f"the model's own generation settings {settings_words(shaping)}"
            found.append(f"{own} are ignored: they were made for other data")
        return "".join(f"; {words}" for words in found if words)

    def shaping_settings(self, config: Config) -> dict[str, Any] | None:
        """Return what the model's own files say of the lengths and repeats of what it writes, which is left out; None
        for a model that writes nothing, or nothing of its own. Raises ConfigError."""
        if config.is_from_scratch or not config.model.model_name_or_path or self.head in CLASSIFYING:
            return None
        facts = stored_model_of(config, self.head)
        folders = [folder for folder in (facts.folder, facts.adapter and facts.adapter.folder) if folder]
        files = (read_json(folder / name) for folder in folders for name in ("config.json", "generation_config.json"))
        return shaping_settings({name: value for fields in files for name, value in (fields or {}).items()})

    def missing_frame(self, config: Config) -> tuple[str, ...] | None:
        """Return as `models/tokenizer.py` the special tokens that no text of the run is put between. Raises
        ConfigError."""
        if config.is_from_scratch or not config.model.model_name_or_path:
            return None
        facts = stored_model_of(config, self.head)
        return missing_frame(facts.tokenizer_folder, facts.config) if facts.tokenizer_folder else None

    def trained_token_ids(self, config: Config) -> range:
        """The tokens whose rows train beside LoRA adapters; see `models/added_tokens.py`."""
        if config.is_from_scratch or not config.model.model_name_or_path:
            return range(0)
        return trained_ids(stored_model_of(config, self.head), config, goes_on=goes_on(config.tuning))

    def record_settings(self, config: Config, data: PreparedData, model: Any) -> None:
        """Write into the model's config what its later use depends on."""

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """Set how a model begins, draws and ends what it writes, whatever its files or those of its base say."""
        keep_plain_settings(model)

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        """A new one. `config` is that of a run."""
        return TextInputs(config.data)


def stored_model_of(config: Config, head: Head, classes: int = 0) -> ModelFacts:
    """The model as its files have it, or the text model of it where that is asked for."""
    found = find_model(config.model.model_name_or_path, config.model.revision, head=head, labels=classes)
    return text_facts(found) if config.model.text_only else found


def model_of(config: Config, head: Head, classes: int = 0) -> ModelFacts:
    """The model that is trained: with the tokens and the positions that the settings give it. Raises ConfigError."""
    found = stored_model_of(config, head, classes)
    if config.is_from_scratch:
        return found
    found = with_added_tokens(found, config.model)
    rope = config.model.rope_scaling
    return replace(found, config=scaled_config(found.config, rope)) if rope_is_asked_for(rope) else found


def changes_of_scratch(config: Config) -> list[Problem]:
    """Why a model from random weights gets no other tokens and positions than its own."""
    found = rope_problems({}, config, CAUSAL)
    if config.model.add_tokens.strip():
        what = "characters" if config.task.type == "char_lm" else "tokens"
        message = f"the {what} of a model from scratch come from its data: no others can be added"
        found.append(Problem(message=message, key=TOKENS, hint="remove it"))
    return found


def own_tokenizer(config: Config, head: Head) -> Tokenizer:
    """The tokenizer that comes with the model. Raises ConfigError for one that marks texts with a language that it has
    no token for: transformers would mark them as unknown words."""
    facts = stored_model_of(config, head)
    folder = facts.tokenizer_folder or require_folder(facts)
    tokenizer = load_tokenizer(folder, config.model.trust_remote_code)
    if added := added_tokens(facts, config.model):
        give_tokens(tokenizer, added, folder)
    if rope_is_asked_for(config.model.rope_scaling):
        reach = ConfigFields(scaled_config(facts.config, config.model.rope_scaling)).number(POSITIONS)
        tokenizer.model_max_length = max(tokenizer.model_max_length, reach)
    if hasattr(tokenizer, "set_src_lang_special_tokens"):
        marks = list(tokenizer("")["input_ids"])
        marks += tokenizer(text_target="")["input_ids"] if head == ENCODER_DECODER else []
        if tokenizer.unk_token_id in marks:
            message = "the tokenizer has no token for the src_lang or tgt_lang of tokenizer_config.json"
            raise bad_model(message, "set both to special tokens of the tokenizer", str(folder))
    return tokenizer


def made_tokenizer(path: Path, config: Config, special: Specials) -> Tokenizer:
    """The tokenizer that was trained on the data."""
    return tokenizer_of_file(path, config.data.max_length, dict(special.named), tells_pairs=special.tells_pairs)


def tokens_a_character(config: Config, head: Head, texts: Sequence[str]) -> float:
    """As the model's own tokenizer cuts these texts, where it is at hand."""
    facts = None if config.is_from_scratch else stored_model_of(config, head)
    measured = None
    if facts and facts.tokenizer_folder:
        added = added_tokens(facts, config.model)
        measured = tokens_per_character(facts.tokenizer_folder, texts, added.new if added else ())
    return measured or _USUAL_TOKENS_PER_CHARACTER


def holds_unknown(config: Config, head: Head, texts: Sequence[str]) -> bool:
    """Return whether the model's own tokenizer, where it is at hand, does not know a part of these texts."""
    facts = stored_model_of(config, head)
    if facts.tokenizer_folder is None:
        return False
    added = added_tokens(facts, config.model)
    return 0 in (pieces_of(facts.tokenizer_folder, texts, added.new if added else ()) or {}).values()


def tokenizer_of(config: Config, head: Head) -> tuple[str, int | None, int]:
    """(key, end token, number of tokens) of the tokenizer that a run uses, from its files."""
    if config.is_from_scratch:
        return TRAINED_HERE, None, config.model.scratch.vocab_size
    model = stored_model_of(config, head)
    found = tokenizer_facts(model.tokenizer_folder) if model.tokenizer_folder else None
    eos_id = found.eos_token_id if found else None
    if eos_id is None:
        eos_id = next(iter(model.eos_token_ids), None)
    # Code that comes with the model may make another tokenizer of the same files.
    code = " with its code" if model.has_remote_code and config.model.trust_remote_code else ""
    added = added_tokens(model, config.model)
    new = f" with {json.dumps(added.new)}" if added and added.new else ""
    vocabulary = found.vocabulary if found else model.shape.vocabulary
    return f"{model.tokenizer_key or ''}{code}{new}", eos_id, vocabulary + len(added.new if added else ())
