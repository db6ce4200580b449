"""The list of recipes on the Config screen, with the settings that each recipe would change."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from textual.events import Key

from tui_trainer.config.changes import Change, RecipePreview
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.editing import display_text
from tui_trainer.config.load import LoadedConfig, all_settings, flatten
from tui_trainer.config.toml_files import Profile, all_profiles
from tui_trainer.errors import ConfigError
from tui_trainer.tasks import find_task, task_names
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import SearchDialog
from tui_trainer.ui.search import match
from tui_trainer.ui.spans import Glyphs, Line, Role, change_lines, paragraph, title_rule
from tui_trainer.ui.workbench import Workbench, fitting_words
from tui_trainer.units import quantity

_Fits = Mapping[str, tuple[LoadedConfig | None, str]]
_FITS: Final = "recipes that fit"


class RecipeDialog(SearchDialog[str | Profile]):
    """List of the recipes by task. Recipes that fit the user's model and data come first."""

    heading = "Choose a recipe"

    def __init__(self, bench: Workbench, document: ConfigDocument, name: str) -> None:
        """Create the list with the recipe `name` chosen. Raises ConfigError if a recipe cannot be read."""
        super().__init__(is_heading=lambda row: isinstance(row, str), wraps=True)
        self._bench, self._document, self._keeps_user_settings = bench, document, True
        self.field.placeholder = "name, title or task"
        self._recipes = all_profiles("recipes")
        self.recipe = self._recipes.get(name) or next(iter(self._recipes.values()))
        """Chosen recipe. The filter may hide it."""
        self._fits: _Fits | None = None
        """By recipe: the config with it, and why it does not fit (empty if it fits). None until computed."""
        self._chosen_fit: _Fits = {}
        self._preview: RecipePreview | None = None
        self._error = ""
        self._find_fits()

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        tab_label = "drop my values" if self._keeps_user_settings else "keep my values"
        return (("enter", "select"), ("up down", "choose"), ("tab", tab_label), ("escape", "back"))

    def misfit(self, name: str) -> str:
        """Return why a recipe does not fit the user's model and data; empty if it fits, or until that is known."""
        return (self._fits or {}).get(name, (None, ""))[1]

    @property
    def waiting(self) -> str:
        """Text about the work that the preview and the order wait for; empty when both are final."""
        config = self._document.unfitted
        return f"finding recipes that fit: {fitting_words(config)}" if config and self._fits is None else ""

    def live_state(self) -> object:
        return self.waiting

    def _find_fits(self) -> None:
        """Compute in the background the config with each recipe, and whether the recipe fits the model and the data."""
        document, keeps_own = self._document, self._keeps_user_settings

        def find(names: Sequence[str]) -> dict[str, tuple[LoadedConfig | None, str]]:
            from tui_trainer.launching.fitted_presets import misfit
            from tui_trainer.launching.open_run import fit_presets

            fits: dict[str, tuple[LoadedConfig | None, str]] = {}
            for name in names:
                fits[name] = None, "a value of the recipe is not valid for its setting"
                try:
                    if recipe_config := document.with_recipe(name, keep_own=keeps_own):
                        fitted_config = fit_presets(recipe_config)
                        fits[name] = fitted_config, misfit(fitted_config)
                except ConfigError as error:
                    fits[name] = None, error.problems[0].message
            return fits

        def show(fits: _Fits | None, chosen_fit: _Fits) -> None:
            self._fits, self._chosen_fit = fits, chosen_fit
            self.list_matches()
            self.choose(self.list.place)

        show(None, {})
        # The chosen recipe is computed first, so that its preview does not wait for the others.
        work = partial(find, (self.recipe.name,))
        run_work = self._bench.background.run_work
        run_work("chosen recipe", work, lambda fits: show(None, fits), _FITS)
        work = partial(find, tuple(name for name in self._recipes if name != self.recipe.name))
        run_work(_FITS, work, lambda fits: show({**self._chosen_fit, **fits}, self._chosen_fit), _FITS)

    def list_matches(self) -> None:
        by_task = {name: list[Profile]() for name in task_names()}
        for recipe in self._recipes.values():
            task = self._task_of(recipe)
            if match(self.field.value, f"{recipe.name} {recipe.title} {task} {find_task(task).title}"):
                by_task[task].append(recipe)
        for recipes in by_task.values():
            recipes.sort(key=lambda recipe: bool(self.misfit(recipe.name)))
        tasks = sorted(filter(by_task.get, by_task), key=lambda name: bool(self.misfit(by_task[name][0].name)))
        rows: list[str | Profile] = []
        for name in tasks:
            rows += [find_task(name).title, *by_task[name]]
        # If the chosen recipe is hidden, row 1 is chosen, because row 0 is the title of a task.
        self.list.show(rows, next((index for index, row in enumerate(rows) if row is self.recipe), 1))

    def _task_of(self, recipe: Profile) -> str:
        """Return the task that a run with this recipe would have; until that is computed, the task in the recipe."""
        loaded_config = (self._fits or {}).get(recipe.name, (None, ""))[0]
        task = loaded_config.config.task.type if loaded_config else flatten(recipe.values, "", []).get("task.type")
        return task if task in task_names() else str(all_settings()["task.type"].default)

    def on_choice(self) -> None:
        if isinstance(recipe := self.list.chosen, Profile):
            self.recipe = recipe
        name, keep_own = self.recipe.name, self._keeps_user_settings
        config = (self._fits or self._chosen_fit).get(name, (None, ""))[0]
        try:
            self._preview = self._document.preview_recipe(name, keep_own=keep_own, fit=lambda plain: config or plain)
        except ConfigError as error:
            self._preview, self._error = None, str(error.problems[0])

    def redraw(self) -> None:
        # A filtered list is shorter, which leaves more room for the changes of the recipe.
        self.list.styles.max_height = max(len(self.list.rows), 1)
        super().redraw()

    def empty_words(self) -> str:
        return "no matching recipes"

    def accept_input(self) -> None:
        if self._preview is not None and self.recipe is self.list.chosen:
            self.close()
            problem = self._document.choose_recipe(self.recipe.name, keep_own=self._keeps_user_settings)
            self._bench.note_change(str(problem) if problem else f"recipe {self.recipe.name}")

    def take_key(self, event: Key) -> bool:
        if event.key != "tab":
            return super().take_key(event)
        self._keeps_user_settings = not self._keeps_user_settings
        self._find_fits()
        return True

    def row(self, row: str | Profile, width: int) -> Line:
        glyphs = self.glyphs
        if isinstance(row, str):
            return title_rule(row, width, glyphs)
        name_cells, reason = max(map(len, map(one_line, self._recipes))), self.misfit(row.name)
        now_mark = "now" if row.name == self._document.recipe_name else "   "
        role: Role = "dim" if reason else "text"
        text = f"{glyphs.bad} {one_line(reason)}" if reason else one_line(row.title)
        return [(f" {one_line(row.name).ljust(name_cells)}  {now_mark}  ", role), (text, role)]

    def about(self, width: int, height: int) -> list[Line]:
        """Return the chosen recipe's summary, and as far as there is room, the settings that it changes and keeps."""
        recipe, glyphs = self.recipe, self.glyphs
        lines = paragraph(one_line(recipe.summary), width)
        source_lines = paragraph(one_line(f"source: {recipe.source}"), width, "dim") if recipe.source else []
        if reason := self.misfit(recipe.name):
            lines += paragraph(one_line(f"This recipe does not fit: {reason}."), width, "warn")
        if self._preview is None:
            return [*lines, [], *paragraph(one_line(f"{glyphs.bad} {self._error}"), width, "bad")]
        changes, kept_changes = self._preview.changes, self._preview.kept_changes
        lines += paragraph(one_line(self.waiting), width, "accent") if self.waiting else []
        title = f"Changes {quantity(len(changes), 'setting')}" if changes else "Changes nothing"
        note = "your own values are kept" if self._keeps_user_settings else "your own values are dropped"
        heading = title_rule(title, width, glyphs, note)
        change_rows = _change_lines(changes, width, glyphs)
        kept_title, kept_rows = f"Keeps {quantity(len(kept_changes), 'setting')} that you changed", list[Line]()
        if kept_changes:
            # These changes go from the recipe's value to the user's own value.
            own_changes = [Change(key=change.key, old=change.new, new=change.old) for change in kept_changes]
            kept_rows = [title_rule(kept_title, width, glyphs), *_change_lines(own_changes, width, glyphs)]
        if len(source_lines) + len(lines) + 1 + len(change_rows) + len(kept_rows) <= height:
            return [*lines, *source_lines, heading, *change_rows, *kept_rows]
        names = ", ".join(all_settings()[change.key].name for change in kept_changes)
        kept_rows = [[(f"{kept_title}: {names}", "dim")]] if kept_changes else []
        room_lines = max(height - len(lines) - 1 - len(kept_rows), bool(changes))
        if (hidden_count := len(change_rows) - room_lines + 1) > 1:
            change_rows = [*change_rows[: room_lines - 1], [(f"   {glyphs.ellipsis} and {hidden_count} more", "dim")]]
        return [*lines, heading, *change_rows, *kept_rows]


def _change_lines(changes: Sequence[Change], width: int, glyphs: Glyphs) -> list[Line]:
    settings = [(all_settings()[change.key], change) for change in changes]
    rows = [(setting.key, display_text(setting, change.old), display_text(setting, change.new))
            for setting, change in settings]  # fmt: skip
    return change_lines(rows, width, glyphs)
