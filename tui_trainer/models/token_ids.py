"""Convert texts and rendered conversations into token ids, and nothing else: no offsets, no masks, no BatchEncoding.

Most of the time that transformers spends on a batch goes into those objects. Where calling a tokenizer does no more
than call its Rust backend, this module calls the backend directly; other tokenizers are called as usual. Both give the
same ids.
"""

import copyreg
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.errors import DataError
from tui_trainer.models.chat_rendering import Rendered, loss_sections

_SEGMENTS = "token_type_ids"


@dataclass(frozen=True, slots=True)
class CutIds:
    """Truncated rows of ids, with one entry for each text in every list. `segments` distinguishes the second text of a
    pair (all 0 without one) and is empty if not requested. `is_cut`: the text lost its end. `is_marked`: the text
    itself spelled special tokens at its beginning or end (see `strip_spelled_marks`)."""

    ids: list[list[int]]
    segments: list[list[int]]
    is_cut: list[bool]
    is_marked: list[bool]


def token_ids(
    tokenizer: Any, texts: Sequence[str], *, special_tokens: bool = True, split_special_tokens: bool | None = None
) -> list[list[int]]:
    """Return the ids of each text, without truncation. If `split_special_tokens`, spellings of special tokens are
    encoded as text; None keeps the tokenizer's own setting."""
    if not texts:
        return []
    splits_special = tokenizer.split_special_tokens if split_special_tokens is None else split_special_tokens
    if not _is_rust_only(tokenizer):
        options = {"add_special_tokens": special_tokens, "split_special_tokens": splits_special}
        inputs = tokenizer(list(texts), **options, return_attention_mask=False, verbose=False)
        ids: list[list[int]] = inputs["input_ids"]
        return ids
    return [encoding.ids for encoding in _encodings(tokenizer, list(texts), None, special_tokens, splits_special)]


class TextEncoder:
    """A callable that converts texts to ids, special tokens included. It loads its tokenizer at the first text. Another
    process receives only the Rust backend where that is enough, because importing transformers takes a second."""

    def __init__(self, load_tokenizer: Callable[[], Any]) -> None:
        self._load_tokenizer = load_tokenizer
        self._tokenizer: Any = None

    def load(self) -> Any:
        self._tokenizer = self._tokenizer or self._load_tokenizer()
        return self._tokenizer

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return token_ids(self.load(), texts)

    def strip_spelled_marks(self, texts: Sequence[str]) -> tuple[Sequence[str], list[bool]]:
        return strip_spelled_marks(self.load(), texts)

    def __reduce__(self) -> tuple[Any, ...]:
        tokenizer = self._tokenizer
        if tokenizer is None or not _is_rust_only(tokenizer):
            # Other processes cannot import a class that came with the model.
            is_importable = not type(tokenizer).__module__.startswith("transformers_modules")
            state = {**vars(self), "_tokenizer": tokenizer if is_importable else None}
            return copyreg.__newobj__, (TextEncoder,), state  # type: ignore[attr-defined]
        marks = _marks_of(tokenizer, ends=True, as_target=False)
        return _RustEncoder, (tokenizer.backend_tokenizer, tokenizer.split_special_tokens, marks)


class _RustEncoder:
    """A `TextEncoder` for a tokenizer that needs only its Rust backend."""

    def __init__(self, backend: Any, split_special_tokens: bool, marks: "tuple[_Marks, _Marks] | None") -> None:
        self._backend, self._marks = backend, marks
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = split_special_tokens

    def load(self) -> Any:
        return self._backend

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=True)]

    def strip_spelled_marks(self, texts: Sequence[str]) -> tuple[Sequence[str], list[bool]]:
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
    """Return the first `limit` ids of each text or pair of texts, special tokens included. The longer text of a pair is
    truncated. `as_target` encodes the texts as answers, for tokenizers that treat these differently."""
    tokenizer.truncation_side = "right"
    if not texts:
        return CutIds([], [], [], [])
    texts, is_marked = strip_spelled_marks(tokenizer, texts, as_target=as_target)
    if pairs is not None:
        pairs, is_pair_marked = strip_spelled_marks(tokenizer, pairs)
        is_marked = [first or pair_argument for first, pair_argument in zip(is_marked, is_pair_marked, strict=True)]
    if _is_rust_only(tokenizer):
        rows = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        encodings = _encodings(tokenizer, rows, limit, True, tokenizer.split_special_tokens)
        segment_rows = [row.type_ids for row in encodings] if segments else []
        is_cut = [bool(row.overflowing) for row in encodings]
        return CutIds([row.ids for row in encodings], segment_rows, is_cut, is_marked)
    pair_argument = {} if pairs is None else {"text_pair": list(pairs)}
    inputs = {"text_target" if as_target else "text": list(texts), **pair_argument, "return_attention_mask": False}
    truncated = tokenizer(**inputs, return_token_type_ids=segments, truncation=True, max_length=limit, verbose=False)
    whole_ids = tokenizer(**inputs, verbose=False)["input_ids"]
    is_cut = [len(full_ids) > len(cut_ids) for full_ids, cut_ids in zip(whole_ids, truncated["input_ids"], strict=True)]
    return CutIds(truncated["input_ids"], truncated[_SEGMENTS] if segments else [], is_cut, is_marked)


def strip_spelled_marks(
    tokenizer: Any, texts: Sequence[str], *, ends: bool = True, as_target: bool = False
) -> tuple[Sequence[str], list[bool]]:
    """Remove the special tokens that texts spell at their beginning and end and that the tokenizer adds there itself.
    Return the texts and whether each one changed. Where the tokenizer adds no bos or eos token, one spelled token
    remains. Blanks around the removed tokens are removed as well. `ends=False` leaves the end of a text alone. Special
    tokens inside of a text, and those that the tokenizer encodes as text, stay."""
    return _without_marks(texts, _marks_of(tokenizer, ends, as_target))


def _without_marks(texts: Sequence[str], marks: "tuple[_Marks, _Marks] | None") -> tuple[Sequence[str], list[bool]]:
    if not marks:
        return texts, [False] * len(texts)
    start_marks, end_marks = marks
    stripped = [start_marks.strip_start(end_marks.strip_end(text)) for text in texts]
    return stripped, [after is not before and after != before for after, before in zip(stripped, texts, strict=True)]


def _marks_of(tokenizer: Any, ends: bool, as_target: bool) -> "tuple[_Marks, _Marks] | None":
    """Return the special tokens that the tokenizer adds to a text, at its start and its end, which are removed again.
    None if special tokens that a text spells out are encoded as plain text anyway."""
    if tokenizer.split_special_tokens:
        return None
    tokens_before, tokens_after = _special_tokens_around(tokenizer, as_target)
    start_marks = _Marks(tokens_before, {tokenizer.bos_token} - {None, *tokens_before})
    return start_marks, _Marks(tokens_after, {tokenizer.eos_token} - {None, *tokens_after}) if ends else _Marks((), ())


def _special_tokens_around(tokenizer: Any, as_target: bool) -> tuple[list[str], list[str]]:
    """Return the special tokens that the tokenizer adds before and after every text."""
    argument_name = "text_target" if as_target else "text"
    empty_ids, letter_ids = (tokenizer(**{argument_name: text}, verbose=False)["input_ids"] for text in ("", "a"))
    shared_count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(empty_ids, letter_ids, strict=False)))
    special_ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    tokens_before, tokens_after = (
        tokenizer.convert_ids_to_tokens([token_id for token_id in ids if token_id in special_ids])
        for ids in (empty_ids[:shared_count], empty_ids[shared_count:])
    )
    return tokens_before, tokens_after


class _Marks:
    """Texts of special tokens at one end of a text. Spellings of tokens in `added` are removed, because the tokenizer
    adds these itself. Of the tokens in `optional`, the one next to the text stays."""

    def __init__(self, added: Iterable[str], optional: Iterable[str]) -> None:
        self._optional, self._all = tuple(optional), tuple(dict.fromkeys([*added, *optional]))

    def strip_start(self, text: str) -> str:
        if not text.lstrip().startswith(self._all):
            return text
        last_mark = ""
        while mark := next((mark for mark in self._all if text.lstrip().startswith(mark)), ""):
            last_mark, text = mark, text.lstrip().removeprefix(mark)
        return last_mark + text if last_mark in self._optional else text

    def strip_end(self, text: str) -> str:
        if not text.rstrip().endswith(self._all):
            return text
        first_mark = ""
        while mark := next((mark for mark in self._all if text.rstrip().endswith(mark)), ""):
            first_mark, text = mark, text.rstrip().removesuffix(mark)
        return text + first_mark if first_mark in self._optional else text


def _is_rust_only(tokenizer: Any) -> bool:
    """Return whether calling the tokenizer does no more than calling its Rust backend."""
    from transformers import PreTrainedTokenizerFast

    tokenizer_class = type(tokenizer)
    overrides_methods = any(
        getattr(tokenizer_class, name, None) is not getattr(PreTrainedTokenizerFast, name, None) for name in _METHODS
    )
    switches_mode = hasattr(tokenizer_class, "_switch_to_input_mode")
    return issubclass(tokenizer_class, PreTrainedTokenizerFast) and not overrides_methods and not switches_mode


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
    encodings: list[Any] = backend.encode_batch_fast(rows, add_special_tokens=special_tokens)
    return encodings


# A rendered conversation is encoded in pieces that begin and end where its assistant turns do. No token crosses such an
# edge, so a prompt has the same tokens in training and in generation. Where the data spells a special token, the text
# between the template's own special tokens is encoded with special tokens disabled.

# Some tokenizers add a space before a text. A piece is encoded behind this text, whose ids are removed afterwards.
_CONTEXT, _OTHER_CONTEXTS = "\n", ("|", "x")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of text that is encoded at once. `before` is the text in front of it, "" at the start. Where the data
    spells special tokens, a piece is either a token that the template wrote (`is_control`) or `is_text`."""

    text: str
    before: str
    trained: bool
    is_control: bool = False
    is_text: bool = False


def encode_conversations(tokenizer: Any, conversations: Sequence[Rendered]) -> list[tuple[list[int], list[int]]]:
    """Return (token ids, labels) of each conversation without truncation. A label is the id of a token that carries
    loss, else IGNORE.
    The first token has no label. Raise DataError if the tokenizer makes a special token of plain text."""
    pieces_by_conversation = [list(_pieces(conversation)) for conversation in conversations]
    all_pieces = [piece for conversation_pieces in pieces_by_conversation for piece in conversation_pieces]
    flat_ids = _encode_pieces(tokenizer, all_pieces)
    _refuse_controls(tokenizer, all_pieces, flat_ids)
    remaining_ids = iter(flat_ids)
    rows = []
    for conversation, conversation_pieces in zip(conversations, pieces_by_conversation, strict=True):
        tokens: list[int] = []
        labels: list[int] = []
        for piece in conversation_pieces:
            piece_ids = next(remaining_ids)
            tokens += piece_ids
            labels += piece_ids if piece.trained else [IGNORE] * len(piece_ids)
        if conversation.adds_end:
            tokens.append(tokenizer.eos_token_id)
            labels.append(tokenizer.eos_token_id)
        rows.append((tokens, [IGNORE, *labels[1:]]))
    return rows


def _pieces(conversation: Rendered) -> Iterator[_Piece]:
    control_starts = {end: start for start, end in conversation.control_spans}
    for start, end, is_trained in loss_sections(conversation):
        cut_positions = [start, end]
        if conversation.spelled_token_count:
            inner_spans = (span for span in conversation.control_spans if start <= span[0] and span[1] <= end)
            cut_positions = sorted({start, end, *(edge for span in inner_spans for edge in span)})
        for piece_start, piece_end in pairwise(cut_positions):
            control_start = control_starts.get(piece_start, piece_start)
            text_before = "" if piece_start == 0 else conversation.text[control_start:piece_start] or _CONTEXT
            is_control = (piece_start, piece_end) in conversation.control_spans
            text, has_spellings = conversation.text[piece_start:piece_end], conversation.spelled_token_count > 0
            yield _Piece(text, text_before, is_trained, has_spellings and is_control, has_spellings and not is_control)


def _encode_pieces(tokenizer: Any, pieces: Sequence[_Piece]) -> list[list[int]]:
    """Return the ids of each piece, encoded behind the text before it."""
    texts_before = list(dict.fromkeys(piece.before for piece in pieces if piece.before))
    ids_before = dict(zip(texts_before, _ids(tokenizer, texts_before), strict=True))
    other_ids = _ids(tokenizer, [piece.before + piece.text for piece in pieces if not piece.is_text])
    plain_ids = _ids(tokenizer, [_CONTEXT + piece.text for piece in pieces if piece.is_text], is_text=True)
    context_ids = _ids(tokenizer, [_CONTEXT], is_text=True)[0] if plain_ids else []
    piece_ids = []
    next_plain_ids, next_other_ids = iter(plain_ids), iter(other_ids)
    for piece in pieces:
        ids = next(next_plain_ids) if piece.is_text else next(next_other_ids)
        prefix_ids = context_ids if piece.is_text else ids_before.get(piece.before, [])
        is_separate = ids[: len(prefix_ids)] == prefix_ids
        piece_ids.append(ids[len(prefix_ids) :] if is_separate else _encode_in_other_context(tokenizer, piece))
    return piece_ids


def _encode_in_other_context(tokenizer: Any, piece: _Piece) -> list[int]:
    """Return the ids of a piece that shares a token with the text before it: put behind another character, or alone."""
    for context in _OTHER_CONTEXTS:
        context_ids, ids = _ids(tokenizer, [context, context + piece.text], is_text=piece.is_text)
        if ids[: len(context_ids)] == context_ids:
            return ids[len(context_ids) :]
    return _ids(tokenizer, [piece.text], is_text=piece.is_text)[0]


def _refuse_controls(tokenizer: Any, pieces: Sequence[_Piece], ids: Sequence[Sequence[int]]) -> None:
    """Raise DataError if a piece of plain text became a control token. `split_special_tokens` applies only to tokens
    that are marked as special, so a tokenizer may read other added tokens in any text."""
    special_ids = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    written_ids = [row[0] for piece, row in zip(pieces, ids, strict=True) if piece.is_control and len(row) == 1]
    control_ids = (special_ids | set(written_ids)) - {tokenizer.unk_token_id}
    for piece, row in zip(pieces, ids, strict=True):
        if piece.is_text and (spelled_ids := control_ids.intersection(row)):
            token = tokenizer.convert_ids_to_tokens(min(spelled_ids))
            message = f"the text contains {token!r}, which this tokenizer reads as a control token of the conversation"
            raise DataError(message, hint="remove it from the data, or choose another task.chat_template")


def _ids(tokenizer: Any, texts: Sequence[str], *, is_text: bool = False) -> list[list[int]]:
    return token_ids(tokenizer, texts, special_tokens=False, split_special_tokens=is_text)
