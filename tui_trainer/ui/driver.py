"""The terminal's two ends: a writer that never makes the application wait, a reader that no byte can break, and the way
to the shell and back.

Textual's own writer holds 30 writes and then blocks the event loop for as long as the link is stalled: no key, no
signal and no exit would get through. Its updates are cut at their right end only, so that everything from the left edge
of the widget on is sent again: eight times the bytes of a Train screen at 200x50. A Textual that has other names sends
its own, longer updates; `tests/ui/test_train_page.py` counts the bytes of a second of training.

Textual's own reader ends the application at the first byte that is no UTF-8. Its handlers of SIGTSTP and SIGCONT
outlive the application, begin it anew when a closed terminal sends SIGCONT, and stop a run that `bg` should let go on.
"""

import asyncio
import os
import re
import signal
import traceback
from codecs import getincrementaldecoder
from contextlib import suppress
from select import select
from threading import Event
from typing import Any

import psutil
from rich.console import Console
from rich.control import Control
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen

from tui_trainer.ui.terminal import PatientWriter, hung_up

_INPUT_BYTES = 4096
# How long the rest of an escape sequence is waited for: the parser has its own limits, and is asked so often.
_ROUND_SECONDS, _ROUNDS = 0.1, 10
_BACK_SECONDS = 0.25
# Mouse reports of terminals that know no other: their coordinates are bytes, and would be read as letters or half ones.
_OLD_MOUSE = re.compile(rb"\x1b\[M[\x20-\xff]{3}")


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
    """Wakes the input thread when it should end, so that it need not ask."""

    def __init__(self) -> None:
        super().__init__()
        self.woken, self._wakes = os.pipe()

    def set(self) -> None:
        super().set()
        os.write(self._wakes, b"x")

    def clear(self) -> None:
        super().clear()
        os.read(self.woken, 1)


class PatientDriver(LinuxDriver):
    """`LinuxDriver` that makes its writer itself: whatever is put in `_writer_thread` is replaced by a patient one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._patient: PatientWriter | None = None
        # Whether the terminal is the application's; else it is the shell's, an editor's, or nobody's any more.
        self._is_up = False
        # Whether the shell has it, and it is taken back once this process is in the foreground.
        self._is_away = False
        self._back: asyncio.TimerHandle | None = None
        super().__init__(*args, **options)
        self.exit_event: ExitEvent = ExitEvent()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            # Until the screens are up, and once they are gone, the kernel's own way is right.
            signal.signal(number, signal.SIG_DFL)

    @property
    def _writer_thread(self) -> Any:
        return self._patient

    @_writer_thread.setter
    def _writer_thread(self, wanted: Any) -> None:
        self._patient = None if wanted is None else PatientWriter(wanted.fileno())

    def take_lost(self) -> bool:
        return self._patient is not None and self._patient.take_lost()

    def write(self, data: str) -> None:
        if self._is_up and self._patient is not None:
            self._patient.write(data)

    def start_application_mode(self) -> None:
        """Take the terminal, at once or when a shell brings this process to the foreground."""
        loop = asyncio.get_running_loop()
        # The loop takes them away when it ends.
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        loop.add_signal_handler(signal.SIGCONT, self._go_on)
        if self._back is not None:
            self._back.cancel()
        self._is_away = not _is_in_foreground(self.fileno)
        if self._is_away:
            # A shell gives the terminal to a job that runs in the background without a signal.
            self._back = loop.call_later(_BACK_SECONDS, self._come_back)
        else:
            self._is_up = True
            super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        if self._is_up:
            super().stop_application_mode()
            self._is_up = False

    def disable_input(self) -> None:
        if self._is_up:
            super().disable_input()

    def suspend(self, note: str) -> bool:
        """Stop the job that this process belongs to, as Ctrl+Z does at a shell; `note` stays on the terminal.

        Returns whether it can be: where no shell would continue it, it would be stopped for ever.
        """
        if _is_orphaned():
            return False
        # First: once the leader of the job has stopped, as `uv run` does, the terminal is the shell's.
        self._give_back(note)
        os.kill(0, signal.SIGTSTP)
        return True

    def _give_back(self, note: str = "") -> None:
        if not self._is_up:
            return
        if _is_in_foreground(self.fileno):
            self.stop_application_mode()
            if self._patient is not None and note:
                self._patient.write(f"{note}\r\n")
        else:
            # Nothing may be done to a terminal that is the shell's: it would stop this process again.
            self._is_up = False
            self.exit_event.set()
            if self._key_thread is not None:
                self._key_thread.join()
            self.exit_event.clear()
        self.close()
        self._is_away = True

    def _stop(self) -> None:
        loop = asyncio.get_running_loop()
        self._give_back()
        loop.remove_signal_handler(signal.SIGTSTP)
        # Not SIGSTOP: this one does nothing where no shell could continue the process.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._back = loop.call_later(_BACK_SECONDS, self._come_back)

    def _go_on(self) -> None:
        """The process was stopped and continued. A SIGSTOP left no time to give the terminal back."""
        if not hung_up(self.fileno):
            self._give_back()
        self._come_back()

    def _come_back(self) -> None:
        if self._is_away:
            self.start_application_mode()
            self._app.refresh(layout=True)

    def run_input_thread(self) -> None:
        """Read keys until the application ends or the terminal is gone. What is no UTF-8 is read as U+FFFD."""
        parser, decode, rounds = XTermParser(self._debug), getincrementaldecoder("utf-8")("replace").decode, 0
        while not self.exit_event.is_set():
            # Only a part of an escape sequence is waited for with a limit.
            ready, _, _ = select([self.fileno, self.exit_event.woken], [], [], _ROUND_SECONDS if rounds else None)
            rounds = max(rounds - 1, 0)
            text = ""
            if self.fileno in ready:
                rounds = _ROUNDS
                try:
                    read = os.read(self.fileno, _INPUT_BYTES)
                except OSError:
                    return
                if not read:
                    return
                text = decode(_OLD_MOUSE.sub(b"", read))
            try:
                for event in (*(parser.feed(text) if text else ()), *parser.tick()):
                    self.process_message(event)
            except Exception:  # a sequence that the parser cannot take must not end the screens
                traceback.print_exc()
                parser = XTermParser(self._debug)


def _is_in_foreground(fd: int) -> bool:
    """Also where the terminal has no foreground to speak of, because it is not the one that controls this process."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


def _is_orphaned() -> bool:
    """Whether no process of this session waits for the group of this one, as a shell does that started it."""
    group, pid = os.getpgrp(), os.getpid()
    with suppress(OSError, psutil.Error):
        while os.getpgid(pid) == group:
            pid = psutil.Process(pid).ppid()
        return os.getsid(pid) != os.getsid(0)
    return True
