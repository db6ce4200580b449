"""The registry's actions in Textual's command palette."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from tui_trainer.ui.actions import TITLES, Action, key_sign

if TYPE_CHECKING:
    from tui_trainer.ui.app import TrainerApp


_LEAST_SCORE = 1e-6


class ActionCommands(Provider):
    """What can be done now, on this screen and everywhere."""

    app: TrainerApp  # type: ignore[assignment]

    @property
    def _actions(self) -> list[Action]:
        return self.app.offered_actions

    def _help(self, action: Action) -> str:
        keys = " ".join(key_sign(key, ascii_only=self.app.has_class("-ascii")) for key in action.keys)
        return escape(f"{keys or 'no key'}: {action.help}")

    async def discover(self) -> Hits:
        for action in self._actions:
            yield DiscoveryHit(self._name(action), partial(self.app.carry_out, action.id), help=self._help(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._actions:
            # The name counts more than the sentence about it, in which letters far from each other are found by chance.
            score = matcher.match(self._name(action)) or _LEAST_SCORE * (query.casefold() in action.help.casefold())
            if score > 0:
                run = partial(self.app.carry_out, action.id)
                yield Hit(score, matcher.highlight(self._name(action)), run, help=self._help(action))

    def _name(self, action: Action) -> str:
        return f"{TITLES[action.place]}: {action.label}"
