"""What of the sources that a config names is trained on, evaluated on, and left alone, where their files are splits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tui_trainer.data.sources.choice import Choice
from tui_trainer.data.sources.files import SplitFiles
from tui_trainer.data.sources.named_splits import SplitUse
from tui_trainer.data.sources.source import EVERYTHING, Source, join_sources, open_sources, source_of_files
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

RowsRead = dict[Path, list[tuple[int, float]]]
"""Of each file, by its path without links: the first row that is read, and the one behind the last."""


def training_and_evaluation(
    paths: Sequence[str], eval_paths: Sequence[str], text_column: str, choice: Choice = EVERYTHING, eval_split: str = ""
) -> tuple[Source, Source | None]:
    """What is trained on, and what is evaluated on where that is named: by `eval_paths` and `eval_split`, or else by
    validation splits. Of `paths`, `choice` is what is wanted; of `eval_paths` its configuration where they have it.

    Raises DataError for what `open_sources` refuses, and for validation splits that cannot be told or that only some of
    the sources have.
    """
    source = open_sources(paths, text_column, choice)
    measured = replace(choice, split=eval_split, measured=True)
    is_named = bool(eval_paths or eval_split)
    held_out = open_sources(eval_paths or paths, text_column, measured) if is_named else _validation_of(source)
    named_by = "data.eval_path" if eval_paths else "data.eval_split" if eval_split else ""
    return replace(source, splits=tuple(_uses(source, held_out, named_by))), held_out


def _validation_of(source: Source) -> Source | None:
    parts, found = source.parts, []
    for part in parts:
        splits = [other for other in part.others if other.split == "validation"]
        splits = [other for other in splits if other.label == "validation"] or splits
        if len(splits) > 1:
            what = f"has several validation splits: {', '.join(map(_shown, splits))}"
            raise DataError(what, where=one_line(part.path, 200), hint="name one in data.eval_split")
        found += [source_of_files(part.path, part.text_column, split, is_split=True) for split in splits]
    if not found:
        return None
    if len(found) < len(parts):
        have = {one.path for one in found}
        without = ", ".join(one_line(part.path, 120) for part in parts if part.path not in have)
        what = f"has a validation split, and {without} has none"
        hint = "name what all are evaluated on in data.eval_path, or in data.path the training files alone"
        raise DataError(what, where=", ".join(one_line(path, 120) for path in have), hint=hint)
    return join_sources(found)


def _uses(source: Source, held_out: Source | None, named_by: str) -> Iterator[SplitUse]:
    """`named_by`: the setting that says what is evaluated on, if one does."""
    held_parts = held_out.parts if held_out else ()
    # Of many files that stand alone no path is looked up: it is done at each edit of a config.
    compares = held_out is not None or any(part.others for part in source.parts)
    trained = [_rows_read(part) if compares else {} for part in source.parts]
    held_rows = [_rows_read(part) for part in held_parts]
    measured = {path for rows in held_rows for path in rows}
    read = measured | {path for rows in trained for path in rows}
    own = {one.path: one for one in held_parts} if named_by == "data.eval_split" else {}
    for part, rows in zip(source.parts, trained, strict=True):
        evaluated = [other for other in part.others if measured >= {file.path.resolve() for file in other.files}]
        unused = [other for other in part.others if other not in evaluated]
        notes = [part.remark]
        if (held := own.get(part.path)) and held.split:
            labels = {one.label for one in held.split.several}
            evaluated, unused = [held.split], [one for one in part.others if not {one.label, one.split} & labels]
        unused = [one for one in unused if not any(file.path.resolve() in read for file in one.files)]
        if part.split and part.split.split in ("validation", "test"):
            setting = "data.split" if part.split.several else "data.path"
            notes.append(f"by its name it is a {part.split.split} split, and trained on because {setting} names it")
        if named_by and any(other.split == "validation" for other in unused):
            notes.append(f"{named_by} says what is evaluated on")
        use = SplitUse(
            source=one_line(part.path, 200),
            trains=_shown(part.split) if part.split else "",
            evaluates=", ".join(map(_shown, evaluated)),
            left_alone=_left_alone(unused, part.beside),
            note="; ".join(filter(None, notes)),
            shares_rows=any(_overlap(rows, other) for other in held_rows),
        )
        if use.evaluates or use.left_alone or use.note or use.shares_rows:
            yield use
    if held_out is None or not named_by:
        return
    told = {part.path for part in source.parts}
    for part in held_parts:
        unused = [one for one in part.others if not any(file.path.resolve() in read for file in one.files)]
        if part.split and unused and part.path not in told:
            left_alone = _left_alone(unused, part.beside)
            yield SplitUse(source=one_line(part.path, 200), evaluates=_shown(part.split), left_alone=left_alone)


def _rows_read(source: Source) -> RowsRead:
    if source.sample:
        return {Path(source.path): [(0, math.inf)]}
    found: RowsRead = {}
    for entry in source.entries:
        found.setdefault(entry.path.resolve(), []).append(entry.rows or (0, math.inf))
    return found


def _overlap(one: RowsRead, other: RowsRead) -> bool:
    pairs = ((mine, theirs) for path in one.keys() & other.keys() for mine in one[path] for theirs in other[path])
    return any(first < end and start < last for (first, last), (start, end) in pairs)


def _left_alone(splits: Sequence[SplitFiles], beside: Sequence[str]) -> tuple[str, ...]:
    texts = [one_line(beside[0], 120) if len(beside) == 1 else f"{len(beside):,} texts"] if beside else []
    return (*map(_shown, splits), *texts)


def _shown(split: SplitFiles) -> str:
    files = split.files[0].label if len(split.files) == 1 else f"{len(split.files):,} files"
    return f"{one_line(split.label, 60)} ({files})"
