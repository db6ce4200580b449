"""The help dialog: the keys of a page, and the sections of the guides, one at a time."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from textual.containers import VerticalScroll
from textual.events import Click
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import Markdown

from tui_trainer.lines.guides import GuideSection, guides, sections
from tui_trainer.ui import palette
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.keymap import TITLES, Action, Keymap, PageName, key_sign
from tui_trainer.ui.spans import Line, cursor_line, fit, hanging, pad, paragraph
from tui_trainer.ui.widgets.lists import VI_KEYS
from tui_trainer.ui.widgets.pane import Pane

_KEYS_WIDTH = 16
_MOST_USED = 5


def page_section(place: PageName) -> GuideSection:
    """Return the section about a page in the guide `screens`."""
    return next(section for section in sections("screens") if section.title == TITLES[place])


class HelpDialog(Dialog):
    """The keys of a page with the section about it in the guide, or another section of a guide.

    Enter or a click carries out an action. A whole guide is not shown, as its layout would take a second.
    """

    app: Any

    def __init__(self, keymap: Keymap, place: PageName, section: GuideSection | None = None) -> None:
        super().__init__()
        self._keymap, self._place, self._chosen = keymap, place, 0
        page_actions, app_actions = keymap.actions_on(place), keymap.actions_on("app")
        ranked_actions = [action for action in page_actions + app_actions if action.footer_rank]
        top_actions = sorted(ranked_actions, key=lambda action: action.footer_rank)[:_MOST_USED]
        move_actions = [action for action in page_actions if action.name in palette.MOVES]
        self._groups = {
            f"{TITLES[place]}: most used": top_actions,
            f"{TITLES[place]}: more": [action for action in page_actions if action not in top_actions + move_actions],
            TITLES["app"]: [action for action in app_actions if action not in top_actions], "Move": move_actions,
        }  # fmt: skip
        self._entries = [action for actions in self._groups.values() for action in actions]
        self.section = section or page_section(place)
        self._actions = Pane(lambda width, _: [line for _, line in self._rows(width)])
        self._guide = Markdown(open_links=False)
        self._guide.BULLETS = ["- "]

    @property
    def _has_keys(self) -> bool:
        return self.section == page_section(self._place)

    @property
    def heading(self) -> str:  # type: ignore[override]
        section = self.section
        return "Keys" if self._has_keys else section.title or guides()[section.guide]

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        action_keys = (("enter", "perform"), ("up down", "choose")) if self._has_keys else (("up down", "scroll"),)
        return (*action_keys, ("left right", "page"), ("/", "all guides"), ("escape", "close"))

    def compose_content(self) -> Iterable[Widget]:
        with VerticalScroll(id="inside", can_focus=False):
            yield self._actions
            yield self._guide

    async def on_mount(self) -> None:
        await self.show(self.section)

    async def show(self, section: GuideSection) -> None:
        self.section, self._actions.display = section, section == page_section(self._place)
        self.query_one("#box").border_title = self.heading.replace("[", r"\[")
        self.query_one("#inside").scroll_home(animate=False, immediate=True)
        guide_title = f"*{guides()[section.guide]}*\n\n" if section.title else ""
        await self._guide.update(f"{guide_title}{section.text}")
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        if key in ("left", "right"):
            pages = list(chain(*map(sections, guides())))
            self.call_next(self.show, pages[(pages.index(self.section) + (1 if key == "right" else -1)) % len(pages)])
        elif character == "/":
            self.app.open(palette.Palette("Search the guides", palette.guide_commands(self.app)))
        elif key == "enter" and self._chosen_rows:
            self._do(self._entries[self._chosen])
        action = self._keymap.find("app", key, character)
        return action is None or action.id != "app.help"

    @property
    def _chosen_rows(self) -> list[int]:
        """Rows of the chosen action that are visible now."""
        if not self._has_keys:
            return []
        inside = self.query_one("#inside")
        visible_rows = range(round(inside.scroll_y), round(inside.scroll_y) + inside.size.height)
        return [row for row in self._rows_of(self._entries[self._chosen]) if row in visible_rows]

    def _rows_of(self, action: Action) -> list[int]:
        return [row for row, (row_action, _) in enumerate(self._rows(self._actions.size.width)) if row_action is action]

    def scroll_by_key(self, key: str) -> bool:
        """Choose the next or previous action while the chosen one is visible, otherwise scroll."""
        index = self._chosen + {"up": -1, "down": 1}.get(VI_KEYS.get(key, key), len(self._entries))
        if not (0 <= index < len(self._entries) and self._chosen_rows):
            return super().scroll_by_key(key)
        self._chosen = index
        rows = self._rows_of(self._entries[index])
        self.query_one("#inside").scroll_to_region(Region(0, rows[0], 1, len(rows)), animate=False, immediate=True)
        self.redraw()
        return True

    def _do(self, action: Action) -> None:
        self.close()
        self.app.call_next(self.app.perform_action, action.id)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show the section that a link such as `scripts.md#exit-codes` points to."""
        guide, _, anchor = event.href.removesuffix("/").partition("#")
        name = guide.removesuffix(".md") or self.section.guide
        if name in guides():
            pages = sections(name)
            matches = [page for page in pages if page.title.lower().replace(" ", "-").startswith(anchor or " ")]
            self.call_next(self.show, (matches or pages)[0])

    def on_click(self, event: Click) -> None:
        if self.get_widget_at(*event.screen_offset)[0] is self._actions:
            action, _ = self._rows(self._actions.size.width)[event.screen_y - self._actions.region.y]
            if action:
                self._do(action)

    def _rows(self, width: int) -> list[tuple[Action | None, Line]]:
        rows: list[tuple[Action | None, Line]] = []
        for title, actions in self._groups.items():
            rows.append((None, [(title, "title")]))
            for action in actions:
                keys = " ".join(key_sign(key, ascii_only=self.glyphs.ascii) for key in action.keys)
                start: Line = [(pad(f"  {keys}", _KEYS_WIDTH), "key")]
                help_lines = paragraph(action.help, max(width - _KEYS_WIDTH, 20))
                is_chosen = action is self._entries[self._chosen]
                lines = hanging(start, help_lines)
                rows += [(action, cursor_line(fit(line, width)) if is_chosen else line) for line in lines]
            rows.append((None, []))
        return rows
