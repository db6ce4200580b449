"""The methods of tasks that estimate, prepare and describe data, and the base class of readers of tables."""

import json
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.mixture import parse_weights
from tui_trainer.config.sections import Config, DataSection
from tui_trainer.data.batching.pack import expected_packed_rows, padding_shares
from tui_trainer.data.columns.reader import Reader, UnknownToken, unknown_token_of
from tui_trainer.data.preparing.byte_bpe import SpecialTokens, train_tokenizer
from tui_trainer.data.preparing.cache import PreparedContent, PreparedData, RowKind, RowSettings, find_entry
from tui_trainer.data.preparing.estimate import Rate, estimate, size_of, text_excerpts
from tui_trainer.data.preparing.prepare import count_first_rows, prepare
from tui_trainer.data.preparing.processes import useful_process_count
from tui_trainer.data.preparing.row_selection import sources_in
from tui_trainer.data.preparing.token_rows import SEGMENTS, Rows
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.data.sources.source import DataChoice, open_source
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.hardware.probe import memory_available_now, probe
from tui_trainer.models.heads import Head
from tui_trainer.models.token_ids import token_ids
from tui_trainer.tasks.contract import Baselines, DataFacts
from tui_trainer.tasks.parts.starts_from_model import (
    estimate_tokens_per_character,
    has_unknown_tokens,
    load_own_tokenizer,
    load_trained_tokenizer,
    tokenizer_identity,
)
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, quantity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

_LARGE_BYTES = 64 * MIB  # larger data is not prepared just to report what is wrong with it
_COUNTED_BYTES, _COUNTED_ROWS = 8 * MIB, 2000  # prepared in seconds; of larger data only the first rows are counted
_UNKNOWN_NOTE = "the tokenizer lacks some characters of the first rows; preparing the data counts these characters"
# Settings in every key of prepared data, and the defaults of two that were removed. A key contains a newer setting only
# if it is not at its default, so that earlier runs still find their prepared rows.
_KEY_SETTINGS = set("type loss_on chat_template problem_type class_weights source_prefix max_target_length".split())
_REMOVED_SETTINGS = {"source_language": "", "target_language": ""}
COLUMN_SETTINGS = tuple(name for name in DataSection.model_fields if name.endswith("_column"))


def named_columns(config: Config) -> list[str]:
    """Return the names of the settings that name a column, without those at their defaults: ["text_column"]."""
    return [name for name in config.data.model_dump(exclude_defaults=True) if name in COLUMN_SETTINGS]


class LearnsFromData:
    """The methods of tasks that prepare data. Each task overrides `reader`."""

    name: str
    head: Head
    can_pack: bool = False
    """Whether documents may be packed into one row, which requires that tokens are predicted from those before."""
    gives_windows: bool = False
    """Whether a text that is longer than a row is split into overlapping windows, so that nothing is lost."""
    specials: SpecialTokens
    waiting_bytes: int = 8
    """Bytes on disk for each token during preparation: the spool takes about twice the text (`row_selection.py`)."""
    row_kind: RowKind = "examples"
    masks_padding: bool = False
    """Whether the model gets a mask of the padding, so that padding does not change its results."""
    used_column_settings: tuple[str, ...] = ("text_column",)
    """Names of the settings of columns that the task uses."""

    def reader(self, config: Config) -> Reader:
        """Return a new reader, which has read nothing yet."""
        raise NotImplementedError

    def prepare_file(
        self,
        config: Config,
        path: str,
        tokenizer: "Tokenizer",
        model_config: Mapping[str, Any],
        folder: Path,
        progress: Progress,
    ) -> PreparedData:
        """Prepare the data at `path` for a trained model, with its tokens and labels, and return it. All rows are
        training rows. Of several splits, the one for evaluation is read. Raise DataError."""
        reader = self.reader(config)
        reader.set_tokenizer(tokenizer, model_config)
        settings = replace(
            self.row_settings(config), eval_fraction=0.0, max_chars=0, max_rows=0, dedup=False, weights=(),
            skip_bad_rows=False, replay_sources=0, replay_share=0.0,
        )  # fmt: skip
        source = open_source(path, config.data.text_column, DataChoice(is_evaluation=True))
        return prepare(ResolvedData.of(source), reader, settings, folder, progress, processes=1)

    def reader_of_inputs(self, config: Config) -> Reader:
        """Return a reader for estimates. Its example texts are the inputs, which become `input_ids`."""
        return self.reader(config)

    def reader_of_texts(self, config: Config) -> Reader:
        """Return a reader for estimates. Its example texts include the answers."""
        return self.reader_of_inputs(config)

    def data_facts(
        self, config: Config, data: ResolvedData, cache_dir: Path, progress: Progress | None = None
    ) -> DataFacts:
        """Return the size of the data: counted if it was prepared before, else estimated. Raise DataError."""
        settings = self.row_settings(config)
        if prepared := find_entry(data, settings, cache_dir, progress):
            return self.facts(config, prepared)
        facts, is_enough = self._estimated(config, data, settings, data.signature)
        # Preparing finds text after the beginnings of the files, or reports every bad row and unknown token.
        return facts if is_enough else self.facts(config, self.prepare(config, data, cache_dir, progress))

    @lru_cache(maxsize=2)  # noqa: B019  # tasks are never deleted, and the checks of a config ask again after its plan
    def _estimated(
        self, config: Config, data: ResolvedData, settings: RowSettings, signature: Hashable
    ) -> tuple[DataFacts, bool]:
        """Return the estimated facts, and whether they suffice for a plan. `signature` identifies the files' state."""
        reader, rate = self.reader_of_inputs(config), self.token_rate(config)
        estimated = estimate(data.sources, reader, settings, rate, frame_tokens=self.frame_tokens(config))
        row_count, is_refused = estimated.counts.train_rows, estimated.has_bad_rows and not settings.skip_bad_rows
        text_beginnings = () if config.is_from_scratch else self._beginnings(data, self.reader_of_texts(config))
        has_unknown = bool(text_beginnings) and has_unknown_tokens(config, self.head, text_beginnings)
        is_enough = bool(row_count) and (data.bytes_on_disk >= _LARGE_BYTES or not (is_refused or has_unknown))
        notes = (_UNKNOWN_NOTE,) if has_unknown else ()
        facts = replace(self.facts(config, estimated), exact=False, reason=estimated.reason, counts=None, details={})
        return replace(facts, splits=data.splits, notes=notes), is_enough

    def counted(
        self, config: Config, data: ResolvedData, cache_dir: Path, progress: Progress | None
    ) -> DataFacts | None:
        """Return facts with `counts`. Small data is prepared; of larger data, only the first rows are counted, and
        `exact` is False. Return None if these first rows are refused. Raise DataError."""
        cut = self.row_settings(config)
        if data.bytes_on_disk < _COUNTED_BYTES:
            return self.facts(config, self.prepare(config, data, cache_dir, progress))
        try:
            first_cut = cut if len(data.sources) == 1 else replace(cut, eval_fraction=0.0)
            built = count_first_rows(data.sources[0], self.reader(config), first_cut, progress, _COUNTED_ROWS)
        except DataError:  # for example, if too few of them have a label
            return None
        reason = f"from the first {built.counts.rows_read or built.counts.documents_read:,} rows or documents only"
        return replace(self.facts(config, built), exact=False, reason=reason)

    def sample_texts(self, config: Config, data: ResolvedData) -> tuple[str, ...]:
        """Return some texts of the data, few enough to tokenize in an instant. Raise DataError."""
        return self._beginnings(data, self.reader_of_inputs(config))

    def _beginnings(self, data: ResolvedData, reader: Reader) -> tuple[str, ...]:
        row_reader = reader if self.row_kind == "examples" else None
        return tuple(text for part in data.sources[0].parts for text in text_excerpts(size_of(part, row_reader)))

    def prepare(self, config: Config, data: ResolvedData, cache_dir: Path, progress: Progress | None) -> PreparedData:
        """Return the data as rows of token ids, prepared now or stored by content and settings. Raise DataError."""
        processes = config.data.num_proc
        if processes == "auto":
            processes = useful_process_count(data.bytes_on_disk, probe().usable_cores, memory_available_now())
        return prepare(data, self.reader(config), self.row_settings(config), cache_dir, progress, processes=processes)

    def facts(self, config: Config, data: PreparedContent) -> DataFacts:
        """Return the facts about prepared or estimated data."""
        counts, sources = data.counts, sources_in(data.details)
        facts = DataFacts(
            rows=counts.train_rows,
            eval_rows=counts.eval_rows,
            tokens=counts.train_tokens,
            eval_tokens=counts.eval_tokens,
            vocabulary=counts.vocabulary,
            exact=True,
            reason="counted in the prepared data",
            counts=counts,
            longest_row=counts.longest_row,
            row_documents=counts.row_documents,
            class_count=int(data.details.get("classes", 0)),
            target_tokens=self.target_tokens(config, data),
            sources=sources,
            splits=data.splits if isinstance(data, PreparedData) else (),
            notes=tuple(note for note in data.notes if note not in {source.words() for source in sources}),
            details=data.details,
        )
        if self.row_kind == "stream":
            return replace(facts, row_tokens=config.data.max_length, longest_row=config.data.max_length)
        # The last token of a document is no input if the model learns to predict the next token.
        is_text, row_documents = self.row_kind == "documents", counts.row_documents
        input_lengths = data.lengths if is_text else [max(length - row_documents, 1) for length in data.lengths]
        # For "auto", a plan later calls `fills` with its own batch size.
        batch_setting = config.training.effective_batch_size
        batch_size = min(config.training.base_batch_size if batch_setting == "auto" else batch_setting, facts.rows)
        # A row of several documents is packed as a whole, and each document may have the maximum length.
        capacity = config.data.max_length if row_documents == 1 else max(config.data.max_length, *input_lengths)
        fills = partial(expected_packed_rows, input_lengths, capacity) if self.can_pack and input_lengths else None
        padding_of = partial(padding_shares, input_lengths, capacity=capacity, packs=self.can_pack)
        return replace(
            facts,
            row_tokens=(counts.train_labels if is_text else counts.train_tokens) / max(facts.rows, 1),
            packed_rows=fills(batch_size) if fills else None,
            compute_packed_rows=fills,
            padding=padding_of if len(input_lengths) and row_documents == 1 else None,
        )

    def baselines(self, config: Config, data: PreparedData, eval_rows: Sequence[int]) -> Baselines | None:
        """Return the results of simple models on the evaluated rows, for comparison, or None without evaluation."""
        if data.eval_path is None or not len(eval_rows):
            return None
        return self.baselines_on(config, data, Rows(data.eval_path), eval_rows)

    def baselines_on(
        self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]
    ) -> Baselines | None:
        return None

    def target_tokens(self, config: Config, data: PreparedContent) -> int:
        """Return the number of tokens of the longest answer; before the data is prepared, the limit for answers."""
        return 0

    def token_rate(self, config: Config) -> Rate:
        """Return a function that estimates the mean number of tokens per character in texts."""
        return partial(estimate_tokens_per_character, config, self.head)

    def frame_tokens(self, config: Config) -> int:
        """Return the number of special tokens around the text of a row, for estimates."""
        return 2

    def row_settings(self, config: Config) -> RowSettings:
        settings = config.data
        return RowSettings(
            rows=self.row_kind,
            max_length=settings.max_length,
            eval_fraction=settings.eval_fraction,
            seed=settings.seed,
            tokenizer=tokenizer_identity(config, self.head)[0],
            reading=json.dumps(self.encoding_settings(config), sort_keys=True),
            max_chars=settings.max_chars if self.row_kind != "examples" else 0,
            max_rows=settings.max_rows,
            dedup=settings.dedup,
            skip_bad_rows=settings.on_bad_rows == "skip",
            weights=parse_weights(settings.paths, settings.weights),
            replay_sources=len(settings.replay_paths),
            replay_share=settings.replay_share if settings.replay_paths else 0.0,
        )

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        """Return all settings that decide the tokens and labels of a row, by name. They are a part of the cache key."""
        changed_settings = config.task.model_dump(exclude_defaults=True)
        task_settings = config.task.model_dump(include=_KEY_SETTINGS) | changed_settings
        vocabulary = config.model.scratch.vocab_size if config.is_from_scratch else 0
        column_settings = config.data.model_dump(include=set(COLUMN_SETTINGS))
        return {"task": _REMOVED_SETTINGS | task_settings, "vocabulary": vocabulary, **column_settings}

    def data_problems(self, config: Config) -> list[Problem]:
        """Return a problem for each column setting that the task does not use, and for data.max_chars with a table."""
        problems = list[Problem]()
        for name in (name for name in named_columns(config) if name not in self.used_column_settings):
            column = one_line(getattr(config.data, name), 40)
            message = f"is set to the column '{column}', but the task {self.name} does not use it"
            hint = "remove it, or set task.type to a task that uses it"
            problems.append(Problem(message=message, key=f"data.{name}", hint=hint))
        if config.data.max_chars and self.row_kind == "examples":
            message = "does not apply to tables, which are read row by row"
            hint = "set it to 0, and limit the rows with data.max_rows"
            problems.append(Problem(message=message, key="data.max_chars", hint=hint))
        return problems


class TableReader(Reader):
    """The base class of the tasks' readers, with a tokenizer that is loaded or trained at its first use."""

    columns: tuple[str, ...] = ("input_ids", "labels")
    classes = 0
    """Number of different labels in the rows that were read so far."""

    def __init__(self, config: Config, head: Head, specials: SpecialTokens) -> None:
        self.config = config
        self.max_length = config.data.max_length
        self.trains_tokenizer = config.is_from_scratch
        self._head, self._specials = head, specials
        self._tokenizer: Tokenizer | None = None
        self.has_trained_model = False
        """Whether tokens and labels come from a trained model."""

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        self._tokenizer, self.trains_tokenizer, self.has_trained_model = tokenizer, False, True

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded at its first use. Raises ConfigError if the model's tokenizer cannot be loaded."""
        if self._tokenizer is None:
            self._tokenizer = load_own_tokenizer(self.config, self._head)
        return self._tokenizer

    def load(self) -> None:
        # Other processes cannot import a tokenizer class that comes with the model.
        if not self.trains_tokenizer and not self.config.model.trust_remote_code:
            _ = self.tokenizer

    def language_notes(self) -> list[str]:
        """Return a note such as `texts are marked with their language: en to de`, if the tokenizer marks texts."""
        tokenizer = None if self.trains_tokenizer else self.tokenizer
        source_language, target_language = (getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang"))
        suffix = f" to {target_language}" if target_language else ""
        return [f"texts are marked with their language: {source_language}{suffix}"] if source_language else []

    @property
    def distinguishes_pairs(self) -> bool:
        """Whether the tokenizer returns segments that distinguish the two texts of a pair."""
        if self.trains_tokenizer:
            return self._specials.distinguishes_pairs
        return SEGMENTS in self.tokenizer.model_input_names

    def refuse_no_room(self, content: str, *, pair: bool = False) -> None:
        """Raise ConfigError if special tokens fill the whole row. `content` describes the text between them."""
        specials, trains = self._specials, self.trains_tokenizer
        frame_tokens = (specials.frame_tokens if trains else self.tokenizer.num_special_tokens_to_add)(pair=pair)
        if self.max_length <= frame_tokens:
            message = f"is {self.max_length}, but {quantity(frame_tokens, 'special token')} must fit around {content}"
            hint = f"set it to {max(frame_tokens + 1, 128)}"
            raise ConfigError(Problem(message=message, key="data.max_length", hint=hint))

    def refuse_outside(self, kind: str, names: Sequence[str], trained: Collection[str], where: str, hint: str) -> None:
        """Raise DataError for a label or tag in `names` that is not in `trained`, and suggest a similar one."""
        if unknown_name := next((name for name in names if name not in trained), None):
            near_names = get_close_matches(unknown_name, trained, n=1)
            suggestion = f"did you mean '{one_line(near_names[0], 40)}'? " if near_names else ""
            message = f"no training row has the {kind} '{one_line(unknown_name, 40)}'"
            raise DataError(message, where=where, hint=f"{suggestion}{hint}")

    def learn(self, texts: Iterator[str], path: Path) -> None:
        trained_tokenizer = train_tokenizer(texts, self.config.model.scratch.vocab_size, self._specials)
        path.write_text(trained_tokenizer.to_str(pretty=True), encoding="utf-8")
        self._tokenizer = load_trained_tokenizer(path, self.config, self._specials)

    @cached_property
    def unknown_token(self) -> UnknownToken | None:
        return unknown_token_of(self.tokenizer)

    def tokenize_texts(self, texts: Sequence[str]) -> list[list[int]]:
        return token_ids(self.tokenizer, texts, special_tokens=False)

    def vocabulary(self) -> int:
        return tokenizer_identity(self.config, self._head)[2] if self._tokenizer is None else len(self._tokenizer)

    def details(self) -> dict[str, Any]:
        return {"classes": self.classes}
