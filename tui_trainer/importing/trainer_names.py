"""The names of Hugging Face's trainer, old and new, which most tools took over.

Source: `TrainingArguments` of transformers 5.23 and the names of versions 4.x; `LoraConfig` of peft 0.21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tui_trainer import optimizers
from tui_trainer.importing import together
from tui_trainer.importing.contract import Left, Off, Rule, Same, To, Together, Why
from tui_trainer.importing.data_places import data_set_name
from tui_trainer.importing.fitting import number

_NO_PATTERN = set("\\^$*+?()[]|{}")


def module_names(value: Any) -> Any:
    """Names of layers as one text; `all` as `all-linear`. Raises ValueError for a regular expression."""
    names = value if isinstance(value, list) else [value]
    if any(isinstance(name, str) and _NO_PATTERN & set(name) for name in names):
        raise ValueError("it is a pattern; names of layers, with commas, are taken")
    return "all-linear" if value == "all" or names in (["all"], ["all-linear"]) else value


def percent(value: Any) -> Any:
    """A percentage as a share."""
    found = number(value)
    return value if found is None else found / 100


def metric_name(value: Any) -> Any:
    """`eval_loss` as `loss`."""
    return value.removeprefix("eval_") if isinstance(value, str) else value


NO_EXTERNAL_LOG = Left(Why.NOT_NEEDED, "the run's own journal is always written")
NO_STEP_LIMIT = Left(Why.NOT_NEEDED, "the epochs decide")
RESUMED = Left(Why.NOT_NEEDED, "`tui-trainer resume RUN` goes on with a run")
ONE_PROCESS = "training is one process on one GPU"
OWN_KERNELS = Left(Why.AUTOMATIC, "head and loss are computed in chunks; attention is torch's fused one")
NO_UNSLOTH = Left(
    Why.NOT_YET, "Hugging Face's libraries build the model; head and loss are computed in chunks, attention is fused"
)
LIVING_THREADS = Left(Why.AUTOMATIC, "the threads that make batches live as long as the run")
CACHED = Left(Why.AUTOMATIC, "prepared data is kept, and made anew when text, tokenizer or length change")
DEVICE = Left(Why.AUTOMATIC, "the freest GPU, or the CPU where there is none; --gpu chooses")

DTYPES: Mapping[Any, Any] = {
    **dict.fromkeys(("bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "half", "torch.float16"), "float16"),
    **dict.fromkeys(("fp32", "float", "torch.float32"), "float32"),
}

OPTIMISERS: Mapping[Any, Any] = {
    alias: name for name, optimizer in optimizers.OPTIMIZERS.items() for alias in optimizer.aliases
}

SCHEDULERS: Mapping[Any, Any] = {"warmup_linear": "linear", "constant_warmup": "constant_with_warmup"}

MODEL: Mapping[str, Rule] = {
    "model_name_or_path": To("model.model_name_or_path"),
    "model_revision": To("model.revision"),
    "dtype": To("model.dtype", values=DTYPES),
    "torch_dtype": To("model.dtype", values=DTYPES),
    "attn_implementation": To("model.attn_implementation"),
    "trust_remote_code": To("model.trust_remote_code"),
    "low_cpu_mem_usage": Left(Why.ALWAYS, "weights go from the file to where they train"),
    "use_cache": Same((False,), "the cache of generation is off in training", "a cache has no use in training"),
    "device_map": DEVICE,
    "tokenizer_name": Left(Why.AUTOMATIC, "the tokenizer is the model's own"),
    "config_name": Left(Why.AUTOMATIC, "the model's own config.json counts"),
    "cache_dir": Left(Why.NOT_NEEDED, "HF_HOME says where the cache is"),
    "token": Left(Why.NOT_NEEDED, "HF_TOKEN is read from the environment"),
}

LORA: Mapping[str, Rule] = {
    "lora_r": To("tuning.r"),
    "lora_alpha": To("tuning.lora_alpha"),
    "lora_dropout": To("tuning.lora_dropout"),
    "lora_target_modules": To("tuning.target_modules", convert=module_names),
    "lora_modules_to_save": To("tuning.modules_to_save", convert=module_names),
    "use_rslora": To("tuning.use_rslora"),
    "use_dora": To("tuning.use_dora"),
}

FOUR_BITS: Mapping[str, Rule] = {
    "load_in_8bit": Off("weights in 8 bits are not trained on; 16 bits or 4 are"),
    "load_in_4bit": Off("weights in 4 bits go with the method qlora only"),
    "bnb_4bit_quant_type": To("quantization.bnb_4bit_quant_type"),
    "bnb_4bit_compute_dtype": To("quantization.bnb_4bit_compute_dtype", values=DTYPES),
    "bnb_4bit_use_double_quant": To("quantization.bnb_4bit_use_double_quant"),
    "bnb_4bit_quant_storage": Off("weights in 4 bits are stored as bytes"),
}

HUB_DATA: Mapping[str, Rule] = {
    "dataset_name": To("data.path", convert=data_set_name),
    "dataset_config": Off("data.path names the folder of one, as in hub:owner/name/folder"),
}

# The arguments of the example scripts that come with transformers.
SCRIPT_DATA: Mapping[str, Rule] = {
    "train_file": To("data.path"),
    "validation_file": To("data.eval_path"),
    "validation_split_percentage": To("data.eval_fraction", "a share", convert=percent),
    **HUB_DATA,
    "dataset_config_name": HUB_DATA["dataset_config"],
    "block_size": To("data.max_length"),
    "max_source_length": To("data.max_length"),
    "max_target_length": To("task.max_target_length"),
    "source_prefix": To("task.source_prefix"),
    "source_lang": To("task.source_language"),
    "target_lang": To("task.target_language"),
    "forced_bos_token": Left(Why.AUTOMATIC, "answers begin with the token of task.target_language"),
    "text_column_name": To("data.text_column"),
    "label_column_name": To("data.label_column"),
    "text_column": To("data.text_column"),
    "summary_column": To("data.target_column"),
    "max_train_samples": To("data.max_rows"),
    "max_eval_samples": To("evaluation.max_eval_rows"),
    "preprocessing_num_workers": To("data.num_proc"),
    "overwrite_cache": CACHED,
    "pad_to_max_length": Left(Why.AUTOMATIC, "rows are padded to the longest of their batch, or packed"),
}

_STEPS: Mapping[str, Rule] = {
    "learning_rate": To("training.learning_rate"),
    "num_train_epochs": To("training.num_train_epochs"),
    "max_steps": To("training.max_steps", leave={-1: NO_STEP_LIMIT, 0: NO_STEP_LIMIT}),
    "lr_scheduler_type": To("training.lr_scheduler_type", values=SCHEDULERS),
    "lr_scheduler_kwargs": Off("the schedules take no arguments"),
    "warmup_steps": To("training.warmup_steps"),
    "weight_decay": To("training.weight_decay"),
    "max_grad_norm": To("training.max_grad_norm"),
    "label_smoothing_factor": To("training.label_smoothing_factor"),
    "optim": To("training.optim", values=OPTIMISERS),
    "optim_args": Off("optimisers take the arguments of [training] only"),
    "optim_target_modules": Off("one optimiser moves all trained weights"),
    "adam_beta1": To("training.adam_beta1"),
    "adam_beta2": To("training.adam_beta2"),
    "adam_epsilon": To("training.adam_epsilon"),
    "adafactor": Off('training.optim = "adafactor" says it here'),
    "seed": To("training.seed"),
    "data_seed": Left(Why.AUTOMATIC, "training.seed decides the order of the rows as well"),
    "full_determinism": To("training.deterministic"),
    "auto_find_batch_size": Left(Why.AUTOMATIC, "the micro-batch is the largest that fits; the effective batch stays"),
    "average_tokens_across_devices": Left(Why.ALWAYS, "every token of a step counts the same"),
    "gradient_accumulation_kwargs": Off("accumulation takes no arguments"),
    "neftune_noise_alpha": Off("no noise is added to embeddings"),
}

_SPEED: Mapping[str, Rule] = {
    "tf32": To("training.tf32"),
    "bf16_full_eval": Left(Why.AUTOMATIC, "evaluation computes as training does"),
    "fp16_full_eval": Left(Why.AUTOMATIC, "evaluation computes as training does"),
    "half_precision_backend": Left(Why.ALWAYS, "torch's own mixed precision"),
    "fp16_backend": Left(Why.ALWAYS, "torch's own mixed precision"),
    "fp16_opt_level": Left(Why.ALWAYS, "torch's own mixed precision"),
    "gradient_checkpointing": To("training.gradient_checkpointing"),
    "activation_checkpointing": To("training.gradient_checkpointing"),
    "gradient_checkpointing_kwargs": Left(Why.AUTOMATIC, "checkpointing is never reentrant"),
    "activation_checkpointing_kwargs": Left(Why.AUTOMATIC, "checkpointing is never reentrant"),
    "torch_compile": To("training.torch_compile"),
    # Gradients are summed over several passes, which CUDA graphs write over.
    "torch_compile_mode": To("training.torch_compile_mode", values={"max-autotune": "max-autotune-no-cudagraphs"}),
    "torch_compile_backend": Same(("inductor",), "inductor compiles", "inductor compiles here"),
    "torchdynamo": Off("training.torch_compile says it here"),
    "torch_empty_cache_steps": To("training.empty_cache_steps"),
    "use_liger_kernel": OWN_KERNELS,
    "liger_kernel_config": OWN_KERNELS,
    "group_by_length": To("data.group_by_length"),
    "train_sampling_strategy": To(
        "data.group_by_length",
        values={"group_by_length": True},
        leave={"random": Left(Why.ALWAYS, "rows come in a new order in each epoch")},
    ),
    "length_column_name": Left(Why.AUTOMATIC, "lengths are counted when the data is prepared"),
    "dataloader_num_workers": To("dataloader.num_workers"),
    "dataloader_prefetch_factor": To("dataloader.prefetch_factor"),
    "dataloader_pin_memory": To("dataloader.pin_memory"),
    "dataloader_persistent_workers": LIVING_THREADS,
    "dataloader_drop_last": Same((False,), "the last rows of an epoch are learnt", "every row is learnt in an epoch"),
    "dataloader_in_order": Left(Why.ALWAYS, "batches come in the order of the seed"),
    "dataloader_multiprocessing_context": LIVING_THREADS,
    "remove_unused_columns": Left(Why.AUTOMATIC, "only the columns that are learnt are read"),
    "use_cpu": Off("`--gpu none` trains on the CPU"),
    "no_cuda": Off("`--gpu none` trains on the CPU"),
    "use_mps_device": Off("training is on an NVIDIA GPU or a CPU"),
    "use_ipex": Off("torch computes without extensions"),
}

_EVALUATION: Mapping[str, Rule] = {
    "eval_steps": To("evaluation.eval_steps"),
    "per_device_eval_batch_size": To("evaluation.per_device_eval_batch_size"),
    "per_gpu_eval_batch_size": To("evaluation.per_device_eval_batch_size"),
    "early_stopping_patience": To("evaluation.early_stopping_patience"),
    "early_stopping_threshold": To("evaluation.early_stopping_threshold"),
    "metric_for_best_model": To("evaluation.metric_for_best_model", convert=metric_name),
    "greater_is_better": Left(Why.AUTOMATIC, "it goes with the metric"),
    "load_best_model_at_end": Off("the best weights are kept where evaluation.early_stopping_patience is above 0"),
    "eval_delay": Off("evaluation begins with the first multiple of evaluation.eval_steps"),
    "eval_on_start": Off("evaluation begins after the first steps"),
    "eval_accumulation_steps": Left(Why.NOT_NEEDED, "an evaluation keeps sums, not outputs"),
    "prediction_loss_only": Left(Why.NOT_NEEDED, "an evaluation keeps sums, not outputs"),
    "do_train": Left(Why.NOT_NEEDED, "the command says it"),
    "do_eval": Left(Why.NOT_NEEDED, "held-out rows are always evaluated"),
    "do_predict": Off("`tui-trainer generate RUN` tries a model"),
}

_SAVING: Mapping[str, Rule] = {
    "output_dir": To("output.runs_dir", "each run has a folder of its own in it"),
    "run_name": To("output.name"),
    "overwrite_output_dir": Left(Why.NOT_NEEDED, "each run has a folder of its own"),
    "resume_from_checkpoint": RESUMED,
    "save_steps": To("checkpoint.save_steps"),
    "save_total_limit": To("checkpoint.save_total_limit"),
    "save_safetensors": Same((True,), "weights are safetensors", "no pickle is written"),
    "save_only_model": Off("a checkpoint holds all that an exact resume needs"),
    "logging_steps": To("logging.logging_steps"),
    "logging_strategy": Left(Why.AUTOMATIC, "every step is in the journal; logging.logging_steps groups them"),
    "logging_first_step": Left(Why.ALWAYS, "every step is in the journal"),
    "logging_nan_inf_filter": Left(Why.ALWAYS, "a loss that is no number is shown as it is"),
    "logging_dir": Left(Why.NOT_NEEDED, "the journal lies in the run's folder"),
    "report_to": To("logging.report_to", leave={"none": NO_EXTERNAL_LOG}),
    "include_num_input_tokens_seen": Left(Why.ALWAYS, "tokens are counted in every step"),
    "include_tokens_per_second": Left(Why.ALWAYS, "tokens are counted in every step"),
    "deepspeed": Off(ONE_PROCESS),
    "local_rank": Left(Why.NOT_NEEDED, ONE_PROCESS),
    "project": Left(Why.NOT_NEEDED, "nothing is sent anywhere"),
    "push_to_hub": Off("nothing is sent anywhere"),
    "debug": Off("there is no such mode"),
}

RULES: Mapping[str, Rule] = {**_STEPS, **_SPEED, **_EVALUATION, **_SAVING}

# What only matters to the library itself.
_LIBRARY = Left(Why.NOT_NEEDED, "it concerns the other tool only")
FAMILIES: Mapping[str, Rule] = {
    "hub_*": Off("nothing is sent anywhere"),
    "ddp_*": Left(Why.NOT_NEEDED, ONE_PROCESS),
    "fsdp*": Off(ONE_PROCESS),
    "trackio_*": Left(Why.NOT_NEEDED, "nothing is sent anywhere"),
    "log_*": _LIBRARY,
    "tpu_*": Left(Why.NOT_NEEDED, "training is on an NVIDIA GPU or a CPU"),
    "include_*": _LIBRARY,
    **dict.fromkeys(
        (
            "disable_tqdm", "label_names", "past_index", "skip_memory_metrics", "ignore_data_skip",
            "accelerator_config", "parallelism_config", "restore_callback_states_from_checkpoint", "save_on_each_node",
            "batch_eval_metrics", "eval_do_concat_batches", "eval_use_gather_object", "enable_jit_checkpoint",
            "dispatch_batches", "split_batches", "ray_scope", "mp_parameters", "jit_mode_eval", "sharded_ddp",
            "xpu_backend",
        ),
        _LIBRARY,
    ),
}  # fmt: skip

DEFAULTS: Mapping[str, Any] = {
    "training.effective_batch_size": 8,
    "training.learning_rate": 5e-5,
    "training.lr_scheduler_type": "linear",
    "training.warmup_steps": 0,
}

MICRO = ("per_device_train_batch_size", "per_gpu_train_batch_size")
ACCUMULATION = ("gradient_accumulation_steps",)
EVALUATE = together.cadence("evaluation.eval_steps", ("eval_strategy", "evaluation_strategy"), "eval_steps")
SAVE = together.cadence("checkpoint.save_steps", ("save_strategy",), "save_steps")
LORA_NAMES = ("lora_r", "lora_rank", "lora_alpha", "lora_target_modules")


def trainer_groups(*micro: str, packing: str = "") -> tuple[Together, ...]:
    """The groups of a kind with the trainer's own names. A micro-batch is 8 where none is said.

    `micro` are further names of the micro-batch.
    """
    cut = together.batch((*MICRO, *micro), ACCUMULATION, micro_default=8, packing=packing)
    return cut, together.precision(), together.warmup(), together.early_stopping(), EVALUATE, SAVE
