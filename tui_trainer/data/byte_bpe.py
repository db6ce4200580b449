"""A tokenizer for a model from scratch: byte-level BPE, trained on the training text alone.

Byte-level: every text can be encoded, and no text needs an unknown token.
Source: Radford et al., Language models are unsupervised multitask learners (2019), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL_TOKENS = (PAD, BOS, EOS)
PAD_ID, BOS_ID, EOS_ID = range(3)
BYTES = 256
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + BYTES
TRAINED_HERE = "byte-level BPE trained on this data, 1"  # the number rises when training gives other tokens


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """At most `vocab_size` tokens: <pad>, <bos> and <eos> (0, 1, 2), the bytes, and merges of them.

    The same texts in the same order give the same tokenizer. Encoding puts <bos> before each text, so that the first
    token of a document is a label too; <eos> is left to the caller. Text that spells "<eos>" stays text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"a vocabulary of {vocab_size} has no room for {SMALLEST_VOCABULARY} bytes and special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    _begin_with_bos(tokenizer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _begin_with_bos(tokenizer: Tokenizer) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BOS_ID)]
    )
