"""Which parts of a model get a LoRA adapter, where names do not tell: looked up in the built model, without numbers, in
the worker, so that a plan counts what the run will train.

That is so for a regular expression, for tensors of experts (one parameter for all of them, which no linear layer
holds), and in families whose experts were linear layers in transformers 4: there peft makes other targets of names.
`planning/adapter_targets_child.py` is what the worker does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.config.fields import is_pattern
from tui_trainer.config.sections import TuningSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.counting import Answers, deciding_fields
from tui_trainer.models.modules import Linear
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import MODULES_KEY
from tui_trainer.terminal.safe_text import one_line

PARAMETERS_KEY = "tuning.target_parameters"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertTensor:
    """One kind of parameter with an adapter of its own, `count` times: a matrix [rows x columns] for each of `experts`;
    a router's is one matrix. `path` is its place in a block: `mlp.experts.gate_up_proj`."""

    path: str
    experts: int
    rows: int
    columns: int
    rank: int
    count: int = 1

    @property
    def numbers(self) -> int:
        """Of all `count` tensors, without their adapters."""
        return self.count * self.experts * self.rows * self.columns

    @property
    def adapter_parameters(self) -> int:
        """Two narrow matrices for each expert. Source: `ParamWrapper.update_layer` of peft 0.21."""
        return self.count * self.experts * self.rank * (self.rows + self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptedParts:
    """The linear layers and the tensors that peft gives an adapter, each kind once, and the names and shapes of the
    adapters' own tensors as peft saves them."""

    linears: tuple[Linear, ...]
    experts: tuple[ExpertTensor, ...]
    tensors: Mapping[str, tuple[int, ...]]
    rank_pattern: Mapping[str, int]
    """As peft writes it down, where some ranks are not `tuning.r`."""


def is_adapter(tensor_name: str) -> bool:
    """Whether it is one of the two matrices of an adapter, as peft names them in a file."""
    return ".lora_A." in tensor_name or ".lora_B." in tensor_name


answers = Answers("find_adapted", format_version=1)


def needs_built_model(shape: ModelShape, tuning: TuningSection) -> bool:
    """Whether only the built model tells what is adapted."""
    return is_pattern(tuning.target_modules) or bool(tuning.target_parameters) or shape.has_grouped_experts


def find_adapted(config: Mapping[str, Any], shape: ModelShape, tuning: TuningSection, saved: str) -> AdaptedParts:
    """What of the model of a config.json gets an adapter; `saved` are the modules that are trained as a whole. The
    first answer takes seconds.

    Raises ConfigError for what matches nothing, or no linear layer, and for settings that experts do not take.
    """
    question = {
        "config": deciding_fields(config),
        "head": shape.head,
        "labels": shape.labels,
        "r": tuning.r,
        "target_modules": tuning.target_modules,
        "target_parameters": tuning.target_parameters,
        "modules_to_save": saved,
    }
    key = PARAMETERS_KEY if tuning.target_parameters else MODULES_KEY
    message, hint = "the selected layers could not be looked up in the model", "list linear layers, separated by commas"
    found = answers.ask_or_refuse(question, Problem(message=message, key=key, hint=hint))
    if "problems" in found:
        raise ConfigError([Problem(**problem) for problem in found["problems"]])
    uses = {linear.path: linear.uses for linear in shape.linears}
    parts = AdaptedParts(
        linears=tuple(replace(one, uses=uses.get(one.path, 1)) for one in (Linear(**x) for x in found["linears"])),
        experts=tuple(ExpertTensor(**entry) for entry in found["experts"]),
        tensors={name: tuple(sizes) for name, sizes in found["tensors"].items()},
        rank_pattern=found["rank_pattern"],
    )
    if parts.experts and (problems := _against_experts(tuning, parts)):
        raise ConfigError(problems)
    return parts


def _against_experts(tuning: TuningSection, parts: AdaptedParts) -> list[Problem]:
    """Settings that peft has for linear layers alone, or that were not tried with tensors of experts."""
    named = ", ".join(dict.fromkeys(one.path for one in parts.experts))
    which = f"adapters on tensors ({one_line(named, 120)})"
    instead = f"name only linear layers in {MODULES_KEY} and leave {PARAMETERS_KEY} empty"
    found = []
    if tuning.lora_dropout:
        message = f"is {tuning.lora_dropout:g}, but peft has no dropout for {which}"
        found.append(Problem(message=message, key="tuning.lora_dropout", hint=f"set it to 0, or {instead}"))
    if tuning.use_dora:
        message = f"is true, but peft has no DoRA for {which}"
        found.append(Problem(message=message, key="tuning.use_dora", hint=f"set it to false, or {instead}"))
    if tuning.in_four_bits:
        message = f"is {tuning.method}, which has not been tested with {which}: these tensors are not quantised"
        found.append(Problem(message=message, key="tuning.method", hint=f'set it to "lora", or {instead}'))
    return found
