"""How much text there is, and how many rows and tokens it gives, before it is prepared.

By the sizes of files and a look at their beginnings: at most half a megabyte of each form, and one batch of rows of a
file that holds Arrow.
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
from tui_trainer.data.preparing.cache import LENGTHS_KEPT, SOURCES, Built, Counts, Cut, quantiles
from tui_trainer.data.preparing.row_selection import SourceRows, used_rows
from tui_trainer.data.preparing.tokenizing import SPECIAL_TOKENS
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.reading import Document, count_rows, documents_of, first_characters, rows_of
from tui_trainer.data.sources.source import Source
from tui_trainer.data.sources.source_file import PACKED_INSIDE, Form, SourceFile, open_bytes
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

LOOK_FILES = 8
LOOK_BYTES = 512 * 1024  # of the files of one form together
LOOK_ROWS = 1000
BEGINNING_CHARACTERS = 64_000  # of one text a quarter at the most
GZIP_RATIO = 3.0  # unpacked to packed, for text; between 2.5 and 4 in practice
# What is of no known ending and can be used is read as text.
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
"""The texts of (a beginning of) a file; what cannot be used is passed over, and a DataError ends it."""
Rate = Callable[[Sequence[str]], float]
"""Tokens a character of some texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """What a source holds, roughly. `lengths` are characters of some of its documents, `alphabet` a count, `texts` what
    was looked at, `columns` those that hold the text in the tables among them, `has_bad_rows` whether a row of what was
    looked at cannot be used, or seems so where a file was cut."""

    characters: int
    documents: int
    alphabet: int
    lengths: tuple[int, ...]
    texts: tuple[str, ...]
    reason: str
    columns: tuple[str, ...] = ()
    has_bad_rows: bool = False

    def limited(self, max_chars: int, max_rows: int = 0) -> "Size":
        """The same, when only the first `max_chars` characters and `max_rows` rows of them are used (0: all)."""
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
    """What stood at the beginnings: bytes looked at, and the documents found in them."""

    bytes: float = 0
    texts: list[str] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    def add(self, text: str) -> None:
        if text:  # an empty document is left out when the data is prepared
            self.texts.append(text)


def size_of(source: Source, reader: Reader | None = None) -> Size:
    """What `source` holds. Never raises for what stands in the files. With `reader` it is a table: its rows are the
    documents, with the text that the reader takes from each.
    """
    choices, problems = ColumnChoices("" if reader else source.text_column), ProblemList()

    def texts(content: BinaryIO, entry: SourceFile) -> Iterator[str]:
        if reader:
            return _texts_of_rows(rows_of(content, entry, choices, problems), reader, problems)
        return (document.text for document in documents_of(content, entry, choices, problems))

    if not source.sample:
        size = _files_size(source, texts)
        is_no_table = any(not one.holds_rows and one.label_of_folder is None for one in source.entries)
        has_bad_rows = problems.count > 0 or (reader is not None and is_no_table)
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


def beginning_of(size: Size) -> tuple[str, ...]:
    """Some of the texts that were looked at, evenly spaced: enough to count tokens in, and counted in an instant."""
    texts = [text[: BEGINNING_CHARACTERS // 4] for text in size.texts]
    step = max(1, sum(map(len, texts)) // BEGINNING_CHARACTERS)
    return tuple(_first_texts(texts[::step], BEGINNING_CHARACTERS))


def _files_size(source: Source, texts_of: Texts) -> Size:
    """The share of text in the beginnings, applied to all bytes, for each form of file."""
    looks: dict[Form, _Beginning] = {}
    for group in _some_of_each(source.entries):
        look = looks.setdefault(_form(group[0]), _Beginning())
        for entry in group:
            _look_at(entry.whole, texts_of, look, LOOK_BYTES // len(group))
    bytes_of: Counter[Form] = Counter()
    for entry in source.entries:
        bytes_of[_form(entry)] += round(_unpacked_bytes(entry))
    tables = {form: look for form, look in looks.items() if form != "text"}
    texts = [entry for entry in source.entries if not entry.holds_rows]
    of_texts = looks.get("text", _Beginning())
    characters_a_byte = sum(of_texts.lengths) / of_texts.bytes if of_texts.bytes else 1.0
    reason = "the file sizes and the beginnings of some files"
    if any(entry.compressed for entry in source.entries):
        reason += f"; a .gz file is assumed to unpack to {GZIP_RATIO:g} times its size"
    return Size(
        characters=sum(_scaled(sum(look.lengths), look, bytes_of[form]) for form, look in looks.items()),
        documents=len(texts) + sum(_scaled(len(look.lengths), look, bytes_of[form]) for form, look in tables.items()),
        alphabet=len(set().union(*(text for look in looks.values() for text in look.texts))),
        lengths=(
            *(round(_unpacked_bytes(entry) * characters_a_byte) for entry in texts),
            *(length for look in tables.values() for length in look.lengths),
        ),
        texts=tuple(text for look in looks.values() for text in look.texts),
        reason=reason,
    )


def _form(entry: SourceFile) -> Form:
    return entry.form if entry.holds_rows else "text"


def _some_of_each(entries: Sequence[SourceFile]) -> list[list[SourceFile]]:
    """Some files of every form, spread over all of them."""
    by_form: dict[Form, list[SourceFile]] = {}
    for entry in entries:
        by_form.setdefault(_form(entry), []).append(entry)
    return [group[:: max(1, len(group) // LOOK_FILES)][:LOOK_FILES] for group in by_form.values()]


def _scaled(count: int, look: _Beginning, total_bytes: float) -> int:
    """`count` of the looked-at part, for all bytes. With nothing looked at, one character a byte, one document."""
    return round(count * total_bytes / look.bytes) if look.bytes else round(total_bytes and 1)


def _unpacked_bytes(entry: SourceFile) -> float:
    return entry.size_bytes * (GZIP_RATIO if entry.compressed else 1.0)


def _look_at(entry: SourceFile, texts_of: Texts, look: _Beginning, most_bytes: int) -> None:
    """What is wrong in a file is said when the data is prepared, not here."""
    try:
        with open_bytes(entry) as (_, content):
            if entry.form in PACKED_INSIDE:  # its first rows, and their share of its rows
                characters, share = 0, 1.0
                for number, text in enumerate(texts_of(content, entry), start=1):
                    look.add(text)
                    characters += len(text)
                    if number == LOOK_ROWS or characters > most_bytes:
                        share = number / max(count_rows(entry), number)
                        break
                look.bytes += entry.size_bytes * share
                return
            head = content.read(most_bytes)
    except DataError:
        return
    if entry.holds_rows:
        _look_at_rows(head, entry, texts_of, look, whole=len(head) < most_bytes)
    else:
        look.bytes += len(head)
        look.add(head.decode("utf-8", errors="ignore"))


def _look_at_rows(head: bytes, entry: SourceFile, texts_of: Texts, look: _Beginning, *, whole: bool) -> None:
    """Whole rows only: of a longer file, the last line is left out, or half a row where rows are not lines."""
    if not whole and entry.form != "json":
        head = head[: head.rfind(b"\n") + 1] or head
    before = len(look.texts)
    try:
        for text in texts_of(io.BytesIO(head), entry):
            look.add(text)
    except DataError:
        pass
    found = len(look.texts) - before
    torn = not whole and entry.form == "json"
    look.bytes += len(head) * (found / (found + 0.5) if torn else 1)


def _first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Texts until so many characters are reached; the last one is cut."""
    return (document.text for document in first_characters((Document(text, "") for text in texts), characters))


def source_words(source: Source, *, reads_text: bool) -> str:
    """`rows.jsonl (1.2 MiB), JSON Lines, the text in the column 'body'`.

    `reads_text`: the task takes one column of text. The column is that of the beginnings of some files. Never raises
    for what stands in the files.
    """
    parts = [source.description]
    forms = Counter(FORM_NAMES.get(entry.form, entry.form) for entry in source.entries)
    if len(forms) == 1:
        parts += forms
    elif forms:
        parts.append(" and ".join(f"{count:,} {name}" for name, count in forms.most_common()))
    if reads_text and source.entries and (columns := size_of(source).columns):
        shown = " and ".join(f"'{one_line(name, 40)}'" for name in columns)
        parts.append(f"the text in the column{'s' if len(columns) > 1 else ''} {shown}")
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate(Built):
    """What `prepare` would count, as far as can be said before; a count that nobody can say is 0.

    `lengths` are those of the rows that were looked at. `has_bad_rows`: rows seem not to be usable.
    """

    reason: str
    has_bad_rows: bool


def estimate(sources: Sequence[Source], reader: Reader, cut: Cut, rate: Rate, *, frame_tokens: int = 0) -> Estimate:
    """What `prepare` would give, roughly. `frame_tokens`: what each row or document has besides its text.

    Raises DataError where the columns of a table cannot be told; never for what stands in single rows.
    """
    table_reader = None if cut.reads_text else reader
    sizes = [size_of(part, table_reader).limited(cut.max_chars, cut.max_rows) for part in sources[0].parts]
    others = [size_of(part, table_reader) for part in sources[1].parts] if len(sources) > 1 else []
    rates = [rate(beginning_of(size) if cut.reads_text else size.texts) for size in sizes]
    # A text of a table's other side is as long in tokens as those of the first source.
    eval_rates = [rate(beginning_of(size)) if cut.reads_text else rates[0] for size in others]
    side = partial(_side, cut, frame_tokens)
    share, weights = 0.0 if others else cut.eval_fraction, cut.weights or [1.0] * len(sizes)
    pairs = list(zip(sizes, rates, strict=True))
    train = [side(*pair, 1 - share).times(weight) for pair, weight in zip(pairs, weights, strict=True)]
    eval_pairs, eval_share = (zip(others, eval_rates, strict=True), 1.0) if others else (pairs, share)
    measured = [side(*pair, eval_share) for pair in eval_pairs]
    parts = zip(sources[0].parts, weights, sizes, train, strict=True)
    shares = [
        SourceRows(description=part.description, weight=weight, rows=size.documents, rows_per_epoch=one.documents)
        for part, weight, size, one in parts
    ]
    reason = "; ".join(dict.fromkeys(size.reason for size in sizes))
    if cut.rows != "stream":
        low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
        reason += f", at {low if low == high else f'{low} to {high}'} tokens/character"
    # Different ones in the texts that were looked at.
    characters = len(set().union(*(text for size in sizes for text in size.texts)))
    characters = max(characters, *(size.alphabet for size in sizes))
    looked = train if cut.reads_text else [*train, *measured]
    together, eval_together = _together(train, cut), _together(measured, cut)
    details: dict[str, Any] = {"classes": getattr(reader, "classes", 0)}
    if sources[0].several or cut.weights:
        details[SOURCES] = [asdict(share) for share in shares]
    return Estimate(
        counts=Counts(
            train_rows=together.rows,
            train_tokens=together.tokens,
            train_documents=together.documents,
            train_characters=0,
            eval_rows=eval_together.rows,
            eval_tokens=eval_together.tokens,
            eval_documents=eval_together.documents,
            eval_characters=0,
            vocabulary=reader.vocabulary() or characters + len(SPECIAL_TOKENS),
            unknown_eval_tokens=0,
            train_labels=together.tokens - together.documents,
            eval_labels=eval_together.tokens - eval_together.documents,
            longest_row=max((length for side in looked for length in side.lengths), default=0),
        ),
        notes=(),
        lengths=together.lengths,
        details=details,
        reason=reason,
        has_bad_rows=any(size.has_bad_rows for size in (*sizes, *others)),
    )


@dataclass(frozen=True, slots=True)
class _SideSize:
    """Of one source; `lengths` in labels, or tokens, of the rows that were looked at."""

    documents: int
    tokens: int
    rows: int
    lengths: tuple[int, ...]

    def times(self, weight: float) -> "_SideSize":
        """What an epoch uses of it."""
        used = used_rows(self.documents, weight)
        more = used / max(self.documents, 1)
        return _SideSize(used, round(self.tokens * more), round(self.rows * more), self.lengths)


def _side(cut: Cut, frame_tokens: int, size: Size, rate: float, share: float) -> _SideSize:
    """A share of one source. Of documents the lengths are labels, of those that are cut the labels of each row."""
    documents = round(size.documents * share)
    if not cut.reads_text:
        rows = tuple(min(cut.max_length, round(length * rate) + frame_tokens) for length in size.lengths)
        return _SideSize(documents, round(documents * sum(rows) / max(1, len(rows))), documents, rows)
    looked = [max(1, round(length * rate) + frame_tokens - 1) for length in size.lengths]
    width = cut.max_length
    pieces = tuple(min(width, length - start) for length in looked for start in range(0, length, width))
    tokens = round((size.characters * rate + size.documents * frame_tokens) * share)
    return _SideSize(documents, tokens, round(documents * len(pieces) / max(1, len(looked))), pieces)


def _together(sides: Sequence[_SideSize], cut: Cut) -> _SideSize:
    tokens = sum(one.tokens for one in sides)
    of_stream = max(0, math.ceil((tokens - 1) / cut.max_length))
    rows = of_stream if cut.rows == "stream" else sum(one.rows for one in sides)
    return _SideSize(sum(one.documents for one in sides), tokens, rows, _lengths(sides))


def _lengths(sides: Sequence[_SideSize]) -> tuple[int, ...]:
    """Some of the lengths, sorted, of each source as many as its rows are in an epoch."""
    if len(sides) == 1:
        return quantiles(sides[0].lengths)
    total = sum(side.rows for side in sides if side.lengths)
    found: list[int] = []
    for side in sides:
        ordered = sorted(side.lengths)
        kept = round(min(LENGTHS_KEPT, total) * side.rows / max(total, 1)) if ordered else 0
        found += [ordered[(2 * place + 1) * len(ordered) // (2 * kept)] for place in range(kept)]
    return tuple(sorted(found))
