"""One file of a source: the form that its name or content shows, and opening it without the risk of hanging."""

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
_sniffed: dict[tuple[Path, int, int], tuple[bool, "Form | None"]] = {}
"""Cache by (path, size, time) of whether a file is readable, and of the form that its content shows."""
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
SELF_COMPRESSED_FORMS = frozenset({"parquet", "arrow"})  # compressed internally, and read from the end
SUPPORTED = (
    "supported: plain text (.txt .md .rst .py and other text files), .jsonl .jsonlines .ndjson .json .csv .tsv "
    ".conll .conllu .conllx .bio .iob .iob2 .bioes, each also as .gz, .parquet .arrow .feather"
)


def form_of(path: PurePath) -> Form:
    """Return the form of a file that its name shows, such as "jsonl" for `x.jsonl` and for `x.jsonl.gz`."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    is_compressed = bool(endings) and endings[-1] == ".gz"
    if is_compressed:
        endings.pop()
    form = FORMS.get(endings[-1], "unknown") if endings else "unknown"
    return "unsupported" if is_compressed and form in SELF_COMPRESSED_FORMS else form


SNIFFED_BYTES = 4096
_FORM_BYTES = 1 << 16  # enough for one long row of a conversation
_SNIFFED_LINES = 20
_ALWAYS_TEXT = frozenset({".md", ".rst", ".py"})
_SEPARATED: tuple[tuple[Form, str], ...] = (("tsv", "\t"), ("csv", ","), ("csv", ";"))
_JSON_ROWS = re.compile(r'\s*(\[\s*\{\s*|\{\s*)"[^"\n]+"\s*:')
_YAML_ROWS = re.compile(rb"""(?:(?:#.*|---\s*)\n)*-\s+["']?\w[\w ]*["']?:\s""")
ENTITY_TAG = re.compile(r"O|[BIMELSU]-\S+")
_CONVERT_HINT = "convert the texts or rows to JSONL"
_LFS_POINTER, _LFS_BYTES = b"version https://git-lfs", 1024
# The first bytes of forms that a file may have despite its name.
_SIGNATURES = (
    (b"PK\x03\x04", "an Excel or a ZIP file", "save the table as CSV, or unpack the file"),
    (b"\xd0\xcf\x11\xe0", "an old Excel file", "save the file as CSV"),
    (b"%PDF", "a PDF", "extract the text into a text file"),
    (b"\x1f\x8b", "a gzip file", "rename the file to .gz"),
    (b"PAR1", "a Parquet file", "rename the file to .parquet"),
    (b"ARROW1", "an Arrow file", "rename the file to .arrow"),
    (b"sqlite format 3\0", "an SQLite database", "export the table to train on as CSV"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack the file: zstd -d"),
    (b"bzh9", "a bzip2 file", "unpack the file: bunzip2"),
    (b"\xfd7zxz\0", "an xz file", "unpack the file: unxz"),
    (b"7z\xbc\xaf", "a 7-Zip file", "unpack the file"),
    (b"\x89hdf", "an HDF5 file", _CONVERT_HINT),
    (b"\x93numpy", "a NumPy array", _CONVERT_HINT),
    (b"\x89png", "an image", _CONVERT_HINT),
    (b"\xff\xd8\xff", "an image", _CONVERT_HINT),
    (b"x\x9c", "a zlib-compressed file, such as spaCy's .spacy files", _CONVERT_HINT),
    *((bytes((0x80, version)), "a Python pickle, which can run code and is never opened", _CONVERT_HINT)
      for version in range(2, 6)),
)  # fmt: skip
# A plain text may begin with these, too.
_WEB_PAGES = (
    (b"<!doctype", "a web page, which often comes from a failed download", "download the file again"),
    (b"<html", "a web page, which often comes from a failed download", "download the file again"),
)


def form_of_content(head: bytes) -> Form | None:
    """Return the form of rows that the first bytes of a file show, or None for a plain text.

    `head` may end within a line, so its last line is ignored if it has several."""
    lines = head.decode("utf-8-sig", errors="ignore").splitlines()
    complete_lines = [line for line in (lines[:-1] if len(lines) > 1 else lines) if line.strip()][:_SNIFFED_LINES]
    if not complete_lines:
        return None
    if complete_lines[0].lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            if all(isinstance(json.loads(line), dict) for line in complete_lines):
                return "jsonl"
        return "json" if _JSON_ROWS.match("".join(complete_lines)) else None
    rows_of_fields = [line.split() for line in complete_lines if not line.startswith(("#", "-DOCSTART-"))]
    widths = {len(row) for row in rows_of_fields}
    if len(widths) == 1 and widths != {1} and all(ENTITY_TAG.fullmatch(row[-1]) for row in rows_of_fields):
        return "conll"
    for form, separator in _SEPARATED:
        names = {name.strip(' "').lower() for name in complete_lines[0].split(separator)}
        if len(names) < 2 or not names & HEADER_NAMES:
            continue
        header, *rows = table = list(csv.reader(complete_lines, delimiter=separator))
        # The last row may be incomplete, if a field continues in the next line.
        if rows and all(len(row) == len(header) for row in rows[: max(1, len(table) - 2)]):
            return form
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file to read. `label` is its name in messages and fingerprints; it is safe to show.

    `row_range`: (first row, end) if only a part of the rows is read; `size_bytes` is then the size of this part, and
    `whole_bytes` that of the file. A README.md may declare `features` (`Features.to_dict`), a `separator`, and a
    `header` that the table lacks. A file on the Hub has an address, `remote`, and the Hub's hash, `digest`."""

    path: Path
    label: str
    size_bytes: int
    row_range: tuple[int, int] | None = None
    whole_bytes: int = 0
    remote: str = ""
    digest: str = ""
    features: Mapping[str, Any] | None = field(default=None, hash=False)
    separator: str = ""
    header: tuple[str, ...] = ()
    form_inside: Form | None = None
    """Form of the content, if the file name does not show it."""
    label_of_folder: str | None = None
    """Class of a text, if each class has a folder of texts: the name of the folder. Empty for a README or the like next
    to these folders, which is not a row."""

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
    def is_sniffed(self) -> bool:
        """Whether the content has to show the form. That of a .tsv may be CoNLL: BioBERT's data has that name."""
        return self.form == "tsv" or not (self.holds_rows or self.path.suffix.lower() in _ALWAYS_TEXT)

    @property
    def whole(self) -> "SourceFile":
        return replace(self, row_range=None, size_bytes=self.whole_bytes) if self.row_range else self

    def size_and_time(self) -> tuple[int, int]:
        """Return the present (size, mtime in ns) of the file; mtime is 0 on the Hub. Raises DataError."""
        if self.remote:
            return self.size_bytes, 0
        try:
            status = self.path.stat()
        except OSError as error:
            raise DataError(f"can no longer be read: {system_reason(error)}", where=self.label) from None
        return status.st_size, status.st_mtime_ns


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file. Yield its raw stream, whose position shows how much was read, and its content, decompressed.

    Raises every failure as a DataError of one line. O_NONBLOCK: opening a FIFO must not wait for its writer."""
    label = file.label
    error_types: tuple[type[Exception], ...] = network_errors() if file.remote else (OSError,)
    try:
        with _open_raw(file) as raw:
            if not file.compressed:
                yield raw, raw
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield raw, unpacked  # type: ignore[misc]  # GzipFile reads like a BinaryIO, but is not typed as one
    except (gzip.BadGzipFile, zlib.error) as error:
        problem = f"not a valid gzip file ({one_line(str(error), 60)})"
        hint = "rename the file if it is not compressed, or download it again"
        raise DataError(problem, where=label, hint=hint) from None
    except EOFError:
        raise DataError("the gzip file is truncated", where=label, hint="download or copy the file again") from None
    except error_types as error:
        reason = network_reason(error) if file.remote else system_reason(error)
        hint = "data.streaming reads the file from the Hub; try again when online" if file.remote else ""
        raise DataError(f"cannot be read: {reason}", where=label, hint=hint) from None


class _Readable(FileIO):
    """A file that raises BlockingIOError where FileIO returns None: a file in /proc may have nothing to read yet."""

    def readinto(self, buffer: Any) -> int:
        count: int | None = super().readinto(buffer)
        return _not_none(count)

    def readall(self) -> bytes:
        return _not_none(super().readall())


def _not_none(result: T | None) -> T:
    if result is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return result


def _open_raw(file: SourceFile) -> BinaryIO:
    if file.remote:
        from huggingface_hub import HfFileSystem

        return BufferedReader(HfFileSystem().open(file.remote, "rb"))  # the readline of the Hub's file takes no limit
    open_flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    raw_file = BufferedReader(_Readable(os.open(file.path, open_flags)))
    try:
        status = os.fstat(raw_file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DataError("not a regular file", where=file.label)
        if status.st_size <= _LFS_BYTES and raw_file.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
            problem = "this is a Git LFS pointer, not the file itself"
            raise DataError(problem, where=file.label, hint="run `git lfs pull` in the folder of the file")
    except BaseException:
        raw_file.close()
        raise
    return raw_file


def refuse_disguised(content: BinaryIO, file: SourceFile) -> None:
    """Raise DataError if the content has another form than the file name shows. A plain text may be a web page."""
    if file.form in SELF_COMPRESSED_FORMS:
        return
    head = content.read(SNIFFED_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    content.seek(0)
    for beginning, kind_of_file, hint in (*_SIGNATURES, *(_WEB_PAGES if file.holds_rows else ())):
        if head[: len(beginning)].lower() == beginning.lower():
            raise DataError(f"this is {kind_of_file}", where=file.label, hint=hint)
    if file.path.suffix.lower() in (".yaml", ".yml") and _YAML_ROWS.match(head):
        hint = "convert the rows to JSONL, or rename the file to .txt to train on plain text"
        raise DataError("this is a list of rows in YAML", where=file.label, hint=hint)
    if file.form in ("csv", "tsv") and head[:1] in (b"{", b"[") and head[1:].lstrip()[:1] in (b"{", b'"', b"["):
        raise DataError("this is JSON, despite its name", where=file.label, hint="rename the file to .json or .jsonl")


def named_file(path: Path, mode: int, label: str = "") -> SourceFile:
    """Return a file that the user named, with its form. Raises DataError if it is unreadable or unsupported."""
    label = one_line(label or path.name)
    if not stat.S_ISREG(mode):
        raise DataError("not a regular file", where=label, hint="data.path must be a file, a folder or a glob")
    file = SourceFile(path=path, label=label, size_bytes=path.stat().st_size)
    refuse_unsupported(file)
    with open_bytes(file) as (_, content):  # opened even if not sniffed, so that it raises now if it is unreadable
        return _with_form_inside(file, content.read(_FORM_BYTES)) if file.is_sniffed else file


def _with_form_inside(file: SourceFile, head: bytes) -> SourceFile:
    form = form_of_content(head)
    return file if file.holds_rows and form != "conll" else replace(file, form_inside=form)


def refuse_unsupported(file: SourceFile) -> None:
    """Raise DataError for a file of an unsupported form."""
    if file.form == "unsupported":
        path = file.path
        extension = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
        problem = f"{one_line(extension, 20)} files are not supported in this version"
        raise DataError(problem, where=file.label, hint=SUPPORTED)


def find_regular_file(path: Path, label: str) -> SourceFile | None:
    """Return a file found in a folder, without opening it. None if it is not a regular file."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return SourceFile(path=path, label=one_line(label), size_bytes=status.st_size)


def sniff_readable_file(file: SourceFile) -> SourceFile | None:
    """Return a file found in a folder, with the form of its content; None if it cannot be read.

    If the extension is unknown, the first bytes decide on the form."""
    if file.form == "unsupported":
        return None
    if not file.is_sniffed and file.holds_rows:
        return file
    key = (file.path, *file.size_and_time())
    if key not in _sniffed:
        try:
            with open_bytes(file) as (_, content):
                head = content.read(_FORM_BYTES)
                is_binary = b"\0" in head[:SNIFFED_BYTES]
                sniffed_file = _with_form_inside(file, head) if file.is_sniffed else file
                is_readable = not (file.form == "unknown" and is_binary)
        except DataError:
            sniffed_file, is_readable = file, file.form != "unknown"
        _sniffed[key] = is_readable, sniffed_file.form_inside
    is_readable, form = _sniffed[key]
    return replace(file, form_inside=form) if is_readable else None
