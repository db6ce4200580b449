"""Learning the next token: the objective, and how a model that has learnt it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import Collate, collate
from tui_trainer.data.batching.pack import expected_packed_rows
from tui_trainer.models.writing import Sampling, continued, pad_token_id, written
from tui_trainer.tasks.contract import Objective, Scorer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.data.preparing.token_rows import TokenRow

_PROMPT_TOKENS = 32
_SAMPLE_TOKENS = 160


class LearnsNextToken:
    """The part of a task that is the same for all texts. A row's labels are its own tokens, or some of them."""

    metrics: tuple[str, ...] = ()
    continues = True
    tells_padding = False

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(collate, pad_id=pad_id)

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.next_token import NextTokenLoss

        smoothing = config.training.label_smoothing_factor
        return NextTokenLoss(model, chunk_tokens=chunk_tokens, label_smoothing=smoothing)

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer | None:
        return None

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: PreTrainedTokenizerBase, row: TokenRow
    ) -> tuple[str, str]:
        """The beginning of a text, continued."""
        # A row has one token more than the model may have places.
        width = config.data.max_length
        prompt_ids = row.tokens[: min(_PROMPT_TOKENS, width)].tolist()
        new_tokens = max(1, min(_SAMPLE_TOKENS, width - len(prompt_ids)))
        return continued(model, tokenizer, prompt_ids, new_tokens=new_tokens)

    def answer(
        self, config: Config, model: Any, tokenizer: PreTrainedTokenizerBase, text: str, sampling: Sampling
    ) -> str:
        """The text's continuation."""
        return written(model, tokenizer, tokenizer(text)["input_ids"] or [pad_token_id(tokenizer)], sampling)


def packed_rows(config: Config, inputs: Sequence[int], rows: int) -> float | None:
    """Rows of `data.max_length` that an effective batch fills; `inputs`: how many tokens some rows, or all, put in."""
    if not inputs:
        return None
    batch = min(config.training.effective_batch_size, rows)
    return expected_packed_rows(inputs, config.data.max_length, batch)
