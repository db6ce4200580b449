"""What makes tokens of documents: a tokenizer that is given, byte-level BPE that is trained here, or characters.

The tokenizer of characters is a `tokenizers.Tokenizer`: a BPE model without merges, half as slow as WordLevel behind a
Split on every character. Here, where one character is known to be one token, a table of all code points gives the same
ids at once.

A text of many megabytes is encoded in pieces. They are cut where a single line break stands between two other
characters: there the pre-tokenizers of GPT-2, Llama 3 and their kin cut as well, so the tokens are those of the whole.
A text without such a place is cut between words; there, and with tokenizers that mark the beginning of a text, a token
at a cut may differ.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.reader import Encoded, Example, Reader, UnknownToken, unknown_token_of
from tui_trainer.data.preparing.byte_bpe import EOS, EOS_ID, PAD, UNK, Specials, train_tokenizer
from tui_trainer.data.preparing.token_rows import COLUMN, Tokens
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = (PAD, UNK, EOS)  # 0, 1, 2: pad and end have the same numbers in both kinds of tokenizers
UNK_ID = 1
FOR_CHARACTERS = Specials(named=(("pad_token", PAD), ("unk_token", UNK), ("eos_token", EOS)))
CODE_POINTS = 0x110000
_TOLD_CHARACTERS = 40


def characters_of(texts: Iterable[str]) -> list[str]:
    """Every character that occurs, sorted by code point."""
    seen = np.zeros(CODE_POINTS, dtype=np.bool_)
    for text in texts:
        seen[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] = True
    return [chr(code) for code in np.flatnonzero(seen)]


def build_tokenizer(characters: Sequence[str]) -> "Tokenizer":
    """One token per character, after <pad>, <unk> and <eos> (0, 1, 2). An unknown character is one <unk> each.

    Text that spells "<eos>" is five characters here, never the special token.
    """
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNK, fuse_unk=False))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.encode_special_tokens = True
    return tokenizer


def alphabet_in(folder: Path) -> tuple[str, ...] | None:
    """The characters of a tokenizer as `build_tokenizer` makes it, in the order of their tokens; None for any other."""
    try:
        model = json.loads((folder / "tokenizer.json").read_bytes())["model"]
        numbers: dict[str, int] = model["vocab"]
        tokens = sorted(numbers, key=numbers.__getitem__)
        is_plain = not model["merges"] and [numbers[token] for token in tokens] == list(range(len(tokens)))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    special, characters = tuple(tokens[: len(SPECIAL_TOKENS)]), tuple(tokens[len(SPECIAL_TOKENS) :])
    return characters if is_plain and special == SPECIAL_TOKENS and all(len(one) == 1 for one in characters) else None


def character_ids(characters: Sequence[str]) -> NDArray[np.int32]:
    """The token of each code point in a tokenizer of these characters: int32 [CODE_POINTS]."""
    found = np.full(CODE_POINTS, UNK_ID, dtype=np.int32)
    codes = np.array([ord(character) for character in characters], dtype=np.int64)
    found[codes] = np.arange(len(codes)) + len(SPECIAL_TOKENS)
    return found


def encode_text(ids: NDArray[np.int32], text: str) -> NDArray[np.int32]:
    """The tokens of one text as that tokenizer gives them, and <eos>: int32 [len(text) + 1]."""
    return np.append(ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")], np.int32(EOS_ID))


Encode = Callable[[Sequence[str]], list[list[int]]]  # texts -> token ids of each, special tokens included
# Texts -> the same where each begins and ends with one special token at the most, and which of them changed.
MarkedOnce = Callable[[Sequence[str]], tuple[Sequence[str], list[bool]]]

BATCH_CHARACTERS = 1 << 20
REACH = 1 << 16  # how far back a good place for a cut is looked for
GOOD_PLACE = re.compile(r"\S\n(?=\S)")
FALLBACK_PLACE = re.compile(r"\S(?=\s\S)")


def encode_texts(encode: Encode, texts: Sequence[str], eos_id: int | None) -> list[Tokens]:
    """The tokens of each text, int32 [N], ended with `eos_id` where that is not None and does not stand there."""
    end = np.array([] if eos_id is None else [eos_id], dtype=np.int32)
    found: list[Tokens] = []
    for batch in _batches(texts):
        is_long = len(batch[0]) > 2 * BATCH_CHARACTERS
        rows = [_long(encode, batch[0])] if is_long else [np.array(ids, dtype=np.int32) for ids in encode(batch)]
        found += [row if len(row) and row[-1] == eos_id else np.concatenate((row, end)) for row in rows]
    return found


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """BATCH_CHARACTERS each at the most; a longer text stands alone."""
    batch: list[str] = []
    waiting = 0
    for text in texts:
        if batch and waiting + len(text) > BATCH_CHARACTERS:
            yield batch
            batch, waiting = [], 0
        batch.append(text)
        waiting += len(text)
    if batch:
        yield batch


def _long(encode: Encode, text: str) -> Tokens:
    """One text, piece by piece; the special tokens between the pieces are taken out."""
    around, inside = encode(["", "a"])
    first = next((place for place, token in enumerate(around) if inside[place] != token), len(around))
    before, after = around[:first], around[first:]
    parts: list[Tokens] = []
    for start, end in pieces_of(text):
        ids = encode([text[start:end]])[0]
        first = len(before) if start and ids[: len(before)] == before else 0
        inner_end = end < len(text) and bool(after) and ids[-len(after) :] == after
        parts.append(np.array(ids[first : len(ids) - len(after) if inner_end else len(ids)], dtype=np.int32))
    return np.concatenate(parts)


def pieces_of(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces of a long text, about BATCH_CHARACTERS each."""
    start = 0
    while len(text) - start > 2 * BATCH_CHARACTERS:
        end = _place(text, start + BATCH_CHARACTERS)
        yield start, end
        start = end
    yield start, len(text)


def _place(text: str, wanted: int) -> int:
    """The last good place before `wanted`, else the last end of a word, else `wanted`."""
    low = wanted - REACH
    for pattern in (GOOD_PLACE, FALLBACK_PLACE):
        places = [found.end() for found in pattern.finditer(text, low, wanted)]
        if places:
            return places[-1]
    return wanted


class TextReader(Reader):
    """Each document with the tokens of `encode`, ended with `eos_id` where that is not None and does not stand there.

    Without `encode`, a tokenizer of at most `vocabulary` tokens is trained on the training side. `marked_once`: where
    texts may spell what begins and ends them; `load` loads what both need.
    """

    columns = (COLUMN,)

    def __init__(
        self,
        encode: Encode | None,
        *,
        eos_id: int | None,
        vocabulary: int,
        marked_once: MarkedOnce | None = None,
        load: Callable[[], Any] | None = None,
    ) -> None:
        self.learns, self._marked_once, self._load = encode is None, marked_once, load
        self._encode, self._eos_id, self._vocabulary = encode, eos_id, vocabulary
        self._unknown: tuple[UnknownToken | None, ...] = ()

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        if self.learns:
            self._encode = partial(_encode_with, tokenizer.backend_tokenizer)
        self.learns, self._vocabulary, self._unknown = False, len(tokenizer), (unknown_token_of(tokenizer),)

    def load(self) -> None:
        if not self.learns and self._load:
            self._unknown = self._unknown or (unknown_token_of(self._load()),)

    @property
    def unknown_token(self) -> UnknownToken | None:
        if not self._unknown:
            self.load()
        return self._unknown[0] if self._unknown else None

    def tokens_of(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        assert self._encode is not None, "`learn` comes first"
        return self._encode(texts)

    def learn(self, texts: Iterator[str], path: Path) -> None:
        tokenizer = train_tokenizer(texts, self._vocabulary)
        path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        self._encode = partial(_encode_with, tokenizer)
        self._eos_id, self._vocabulary = EOS_ID, tokenizer.get_vocab_size()

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        assert self._encode is not None, "`learn` comes first"
        texts: Sequence[str] = [example.text for example in examples]
        texts, marked = self._marked_once(texts) if self._marked_once else (texts, [False] * len(texts))
        rows = encode_texts(self._encode, texts, self._eos_id)
        return [
            Encoded({COLUMN: row}, labels=max(len(row) - 1, 0), marked=is_marked)
            for row, is_marked in zip(rows, marked, strict=True)
        ]

    def vocabulary(self) -> int:
        return self._vocabulary


def _encode_with(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    tokenizer.encode_special_tokens = True  # a copy in another process does not know
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def _new_characters(new: Sequence[str]) -> DataError:
    told = ", ".join(f"{one_line(character)} (U+{ord(character):04X})" for character in new[:_TOLD_CHARACTERS])
    told += f" and {len(new) - _TOLD_CHARACTERS:,} more" if len(new) > _TOLD_CHARACTERS else ""
    what = (
        "a character that is not in the model's vocabulary"
        if len(new) == 1
        else f"{len(new):,} characters that are not in the model's vocabulary"
    )
    hint = "remove them from the text, or train a new model from scratch (without model.model_name_or_path)"
    return DataError(f"the text has {what}: {told}", hint=hint)


class CharacterReader(Reader):
    """A token for each character of the training side, and <eos> behind each document. `known`: of the model that goes
    on, which learns no other ones."""

    columns = (COLUMN,)
    learns = True

    def __init__(self, known: Sequence[str] | None = None) -> None:
        self._known = known
        self._vocabulary = 0 if known is None else len(SPECIAL_TOKENS) + len(known)
        self._ids: NDArray[np.int32] = character_ids(known or ())

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda token: token[1])
        self.learns, self._vocabulary = False, len(tokens)
        self._ids = character_ids([token for token, _ in tokens[len(SPECIAL_TOKENS) :]])

    def learn(self, texts: Iterator[str], path: Path) -> None:
        characters: Sequence[str] = characters_of(texts)
        if self._known is not None:
            if new := sorted({*characters} - {*self._known}):
                raise _new_characters(new)
            characters = self._known
        tokenizer = build_tokenizer(characters)
        path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        self._ids, self._vocabulary = character_ids(characters), tokenizer.get_vocab_size()

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        rows = self.tokens_of([example.text for example in examples])
        return [Encoded({COLUMN: row}, labels=len(row)) for row in rows]

    @property
    def unknown_token(self) -> UnknownToken | None:
        return UnknownToken(UNK_ID, (EOS_ID,))

    def tokens_of(self, texts: Sequence[str]) -> list[Tokens]:
        return [encode_text(self._ids, text) for text in texts]

    def vocabulary(self) -> int:
        return self._vocabulary
