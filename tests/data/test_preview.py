"""The preview shows what the batch holds: documents, trained tokens, labels, padding."""

from functools import partial
from types import MappingProxyType, SimpleNamespace

import numpy as np

from tui_trainer.data.batching.collate import (
    IGNORE,
    Batch,
    collate,
    collate_answers,
    collate_packed,
    collate_whole,
    pad_rows,
    round_up_to_multiple,
)
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.batching.pack import padding_shares
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.data.preview import Lengths, ShownSample, Speller, preview_rows


class Numbers:
    """A tokenizer that spells each token as its number; 0 is padding, 1 begins and 2 ends a text."""

    all_special_ids = (0, 1, 2)
    added_tokens_decoder = MappingProxyType({})

    def decode(self, ids, **_) -> str:
        return "".join(f"[{number}]" for number in ids)

    def convert_ids_to_tokens(self, number) -> str:
        return f"<{number}>"


class InMemory(list):
    """Rows that lie in memory."""

    @property
    def lengths(self):
        return np.array([len(row) for row in self])

    def example(self, index: int) -> TokenRow:
        return self[index]


def row(tokens, labels=None) -> TokenRow:
    return TokenRow(np.array(tokens, np.int32), None if labels is None else np.array(labels, np.int32))


def shown(data, make, count=100, *, names=(), cut=None, effective=100, **layout) -> list[ShownSample]:
    order = RowOrder(data.lengths, effective_batch=effective, seed=0)
    about = RowLayout(
        collate=make, collate_packed=partial(collate_packed, pad_id=0), rows_per_pass=layout.pop("rows", 100), **layout
    )
    return preview_rows(data, order, about, count, tokenizer=Numbers(), names=names, cut=cut)


def spell(pieces) -> str:
    """Return the text of the pieces, with a star behind those that are trained."""
    return " ".join(piece.text + "*" * piece.trained for piece in pieces)


CAUSAL = partial(collate, pad_id=0)
CONVERSATIONS = InMemory(
    [
        row([1, 5, 6, 7, 2], [IGNORE, IGNORE, IGNORE, 7, 2]),  # an answer at the end
        row([1, 8, 9, 2, 10, 11, 2], [IGNORE, 8, 9, 2, IGNORE, IGNORE, IGNORE]),  # the end is no label
        row([1, 12]),  # no labels of its own: all tokens but the first
    ]
)
WANTED = {
    1: ("<1> [5][6] [7]* <2>*", 5, 2),
    # The last token is neither read nor learnt: the model never gets it.
    2: ("<1> [8][9]* <2>* [10][11]", 6, 3),
    3: ("<1> [12]*", 2, 1),
}


def test_a_token_is_trained_if_the_position_before_it_has_a_label(subtests):
    for layout in [{}, {"packed_width": 8}, {"packed_width": 16}, {"rows": 1}, {"fixed_width": 20}]:
        with subtests.test(layout=layout):
            found = shown(CONVERSATIONS, CAUSAL, **layout)
            documents = {one.number: one for sample in found for one in sample.documents}
            assert {n: (spell(one.pieces), one.tokens, one.trained_tokens) for n, one in documents.items()} == WANTED
            inputs = sum(len(one) - 1 for one in CONVERSATIONS)
            widths = {len(sample.documents): sample for sample in found}
            if layout.get("packed_width") == 16:
                assert len(found) == 1 and found[0].padding == 0 and set(widths) == {3}
            if "fixed_width" in layout:
                assert sum(20 - sample.padding for sample in found) == inputs
            if layout.get("rows") == 1:
                assert [sample.padding for sample in found] == [0, 0, 0]
                assert [(sample.forward_pass, sample.row) for sample in found] == [(1, 1), (2, 1), (3, 1)]


def test_samples_continue_into_the_next_steps_and_end_with_the_epoch():
    assert [sample.step for sample in shown(CONVERSATIONS, CAUSAL, effective=1)] == [1, 2, 3]
    assert len(shown(CONVERSATIONS, CAUSAL, 2)) == 2
    order = RowOrder(CONVERSATIONS.lengths, effective_batch=1, seed=0)
    first = shown(CONVERSATIONS, CAUSAL, 1, effective=1)[0].documents[0].number
    assert first == order.at(1)[0] + 1, "the row that training begins with"


def test_a_row_shows_whether_it_was_cut():
    cut = np.array([True, False, False])
    documents = [one for sample in shown(CONVERSATIONS, CAUSAL, cut=cut) for one in sample.documents]
    assert {one.number: one.cut for one in documents} == {1: True, 2: False, 3: False}
    assert all(one.cut is None for sample in shown(CONVERSATIONS, CAUSAL) for one in sample.documents)


def with_labels(labels):
    """Return a collate function that gives a row of so many tokens its label."""

    def make(rows, *, width=0) -> Batch:
        return collate_whole(rows, 0, np.stack([labels[len(one)] for one in rows]), width=width)

    return make


ROW_LABELS = [
    ({3: np.int64(1), 4: np.int64(0)}, {3: "anger", 4: "joy"}),
    ({3: np.float32(2.5), 4: np.float32(-1)}, {3: "2.5", 4: "-1"}),
    ({3: np.float32([1, 1]), 4: np.float32([0, 0])}, {3: "joy, anger", 4: "no label"}),
]


def test_a_row_with_one_label_shows_its_name(subtests):
    for labels, wanted in ROW_LABELS:
        with subtests.test(wanted=wanted):
            rows = InMemory([row([1, 5, 2]), row([1, 5, 6, 2])])
            found = shown(rows, with_labels(labels), names=("joy", "anger"))
            assert {len(rows[one.number - 1]): one.label for sample in found for one in sample.documents} == wanted
            assert all(sample.trained_tokens == 0 for sample in found)
            assert {sample.documents[0].number: sample.padding for sample in found} == {1: 1, 2: 0}


def test_words_show_their_tags():
    def make(rows, *, width=0) -> Batch:
        return collate_whole(rows, 0, pad_rows([one.labels for one in rows], IGNORE, width), width=width)

    rows = InMemory([row([1, 5, 6, 7, 2], [IGNORE, 1, IGNORE, 0, IGNORE]), row([1, 8, 2], [IGNORE, 0, IGNORE])])
    found = {one.number: one for sample in shown(rows, make, names=("O", "B-PER")) for one in sample.documents}
    tagged = {n: [(piece.text, piece.tag, piece.trained) for piece in one.pieces] for n, one in found.items()}
    assert tagged[1] == [
        ("<1>", "", False), ("[5]", "B-PER", True), ("[6]", "", False), ("[7]", "O", True), ("<2>", "", False),
    ]  # fmt: skip
    assert found[2].trained_tokens == 1


def test_an_answer_is_shown_beside_its_input_with_its_own_padding():
    make = partial(collate_answers, pad_id=0, start_id=0)
    rows = InMemory([row([5, 6, 2], [9, 2]), row([7, 2], [10, 11, 12, 2])])
    found = {sample.documents[0].number: sample for sample in shown(rows, make)}
    assert spell(found[1].documents[0].pieces) == "[5][6] <2>"
    assert spell(found[1].documents[0].answer) == "[9]* <2>*"
    assert (found[1].padding, found[1].answer_padding) == (0, 2)
    assert (found[2].padding, found[2].answer_padding) == (1, 0)
    assert (found[2].tokens, found[2].trained_tokens) == (6, 4)


def test_lengths_are_counted_without_gaps():
    lengths = np.array([3, 3, 5, 40, 100, 128])
    found = Lengths.of(lengths)
    assert (found.median, found.longest) == (22.5, 128) and found.percent_90 == 114.0
    lows, highs, rows = zip(*found.histogram, strict=True)
    assert lows[0] == 3 and highs[-1] == 128 and sum(rows) == len(lengths)
    assert all(high + 1 == low for high, low in zip(highs[:-1], lows[1:], strict=True))
    for low, high, count in found.histogram:
        assert count == ((lengths >= low) & (lengths <= high)).sum()
    assert Lengths.of(np.array([7])).histogram == ((7, 7, 1),)


def test_grouping_lowers_padding_and_packing_lowers_it_most():
    inputs = np.clip(np.random.default_rng(0).lognormal(4, 1, 2000).astype(int), 1, 512)
    found = padding_shares(inputs, capacity=512, documents=64, micro_batch=8, packs=True)
    assert found.packed is not None
    assert 0.1 < found.padded < 0.5 and 0 <= found.grouped < 0.1 and 0 <= found.packed < 0.1
    wider = padding_shares(
        inputs, capacity=512, documents=64, micro_batch=8, packs=False, rounding=round_up_to_multiple
    )
    assert wider.packed is None and found.padded < wider.padded < found.padded + 0.1


TEXTS = [
    "The cat sat.", " leading and trailing ", "line one\nline two\ttab", "caf\u00e9 \u6f22\u5b57 \U0001f600",
    "<bos> and <eos> are text here", "", "a",
]  # fmt: skip


class Stripping:
    """A tokenizer of words that decodes as SentencePiece's do: without the blank before the first word."""

    all_special_ids = (0,)
    added_tokens_decoder = MappingProxyType({9: SimpleNamespace(special=True), 8: SimpleNamespace(special=False)})
    words = ("<s>", "the", "cat", "sat")

    def decode(self, ids, **_) -> str:
        return " ".join(self.words[number] if number < 4 else f"word{number}" for number in ids)

    def convert_ids_to_tokens(self, number) -> str:
        return "<s>" if number == 0 else f"<{number}>"


def test_words_keep_the_space_before_them_and_tags_begin_a_piece():
    found = Speller(Stripping()).pieces([0, 1, 2, 3, 9, 8], [False, False, True, True, True, False])
    assert [(piece.text, piece.tokens, piece.trained, piece.special) for piece in found] == [
        ("<s>", 1, False, True),
        ("the", 1, False, False),
        (" cat sat", 2, True, False),
        ("<9>", 1, True, True),
        ("word8", 1, False, False),
    ]
    # A tag begins a piece.
    found = Speller(Stripping()).pieces([0, 1, 2, 3], [False, True, False, True], ["", "O", "", "B-PER"])
    assert [(piece.text, piece.tag) for piece in found] == [("<s>", ""), ("the", "O"), (" cat", ""), (" sat", "B-PER")]


def test_pieces_together_are_the_text(subtests):
    from tests.tiny_models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    for text in TEXTS:
        with subtests.test(text=text):
            ids = tokenizer(text)["input_ids"]
            for interval in (1, 2, 3):
                trained = [position % interval == 0 for position in range(len(ids))]
                assert sum(piece.tokens for piece in Speller(tokenizer).pieces(ids, trained)) == len(ids)
            beginning, *pieces = Speller(tokenizer).pieces(ids, [True] * len(ids))
            assert beginning.text == "<bos>" and beginning.special
            # This tokenizer encodes text that spells a special token as that token, and the preview shows it.
            assert "".join(piece.text for piece in pieces) == text
            assert [piece.text for piece in pieces if piece.special] == ["<bos>", "<eos>"] * ("<bos>" in text)
