"""Each word of a sentence gets a tag: names of persons and places (NER), parts of speech, and the like.

A word is tagged on its first token; the other tokens of it have no label. Words that a tokenizer makes nothing of (a
lone variation selector) have none. Rows are read whole, by encoders and decoders alike; none shares its row with
another.
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
from tui_trainer.data.batching.collate import IGNORE, Batch, Collate, collate_whole, padded
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row, listed
from tui_trainer.data.columns.tagged_rows import (
    OUTSIDE,
    TagColumns,
    Tagged,
    TagSurvey,
    entities,
    find_tag_columns,
    in_order,
    marks_entities,
    parts_of,
)
from tui_trainer.data.preparing.byte_bpe import FOR_WORDS
from tui_trainer.data.preparing.token_rows import COLUMN, LABELS, Rows, TokenRow
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.heads import Head, Labels, own_labels
from tui_trainer.models.writing import Sampling, pad_token_id, row_padding_id
from tui_trainer.tasks.contract import Baselines, InputReader, InputRow, Objective, Scorer, Scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import METRICS, TagCounts, balanced_weights, metric_problems, metrics_of
from tui_trainer.tasks.parts.starts_from_model import WordInputs, logits_of, model_of
from tui_trainer.tasks.parts.task import Task
from tui_trainer.tasks.parts.word_windows import WordTokens, windows_of
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.losses.classification import TokenLabelLoss
    from tui_trainer.losses.micro_batch import MicroBatch

_Word = tuple[tuple[int, ...], int]  # its tokens, and the number of its tag
_USUAL_TAG, _SHOWN_TAGS = "the most frequent tag of each word", 12


class TokenClassification(Task):
    """See `tasks/parts/task.py` for what each part promises."""

    name = "token_classification"
    title = "Token classification (tags of words)"
    reads = ("class_weights",)
    reads_columns = ("text_column", "label_column")
    tells_padding = True
    head: Head = "token_classification"
    pipeline_tag = "token-classification"
    architectures = ("ForMaskedLM",)
    usual_length = (128, 512)
    labels_rows = True
    specials = FOR_WORDS
    metrics = METRICS

    def reader(self, config: Config) -> TableReader:
        return TaggedWords(config, self._known_labels(config))

    def reading(self, config: Config) -> dict[str, Any]:
        """The numbers of the tags may come from the model."""
        return {**super().reading(config), "model_labels": self._known_labels(config)}

    def _known_labels(self, config: Config) -> tuple[str, ...]:
        return () if config.is_from_scratch else own_labels(model_of(config, self.head).config)

    def labels(self, config: Config, data: PreparedData) -> Labels:
        return Labels(tuple(data.details["names"]))

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        tokenizer: Tokenizer = with_words_spaced(super().load_tokenizer(config, data))
        return tokenizer

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Without any context: the tag that a word has most often in the training rows, and the same tag always."""
        details = data.details
        names, closing, scheme = details["names"], details["closing_tokens"], details["scheme"]
        usual, most = usual_tags(Rows(data.train_path), closing)
        # A word that was never met is in no entity.
        unmet = names.index(OUTSIDE) if scheme != "plain" and OUTSIDE in names else most
        by_word, always = TagCounts(scheme), TagCounts(scheme)
        words = 0
        for index in eval_rows:
            row = list(words_of(held_out.example(index), closing))
            true = [names[number] for _, number in row]
            by_word.add(true, [names[usual.get(tokens, unmet)] for tokens, _ in row])
            always.add(true, [names[unmet]] * len(row))
            words += len(row)
        metric = "accuracy" if scheme == "plain" else "f1"
        scores = {
            f"{metric} of {_USUAL_TAG}": by_word.scores().values[metric],
            f"{metric} of {names[unmet]} for every word": always.scores().values[metric],
        }
        return Baselines(losses={}, eval_tokens=words, scores=scores)

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id))

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.classification import TokenLabelLoss

        weights: list[float] = []
        if config.task.class_weights == "balanced":
            tags = Rows(data.train_path).values(LABELS)
            weights = balanced_weights(tags[tags != IGNORE].astype(np.int64), len(data.details["names"])).tolist()
        return TokenLabelLoss(model, weights=weights, smoothing=config.training.label_smoothing_factor)

    def choices(self, config: Config, data: PreparedData) -> int:
        return int(data.details["classes"]) if config.task.class_weights == "none" else 0

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer:
        counts = data.counts
        beyond = counts.eval_labels_beyond / max(counts.eval_labels + counts.eval_labels_beyond, 1)
        return _TagScorer(objective, data.details["names"], data.details["scheme"], beyond)

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """The sentence; and the same twice, with what the model marks in it and with what is true."""
        names, scheme = data.details["names"], data.details["scheme"]
        found = list(words_of(row, data.details["closing_tokens"]))
        words = [str(tokenizer.decode(list(tokens))).strip() for tokens, _ in found]
        places = [place for place, label in enumerate(_labels(row)) if label != IGNORE]
        numbers = logits_of(model, tokenizer, [InputRow(row.tokens)])[0].argmax(-1).tolist()
        told = [str(model.config.id2label[numbers[place]]) for place in places]
        true = [names[number] for _, number in found]
        return " ".join(words), f"{marked(words, told, scheme)} (expected: {marked(words, true, scheme)})"

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return WordInputs(config.data)

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """The longest window of each; all of them are in `content`."""
        words = [[text[start:end] for start, end in places] for text, places in contents]
        rows = iter(word_windows(tokenizer, [some for some in words if some], config.data.max_length))
        empty = [WordTokens([pad_token_id(tokenizer)], [], truncated=False)]
        found = []
        for content, some in zip(contents, words, strict=True):
            windows = next(rows) if some else empty
            longest = max((window.ids for window in windows), key=len)
            found.append(InputRow(longest, (*content, windows), is_cut=any(window.truncated for window in windows)))
        return found

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """The words with their tags, None for those that have no token, and the entities in the text; as many windows
        at a time as there are rows."""
        windows = [window for row in rows for window in row.content[2]]
        parts = (windows[start : start + len(rows)] for start in range(0, len(windows), len(rows)))
        logits = (logits_of(model, tokenizer, [InputRow(one.ids) for one in part]) for part in parts)
        numbers = chain.from_iterable(logits_BTC.argmax(-1).tolist() for logits_BTC in logits)
        names = model.config.id2label
        has_entities = marks_entities(names.values())
        found = []
        for row in rows:
            text, places, own = row.content
            read = ((window.firsts, next(numbers)) for window in own)
            tag_of_word = {word: str(names[tags_T[place]]) for firsts, tags_T in read for place, word in firsts}
            tags = [tag_of_word.get(word) for word in range(len(places))]
            prediction: dict[str, Any] = {"words": [text[start:end] for start, end in places], "tags": tags}
            if has_entities:
                marked_words = entities([tag or OUTSIDE for tag in tags])
                spans = [(places[first][0], places[end - 1][1], kind) for first, end, kind in marked_words]
                prediction["spans"] = [
                    {"start": start, "end": end, "text": text[start:end], "label": kind} for start, end, kind in spans
                ]
            found.append(prediction)
        return found

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        """The text with its entities in brackets: [Ada Lovelace PER] wrote it."""
        pairs = zip(prediction["words"], prediction["tags"], strict=True)
        known = [(word, tag) for word, tag in pairs if tag is not None]
        return marked([word for word, _ in known], [tag for _, tag in known], "" if "spans" in prediction else "plain")


def with_words_spaced(tokenizer: Any) -> Any:
    """The same tokenizer, which spells a lone word as it is spelt within a text: with the space before it.

    Byte-level tokenizers (RoBERTa, GPT-2) tell the two apart, and are made for the beginning of a text. What is set
    here is saved with the tokenizer: by some classes of transformers in tokenizer.json, by others as a setting. Those
    that cut a text by a pattern first (Qwen, Llama 3) have no such switch, and are left as they are.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    refuse_slow(tokenizer)
    backend = tokenizer.backend_tokenizer
    cutter = backend.pre_tokenizer
    if isinstance(cutter, ByteLevel) and not cutter.add_prefix_space:
        cutter.add_prefix_space = True
        backend.pre_tokenizer = cutter
        tokenizer.add_prefix_space = True
    return tokenizer


def refuse_slow(tokenizer: Any) -> None:
    """Raises ConfigError for a tokenizer that cannot tell which word a token is part of."""
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        message = f"the tokenizer of this model ({kind}) is not a fast tokenizer, so it cannot map tokens to words"
        hint = "choose a model with a tokenizer.json"
        raise ConfigError(Problem(message=message, key="model.model_name_or_path", hint=hint))


def word_tokens(tokenizer: Any, rows: Sequence[Sequence[str]], max_length: int) -> list[WordTokens]:
    """Of each row of words its tokens with the special ones: `max_length` at the most, and whole words only."""
    found = []
    for row in _encodings(tokenizer, rows):
        first = windows_of(row.ids, row.word_ids, max_length, lists_all=True)[0]
        firsts = [] if first.truncated else first.firsts  # not a part of a word that is longer than a row
        found.append(WordTokens(first.ids, firsts, truncated=len(row.ids) > max_length))
    return found


def _encodings(tokenizer: Any, rows: Sequence[Sequence[str]]) -> Sequence[Any]:
    encoded = tokenizer(
        [list(words) for words in rows],
        is_split_into_words=True,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    encodings: Sequence[Any] = encoded.encodings
    return encodings


def word_windows(tokenizer: Any, rows: Sequence[Sequence[str]], max_length: int) -> list[list[WordTokens]]:
    """Return for each row of words its windows, `max_length` tokens at the most."""
    return [windows_of(row.ids, row.word_ids, max_length) for row in _encodings(tokenizer, rows)]


def closing_tokens(tokenizer: Any) -> int:
    """How many special tokens stand behind the last word."""
    found: list[int | None] = tokenizer([["a"]], is_split_into_words=True, verbose=False).encodings[0].word_ids
    return found[::-1].index(0)


class TaggedWords(TableReader):
    """See `data/columns/reader.py` for what each part promises."""

    def __init__(self, config: Config, known: Sequence[str]) -> None:
        """`known`: the labels that the model tells apart already, in the order of its logits."""
        super().__init__(config, TokenClassification.head, TokenClassification.specials)
        self._known = tuple(known)
        self._columns: TagColumns | None = None
        self._survey = TagSurvey()
        self._numbers: dict[str, int] = {}
        self._cut_spans = self._utf16_rows = 0
        self._notes: dict[str, None] = {}

    @property
    def tokenizer(self) -> Any:
        """Raises ConfigError for one that cannot be loaded, or does not tell which word a token is part of."""
        if self._tokenizer is None:
            self._tokenizer = with_words_spaced(super().tokenizer)
        return self._tokenizer

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        super().know(with_words_spaced(tokenizer), model_config)
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
        found = self._columns
        return {"text_column": found.words, "label_column": found.tags} if found else {}

    def read(self, row: Row) -> Example:
        assert self._columns is not None, "`begin` comes first"
        tagged = self._columns.read(row)
        if self.held_out or self.knows:
            known = self._survey.counts
            self.refuse_outside(
                "tag", tagged.tags, known, row.where, f"tags of the training rows: {listed(in_order(known))}"
            )
        elif not self._numbers:
            self._survey.add(tagged.tags)
            self.classes = len(self._survey.counts)
        if not self._numbers:
            self._cut_spans += tagged.cut
            self._utf16_rows += tagged.counts_utf16
        return Example(" ".join(tagged.words), tagged)

    def settle(self) -> None:
        counts = self._survey.counts
        if self.knows:
            return
        if len(counts) < 2:
            message = f"all words have the tag '{one_line(next(iter(counts), ''), 40)}'"
            hint = "a tagger needs at least two tags; set data.label_column to the column of tags"
            raise DataError(message, where=one_line(self.config.data.path, 200), hint=hint)
        names = self._known if set(counts) <= set(self._known) else in_order(counts)
        self._numbers = {name: number for number, name in enumerate(names)}
        self.classes = len(names)
        scheme = self._survey.scheme
        kind = "that mark no entities" if scheme == "plain" else "of entities"
        if problems := metric_problems(self.config, metrics_of(scheme), f"with tags {kind}"):
            raise ConfigError(problems)
        self.refuse_no_room("the words")

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        tagged: list[Tagged] = [example.content for example in examples]
        rows = word_tokens(self.tokenizer, [one.words for one in tagged], self.max_length)
        encoded = []
        for one, row in zip(tagged, rows, strict=True):
            labels = [IGNORE] * len(row.ids)
            tags, dropped = _tags_of_tokens(one.tags, [word for _, word in row.firsts])
            for place, word in row.firsts:
                labels[place] = self._numbers[tags[word]]
            inexact = f"the word {one.words[dropped[0]]!a} has no token: its tag is not trained on" if dropped else ""
            beyond = len(one.words) - row.firsts[-1][1] - 1 if row.firsts else len(one.words)
            columns = {COLUMN: row.ids, LABELS: labels}
            encoded.append(
                Encoded(columns, len(row.firsts), row.truncated, inexact=inexact, labels_beyond=beyond * row.truncated)
            )
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
        if survey.scheme == "IOB2" and survey.loose:
            told = "1 entity starts" if survey.loose == 1 else f"{survey.loose:,} entities start"
            notes.append(f"{told} with I- instead of B-; this is accepted, as in conlleval")
        if self._cut_spans:
            told = "1 span starts or ends" if self._cut_spans == 1 else f"{self._cut_spans:,} spans start or end"
            notes.append(f"{told} inside a word; the whole word gets the tag")
        if self._utf16_rows:
            who = "1 row counts" if self._utf16_rows == 1 else f"{self._utf16_rows:,} rows count"
            notes.append(f"{who} span positions in UTF-16 units, as JavaScript does")
        if self._known and tuple(self._numbers) == self._known:
            notes.append(f"the model already has these tags and keeps their numbers: {listed(self._known)}")
        return notes


def _tags_of_tokens(tags: Sequence[str], words: Sequence[int]) -> tuple[list[str], list[int]]:
    """Return the tags of all words, and the words without a token before the last one of `words`, which have some.

    Where such a word begins an entity, the next word of the entity begins it instead.
    """
    moved, with_tokens = list(tags), set(words)
    dropped = [word for word in range(max(words, default=-1)) if word not in with_tokens]
    for word in dropped:
        before, after = parts_of(moved[word]), parts_of(moved[word + 1])
        if before.prefix == "B" and after.prefix == "I" and before.kind == after.kind:
            moved[word + 1] = moved[word]
    return moved, dropped


def _tag_words(survey: TagSurvey) -> Iterator[str]:
    """`entities in IOB2: LOC, ORG, 812 of 9,000 words are in one`, or the tags with their words."""
    words = survey.counts.total()
    if survey.scheme != "plain":
        kinds = sorted({parts_of(name).kind for name in survey.counts} - {""})
        inside = words - survey.counts[OUTSIDE]
        yield f"the tags mark entities, in {survey.scheme}: {listed(kinds)}"
        yield f"{inside:,} of {words:,} words are in an entity"
        return
    shown = survey.counts.most_common(_SHOWN_TAGS)
    yield f"{len(survey.counts)} tags of single words: {one_line(shown[0][0], 30)} {shown[0][1]:,}"
    yield from (f"{one_line(name, 30)} {count:,}" for name, count in shown[1:])
    if more := len(survey.counts) - len(shown):
        yield f"and {more:,} more"


class _TagScorer:
    """Predictions stay where they were computed until the evaluation is over."""

    def __init__(self, loss: TokenLabelLoss, names: Sequence[str], scheme: str, beyond: float) -> None:
        """`beyond`: the share of the held-out words that stand beyond data.max_length, which no score covers."""
        self._loss, self._names, self._scheme, self._beyond = loss, names, scheme, beyond
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Tensor:
        logits_NC = self._loss.logits(batch)
        width = batch.inputs["input_ids"].shape[1]
        self.seen.append((batch.labels, logits_NC.argmax(-1), batch.places // width))
        return self._loss.of_logits(logits_NC, batch.labels)

    def scores(self) -> Scores:
        import torch

        counts = TagCounts(self._scheme)
        for batch in self.seen:
            labels, predicted, rows = torch.stack(batch).tolist()
            starts = [0, *(at for at, (one, next_) in enumerate(pairwise(rows), 1) if one != next_), len(rows)]
            for start, end in pairwise(starts):
                counts.add(
                    [self._names[number] for number in labels[start:end]],
                    [self._names[number] for number in predicted[start:end]],
                )
        scores = counts.scores()
        beyond = {"words_left_out": self._beyond} if self._beyond else {}
        return replace(scores, values={**scores.values, **beyond})


def words_of(row: TokenRow, closing_tokens: int) -> Iterator[_Word]:
    """The words of a row that have a label."""
    labels = _labels(row)
    places = [place for place, label in enumerate(labels) if label != IGNORE]
    tokens = row.tokens.tolist()
    for start, end in pairwise([*places, len(tokens) - closing_tokens]):
        yield tuple(tokens[start:end]), labels[start]


def usual_tags(rows: Rows, closing_tokens: int) -> tuple[dict[tuple[int, ...], int], int]:
    """(of each word the number of the tag that it has most often, that of all words); the lower of two equal ones."""
    counts: dict[tuple[int, ...], Counter[int]] = {}
    total: Counter[int] = Counter()
    for index in range(len(rows)):
        for tokens, number in words_of(rows.example(index), closing_tokens):
            counts.setdefault(tokens, Counter())[number] += 1
            total[number] += 1
    return {tokens: _most_frequent(found) for tokens, found in counts.items()}, _most_frequent(total)


def marked(words: Sequence[str], tags: Sequence[str], scheme: str) -> str:
    """`[Ada Lovelace PER] wrote it`; plain tags behind each word: `wrote/VERB it/PRON`."""
    if scheme == "plain":
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
    parts, at = [], 0
    for start, end, kind in entities(tags):
        parts += [*words[at:start], f"[{' '.join(words[start:end])} {kind}]"]
        at = end
    return " ".join([*parts, *words[at:]])


def _most_frequent(counts: Counter[int]) -> int:
    return min(counts, key=lambda number: (-counts[number], number))


def _labels(row: TokenRow) -> list[int]:
    assert row.labels is not None, "a row of a tagger has labels"
    labels: list[int] = row.labels.tolist()
    return labels


def _collate(rows: Sequence[TokenRow], pad_id: int, *, width: int = 0) -> Batch:
    labels = padded([row.labels for row in rows if row.labels is not None], IGNORE, width)
    return collate_whole(rows, pad_id, labels, width=width)


TASK = TokenClassification()
