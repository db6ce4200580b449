"""A causal language model on documents: pretrained, or from random weights in the shape of any config.

Each document is a row of its own, with the tokenizer's own special tokens and an end token; whether documents share
rows of a batch is the plan's matter (`planning/packing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.byte_bpe import BOS, EOS, EOS_ID, PAD, TRAINED_HERE
from tui_trainer.data.cache import DocumentCut, PreparedData
from tui_trainer.data.documents import estimate_documents, find_documents, prepare_documents
from tui_trainer.data.pack import expected_packed_rows
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources import Source, open_source
from tui_trainer.errors import Problem
from tui_trainer.models.facts import ModelFacts, find_model, require_folder
from tui_trainer.models.loading import (
    load_config,
    load_pretrained,
    load_tokenizer,
    new_model,
    tokenizer_of_file,
    weights_key,
)
from tui_trainer.models.problems import length_problems, model_problems
from tui_trainer.models.shape import ModelShape, scratch_config, shape_of
from tui_trainer.models.tokenizer import tokenizer_facts, tokens_per_character
from tui_trainer.tasks.contract import Baselines, DataFacts

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from tui_trainer.losses.micro_batch import MicroBatch

_MODEL = "model.model_name_or_path"
# Of byte-level BPE on English text, where no tokenizer is at hand to count with.
_USUAL_TOKENS_PER_CHARACTER = 0.25


class CausalLm:
    """See `tasks/contract.py` for what each part promises."""

    name = "causal_lm"
    title = "Causal language model"

    def problems(self, config: Config) -> list[Problem]:
        model, scratch = config.model, config.model.init == "scratch"
        if scratch and config.tuning.method != "full":
            message = "random weights cannot be frozen: all of them must move"
            return [
                Problem(message=message, key="tuning.method", hint='set it to "full", or model.init to "pretrained"')
            ]
        if not model.model_name_or_path:
            hint = 'give a folder or a name (--model), or set model.init = "scratch"'
            return [] if scratch else [Problem(message="no model is named", key=_MODEL, hint=hint)]
        facts = _model(config)
        found = length_problems(facts.shape, config.data.max_length)
        # A model that only the catalogue knows can be planned; it is refused when it should be trained.
        return found if facts.folder is None else found + model_problems(facts, model.init, model.trust_remote_code)

    def model_shape(self, config: Config, vocabulary: int) -> ModelShape:
        if config.model.init == "pretrained":
            return _model(config).shape
        return shape_of(self.model_config(config, vocabulary))

    def model_config(self, config: Config, vocabulary: int) -> Mapping[str, Any]:
        if not config.model.model_name_or_path:
            return scratch_config(config.model.scratch, vocabulary)
        changes = {"vocab_size": vocabulary} if config.model.init == "scratch" else {}
        return {**_model(config).config, **changes}

    def model_key(self, config: Config) -> str:
        return weights_key(_model(config)) if config.model.init == "pretrained" else ""

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        source, eval_source = _sources(config)
        cut = _cut(config)
        if prepared := find_documents(source, eval_source, cut=cut, cache_dir=cache_dir, progress=progress):
            return self.facts(config, prepared)
        rate = _tokens_per_character(config, source)
        guess = estimate_documents(source, eval_source, cut, rate, cut.vocabulary)
        return DataFacts.guessed(
            guess,
            row_tokens=guess.labels / max(guess.rows, 1),
            longest_row=guess.longest_row,
            packed_rows=_packed_rows(config, guess.lengths, guess.rows),
        )

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        source, eval_source = _sources(config)
        encode = None if _trains_tokenizer(config) else _Encoder(config)
        return prepare_documents(source, eval_source, encode, cut=_cut(config), cache_dir=cache_dir, progress=progress)

    def facts(self, config: Config, data: PreparedData) -> DataFacts:
        counts = data.counts
        return DataFacts.counted(
            counts,
            row_tokens=counts.train_labels / max(counts.train_rows, 1),
            longest_row=counts.longest_row,
            packed_rows=_packed_rows(config, data.lengths, counts.train_rows),
        )

    def baselines(self, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        return None

    def load_tokenizer(self, config: Config, data: PreparedData) -> PreTrainedTokenizerBase:
        if not _trains_tokenizer(config):
            return load_tokenizer(require_folder(_model(config)), config.model.trust_remote_code)
        # An unknown token is never used, as bytes spell everything; unnamed, some families' tokenizers would add one.
        special = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS, "unk_token": EOS}
        return tokenizer_of_file(data.tokenizer_path, config.data.max_length, special)

    def build_model(
        self, config: Config, data: PreparedData, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype
    ) -> PreTrainedModel:
        if config.model.init == "pretrained":
            return load_pretrained(require_folder(_model(config)), config.model, dtype)
        folder = require_folder(_model(config)) if config.model.model_name_or_path else None
        shape = load_config(folder, config, vocabulary=data.counts.vocabulary, tokenizer=tokenizer)
        return new_model(shape, config.model, dtype)

    def loss(self, model: Any, *, chunk_tokens: int) -> Callable[[MicroBatch], Tensor]:
        from tui_trainer.losses.next_token import NextTokenLoss

        return NextTokenLoss(model, chunk_tokens=chunk_tokens)


class _Encoder:
    """Texts to ids with the model's own tokenizer, special tokens included. It is loaded at the first text."""

    def __init__(self, config: Config) -> None:
        self._load = partial(load_tokenizer, require_folder(_model(config)), config.model.trust_remote_code)
        self._tokenizer: Any = None

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        self._tokenizer = self._tokenizer or self._load()
        ids: list[list[int]] = self._tokenizer(list(texts), return_attention_mask=False, verbose=False)["input_ids"]
        return ids


def _model(config: Config) -> ModelFacts:
    return find_model(config.model.model_name_or_path, config.model.revision)


def _sources(config: Config) -> tuple[Source, Source | None]:
    data = config.data
    held_out = open_source(data.eval_path, data.text_column) if data.eval_path else None
    return open_source(data.path, data.text_column), held_out


def _trains_tokenizer(config: Config) -> bool:
    """From random weights the tokens are those of the data, unless a folder brings a tokenizer."""
    return config.model.init == "scratch"


def _cut(config: Config) -> DocumentCut:
    data = config.data
    tokenizer: str
    eos_id: int | None
    tokenizer, eos_id, vocabulary = TRAINED_HERE, EOS_ID, config.model.scratch.vocab_size
    if not _trains_tokenizer(config):
        tokenizer, eos_id, vocabulary = _own_tokenizer(_model(config))
    return DocumentCut(
        max_length=data.max_length,
        eval_fraction=0.0 if data.eval_path else data.eval_fraction,
        seed=data.seed,
        max_chars=data.max_chars,
        tokenizer=tokenizer,
        eos_id=eos_id,
        vocabulary=vocabulary,
    )


def _own_tokenizer(model: ModelFacts) -> tuple[str, int | None, int]:
    """(key, end token, number of tokens) of the model's own tokenizer."""
    found = tokenizer_facts(model.folder) if model.folder else None
    eos_id = found.eos_token_id if found else None
    if eos_id is None:
        eos_id = next(iter(model.eos_token_ids), None)
    return model.tokenizer_key or "", eos_id, found.vocabulary if found else model.shape.vocabulary


def _tokens_per_character(config: Config, source: Source) -> float:
    folder = None if _trains_tokenizer(config) else _model(config).folder
    measured = tokens_per_character(folder, source.beginning()) if folder else None
    return measured or _USUAL_TOKENS_PER_CHARACTER


def _packed_rows(config: Config, lengths: Sequence[int], rows: int) -> float | None:
    if not lengths:
        return None
    batch = min(config.training.effective_batch_size, rows)
    return expected_packed_rows(lengths, config.data.max_length, batch)


TASK = CausalLm()
