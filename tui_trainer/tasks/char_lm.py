"""A character-level language model from random weights, of Llama shape with rotary attention.

The vocabulary is the training text's own characters; the tokenizer is a real one that `AutoTokenizer` loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.preparing.character_stream import PreparedData, estimate_characters, lookup, prepare_characters
from tui_trainer.data.preparing.character_tokenizer import EOS, PAD, UNK
from tui_trainer.data.progress import Progress
from tui_trainer.errors import Problem
from tui_trainer.models.loading import load_config, new_model, tokenizer_of_file
from tui_trainer.models.shape import ModelShape, scratch_config, shape_of
from tui_trainer.tasks.contract import Baselines, DataFacts, Tell
from tui_trainer.tasks.parts.next_token import LearnsNextToken
from tui_trainer.tasks.parts.sources import sources_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# N-gram models count on so much text at the most: their tables take about 80 bytes a token.
_BASELINE_TOKENS = 3_000_000


class CharLm(LearnsNextToken):
    """See `tasks/contract.py` for what each part promises."""

    name = "char_lm"
    title = "Character-level language model, from scratch"
    reads = ()
    packs = False

    def problems(self, config: Config) -> list[Problem]:
        found = []
        if config.model.model_name_or_path:
            hint = 'set task.type = "causal_lm" to start from a model'
            message = "a character model starts from random weights"
            found.append(Problem(message=message, key="model.model_name_or_path", hint=hint))
        if config.tuning.method != "full":
            message = "random weights cannot be frozen: all of them must move"
            found.append(Problem(message=message, key="tuning.method", hint='set it to "full"'))
        return [*found, *_row_problems(config)]

    def model_shape(self, config: Config, vocabulary: int, classes: int = 0) -> ModelShape:
        return shape_of(self.model_config(config, vocabulary))

    def model_config(self, config: Config, vocabulary: int, classes: int = 0) -> Mapping[str, Any]:
        return scratch_config(config.model.scratch, vocabulary)

    def model_key(self, config: Config) -> str:
        return ""

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        sources, settings = sources_of(config), _settings(config)
        if prepared := lookup(*sources, **settings, cache_dir=cache_dir, progress=progress):
            return self.facts(config, prepared)
        del settings["seed"]
        guess, length = estimate_characters(*sources, **settings), config.data.max_length
        return DataFacts.guessed(guess, row_tokens=length, longest_row=length)

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        return prepare_characters(*sources_of(config), **_settings(config), cache_dir=cache_dir, progress=progress)

    def facts(self, config: Config, data: PreparedData) -> DataFacts:
        row_tokens = min(data.max_length, data.counts.train_tokens - 1)
        return DataFacts.counted(data.counts, row_tokens=row_tokens, longest_row=data.max_length, splits=data.splits)

    def baselines(self, config: Config, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
        from tui_trainer.tasks.parts.ngram import ngram_losses

        if data.eval_path is None:
            return None
        train_ids = Rows(data.train_path).first_tokens(_BASELINE_TOKENS)
        held_out = Rows(data.eval_path)
        few = max(1, _BASELINE_TOKENS // data.max_length)
        eval_ids, is_label = held_out.stream([eval_rows[place] for place in evenly_spaced(len(eval_rows), few)])
        losses = ngram_losses(train_ids, eval_ids, is_label, vocabulary=data.counts.vocabulary)
        named = {f"order {order}": loss for order, loss in losses.items()}
        return Baselines(losses=named, eval_tokens=int(is_label.sum()))

    def load_tokenizer(self, config: Config, data: PreparedData) -> PreTrainedTokenizerBase:
        special = {"pad_token": PAD, "unk_token": UNK, "eos_token": EOS}
        return tokenizer_of_file(data.tokenizer_path, data.max_length, special)

    def build_model(
        self,
        config: Config,
        data: PreparedData,
        tokenizer: PreTrainedTokenizerBase,
        dtype: torch.dtype,
        device: torch.device,
        tell: Tell,
    ) -> PreTrainedModel:
        shape = load_config(None, config, vocabulary=data.counts.vocabulary, tokenizer=tokenizer)
        return new_model(shape, config.model, dtype)


def _settings(config: Config) -> dict[str, Any]:
    """What decides which rows the text gives."""
    data = config.data
    return {
        "max_length": data.max_length,
        "eval_fraction": data.eval_fraction,
        "seed": data.seed,
        "max_chars": data.max_chars,
    }


def _row_problems(config: Config) -> Iterator[Problem]:
    """Settings about rows, of which one long text has none."""
    data = config.data
    message = "a character model reads one stream of text, which has no rows"
    told = {
        "data.weights": (data.weights != "", "leave it empty"),
        "data.dedup": (data.dedup, "set it to false"),
        "data.on_bad_rows": (data.on_bad_rows == "skip", 'set it to "stop"'),
        "data.max_rows": (data.max_rows > 0, "set it to 0; data.max_chars limits the text"),
    }
    for key, (is_set, hint) in told.items():
        if is_set:
            yield Problem(message=message, key=key, hint=f'{hint}, or task.type to "causal_lm"')


TASK = CharLm()
