"""The inputs of a plan, from which it can be computed again with some settings changed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig, ResolvedLoaded
from tui_trainer.config.sections import ResolvedConfig
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.batch_cut import MICRO_BATCH_KEY
from tui_trainer.planning.fit import MemoryBudget, parts_of_run, with_dry_run
from tui_trainer.planning.fused_kernels import fuses_loss
from tui_trainer.planning.memory.estimate import total_bytes
from tui_trainer.planning.training_setup import TrainingSetup

EVAL_BATCH = "evaluation.per_device_eval_batch_size"
Loaded = TypeVar("Loaded", bound=LoadedConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """The device of a run, its free memory, the model's shape, the training setup, and the rows of a pass.

    These inputs are decided once, for the plan; `with_patch` recomputes only those that depend on settings.
    """

    loaded: ResolvedLoaded
    hardware: Hardware
    target: choices.TrainingDevice
    memory_budget: MemoryBudget
    shape: ModelShape
    setup: TrainingSetup
    micro_batch: int
    eval_batch: int
    correction: float = 1.0
    """Measured peak divided by the computed one, for the plan's own model and setup. It corrects other setups."""

    @property
    def config(self) -> ResolvedConfig:
        return self.loaded.config

    def with_patch(self, patch: Mapping[str, Any]) -> Self:
        """Return the inputs with some settings changed, unchecked. Raises ConfigError for wrong LoRA targets.

        A dry run for a new setup takes a second.
        """
        loaded = with_settings(self.loaded, patch)
        # With another row length, packing may give each document a row of its own.
        base_setup = replace(self.setup, most_rows=0) if "data.max_length" in patch else self.setup
        fuses = fuses_loss(loaded, self.hardware, self.target, self.shape)
        base_setup = replace(base_setup, fused_loss=fuses)
        setup, _ = choices.choose(loaded, self.hardware, self.target, self.shape, base_setup)
        setup, _ = with_dry_run(loaded.config, self.shape, setup)
        changed_basis = replace(self, loaded=loaded, micro_batch=patch.get(MICRO_BATCH_KEY, self.micro_batch))
        return changed_basis.with_setup(setup)

    def with_setup(self, setup: TrainingSetup, shape: ModelShape | None = None) -> Self:
        """Return the inputs with another training setup and, if given, another model."""
        shape = shape or self.shape
        if setup == self.setup and shape == self.shape:
            return self
        uncorrected = replace(self, setup=replace(self.setup, measured_peaks=()))
        ratio = self.needed_bytes() / uncorrected.needed_bytes() if self.setup.measured_peaks else 1.0
        setup = replace(setup, measured_peaks=())
        return replace(self, setup=setup, shape=shape, correction=ratio * self.correction)

    def needed_bytes(self, micro_batch: int = 0, eval_batch: int = 0) -> int:
        """Return the peak memory in bytes with these rows per pass; 0 stands for those of the plan, or for the training
        rows if the evaluation's setting is `auto`."""
        rows = micro_batch or self.micro_batch
        is_as_in_training = self.config.evaluation.per_device_eval_batch_size == "auto"
        eval_rows = eval_batch or (rows if is_as_in_training else self.eval_batch)
        return round(self.correction * total_bytes(parts_of_run(self.shape, self.setup, self.config, rows, eval_rows)))


def with_settings(loaded: Loaded, patch: Mapping[str, Any]) -> Loaded:
    """Return the config with some values changed but not checked, for use in rules of the plan only."""
    return replace(loaded, config=with_changes(loaded.config, patch))
