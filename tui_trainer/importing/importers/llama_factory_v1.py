"""YAML of LLaMA-Factory v1, which has arguments and defaults of its own.

v1 has the commands sft, dpo and rm. A file does not say which of them it is for: one with keys of preference losses is
converted as one for dpo, and any other as one for sft.
Source: src/llamafactory/v1/ of hiyouga/LLaMA-Factory at ff6d4d12e."""

from tui_trainer.importing import groups, rules
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.importers import llama_factory as v0
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Only, Refused, To
from tui_trainer.planning.processes import OFFLOAD, STRATEGY

_LISTS = (".yaml", ".yml")


def _data(conversion: Conversion, given: Given) -> None:
    """Convert the path of a list, all of whose data sets are used, or the name of one data set."""
    if not isinstance(name := given.value, str):
        return
    path = rules.file_near(conversion.folder, name)
    if path and path.suffix in _LISTS:
        v0.write_listed(conversion, given, "data.path", path, list(read_foreign(path)))
    elif path or not name.endswith(_LISTS):
        conversion.write("data.path", str(path or rules.data_path(name)), given)


def _preferences(conversion: Conversion, *keys: Given | None) -> None:
    """Convert the loss of the command dpo, if the file has one of its keys. Unlike v0, v1 keeps the dropout."""
    if any(keys):
        v0.write_preferences(conversion, None, *keys, has_dropout=True)


def _answers(conversion: Conversion) -> None:
    """Write the task that `llamafactory-cli sft` trains, because the command names it and not the file."""
    if conversion.has("model") and "task.type" not in conversion.values:
        reason = "read as an sft config; a conversation is one row here, but LLaMA-Factory makes one row per answer"
        conversion.write("task.type", "chat", reason=reason)


def _split(conversion: Conversion, name: Given, file: Given | None) -> None:
    path = conversion.file(file)
    if str(name.value).startswith("fsdp"):
        conversion.write(STRATEGY, "fsdp", name, reason=hf.LAYER_BY_LAYER)
    elif path and isinstance(zero_table := read_foreign(path).get("zero_optimization"), dict):
        groups.write_zero(conversion, name.name, zero_table.get("stage", 0), (), path.name)


def _four_bits(conversion: Conversion, name: Given, bits: Given | None, method: Given | None) -> None:
    """Write the method qlora for bitsandbytes without a number of bits, because its default is 4."""
    if name.value == "bnb" and not bits:
        conversion.write("tuning.method", "qlora", name, method, reason="4 bits by default")


IMPORTER = Importer(
    name="llama_factory_v1",
    title="LLaMA-Factory v1",
    rank=11,
    telltale="""model_class train_dataset peft_config.name kernel_config quant_config.name dist_config.name
    batching_strategy sample_backend""",
    tables=(
        {
            "model": "model.model_name_or_path",
            "trust_remote_code": "model.*",
            "flash_attn": To("model.attn_implementation", values=v0.KERNELS),
            "model_class": Only(("llm",), "the model generates text", "only models that generate text are supported"),
            "init_config": Automatic("weights are loaded straight onto the training device"),
            "kernel_config": hf.OWN_KERNELS,
            # Adapters and 4 bits: plugins/model_plugins/peft.py, quantization.py.
            "peft_config.r": "tuning.r",
            "peft_config.lora_alpha": "tuning.lora_alpha",
            "peft_config.lora_dropout": "tuning.lora_dropout",
            "peft_config.target_modules": hf.LAYERS,
            "peft_config.use_rslora": "tuning.use_rslora",
            "peft_config.use_dora": "tuning.use_dora",
            "peft_config.modules_to_save": hf.WHOLE_LAYERS,
            "peft_config.export_* peft_config.infer_dtype": NotNeeded("only used after training"),
            """peft_config.freeze_trainable_layers peft_config.freeze_trainable_modules
            peft_config.freeze_extra_modules peft_config.cast_trainable_params_to_fp32""": NotNeeded(
                "only used by a method that is not enabled"
            ),
            "quant_config.name": Only(("bnb", "auto"), "4-bit weights use bitsandbytes"),
            "quant_config.quantization_bit": Refused("training on quantised weights is only supported in 4 bits"),
            "quant_config.quantization_type": "quantization.bnb_4bit_quant_type",
            "quant_config.double_quantization": "quantization.bnb_4bit_use_double_quant",
            "quant_config.compute_dtype": To("quantization.bnb_4bit_compute_dtype", values=rules.DTYPES),
            # config/data_args.py, config/training_args.py.
            "train_dataset": NotSupported("this list of data sets was not found; set data.path to the data file"),
            "eval_dataset": NotSupported("LLaMA-Factory v1 ignores this key; set data.eval_path for held-out rows"),
            "output_dir": hf.ARGUMENTS["output_dir"],
            "cutoff_len": To("data.max_length", "longer rows are truncated"),
            "learning_rate num_train_epochs max_grad_norm seed": "training.*",
            "max_steps": To("training.max_steps", values={-1: hf.NO_STEP_LIMIT, 0: hf.NO_STEP_LIMIT}),
            "full_determinism": "training.deterministic",
            "batching_strategy": Only(
                ("normal", "padding_free"), "set by data.packing",
                "the batch size is a number of rows here, not of tokens",
            ),
            "batching_workers": hf.THREADS,
            "enable_activation_checkpointing": "training.gradient_checkpointing",
            "optim_config": Refused("optimizers with extra arguments are not supported; nearest: adamw_torch, muon"),
            "lr_scheduler_config": Refused("LLaMA-Factory v1 has no schedules; remove this key"),
            "save_steps save_total_limit": "checkpoint.*",
            "save_ckpt_as_hf": Always("weights are saved as safetensors"),
            "resume_from_checkpoint": hf.RESUMED,
            "logging_steps": "logging.*",
            **v0.PREFERENCE_KEYS,
            # Several devices.
            "dist_config.name": Off(f"models are split by fsdp2 or DeepSpeed; {hf.SEVERAL_PROCESSES}"),
            "dist_config.config_file dist_config.dcp_path": NotNeeded("only used with dist_config.name"),
            "dist_config.offload_params": To(OFFLOAD, values={False: rules.OFF}),
            "dist_config.mixed_precision": "training.mixed_precision",
            "dist_config.*": Off(hf.SEVERAL_PROCESSES),
            "cp_size": Only((1,), hf.SEVERAL_PROCESSES, v0.OWN_ROWS),
            "dp_size mp_replicate_size mp_shard_size cp_mode dist_timeout": NotNeeded(hf.SEVERAL_PROCESSES),
            # config/sample_args.py.
            "sample_backend max_new_tokens": v0.TRIED,
        },
    ),
    groups=(
        Keys(_preferences, "pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing"),
        Keys(groups.batch_of_all, "global_batch_size", "micro_batch_size"),
        Keys(groups.convert_batch, "micro_batch_size", micro_default=1),
        hf.PRECISION,
        Keys(groups.every_epochs, "save_epochs", "num_train_epochs", key="checkpoint.save_steps", epochs_default=3.0),
        Keys(_split, "dist_config.name", "dist_config.config_file"),
        Keys(_data, "train_dataset"), Keys(_answers), Keys(groups.template_text, "custom_chat_template"),
        Keys(groups.start_adapter, "peft_config.adapter_name_or_path", model_keys="model"),
        Keys(_four_bits, "quant_config.name", "quant_config.quantization_bit", "peft_config.name"),
        Keys(
            groups.method, "peft_config.name", "quant_config.quantization_bit", adapter_key="peft_config.name",
            methods={"lora": "lora"}, lora_keys="peft_config.r peft_config.lora_alpha peft_config.target_modules",
            model_keys="model", default="full",
        ),
    ),
    defaults={
        "training.effective_batch_size": 1, "training.learning_rate": 1e-4,
        "training.lr_scheduler_type": "constant", "training.warmup_steps": 0, "training.weight_decay": 0.01,
        "training.mixed_precision": "bf16", "training.gradient_checkpointing": True, "data.max_length": 2048,
        "data.packing": False, "data.eval_fraction": 0, "tuning.r": 8, "tuning.lora_alpha": 16,
        "tuning.lora_dropout": 0.05,
    },
)  # fmt: skip
