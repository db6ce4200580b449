"""A command that was begun on the screens to measure the config: in a process of its own, one at a time."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from tui_trainer.bench.config_process import ConfigProcess, RehearsalProcess, TuneProcess
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.ui.measuring import Bench


C = TypeVar("C", bound="ConfigProcess")


class OwnProcess(Generic[C]):
    """None beside a run; it ends with the screens. `what` it is, in a sentence."""

    what = ""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.process: C | None = None

    @abstractmethod
    def _make(self, loaded: LoadedConfig, gpu: GpuChoice) -> C:
        """Raises OSError where no process can be started."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> str:
        """Of the config as it is now. Why not; empty: it goes on."""
        if self.alive:
            return ""
        loaded = self._bench.document.loaded if self._bench.document else None
        if self._bench.run_is_alive:
            return f"a run trains: beside it {self.what} would measure neither memory nor time"
        if loaded is None:
            return "the config is still being read"
        try:
            self.process = self._make(loaded, self._bench.chosen_gpu)
        except OSError as error:
            return f"no process can be started: {error.strerror or error}"
        return ""

    def poll(self) -> None:
        """Once a second. How it ended is told, wherever one is; where a run begins, it ends."""
        process = self.process
        if process is None:
            return
        if process.alive and self._bench.run_is_alive and not process.is_cancelled:
            process.cancel()
            self._bench.tell(f"{self.what} ends: a run trains, and beside it nothing would be measured", "warn")
        if process.poll() and not self._bench.run_is_alive:
            words, is_good = process.verdict
            self._bench.tell(words, "good" if is_good else "bad")
            # The plan goes by what was measured.
            self._bench.config_changed()

    def end(self) -> None:
        if self.process is not None and self.process.alive:
            self.process.cancel()
            self.process.let_go()


class Rehearsals(OwnProcess["RehearsalProcess"]):
    what = "a rehearsal"

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice) -> RehearsalProcess:
        from tui_trainer.bench.config_process import RehearsalProcess

        return RehearsalProcess(loaded, gpu)


class Tunings(OwnProcess["TuneProcess"]):
    what = "tune"

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice) -> TuneProcess:
        from tui_trainer.bench.config_process import TuneProcess

        return TuneProcess(loaded, gpu)
