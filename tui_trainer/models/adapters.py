"""An adapter of peft as what a run starts from: whether it goes on training or is merged, and what stands against it.

`models/facts.py` finds it and the model that it is for; what is read here are `adapter_config.json`, the names of its
tensors, and the plan of the run that trained it, which knows the weights that it was trained on.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.sections import MODEL_KEY, Config, TuningSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.adapter_targets import find_adapted, is_adapter
from tui_trainer.models.added_tokens import INDICES, ids_of_adapter
from tui_trainer.models.facts import ADAPTER_WEIGHTS, Adapter, ModelFacts, find_model
from tui_trainer.models.files.fingerprint import base_part, fingerprint
from tui_trainer.models.files.weights import read_file_header
from tui_trainer.models.heads import CLASSIFYING, Head
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import ALL_LINEAR, head_modules, is_all_linear, linear_names, match_targets
from tui_trainer.runs.folder import read_fields
from tui_trainer.terminal.safe_text import one_line

CONTINUES_KEY = "tuning.continue_adapter"
# peft's name for the kind of model that an adapter is for. Source: `TaskType` of peft 0.21.
_TASK_TYPES: Mapping[Head, str] = {
    "causal_lm": "CAUSAL_LM",
    "seq2seq_lm": "SEQ_2_SEQ_LM",
    "sequence_classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}
# What no setting here says of an adapter, and the values with which it changes nothing. Source: `LoraConfig` of peft.
_WITHOUT_SETTING: Mapping[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
}
# As peft makes them of names in families whose experts were layers of their own once.
_PATTERNS = ("rank_pattern", "alpha_pattern")
# They leave the model's own weights as they are; of the others the adapter fits weights that were changed with it.
_PLAIN_INITS = frozenset({"true", "false", "none", "gaussian", "orthogonal", "eva"})
# It adds them to the saved modules of every classifier, whether there are such or not.
_HEADS_OF_PEFT = ("classifier", "score")
_MERGES = f'set {CONTINUES_KEY} = "merge" and tuning.method = "full" to train the merged model'


def adapter_of(config: Config, head: Head) -> Adapter | None:
    """The adapter that a run starts from; None for a whole model. Raises ConfigError as `find_model`."""
    name = config.model.model_name_or_path
    if not name or config.is_from_scratch:
        return None
    return find_model(name, config.model.revision, head=head).adapter


def goes_on(tuning: TuningSection) -> bool:
    """Whether an adapter that is started from trains further; else it is merged into its model."""
    return tuning.continue_adapter == "continue" or (tuning.continue_adapter == "auto" and tuning.has_adapter)


def merges_apart(config: Config, head: Head) -> bool:
    """Whether the adapter is merged and another one trains on the result, which a run keeps. Raises ConfigError."""
    tuning = config.tuning
    return tuning.has_adapter and not goes_on(tuning) and adapter_of(config, head) is not None


def settings_of_adapter(facts: ModelFacts, adapter: Adapter) -> dict[str, Any]:
    """The settings of [tuning] with which this adapter was made, by key; those that no setting can say are left out."""
    fields = adapter.fields
    found: dict[str, Any] = {}
    rank, alpha, dropout = (fields.get(name) for name in ("r", "lora_alpha", "lora_dropout"))
    if type(rank) is int and rank > 0:
        found["tuning.r"] = rank
    if isinstance(alpha, int | float) and alpha > 0:
        found["tuning.lora_alpha"] = float(alpha)
    if isinstance(dropout, int | float) and 0 <= dropout < 1:
        found["tuning.lora_dropout"] = float(dropout)
    heads = (*head_modules(facts.shape), *(_HEADS_OF_PEFT if facts.head in CLASSIFYING else ()))
    saved = [str(name) for name in fields.get("modules_to_save") or () if name not in heads]
    # peft adds the path of a module that is two in one, behind its name.
    short = [name for name in saved if not any(name.endswith(f".{other}") for other in saved)]
    found["tuning.modules_to_save"] = ", ".join(short)
    found |= _targets_of(facts, adapter, ", ".join((*short, *head_modules(facts.shape))))
    for name in ("use_rslora", "use_dora"):
        found[f"tuning.{name}"] = fields.get(name) is True
    found["tuning.init_lora_weights"] = "default"  # it is begun already
    return found


def adapter_problems(facts: ModelFacts, config: Config) -> list[Problem]:
    """Everything that keeps a run from starting with this adapter, or with none where one is asked to go on."""
    asked, adapter = config.tuning.continue_adapter, facts.adapter
    if adapter is None:
        hint = "start from the folder of an adapter or from a run that trained one, or leave this setting at auto"
        message = f'is "{asked}", but the model to start from is not an adapter'
        return [] if asked == "auto" else [Problem(message=message, key=CONTINUES_KEY, hint=hint)]
    if facts.damage:  # `model_problems` reports it
        return []
    if problems := [*_unusable(facts, adapter, config)]:
        return problems
    method = config.tuning.method
    if not goes_on(config.tuning):
        return []
    if not config.tuning.has_adapter:
        message, hint = (
            f"is {method}, which trains all weights and cannot continue an adapter",
            f'set it to lora, or set {CONTINUES_KEY} = "merge"',
        )
        return [Problem(message=message, key="tuning.method", hint=hint)]
    return [*_differences(facts, adapter, config)]


def refuse_other_labels(before: tuple[str, ...], now: tuple[str, ...], folder: Path) -> None:
    """Raises ConfigError where a classifier's adapter would go on with other labels, or with the same in another
    order."""
    if before == now:
        return
    told = ", ".join(before[:5]) + (", ..." if len(before) > 5 else "")
    message = f"the labels of the adapter ({one_line(told, 120)}) differ from those of the data"
    hint = f"train on the same labels, or {_MERGES} with a new head"
    raise ConfigError(Problem(message=message, key=CONTINUES_KEY, where=one_line(str(folder)), hint=hint))


def _unusable(facts: ModelFacts, adapter: Adapter, config: Config) -> Iterator[Problem]:
    """Whatever is made of it."""
    fields, where = adapter.fields, one_line(str(adapter.folder))

    def about(message: str, hint: str) -> Problem:
        return Problem(message=message, key=MODEL_KEY, where=where, hint=hint)

    if config.is_from_scratch:
        yield about(
            "an adapter needs pretrained weights, but random ones are requested", 'set model.init = "pretrained"'
        )
        return
    if config.model.provider != "transformers":
        yield about(f"{config.model.provider} can only start from a full model", 'set model.provider = "transformers"')
    kind = one_line(str(fields.get("peft_type")), 40)
    if kind.upper() != "LORA":
        yield about(f"the adapter has the type {kind}, but only LoRA can be continued", "merge it with peft first")
    start = str(fields.get("init_lora_weights", True)).lower()
    if start not in _PLAIN_INITS:
        message = f"the adapter was initialised by {one_line(start, 40)}, which also changes its base model"
        yield about(message, "convert it to plain LoRA (path_initial_model_for_weight_conversion of peft)")
    wanted, found = _TASK_TYPES.get(facts.head, ""), fields.get("task_type")
    if found and wanted and found != wanted:
        hint = "choose the task that the adapter was trained for, or another model"
        yield about(f"the adapter was trained for {one_line(str(found), 40)}, but this task needs {wanted}", hint)
    known = trained_on(adapter.folder)
    if known and facts.folder and fingerprint(adapter.base, with_weights=True) != known:
        message = f"the adapter was not trained on the weights in {one_line(str(facts.folder), 200)}"
        hint = "restore the model that the adapter was trained on, or write the path of that model into "
        hint += "adapter_config.json"
        yield about(message, hint)


def trained_on(folder: Path) -> str:
    """The fingerprint of the model that a run trained this adapter on; empty where it lies in no run."""
    key = read_fields(folder.parent / "plan.json").get("model_key") if folder.name == "model" else None
    return base_part(key) if isinstance(key, str) else ""


def _differences(facts: ModelFacts, adapter: Adapter, config: Config) -> Iterator[Problem]:
    """Between the adapter and the settings that it should go on with."""
    made = settings_of_adapter(facts, adapter)
    odd = [name for name, usual in _WITHOUT_SETTING.items() if adapter.fields.get(name) not in usual]
    odd += [] if "tuning.target_modules" in made else [name for name in _PATTERNS if adapter.fields.get(name)]
    odd += [] if ids_of_adapter(adapter.fields) is not None else [INDICES]
    for name in odd:
        message = f"the adapter has {name} = {one_line(repr(adapter.fields[name]), 60)}, which has no matching setting"
        yield Problem(message=message, key=CONTINUES_KEY, where=one_line(str(adapter.folder)), hint=_MERGES)
    if "tuning.target_modules" not in made and not odd:
        message = "the adapter covers only some layers of one name, which tuning.target_modules cannot select"
        yield Problem(message=message, key=CONTINUES_KEY, where=one_line(str(adapter.folder)), hint=_MERGES)
    for key, value in made.items():
        asked = getattr(config.tuning, key.rpartition(".")[2])
        if key != "tuning.lora_dropout" and not _same(facts.shape, key, value, asked):
            message = f"is {_shown(asked)}, but the adapter to continue has {_shown(value)}"
            yield Problem(message=message, key=key, hint=f"remove the setting, or {_MERGES}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else one_line(str(value), 160) or "empty"


def _same(shape: ModelShape, key: str, made: Any, asked: Any) -> bool:
    if key == "tuning.target_modules" and not is_pattern(f"{made} {asked}"):
        try:
            # Beside tensors of experts there may be no layers.
            same_experts = not shape.has_grouped_experts or is_all_linear(made) == is_all_linear(asked)
            return same_experts and _names(shape, made) == _names(shape, asked)
        except ConfigError:  # of a name that the model does not have, which is told elsewhere
            return True
    if key in ("tuning.modules_to_save", "tuning.target_parameters"):
        return set(names_in(made)) == set(names_in(asked))
    return bool(made == asked)


def _names(shape: ModelShape, target_modules: str) -> set[str]:
    return set(match_targets(shape, target_modules)) if target_modules else set()


def _targets_of(facts: ModelFacts, adapter: Adapter, saved: str) -> dict[str, Any]:
    """`tuning.target_modules` and `tuning.target_parameters` of an adapter; {} where no settings say what it is on.
    `saved`: modules that are trained as a whole beside it.

    An expression, or tensors of experts, are its own if peft makes tensors of the same names and shapes by them. Beside
    towers it is ours, of names in the language model.
    """
    fields, shape = adapter.fields, facts.shape
    modules, parameters = fields.get("target_modules") or (), fields.get("target_parameters") or ()
    written = modules if isinstance(modules, str) else ", ".join(sorted(map(str, modules)))
    has_expression = is_pattern(written) and not shape.towers
    has_patterns = any(fields.get(name) for name in _PATTERNS)
    plain = {} if has_patterns or parameters else _plain_targets(shape, adapter)
    if not (has_expression or parameters or has_patterns or shape.has_grouped_experts):
        return plain
    try:
        path = adapter.folder / ADAPTER_WEIGHTS
        stored = {name: tuple(tensor.shape) for name, tensor in read_file_header(path).items() if is_adapter(name)}
    except (OSError, ConfigError):  # told with what is wrong with the files
        return {}
    own = (written, ", ".join(sorted(map(str, parameters))))
    for targets, names in (own, (ALL_LINEAR, "")) if has_expression else ((ALL_LINEAR, ""), own):
        tuning = TuningSection(r=int(fields.get("r") or 1), target_modules=targets, target_parameters=names)
        if _makes(facts, tuning, saved, stored, fields):
            return {"tuning.target_modules": targets, "tuning.target_parameters": names}
    return plain


def _makes(
    facts: ModelFacts,
    tuning: TuningSection,
    saved: str,
    stored: Mapping[str, tuple[int, ...]],
    fields: Mapping[str, Any],
) -> bool:
    """Whether these settings make the adapter with such tensors, ranks and scales."""
    try:
        match_targets(facts.shape, tuning.target_modules, "", tuning.target_parameters)
        parts = find_adapted(facts.config, facts.shape, tuning, saved)
    except ConfigError:
        return False
    ranks, alpha = dict(parts.rank_pattern), fields.get("lora_alpha") or 0
    scales = {name: alpha * rank / tuning.r for name, rank in ranks.items()}
    own = (fields.get("rank_pattern") or {}, fields.get("alpha_pattern") or {})
    return dict(parts.tensors) == dict(stored) and own == (ranks, scales)


def _plain_targets(shape: ModelShape, adapter: Adapter) -> dict[str, Any]:
    """Return the targets of an adapter, by the layers that its tensors are for; {} where no names say them.

    peft writes all-linear down as the names or paths of layers, and takes regular expressions.
    """
    path = adapter.folder / ADAPTER_WEIGHTS
    try:
        layers = _layers(path, path.stat().st_mtime_ns)
    except (OSError, ConfigError):  # told with what is wrong with the files
        return {}
    names, left = linear_names(shape), set(layers)
    found = []
    for name in names:
        own = {layer for layer in layers if layer == name or layer.endswith(f".{name}")}
        count = sum(one.count for one in shape.linears if one.path == name or one.path.endswith(f".{name}"))
        if own and len(own) != count:
            return {}
        found += [name] if own else []
        left -= own
    if left or not found:
        return {}
    targets = ALL_LINEAR if len(found) == len(names) else ", ".join(found)
    return {"tuning.target_modules": targets, "tuning.target_parameters": ""}


@lru_cache(maxsize=8)
def _layers(path: Path, _changed_at: int) -> frozenset[str]:
    """`model.layers.0.mlp.up_proj` of each layer with an adapter; an adapted embedding as `lora_embedding`."""
    names = (name.removeprefix("base_model.model.") for name in read_file_header(path))
    return frozenset(
        name.partition(".lora_")[0] if ".lora_A." in name else "lora_embedding"
        for name in names
        if ".lora_A." in name or ".lora_embedding_" in name
    )
