"""Rendered conversations as tokens and labels.

A conversation is cut where an assistant turn begins and ends, as generation cuts it: what is given is encoded first,
and the turn behind it. So no token reaches over the edge, and what a model is given later are the very tokens that it
learnt behind. Where the data spells a special token, the text between the template's own tokens is encoded with all
special ones off.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.errors import DataError
from tui_trainer.models.tokenizing.chat_rendering import Rendered, sections
from tui_trainer.models.tokenizing.token_ids import token_ids

# What tokenizers that put a space before a text are given before a part of one; it is taken away again.
_CONTEXT, _OTHER_CONTEXTS = "\n", ("|", "x")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some text that is encoded at once. `before` is what stands in front of it: "" at the beginning of a conversation.
    Where the data spells special tokens, each piece is one that the template wrote (`is_control`) or `is_text`."""

    text: str
    before: str
    trained: bool
    is_control: bool = False
    is_text: bool = False


def encode_conversations(tokenizer: Any, conversations: Sequence[Rendered]) -> list[tuple[list[int], list[int]]]:
    """(token ids, labels) of each conversation, not cut: labels are ids of tokens that carry loss, IGNORE elsewhere.

    The first token has no label, as nothing stands before it. Raises DataError for a tokenizer that makes a special
    token of text all the same.
    """
    pieces = [list(_pieces(conversation)) for conversation in conversations]
    flat = [piece for some in pieces for piece in some]
    of_pieces = _encoded(tokenizer, flat)
    _refuse_controls(tokenizer, flat, of_pieces)
    ids = iter(of_pieces)
    found = []
    for conversation, some in zip(conversations, pieces, strict=True):
        tokens: list[int] = []
        labels: list[int] = []
        for piece in some:
            part = next(ids)
            tokens += part
            labels += part if piece.trained else [IGNORE] * len(part)
        if conversation.adds_end:
            tokens.append(tokenizer.eos_token_id)
            labels.append(tokenizer.eos_token_id)
        found.append((tokens, [IGNORE, *labels[1:]]))
    return found


def _pieces(conversation: Rendered) -> Iterator[_Piece]:
    ends = {end: start for start, end in conversation.controls}
    for start, end, trained in sections(conversation):
        cuts = [start, end]
        if conversation.spelt:
            inside = (span for span in conversation.controls if start <= span[0] and span[1] <= end)
            cuts = sorted({start, end, *(place for span in inside for place in span)})
        for first, last in pairwise(cuts):
            before = "" if first == 0 else conversation.text[ends[first] : first] if first in ends else _CONTEXT
            is_control = (first, last) in conversation.controls
            is_apart = conversation.spelt > 0
            yield _Piece(
                conversation.text[first:last], before, trained, is_apart and is_control, is_apart and not is_control
            )


def _encoded(tokenizer: Any, pieces: Sequence[_Piece]) -> list[list[int]]:
    """The ids of each piece, as they are behind what stands before it."""
    befores = list(dict.fromkeys(piece.before for piece in pieces if piece.before))
    of_before = dict(zip(befores, _ids(tokenizer, befores), strict=True))
    whole = _ids(tokenizer, [piece.before + piece.text for piece in pieces if not piece.is_text])
    plain = _ids(tokenizer, [_CONTEXT + piece.text for piece in pieces if piece.is_text], is_text=True)
    context = _ids(tokenizer, [_CONTEXT], is_text=True)[0] if plain else []
    found, again = [], []
    texts, others = iter(plain), iter(whole)
    for place, piece in enumerate(pieces):
        ids = next(texts) if piece.is_text else next(others)
        before = context if piece.is_text else of_before.get(piece.before, [])
        if ids[: len(before)] != before:
            again.append(place)
        found.append(ids[len(before) :])
    for place in again:
        found[place] = _behind_others(tokenizer, pieces[place])
    return found


def _behind_others(tokenizer: Any, piece: _Piece) -> list[int]:
    """A piece that grew together with what was put before it: behind another sign, else alone."""
    for sign in _OTHER_CONTEXTS:
        before, ids = _ids(tokenizer, [sign, sign + piece.text], is_text=piece.is_text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
    return _ids(tokenizer, [piece.text], is_text=piece.is_text)[0]


def _refuse_controls(tokenizer: Any, pieces: Sequence[_Piece], ids: Sequence[Sequence[int]]) -> None:
    """`split_special_tokens` is for tokens that are marked as special; other added ones are made of any text."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    wrote = [part[0] for piece, part in zip(pieces, ids, strict=True) if piece.is_control and len(part) == 1]
    controls = (special | set(wrote)) - {tokenizer.unk_token_id}
    for piece, part in zip(pieces, ids, strict=True):
        if piece.is_text and (made := controls.intersection(part)):
            token = tokenizer.convert_ids_to_tokens(min(made))
            message = f"the text spells {token!r}, and this tokenizer makes a token that steers the conversation of it"
            raise DataError(message, hint="take it out of the data, or choose another task.chat_template")


def _ids(tokenizer: Any, texts: Sequence[str], *, is_text: bool = False) -> list[list[int]]:
    return token_ids(tokenizer, texts, special_tokens=False, split_special_tokens=is_text)
