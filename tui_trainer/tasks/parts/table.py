"""Learning from a table: which sources, how many rows, and what every reader of rows does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.mixture import weights_of
from tui_trainer.config.sections import Config
from tui_trainer.data.preparing.byte_bpe import Specials, train_tokenizer
from tui_trainer.data.preparing.cache import ExampleCut, PreparedData, find_entry
from tui_trainer.data.preparing.character_stream import both
from tui_trainer.data.preparing.estimate import estimate_examples
from tui_trainer.data.preparing.examples import Reader, prepare_examples
from tui_trainer.data.preparing.mixture import sources_in
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import Problem
from tui_trainer.hardware.probe import probe
from tui_trainer.models.heads import Head
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.tasks.parts.next_token import packed_rows
from tui_trainer.tasks.parts.sources import sources_of
from tui_trainer.tasks.parts.start import (
    made_tokenizer,
    own_tokenizer,
    tokenizer_of,
    tokens_a_character,
    trains_tokenizer,
)
from tui_trainer.units import MIB

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A tokenizer and what it imports take 3 s to begin and 300 MB in each process.
_LARGE_BYTES, _MOST_PROCESSES = 64 * MIB, 8
# What a row has besides its text: the tokens that begin and end it.
_FRAME_TOKENS = 2


class LearnsFromTable:
    """The part of a task that prepares a table. Each task makes a reader of its own."""

    name: str
    head: Head
    packs: bool
    specials: Specials

    def reader(self, config: Config) -> TableReader:
        """A new one, which has read nothing yet."""
        raise NotImplementedError

    def reader_of_inputs(self, config: Config) -> TableReader:
        """For estimates: its texts are what goes into `input_ids`."""
        return self.reader(config)

    def data_facts(self, config: Config, cache_dir: Path, progress: Progress | None = None) -> DataFacts:
        sources, cut = both(*sources_of(config)), self.cut(config)
        if prepared := find_entry(sources, cut, cache_dir, progress):
            return self.facts(config, prepared)
        reader = self.reader_of_inputs(config)
        rate = partial(tokens_a_character, config, self.head)
        guess = estimate_examples(sources, reader, cut, rate, frame_tokens=_FRAME_TOKENS)
        return DataFacts.guessed(
            guess,
            row_tokens=guess.tokens / max(guess.rows, 1),
            longest_row=guess.longest_row,
            packed_rows=self._packed_rows(config, guess.lengths, guess.rows),
            classes=reader.classes,
            target_tokens=self.target_tokens(config, None),
        )

    def prepare(self, config: Config, cache_dir: Path, progress: Progress) -> PreparedData:
        sources, wish = both(*sources_of(config)), config.data.num_proc
        processes = processes_for(sources) if wish == "auto" else wish
        return prepare_examples(
            sources, self.reader(config), self.cut(config), cache_dir, progress, processes=processes
        )

    def facts(self, config: Config, data: PreparedData) -> DataFacts:
        counts = data.counts
        return DataFacts.counted(
            counts,
            row_tokens=counts.train_tokens / max(counts.train_rows, 1),
            longest_row=counts.longest_row,
            packed_rows=self._packed_rows(config, data.lengths, counts.train_rows),
            classes=int(data.details.get("classes", 0)),
            target_tokens=self.target_tokens(config, data),
            sources=sources_in(data.details),
            splits=data.splits,
            details=data.details,
        )

    def target_tokens(self, config: Config, data: PreparedData | None) -> int:
        """Of the longest answer; at the most, before the data is prepared."""
        return 0

    def cut(self, config: Config) -> ExampleCut:
        data = config.data
        return ExampleCut(
            max_length=data.max_length,
            eval_fraction=data.eval_fraction,
            seed=data.seed,
            max_chars=0,
            tokenizer=tokenizer_of(config, self.head)[0],
            max_rows=data.max_rows,
            dedup=data.dedup,
            skip_bad_rows=data.on_bad_rows == "skip",
            weights=weights_of(data.path, data.weights),
            reading=json.dumps(self.reading(config), sort_keys=True),
        )

    def reading(self, config: Config) -> dict[str, Any]:
        """Every setting that decides which tokens and labels a row gives."""
        data, scratch = config.data, trains_tokenizer(config)
        columns = {name: value for name, value in data.model_dump().items() if name.endswith("_column")}
        vocabulary = config.model.scratch.vocab_size if scratch else 0
        return {"task": config.task.model_dump(), "vocabulary": vocabulary, **columns}

    def _packed_rows(self, config: Config, lengths: Sequence[int], rows: int) -> float | None:
        # Of a row, all tokens but the last are read.
        return packed_rows(config, [max(length - 1, 1) for length in lengths], rows) if self.packs else None


def table_problems(config: Config) -> list[Problem]:
    """Settings about a text, of which a table has none."""
    if not config.data.max_chars:
        return []
    message = "a table is read row by row, and no row of it is cut"
    return [Problem(message=message, key="data.max_chars", hint="set it to 0; data.max_rows limits the rows")]


def processes_for(sources: Sequence[Source]) -> int:
    """One, and as many as there are cores where the data is large: a new process takes some seconds to begin."""
    if sum(source.bytes_on_disk for source in sources) < _LARGE_BYTES:
        return 1
    return min(probe().usable_cores, _MOST_PROCESSES)


class TableReader(Reader):
    """What the readers of all tasks do alike: a tokenizer, loaded or made when it is needed first."""

    columns: tuple[str, ...] = ("input_ids", "labels")
    held_out = False
    classes = 0
    """Labels that are told apart, as far as is known."""

    def __init__(self, config: Config, head: Head, specials: Specials) -> None:
        self.config = config
        self.max_length = config.data.max_length
        self.learns = trains_tokenizer(config)
        self._head, self._specials = head, specials
        self._tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def tokenizer(self) -> Any:
        """Raises ConfigError when the model's own cannot be loaded."""
        if self._tokenizer is None:
            self._tokenizer = own_tokenizer(self.config, self._head)
        return self._tokenizer

    def settle(self) -> None:
        return None

    def learn(self, texts: Iterator[str], path: Path) -> None:
        made = train_tokenizer(texts, self.config.model.scratch.vocab_size, self._specials)
        path.write_text(made.to_str(pretty=True), encoding="utf-8")
        self._tokenizer = made_tokenizer(path, self.config, self._specials)

    def vocabulary(self) -> int:
        return tokenizer_of(self.config, self._head)[2] if self._tokenizer is None else len(self._tokenizer)

    def details(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def notes(self) -> list[str]:
        return []
