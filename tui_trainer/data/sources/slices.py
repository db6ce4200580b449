"""Slices of splits, as `datasets` writes them: `train[:10%]`, `train[100:]+validation`. The rows are counted for it."""

from collections.abc import Iterator
from dataclasses import replace

from tui_trainer.data.sources.files import SplitFiles
from tui_trainer.data.sources.reading import count_rows
from tui_trainer.data.sources.source_file import SourceFile
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

_counts: dict[tuple[str, int, int], int] = {}  # of files already counted by this process: (path, size, mtime_ns)


def cut(chosen: SplitFiles, wanted: str, setting: str) -> SplitFiles:
    """The slices that are `wanted` of the splits in `chosen.several`; `setting` names them.

    Raises DataError for what is no slice, and where no row is in it.
    """
    from datasets import ReadInstruction

    shown = one_line(wanted, 80)
    counts = {one.label: [_count(file) for file in one.files] for one in chosen.several}
    files = {one.label: one.files for one in chosen.several}
    try:
        slices = ReadInstruction.from_spec(wanted).to_absolute({label: sum(each) for label, each in counts.items()})
    except (ValueError, AssertionError) as error:
        hint = "slices are written train[:10%], train[100:200] or train[-500:]"
        raise DataError(f"{setting}: '{shown}' is no part of a split: {one_line(str(error), 120)}", hint=hint) from None
    found = [
        entry
        for piece in slices
        for entry in _rows_of(files[piece.splitname], counts[piece.splitname], piece.from_ or 0, piece.to)
    ]
    if not found:
        raise DataError(f"{setting}: no row is in '{shown}'", hint=f"there are {sum(map(sum, counts.values())):,} rows")
    return replace(chosen, files=tuple(found))


def _rows_of(files: tuple[SourceFile, ...], counts: list[int], start: int, end: int | None) -> Iterator[SourceFile]:
    """The rows from `start` to before `end`, counted over all files of a split."""
    for file, count in zip(files, counts, strict=True):
        first, last = max(start, 0), count if end is None else min(end, count)
        if (first, last) == (0, count):
            yield file
        elif first < last:
            share = round(file.size_bytes * (last - first) / count)
            yield replace(file, rows=(first, last), size_bytes=share, whole_bytes=file.size_bytes)
        start, end = start - count, None if end is None else end - count


def _count(file: SourceFile) -> int:
    known = (file.remote or str(file.path.absolute()), *file.size_and_time())
    if known not in _counts:
        _counts[known] = count_rows(file)
    return _counts[known]
