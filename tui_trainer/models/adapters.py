"""Check a peft adapter that a run starts from: whether it continues to train or is merged, and what prevents that.

`models/facts.py` finds the adapter and its base model. This module reads `adapter_config.json`, the names of the
adapter's tensors, and the plan of the run that trained it, which identifies the base weights.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.sections import MODEL_KEY, Config, TuningSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.adapter_targets import find_adapted, is_adapter
from tui_trainer.models.added_tokens import INDICES_FIELD, ids_of_adapter
from tui_trainer.models.facts import ADAPTER_WEIGHTS, Adapter, ModelFacts, find_model
from tui_trainer.models.files.fingerprint import base_model_part, fingerprint
from tui_trainer.models.files.weights import read_file_header
from tui_trainer.models.heads import CLASSIFYING_HEADS, Head
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import (
    ALL_LINEAR,
    adapted_linears,
    head_modules,
    is_all_linear,
    match_targets,
    target_names,
)
from tui_trainer.runs.folder import read_fields
from tui_trainer.terminal.safe_text import one_line

CONTINUES_KEY = "tuning.continue_adapter"
# peft's task name for each head. Source: `TaskType` of peft 0.21.
_TASK_TYPES: Mapping[Head, str] = {
    "causal_lm": "CAUSAL_LM",
    "seq2seq_lm": "SEQ_2_SEQ_LM",
    "sequence_classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}
# Fields of an adapter without a setting here, and the values that have no effect. Source: `LoraConfig` of peft.
_WITHOUT_SETTING: Mapping[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
}
# peft sets these for families whose experts were linear layers in transformers 4.
_PATTERNS = ("rank_pattern", "alpha_pattern")
# Initialisations that do not change the base model; with others the adapter fits only the changed base model.
_PLAIN_INITS = frozenset({"true", "false", "none", "gaussian", "orthogonal", "eva"})
# peft adds these names to the saved modules of every classifier, even if there are no such modules.
_PEFT_HEADS = ("classifier", "score")
_MERGES = f'set {CONTINUES_KEY} = "merge" and tuning.method = "full" to train the merged model'


def starting_adapter(config: Config, head: Head) -> Adapter | None:
    """Return the adapter that a run starts from, or None for a whole model. Raise ConfigError as `find_model` does."""
    name = config.model.model_name_or_path
    if not name or config.is_from_scratch:
        return None
    return find_model(name, config.model.revision, head=head).adapter


def should_continue_adapter(tuning: TuningSection) -> bool:
    """Return whether an adapter that a run starts from continues to train; otherwise it is merged into its model."""
    return tuning.continue_adapter == "continue" or (tuning.continue_adapter == "auto" and tuning.has_adapter)


def merges_before_adapting(config: Config, head: Head) -> bool:
    """Return whether the run merges the adapter that it is given, and trains a new one. Raise ConfigError."""
    tuning = config.tuning
    return tuning.has_adapter and not should_continue_adapter(tuning) and starting_adapter(config, head) is not None


def adapter_settings(facts: ModelFacts, adapter: Adapter) -> dict[str, Any]:
    """Return the settings of [tuning] with which an adapter was made, without those that no setting can express."""
    fields = adapter.fields
    settings: dict[str, Any] = {}
    rank, lora_alpha, dropout = (fields.get(name) for name in ("r", "lora_alpha", "lora_dropout"))
    if type(rank) is int and rank > 0:
        settings["tuning.r"] = rank
    if isinstance(lora_alpha, int | float) and lora_alpha > 0:
        settings["tuning.lora_alpha"] = float(lora_alpha)
    if isinstance(dropout, int | float) and 0 <= dropout < 1:
        settings["tuning.lora_dropout"] = float(dropout)
    head_names = (*head_modules(facts.shape), *(_PEFT_HEADS if facts.head in CLASSIFYING_HEADS else ()))
    modules = [str(name) for name in fields.get("modules_to_save") or () if name not in head_names]
    # peft adds the full paths of a shared module after its name.
    short_names = [name for name in modules if not any(name.endswith(f".{longer_name}") for longer_name in modules)]
    settings["tuning.modules_to_save"] = ", ".join(short_names)
    settings |= _targets_of(facts, adapter, ", ".join((*short_names, *head_modules(facts.shape))))
    for name in ("use_rslora", "use_dora"):
        settings[f"tuning.{name}"] = fields.get(name) is True
    settings["tuning.init_lora_weights"] = "default"  # the stored weights replace any initialisation
    return settings


def adapter_problems(facts: ModelFacts, config: Config) -> list[Problem]:
    """Return what prevents a run from starting with its adapter, or from continuing one that does not exist."""
    choice, adapter = config.tuning.continue_adapter, facts.adapter
    if adapter is None:
        hint = "start from the folder of an adapter or from a run that trained one, or leave this setting at auto"
        message = f'is "{choice}", but the model to start from is not an adapter'
        return [] if choice == "auto" else [Problem(message=message, key=CONTINUES_KEY, hint=hint)]
    if facts.damage:  # `model_problems` reports it
        return []
    if problems := [*_general_problems(facts, adapter, config)]:
        return problems
    tuning_method = config.tuning.method
    if not should_continue_adapter(config.tuning):
        return []
    if not config.tuning.has_adapter:
        message = f"is {tuning_method}, which trains all weights and cannot continue an adapter"
        hint = f'set it to lora, or set {CONTINUES_KEY} = "merge"'
        return [Problem(message=message, key="tuning.method", hint=hint)]
    return [*_differences(facts, adapter, config)]


def refuse_other_labels(adapter_labels: tuple[str, ...], data_labels: tuple[str, ...], folder: Path) -> None:
    """Raise ConfigError if a classifier's adapter would continue with other labels or with another order of them."""
    if adapter_labels == data_labels:
        return
    label_text = ", ".join(adapter_labels[:5]) + (", ..." if len(adapter_labels) > 5 else "")
    message = f"the labels of the adapter ({one_line(label_text, 120)}) differ from those of the data"
    hint = f"train on the same labels, or {_MERGES} with a new head"
    raise ConfigError(Problem(message=message, key=CONTINUES_KEY, where=one_line(str(folder)), hint=hint))


def _general_problems(facts: ModelFacts, adapter: Adapter, config: Config) -> Iterator[Problem]:
    """Yield the problems that an adapter has whether it continues to train or is merged."""
    fields, folder_text = adapter.fields, one_line(str(adapter.folder))

    def about(message: str, hint: str) -> Problem:
        return Problem(message=message, key=MODEL_KEY, where=folder_text, hint=hint)

    if config.is_from_scratch:
        message = "an adapter needs pretrained weights, but random weights are requested"
        yield about(message, 'set model.init = "pretrained"')
        return
    if config.model.provider != "transformers":
        yield about(f"{config.model.provider} can only start from a full model", 'set model.provider = "transformers"')
    peft_type = one_line(str(fields.get("peft_type")), 40)
    if peft_type.upper() != "LORA":
        yield about(f"the adapter has the type {peft_type}, but only LoRA can be continued", "merge it with peft first")
    init_name = str(fields.get("init_lora_weights", True)).lower()
    if init_name not in _PLAIN_INITS:
        message = f"the adapter was initialised by {one_line(init_name, 40)}, a method that also changes the base model"
        yield about(message, "convert it to plain LoRA (path_initial_model_for_weight_conversion of peft)")
    required_type, trained_for = _TASK_TYPES.get(facts.head, ""), fields.get("task_type")
    if trained_for and required_type and trained_for != required_type:
        hint = "choose the task that the adapter was trained for, or another model"
        message = f"the adapter was trained for {one_line(str(trained_for), 40)}, but this task needs {required_type}"
        yield about(message, hint)
    base_fingerprint = stored_base_fingerprint(adapter.folder)
    if base_fingerprint and facts.folder and fingerprint(adapter.base, with_weights=True) != base_fingerprint:
        message = f"the adapter was not trained on the weights in {one_line(str(facts.folder), 200)}"
        hint = "restore the model that the adapter was trained on, or write the path of that model into "
        hint += "adapter_config.json"
        yield about(message, hint)


def stored_base_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the model that a run trained this adapter on; "" if the adapter is in no run."""
    key = read_fields(folder.parent / "plan.json").get("model_key") if folder.name == "model" else None
    return base_model_part(key) if isinstance(key, str) else ""


def _differences(facts: ModelFacts, adapter: Adapter, config: Config) -> Iterator[Problem]:
    """Yield the differences between the adapter and the settings that would continue it."""
    adapter_values, fields = adapter_settings(facts, adapter), adapter.fields
    field_names = [name for name, neutral_values in _WITHOUT_SETTING.items() if fields.get(name) not in neutral_values]
    field_names += [] if "tuning.target_modules" in adapter_values else [name for name in _PATTERNS if fields.get(name)]
    field_names += [] if ids_of_adapter(fields) is not None else [INDICES_FIELD]
    for name in field_names:
        message = f"the adapter has {name} = {one_line(repr(fields[name]), 60)}, which has no matching setting"
        yield Problem(message=message, key=CONTINUES_KEY, where=one_line(str(adapter.folder)), hint=_MERGES)
    if "tuning.target_modules" not in adapter_values and not field_names:
        message = "the adapter covers only some layers that share a name, which tuning.target_modules cannot express"
        yield Problem(message=message, key=CONTINUES_KEY, where=one_line(str(adapter.folder)), hint=_MERGES)
    for key, value in adapter_values.items():
        run_value = getattr(config.tuning, key.rpartition(".")[2])
        if key != "tuning.lora_dropout" and not _is_same(facts.shape, key, value, run_value):
            message = f"is {_shown(run_value)}, but the adapter to continue has {_shown(value)}"
            yield Problem(message=message, key=key, hint=f"remove the setting, or {_MERGES}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else one_line(str(value), 160) or "empty"


def _is_same(shape: ModelShape, key: str, adapted: Any, run_value: Any) -> bool:
    """Return whether two values of a setting have the same effect on the model."""
    if key == "tuning.target_modules" and not is_pattern(f"{adapted} {run_value}"):
        try:
            has_same_experts = not shape.has_grouped_experts or is_all_linear(adapted) == is_all_linear(run_value)
            # Adapters on tensors of experts need no target modules.
            adapter_names, run_names = (set(match_targets(shape, x)) if x else set() for x in (adapted, run_value))
            return has_same_experts and adapter_names == run_names
        except ConfigError:  # the name of a missing module, which another check reports
            return True
    if key in ("tuning.modules_to_save", "tuning.target_parameters"):
        return set(names_in(adapted)) == set(names_in(run_value))
    return bool(adapted == run_value)


def _targets_of(facts: ModelFacts, adapter: Adapter, saved_modules: str) -> dict[str, Any]:
    """Return `tuning.target_modules` and `tuning.target_parameters` of an adapter, or {} if no settings can express its
    targets. `saved_modules` lists the modules that are trained as a whole.

    A regular expression or tensors of experts are accepted if peft makes tensors of the same names and shapes from
    them. peft's expression for a model with towers is replaced by the names of layers in the language model."""
    fields, shape = adapter.fields, facts.shape
    target_modules, target_parameters = fields.get("target_modules") or (), fields.get("target_parameters") or ()
    target_text = target_modules if isinstance(target_modules, str) else ", ".join(sorted(map(str, target_modules)))
    is_expression = is_pattern(target_text) and not shape.towers
    has_patterns = any(fields.get(name) for name in _PATTERNS)
    plain_settings = {} if has_patterns or target_parameters else _plain_targets(shape, adapter)
    if not (is_expression or target_parameters or has_patterns or shape.has_grouped_experts):
        return plain_settings
    try:
        file = adapter.folder / ADAPTER_WEIGHTS
        shapes = {name: tuple(tensor.shape) for name, tensor in read_file_header(file).items() if is_adapter(name)}
    except (OSError, ConfigError):  # reported as damage of the files
        return {}
    stored_targets = (target_text, ", ".join(sorted(map(str, target_parameters))))
    for targets, tensors in (stored_targets, (ALL_LINEAR, "")) if is_expression else ((ALL_LINEAR, ""), stored_targets):
        tuning = TuningSection(r=int(fields.get("r") or 1), target_modules=targets, target_parameters=tensors)
        if _gives_adapter(facts, tuning, saved_modules, shapes, fields):
            return {"tuning.target_modules": targets, "tuning.target_parameters": tensors}
    return plain_settings


def _gives_adapter(
    facts: ModelFacts,
    tuning: TuningSection,
    saved_modules: str,
    stored_shapes: Mapping[str, tuple[int, ...]],
    fields: Mapping[str, Any],
) -> bool:
    """Return whether these settings give an adapter with these tensors, ranks and scales."""
    try:
        match_targets(facts.shape, tuning.target_modules, "", tuning.target_parameters)
        parts = find_adapted(facts.config, facts.shape, tuning, saved_modules)
    except ConfigError:
        return False
    ranks_by_name, alpha = dict(parts.rank_pattern), fields.get("lora_alpha") or 0
    alphas_by_name = {name: alpha * rank / tuning.r for name, rank in ranks_by_name.items()}
    stored_patterns = (fields.get("rank_pattern") or {}, fields.get("alpha_pattern") or {})
    return dict(parts.tensors) == dict(stored_shapes) and stored_patterns == (ranks_by_name, alphas_by_name)


def _plain_targets(shape: ModelShape, adapter: Adapter) -> dict[str, Any]:
    """Return the targets of an adapter by the layers of its tensors, or {} if no names can express them.

    peft stores all-linear as names or paths of layers, and accepts regular expressions."""
    weights_file = adapter.folder / ADAPTER_WEIGHTS
    try:
        layers = _layers(weights_file, weights_file.stat().st_mtime_ns)
    except (OSError, ConfigError):  # reported as damage of the files
        return {}
    possible_names, unmatched_layers = target_names(shape), set(layers)
    used_names = []
    for name in possible_names:
        matching_layers = {layer for layer in layers if layer == name or layer.endswith(f".{name}")}
        if matching_layers and len(matching_layers) != sum(linear.count for linear in adapted_linears(shape, (name,))):
            return {}
        used_names += [name] if matching_layers else []
        unmatched_layers -= matching_layers
    if unmatched_layers or not used_names:
        return {}
    targets = ALL_LINEAR if len(used_names) == len(possible_names) else ", ".join(used_names)
    return {"tuning.target_modules": targets, "tuning.target_parameters": ""}


@lru_cache(maxsize=8)
def _layers(path: Path, _changed_at: int) -> frozenset[str]:
    """Return the path of each layer with an adapter, `model.layers.0.mlp.up_proj`; "lora_embedding" for embeddings."""
    names = (name.removeprefix("base_model.model.") for name in read_file_header(path))
    return frozenset(
        name.partition(".lora_")[0] if ".lora_A." in name else "lora_embedding"
        for name in names
        if ".lora_A." in name or ".lora_embedding_" in name
    )
