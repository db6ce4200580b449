"""Commands about a config, in processes that the screens begin: `rehearse`, `tune` and `check --measure`."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tui_trainer.bench.rehearsal import part_line, result_lines, trying_line
from tui_trainer.checklist.run import as_request
from tui_trainer.config.load import LoadedConfig
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.command_process import SENTENCE, CommandProcess
from tui_trainer.safe_text import one_line


class ConfigProcess(CommandProcess):
    """`part` is what it does now, `lines` are what it has told so far; `result` is None until it is over, and `reason`
    says why there is none."""

    cancelled = "cancelled"

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice, command: str, *options: str) -> None:
        """Raises OSError where no process can be started."""
        self.lines: list[str] = []
        self.part, self.reason = "loading libraries", ""
        self.result: dict[str, Any] | None = None
        self.exit_code: int | None = None
        settings = [part for one in as_request(loaded, {}).assignments for part in ("--set", one)]
        card = [] if gpu is None else ["--gpu", str(gpu)]
        super().__init__([command, *settings, *options, *card, "--json"], {})

    @property
    def patch(self) -> dict[str, Any]:
        """Settings that are better; empty: none were found."""
        return {}

    @property
    def verdict(self) -> tuple[str, bool]:
        raise NotImplementedError

    def _take(self, told: dict[str, Any]) -> None:
        """One line of JSON. Raises LookupError or TypeError where it is not of the command."""

    def _hear(self, line: str) -> None:
        if line.startswith(SENTENCE):
            self.part = self.reason = one_line(line.removeprefix(SENTENCE), 600)
            return
        # Libraries warn on standard error.
        with suppress(ValueError, LookupError, TypeError):
            self._take(json.loads(line))

    def _end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        if self.is_cancelled:
            self.reason = self.cancelled
        self.reason = self.reason or f"its process was ended with exit code {exit_code}"


class RehearsalProcess(ConfigProcess):
    cancelled = "cancelled; nothing is left of it"

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, "rehearse")

    @property
    def patch(self) -> dict[str, Any]:
        found = self.result or {}
        return {key: value for fault in found.get("faults", []) for key, value in fault["patch"].items()}

    @property
    def verdict(self) -> tuple[str, bool]:
        if self.result:
            return self.lines[-1], bool(self.result["is_ready"])
        return f"not rehearsed: {self.reason}", False

    def _take(self, told: dict[str, Any]) -> None:
        if "is_ready" in told:
            self.result = told
            self.lines += result_lines(told)
        elif "trying" in told:
            self.lines.append(trying_line(told["trying"]))
        elif len(told) > 1:
            self.lines.append(part_line(told["part"], told))
        else:
            self.part = str(told["part"])


class TuneProcess(ConfigProcess):
    cancelled = "cancelled before anything was known"

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, "tune")

    @property
    def patch(self) -> dict[str, Any]:
        return dict(self.result["patch"]) if self.result else {}

    @property
    def verdict(self) -> tuple[str, bool]:
        return (self.result["sentence"], True) if self.result else (f"not tuned: {self.reason}", False)

    def _take(self, told: dict[str, Any]) -> None:
        if "sentence" in told:
            self.result = told

    def _hear(self, line: str) -> None:
        super()._hear(line)
        if line.startswith(SENTENCE):
            self.lines.append(self.part)


class GainProcess(ConfigProcess):
    """The checks of these `names`, or of `all`. Each gain is kept as soon as it is measured."""

    def __init__(self, loaded: LoadedConfig, names: Sequence[str], gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, "check", *(f"--measure={name}" for name in names))

    @property
    def check(self) -> str:
        return self.part.partition(":")[0]
