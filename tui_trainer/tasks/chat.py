"""Conversations and instructions: a causal model learns to answer, with the chat template of its later use.

A row is a conversation (`data/columns/conversations.py`). Loss is on the assistant turns that task.loss_on selects, and
on the token that ends each of them (`models/chat_rendering.py`). Conversations share rows as documents do. A
conversation that is longer than data.max_length loses its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.conversations import Conversation, ConversationColumns, find_conversations
from tui_trainer.data.columns.reader import Encoded, Example, ReadInOrder
from tui_trainer.data.columns.row import Row, listed
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.data.preparing.byte_bpe import CHAT_SPECIAL_TOKENS
from tui_trainer.data.preparing.token_rows import INPUT_IDS, LABELS, Rows, TokenRow
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models import chat_rendering
from tui_trainer.models.adapters import should_continue_adapter
from tui_trainer.models.added_tokens import added_tokens, chat_marks_in
from tui_trainer.models.heads import Head
from tui_trainer.models.token_ids import encode_conversations
from tui_trainer.models.tokenizer import count_word_tokens
from tui_trainer.models.towers import has_towers
from tui_trainer.models.writing import sample_continuation
from tui_trainer.tasks.contract import Baselines, InputReader
from tui_trainer.tasks.parts.free_answers import ANSWER_ROWS, Prompt
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.next_token import LearnsNextToken
from tui_trainer.tasks.parts.ngram import unigram_loss
from tui_trainer.tasks.parts.starts_from_model import ConversationInputs, find_model_facts, stored_model_facts
from tui_trainer.tasks.parts.task import Task
from tui_trainer.units import quantity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData

_SCRATCH_TEMPLATE = "chatml"
_TOOL_TEMPLATE = "tool_use"  # transformers' name of a tokenizer's template for conversations with tools


class FormatsConversations(Task):
    """Base class of tasks whose rows are conversations that a chat template formats."""

    specials = CHAT_SPECIAL_TOKENS
    usual_length = (1024, 2048)

    def problems(self, config: Config) -> list[Problem]:
        problems = super().problems(config)
        if config.is_from_scratch:
            return problems + chat_rendering.template_problems(config.task.chat_template or _SCRATCH_TEMPLATE, None, "")
        if not config.model.model_name_or_path:
            return problems
        model_facts = find_model_facts(config, self.head)
        family = str(model_facts.config.get("model_type", ""))
        name, folder = config.task.chat_template, model_facts.tokenizer_folder
        return problems + chat_rendering.template_problems(name, folder, family)

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        template_name = config.task.chat_template or (_SCRATCH_TEMPLATE if config.is_from_scratch else "")
        template = chat_rendering.template_text(template_name) if template_name else ""
        return {**super().encoding_settings(config), "template": template, "stops": _model_stops(config)}

    def marks(self, config: Config) -> dict[str, int] | None:
        return mark_lengths(config, self.head)

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        tokenizer = super().load_tokenizer(config, data)
        store_template(config, tokenizer)
        return tokenizer


class Chat(FormatsConversations, LearnsNextToken):
    """Task of training on conversations. `tasks/parts/task.py` documents the methods."""

    name = "chat"
    title = "Chat and instructions"
    pipeline_tag = "text-generation"
    architectures = ("ForCausalLM", "LMHeadModel")
    holds_conversations = True
    supports_unsloth = True
    usual_answer_rows = ANSWER_ROWS
    used_settings: tuple[str, ...] = ("loss_on", "chat_template")
    can_pack = True
    used_column_settings: tuple[str, ...] = ("text_column", "text_pair_column", "target_column")
    continues = False

    def reader(self, config: Config) -> TableReader:
        return ChatReader(config)

    def reader_of_inputs(self, config: Config) -> TableReader:
        return ChatReader(config, renders=False)

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """Make the model stop at the end of a turn, and at the end tokens that it had before training."""
        super().set_generation(config, model, tokenizer)
        stops = renderer_of(config, tokenizer).stops
        model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return the loss of predicting each answer token by its frequency in the answers of the training rows."""
        loss, label_count = unigram_loss(Rows(data.train_path), held_out, eval_rows, vocabulary=data.counts.vocabulary)
        return Baselines(losses={"unigram": loss}, eval_tokens=label_count)

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the conversation before its last answer, and the model's answer."""
        answer_start = _last_answer(row)
        if not answer_start:
            return super().sample(config, data, model, tokenizer, row, new_tokens=new_tokens)
        prompt_ids = row.tokens[:answer_start].tolist()
        new_tokens = max(1, min(new_tokens, config.data.max_length - answer_start))
        return sample_continuation(model, tokenizer, prompt_ids, new_tokens=new_tokens)

    def prompt_of(self, config: Config, model: Any, tokenizer: Tokenizer, row: TokenRow) -> Prompt | None:
        """Return the conversation before its last answer, or None if the conversation has no labelled answer."""
        answer_start = _last_answer(row)
        if not answer_start:
            return None
        ids, labels = row.tokens.tolist(), row.labels
        assert labels is not None
        answer_ids = [token_id for token_id, label in zip(ids[answer_start:], labels[answer_start:], strict=True)
                      if label != IGNORE]  # fmt: skip
        prompt = Prompt.of(model, ids[:answer_start], answer_ids)
        return replace(prompt, reference=str(tokenizer.decode(list(prompt.reference_ids), skip_special_tokens=True)))

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return ConversationInputs(config.data, renderer_of(config, tokenizer))

    def prompt_ids(self, tokenizer: Tokenizer, contents: Sequence[Any]) -> list[list[int]]:
        return [ids for ids, _ in encode_conversations(tokenizer, contents)]


# Kinds of counts in `ChatReader`.
_SPELT, _TOOLS_IN_TEXT, _TURN_KEY, _OMITTED_TURNS, _OMITTED_ROWS = "spelt", "tools in text", "key", "turns", "rows"


class ChatReader(TableReader):
    """Reader of conversations, which renders each with the chat template, so that one which the template rejects is a
    bad row. With `renders=False`, a table can be read without a tokenizer."""

    reads_in_processes = labels_are_tokens = True
    head: Head = Chat.head

    def __init__(self, config: Config, *, renders: bool = True) -> None:
        super().__init__(config, self.head, CHAT_SPECIAL_TOKENS)
        self.renders = renders
        self._columns = ConversationColumns()
        self._renderer: chat_rendering.ConversationRenderer | None = None
        self._tables: list[ConversationColumns] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        """Counts by kind and detail: rows that spell special tokens or have tools in their text, rows with each key of
        turns, and turns and rows with each part that the template omits."""

    @property
    def renderer(self) -> chat_rendering.ConversationRenderer:
        if self._renderer is None:
            self._renderer = renderer_of(self.config, None if self.trains_tokenizer else self.tokenizer)
        return self._renderer

    def begin(self, head: Sequence[Row]) -> None:
        data = self.config.data
        self._columns = find_conversations(head, data.text_column, data.target_column, data.text_pair_column)
        self._begun = self._columns
        self._tables.append(self._columns)

    @property
    def found_columns(self) -> Mapping[str, str]:
        columns = self._columns
        second_column = next((name for name in columns.question_columns if name != columns.pair.source), "")
        text_column = columns.conversation or columns.pair.source
        return {"text_column": text_column, "text_pair_column": second_column, "target_column": columns.pair.target}

    def check_late_row(self, row: Row, head: Sequence[Row]) -> None:
        self._columns = self._tables[-1] = self._columns.with_columns_of(row)

    def read(self, row: Row) -> Example:
        conversation = self._columns.read(row)
        conversation.refuse_unlearnable(row, self.config.task.loss_on)
        refuse_surrogates(conversation.text, row.where)
        if not self.renders:
            return Example(conversation.text, conversation)
        rendered = self.rendered(conversation, row.where)
        # Duplicates are found by this text, so other keys of a message do not matter.
        return Example(conversation.text if self.trains_tokenizer else rendered.text, rendered)

    def rendered(self, conversation: Conversation, where: str) -> chat_rendering.Rendered:
        """Render a conversation, and count what is noted. Raise DataError, with the position of its row."""
        try:
            rendered = self.renderer.render(conversation)
        except DataError as error:
            problem = error.problems[0]
            raise DataError(problem.message, where=where, hint=problem.hint) from None
        counts = self._counts
        counts[_SPELT, ""] += bool(rendered.spelled_token_count)
        counts[_TOOLS_IN_TEXT, ""] += conversation.lists_tools
        for key in conversation.keys_of_turns:
            counts[_TURN_KEY, key] += 1
        if rendered.omitted_parts:
            counts.update((_OMITTED_TURNS, part) for part in rendered.omitted_parts)
            counts.update((_OMITTED_ROWS, part) for part in {*rendered.omitted_parts})
        return rendered

    def take_observations(self) -> Counter[tuple[str, str]]:
        if self._columns is not self._begun:
            raise ReadInOrder  # columns that appear late apply to the rows after them
        observations, self._counts = self._counts, Counter()
        return observations

    def add_observations(self, observations: Counter[tuple[str, str]]) -> None:
        self._counts.update(observations)

    def learn(self, texts: Iterator[str], path: Path) -> None:
        super().learn(texts, path)
        store_template(self.config, self.tokenizer)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        encoded_rows, max_length = [], self.max_length
        for ids, labels in self.encode_conversations([example.content for example in examples]):
            row_labels = labels[:max_length]
            label_count = sum(label != IGNORE for label in row_labels)
            needs = 0 if label_count else next((count for count, label in enumerate(labels, 1) if label != IGNORE), 0)
            row = {INPUT_IDS: ids[:max_length], LABELS: row_labels}
            encoded_rows.append(Encoded(row, label_count, truncated=len(ids) > max_length, first_label_tokens=needs))
        return encoded_rows

    def encode_conversations(
        self, conversations: Sequence[chat_rendering.Rendered]
    ) -> list[tuple[list[int], list[int]]]:
        """Return (token ids, labels) of each conversation. Raise DataError if answers would have no end."""
        if any(conversation.adds_end for conversation in conversations) and self.tokenizer.eos_token_id is None:
            message = "the chat template writes no stop token, and the tokenizer has no eos_token"
            raise DataError(
                message, hint=f"choose another {chat_rendering.TEMPLATE_KEY}, or set an eos_token in the tokenizer"
            )
        return encode_conversations(self.tokenizer, conversations)

    def note_of_ends(self) -> str:
        """Return a sentence on the token that ends an answer."""
        if self.renderer.turn_end:
            return f"an answer ends with the stop token {self.renderer.turn_end}"
        return f"the template writes no stop token, so {self.tokenizer.eos_token} is appended to the last answer"

    def notes(self) -> list[str]:
        counts = self._counts
        name = self.config.task.chat_template or (_SCRATCH_TEMPLATE if self.trains_tokenizer else "")
        template = f"the chat template {name}" if name else "the tokenizer's own chat template"
        table_notes = dict.fromkeys(columns.note() for columns in self._tables)
        notes = [*table_notes, f"conversations are formatted with {template}"]
        notes.append(self.note_of_ends())
        if ignored_keys := sorted(key for kind, key in counts if kind == _TURN_KEY and not self.renderer.reads(key)):
            notes.append(f"turn keys that the chat template ignores: {listed(ignored_keys)}")
        if spelt_rows := counts[_SPELT, ""]:
            notes.append(f"{quantity(spelt_rows, 'row', 'contain')} names of special tokens, read as plain text")
        if rows := counts[_TOOLS_IN_TEXT, ""]:
            notes.append(f"{quantity(rows, 'row', 'have')} tools in the system turn already, so none are added again")
        for omitted_part in (omitted for kind, omitted in counts if kind == _OMITTED_TURNS):
            words = "the reasoning" if omitted_part == chat_rendering.REASONING[0] else "the speaker's name"
            turns_text = quantity(counts[_OMITTED_TURNS, omitted_part], "turn")
            rows_text = quantity(counts[_OMITTED_ROWS, omitted_part], "row")
            notes.append(f"the chat template omits {words} in {turns_text} of {rows_text}, so it is not trained on")
        return notes


def renderer_of(config: Config, tokenizer: Any) -> chat_rendering.ConversationRenderer:
    """Return the renderer for `tokenizer` or, if it is None, for the tokenizer that this run will train.

    Raises ConfigError if there is no usable chat template."""
    loss_on = config.task.loss_on
    if tokenizer is None:
        special_tokens, name = dict(CHAT_SPECIAL_TOKENS.named_tokens), config.task.chat_template or _SCRATCH_TEMPLATE
        template = chat_rendering.ChatTemplate(name, chat_rendering.template_text(name), special_tokens)
        tokens = CHAT_SPECIAL_TOKENS.tokens
        return chat_rendering.ConversationRenderer(template, tokens, tokens, [special_tokens["eos_token"]], loss_on)
    stop_tokens = [tokenizer.eos_token, *tokenizer.convert_ids_to_tokens(_model_stops(config))]
    existing_stops = [token for token in stop_tokens if token]
    added = tokenizer.get_added_vocab()
    special = [token for token in added if tokenizer.added_tokens_decoder[added[token]].special]
    template, special = template_of(config, tokenizer), [*special, *tokenizer.all_special_tokens]
    return chat_rendering.ConversationRenderer(template, special, list(added), existing_stops, loss_on)


def template_of(config: Config, tokenizer: Any) -> chat_rendering.ChatTemplate:
    """Return the chat template that a run uses with a loaded tokenizer. Raise ConfigError if there is none."""
    special_tokens = tokenizer.special_tokens_map
    name = config.task.chat_template or (_SCRATCH_TEMPLATE if config.is_from_scratch else "")
    if name:
        return chat_rendering.ChatTemplate(name, chat_rendering.template_text(name), special_tokens)
    stored = tokenizer.chat_template
    templates: Mapping[str, str] = stored if isinstance(stored, dict) else {"default": stored or ""}
    if not templates.get("default"):
        raise chat_rendering.no_template(config.model.model_name_or_path)
    tool_template = templates.get(_TOOL_TEMPLATE, "")
    return chat_rendering.ChatTemplate("of the tokenizer", templates["default"], special_tokens, tool_template)


def store_template(config: Config, tokenizer: Any) -> None:
    """Store the run's chat template in a tokenizer, which then encodes the special tokens of the template as such."""
    template = template_of(config, tokenizer)
    if config.task.chat_template or config.is_from_scratch:
        tokenizer.chat_template = template.text
    if config.is_from_scratch:
        tokenizer.split_special_tokens = False
        tokenizer.init_kwargs["split_special_tokens"] = False


def mark_lengths(config: Config, head: Head) -> dict[str, int] | None:
    """Return the marks that the chat template of a run writes, such as "<|im_end|>", with the number of tokens of each,
    which is 1 for those in `model.add_tokens`. None if unknown, or if no token can be added."""
    if config.is_from_scratch or not config.model.model_name_or_path:
        return None
    facts = stored_model_facts(config, head)
    folder = facts.tokenizer_folder
    continues_adapter = facts.adapter is not None and should_continue_adapter(config.tuning)
    if folder is None or continues_adapter or has_towers(str(facts.config.get("model_type"))):
        return None
    name = config.task.chat_template
    template = chat_rendering.template_text(name) if name else chat_rendering.stored_template(folder)
    added = added_tokens(facts, config.model)
    if (lengths := count_word_tokens(folder, chat_marks_in(template))) is None:
        return None
    return lengths | dict.fromkeys(lengths.keys() & set(added.new_tokens if added else ()), 1)


def _model_stops(config: Config) -> list[int]:
    """Return the end tokens that the model had before, from its generation_config.json or config.json."""
    if config.is_from_scratch:
        return []
    # A trained model can be tried without the model that it started from.
    with suppress(ConfigError):
        return list(find_model_facts(config, Chat.head).eos_token_ids)
    return []


def _last_answer(row: TokenRow) -> int:
    """Return the position of the first label of the last answer; 0 if there is no label or all tokens have one."""
    if row.labels is None:
        return 0
    positions = (row.labels != IGNORE).nonzero()[0]
    gaps = (positions[1:] - positions[:-1] > 1).nonzero()[0]
    return 0 if not len(positions) or positions[0] == 1 else int(positions[gaps[-1] + 1] if len(gaps) else positions[0])


TASK = Chat()
