"""The terminal's other end: input that no byte can break, and the way to the shell and back.

Textual's own reader ends the application at the first byte that is no UTF-8, and asks a terminal that is gone for keys
without end. Its handlers of SIGTSTP and SIGCONT outlive the application, begin it anew when a closed terminal sends
SIGCONT, and stop a run that `bg` should let go on.
"""

import asyncio
import os
import re
import select
import signal
import sys
import traceback
from codecs import getincrementaldecoder
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

import psutil
from textual.drivers.linux_driver import LinuxDriver

from tui_trainer.ui.terminal import PatientWriter, hung_up

# Even if each byte becomes a sign of three, a pipe that can be written to has room for it.
_INPUT_BYTES = select.PIPE_BUF // 3
_BACK_SECONDS = 0.25
# Mouse reports of terminals that know no other: their coordinates are bytes, and would be read as letters or half ones.
_OLD_MOUSE = re.compile(rb"\x1b\[M[\x20-\xff]{3}")


class PatientDriver(LinuxDriver):
    """`LinuxDriver` whose thread for input reads a pipe, into which goes what the terminal sends, as UTF-8.

    It writes to `sys.__stderr__`, which `TerminalGuard` has made a `PatientWriter`.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._show_again = partial(app.refresh, layout=True)
        app.terminal = self
        # Whether the terminal is the application's; else it is the shell's, an editor's, or nobody's any more.
        self._is_up = False
        # Whether the shell has it, and it is taken back once this process is in the foreground.
        self._is_away = False
        self._back: asyncio.TimerHandle | None = None
        self._tty = self.fileno
        self._readable, self._writable = os.pipe()
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._input_ended = Event()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            # Until the screens are up, and once they are gone, the kernel's own way is right.
            signal.signal(number, signal.SIG_DFL)

    def write(self, data: str) -> None:
        # Textual asserts that it could take the terminal.
        with suppress(AssertionError):
            if self._is_up:
                super().write(data)

    def start_application_mode(self) -> None:
        """Take the terminal, at once or when a shell brings this process to the foreground."""
        loop = asyncio.get_running_loop()
        # The loop takes them away when it ends.
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        loop.add_signal_handler(signal.SIGCONT, self._go_on)
        if self._back is not None:
            self._back.cancel()
        self._is_away = not _is_in_foreground(self._tty)
        if self._is_away:
            # A shell gives the terminal to a job that runs in the background without a signal.
            self._back = loop.call_later(_BACK_SECONDS, self._come_back)
        else:
            self._is_up = True
            super().start_application_mode()  # type: ignore[no-untyped-call]
            loop.add_reader(self._tty, self._read)

    def stop_application_mode(self) -> None:
        if self._is_up:
            super().stop_application_mode()
            self._is_up = False

    def disable_input(self) -> None:
        if self._is_up:
            asyncio.get_running_loop().remove_reader(self._tty)
            super().disable_input()

    def switch_mouse(self) -> bool:
        """Leave the mouse to the terminal, or take it back. Return whether this program has it now."""
        self._disable_mouse_support()
        self._mouse = not self._mouse
        self._enable_mouse_support()
        return self._mouse

    def close(self) -> None:
        super().close()
        if isinstance(sys.__stderr__, PatientWriter):
            sys.__stderr__.settle()

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
        if _is_in_foreground(self._tty):
            self.stop_application_mode()
            if note:
                super().write(f"{note}\r\n")
        else:
            # Nothing may be done to a terminal that is the shell's: it would stop this process again.
            self._is_up = False
            asyncio.get_running_loop().remove_reader(self._tty)
            self.exit_event.set()
            self._input_ended.wait()
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
        if not hung_up(self._tty):
            self._give_back()
        self._come_back()

    def _come_back(self) -> None:
        if self._is_away:
            self.start_application_mode()
            self._show_again()

    def _read(self) -> None:
        """Pass on what the terminal sends. What is no UTF-8 becomes U+FFFD."""
        if not select.select([], [self._writable], [], 0)[1]:
            return  # a long paste is still being read
        read = b""
        with suppress(OSError):
            read = os.read(self._tty, _INPUT_BYTES)
        if not read:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._tty)
        os.write(self._writable, self._decode(_OLD_MOUSE.sub(b"", read)).encode())

    def run_input_thread(self) -> None:
        """Read keys from the pipe until the application ends."""
        self._input_ended.clear()
        self.fileno = self._readable
        try:
            while not self.exit_event.is_set():
                try:
                    super().run_input_thread()
                except Exception:  # a sequence that the parser cannot take must not end the screens
                    traceback.print_exc()
        finally:
            self.fileno = self._tty
            self._input_ended.set()


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
