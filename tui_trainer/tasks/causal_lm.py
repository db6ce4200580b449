"""A causal language model on documents: pretrained, or from random weights in the shape of any config.

Each document is a row of its own, with the tokenizer's own special tokens and an end token; whether documents share
rows of a batch is the plan's matter (`planning/packing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tui_trainer.config.mixture import weights_of
from tui_trainer.config.sections import Config
from tui_trainer.data.preparing.byte_bpe import EOS_ID
from tui_trainer.data.preparing.cache import DocumentCut, PreparedData
from tui_trainer.data.preparing.documents import estimate_documents, find_documents, prepare_documents
from tui_trainer.data.preparing.mixture import sources_in
from tui_trainer.data.progress import Progress
from tui_trainer.models.tokenizing.token_ids import token_ids
from tui_trainer.tasks.contract import Baselines, DataFacts
from tui_trainer.tasks.parts.next_token import LearnsNextToken, packed_rows
from tui_trainer.tasks.parts.sources import sources_of
from tui_trainer.tasks.parts.start import (
    StartsFromModel,
    own_tokenizer,
    tokenizer_of,
    tokens_a_character,
    trains_tokenizer,
)


class CausalLm(StartsFromModel, LearnsNextToken):
    """See `tasks/contract.py` for what each part promises."""

    name = "causal_lm"
    title = "Causal language model"
    reads = ("source_language",)
    packs = True

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        source, eval_source = sources_of(config)
        cut = _cut(config)
        if prepared := find_documents(source, eval_source, cut=cut, cache_dir=cache_dir, progress=progress):
            return self.facts(config, prepared)
        rate = partial(tokens_a_character, config, self.head)
        guess = estimate_documents(source, eval_source, cut, rate, cut.vocabulary)
        return DataFacts.guessed(
            guess,
            row_tokens=guess.labels / max(guess.rows, 1),
            longest_row=guess.longest_row,
            packed_rows=packed_rows(config, guess.lengths, guess.rows),
        )

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        source, eval_source = sources_of(config)
        encode = None if trains_tokenizer(config) else _Encoder(config)
        return prepare_documents(source, eval_source, encode, cut=_cut(config), cache_dir=cache_dir, progress=progress)

    def facts(self, config: Config, data: PreparedData) -> DataFacts:
        counts = data.counts
        return DataFacts.counted(
            counts,
            row_tokens=counts.train_labels / max(counts.train_rows, 1),
            longest_row=counts.longest_row,
            packed_rows=packed_rows(config, data.lengths, counts.train_rows),
            sources=sources_in(data.details),
            splits=data.splits,
            details=data.details,
        )

    def baselines(self, config: Config, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        return None


class _Encoder:
    """Texts to ids with the model's own tokenizer, special tokens included. It is loaded at the first text."""

    def __init__(self, config: Config) -> None:
        self._load = partial(own_tokenizer, config, CausalLm.head)
        self._tokenizer: Any = None

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        self._tokenizer = self._tokenizer or self._load()
        return token_ids(self._tokenizer, texts)


def _cut(config: Config) -> DocumentCut:
    data = config.data
    tokenizer, eos_id, vocabulary = tokenizer_of(config, CausalLm.head)
    return DocumentCut(
        max_length=data.max_length,
        eval_fraction=data.eval_fraction,
        seed=data.seed,
        max_chars=data.max_chars,
        tokenizer=tokenizer,
        eos_id=EOS_ID if trains_tokenizer(config) else eos_id,
        vocabulary=vocabulary,
        max_rows=data.max_rows,
        dedup=data.dedup,
        skip_bad_rows=data.on_bad_rows == "skip",
        weights=weights_of(data.path, data.weights),
    )


TASK = CausalLm()
