"""A character-level language model with the Llama architecture, from random weights or from another character model.

It is a causal language model. Its vocabulary is the characters of the training text, and its rows are cut from one
stream of text. The tokenizer is saved in a format that `AutoTokenizer` loads. A model that continues to train keeps its
characters, because new ones would need new embeddings.
"""

from collections.abc import Sequence
from typing import Any

from tui_trainer.config.sections import Config
from tui_trainer.config.token_list import ADD_TOKENS_KEY
from tui_trainer.data.columns.reader import Reader
from tui_trainer.data.preparing.cache import PreparedData, RowKind
from tui_trainer.data.preparing.estimate import Rate
from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.data.preparing.tokenizing import CHARACTER_SPECIAL_TOKENS, CharacterReader, alphabet_in
from tui_trainer.errors import Problem
from tui_trainer.models.facts import require_folder
from tui_trainer.tasks.causal_lm import CausalLm
from tui_trainer.tasks.contract import Baselines
from tui_trainer.tasks.parts.ngram import ngram_losses
from tui_trainer.tasks.parts.starts_from_model import find_model_facts, scratch_change_problems

# Limit of the text for n-gram models, whose tables take about 80 bytes a token.
_BASELINE_TOKENS = 3_000_000
_NGRAMS = {1: "bigram", 2: "trigram"}


class CharLm(CausalLm):
    """Task of character-level language modeling. `tasks/parts/task.py` documents the methods."""

    name = "char_lm"
    title = "Character-level language model"
    supports_unsloth = False
    usual_answer_rows = 0  # a piece of one long text has no end
    waiting_bytes = 2
    used_settings = ()
    can_pack = False
    specials = CHARACTER_SPECIAL_TOKENS
    row_kind: RowKind = "stream"

    def problems(self, config: Config) -> list[Problem]:
        if not config.is_from_scratch:
            return super().problems(config) or self._token_problems(config)
        problems = scratch_change_problems(config) + self.data_problems(config)
        if config.model.model_name_or_path:
            hint = 'leave it empty, or set model.init to "pretrained" to continue from a character model'
            message = "a character model from scratch takes its shape from [model.scratch]"
            problems.append(Problem(message=message, key="model.model_name_or_path", hint=hint))
        if config.tuning.method != "full":
            message = "a model with random weights must be trained in full"
            problems.append(Problem(message=message, key="tuning.method", hint='set it to "full"'))
        return problems

    def reader(self, config: Config) -> Reader:
        return CharacterReader(None if config.is_from_scratch else self._alphabet(config))

    def _alphabet(self, config: Config) -> tuple[str, ...] | None:
        """Return the characters of the model whose training continues, or None if its tokens are not characters."""
        facts = find_model_facts(config, self.head)
        return alphabet_in(facts.tokenizer_folder or require_folder(facts))

    def _token_problems(self, config: Config) -> list[Problem]:
        if self._alphabet(config) is not None:
            if not config.model.add_tokens.strip():
                return []
            message = "no tokens can be added, because the first training data fixed the vocabulary of the model"
            return [Problem(message=message, key=ADD_TOKENS_KEY, hint="remove it")]
        hint = "use the recipe finetune, which infers the task from model and data, or set task.type"
        message = "training can only continue from a character model, and the tokens of this model are not characters"
        return [Problem(message=message, key="model.model_name_or_path", hint=hint)]

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        return {"tokens": "characters"}

    def token_rate(self, config: Config) -> Rate:
        return lambda texts: 1.0

    def frame_tokens(self, config: Config) -> int:
        return 1

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return the losses of predicting each character from the one, two or three characters before it."""
        train_ids = Rows(data.train_path).first_tokens(_BASELINE_TOKENS)
        row_limit = max(1, _BASELINE_TOKENS // data.max_length)
        eval_ids, is_label = held_out.stream([eval_rows[index] for index in evenly_spaced(len(eval_rows), row_limit)])
        losses = ngram_losses(train_ids, eval_ids, is_label, vocabulary=data.counts.vocabulary)
        baselines = {f"{_NGRAMS.get(order, f'{order + 1}-gram')} baseline": loss for order, loss in losses.items()}
        return Baselines(losses=baselines, eval_tokens=int(is_label.sum()))


TASK = CharLm()
