"""Each word of a sentence gets a tag: names of persons and places (NER), parts of speech, and the like.

A word is tagged on its first token; the other tokens of it have no label. Rows are read whole, by encoders and decoders
alike; none shares its row with another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import IGNORE, Batch, Collate, collate_whole, padded
from tui_trainer.data.columns.tagged_rows import OUTSIDE, entities, marks_entities
from tui_trainer.data.preparing.byte_bpe import FOR_WORDS
from tui_trainer.data.preparing.token_rows import LABELS, Rows, TokenRow
from tui_trainer.models.heads import Head, Labels, own_labels
from tui_trainer.models.writing import Sampling, pad_token_id, row_padding_id
from tui_trainer.tasks.contract import Baselines, InputReader, InputRow, Objective, Scorer, Scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import METRICS, TagCounts, balanced_weights
from tui_trainer.tasks.parts.starts_from_model import WordInputs, logits_of, model_of
from tui_trainer.tasks.parts.tagged_words import TaggedWords, with_words_spaced, word_windows
from tui_trainer.tasks.parts.task import Task
from tui_trainer.tasks.parts.word_windows import WordTokens

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.losses.classification import TokenLabelLoss
    from tui_trainer.losses.micro_batch import MicroBatch

_Word = tuple[tuple[int, ...], int]  # its tokens, and the number of its tag
_USUAL_TAG = "the most frequent tag of each word"


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
        return TaggedWords(config, self.head, self.specials, self._known_labels(config))

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
        numbers, names = (
            chain.from_iterable(logits_BTC.argmax(-1).tolist() for logits_BTC in logits),
            model.config.id2label,
        )
        found = []
        for row in rows:
            text, places, own = row.content
            read = ((one.firsts, next(numbers)) for one in own)
            tags = {word: str(names[tags_T[place]]) for firsts, tags_T in read for place, word in firsts}
            found.append(_prediction(text, places, tags, known=names.values()))
        return found

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        """The text with its entities in brackets: [Ada Lovelace PER] wrote it."""
        pairs = zip(prediction["words"], prediction["tags"], strict=True)
        known = [(word, tag) for word, tag in pairs if tag is not None]
        return marked([word for word, _ in known], [tag for _, tag in known], "" if "spans" in prediction else "plain")


def _prediction(
    text: str,
    places: Sequence[tuple[int, int]],
    tag_of_word: Mapping[int, str],
    *,
    known: Iterable[str],
) -> dict[str, Any]:
    tags = [tag_of_word.get(word) for word in range(len(places))]
    found: dict[str, Any] = {"words": [text[start:end] for start, end in places], "tags": tags}
    if not marks_entities(known):
        return found
    spans = [
        (places[first][0], places[end - 1][1], kind) for first, end, kind in entities([t or OUTSIDE for t in tags])
    ]
    named = [{"start": start, "end": end, "text": text[start:end], "label": kind} for start, end, kind in spans]
    return {**found, "spans": named}


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
