"""`TrainingArguments` of Hugging Face as JSON or YAML, and the arguments of its example scripts.

Most tools use these names too, so the tables of their importers begin with the tables of this file.
Source: `TrainingArguments` of transformers 5.23 and the names of versions 4.x; `LoraConfig` of peft 0.21."""

from typing import Any

from tui_trainer.importing import groups, rules
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Only, Refused, Same, To, Why
from tui_trainer.importing.tokens_and_positions import rope_table

SEVERAL_PROCESSES = "[distributed] sets how several processes train together"
NOT_SENT = NotNeeded("nothing is uploaded unless you ask for it")
OTHER_TOOL = NotNeeded("this key only affects the other tool")
RESUMED = NotNeeded("resume a run with `tui-trainer resume RUN`")
NO_STEP_LIMIT = NotNeeded("the number of epochs sets the length of the run")
LIGER = To("model.kernels", "used if liger-kernel is installed", values={True: "auto", False: "none"})
OWN_KERNELS = Automatic("head and loss are computed in chunks; attention uses torch's fused kernels")
LIVING_THREADS = Automatic("data loading threads live as long as the run")
CACHED = Automatic("prepared data is cached, and prepared again when text, tokenizer or length change")
NEW_ORDER = Always("rows are shuffled in each epoch")
DEVICE = Automatic("the GPU with the most free memory is used, or the CPU if there is no GPU; choose with --gpu")
PACKING = To("data.packing", "packed documents do not attend to each other here")
THREADS = To("dataloader.num_workers", "loader workers are threads, not processes")
OPTIMIZER = To("training.optim", values=rules.OPTIMIZERS)
SCHEDULER = To("training.lr_scheduler_type", values=rules.SCHEDULERS)
LAYERS = To("tuning.target_modules", convert=rules.module_names)
WHOLE_LAYERS = To("tuning.modules_to_save", convert=rules.module_names)
_NO_SWITCH = rules.Skip(Why.DOES_NOT_FIT, "must be true or false")
LOSS_ON_ALL = To("task.loss_on", values={True: "all", False: "assistant"}, otherwise=_NO_SWITCH)
# `default` is the name of the only configuration in `datasets`.
CONFIGURATION = To("data.name", values={"default": Automatic("the default configuration is read")})
_STRATEGIES = {
    "hsdp": {"hybrid_shard", "hybrid_shard_zero2"},
    "fsdp": {"full_shard", "shard_grad_op", "auto_wrap", "true"},
    "ddp": {"no_shard", "false"},
}
LAYER_BY_LAYER = "the model is split layer by layer"
_ON_THE_HOST = "weights, gradients and optimizer state stay in host memory"
# Names in files of transformers, accelerate and axolotl.
OFFLOADS = """fsdp_offload_params fsdp_config.fsdp_offload_params fsdp_config.offload_params
fsdp_config.fsdp_cpu_offload fsdp_config.cpu_offload"""
RECOMPUTES = """fsdp_activation_checkpointing fsdp_config.fsdp_activation_checkpointing
fsdp_config.activation_checkpointing"""


def _adafactor(conversion: Conversion, switch: Given, optimizer: Given | None) -> None:
    """Convert the switch `adafactor` of older versions, which takes precedence over `optim`."""
    if switch.is_on:
        conversion.write("training.optim", "adafactor", switch)
        conversion.leave(Why.NOT_NEEDED, "adafactor takes precedence", optimizer)


def _blocks(conversion: Conversion, length: Given) -> None:
    """Convert `block_size`, the length of the rows into which the script `run_clm` packs texts."""
    conversion.write("data.max_length", length.value, length)
    if not conversion.has("packing"):
        reason = "texts are packed one after another into rows of block_size tokens"
        conversion.write("data.packing", True, reason=reason)


def fsdp_strategy(given: Any) -> tuple[str, bool]:
    """Return the strategy that the key `fsdp` names (empty if none), and whether it offloads to the CPU.

    `given` is true or words such as "full_shard auto_wrap"."""
    words = {str(word).lower() for word in (given if isinstance(given, list) else str(given).split())}
    return next((strategy for strategy, names in _STRATEGIES.items() if words & names), ""), "offload" in words


def _strategy(given: Any) -> str:
    if not (strategy := fsdp_strategy(given)[0]):
        raise ValueError("must be true, or words such as full_shard auto_wrap")
    return strategy


def _offload_of_accumulation(given: Any) -> bool:
    if isinstance(given, dict) and set(given) == {"use_cpu_offload"} and isinstance(given["use_cpu_offload"], bool):
        return given["use_cpu_offload"]
    raise ValueError("the only supported key of gradient_accumulation_kwargs is use_cpu_offload")


def _fsdp_offload(conversion: Conversion, fsdp: Given) -> None:
    """Convert the word `offload` in the key `fsdp`. It has no effect without a strategy."""
    strategy, offloads = fsdp_strategy(fsdp.value)
    if offloads and strategy in ("fsdp", "hsdp"):
        conversion.write("distributed.strategy", strategy, fsdp, reason=LAYER_BY_LAYER)
        conversion.write("distributed.cpu_offload", True, fsdp, reason=_ON_THE_HOST)


def _fsdp_checkpointing(conversion: Conversion, switch: Given) -> None:
    """Convert FSDP's activation checkpointing, which replaces gradient_checkpointing."""
    if switch.is_on:
        replaced_switch = conversion.first_unread("gradient_checkpointing")
        conversion.write("training.gradient_checkpointing", True, switch, replaced_switch)


MODEL: rules.Table = {
    "model_name_or_path attn_implementation trust_remote_code": "model.*",
    "model_revision": "model.revision",
    "dtype torch_dtype": To("model.dtype", values=rules.DTYPES),
    "low_cpu_mem_usage": Always("weights are loaded straight onto the training device"),
    "use_cache": Same((False,), "the key-value cache is off in training", "the key-value cache has no use in training"),
    "device_map": DEVICE,
    "use_fast_tokenizer": Always("fast tokenizers are used if available"),
    "ignore_mismatched_sizes": Automatic("a new head is created if the labels differ"),
    "cache_dir": NotNeeded("set the cache folder with HF_HOME"),
    "token": NotNeeded("HF_TOKEN is read from the environment"),
}
INIT = To("tuning.init_lora_weights", values={True: "default"})


def _last_layers(count: Any) -> str:
    if rules.whole(count) is None:
        raise ValueError("must be a number of layers")
    return f"last {rules.whole(count)}"


LORA: rules.Table = {
    "lora_r": "tuning.r",
    "lora_alpha lora_dropout use_rslora use_dora loraplus_lr_ratio": "tuning.*",
    "lora_plus_lr_ratio loraplus_ratio": To("tuning.loraplus_lr_ratio", values={0: rules.OFF}),
    "use_loraplus": Refused("set tuning.loraplus_lr_ratio for LoRA+"),
    "use_pissa": To(INIT.key, values={True: "pissa", False: rules.OFF}),
    "init_lora_weights": INIT,
    "lora_target_modules": LAYERS,
    "lora_target_parameters": "tuning.target_parameters",
    "lora_modules_to_save": WHOLE_LAYERS,
}
FOUR_BITS: rules.Table = {
    "load_in_8bit": Refused("adapters are trained on 16-bit or 4-bit weights, not on 8-bit ones"),
    "load_in_4bit": Refused("on 4-bit weights, only adapters are trained (qlora)"),
    "bnb_4bit_quant_type bnb_4bit_use_double_quant": "quantization.*",
    "bnb_4bit_compute_dtype": To("quantization.bnb_4bit_compute_dtype", values=rules.DTYPES),
    "bnb_4bit_quant_storage": Off("4-bit weights are stored as bytes"),
}
HUB_DATA: rules.Table = {"dataset_name": To("data.path", convert=rules.data_set_name), "dataset_config": CONFIGURATION}
# Arguments of the example scripts of transformers.
SCRIPT_DATA: rules.Table = {
    "train_file": "data.path",
    "validation_file": "data.eval_path",
    "validation_split_percentage": To("data.eval_fraction", "percent become a share", convert=rules.percent_to_share),
    **HUB_DATA,
    "dataset_config_name": CONFIGURATION,
    "max_source_length": "data.max_length",
    "streaming": "data.streaming",
    "keep_linebreaks": Only((True,), "line breaks are kept", "{} here"),
    "test_file max_predict_samples": NotNeeded("evaluate on other data with `tui-trainer evaluate RUN`"),
    "task_name": Refused("for GLUE, set data.path = hub:nyu-mll/glue and data.name to the name of the task"),
    "val_max_target_length num_beams": NotSupported("answers in evaluations are generated without this setting"),
    "ignore_pad_token_for_loss": Only((True,), "padding is excluded from the loss"),
    "label_all_tokens": Only((False,), "only the first token of a word is labelled"),
    "resize_position_embeddings lang": Refused("the architecture of the model cannot be changed"),
    "return_entity_level_metrics": Always("scores per entity are always computed"),
    "max_target_length source_prefix doc_stride max_answer_length": "task.*",
    "version_2_with_negative": Automatic("determined by whether the data has rows without an answer"),
    "source_lang": Refused("set src_lang in the model's tokenizer_config.json"),
    "target_lang": Refused("set tgt_lang in the model's tokenizer_config.json"),
    "forced_bos_token": Automatic("determined by the tokenizer"),
    "text_column_name text_column": "data.text_column",
    "label_column_name": "data.label_column",
    "summary_column": "data.target_column",
    "max_train_samples": "data.max_rows",
    "max_eval_samples": "evaluation.max_eval_rows",
    "preprocessing_num_workers": "data.num_proc",
    "overwrite_cache": CACHED,
    "pad_to_max_length": Automatic("rows are padded to the longest row of their batch, or packed"),
}
ARGUMENTS: rules.Table = {
    """learning_rate num_train_epochs warmup_steps weight_decay max_grad_norm label_smoothing_factor adam_beta1
    adam_beta2 adam_epsilon seed tf32 torch_compile neftune_noise_alpha
    router_aux_loss_coef""": "training.*",
    "noisy_embedding_alpha neftune_alpha": To("training.neftune_noise_alpha", values={0: rules.OFF}),
    "use_neftune": Refused("set training.neftune_noise_alpha for noise on embeddings"),
    "trainable_layers": To("tuning.trainable_layers", values={0: rules.OFF}),
    "unfreeze_last_n_layers": To("tuning.trainable_layers", values={0: rules.OFF}, convert=_last_layers),
    "max_steps": To("training.max_steps", values={-1: NO_STEP_LIMIT, 0: NO_STEP_LIMIT}),
    "lr_scheduler_type": SCHEDULER,
    "lr_scheduler_kwargs": Refused("only the schedules cosine_with_min_lr and warmup_stable_decay take arguments"),
    "optim": OPTIMIZER,
    "optim_args": Refused("the only supported optimizer arguments are the settings in [training]"),
    "optim_target_modules": Refused("one optimizer updates all trainable weights"),
    "data_seed": Automatic("training.seed also sets the order of the rows"),
    "full_determinism": "training.deterministic",
    "auto_find_batch_size": Automatic("the largest micro-batch that fits is used; the effective batch is kept"),
    "average_tokens_across_devices": Always("all tokens of a step have the same weight"),
    "gradient_accumulation_kwargs": To("distributed.cpu_offload", _ON_THE_HOST, convert=_offload_of_accumulation),
    # How it computes.
    "bf16_full_eval fp16_full_eval": Automatic("evaluation uses the precision of training"),
    "half_precision_backend fp16_backend fp16_opt_level": Always("torch's mixed precision is used"),
    "gradient_checkpointing activation_checkpointing": "training.gradient_checkpointing",
    "gradient_checkpointing_kwargs activation_checkpointing_kwargs": Automatic("checkpointing is always non-reentrant"),
    # CUDA graphs would overwrite gradients that are summed over several passes.
    "torch_compile_mode": To("training.torch_compile_mode", values={"max-autotune": "max-autotune-no-cudagraphs"}),
    "torch_compile_backend": Same(("inductor",), "inductor is used", "only inductor is supported"),
    "torchdynamo": Off("set training.torch_compile instead"),
    "torch_empty_cache_steps": "training.empty_cache_steps",
    "use_liger_kernel": LIGER,
    "liger_kernel_config": OWN_KERNELS,
    "group_by_length": "data.group_by_length",
    "train_sampling_strategy": To("data.group_by_length", values={"group_by_length": True, "random": NEW_ORDER}),
    "length_column_name": Automatic("lengths are counted when the data is prepared"),
    **{f"dataloader_{name}": f"dataloader.{name}" for name in ("num_workers", "prefetch_factor", "pin_memory")},
    "dataloader_persistent_workers dataloader_multiprocessing_context": LIVING_THREADS,
    "dataloader_drop_last": Same((False,), "the last rows of an epoch are used", "every row is used in an epoch"),
    "sortish_sampler": Off("set data.group_by_length to batch rows of similar length"),
    "dataloader_in_order": Always("the seed sets the order of batches"),
    "remove_unused_columns": Automatic("only the needed columns are read"),
    "use_cpu no_cuda": Off("`--gpu none` trains on the CPU"),
    "use_mps_device": Off("training runs on an NVIDIA GPU or a CPU"),
    "use_ipex": Off("torch is used without extensions"),
    # Evaluation.
    "eval_steps early_stopping_patience early_stopping_threshold": "evaluation.*",
    "per_device_eval_batch_size per_gpu_eval_batch_size": "evaluation.per_device_eval_batch_size",
    "metric_for_best_model": To("evaluation.metric_for_best_model", convert=rules.metric_name),
    "greater_is_better": Automatic("determined by the metric"),
    "load_best_model_at_end": Off("the best weights are kept if evaluation.early_stopping_patience is above 0"),
    "eval_delay": Off("the first evaluation is at the first multiple of evaluation.eval_steps"),
    "eval_on_start": Off("there is no evaluation before the first step"),
    "eval_accumulation_steps prediction_loss_only": NotNeeded(
        "an evaluation keeps only sums of losses and scores, not outputs"
    ),
    "predict_with_generate": Automatic(
        "if the task generates text, each evaluation generates evaluation.generate_rows answers"
    ),
    "generation_max_length generation_num_beams generation_config": NotSupported(
        "answers in evaluations are generated without this setting"
    ),
    "do_train": NotNeeded("the command decides whether to train"),
    "do_eval": NotNeeded("held-out rows are always evaluated"),
    "do_predict": Off("try a model with `tui-trainer generate RUN`"),
    # Saving and logging.
    "output_dir": To("output.runs_dir", "each run has its own folder in this folder"),
    "run_name": "output.name",
    "overwrite_output_dir": NotNeeded("each run has its own folder"),
    "resume_from_checkpoint": RESUMED,
    "save_steps save_total_limit": "checkpoint.*",
    "save_safetensors": Same((True,), "weights are saved as safetensors", "weights are only saved as safetensors"),
    "save_only_model": Off("a checkpoint always contains everything for an exact resume"),
    "logging_steps": "logging.logging_steps",
    "logging_strategy": Automatic("every step is logged in the journal, in groups of logging.logging_steps"),
    "logging_first_step": Always("every step is logged in the journal"),
    "logging_nan_inf_filter": Always("a NaN or infinite loss is shown unchanged"),
    "logging_dir": NotNeeded("the journal is in the run's folder"),
    "include_num_input_tokens_seen include_tokens_per_second": Always("tokens are counted in every step"),
    "deepspeed": Off("the DeepSpeed file was not found; set distributed.strategy = deepspeed-2 or deepspeed-3"),
    "fsdp": To("distributed.strategy", LAYER_BY_LAYER, convert=_strategy),
    f"{OFFLOADS} use_cpu_offload": To("distributed.cpu_offload", _ON_THE_HOST, values={False: rules.OFF}),
    RECOMPUTES: Off("must be true or false", Why.DOES_NOT_FIT),
    "fsdp_*": Automatic("each layer is split together with its gradients and optimizer state"),
    "local_rank ddp_*": NotNeeded("torchrun sets this for each process"),
    "project trackio_*": NOT_SENT,
    "push_to_hub hub_*": Off(NOT_SENT.reason),
    "debug": Off("there is no debug mode"),
    "tpu_*": NotNeeded("training runs on an NVIDIA GPU or a CPU"),
    "split_batches accelerator_config.split_batches": Refused("the batch size must be per device, not for all devices"),
    # Settings that only concern the library.
    "log_* include_*": OTHER_TOOL,
    """disable_tqdm label_names past_index skip_memory_metrics ignore_data_skip accelerator_config* parallelism_config
    restore_callback_states_from_checkpoint save_on_each_node batch_eval_metrics eval_do_concat_batches
    eval_use_gather_object enable_jit_checkpoint dispatch_batches ray_scope mp_parameters jit_mode_eval
    sharded_ddp xpu_backend""": OTHER_TOOL,
}

DEFAULTS = {
    "training.effective_batch_size": 8, "training.learning_rate": 5e-5, "training.lr_scheduler_type": "linear",
    "training.warmup_steps": 0,
}  # fmt: skip
MICRO_BATCH_KEYS = "per_device_train_batch_size per_gpu_train_batch_size"
BATCH = Keys(groups.convert_batch, MICRO_BATCH_KEYS, "gradient_accumulation_steps", micro_default=8)
PRECISION = Keys(groups.precision, "bf16", "fp16")
WARMUP = Keys(groups.warmup, "warmup_ratio", "warmup_steps")
TRACKERS = Keys(groups.trackers, "report_to")
DEEPSPEED = Keys(groups.deepspeed, "deepspeed")
FSDP = (Keys(_fsdp_offload, "fsdp"), Keys(_fsdp_checkpointing, RECOMPUTES))
BLOCKS = Keys(_blocks, "block_size")
SHARED_GROUPS = (
    Keys(groups.model_files, "tokenizer_name", "config_name", "tokenizer_name_or_path"),
    Keys(_adafactor, "adafactor", "optim"),
    Keys(groups.start_adapter, "adapter_path peft_path", model_keys="model_name_or_path model_name"),
    PRECISION,
    Keys(groups.schedule, "lr_scheduler_type", "lr_scheduler_kwargs"),
    WARMUP,
    TRACKERS,
    Keys(groups.convert_interval, "eval_strategy evaluation_strategy", "eval_steps", key="evaluation.eval_steps"),
    Keys(groups.convert_interval, "save_strategy", "save_steps", key="checkpoint.save_steps"),
)
GROUPS = (
    *SHARED_GROUPS,
    Keys(groups.switched, "use_neftune", "neftune_noise_alpha neftune_alpha"),
    Keys(groups.switched, "use_loraplus", "loraplus_lr_ratio lora_plus_lr_ratio loraplus_ratio"),
    Keys(groups.early_stopping, "early_stopping", "early_stopping_patience"),
    Keys(groups.best_weights, "load_best_model_at_end"),
    DEEPSPEED,
    *FSDP,
)

IMPORTER = Importer(
    name="transformers",
    title="Hugging Face TrainingArguments",
    rank=1,
    telltale="""train_file validation_file validation_split_percentage dataset_config_name max_source_length
    fp16_full_eval bf16_full_eval half_precision_backend logging_dir use_cpu no_cuda logging_nan_inf_filter
    prediction_loss_only eval_accumulation_steps log_level disable_tqdm train_sampling_strategy
    activation_checkpointing past_index skip_memory_metrics label_names""",
    tables=(ARGUMENTS, MODEL, LORA, FOUR_BITS, SCRIPT_DATA, {"max_seq_length": "data.max_length"}),
    groups=(
        BLOCKS, BATCH, *GROUPS, Keys(rope_table, "rope_scaling"),
        Keys(groups.method, "", "load_in_4bit", model_keys="model_name_or_path", default="full"),
    ),
    defaults=DEFAULTS,
)  # fmt: skip
