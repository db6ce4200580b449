"""Examples into arrays of tokens, batch by batch in order, by this process or by several.

Tokenizers use all cores by themselves; what is gained with more processes is the Python around them: templates,
alignment of words, columns. The processes are new ones, not forks: a fork of a process with threads can hang.
"""

import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.row_reader import Encoded, Example, Reader
from tui_trainer.data.preparing.row_selection import ChosenRows
from tui_trainer.data.preparing.token_rows import COLUMN, Columns

# Batches that wait for each process, so that none is idle while one is read or written.
_AHEAD = 3
_reader: Any = None  # of a process that encodes for another


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The rows of one side that have a label, as arrays for the file, and what was `counted`: documents, tokens,
    labels, characters, truncated, truncated_answers, untrained (rows without a label), unknown (tokens), marked.

    Of each row: `cut`, bool [rows], whether it was truncated, and `row_characters`, int32 [rows], of its text.
    """

    side: int
    columns: Columns
    counted: Counter[str]
    cut: NDArray[np.bool_]
    row_characters: NDArray[np.int32]


def encoded(reader: Reader, chosen: Iterable[ChosenRows], processes: int) -> Iterator[EncodedBatch]:
    """The chosen rows encoded, in order, one batch a side. Raises what the reader raises."""
    if processes == 1:
        for rows in chosen:
            yield from _encode_rows(reader, rows)
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(reader,)) as pool:
        waiting: deque[Future[list[EncodedBatch]]] = deque()
        try:
            for rows in chosen:
                waiting.append(pool.submit(_encode_here, rows))
                if len(waiting) >= _AHEAD * processes:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            # Also where the work is given up half way: nothing that waits is begun.
            pool.shutdown(wait=False, cancel_futures=True)


def _encode_rows(reader: Reader, rows: ChosenRows) -> list[EncodedBatch]:
    """In this process, one batch for each side that has rows."""
    return [_encode_side(reader, side, some) for side, some in enumerate(rows.examples()) if some]


def _encode_side(reader: Reader, side: int, examples: Sequence[Example]) -> EncodedBatch:
    found = reader.encode(examples)
    kept = [row for row in found if row.labels]
    places = range(len(examples)) if all(row.example is None for row in found) else [row.example or 0 for row in found]
    characters = [len(examples[at].text) for at, row in zip(places, found, strict=True) if row.labels]
    columns = {name: _column(kept, name) for name in reader.columns}
    cut = np.array([row.truncated for row in kept], dtype=np.bool_)
    counted = Counter(
        documents=len(kept),
        tokens=len(columns[COLUMN][0]),
        labels=sum(row.labels for row in kept),
        characters=sum(len(example.text) for example in examples),
        truncated=int(cut.sum()),
        truncated_answers=sum(row.answer_truncated for row in kept),
        untrained=len(found) - len(kept),
        unknown=sum(row.unknown for row in kept),
        marked=sum(row.marked for row in kept),
    )
    return EncodedBatch(side, columns, counted, cut, np.array(characters, dtype=np.int32))


def _column(rows: Sequence[Encoded], name: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    values = [np.asarray(row.columns[name], dtype=np.int32) for row in rows]
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return np.concatenate(values) if values else np.zeros(0, dtype=np.int32), lengths


def _begin(reader: Reader) -> None:
    """In a new process: it makes no sound, ends with the one that began it, and uses one core."""
    import multiprocessing
    from threading import Thread

    global _reader
    _reader = reader
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    silent = open(os.devnull, "w")  # noqa: PTH123, SIM115  # for the life of the process
    sys.stdout = sys.stderr = silent
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()


def _encode_here(rows: ChosenRows) -> list[EncodedBatch]:
    return _encode_rows(_reader, rows)
