"""Bytes into text: UTF-8 only, and what is said about bytes that are something else.

Line numbers are those of the file, from 1; byte offsets are those of the unpacked content, from 0.
"""

import codecs
from collections.abc import Iterator
from pathlib import PurePath
from typing import BinaryIO

from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import MIB, format_bytes

MAX_LINE_BYTES = 64 * MIB  # of one row: more than any text that is one document, and small beside a server's memory
CHUNK_BYTES = 1 * MIB
# What a text in them mostly holds beside ASCII, and how much of it: Cyrillic is written in small letters by one alone.
_KANA, _HANGUL, _HAN, _CYRILLIC = ("\u3040", "\u30ff"), ("\uac00", "\ud7a3"), ("\u4e00", "\u9fff"), ("\u0400", "\u045f")
_WESTERN, _FEWEST_LETTERS = "WINDOWS-1252", 2
_OTHER_ENCODINGS = (
    ("KOI8-R", (_CYRILLIC,), 0.9), ("WINDOWS-1251", (_CYRILLIC,), 0.9), ("EUC-JP", (_KANA,), 0.3),
    ("SHIFT_JIS", (_KANA,), 0.3), ("EUC-KR", (_HANGUL,), 0.8), ("GB18030", (_HAN,), 0.8), ("BIG5", (_HAN,), 0.8),
)  # fmt: skip
BYTE_ORDER_MARK = "\ufeff"
NEWLINE = b"\n"


def decoded(data: bytes, label: str, *, line: int, offset: int = 0) -> str:
    """`data` as UTF-8, without a byte order mark. `line` and `offset` are those of its first byte in the file."""
    try:
        return data.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise _not_utf8(data, error.start, label, line, offset) from None


def lines_of(
    content: BinaryIO, label: str, *, rows: bool = False, line: int = 0, offset: int = 0
) -> Iterator[tuple[int, bytes, int]]:
    """(line number, its bytes, its offset) of each line. Raises DataError for a line beyond MAX_LINE_BYTES, and for
    another encoding (`rows` as `refuse_other_encodings` has it). `line` and `offset`: how many lines and bytes of the
    file stand before `content`."""
    while raw_line := content.readline(MAX_LINE_BYTES + 1):
        line += 1
        if line == 1:
            refuse_other_encodings(raw_line, label, rows=rows)
        if len(raw_line) > MAX_LINE_BYTES:
            limit = format_bytes(MAX_LINE_BYTES)
            where = f"{label}, line {line}"
            raise DataError(f"the line is longer than {limit}", where=where, hint="split it into several rows")
        yield line, raw_line, offset
        offset += len(raw_line)


def text_lines_of(content: BinaryIO, label: str) -> Iterator[tuple[int, str]]:
    """(line number, the line) of each line of a text. Raises DataError for one that is no UTF-8, or holds a NUL."""
    for line, raw_line, offset in lines_of(content, label):
        if b"\0" in raw_line:
            what = f"a NUL byte at offset {offset + raw_line.index(0):,}, which a text cannot contain"
            raise DataError(what, where=f"{label}, line {line}", hint="remove it: tr -d '\\000'")
        yield line, decoded(raw_line, label, line=line, offset=offset)


def chunks_of(content: BinaryIO, label: str) -> Iterator[str]:
    """The whole as text, about a megabyte at a time, cut anywhere. Raises DataError with the line and the offset."""
    rest, line, offset = b"", 1, 0
    while True:
        data = content.read(CHUNK_BYTES)
        ended, data = not data, rest + data
        if offset == 0:
            refuse_other_encodings(data, label, rows=True)
        try:
            text, used = codecs.utf_8_decode(data, "strict", ended)
        except UnicodeDecodeError as error:
            raise _not_utf8(data, error.start, label, line, offset) from None
        yield text if offset else text.removeprefix(BYTE_ORDER_MARK)
        if ended:
            return
        rest, line, offset = data[used:], line + text.count("\n"), offset + used


def _not_utf8(data: bytes, start: int, label: str, line: int, offset: int) -> DataError:
    found = _encoding_of(data)
    named = "Windows-1252 or Latin-1" if found == _WESTERN else found
    return DataError(
        f"not UTF-8: 0x{data[start]:02x} at byte offset {offset + start:,}; probably {named}",
        where=f"{label}, line {line + data.count(NEWLINE, 0, start)}",
        hint=_converting(found, label),
    )


def _converting(encoding: str, label: str) -> str:
    name = PurePath(label).name
    return f"convert it: iconv -f {encoding} -t UTF-8 {shell_word(name)} > {shell_word(f'utf8-{name}')}"


def _encoding_of(data: bytes) -> str:
    """Return the likeliest encoding of a text that is not UTF-8, as iconv calls it, by the letters that come out."""
    data = b" ".join(word for word in data[: data.rfind(NEWLINE) + 1 or None].split() if not word.isascii())
    is_western = sum(map(str.isalpha, data.decode("ascii", "ignore"))) > sum(byte > 0x7F for byte in data) / 2
    for encoding, kinds, most in () if is_western else _OTHER_ENCODINGS:
        try:
            signs = [sign for sign in data.decode(encoding.lower()) if not sign.isascii()]
        except (UnicodeDecodeError, LookupError):
            continue
        letters = sum(any(first <= sign <= last for first, last in kinds) for sign in signs)
        small = sum(sign.islower() or not sign.isupper() for sign in signs)
        if letters > max(most * len(signs), _FEWEST_LETTERS) and small > len(signs) / 2:
            return encoding
    return _WESTERN


def refuse_other_encodings(data: bytes, label: str, *, rows: bool = False) -> None:
    """UTF-16 and UTF-32, and binary files. In rows, JSON itself refuses a lone NUL."""
    if wide := wide_encoding(data[:4096]):
        raise DataError(
            f"not UTF-8, from byte offset 0; probably {wide}",
            where=f"{label}, line 1",
            hint=_converting(wide, label),
        )
    if not rows and (position := data.find(b"\0")) >= 0:
        raise DataError(
            f"binary file: NUL byte at offset {position:,}",
            where=f"{label}, line {data.count(NEWLINE, 0, position) + 1}",
            hint="data.path must be a text file",
        )


def wide_encoding(head: bytes) -> str:
    """ "UTF-16" or "UTF-32" by the byte order mark or by where the zero bytes stand; "" for neither."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if len(head) < 8:
        return ""
    zeros = [4 * head[place::4].count(0) / len(head) for place in range(4)]
    mostly = [share > 0.8 for share in zeros]
    if sum(mostly) == 3 and min(zeros) < 0.2:
        return "UTF-32"
    return "UTF-16" if mostly in ([True, False] * 2, [False, True] * 2) and sum(zeros) < 2.4 else ""


def refuse_surrogates(text: str, where: str) -> None:
    """Half a character cannot be encoded, so no tokenizer takes it."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise DataError(
            f"lone surrogate (\\u{code:04x}, half a character) at character {error.start + 1} of the text",
            where=where,
        ) from None


def with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text
