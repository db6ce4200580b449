"""2 Config: every setting in one table, edited in place, with a plan that follows each change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import Action
from tui_trainer.ui.screens.config_files import ConfigFiles
from tui_trainer.ui.spans import Line, fit
from tui_trainer.ui.widgets.pane import Pane

if TYPE_CHECKING:
    from tui_trainer.config.document import Document
    from tui_trainer.planning.plan import Plan
    from tui_trainer.ui.screens.config_estimate import PlanSummary


class ConfigPage(ConfigFiles):
    def opened(self, document: Document) -> None:
        """The config has been read."""
        from tui_trainer.data.samples import samples
        from tui_trainer.data.sources.hub import names_in_the_cache
        from tui_trainer.tasks import task_names
        from tui_trainer.ui.screens.config_model import ConfigModel

        data_sets = [*(f"sample:{name}" for name in samples()), *names_in_the_cache()]
        names = {"data.path": data_sets, "data.eval_path": data_sets, "task.type": task_names()}
        self.model = ConfigModel(document, names)
        self._revision = document.revision

    def body(self) -> Iterable[Pane]:
        yield Pane(self.draw)

    def draw(self, width: int, height: int) -> list[Line]:
        if self.model is None:
            return [fit([], width), fit([("  reading the settings ...", "dim")], width)]
        from tui_trainer.ui.screens.config_view import draw_config

        bench = self.bench
        return draw_config(
            self.model,
            plan=self._summary(bench.plan),
            preset_plan=self._summary(bench.preset_plan),
            planning=bench.is_planning,
            width=width,
            height=height,
            glyphs=bench.glyphs,
        )

    def _summary(self, plan: Plan | None) -> PlanSummary | None:
        """Beside the memory that is free now."""
        from tui_trainer.ui.screens.config_estimate import PlanSummary
        from tui_trainer.ui.screens.config_memory import memory_budget

        bench = self.bench
        return PlanSummary.of(plan, memory_budget(plan, bench.hardware, bench.memory_free_bytes)) if plan else None

    def by_clock(self, width: int) -> object:
        from tui_trainer.ui.screens.config_memory import memory_lines

        found = [self._summary(plan) for plan in (self.bench.plan, self.bench.preset_plan)]
        return [(one.cells, memory_lines(one.memory_use, width, self.bench.glyphs)) for one in found if one]

    # ------------------------------------------------------------- keys

    @property
    def is_typing(self) -> bool:
        return self.model is not None and (self.model.is_typing or self.model.chooser is not None)

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        model = self.model
        if model is None:
            return []
        if model.chooser:
            return [
                ("enter", "take it"),
                ("up down", "choose"),
                ("space", "keep or drop own values"),
                ("escape", "back"),
            ]
        if model.editor and model.editor.closed:
            return [("enter", "take it"), ("up down", "choose"), ("escape", "cancel")]
        if model.editor:
            keys = [("enter", "accept"), ("escape", "cancel"), ("up down", "accept and move")]
            return [*keys, ("tab", "complete")] if model.editor.options else keys
        return [("enter", "to the table"), ("escape", "clear")]

    def press(self, key: str, character: str | None) -> None:
        """A key of a text that is being typed, or of the list of recipes."""
        model = self.model
        if model is None:
            return
        if not self.is_typing:
            return
        if key == "escape":
            model.cancel()
        elif key == "enter":
            self._said(model.accept())
        elif key in ("up", "down"):
            self._said(model.move(1 if key == "down" else -1))
        elif key in ("left", "right"):
            model.move_in_text(1 if key == "right" else -1)
        elif key in ("home", "end"):
            model.move_in_text(-10_000 if key == "home" else 10_000)
        elif key in ("backspace", "ctrl+w", "ctrl+u"):
            model.erase(word=key == "ctrl+w", everything=key == "ctrl+u")
        elif key == "delete":
            model.erase(next_character=True)
        elif key == "tab":
            model.complete()
        elif character == " " and (model.chooser or (model.editor and model.editor.closed)):
            self._said(model.toggle() if model.chooser else model.move(1))
        elif character in ("j", "k") and model.chooser:
            model.move(1 if character == "j" else -1)
        elif character == "q" and model.chooser:
            model.cancel()
        elif character is not None:
            model.type_text(character)
        self._follow()

    def paste(self, text: str) -> None:
        if self.model is not None and self.model.is_typing:
            self.model.type_text(one_line(text.strip("\r\n")))

    def available(self, action: Action) -> bool:
        model = self.model
        if model is None:
            return False
        if action.name in ("undo", "redo"):
            return model.document.can_undo if action.name == "undo" else model.document.can_redo
        if action.name == "clear":
            return bool(model.filter.text)
        if action.name == "next_problem":
            return bool(model.document.problems)
        if action.name == "preview":
            return model.document.loaded is not None and not model.document.own_problems
        return True

    # ---------------------------------------------------------- actions

    def action_up(self) -> None:
        self._said(self._model.move(-1))

    def action_down(self) -> None:
        self._said(self._model.move(1))

    def action_page_up(self) -> None:
        self._said(self._model.page(-1))

    def action_page_down(self) -> None:
        self._said(self._model.page(1))

    def action_first(self) -> None:
        self._said(self._model.go_to_end(-1))

    def action_last(self) -> None:
        self._said(self._model.go_to_end(1))

    def action_previous_group(self) -> None:
        self._said(self._model.next_group(-1))

    def action_next_group(self) -> None:
        self._said(self._model.next_group(1))

    def action_edit(self) -> None:
        self._said(self._model.edit())

    def action_toggle(self) -> None:
        self._said(self._model.toggle())

    def action_less(self) -> None:
        self._said(self._model.bump(-1))

    def action_more(self) -> None:
        self._said(self._model.bump(1))

    def action_undo(self) -> None:
        self._said(self._model.undo())

    def action_redo(self) -> None:
        self._said(self._model.redo())

    def action_reset(self) -> None:
        self._said(self._model.reset())

    def action_reset_all(self) -> None:
        self._said(self._model.reset_all())

    def action_recipe(self) -> None:
        self._said(self._model.open_recipes())

    def action_filter(self) -> None:
        self._said(self._model.start_filter())

    def action_clear(self) -> None:
        self._model.cancel()

    def action_changed_only(self) -> None:
        self._said(self._model.toggle_changed_only())

    def action_advanced(self) -> None:
        self._said(self._model.toggle_advanced())

    def action_next_problem(self) -> None:
        self._said(self._model.next_problem())

    def action_preview(self) -> None:
        from tui_trainer.ui.previewing import offer_preview

        if loaded := self._model.document.loaded:
            offer_preview(self.bench, loaded)

    def action_copy(self) -> None:
        text = self._model.copied_text()
        if text:
            self.bench.app.copy_to_clipboard(text)
            self.bench.tell(f"copied, if your terminal allows it: {one_line(text)}")
