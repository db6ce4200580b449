"""Find the parts of a model that get a LoRA adapter where names do not decide it. The worker looks them up in a model
that is built without data, so that a plan counts what the run will train.

This applies to regular expressions, to tensors of experts (one parameter for all experts, in no linear layer), and to
families whose experts were linear layers in transformers 4, for which peft replaces the names of targets.
`planning/adapter_targets_child.py` answers in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """One kind of parameter with an adapter of its own, `count` times: a matrix [rows x columns] for each of `experts`.
    A router has one matrix. `path` is its place in a block: `mlp.experts.gate_up_proj`."""

    path: str
    experts: int
    rows: int
    columns: int
    rank: int
    count: int = 1

    @property
    def numbers(self) -> int:
        """Number of weights in all `count` tensors, without their adapters."""
        return self.count * self.experts * self.rows * self.columns

    @property
    def adapter_parameters(self) -> int:
        """Adapter weights: two narrow matrices for each expert. Source: `ParamWrapper.update_layer` of peft 0.21."""
        return self.count * self.experts * self.rank * (self.rows + self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptedParts:
    """The kinds of linear layers and expert tensors that get an adapter, and the shape of each tensor in its file."""

    linears: tuple[Linear, ...]
    experts: tuple[ExpertTensor, ...]
    tensors: Mapping[str, tuple[int, ...]]
    rank_pattern: Mapping[str, int]
    """peft's `rank_pattern`, for ranks other than `tuning.r`."""


def is_adapter(tensor_name: str) -> bool:
    """Return whether a tensor in a file of peft is one of the two matrices of an adapter."""
    return ".lora_A." in tensor_name or ".lora_B." in tensor_name


answers = Answers("find_adapted", format_version=1)


def needs_built_model(shape: ModelShape, tuning: TuningSection) -> bool:
    """Return whether only the built model shows which layers get adapters."""
    return is_pattern(tuning.target_modules) or bool(tuning.target_parameters) or shape.has_grouped_experts


def find_adapted(config: Mapping[str, Any], shape: ModelShape, tuning: TuningSection, saved: str) -> AdaptedParts:
    """Return the parts of a model that get an adapter. `saved` lists the modules that are trained as a whole.

    Raise ConfigError for targets that match nothing, or no linear layer, and for settings that experts do not support.
    """
    names = ("r", "target_modules", "target_parameters")
    question = {"config": deciding_fields(config), "head": shape.head, "labels": shape.labels, "modules_to_save": saved}
    question |= {name: getattr(tuning, name) for name in names}
    key = PARAMETERS_KEY if tuning.target_parameters else MODULES_KEY
    message, hint = "the selected layers could not be found in the model", "list linear layers, separated by commas"
    answer = answers.ask_or_refuse(question, Problem(message=message, key=key, hint=hint))
    if "problems" in answer:
        raise ConfigError([Problem(**problem) for problem in answer["problems"]])
    uses_by_path = {linear.path: linear.uses for linear in shape.linears}
    parts = AdaptedParts(
        linears=tuple(Linear(**entry | {"uses": uses_by_path.get(entry["path"], 1)}) for entry in answer["linears"]),
        experts=tuple(ExpertTensor(**entry) for entry in answer["experts"]),
        tensors={tensor_name: tuple(shape_list) for tensor_name, shape_list in answer["tensors"].items()},
        rank_pattern=answer["rank_pattern"],
    )
    if parts.experts and (problems := _expert_problems(tuning, parts)):
        raise ConfigError(problems)
    return parts


def _expert_problems(tuning: TuningSection, parts: AdaptedParts) -> list[Problem]:
    """Return the settings that peft supports only for linear layers, or that are untested with tensors of experts."""
    paths = ", ".join(dict.fromkeys(tensor.path for tensor in parts.experts))
    subject = f"adapters on expert tensors ({one_line(paths, 120)})"
    remedy = f"name only linear layers in {MODULES_KEY} and leave {PARAMETERS_KEY} empty"
    problems = []
    if tuning.lora_dropout:
        message = f"is {tuning.lora_dropout:g}, but peft has no dropout for {subject}"
        problems.append(Problem(message=message, key="tuning.lora_dropout", hint=f"set it to 0, or {remedy}"))
    if tuning.use_dora:
        message = f"is true, but peft has no DoRA for {subject}"
        problems.append(Problem(message=message, key="tuning.use_dora", hint=f"set it to false, or {remedy}"))
    if tuning.in_four_bits:
        message = f"is {tuning.method}, which has not been tested with {subject}, which are not quantised"
        problems.append(Problem(message=message, key="tuning.method", hint=f'set it to "lora", or {remedy}'))
    return problems
