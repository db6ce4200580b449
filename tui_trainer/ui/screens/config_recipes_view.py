"""The list of recipes as lines, with what the chosen one would change."""

from __future__ import annotations

from collections.abc import Sequence

from tui_trainer.config.changes import Change
from tui_trainer.config.editing import display_text
from tui_trainer.config.load import all_settings
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.config_details import wrapped
from tui_trainer.ui.screens.config_recipes import RecipeChooser
from tui_trainer.ui.screens.config_table_view import (
    MARK_CELLS,
    PRESET_CELLS,
    name_cells,
    shortened,
    title_rule,
    value_cells,
)
from tui_trainer.ui.spans import Line, Role, pad

MOST_RECIPES, MOST_RECIPES_WHERE_LOW = 8, 5
LOW = 30
ROOMY = 120
Roles = tuple[Role, Role, Role]


def recipe_lines(chooser: RecipeChooser, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The recipes, the summary of the chosen one, and every setting that would change or stay.

    What would change has the most room. On a low screen fewer recipes are shown, and what stays is only named.
    """
    recipe, is_low = chooser.recipe, height < LOW
    lines = [*_names(chooser, width, MOST_RECIPES_WHERE_LOW if is_low else MOST_RECIPES, glyphs)]
    lines += [] if is_low else [[]]
    lines += _wrapped(recipe.summary, width, "text")
    lines += _wrapped(f"source: {recipe.source}", width, "dim") if recipe.source and width >= ROOMY else []
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


def _names(chooser: RecipeChooser, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """The recipes around the chosen one, under a title that says which of how many it is."""
    recipes = chooser.recipes
    place_words = f"{chooser.chosen + 1} of {len(recipes)}"
    lines = [title_rule("Choose a recipe", width, glyphs, place_words if len(recipes) > most else "")]
    cells = max(len(one_line(recipe.name)) for recipe in recipes)
    first = max(min(chooser.chosen - most // 2, len(recipes) - most), 0)
    for place, recipe in list(enumerate(recipes))[first : first + most]:
        chosen = place == chooser.chosen
        now = recipe.name == chooser.document.recipe_name
        text = f"{one_line(recipe.name).ljust(cells)}  {'now' if now else '   '}  {one_line(recipe.title)}"
        sign = glyphs.pointer if chosen else " "
        lines.append([(f"{sign} {text}".ljust(width), "cursor" if chosen else "text")])
    return lines


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
    cells = value_cells(width)
    return [
        (" " * MARK_CELLS + name.ljust(name_cells() + 1), roles[0]),
        (pad(shortened(old, cells, glyphs), cells + 1), roles[1]),
        (shortened(new, PRESET_CELLS, glyphs), roles[2]),
    ]


def _wrapped(text: str, width: int, role: Role) -> list[Line]:
    return [[(line, role)] for line in wrapped(text, width)]


def _at_most(lines: list[Line], height: int, glyphs: Glyphs) -> list[Line]:
    """As many as find room, the rest counted."""
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], [(f"   {glyphs.ellipsis} and {len(lines) - height + 1} more", "dim")]]


def _settings(count: int) -> str:
    return f"{count} setting" if count == 1 else f"{count} settings"
