"""How much data there is, from the sizes of files and a look at their beginnings. Reads at most half a megabyte."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from tui_trainer.data.characters import SPECIAL_TOKENS
from tui_trainer.data.files import SourceFile, open_bytes
from tui_trainer.data.sources import Source
from tui_trainer.errors import DataError

LOOK_FILES = 8
LOOK_BYTES = 64 * 1024
GZIP_RATIO = 3.0  # unpacked to packed, for text; between 2.5 and 4 in practice


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEstimate:
    """Tokens and rows of each side, as far as can be said before the data is prepared. `exact` is always False."""

    tokens: int
    eval_tokens: int
    rows: int
    eval_rows: int
    vocabulary: int
    reason: str
    exact: bool = False


@dataclass(slots=True)
class _Look:
    """What stood at the beginnings: bytes looked at, characters and documents found in them."""

    bytes: int = 0
    characters: int = 0
    documents: int = 0
    alphabet: frozenset[str] = frozenset()

    def add(self, text: str) -> None:
        if not text:
            return  # an empty document is left out when the data is prepared
        self.characters += len(text)
        self.documents += 1
        self.alphabet |= set(text)


def estimate_characters(source: Source, *, max_length: int, eval_fraction: float, max_chars: int = 0) -> DataEstimate:
    """What `prepare_characters` would give, roughly. Never raises for what stands in the files."""
    characters, documents, alphabet, reason = _sample_size(source) if source.sample else _files_size(source)
    if max_chars and characters > max_chars:
        documents = math.ceil(documents * max_chars / characters)
        characters = max_chars
        reason += f", cut at data.max_chars = {max_chars:,}"
    total = characters + documents
    eval_tokens = round(total * eval_fraction)
    tokens = total - eval_tokens
    return DataEstimate(
        tokens=tokens,
        eval_tokens=eval_tokens,
        rows=_rows(tokens, max_length),
        eval_rows=_rows(eval_tokens, max_length),
        vocabulary=alphabet + len(SPECIAL_TOKENS),
        reason=reason,
    )


def _rows(tokens: int, max_length: int) -> int:
    return max(0, math.ceil((tokens - 1) / max_length))


def _sample_size(source: Source) -> tuple[int, int, int, str]:
    texts = [document.text for document in source.documents()]
    return sum(map(len, texts)), len(texts), len(set("".join(texts))), "the characters of the sample, counted"


def _files_size(source: Source) -> tuple[int, int, int, str]:
    """Characters, documents, alphabet, reason: the share of text in the beginnings, applied to all bytes."""
    step = max(1, len(source.entries) // LOOK_FILES)
    text, rows = _Look(), _Look()
    for entry in source.entries[::step][:LOOK_FILES]:
        _look_at(entry, source.text_column, rows if entry.holds_rows else text)
    text_bytes = sum(_unpacked_bytes(entry) for entry in source.entries if not entry.holds_rows)
    row_bytes = sum(_unpacked_bytes(entry) for entry in source.entries if entry.holds_rows)
    characters = _scaled(text.characters, text, text_bytes) + _scaled(rows.characters, rows, row_bytes)
    documents = sum(not entry.holds_rows for entry in source.entries) + _scaled(rows.documents, rows, row_bytes)
    reason = "the size of the files, and the beginnings of some"
    if any(entry.compressed for entry in source.entries):
        reason += f"; a .gz is taken to unpack to {GZIP_RATIO:g} times its size"
    return characters, documents, len(text.alphabet | rows.alphabet), reason


def _scaled(count: int, look: _Look, total_bytes: float) -> int:
    """`count` of the looked-at part, for all bytes. With nothing looked at, one character a byte, one document."""
    return round(count * total_bytes / look.bytes) if look.bytes else round(total_bytes and 1)


def _unpacked_bytes(entry: SourceFile) -> float:
    return entry.size_bytes * (GZIP_RATIO if entry.compressed else 1.0)


def _look_at(entry: SourceFile, text_column: str, look: _Look) -> None:
    try:
        with open_bytes(entry) as (_, content):
            head = content.read(LOOK_BYTES)
    except DataError:
        return  # preparing the data says what is wrong
    if not entry.holds_rows:
        look.bytes += len(head)
        look.add(head.decode("utf-8", errors="ignore"))
        return
    lines = head.splitlines(keepends=True)
    for line in lines if len(head) < LOOK_BYTES else lines[:-1] or lines:
        look.bytes += len(line)
        look.add(_text_of(line, text_column))


def _text_of(line: bytes, text_column: str) -> str:
    try:
        value = json.loads(line)[text_column]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""
