"""What a screen is: a picture, and methods named as its actions are in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tui_trainer.ui.actions import PLACES, Action, Place
from tui_trainer.ui.spans import Line, fit

if TYPE_CHECKING:
    from tui_trainer.ui.workbench import Workbench


class Page:
    """One of the screens. An action `config.undo` calls `undo()` of the config page."""

    place: ClassVar[Place]

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench

    def picture(self, width: int, height: int) -> list[Line]:
        """Exactly `height` lines of exactly `width` cells."""
        glyphs = self.bench.glyphs
        lines = [fit(line, width, glyphs.ellipsis) for line in self.draw(width, height)[:height]]
        return lines + [fit([], width)] * (height - len(lines))

    def draw(self, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    @property
    def is_shown(self) -> bool:
        return PLACES[1:].index(self.place) == self.bench.current

    @property
    def is_typing(self) -> bool:
        """Whether keys are text now; then `press` gets them all."""
        return False

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        """`(key, what it does)` for the last line while `is_typing`."""
        return []

    def press(self, key: str, character: str | None) -> None:
        """A key while `is_typing`, or one that is no action."""

    def paste(self, text: str) -> None:
        """A pasted text."""

    def available(self, action: Action) -> bool:
        """Whether the action would do something now."""
        return True

    def why_not(self, action: Action) -> str:
        """Why an action does nothing now."""
        return f"{action.label}: nothing to do now"

    def label_of(self, action: Action) -> str:
        """What the footer calls the action now."""
        return action.label

    def tick(self) -> None:
        """Called once a second while the screen is shown."""

    def by_clock(self, width: int) -> object:
        """What the picture shows that changes without a key, an answer or news of the run, as it is drawn: to compare.

        Cheap beside the picture, which is not computed while this stays the same.
        """
        return ()
