"""Tokenization of documents: with a loaded tokenizer, with byte-level BPE trained on the data, or by characters.

The character tokenizer is saved as a `tokenizers.Tokenizer`: a BPE model without merges, which takes half the time of
WordLevel after a split at every character. Here, a table of all code points gives the same ids at once.

A text of many megabytes is encoded in pieces. It is split where a single line break stands between two other
characters. The pre-tokenizers of GPT-2, Llama 3 and similar models split there as well, so the tokens are those of the
whole text. A text without such a position is split between words. There, and with tokenizers that mark the beginning of
a text, a token next to a split may differ.
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
from tui_trainer.data.preparing.byte_bpe import EOS, EOS_ID, PAD, UNK, SpecialTokens, train_tokenizer
from tui_trainer.data.preparing.token_rows import INPUT_IDS, Tokens
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = (PAD, UNK, EOS)  # 0, 1, 2: PAD and EOS have the same ids as in byte_bpe.py
UNK_ID = 1
CHARACTER_SPECIAL_TOKENS = SpecialTokens(named_tokens=(("pad_token", PAD), ("unk_token", UNK), ("eos_token", EOS)))
CODE_POINTS = 0x110000
_SHOWN_CHARACTERS = 40


def characters_of(texts: Iterable[str]) -> list[str]:
    """Return every character that occurs, sorted by code point."""
    has_code_point = np.zeros(CODE_POINTS, dtype=np.bool_)
    for text in texts:
        has_code_point[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] = True
    return [chr(code_point) for code_point in np.flatnonzero(has_code_point)]


def build_tokenizer(characters: Sequence[str]) -> "Tokenizer":
    """Build a tokenizer with one token per character, after <pad>, <unk> and <eos> (0, 1, 2).

    Each unknown character becomes one <unk>. A text that spells "<eos>" gives five tokens, never the special one."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNK, fuse_unk=False))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.encode_special_tokens = True
    return tokenizer


def alphabet_in(folder: Path) -> tuple[str, ...] | None:
    """Return the characters of a tokenizer from `build_tokenizer`, in the order of their ids; None for any other."""
    try:
        model = json.loads((folder / "tokenizer.json").read_bytes())["model"]
        ids: dict[str, int] = model["vocab"]
        tokens = sorted(ids, key=ids.__getitem__)
        is_plain = not model["merges"] and [ids[token] for token in tokens] == list(range(len(tokens)))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    special_tokens, characters = tuple(tokens[: len(SPECIAL_TOKENS)]), tuple(tokens[len(SPECIAL_TOKENS) :])
    is_plain = is_plain and special_tokens == SPECIAL_TOKENS and all(len(token) == 1 for token in characters)
    return characters if is_plain else None


def character_ids(characters: Sequence[str]) -> NDArray[np.int32]:
    """Return the token id of each code point, int32 [CODE_POINTS], for a tokenizer of these characters."""
    ids = np.full(CODE_POINTS, UNK_ID, dtype=np.int32)
    code_points = np.array([ord(character) for character in characters], dtype=np.int64)
    ids[code_points] = np.arange(len(code_points)) + len(SPECIAL_TOKENS)
    return ids


def encode_text(ids: NDArray[np.int32], text: str) -> NDArray[np.int32]:
    """Return the tokens of a text by the table `ids` from `character_ids`, and <eos>: int32 [len(text) + 1]."""
    return np.append(ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")], np.int32(EOS_ID))


Encode = Callable[[Sequence[str]], list[list[int]]]  # texts -> token ids of each, special tokens included
# Texts -> texts without special tokens that encoding would repeat at the ends, and whether each text was changed.
StripMarks = Callable[[Sequence[str]], tuple[Sequence[str], list[bool]]]

BATCH_CHARACTERS = 1 << 20
SEARCH_CHARACTERS = 1 << 16  # searched backwards for a good position
GOOD_SPLIT = re.compile(r"\S\n(?=\S)")
FALLBACK_SPLIT = re.compile(r"\S(?=\s\S)")


def encode_texts(encode: Encode, texts: Sequence[str], eos_id: int | None) -> list[Tokens]:
    """Return the tokens of each text, int32 [N]. `eos_id` is appended unless it is None or already the last token."""
    end_ids = np.array([] if eos_id is None else [eos_id], dtype=np.int32)
    token_arrays: list[Tokens] = []
    for batch in _batches(texts):
        is_long = len(batch[0]) > 2 * BATCH_CHARACTERS
        rows = [_encode_long(encode, batch[0])] if is_long else [np.array(ids, dtype=np.int32) for ids in encode(batch)]
        token_arrays += [row if len(row) and row[-1] == eos_id else np.concatenate((row, end_ids)) for row in rows]
    return token_arrays


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield batches of at most BATCH_CHARACTERS. A longer text is a batch alone."""
    batch: list[str] = []
    character_count = 0
    for text in texts:
        if batch and character_count + len(text) > BATCH_CHARACTERS:
            yield batch
            batch, character_count = [], 0
        batch.append(text)
        character_count += len(text)
    if batch:
        yield batch


def _encode_long(encode: Encode, text: str) -> Tokens:
    """Encode one long text in pieces. Special tokens remain only at its beginning and its end."""
    empty_ids, letter_ids = encode(["", "a"])
    first = next((number for number, token in enumerate(empty_ids) if letter_ids[number] != token), len(empty_ids))
    ids_before, ids_after = empty_ids[:first], empty_ids[first:]
    pieces: list[Tokens] = []
    for start, end in pieces_of(text):
        ids = encode([text[start:end]])[0]
        first = len(ids_before) if start and ids[: len(ids_before)] == ids_before else 0
        has_extra_end = end < len(text) and bool(ids_after) and ids[-len(ids_after) :] == ids_after
        pieces.append(np.array(ids[first : len(ids) - len(ids_after) if has_extra_end else len(ids)], dtype=np.int32))
    return np.concatenate(pieces)


def pieces_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the pieces of a long text, about BATCH_CHARACTERS each."""
    start = 0
    while len(text) - start > 2 * BATCH_CHARACTERS:
        end = _split_position(text, start + BATCH_CHARACTERS)
        yield start, end
        start = end
    yield start, len(text)


def _split_position(text: str, limit: int) -> int:
    """Return where to split: at the last GOOD_SPLIT before `limit`, or else after the last word, or else at `limit`."""
    search_start = limit - SEARCH_CHARACTERS
    for pattern in (GOOD_SPLIT, FALLBACK_SPLIT):
        positions = [match.end() for match in pattern.finditer(text, search_start, limit)]
        if positions:
            return positions[-1]
    return limit


class TextReader(Reader):
    """Reads documents as the tokens that `encode` returns, plus `eos_id` unless it is None or already the last one.
    Without `encode`, a tokenizer of at most `vocabulary` tokens is trained on the training texts. `strip_spelled_marks`
    handles texts that spell special tokens at their ends. `load` loads what these two functions need."""

    columns = (INPUT_IDS,)

    def __init__(
        self,
        encode: Encode | None,
        *,
        eos_id: int | None,
        vocabulary: int,
        strip_spelled_marks: StripMarks | None = None,
        load: Callable[[], Any] | None = None,
    ) -> None:
        self.trains_tokenizer, self._strip_marks, self._load = encode is None, strip_spelled_marks, load
        self._encode, self._eos_id, self._vocabulary = encode, eos_id, vocabulary
        self._unknown: tuple[UnknownToken | None, ...] = ()

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        if self.trains_tokenizer:
            self._encode = partial(_encode_with, tokenizer.backend_tokenizer)
        self.trains_tokenizer, self._vocabulary, self._unknown = False, len(tokenizer), (unknown_token_of(tokenizer),)

    def load(self) -> None:
        if not self.trains_tokenizer and self._load:
            self._unknown = self._unknown or (unknown_token_of(self._load()),)

    @property
    def unknown_token(self) -> UnknownToken | None:
        if not self._unknown:
            self.load()
        return self._unknown[0] if self._unknown else None

    def tokenize_texts(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
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
        texts, are_marked = self._strip_marks(texts) if self._strip_marks else (texts, [False] * len(texts))
        rows = encode_texts(self._encode, texts, self._eos_id)
        return [
            Encoded({INPUT_IDS: row}, label_count=max(len(row) - 1, 0), spells_special_tokens=is_marked)
            for row, is_marked in zip(rows, are_marked, strict=True)
        ]

    def vocabulary(self) -> int:
        return self._vocabulary


def _encode_with(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    tokenizer.encode_special_tokens = True  # pickling a tokenizer loses this setting
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def _new_characters(new_characters: Sequence[str]) -> DataError:
    """Return the error for characters that are not in the vocabulary of the model whose training continues."""
    first_characters = new_characters[:_SHOWN_CHARACTERS]
    shown_characters = ", ".join(f"{one_line(character)} (U+{ord(character):04X})" for character in first_characters)
    more_count = len(new_characters) - _SHOWN_CHARACTERS
    shown_characters += f" and {more_count:,} more" if more_count > 0 else ""
    noun = "a character that is" if len(new_characters) == 1 else f"{len(new_characters):,} characters that are"
    problem = f"{noun} not in the model's vocabulary"
    hint = "remove such characters from the text, or train a new model from scratch (without model.model_name_or_path)"
    return DataError(f"the text has {problem}: {shown_characters}", hint=hint)


class CharacterReader(Reader):
    """Reads documents as one token per character, and <eos>. The characters are those of the training texts, or of
    `alphabet` if the training of a model continues, which cannot learn others."""

    columns = (INPUT_IDS,)
    trains_tokenizer = True

    def __init__(self, alphabet: Sequence[str] | None = None) -> None:
        self._alphabet = alphabet
        self._vocabulary = 0 if alphabet is None else len(SPECIAL_TOKENS) + len(alphabet)
        self._ids: NDArray[np.int32] = character_ids(alphabet or ())

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda token: token[1])
        self.trains_tokenizer, self._vocabulary = False, len(tokens)
        self._ids = character_ids([token for token, _ in tokens[len(SPECIAL_TOKENS) :]])

    def learn(self, texts: Iterator[str], path: Path) -> None:
        characters: Sequence[str] = characters_of(texts)
        if self._alphabet is not None:
            if new_characters := sorted({*characters} - {*self._alphabet}):
                raise _new_characters(new_characters)
            characters = self._alphabet
        tokenizer = build_tokenizer(characters)
        path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        self._ids, self._vocabulary = character_ids(characters), tokenizer.get_vocab_size()

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        rows = self.tokenize_texts([example.text for example in examples])
        return [Encoded({INPUT_IDS: row}, label_count=len(row)) for row in rows]

    @property
    def unknown_token(self) -> UnknownToken | None:
        return UnknownToken(UNK_ID, (EOS_ID,))

    def tokenize_texts(self, texts: Sequence[str]) -> list[Tokens]:
        return [encode_text(self._ids, text) for text in texts]

    def vocabulary(self) -> int:
        return self._vocabulary
