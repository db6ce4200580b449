"""The config screen without a screen: where the cursor is, what is filtered, typed and chosen.

Each method is what a key means, and returns a sentence for the message line where there is something to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tui_trainer.config.bumping import Direction, bump
from tui_trainer.config.document import Document
from tui_trainer.config.editing import choices, display_text, toml_text
from tui_trainer.config.groups import groups
from tui_trainer.errors import Problem
from tui_trainer.safe_text import one_line
from tui_trainer.ui.screens.config_editor import Editor
from tui_trainer.ui.screens.config_recipes import RecipeChooser
from tui_trainer.ui.screens.config_table import SettingsTable
from tui_trainer.ui.text_field import LineText

Message = str | None


class ConfigModel(SettingsTable):
    """`names` are completions by key that config does not know itself (samples, tasks)."""

    def __init__(self, document: Document, names: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(document)
        self.names = names or {}
        self.is_filtering = False
        self.editor: Editor | None = None
        self.chooser: RecipeChooser | None = None

    # Moving

    def move(self, steps: int) -> Message:
        """Over settings, not over headings; in a chooser over recipes, in an editor over its options."""
        if self.chooser:
            self.chooser.move(steps)
        elif self.editor and (self.editor.closed or self.editor.chosen >= 0):
            self.editor.choose(steps)
        elif self.editor:
            return self.accept(then_move=steps)
        else:
            self.move_rows(steps)
        return None

    def page(self, direction: Direction) -> Message:
        return self.move(direction * max(self.page_rows - 1, 1))

    def go_to_end(self, direction: Direction) -> Message:
        return self.move(direction * len(self.rows))

    def next_group(self, direction: Direction) -> Message:
        """To the first setting of the next group, or of this one and then of the one before it."""
        starts = [place + 1 for place, row in enumerate(self.rows) if row.setting is None]
        further = [place for place in starts if (place - self.cursor) * direction > 0]
        if further:
            self._go(min(further) if direction > 0 else max(further))
        return None

    def next_problem(self, direction: Direction = 1) -> Message:
        """To the next setting with a problem, round the end; it becomes visible whatever is filtered."""
        keys = [setting.key for _, _, settings in groups() for setting in settings]
        troubled = [key for key in keys if self.document.problems_of(key)]
        elsewhere = [str(problem) for problem in self.document.problems if problem.key not in keys]
        if not troubled:
            return one_line(elsewhere[0]) if elsewhere else "no problems"
        here = keys.index(self.key) if self.key in keys else 0
        further = [key for key in troubled if (keys.index(key) - here) * direction > 0]
        self.show((further or troubled)[0 if direction > 0 else -1])
        return one_line(elsewhere[0]) if elsewhere and not further else None

    # What is shown

    def start_filter(self) -> Message:
        self.is_filtering = True
        self.filter.put("")
        return None

    def toggle_changed_only(self) -> Message:
        self.only_changed = not self.only_changed
        self.settle(1)
        return "only what differs from the presets" if self.only_changed else "all settings"

    def toggle_advanced(self) -> Message:
        self.show_advanced = not self.show_advanced
        self.settle(1)
        return "advanced settings too" if self.show_advanced else "basic settings, and what was changed"

    # Typing

    @property
    def is_typing(self) -> bool:
        """Characters belong to a text now, and are no keys."""
        return self.is_filtering or self.editor is not None

    def edit(self, first: str = "") -> Message:
        """Open the editor of the row; `first` replaces its text. The recipe has a list, true and false just change."""
        setting = self.setting
        if setting is None:
            return None
        if setting.completes == "recipe" and not first:
            return self.open_recipes()
        if setting.kinds == (bool,) and not setting.choices:
            return self.toggle()
        self.editor = Editor.open(setting, self.document.value(setting.key), self.names.get(setting.key, ()))
        if first and not self.editor.closed:
            self.editor.line.put("")
            self.editor.type(first)
        return None

    def type_text(self, characters: str) -> Message:
        if self.editor:
            self.editor.type(characters)
        elif self.is_filtering:
            self.filter.type(characters)
            self.to_best()
        return None

    def erase(self, *, word: bool = False, next_character: bool = False, everything: bool = False) -> Message:
        line = self._line
        if line:
            if everything:
                line.put("")
            elif next_character:
                line.erase_next()
            else:
                line.erase(word=word)
            self.editor.typed() if self.editor else self.to_best()
        return None

    def move_in_text(self, characters: int) -> Message:
        """Left or right in the text; in a list of choices to the next one."""
        if self.editor and self.editor.closed:
            self.editor.choose(1 if characters > 0 else -1)
        elif line := self._line:
            line.move(characters)
        return None

    def complete(self) -> Message:
        if self.editor:
            self.editor.complete()
        return None

    @property
    def _line(self) -> LineText | None:
        if self.editor:
            return None if self.editor.closed else self.editor.line
        return self.filter if self.is_filtering else None

    def accept(self, *, then_move: int = 0) -> Message:
        """The typed value, the filter or the recipe. What does not fit stays in the editor, with the reason."""
        if self.chooser:
            return self._accept_recipe()
        if not self.editor:
            self.is_filtering = False
            return None
        editor = self.editor
        value = editor.result()
        problem = value if isinstance(value, Problem) else None
        if (problem is None and editor.line.text != editor.original) or editor.closed:
            problem = self.document.set(editor.setting.key, value)
        if problem:
            editor.error = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
            return None
        self.editor = None
        self.settle(1)
        return self.move(then_move) if then_move else None

    def cancel(self) -> bool:
        """Close what is open, the innermost first: editor, list of recipes, filter. False when nothing was."""
        if self.editor or self.chooser:
            self.editor = self.chooser = None
            return True
        was_filtered = self.is_filtering or bool(self.filter.text)
        self.is_filtering = False
        self.filter.put("")
        self.settle(1)
        return was_filtered

    # Changing without typing

    def bump(self, direction: Direction) -> Message:
        """More or less of a number, the next or the last choice."""
        return self._change(direction, typed="Enter edits it")

    def toggle(self) -> Message:
        """True or false, the next choice; in the list of recipes whether own values stay."""
        if self.chooser:
            return self.chooser.toggle_keep_own()
        if self.setting and choices(self.setting):
            return self._change(1, typed="")
        return None

    def _change(self, direction: Direction, *, typed: str) -> Message:
        if self.setting is None:
            return None
        setting, old = self.setting, self.document.value(self.setting.key)
        new = bump(setting, old, direction)
        if new == old:
            known = {int, float} & set(setting.kinds)
            return f"{setting.name} goes no {'higher' if direction > 0 else 'lower'}" if known else typed or None
        problem = self.document.set(setting.key, new)
        self.settle(1)
        return str(problem) if problem else None

    def reset(self) -> Message:
        """The setting under the cursor back to what the presets give."""
        if self.setting is None:
            return None
        setting = self.setting
        if not self.document.is_changed(setting.key) and not self.document.is_edited(setting.key):
            return f"{setting.name} is as the presets say"
        self.document.reset(setting.key)
        self.settle(1)
        return f"{setting.name} is {display_text(setting, self.document.value(setting.key))} again"

    def reset_all(self) -> Message:
        count = len(self.document.changes())
        self.document.reset_all()
        self.settle(1)
        return f"reset {count} setting{'s' if count > 1 else ''}; undo takes it back" if count else "nothing to reset"

    def undo(self) -> Message:
        return self._told(self.document.undo()) or "nothing to undo"

    def redo(self) -> Message:
        return self._told(self.document.redo()) or "nothing to redo"

    def _told(self, sentence: str) -> Message:
        self.settle(1)
        return one_line(sentence)

    def copied_text(self) -> str:
        """`key = value` of the row, as TOML with a dotted key; empty without a row."""
        setting = self.setting
        return f"{setting.key} = {toml_text(self.document.value(setting.key))}" if setting else ""

    def open_recipes(self) -> Message:
        """The list of recipes, with what each would change."""
        self.chooser = RecipeChooser.open(self.document)
        return None if self.chooser else "there are no recipes"

    def _accept_recipe(self) -> Message:
        chooser = self.chooser
        if chooser is None or chooser.error:
            return chooser.error if chooser else None
        problem = self.document.choose_recipe(chooser.recipe.name, keep_own=chooser.keep_own)
        self.chooser = None
        self.settle(1)
        return str(problem) if problem else f"recipe {chooser.recipe.name}"
