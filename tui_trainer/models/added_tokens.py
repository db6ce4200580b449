"""Tokens that a tokenizer gets beside its own (`model.add_tokens`), and the rows that embedding and head get for them.

Which are new, and which numbers they have, is told by tokenizer.json without torch, so that the plan, the prepared data
and the loaded model agree. A new row is the mean of the rows that tokens had before, in fp32: its first logits are
those of an average token. Source: John Hewitt, "Initializing New Word Embeddings for Pretrained Language Models", 2021.

An adapter keeps the rows of its tokens alone (`trainable_token_indices` of peft), and the config.json beside it says
how many rows its model has got.
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
from tui_trainer.config.token_list import TOKENS, tokens_in
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.config_json import bad_model
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.heads import CAUSAL, ENCODER_DECODER
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import SAVED_KEY, saves_embedding, saves_head
from tui_trainer.models.tokenizer import FAST_FILE, first_new_id, pieces_of, tokenizer_command
from tui_trainer.models.towers import has_towers
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

MULTIPLE = 64
"""Rows of a table are a multiple of it, as tensor cores take them."""
INDICES = "trainable_token_indices"
# What chat templates write around turns: special tokens, which generated text is shown without. Others are ordinary:
# <think> and <tool_call> are text that people want to see.
CHAT_MARK = re.compile(r"<\|[^<>|\s]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedTokens:
    """`new` are tokens in the order of their ids, the first of which is `first_id`; `known` were one token before.
    `rows` are those of the embedding with them."""

    new: tuple[str, ...]
    known: tuple[str, ...] = ()
    first_id: int
    rows: int

    @property
    def ids(self) -> range:
        return range(self.first_id, self.first_id + len(self.new))


def is_chat_mark(token: str) -> bool:
    return CHAT_MARK.fullmatch(token) is not None


def added_tokens(facts: ModelFacts, model: ModelSection) -> AddedTokens | None:
    """What `model.add_tokens` adds to a model's tokenizer; None where it asks for nothing, or the tokenizer is not on
    this machine. Raises ConfigError where nobody can tell."""
    asked, folder = tokens_in(model.add_tokens), facts.tokenizer_folder
    if not asked or folder is None:
        return None
    if (pieces := pieces_of(folder, asked)) is None:
        message = f"adding tokens needs a {FAST_FILE}, which this model's tokenizer does not have"
        raise ConfigError(Problem(message=message, key=TOKENS, hint=f"create one: {tokenizer_command(folder)}"))
    new = tuple(token for token in asked if pieces[token] != 1)
    first, now = first_new_id(folder), int(facts.config.get("vocab_size") or 0)
    needed = first + len(new)
    rows = now if not new or needed <= now else -(-needed // MULTIPLE) * MULTIPLE
    return AddedTokens(new=new, known=tuple(token for token in asked if pieces[token] == 1), first_id=first, rows=rows)


def with_added_tokens(facts: ModelFacts, model: ModelSection) -> ModelFacts:
    """The facts of a model with the rows that its embedding gets. Raises ConfigError."""
    added = added_tokens(facts, model)
    now = facts.config.get("vocab_size")
    if added is None or added.rows == now:
        return facts
    stored = facts.stored_vocabulary or now
    return replace(facts, config={**facts.config, "vocab_size": added.rows}, stored_vocabulary=stored)


def ids_of_adapter(fields: Mapping[str, Any]) -> range | None:
    """By adapter_config.json: the tokens whose rows an adapter keeps, none
    where it keeps no rows; None for rows that are not one behind the other, or not the same in all tables. New tokens
    that fit into spare rows of the base model need no config.json of their own."""
    told = fields.get(INDICES)
    lists = list(told.values()) if isinstance(told, Mapping) else [told] if told else []
    if not lists:
        return range(0)
    ids = lists[0]
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        return None
    found = range(ids[0], ids[0] + len(ids))
    return found if all(one == list(found) for one in lists) else None


def trained_ids(facts: ModelFacts, config: Config, *, goes_on: bool) -> range:
    """The tokens whose rows train beside LoRA adapters; none where whole tables do, or all weights. `goes_on`: whether
    the adapter that the run starts from trains further."""
    if not config.tuning.has_adapter:
        return range(0)
    if facts.adapter and goes_on:
        return ids_of_adapter(facts.adapter.fields) or range(0)
    added = added_tokens(facts, config.model)
    if added is None or not added.new or _saves_tables(facts.shape, config.tuning):
        return range(0)
    return added.ids


def _saves_tables(shape: ModelShape, tuning: TuningSection) -> bool:
    """Whether embedding and head are trained as a whole beside the adapters."""
    embeds, makes_logits = (one(shape, tuning.modules_to_save) for one in (saves_embedding, saves_head))
    over_vocabulary = shape.head in (CAUSAL, ENCODER_DECODER) and not shape.tied_embeddings
    return embeds and makes_logits if over_vocabulary else embeds or makes_logits


def row_parameters(shape: ModelShape) -> int:
    """Weights that a token has in the tables of a model: of the embedding, and of a head that is not the same."""
    embeds = sum(part.parameters_each // part.rows for part in shape.parts if part.rows == shape.vocabulary)
    heads = (linear.inputs for linear in shape.linears if linear.is_head and linear.outputs == shape.vocabulary)
    return embeds + (0 if shape.tied_embeddings else sum(heads))


def token_problems(facts: ModelFacts, config: Config, *, goes_on: bool) -> list[Problem]:
    """Everything that keeps tokens from being added as asked."""
    if not config.model.add_tokens.strip():
        return []
    try:
        added = added_tokens(facts, config.model)
    except ConfigError as error:
        return list(error.problems)
    if added is None or not added.new:
        return []
    return [
        Problem(message=message, key=TOKENS, hint=hint) for message, hint in _against(facts, config, added, goes_on)
    ]


def _against(facts: ModelFacts, config: Config, added: AddedTokens, goes_on: bool) -> Iterator[tuple[str, str]]:
    family, tuning = one_line(str(facts.config.get("model_type")), 80), config.tuning
    if has_towers(family):
        yield (
            f"has not been tested with {family}, whose embedding belongs to a nested language model",
            "remove the setting",
        )
    if tuning.trainable_layers:
        yield (
            "new tokens would not be trained: tuning.trainable_layers freezes the embedding",
            "remove one of the two settings",
        )
    if facts.adapter and goes_on:
        shown = one_line(", ".join(added.new[:3]), 80)
        yield (
            f"the adapter to continue has no embedding rows for {shown}",
            'remove the new tokens, or set tuning.continue_adapter = "merge" and tuning.method = "full"',
        )
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
    whole = saves_embedding(shape, tuning.modules_to_save), saves_head(shape, tuning.modules_to_save)
    if any(whole) and not _saves_tables(shape, tuning):
        yield (
            f"with {SAVED_KEY} = {', '.join(names)}, new tokens are trained in only one of embedding and head",
            f"name embedding and head in {SAVED_KEY}",
        )
    if not any(whole) and any(one.is_head and one.has_bias for one in shape.linears) and facts.head == CAUSAL:
        yield (
            "the head has a bias, which peft drops when it trains single rows of the head",
            f"name embedding and head in {SAVED_KEY}",
        )


def planned_words(added: AddedTokens | None, before: int) -> str:
    """What is planned, as a clause; empty where nothing is added."""
    if added is None:
        return ""
    parts = [f"new tokens in {TOKENS}: {len(added.new):,}"] if added.new else []
    if added.rows > before:
        parts.append(f"the embedding grows from {before:,} to {added.rows:,} rows")
    if added.known:
        some = one_line(", ".join(added.known[:3]), 60) + (", ..." if len(added.known) > 3 else "")
        parts.append(f"already in the vocabulary: {len(added.known):,} ({some})")
    return "; ".join(parts)


# What loads torch or transformers.


def give_tokens(tokenizer: PreTrainedTokenizerBase, added: AddedTokens, folder: Path) -> None:
    """Adds them to a loaded tokenizer, found wherever they stand in a text. Raises ConfigError where they get other
    numbers than planned."""
    from transformers import AddedToken

    tokenizer.add_tokens([AddedToken(token, normalized=False, special=is_chat_mark(token)) for token in added.new])
    given = tokenizer.convert_tokens_to_ids(list(added.new))
    if given != list(added.ids):
        message = f"the tokenizer gave the new tokens the ids {one_line(str(given), 80)} instead of {added.ids}"
        raise bad_model(message, f"remove {TOKENS}", str(folder))


def grow_as_trained(model: Any, fields: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Gives a loaded model the rows that it had when an adapter was trained on it, by the files of the adapter."""
    grow(model, int(config.get("vocab_size") or 0), ids_of_adapter(fields) or ())


def grow(model: Any, rows: int, ids: Sequence[int]) -> None:
    """Gives embedding and head of a loaded model so many rows; new ones, and those of `ids`, become the mean of those
    that tokens had."""
    import torch

    table = model.get_input_embeddings().weight
    before, first = table.shape[0], ids[0] if ids else table.shape[0]
    if rows <= before and not ids:
        return
    if rows > before:
        # What it would draw is written over.
        model.resize_token_embeddings(rows, mean_resizing=False)
    head = model.get_output_embeddings()
    found = [model.get_input_embeddings().weight]
    if head is not None and head.weight is not found[0]:
        found.append(head.weight)
    if head is not None and getattr(head, "bias", None) is not None:
        found.append(head.bias)
    with torch.no_grad():
        for weight in found:
            _fill(weight, before, first, len(ids))


def grown(stored: Tensor, rows: int, ids: Sequence[int]) -> Tensor:
    """The same of one stored tensor, [V, ...] to [rows, ...]."""
    if len(stored) >= rows and not ids:
        return stored
    before, first = len(stored), ids[0] if ids else len(stored)
    found = stored.new_empty((max(rows, before), *stored.shape[1:]))
    found[:before] = stored
    _fill(found, before, first, len(ids))
    return found


def _fill(weight: Tensor, before: int, first: int, count: int) -> None:
    """Rows `first` to `first + count`, and all from `before` on, at the mean of those below `first`."""
    import torch

    mean = weight[: min(first, before)].mean(dim=0, dtype=torch.float32).to(weight.dtype)
    weight[first : first + count] = mean
    weight[before:] = mean


@lru_cache(maxsize=16)
def marks_in(template: str) -> tuple[str, ...]:
    """The chat marks that a template writes, by its source: `<|` and `|>` around a role stand for each role."""
    text = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    found = dict.fromkeys(CHAT_MARK.findall(text))
    if re.search(r"<\|['\"]\s*[+~]\s*\(?\s*message(?:\.role|\[['\"]role['\"]\])", text):
        found |= dict.fromkeys(f"<|{role}|>" for role in ("system", "user", "assistant"))
    return tuple(found)
