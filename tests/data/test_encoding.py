"""Texts into tokens: very long ones in pieces, and a tokenizer that is trained here."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, processors

from tui_trainer.data.preparing import tokenizing
from tui_trainer.data.preparing.byte_bpe import BOS_ID, EOS_ID, TEXT_SPECIAL_TOKENS, train_tokenizer
from tui_trainer.data.preparing.tokenizing import encode_texts, pieces_of


def byte_level(text: str = "the sheep of the hill\n") -> Tokenizer:
    return train_tokenizer([text] * 3, 300)


def test_a_long_text_encoded_in_pieces_has_the_tokens_of_the_whole(monkeypatch):
    chance = random.Random(3)
    text = "".join(chance.choices(["the ", "sheep", ".", "\n", "\n\n", "  ", " of\n", "hill", "é"], k=6000))
    tokenizer = byte_level(text)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", BOS_ID), ("<eos>", EOS_ID)]
    )

    def encode_all(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]

    (whole,) = encode_all([text])
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(tokenizing, "SEARCH_CHARACTERS", 500)
    assert len(list(pieces_of(text))) > 5
    assert [row.tolist() for row in encode_texts(encode_all, [text, "the", text], EOS_ID)] == [
        whole, *encode_all(["the"]), whole
    ]  # fmt: skip


LONG_TEXTS = ["x" * 9000, "ab cd " * 1500, "line\n\n" * 1500]


def test_the_pieces_of_a_long_text_add_up_to_it(monkeypatch, subtests):
    for text in LONG_TEXTS:
        with subtests.test(f"{text[:6]!r}"):
            monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 2000)
            monkeypatch.setattr(tokenizing, "SEARCH_CHARACTERS", 100)
            parts = [text[start:end] for start, end in pieces_of(text)]
            assert "".join(parts) == text
            assert len(parts) >= 2 and max(map(len, parts)) <= 4000
    # An end token is added after the last piece.
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 50)
    text = " ".join(map(str, range(10, 110)))
    [row] = encode_texts(lambda texts: [list(map(int, re.findall(r"\d+", text))) for text in texts], [text], 1)
    assert row.tolist() == [*range(10, 110), 1]


def test_a_trained_tokenizer_decodes_every_text_and_has_three_special_tokens():
    tokenizer = byte_level()
    assert tokenizer.get_vocab_size() <= 300
    assert [tokenizer.token_to_id(token) for token in ("<pad>", "<bos>", "<eos>")] == [0, 1, 2]
    text = "the sheep <eos> ünseen 漢字 \0 \n\t🐑"
    ids = tokenizer.encode(text).ids
    assert ids[0] == BOS_ID and EOS_ID not in ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("the sheep").ids) < 9
    # A vocabulary too small for all bytes is refused.
    with pytest.raises(ValueError, match="is too small"):
        train_tokenizer(["a"], TEXT_SPECIAL_TOKENS.smallest_vocabulary - 1)
    smallest = TEXT_SPECIAL_TOKENS.smallest_vocabulary
    assert train_tokenizer(["a b"], smallest).get_vocab_size() == smallest


TRAIN_SCRIPT = """
import random
from tui_trainer.data.preparing.byte_bpe import train_tokenizer
chance = random.Random(0)
texts = ["".join(chance.choices("abcdefgh  \\n", k=200)) for _ in range(300)]
print(train_tokenizer(texts, 600).to_str())
"""


@pytest.mark.full
def test_the_same_texts_give_the_same_tokenizer_in_every_process():
    made = {
        subprocess.run([sys.executable, "-c", TRAIN_SCRIPT], capture_output=True, check=True, env=env).stdout
        for threads in ("1", "4", "4")
        for env in [{**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": "random"}]
    }
    assert len(made) == 1
    assert len(next(iter(made))) > 1000
