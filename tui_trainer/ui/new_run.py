"""The new-run dialogs: choose data and see its rows, choose a model and see the plan, then start.

They ask for the same values as `--data` and `--model` on the command line.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.cells import cell_len
from textual.events import Key
from textual.widget import Widget

from tui_trainer.config.changes import PRESET
from tui_trainer.config.editing import completions
from tui_trainer.config.load import LoadedConfig, all_settings
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY
from tui_trainer.data.columns.text_columns import SECOND_TEXT_KEY
from tui_trainer.launching import local_choices
from tui_trainer.launching.fitted_presets import COLUMN_ROLES, TEXT, columns_words
from tui_trainer.launching.local_choices import FROM_SCRATCH, Choice, FirstRows, PlannedChoice
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Dialog, SearchDialog
from tui_trainer.ui.search import match
from tui_trainer.ui.spans import Line, pad, paragraph, title_rule
from tui_trainer.ui.starting import offer_lines
from tui_trainer.ui.widgets.lists import VI_KEYS, ChoiceList, LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import CONFIG_PAGE, TRAIN_PAGE, Workbench

LOOKING = "what is here"
_PREVIEW = "preview of a choice"
# Letters go to the text field. Zellij takes Ctrl+T, so F2 comes first.
_COLUMNS_KEYS = ("f2", "ctrl+t")
_WIDEST_COLUMN, _NAME_CELLS = 40, 44
# A new run drops the user's values of these settings, but keeps where runs are stored and how the machine is used.
_OF_A_RUN = ("profile", "task.", "data.", "model.", "tuning.", "training.", "evaluation.", "output.name")


class ChoiceOfPath(SearchDialog[Choice]):
    """Dialog for the path or name of data or a model: a search line, matching choices, and facts about the chosen one.

    `here()` lists all choices, and `read_facts(value)` finds facts. Both are called in other threads.
    """

    def __init__(self, bench: Workbench, key: str, words: str, here: Callable[[], list[Choice]]) -> None:
        super().__init__()
        self._bench, self._key, self._words, self._here = bench, key, words, here
        self._all: list[Choice] | None = None
        self._completed: tuple[str, list[Choice]] = ("", [])
        self._narrowed_by, self._takes_soon = "", False
        self._known: dict[str, object] = {}

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        is_in_folder = self.value.endswith("/") and self.list.chosen is not None
        enter_label = "open folder" if self._opens_folder else "use this folder" if is_in_folder else "select"
        return ("enter", enter_label), ("up down", "choose"), ("tab", "complete"), ("escape", "back")

    def read_facts(self, value: str) -> object:
        """Return facts about a value, for `fact_lines`. Called in another thread, because it may be slow."""
        raise NotImplementedError

    def fact_lines(self, value: str, result: object, width: int, height: int) -> list[Line]:
        """Return lines about a value. `result` is what `read_facts` returned; None while `read_facts` is running."""
        raise NotImplementedError

    def use(self, value: str) -> None:
        raise NotImplementedError

    def on_mount(self) -> None:
        def show_choices(choices: list[Choice]) -> None:
            self._all = choices
            self._look_again()

        self._bench.background.run_work(LOOKING, self._here, show_choices, LOOKING)

    def compose_content(self) -> Iterable[Widget]:
        yield Pane(lambda width, _: paragraph(self._words, width, "dim"), classes="above")
        yield from super().compose_content()

    def list_matches(self) -> None:
        """List the matching choices, the best first. If the text has not changed, the chosen row stays chosen."""
        text, (of_text, paths) = self.field.value.strip(), self._completed
        row = self.list.chosen if text == self._narrowed_by and self.list.place else None
        rows = matching(text, local_choices.each_path_once([*(self._all or ()), *(paths if of_text == text else ())]))
        self._narrowed_by = text
        self.list.show(rows, rows.index(row) if row in rows else 0)

    def _look_again(self) -> None:
        self.list_matches()
        self.choose(self.list.place)
        if self._takes_soon and not self._is_looking:
            self.accept_input()

    @property
    def _is_looking(self) -> bool:
        """Whether choices for the text are still being looked up. A complete path does not wait for slow disks."""
        text, (searched_text, paths) = self.field.value.strip(), self._completed
        if self._all is None and not any(path.value in (text, f"{text}/") for path in paths):
            return True
        return bool(text) and searched_text != text

    @property
    def value(self) -> str:
        """The chosen value; if no choice matches, the typed text."""
        return self.list.chosen.value if self.list.chosen else self.field.value.strip()

    @property
    def _opens_folder(self) -> bool:
        """Whether Enter opens the chosen folder. The opened folder is the first row, where Enter uses it."""
        return self.list.chosen is not None and self.value.endswith("/") and self.value != self.field.value.strip()

    def empty_words(self) -> str:
        if self._all is None:
            return "searching ..."
        return "No matches; press Enter to use the text as typed" if self.value else "Nothing found here: type a path"

    def row(self, row: Choice, width: int) -> Line:
        name, note = one_line(row.value), one_line(row.note)
        gap = " " * max(min(_NAME_CELLS, (width + 1) // 2) - cell_len(name), 2)
        return [(f" {name}", "text"), (f"{gap}{note}" if note else "", "dim")]

    def about(self, width: int, height: int) -> list[Line]:
        value = self.value
        lines = self.fact_lines(value, self._known.get(value), width, height) if value else []
        rows_below = len(self.list.rows) - self.list.visible_indices.stop
        note = f"{rows_below} more below" if rows_below > 0 else ""
        return [title_rule(one_line(value, width), width, self.glyphs, note), *lines]

    def on_line_list_scrolled(self) -> None:
        self.redraw()

    def on_choice(self) -> None:
        value, text = self.value, self.field.value.strip()
        if value and value not in self._known:

            def show_facts(facts: object) -> None:
                self._known[value] = facts
                self.redraw()

            self._bench.background.run_work(_PREVIEW, lambda: self.read_facts(value), show_facts, _PREVIEW)
        if text and self._completed[0] != text:

            def show_paths(paths: list[str]) -> None:
                folder = [text] * (text.endswith("/") and bool(paths))
                self._completed = text, [Choice(value=path, note="") for path in [*folder, *paths]]
                if self.is_attached and self.field.value.strip() == text:
                    self._look_again()

            setting = all_settings()[self._key]
            self._bench.background.run_work("paths", lambda: completions(setting, text), show_paths, "paths")

    def accept_input(self) -> None:
        """Use the chosen row, but only after all choices for the typed text have been listed."""
        # The last letters may not have been searched for yet.
        self.list_matches()
        self._takes_soon = self._is_looking
        if self._takes_soon:
            self.on_choice()
        elif self._opens_folder:
            self.field.put(self.value)
        elif value := self.value:
            self.close()
            self.use(value)

    def take_key(self, event: Key) -> bool:
        self._takes_soon &= event.key == "enter"
        if event.key != "tab":
            return super().take_key(event)
        self.list_matches()
        if self.list.rows:
            self.field.put(self.value)
        return True


def matching(text: str, choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that match a text, the best first: the path that equals the text, then files and folders whose
    names begin with it."""
    path = Path(text).absolute()

    def order(rank: tuple[int, bool, bool], value: str) -> tuple[bool, bool, tuple[int, bool, bool]]:
        begins = bool(text) and Path(value).name.lower().startswith(text.lower())
        return Path(value).absolute() != path, not begins, rank

    hits = [(hit.rank, choice) for choice in choices if (hit := match(text, choice.value, choice.note))]
    hits.sort(key=lambda pair: order(pair[0], pair[1].value))
    return [choice for _, choice in hits]


class DataDialog(ChoiceOfPath):
    heading = "New run, 1 of 2: your data"

    def __init__(self, bench: Workbench, text: str = "") -> None:
        kinds = "A table (CSV, JSONL, JSON, Parquet ...), a folder of texts or a data set."
        super().__init__(bench, DATA_KEY, f"{kinds} Type to search, or give a path.", local_choices.data_here)
        self._text = text

    def read_facts(self, value: str) -> FirstRows:
        return local_choices.first_rows(value)

    def fact_lines(self, value: str, result: object, width: int, height: int) -> list[Line]:
        if not isinstance(result, FirstRows):
            return [[("reading the first rows ...", "dim")]]
        if result.refusal:
            return paragraph(result.refusal, width, "bad")
        return [*paragraph(result.source_description, width, "dim"), *table_lines(result, width)][: max(height, 0)]

    def use(self, value: str) -> None:
        self._bench.app.open(ModelDialog(self._bench, value))


class ModelDialog(ChoiceOfPath):
    heading = "New run, 2 of 2: the model"

    def __init__(self, bench: Workbench, data: str) -> None:
        hint = f"Model to train on {one_line(data, 60)}: local folder, downloaded model, earlier run, or from scratch."
        super().__init__(bench, MODEL_KEY, hint, local_choices.models_here)
        self._data = data
        self._columns: dict[str, str] = {}
        """Columns that the user has chosen, by setting, such as `data.text_column`."""

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        *keys, last = super().keys
        return (*keys, (_COLUMNS_KEYS[0], "columns"), last) if self._has_columns else super().keys

    @property
    def _has_columns(self) -> bool:
        facts = self._known.get(self.value)
        return isinstance(facts, PlannedChoice) and bool(facts.loaded and facts.first.columns)

    def take_key(self, event: Key) -> bool:
        if event.key == "escape":
            self.close()
            self._bench.app.open(DataDialog(self._bench, self._data))
            return True
        if event.key not in _COLUMNS_KEYS or not self._has_columns:
            return super().take_key(event)
        facts = self._known[self.value]
        assert isinstance(facts, PlannedChoice) and facts.loaded is not None, "it has columns"
        self._bench.app.open(ColumnsDialog(facts.loaded, facts.first, self._name_columns))
        return True

    def _name_columns(self, columns: dict[str, str]) -> None:
        self._columns |= columns
        self._known.clear()
        self.choose(self.list.place)

    def read_facts(self, value: str) -> object:
        return local_choices.plan_choice(self._data, model_of(value), self._columns, gpu=self._bench.chosen_gpu)

    def fact_lines(self, value: str, result: object, width: int, height: int) -> list[Line]:
        if not isinstance(result, PlannedChoice):
            return [[("planning ...", "dim")]]
        lines = [line for problem in result.problems for line in paragraph(one_line(str(problem)), width, "bad")]
        if (loaded := result.loaded) is None:
            return lines
        note = loaded.fitted_because("task.type") or f"recipe {loaded.recipe.name if loaded.recipe else ''}"
        columns = [f"columns: {columns_words(loaded.columns)}"] if loaded.columns else []
        if loaded.unused_columns:
            hint = f"; {self._bench.app.key_of('config.recipe')} on Config lists from-scratch recipes for other tasks"
            columns.append(f"not used: {', '.join(loaded.unused_columns)}{hint if value == FROM_SCRATCH else ''}")
        rows = [f"task {loaded.config.task.type}: {note}", *columns, *(offer_lines(result.plan) if result.plan else ())]
        lines += [line for row in rows for line in paragraph(one_line(row), width)]
        return [*lines, *table_lines(result.first, width, tuple(loaded.columns.values()))][:height]

    def use(self, value: str) -> None:
        bench, document = self._bench, self._bench.document
        if document is None:
            bench.show_notice("the config is still loading", "dim")
            return
        reset_values = {key: PRESET for key in document.user_values() if key.startswith(_OF_A_RUN)}
        model_patch = {MODEL_KEY: model_of(value)} if model_of(value) else {}
        if problems := document.patch(reset_values | {DATA_KEY: self._data} | self._columns | model_patch, "a new run"):
            bench.show_notice(one_line(str(problems[0])), "bad")
            return
        bench.app.show_all_settings()
        undo_key, start_key = bench.app.key_of("config.undo"), bench.app.key_of("app.start")
        if bench.is_training_here:
            bench.go(CONFIG_PAGE)
            message = f"Config has the settings of the next run: {start_key} starts it after the active run"
            bench.note_change(f"{message}; {undo_key} restores the old settings", "good")
            return
        # Planning takes seconds, and Train shows its progress.
        bench.show_run(None)
        bench.go(TRAIN_PAGE)
        bench.start_wanted = True
        bench.note_change(f"planning the new run ...; {undo_key} on Config restores the old settings", "dim")
        if not bench.is_planning:
            bench.app.perform_action("app.start")


def model_of(value: str) -> str:
    return "" if value == FROM_SCRATCH else value


class ColumnsDialog(Dialog):
    """Dialog to choose the columns that the task reads. `take` gets the changed columns by setting."""

    heading = "Choose the columns"
    keys = (("enter", "apply"), ("up down", "choose"), ("left right", "another column"), ("escape", "back"))

    def __init__(self, loaded: LoadedConfig, first: FirstRows, take: Callable[[dict[str, str]], None]) -> None:
        super().__init__()
        roles = [f"data.{name}" for name in find_task(loaded.config.task.type).used_column_settings]
        self._detected_columns = {role: loaded.columns.get(role, "") for role in roles}
        self._columns, self._first, self._take = dict(self._detected_columns), first, take
        self._list: ChoiceList[str] = ChoiceList(self._row, wraps=True)
        self._list.show(roles)

    def compose_content(self) -> Iterable[Widget]:
        yield self._list
        yield Pane(lambda width, _: table_lines(self._first, width, tuple(filter(None, self._columns.values()))))

    def _row(self, role: str, _: int) -> Line:
        column = self._columns[role]
        text = f" {COLUMN_ROLES[role]:<12} {one_line(column, _NAME_CELLS) or 'none'}"
        return [(text, "text" if column == self._detected_columns[role] else "bold")]

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        if message.is_double_click:
            self._turn(1)
        self.redraw()

    def _turn(self, steps: int) -> None:
        columns = ["", *self._first.columns]
        if role := self._list.chosen:
            self._columns[role] = columns[(columns.index(self._columns[role]) + steps) % len(columns)]

    def press(self, key: str, character: str | None) -> bool:
        if key in ("left", "right", "h", "l", "space"):
            self._turn(-1 if key in ("left", "h") else 1)
        elif key == "enter":
            detected = self._detected_columns
            named_columns = {role: column for role, column in self._columns.items() if column != detected[role]}
            if SECOND_TEXT_KEY in named_columns:
                # With only the second text named, both text columns would be detected again.
                named_columns[TEXT] = self._columns[TEXT]
            self._take({role: column or all_settings()[role].default for role, column in named_columns.items()})
            return False
        self._list.takes_key(VI_KEYS.get(key, key))
        return True


def table_lines(first: FirstRows, width: int, columns: Sequence[str] = ()) -> list[Line]:
    """Return the first rows as a table of all columns, or of `columns`. Texts that do not fit are cut."""
    indices = [first.columns.index(name) for name in columns or first.columns if name in first.columns]
    names = [one_line(first.columns[index]) for index in indices]
    cells = [[row[index] for index in indices] for row in first.rows]
    widths = column_widths(names, cells, width)
    heading: Line = [(" ".join(map(pad, names, widths)), "title")]
    rows: list[Line] = [[(" ".join(map(pad, row, widths)), "text")] for row in cells]
    return [heading, *rows]


def column_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column that fits, in cells, with one cell between columns. Wide columns shrink first."""
    widths = [max(1, *map(cell_len, [name, *(row[index] for row in rows)])) for index, name in enumerate(columns)]
    while sum(widths) + len(widths) - 1 > width and max(widths) > _WIDEST_COLUMN:
        widths[widths.index(max(widths))] = max(max(widths) - (sum(widths) + len(widths) - 1 - width), _WIDEST_COLUMN)
    while widths and sum(widths) + len(widths) - 1 > width:
        used_cells = sum(widths[:-1]) + len(widths) - 1
        if width - used_cells >= min(widths[-1], 6):
            widths[-1] = width - used_cells
        else:
            widths.pop()
    return widths
