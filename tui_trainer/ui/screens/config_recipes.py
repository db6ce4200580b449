"""The list of recipes, with what each of them would change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import OptionList

from tui_trainer.config.changes import Change, RecipePreview
from tui_trainer.config.document import Document
from tui_trainer.config.editing import display_text
from tui_trainer.config.load import all_settings
from tui_trainer.config.profiles import Profile, all_profiles
from tui_trainer.errors import ConfigError
from tui_trainer.safe_text import one_line
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_model import name_cells
from tui_trainer.ui.spans import Line, Role, pad, text_of, title_rule, wrapped
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.settings_table import MARK_CELLS, PRESET_CELLS, shortened, value_cells

LOW = 30
Roles = tuple[Role, Role, Role]


@dataclass(kw_only=True, slots=True)
class RecipeChooser:
    """`preview` is what the chosen recipe would change, or None where `error` says why it cannot be taken."""

    document: Document
    recipes: tuple[Profile, ...]
    chosen: int
    keep_own: bool = True
    preview: RecipePreview | None = None
    error: str = ""

    @classmethod
    def open(cls, document: Document) -> RecipeChooser | None:
        """None where there are no recipes, or one of them cannot be read."""
        try:
            recipes = tuple(all_profiles("recipes").values())
        except ConfigError:
            return None
        names = [recipe.name for recipe in recipes]
        chosen = names.index(document.recipe_name) if document.recipe_name in names else 0
        chooser = cls(document=document, recipes=recipes, chosen=chosen)
        chooser.look()
        return chooser if recipes else None

    @property
    def recipe(self) -> Profile:
        return self.recipes[self.chosen]

    def choose(self, place: int) -> None:
        """Another recipe, round the ends."""
        if place != self.chosen:
            self.chosen = place % len(self.recipes)
            self.look()

    def toggle_keep_own(self) -> None:
        self.keep_own = not self.keep_own
        self.look()

    def look(self) -> None:
        """What the chosen recipe would change now."""
        if not self.recipes:
            return
        try:
            self.preview, self.error = self.document.preview_recipe(self.recipe.name, keep_own=self.keep_own), ""
        except ConfigError as error:
            self.preview, self.error = None, str(error.problems[0])


class RecipeDialog(Dialog):
    """Choose a recipe, and see first what it would change. `take` gets the chooser when one is taken."""

    heading = "Choose a recipe"
    keys = (("enter", "take it"), ("up down", "choose"), ("space", "keep or drop own values"), ("escape", "back"))
    CSS = """
    RecipeDialog #box { width: 100%; height: 100%; }
    RecipeDialog OptionList { height: 8; scrollbar-size: 0 0; background: transparent;
                              text-wrap: nowrap; text-overflow: clip; }
    RecipeDialog.-low OptionList { height: 5; }
    RecipeDialog OptionList > .option-list--option-highlighted { text-style: reverse; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW, "-high")]  # noqa: RUF012

    def __init__(self, chooser: RecipeChooser, take: Callable[[RecipeChooser], None]) -> None:
        super().__init__()
        self._chooser, self._take = chooser, take

    def inside(self) -> Iterable[Widget]:
        recipes = OptionList(*recipe_texts(self._chooser, self.glyphs), markup=False, compact=True)
        recipes.can_focus = False
        recipes.highlighted = self._chooser.chosen
        yield recipes
        yield Pane(self._preview)

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self.call_after_refresh(self.query_one(OptionList).scroll_to_highlight)

    def _preview(self, width: int, height: int) -> list[Line]:
        return preview_lines(self._chooser, width, height, self.glyphs, is_low=self.size.height < LOW)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._chooser.choose(event.option_index)
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        chooser = self._chooser
        if key in ("up", "down", "j", "k"):
            chooser.choose(chooser.chosen + (1 if key in ("down", "j") else -1))
            self.query_one(OptionList).highlighted = chooser.chosen
        elif key == "space":
            chooser.toggle_keep_own()
        elif key == "enter" and not chooser.error:
            self._take(chooser)
            return False
        return True


def recipe_texts(chooser: RecipeChooser, glyphs: Glyphs) -> list[Text]:
    """One line for each recipe, the one of now marked."""
    cells = max(len(one_line(recipe.name)) for recipe in chooser.recipes)
    lines: list[Line] = [
        [(f"{one_line(one.name).ljust(cells)}  {'now' if one.name == chooser.document.recipe_name else '   '}"
          f"  {one_line(one.title)}", "text")]
        for one in chooser.recipes
    ]  # fmt: skip
    return [Text(text_of([line])) for line in lines]


def preview_lines(chooser: RecipeChooser, width: int, height: int, glyphs: Glyphs, *, is_low: bool) -> list[Line]:
    """The summary of the chosen recipe, and every setting that would change or stay.

    What would change has the most room. On a low screen what stays is only named.
    """
    recipe = chooser.recipe
    lines = _wrapped(f"{chooser.chosen + 1} of {len(chooser.recipes)}: {recipe.summary}", width, "text")
    lines += _wrapped(f"source: {recipe.source}", width, "dim") if recipe.source and not is_low else []
    if chooser.preview is None:
        return [*lines, [], *_wrapped(f"{glyphs.bad} {chooser.error}", width, "bad")]
    changes, stays = chooser.preview.changes, chooser.preview.stays
    title = f"It changes {_settings(len(changes))}" if changes else "It changes nothing"
    note = "your own values stay" if chooser.keep_own else "your own values go"
    lines.append(title_rule(title, width, glyphs, note))
    if changes:
        roles: Roles = ("dim", "dim", "dim")
        lines += [_columns("setting", "now", f"with {one_line(recipe.name)}", roles, width, glyphs)]
    kept = _kept(chooser, stays, width, glyphs, names_only=is_low)[: max(height // 3, 1)]
    room = max(height - len(lines) - len(kept), 1)
    changed = [_change(change, ("text", "dim", "bold"), width, glyphs) for change in changes]
    return [*lines, *_at_most(changed, room, glyphs), *kept]


def _kept(
    chooser: RecipeChooser, stays: Sequence[Change], width: int, glyphs: Glyphs, *, names_only: bool
) -> list[Line]:
    """The user's own values that the recipe would set otherwise, and does not."""
    if not stays:
        return []
    title = f"{_settings(len(stays))} of yours that it does not change"
    if names_only:
        names = ", ".join(all_settings()[change.key].name for change in stays)
        return [[(f"{title}: {names}", "dim")]]
    recipe = one_line(chooser.recipe.name)
    head = _columns("setting", "yours", f"{recipe} says", ("dim", "dim", "dim"), width, glyphs)
    rows = [_change(change, ("text", "bold", "dim"), width, glyphs) for change in stays]
    return [title_rule(title, width, glyphs), head, *rows]


def _change(change: Change, roles: Roles, width: int, glyphs: Glyphs) -> Line:
    setting = all_settings()[change.key]
    old, new = display_text(setting, change.old), display_text(setting, change.new)
    return _columns(setting.name, old, new, roles, width, glyphs)


def _columns(name: str, old: str, new: str, roles: Roles, width: int, glyphs: Glyphs) -> Line:
    """Where the columns of the table stand, so that the eye need not look for them."""
    cells = value_cells(width, name_cells())
    return [
        (" " * MARK_CELLS + name.ljust(name_cells() + 1), roles[0]),
        (pad(shortened(old, cells, glyphs), cells + 1), roles[1]),
        (shortened(new, PRESET_CELLS, glyphs), roles[2]),
    ]


def _wrapped(text: str, width: int, role: Role) -> list[Line]:
    return [[(line, role)] for line in wrapped(one_line(text), width)]


def _at_most(lines: list[Line], height: int, glyphs: Glyphs) -> list[Line]:
    """As many as find room, the rest counted."""
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], [(f"   {glyphs.ellipsis} and {len(lines) - height + 1} more", "dim")]]


def _settings(count: int) -> str:
    return f"{count} setting" if count == 1 else f"{count} settings"
