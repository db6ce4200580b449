"""Where prepared data is kept: one folder per key, complete or not there.

An entry is written into a folder beside it and renamed. `manifest.json` is written last and holds the size of every
file: an entry whose files differ from it is damaged, and is made again. Two processes may prepare the same data at
once; whoever renames second uses the entry of the first.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.data.sources.splits import SplitUse
from tui_trainer.errors import DataError, room_hint, system_reason
from tui_trainer.terminal.safe_text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What was counted while preparing.

    In a stream of tokens, labels are one fewer than tokens a side; where each document is a row of its own, one fewer
    a document. `longest_row` is in labels, of a table in tokens; where its rows are several documents each, up to
    `row_documents`, that of the longest one. Of the documents of both sides, `cut_documents` gave `pieces` rows, and
    `short_documents` had fewer than two tokens and are left out of all other numbers.

    Of a table's `rows_read`, or the `documents_read` of text, `bad_rows` could not be used; `repeated_rows` have the
    text of an earlier one, and `leaked_rows` of the training side that of a held-out one: they are left out with
    data.dedup. Of a table, `untrained_rows` have no label in the first max_length tokens and are left out,
    `untrained_long_rows` of them because they are longer, `truncated_rows` lost their end, and `truncated_answers` that
    of the answer, or have it whole nowhere; the longest row of labels has `longest_labels`. `marked_rows` spell a
    special token that begins or ends them, and have it once. Of all tokens that are read, `unknown_tokens` stand for
    text that the tokenizer does not know, and of the `text_labels` that are to be written, `unknown_labels`. Of labels
    that stand one beside the other, `train_labels_beyond` and `eval_labels_beyond` did not fit into max_length.
    `blank_documents` hold only white space. What an epoch uses twice is counted twice, but for what was read, bad,
    blank, repeated or leaked.
    """

    train_rows: int
    train_tokens: int
    train_documents: int
    train_characters: int
    eval_rows: int
    eval_tokens: int
    eval_documents: int
    eval_characters: int
    vocabulary: int
    unknown_eval_tokens: int
    train_labels: int
    eval_labels: int
    longest_row: int
    row_documents: int = 1
    rows_read: int = 0
    documents_read: int = 0
    bad_rows: int = 0
    repeated_rows: int = 0
    leaked_rows: int = 0
    truncated_rows: int = 0
    truncated_answers: int = 0
    longest_labels: int = 0
    untrained_rows: int = 0
    untrained_long_rows: int = 0
    cut_documents: int = 0
    pieces: int = 0
    short_documents: int = 0
    marked_rows: int = 0
    unknown_tokens: int = 0
    unknown_labels: int = 0
    text_labels: int = 0
    train_labels_beyond: int = 0
    eval_labels_beyond: int = 0
    blank_documents: int = 0

    def left_out(self, *, dedup: bool) -> dict[str, int]:
        """Return how many rows or documents no step learns from and no evaluation reads, by the reason in words."""
        found = {
            "cannot be used": self.bad_rows,
            "contain only white space": self.blank_documents,
            "have fewer than two tokens": self.short_documents,
            "have no token to train on within data.max_length": self.untrained_long_rows,
            "have no token to train on": self.untrained_rows - self.untrained_long_rows,
            "are duplicates": self.repeated_rows * dedup,
            "duplicate a held-out row": self.leaked_rows * dedup,
        }
        return {reason: count for reason, count in found.items() if count}


FORMAT_VERSION = 2  # of the folder; raise it when a file in it changes its form
PREPARATION_VERSION = 8  # of the tokens; raise it when the same text and settings give other rows
TRAIN_FILE, EVAL_FILE, TOKENIZER_FILE, MANIFEST_FILE = "train.arrow", "eval.arrow", "tokenizer.json", "manifest.json"
ABANDONED_SECONDS = 24 * 3600
PARTIAL = ".partial-"
SOURCES = "sources"  # of the details: what came of each
LENGTHS_KEPT = 512


RowKind = Literal["examples", "documents", "stream"]
RowsNow = Literal["the same", "of other data", "read otherwise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Every setting that decides which rows the sources give: the key of an entry, beside what stands in them.

    `rows`: "examples", one for each row of a table, as the reader makes it; "documents", one for each text, of which a
    longer one gives several; "stream", cut from the tokens of all texts one after another. `eval_fraction` in [0, 1);
    `max_chars` and `max_rows` of each source that is trained on, 0 for all; `weights` of the sources, () where each row
    is used once. `tokenizer` tells one tokenizer from another, `reading` all else that decides tokens and labels.
    """

    rows: RowKind
    max_length: int
    eval_fraction: float
    seed: int
    tokenizer: str
    reading: str = ""
    max_chars: int = 0
    max_rows: int = 0
    dedup: bool = False
    skip_bad_rows: bool = False
    weights: tuple[float, ...] = ()

    @property
    def reads_text(self) -> bool:
        """Documents, not the rows of a table."""
        return self.rows != "examples"


@dataclass(frozen=True, slots=True)
class Built:
    """What filling a folder gave. `lengths`: of up to LENGTHS_KEPT training rows, evenly spaced in the sorted lengths
    of all, in labels where each row is text, in tokens where it is one of a table; () where all have `max_length`.

    `details`: what a task learnt about its data on the way, such as the names of the classes, as JSON has it.
    """

    counts: Counts
    notes: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData(Built):
    """Data ready to train on, on disk. Without held-out text there is no `eval_path`.

    A tokenizer that was trained on the data lies at `tokenizer_path`. `splits`: what became of the splits of the
    sources; it is no part of the entry, which knows only the files that were read. `source` describes all of them and
    `names` each; those of an entry that is found again are the ones of now (`named`).
    """

    folder: Path
    from_cache: bool
    max_length: int
    source: str
    fingerprint: str
    names: tuple[str, ...] = ()
    splits: tuple[SplitUse, ...] = ()

    def named(self, data: ResolvedData) -> "PreparedData":
        """Return the entry with the names and splits of `data`: the same contents may lie in another folder."""
        now = tuple(part.description for part in data.parts)
        found = replace(self, source=data.description, splits=data.splits)
        if now == self.names or len(now) != len(self.names):
            return found
        new = dict(zip(self.names, now, strict=True))

        def renamed(note: str) -> str:
            old = next((name for name in new if note.startswith(f"{name}: ")), "")
            return new[old] + note.removeprefix(old) if old else note

        details = dict(self.details)
        if SOURCES in details:
            of_parts = zip(details[SOURCES], now, strict=False)
            details[SOURCES] = [{**one, "description": name} for one, name in of_parts]
        notes = tuple(map(renamed, self.notes))
        return replace(found, names=now, notes=notes, details=details)

    @property
    def all_notes(self) -> tuple[str, ...]:
        return (*(one.words() for one in self.splits), *self.notes)

    @property
    def train_path(self) -> Path:
        return self.folder / TRAIN_FILE

    @property
    def eval_path(self) -> Path | None:
        return self.folder / EVAL_FILE if self.counts.eval_rows else None

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / TOKENIZER_FILE


Build = Callable[[Path], Built]


def find_entry(data: ResolvedData, cut: Cut, cache_dir: Path, progress: Progress | None) -> PreparedData | None:
    """Return the complete entry for this data and these settings, or None. The data is hashed for that."""
    entry = read_entry(Path(cache_dir) / entry_key(data, cut, progress))
    return entry and entry.named(data)


def make_entry(data: ResolvedData, cut: Cut, cache_dir: Path, progress: Progress | None, build: Build) -> PreparedData:
    """Let `build` fill a new folder, then put it in its place."""
    final = Path(cache_dir) / entry_key(data, cut, progress)
    try:
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
        _remove_abandoned(Path(cache_dir))
        # Without an error where it has got its name.
        made = TemporaryDirectory(prefix=f"{PARTIAL}{final.name[:12]}-", dir=cache_dir, ignore_cleanup_errors=True)
        with made as place:
            partial = Path(place)
            built = build(partial)
            for source, was in zip(data.sources, data.signature, strict=True):
                if source.signature() != was:
                    raise DataError(f"{source.description} changed while it was read", hint="run the command again")
            names = [part.description for part in data.parts]
            about = {"max_length": cut.max_length, "source": data.description, "names": names}
            _write_manifest(partial, {**about, "fingerprint": data.fingerprint(), **asdict(built)})
            return _publish(partial, final).named(data)
    except OSError as error:
        raise DataError(
            f"could not write the prepared data: {system_reason(error)}",
            where=one_line(str(cache_dir)),
            hint=room_hint(error, cache_dir),
        ) from None


def entry_key(data: ResolvedData, cut: Cut, progress: Progress | None) -> str:
    """Return 32 hexadecimal digits over everything that the rows depend on."""
    # A new field of Cut is left out here while it is at its default: runs find what they were prepared under.
    import xxhash

    if len(data.sources) > 1:  # nothing is held out of the first
        cut = replace(cut, eval_fraction=0.0)
    parts = [data.fingerprint(progress), data.text_column, FORMAT_VERSION, PREPARATION_VERSION, asdict(cut)]
    return str(xxhash.xxh3_128(json.dumps(parts, sort_keys=True).encode()).hexdigest())


def rows_now(data: ResolvedData, cut: Cut, key: str, fingerprint: str, progress: Progress | None) -> RowsNow:
    """Compare the rows that would be prepared now with those of an entry, by its key and the fingerprint of its data.

    The fingerprint is empty where it is not known.
    """
    if entry_key(data, cut, progress) == key:
        return "the same"
    # Plans that do not name a fingerprint are of versions that made other rows.
    return "read otherwise" if fingerprint in ("", data.fingerprint()) else "of other data"


def quantiles(lengths: Sequence[int] | NDArray[np.int64]) -> tuple[int, ...]:
    """Up to LENGTHS_KEPT of the lengths, sorted: the middle of each of as many equal shares."""
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))
    kept = min(LENGTHS_KEPT, len(ordered))
    return tuple(int(ordered[(2 * place + 1) * len(ordered) // (2 * kept)]) for place in range(kept))


def read_entry(folder: Path, *, from_cache: bool = True) -> PreparedData | None:
    """The entry in `folder`; None when it is missing, damaged or of another format."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["format_version"] != FORMAT_VERSION:
            return None
        if any((folder / name).stat().st_size != size for name, size in manifest["files"].items()):
            return None
        known = {item.name for item in fields(Counts)}
        counts = Counts(**{name: int(count) for name, count in manifest["counts"].items() if name in known})
        return PreparedData(
            folder=folder,
            from_cache=from_cache,
            max_length=int(manifest["max_length"]),
            counts=counts,
            notes=tuple(manifest["notes"]),
            source=str(manifest["source"]),
            names=tuple(map(str, manifest.get("names", ()))),
            fingerprint=str(manifest["fingerprint"]),
            lengths=tuple(int(length) for length in manifest["lengths"]),
            details=dict(manifest["details"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Sizes of all files, after they are on the disk."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        _flush(path)
        sizes[path.name] = path.stat().st_size
    manifest = {"format_version": FORMAT_VERSION, "files": sizes, **content}
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    _flush(path)


def _publish(partial: Path, final: Path) -> PreparedData:
    """Rename into place. A whole entry that is already there wins; a damaged one is moved out of the way."""
    for _ in range(3):
        try:
            partial.rename(final)
            from_cache = False
        except OSError:
            if not final.exists():
                raise
            from_cache = True
        if entry := read_entry(final, from_cache=from_cache):
            return entry
        # Renamed first, so that nobody finds it half deleted; where it is gone, the other process was quicker.
        aside = TemporaryDirectory(prefix=PARTIAL, dir=final.parent, ignore_cleanup_errors=True)
        with aside as place, suppress(FileNotFoundError):
            final.rename(Path(place, "damaged"))
    raise DataError(
        "the folder of the prepared data was removed right after it was written", where=one_line(str(final))
    )


def _remove_abandoned(cache_dir: Path) -> None:
    """Folders of processes that were killed more than a day ago."""
    oldest = time.time() - ABANDONED_SECONDS
    for path in cache_dir.glob(f"{PARTIAL}*"):
        try:
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
