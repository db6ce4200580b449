"""Estimates of the amount of text, rows and tokens, before the data is prepared.

They use the sizes of all files and the beginnings of some files: at most half a megabyte of each form, or one batch of
rows of an Arrow or Parquet file.
"""

import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

from tui_trainer.data.columns.reader import Reader, read_rows
from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.preparing import cache
from tui_trainer.data.preparing.row_selection import SourceRows, source_weights, used_rows
from tui_trainer.data.preparing.tokenizing import SPECIAL_TOKENS
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.reading import Document, count_rows, documents_of, first_characters, rows_of
from tui_trainer.data.sources.source import Source
from tui_trainer.data.sources.source_file import SELF_COMPRESSED_FORMS, Form, SourceFile, open_bytes
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

LOOK_FILES = 8
LOOK_BYTES = 512 * 1024  # for all files of one form
LOOK_ROWS = 1000
BEGINNING_CHARACTERS = 64_000  # at most a quarter of them from one text
GZIP_RATIO = 3.0  # of decompressed to compressed text; between 2.5 and 4 in practice
# Usable files with an unknown extension are read as text.
FORM_NAMES: dict[Form, str] = {
    "text": "plain text",
    "unknown": "plain text",
    "jsonl": "JSON Lines",
    "json": "JSON",
    "csv": "CSV",
    "tsv": "TSV",
    "parquet": "Parquet",
    "arrow": "Arrow",
}

Texts = Callable[[BinaryIO, SourceFile], Iterator[str]]
"""Function that yields the texts of a file or of its first bytes. It skips bad rows. A DataError ends the texts."""
Rate = Callable[[Sequence[str]], float]
"""Function that returns the mean number of tokens per character in some texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Estimated content of a source. `lengths` are the characters of some documents, and `texts` are the texts that
    were read; `alphabet` is the number of different characters in them. `columns` are the text columns of tables.
    `has_bad_rows`: a row is unusable, or seems so because only the beginning of its file was read."""

    characters: int
    documents: int
    alphabet: int
    lengths: tuple[int, ...]
    texts: tuple[str, ...]
    reason: str
    columns: tuple[str, ...] = ()
    has_bad_rows: bool = False

    def limited(self, max_chars: int, max_rows: int = 0) -> "Size":
        """Return the size of the first `max_chars` characters and `max_rows` rows (0: all)."""
        size = self
        if max_chars and size.characters > max_chars:
            size = replace(
                size,
                characters=max_chars,
                documents=math.ceil(size.documents * max_chars / size.characters),
                lengths=tuple(min(length, max_chars) for length in size.lengths),
                reason=f"{size.reason}, limited to data.max_chars = {max_chars:,}",
            )
        if not max_rows or size.documents <= max_rows:
            return size
        return replace(size, documents=max_rows, characters=round(size.characters * max_rows / size.documents))


@dataclass(slots=True)
class _Beginning:
    """The beginnings of files of one form: the number of bytes that were read, and the texts of the documents."""

    bytes: float = 0
    texts: list[str] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    def add(self, text: str) -> None:
        if text:  # the preparation skips empty documents
            self.texts.append(text)


def size_of(source: Source, reader: Reader | None = None) -> Size:
    """Estimate the content of a source. Never raises for the content of files.

    With a `reader`, the source is a table. Each row is then a document, with the text that the reader takes from it."""
    choices, problems = ColumnChoices("" if reader else source.text_column), ProblemList()

    def texts_of_file(content: BinaryIO, entry: SourceFile) -> Iterator[str]:
        if reader:
            return _texts_of_rows(rows_of(content, entry, choices, problems), reader, problems)
        return (document.text for document in documents_of(content, entry, choices, problems))

    if not source.sample:
        size = _files_size(source, texts_of_file)
        has_text_file = any(not entry.holds_rows and entry.label_of_folder is None for entry in source.entries)
        has_bad_rows = problems.count > 0 or (reader is not None and has_text_file)
        return replace(size, columns=choices.chosen, has_bad_rows=has_bad_rows)
    if reader:
        return _sample_size(list(_texts_of_rows(source.rows(problems, choices=choices), reader, problems)))
    return _sample_size([document.text for document in source.documents()])


def _texts_of_rows(rows: Iterator[Row], reader: Reader, problems: ProblemList) -> Iterator[str]:
    return (example.text for _, example in read_rows(reader, rows, problems))


def _sample_size(texts: list[str]) -> Size:
    lengths = tuple(map(len, texts))
    return Size(
        characters=sum(lengths),
        documents=len(texts),
        alphabet=len(set("".join(texts))),
        lengths=lengths,
        texts=tuple(_first_texts(texts, LOOK_BYTES)),
        reason="the character count of the sample",
    )


def text_excerpts(size: Size) -> tuple[str, ...]:
    """Return excerpts of some of the texts that an estimate has read, few enough to count their tokens at once."""
    texts = [text[: BEGINNING_CHARACTERS // 4] for text in size.texts]
    step = max(1, sum(map(len, texts)) // BEGINNING_CHARACTERS)
    return tuple(_first_texts(texts[::step], BEGINNING_CHARACTERS))


def _files_size(source: Source, texts_of: Texts) -> Size:
    """Estimate the content of files. For each form, scale the text in the beginnings of some to the bytes of all."""
    beginnings: dict[Form, _Beginning] = {}
    for entries in _sample_files(source.entries):
        part = beginnings.setdefault(_form(entries[0]), _Beginning())
        for entry in entries:
            _read_beginning(entry.whole, texts_of, part, LOOK_BYTES // len(entries))
    form_bytes: Counter[Form] = Counter()
    for entry in source.entries:
        form_bytes[_form(entry)] += round(_unpacked_bytes(entry))
    tables = {form: part for form, part in beginnings.items() if form != "text"}
    texts = [entry for entry in source.entries if not entry.holds_rows]
    text_beginning = beginnings.get("text", _Beginning())
    characters_per_byte = sum(text_beginning.lengths) / text_beginning.bytes if text_beginning.bytes else 1.0
    reason = "the file sizes and the beginnings of some files"
    if any(entry.compressed for entry in source.entries):
        reason += f"; a .gz file is assumed to unpack to {GZIP_RATIO:g} times its size"
    return Size(
        characters=sum(_scale(sum(part.lengths), part, form_bytes[form]) for form, part in beginnings.items()),
        documents=len(texts) + sum(_scale(len(part.lengths), part, form_bytes[form]) for form, part in tables.items()),
        alphabet=len(set().union(*(text for part in beginnings.values() for text in part.texts))),
        lengths=(
            *(round(_unpacked_bytes(entry) * characters_per_byte) for entry in texts),
            *(length for part in tables.values() for length in part.lengths),
        ),
        texts=tuple(text for part in beginnings.values() for text in part.texts),
        reason=reason,
    )


def _form(entry: SourceFile) -> Form:
    return entry.form if entry.holds_rows else "text"


def _sample_files(entries: Sequence[SourceFile]) -> list[list[SourceFile]]:
    """Return some files of each form, evenly spaced."""
    by_form: dict[Form, list[SourceFile]] = {}
    for entry in entries:
        by_form.setdefault(_form(entry), []).append(entry)
    return [group[:: max(1, len(group) // LOOK_FILES)][:LOOK_FILES] for group in by_form.values()]


def _scale(count: int, beginning: _Beginning, total_bytes: float) -> int:
    """Scale a count in the beginnings of files to `total_bytes`. Without bytes read, return 1, or 0 for empty files."""
    return round(count * total_bytes / beginning.bytes) if beginning.bytes else round(total_bytes and 1)


def _unpacked_bytes(entry: SourceFile) -> float:
    return entry.size_bytes * (GZIP_RATIO if entry.compressed else 1.0)


def _read_beginning(entry: SourceFile, texts_of: Texts, beginning: _Beginning, most_bytes: int) -> None:
    """Add the texts in the first `most_bytes` of a file to `beginning`. Ignore errors: the preparation reports them."""
    try:
        with open_bytes(entry) as (_, content):
            if entry.form in SELF_COMPRESSED_FORMS:  # read its first rows, and estimate their share of all rows
                characters_read, share_read = 0, 1.0
                for text_number, text in enumerate(texts_of(content, entry), start=1):
                    beginning.add(text)
                    characters_read += len(text)
                    if text_number == LOOK_ROWS or characters_read > most_bytes:
                        share_read = text_number / max(count_rows(entry), text_number)
                        break
                beginning.bytes += entry.size_bytes * share_read
                return
            first_bytes = content.read(most_bytes)
    except DataError:
        return
    if entry.holds_rows:
        _read_first_rows(first_bytes, entry, texts_of, beginning, is_whole=len(first_bytes) < most_bytes)
    else:
        beginning.bytes += len(first_bytes)
        beginning.add(first_bytes.decode("utf-8", errors="ignore"))


def _read_first_rows(head: bytes, entry: SourceFile, texts_of: Texts, beginning: _Beginning, *, is_whole: bool) -> None:
    """Add the rows in `head`, the first bytes of a file, to `beginning`. Unless `head` is the `is_whole` file, the last
    line is dropped; in JSON, half a row is assumed to be missing."""
    if not is_whole and entry.form != "json":
        head = head[: head.rfind(b"\n") + 1] or head
    text_count_before = len(beginning.texts)
    try:
        for text in texts_of(io.BytesIO(head), entry):
            beginning.add(text)
    except DataError:
        pass
    complete_rows = len(beginning.texts) - text_count_before
    is_cut = not is_whole and entry.form == "json"
    beginning.bytes += len(head) * (complete_rows / (complete_rows + 0.5) if is_cut else 1)


def _first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield the first texts, with this many characters in total. The last text is truncated."""
    return (document.text for document in first_characters((Document(text, "") for text in texts), characters))


def source_words(source: Source, *, reads_text: bool) -> str:
    """Return a description such as `rows.jsonl (1.2 MiB), JSON Lines, the text in the column 'body'`.

    `reads_text`: the task reads one column of text, which is found in the beginnings of some files. Never raises."""
    clauses = [source.description]
    forms = Counter(FORM_NAMES.get(entry.form, entry.form) for entry in source.entries)
    if len(forms) == 1:
        clauses += forms
    elif forms:
        clauses.append(" and ".join(f"{count:,} {name}" for name, count in forms.most_common()))
    if reads_text and source.entries and (columns := size_of(source).columns):
        shown_columns = " and ".join(f"'{one_line(name, 40)}'" for name in columns)
        clauses.append(f"the text in the column{'s' if len(columns) > 1 else ''} {shown_columns}")
    return ", ".join(clauses)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate(cache.PreparedContent):
    """Estimated result of `prepare`. A count that cannot be estimated is 0. `lengths` are those of the rows at the
    beginnings of files. `has_bad_rows`: some rows seem unusable."""

    reason: str
    has_bad_rows: bool


def estimate(
    sources: Sequence[Source], reader: Reader, settings: cache.RowSettings, rate: Rate, *, frame_tokens: int = 0
) -> Estimate:
    """Estimate the result of `prepare`. `frame_tokens`: special tokens around the text of each row or document.

    Raises DataError if the columns of a table are unclear, but not for the content of single rows."""
    table_reader = None if settings.reads_text else reader
    sizes = [size_of(part, table_reader).limited(settings.max_chars, settings.max_rows) for part in sources[0].parts]
    held_sizes = [size_of(part, table_reader) for part in sources[1].parts] if len(sources) > 1 else []
    rates = [rate(text_excerpts(size) if settings.reads_text else size.texts) for size in sizes]
    # The texts of a table's evaluation source have as many tokens per character as those of the first source.
    eval_rates = [rate(text_excerpts(size)) if settings.reads_text else rates[0] for size in held_sizes]
    estimate_side = partial(_estimate_side, settings, frame_tokens)
    eval_fraction = 0.0 if held_sizes else settings.eval_fraction
    path_source_count = len(sizes) - settings.replay_sources
    pairs = list(zip(sizes, rates, strict=True))
    shares = [1 - eval_fraction * (number < path_source_count) for number in range(len(sizes))]
    side_sizes = [estimate_side(*pair, share) for pair, share in zip(pairs, shares, strict=True)]
    amounts = [size.tokens if settings.reads_text else size.documents for size in side_sizes]
    weights = source_weights(settings, amounts, sources[0].parts[-1].description) or (1.0,) * len(sizes)
    train_sizes = [size.scaled_by(weight) for size, weight in zip(side_sizes, weights, strict=True)]
    held_pairs = list(zip(held_sizes, eval_rates, strict=True))
    eval_pairs, eval_share = (held_pairs, 1.0) if held_pairs else (pairs[:path_source_count], eval_fraction)
    eval_side_sizes = [estimate_side(*pair, eval_share) for pair in eval_pairs]
    facts_of_parts = zip(sources[0].parts, weights, sizes, train_sizes, strict=True)
    rows_of_sources = [
        SourceRows(
            description=part.description, weight=weight, rows=size.documents, rows_per_epoch=side_size.documents,
            is_replay=number >= path_source_count,
        )
        for number, (part, weight, size, side_size) in enumerate(facts_of_parts)
    ]  # fmt: skip
    reason = "; ".join(dict.fromkeys(size.reason for size in sizes))
    if settings.rows != "stream":
        low_rate, high_rate = f"{min(rates):.3g}", f"{max(rates):.3g}"
        reason += f", at {low_rate if low_rate == high_rate else f'{low_rate} to {high_rate}'} tokens/character"
    # The number of different characters.
    character_count = len(set().union(*(text for size in sizes for text in size.texts)))
    character_count = max(character_count, *(size.alphabet for size in sizes))
    measured_sides = train_sizes if settings.reads_text else [*train_sizes, *eval_side_sizes]
    train_total, eval_total = _sum_of(train_sizes, settings), _sum_of(eval_side_sizes, settings)
    details: dict[str, Any] = {"classes": getattr(reader, "classes", 0)}
    if sources[0].joined_sources or settings.weights:
        details[cache.SOURCES_KEY] = [asdict(rows) for rows in rows_of_sources]
    return Estimate(
        counts=cache.Counts(
            train_rows=train_total.rows,
            train_tokens=train_total.tokens,
            train_documents=train_total.documents,
            train_characters=0,
            eval_rows=eval_total.rows,
            eval_tokens=eval_total.tokens,
            eval_documents=eval_total.documents,
            eval_characters=0,
            vocabulary=reader.vocabulary() or character_count + len(SPECIAL_TOKENS),
            unknown_eval_tokens=0,
            train_labels=train_total.tokens - train_total.documents,
            eval_labels=eval_total.tokens - eval_total.documents,
            longest_row=max((length for size in measured_sides for length in size.lengths), default=0),
        ),
        notes=(),
        lengths=train_total.lengths,
        details=details,
        reason=reason,
        has_bad_rows=any(size.has_bad_rows for size in (*sizes, *held_sizes)),
    )


@dataclass(frozen=True, slots=True)
class _SideSize:
    """Estimated size of one split of a source. `lengths` of its first rows are labels or, for a table, tokens."""

    documents: int
    tokens: int
    rows: int
    lengths: tuple[int, ...]

    def scaled_by(self, repetitions: float) -> "_SideSize":
        """Return the size of what an epoch uses of this split, if its source has this weight."""
        used_documents = used_rows(self.documents, repetitions)
        factor = used_documents / max(self.documents, 1)
        return _SideSize(used_documents, round(self.tokens * factor), round(self.rows * factor), self.lengths)


def _estimate_side(settings: cache.RowSettings, frame_tokens: int, size: Size, rate: float, share: float) -> _SideSize:
    """Estimate one split, which has this `share` of a source. `rate`: tokens per character."""
    documents = round(size.documents * share)
    if not settings.reads_text:
        lengths = tuple(min(settings.max_length, round(length * rate) + frame_tokens) for length in size.lengths)
        return _SideSize(documents, round(documents * sum(lengths) / max(1, len(lengths))), documents, lengths)
    document_labels = [max(1, round(length * rate) + frame_tokens - 1) for length in size.lengths]
    width = settings.max_length
    pieces = tuple(min(width, length - start) for length in document_labels for start in range(0, length, width))
    tokens = round((size.characters * rate + size.documents * frame_tokens) * share)
    return _SideSize(documents, tokens, round(documents * len(pieces) / max(1, len(document_labels))), pieces)


def _sum_of(sides: Sequence[_SideSize], settings: cache.RowSettings) -> _SideSize:
    token_count = sum(side.tokens for side in sides)
    stream_rows = max(0, math.ceil((token_count - 1) / settings.max_length))
    row_count = stream_rows if settings.rows == "stream" else sum(side.rows for side in sides)
    return _SideSize(sum(side.documents for side in sides), token_count, row_count, _merged_lengths(sides))


def _merged_lengths(sides: Sequence[_SideSize]) -> tuple[int, ...]:
    """Return some row lengths of all splits, sorted. Each contributes in proportion to its rows in an epoch."""
    if len(sides) == 1:
        return cache.quantiles(sides[0].lengths)
    total_rows = sum(side.rows for side in sides if side.lengths)
    lengths: list[int] = []
    for side in sides:
        ordered = sorted(side.lengths)
        count = round(min(cache.MOST_STORED_LENGTHS, total_rows) * side.rows / max(total_rows, 1)) if ordered else 0
        lengths += [ordered[(2 * index + 1) * len(ordered) // (2 * count)] for index in range(count)]
    return tuple(sorted(lengths))
