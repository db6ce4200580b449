"""The methods of tasks that predict the next token: loss, generation, samples and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import Collate, collate
from tui_trainer.models import writing
from tui_trainer.models.token_ids import strip_spelled_marks, token_ids
from tui_trainer.tasks.contract import InputRow, Objective
from tui_trainer.tasks.parts.free_answers import Prompt, answer_prompts, free_answer_scores
from tui_trainer.tasks.parts.suite import Reply, SuiteRow, inputs_of
from tui_trainer.tasks.parts.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.data.preparing.token_rows import TokenRow

_PROMPT_TOKENS = 32


class LearnsNextToken(Task):
    """Base class of tasks that predict the next token. Labels are the tokens of the row, or some of them."""

    continues = True

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """Make the model stop at the end token of training, and at the end tokens that it had before."""
        super().set_generation(config, model, tokenizer)
        settings, end_id = model.generation_config, tokenizer.eos_token_id
        end_ids = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        if end_id is not None and end_id not in end_ids:
            settings.eos_token_id = [end_id, *(old_id for old_id in end_ids if old_id is not None)]

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(collate, pad_id=pad_id)

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.next_token import NextTokenLoss

        smoothing = config.training.label_smoothing_factor
        return NextTokenLoss(model, chunk_tokens=chunk_tokens, label_smoothing=smoothing)

    def choice_count(self, config: Config, data: PreparedData) -> int:
        return data.counts.vocabulary

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the beginning of a text, and the model's continuation of it."""
        # A row has one token more than the model may have positions.
        max_length = config.data.max_length
        prompt_ids = row.tokens[: min(_PROMPT_TOKENS, max_length)].tolist()
        new_tokens = max(1, min(new_tokens, max_length - len(prompt_ids)))
        return writing.sample_continuation(model, tokenizer, prompt_ids, new_tokens=new_tokens)

    def answer_scores(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[TokenRow]
    ) -> Mapping[str, float]:
        prompts = [prompt for row in rows if (prompt := self.prompt_of(config, model, tokenizer, row))]
        answers = answer_prompts(model, tokenizer, prompts, new_tokens=self.answer_tokens(config))
        return free_answer_scores(answers, prompts)

    def suite_replies(self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[SuiteRow]) -> list[Reply]:
        contents = inputs_of(rows, self.input_reader(config, tokenizer), config.data.text_column)
        limit = max([self.answer_tokens(config), *(row.checks.get("max_tokens", 0) + 1 for row in rows)])
        sampling = writing.Sampling(max_new_tokens=limit, temperature=0, seed=0)
        inputs = self.encode_inputs(config, model, tokenizer, contents, sampling)
        new_tokens = _new_tokens(model, tokenizer, sampling)
        answers = writing.answer_in_batches(model, tokenizer, [list(row.ids) for row in inputs], new_tokens=new_tokens)
        return [Reply.of(answer) for answer in answers]

    def prompt_of(self, config: Config, model: Any, tokenizer: Tokenizer, row: TokenRow) -> Prompt | None:
        """Return the beginning of a document as a prompt, or None if it is too short to be continued."""
        ids = row.tokens.tolist()
        count = min(_PROMPT_TOKENS, len(ids) // 2)
        return Prompt.of(model, ids[:count], ids[count:]) if count else None

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: writing.Sampling
    ) -> list[InputRow]:
        """Encode prompts. A prompt that leaves too little room for the new tokens loses its beginning."""
        most_prompt_tokens = writing.longest_sequence_tokens(model, tokenizer) - _new_tokens(model, tokenizer, sampling)
        empty_prompt = [writing.pad_token_id(tokenizer)]
        return [
            InputRow(ids[-most_prompt_tokens:] or empty_prompt, content, is_cut=len(ids) > most_prompt_tokens)
            for content, ids in zip(contents, self.prompt_ids(tokenizer, contents), strict=True)
        ]

    def prompt_ids(self, tokenizer: Tokenizer, contents: Sequence[Any]) -> list[list[int]]:
        """Return the token ids of each prompt, without truncation."""
        return token_ids(tokenizer, strip_spelled_marks(tokenizer, [text for (text,) in contents], ends=False)[0])

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: writing.Sampling
    ) -> list[dict[str, Any]]:
        """Return the text that the model generates after each prompt: its continuation or its answer."""
        sampling = replace(sampling, max_new_tokens=_new_tokens(model, tokenizer, sampling))
        prompts = [list(row.ids) for row in rows]
        return [{"text": text} for text in writing.generate_texts(model, tokenizer, prompts, sampling)]

    def greedy_answers(
        self, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: writing.Sampling
    ) -> list[writing.Answer]:
        """Return the greedy answer to each encoded prompt, in one pass, with the token limit of `predict`."""
        limit = _new_tokens(model, tokenizer, sampling)
        return writing.generate_answers(model, tokenizer, [list(row.ids) for row in rows], new_tokens=limit)

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        return str(prediction["text"])


def _new_tokens(model: Any, tokenizer: Any, sampling: writing.Sampling) -> int:
    """Return the limit of new tokens in each row: half of the model's length, or all of it with an encoder."""
    model_length = writing.longest_sequence_tokens(model, tokenizer)
    return min(sampling.max_new_tokens, model_length if model.config.is_encoder_decoder else max(1, model_length // 2))
