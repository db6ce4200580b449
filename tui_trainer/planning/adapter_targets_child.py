"""Determine which parts of a model peft gives a LoRA adapter, by applying peft to a model without numbers. This module
runs in the worker, for `models/adapter_targets.py`.

Source: peft 0.21: `check_target_module_exists` (a text is the whole of a module's path), `_inject_parameters` (a name
is the end of a parameter's path), `_convert_peft_config_moe`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any, cast

from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.sections import TuningSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.adapter_targets import PARAMETERS_KEY, ExpertTensor, is_adapter
from tui_trainer.models.counting import empty_model, fake_tensors, is_linear_layer, model_config
from tui_trainer.models.heads import Head
from tui_trainer.models.modules import Linear, Reads, path_in_block
from tui_trainer.models.targets import ALL_LINEAR, MODULES_KEY
from tui_trainer.models.towers import tower_modules
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tuning.lora import METHOD

_NAMED = 4


def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """Return the fields of `AdaptedParts`, or problems with their hints."""
    head: Head = question["head"]
    field_names = ("r", "target_modules", "target_parameters", "modules_to_save")
    tuning = TuningSection(method="lora", **{name: question[name] for name in field_names})
    with fake_tensors(head):
        model = empty_model(model_config(question["config"], question["labels"]), head)
        try:
            selected_paths = named_layers(model, tuning)
            return _adapted_parts(METHOD.apply(model, tuning, seed=0, autocast=False), selected_paths)
        except ConfigError as error:
            return {"problems": [{"message": p.message, "key": p.key, "hint": p.hint} for p in error.problems]}


def named_layers(model: Any, tuning: TuningSection) -> set[str] | None:
    """Return the paths of the linear layers that the settings name; None for all-linear. Raises ConfigError for names
    that match nothing or get no adapter."""
    problems = [problem for name in names_in(tuning.target_parameters) if (problem := _tensor_problem(model, name))]
    target_names, modules = names_in(tuning.target_modules), dict(model.named_modules())
    layer_paths = [path for path, module in modules.items() if is_linear_layer(module)]
    selected_paths: set[str] | None = None
    if is_pattern(tuning.target_modules):
        selected_paths, pattern_problems = _match_pattern(model, modules, layer_paths, tuning)
        problems += pattern_problems
    elif ALL_LINEAR not in map(str.lower, target_names):
        selected_paths = {path for path in layer_paths if _ends_with(path, target_names)}
    if problems:
        raise ConfigError(problems)
    return selected_paths


def _match_pattern(
    model: Any, modules: dict[str, Any], layers: Sequence[str], tuning: TuningSection
) -> tuple[set[str], list[Problem]]:
    """Return the paths that a regular expression matches, and the problems with it."""

    def with_problem(message: str, hint: str) -> tuple[set[str], list[Problem]]:
        return set(), [Problem(message=message, key=MODULES_KEY, hint=hint)]

    try:
        pattern = re.compile(tuning.target_modules)
    except re.error as error:
        hint = "as in peft, the expression must match full paths of layers"
        return with_problem(f"is not a valid regular expression: {error}", hint)
    matching_paths = [path for path in modules if path and pattern.fullmatch(path)]
    head, frozen = model.get_output_embeddings(), tuple(f"{path}." for path in tower_modules(model)) or ("\n",)
    inner_paths = [path for path in layers if modules[path] is not head and not f"{path}.".startswith(frozen)]
    if paths_in_towers := [path for path in matching_paths if f"{path}.".startswith(frozen)]:
        message = f"matches frozen parts outside the language model: {_some(paths_in_towers)}"
        return with_problem(message, f"match only layers of the language model, such as {_some(inner_paths)}")
    if other_paths := [path for path in matching_paths if path not in inner_paths]:
        path = other_paths[0]
        module_kind = "the head" if modules[path] is head else type(modules[path]).__name__
        message = f"matches {one_line(path, 120)} ({module_kind}), which is not a linear layer inside the model"
        return with_problem(message, "end the expression with names of layers, as in '.*\\.(q|v)_proj'")
    saved_names = names_in(tuning.modules_to_save)
    if paths_of_both := [path for path in matching_paths if any(f".{name}." in f".{path}." for name in saved_names)]:
        hint = "remove it from the expression, or from tuning.modules_to_save"
        return with_problem(f"matches {one_line(paths_of_both[0], 120)}, which is fully trained", hint)
    if not matching_paths:
        message = f"matches no layer of the model: {one_line(tuning.target_modules, 120)}"
        return with_problem(message, f"the expression must match full paths, such as {_some(inner_paths)}")
    return set(matching_paths), []


def _tensor_problem(model: Any, name: str) -> Problem | None:
    """Return the problem if a name in `tuning.target_parameters` gets no adapter; None if it gets one."""
    from torch import nn

    tensors_by_path = {
        f"{module_path}.{name_inside}": (module, tensor)
        for module_path, module in model.named_modules()
        for name_inside, tensor in module.named_parameters(recurse=False)
    }
    adaptable_paths = [
        path
        for path, (module, tensor) in tensors_by_path.items()
        if not (is_linear_layer(module) or type(module) is nn.Embedding)
        and tensor.ndim in (2, 3)
        and not path.endswith("bias")
    ]
    matching_paths = [path for path in tensors_by_path if _ends_with(path, (name,))]
    names = ", ".join(dict.fromkeys(map(path_in_block, adaptable_paths)))
    hint = f"tensors that can be adapted: {one_line(names, 300)}" if names else "this model has no adaptable tensors"
    if not matching_paths:
        message = f"no tensor of the model is called {one_line(name, 80)}"
    elif odd_paths := [path for path in matching_paths if path not in adaptable_paths]:
        message = f"{one_line(odd_paths[0], 120)} cannot be adapted: it is part of a linear layer or an embedding, "
        message += "or not a matrix"
        hint = f"name layers in {MODULES_KEY}; {hint}"
    else:
        return None
    return Problem(message=message, key=PARAMETERS_KEY, hint=hint)


def _adapted_parts(adapted: Any, expected: set[str] | None) -> dict[str, Any]:
    """Return the fields of `AdaptedParts` for an adapted model.

    Raises ConfigError if the linear layers with an adapter are not exactly those in `expected` (None: not checked).
    """
    from peft.tuners.lora.layer import LoraLayer, ParamWrapper

    linears: Counter[Linear] = Counter()
    experts: Counter[ExpertTensor] = Counter()
    seen_paths = set[str]()
    base_model = adapted.get_base_model()
    for full_path, module in base_model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        # Wrappers of several tensors of one module are nested.
        path, wrapper = re.sub(r"(\.base_layer)+$", "", full_path), cast(Any, module)
        if isinstance(module, ParamWrapper):
            *stack, rows, columns = wrapper.get_param().shape
            name_path = path_in_block(f"{path}.{module.parameter_name}")
            rank = wrapper.r["default"]
            experts[ExpertTensor(path=name_path, experts=(stack or [1])[0], rows=rows, columns=columns, rank=rank)] += 1
        else:
            seen_paths.add(path)
            name_path, widths = path_in_block(path), (wrapper.in_features, wrapper.out_features)
            reads: Reads = "target" if ".decoder." in f".{path}" and base_model.config.is_encoder_decoder else "source"
            name = name_path.rpartition(".")[2]
            linears[Linear(name=name, path=name_path, count=1, inputs=widths[0], outputs=widths[1], reads=reads)] += 1
    if expected is not None and seen_paths != expected:
        version, family = metadata.version("peft"), base_model.config.model_type
        message = f"peft {version} would not adapt the layers of {family} that these names select"
        hint = f"peft renames the experts of older models; layers that differ: {_some(sorted(seen_paths ^ expected))}. "
        hint += f'Use "all-linear" for all layers, and {PARAMETERS_KEY} for tensors of experts'
        raise ConfigError(Problem(message=message, key=MODULES_KEY, hint=hint))
    return {
        "linears": [asdict(replace(part_kind, count=count)) for part_kind, count in linears.items()],
        "experts": [asdict(replace(part_kind, count=count)) for part_kind, count in experts.items()],
        "tensors": {name: list(tensor.shape) for name, tensor in METHOD.weights(adapted).items() if is_adapter(name)},
        "rank_pattern": dict(adapted.peft_config["default"].rank_pattern or {}),
    }


def _ends_with(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)


def _some(paths: Sequence[str]) -> str:
    more_text = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{one_line(', '.join(paths[:_NAMED]), 300)}{more_text}"
