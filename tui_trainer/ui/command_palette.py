"""The registry's actions in Textual's command palette."""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from tui_trainer.ui.actions import TITLES, Action, key_sign

_LEAST_SCORE = 1e-6


class _WithActions(Protocol):
    @property
    def offered_actions(self) -> list[Action]: ...
    def carry_out(self, action_id: str) -> None: ...


class ActionCommands(Provider):
    """What can be done now, on this screen and everywhere."""

    @property
    def _with_actions(self) -> _WithActions:
        return cast(_WithActions, self.app)

    def _help(self, action: Action) -> str:
        keys = " ".join(key_sign(key, ascii_only=self.app.has_class("-ascii")) for key in action.keys)
        return escape(f"{keys or 'no key'}: {action.help}")

    async def discover(self) -> Hits:
        # Those of the last line first: to move is nothing that is looked for here.
        for action in sorted(self._with_actions.offered_actions, key=lambda one: one.footer or 100):
            run = partial(self._with_actions.carry_out, action.id)
            yield DiscoveryHit(self._name(action), run, help=self._help(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._with_actions.offered_actions:
            # The name counts more than the sentence about it, in which letters far from each other are found by chance.
            score = matcher.match(self._name(action)) or _LEAST_SCORE * (query.casefold() in action.help.casefold())
            if score > 0:
                run = partial(self._with_actions.carry_out, action.id)
                yield Hit(score, matcher.highlight(self._name(action)), run, help=self._help(action))

    def _name(self, action: Action) -> str:
        return f"{TITLES[action.place]}: {action.label}"
