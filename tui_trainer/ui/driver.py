"""Textual's driver with safe input and with suspending to the shell.

Textual's own reader ends the application at the first byte that is not UTF-8, and reads a closed terminal forever. Its
handlers of SIGTSTP and SIGCONT stay after the application has ended, start it again when a closed terminal sends
SIGCONT, and stop a run that `bg` should continue.
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

from tui_trainer.ui.terminal import PatientWriter, is_hung_up

# A pipe with room for PIPE_BUF bytes accepts this many, even if each becomes a character of three bytes.
_INPUT_BYTES = select.PIPE_BUF // 3
_BACK_SECONDS = 0.25
# Mouse reports of old terminals contain raw bytes as coordinates, which would be read as letters.
_OLD_MOUSE = re.compile(rb"\x1b\[M[\x20-\xff]{3}")


class PatientDriver(LinuxDriver):
    """`LinuxDriver` that passes the terminal's input to Textual through a pipe, as valid UTF-8.

    Output goes to `sys.__stderr__`, which `TerminalGuard` has replaced by a `PatientWriter`.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._show_again = partial(app.refresh, layout=True)
        app.terminal = self
        # Whether this application uses the terminal now, rather than a shell or an editor. False if it is closed.
        self._is_up = False
        # Whether the terminal was left to the shell until this process is in the foreground again.
        self._is_away = False
        self._back: asyncio.TimerHandle | None = None
        self._tty = self.fileno
        self._readable, self._writable = os.pipe()
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._input_ended = Event()
        for signal_number in (signal.SIGTSTP, signal.SIGCONT):
            # Before the screens are shown and after they are closed, the kernel must handle these signals.
            signal.signal(signal_number, signal.SIG_DFL)

    def write(self, data: str) -> None:
        # Textual asserts in `write` that its application mode was started.
        with suppress(AssertionError):
            if self._is_up:
                super().write(data)

    def start_application_mode(self) -> None:
        """Take the terminal now, or later when a shell brings this process to the foreground."""
        loop = asyncio.get_running_loop()
        # The event loop removes these handlers when it ends.
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        loop.add_signal_handler(signal.SIGCONT, self._go_on)
        if self._back is not None:
            self._back.cancel()
        self._is_away = not _is_in_foreground(self._tty)
        if self._is_away:
            # A shell sends no signal when it brings a running job to the foreground, so this is polled.
            self._back = loop.call_later(_BACK_SECONDS, self._resume_screens)
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
        """Switch whether this program or the terminal handles the mouse. Return whether this program does now."""
        self._disable_mouse_support()
        self._mouse = not self._mouse
        self._enable_mouse_support()
        return self._mouse

    def close(self) -> None:
        super().close()
        if isinstance(sys.__stderr__, PatientWriter):
            sys.__stderr__.drain_output()

    def suspend(self, note: str) -> bool:
        """Stop the process group of this process with SIGTSTP, as Ctrl+Z does in a shell, after printing `note`.

        Return False and do nothing if no shell could continue the group.
        """
        if _is_orphaned():
            return False
        # This must precede the signal: the shell takes the terminal once the job's leader, such as `uv run`, stops.
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
            # The terminal belongs to the shell: changing its mode would stop this process again.
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
        # Unlike SIGSTOP, SIGTSTP does nothing if no shell could continue the process.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._back = loop.call_later(_BACK_SECONDS, self._resume_screens)

    def _go_on(self) -> None:
        """Take the terminal again after SIGCONT. If SIGSTOP was the cause, the terminal was not given back before."""
        if not is_hung_up(self._tty):
            self._give_back()
        self._resume_screens()

    def _resume_screens(self) -> None:
        if self._is_away:
            self.start_application_mode()
            self._show_again()

    def _read(self) -> None:
        """Copy the terminal's input to the pipe, with U+FFFD for bytes that are not UTF-8."""
        if not select.select([], [self._writable], [], 0)[1]:
            return  # the input thread has not read a long paste yet
        data = b""
        with suppress(OSError):
            data = os.read(self._tty, _INPUT_BYTES)
        if not data:  # the terminal is closed
            asyncio.get_running_loop().remove_reader(self._tty)
        os.write(self._writable, self._decode(_OLD_MOUSE.sub(b"", data)).encode())

    def run_input_thread(self) -> None:
        """Read keys from the pipe until the application ends. An exception of Textual's parser only goes to the log."""
        self._input_ended.clear()
        self.fileno = self._readable
        try:
            while not self.exit_event.is_set():
                try:
                    super().run_input_thread()
                except Exception:  # an escape sequence that Textual cannot parse must not end the screens
                    traceback.print_exc()
        finally:
            self.fileno = self._tty
            self._input_ended.set()


def _is_in_foreground(fd: int) -> bool:
    """Return whether this process is in the foreground of the terminal `fd`; True if `fd` does not control it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


def _is_orphaned() -> bool:
    """Return whether no shell, or other process of this session outside the process group, could continue the group."""
    group, pid = os.getpgrp(), os.getpid()
    with suppress(OSError, psutil.Error):
        while os.getpgid(pid) == group:
            pid = psutil.Process(pid).ppid()
        return os.getsid(pid) != os.getsid(0)
    return True
