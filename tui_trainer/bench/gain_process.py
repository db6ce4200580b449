"""What `tui-trainer check --measure` does, in a process that the screens begin."""

from __future__ import annotations

from collections.abc import Sequence

from tui_trainer.checklist.run import as_request
from tui_trainer.config.load import LoadedConfig
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.command_process import SENTENCE, CommandProcess
from tui_trainer.safe_text import one_line


class GainProcess(CommandProcess):
    """The checks of these `names`, or of `all`. Each gain is kept as soon as it is measured."""

    def __init__(self, loaded: LoadedConfig, names: Sequence[str], gpu: GpuChoice) -> None:
        """Raises OSError where no process can be started."""
        self.progress = "loading"
        self.exit_code: int | None = None
        settings = [part for one in as_request(loaded, {}).assignments for part in ("--set", one)]
        card = [] if gpu is None else ["--gpu", str(gpu)]
        super().__init__(["check", *settings, *(f"--measure={name}" for name in names), *card, "--json"], {})

    @property
    def check(self) -> str:
        """The name of the one that is being measured."""
        return self.progress.partition(":")[0]

    def _hear(self, line: str) -> None:
        if line.startswith(SENTENCE):
            self.progress = one_line(line.removeprefix(SENTENCE), 200)

    def _end(self, exit_code: int) -> None:
        self.exit_code = exit_code
