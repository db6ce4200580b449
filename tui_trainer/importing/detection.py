"""Detection of the tool that a file belongs to: the importer that knows the largest share of the file's keys wins.

If no importer knows more than half of the keys, the file belongs to a tool that is not supported."""

import pkgutil
from collections.abc import Iterator, Mapping
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
# In 2,050 public files, importers know at least 0.56 of the keys of supported tools, and at most 0.50 of others.
_LEAST_SHARE = 0.5

# Tools without an importer, and marks of their files, separated by |. Marks come from the example files of the tools. A
# file has a mark if it has all its keys: `table.key` is a key in a table, `key=value` needs this value, and `!key` must
# be missing. `*` matches any text.
UNSUPPORTED_TOOLS: Mapping[str, str] = {
    "AutoTrain": (
        "task base_model project_name | project_name train_split valid_split | project_name data_path merge_adapter"
    ),
    "Unsloth Studio": "training.max_seq_length lora.lora_r | lora.vision_all_linear | training.training_type",
    "torchtune": "*._component_",
    "LitGPT": "checkpoint_dir train.* | train.global_batch_size train.micro_batch_size | train.lr_warmup_steps",
    "NeMo RL": (
        "policy.model_name grpo.* | policy.model_name sft.* | policy.model_name dpo.* | policy.* checkpointing.*"
        " | policy.* defaults | grpo.* defaults | checkpointing.* defaults | data_plane.* defaults"
    ),
    "NeMo": "exp_manager.* | model.restore_from_path | *_target_=nemo* | trainer.devices model.global_batch_size",
    "Oumi": "model.model_name training.trainer_type | data.train.datasets model.model_name",
    "Ludwig": "input_features output_features",
    "Kohya's scripts": "pretrained_model_name_or_path network_module | pretrained_model_name_or_path train_data_dir",
    "SimpleTuner": "model_family pretrained_model_name_or_path | --model_family | --pretrained_model_name_or_path",
    "AI Toolkit": "job config.process",
    "Diffusers": (
        "_diffusers_version | pretrained_model_name_or_path instance_prompt | pretrained_model_name_or_path resolution"
    ),
    "H2O LLM Studio": (
        "llm_backbone experiment_name | architecture.backbone_dtype | problem_type dataset.* architecture.*"
    ),
    "LMFlow": "dataset_path lisa_activated_layers | arch_type dataset_path | dataset_path use_lisa",
    "DeepSpeed-Chat": "actor_model_name_or_path | data_split zero_stage | actor_zero_stage",
    "GPT-NeoX": "pipe-parallel-size | pipe_parallel_size | model-parallel-size",
    "Megatron": "tensor-model-parallel-size | tensor_model_parallel_size num_layers | ffn-hidden-size",
    "ms-swift": "train_type model dataset | tuner_type model dataset | sft_type | swift_version | rlhf_type",
    "XTuner": "model_cfg optim_cfg | fsdp_cfg lr_cfg",
    "torchtitan": "job.dump_folder | model.flavor | training.local_batch_size parallelism.*",
    "verl": (
        "actor_rollout_ref.* | algorithm.adv_estimator | model.partial_pretrain | *_target_=verl*"
        " | data.train_files trainer.default_local_dir"
    ),
    "OpenRLHF": "pretrain micro_train_batch_size | reward_pretrain | pretrain zero_stage | actor_num_gpus_per_node",
    "MLX LM": "lora_parameters iters | lora_parameters.* iters | fine_tune_type iters | iters adapter_path",
    "LLM Foundry": "max_duration train_loader.* | device_train_microbatch_size",
    "Levanter": "initialize_from_hf trainer.* | trainer.tracker.*",
    "fairseq": "task._name | criterion._name",
    "OpenNMT": "src_vocab save_model | train_steps data.*.path_src",
    "AllenNLP": "dataset_reader.type trainer.*",
    "OpenAI's fine-tuning": "training_file hyperparameters.* | training_file method.* | training_file suffix",
    "Lightning CLI": "trainer.max_epochs model.class_path | seed_everything trainer.* | model.class_path trainer.*",
    "a Weights & Biases sweep": "method parameters.*.values | method metric.goal parameters.* | program parameters.*",
    "Hydra": "defaults hydra.* | *._target_",
    "Kubernetes": "apiversion kind",
}
NO_TRAINING: Mapping[str, str] = {
    "the config.json of a model": "architectures model_type | model_type hidden_size !learning_rate",
    "a generation_config.json": "transformers_version eos_token_id !learning_rate",
    "a tokenizer_config.json": "tokenizer_class !learning_rate",
    "a trainer_state.json": "log_history global_step",
    "a mergekit merge config": "merge_method !learning_rate",
    "a LLaMA-Factory merge config": "export_dir !dataset !train_dataset !learning_rate",
    "a LLaMA-Factory inference config": (
        "infer_backend !dataset !train_dataset !learning_rate"
        " | adapter_name_or_path template !dataset !train_dataset !learning_rate !do_train=true"
        " | sample_backend !dataset !train_dataset !learning_rate"
    ),
    "a pyproject.toml": "project.name | build-system.requires | tool.*",
    "a Cargo.toml": "package.name package.edition | package.name dependencies.* | workspace.members",
    "a prediction config": "do_predict=true !do_train=true !stage=pt !learning_rate",
}


@cache
def all_importers() -> dict[str, Importer]:
    """Return all importers by name, sorted by rank."""
    names = [module.name for module in pkgutil.iter_modules(importers.__path__)]
    unsorted_importers: list[Importer] = [import_module(f"{importers.__name__}.{name}").IMPORTER for name in names]
    return {importer.name: importer for importer in sorted(unsorted_importers, key=lambda importer: importer.rank)}


def find_importer(name: str) -> Importer:
    """Return the importer with that name. Raises ConfigError for an unknown name."""
    if name not in all_importers():
        hint = name_hint(name, all_importers())
        raise ConfigError(f"unknown tool {name[:60]!r}", hint=hint, where="--as")
    return all_importers()[name]


def detect(raw: Mapping[str, Any], where: str) -> tuple[Importer, str]:
    """Return the importer for a file with the contents `raw`, and the reason for it as the end of a sentence.

    Raises ConfigError if no importer supports the file, or if several do and would convert it differently."""
    all_kinds = ", ".join(all_importers())
    if tool_title := _title(UNSUPPORTED_TOOLS, raw):
        hint = f"use --as KIND to read the file as one of {all_kinds}"
        raise ConfigError(f"looks like a file of {tool_title}, which is not supported", where=where, hint=hint)
    file_keys = {name: flatten_keys(tool, raw) for name, tool in all_importers().items()}
    scores: dict[str, tuple[int, int]] = {}
    for name, tool in all_importers().items():
        scores[name] = len(tool.names & file_keys[name].keys()), len(tool.telltale_in(file_keys[name]))
    best_score = max(scores.values())
    importer, *other_tools = (all_importers()[name] for name, tool_score in scores.items() if tool_score == best_score)
    keys, as_hint = file_keys[importer.name], f"choose the kind with --as: {all_kinds}"
    if best_score[0] == 0:
        raise ConfigError(f"has no known key (keys found: {_listed(list(raw))})", where=where, hint=as_hint)
    tools_and_keys = [(tool, file_keys[tool.name]) for tool in (importer, *other_tools)]
    if not any(sum(map(tool.knows_key, names)) > _LEAST_SHARE * len(names) for tool, names in tools_and_keys):
        nearest_text = f"{importer.name}, the nearest supported tool, knows {best_score[0]} of {len(keys)} keys"
        names = _listed([name for name in keys if not importer.knows_key(name)])
        hint = f"use --as {importer.name} to read the keys that {importer.name} knows; other kinds: {all_kinds}"
        raise ConfigError(f"is from an unsupported tool; {nearest_text}, but not {names}", where=where, hint=hint)
    if not other_tools:
        telltales = ", ".join(importer.telltale_in(keys)[:_SHOWN_KEYS])
        telltales = f", including {telltales}" if telltales else ""
        return importer, f"{best_score[0]} of {len(keys)} keys match{telltales}"
    titles = ", ".join(other.name for other in other_tools)
    values = Conversion(importer, keys).values
    if all(Conversion(other, file_keys[other.name]).values == values for other in other_tools):
        return importer, f"the keys also match {titles}, with the same result"
    message = f"matches several tools, which would give different results: {importer.name}, {titles}"
    raise ConfigError(message, where=where, hint=as_hint)


def refuse_no_training(raw: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if the file is not a training config but, for example, the config.json of a model."""
    if file_kind := _title(NO_TRAINING, raw):
        hint = "try `tui-trainer --model FOLDER`" if "of a model" in file_kind else "use a training config"
        raise ConfigError(f"is {file_kind}, not a training config", where=where, hint=hint)


def refuse_toml(raw: Mapping[str, Any], where: str) -> NoReturn:
    """Raise ConfigError for a TOML file: it is a config of tui-trainer or of a tool that is not supported."""
    if tool_title := _title(UNSUPPORTED_TOOLS, raw):
        raise ConfigError(f"looks like a file of {tool_title}, which is not supported", where=where)
    keys = [key for key, _ in _paths(raw)]
    settings = {name.lower() for name in all_settings()}
    if not any(key in settings or key in ("schema_version", "profile") for key in keys):
        message = f"is TOML, but the configs of all supported tools are YAML or JSON (keys found: {_listed(list(raw))})"
        raise ConfigError(message, where=where, hint="give the config of a supported tool: `tui-trainer import --help`")
    raise ConfigError("is already a config of tui-trainer", where=where, hint=f"try `tui-trainer plan {where}`")


def flatten_keys(importer: Importer, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's values by the keys of the importer: `table.key` in a table, unless a rule is for whole tables.

    Raises ConfigError if two keys get the same name."""
    tables = {name.rpartition(".")[0] for name in importer.names}
    all_values: dict[str, Any] = {}
    for key, value in raw.items():
        flat_values = {key: value}
        if isinstance(value, dict) and value and key in tables and key not in importer.names:
            flat_values = flatten_keys(importer, {f"{key}.{name}": inner for name, inner in value.items()})
        if duplicates := flat_values.keys() & all_values.keys():
            raise ConfigError(f"the key {one_line(min(duplicates), 60)!r} appears twice", hint="remove one key")
        all_values |= flat_values
    return all_values


def _listed(names: list[str]) -> str:
    ellipsis = ", ..." if len(names) > _SHOWN_KEYS else ""
    return ", ".join(one_line(name, 40) for name in names[:_SHOWN_KEYS]) + ellipsis


def _title(marks_by_title: Mapping[str, str], raw: Mapping[str, Any]) -> str:
    """Return the title of the first kind of file whose marks the file has; empty without any."""
    values = dict(_paths(raw))

    def fits(word: str) -> bool:
        name, _, pattern = word.partition("=")
        return any(fnmatchcase(key, name) and (not pattern or fnmatchcase(values[key], pattern)) for key in values)

    def has_mark(words: str) -> bool:
        return all(fits(word.removeprefix("!")) != word.startswith("!") for word in words.split())

    return next((title for title, marks in marks_by_title.items() if any(map(has_mark, marks.split(" | ")))), "")


def _paths(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key with its tables (`table.key`) and its value, both in lower case."""
    for key, value in given.items():
        path = f"{prefix}{key}".lower()
        yield path, str(value).lower() if not isinstance(value, dict | list) else ""
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _paths(item, f"{path}.")
