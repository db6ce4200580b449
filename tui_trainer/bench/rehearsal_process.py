"""What `tui-trainer rehearse` does, in a process that the screens begin."""

from __future__ import annotations

import json
from typing import Any

from tui_trainer.bench.rehearsal import part_line, result_lines, trying_line
from tui_trainer.checklist.run import as_request
from tui_trainer.config.load import LoadedConfig
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.command_process import SENTENCE, CommandProcess
from tui_trainer.safe_text import one_line


class RehearsalProcess(CommandProcess):
    """`lines` are the parts that are over, `part` is the one that is not; `result` is None until all are."""

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice) -> None:
        """Raises OSError where no process can be started."""
        self.lines: list[str] = []
        self.part = "loading libraries"
        self.result: dict[str, Any] | None = None
        self.reason = ""
        settings = [part for one in as_request(loaded, {}).assignments for part in ("--set", one)]
        card = [] if gpu is None else ["--gpu", str(gpu)]
        super().__init__(["rehearse", *settings, *card, "--json"], {})

    @property
    def patch(self) -> dict[str, Any]:
        """What would have to change, and works."""
        found = self.result or {}
        return {key: value for fault in found.get("faults", []) for key, value in fault["patch"].items()}

    @property
    def verdict(self) -> tuple[str, bool]:
        """How it ended, and whether the run can be started."""
        if self.result:
            return self.lines[-1], bool(self.result["is_ready"])
        return f"not rehearsed: {self.reason}", False

    def _hear(self, line: str) -> None:
        try:
            told = json.loads(line)
            if "is_ready" in told:
                self.result = told
                self.lines += result_lines(told)
            elif "trying" in told:
                self.lines.append(trying_line(told["trying"]))
            elif len(told) > 1:
                self.lines.append(part_line(told["part"], told))
            else:
                self.part = str(told["part"])
        except (ValueError, LookupError, TypeError):
            # Libraries warn on standard error; its own sentence has its name before it.
            if line.startswith(SENTENCE) or not self.reason:
                self.reason = one_line(line.removeprefix(SENTENCE), 600)

    def _end(self, exit_code: int) -> None:
        if self.is_cancelled:
            self.reason = "cancelled; nothing is left of it"
        self.reason = self.reason or f"its process was ended with exit code {exit_code}"
