"""Text that a tokenizer cannot write: it gives its unknown token for it, and a model learns that token instead."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.reader import Reader
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.data.preparing.token_rows import COLUMN, LABELS, Columns
from tui_trainer.terminal.safe_text import one_line

SHOWN = "unknown_text"
WARNED_SHARE, _REFUSED_SHARE = 0.001, 0.5
TEXTS_KEPT, _MOST_SHOWN = 50, 12


def count_unknown(reader: Reader, columns: Columns) -> tuple[Counter[str], list[int]]:
    """Count unknown tokens in rows of tokens, by the names of `Counts`: `unknown_tokens` of those that are read,
    `unknown_labels` of the `text_labels` that are to be written. Also return the numbers of the first rows with any.

    Labels that are special tokens stand for no text, and are not counted.
    """
    unknown = reader.unknown_token
    if unknown is None:
        return Counter(), []
    read, read_lengths = columns[COLUMN]
    rows = np.searchsorted(np.cumsum(read_lengths), np.flatnonzero(read == unknown.number), side="right")
    counts = Counter(unknown_tokens=len(rows))
    if reader.labels_are_tokens or LABELS not in columns:
        labels, lengths = columns[LABELS if reader.labels_are_tokens else COLUMN]
        of_labels = np.searchsorted(np.cumsum(lengths), np.flatnonzero(labels == unknown.number), side="right")
        special = int(np.isin(labels, [IGNORE, *unknown.special]).sum())
        counts += Counter(unknown_labels=len(of_labels), text_labels=len(labels) - special)
        rows = np.concatenate((of_labels, rows))
    return counts, list(dict.fromkeys(rows.tolist()))[:TEXTS_KEPT]


def unknown_text(reader: Reader, texts: Iterable[str]) -> list[str]:
    """Return the characters of some texts that the reader's tokenizer does not know; a word where all of its letters
    are unknown alone, as in a vocabulary of whole words.
    """
    found: dict[str, None] = {}
    for text in texts:
        words = _unknown_of(reader, list(dict.fromkeys(text.split())))
        for word in words or _unknown_of(reader, [sign for sign in "\n\r\t" if sign in text]):
            signs = _unknown_of(reader, list(dict.fromkeys(word)))
            is_whole = not signs or (len(signs) == len({*word}) > 1 and word.isalnum())
            found.update(dict.fromkeys([word] if is_whole else signs))
        if len(found) > _MOST_SHOWN:
            break
    return [one_line(text, 30) if text.strip() else f"U+{ord(text):04X}" for text in found]


def _unknown_of(reader: Reader, texts: Sequence[str]) -> list[str]:
    unknown = reader.unknown_token
    if unknown is None or not texts:
        return []
    return [text for text, ids in zip(texts, reader.tokens_of(texts), strict=True) if unknown.number in ids]


def unknown_words(counts: Counts, details: Mapping[str, Any]) -> str:
    """Return what is unknown in a sentence with the shares and the characters; empty where nothing is."""
    read = counts.train_tokens + counts.eval_tokens
    parts = []
    if counts.unknown_labels:
        parts.append(_of(counts.unknown_labels, counts.text_labels, "tokens to train on"))
    if counts.unknown_tokens:
        parts.append(_of(counts.unknown_tokens, read, "input tokens"))
    if not parts:
        return ""
    shown = list(map(str, details.get(SHOWN, ())))
    more = ", ..." if len(shown) > _MOST_SHOWN else ""
    text = f": {', '.join(shown[:_MOST_SHOWN])}{more}" if shown else ""
    return f"{' and '.join(parts)} are unknown to the tokenizer{text}"


def is_refused(counts: Counts) -> bool:
    return counts.unknown_labels >= _REFUSED_SHARE * counts.text_labels > 0


def way_out(*, trained_here: bool) -> str:
    if trained_here:
        return "these characters are in no training text: add text that has them, or remove them"
    return "add them with model.add_tokens, choose a model whose tokenizer has them, or remove them from the text"


def _of(some: int, every: int, noun: str) -> str:
    return f"{some:,} of {every:,} {noun} ({some / max(every, 1):.2%})"
