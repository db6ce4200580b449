"""The registry's actions in Textual's command palette."""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from tui_trainer.ui.actions import TITLES, Action, key_sign


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
        return f"{keys or 'no key'}: {action.help}"

    async def discover(self) -> Hits:
        for action in self._with_actions.offered_actions:
            yield DiscoveryHit(
                self._name(action), partial(self._with_actions.carry_out, action.id), help=self._help(action)
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._with_actions.offered_actions:
            # The label counts more than the sentence about it.
            score = max(2 * matcher.match(self._name(action)), matcher.match(f"{action.label} {action.help}"))
            if score > 0:
                run = partial(self._with_actions.carry_out, action.id)
                yield Hit(score / 2, matcher.highlight(self._name(action)), run, help=self._help(action))

    def _name(self, action: Action) -> str:
        return f"{TITLES[action.place]}: {action.label}"
