"""The list of recipes, with what each of them would change."""

from collections.abc import Callable, Iterable, Sequence

from textual.widget import Widget

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
from tui_trainer.ui.spans import Line, Role, fit, pad, paragraph, title_rule
from tui_trainer.ui.widgets.line_list import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.settings_table import MARK_CELLS, PRESET_CELLS, shortened, value_cells

LOW = 30
_HEAD: tuple[Role, Role, Role] = ("dim", "dim", "dim")


class RecipeChooser:
    """`preview` is what the chosen recipe would change, or None where `error` says why it cannot be taken."""

    def __init__(self, document: Document) -> None:
        """Raises ConfigError where a recipe cannot be read."""
        self.document, self.keep_own = document, True
        self.recipes = tuple(all_profiles("recipes").values())
        names = [recipe.name for recipe in self.recipes]
        self.chosen = names.index(document.recipe_name) if document.recipe_name in names else 0
        self.preview: RecipePreview | None = None
        self.error = ""
        self._look()

    @property
    def recipe(self) -> Profile:
        return self.recipes[self.chosen]

    def choose(self, place: int) -> None:
        """Another recipe, round the ends."""
        if place != self.chosen:
            self.chosen = place % len(self.recipes)
            self._look()

    def toggle_keep_own(self) -> None:
        self.keep_own = not self.keep_own
        self._look()

    def _look(self) -> None:
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
    RecipeDialog LineList { height: 8; }
    RecipeDialog.-low LineList { height: 5; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW, "-high")]  # noqa: RUF012

    def __init__(self, chooser: RecipeChooser, take: Callable[[RecipeChooser], None]) -> None:
        super().__init__()
        self._chooser, self._take = chooser, take

    def inside(self) -> Iterable[Widget]:
        chooser = self._chooser
        yield LineList(
            lambda place, width: recipe_line(chooser, place, width, self.glyphs),
            lambda: (len(chooser.recipes), chooser.chosen),
        )
        yield Pane(self._preview)

    def _preview(self, width: int, height: int) -> list[Line]:
        return preview_lines(self._chooser, width, height, self.glyphs, is_low=self.size.height < LOW)

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self._chooser.choose(message.place)
        if message.opens:
            self.app.simulate_key("enter")
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        chooser = self._chooser
        if key in ("up", "down", "j", "k"):
            chooser.choose(chooser.chosen + (1 if key in ("down", "j") else -1))
        elif key == "space":
            chooser.toggle_keep_own()
        elif key == "enter" and not chooser.error:
            self._take(chooser)
            return False
        return True


def recipe_line(chooser: RecipeChooser, place: int, width: int, glyphs: Glyphs) -> Line:
    """Name and title of one; the chosen one and that of now are marked."""
    one, is_chosen = chooser.recipes[place], place == chooser.chosen
    cells = max(len(one_line(recipe.name)) for recipe in chooser.recipes)
    now = "now" if one.name == chooser.document.recipe_name else "   "
    words = f"{glyphs.pointer if is_chosen else ' '} {one_line(one.name).ljust(cells)}  {now}  {one_line(one.title)}"
    line = fit([(words, "text")], width, glyphs.ellipsis)
    return [(text, "cursor") for text, _ in line] if is_chosen else line


def preview_lines(chooser: RecipeChooser, width: int, height: int, glyphs: Glyphs, *, is_low: bool) -> list[Line]:
    """The summary of the chosen recipe, and every setting that would change or stay.

    What would change has the most room. On a low screen what stays is only named.
    """
    recipe = chooser.recipe
    lines = paragraph(one_line(f"{chooser.chosen + 1} of {len(chooser.recipes)}: {recipe.summary}"), width)
    lines += paragraph(one_line(f"source: {recipe.source}"), width, "dim") if recipe.source and not is_low else []
    if chooser.preview is None:
        return [*lines, [], *paragraph(one_line(f"{glyphs.bad} {chooser.error}"), width, "bad")]
    changes, stays = chooser.preview.changes, chooser.preview.stays
    title = f"It changes {_settings(len(changes))}" if changes else "It changes nothing"
    note = "your own values stay" if chooser.keep_own else "your own values go"
    lines.append(title_rule(title, width, glyphs, note))
    with_it = f"with {one_line(recipe.name)}"
    changed = _table(("setting", "now", with_it), changes, ("text", "dim", "bold"), width, glyphs) if changes else []
    kept = _kept(chooser, stays, width, glyphs, names_only=is_low)[: max(height // 3, 1)]
    room = max(height - len(lines) - len(kept), 1 + bool(changes))
    if len(changed) > room:
        changed = [*changed[: room - 1], [(f"   {glyphs.ellipsis} and {len(changed) - room + 1} more", "dim")]]
    return [*lines, *changed, *kept]


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
    head = ("setting", "yours", f"{one_line(chooser.recipe.name)} says")
    return [title_rule(title, width, glyphs), *_table(head, stays, ("text", "bold", "dim"), width, glyphs)]


def _table(
    head: tuple[str, str, str], changes: Sequence[Change], roles: tuple[Role, Role, Role], width: int, glyphs: Glyphs
) -> list[Line]:
    """In the columns of the settings table, so that the eye need not look for them."""
    cells = value_cells(width, name_cells())
    settings = [all_settings()[change.key] for change in changes]
    rows = [(head, _HEAD)] + [
        ((one.name, display_text(one, change.old), display_text(one, change.new)), roles)
        for one, change in zip(settings, changes, strict=True)
    ]
    return [
        [
            (" " * MARK_CELLS + name.ljust(name_cells() + 1), name_role),
            (pad(shortened(old, cells, glyphs), cells + 1), old_role),
            (shortened(new, PRESET_CELLS, glyphs), new_role),
        ]
        for (name, old, new), (name_role, old_role, new_role) in rows
    ]


def _settings(count: int) -> str:
    return f"{count} setting" if count == 1 else f"{count} settings"
