"""The cache of prepared data: one folder for each key, which exists only if it is complete.

An entry is written to a temporary folder in the cache and then renamed. `manifest.json` is written last and has the
size of every file: an entry whose files differ from it is damaged and is prepared again. If two processes prepare the
same data at the same time, the second uses the entry of the first.
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
    """Counts from the preparation of data.

    A stream has one label fewer than tokens in each split. If each document is a row, each has one label fewer than
    tokens. `longest_row` counts labels, or for a table tokens. If rows have several documents (at most
    `row_documents`), it is the length of the longest document. `cut_documents` were split into `pieces` rows, in both
    splits together. `short_documents` had fewer than two tokens; they are skipped and not in any other number.

    Of the `rows_read` of a table, or the `documents_read`, `bad_rows` were unusable. `repeated_rows` have the text of
    an earlier row, and `leaked_rows` are training rows with the text of a held-out row; data.dedup removes both.
    `untrained_rows` of a table have no label in the first max_length tokens and are skipped; `untrained_long_rows` of
    them have labels further on, and `equal_answers` of these are pairs of answers that differ only further on.
    `truncated_rows` lost their end. `truncated_answers` lost the end of the answer, or have no window with all of it.
    `longest_labels` is the length of the longest row of labels. `marked_rows` already spell a special token that begins
    or ends a row, which is not added again. `unknown_tokens` counts the inputs that stand for text outside the
    vocabulary, and `unknown_labels` such labels among the `text_labels`, which the model should write.
    `train_labels_beyond` and `eval_labels_beyond` count labels, one per token, after max_length. `blank_documents` have
    only white space. Rows that an epoch uses twice count twice, except as read, unusable, blank, repeated or leaked
    rows."""

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
    equal_answers: int = 0
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

    def unused_by_reason(self, *, dedup: bool) -> dict[str, int]:
        """Return the number of rows or documents that are not used, keyed by the reason in words."""
        reasons = {
            "unusable": self.bad_rows,
            "with only white space": self.blank_documents,
            "with fewer than two tokens": self.short_documents,
            "without a token to train on within data.max_length": self.untrained_long_rows - self.equal_answers,
            "whose answers are the same within data.max_length": self.equal_answers,
            "without a token to train on": self.untrained_rows - self.untrained_long_rows,
            "with the text of an earlier row": self.repeated_rows * dedup,
            "with the text of a held-out row": self.leaked_rows * dedup,
        }
        return {reason: count for reason, count in reasons.items() if count}


FORMAT_VERSION = 2  # raise it when the format of a file in the folder changes
PREPARATION_VERSION = 8  # raise it when the same text and settings give other rows
TRAIN_FILE, EVAL_FILE, TOKENIZER_FILE, MANIFEST_FILE = "train.arrow", "eval.arrow", "tokenizer.json", "manifest.json"
ABANDONED_SECONDS = 24 * 3600
PARTIAL_PREFIX = ".partial-"
SOURCES_KEY = "sources"  # key in the details: the rows of each source
MOST_STORED_LENGTHS = 512

RowKind = Literal["examples", "documents", "stream"]
RowsNow = Literal["same", "other_data", "older_version"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSettings:
    """Every setting that decides which rows the sources give. Together with their content, it is the cache key.

    `rows`: "examples", one for each row of a table, made by the reader; "documents", one for each text, or several for
    a longer one; "stream", split from all texts one after another. `eval_fraction` in [0, 1); `max_chars` and
    `max_rows` of each training source, 0 for all; `weights` of the sources, () if each row is used once. The last
    `replay_sources` of the sources together give `replay_share` of what an epoch trains on. `tokenizer` identifies the
    tokenizer, and `reading` everything else that decides on tokens and labels."""

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
    replay_sources: int = 0
    replay_share: float = 0.0

    @property
    def reads_text(self) -> bool:
        """Whether the examples are documents instead of rows of a table."""
        return self.rows != "examples"


@dataclass(frozen=True, slots=True)
class PreparedContent:
    """Content of a folder of prepared data. `details`: what the task learned about its data, such as class names.

    `lengths`: up to LENGTHS_KEPT evenly spaced quantiles of the lengths of all training rows. A length counts labels in
    rows of text, and tokens in rows of a table. () if all rows have `max_length`."""

    counts: Counts
    notes: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData(PreparedContent):
    """Prepared data on disk. `eval_path` is None without held-out text.

    A tokenizer that was trained on the data is at `tokenizer_path`. `source` describes all sources together, `names`
    each one, and `splits` the use of their splits. `with_names_of` replaces these three."""

    folder: Path
    from_cache: bool
    max_length: int
    source: str
    fingerprint: str
    names: tuple[str, ...] = ()
    splits: tuple[SplitUse, ...] = ()

    def with_names_of(self, data: ResolvedData) -> "PreparedData":
        """Return this entry with the descriptions and splits of `data`, whose equal files may be elsewhere."""
        names = tuple(part.description for part in data.parts)
        entry = replace(self, source=data.description, splits=data.splits)
        if names == self.names or len(names) != len(self.names):
            return entry
        new_names = dict(zip(self.names, names, strict=True))

        def renamed(note: str) -> str:
            old_name = next((name for name in new_names if note.startswith(f"{name}: ")), "")
            return new_names[old_name] + note.removeprefix(old_name) if old_name else note

        details = dict(self.details)
        if SOURCES_KEY in details:
            sources_and_names = zip(details[SOURCES_KEY], names, strict=False)
            details[SOURCES_KEY] = [{**source_facts, "description": name} for source_facts, name in sources_and_names]
        notes = tuple(map(renamed, self.notes))
        return replace(entry, names=names, notes=notes, details=details)

    @property
    def all_notes(self) -> tuple[str, ...]:
        return (*(split.words() for split in self.splits), *self.notes)

    @property
    def train_path(self) -> Path:
        return self.folder / TRAIN_FILE

    @property
    def eval_path(self) -> Path | None:
        return self.folder / EVAL_FILE if self.counts.eval_rows else None

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / TOKENIZER_FILE


Build = Callable[[Path], PreparedContent]


def find_entry(
    data: ResolvedData, settings: RowSettings, cache_dir: Path, progress: Progress | None
) -> PreparedData | None:
    """Return the complete entry for this data and these settings, or None. Computes a hash of the data."""
    entry = read_entry(Path(cache_dir) / entry_key(data, settings, progress))
    return entry and entry.with_names_of(data)


def make_entry(
    data: ResolvedData, settings: RowSettings, cache_dir: Path, progress: Progress | None, build: Build
) -> PreparedData:
    """Create the entry: `build` fills a temporary folder, which then gets its final name."""
    final_folder = Path(cache_dir) / entry_key(data, settings, progress)
    try:
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
        _remove_abandoned(Path(cache_dir))
        # Cleaning up finds nothing if the folder was renamed: that is no error.
        folder_name = f"{PARTIAL_PREFIX}{final_folder.name[:12]}-"
        with TemporaryDirectory(prefix=folder_name, dir=cache_dir, ignore_cleanup_errors=True) as folder:
            partial_folder = Path(folder)
            content = build(partial_folder)
            for source, earlier_signature in zip(data.sources, data.signature, strict=True):
                if source.signature() != earlier_signature:
                    raise DataError(f"{source.description} changed while it was read", hint="run the command again")
            names = [part.description for part in data.parts]
            description = {"max_length": settings.max_length, "source": data.description, "names": names}
            _write_manifest(partial_folder, {**description, "fingerprint": data.fingerprint(), **asdict(content)})
            return _publish(partial_folder, final_folder).with_names_of(data)
    except OSError as error:
        problem = f"could not write the prepared data: {system_reason(error)}"
        raise DataError(problem, where=one_line(str(cache_dir)), hint=room_hint(error, cache_dir)) from None


def entry_key(data: ResolvedData, settings: RowSettings, progress: Progress | None) -> str:
    """Return the key of an entry: 32 hexadecimal digits that change if anything changes that decides the rows."""
    # Leave out a new field of RowSettings while it has its default, so that existing runs still find their entries.
    import xxhash

    if len(data.sources) > 1:  # then nothing is held out of the first source
        settings = replace(settings, eval_fraction=0.0)
    newer_defaults = {"replay_sources": 0, "replay_share": 0.0}
    setting_values = {name: value for name, value in asdict(settings).items() if newer_defaults.get(name) != value}
    key_parts = [data.fingerprint(progress), data.text_column, FORMAT_VERSION, PREPARATION_VERSION, setting_values]
    return str(xxhash.xxh3_128(json.dumps(key_parts, sort_keys=True).encode()).hexdigest())


def compare_rows(
    data: ResolvedData, settings: RowSettings, key: str, fingerprint: str, progress: Progress | None
) -> RowsNow:
    """Return whether the rows that would be prepared now are those of an earlier entry, or why not. The earlier entry
    has this `key`, and its data this `fingerprint`, "" if unknown."""
    if entry_key(data, settings, progress) == key:
        return "same"
    # Plans without a fingerprint are from versions that prepared other rows.
    return "older_version" if fingerprint in ("", data.fingerprint()) else "other_data"


def quantiles(lengths: Sequence[int] | NDArray[np.int64]) -> tuple[int, ...]:
    """Return at most LENGTHS_KEPT of the lengths, sorted: the medians of equally large groups of similar lengths."""
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))
    kept_count = min(MOST_STORED_LENGTHS, len(ordered))
    return tuple(int(ordered[(2 * group + 1) * len(ordered) // (2 * kept_count)]) for group in range(kept_count))


def read_entry(folder: Path, *, from_cache: bool = True) -> PreparedData | None:
    """Return the entry in `folder`, or None if it is missing, damaged or of another format."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["format_version"] != FORMAT_VERSION:
            return None
        if any((folder / name).stat().st_size != size for name, size in manifest["files"].items()):
            return None
        count_names = {field_of_counts.name for field_of_counts in fields(Counts)}
        counts = Counts(**{name: int(count) for name, count in manifest["counts"].items() if name in count_names})
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
    """Write the manifest with the sizes of all files, once these are on the disk."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        _sync_to_disk(path)
        sizes[path.name] = path.stat().st_size
    manifest = {"format_version": FORMAT_VERSION, "files": sizes, **content}
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    _sync_to_disk(path)


def _publish(partial_folder: Path, final_folder: Path) -> PreparedData:
    """Rename `partial_folder` to `final_folder`, unless that has a complete entry. Return its entry."""
    for _ in range(3):
        try:
            partial_folder.rename(final_folder)
            from_cache = False
        except OSError:
            if not final_folder.exists():
                raise
            from_cache = True
        if entry := read_entry(final_folder, from_cache=from_cache):
            return entry
        # Renamed before it is deleted, so that no process finds a part of it. If it is gone, another one removed it.
        removal = TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=final_folder.parent, ignore_cleanup_errors=True)
        with removal as folder, suppress(FileNotFoundError):
            final_folder.rename(Path(folder, "damaged"))
    problem = "the folder of the prepared data was removed right after it was written"
    raise DataError(problem, where=one_line(str(final_folder)))


def _remove_abandoned(cache_dir: Path) -> None:
    """Remove the folders of processes that were killed more than a day ago."""
    oldest_time = time.time() - ABANDONED_SECONDS
    for path in cache_dir.glob(f"{PARTIAL_PREFIX}*"):
        try:
            if path.stat().st_mtime < oldest_time:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue


def _sync_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
