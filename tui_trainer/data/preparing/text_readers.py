"""What makes tokens of documents: a tokenizer that is given, byte-level BPE that is trained here, or characters."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.row_reader import Encoded, Example, Reader
from tui_trainer.data.preparing.byte_bpe import EOS_ID, train_tokenizer
from tui_trainer.data.preparing.character_tokenizer import (
    SPECIAL_TOKENS,
    UNK_ID,
    build_tokenizer,
    character_ids,
    characters_of,
    encode_text,
)
from tui_trainer.data.preparing.encoding import Encode, encode_texts
from tui_trainer.data.preparing.token_rows import COLUMN


class TextReader(Reader):
    """Each document with the tokens of `encode`, ended with `eos_id` where that is not None and does not stand there.

    Without `encode`, a tokenizer of at most `vocabulary` tokens is trained on the training side.
    """

    columns = (COLUMN,)

    def __init__(self, encode: Encode | None, *, eos_id: int | None, vocabulary: int) -> None:
        self.learns = encode is None
        self._encode, self._eos_id, self._vocabulary = encode, eos_id, vocabulary

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        if self.learns:
            self._encode = partial(_encode_with, tokenizer.backend_tokenizer)
        self.learns, self._vocabulary = False, len(tokenizer)

    def learn(self, texts: Iterator[str], path: Path) -> None:
        tokenizer = train_tokenizer(texts, self._vocabulary)
        path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        self._encode = partial(_encode_with, tokenizer)
        self._eos_id, self._vocabulary = EOS_ID, tokenizer.get_vocab_size()

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        assert self._encode is not None, "`learn` comes first"
        rows = encode_texts(self._encode, [example.text for example in examples], self._eos_id)
        return [Encoded({COLUMN: row}, labels=max(len(row) - 1, 0)) for row in rows]

    def vocabulary(self) -> int:
        return self._vocabulary


def _encode_with(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    tokenizer.encode_special_tokens = True  # a copy in another process does not know
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


class CharacterReader(Reader):
    """A token for each character of the training side, and <eos> behind each document."""

    columns = (COLUMN,)
    learns = True

    def __init__(self) -> None:
        self._vocabulary = 0
        self._ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda token: token[1])
        self.learns, self._vocabulary = False, len(tokens)
        self._ids = character_ids([token for token, _ in tokens[len(SPECIAL_TOKENS) :]])

    def learn(self, texts: Iterator[str], path: Path) -> None:
        characters = characters_of(texts)
        tokenizer = build_tokenizer(characters)
        path.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        self._ids, self._vocabulary = character_ids(characters), tokenizer.get_vocab_size()

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        rows = [encode_text(self._ids, example.text) for example in examples]
        return [Encoded({COLUMN: row}, labels=len(row), unknown=int((row == UNK_ID).sum())) for row in rows]

    def vocabulary(self) -> int:
        return self._vocabulary
