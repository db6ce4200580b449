"""State of the Config screen without Textual: rows of the table, changes of settings, and the editor of one value."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tui_trainer.config import editing
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.editing import choices, display_text, parse, unit_text, value_text
from tui_trainer.config.explain import groups
from tui_trainer.config.fields import Setting
from tui_trainer.config.load import all_settings
from tui_trainer.errors import Problem
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.planning.unread_settings import unread_settings
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.search import IN_TEXT, match
from tui_trainer.ui.widgets.settings_table import ListRow
from tui_trainer.units import quantity

_EDIT_IT = "press Enter to edit this setting"


@cache
def name_cells() -> int:
    return max(len(setting.name) for _, _, settings in groups() for setting in settings)


@dataclass(kw_only=True, slots=True)
class Editor:
    """Editor of one value.

    `options` are completions of `text`, or all values of the setting if the editor is `has_fixed_choices`. `chosen` is
    the index of the chosen option, or -1. `begun` holds the letters typed to choose an option. If `is_looking`, the
    caller must call `find_completions` in another thread, because listing files may be slow, and pass its result to
    `set_completions`."""

    setting: Setting
    text: str
    original: str
    names: Iterable[str] = ()
    has_fixed_choices: bool = False
    options: tuple[str, ...] = ()
    chosen: int = -1
    error: str = ""
    begun: str = ""
    looked_for: str | None = None
    """Text for which the file options were looked up; None until they are found."""
    completes_soon: bool = False
    """Whether the user asked to complete the text before the options were found."""

    @classmethod
    def open(cls, setting: Setting, value: Any, names: Iterable[str] = ()) -> "Editor":
        """Return an editor with the present value as text; an empty value is an empty text, not a placeholder."""
        text = editing.edit_text(setting, value)
        editor = cls(setting=setting, text=text, original=text, names=names)
        # The values of a boolean setting may include "auto".
        if allowed_values := tuple(dict.fromkeys((*setting.choices, *choices(setting)))) if choices(setting) else ():
            editor.has_fixed_choices = True
            editor.options = tuple(display_text(setting, choice) for choice in allowed_values)
            editor.chosen = allowed_values.index(value) if value in allowed_values else 0
            editor.text = editor.options[editor.chosen]
        else:
            editor._look_now()
        return editor

    @property
    def is_looking(self) -> bool:
        """Whether the options are names of files or folders that have not been looked up yet."""
        return self.setting.completes in ("file", "files", "folder") and self.looked_for is None

    def find_completions(self, text: str) -> tuple[str, ...]:
        """Return the completions of `text`, to be passed to `set_completions`. May be slow."""
        return tuple(editing.completions(self.setting, text, names=self.names))

    def set_completions(self, text: str, options: tuple[str, ...]) -> None:
        """Store the completions of `text`, unless the text in the editor has changed since."""
        if self.is_looking and text == self.text:
            self.looked_for, self.options = text, options
            if self.completes_soon:
                self.complete()

    def _look_now(self) -> None:
        self.looked_for, self.completes_soon, self.options = None, False, ()
        if not self.is_looking:
            self.options = self.find_completions(self.text)

    def set_text(self, text: str) -> None:
        self.text, self.chosen = text, -1
        self._look_now()
        value = parse(self.setting, text)
        self.error = reason(value) if isinstance(value, Problem) and not self.options else ""

    def choose(self, steps: int) -> None:
        if self.options:
            self.chosen = steps - 1 if self.chosen < 0 and steps > 0 else self.chosen + steps
            self.chosen %= len(self.options)
            self.text, self.error = self.options[self.chosen], ""

    def complete(self) -> None:
        """Extend the text by the beginning that all options share. If it cannot be extended, choose the next option."""
        if self.is_looking:
            self.completes_soon = True
            return
        common = os.path.commonprefix(self.options)  # noqa: RUF071 - names are cut between any two letters
        if len(common) <= len(self.text) or not common.startswith(self.text):
            self.choose(1)
        else:
            self.set_text(common)

    def jump(self, letters: str) -> None:
        """Choose the first option that starts with the letters typed. The same first letter again takes the next."""
        for prefix in (self.begun + letters.lower(), letters.lower()):
            if matches := [index for index, option in enumerate(self.options) if option.lower().startswith(prefix)]:
                later_matches = [index for index in matches if index > self.chosen]
                self.chosen = (matches if len(prefix) > 1 else later_matches or matches)[0]
                self.text, self.begun = self.options[self.chosen], prefix
                return


def reason(problem: Problem) -> str:
    return f"{problem.message}; {problem.hint}" if problem.hint else problem.message


class ConfigModel:
    """Model of the Config screen. `names` holds further completions (samples, tasks) by the key of the setting.

    Methods that change a setting return a sentence for the message line, or an empty string.
    """

    def __init__(
        self, document: ConfigDocument, names: Mapping[str, Sequence[str]] | None = None, *, has_gpu: bool = True,
        arrow: str = "->",
    ) -> None:  # fmt: skip
        self.document, self.names, self._has_gpu, self._arrow = document, names or {}, has_gpu, arrow
        self.resolved: dict[str, tuple[Any, str, str]] = {}
        self._planned_numbers: dict[str, float] = {}
        self._has_plan = False
        """Value, planned value and reason of each setting whose planned value is another one, by the setting's key."""
        self.only_changed = self.show_all = False
        self.filter = ""
        self._rows: tuple[object, list[ListRow]] = (None, [])
        self._unread: tuple[object, dict[str, str]] = (None, {})

    @property
    def rows(self) -> list[ListRow]:
        """Rows to show: headings and settings. The same list object is returned while nothing changes."""
        document = self.document
        state = (document.revision, document.problems, self.only_changed, self.show_all, self.filter, self.resolved)
        if self._rows[0] != state:
            rows = table_rows(document, self._wanted(), self.unused_settings, self.filter)
            rows = [replace(row, value=self.value_text(row.key)) if row.key in self.resolved else row for row in rows]
            if not (self.only_changed or self.show_all or self.filter):
                rows.append(ListRow(name=self._folded_words({row.key for row in rows})))
            self._rows = (state, rows)
        return self._rows[1]

    def note_plan(self, plan: Plan | None) -> None:
        """Store the planned values of settings that are `auto` now, and numbers that the plan changes."""
        self._has_plan = plan is not None
        columns = self.document.loaded.columns if self.document.loaded else {}
        decided: dict[str, Planned[Any]] = {key: exact(name, "found in the data") for key, name in columns.items()}
        decided |= plan.resolved() if plan else {}
        values = {key: self.document.value(key) for key in decided}
        self._planned_numbers = {
            key: planned.value for key, planned in decided.items()
            if values[key] == "auto" and type(planned.value) in (int, float)
        }  # fmt: skip
        self.resolved = {
            key: (values[key], _decided_text(key, planned), planned.reason) for key, planned in decided.items()
            if values[key] == "auto" or (isinstance(planned.value, int | float) and values[key] != planned.value)
        }  # fmt: skip

    def planned_value(self, key: str) -> tuple[str, str]:
        """Return the planned value of a setting and its reason; both empty if it is the setting's own, or not known."""
        value, text, reason = self.resolved.get(key, (None, "", ""))
        return (text, reason) if self.document.value(key) == value else ("", "")

    def value_text(self, key: str) -> str:
        """Return the setting's value with its unit, and the planned value if it is another one: `16 -> 8 rows`."""
        setting, value, decided = all_settings()[key], self.document.value(key), self.planned_value(key)[0]
        return f"{display_text(setting, value)} {self._arrow} {decided}" if decided else value_text(setting, value)

    @property
    def unused_settings(self) -> dict[str, str]:
        """Settings that this run does not use, each with the reason. They belong to the last config without errors."""
        document = self.document
        if document.loaded is not None and self._unread[0] != document.revision:
            self._unread = (document.revision, unread_settings(document.loaded.config, has_gpu=self._has_gpu))
        return self._unread[1]

    def _folded_words(self, shown_keys: set[str]) -> str:
        """Return a line such as `9 more settings: 5 rarely changed, 4 not used by this run; + shows them`."""
        keys = [setting.key for _, _, settings in groups() for setting in settings if setting.key not in shown_keys]
        unused = sum(key in self.unused_settings for key in keys)
        rare = len(keys) - unused
        parts = [f"{rare} rarely changed"] * bool(rare) + [f"{unused} not used by this run"] * bool(unused)
        return f"{len(keys)} more settings: {', '.join(parts)}; + shows them"

    def _wanted(self) -> set[str]:
        """Return the keys of the settings to show: the usual settings, and all that were changed or have a problem."""
        shows_all = not self.only_changed and (self.show_all or bool(self.filter))
        problem_keys = {problem.key for problem in self.document.problems}
        return {
            setting.key for _, _, settings in groups() for setting in settings
            if shows_all or self.document.is_changed(setting.key)
            or (not self.only_changed and setting.key in problem_keys)
            or not (self.only_changed or setting.advanced or setting.key in self.unused_settings)
        }  # fmt: skip

    def reveal(self, key: str) -> None:
        """Clear the filters if they hide a setting, or for an empty key in any case."""
        if not key or not any(row.key == key for row in self.rows):
            self.filter, self.only_changed = "", False
            self.show_all |= not any(row.key == key for row in self.rows)

    def next_problem(self, key: str) -> tuple[str, str]:
        """Return the key of the next setting with a problem, and after the last a problem that concerns no setting."""
        keys = [setting.key for _, _, settings in groups() for setting in settings]
        problem_indexes = [index for index, other_key in enumerate(keys) if self.document.problems_of(other_key)]
        other_problems = [one_line(str(problem)) for problem in self.document.problems if problem.key not in keys][:1]
        if not problem_indexes:
            return "", "".join(other_problems) or "no problems"
        later_indexes = [index for index in problem_indexes if index > (keys.index(key) if key in keys else 0)]
        return keys[(later_indexes or problem_indexes)[0]], "" if later_indexes else "".join(other_problems)

    def edit(self, key: str) -> Editor:
        return Editor.open(all_settings()[key], self.document.value(key), self.names.get(key, ()))

    def accept_value(self, editor: Editor) -> bool:
        """Set the typed value and return whether it is valid. If it is not, `editor.error` has the reason."""
        value = parse(editor.setting, editor.text)
        problem = value if isinstance(value, Problem) else None
        if problem is None and (editor.has_fixed_choices or editor.text != editor.original):
            problem = self.document.set(editor.setting.key, value)
        editor.error = reason(problem) if problem else ""
        return problem is None

    def bump(self, key: str, direction: editing.Direction) -> str:
        setting, old_value = all_settings()[key], self.document.value(key)
        planned_number = self._planned_numbers.get(key) if old_value == "auto" else None
        if old_value == "auto" and not self._has_plan and not choices(setting):
            return f"{setting.name} is auto, and there is no plan yet: press Enter to type a number"
        new_value = editing.bump(setting, old_value if planned_number is None else planned_number, direction)
        if new_value == old_value:
            is_number = {int, float} & set(setting.kinds)
            return f"{setting.name} cannot be {'higher' if direction > 0 else 'lower'}" if is_number else _EDIT_IT
        problem = self.document.set(key, new_value)
        return str(problem) if problem else ""

    def toggle(self, key: str) -> str:
        return self.bump(key, 1) if choices(all_settings()[key]) else _EDIT_IT

    def reset(self, key: str) -> str:
        setting, document = all_settings()[key], self.document
        if not document.is_changed(key) and not document.is_edited(key):
            return f"{setting.name} already has the recipe's value"
        document.reset(key)
        return f"{setting.name} reset to {display_text(setting, document.value(key))}"

    def reset_all(self) -> str:
        count_before = len(self.document.changes())
        self.document.reset_all()
        reset_count = count_before - len(self.document.changes())
        return f"reset {quantity(reset_count, 'setting')}; undo restores them" if reset_count else "nothing to reset"


def table_rows(document: ConfigDocument, wanted: set[str], unread: Mapping[str, str], query: str) -> list[ListRow]:
    """Return the wanted settings below their headings. A query keeps only matching settings, the best first."""
    matches = {key: hit for key in wanted if (hit := match(query, key, all_settings()[key].help))}
    # Matches in descriptions count only if no name matches.
    if any(hit.rank[0] < IN_TEXT for hit in matches.values()):
        matches = {key: hit for key, hit in matches.items() if hit.rank[0] < IN_TEXT}
    ranked_groups: list[tuple[tuple[int, bool, bool], list[ListRow]]] = []
    for _, title, settings in groups():
        section = [setting for setting in settings if setting.key in matches]
        section.sort(key=lambda setting: matches[setting.key].rank)
        if section:
            rows = [_row(document, setting, matches[setting.key].places, setting.key in unread) for setting in section]
            ranked_groups.append((matches[section[0].key].rank, [ListRow(name=title), *rows]))
    ranked_groups.sort(key=lambda part: part[0])
    return [row for _, rows in ranked_groups for row in rows]


def _row(document: ConfigDocument, setting: Setting, matched: tuple[int, ...], is_unread: bool) -> ListRow:
    """Return the row of a setting. `matched` has the positions in its key at which a query was found."""
    name_prefix = len(setting.key) - len(setting.name)
    value, is_changed = document.value(setting.key), document.is_changed(setting.key)
    return ListRow(
        key=setting.key, name=setting.name, value=value_text(setting, value), is_changed=is_changed,
        matched=tuple(index - name_prefix for index in matched),
        preset=display_text(setting, document.preset_value(setting.key)) if is_changed else "",
        has_problem=bool(document.problems_of(setting.key)), is_advanced=setting.advanced or is_unread,
        is_placeholder=value in ("", editing.EMPTY, "auto"),
    )  # fmt: skip


def _decided_text(key: str, planned: Planned[Any]) -> str:
    setting, value = all_settings()[key], planned.value
    text = f"{value:g}" if isinstance(value, float) else display_text(setting, value)
    return f"{'' if planned.exact else '~'}{text} {unit_text(setting, value)}".rstrip()
