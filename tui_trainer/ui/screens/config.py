"""The Config screen: every setting in one table, edited in place, and a plan that is updated after each change."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import ClassVar

from textual.containers import Container, Horizontal, Vertical
from textual.events import Click
from textual.widget import Widget

from tui_trainer.config.editing import toml_text
from tui_trainer.config.explain import groups
from tui_trainer.data.samples import built_in_samples
from tui_trainer.data.sources.hub import cached_data_sets
from tui_trainer.errors import ConfigError
from tui_trainer.files.hub_layout import SAMPLE_PREFIX, is_hub_name
from tui_trainer.models.chat_rendering import template_names
from tui_trainer.tasks import task_names
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.commands import download, offer_import
from tui_trainer.ui.keymap import Action
from tui_trainer.ui.page import NOTHING_TO_DO, ListPage, bindings
from tui_trainer.ui.screens import config_dialogs as dialogs
from tui_trainer.ui.screens import config_files as files
from tui_trainer.ui.screens.config_model import ConfigModel, Editor, name_cells
from tui_trainer.ui.screens.config_view import ConfigPanes
from tui_trainer.ui.screens.recipe_dialog import RecipeDialog
from tui_trainer.ui.spans import Line, pad
from tui_trainer.ui.widgets.fields import ChoiceField, LineField
from tui_trainer.ui.widgets.pane import KeyedPane, Pane
from tui_trainer.ui.widgets.settings_table import SettingsTable
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import GIB


class Groups(Pane):
    """List of the groups of settings. A click on a group goes to its first setting."""

    screen: "ConfigPage"  # type: ignore[assignment]
    ALLOW_SELECT = False

    def spots(self) -> Iterator[tuple[int, int]]:
        yield from ((0, y) for y in range(1, 1 + len(groups())))

    def on_click(self, event: Click) -> None:
        for _, _, settings in groups()[max(event.y - 1, 0) : event.y]:
            keys = [setting.key for setting in settings]
            self.screen.show_setting(next((row.key for row in self.screen.table.rows if row.key in keys), keys[0]))


class ConfigPage(ListPage):
    place = "config"
    AUTO_FOCUS = ""
    BINDINGS = bindings("config")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide"), (180, "-widest")]  # noqa: RUF012
    ACTS: ClassVar[dict[str, Callable[["ConfigPage"], object]]] = {
        "previous_group": lambda page: page.table.move_group(-1),
        "next_group": lambda page: page.table.move_group(1),
        "toggle": lambda page: page.change("toggle"),
        "reset": lambda page: page.change("reset"),
        "less": lambda page: page.change("bump", -1),
        "more": lambda page: page.change("bump", 1),
        "undo": lambda page: page.bench.note_change(page.model.document.undo()),
        "redo": lambda page: page.bench.note_change(page.model.document.redo()),
        "reset_all": lambda page: page.bench.note_change(page.model.reset_all()),
        "rehearse": lambda page: dialogs.rehearse(page.bench),
        "tune": lambda page: dialogs.tune(page.bench),
        "sizes": lambda page: dialogs.open_size_search(page.bench),
        "switches": lambda page: dialogs.open_option_bench(page.bench),
        "import": lambda page: offer_import(page.bench),
        "recipe": lambda page: page.show_recipe(page.model.document.recipe_name),
        "editor": lambda page: page._external_editor.open(),
        "save": lambda page: files.save(page.bench, page.model.document),
        "save_as": lambda page: files.save_as(page.bench, page.model.document),
    }

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.editor: Editor | None = None
        self.table: SettingsTable = SettingsTable()
        self.head = Horizontal(id="head")
        self.filter_field, self.value_field = LineField(id="filter"), LineField(classes="field")
        self.choice_field = ChoiceField(
            lambda width, _: [[(pad(self.editor.text if self.editor else "", width), "edit")]], self._jump,
            classes="field",
        )  # fmt: skip

    @cached_property
    def model(self) -> ConfigModel:
        assert self.bench.document is not None
        self.table.name_cells = name_cells()
        data_set_names = [f"{SAMPLE_PREFIX}{name}" for name in built_in_samples()]
        data_keys = ("data.path", "data.replay", "data.eval_path")
        completions = {**dict.fromkeys(data_keys, data_set_names), "task.type": task_names()}
        completions["task.chat_template"] = template_names()
        # The cache may be large, and may be on a network disk, so it is listed in the background.
        self.bench.background.run_work("cached data sets", cached_data_sets, data_set_names.extend, "cached data sets")
        has_gpu = bool(self.bench.hardware.gpus)
        return ConfigModel(self.bench.document, completions, has_gpu=has_gpu, arrow=self.bench.glyphs.arrow)

    @cached_property
    def _external_editor(self) -> files.ExternalEditor:
        return files.ExternalEditor(self.app, self.bench, self.model.document)

    @cached_property
    def panes(self) -> ConfigPanes:
        return ConfigPanes(self.bench, self.model)

    def body(self) -> Iterable[Widget]:
        def pane(name: str) -> Pane:
            return Pane(partial(self._draw, name), id=name)

        def divider(_: int, height: int) -> list[Line]:
            return [[(f" {self.bench.glyphs.vertical} ", "rule")]] * height

        yield pane("summary")
        with Container(id="columns"):
            yield Groups(partial(self._draw, "groups"), id="groups")
            yield Pane(divider, id="left-divider", classes="divider")
            with Vertical(id="settings"):
                with self.head:
                    yield Pane(lambda *_: [[("/ ", "accent")]], id="slash")
                    yield self.filter_field
                    yield KeyedPane(partial(self._draw, "names"), id="names", from_left=False)
                with self.table:
                    yield self.value_field
                    yield self.choice_field
            yield Pane(divider, classes="divider")
            with Vertical(id="about"):
                yield pane("details")
        yield pane("plan")

    def on_mount(self) -> None:
        self.redraw()

    def _draw(self, name: str, width: int, height: int) -> list[Line]:
        if self.bench.document:
            return list(getattr(self.panes, name)(width, height))
        return [[("  loading the settings ...", "dim")]] if name == "summary" else []

    def redraw(self) -> None:
        if self.bench.document and self.is_shown and self.table.is_attached:
            if not self.bench.is_planning:
                self.model.note_plan(self.bench.plan)
            self._show_rows()
            self.panes.is_filtering = bool(self.model.filter) or self.focused is self.filter_field
            self.head.set_class(self.panes.is_filtering, "-filtering")
            self.panes.key, self.panes.editor = self.key, self.editor
        super().redraw()

    def _show_rows(self, key: str = "") -> None:
        key_of, empty_message = self.bench.app.key_of, "nothing differs from the recipe"
        if self.model.filter:
            empty_message = f"no setting matches; {key_of('app.palette')} outside this field also finds actions"
        if self.model.filter and self.model.only_changed:
            empty_message = f"no changed setting matches; {key_of('config.changed_only')} outside this field shows all"
        self.table.show(self.model.rows, key, empty_message)

    @property
    def key(self) -> str:
        return self.table.key if self.table.rows else ""

    def live_state(self) -> object:
        # Free memory is rounded to what the memory bar can show.
        return self.bench.fitting_text, 1000 * self.bench.memory_free_bytes // (self.bench.hardware.memory_bytes or GIB)

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        if self.editor is None:
            return [("enter", "to the table"), ("escape", "clear")]
        if self.editor.has_fixed_choices:
            return [("enter", "select"), ("up down", "choose"), ("escape", "cancel")]
        keys = [("enter", "accept"), ("escape", "cancel"), ("up down", "accept and move")]
        return [*keys, ("tab", "complete")] if self.editor.options else keys

    def on_input_changed(self) -> None:
        self._read_fields()
        self.bench.app.draw()

    def _read_fields(self) -> None:
        """Read the text of the fields. Call this before closing a field: the event of its last letter may be late."""
        model, editor = self.model, self.editor
        if editor and not editor.has_fixed_choices and one_line(editor.text) != self.value_field.value:
            editor.set_text(self.value_field.value)
            self._look_for_options()
        elif model.filter != self.filter_field.value:
            model.filter = self.filter_field.value
            self._show_rows()
            self.table.move(-len(self.table.rows))

    def action_take(self) -> None:
        self._read_fields()
        if self.editor is None or self.model.accept_value(self.editor):
            self._close()
        self.bench.note_change()

    def action_cancel(self) -> None:
        if self.editor is None:
            self.action_clear()
        self._close()
        self.bench.app.draw()

    def action_choose(self, steps: int) -> None:
        """Choose another option. If the field has none, accept its text and move the cursor to another setting."""
        self._read_fields()
        if self.editor and (self.editor.has_fixed_choices or self.editor.chosen >= 0):
            self.editor.choose(steps)
            self.value_field.put(self.editor.text)
        else:
            if self.editor:
                self.action_take()
            if self.editor is None:
                self.table.move(steps)
        self.bench.app.draw()

    def action_complete(self) -> None:
        self._read_fields()
        if self.editor:
            self.editor.complete()
            self.value_field.put(self.editor.text)
            self._look_for_options()
        self.bench.app.draw()

    def _look_for_options(self) -> None:
        """Look up files and folders that complete the typed text, if they are needed, in the background."""
        if (editor := self.editor) is None or not editor.is_looking:
            return
        typed_text = editor.text

        def show_options(options: tuple[str, ...]) -> None:
            if editor is self.editor:
                editor.set_completions(typed_text, options)
                if editor.text != typed_text:
                    self.value_field.put(editor.text)
                    self._look_for_options()
                self.bench.app.draw()

        self.bench.background.run_work(
            "completions", partial(editor.find_completions, typed_text), show_options, "completions"
        )

    def _jump(self, letter: str) -> None:
        if self.editor:
            self.editor.jump(letter)
        self.bench.app.draw()

    def _close(self) -> None:
        self.editor = None
        self.table.lay(None)
        self.set_focus(None)

    def on_settings_table_clicked(self, event: SettingsTable.Clicked) -> None:
        """Accept the text being typed, then move to the clicked setting. A double click edits that setting."""
        if self.is_typing:
            self.action_take()
        if self.editor is None and not event.key:
            self.action_do("show_all")
        elif self.editor is None:
            self._show_rows(event.key)
            if event.is_double:
                self.action_edit()
        self.bench.app.draw()

    def refusal(self, action: Action) -> str:
        document = self.bench.document
        if document is None:
            return NOTHING_TO_DO
        conditions: dict[str, Callable[[], object]] = {
            "undo": lambda: document.can_undo,
            "redo": lambda: document.can_redo,
            "clear": lambda: self.model.filter,
            "next_problem": lambda: document.problems,
            "preview": lambda: document.unfitted is not None and not document.config_problems,
            **dict.fromkeys(("edit", "toggle", "less", "more", "reset", "copy"), lambda: self.key),
        }
        return "" if conditions.get(action.name, lambda: True)() else NOTHING_TO_DO

    def move(self, lines: int) -> None:
        self.table.move(lines)

    @property
    def page_lines(self) -> int:
        return max(self.table.size.height - 1, 1)

    def action_edit(self) -> None:
        """Edit the chosen setting: in its row, or a recipe in the list of recipes. A boolean setting is toggled."""
        if not self.key:
            return
        editor = self.model.edit(self.key)
        if editor.setting.completes == "recipe":
            self.show_recipe(self.model.document.recipe_name)
        elif editor.setting.kinds == (bool,) and not editor.setting.choices:
            self.change("toggle")
        else:
            self.editor = editor
            self.value_field.put(editor.text)
            if editor.text in ("auto", *editor.setting.choices):
                # Typing replaces a word, as there is nothing to edit in it.
                self.value_field.select_all()
            field = self.choice_field if editor.has_fixed_choices else self.value_field
            self.table.lay(field)
            self.set_focus(field, scroll_visible=False)
            self._look_for_options()

    def change(self, method: str, *steps: int) -> None:
        if self.key:
            self.bench.note_change(getattr(self.model, method)(self.key, *steps))

    def show_recipe(self, name: str) -> None:
        """Open the list of recipes with the recipe `name` chosen."""
        try:
            self.bench.app.open(RecipeDialog(self.bench, self.model.document, name))
        except ConfigError as error:
            self.bench.show_notice(str(error.problems[0]), "bad")

    def action_filter(self) -> None:
        self.action_clear()
        self.set_focus(self.filter_field, scroll_visible=False)

    def action_clear(self) -> None:
        self.model.filter = ""
        self.filter_field.put("")

    def action_changed_only(self) -> None:
        self.model.only_changed = not self.model.only_changed
        subject = "only settings that" if self.model.only_changed else "also settings that do not"
        self.bench.show_notice(f"showing {subject} differ from the recipe")

    def action_show_all(self) -> None:
        self.model.show_all = not self.model.show_all
        message = "showing the usual settings for this task and method, and all changed settings"
        self.bench.show_notice(
            "showing all settings, also settings that are not used" if self.model.show_all else message
        )

    def action_next_problem(self) -> None:
        key, message = self.model.next_problem(self.key)
        if key:
            self.show_setting(key)
        if message:
            self.bench.show_notice(message)

    def show_setting(self, key: str) -> None:
        self.model.reveal(key)
        self.filter_field.put(self.model.filter)
        self._show_rows(key)
        self.redraw()

    def action_preview(self) -> None:
        if loaded_config := self.model.document.unfitted:
            self.bench.app.open(dialogs.PreviewDialog(self.bench, loaded_config))

    def action_copy(self) -> None:
        if self.key:
            text = f"{self.key} = {toml_text(self.model.document.value(self.key))}"
            self.app.copy_to_clipboard(text)
            self.bench.show_notice(f"copied, if your terminal lets programs copy (OSC 52): {one_line(text)}")

    def action_download(self) -> None:
        """Download a data set if the cursor is on a data setting, otherwise a model."""
        is_data = self.key in ("data.path", "data.replay", "data.eval_path")
        loaded_config, name = self.model.document.loaded, ""
        if loaded_config:
            name = loaded_config.config.data.path if is_data else loaded_config.config.model.model_name_or_path
        download(self.bench, "data set" if is_data else "model", name if is_hub_name(name) else "")
