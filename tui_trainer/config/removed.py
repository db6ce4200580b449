"""Removed settings and values in configs and plans of earlier versions, and the meaning of unknown setting names.

A removed setting that does not affect what the model learns is dropped with a note. A removed setting that does is
refused, unless it has its former default. In the config of a finished run nothing is refused."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tui_trainer.errors import Problem
from tui_trainer.terminal.safe_text import one_line

# Names of settings in transformers, TRL, axolotl, LLaMA-Factory and common scripts.
_ELSEWHERE = {
    "lr": "training.learning_rate",
    "epoch epochs num_epochs n_epochs": "training.num_train_epochs",
    "steps num_steps max_train_steps": "training.max_steps",
    "bs batch batch_size train_batch_size global_batch_size": "training.effective_batch_size",
    "micro_batch micro_batch_size": "training.per_device_train_batch_size",
    "grad_accum grad_accum_steps gradient_accumulation accumulation_steps": "training.gradient_accumulation_steps",
    "warmup warmup_ratio": "training.warmup_steps",
    "fp16 bf16 fp32 amp precision": "training.mixed_precision",
    "grad_clip gradient_clip clip_grad_norm": "training.max_grad_norm",
    "scheduler lr_scheduler": "training.lr_scheduler_type",
    "optimizer": "training.optim",
    "compile": "training.torch_compile",
    "seq_len seq_length max_len max_seq_len max_seq_length sequence_len": "data.max_length",
    "context_length block_size cutoff_len model_max_length": "data.max_length",
    "dataset datasets data train_file train_data data_path dataset_name": "data.path",
    "eval_file eval_data validation_file val_file test_file": "data.eval_path",
    "val_size val_set_size test_size eval_split_ratio": "data.eval_fraction",
    "model model_name model_path base_model pretrained_model_name_or_path": "model.model_name_or_path",
    "flash_attention flash_attn use_flash_attention_2": "model.attn_implementation",
    "torch_dtype": "model.dtype",
    "lora_r lora_rank rank": "tuning.r",
    "alpha": "tuning.lora_alpha",
    "dropout": "tuning.lora_dropout",
    "lora_target lora_target_modules": "tuning.target_modules",
    "load_in_4bit load_in_8bit use_lora qlora lora adapter peft": "tuning.method",
    "workers dataloader_num_workers": "dataloader.num_workers",
    "patience early_stopping": "evaluation.early_stopping_patience",
    "eval_batch_size": "evaluation.per_device_eval_batch_size",
    "gpus num_gpus n_gpu n_gpus nproc_per_node num_processes": "distributed.processes",
    "run_name": "output.name",
    "output_dir out_dir": "output.runs_dir",
    "task task_type": "task.type",
}
SETTING_BY_FOREIGN_NAME = {name: key for names, key in _ELSEWHERE.items() for name in names.split()}


def nearest_setting(key: str, known_keys: Collection[str]) -> str:
    """Return the setting of `known_keys` that an unknown key most likely means; empty if no name is similar."""
    name = key.rsplit(".", 1)[-1].lower().replace("-", "_")
    if same_name_keys := [setting for setting in known_keys if setting.rsplit(".", 1)[-1] == name]:
        return get_close_matches(key, same_name_keys, n=1, cutoff=0.0)[0]
    key_of_name = {known_key.rsplit(".", 1)[-1]: known_key for known_key in reversed(list(known_keys))}
    key_of_name |= SETTING_BY_FOREIGN_NAME
    return next((key_of_name[similar_name] for similar_name in get_close_matches(name, key_of_name, n=1)), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """A removed setting with its former `default`, or the removed `value` of a setting and the value used `instead`."""

    reason: str
    hint: str = ""
    default: Any = None
    value: Any = None
    instead: Any = None
    affects_training: bool = False


_LANGUAGES = "set src_lang and tgt_lang in the tokenizer_config.json of the model, and remove this setting"
# By dotted key.
REMOVED: dict[str, Removed] = {
    "task.source_language": Removed(
        reason="the language of the texts is no longer a setting", hint=_LANGUAGES, default="", affects_training=True
    ),
    "task.target_language": Removed(
        reason="the language of the answers is no longer a setting", hint=_LANGUAGES, default="", affects_training=True
    ),
    "model.kernels": Removed(reason="kernels from the hub are no longer supported", value="hub", instead="auto"),
    "training.torch_compile_mode": Removed(
        reason="the new value tunes the same kernels, but without CUDA graphs, which need batches of one size",
        value="max-autotune",
        instead="max-autotune-no-cudagraphs",
    ),
    "targets.deadline": Removed(
        reason="runs no longer have a deadline; `tui-trainer plan` shows how long a run takes", default=""
    ),
    "distributed.strategy": Removed(
        reason="tensor parallelism was removed",
        hint="set it to fsdp, which splits each layer's weights over the GPUs",
        value="tp",
        instead="fsdp",
        affects_training=True,
    ),
}


def without_removed(
    config: Mapping[str, Any], where: str, notes: list[str], problems: list[Problem], *, finished: bool = False
) -> dict[str, Any]:
    """Return the nested tables of a config without removed settings and values.

    Reports dropped settings in `notes` and refused settings in `problems`. With `finished`, for the config of a run
    that will not be trained further, nothing is refused."""

    def walk(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        remaining_values: dict[str, Any] = {}
        for name, value in table.items():
            key = f"{prefix}{name}"
            removed_setting = REMOVED.get(key)
            if isinstance(value, dict):
                remaining_values[name] = walk(value, f"{key}.")
            elif removed_setting is None or (removed_setting.value is not None and value != removed_setting.value):
                remaining_values[name] = value
            else:
                if removed_setting.value is not None:
                    remaining_values[name] = removed_setting.instead
                if value != removed_setting.default:
                    _report(key, value, removed_setting, where, notes, problems, finished)
        return remaining_values

    return walk(config, "")


def _report(
    key: str, value: Any, setting: Removed, where: str, notes: list[str], problems: list[Problem], finished: bool
) -> None:
    if setting.affects_training and not finished:
        problems.append(Problem(message=setting.reason, where=where, key=key, hint=setting.hint))
        return
    text = one_line(repr(value), 60) if isinstance(value, str) else str(value)
    prefix = f"{where}: " if where else ""
    instead_text = f", and {setting.instead!r} is used instead" if setting.value is not None else ""
    notes.append(f"{prefix}{key} = {text} is ignored{instead_text}: {setting.reason}")
