"""LLaMA-Factory's YAML.

Source: src/llamafactory/hparams/ of hiyouga/LLaMA-Factory at ff6d4d12e, and the names of its `v1` examples.
"""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, Same, To, Together, Why
from tui_trainer.importing.conversion import Conversion
from tui_trainer.importing.fitting import whole

_ONLY_SUPERVISED = Left(Why.NOT_SUPPORTED, "models learn from texts and answers, not from preferences or rewards")
_OTHER_TRAINING = Left(Why.REFUSED, f"{_ONLY_SUPERVISED.reason}; nearest: sft (chat) and pt (causal_lm)")
_KERNELS = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_NAMES_IN_ITS_LIST = "it is a name in its dataset_info.json"


def _usual_alpha(done: Conversion) -> None:
    """Without `lora_alpha` it takes twice the rank (hparams/finetuning_args.py)."""
    found = done.first("lora_rank")
    rank = whole(found[1]) if found else None
    if rank is not None and not done.has("lora_alpha"):
        done.write("tuning.lora_alpha", 2 * rank, reason="twice lora_rank: what it does where lora_alpha is not said")


KIND = Kind(
    name="llama_factory",
    title="LLaMA-Factory",
    rank=7,
    telltale=frozenset(
        {
            "stage", "finetuning_type", "lora_rank", "lora_target", "cutoff_len", "template", "quantization_bit",
            "dataset_dir", "plot_loss", "flash_attn", "neat_packing", "train_on_prompt", "mask_history", "max_samples",
            "val_size", "model_class", "train_dataset", "peft_config",
        }
    ),
    rules={
        **trainer_names.RULES,
        **trainer_names.MODEL,
        **{name: trainer_names.LORA[name] for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")},
        "model": To("model.model_name_or_path"),
        "model_class": Left(Why.AUTOMATIC, "the model's own config.json says it"),
        "stage": To(
            "task.type",
            values={"pt": "causal_lm", "sft": "chat"},
            leave=dict.fromkeys(("rm", "ppo", "dpo", "kto"), _OTHER_TRAINING),
        ),
        "train_from_scratch": To("model.init", values={True: "scratch", False: "pretrained"}),
        "lora_rank": To("tuning.r"),
        "lora_target": To("tuning.target_modules", convert=trainer_names.module_names),
        "additional_target": To("tuning.modules_to_save", convert=trainer_names.module_names),
        "adapter_name_or_path": Off("a new adapter is trained; `tui-trainer resume RUN` goes on with one"),
        "create_new_adapter": Left(Why.ALWAYS, "a new adapter is trained"),
        "peft_config.name": To("tuning.method", values={"lora": "lora"}),
        "peft_config.r": To("tuning.r"),
        "peft_config.lora_alpha": To("tuning.lora_alpha"),
        "peft_config.lora_dropout": To("tuning.lora_dropout"),
        "peft_config.target_modules": To("tuning.target_modules", convert=trainer_names.module_names),
        "quantization_bit": Off("weights in 4 bits are trained beside, not those in 8 or others"),
        "quantization_type": To("quantization.bnb_4bit_quant_type"),
        "double_quantization": To("quantization.bnb_4bit_use_double_quant"),
        "quantization_method": Left(Why.AUTOMATIC, "bitsandbytes keeps weights in 4 bits"),
        "dataset": Left(Why.NOT_SUPPORTED, f"{_NAMES_IN_ITS_LIST}; give the file itself as data.path"),
        "eval_dataset": Left(Why.NOT_SUPPORTED, f"{_NAMES_IN_ITS_LIST}; give the file itself as data.eval_path"),
        "train_dataset": Left(Why.NOT_SUPPORTED, "it is a list of data sets; give the file itself as data.path"),
        "mix_strategy": Same(
            ("concat",), "the rows of all sources are used", "data.weights says how often the rows of a source are used"
        ),
        "interleave_probs": Off(
            "they are chances of the sources, whatever their rows; data.weights says how often each row of one is used"
        ),
        "dataset_dir": Left(Why.NOT_NEEDED, "data.path says where the data is"),
        "media_dir": Off("models learn from texts"),
        "template": To(
            "task.chat_template",
            values={"chatml": "chatml", "llama3": "llama3"},
            otherwise=Left(Why.AUTOMATIC, "the model's own chat template counts; task.chat_template names another"),
        ),
        "cutoff_len": To("data.max_length"),
        "max_samples": To("data.max_rows"),
        "val_size": To("data.eval_fraction"),
        "preprocessing_num_workers": To("data.num_proc"),
        "preprocessing_batch_size": Left(Why.AUTOMATIC, "data is prepared in pieces of a fitting size"),
        "overwrite_cache": trainer_names.CACHED,
        "tokenized_path": trainer_names.CACHED,
        "streaming": Off("data is prepared before the run"),
        "packing": To("data.packing", "documents in one row do not see each other here"),
        "neat_packing": To("data.packing", "documents in one row never see each other here"),
        "mask_history": Off("task.loss_on says which answers are learnt"),
        "batching_strategy": Left(Why.AUTOMATIC, "data.packing decides it"),
        "disable_shuffling": Off("rows come in a new order in each epoch"),
        "flash_attn": To("model.attn_implementation", values=_KERNELS),
        "disable_gradient_checkpointing": To(
            "training.gradient_checkpointing", values={True: False, False: True}, reason="the other way round"
        ),
        "use_unsloth": To(
            "model.provider", leave={False: Left(Why.NOT_NEEDED, "off"), True: trainer_names.NO_UNSLOTH}
        ),
        "enable_liger_kernel": trainer_names.OWN_KERNELS,
        "kernel_config": trainer_names.OWN_KERNELS,
        "pure_bf16": To("model.dtype", values={True: "bfloat16"}, leave={False: Left(Why.NOT_NEEDED, "off")}),
        "dist_config": Off(trainer_names.ONE_PROCESS),
        "early_stopping_steps": To("evaluation.early_stopping_patience"),
        "plot_loss": Left(Why.ALWAYS, "the loss is drawn while it falls"),
        "compute_accuracy": Off("the held-out loss is measured"),
        "sample_backend": Left(Why.NOT_NEEDED, "`tui-trainer generate RUN` tries a model"),
        "max_new_tokens": Left(Why.NOT_NEEDED, "`tui-trainer generate RUN` tries a model"),
        "infer_backend": Left(Why.NOT_NEEDED, "`tui-trainer generate RUN` tries a model"),
        "infer_dtype": Left(Why.NOT_NEEDED, "`tui-trainer generate RUN` tries a model"),
    },
    together=(
        *trainer_names.trainer_groups("micro_batch_size", packing="packing"),
        together.loss_on("train_on_prompt"),
        Together((), _usual_alpha),
        together.method(
            "finetuning_type",
            {"lora": "lora", "full": "full"},
            four_bit=("quantization_bit", "quant_config.quantization_bit"),
            lora=trainer_names.LORA_NAMES,
            model=("stage", "template", "cutoff_len", "dataset"),
            otherwise="lora",
        ),
    ),
    families={
        **trainer_names.FAMILIES,
        "export_*": Left(Why.NOT_NEEDED, "it is about a finished model"),
        "freeze_*": Off("models learn whole or beside frozen weights"),
        **dict.fromkeys(("use_*", "*_config", "*_config.*", "kt_*"), Off("there is no such part")),
        **dict.fromkeys(("cp_*", "ray_*", "*_parallel_size"), Off(trainer_names.ONE_PROCESS)),
        **dict.fromkeys(("*_pixels", "video_*", "image_*", "audio_*"), Left(Why.NOT_NEEDED, "models learn from texts")),
        "swanlab_*": Left(Why.NOT_NEEDED, "nothing is sent anywhere"),
        "pref_*": _ONLY_SUPERVISED,
    },
    defaults={
        **trainer_names.DEFAULTS,
        "training.gradient_checkpointing": True,
        "data.max_length": 2048,
        "data.packing": False,
        "data.eval_fraction": 0,
        "tuning.r": 8,
    },
)  # fmt: skip
