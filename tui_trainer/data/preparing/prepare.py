"""Preparation: from sources to rows of tokens on disk, once for each content and settings, and alike for every task.

    pass 1   read and check every row, hash its text;
             several processes read JSON Lines                  -> a spool on disk
             from the hashes: duplicates, held-out rows, leaks, and how often each row is used
    pass 2   only to train a tokenizer                          -> tokenizer.json
    pass 3   encode the used rows, in one process or several    -> train.arrow, eval.arrow

A task gives a row its meaning with a `Reader`, and `RowSettings.rows` decides how tokens become rows. The memory holds
about 40 bytes per row and some chunks of rows, so data may have any size. The spool takes about twice the disk space of
the text until the rows are written.

A single process lets the tokenizer use all cores. Several processes share all work except decisions and writing
(`processes.py`), and give the same files. They share the reading of a table only if its `Reader` allows it.

For the preview and the checklist, one bit per row records whether the row was truncated, and the details record how
long rows would be without truncation.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tui_trainer.data.columns.reader import Encoded, Example, Reader, ReadInOrder
from tui_trainer.data.preparing import cache, token_rows, unknown_tokens
from tui_trainer.data.preparing.byte_bpe import TRAINED_TOKENIZER_KEY
from tui_trainer.data.preparing.cache import SOURCES_KEY, Counts, RowSettings
from tui_trainer.data.preparing.processes import Processes
from tui_trainer.data.preparing.row_selection import (
    CHUNK_CHARACTERS,
    TRAIN,
    ChosenRows,
    Selection,
    Survey,
    Surveyor,
    chosen_rows,
    select_rows,
    source_rows,
)
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.reading import BLOCK_BYTES
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError
from tui_trainer.units import quantity

CUT_FILE = "cut_rows.npy"
BAD_ROWS_KEY, CLASS_ROWS_KEY = "bad_rows", "class_rows"
WHOLE_LENGTH_KEY, CUT_TOKENS_KEY = "length_for_99_percent", "cut_tokens"
LABEL_ROWS = "label_rows"
"""Detail of data with several labels per row: (training rows, held-out rows or None) of each label."""
MOST_STORED_CLASSES = 1000
_FITTING_SHARE, _KEPT_SHARE = 0.99, 0.95
_SKIP_HINT = "set data.on_bad_rows=skip to skip unusable rows"


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Encoded rows of one split, as arrays for the file, and their counts. Rows without a label are left out.

    `counts` has documents, tokens, labels, characters, inexact answers, and others by their names in `Counts`.
    `first_label_tokens` lists the max_length that each row without a label would need for its first one.
    `inexact_example` is one of the inexact answers, and `unknown_texts` are some texts with unknown tokens. `is_cut`,
    bool [rows], tells whether each row was truncated, and `row_characters`, int32 [rows], the length of its text."""

    side: int
    columns: token_rows.Columns
    counts: Counter[str]
    is_cut: NDArray[np.bool_]
    row_characters: NDArray[np.int32]
    inexact_example: str = ""
    unknown_texts: tuple[str, ...] = ()
    first_label_tokens: tuple[int, ...] = ()


def _encode_rows(reader: Reader, rows: ChosenRows) -> list[EncodedBatch]:
    """Encode these rows, and return one batch for each split that has any."""
    return [_encode_split(reader, side, examples) for side, examples in enumerate(rows.examples()) if examples]


def _encode_split(reader: Reader, side: int, examples: Sequence[Example]) -> EncodedBatch:
    encoded_rows = reader.encode(examples)
    labelled_rows = [row for row in encoded_rows if row.label_count]
    has_windows = any(row.example is not None for row in encoded_rows)
    positions = [row.example or 0 for row in encoded_rows] if has_windows else range(len(examples))
    labelled_positions = [position for position, row in zip(positions, encoded_rows, strict=True) if row.label_count]
    characters = [len(examples[position].text) for position in labelled_positions]
    columns = {name: _joined_column(labelled_rows, name) for name in reader.columns}
    is_cut = np.array([row.truncated for row in labelled_rows], dtype=np.bool_)
    unknown_counts, unknown_rows = unknown_tokens.count_unknown(reader, columns)
    row_counts = Counter(
        documents=len(labelled_rows),
        tokens=len(columns[token_rows.INPUT_IDS][0]),
        labels=sum(row.label_count for row in labelled_rows),
        characters=sum(len(example.text) for example in examples),
        truncated_rows=int(is_cut.sum()),
        truncated_answers=sum(row.answer_truncated for row in labelled_rows),
        inexact=sum(bool(row.inexact_reason) for row in labelled_rows),
        untrained_rows=len(encoded_rows) - len(labelled_rows),
        untrained_long_rows=sum(row.truncated for row in encoded_rows if not row.label_count),
        equal_answers=sum(row.has_equal_answers for row in encoded_rows),
        marked_rows=sum(row.spells_special_tokens for row in labelled_rows),
        labels_beyond=sum(row.labels_beyond for row in encoded_rows),
        **unknown_counts,
    )
    example = next((row.inexact_reason for row in labelled_rows if row.inexact_reason), "")
    texts = tuple(examples[labelled_positions[row]].text for row in unknown_rows)
    needed_lengths = tuple(row.first_label_tokens for row in encoded_rows if row.first_label_tokens)
    lengths = np.array(characters, dtype=np.int32)
    return EncodedBatch(side, columns, row_counts, is_cut, lengths, example, texts, needed_lengths)


def _joined_column(rows: Sequence[Encoded], name: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    values = [np.asarray(row.columns[name], dtype=np.int32) for row in rows]
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return np.concatenate(values) if values else np.zeros(0, dtype=np.int32), lengths


def write_cut_rows(folder: Path, is_cut: ArrayLike) -> None:
    """Write whether each training row was truncated or belongs to a document that was split, for `read_cut_rows`."""
    np.save(folder / CUT_FILE, np.packbits(np.asarray(is_cut, dtype=np.bool_)), allow_pickle=False)


def read_cut_rows(folder: Path, rows: int) -> NDArray[np.bool_] | None:
    """Return whether each training row was cut, bool [rows], as `write_cut_rows` stored it; None without its file."""
    try:
        packed_bits = np.load(folder / CUT_FILE, allow_pickle=False)
        return np.unpackbits(packed_bits, count=rows).astype(np.bool_)
    except (OSError, ValueError, TypeError):
        return None


def row_details(
    survey: Survey, selection: Selection, strata: Mapping[str, int], problems: ProblemList
) -> dict[str, Any]:
    """Return details of the prepared data: the first unusable rows, and the number of training rows of each class."""
    details: dict[str, Any] = {}
    if problems.count:
        details[BAD_ROWS_KEY] = [asdict(problem) for problem in problems.shown_problems]
    if 1 < len(strata) <= MOST_STORED_CLASSES:
        class_numbers = np.frombuffer(survey.strata, dtype=np.int64)
        counts = np.bincount(class_numbers, weights=selection.training_copies, minlength=len(strata))
        details[CLASS_ROWS_KEY] = {name: int(counts[number]) for name, number in strata.items() if counts[number]}
    return details


def notes_of_counts(counts: Counts, settings: RowSettings, longer_hint: str = "") -> Iterator[str]:
    """Yield sentences about skipped, truncated or duplicated rows. `longer_hint`: a hint for a larger max_length."""
    if counts.repeated_rows:
        consequence = "removed (data.dedup)" if settings.dedup else "kept; set data.dedup = true to remove duplicates"
        yield f"{quantity(counts.repeated_rows, 'duplicate row', 'are')} {consequence}"
    if counts.leaked_rows:
        consequence = "which data.dedup removes"
        consequence = consequence if settings.dedup else "so held-out scores are too good; set data.dedup = true"
        yield f"the training rows include {quantity(counts.leaked_rows, 'duplicate')} of held-out rows, {consequence}"
    if counts.truncated_rows:
        rows = counts.train_rows + counts.eval_rows
        row_share = f"{counts.truncated_rows:,} of {rows:,} rows"
        yield f"{row_share} are longer than {settings.max_length:,} tokens and are truncated"
    if counts.truncated_answers:
        answers_do = quantity(counts.truncated_answers, "answer", "do")
        consequence = "generated answers are truncated to task.max_target_length, answers of pairs lose their end, and "
        consequence += "answers that are marked in a context and cut off count as no answer"
        yield f"{answers_do} not fit into a row: {consequence}"
    if equal_pairs := counts.equal_answers:
        reason = f"because their answers are the same if they are cut to {settings.max_length:,} tokens"
        yield f"{quantity(equal_pairs, 'pair', 'are')} skipped, {reason}; raise data.max_length"
    if long_rows := counts.untrained_long_rows - counts.equal_answers:
        reason = f"because no token to train on is within the first {settings.max_length:,} tokens"
        yield f"{quantity(long_rows, 'row', 'are')} skipped, {reason}{f'; {longer_hint}' if longer_hint else ''}"
    if unlabelled_rows := counts.untrained_rows - counts.untrained_long_rows:
        yield f"{quantity(unlabelled_rows, 'row', 'are')} skipped, because no token is trained on"
    if counts.cut_documents:
        document_count = counts.train_documents + counts.eval_documents
        yield (
            f"{counts.cut_documents:,} of {document_count:,} documents are longer than {settings.max_length:,} tokens "
            f"and are split into {counts.pieces:,} pieces; no text is dropped"
        )
    if counts.short_documents:
        yield f"{quantity(counts.short_documents, 'document', 'have')} fewer than two tokens (skipped)"
    if counts.marked_rows:
        rows_have = quantity(counts.marked_rows, "document" if settings.reads_text else "row", "have")
        token_note = "special tokens of the tokenizer at the beginning or end"
        yield f"{rows_have} {token_note}; these tokens are not added again"


def _longer_length_hint(needed_lengths: Sequence[int], rows: int) -> str:
    """Return a hint about the max_length that keeps skipped rows, from the tokens up to the first label of each."""
    if not needed_lengths:
        return ""
    shortest, longest_need = min(needed_lengths), int(np.quantile(needed_lengths, _KEPT_SHARE, method="lower"))
    suggested_length = 1 << (longest_need - 1).bit_length()
    kept_rows = rows - sum(row_need > suggested_length for row_need in needed_lengths)
    prompt_note = f"the shortest prompt has {shortest - 1:,} tokens, so data.max_length must be at least {shortest:,}"
    return f"{prompt_note}; with {suggested_length:,} tokens, {kept_rows:,} of {rows:,} rows are kept"


def prepare(
    data: ResolvedData,
    reader: Reader,
    settings: cache.RowSettings,
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    processes: int = 1,
) -> cache.PreparedData:
    """Return the rows for training and evaluation, from the cache or prepared by this many `processes`.

    Without a second source, `settings.eval_fraction` is held out: of the characters of texts, or of the rows of a
    table. Raises DataError for wrong or too little data, and for a cache that cannot be written."""
    if entry := cache.find_entry(data, settings, cache_dir, progress):
        return entry
    preparation = _Preparation(data.sources, reader, settings, progress, processes)
    return cache.make_entry(data, settings, cache_dir, progress, preparation.build)


def count_first_rows(
    source: Source, reader: Reader, settings: cache.RowSettings, progress: Progress | None, limit: int
) -> cache.PreparedContent:
    """Prepare the first `limit` rows of each part, or CHUNK_CHARACTERS of its text, and return their counts.

    Counts unusable rows instead of refusing them, and keeps no files. Raises DataError."""
    first_rows_cut = replace(
        settings,
        max_rows=min(settings.max_rows or limit, limit),
        max_chars=min(settings.max_chars or CHUNK_CHARACTERS, CHUNK_CHARACTERS) if settings.reads_text else 0,
        skip_bad_rows=True,
        weights=(),
        replay_sources=0,
    )
    with TemporaryDirectory() as folder:
        return _Preparation([source], reader, first_rows_cut, progress, 1).build(Path(folder))


def _load(reader: Reader) -> None:
    """Load what encoding needs, such as a tokenizer. Errors are ignored here: the first use of it raises them again."""
    with suppress(Exception):
        reader.load()


@dataclass(slots=True)
class _SideFile:
    """The file of one split, training or held-out, and the counts of its rows."""

    writer: token_rows.RowWriter
    counts: Counter[str] = field(default_factory=Counter)
    longest_labels: int = 0
    inexact_example: str = ""
    unknown_texts: list[str] = field(default_factory=list)
    needed_lengths: list[int] = field(default_factory=list)
    _rows: list[tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]]] = field(default_factory=list)
    """For each batch: whether each row was truncated, its tokens, and the characters of its text."""

    def add(self, batch: EncodedBatch) -> None:
        if len(batch.is_cut):
            self.writer.add(batch.columns)
            row_tokens = batch.columns[token_rows.INPUT_IDS][1].astype(np.int32)
            self._rows.append((batch.is_cut, row_tokens, batch.row_characters))
        if token_rows.LABELS in batch.columns:
            self.longest_labels = max(self.longest_labels, int(batch.columns[token_rows.LABELS][1].max(initial=0)))
        self.counts.update(batch.counts)
        self.inexact_example = self.inexact_example or batch.inexact_example
        self.unknown_texts += batch.unknown_texts[: max(0, unknown_tokens.TEXTS_KEPT - len(self.unknown_texts))]
        self.needed_lengths += batch.first_label_tokens

    def write_cut_rows(self, folder: Path) -> dict[str, Any]:
        """Write which rows were truncated. Return as details the length, in tokens, that 99 % of the rows would fit
        into, and the number of tokens that were cut off.

        The length of a truncated row before truncation is estimated from its characters and the tokens per character of
        complete rows. Without any complete row, there are no details."""
        if not self._rows:
            return {}
        is_cut, row_tokens, row_characters = (np.concatenate(arrays) for arrays in zip(*self._rows, strict=True))
        write_cut_rows(folder, is_cut)
        token_counts = row_tokens.astype(np.float64)
        if is_cut.all() or not row_characters[~is_cut].sum():
            return {}
        tokens_per_character = token_counts[~is_cut].sum() / row_characters[~is_cut].sum()
        token_counts[is_cut] = np.maximum(row_characters[is_cut] * tokens_per_character, token_counts[is_cut] + 1)
        whole_length = int(np.ceil(np.quantile(token_counts, _FITTING_SHARE, method="higher")))
        return {WHOLE_LENGTH_KEY: whole_length, CUT_TOKENS_KEY: round(float((token_counts - row_tokens).sum()))}


class _Preparation:
    def __init__(
        self,
        sources: Sequence[Source],
        reader: Reader,
        settings: cache.RowSettings,
        progress: Progress | None,
        processes: int,
    ) -> None:
        self._sources, self._reader, self._settings, self._progress = sources, reader, settings, progress
        data_bytes = sum(source.bytes_on_disk for source in sources)
        self._process_count = min(processes, -(-data_bytes // BLOCK_BYTES))
        self._processes: Processes | None = None

    def build(self, folder: Path) -> cache.PreparedContent:
        with TemporaryDirectory(prefix="spool-", dir=folder) as spool, ExitStack() as stack:
            if self._process_count > 1:
                self._processes = stack.enter_context(Processes(self._process_count, Path(spool)))
            return self._build(folder, Path(spool))

    def _survey(self, spool: Path) -> list[Survey]:
        """Read all rows (pass 1), in several processes if possible. Meanwhile, load what encoding needs."""
        if not self._processes:
            return self._survey_sources(spool / "in-order", None)
        is_table = not self._settings.reads_text  # texts are read without the reader
        pickled_reader = pickle.dumps(self._reader) if is_table else b""
        loading_thread = Thread(target=_load, args=(self._reader,), daemon=True)
        loading_thread.start()
        if is_table:
            loading_thread.join()
        try:
            if not is_table or self._reader.reads_in_processes:
                with suppress(ReadInOrder):
                    return self._survey_sources(spool / "apart", self._processes)
                if is_table:
                    self._reader = pickle.loads(pickled_reader)
                    _load(self._reader)
            return self._survey_sources(spool / "in-order", None)
        finally:
            loading_thread.join()

    def _survey_sources(self, spool: Path, processes: Processes | None) -> list[Survey]:
        spool.mkdir()
        self._surveyor = Surveyor(self._reader, self._settings, self._progress, processes)
        self._problems = self._surveyor.problems
        survey, sources = self._surveyor.survey, enumerate(self._sources)
        return [survey(source, spool / str(number), held_out=number > 0) for number, source in sources]

    def _build(self, folder: Path, spool: Path) -> cache.PreparedContent:
        surveys = self._survey(spool)
        hint_for_errors = _SKIP_HINT if all(all(survey.counts) for survey in surveys) else ""
        all_rows = not any(survey.hashes or survey.blank_count for survey in surveys)
        skips_rows = self._settings.skip_bad_rows and not all_rows
        self._problems.raise_any(skips_rows=skips_rows, fix=hint_for_errors, all_rows=all_rows)
        self._refuse_empty(surveys)
        selection = select_rows(surveys, self._settings, [part.description for part in self._sources[0].parts])
        if self._settings.dedup and not selection.training_copies.any():
            reason = f"duplicates: {selection.repeated_row_count:,}; also held out: {selection.leaked_row_count:,}"
            problem = f"no row is left to train on ({reason})"
            raise DataError(problem, where=self._sources[0].description, hint="set data.dedup to false, or add rows")
        rows_of_sources = source_rows(self._sources[0], surveys[0].counts, selection, self._settings.replay_sources)
        self._reader.finish_reading()
        if self._reader.trains_tokenizer:
            self._reader.learn(self._training_texts(surveys, selection), folder / cache.TOKENIZER_FILE)
        train_file, held_out_file = self._encode(folder, surveys, selection)
        self._refuse_too_little(train_file, held_out_file)
        if not held_out_file.writer.row_count:
            (folder / cache.EVAL_FILE).unlink()
        counts = self._counts(surveys, selection, train_file, held_out_file)
        notes = [note for survey in surveys for note in survey.notes]
        notes += [*self._reader.notes(), *self._problems.notes(), *selection.split.notes]
        needed_lengths = [*train_file.needed_lengths, *held_out_file.needed_lengths]
        longer_hint = _longer_length_hint(needed_lengths, counts.untrained_long_rows - counts.equal_answers)
        notes += [*(part.words() for part in rows_of_sources), *notes_of_counts(counts, self._settings, longer_hint)]
        if inexact_count := train_file.counts["inexact"] + held_out_file.counts["inexact"]:
            example = train_file.inexact_example or held_out_file.inexact_example
            notes.append(f"the tokens cannot represent the text of {quantity(inexact_count, 'row')} exactly: {example}")
        details = self._reader.details() | row_details(surveys[0], selection, self._surveyor.strata, self._problems)
        if unknown_texts := [*train_file.unknown_texts, *held_out_file.unknown_texts]:
            details[unknown_tokens.UNKNOWN_TEXT_KEY] = unknown_tokens.unknown_text(self._reader, unknown_texts)
        if unknown_note := unknown_tokens.unknown_words(counts, details):
            hint = unknown_tokens.unknown_text_hint(trained_here=self._settings.tokenizer == TRAINED_TOKENIZER_KEY)
            if unknown_tokens.is_refused(counts):
                raise DataError(unknown_note, where=self._sources[0].description, hint=hint)
            notes.append(f"{unknown_note}; {hint}")
        if self._settings.rows == "examples":
            details |= train_file.write_cut_rows(folder)
        elif self._settings.rows == "documents":
            write_cut_rows(folder, np.concatenate(train_file.writer.cut_rows))
        if rows_of_sources:
            details[SOURCES_KEY] = [asdict(rows) for rows in rows_of_sources]
        lengths: tuple[int, ...] = ()
        if self._settings.rows != "stream":  # the rows of a stream all have the same length
            token_counts = token_rows.Rows(folder / cache.TRAIN_FILE).lengths
            lengths = cache.quantiles(token_counts - int(self._settings.reads_text))
        return cache.PreparedContent(counts, tuple(notes), lengths, details)

    def _training_texts(self, surveys: Sequence[Survey], selection: Selection) -> Iterator[str]:
        total_characters, characters_done = int(np.dot(surveys[0].lengths, selection.training_copies)), 0
        meter = Meter(self._progress, "training the tokenizer", total_characters, "characters")
        for rows in chosen_rows(surveys[:1], selection, self._settings):
            for example in rows.examples(TRAIN)[TRAIN]:
                yield example.text
                characters_done += len(example.text)
                meter.report(characters_done)
        meter.finish(total_characters)

    def _encode(self, folder: Path, surveys: Sequence[Survey], selection: Selection) -> tuple[_SideFile, _SideFile]:
        surveys_and_copies = zip(surveys, selection.copies, strict=True)
        total_characters = sum(int(np.dot(survey.lengths, copies)) for survey, copies in surveys_and_copies)
        meter = Meter(self._progress, "tokenising", total_characters, "characters")
        with ExitStack() as stack:
            writers = [stack.enter_context(self._writer(folder / name)) for name in (cache.TRAIN_FILE, cache.EVAL_FILE)]
            train, held_out = map(_SideFile, writers)
            rows_to_encode = chosen_rows(surveys, selection, self._settings)
            batches = (_encode_rows(self._reader, rows) for rows in rows_to_encode)
            if self._processes:
                results = self._processes.map_tasks(_encode_rows, self._reader, rows_to_encode)
                batches = (result for _, result in results)
            for batch in chain.from_iterable(batches):
                (train if batch.side == TRAIN else held_out).add(batch)
                meter.report(train.counts["characters"] + held_out.counts["characters"])
        meter.finish(total_characters)
        return train, held_out

    def _writer(self, path: Path) -> token_rows.RowWriter:
        if self._settings.rows == "examples":
            return token_rows.RowWriter(path, self._reader.columns)
        split_writer = token_rows.StreamWriter if self._settings.rows == "stream" else token_rows.DocumentWriter
        return split_writer(path, max_length=self._settings.max_length)

    def _refuse_empty(self, surveys: Sequence[Survey]) -> None:
        """Raise DataError if a source has no rows."""
        for side_source, survey in zip(self._sources, surveys, strict=True):
            for source, count in zip(side_source.parts, survey.counts, strict=True):
                if not count:
                    self._problems.raise_any()
                    raise DataError("there are no rows to train on", where=source.description, hint="add some rows")

    def _refuse_too_little(self, train: _SideFile, held_out: _SideFile) -> None:
        """Raise DataError if a split has no rows to train on or to evaluate, or if the text does not fill one row."""
        max_length, data_error = self._settings.max_length, partial(DataError, where=self._sources[0].description)
        if self._settings.rows == "stream":
            token_count = train.counts["tokens"]
            if token_count > max_length:
                return
            message = f"the training text has {token_count:,} tokens, fewer than one row of {max_length + 1:,} tokens "
            # Shorter rows help only if there are enough of them to learn from.
            shorter_length = token_count // 10
            alternative = f", or lower data.max_length to about {shorter_length:,}" if shorter_length >= 16 else ""
            message += f"(data.max_length = {max_length:,}, plus one)"
            raise data_error(message, hint=f"add more text{alternative}")
        if self._settings.rows == "documents":
            if not train.counts["documents"]:
                raise data_error("no training document has two or more tokens", hint="add more text")
            if len(self._sources) > 1 and not held_out.counts["documents"]:
                where = self._sources[1].description
                raise data_error("no evaluation document has two or more tokens", where=where, hint="add more text")
        elif not train.counts["documents"]:
            untrained_rows = train.counts["untrained_rows"]
            problem = f"none of the {untrained_rows:,} training rows has a label within the first {max_length:,} tokens"
            hint = _longer_length_hint(train.needed_lengths, untrained_rows)
            hint = hint or "data.max_length must be longer than the prompts"
            if train.counts["equal_answers"] == untrained_rows > 0:
                problem = f"the answers of all pairs are the same if they are cut to {max_length:,} tokens"
                hint = "raise data.max_length"
            elif not train.counts["untrained_long_rows"]:
                problem = f"none of the {untrained_rows:,} training rows has a token to train on"
                hint = "task.loss_on, and fields like `weight` of a turn or a row, decide which tokens are trained on"
            if not untrained_rows:
                raise data_error("no row is left to train on", hint="")
            raise data_error(problem, hint=hint)

    def _counts(self, surveys: Sequence[Survey], selection: Selection, train: _SideFile, held_out: _SideFile) -> Counts:
        reads_text, total_counts = self._settings.reads_text, train.counts + held_out.counts
        rows_read = self._problems.count + sum(len(survey.hashes) + survey.blank_count for survey in surveys)
        # The first token of a stream is not a label.
        unlabelled_tokens = int(self._settings.rows == "stream")
        split_counts = {
            f"{name}_{count_name}": side.counts[count_name]
            for name, side in (("train", train), ("eval", held_out))
            for count_name in ("tokens", "documents", "characters", "labels_beyond")
        }
        total_names = "truncated_rows truncated_answers marked_rows unknown_tokens unknown_labels text_labels".split()
        table_names = ("untrained_rows", "untrained_long_rows", "equal_answers")
        return Counts(
            **split_counts,
            **{name: total_counts[name] for name in total_names},
            **{name: 0 if reads_text else total_counts[name] for name in table_names},
            train_rows=train.writer.row_count,
            eval_rows=held_out.writer.row_count,
            vocabulary=self._reader.vocabulary(),
            unknown_eval_tokens=max(held_out.counts["unknown_tokens"], held_out.counts["unknown_labels"]),
            train_labels=train.counts["labels"] - unlabelled_tokens,
            eval_labels=max(0, held_out.counts["labels"] - unlabelled_tokens),
            longest_row=max(train.writer.longest_row, held_out.writer.longest_row) - int(reads_text),
            row_documents=max(train.writer.row_documents, held_out.writer.row_documents),
            rows_read=0 if reads_text else rows_read,
            documents_read=rows_read if reads_text else 0,
            bad_rows=self._problems.count,
            repeated_rows=selection.repeated_row_count,
            leaked_rows=selection.leaked_row_count,
            longest_labels=max(train.longest_labels, held_out.longest_labels),
            cut_documents=train.writer.cut_documents + held_out.writer.cut_documents,
            pieces=train.writer.pieces + held_out.writer.pieces,
            short_documents=total_counts["untrained_rows"] if reads_text else 0,
            blank_documents=sum(survey.blank_count for survey in surveys),
        )
