"""LLaMA-Factory's YAML.

Source: src/llamafactory/hparams/ of hiyouga/LLaMA-Factory at ff6d4d12e, and the names of its `v1` examples.
"""

from tui_trainer.importing.conversion import Conversion, Group, Importer
from tui_trainer.importing.groups import batch, method
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Same, To
from tui_trainer.importing.values import whole

_ONLY_SUPERVISED = NotSupported("models learn from texts and answers, not from preferences or rewards")
_STAGES = {"pt": "causal_lm", "sft": "chat"}
_KERNELS = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_NAMES_IN_ITS_LIST = "it is a name in its dataset_info.json"
_WEIGHTS = "data.weights says how often"
_OFF = NotNeeded("off")
_TRIED = NotNeeded("`tui-trainer generate RUN` tries a model")
# Not its zephyr, which has a system message of its own, nor its mistral, which has no space before [/INST]. Its alpaca
# and vicuna are these without the token that begins a text.
_TEMPLATES = hf.chat_template(
    alpaca="alpaca", chatml="chatml", gemma="gemma", llama3="llama3", phi="phi3", vicuna="vicuna"
)


def _usual_alpha(done: Conversion) -> None:
    """Without `lora_alpha` it takes twice the rank (hparams/finetuning_args.py)."""
    found = done.first("lora_rank")
    rank = whole(found[1]) if found else None
    if rank is not None and not done.has("lora_alpha"):
        done.write("tuning.lora_alpha", 2 * rank, reason="twice lora_rank: what it does where lora_alpha is not said")


def _neat_packing(done: Conversion) -> None:
    """It switches packing on, whatever `packing` says (hparams/data_args.py)."""
    if done.given.get("neat_packing") is True:
        names = [found[0] for name in ("packing", "neat_packing") if (found := done.first(name))]
        done.write("data.packing", True, *names, reason="documents in one row never see each other here")


IMPORTER = Importer(
    name="llama_factory",
    title="LLaMA-Factory",
    rank=7,
    telltale="""stage finetuning_type lora_rank lora_target cutoff_len template quantization_bit dataset_dir plot_loss
    flash_attn neat_packing train_on_prompt mask_history max_samples val_size model_class train_dataset peft_config""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA,
        {
            "lora_r lora_target_modules lora_modules_to_save": None,
            "model": "model.model_name_or_path",
            "model_class": Automatic("the model's own config.json says it"),
            "stage": To("task.type", values=_STAGES),
            "train_from_scratch": To("model.init", values={True: "scratch", False: "pretrained"}),
            "lora_rank peft_config.r": "tuning.r",
            "lora_target peft_config.target_modules": hf.LAYERS,
            "additional_target": hf.WHOLE_LAYERS,
            "create_new_adapter": Always("a new adapter is trained"),
            "peft_config.name": To("tuning.method", values={"lora": "lora"}),
            "peft_config.lora_alpha": "tuning.lora_alpha",
            "peft_config.lora_dropout": "tuning.lora_dropout",
            "quantization_bit": Off("weights in 4 bits are trained beside, not those in 8 or others"),
            "quantization_type": "quantization.bnb_4bit_quant_type",
            "double_quantization": "quantization.bnb_4bit_use_double_quant",
            "quantization_method": Automatic("bitsandbytes keeps weights in 4 bits"),
            "dataset": NotSupported(f"{_NAMES_IN_ITS_LIST}; give the file itself as data.path"),
            "eval_dataset": NotSupported(f"{_NAMES_IN_ITS_LIST}; give the file itself as data.eval_path"),
            "train_dataset": NotSupported("it is a list of data sets; give the file itself as data.path"),
            "mix_strategy": Same(
                ("concat",), "the rows of all sources are used", f"{_WEIGHTS} the rows of a source are used"
            ),
            "interleave_probs": Off(
                f"they are chances of the sources, whatever their rows; {_WEIGHTS} each row of one is used"
            ),
            "dataset_dir": NotNeeded("data.path says where the data is"),
            "media_dir": Off("models learn from texts"),
            "template": _TEMPLATES,
            "train_on_prompt": hf.LOSS_ON_ALL,
            "cutoff_len": "data.max_length",
            "max_samples": "data.max_rows",
            "val_size": "data.eval_fraction",
            "preprocessing_num_workers": "data.num_proc",
            "preprocessing_batch_size": Automatic("data is prepared in pieces of a fitting size"),
            "overwrite_cache tokenized_path": hf.CACHED,
            "streaming": hf.PREPARED,
            "packing": hf.PACKING,
            "neat_packing": To("data.packing", values={False: NotNeeded("packing says whether rows are packed")}),
            "mask_history": Off("task.loss_on says which answers are learnt"),
            "batching_strategy": Automatic("data.packing decides it"),
            "disable_shuffling": Off("rows come in a new order in each epoch"),
            "flash_attn": To("model.attn_implementation", values=_KERNELS),
            "disable_gradient_checkpointing": To(
                "training.gradient_checkpointing", "the other way round", values={True: False, False: True}
            ),
            "use_unsloth": To("model.provider", values={False: _OFF, True: "unsloth"}),
            "enable_liger_kernel": hf.LIGER,
            "kernel_config": hf.OWN_KERNELS,
            "pure_bf16": To("model.dtype", values={True: "bfloat16", False: _OFF}),
            "early_stopping_steps": "evaluation.early_stopping_patience",
            "plot_loss": Always("the loss is drawn while it falls"),
            "compute_accuracy": Off("the held-out loss is measured"),
            "sample_backend max_new_tokens infer_backend infer_dtype": _TRIED,
            "export_*": NotNeeded("it is about a finished model"),
            "freeze_*": Off("models learn whole or beside frozen weights"),
            "use_* *_config *_config.* kt_*": Off("there is no such part"),
            "dist_config cp_* ray_* *_parallel_size": Off(hf.SEVERAL_PROCESSES),
            "*_pixels video_* image_* audio_*": NotNeeded("models learn from texts"),
            "swanlab_*": hf.NOT_SENT,
            "pref_*": _ONLY_SUPERVISED,
        },
    ),
    groups=(
        batch((*hf.MICRO, "micro_batch_size"), micro_default=8, packing="packing neat_packing"),
        *hf.GROUPS,
        Group((), _usual_alpha),
        Group(("neat_packing",), _neat_packing),
        method(
            "finetuning_type", {"lora": "lora", "full": "full"},
            four_bit=("quantization_bit", "quant_config.quantization_bit"),
            model=("stage", "template", "cutoff_len", "dataset"), otherwise="lora",
        ),
    ),
    defaults={
        **hf.DEFAULTS, "training.gradient_checkpointing": True, "data.max_length": 2048, "data.packing": False,
        "data.eval_fraction": 0, "tuning.r": 8, "tuning.lora_alpha": 16,
    },
)  # fmt: skip
