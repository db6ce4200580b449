"""Commands that the screens run in processes of their own: exports, measurements and tools. Each has at most one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, system_reason
from tui_trainer.launching.command_process import JsonProcess

if TYPE_CHECKING:
    from tui_trainer.config.document import ConfigDocument
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.launching.export_process import ExportProcess
    from tui_trainer.measure.config_process import ConfigProcess, GainProcess
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.spans import Role

RUN_TRAINING_REFUSAL = "a run is training; the run and the measurement would slow each other down"
P = TypeVar("P", bound=JsonProcess)
C = TypeVar("C", bound="ConfigProcess")


class Bench(Protocol):
    document: ConfigDocument | None
    chosen_gpu: GpuChoice
    current_page: int

    @property
    def run_is_alive(self) -> bool: ...
    def config_changed(self) -> None: ...
    def show_notice(self, text: str, role: Role = "text") -> None: ...
    def report_end(self, page: int, text: str, role: Role) -> None: ...


class SingleProcessCommand(Generic[P]):
    """A command that runs in at most one process at a time. Its end is reported on the page where it was started.

    `what` is its name in messages. A command that `measures` cannot start during a run, and is cancelled by a run.
    """

    def __init__(self, bench: Bench, what: str, *, measures: bool = False) -> None:
        self._bench, self._page = bench, 0
        self.command_name, self.is_measurement = what, measures
        self.process: P | None = None

    @property
    def running_process(self) -> P | None:
        return self.process if self.process is not None and self.process.alive else None

    def cancel(self) -> None:
        if self.process is not None:
            self.process.cancel()

    def end(self) -> None:
        """End the process. Called after the screens have closed."""
        if process := self.running_process:
            process.end()

    def _begin(self, make: Callable[[], P | str]) -> str:
        """Start the process that `make` returns, unless one is running. Return why the start failed, or ""."""
        if self.running_process:
            return ""
        if self.is_measurement and self._bench.run_is_alive:
            return RUN_TRAINING_REFUSAL
        self._page = self._bench.current_page
        try:
            result = make()
        except OSError as error:
            return f"could not start a process: {system_reason(error)}"
        if isinstance(result, str):
            return result
        if self.process is not None:
            self.process.stop_reading()
        self.process = result
        return ""

    def poll(self) -> bool:
        """Read the output of the process, and report its end. Return whether the process has just ended."""
        if (process := self.process) is None:
            return False
        is_in_the_way = self.is_measurement and self._bench.run_is_alive
        if is_in_the_way and process.alive and not process.is_cancelled:
            process.cancel()
            self._bench.report_end(self._page, f"{self.command_name} was stopped: {RUN_TRAINING_REFUSAL}", "warn")
        has_ended = process.poll()
        if has_ended and not is_in_the_way and (verdict := self._verdict(process)):
            self._bench.report_end(self._page, *verdict)
        return has_ended

    def _verdict(self, process: P) -> tuple[str, Role] | None:
        raise NotImplementedError


class Exports(SingleProcessCommand["ExportProcess"]):
    """Exports, one at a time. After the screens have closed, only the running export continues."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, "an export")
        self.waiting: deque[tuple[RunFolder, str]] = deque()
        self._several, self._failures = 0, list[str]()
        """Number of exports in the present batch, and a message for each of them that failed."""

    def start(self, folder: RunFolder, name: str) -> None:
        from tui_trainer.launching.export_process import ExportProcess

        if reason := self._begin(lambda: ExportProcess(folder, name)):
            self._bench.show_notice(reason, "bad")

    def start_all(self, wanted: list[tuple[RunFolder, str]]) -> None:
        """Add exports, as pairs of run and format, to the queue."""
        if not self.waiting and not self.running_process:
            self._several, self._failures = 0, []
        self.waiting += wanted
        self._several += len(wanted)
        self._page = self._bench.current_page
        self._begin_next()

    def _begin_next(self) -> None:
        page = self._page
        while self.waiting and not self.running_process:
            self.start(*self.waiting.popleft())
            self._page = page

    def end(self) -> None:
        if self.process is not None:
            self.process.stop_reading()

    def is_exporting(self, root: Path) -> bool:
        active_folders = [self.running_process.run] if self.running_process else []
        return any(folder.root == root for folder in [*active_folders, *(folder for folder, _ in self.waiting)])

    @property
    def words(self) -> str:
        """Progress of a batch, such as `exporting 2 of 4: chat to gguf, 40%`; empty for a single export or none."""
        if (export := self.running_process) is None or self._several < 2:
            return ""
        amount, total, _ = export.progress
        share, position = f"{100 * amount / total:.0f}%" if total else export.part, self._several - len(self.waiting)
        return f"exporting {position} of {self._several}: {export.run.name} to {export.name}, {share}"

    def poll(self) -> bool:
        has_ended = super().poll()
        if has_ended:
            self._begin_next()
        if has_ended and self._several > 1 and not self.running_process:
            failed_count = len(self._failures)
            message = "; ".join([f"{self._several - failed_count} of {self._several} runs exported", *self._failures])
            self._bench.report_end(self._page, message, "bad" if failed_count else "good")
            self._several, self._failures = 0, []
        return has_ended

    def _verdict(self, process: ExportProcess) -> tuple[str, Role] | None:
        subject = f"{process.run.name} to {process.name}"
        if process.result and process.is_good:
            return f"exported {subject}: {process.result['folder']}", "good"
        self._failures.append(f"could not export {subject}: {process.words[0]}")
        return None if process.is_cancelled else (self._failures[-1], "bad")


class Measurement(SingleProcessCommand[C]):
    """Measurement of the config in a process of the class named `kind`. The process ends with the screens."""

    def __init__(self, bench: Bench, what: str, kind: str) -> None:
        super().__init__(bench, what, measures=True)
        self._kind = kind

    def start(self, *names: str) -> str:
        """Start measuring the present config, for the named checks. Return why this failed, or an empty string."""

        def make() -> C | str:
            document = self._bench.document
            if document is None or document.loaded is None:
                return "fix the problem in the config first" if document else "the config is still loading"
            from tui_trainer.measure import config_process

            kind: Callable[..., C] = getattr(config_process, self._kind)
            return kind(document.loaded, *filter(None, [names]), self._bench.chosen_gpu)

        return self._begin(make)

    def poll(self) -> bool:
        if has_ended := super().poll():
            # The plan and the checks use the measurements.
            self._bench.config_changed()
        return has_ended

    def _verdict(self, process: C) -> tuple[str, Role]:
        message, is_good = process.verdict
        return message, "good" if is_good else "bad"


class Gains(Measurement["GainProcess"]):
    """Measurements of what the fixes of checks gain here. The checklist shows each gain as soon as it is measured."""

    _shown_check = ""

    @property
    def words(self) -> str:
        if (process := self.running_process) is None:
            return ""
        return "stopping ..." if process.is_cancelled else f"measuring: {process.part}"

    def poll(self) -> bool:
        has_ended, process = super().poll(), self.process
        if process is not None and process.check != self._shown_check:
            self._shown_check = process.check
            if not has_ended:
                self._bench.config_changed()
        return has_ended

    def _verdict(self, process: GainProcess) -> tuple[str, Role]:
        if process.is_cancelled:
            return "measurement stopped; results so far are saved", "text"
        if process.exit_code in (EXIT_DONE, EXIT_FAILED):
            return process.part, "good"
        return f"could not measure: {process.reason}", "bad"


class Tool(SingleProcessCommand[JsonProcess]):
    """A command that does not depend on the config. Its process ends with the screens.

    If `yes` has arguments, the command first only reports what it would do. After the user has agreed, it runs again
    with these arguments. `done(result)` returns the message about its result.
    """

    def __init__(
        self, bench: Bench, what: str, arguments: Sequence[str], *, yes: Sequence[str] = (), measures: bool = False,
        done: Callable[[dict[str, Any]], str] = lambda _: "",
    ) -> None:  # fmt: skip
        super().__init__(bench, what, measures=measures)
        self.arguments, self._yes, self._done = tuple(arguments), tuple(yes), done
        self._agreed = not yes

    @property
    def confirmation(self) -> dict[str, Any] | None:
        """Report of what the command would do, while the user has not agreed; None at other times."""
        result = self.process.result if self.process and not self.process.alive else None
        return result if result and not self._agreed and "offer" in result else None

    def start(self) -> str:
        """Start the command, or continue after the user has agreed. Return why it could not be started, or ""."""

        def make() -> JsonProcess:
            self._agreed = not self._yes or self.confirmation is not None
            return JsonProcess([*self.arguments, *(self._yes if self._agreed else ())], {})

        return self._begin(make)

    def _verdict(self, process: JsonProcess) -> tuple[str, Role] | None:
        if self.confirmation is not None:
            return None
        message = self._done(process.result) if process.result else ""
        role: Role = "good" if process.result else "text" if process.is_cancelled else "bad"
        return message or f"{self.command_name}: {process.reason}", role
