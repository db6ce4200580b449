"""Text outside a tokenizer's vocabulary: it becomes the unknown token, which the model would learn instead."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.reader import Reader
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.data.preparing.token_rows import INPUT_IDS, LABELS, Columns
from tui_trainer.terminal.safe_text import one_line

UNKNOWN_TEXT_KEY = "unknown_text"
WARNED_SHARE, _REFUSED_SHARE = 0.001, 0.5
TEXTS_KEPT, _MOST_SHOWN = 50, 12


def count_unknown(reader: Reader, columns: Columns) -> tuple[Counter[str], list[int]]:
    """Count the unknown tokens in rows. Return the counts by their names in `Counts`, and some rows that have any.

    `unknown_tokens` counts the inputs, and `unknown_labels` the `text_labels` that the model should write. Labels that
    are special tokens stand for no text and are not counted."""
    unknown = reader.unknown_token
    if unknown is None:
        return Counter(), []
    inputs, input_lengths = columns[INPUT_IDS]
    unknown_rows = np.searchsorted(np.cumsum(input_lengths), np.flatnonzero(inputs == unknown.token_id), side="right")
    counts = Counter(unknown_tokens=len(unknown_rows))
    if reader.labels_are_tokens or LABELS not in columns:
        label_ids, lengths = columns[LABELS if reader.labels_are_tokens else INPUT_IDS]
        label_rows = np.searchsorted(np.cumsum(lengths), np.flatnonzero(label_ids == unknown.token_id), side="right")
        special_count = int(np.isin(label_ids, [IGNORE, *unknown.special]).sum())
        counts += Counter(unknown_labels=len(label_rows), text_labels=len(label_ids) - special_count)
        unknown_rows = np.concatenate((label_rows, unknown_rows))
    return counts, list(dict.fromkeys(unknown_rows.tolist()))[:TEXTS_KEPT]


def unknown_text(reader: Reader, texts: Iterable[str]) -> list[str]:
    """Return what is outside the vocabulary in some texts: characters, or a word if all of its letters are unknown."""
    unknown_parts: dict[str, None] = {}
    for text in texts:
        words = _with_unknown(reader, list(dict.fromkeys(text.split())))
        for word in words or _with_unknown(reader, [character for character in "\n\r\t" if character in text]):
            characters = _with_unknown(reader, list(dict.fromkeys(word)))
            is_whole = not characters or (len(characters) == len({*word}) > 1 and word.isalnum())
            unknown_parts.update(dict.fromkeys([word] if is_whole else characters))
        if len(unknown_parts) > _MOST_SHOWN:
            break
    return [one_line(text, 30) if text.strip() else f"U+{ord(text):04X}" for text in unknown_parts]


def _with_unknown(reader: Reader, texts: Sequence[str]) -> list[str]:
    """Return those of the texts that contain an unknown token."""
    unknown_token = reader.unknown_token
    if unknown_token is None or not texts:
        return []
    texts_and_ids = zip(texts, reader.tokenize_texts(texts), strict=True)
    return [text for text, ids in texts_and_ids if unknown_token.token_id in ids]


def unknown_words(counts: Counts, details: Mapping[str, Any]) -> str:
    """Return text such as `5 of 80 input tokens (6.25%) are unknown to the tokenizer: é`; "" without any."""
    input_tokens = counts.train_tokens + counts.eval_tokens
    clauses = []
    if counts.unknown_labels:
        clauses.append(_count_with_share(counts.unknown_labels, counts.text_labels, "tokens to train on"))
    if counts.unknown_tokens:
        clauses.append(_count_with_share(counts.unknown_tokens, input_tokens, "input tokens"))
    if not clauses:
        return ""
    shown_texts = list(map(str, details.get(UNKNOWN_TEXT_KEY, ())))
    ellipsis = ", ..." if len(shown_texts) > _MOST_SHOWN else ""
    examples = f": {', '.join(shown_texts[:_MOST_SHOWN])}{ellipsis}" if shown_texts else ""
    return f"{' and '.join(clauses)} are unknown to the tokenizer{examples}"


def is_refused(counts: Counts) -> bool:
    return counts.unknown_labels >= _REFUSED_SHARE * counts.text_labels > 0


def unknown_text_hint(*, trained_here: bool) -> str:
    if trained_here:
        return "add training text with these characters, or remove the characters from the held-out text"
    return "add tokens with model.add_tokens, choose a model whose tokenizer knows the text, or remove the text"


def _count_with_share(count: int, total: int, noun: str) -> str:
    return f"{count:,} of {total:,} {noun} ({count / max(total, 1):.2%})"
