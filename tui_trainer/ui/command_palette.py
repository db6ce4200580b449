"""The registry's actions in Textual's command palette."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from tui_trainer.ui.actions import TITLES, Action, key_sign

_LEAST_SCORE = 1e-6


class ActionCommands(Provider):
    """What can be done now, on this screen and everywhere: see `TrainerApp.offered_actions` and `carry_out`."""

    app: Any

    def _offered(self) -> Iterable[tuple[Action, dict[str, Any]]]:
        """The actions of the footer first: to move is nothing that is looked for here."""
        for action in sorted(self.app.offered_actions, key=lambda one: one.footer or 100):
            keys = " ".join(key_sign(key, ascii_only=self.app.has_class("-ascii")) for key in action.keys)
            help = escape(f"{keys or 'no key'}: {action.help}")
            yield action, {"command": partial(self.app.carry_out, action.id), "help": help}

    async def discover(self) -> Hits:
        for action, more in self._offered():
            yield DiscoveryHit(_name(action), **more)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, more in self._offered():
            # The name counts more than the sentence about it, in which letters far from each other are found by chance.
            score = matcher.match(_name(action)) or _LEAST_SCORE * (query.casefold() in action.help.casefold())
            if score > 0:
                yield Hit(score, matcher.highlight(_name(action)), **more)


def _name(action: Action) -> str:
    return f"{TITLES[action.place]}: {action.label}"
