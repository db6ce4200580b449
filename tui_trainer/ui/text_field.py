"""One line of text that is being typed, alone and with the keys of a dialog."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from tui_trainer.safe_text import one_line
from tui_trainer.ui.spans import Line

LIMIT_CHARACTERS = 4096


@dataclass(kw_only=True, slots=True)
class LineText:
    """One line of text. `cursor` is a place between characters, from 0 to the length of the text."""

    text: str = ""
    cursor: int = 0

    def type(self, characters: str) -> None:
        added = "".join(character for character in characters if character.isprintable())
        self.text = self.text[: self.cursor] + added + self.text[self.cursor :]
        self.cursor += len(added)

    def erase(self, *, word: bool = False) -> None:
        """Takes away what stands before the cursor: a character, or back to the beginning of a word or path part."""
        start = max(self.cursor - 1, 0)
        while word and start and not (self.text[start].isalnum() and not self.text[start - 1].isalnum()):
            start -= 1
        self.text, self.cursor = self.text[:start] + self.text[self.cursor :], start

    def erase_next(self) -> None:
        self.text = self.text[: self.cursor] + self.text[self.cursor + 1 :]

    def move(self, characters: int) -> None:
        """To the left (negative) or right; further than the end is the end."""
        self.cursor = min(max(self.cursor + characters, 0), len(self.text))

    def put(self, text: str) -> None:
        self.text, self.cursor = text, len(text)


class TextField(LineText):
    """A line of text with the keys that people know from a shell."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text=one_line(text), cursor=len(one_line(text)))

    def press(self, key: str, character: str | None) -> bool:
        """Take one key. Whether it was one for a text."""
        if key in ("backspace", "ctrl+w"):
            self.erase(word=key == "ctrl+w")
        elif key == "delete":
            self.erase_next()
        elif key in ("left", "right"):
            self.move(1 if key == "right" else -1)
        elif key in ("home", "ctrl+a", "end", "ctrl+e"):
            self.move(len(self.text) if key in ("end", "ctrl+e") else -len(self.text))
        elif key == "ctrl+u":
            self.text, self.cursor = self.text[self.cursor :], 0
        elif character is not None and character.isprintable():
            self.insert(character)
        else:
            return False
        return True

    def insert(self, text: str) -> None:
        """Put a text in, on one line; what came through a paste may hold anything."""
        room = max(LIMIT_CHARACTERS - len(self.text), 0)
        self.type(one_line(text.strip("\r\n"))[:room])

    def line(self, width: int) -> Line:
        """The part around the cursor in `width` cells, the sign under it marked."""
        before, under, after = self.text[: self.cursor], self.text[self.cursor : self.cursor + 1], ""
        after = self.text[self.cursor + 1 :]
        before = before[-max(width - 2, 1) :]
        while cell_len(before) > max(width - 2, 1):
            before = before[1:]
        return [(before, "edit"), (under or " ", "cursor"), (after[: max(width - len(before) - 1, 0)], "edit")]
