"""Commands that are begun on the screens, each in a process of its own: nobody waits for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from tui_trainer.bench.config_process import ConfigProcess, GainProcess, RehearsalProcess, TuneProcess
    from tui_trainer.config.document import Document
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.launching.command_process import CommandProcess
    from tui_trainer.launching.export import ExportProcess
    from tui_trainer.runs.folder import RunFolder
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


P = TypeVar("P", bound="CommandProcess")
C = TypeVar("C", bound="ConfigProcess")


class OwnProcess(Generic[P]):
    """One at a time; `process` is the newest."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.process: P | None = None

    @property
    def alive(self) -> P | None:
        return self.process if self.process is not None and self.process.alive else None

    def cancel(self) -> None:
        if self.process is not None:
            self.process.cancel()

    def _begin(self, make: Callable[[], P]) -> str:
        """Why not; empty: it goes on."""
        try:
            self.process = make()
        except OSError as error:
            return f"no process can be started: {error.strerror or error}"
        return ""


class Exports(OwnProcess["ExportProcess"]):
    """One goes on beside everything, and when the screens are left."""

    def start(self, folder: RunFolder, name: str) -> None:
        from tui_trainer.launching.export import ExportProcess

        if not self.alive and (reason := self._begin(lambda: ExportProcess(folder, name))):
            self._bench.tell(reason, "bad")

    def is_of(self, root: Path) -> bool:
        return self.alive is not None and self.alive.run.root == root

    def poll(self) -> None:
        """Once a second. How it ended is told, wherever one is."""
        export: ExportProcess | None = self.process
        if export is None or not export.poll() or export.outcome is None:
            return
        if export.outcome.is_good:
            self._bench.tell(f"{export.run.name} is exported to {export.name}: {export.outcome.folder}", "good")
        elif not export.is_cancelled:
            self._bench.tell(f"{export.run.name} is not exported to {export.name}: {export.outcome.words[0]}", "bad")

    def let_go(self) -> None:
        if self.process is not None:
            self.process.let_go()


class Measurement(OwnProcess[C]):
    """Of the config on the table. `what` it is, in a sentence. It ends with the screens, and where a run begins."""

    what = ""

    @abstractmethod
    def _make(self, loaded: LoadedConfig, gpu: GpuChoice, names: tuple[str, ...]) -> C:
        """Raises OSError where no process can be started."""

    def start(self, *names: str) -> str:
        """With the config as it is now. Why not; empty: it goes on."""
        bench = self._bench
        loaded = bench.document.loaded if bench.document else None
        if self.alive:
            return ""
        if bench.run_is_alive:
            return BESIDE_A_RUN
        if loaded is None:
            return "the config is still being read"
        return self._begin(lambda: self._make(loaded, bench.chosen_gpu, names))

    def poll(self) -> None:
        """Once a second. How it ended is told, wherever one is."""
        process, bench = self.process, self._bench
        if process is None:
            return
        if process.alive and bench.run_is_alive and not process.is_cancelled:
            process.cancel()
            bench.tell(f"{self.what} ends: {BESIDE_A_RUN}", "warn")
        ended = process.poll()
        if ended and not bench.run_is_alive:
            bench.tell(*self._verdict(process))
        if self._has_news(process, ended):
            # The plan and the checks go by what was measured.
            bench.config_changed()

    def _has_news(self, process: C, ended: bool) -> bool:
        return ended

    def _verdict(self, process: C) -> tuple[str, Role]:
        words, is_good = process.verdict
        return words, "good" if is_good else "bad"

    def end(self) -> None:
        if process := self.alive:
            process.cancel()
            process.let_go()


class Rehearsals(Measurement["RehearsalProcess"]):
    what = "a rehearsal"

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice, names: tuple[str, ...]) -> RehearsalProcess:
        from tui_trainer.bench.config_process import RehearsalProcess

        return RehearsalProcess(loaded, gpu)


class Tunings(Measurement["TuneProcess"]):
    what = "tune"

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice, names: tuple[str, ...]) -> TuneProcess:
        from tui_trainer.bench.config_process import TuneProcess

        return TuneProcess(loaded, gpu)


class Gains(Measurement["GainProcess"]):
    """What the checks of some names gain here: each stands in the checklist as soon as it is measured."""

    what = "the measuring"
    _shown_check = ""

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice, names: tuple[str, ...]) -> GainProcess:
        from tui_trainer.bench.config_process import GainProcess

        return GainProcess(loaded, names, gpu)

    @property
    def words(self) -> str:
        """How far it is; empty where nothing is measured."""
        if (process := self.alive) is None:
            return ""
        return "ending ..." if process.is_cancelled else f"measuring {process.part}"

    def _has_news(self, process: GainProcess, ended: bool) -> bool:
        before, self._shown_check = self._shown_check, process.check
        return ended or process.check != before

    def _verdict(self, process: GainProcess) -> tuple[str, Role]:
        if process.is_cancelled:
            return "the measuring has ended; what was measured until then is kept", "text"
        if process.exit_code in (EXIT_DONE, EXIT_FAILED):
            return process.part, "good"
        return f"not measured: {process.reason}", "bad"
