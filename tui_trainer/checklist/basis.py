"""What a plan was reckoned from, and how it would be with some settings changed, by the plan's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from tui_trainer.config.load import LoadedConfig
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning import choices
from tui_trainer.planning.fit import Room
from tui_trainer.planning.moving import setup_of
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.regime import Regime

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """Where the run computes, the memory that is there, the model's shape, and how it is trained."""

    target: choices.Target
    room: Room
    shape: ModelShape
    regime: Regime

    @classmethod
    def of(cls, loaded: LoadedConfig, hardware: Hardware, plan: Plan, gpu: GpuChoice = None) -> Basis:
        """Raises InputError where the model is no longer what it was when the plan was made."""
        config, target = loaded.config, choices.Target.of(hardware, gpu)
        shape, regime = setup_of(plan, config, target)
        return cls(target=target, room=Room.of(hardware, target), shape=shape, regime=regime)

    def regime_with(self, loaded: LoadedConfig, hardware: Hardware, patch: Mapping[str, Any]) -> Regime:
        """How the model would be trained with some settings changed. Raises ConfigError for wrong LoRA targets.

        What a dry run counted for the plan is taken as it is: another one takes seconds.
        """
        changed = with_settings(loaded, patch)
        precision = choices.precision(changed, hardware, self.target, self.shape).value
        regime = choices.regime(
            changed.config,
            self.shape,
            self.target,
            precision=precision,
            weights=choices.weights_dtype(changed, precision).value,
            packed=self.regime.packed,
            chunk=choices.loss_chunk(changed, self.target).value,
            widest_row=self.regime.widest_row,
        )
        known = self.regime
        return replace(regime, counted=known.counted, most_rows=known.most_rows, document_tokens=known.document_tokens)


def with_settings(loaded: LoadedConfig, patch: Mapping[str, Any]) -> LoadedConfig:
    """The config with some values changed: for asking the plan's rules only, as nothing is checked."""
    config = loaded.config
    for key, value in patch.items():
        config = _set(config, key.split("."), value)
    return replace(loaded, config=config)


def _set(section: S, path: list[str], value: Any) -> S:
    name, *rest = path
    return section.model_copy(update={name: _set(getattr(section, name), rest, value) if rest else value})
