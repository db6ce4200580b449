"""The list of what can be done: some letters of its name find it, Enter does it.

Not Textual's palette: keys that come faster than it opens, fills and closes end the application (8.2: a page key before
its list was drawn, Enter and a click at once, a letter before Escape)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.events import Key
from textual.fuzzy import FuzzySearch
from textual.widget import Widget

from tui_trainer.ui.dialogs import FieldDialog
from tui_trainer.ui.spans import Line, beside, fit, paragraph
from tui_trainer.ui.widgets.lists import LineList
from tui_trainer.ui.widgets.pane import Pane

_NAME_CELLS, _PAGE_LINES = 44, 10


@dataclass(frozen=True, slots=True)
class Command:
    """`name` is what letters are looked for in, `note` and `help` stand beside it. Texts were made safe before.

    `show` is done while it is the chosen one, to see what it would be like.
    """

    name: str
    help: str
    do: Callable[[], object]
    note: str = ""
    show: Callable[[], object] | None = None


def found(commands: Iterable[Command], letters: str, search: FuzzySearch) -> list[tuple[Command, Sequence[int]]]:
    """Those whose name has the letters in their order, the best first, with the places of the letters; then those
    whose help has the words. Without letters all of them, as they come."""
    letters = letters.strip()
    if not letters:
        return [(one, ()) for one in commands]
    named, helping = list[tuple[float, Command, Sequence[int]]](), list[tuple[Command, Sequence[int]]]()
    for one in commands:
        # Every way to find letters is tried: a long name is not looked through for a sentence.
        score, places = search.match(letters, one.name) if len(letters) <= len(one.name) else (0.0, ())
        if score > 0:
            named.append((score, one, places))
        elif letters.casefold() in one.help.casefold():
            helping.append((one, ()))
    named.sort(key=lambda hit: -hit[0])
    return [(one, places) for _, one, places in named] + helping


class Palette(FieldDialog):
    keys: Sequence[tuple[str, str]] = (("enter", "do it"), ("up down", "choose"), ("escape", "close"))

    def __init__(self, heading: str, commands: Sequence[Command], back: Callable[[], object] | None = None) -> None:
        """`back` is done where none is taken."""
        super().__init__("")
        self.heading, self._commands, self._back = heading, commands, back
        self._search, self._chosen = FuzzySearch(), 0
        self._hits = found(commands, "", self._search)

    def inside(self) -> Iterable[Widget]:
        yield self.field
        yield LineList(self._row, lambda: (len(self._hits), self._chosen), empty=lambda: "nothing has these letters")
        yield Pane(self._about, classes="about")

    def _row(self, place: int, width: int) -> Line:
        (command, letters), is_chosen = self._hits[place], place == self._chosen
        pointer = f"{self.glyphs.pointer if is_chosen else ' '}{self._mark_of(command)}"
        name: Line = [(letter, "accent" if at in letters else "text") for at, letter in enumerate(command.name)]
        gap = " " * max(min(_NAME_CELLS, width // 2) - cell_len(command.name), 2)
        note: Line = [(f" {command.note} ", "key")]
        line = beside(fit([(f"{pointer} ", "text"), *name, (gap, "text"), (command.help, "dim")],
                          width - cell_len(command.note) - 2, self.glyphs.ellipsis), note, width)  # fmt: skip
        return [(text, "cursor") for text, _ in line] if is_chosen else line

    def _mark_of(self, command: Command) -> str:
        """What stands before the name, beside the pointer."""
        return ""

    def _about(self, width: int, _: int) -> list[Line]:
        return paragraph(self._hits[self._chosen][0].help, width) if self._hits else []

    def on_input_changed(self) -> None:
        self._hits = found(self._commands, self.field.value, self._search)
        self._choose(0)

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self._choose(message.place)
        if message.opens:
            self.take()

    def _choose(self, place: int) -> None:
        self._chosen = max(min(place, len(self._hits) - 1), 0)
        if self._hits and (show := self._hits[self._chosen][0].show):
            show()
        if self.is_attached:
            self.redraw()

    def take(self) -> None:
        # Letters typed before the field was there have not been looked for yet.
        hits = found(self._commands, self.field.value, self._search)
        if hits:
            self._back = None
            self.close()
            hits[min(self._chosen, len(hits) - 1)][0].do()

    def close(self) -> None:
        super().close()
        if self._back is not None:
            back, self._back = self._back, None
            back()

    def take_key(self, event: Key) -> bool:
        steps = {"up": -1, "down": 1, "pageup": -_PAGE_LINES, "pagedown": _PAGE_LINES}
        if event.key in steps:
            self._choose(self._chosen + steps[event.key])
            return True
        return super().take_key(event)


class MarkingPalette(Palette):
    """Space marks up to `most` of them, and Enter takes those that are marked; with none marked anew the chosen one.

    `marked` are names, those that are taken now. `take_names` gets what is taken.
    """

    keys = (("enter", "draw"), ("space", "mark"), ("up down", "choose"), ("escape", "close"))

    def __init__(
        self, heading: str, commands: Sequence[Command], marked: Sequence[str], most: int,
        take_names: Callable[[list[str]], object],
    ) -> None:  # fmt: skip
        super().__init__(heading, commands)
        self._marked, self._before, self._most, self._take_names = list(marked), list(marked), most, take_names

    def _mark_of(self, command: Command) -> str:
        return self.glyphs.changed if command.name in self._marked else " "

    def take_key(self, event: Key) -> bool:
        if event.key != "space" or not self._hits:
            return super().take_key(event)
        name = self._hits[self._chosen][0].name
        if name in self._marked:
            self._marked.remove(name)
        else:
            # Of too many the one that was marked first goes.
            self._marked = [*self._marked, name][-self._most :]
        self.redraw()
        return True

    def take(self) -> None:
        hits = found(self._commands, self.field.value, self._search)
        names = self._marked
        if hits and (names == self._before or not names):
            names = [hits[min(self._chosen, len(hits) - 1)][0].name]
        if names:
            self.close()
            self._take_names(names)
