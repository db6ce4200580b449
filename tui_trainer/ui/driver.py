"""Textual's Linux driver with a writer that never makes the application wait.

Textual's own writer holds 30 writes and then blocks the event loop for as long as the link is stalled: no key, no
signal and no exit would get through.
"""

from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from tui_trainer.ui.terminal_output import PatientWriter


class PatientDriver(LinuxDriver):
    """`LinuxDriver` that makes its writer itself: whatever is put in `_writer_thread` is replaced by a patient one."""

    _patient: PatientWriter | None = None

    @property
    def _writer_thread(self) -> Any:
        return self._patient

    @_writer_thread.setter
    def _writer_thread(self, wanted: Any) -> None:
        self._patient = None if wanted is None else PatientWriter(wanted.fileno())

    def take_lost(self) -> bool:
        return self._patient is not None and self._patient.take_lost()
