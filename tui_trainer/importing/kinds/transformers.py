"""Hugging Face `TrainingArguments`, as JSON or YAML, and the arguments of the example scripts beside them."""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind

KIND = Kind(
    name="transformers",
    title="Hugging Face TrainingArguments",
    rank=1,
    telltale=frozenset(
        {
            "train_file", "validation_file", "validation_split_percentage", "dataset_config_name", "max_source_length",
            "fp16_full_eval", "bf16_full_eval", "half_precision_backend", "logging_dir", "use_cpu", "no_cuda",
            "logging_nan_inf_filter", "prediction_loss_only", "eval_accumulation_steps", "log_level", "disable_tqdm",
            "train_sampling_strategy", "activation_checkpointing", "past_index", "skip_memory_metrics", "label_names",
        }
    ),
    rules={
        **trainer_names.RULES,
        **trainer_names.MODEL,
        **trainer_names.LORA,
        **trainer_names.SCRIPT_DATA,
        "max_seq_length": trainer_names.SCRIPT_DATA["block_size"],
    },
    together=(
        *trainer_names.trainer_groups(),
        together.method(lora=trainer_names.LORA_NAMES, model=("model_name_or_path",), otherwise="full"),
    ),
    families=trainer_names.FAMILIES,
    defaults=trainer_names.DEFAULTS,
)  # fmt: skip
