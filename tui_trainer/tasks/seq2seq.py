"""Text to text with an encoder-decoder: summaries, answers, translations (T5, BART and similar models).

A row is an input and its answer. Both lose their end if they are too long: the input after `data.max_length` tokens,
the answer after `task.max_target_length`. The loss is over the tokens of the answer, including its end token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import Collate, collate_answers
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.text_columns import PairColumns
from tui_trainer.data.preparing.byte_bpe import ANSWER_SPECIAL_TOKENS
from tui_trainer.data.preparing.token_rows import INPUT_IDS, LABELS, Rows, TokenRow, evenly_spaced
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.config_json import fp16_problems
from tui_trainer.models.heads import ENCODER_DECODER, Head
from tui_trainer.models.token_ids import cut_token_ids
from tui_trainer.models.writing import Sampling, pad_token_id
from tui_trainer.tasks.contract import Baselines, InputReader, InputRow
from tui_trainer.tasks.parts.free_answers import Prompt, answer_prompts, free_answer_scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.next_token import LearnsNextToken
from tui_trainer.tasks.parts.ngram import unigram_loss
from tui_trainer.tasks.parts.scores import SCORES, mean_scores
from tui_trainer.tasks.parts.starts_from_model import QuestionInputs, find_model_facts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedContent, PreparedData

# In these models, the decoder starts with the last token of the answer, which names its language.
# Source: shift_tokens_right in modeling_mbart.py, modeling_plbart.py and modeling_fsmt.py of transformers 5.23.
_LAST_TOKEN_FIRST = frozenset({"mbart", "plbart", "fsmt"})
_LENGTH_SAMPLE = 500


class Seq2Seq(LearnsNextToken):
    """Task of training encoder-decoders. `tasks/parts/task.py` documents the methods."""

    name = "seq2seq"
    title = "Text to text"
    head: Head = ENCODER_DECODER
    pipeline_tag = "text2text-generation"
    architectures = ("ForConditionalGeneration",)
    usual_length = (512, 1024)
    usual_answer_rows = 32
    specials = ANSWER_SPECIAL_TOKENS
    used_settings = ("source_prefix", "max_target_length")
    used_column_settings = ("text_column", "text_pair_column", "target_column")
    masks_padding = True
    metrics = SCORES
    continues = False

    def problems(self, config: Config) -> list[Problem]:
        problems = super().problems(config)
        if config.evaluation.metric_for_best_model in SCORES and not config.evaluation.generate_rows:
            message = f"{config.evaluation.metric_for_best_model} needs generated answers, but none are generated"
            problems.append(Problem(message=message, key="evaluation.generate_rows", hint="set it to 32"))
        has_model_problem = any(problem.key.startswith("model.") for problem in problems)
        return problems if has_model_problem else problems + _fit_problems(config)

    def reader(self, config: Config) -> TableReader:
        return _PairReader(config)

    def reader_of_inputs(self, config: Config) -> TableReader:
        return _PairReader(config, inputs_only=True)

    def reader_of_texts(self, config: Config) -> TableReader:
        return self.reader(config)

    def target_tokens(self, config: Config, data: PreparedContent) -> int:
        return data.counts.longest_labels or config.task.max_target_length

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """Make the model generate answers greedily, as evaluations do, up to the length limit of training."""
        super().set_generation(config, model, tokenizer)
        settings = model.generation_config
        settings.update(do_sample=None, max_length=None, max_new_tokens=config.task.max_target_length)
        set_answer_start(model, tokenizer)

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(collate_answers, pad_id=pad_id, start_id=_start_id(model.config))

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return the loss of predicting each token of an answer by its frequency, and ROUGE scores of the first words
        of the input as the answer, for the rows that the model answers in an evaluation."""
        train = Rows(data.train_path)
        loss, label_count = unigram_loss(train, held_out, eval_rows, vocabulary=data.counts.vocabulary)
        indices = evenly_spaced(len(eval_rows), self.answer_rows(config))
        rows = [held_out.example(eval_rows[index]) for index in indices]
        scores = _scores_of_beginnings(config, self.load_tokenizer(config, data), train, rows) if rows else {}
        return Baselines(losses={"unigram": loss}, eval_tokens=label_count, scores=scores)

    def answer_scores(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[TokenRow]
    ) -> Mapping[str, float]:
        prompts = [self.prompt_of(config, model, tokenizer, row) for row in rows]
        answers = answer_prompts(model, tokenizer, prompts, new_tokens=self.answer_tokens(config))
        scores = mean_scores([answer.text for answer in answers], [prompt.reference for prompt in prompts])
        return free_answer_scores(answers, prompts) | scores

    def prompt_of(self, config: Config, model: Any, tokenizer: Tokenizer, row: TokenRow) -> Prompt:
        prompt = Prompt.of(model, row.tokens.tolist(), (row.tokens if row.labels is None else row.labels).tolist())
        return replace(prompt, reference=_references(tokenizer, [row])[0])

    def answer_tokens(self, config: Config) -> int:
        return config.task.max_target_length

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return an input, and the model's greedy answer beside the expected one."""
        prompt = self.prompt_of(config, model, tokenizer, row)
        [answer] = answer_prompts(model, tokenizer, [prompt], new_tokens=self.answer_tokens(config))
        return _texts(tokenizer, [row.tokens])[0], f"{answer.text} (expected: {prompt.reference})"

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return QuestionInputs(config.data, config.task.source_prefix)

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        encoded = cut_token_ids(tokenizer, contents, config.data.max_length)
        empty_prompt = [pad_token_id(tokenizer)]
        rows = zip(contents, encoded.ids, encoded.is_cut, strict=True)
        return [InputRow(ids or empty_prompt, content, is_cut=is_cut) for content, ids, is_cut in rows]


class _PairReader(TableReader):
    """Reader of inputs with their answers. With `inputs_only`, the text of an example is its input alone."""

    columns = (INPUT_IDS, LABELS)
    late_columns = ("text_pair_column",)
    labels_are_tokens = True

    def __init__(self, config: Config, *, inputs_only: bool = False) -> None:
        super().__init__(config, Seq2Seq.head, Seq2Seq.specials)
        data = config.data
        self._pair = PairColumns(data.text_column, data.text_pair_column, data.target_column)
        self._prefix, self._target_length = config.task.source_prefix, config.task.max_target_length
        self._inputs_only = inputs_only

    def begin(self, head: Sequence[Row]) -> None:
        self._pair.choose(head)

    @property
    def found_columns(self) -> Mapping[str, str]:
        pair = self._pair.pair
        second_column = next(iter(pair.extra_columns), "")
        return {"text_column": pair.source, "text_pair_column": second_column, "target_column": pair.target}

    def read(self, row: Row) -> Example:
        source, target = self._pair.read(row)
        source = self._prefix + source
        return Example(source if self._inputs_only else f"{source}\n{target}", (source, target))

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        sources, targets = zip(*(example.content for example in examples), strict=True)
        inputs = cut_token_ids(self.tokenizer, sources, self.max_length)
        answers = cut_token_ids(self.tokenizer, targets, self._target_length, as_target=True)
        encoded_rows = []
        all_cuts = zip(inputs.is_cut, answers.is_cut, strict=True)
        all_marks = zip(inputs.is_marked, answers.is_marked, strict=True)
        for input_ids, answer, cut_flags, mark_flags in zip(inputs.ids, answers.ids, all_cuts, all_marks, strict=True):
            # Some tokenizers do not add the end token.
            if end_ids := _missing_end(self.tokenizer, answer):
                answer = [*answer[: self._target_length - 1], *end_ids]
            columns = {INPUT_IDS: input_ids, LABELS: answer}
            encoded_rows.append(Encoded(columns, len(answer), *cut_flags, spells_special_tokens=any(mark_flags)))
        return encoded_rows

    def notes(self) -> list[str]:
        return [*self._pair.notes(), *self.language_notes()]


def _fit_problems(config: Config) -> list[Problem]:
    """Return a problem for each setting that a model of this type does not support."""
    has_no_files = not config.model.model_name_or_path
    shape = None if has_no_files else find_model_facts(config, Seq2Seq.head).shape
    problems = fp16_problems(config, shape.model_type if shape else "t5")
    limit = shape.max_position_embeddings if shape and shape.learned_positions else None
    if limit and config.task.max_target_length > limit:
        message = f"is {config.task.max_target_length:,}, but the model writes {limit:,} tokens at most"
        problems.append(Problem(message=message, key="task.max_target_length", hint=f"set it to {limit} or less"))
    return problems


def _start_id(config: Any) -> int | None:
    """Return the token that the decoder reads first, or None for the last token of each answer. Raise ConfigError."""
    if config.model_type in _LAST_TOKEN_FIRST:
        return None
    names = ("decoder_start_token_id", "bos_token_id")
    start_id = next((token for name in names if (token := getattr(config, name, None)) is not None), None)
    if start_id is None:
        message = "config.json has no decoder_start_token_id, so the first token of an answer is unknown"
        hint = "add it to config.json: for T5 the id of the pad token, for BART the id of the end token"
        raise ConfigError(Problem(message=message, key="model.model_name_or_path", hint=hint))
    return int(start_id)


def set_answer_start(model: Any, tokenizer: Tokenizer) -> None:
    """Store in the model how answers start, so that generation starts as training did wherever it is loaded."""
    empty_ids, letter_ids = (tokenizer(text_target=text)["input_ids"] for text in ("", "a"))
    settings, start_id = model.generation_config, _start_id(model.config)
    if start_id is None:
        start_id = [*empty_ids, *_missing_end(tokenizer, empty_ids)][-1]
    settings.decoder_start_token_id = int(start_id)
    # The token that the tokenizer puts before every text, if there is one (T5's puts none).
    settings.forced_bos_token_id = int(letter_ids[0]) if len(empty_ids) > 1 and letter_ids[0] == empty_ids[0] else None


def _missing_end(tokenizer: Any, answer: Sequence[int]) -> list[int]:
    """Return the end token as a list, or [] if the answer already ends with it. A language code may follow it."""
    end_id = tokenizer.eos_token_id
    return [] if end_id is None or end_id in answer[-2:] else [end_id]


def _references(tokenizer: Any, rows: Sequence[TokenRow]) -> list[str]:
    return _texts(tokenizer, [row.tokens if row.labels is None else row.labels for row in rows])


def _texts(tokenizer: Any, ids: Sequence[Any]) -> list[str]:
    return [str(tokenizer.decode(token_ids.tolist(), skip_special_tokens=True)) for token_ids in ids]


def _scores_of_beginnings(config: Config, tokenizer: Any, train: Rows, rows: Sequence[TokenRow]) -> dict[str, float]:
    """Return the scores of answering with the first words of each input, as many as the median training answer has."""
    train_rows = [train.example(index) for index in evenly_spaced(len(train), _LENGTH_SAMPLE)]
    word_count = max(1, int(median(len(text.split()) for text in _references(tokenizer, train_rows))))
    inputs = [text.removeprefix(config.task.source_prefix) for text in _texts(tokenizer, [row.tokens for row in rows])]
    beginnings = [" ".join(text.split()[:word_count]) for text in inputs]
    scores = mean_scores(beginnings, _references(tokenizer, rows))
    return {f"{name} of the first {word_count} words": score for name, score in scores.items() if name != "exact_match"}


TASK = Seq2Seq()
