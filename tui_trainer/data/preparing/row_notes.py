"""What is noted while rows are made, for the preview and the checklist: which were cut, how long they would be.

The marks lie beside the rows, one bit each. The lengths are kept only while the data is prepared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tui_trainer.data.preparing.cache import Counts, Cut
from tui_trainer.data.preparing.encode_batches import EncodedBatch
from tui_trainer.data.preparing.row_selection import Selection
from tui_trainer.data.preparing.survey import Survey
from tui_trainer.data.preparing.token_rows import COLUMN
from tui_trainer.data.problems import ProblemList

CUT_FILE = "cut_rows.npy"
BAD_ROWS, CLASS_ROWS, WHOLE_LENGTH = "bad_rows", "class_rows", "length_for_99_percent"
MOST_CLASSES = 1000
_SHARE = 0.99


class RowNotes:
    """The training rows of a table, 9 bytes each."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]]] = []

    def add(self, batch: EncodedBatch) -> None:
        """Rows in the order in which they are written."""
        if len(batch.cut):
            self._parts.append((batch.cut, batch.columns[COLUMN][1].astype(np.int32), batch.row_characters))

    def write(self, folder: Path) -> dict[str, Any]:
        """The marks as a file. Returns the details: about how long a row 99 % of the rows would fit into whole.

        A row that was cut counts with its characters, at as many tokens a character as the whole rows have; where no
        row is whole, nothing is said.
        """
        if not self._parts:
            return {}
        cut, lengths, characters = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        write_cut_rows(folder, cut)
        tokens = lengths.astype(np.float64)
        if cut.all() or not characters[~cut].sum():
            return {}
        rate = tokens[~cut].sum() / characters[~cut].sum()
        tokens[cut] = np.maximum(characters[cut] * rate, tokens[cut] + 1)
        return {WHOLE_LENGTH: int(np.ceil(np.quantile(tokens, _SHARE, method="higher")))}


def write_cut_rows(folder: Path, cut: ArrayLike) -> None:
    """`cut`: for each training row whether it lost its end, or is a piece of a longer document."""
    np.save(folder / CUT_FILE, np.packbits(np.asarray(cut, dtype=np.bool_)), allow_pickle=False)


def cut_rows(folder: Path, rows: int) -> NDArray[np.bool_] | None:
    """The same, bool [rows]; None where nothing was noted."""
    try:
        marks = np.load(folder / CUT_FILE, allow_pickle=False)
        return np.unpackbits(marks, count=rows).astype(np.bool_)
    except (OSError, ValueError, TypeError):
        return None


def row_details(survey: Survey, choice: Selection, strata: Mapping[str, int], problems: ProblemList) -> dict[str, Any]:
    """The first rows that could not be used, and how many training rows each class has."""
    found: dict[str, Any] = {}
    if problems.count:
        found[BAD_ROWS] = [asdict(problem) for problem in problems.shown]
    if 1 < len(strata) <= MOST_CLASSES:
        numbers = np.frombuffer(survey.strata, dtype=np.int64)
        counted = np.bincount(numbers, weights=choice.trained, minlength=len(strata)).astype(np.int64).tolist()
        found[CLASS_ROWS] = {name: counted[number] for name, number in strata.items() if counted[number]}
    return found


def notes_of_counts(counts: Counts, cut: Cut) -> Iterator[str]:
    """What was left out, cut or not known, in words."""
    if counts.repeated_rows:
        what = "are left out (data.dedup)" if cut.dedup else "are used as they are; data.dedup = true leaves them out"
        yield f"{counts.repeated_rows:,} rows repeat the text of an earlier one and {what}"
    if counts.leaked_rows:
        what = (
            "are left out of the training (data.dedup)"
            if cut.dedup
            else "make the held-out numbers too good; data.dedup = true leaves them out"
        )
        yield f"{counts.leaked_rows:,} training rows have the text of a held-out one and {what}"
    if counts.truncated_rows:
        rows = counts.train_rows + counts.eval_rows
        yield f"{counts.truncated_rows:,} of {rows:,} rows are longer than {cut.max_length:,} tokens and lost their end"
    if counts.truncated_answers:
        who = "1 answer does" if counts.truncated_answers == 1 else f"{counts.truncated_answers:,} answers do"
        what = "written ones are cut at task.max_target_length, those marked in a text are learnt as none"
        yield f"{who} not fit whole: {what}"
    if counts.untrained_rows:
        yield f"{counts.untrained_rows:,} rows have nothing to learn within {cut.max_length:,} tokens and are left out"
    if counts.cut_documents:
        documents = counts.train_documents + counts.eval_documents
        yield (
            f"{counts.cut_documents:,} of {documents:,} documents are longer than {cut.max_length:,} tokens "
            f"and were cut into {counts.pieces:,} pieces; nothing is dropped"
        )
    if counts.short_documents:
        yield f"{counts.short_documents:,} documents have fewer than two tokens and are left out"
    if counts.marked_rows:
        what = "documents" if cut.reads_text else "rows"
        where = "special tokens of the tokenizer at their beginning or end"
        yield f"{counts.marked_rows:,} {what} spell {where}: each stands there once"
    if counts.unknown_eval_tokens:
        yield f"{counts.unknown_eval_tokens:,} held-out characters do not occur in the training text: read as <unk>"
