"""Make text safe to show that comes from data, models, files or other programs.

Such text may contain escape sequences that move the terminal's cursor, set its title or fill its clipboard (CWE-150).
They are replaced by visible signs without an effect."""

import re
import shlex

# C0 without \n and \t, DEL, C1, and characters that reorder or hide text (bidi controls, zero width, separators).
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_LINE_BREAKS = str.maketrans({"\n": "\u23ce", "\t": " "})


def show_control_characters(text: str) -> str:
    """Return `text` with visible signs instead of control characters. Line breaks and tabs are kept."""
    return _UNSAFE.sub(_sign, text)


def one_line(text: str, width: int = 0) -> str:
    """Return `text` on one line, with control characters made visible, cut to `width` characters (0: not cut)."""
    line = show_control_characters(text).translate(_LINE_BREAKS)
    return line[: width - 1] + "\u2026" if width and len(line) > width else line


def shell_word(text: str) -> str:
    """Return `text` as one word of a shell command, quoted if necessary."""
    return shlex.quote(one_line(text))


def escape_markdown(text: str) -> str:
    """Return `text` on one line with Markdown escaped, so that it cannot become a heading, link, table cell or HTML."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def _sign(match: re.Match[str]) -> str:
    code_point = ord(match[0])
    if code_point < 0x20:
        return chr(0x2400 + code_point)
    return "\u2421" if code_point == 0x7F else f"<U+{code_point:04X}>"
