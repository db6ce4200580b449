"""What the checks gain here, measured from the Checklist screen: in a process of its own, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from tui_trainer.bench.config_process import GainProcess
    from tui_trainer.config.document import Document
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.ui.spans import Role

BESIDE_A_RUN = "a run trains: both would be slower, and nothing would be measured"


class Bench(Protocol):
    """What is measured, and who is told."""

    document: Document | None
    chosen_gpu: GpuChoice

    @property
    def run_is_alive(self) -> bool: ...
    def config_changed(self) -> None: ...
    def tell(self, text: str, role: Role = "text") -> None: ...


class Measuring:
    """Nobody waits for it. It ends with the screens, and where a run begins."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._process: GainProcess | None = None
        self._shown_check = ""

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def words(self) -> str:
        """How far it is; empty where nothing is measured."""
        if self._process is None or not self._process.alive:
            return ""
        return "ending ..." if self._process.is_cancelled else f"measuring {self._process.part}"

    def start(self, names: Sequence[str]) -> None:
        """Measure the checks of these names with the config as it is now."""
        from tui_trainer.bench.config_process import GainProcess

        loaded = self._bench.document.loaded if self._bench.document else None
        if loaded is None or self.alive:
            return
        try:
            self._process = GainProcess(loaded, names, self._bench.chosen_gpu)
        except OSError as error:
            self._bench.tell(f"no process can be started: {error.strerror or error}", "bad")

    def cancel(self) -> None:
        if self._process is not None:
            self._process.cancel()

    def poll(self) -> None:
        """Once a second: what was measured since stands in the checklist."""
        process, bench = self._process, self._bench
        if process is None or not process.alive:
            return
        if bench.run_is_alive and not process.is_cancelled:
            process.cancel()
            bench.tell(f"the measuring ends: {BESIDE_A_RUN}", "warn")
        ended = process.poll()
        if ended or process.check != self._shown_check:
            self._shown_check = process.check
            bench.config_changed()
        if not ended or bench.run_is_alive:
            return
        if process.is_cancelled:
            bench.tell("the measuring has ended; what was measured until then is kept")
        elif process.exit_code in (EXIT_DONE, EXIT_FAILED):
            bench.tell(process.part, "good")
        else:
            bench.tell(f"not measured: {process.reason}", "bad")
