"""Which tool a file is of: the importer that knows most of its keys, or none.

Importers are found by their files. A file of which an importer knows half of the keys or fewer is of another tool.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

from tui_trainer.config.load import all_settings
from tui_trainer.errors import ConfigError, name_hint
from tui_trainer.importing import importers
from tui_trainer.importing.conversion import Conversion, Importer
from tui_trainer.terminal.safe_text import one_line

_SHOWN_KEYS = 3
# Of 2,050 public files, those of the tools that are read have at least 0.56 of known keys, others 0.50 at most.
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a file looks like that no importer reads.

    `marks`: the file has all keys of one of them, with tables as `table.key`; `key=value` has this value, `!key` is
    not there. Patterns have `*`.
    """

    title: str
    marks: tuple[str, ...]


# By the keys of the tools' own example files.
FOREIGN = (
    Foreign(
        "AutoTrain",
        (
            "task base_model project_name",
            "project_name train_split valid_split",
            "project_name data_path merge_adapter",
        ),
    ),
    Foreign(
        "Unsloth Studio", ("training.max_seq_length lora.lora_r", "lora.vision_all_linear", "training.training_type")
    ),
    Foreign("torchtune", ("*._component_",)),
    Foreign(
        "LitGPT", ("checkpoint_dir train.*", "train.global_batch_size train.micro_batch_size", "train.lr_warmup_steps")
    ),
    Foreign(
        "NeMo RL",
        (
            "policy.model_name grpo.*",
            "policy.model_name sft.*",
            "policy.model_name dpo.*",
            "policy.* checkpointing.*",
            "policy.* defaults",
            "grpo.* defaults",
            "checkpointing.* defaults",
            "data_plane.* defaults",
        ),
    ),
    Foreign(
        "NeMo",
        ("exp_manager.*", "model.restore_from_path", "*_target_=nemo*", "trainer.devices model.global_batch_size"),
    ),
    Foreign("Oumi", ("model.model_name training.trainer_type", "data.train.datasets model.model_name")),
    Foreign("Ludwig", ("input_features output_features",)),
    Foreign(
        "Kohya's scripts",
        ("pretrained_model_name_or_path network_module", "pretrained_model_name_or_path train_data_dir"),
    ),
    Foreign(
        "SimpleTuner",
        ("model_family pretrained_model_name_or_path", "--model_family", "--pretrained_model_name_or_path"),
    ),
    Foreign("AI Toolkit", ("job config.process",)),
    Foreign(
        "Diffusers",
        (
            "_diffusers_version",
            "pretrained_model_name_or_path instance_prompt",
            "pretrained_model_name_or_path resolution",
        ),
    ),
    Foreign(
        "H2O LLM Studio",
        ("llm_backbone experiment_name", "architecture.backbone_dtype", "problem_type dataset.* architecture.*"),
    ),
    Foreign("LMFlow", ("dataset_path lisa_activated_layers", "arch_type dataset_path", "dataset_path use_lisa")),
    Foreign("DeepSpeed-Chat", ("actor_model_name_or_path", "data_split zero_stage", "actor_zero_stage")),
    Foreign("GPT-NeoX", ("pipe-parallel-size", "pipe_parallel_size", "model-parallel-size")),
    Foreign("Megatron", ("tensor-model-parallel-size", "tensor_model_parallel_size num_layers", "ffn-hidden-size")),
    Foreign(
        "ms-swift", ("train_type model dataset", "tuner_type model dataset", "sft_type", "swift_version", "rlhf_type")
    ),
    Foreign("XTuner", ("model_cfg optim_cfg", "fsdp_cfg lr_cfg")),
    Foreign("torchtitan", ("job.dump_folder", "model.flavor", "training.local_batch_size parallelism.*")),
    Foreign(
        "verl",
        (
            "actor_rollout_ref.*",
            "algorithm.adv_estimator",
            "model.partial_pretrain",
            "*_target_=verl*",
            "data.train_files trainer.default_local_dir",
        ),
    ),
    Foreign(
        "OpenRLHF",
        ("pretrain micro_train_batch_size", "reward_pretrain", "pretrain zero_stage", "actor_num_gpus_per_node"),
    ),
    Foreign(
        "MLX LM", ("lora_parameters iters", "lora_parameters.* iters", "fine_tune_type iters", "iters adapter_path")
    ),
    Foreign("LLM Foundry", ("max_duration train_loader.*", "device_train_microbatch_size")),
    Foreign("Levanter", ("initialize_from_hf trainer.*", "trainer.tracker.*")),
    Foreign("fairseq", ("task._name", "criterion._name")),
    Foreign("OpenNMT", ("src_vocab save_model", "train_steps data.*.path_src")),
    Foreign("AllenNLP", ("dataset_reader.type trainer.*",)),
    Foreign(
        "OpenAI's fine-tuning", ("training_file hyperparameters.*", "training_file method.*", "training_file suffix")
    ),
    Foreign(
        "Lightning CLI",
        ("trainer.max_epochs model.class_path", "seed_everything trainer.*", "model.class_path trainer.*"),
    ),
    Foreign(
        "a Weights & Biases sweep",
        ("method parameters.*.values", "method metric.goal parameters.*", "program parameters.*"),
    ),
    Foreign("Hydra", ("defaults hydra.*", "*._target_")),
    Foreign("Kubernetes", ("apiversion kind",)),
)
NO_TRAINING = (
    Foreign("the config.json of a model", ("architectures model_type", "model_type hidden_size !learning_rate")),
    Foreign("a generation_config.json", ("transformers_version eos_token_id !learning_rate",)),
    Foreign("a tokenizer_config.json", ("tokenizer_class !learning_rate",)),
    Foreign("a trainer_state.json", ("log_history global_step",)),
    Foreign("a mergekit merge config", ("merge_method !learning_rate",)),
    Foreign("a LLaMA-Factory merge config", ("export_dir !dataset !train_dataset !learning_rate",)),
    Foreign(
        "a LLaMA-Factory inference config",
        (
            "infer_backend !dataset !train_dataset !learning_rate",
            "adapter_name_or_path template !dataset !train_dataset !learning_rate !do_train=true",
            "sample_backend !dataset !train_dataset !learning_rate",
        ),
    ),
    Foreign("a pyproject.toml", ("project.name", "build-system.requires", "tool.*")),
    Foreign("a Cargo.toml", ("package.name package.edition", "package.name dependencies.*", "workspace.members")),
    Foreign("a prediction config", ("do_predict=true !do_train=true !stage=pt !learning_rate",)),
)


@cache
def all_importers() -> dict[str, Importer]:
    """Every importer by name, the plainest first."""
    found: list[Importer] = [
        import_module(f"{importers.__name__}.{module.name}").IMPORTER
        for module in pkgutil.iter_modules(importers.__path__)
    ]
    return {importer.name: importer for importer in sorted(found, key=lambda importer: importer.rank)}


def find_importer(name: str) -> Importer:
    """The importer of that name. Raises ConfigError with the nearest name, or all of them."""
    if name not in all_importers():
        hint = name_hint(name, all_importers())
        raise ConfigError(f"unknown tool {name[:60]!r}", hint=hint, where="--as")
    return all_importers()[name]


def detect(raw: Mapping[str, Any], where: str) -> tuple[Importer, str]:
    """The importer of a file with these keys, and the reason as the end of a sentence.

    Raises ConfigError with all importers where that is not clear, and for files of other tools.
    """
    all_kinds = ", ".join(all_importers())
    if foreign := foreign_title(raw):
        hint = f"use --as KIND to read it as one of {all_kinds}"
        raise ConfigError(f"looks like a file of {foreign}, which is not supported", where=where, hint=hint)
    given = {importer.name: spread(importer, raw) for importer in all_importers().values()}
    importers = [(importer, given[importer.name]) for importer in all_importers().values()]
    scores = {one.name: (len(one.names & keys.keys()), len(one.spoken_for(keys))) for one, keys in importers}
    best = max(scores.values())
    first, *others = (all_importers()[name] for name, score in scores.items() if score == best)
    if best[0] == 0:
        hint = f"choose the kind with --as: {all_kinds}"
        raise ConfigError(f"has no known key ({_listed(list(raw))})", where=where, hint=hint)
    if not any(_share(one, given[one.name]) > _LEAST_SHARE for one in (first, *others)):
        unknown = [name for name in given[first.name] if not first.counts(name)]
        known = f"the nearest supported tool, {first.name}, knows {best[0]} of {len(given[first.name])} keys"
        message = f"is from an unsupported tool: {known}, but not {_listed(unknown)}"
        hint = f"use --as {first.name} to read the keys that {first.name} knows; kinds: {all_kinds}"
        raise ConfigError(message, where=where, hint=hint)
    if not others:
        own = ", ".join(first.spoken_for(given[first.name])[:_SHOWN_KEYS])
        reason = f"{best[0]} of {len(given[first.name])} keys match"
        return first, reason + (f", including {own}" if own else "")
    values = Conversion(first, given[first.name]).values
    names = ", ".join(other.name for other in others)
    if all(Conversion(other, given[other.name]).values == values for other in others):
        return first, f"also fits {names}, with the same result"
    hint = f"choose the kind with --as: {all_kinds}"
    raise ConfigError(f"fits several tools, which read it differently: {first.name}, {names}", where=where, hint=hint)


def foreign_title(raw: Mapping[str, Any]) -> str:
    """The tool that a file with these keys is of, where no importer reads it; empty where no mark says so."""
    return _title(FOREIGN, raw)


def refuse_no_training(raw: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a file that says nothing about training."""
    if title := _title(NO_TRAINING, raw):
        hint = "name its folder: tui-trainer --model FOLDER" if "of a model" in title else "use a training config"
        raise ConfigError(f"is {title}, not a training config", where=where, hint=hint)


def refuse_toml(raw: Mapping[str, Any], where: str) -> NoReturn:
    """Raises ConfigError: TOML is this program's own, or of a tool that is not read."""
    if foreign := foreign_title(raw):
        raise ConfigError(f"looks like a file of {foreign}, which is not supported", where=where)
    keys = [key for key, _ in _paths(raw)]
    settings = {name.lower() for name in all_settings()}
    if not any(key in settings or key in ("schema_version", "profile") for key in keys):
        message = f"is TOML of another tool, which is not supported ({_listed(list(raw))})"
        raise ConfigError(message, where=where, hint="use a config in YAML or JSON")
    raise ConfigError("is TOML, which needs no import", where=where, hint=f"try `tui-trainer plan {where}`")


def spread(importer: Importer, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys as the importer knows them: those of a table get its name and a dot where no row names the table.

    Raises ConfigError where two of them would have one name.
    """
    tables = {name.rpartition(".")[0] for name in importer.names}
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and value and key in tables and key not in importer.names:
            inside = spread(importer, {f"{key}.{name}": inner for name, inner in value.items()})
        else:
            inside = {key: value}
        if twice := inside.keys() & found.keys():
            raise ConfigError(f"the key {one_line(min(twice), 60)!r} appears twice", hint="remove one of them")
        found |= inside
    return found


def _share(importer: Importer, given: Mapping[str, Any]) -> float:
    return sum(map(importer.counts, given)) / len(given)


def _listed(names: list[str]) -> str:
    more = ", ..." if len(names) > _SHOWN_KEYS else ""
    return ", ".join(one_line(name, 40) for name in names[:_SHOWN_KEYS]) + more


def _title(kinds: tuple[Foreign, ...], raw: Mapping[str, Any]) -> str:
    keys = dict(_paths(raw))
    return next((one.title for one in kinds if any(_has(keys, mark) for mark in one.marks)), "")


def _has(keys: Mapping[str, str], mark: str) -> bool:
    return all(_there(keys, word.removeprefix("!")) != word.startswith("!") for word in mark.split())


def _there(keys: Mapping[str, str], word: str) -> bool:
    name, _, value = word.partition("=")
    return any(fnmatchcase(key, name) and (not value or fnmatchcase(keys[key], value)) for key in keys)


def _paths(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Each key with those of its tables before it, and its value, in small letters."""
    for key, value in given.items():
        path = f"{before}{key}".lower()
        yield path, str(value).lower() if not isinstance(value, dict | list) else ""
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _paths(inner, f"{path}.")
