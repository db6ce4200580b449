"""Texts into token ids, and nothing else: without offsets, masks and the objects that carry them.

Most of what transformers does with a batch beside the tokenizing is for those. Where a tokenizer is one of the common
kind, its Rust part is asked directly; one with a way of its own is called as everybody calls it. Both give equal ids.
"""

import copyreg
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.errors import DataError
from tui_trainer.models.chat_rendering import Rendered, sections

_SEGMENTS = "token_type_ids"


@dataclass(frozen=True, slots=True)
class CutIds:
    """Of each text: its ids, their segments (all 0 without a second text) if they were asked for, whether it lost its
    end, and whether it spells what begins or ends it (`marked_once`)."""

    ids: list[list[int]]
    segments: list[list[int]]
    is_cut: list[bool]
    is_marked: list[bool]


def token_ids(
    tokenizer: Any, texts: Sequence[str], *, special_tokens: bool = True, split_special_tokens: bool | None = None
) -> list[list[int]]:
    """Ids of each text, whole. `split_special_tokens`: what is spelt like a special token is text; None: as the
    tokenizer is set."""
    if not texts:
        return []
    split = tokenizer.split_special_tokens if split_special_tokens is None else split_special_tokens
    if not _is_common(tokenizer):
        more = {"add_special_tokens": special_tokens, "split_special_tokens": split, "return_attention_mask": False}
        found: list[list[int]] = tokenizer(list(texts), **more, verbose=False)["input_ids"]
        return found
    return [encoding.ids for encoding in _encodings(tokenizer, list(texts), None, special_tokens, split)]


class TextEncoder:
    """Texts to ids with a tokenizer, special tokens included. It is loaded at the first text.

    What another process gets of a common tokenizer is its Rust part: transformers takes a second to import.
    """

    def __init__(self, load_tokenizer: Callable[[], Any]) -> None:
        self._load_tokenizer = load_tokenizer
        self._tokenizer: Any = None

    def load(self) -> Any:
        self._tokenizer = self._tokenizer or self._load_tokenizer()
        return self._tokenizer

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return token_ids(self.load(), texts)

    def marked_once(self, texts: Sequence[str]) -> tuple[Sequence[str], list[bool]]:
        return marked_once(self.load(), texts)

    def __reduce__(self) -> tuple[Any, ...]:
        tokenizer = self._tokenizer
        if tokenizer is None or not _is_common(tokenizer):
            # Other processes do not find a class that came with the model.
            is_found = not type(tokenizer).__module__.startswith("transformers_modules")
            state = {**vars(self), "_tokenizer": tokenizer if is_found else None}
            return copyreg.__newobj__, (TextEncoder,), state  # type: ignore[attr-defined]
        marks = _marks_of(tokenizer, ends=True, as_target=False)
        return _RustEncoder, (tokenizer.backend_tokenizer, tokenizer.split_special_tokens, marks)


class _RustEncoder:
    """The same, of a tokenizer that is no more than its Rust part."""

    def __init__(self, backend: Any, split_special_tokens: bool, marks: "tuple[_Marks, _Marks] | None") -> None:
        self._backend, self._marks = backend, marks
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = split_special_tokens

    def load(self) -> Any:
        return self._backend

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=True)]

    def marked_once(self, texts: Sequence[str]) -> tuple[Sequence[str], list[bool]]:
        return _without_marks(texts, self._marks)


def cut_token_ids(
    tokenizer: Any,
    texts: Sequence[str],
    limit: int,
    *,
    pairs: Sequence[str] | None = None,
    segments: bool = False,
    as_target: bool = False,
) -> CutIds:
    """The first `limit` ids of each text, or text and second text, with the special ones; of a pair the longer text
    is cut. `as_target`: as what is answered, where a tokenizer tells that from what is asked."""
    tokenizer.truncation_side = "right"
    if not texts:
        return CutIds([], [], [], [])
    texts, is_marked = marked_once(tokenizer, texts, as_target=as_target)
    if pairs is not None:
        pairs, of_pairs = marked_once(tokenizer, pairs)
        is_marked = [one or other for one, other in zip(is_marked, of_pairs, strict=True)]
    if _is_common(tokenizer):
        rows = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        found = _encodings(tokenizer, rows, limit, True, tokenizer.split_special_tokens)
        return CutIds(
            [row.ids for row in found],
            [row.type_ids for row in found] if segments else [],
            [bool(row.overflowing) for row in found],
            is_marked,
        )
    second = {} if pairs is None else {"text_pair": list(pairs)}
    asked = {"text_target" if as_target else "text": list(texts), **second, "return_attention_mask": False}
    cut = tokenizer(**asked, return_token_type_ids=segments, truncation=True, max_length=limit, verbose=False)
    whole = tokenizer(**asked, verbose=False)["input_ids"]
    is_cut = [len(all_of_it) > len(kept) for all_of_it, kept in zip(whole, cut["input_ids"], strict=True)]
    return CutIds(cut["input_ids"], cut[_SEGMENTS] if segments else [], is_cut, is_marked)


def marked_once(
    tokenizer: Any, texts: Sequence[str], *, ends: bool = True, as_target: bool = False
) -> tuple[Sequence[str], list[bool]]:
    """Texts without the special tokens that they spell at their beginning and end (unless `ends` is false) and that the
    tokenizer puts there itself, and with one alone of its bos or eos token where it puts none; and which texts changed.

    Blanks before the first and behind the last of them go with them. A special token within a text, or one that such a
    tokenizer takes for text, stays as it is.
    """
    return _without_marks(texts, _marks_of(tokenizer, ends, as_target))


def _without_marks(texts: Sequence[str], marks: "tuple[_Marks, _Marks] | None") -> tuple[Sequence[str], list[bool]]:
    if not marks:
        return texts, [False] * len(texts)
    begins, closes = marks
    found = [begins.at_start(closes.at_end(text)) for text in texts]
    return found, [made is not text and made != text for made, text in zip(found, texts, strict=True)]


def _marks_of(tokenizer: Any, ends: bool, as_target: bool) -> "tuple[_Marks, _Marks] | None":
    """What is looked for at the beginning and the end of a text; None where all that it spells is text."""
    if tokenizer.split_special_tokens:
        return None
    before, behind = _frame(tokenizer, as_target)
    begins = _Marks(before, {tokenizer.bos_token} - {None, *before})
    return begins, _Marks(behind, {tokenizer.eos_token} - {None, *behind}) if ends else _Marks((), ())


def _frame(tokenizer: Any, as_target: bool) -> tuple[list[str], list[str]]:
    """The special tokens that stand before and behind a text whatever it is."""
    name = "text_target" if as_target else "text"
    around, inside = (tokenizer(**{name: text}, verbose=False)["input_ids"] for text in ("", "a"))
    first = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(around, inside, strict=False)))
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    before, behind = (
        tokenizer.convert_ids_to_tokens([number for number in ids if number in special])
        for ids in (around[:first], around[first:])
    )
    return before, behind


class _Marks:
    """Texts of special tokens at one end of a text: `given` by the tokenizer, `own` where the text alone has them."""

    def __init__(self, given: Iterable[str], own: Iterable[str]) -> None:
        self._own, self._all = tuple(own), tuple(dict.fromkeys([*given, *own]))

    def at_start(self, text: str) -> str:
        if not text.lstrip().startswith(self._all):
            return text
        last = ""
        while mark := next((mark for mark in self._all if text.lstrip().startswith(mark)), ""):
            last, text = mark, text.lstrip().removeprefix(mark)
        return last + text if last in self._own else text

    def at_end(self, text: str) -> str:
        if not text.rstrip().endswith(self._all):
            return text
        first = ""
        while mark := next((mark for mark in self._all if text.rstrip().endswith(mark)), ""):
            first, text = mark, text.rstrip().removesuffix(mark)
        return text + first if first in self._own else text


def _is_common(tokenizer: Any) -> bool:
    """Whether calling it does no more than asking its Rust part."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    own = any(getattr(kind, name, None) is not getattr(PreTrainedTokenizerFast, name, None) for name in _METHODS)
    return issubclass(kind, PreTrainedTokenizerFast) and not own and not hasattr(kind, "_switch_to_input_mode")


_METHODS = ("__call__", "_encode_plus", "set_truncation_and_padding")


def _encodings(
    tokenizer: Any, rows: Sequence[Any], limit: int | None, special_tokens: bool, split_special_tokens: bool
) -> list[Any]:
    from transformers.tokenization_utils_base import TruncationStrategy
    from transformers.utils.generic import PaddingStrategy

    tokenizer.set_truncation_and_padding(
        padding_strategy=PaddingStrategy.DO_NOT_PAD,
        truncation_strategy=TruncationStrategy.DO_NOT_TRUNCATE if limit is None else TruncationStrategy.LONGEST_FIRST,
        max_length=limit,
        stride=0,
        pad_to_multiple_of=None,
        padding_side=None,
    )
    backend = tokenizer.backend_tokenizer
    if backend.encode_special_tokens != split_special_tokens:
        backend.encode_special_tokens = split_special_tokens
    found: list[Any] = backend.encode_batch_fast(rows, add_special_tokens=special_tokens)
    return found


# Rendered conversations as tokens and labels.
#
# A conversation is cut where an assistant turn begins and ends, as generation cuts it: what is given is encoded first,
# and the turn behind it. So no token reaches over the edge, and what a model is given later are the very tokens that
# it
# learnt behind. Where the data spells a special token, the text between the template's own tokens is encoded with all
# special ones off.

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
            message = f"the text contains {token!r}, which this tokenizer reads as a control token of the conversation"
            raise DataError(message, hint="remove it from the data, or choose another task.chat_template")


def _ids(tokenizer: Any, texts: Sequence[str], *, is_text: bool = False) -> list[list[int]]:
    return token_ids(tokenizer, texts, special_tokens=False, split_special_tokens=is_text)
