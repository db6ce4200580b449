"""A tokenizer for a model from scratch: byte-level BPE, trained on the training text alone.

Byte-level: every text can be encoded, and no text needs an unknown token.
Source: Radford et al., Language models are unsupervised multitask learners (2019), section 2.2.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, BOS, EOS, UNK, CLS, SEP, MASK = "<pad>", "<bos>", "<eos>", "<unk>", "<cls>", "<sep>", "<mask>"
TURN, TURN_END = "<|im_start|>", "<|im_end|>"
PAD_ID, BOS_ID, EOS_ID = range(3)
BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Specials:
    """Tokens that are no text: `named` by what transformers calls them, in the order of their ids, and `others`.

    `single` and `pair` are the frames that encoding puts around one text or two.
    """

    named: tuple[tuple[str, str], ...]
    others: tuple[str, ...] = ()
    single: str = ""
    pair: str = ""
    spaces_words: bool = False
    """Where texts come as lists of words: each word is spelt with the space before it, as it is within a text."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Each once, in the order of their ids."""
        return (*dict.fromkeys(token for _, token in self.named), *self.others)

    @property
    def smallest_vocabulary(self) -> int:
        return len(self.tokens) + BYTES

    @property
    def tells_pairs(self) -> bool:
        """Whether the second text of a pair is told from the first by numbers beside the tokens."""
        return ":1" in self.pair

    def frame_tokens(self, *, pair: bool) -> int:
        """How many of them stand around one text, or two."""
        return sum(not part.startswith("$") for part in (self.pair if pair else self.single).split())


# An unknown token is never used, as bytes spell everything; unnamed, some families' tokenizers would add one.
FOR_TEXT = Specials(
    named=(("pad_token", PAD), ("bos_token", BOS), ("eos_token", EOS), ("unk_token", EOS)),
    single=f"{BOS} $A",
    pair=f"{BOS} $A {BOS} $B",
)
FOR_CHAT = Specials(named=FOR_TEXT.named, others=(TURN, TURN_END))
FOR_CLASSES = Specials(
    named=(
        ("pad_token", PAD), ("cls_token", CLS), ("sep_token", SEP), ("mask_token", MASK), ("unk_token", UNK),
    ),
    single=f"{CLS} $A {SEP}",
    pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
)  # fmt: skip
FOR_WORDS = replace(FOR_CLASSES, spaces_words=True)
FOR_ANSWERS = Specials(
    named=(("pad_token", PAD), ("eos_token", EOS), ("unk_token", UNK)), single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}"
)
TRAINED_HERE = "byte-level BPE trained on this data, 1"  # the number rises when training gives other tokens


def train_tokenizer(texts: Iterable[str], vocab_size: int, special: Specials = FOR_TEXT) -> "Tokenizer":
    """At most `vocab_size` tokens: the special ones (for text <pad>, <bos> and <eos>: 0, 1, 2), the bytes, and merges.

    The same texts in the same order give the same tokenizer. For text, encoding puts <bos> before each text, so that
    the first token of a document is a label too; <eos> is left to the caller. Text that spells "<eos>" stays text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    smallest = special.smallest_vocabulary
    if vocab_size < smallest:
        raise ValueError(f"a vocabulary of {vocab_size} is too small for {smallest} bytes and special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=special.spaces_words)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special.tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if special.single:
        ids = [(token, number) for number, token in enumerate(special.tokens)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=special.single, pair=special.pair, special_tokens=ids
        )
    tokenizer.encode_special_tokens = True
    return tokenizer
