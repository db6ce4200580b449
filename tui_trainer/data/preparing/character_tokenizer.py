"""A tokenizer whose tokens are single characters, made from the training text alone.

It is a `tokenizers.Tokenizer`: a BPE model without merges, half as slow as WordLevel behind a Split on every character.
Here, where one character is known to be one token, a table of all code points gives the same ids at once.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.preparing.byte_bpe import Specials

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNK, EOS = "<pad>", "<unk>", "<eos>"
SPECIAL_TOKENS = (PAD, UNK, EOS)
PAD_ID, UNK_ID, EOS_ID = range(3)
FOR_CHARACTERS = Specials(named=(("pad_token", PAD), ("unk_token", UNK), ("eos_token", EOS)))
CODE_POINTS = 0x110000


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


def character_ids(characters: Sequence[str]) -> NDArray[np.int32]:
    """The token of each code point in a tokenizer of these characters: int32 [CODE_POINTS]."""
    found = np.full(CODE_POINTS, UNK_ID, dtype=np.int32)
    codes = np.array([ord(character) for character in characters], dtype=np.int64)
    found[codes] = np.arange(len(codes)) + len(SPECIAL_TOKENS)
    return found


def encode_text(ids: NDArray[np.int32], text: str) -> NDArray[np.int32]:
    """The tokens of one text as that tokenizer gives them, and <eos>: int32 [len(text) + 1]."""
    return np.append(ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")], np.int32(EOS_ID))
