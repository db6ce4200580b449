"""Training of a tokenizer for a model from scratch: byte-level BPE, from the training texts alone.

Byte-level BPE can encode every text without an unknown token. Source: Radford et al., Language models are unsupervised
multitask learners (2019), section 2.2.
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
class SpecialTokens:
    """Special tokens of a tokenizer, in the order of their ids. `named_tokens` are pairs such as ("pad_token", "<pad>")
    with a name in transformers; `others` have none. `single` and `pair` are the templates for one text and for two."""

    named_tokens: tuple[tuple[str, str], ...]
    others: tuple[str, ...] = ()
    single: str = ""
    pair: str = ""
    spaces_words: bool = False
    """Whether each word of a list is encoded with a space before it, as within a text."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """All special tokens without repetitions, in the order of their ids."""
        return (*dict.fromkeys(token for _, token in self.named_tokens), *self.others)

    @property
    def smallest_vocabulary(self) -> int:
        return len(self.tokens) + BYTES

    @property
    def distinguishes_pairs(self) -> bool:
        """Whether token type ids distinguish the second text of a pair from the first."""
        return ":1" in self.pair

    def frame_tokens(self, *, pair: bool) -> int:
        """Return the number of special tokens around one text, or around a pair of texts."""
        return sum(not part.startswith("$") for part in (self.pair if pair else self.single).split())


# Bytes spell every text, so the unknown token is never used. Without a name, some tokenizer classes would add one.
TEXT_SPECIAL_TOKENS = SpecialTokens(
    named_tokens=(("pad_token", PAD), ("bos_token", BOS), ("eos_token", EOS), ("unk_token", EOS)),
    single=f"{BOS} $A",
    pair=f"{BOS} $A {BOS} $B",
)
CHAT_SPECIAL_TOKENS = SpecialTokens(named_tokens=TEXT_SPECIAL_TOKENS.named_tokens, others=(TURN, TURN_END))
CLASSIFIER_SPECIAL_TOKENS = SpecialTokens(
    named_tokens=(
        ("pad_token", PAD), ("cls_token", CLS), ("sep_token", SEP), ("mask_token", MASK), ("unk_token", UNK),
    ),
    single=f"{CLS} $A {SEP}",
    pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
)  # fmt: skip
WORD_SPECIAL_TOKENS = replace(CLASSIFIER_SPECIAL_TOKENS, spaces_words=True)
ANSWER_SPECIAL_TOKENS = SpecialTokens(
    named_tokens=(("pad_token", PAD), ("eos_token", EOS), ("unk_token", UNK)),
    single=f"$A {EOS}",
    pair=f"$A {EOS} $B {EOS}",
)
TRAINED_TOKENIZER_KEY = "byte-level BPE trained on this data, 1"  # raise the number when training gives other tokens


def train_tokenizer(texts: Iterable[str], vocab_size: int, special: SpecialTokens = TEXT_SPECIAL_TOKENS) -> "Tokenizer":
    """Train a tokenizer of at most `vocab_size` tokens: the special ones, the bytes, and merges.

    The same texts in the same order give the same tokenizer. FOR_TEXT has <pad>, <bos> and <eos> (0, 1, 2), and puts
    <bos> before each text, so that the first token of a document is a label too; the caller adds <eos>. A text that
    spells "<eos>" does not become the special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    smallest_size = special.smallest_vocabulary
    if vocab_size < smallest_size:
        raise ValueError(f"vocabulary size {vocab_size} is too small for {smallest_size} bytes and special tokens")
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
        special_ids = [(token, token_id) for token_id, token in enumerate(special.tokens)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=special.single, pair=special.pair, special_tokens=special_ids
        )
    tokenizer.encode_special_tokens = True
    return tokenizer
