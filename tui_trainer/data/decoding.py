"""Decoding of bytes as UTF-8, and errors that name the likely encoding of other bytes.

Line numbers count from 1 in the file. Byte offsets count from 0 in the decompressed content.
"""

import codecs
from collections.abc import Iterator
from pathlib import PurePath
from typing import BinaryIO

from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import MIB, format_bytes

MAX_LINE_BYTES = 64 * MIB  # of one row: longer than any single document, and a small part of a server's memory
CHUNK_BYTES = 1 * MIB
# For each encoding, the scripts of its letters, and their least share in a text that shows it. KOI8-R and WINDOWS-1251
# both give Cyrillic letters, but only the right one of the two gives mostly lower-case letters.
_KANA, _HANGUL, _HAN, _CYRILLIC = ("\u3040", "\u30ff"), ("\uac00", "\ud7a3"), ("\u4e00", "\u9fff"), ("\u0400", "\u045f")
_WESTERN, _FEWEST_LETTERS = "WINDOWS-1252", 2
_OTHER_ENCODINGS = (
    ("KOI8-R", (_CYRILLIC,), 0.9), ("WINDOWS-1251", (_CYRILLIC,), 0.9), ("EUC-JP", (_KANA,), 0.3),
    ("SHIFT_JIS", (_KANA,), 0.3), ("EUC-KR", (_HANGUL,), 0.8), ("GB18030", (_HAN,), 0.8), ("BIG5", (_HAN,), 0.8),
)  # fmt: skip
BYTE_ORDER_MARK = "\ufeff"
NEWLINE = b"\n"


def decode_utf8(data: bytes, label: str, *, line: int, offset: int = 0) -> str:
    """Decode UTF-8 and drop a byte order mark. `line` and `offset` say where `data` begins in the file, for errors."""
    try:
        return data.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise _not_utf8(data, error.start, label, line, offset) from None


def lines_of(
    content: BinaryIO, label: str, *, rows: bool = False, line: int = 0, offset: int = 0
) -> Iterator[tuple[int, bytes, int]]:
    """Yield the number, the bytes and the offset of each line. Raises DataError for a line beyond MAX_LINE_BYTES, and
    for other encodings (see `refuse_other_encodings` for `rows`). `line` and `offset` count what precedes `content`."""
    while raw_line := content.readline(MAX_LINE_BYTES + 1):
        line += 1
        if line == 1:
            refuse_other_encodings(raw_line, label, rows=rows)
        if len(raw_line) > MAX_LINE_BYTES:
            limit_text = format_bytes(MAX_LINE_BYTES)
            where = f"{label}, line {line}"
            raise DataError(f"the line is longer than {limit_text}", where=where, hint="split the line")
        yield line, raw_line, offset
        offset += len(raw_line)


def text_lines_of(content: BinaryIO, label: str) -> Iterator[tuple[int, str]]:
    """Yield each line of a text with its number. Raises DataError for a line with a NUL byte, or not in UTF-8."""
    for line_number, raw_line, offset in lines_of(content, label):
        if b"\0" in raw_line:
            problem = f"the line has a NUL byte at byte offset {offset + raw_line.index(0):,}"
            raise DataError(problem, where=f"{label}, line {line_number}", hint="remove NUL bytes: tr -d '\\000'")
        yield line_number, decode_utf8(raw_line, label, line=line_number, offset=offset)


def chunks_of(content: BinaryIO, label: str) -> Iterator[str]:
    """Yield the text in pieces of about a megabyte, split at any character. Raises DataError if it is not UTF-8."""
    undecoded, line_number, offset = b"", 1, 0
    while True:
        data = content.read(CHUNK_BYTES)
        is_last, data = not data, undecoded + data
        if offset == 0:
            refuse_other_encodings(data, label, rows=True)
        try:
            text, decoded_bytes = codecs.utf_8_decode(data, "strict", is_last)
        except UnicodeDecodeError as error:
            raise _not_utf8(data, error.start, label, line_number, offset) from None
        yield text if offset else text.removeprefix(BYTE_ORDER_MARK)
        if is_last:
            return
        undecoded, line_number, offset = data[decoded_bytes:], line_number + text.count("\n"), offset + decoded_bytes


def _not_utf8(data: bytes, start: int, label: str, line: int, offset: int) -> DataError:
    encoding = _encoding_of(data)
    encoding_names = "Windows-1252 or Latin-1" if encoding == _WESTERN else encoding
    return DataError(
        f"the text is not UTF-8 (0x{data[start]:02x} at byte offset {offset + start:,}), but probably {encoding_names}",
        where=f"{label}, line {line + data.count(NEWLINE, 0, start)}",
        hint=_converting(encoding, label),
    )


def _converting(encoding: str, label: str) -> str:
    name = PurePath(label).name
    return f"convert the file: iconv -f {encoding} -t UTF-8 {shell_word(name)} > {shell_word(f'utf8-{name}')}"


def _encoding_of(data: bytes) -> str:
    """Return the name, as of iconv, of the likeliest encoding of a text that is not UTF-8, judging by its letters."""
    data = b" ".join(word for word in data[: data.rfind(NEWLINE) + 1 or None].split() if not word.isascii())
    is_western = sum(map(str.isalpha, data.decode("ascii", "ignore"))) > sum(byte > 0x7F for byte in data) / 2
    for encoding, scripts, least_share in () if is_western else _OTHER_ENCODINGS:
        try:
            characters = [character for character in data.decode(encoding.lower()) if not character.isascii()]
        except (UnicodeDecodeError, LookupError):
            continue
        is_letter = (any(first <= character <= last for first, last in scripts) for character in characters)
        letter_count = sum(is_letter)
        lower_count = sum(character.islower() or not character.isupper() for character in characters)
        if letter_count > max(least_share * len(characters), _FEWEST_LETTERS) and lower_count > len(characters) / 2:
            return encoding
    return _WESTERN


def refuse_other_encodings(data: bytes, label: str, *, rows: bool = False) -> None:
    """Raise DataError for UTF-16, UTF-32 and binary files. With `rows`, NUL bytes are left to the JSON parser."""
    if encoding := wide_encoding(data[:4096]):
        problem = f"the text is not UTF-8, but probably {encoding}"
        raise DataError(problem, where=f"{label}, line 1", hint=_converting(encoding, label))
    if not rows and (position := data.find(b"\0")) >= 0:
        problem = f"the file is binary: it has a NUL byte at byte offset {position:,}"
        hint = "data.path must be a text file"
        raise DataError(problem, where=f"{label}, line {data.count(NEWLINE, 0, position) + 1}", hint=hint)


def wide_encoding(head: bytes) -> str:
    """Return "UTF-16" or "UTF-32" if a byte order mark or the positions of zero bytes show it, else ""."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if len(head) < 8:
        return ""
    zero_shares = [4 * head[position::4].count(0) / len(head) for position in range(4)]
    is_zero = [share > 0.8 for share in zero_shares]
    if sum(is_zero) == 3 and min(zero_shares) < 0.2:
        return "UTF-32"
    return "UTF-16" if is_zero in ([True, False] * 2, [False, True] * 2) and sum(zero_shares) < 2.4 else ""


def refuse_surrogates(text: str, where: str) -> None:
    """Raise DataError for half a character (a lone surrogate): it cannot be encoded, so no tokenizer accepts it."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code_point = ord(text[error.start])
        subject = f"character {error.start + 1} of the text"
        problem = f"{subject} is a lone surrogate (\\u{code_point:04x}, half a character)"
        raise DataError(problem, where=where) from None


def with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text
