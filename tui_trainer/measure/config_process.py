"""Processes that the screens start to run measuring commands, such as `tune`, with the shown config."""

from collections.abc import Sequence
from typing import Any

from tui_trainer.advice.fixes import patched_request
from tui_trainer.config.load import LoadedConfig
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.command_process import SENTENCE, JsonProcess
from tui_trainer.measure.rehearsal import lines_of


def config_options(loaded: LoadedConfig, gpu: GpuChoice) -> list[str]:
    """Return the command-line options that pass this config and this GPU to a command."""
    set_options = [part for assignment in patched_request(loaded, {}).assignments for part in ("--set", assignment)]
    return [*set_options, *([] if gpu is None else ["--gpu", str(gpu)])]


class ConfigProcess(JsonProcess):
    """Process of a command with a config. Its result is the JSON object in the output that has the key `result_key`."""

    command: Sequence[str]
    result_key = "sentence"
    done_words, not_done_words = "", "not measured"

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice, *options: str) -> None:
        """Start the command. Raises OSError if no process can be started."""
        self.outcomes: dict[str, bool] = {}
        """Whether each part of a rehearsal worked, keyed by the output line that reports the part."""
        super().__init__([*self.command, *config_options(loaded, gpu), *options], {})

    @property
    def patch(self) -> dict[str, Any]:
        return dict(self.result.get("patch", {})) if self.result else {}

    @property
    def verdict(self) -> tuple[str, bool]:
        """(sentence about the result, whether the result is good)."""
        if self.result is None:
            return f"{self.not_done_words}: {self.reason}", False
        return self.done_words or self.result["sentence"], bool(self.result.get("is_ready", True))

    def _take(self, fields: dict[str, Any]) -> None:
        if self.result_key in fields:
            self.result = fields


class RehearsalProcess(ConfigProcess):
    command, result_key, not_done_words = ("rehearse",), "is_ready", "not rehearsed"
    cancelled_words = "cancelled; nothing was saved"

    @property
    def patch(self) -> dict[str, Any]:
        faults = (self.result or {}).get("faults", [])
        return {key: value for fault in faults for key, value in fault["patch"].items()}

    def _take(self, fields: dict[str, Any]) -> None:
        super()._take(fields)
        self.part = str(fields.get("part", self.part))
        self.lines += lines_of(fields)
        if self.result:
            self.done_words = self.lines[-1]
            self.outcomes |= dict.fromkeys(self.lines[-max(len(fields["faults"]), 1) :], bool(fields["is_ready"]))
        elif "failed" in fields:
            self.outcomes[self.lines[-1]] = False


class TuneProcess(ConfigProcess):
    """Search for the fastest settings. Each message of the command is added to `lines`."""

    command: Sequence[str] = ("tune",)
    not_done_words = "not tuned"
    cancelled_words = "cancelled before any result"

    def _handle_line(self, line: str) -> None:
        super()._handle_line(line)
        if line.startswith(SENTENCE):
            self.lines.append(self.part)


class SizesProcess(TuneProcess):
    """Search for the number of rows per step that keeps the machine busy."""

    command = ("tune", "--effective")


class SwitchesProcess(TuneProcess):
    """Measurement of the gain of each training option. It suggests no settings."""

    command, result_key = ("bench", "train"), "variants"
    done_words, not_done_words = "all training options measured", "not measured"


class GainProcess(ConfigProcess):
    """Measurement of the gains of the checks in `names` (`all`: all checks). Each gain is stored once it is known."""

    command = ("check",)

    def __init__(self, loaded: LoadedConfig, names: Sequence[str], gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, *(f"--measure={name}" for name in names))

    @property
    def check(self) -> str:
        return self.part.partition(":")[0]
