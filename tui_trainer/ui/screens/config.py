"""2 Config: every setting in one table, edited in place, with a plan that follows each change."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING

from textual.containers import Container, Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input

from tui_trainer.errors import ConfigError
from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import Action
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, TextDialog
from tui_trainer.ui.page import Page, bindings
from tui_trainer.ui.spans import Line, beside, pad
from tui_trainer.ui.widgets.fields import ChoiceField, LineField
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.settings_table import MARK_CELLS, SettingsTable, title_rule, value_cells
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.config.bumping import Direction
    from tui_trainer.config.document import Document
    from tui_trainer.config.save import OverwriteError
    from tui_trainer.launching.drafts import Draft
    from tui_trainer.planning.plan import Plan
    from tui_trainer.ui.screens.config_editor import Editor
    from tui_trainer.ui.screens.config_estimate import PlanSummary
    from tui_trainer.ui.screens.config_model import ConfigModel
    from tui_trainer.ui.screens.config_recipes import RecipeChooser

_DEFAULT_FILE = "tui-trainer.toml"
_REFUSED = "# not taken:"


class ConfigPage(Page):
    place = "config"
    CSS_PATH = "config.tcss"
    AUTO_FOCUS = ""
    # Priority: a key that opens a field has done so before the next key comes, however fast they are typed.
    BINDINGS = [replace(one, priority=True) for one in bindings("config")]  # noqa: RUF012
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide"), (180, "-widest")]  # noqa: RUF012

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.model: ConfigModel | None = None
        self.editor: Editor | None = None
        self.table = SettingsTable(bench.glyphs)
        self.head = Horizontal(id="head")
        self.filter_field, self.value_field = LineField(id="filter"), LineField()
        self.choice_field = ChoiceField(self._choice, self._jump)
        self.value_field.add_class("field")
        self.choice_field.add_class("field")
        self._revision = -1
        self._refused_text = ""

    def opened(self, document: Document) -> None:
        """The config has been read."""
        from tui_trainer.data.samples import samples
        from tui_trainer.data.sources.hub import names_in_the_cache
        from tui_trainer.tasks import task_names
        from tui_trainer.ui.screens.config_model import ConfigModel, name_cells

        data_sets = [*(f"sample:{name}" for name in samples()), *names_in_the_cache()]
        names = {"data.path": data_sets, "data.eval_path": data_sets, "task.type": task_names()}
        self.model = ConfigModel(document, names)
        self.table.name_cells = name_cells()
        self._revision = document.revision

    def body(self) -> Iterable[Widget]:
        yield Pane(self._summary, id="summary")
        with Container(id="columns"):
            yield Pane(self._groups, id="groups")
            yield Pane(self._divider, id="left-divider", classes="divider")
            with Vertical(id="settings"):
                with self.head:
                    yield Pane(lambda *_: [[("/ ", "accent")]], id="slash")
                    yield self.filter_field
                    yield Pane(self._names, id="names")
                with self.table:
                    yield self.value_field
                    yield self.choice_field
            yield Pane(self._divider, classes="divider")
            with Vertical(id="about"):
                yield Pane(self._details, id="details")
                yield Pane(self._plan_column, id="plan-column")
                yield Pane(self._toml, id="toml")
        yield Pane(self._plan, id="plan")

    # ------------------------------------------------------------- what is shown

    def redraw(self) -> None:
        if self.model is not None and self.is_shown and self.table.is_attached:
            self._show_rows()
            self.head.set_class(bool(self.model.filter) or self.focused is self.filter_field, "-filtering")
        super().redraw()

    def on_mount(self) -> None:
        self.redraw()

    def _show_rows(self, key: str = "") -> None:
        model = self._model
        self.table.empty = "no setting matches the filter" if model.filter else "nothing differs from the presets"
        self.table.show(model.rows, key)

    @property
    def _model(self) -> ConfigModel:
        assert self.model is not None, "an action of this page is available only with a model"
        return self.model

    @property
    def key(self) -> str:
        """Of the setting under the cursor; empty without one."""
        return self.table.key if self.table.rows else ""

    def _summary(self, width: int, _: int) -> list[Line]:
        if self.model is None:
            return [[("  reading the settings ...", "dim")]]
        from tui_trainer.ui.screens.config_view import summary_line

        return [summary_line(self.model.document, width, self.bench.glyphs)]

    def _divider(self, _: int, height: int) -> list[Line]:
        return [[(f" {self.bench.glyphs.vertical} ", "rule")]] * height

    def _groups(self, *_: int) -> list[Line]:
        if self.model is None:
            return []
        from tui_trainer.ui.screens.config_view import group_lines

        return group_lines(self.model.document, self.key, self.bench.glyphs)

    def _names(self, width: int, _: int) -> list[Line]:
        """The names of the columns with the number of settings shown; only that beside the filter."""
        if (model := self.model) is None:
            return []
        kind = ", changed only" if model.only_changed else ", with advanced" if model.show_advanced else ""
        names = self.table.name_cells
        line = " " * MARK_CELLS + pad(f"setting{kind}", names + 1) + pad("value", value_cells(width, names) + 1)
        return [beside([("" if self.head.has_class("-filtering") else line + "preset", "dim")], [(model.count, "dim")], width)]

    def _details(self, width: int, height: int) -> list[Line]:
        if self.model is None:
            return []
        from tui_trainer.config.load import all_settings
        from tui_trainer.ui.screens.config_details import detail_lines

        model, glyphs = self.model, self.bench.glyphs
        if not self.key:
            words = f"No setting matches {one_line(model.filter, 40)!r}." if model.filter else "All is as preset."
            return [title_rule("", width, glyphs), [(words, "dim")]]
        setting = all_settings()[self.key]
        lines = detail_lines(model.document, setting, self.editor, width, height - 1, glyphs)
        return [title_rule(self.key, width, glyphs), *lines]

    def _plan(self, width: int, height: int) -> list[Line]:
        """Memory, time, disk and steps; what the presets give; the memory by part."""
        from tui_trainer.ui.screens.config_estimate import estimate_lines

        plan, before = self._plans()
        lines = [*estimate_lines(plan, before, self.bench.is_planning), *self._memory(plan, width)]
        return [*([title_rule("", width, self.bench.glyphs)] if height > len(lines) else []), *lines]

    def _plan_column(self, width: int, _: int) -> list[Line]:
        from tui_trainer.ui.screens.config_estimate import estimate_column

        plan, before = self._plans()
        lines = estimate_column(plan, before, self.bench.is_planning)
        filled = [*lines, *[[]] * (5 - len(lines))]
        return [title_rule("Plan", width, self.bench.glyphs), *filled, *self._memory(plan, width)]

    def _toml(self, width: int, height: int) -> list[Line]:
        if self.model is None:
            return []
        from tui_trainer.ui.screens.config_view import toml_lines

        glyphs = self.bench.glyphs
        return [title_rule("Saved as", width, glyphs), *toml_lines(self.model.document, height - 1, glyphs)]

    def _memory(self, plan: PlanSummary | None, width: int) -> list[Line]:
        from tui_trainer.ui.screens.config_memory import memory_lines

        return memory_lines(plan.memory_use if plan else None, width, self.bench.glyphs)

    def _plans(self) -> list[PlanSummary | None]:
        """Of the config and of the presets alone, beside the memory that is free now."""
        from tui_trainer.ui.screens.config_estimate import PlanSummary
        from tui_trainer.ui.screens.config_memory import memory_budget

        bench = self.bench

        def summary(plan: Plan | None) -> PlanSummary | None:
            return PlanSummary.of(plan, memory_budget(plan, bench.hardware, bench.memory_free_bytes)) if plan else None

        return [summary(bench.plan), summary(bench.preset_plan)]

    def by_clock(self, width: int) -> object:
        return [(one.cells, self._memory(one, width)) for one in self._plans() if one]

    # ------------------------------------------------------------- typing

    @property
    def is_typing(self) -> bool:
        """A field of this screen has the focus."""
        return self.focused is not None

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        if self.editor is None:
            return [("enter", "to the table"), ("escape", "clear")]
        if self.editor.closed:
            return [("enter", "take it"), ("up down", "choose"), ("escape", "cancel")]
        keys = [("enter", "accept"), ("escape", "cancel"), ("up down", "accept and move")]
        return [*keys, ("tab", "complete")] if self.editor.options else keys

    def _choice(self, width: int, _: int) -> list[Line]:
        return [[(pad(self.editor.text if self.editor else "", width), "edit")]]

    def on_input_changed(self) -> None:
        self._typed()
        self.app.draw()

    def _typed(self) -> None:
        """Take in what stands in the fields now; called before a key that ends one, which may overtake the message."""
        model, editor = self._model, self.editor
        if editor and not editor.closed and editor.text != self.value_field.value:
            editor.typed(self.value_field.value)
        elif model.filter != self.filter_field.value:
            model.filter = self.filter_field.value
            self._show_rows()
            self.table.move_to_end(-1)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_take()

    def action_take(self) -> None:
        """The typed value or the filter."""
        self._typed()
        if self.editor is None or self._model.take(self.editor):
            self._close()
        self._said("")

    def action_cancel(self) -> None:
        if self.editor is None:
            self.action_clear()
        self._close()
        self.app.draw()

    def action_choose(self, steps: int) -> None:
        """Another option; where none was chosen, the typed value and another setting."""
        self._typed()
        editor = self.editor
        if editor and (editor.closed or editor.chosen >= 0):
            editor.choose(steps)
            self.value_field.put(editor.text)
        else:
            if editor:
                self.action_take()
            if self.editor is None:
                self.table.move(steps)
        self.app.draw()

    def action_complete(self) -> None:
        self._typed()
        if self.editor:
            self.editor.complete()
            self.value_field.put(self.editor.text)
        self.app.draw()

    def _jump(self, letter: str) -> None:
        if self.editor:
            self.editor.jump(letter)
        self.app.draw()

    def _close(self) -> None:
        """No field has the focus, and none is open but a filter that has found something."""
        self.editor = None
        self.table.lay(None)
        self.set_focus(None)

    def on_settings_table_clicked(self, event: SettingsTable.Clicked) -> None:
        """Ends what is typed, as Enter does; the second click edits."""
        if self.is_typing:
            self.action_take()
        if self.editor is None and event.is_double:
            self._show_rows(event.key)
            self.action_edit()
        self.app.draw()

    # ------------------------------------------------------------- actions

    def available(self, action: Action) -> bool:
        if self.model is None:
            return False
        document = self.model.document
        if action.name in ("undo", "redo"):
            return document.can_undo if action.name == "undo" else document.can_redo
        if action.name == "clear":
            return bool(self.model.filter)
        if action.name == "next_problem":
            return bool(document.problems)
        if action.name == "preview":
            return document.loaded is not None and not document.own_problems
        return True

    def _said(self, sentence: str) -> None:
        """After anything that may have changed the config: plan anew, and keep the draft."""
        if sentence:
            self.bench.tell(sentence)
        revision = self._model.document.revision
        if revision != self._revision:
            self._revision = revision
            self.bench.config_changed()
        self.app.draw()

    def _move(self, how: str, steps: int) -> None:
        getattr(self.table, how)(steps)

    action_up, action_down = partialmethod(_move, "move", -1), partialmethod(_move, "move", 1)
    action_page_up, action_page_down = partialmethod(_move, "move_page", -1), partialmethod(_move, "move_page", 1)
    action_first, action_last = partialmethod(_move, "move_to_end", -1), partialmethod(_move, "move_to_end", 1)
    action_previous_group = partialmethod(_move, "move_group", -1)
    action_next_group = partialmethod(_move, "move_group", 1)

    def action_edit(self) -> None:
        """Open the editor in the row. The recipe has a list, true and false just change."""
        if not self.key:
            return
        editor = self._model.edit(self.key)
        if editor.setting.completes == "recipe":
            self.action_recipe()
        elif editor.setting.kinds == (bool,) and not editor.setting.choices:
            self.action_toggle()
        else:
            self.editor = editor
            self.value_field.put(editor.text)
            field = self.choice_field if editor.closed else self.value_field
            self.table.lay(field)
            self.set_focus(field, scroll_visible=False)

    def _change(self, how: str) -> None:
        if self.key:
            self._said(getattr(self._model, how)(self.key))

    action_toggle, action_reset = partialmethod(_change, "toggle"), partialmethod(_change, "reset")

    def _bump(self, direction: Direction) -> None:
        if self.key:
            self._said(self._model.bump(self.key, direction))

    action_less, action_more = partialmethod(_bump, -1), partialmethod(_bump, 1)

    def action_undo(self) -> None:
        self._said(one_line(self._model.document.undo()))

    def action_redo(self) -> None:
        self._said(one_line(self._model.document.redo()))

    def action_reset_all(self) -> None:
        self._said(self._model.reset_all())

    def action_recipe(self) -> None:
        from tui_trainer.ui.screens.config_recipes import RecipeChooser, RecipeDialog

        if chooser := RecipeChooser.open(self._model.document):
            self.bench.app.open(RecipeDialog(chooser, self._take_recipe))
        else:
            self._said("there are no recipes")

    def _take_recipe(self, chooser: RecipeChooser) -> None:
        problem = self._model.document.choose_recipe(chooser.recipe.name, keep_own=chooser.keep_own)
        self._said(str(problem) if problem else f"recipe {one_line(chooser.recipe.name)}")

    def action_filter(self) -> None:
        self.action_clear()
        self.set_focus(self.filter_field, scroll_visible=False)

    def action_clear(self) -> None:
        self._model.filter = ""
        self.filter_field.put("")

    def action_changed_only(self) -> None:
        self._model.only_changed = not self._model.only_changed
        self._said("only what differs from the presets" if self._model.only_changed else "all settings")

    def action_advanced(self) -> None:
        self._model.show_advanced = not self._model.show_advanced
        self._said("advanced settings too" if self._model.show_advanced else "basic settings, and what was changed")

    def action_next_problem(self) -> None:
        key, elsewhere = self._model.next_problem(self.key)
        if key:
            self._model.reveal(key)
            self.filter_field.put(self._model.filter)
            self._show_rows(key)
        self._said(elsewhere)

    def action_preview(self) -> None:
        from tui_trainer.ui.previewing import offer_preview

        if loaded := self._model.document.loaded:
            offer_preview(self.bench, loaded)

    def action_copy(self) -> None:
        if self.key:
            text = self._model.copied_text(self.key)
            self.bench.app.copy_to_clipboard(text)
            self.bench.tell(f"copied, if your terminal allows it: {one_line(text)}")

    # ------------------------------------------------------------- files

    def action_save(self) -> None:
        """To the file it came from; without one a name is asked for."""
        file = self._model.document.file
        if file is None:
            self.action_save_as()
        else:
            self._write(file)

    def action_save_as(self) -> None:
        start = str(self._model.document.file or Path.cwd() / _DEFAULT_FILE)
        lines: list[Line] = [[("Your own values are written, on top of the recipe's name.", "dim")], []]
        self.bench.app.open(TextDialog("Save as", lines, start, self._save_as))

    def _save_as(self, text: str) -> str:
        if not text.strip():
            return "write the name of a file"
        return self._write(Path(text.strip()).expanduser())

    def _write(self, path: Path, *, force: bool = False) -> str:
        """Empty when it was written or a question is on the screen, else why not."""
        from tui_trainer.config.save import OverwriteError, save
        from tui_trainer.launching.drafts import discard_draft

        document = self._model.document
        try:
            save(document, path, force=force)
        except OverwriteError as error:
            self._ask_to_overwrite(path, error)
            return ""
        except ConfigError as error:
            self.bench.tell(str(error.problems[0]), "bad")
            return str(error.problems[0])
        self.bench.old_edits = {}
        discard_draft(document)
        self._revision = document.revision
        self.bench.tell(f"saved in {path}", "good")
        self.bench.config_changed()
        return ""

    def _ask_to_overwrite(self, path: Path, error: OverwriteError) -> None:
        lines: list[Line] = [[(row, "text")] for row in textwrap.wrap(one_line(str(error.problems[0])), 70)]
        answers: list[Answer] = [("o", "overwrite it", lambda: self._forced(path))]
        if path == self._model.document.file:
            answers.append(("l", "load it, keep my edits", self._load_again))
        self.bench.app.open(ChoiceDialog("Overwrite?", lines, answers))

    def _forced(self, path: Path) -> None:
        self._write(path, force=True)

    def _load_again(self) -> None:
        self._model.document.reload()
        self._said("loaded again; your unsaved edits lie on top")

    def action_editor(self) -> None:
        """Open what would be saved in $EDITOR, and take the text back as one change."""
        from tui_trainer.config.save import document_text

        command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        document = self._model.document
        before = self._refused_text or document_text(document)
        try:
            after = self.bench.app.edit_text(shlex.split(command), before)
        except (OSError, ValueError) as error:
            self.bench.tell(f"{one_line(command)} cannot be used: {error}; set EDITOR to your editor", "bad")
            return
        if after == before:
            self._refused_text = ""
            self.bench.tell("nothing was changed in the editor")
            return
        try:
            document.take(after)
        except ConfigError as error:
            # What was typed is not lost: the next time it opens again, with the reason above it.
            kept = "\n".join(line for line in after.split("\n") if not line.startswith(_REFUSED))
            self._refused_text = f"{_REFUSED} {one_line(str(error.problems[0]))}\n{kept}"
            key = self.bench.app.key_of("config.editor")
            self.bench.tell(f"not taken: {error.problems[0]}; {key} opens your text again", "bad")
            return
        self._refused_text = ""
        self._said("taken from the editor; u takes it back")

    # ----------------------------------------------------------- drafts

    def offer_draft(self, draft: Draft) -> None:
        """Edits of an earlier session that were never saved."""
        count, when = len(draft.edits), one_line(draft.at[:16]).replace("T", " ")
        lines: list[Line] = [
            [(f"{count} edit{'s' if count > 1 else ''} of {when} UTC were not saved.", "text")],
            [("They were kept when the connection or the program ended.", "dim")],
        ]
        lines += [[(row, "dim")] for row in textwrap.wrap(f"Made for {one_line(draft.subject)}.", 70)]
        if draft.digest != self._model.document.digest:
            lines.append([("The config file has changed since: look at them before you save.", "warn")])
        answers = [("r", "restore them", lambda: self._restore(draft)), ("d", "discard them", self._discard)]
        self.bench.app.open(ChoiceDialog("Unsaved edits", lines, answers))

    def _restore(self, draft: Draft) -> None:
        self.bench.old_edits = {}
        taken = self._model.document.restore(draft.edits)
        self._said(f"{taken} edits restored; u takes them back")

    def _discard(self) -> None:
        from tui_trainer.launching.drafts import discard_draft

        self.bench.old_edits = {}
        discard_draft(self._model.document)
        self.bench.config_changed()
        self.bench.tell("discarded")
