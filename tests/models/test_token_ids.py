"""Token ids computed directly are those of calling the tokenizer."""

from __future__ import annotations

import pickle
from itertools import product

import pytest
from transformers import AutoTokenizer, ByT5Tokenizer

from tests.tiny_models import tiny_tokenizer
from tui_trainer.models.token_ids import TextEncoder, cut_token_ids, token_ids

TEXTS = ["", "a", "The loop ends.\nThen all is done, and again.", "naïve 🦆 </s> <s> [SEP] <|endoftext|>", " x  y "]
PAIRS = ["second", "", "a much longer second text, " * 5, "b", "c d"]
# Of each kind of tokenizer, and of each set of special tokens around a text.
FAMILIES = ("llama", "gpt2", "bert", "roberta", "t5", "bart")
LIMIT = 9


@pytest.fixture(
    scope="module", params=[FAMILIES[:2], pytest.param(FAMILIES[2:], marks=pytest.mark.full)], ids=["few", "more"]
)
def tokenizers(request, tmp_path_factory):
    found = {}
    for family in request.param:
        folder = tmp_path_factory.mktemp(family)
        tiny_tokenizer(family).save_pretrained(folder)
        found[family] = AutoTokenizer.from_pretrained(folder)
    return found


def test_ids_of_whole_texts(tokenizers, subtests):
    for family, special, split in product(tokenizers, (True, False), (True, False)):
        with subtests.test(f"{family} special={special} split={split}"):
            tokenizer = tokenizers[family]
            expected = tokenizer(TEXTS, add_special_tokens=special, split_special_tokens=split)["input_ids"]
            assert token_ids(tokenizer, TEXTS, special_tokens=special, split_special_tokens=split) == expected
            assert token_ids(tokenizer, []) == [] == cut_token_ids(tokenizer, [], LIMIT).ids


def test_ids_of_cut_texts_and_pairs(tokenizers, subtests):
    for family, tokenizer in tokenizers.items():
        with subtests.test(family):
            whole = tokenizer(TEXTS)["input_ids"]
            expected = tokenizer(TEXTS, truncation=True, max_length=LIMIT)["input_ids"]
            # An earlier call with other settings leaves nothing behind.
            assert token_ids(tokenizer, TEXTS, split_special_tokens=False) == whole
            found = cut_token_ids(tokenizer, TEXTS, LIMIT)
            assert found.ids == expected
            assert found.is_cut == [len(ids) > LIMIT for ids in whole]
            assert token_ids(tokenizer, TEXTS) == whole
            expected = tokenizer(TEXTS, PAIRS, truncation=True, max_length=LIMIT, return_token_type_ids=True)
            found = cut_token_ids(tokenizer, TEXTS, LIMIT, pairs=PAIRS, segments=True)
            assert (found.ids, found.segments) == (expected["input_ids"], expected["token_type_ids"])
            assert found.is_cut == [len(ids) > LIMIT for ids in tokenizer(TEXTS, PAIRS)["input_ids"]]


def test_a_tokenizer_with_its_own_encoding_is_called(tokenizers):
    tokenizer = next(iter(tokenizers.values()))

    class Louder(type(tokenizer)):
        def _encode_plus(self, text, *more, **settings):
            return super()._encode_plus([part.upper() for part in text], *more, **settings)

    tokenizer.__class__, kind = Louder, type(tokenizer)
    try:
        assert token_ids(tokenizer, ["ab cd"]) == [tokenizer(["AB CD"])["input_ids"][0]]
    finally:
        tokenizer.__class__ = kind


def test_another_process_gets_an_encoder_with_the_same_ids(tokenizers, monkeypatch, subtests):
    for family, split in product(tokenizers, (False, True)):
        with subtests.test(f"{family} split={split}"), monkeypatch.context() as patch:
            tokenizer = tokenizers[family]
            patch.setattr(tokenizer, "split_special_tokens", split)
            spelt = [f"{token} the {token} hill {token} " for token in tokenizer.all_special_tokens]
            texts = [*TEXTS, *tokenizer.all_special_tokens, *spelt]
            encoder = TextEncoder(lambda tokenizer=tokenizer: tokenizer)
            expected = encoder(texts), encoder.strip_spelled_marks(texts)
            cut_token_ids(tokenizer, TEXTS, LIMIT)  # which changes settings of the tokenizer
            copy = pickle.loads(pickle.dumps(encoder))
            assert not isinstance(copy, TextEncoder)
            assert (copy(texts), copy.strip_spelled_marks(texts)) == expected


def test_another_process_gets_a_slow_tokenizer_as_a_whole():
    encoder = TextEncoder(ByT5Tokenizer)
    for _ in range(2):  # before it is loaded, and then
        copy = pickle.loads(pickle.dumps(encoder))
        assert isinstance(copy, TextEncoder)
        assert (copy(TEXTS), copy.strip_spelled_marks(TEXTS)) == (encoder(TEXTS), encoder.strip_spelled_marks(TEXTS))
