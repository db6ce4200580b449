"""The list of recipes, with what each of them would change."""

from __future__ import annotations

from dataclasses import dataclass

from tui_trainer.config.changes import RecipePreview
from tui_trainer.config.document import Document
from tui_trainer.config.profiles import Profile, all_profiles
from tui_trainer.errors import ConfigError


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

    def move(self, steps: int) -> None:
        self.chosen = (self.chosen + steps) % len(self.recipes)
        self.look()

    def toggle_keep_own(self) -> str:
        self.keep_own = not self.keep_own
        self.look()
        return "your own values stay" if self.keep_own else "your own values go"

    def look(self) -> None:
        """What the chosen recipe would change now."""
        if not self.recipes:
            return
        try:
            self.preview, self.error = self.document.preview_recipe(self.recipe.name, keep_own=self.keep_own), ""
        except ConfigError as error:
            self.preview, self.error = None, str(error.problems[0])
