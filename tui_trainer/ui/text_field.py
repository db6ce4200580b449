"""One line of text that is being typed."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from tui_trainer.safe_text import one_line
from tui_trainer.ui.spans import Line

LIMIT_CHARACTERS = 4096


@dataclass
class TextField:
    """A text and where in it the next sign goes."""

    text: str = ""
    position: int = 0

    def __post_init__(self) -> None:
        self.position = len(self.text)

    def press(self, key: str, character: str | None) -> bool:
        """Take one key. Whether it was one for a text."""
        if key == "backspace" and self.position:
            self._replace(self.position - 1, self.position, "")
        elif key == "delete":
            self._replace(self.position, self.position + 1, "")
        elif key in ("left", "right"):
            self.position = min(max(self.position + (1 if key == "right" else -1), 0), len(self.text))
        elif key in ("home", "ctrl+a"):
            self.position = 0
        elif key in ("end", "ctrl+e"):
            self.position = len(self.text)
        elif key == "ctrl+u":
            self._replace(0, self.position, "")
        elif key == "ctrl+w":
            self._replace(self._word_start(), self.position, "")
        elif character is not None and character.isprintable():
            self.insert(character)
        else:
            return key == "backspace"
        return True

    def insert(self, text: str) -> None:
        """Put a text in, on one line; what came through a paste may hold anything."""
        room = LIMIT_CHARACTERS - len(self.text)
        self._replace(self.position, self.position, one_line(text.strip("\r\n"))[: max(room, 0)])

    def line(self, width: int) -> Line:
        """The part around the position in `width` cells, the sign under the cursor marked."""
        before, under, after = self.text[: self.position], self.text[self.position : self.position + 1], ""
        after = self.text[self.position + 1 :]
        before = before[-max(width - 2, 1) :]
        while cell_len(before) > max(width - 2, 1):
            before = before[1:]
        return [(before, "edit"), (under or " ", "cursor"), (after[: max(width - len(before) - 1, 0)], "edit")]

    def _replace(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]
        self.position = start + len(text)

    def _word_start(self) -> int:
        head = self.text[: self.position].rstrip()
        return head.rfind(" ") + 1
