"""What goes to the terminal: a writer that never makes the application wait, and updates as short as they can be.

Textual's own writer holds 30 writes and then blocks the event loop for as long as the link is stalled: no key, no
signal and no exit would get through. Its updates are cut at their right end only, so that everything from the left edge
of the widget on is sent again: eight times the bytes of a Train screen at 200x50. A Textual that has other names sends
its own, longer updates; `tests/ui/test_train_page.py` counts the bytes of a second of training.
"""

import os
from contextlib import suppress
from select import select
from threading import Event, current_thread, main_thread
from time import monotonic
from typing import Any

from rich.console import Console
from rich.control import Control
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen

from tui_trainer.ui.terminal import PatientWriter

_ROUND_SECONDS, _QUIET_ROUNDS = 0.09, 10


def tighten(screen: Screen[Any]) -> None:
    """Let a screen that was just made send tight updates, if this Textual can."""
    with suppress(ImportError, AttributeError):
        from textual._compositor import ChopsUpdate, Compositor

        class TightUpdate(ChopsUpdate):
            """Stretches `(line, first cell, cell behind the last)`, cut at both ends."""

            def render_segments(self, console: Console) -> str:
                sequences: list[str] = []
                for y, x1, x2 in self.spans:
                    for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                        first, last = max(x, x1), min(end, x2)
                        if strip is not None and first < last:
                            sequences.append(Control.move_to(first, y).segment.text)
                            sequences.append(strip.crop(first - x, last - x).render(console))
                return "".join(sequences)

        class TightCompositor(Compositor):
            def render_partial_update(self) -> ChopsUpdate | None:
                update = super().render_partial_update()
                return None if update is None else TightUpdate(update.chops, update.spans, update.chop_ends)

        if isinstance(screen._compositor, Compositor):
            screen._compositor = TightCompositor()


class ExitEvent(Event):
    """What Textual's input thread asks every tenth of a second whether it should end: a tenth of a percent of a core.

    After a second without input, when no part of an escape sequence is waited for any more, it is held here: until
    there is input, until it should end, or for a second.
    """

    def __init__(self, input_fd: int) -> None:
        super().__init__()
        self._input_fd, self._asked_at, self._quiet_rounds = input_fd, 0.0, 0
        self._end, self._ended = os.pipe()

    def set(self) -> None:
        super().set()
        os.write(self._ended, b"x")

    def clear(self) -> None:
        super().clear()
        os.read(self._end, 1)

    def is_set(self) -> bool:
        if current_thread() is not main_thread() and not super().is_set():
            # Whoever asks sooner than a tenth of a second later has read something.
            is_quiet = monotonic() - self._asked_at > _ROUND_SECONDS
            self._quiet_rounds = self._quiet_rounds + 1 if is_quiet else 0
            if self._quiet_rounds > _QUIET_ROUNDS and any(select([self._input_fd, self._end], [], [], 1.0)):
                self._quiet_rounds = 0
            self._asked_at = monotonic()
        return super().is_set()


class PatientDriver(LinuxDriver):
    """`LinuxDriver` that makes its writer itself: whatever is put in `_writer_thread` is replaced by a patient one."""

    _patient: PatientWriter | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.exit_event = ExitEvent(self.fileno)

    @property
    def _writer_thread(self) -> Any:
        return self._patient

    @_writer_thread.setter
    def _writer_thread(self, wanted: Any) -> None:
        self._patient = None if wanted is None else PatientWriter(wanted.fileno())

    def take_lost(self) -> bool:
        return self._patient is not None and self._patient.take_lost()
