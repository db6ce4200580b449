"""Tokens spelled as text: nothing is lost between pieces, and special tokens show their names."""

from types import MappingProxyType, SimpleNamespace

from tui_trainer.data.preview import Speller

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


def test_words_keep_the_blank_before_them():
    found = Speller(Stripping()).pieces([0, 1, 2, 3, 9, 8], [False, False, True, True, True, False])
    assert [(piece.text, piece.tokens, piece.trained, piece.special) for piece in found] == [
        ("<s>", 1, False, True),
        ("the", 1, False, False),
        (" cat sat", 2, True, False),
        ("<9>", 1, True, True),
        ("word8", 1, False, False),
    ]


def test_a_tag_begins_a_piece():
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
