"""One file of a source: what its name promises, and how it is opened so that nothing hangs."""

import csv
import errno
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BufferedReader, FileIO
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, TypeVar

from tui_trainer.data.columns.usual_names import HEADER_NAMES
from tui_trainer.errors import DataError, system_reason
from tui_trainer.files.hub_layout import network_errors, network_reason
from tui_trainer.terminal.safe_text import one_line

T = TypeVar("T")
_looked_at: dict[tuple[Path, int, int], tuple[bool, "Form | None"]] = {}
"""Of files already opened by this process, by path, size and time: whether they can be read, and their form inside."""
Form = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "conll", "unsupported", "unknown"]

FORMS: dict[str, Form] = {
    **dict.fromkeys((".txt", ".md", ".rst", ".py"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines"), "jsonl"),
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
    **dict.fromkeys((".conll", ".conllu", ".conllx", ".bio", ".iob", ".iob2", ".bioes"), "conll"),
    **dict.fromkeys(
        (".xlsx", ".xls", ".ods", ".docx", ".pdf", ".zip", ".tar", ".tgz", ".zst", ".bz2", ".xz", ".7z"), "unsupported"
    ),
}
PACKED_INSIDE = frozenset({"parquet", "arrow"})  # these are compressed within, and read from their end
SUPPORTED = (
    "supported: plain text (.txt .md .rst .py and other text files), .jsonl .jsonlines .ndjson .json .csv .tsv "
    ".conll .conllu .conllx .bio .iob .iob2 .bioes, each also as .gz, .parquet .arrow .feather"
)


def form_of(path: PurePath) -> Form:
    """What the name promises; `.gz` is looked through."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    compressed = bool(endings) and endings[-1] == ".gz"
    if compressed:
        endings.pop()
    form = FORMS.get(endings[-1], "unknown") if endings else "unknown"
    return "unsupported" if compressed and form in PACKED_INSIDE else form


SNIFFED_BYTES = 4096
_FORM_BYTES = 1 << 16  # one long row of a conversation fits
_SNIFFED_LINES = 20
_ALWAYS_TEXT = frozenset({".md", ".rst", ".py"})
_SEPARATED: tuple[tuple[Form, str], ...] = (("tsv", "\t"), ("csv", ","), ("csv", ";"))
_JSON_ROWS = re.compile(r'\s*(\[\s*\{\s*|\{\s*)"[^"\n]+"\s*:')
_YAML_ROWS = re.compile(rb"""(?:(?:#.*|---\s*)\n)*-\s+["']?\w[\w ]*["']?:\s""")
ENTITY_TAG = re.compile(r"O|[BIMELSU]-\S+")
_AS_ROWS = "convert its texts or rows to JSONL"
_LFS_POINTER, _LFS_BYTES = b"version https://git-lfs", 1024
# What a file begins with that is another form than its name says.
_BEGINNINGS = (
    (b"PK\x03\x04", "an Excel or a ZIP file", "save it as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Excel file", "save it as CSV"),
    (b"%PDF", "a PDF", "extract its text into a text file"),
    (b"\x1f\x8b", "a gzip file", "rename it to .gz"),
    (b"PAR1", "a Parquet file", "rename it to .parquet"),
    (b"ARROW1", "an Arrow file", "rename it to .arrow"),
    (b"sqlite format 3\0", "an SQLite database", "export the table to train on as CSV"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it: zstd -d"),
    (b"bzh9", "a bzip2 file", "unpack it: bunzip2"),
    (b"\xfd7zxz\0", "an xz file", "unpack it: unxz"),
    (b"7z\xbc\xaf", "a 7-Zip file", "unpack it"),
    (b"\x89hdf", "an HDF5 file", _AS_ROWS),
    (b"\x93numpy", "a NumPy array", _AS_ROWS),
    (b"\x89png", "an image", _AS_ROWS),
    (b"\xff\xd8\xff", "an image", _AS_ROWS),
    (b"x\x9c", "a zlib-compressed file, such as spaCy's", _AS_ROWS),
    *((bytes((0x80, version)), "a Python pickle, which can run code and is never opened", _AS_ROWS)
      for version in range(2, 6)),
)  # fmt: skip
# What texts may begin with as well.
_WEB_PAGES = (
    (b"<!doctype", "a web page, which often comes from a failed download", "download it again"),
    (b"<html", "a web page, which often comes from a failed download", "download it again"),
)


def form_of_content(head: bytes) -> Form | None:
    """Return the form of rows that a file without a telling name holds, by its first bytes; None for a plain text.

    `head` ends anywhere, so its last line does not count where there are others.
    """
    lines = head.decode("utf-8-sig", errors="ignore").splitlines()
    whole = [line for line in (lines[:-1] if len(lines) > 1 else lines) if line.strip()][:_SNIFFED_LINES]
    if not whole:
        return None
    if whole[0].lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            if all(isinstance(json.loads(line), dict) for line in whole):
                return "jsonl"
        return "json" if _JSON_ROWS.match("".join(whole)) else None
    words = [line.split() for line in whole if not line.startswith(("#", "-DOCSTART-"))]
    columns = {len(row) for row in words}
    if len(columns) == 1 and columns != {1} and all(ENTITY_TAG.fullmatch(row[-1]) for row in words):
        return "conll"
    for form, separator in _SEPARATED:
        names = {name.strip(' "').lower() for name in whole[0].split(separator)}
        if len(names) < 2 or not names & HEADER_NAMES:
            continue
        header, *rows = table = list(csv.reader(whole, delimiter=separator))
        # The last row may be cut where a field goes on in the next line.
        if rows and all(len(row) == len(header) for row in rows[: max(1, len(table) - 2)]):
            return form
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file to read. `label` is how messages and fingerprints name it; `label` is safe to show.

    `rows` are the first and the one behind the last that are read, where they are not all; `size_bytes` is their share
    then, and `whole_bytes` all. Declared elsewhere are `features`, as `Features.to_dict` has them, and of a table of
    text its `separator` and a `header` that it has not itself. What is read from the hub has an address, `remote`, and
    the hub's hash, `digest`.
    """

    path: Path
    label: str
    size_bytes: int
    rows: tuple[int, int] | None = None
    whole_bytes: int = 0
    remote: str = ""
    digest: str = ""
    features: Mapping[str, Any] | None = field(default=None, hash=False)
    separator: str = ""
    header: tuple[str, ...] = ()
    form_inside: Form | None = None
    """The form of its content, where the name promises none."""
    label_of_folder: str | None = None
    """Of a text: the folder that it lies in, where texts lie in one folder for each class; empty for a README and the
    like beside these folders, which is no row."""

    @property
    def compressed(self) -> bool:
        return self.path.suffix.lower() == ".gz"

    @property
    def form(self) -> Form:
        return self.form_inside or form_of(self.path)

    @property
    def holds_rows(self) -> bool:
        return self.form not in ("text", "unknown")

    @property
    def is_looked_into(self) -> bool:
        """Whether its content tells its form: that of a .tsv may be CoNLL, which BioBERT's data has under that name."""
        return self.form == "tsv" or not (self.holds_rows or self.path.suffix.lower() in _ALWAYS_TEXT)

    @property
    def whole(self) -> "SourceFile":
        return replace(self, rows=None, size_bytes=self.whole_bytes) if self.rows else self

    def size_and_time(self) -> tuple[int, int]:
        """(size, mtime in ns) as it is now; what is read from the hub is of one commit. Raises DataError."""
        if self.remote:
            return self.size_bytes, 0
        try:
            facts = self.path.stat()
        except OSError as error:
            raise DataError(f"can no longer be read: {system_reason(error)}", where=self.label) from None
        return facts.st_size, facts.st_mtime_ns


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file's own bytes (for the position) and what it holds, unpacked where it is a .gz.

    Every failure to open or to read leaves as a DataError of one line. O_NONBLOCK: opening a FIFO must not wait for
    somebody to write into it.
    """
    label = file.label
    failures: tuple[type[Exception], ...] = network_errors() if file.remote else (OSError,)
    try:
        with _opened(file) as raw:
            if not file.compressed:
                yield raw, raw
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield raw, unpacked  # type: ignore[misc]  # GzipFile reads like a BinaryIO, but is not typed as one
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"not a valid gzip file ({one_line(str(error), 60)})",
            where=label,
            hint="rename it if it is not compressed, or download it again",
        ) from None
    except EOFError:
        raise DataError("the gzip file is truncated", where=label, hint="download or copy it again") from None
    except failures as error:
        reason = network_reason(error) if file.remote else system_reason(error)
        hint = "data.streaming reads it from the Hub; try again when online" if file.remote else ""
        raise DataError(f"cannot be read: {reason}", where=label, hint=hint) from None


class _Readable(FileIO):
    """A file that raises BlockingIOError where a file of /proc has nothing to read. FileIO gives None for that."""

    def readinto(self, buffer: Any) -> int:
        count: int | None = super().readinto(buffer)
        return _some(count)

    def readall(self) -> bytes:
        return _some(super().readall())


def _some(found: T | None) -> T:
    if found is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return found


def _opened(file: SourceFile) -> BinaryIO:
    if file.remote:
        from huggingface_hub import HfFileSystem

        return BufferedReader(HfFileSystem().open(file.remote, "rb"))  # whose own readline takes no limit
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    raw = BufferedReader(_Readable(os.open(file.path, flags)))
    try:
        facts = os.fstat(raw.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise DataError("not a regular file", where=file.label)
        if facts.st_size <= _LFS_BYTES and raw.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
            what = "this is a Git LFS pointer, not the file itself"
            raise DataError(what, where=file.label, hint="run `git lfs pull` in its folder")
    except BaseException:
        raw.close()
        raise
    return raw


def refuse_disguised(content: BinaryIO, file: SourceFile) -> None:
    """Raises DataError for what is another form than its name says. A plain text may be a web page."""
    if file.form in PACKED_INSIDE:
        return
    start = content.read(SNIFFED_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    content.seek(0)
    for beginning, what, hint in (*_BEGINNINGS, *(_WEB_PAGES if file.holds_rows else ())):
        if start[: len(beginning)].lower() == beginning.lower():
            raise DataError(f"this is {what}", where=file.label, hint=hint)
    if file.path.suffix.lower() in (".yaml", ".yml") and _YAML_ROWS.match(start):
        hint = "convert its rows to JSONL, or rename it to .txt to train on it as plain text"
        raise DataError("this is a list of rows in YAML", where=file.label, hint=hint)
    if file.form in ("csv", "tsv") and start[:1] in (b"{", b"[") and start[1:].lstrip()[:1] in (b"{", b'"', b"["):
        raise DataError("this is JSON, despite its name", where=file.label, hint="rename it to .json or .jsonl")


def named_file(path: Path, mode: int, label: str = "") -> SourceFile:
    """A file that somebody named. Raises DataError for one that cannot be read."""
    label = one_line(label or path.name)
    if not stat.S_ISREG(mode):
        raise DataError("not a regular file", where=label, hint="data.path must be a file, a folder or a glob")
    file = SourceFile(path=path, label=label, size_bytes=path.stat().st_size)
    refuse_unsupported(file)
    with open_bytes(file) as (_, content):  # raises now where it may not be read
        return _with_form_inside(file, content.read(_FORM_BYTES)) if file.is_looked_into else file


def _with_form_inside(file: SourceFile, head: bytes) -> SourceFile:
    found = form_of_content(head)
    return file if file.holds_rows and found != "conll" else replace(file, form_inside=found)


def refuse_unsupported(file: SourceFile) -> None:
    """Raises DataError for a form that nothing here reads."""
    if file.form == "unsupported":
        path = file.path
        ending = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
        what = f"{one_line(ending, 20)} files are not supported in this version"
        raise DataError(what, where=file.label, hint=SUPPORTED)


def candidate(path: Path, label: str) -> SourceFile | None:
    """A file that was met in a folder; None for what is no regular file. It is not opened."""
    try:
        facts = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return SourceFile(path=path, label=one_line(label), size_bytes=facts.st_size)


def usable(file: SourceFile) -> SourceFile | None:
    """Return a file that was not named itself, with the form of its content; None where it cannot be read.

    An unknown ending is settled by the first bytes.
    """
    if file.form == "unsupported":
        return None
    if not file.is_looked_into and file.holds_rows:
        return file
    key = (file.path, *file.size_and_time())
    if key not in _looked_at:
        try:
            with open_bytes(file) as (_, content):
                head = content.read(_FORM_BYTES)
                is_binary = b"\0" in head[:SNIFFED_BYTES]
                looked = _with_form_inside(file, head) if file.is_looked_into else file
                is_read = not (file.form == "unknown" and is_binary)
        except DataError:
            looked, is_read = file, file.form != "unknown"
        _looked_at[key] = is_read, looked.form_inside
    is_read, form = _looked_at[key]
    return replace(file, form_inside=form) if is_read else None
