"""Held-out documents, and the character tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from tui_trainer.data.preparing.byte_bpe import EOS_ID
from tui_trainer.data.preparing.row_selection import DocumentSplit, split_documents, tail_start
from tui_trainer.data.preparing.tokenizing import (
    UNK_ID,
    build_tokenizer,
    character_ids,
    characters_of,
    encode_text,
)


def sides_of(split: DocumentSplit, index: int, text: str) -> tuple[str, str]:
    """Return the trained and the held-out part of a document."""
    if index in split.tails:
        start = tail_start(text, split.tails[index])
        return text[:start], text[start:]
    return ("", text) if split.is_held_out[index] else (text, "")


LENGTHS = [int(size) for size in np.random.default_rng(7).integers(50, 5000, 200)]


def test_held_out_documents_come_near_the_requested_share(subtests):
    for fraction in [0.01, 0.1, 0.5, 0.9]:
        with subtests.test(fraction=fraction):
            split = split_documents(LENGTHS, fraction, 42)
            share = sum(size for size, held in zip(LENGTHS, split.is_held_out, strict=True) if held) / sum(LENGTHS)
            assert share == pytest.approx(fraction, rel=0.02)
            assert not split.tails
            assert not split.notes
    # A share of zero holds nothing out.
    split = split_documents(LENGTHS, 0, 42)
    assert not split.is_held_out.any()
    assert not split.tails
    # A giant document is never held out.
    for seed in range(20):
        with subtests.test(seed=seed):
            split = split_documents([3000, *[100] * 50], 0.1, seed)
            assert not split.is_held_out[0]
            assert split.is_held_out.sum() == 8


def test_the_split_depends_on_the_seed_alone():
    first, again, other = (split_documents(LENGTHS, 0.1, seed).is_held_out for seed in (42, 42, 43))
    assert (first == again).all()
    assert (first != other).any()
    # The split of a seed is the same on every machine.
    assert np.flatnonzero(split_documents([10] * 20, 0.2, 42).is_held_out).tolist() == [4, 8, 15, 17]


def test_the_tail_of_the_longest_document_is_held_out_if_whole_documents_cannot_give_the_share(subtests):
    for lengths in [[1000], [1000, 5, 5], [100] * 3]:
        with subtests.test(lengths=lengths):
            split = split_documents(lengths, 0.1, 42)
            assert not split.is_held_out.any()
            assert split.tails == {0: round(0.1 * sum(lengths))}
            assert len(split.notes) == 1
    # Some text always remains for training.
    for fraction in [0.5, 0.9, 0.99]:
        for lengths in [[1, 1], [5, 5, 5], [2], [1], [9, 1]]:
            with subtests.test(lengths=lengths, fraction=fraction):
                split = split_documents(lengths, fraction, 1)
                texts = ["x" * size for size in lengths]
                trained = sum(len(sides_of(split, index, text)[0]) for index, text in enumerate(texts))
                assert 0 < trained <= sum(lengths)
                assert trained < sum(lengths) or split.notes


def test_the_tail_begins_at_the_nearest_line_break(subtests):
    text = "aaaa\nbbbb\ncccc\ndddd"
    assert text[tail_start(text, 6) :] == "dddd"
    assert text[tail_start(text, 8) :] == "cccc\ndddd"
    assert text[tail_start(text, 4) :] == "dddd"
    # Neither side of a tail is empty.
    for text in ["x" * 100, "x" * 99 + "\n", "\n" * 100, "\n" + "x" * 99]:
        for tail in [1, 50, 99]:
            with subtests.test(text=text, tail=tail):
                assert 0 < tail_start(text, tail) < len(text)


def test_each_part_of_a_document_is_on_one_side_only():
    texts = [f"document {index}\n" * 20 for index in range(10)]
    for split in (split_documents([len(text) for text in texts], 0.2, 3), split_documents([300], 0.2, 3)):
        for index, text in enumerate(texts[: len(split.is_held_out)]):
            assert "".join(sides_of(split, index, text)) == text


FAMILY = "\U0001f468\u200d\U0001f469"
TEXT = f"Line\twith  spaces\r\n\né e\u0301 \U0001f600 {FAMILY} \u4e2d\u6587 \0 \u200b <eos><pad><unk> </s>"


def test_each_known_character_is_one_token_and_decodes_to_itself(tmp_path):
    tokenizer = build_tokenizer(characters_of([TEXT]))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert len(ids) == len(TEXT)
    assert min(ids) > EOS_ID
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(ids, skip_special_tokens=False) == TEXT
    # A saved tokenizer encodes the names of special tokens as text.
    tokenizer = build_tokenizer(characters_of([TEXT]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    loaded.encode_special_tokens = True  # what transformers calls split_special_tokens; the file does not keep it
    assert loaded.encode(TEXT).ids == tokenizer.encode(TEXT).ids
    assert loaded.token_to_id("<eos>") == EOS_ID


def test_each_unknown_character_is_one_unknown_token():
    assert encode_text(character_ids(["a", "b"]), "a??b\u2603").tolist() == [3, UNK_ID, UNK_ID, 4, UNK_ID, EOS_ID]
    assert build_tokenizer(["a", "b"]).encode("a??b\u2603").ids == [3, UNK_ID, UNK_ID, 4, UNK_ID]
    # The alphabet is sorted and complete.
    assert characters_of(["b\U0001f600", "ab", "é"]) == ["a", "b", "é", "\U0001f600"]
    assert characters_of([]) == []
    # Fast encoding agrees with the tokenizer.
    text = "ab\n<eos>é\U0001f600 " * 1000
    characters = characters_of([text])
    tokenizer, ids = build_tokenizer(characters), character_ids(characters)
    for some in (text, "a", ""):
        assert encode_text(ids, some).tolist() == [*tokenizer.encode(some, add_special_tokens=False).ids, EOS_ID]
