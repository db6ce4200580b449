"""The last word on what is sent to a terminal that shows ASCII only."""

from __future__ import annotations

from rich.cells import split_graphemes
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter


class AsciiOnly(LineFilter):
    """Question marks of the same width for what ASCII does not have: typed, pasted and foreign text."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(in_ascii(text), style, control) for text, style, control in segments]


def in_ascii(text: str) -> str:
    if text.isascii():
        return text
    signs = ((text[start:end], width) for start, end, width in split_graphemes(text)[0])
    return "".join(sign if sign.isascii() else "?" * width for sign, width in signs)
