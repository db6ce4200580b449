"""LLaMA-Factory's YAML.

Source: src/llamafactory/hparams/ of hiyouga/LLaMA-Factory at ff6d4d12e, and the names of its `v1` examples.
"""

from pathlib import Path

from tui_trainer.config.fields import names_in
from tui_trainer.importing.conversion import Conversion, Group, Importer
from tui_trainer.importing.dataset_info import find_list, read_list
from tui_trainer.importing.groups import EFFECTIVE, OFFLOAD, STRATEGY, batch, method, write_zero
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Same, To, Why
from tui_trainer.importing.values import data_place, file_near, listed, whole

_ONLY_SUPERVISED = NotSupported("models learn from texts and answers, not from preferences or rewards")
_STAGES = {"pt": "causal_lm", "sft": "chat"}
_KERNELS = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_NAMES_IN_ITS_LIST = "it is a name in a dataset_info.json that is not near"
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


def _packing_of_texts(done: Conversion) -> None:
    """Texts fill whole rows unless `packing` says no (hparams/data_args.py)."""
    if done.given.get("stage") == "pt" and not done.has("packing", "neat_packing"):
        done.write("data.packing", True, reason="what it does with stage pt")


def _only_last_turns(done: Conversion) -> None:
    if done.given.get("mask_history") is True:
        done.write("task.loss_on", "completion", "mask_history", reason="the last turn of each conversation")


def _data(done: Conversion) -> None:
    """The names in its list of data sets; of v1 a list's file or a data set of the hub."""
    for key, ours in (("dataset", "data.path"), ("eval_dataset", "data.eval_path")):
        if found := done.first(key):
            names = [name for one in listed(found[1]) if isinstance(one, str) for name in names_in(one)]
            path = find_list(done.folder, str(done.given.get("dataset_dir") or "data"))
            if path and names:
                _write_data(done, key, ours, path, names)
    for key, ours in (("train_dataset", "data.path"), ("eval_dataset", "data.eval_path")):
        found = done.first(key)
        if not found or not isinstance(found[1], str) or not _is_v1(done):
            continue
        path = file_near(done.folder, found[1])
        if path and path.suffix in (".yaml", ".yml"):
            _write_data(done, key, ours, path, list(read_foreign(path)))
        elif path or not found[1].endswith((".yaml", ".yml")):
            done.write(ours, str(path or data_place(found[1])), key)


def _write_data(done: Conversion, key: str, ours: str, path: Path, names: list[str]) -> None:
    trained = ours == "data.path"
    try:
        found = read_list(path, names, texts=done.given.get("stage") == "pt")
        settings = dict(found[0].settings)
        if any(one.settings != settings for one in found):
            raise ValueError("its data sets differ in columns, splits or rows, and a run has one of each")
        if not trained and set(settings) - {"data.split"}:
            done.leave(Why.NOT_SUPPORTED, f"{', '.join(settings)} are those of data.path; give its file as {ours}", key)
            return
    except ValueError as error:
        done.leave(Why.REFUSED, str(error), key)
        return
    places = [one.place for one in found]
    done.write(ours, places if len(places) > 1 else places[0], key, reason=f"as {path.name} has it")
    for setting, value in settings.items():
        names_read, reason = [key], path.name
        if setting == "data.max_rows":
            reason = f"{path.name}; the first rows, where it takes random ones"
            limit = done.first("max_samples")
            if limit and whole(limit[1]) and whole(value):
                value, names_read = min(whole(limit[1]) or 0, whole(value) or 0), [key, "max_samples"]
        setting = setting if trained else "data.eval_split"
        done.write(setting, value, *names_read, reason=reason)


def _mixing(done: Conversion) -> None:
    """Sources that are drawn from by chance end at other rows than all of each."""
    found = done.first("mix_strategy")
    if found and found[1] != "concat":
        reason = f"its data sets are mixed by chance; {_WEIGHTS} the rows of a source are used here"
        done.leave(Why.REFUSED, reason, *(name for name in ("mix_strategy", "interleave_probs") if done.first(name)))


def _is_v1(done: Conversion) -> bool:
    is_v0 = done.has("model_name_or_path", "stage", "finetuning_type")
    return not is_v0 and done.has("model", "model_class", "train_dataset", "peft_config.name")


_LORA_V1 = ("peft_config.r", "peft_config.lora_alpha", "peft_config.target_modules")
_V0 = method(
    "finetuning_type", {"lora": "lora", "full": "full"}, four_bit=("quantization_bit",),
    model=("stage", "template", "cutoff_len", "dataset"), otherwise="lora",
)  # fmt: skip
_V1 = method(
    "peft_config.name", {"lora": "lora"}, four_bit=("quant_config.quantization_bit",), lora=_LORA_V1,
    model=("model",), otherwise="full",
)  # fmt: skip


def _method(done: Conversion) -> None:
    """v1 trains all weights where no `peft_config` is."""
    (_V1 if _is_v1(done) else _V0).read(done)


def _batch_of_all(done: Conversion) -> None:
    """v1's `global_batch_size` is that of all devices."""
    rows = done.first("global_batch_size")
    if rows and whole(rows[1]):
        done.write(EFFECTIVE, rows[1], rows[0])
        if done.first("micro_batch_size"):
            done.leave(Why.NOT_NEEDED, "global_batch_size says the rows behind a step", "micro_batch_size")


def _split(done: Conversion) -> None:
    found = done.first("dist_config.name")
    if not found:
        return
    file = done.first("dist_config.config_file")
    path = file_near(done.folder, str(file[1])) if file else None
    if str(found[1]).startswith("fsdp"):
        done.write(STRATEGY, "fsdp", found[0], reason=hf.LAYER_BY_LAYER)
    elif path and isinstance(zero := read_foreign(path).get("zero_optimization"), dict):
        write_zero(done, found[0], zero.get("stage", 0), (), path.name)


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
            "peft_config.lora_alpha": "tuning.lora_alpha",
            "peft_config.lora_dropout": "tuning.lora_dropout",
            "quantization_bit quant_config.quantization_bit": Off("weights in 4 bits are trained beside, no others"),
            "quantization_type quant_config.quantization_type": "quantization.bnb_4bit_quant_type",
            "double_quantization quant_config.double_quantization": "quantization.bnb_4bit_use_double_quant",
            "quantization_method quant_config.name": Automatic("bitsandbytes keeps weights in 4 bits"),
            "dataset": NotSupported(f"{_NAMES_IN_ITS_LIST}; give the file itself as data.path"),
            "eval_dataset": NotSupported(f"{_NAMES_IN_ITS_LIST}; give the file itself as data.eval_path"),
            "train_dataset": NotSupported("it is a list that is not near; give the file itself as data.path"),
            "mix_strategy": Same(("concat",), "the rows of all sources are used"),
            "interleave_probs": NotNeeded("mix_strategy says that the rows of all sources are used"),
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
            "streaming": "data.streaming",
            "packing": hf.PACKING,
            "neat_packing": To("data.packing", values={False: NotNeeded("packing says whether rows are packed")}),
            "mask_history": Off("must be true or false", Why.DOES_NOT_FIT),
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
            "global_batch_size": EFFECTIVE,
            "dist_config.name": Off(f"models are split by fsdp2 or DeepSpeed; {hf.SEVERAL_PROCESSES}"),
            "dist_config.config_file": NotNeeded("it goes with the name"),
            "dist_config.offload_params": To(OFFLOAD, values={False: NotNeeded("off in the file")}),
            "dist_config.mixed_precision": "training.mixed_precision",
            "dist_config.* cp_* ray_* *_parallel_size": Off(hf.SEVERAL_PROCESSES),
            "*_pixels video_* image_* audio_*": NotNeeded("models learn from texts"),
            "swanlab_*": hf.NOT_SENT,
            "pref_*": _ONLY_SUPERVISED,
        },
    ),
    groups=(
        Group((), _packing_of_texts),
        Group(("global_batch_size",), _batch_of_all),
        batch((*hf.MICRO, "micro_batch_size"), micro_default=8, packing="packing neat_packing"),
        *hf.GROUPS,
        Group(("dist_config.name",), _split),
        Group(("dataset", "eval_dataset", "train_dataset"), _data),
        Group(("mix_strategy",), _mixing),
        Group(("mask_history",), _only_last_turns),
        Group((), _usual_alpha),
        Group(("neat_packing",), _neat_packing),
        Group((*_V0.names, *_V1.names), _method),
    ),
    defaults={
        **hf.DEFAULTS, "training.gradient_checkpointing": True, "data.max_length": 2048, "data.packing": False,
        "data.eval_fraction": 0, "tuning.r": 8, "tuning.lora_alpha": 16,
    },
)  # fmt: skip
