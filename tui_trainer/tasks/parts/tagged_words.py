"""Rows of words with a tag each, as a token classifier reads them: the tag is learnt on the first token of its word.

Words that a tokenizer makes nothing of (a lone variation selector) have none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row, listed
from tui_trainer.data.columns.tagged_rows import (
    OUTSIDE,
    TagColumns,
    Tagged,
    TagSurvey,
    find_tag_columns,
    in_order,
    parts_of,
)
from tui_trainer.data.preparing.byte_bpe import Specials
from tui_trainer.data.preparing.token_rows import COLUMN, LABELS
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.heads import Head
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import metric_problems, metrics_of
from tui_trainer.tasks.parts.word_windows import WordTokens, windows_of
from tui_trainer.terminal.safe_text import one_line


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
    return [_aligned(row.ids, row.word_ids, max_length) for row in _encodings(tokenizer, rows)]


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


def _aligned(ids: list[int], word_ids: list[int | None], max_length: int) -> WordTokens:
    inside = [place for place, word in enumerate(word_ids) if word is not None]
    closing = len(ids) - 1 - inside[-1] if inside else 0
    truncated = bool(inside) and len(ids) > max_length
    if truncated:
        end = max(max_length - closing, inside[0])
        while end > inside[0] and word_ids[end] == word_ids[end - 1]:
            end -= 1
        ids, word_ids = ids[:end] + ids[len(ids) - closing :], word_ids[:end] + [None] * closing
    firsts = [
        (place, word)
        for place, word in enumerate(word_ids)
        if word is not None and (place == 0 or word_ids[place - 1] != word)
    ]
    return WordTokens(ids, firsts, truncated)


def closing_tokens(tokenizer: Any) -> int:
    """How many special tokens stand behind the last word."""
    found: list[int | None] = tokenizer([["a"]], is_split_into_words=True, verbose=False).encodings[0].word_ids
    return found[::-1].index(0)


_SHOWN_TAGS = 12


class TaggedWords(TableReader):
    """See `data/columns/reader.py` for what each part promises."""

    def __init__(self, config: Config, head: Head, specials: Specials, known: Sequence[str]) -> None:
        """`known`: the labels that the model tells apart already, in the order of its logits."""
        super().__init__(config, head, specials)
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
