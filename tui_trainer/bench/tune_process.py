"""What `tui-trainer tune` does, in a process that the screens begin."""

from __future__ import annotations

import json
from typing import Any

from tui_trainer.checklist.run import as_request
from tui_trainer.config.load import LoadedConfig
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.command_process import SENTENCE, CommandProcess
from tui_trainer.safe_text import one_line


class TuneProcess(CommandProcess):
    """`lines` is what it has told so far, `part` the newest of it; `result` is None until it is over."""

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice) -> None:
        """Raises OSError where no process can be started."""
        self.lines: list[str] = []
        self.part = "loading libraries"
        self.result: dict[str, Any] | None = None
        self.reason = ""
        settings = [part for one in as_request(loaded, {}).assignments for part in ("--set", one)]
        card = [] if gpu is None else ["--gpu", str(gpu)]
        super().__init__(["tune", *settings, *card, "--json"], {})

    @property
    def patch(self) -> dict[str, Any]:
        """The settings that were faster; empty: none were."""
        return dict(self.result["patch"]) if self.result else {}

    @property
    def verdict(self) -> tuple[str, bool]:
        """How it ended, and whether well."""
        return (self.result["sentence"], True) if self.result else (f"not tuned: {self.reason}", False)

    def _hear(self, line: str) -> None:
        if line.startswith(SENTENCE):
            self.part = self.reason = one_line(line.removeprefix(SENTENCE), 300)
            self.lines.append(self.part)
            return
        try:
            told = json.loads(line)
            if "sentence" in told:
                self.result = told
        except (ValueError, TypeError):
            # Libraries warn on standard error.
            return

    def _end(self, exit_code: int) -> None:
        if self.is_cancelled:
            self.reason = "cancelled before anything was known"
        self.reason = self.reason or f"its process was ended with exit code {exit_code}"
