"""Which setting a name means that is none: as other tools call it, or misspelt."""

from collections.abc import Collection
from difflib import get_close_matches

# How transformers, TRL, axolotl, LLaMA-Factory and people's own scripts call it.
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
MEANT = {name: key for names, key in _ELSEWHERE.items() for name in names.split()}


def nearest_setting(key: str, known: Collection[str]) -> str:
    """The one of `known` that `key` means, with or without its table; empty where none comes near."""
    name = key.rsplit(".", 1)[-1].lower().replace("-", "_")
    if same := [one for one in known if one.rsplit(".", 1)[-1] == name]:
        return get_close_matches(key, same, n=1, cutoff=0.0)[0]
    names = {one.rsplit(".", 1)[-1]: one for one in reversed(list(known))} | MEANT
    return next((names[near] for near in get_close_matches(name, names, n=1)), "")
