"""The files that a path names, their documents, and the errors for files that cannot be used."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path

import pytest

from tui_trainer.data import decoding
from tui_trainer.data.sources import reading, source_file
from tui_trainer.data.sources.source import open_source
from tui_trainer.data.sources.source_file import SourceFile
from tui_trainer.errors import DataError

GOOD_ROW = b'{"text": "fine"}\n'


def texts(path: Path | str, **options) -> list[str]:
    return [document.text for document in open_source(str(path), **options).documents()]


def complaint(path: Path | str) -> DataError:
    with pytest.raises(DataError) as caught:
        texts(path)
    assert all("\n" not in str(problem) for problem in caught.value.problems)
    return caught.value


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_text_files_and_rows_are_documents(tmp_path, subtests):
    for name in ["a.txt", "a.md", "a.rst", "a.py", "a.log", "LICENSE", "a.txt.gz"]:
        with subtests.test(name=name):
            assert texts(write(tmp_path / name, "één\ntwee\n".encode())) == ["één\ntwee\n"]
    # A row is one document with its line.
    for name in ["a.jsonl", "a.ndjson", "a.jsonl.gz"]:
        with subtests.test(name=name):
            path = write(tmp_path / name, b'{"text": "one"}\n\n  \n{"x": 1, "text": "two"}')
            found = list(open_source(str(path)).documents())
            assert [(document.text, document.where) for document in found] == [
                ("one", f"{name}, line 1"),
                ("two", f"{name}, line 4"),
            ]
    # Documents can be read several times.
    source = open_source(str(write(tmp_path / "a.jsonl", GOOD_ROW * 3)))
    assert list(source.documents()) == list(source.documents())
    assert len(list(source.documents())) == 3


def test_byte_order_marks_and_windows_line_ends_change_nothing(tmp_path, subtests):
    for name in ["a.txt", "a.jsonl"]:
        with subtests.test(name=name):
            plain = b"one\ntwo\n" if name == "a.txt" else b'{"text": "one\\ntwo"}\n{"text": "3"}\n'
            clean = texts(write(tmp_path / name, plain))
            assert texts(write(tmp_path / name, b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))) == clean
    # Windows line ends inside a row become plain.
    assert texts(write(tmp_path / "a.jsonl", b'{"text": "one\\r\\ntwo"}')) == ["one\ntwo"]
    # A line separator inside a row does not end it.
    assert texts(write(tmp_path / "a.jsonl", '{"text": "a\u2028b\x85c"}\n'.encode())) == ["a\u2028b\x85c"]


def test_a_folder_gives_its_usable_files_in_order_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.md", "a/.hidden.txt", ".git/x.txt", "c.csv", "d.notes", "e.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, GOOD_ROW)
    write(tmp_path / "picture.png", b"\x89PNG\0\0\0\0")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.txt")
    source = open_source(str(tmp_path))
    found = [str(path.relative_to(tmp_path)) for path in source.files]
    assert found == ["a/z.md", "b.txt", "c.csv", "d.notes", "e.jsonl"]
    assert source.bytes_on_disk == 5 * len(GOOD_ROW)


def test_a_glob_gives_its_matches_unless_a_file_has_that_name(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        write(tmp_path / name, name.encode())
    assert texts(tmp_path / "*.txt") == ["a.txt", "b.txt"]
    # A file whose name looks like a glob is that file.
    write(tmp_path / "a1.txt", b"wrong")
    assert texts(write(tmp_path / "a[1].txt", b"right")) == ["right"]


def test_blank_files_beside_others_are_accepted(tmp_path):
    write(tmp_path / "__init__.py", b"")
    write(tmp_path / "code.py", b"x = 1\n")
    assert texts(tmp_path) == ["", "x = 1\n"]


# `tests/test_bad_input.py` has the common mistakes.
BROKEN_FILES = {
    "rows of empty text": ("a.jsonl", b'{"text": " "}\n', "contains no text"),
    "parquet in a gz": ("a.parquet.gz", b"PAR1", ".parquet.gz files are not supported"),
    "latin-1 after a mark": ("a.txt", b"\xef\xbb\xbfcaf\xe9", "line 1: the text is not UTF-8 (0xe9 at byte offset 6"),
    "utf-16 without mark": ("a.txt", "hello there".encode("utf-16-be"), "probably UTF-16"),
    "utf-32": ("a.txt", "hello there".encode("utf-32-le"), "probably UTF-32"),
    "utf-16 rows": ("a.jsonl", '{"text": "x"}\n'.encode("utf-16"), "probably UTF-16"),
    "two objects": ("a.jsonl", b'{"text": "a"}{"text": "b"}\n', "expected one JSON object per line"),
    "number": ("a.jsonl", b"12\n", "the row is a number, not an object"),
    "no column": ("a.jsonl", b'{"n": 5, "id\\u001b": 1}\n', "no column holds text; columns found: n, id\u241b"),
    "no columns": ("a.jsonl", b"{}\n", "columns found: none"),
    "a row without": ("a.jsonl", GOOD_ROW + b'{"n": 5}\n', "line 2: the row has no column 'text'; columns found: n"),
    "object as text": ("a.jsonl", b'{"text": {}}\n', "the column 'text' is an object, not a string"),
    "lone raw surrogate": ("a.jsonl", b'{"text": "\xed\xa0\x80"}\n', "not UTF-8"),
}


def test_a_broken_file_is_reported_in_one_sentence(tmp_path, subtests):
    for number, (case, (name, content, message)) in enumerate(BROKEN_FILES.items()):
        with subtests.test(case):
            (folder := tmp_path / str(number)).mkdir()
            error = complaint(write(folder / name, content))
            assert message in str(error)
            assert len(error.problems) == 1


def test_a_broken_gz_file_is_reported(tmp_path, subtests):
    for content, message in [(b"plain text", "not a valid gzip file"), (b"", "contains no text")]:
        with subtests.test(message=message):
            (tmp_path / "a.txt.gz").write_bytes(content)
            assert message in str(complaint(tmp_path / "a.txt.gz"))
    # A truncated gz file is reported.
    for name in ["a.txt.gz", "a.jsonl.gz"]:
        with subtests.test(name=name):
            rows = [json.dumps({"text": os.urandom(40).hex()}).encode() for _ in range(200)]
            whole = gzip.compress(b"\n".join(rows))
            (tmp_path / name).write_bytes(whole[: len(whole) // 2])
            assert "truncated" in str(complaint(tmp_path / name))
    # A damaged gz file is reported.
    whole = bytearray(gzip.compress(os.urandom(4000).hex().encode()))
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "a.txt.gz").write_bytes(whole)
    assert "not a valid gzip file" in str(complaint(tmp_path / "a.txt.gz"))


def test_messages_quote_files_and_json_without_control_characters(tmp_path):
    message = str(complaint(write(tmp_path / "a.jsonl", b'{"text": "' + b"x" * 200 + b'" \x1b[2J oops}\n')))
    assert "oops" in message
    assert "\x1b" not in message
    assert len(message.split("\u00ab")[1].split("\u00bb")[0]) <= 40
    # A file name is shown without control characters.
    path = tmp_path / "a\x1b[2J\n.txt"
    assert "a\u241b[2J\u23ce.txt" in str(complaint(write(path, b"\xff")))


def test_equal_problems_are_reported_once_and_five_kinds_are_shown(tmp_path):
    error = complaint(write(tmp_path / "a.jsonl", b'{"text": 1}\n' * 25))
    assert [problem.where for problem in error.problems] == ["a.jsonl, line 1 (all 25 rows)"]
    lines = (b'{"text": 1}\n', b'{"text": "\\ud800"}\n', b"[1]\n", b"null\n", b"oops\n", b'{"a": 1}\n')
    error = complaint(write(tmp_path / "a.jsonl", b"".join(lines * 4)))
    assert {problem.where for problem in error.problems[:-1]} == {
        f"a.jsonl, line {n} (4 times, also {n + 6}, {n + 12}, ...)" for n in range(1, 6)
    }
    assert str(error.problems[-1]) == "and 4 other problems"
    # Problems of several files are reported together.
    write(tmp_path / "a.jsonl", b"oops\n")
    write(tmp_path / "b.txt", b"\xff")
    assert [problem.where for problem in complaint(tmp_path).problems] == ["a.jsonl, line 1", "b.txt, line 1"]


def test_the_character_limit_cuts_the_last_document(tmp_path):
    source = open_source(str(write(tmp_path / "a.jsonl", GOOD_ROW * 5)))
    assert [document.text for document in source.documents(max_chars=6)] == ["fine", "fi"]
    # Problems before the limit are reported.
    path = write(tmp_path / "a.jsonl", b"oops\n" + GOOD_ROW * 5)
    with pytest.raises(DataError, match="line 1: broken JSON"):
        list(open_source(str(path)).documents(max_chars=6))


def test_limits_of_lines_and_unpacked_files_are_enforced(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "MAX_LINE_BYTES", 100)
    path = write(tmp_path / "a.jsonl", GOOD_ROW + b'{"text": "' + b"x" * 100 + b'"}\n')
    assert "a.jsonl, line 2: the line is longer than 100 B" in str(complaint(path))
    # A gzip bomb is refused.
    monkeypatch.setattr(reading, "MAX_DOCUMENT_BYTES", 1000)
    assert "the document is larger than 1000 B" in str(complaint(write(tmp_path / "a.txt.gz", b"x" * 100_000)))


USELESS_PATHS = [
    ("", "no data is set"),
    ("nothing.txt", "there is no file or folder"),
    ("*.txt", "no usable file"),
    ("folder", ".docx files are not supported in this version: a.docx"),
    ("hollow", "nothing was found"),
    ("pipe", "not a regular file"),
    ("/dev/zero", "not a regular file"),
    ("link.jsonl", "'link.jsonl' is a broken link"),
    ("x" * 300, "cannot be opened"),
    ("sub\0x", "no data is set"),
    ("~nobody-of-this-name/x.txt", "there is no file or folder"),
    ("half \ud800", "cannot be opened: not a file name"),
]


def test_a_path_without_usable_data_is_reported(tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "hollow").mkdir()
    write(tmp_path / "folder" / "a.docx", b"x")
    write(tmp_path / "folder" / "b.docx", b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    for path, message in USELESS_PATHS:
        with subtests.test(f"{path[:20]!r}"):
            assert message in str(complaint(path))


def test_a_file_that_became_a_pipe_after_it_was_opened_does_not_hang(tmp_path):
    source = open_source(str(write(tmp_path / "a.txt", b"x")))
    (tmp_path / "a.txt").unlink()
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(DataError, match="not a regular file"):
        list(source.documents())


def test_a_file_without_read_permission_is_reported(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", b"x")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert "a.txt: cannot be read: Permission denied" in str(complaint(path))


def test_the_fingerprint_depends_on_content_and_names(tmp_path):
    def fingerprint(name: str, content: bytes) -> str:
        folder = tmp_path / name.replace(".", "-") / str(len(content))
        folder.mkdir(parents=True, exist_ok=True)
        return open_source(str(write(folder / name, content))).fingerprint()

    first = fingerprint("a.txt", b"one")
    assert len(first) == 32
    assert fingerprint("a.txt", b"one") == first
    assert fingerprint("a.txt", b"other") != first
    assert fingerprint("b.txt", b"one") != first
    # A file is hashed again only after it changed.
    path = write(tmp_path / "a.txt", b"x" * 1000)
    reports: list[float] = []
    source = open_source(str(path))
    first = source.fingerprint()
    path.write_bytes(b"y" * 1000)
    os.utime(path, ns=(1, 1))
    assert source.fingerprint(lambda _what, done, _total, _unit: reports.append(done)) != first
    assert reports[-1] == 1000


def test_progress_ends_at_the_size_of_the_source(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD_ROW * 2000)
    reports: list[tuple[str, float, float | None, str]] = []
    list(open_source(str(path)).documents(lambda *report: reports.append(report)))
    assert reports[-1] == ("reading the data", len(GOOD_ROW) * 2000, len(GOOD_ROW) * 2000, "bytes")
    assert len(reports) < 100


def test_the_sample_is_read_without_repeats():
    found = list(open_source("sample:python-reference").documents())
    together = "\0".join(document.text for document in found)
    assert len(found) > 30
    assert found[0].where.startswith("topic '")
    assert all(together.count(document.text) == 1 for document in found)
    assert len({document.where for document in found}) == len(found)
    # A misspelt sample is corrected.
    with pytest.raises(DataError, match="did you mean sample:python-reference"):
        open_source("sample:python-referense")


def test_a_network_failure_while_reading_is_reported_in_one_sentence(monkeypatch):
    from huggingface_hub import errors

    class Breaks(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _: object) -> int:
            raise errors.HfHubHTTPError.__bases__[0]("the server went away\nin the middle")

    monkeypatch.setattr(source_file, "_open_raw", lambda _: io.BufferedReader(Breaks()))
    remote = SourceFile(path=Path("hf:/a.jsonl"), label="o/n/a.jsonl", size_bytes=9, remote="hf://a.jsonl", digest="0")
    message = r"o/n/a.jsonl: cannot be read: the server went away; data.streaming"
    with pytest.raises(DataError, match=message), source_file.open_bytes(remote) as (_, content):
        content.read(9)
