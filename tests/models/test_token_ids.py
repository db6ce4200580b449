"""Ids asked for directly are those that everybody gets by calling the tokenizer."""

from __future__ import annotations

import pickle

import pytest
from transformers import AutoTokenizer, ByT5Tokenizer

from tests.tiny_models import save_tiny_model
from tui_trainer.models.token_ids import TextEncoder, cut_token_ids, token_ids

TEXTS = ["", "a", "The loop ends.\nThen all is done, and again.", "naïve 🦆 </s> <s> [SEP] <|endoftext|>", " x  y "]
PAIRS = ["second", "", "a much longer second text, " * 5, "b", "c d"]
# Of each kind of tokenizer, and of each set of special tokens around a text.
FAMILIES = ("llama", "gpt2", "bert", "roberta", "t5", "bart")
LIMIT = 9


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny_model(folder, request.param)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("split", [True, False])
def test_whole_texts(tokenizer, special, split):
    asked = tokenizer(TEXTS, add_special_tokens=special, split_special_tokens=split)["input_ids"]
    assert token_ids(tokenizer, TEXTS, special_tokens=special, split_special_tokens=split) == asked


def test_cut_texts(tokenizer):
    whole = tokenizer(TEXTS)["input_ids"]
    asked = tokenizer(TEXTS, truncation=True, max_length=LIMIT)["input_ids"]
    # A call before with other settings leaves nothing behind.
    assert token_ids(tokenizer, TEXTS, split_special_tokens=False) == whole
    found = cut_token_ids(tokenizer, TEXTS, LIMIT)
    assert found.ids == asked
    assert found.is_cut == [len(ids) > LIMIT for ids in whole]
    assert token_ids(tokenizer, TEXTS) == whole


def test_cut_pairs_with_their_segments(tokenizer):
    asked = tokenizer(TEXTS, PAIRS, truncation=True, max_length=LIMIT, return_token_type_ids=True)
    found = cut_token_ids(tokenizer, TEXTS, LIMIT, pairs=PAIRS, segments=True)
    assert found.ids == asked["input_ids"]
    assert found.segments == asked["token_type_ids"]
    assert found.is_cut == [len(ids) > LIMIT for ids in tokenizer(TEXTS, PAIRS)["input_ids"]]


def test_nothing_gives_nothing(tokenizer):
    assert token_ids(tokenizer, []) == []
    assert cut_token_ids(tokenizer, [], LIMIT).ids == []


def test_a_tokenizer_with_a_way_of_its_own_is_called(tokenizer):
    class Louder(type(tokenizer)):
        def _encode_plus(self, text, *more, **settings):
            return super()._encode_plus([part.upper() for part in text], *more, **settings)

    tokenizer.__class__, kind = Louder, type(tokenizer)
    try:
        assert token_ids(tokenizer, ["ab cd"]) == [tokenizer(["AB CD"])["input_ids"][0]]
    finally:
        tokenizer.__class__ = kind


@pytest.mark.parametrize("split", [False, True])
def test_what_another_process_gets_of_a_common_tokenizer_encodes_alike(tokenizer, monkeypatch, split):
    monkeypatch.setattr(tokenizer, "split_special_tokens", split)
    spelt = [f"{token} the {token} hill {token} " for token in tokenizer.all_special_tokens]
    texts = [*TEXTS, *tokenizer.all_special_tokens, *spelt]
    encoder = TextEncoder(lambda: tokenizer)
    expected = encoder(texts), encoder.marked_once(texts)
    cut_token_ids(tokenizer, TEXTS, LIMIT)  # which sets the tokenizer otherwise
    copy = pickle.loads(pickle.dumps(encoder))
    assert not isinstance(copy, TextEncoder)
    assert (copy(texts), copy.marked_once(texts)) == expected


def test_another_process_gets_any_other_tokenizer_whole():
    encoder = TextEncoder(ByT5Tokenizer)
    for _ in range(2):  # before it is loaded, and then
        copy = pickle.loads(pickle.dumps(encoder))
        assert isinstance(copy, TextEncoder)
        assert (copy(TEXTS), copy.marked_once(TEXTS)) == (encoder(TEXTS), encoder.marked_once(TEXTS))
