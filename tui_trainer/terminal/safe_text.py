"""The one place through which foreign text passes before it is shown.

Text from data, models, files or other programs may hold escape sequences that move the cursor, set the title or fill
the clipboard of the terminal (CWE-150). Here they become visible signs and lose their effect.
"""

import re
import shlex

# C0 without \n and \t, DEL, C1, and the characters that reorder or hide text (bidi controls, zero width, separators).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_LINE_BREAKS = str.maketrans({"\n": "\u23ce", "\t": " "})


def visible(text: str) -> str:
    """`text` with control characters made visible; line breaks and tabs stay."""
    return _UNSAFE.sub(_sign, text)


def one_line(text: str, width: int = 0) -> str:
    """`visible(text)` on one line, cut to `width` characters (0: not cut)."""
    line = visible(text).translate(_LINE_BREAKS)
    return line[: width - 1] + "\u2026" if width and len(line) > width else line


def shell_word(text: str) -> str:
    """Return `text` as one word of a command that a person may copy: quoted where a shell would split it."""
    return shlex.quote(one_line(text))


def as_markdown(text: str) -> str:
    """On one line, with every sign of Markdown as itself: it cannot become a heading, a link, a cell or HTML."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"
