"""Add tokens to a tokenizer (`model.add_tokens`), and rows for them to the embedding and the head.

tokenizer.json decides, without torch, which tokens are new and which ids they get, so the plan, the prepared data and
the loaded model agree. A new row is the mean, in fp32, of the rows that tokens had before, so its first logits are
those of an average token. Source: John Hewitt, "Initializing New Word Embeddings for Pretrained Language Models", 2021.

An adapter stores only the rows of its own tokens (`trainable_token_indices` of peft). The config.json beside the
adapter gives the number of rows of its model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config, ModelSection, TuningSection
from tui_trainer.config.token_list import ADD_TOKENS_KEY, tokens_in
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.config_json import bad_model
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.heads import CAUSAL, ENCODER_DECODER
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import SAVED_KEY, saves_embedding, saves_head
from tui_trainer.models.tokenizer import FAST_FILE, count_word_tokens, first_new_id, tokenizer_command
from tui_trainer.models.towers import has_towers
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

ROW_MULTIPLE = 64
"""The number of embedding rows is rounded up to a multiple of this, which suits tensor cores."""
INDICES_FIELD = "trainable_token_indices"
# Tokens that chat templates write around turns. They become special tokens, which are removed from generated text.
# Others stay ordinary, because users want to see <think> and <tool_call>.
CHAT_MARK = re.compile(r"<\|[^<>|\s]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedTokens:
    """Tokens that a run adds. `new_tokens` lists them in the order of their ids, which begin at `first_id`; `existing`
    lists requested tokens that the tokenizer already had. `embedding_rows` is the resulting number of rows."""

    new_tokens: tuple[str, ...]
    existing: tuple[str, ...] = ()
    first_id: int
    embedding_rows: int

    @property
    def ids(self) -> range:
        return range(self.first_id, self.first_id + len(self.new_tokens))


def is_chat_mark(token: str) -> bool:
    return CHAT_MARK.fullmatch(token) is not None


def added_tokens(facts: ModelFacts, model: ModelSection) -> AddedTokens | None:
    """Return the tokens that `model.add_tokens` adds, or None if the setting is empty or the tokenizer is not on this
    machine. Raise ConfigError if there is no tokenizer.json to decide this."""
    requested_tokens, folder = tokens_in(model.add_tokens), facts.tokenizer_folder
    if not requested_tokens or folder is None:
        return None
    if (piece_counts := count_word_tokens(folder, requested_tokens)) is None:
        message = f"adding tokens needs a {FAST_FILE}, which this model's tokenizer does not have"
        raise ConfigError(Problem(message=message, key=ADD_TOKENS_KEY, hint=f"create one: {tokenizer_command(folder)}"))
    new_tokens = tuple(token for token in requested_tokens if piece_counts[token] != 1)
    existing_tokens = tuple(token for token in requested_tokens if piece_counts[token] == 1)
    first_id, rows_before = first_new_id(folder), int(facts.config.get("vocab_size") or 0)
    least = first_id + len(new_tokens)
    table_rows = rows_before if not new_tokens or least <= rows_before else -(-least // ROW_MULTIPLE) * ROW_MULTIPLE
    return AddedTokens(new_tokens=new_tokens, existing=existing_tokens, first_id=first_id, embedding_rows=table_rows)


def with_added_tokens(facts: ModelFacts, model: ModelSection) -> ModelFacts:
    """Return the facts of a model with its number of embedding rows after `model.add_tokens`. Raise ConfigError."""
    added = added_tokens(facts, model)
    rows_before = facts.config.get("vocab_size")
    if added is None or added.embedding_rows == rows_before:
        return facts
    stored_rows = facts.stored_vocabulary or rows_before
    return replace(facts, config={**facts.config, "vocab_size": added.embedding_rows}, stored_vocabulary=stored_rows)


def ids_of_adapter(fields: Mapping[str, Any]) -> range | None:
    """Return the ids of the tokens whose rows an adapter stores, from its adapter_config.json (`fields`). The range is
    empty if the adapter stores no rows, and None if the ids are not consecutive or differ between tables."""
    field_value = fields.get(INDICES_FIELD)
    id_lists = list(field_value.values()) if isinstance(field_value, Mapping) else [field_value] if field_value else []
    if not id_lists:
        return range(0)
    first_ids = id_lists[0]
    if not isinstance(first_ids, list) or not first_ids or not all(type(token_id) is int for token_id in first_ids):
        return None
    consecutive_ids = range(first_ids[0], first_ids[0] + len(first_ids))
    return consecutive_ids if all(id_list == list(consecutive_ids) for id_list in id_lists) else None


def trained_ids(facts: ModelFacts, config: Config, *, continues_adapter: bool) -> range:
    """Return the ids of the tokens whose rows train beside LoRA adapters. Empty if whole tables or all weights train.
    `continues_adapter`: the adapter that the run starts from continues to train."""
    if not config.tuning.has_adapter:
        return range(0)
    if facts.adapter and continues_adapter:
        return ids_of_adapter(facts.adapter.fields) or range(0)
    added = added_tokens(facts, config.model)
    if added is None or not added.new_tokens or _saves_tables(facts.shape, config.tuning):
        return range(0)
    return added.ids


def _saves_tables(shape: ModelShape, tuning: TuningSection) -> bool:
    """Return whether embedding and head are trained as whole modules beside the adapters."""
    has_embedding, has_head = (is_saved(shape, tuning.modules_to_save) for is_saved in (saves_embedding, saves_head))
    has_two_tables = shape.head in (CAUSAL, ENCODER_DECODER) and not shape.tied_embeddings
    return has_embedding and has_head if has_two_tables else has_embedding or has_head


def row_parameters(shape: ModelShape) -> int:
    """Return the number of weights of one token in the embedding and in an untied head."""
    table_weights = sum(part.parameters_each // part.rows for part in shape.parts if part.rows == shape.vocabulary)
    head_inputs = (linear.inputs for linear in shape.linears if linear.is_head and linear.outputs == shape.vocabulary)
    return table_weights + (0 if shape.tied_embeddings else sum(head_inputs))


def token_problems(facts: ModelFacts, config: Config, *, continues_adapter: bool) -> list[Problem]:
    """Return everything that keeps the requested tokens from being added."""
    if not config.model.add_tokens.strip():
        return []
    try:
        added = added_tokens(facts, config.model)
    except ConfigError as error:
        return list(error.problems)
    if added is None or not added.new_tokens:
        return []
    obstacles = _obstacles(facts, config, added, continues_adapter)
    return [Problem(message=message, key=ADD_TOKENS_KEY, hint=hint) for message, hint in obstacles]


def _obstacles(
    facts: ModelFacts, config: Config, added: AddedTokens, continues_adapter: bool
) -> Iterator[tuple[str, str]]:
    family, tuning = one_line(str(facts.config.get("model_type")), 80), config.tuning
    if has_towers(family):
        message = f"has not been tested with {family}, whose embedding belongs to a nested language model"
        yield message, "remove the setting"
    if tuning.trainable_layers:
        message = "new tokens would not be trained, because tuning.trainable_layers freezes the embedding"
        yield message, "remove one of the two settings"
    if facts.adapter and continues_adapter:
        examples = one_line(", ".join(added.new_tokens[:3]), 80)
        hint = 'remove the new tokens, or set tuning.continue_adapter = "merge" and tuning.method = "full"'
        yield f"the adapter to continue has no embedding rows for {examples}", hint
        return
    if not tuning.has_adapter:
        return
    shape = facts.shape
    if facts.head == ENCODER_DECODER:
        hint = f'set tuning.method = "full", or {SAVED_KEY} = "shared"'
        if not _saves_tables(shape, tuning):
            yield "LoRA cannot train single rows of an embedding that is shared by encoder and decoder", hint
        return
    names = names_in(tuning.modules_to_save)
    saves_any = saves_embedding(shape, tuning.modules_to_save) or saves_head(shape, tuning.modules_to_save)
    if saves_any and not _saves_tables(shape, tuning):
        message = f"with {SAVED_KEY} = {', '.join(names)}, new tokens are trained in only one of embedding and head"
        yield message, f"name embedding and head in {SAVED_KEY}"
    has_bias = any(linear.is_head and linear.has_bias for linear in shape.linears)
    if not saves_any and has_bias and facts.head == CAUSAL:
        message = "the head has a bias, which peft drops when it trains single rows of the head"
        yield message, f"name embedding and head in {SAVED_KEY}"


def planned_words(added: AddedTokens | None, rows_before: int) -> str:
    """Describe the added tokens in a clause for the plan; "" without any."""
    if added is None:
        return ""
    clauses = [f"new tokens in {ADD_TOKENS_KEY}: {len(added.new_tokens):,}"] if added.new_tokens else []
    if added.embedding_rows > rows_before:
        clauses.append(f"the embedding grows from {rows_before:,} to {added.embedding_rows:,} rows")
    if existing := added.existing:
        examples = one_line(", ".join(existing[:3]), 60) + (", ..." if len(existing) > 3 else "")
        clauses.append(f"already in the vocabulary: {len(existing):,} ({examples})")
    return "; ".join(clauses)


def add_to_tokenizer(tokenizer: PreTrainedTokenizerBase, added: AddedTokens, folder: Path) -> None:
    """Add the tokens to a loaded tokenizer, which finds them anywhere. Raise ConfigError for unplanned ids."""
    from transformers import AddedToken

    tokens = [AddedToken(token, normalized=False, special=is_chat_mark(token)) for token in added.new_tokens]
    tokenizer.add_tokens(tokens)
    ids = tokenizer.convert_tokens_to_ids(list(added.new_tokens))
    if ids != list(added.ids):
        message = f"the tokenizer gave the new tokens the ids {one_line(str(ids), 80)} instead of {added.ids}"
        raise bad_model(message, f"remove {ADD_TOKENS_KEY}", str(folder))


def resize_for_adapter(model: Any, fields: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Give a loaded model the number of embedding rows that it had when an adapter was trained on it. `fields` and
    `config` are the adapter_config.json and config.json of the adapter."""
    resize_tables(model, int(config.get("vocab_size") or 0), ids_of_adapter(fields) or ())


def resize_tables(model: Any, rows: int, ids: Sequence[int]) -> None:
    """Resize embedding and head to `rows` rows. New rows, and those of `ids`, become the mean of the rows before."""
    import torch

    table = model.get_input_embeddings().weight
    rows_before, first_new_row = table.shape[0], ids[0] if ids else table.shape[0]
    if rows <= rows_before and not ids:
        return
    if rows > rows_before:
        # The new rows are overwritten below, so they need no sampled values.
        model.resize_token_embeddings(rows, mean_resizing=False)
    head = model.get_output_embeddings()
    tensors = [model.get_input_embeddings().weight]
    if head is not None and head.weight is not tensors[0]:
        tensors.append(head.weight)
    if head is not None and getattr(head, "bias", None) is not None:
        tensors.append(head.bias)
    with torch.no_grad():
        for tensor in tensors:
            _fill_with_mean(tensor, rows_before, first_new_row, len(ids))


def resized_table(stored_table: Tensor, rows: int, ids: Sequence[int]) -> Tensor:
    """Return a stored tensor [V, ...] with at least `rows` rows, filled as `resize_tables` does."""
    if len(stored_table) >= rows and not ids:
        return stored_table
    rows_before, first_new_row = len(stored_table), ids[0] if ids else len(stored_table)
    table = stored_table.new_empty((max(rows, rows_before), *stored_table.shape[1:]))
    table[:rows_before] = stored_table
    _fill_with_mean(table, rows_before, first_new_row, len(ids))
    return table


def _fill_with_mean(weight: Tensor, rows_before: int, first: int, count: int) -> None:
    """Set the rows of new tokens and those that resizing added, from `rows_before`, to the mean of the older rows."""
    import torch

    mean_row = weight[: min(first, rows_before)].mean(dim=0, dtype=torch.float32).to(weight.dtype)
    weight[first : first + count] = mean_row
    weight[rows_before:] = mean_row


@lru_cache(maxsize=16)
def chat_marks_in(template: str) -> tuple[str, ...]:
    """Return the chat marks that a template writes, such as `<|user|>`. `<|` and `|>` around a role mean all roles."""
    template_code = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    marks = dict.fromkeys(CHAT_MARK.findall(template_code))
    if re.search(r"<\|['\"]\s*[+~]\s*\(?\s*message(?:\.role|\[['\"]role['\"]\])", template_code):
        marks |= dict.fromkeys(f"<|{role}|>" for role in ("system", "user", "assistant"))
    return tuple(marks)
