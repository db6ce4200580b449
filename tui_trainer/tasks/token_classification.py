"""Token classification: each word of a sentence gets a tag, for named entities (NER), parts of speech, and the like.

The first token of a word has the label of its tag; its other tokens have no label. Words without tokens (a single
variation selector) have no label. Rows are never packed. Encoders and decoders are supported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import IGNORE, Batch, Collate, collate_whole, pad_rows
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row, listed
from tui_trainer.data.columns.tagged_rows import (
    OUTSIDE,
    TagColumns,
    Tagged,
    TagSurvey,
    entities,
    find_tag_columns,
    marks_entities,
    sort_tags,
    split_tag,
)
from tui_trainer.data.preparing.byte_bpe import WORD_SPECIAL_TOKENS
from tui_trainer.data.preparing.token_rows import INPUT_IDS, LABELS, Rows, TokenRow
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.heads import Head, Labels, config_label_names
from tui_trainer.models.writing import Sampling, pad_token_id, row_padding_id
from tui_trainer.tasks.contract import Baselines, InputReader, InputRow, Objective, Scorer, Scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import METRICS, TagCounts, balanced_weights, metric_problems, metrics_for_scheme
from tui_trainer.tasks.parts.starts_from_model import WordInputs, find_model_facts, logits_of
from tui_trainer.tasks.parts.task import Task
from tui_trainer.tasks.parts.word_windows import WordTokens, windows_of
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import quantity

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.losses.classification import TokenLabelLoss
    from tui_trainer.losses.micro_batch import MicroBatch

_Word = tuple[tuple[int, ...], int]  # (tokens, number of the tag)
_USUAL_TAG, _SHOWN_TAGS = "the most frequent tag of each word", 12


class TokenClassification(Task):
    """Task of token classification. `tasks/parts/task.py` documents the methods."""

    name = "token_classification"
    title = "Token classification (tags of words)"
    used_settings = ("class_weights",)
    used_column_settings = ("text_column", "label_column")
    masks_padding = True
    head: Head = "token_classification"
    pipeline_tag = "token-classification"
    architectures = ("ForMaskedLM",)
    usual_length = (128, 512)
    labels_rows = True
    specials = WORD_SPECIAL_TOKENS
    metrics = METRICS

    def reader(self, config: Config) -> TableReader:
        return TaggedWords(config, self._model_labels(config))

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        """Return what decides a row's tokens and labels: settings, and the model's labels."""
        return {**super().encoding_settings(config), "model_labels": self._model_labels(config)}

    def _model_labels(self, config: Config) -> tuple[str, ...]:
        return () if config.is_from_scratch else config_label_names(find_model_facts(config, self.head).config)

    def labels(self, config: Config, data: PreparedData) -> Labels:
        return Labels(tuple(data.details["names"]))

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        tokenizer: Tokenizer = enable_prefix_space(super().load_tokenizer(config, data))
        return tokenizer

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return scores of two predictions without context: the most frequent tag of each word, and one tag for all."""
        details = data.details
        names, closing_length, scheme = details["names"], details["closing_tokens"], details["scheme"]
        word_tags, most_frequent_tag = most_frequent_tags(Rows(data.train_path), closing_length)
        # A word that is not in the training rows belongs to no entity.
        default_tag = names.index(OUTSIDE) if scheme != "plain" and OUTSIDE in names else most_frequent_tag
        frequent_counts, constant_counts = TagCounts(scheme), TagCounts(scheme)
        word_count = 0
        for index in eval_rows:
            tagged_words = list(labelled_words(held_out.example(index), closing_length))
            true_tags = [names[number] for _, number in tagged_words]
            frequent_counts.add(true_tags, [names[word_tags.get(tokens, default_tag)] for tokens, _ in tagged_words])
            constant_counts.add(true_tags, [names[default_tag]] * len(tagged_words))
            word_count += len(tagged_words)
        metric = "accuracy" if scheme == "plain" else "f1"
        scores = {
            f"{metric} of {_USUAL_TAG}": frequent_counts.scores().values[metric],
            f"{metric} of {names[default_tag]} for every word": constant_counts.scores().values[metric],
        }
        return Baselines(losses={}, eval_tokens=word_count, scores=scores)

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id))

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.classification import TokenLabelLoss

        weights: list[float] = []
        if config.task.class_weights == "balanced":
            tags = Rows(data.train_path).values(LABELS)
            weights = balanced_weights(tags[tags != IGNORE].astype(np.int64), len(data.details["names"])).tolist()
        return TokenLabelLoss(model, weights=weights, smoothing=config.training.label_smoothing_factor)

    def choice_count(self, config: Config, data: PreparedData) -> int:
        return int(data.details["classes"]) if config.task.class_weights == "none" else 0

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer:
        counts = data.counts
        share_beyond = counts.eval_labels_beyond / max(counts.eval_labels + counts.eval_labels_beyond, 1)
        return _TagScorer(objective, data.details["names"], data.details["scheme"], share_beyond)

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the sentence, and the sentence with the predicted tags beside the same with the true tags."""
        names, scheme = data.details["names"], data.details["scheme"]
        tagged_words = list(labelled_words(row, data.details["closing_tokens"]))
        words = [str(tokenizer.decode(list(tokens))).strip() for tokens, _ in tagged_words]
        positions = [position for position, label in enumerate(_labels(row)) if label != IGNORE]
        predicted_numbers = logits_of(model, tokenizer, [InputRow(row.tokens)])[0].argmax(-1).tolist()
        predicted = [str(model.config.id2label[predicted_numbers[position]]) for position in positions]
        true = [names[number] for _, number in tagged_words]
        return " ".join(words), f"{mark_tags(words, predicted, scheme)} (expected: {mark_tags(words, true, scheme)})"

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return WordInputs(config.data)

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """Return a row for each text: the ids of its longest window, and in `content` the text and all windows."""
        words_of_rows = [[text[start:end] for start, end in spans] for text, spans in contents]
        windows_of_rows = iter(word_windows(tokenizer, [row for row in words_of_rows if row], config.data.max_length))
        empty_windows = [WordTokens([pad_token_id(tokenizer)], [], truncated=False)]
        rows = []
        for content, row in zip(contents, words_of_rows, strict=True):
            windows = next(windows_of_rows) if row else empty_windows
            longest_ids = max((window.ids for window in windows), key=len)
            rows.append(InputRow(longest_ids, (*content, windows), is_cut=any(window.truncated for window in windows)))
        return rows

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """Return the words of each row with their tags (None for a word without tokens), and its entities. A forward
        pass takes as many windows as there are rows."""
        windows = [window for row in rows for window in row.content[2]]
        batches = (windows[start : start + len(rows)] for start in range(0, len(windows), len(rows)))
        logits = (logits_of(model, tokenizer, [InputRow(window.ids) for window in batch]) for batch in batches)
        tag_numbers = chain.from_iterable(logits_BTC.argmax(-1).tolist() for logits_BTC in logits)
        names = model.config.id2label
        has_entities = marks_entities(names.values())
        predictions = []
        for row in rows:
            text, word_spans, row_windows = row.content
            window_tags = ((window.firsts, next(tag_numbers)) for window in row_windows)
            word_tags = {word: str(names[tags_T[index]]) for firsts, tags_T in window_tags for index, word in firsts}
            tags = [word_tags.get(word) for word in range(len(word_spans))]
            prediction: dict[str, Any] = {"words": [text[start:end] for start, end in word_spans], "tags": tags}
            if has_entities:
                entity_words = entities([tag or OUTSIDE for tag in tags])
                spans = [(word_spans[first][0], word_spans[end - 1][1], kind) for first, end, kind in entity_words]
                prediction["spans"] = [
                    {"start": start, "end": end, "text": text[start:end], "label": kind} for start, end, kind in spans
                ]
            predictions.append(prediction)
        return predictions

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        """Return the text with its entities in brackets, such as `[Ada Lovelace PER] wrote it`."""
        all_words = zip(prediction["words"], prediction["tags"], strict=True)
        word_tags = [(word, tag) for word, tag in all_words if tag is not None]
        return mark_tags(
            [word for word, _ in word_tags], [tag for _, tag in word_tags], "" if "spans" in prediction else "plain"
        )


def enable_prefix_space(tokenizer: Any) -> Any:
    """Make a tokenizer encode each word of a list as within a text, after a space, and return the tokenizer.

    Byte-level tokenizers (RoBERTa, GPT-2) encode a word at the beginning of a text differently. The setting is saved
    with the tokenizer, in tokenizer.json or tokenizer_config.json. Tokenizers that first split a text by a pattern
    (Qwen, Llama 3) have no such setting and stay unchanged."""
    from tokenizers.pre_tokenizers import ByteLevel

    refuse_slow(tokenizer)
    backend = tokenizer.backend_tokenizer
    pre_tokenizer = backend.pre_tokenizer
    if isinstance(pre_tokenizer, ByteLevel) and not pre_tokenizer.add_prefix_space:
        pre_tokenizer.add_prefix_space = True
        backend.pre_tokenizer = pre_tokenizer
        tokenizer.add_prefix_space = True
    return tokenizer


def refuse_slow(tokenizer: Any) -> None:
    """Raise ConfigError for a tokenizer that cannot map its tokens to words."""
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        message = f"the tokenizer of this model ({kind}) is not a fast tokenizer, so it cannot map tokens to words"
        hint = "choose a model with a tokenizer.json"
        raise ConfigError(Problem(message=message, key="model.model_name_or_path", hint=hint))


def word_tokens(tokenizer: Any, rows: Sequence[Sequence[str]], max_length: int) -> list[WordTokens]:
    """Return the tokens of each row of words, special tokens included, without the words beyond `max_length` tokens."""
    tokens_of_rows = []
    for row in _encodings(tokenizer, rows):
        first_window = windows_of(row.ids, row.word_ids, max_length, lists_all=True)[0]
        firsts = [] if first_window.truncated else first_window.firsts  # a word that is longer than a row has no label
        tokens_of_rows.append(WordTokens(first_window.ids, firsts, truncated=len(row.ids) > max_length))
    return tokens_of_rows


def _encodings(tokenizer: Any, rows: Sequence[Sequence[str]]) -> Sequence[Any]:
    batch = tokenizer(
        [list(words) for words in rows],
        is_split_into_words=True,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    encodings: Sequence[Any] = batch.encodings
    return encodings


def word_windows(tokenizer: Any, rows: Sequence[Sequence[str]], max_length: int) -> list[list[WordTokens]]:
    """Return for each row of words its windows of at most `max_length` tokens."""
    return [windows_of(row.ids, row.word_ids, max_length) for row in _encodings(tokenizer, rows)]


def closing_tokens(tokenizer: Any) -> int:
    """Return the number of special tokens that the tokenizer puts after the last word."""
    word_ids: list[int | None] = tokenizer([["a"]], is_split_into_words=True, verbose=False).encodings[0].word_ids
    return word_ids[::-1].index(0)


class TaggedWords(TableReader):
    """Reader of tagged words. `data/columns/reader.py` documents the methods."""

    def __init__(self, config: Config, model_labels: Sequence[str]) -> None:
        """Create a reader for a model with `model_labels`, in the order of its logits."""
        super().__init__(config, TokenClassification.head, TokenClassification.specials)
        self._model_labels = tuple(model_labels)
        self._columns: TagColumns | None = None
        self._survey = TagSurvey()
        self._numbers: dict[str, int] = {}
        self._cut_spans = self._utf16_rows = 0
        self._notes: dict[str, None] = {}

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded at its first use. Raises ConfigError, also if it cannot map tokens to words."""
        if self._tokenizer is None:
            self._tokenizer = enable_prefix_space(super().tokenizer)
        return self._tokenizer

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        super().set_tokenizer(enable_prefix_space(tokenizer), model_config)
        names = tuple(model_config["id2label"].values())
        self._numbers = {name: number for number, name in enumerate(names)}
        self._survey.counts, self.classes = Counter(dict.fromkeys(names, 0)), len(names)

    def begin(self, head: Sequence[Row]) -> None:
        data = self.config.data
        self._columns = find_tag_columns(head, data.text_column, data.label_column)
        if self._columns.note:
            self._notes.setdefault(self._columns.note)

    @property
    def found_columns(self) -> Mapping[str, str]:
        columns = self._columns
        return {"text_column": columns.words, "label_column": columns.tags} if columns else {}

    def read(self, row: Row) -> Example:
        assert self._columns is not None, "`begin` comes first"
        tagged = self._columns.read(row)
        if self.is_held_out or self.has_trained_model:
            tag_counts = self._survey.counts
            hint = f"tags of the training rows: {listed(sort_tags(tag_counts))}"
            self.refuse_outside("tag", tagged.tags, tag_counts, row.where, hint)
        elif not self._numbers:
            self._survey.add(tagged.tags)
            self.classes = len(self._survey.counts)
        if not self._numbers:
            self._cut_spans += tagged.extended_span_count
            self._utf16_rows += tagged.counts_utf16
        return Example(" ".join(tagged.words), tagged)

    def finish_reading(self) -> None:
        counts = self._survey.counts
        if self.has_trained_model:
            return
        if len(counts) < 2:
            message = f"all words have the tag '{one_line(next(iter(counts), ''), 40)}'"
            hint = "a tagger needs at least two tags; set data.label_column to the column of tags"
            raise DataError(message, where=one_line(self.config.data.path, 200), hint=hint)
        names = self._model_labels if set(counts) <= set(self._model_labels) else sort_tags(counts)
        self._numbers = {name: number for number, name in enumerate(names)}
        self.classes = len(names)
        scheme = self._survey.scheme
        clause = f"if the tags mark {'no ' * (scheme == 'plain')}entities"
        if problems := metric_problems(self.config, metrics_for_scheme(scheme), clause):
            raise ConfigError(problems)
        self.refuse_no_room("the words")

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        tagged_rows: list[Tagged] = [example.content for example in examples]
        token_rows = word_tokens(self.tokenizer, [example.words for example in tagged_rows], self.max_length)
        encoded = []
        for example, row in zip(tagged_rows, token_rows, strict=True):
            labels, words, label_count = [IGNORE] * len(row.ids), example.words, len(row.firsts)
            tags, dropped = _tags_of_tokens(example.tags, [word for _, word in row.firsts])
            for position, word in row.firsts:
                labels[position] = self._numbers[tags[word]]
            inexact = f"the word {words[dropped[0]]!a} has no token, so its tag is not trained on" if dropped else ""
            words_beyond = (len(words) - row.firsts[-1][1] - 1 if row.firsts else len(words)) * row.truncated
            columns = {INPUT_IDS: row.ids, LABELS: labels}
            columns_and_counts = columns, label_count, row.truncated
            encoded.append(Encoded(*columns_and_counts, inexact_reason=inexact, labels_beyond=words_beyond))
        return encoded

    def details(self) -> dict[str, Any]:
        return {
            "classes": self.classes,
            "names": list(self._numbers),
            "scheme": self._survey.scheme,
            "closing_tokens": closing_tokens(self.tokenizer),
        }

    def notes(self) -> list[str]:
        survey, notes = self._survey, list(self._notes)
        notes.append(", ".join(_tag_words(survey)))
        if survey.scheme == "IOB2" and survey.inside_start_count:
            count = survey.inside_start_count
            subject = "1 entity starts" if count == 1 else f"{count:,} entities start"
            notes.append(f"{subject} with I- instead of B-; this is accepted, as in conlleval")
        if self._cut_spans:
            subject = "1 span starts or ends" if self._cut_spans == 1 else f"{self._cut_spans:,} spans start or end"
            notes.append(f"{subject} inside a word; the whole word gets the tag")
        if self._utf16_rows:
            subject = quantity(self._utf16_rows, "row", "count")
            notes.append(f"{subject} span positions in UTF-16 units, as JavaScript does")
        if self._model_labels and tuple(self._numbers) == self._model_labels:
            notes.append(f"the model already has these tags, so they keep their ids: {listed(self._model_labels)}")
        return notes


def _tags_of_tokens(tags: Sequence[str], words: Sequence[int]) -> tuple[list[str], list[int]]:
    """Return the tags of all words, and the words without a token that precede the last of `words`, which have tokens.

    If a word without a token begins an entity, the next word of the entity begins it instead."""
    moved_tags, words_with_tokens = list(tags), set(words)
    dropped_words = [word for word in range(max(words, default=-1)) if word not in words_with_tokens]
    for word in dropped_words:
        dropped_parts, next_parts = split_tag(moved_tags[word]), split_tag(moved_tags[word + 1])
        if dropped_parts.prefix == "B" and next_parts.prefix == "I" and dropped_parts.kind == next_parts.kind:
            moved_tags[word + 1] = moved_tags[word]
    return moved_tags, dropped_words


def _tag_words(survey: TagSurvey) -> Iterator[str]:
    """Yield the parts of a note about the tags: the entities that they mark, or each tag with its number of words."""
    word_count = survey.counts.total()
    if survey.scheme != "plain":
        kinds = sorted({split_tag(name).kind for name in survey.counts} - {""})
        entity_words = word_count - survey.counts[OUTSIDE]
        yield f"the tags mark entities, in {survey.scheme}: {listed(kinds)}"
        yield f"{entity_words:,} of {word_count:,} words are in an entity"
        return
    shown_tags = survey.counts.most_common(_SHOWN_TAGS)
    yield f"{len(survey.counts)} tags, with the number of words: {one_line(shown_tags[0][0], 30)} {shown_tags[0][1]:,}"
    yield from (f"{one_line(name, 30)} {count:,}" for name, count in shown_tags[1:])
    if hidden_count := len(survey.counts) - len(shown_tags):
        yield f"and {hidden_count:,} more"


class _TagScorer:
    """Scorer of predicted tags, which stay on the device until the evaluation is over."""

    def __init__(self, loss: TokenLabelLoss, names: Sequence[str], scheme: str, beyond: float) -> None:
        """Create a scorer. `beyond` is the share of the held-out words after data.max_length, which no score covers."""
        self._loss, self._names, self._scheme, self._unscored_share = loss, names, scheme, beyond
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Tensor:
        logits_NC = self._loss.logits(batch)
        width = batch.inputs["input_ids"].shape[1]
        self.seen.append((batch.labels, logits_NC.argmax(-1), batch.label_positions // width))
        return self._loss.of_logits(logits_NC, batch.labels)

    def scores(self) -> Scores:
        import torch

        counts = TagCounts(self._scheme)
        for batch in self.seen:
            true_tags, predicted_tags, row_numbers = torch.stack(batch).tolist()
            row_starts = (index for index, (row, next_row) in enumerate(pairwise(row_numbers), 1) if row != next_row)
            for start, end in pairwise([0, *row_starts, len(row_numbers)]):
                counts.add(*([self._names[tag] for tag in tags[start:end]] for tags in (true_tags, predicted_tags)))
        scores = counts.scores()
        share_beyond = {"words_left_out": self._unscored_share} if self._unscored_share else {}
        return replace(scores, values={**scores.values, **share_beyond})


def labelled_words(row: TokenRow, closing_tokens: int) -> Iterator[_Word]:
    """Yield the words of a row that have a label."""
    labels = _labels(row)
    positions = [position for position, label in enumerate(labels) if label != IGNORE]
    tokens = row.tokens.tolist()
    for start, end in pairwise([*positions, len(tokens) - closing_tokens]):
        yield tuple(tokens[start:end]), labels[start]


def most_frequent_tags(rows: Rows, closing_tokens: int) -> tuple[dict[tuple[int, ...], int], int]:
    """Return the most frequent tag of each word, by its tokens, and of all words. Of equals, the lowest number wins."""
    counts_by_word: dict[tuple[int, ...], Counter[int]] = {}
    all_counts: Counter[int] = Counter()
    for index in range(len(rows)):
        for tokens, tag in labelled_words(rows.example(index), closing_tokens):
            counts_by_word.setdefault(tokens, Counter())[tag] += 1
            all_counts[tag] += 1
    return {tokens: _most_frequent(tags) for tokens, tags in counts_by_word.items()}, _most_frequent(all_counts)


def mark_tags(words: Sequence[str], tags: Sequence[str], scheme: str) -> str:
    """Return a text such as `[Ada Lovelace PER] wrote it`, or with plain tags `wrote/VERB it/PRON`."""
    if scheme == "plain":
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
    pieces, last_end = [], 0
    for start, end, kind in entities(tags):
        pieces += [*words[last_end:start], f"[{' '.join(words[start:end])} {kind}]"]
        last_end = end
    return " ".join([*pieces, *words[last_end:]])


def _most_frequent(counts: Counter[int]) -> int:
    return min(counts, key=lambda number: (-counts[number], number))


def _labels(row: TokenRow) -> list[int]:
    assert row.labels is not None, "a row of a tagger has labels"
    labels: list[int] = row.labels.tolist()
    return labels


def _collate(rows: Sequence[TokenRow], pad_id: int, *, width: int = 0) -> Batch:
    labels = pad_rows([row.labels for row in rows if row.labels is not None], IGNORE, width)
    return collate_whole(rows, pad_id, labels, width=width)


TASK = TokenClassification()
