"""Rehearsals and searches for the fastest settings that were begun on the screens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui_trainer.ui.own_process import OwnProcess

if TYPE_CHECKING:
    from tui_trainer.bench.rehearsal_process import RehearsalProcess
    from tui_trainer.bench.tune_process import TuneProcess
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.hardware.diagnosis import GpuChoice


class Rehearsals(OwnProcess["RehearsalProcess"]):
    what = "a rehearsal"

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice) -> RehearsalProcess:
        from tui_trainer.bench.rehearsal_process import RehearsalProcess

        return RehearsalProcess(loaded, gpu)


class Tunings(OwnProcess["TuneProcess"]):
    what = "tune"

    def _make(self, loaded: LoadedConfig, gpu: GpuChoice) -> TuneProcess:
        from tui_trainer.bench.tune_process import TuneProcess

        return TuneProcess(loaded, gpu)
