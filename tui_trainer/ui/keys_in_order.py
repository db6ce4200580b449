"""What a key does has been done before the next key is looked at, however fast they come.

Textual hands keys on by messages: what is typed quickly behind a key that moves the focus, or that opens or closes a
screen, reaches the widget that was there before.
"""

from typing import Protocol, runtime_checkable

from textual.app import App
from textual.events import Event, Key


@runtime_checkable
class TakesKeys(Protocol):
    """A screen or a field that is asked before its bindings are."""

    def take_key(self, event: Key) -> bool:
        """Do what the key means; whether it is done with."""


class KeysInOrder(App[None], inherit_bindings=False):
    """An application that carries out each key itself, on a screen of ours; others get theirs from Textual."""

    async def on_event(self, event: Event) -> None:
        is_done = isinstance(event, Key) and not event.is_forwarded and await self._carry_out(event)
        if not is_done:
            await super().on_event(event)

    async def _carry_out(self, event: Key) -> bool:
        screen = self.screen
        if not isinstance(screen, TakesKeys):
            return False
        self.app_focus = True
        if screen.take_key(event):
            return True
        bound = screen.active_bindings.get(event.key)
        return bound is not None and await self.run_action(bound.binding.action, bound.node)
