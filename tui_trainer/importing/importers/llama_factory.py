"""LLaMA-Factory's YAML. That of its v1 has an importer of its own.

Source: src/llamafactory/hparams/ and src/llamafactory/data/template.py of hiyouga/LLaMA-Factory at ff6d4d12e.
"""

from pathlib import Path

from tui_trainer.config.fields import names_in
from tui_trainer.files.hub_layout import HUB_PREFIX
from tui_trainer.importing.conversion import (
    PHI4,
    QWEN2_5,
    QWEN2_5_VL,
    QWEN3,
    QWEN3_VL,
    Conversion,
    Importer,
    KeyGroup,
    write_template,
)
from tui_trainer.importing.dataset_info import find_list, read_list
from tui_trainer.importing.groups import batch, method, rows_held_out, schedule, start_adapter
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import (
    Always,
    Automatic,
    NotNeeded,
    NotSupported,
    Off,
    Refused,
    Same,
    To,
    Why,
    listed,
    whole,
)
from tui_trainer.importing.tokens_and_positions import rope_by_length, tokens

STAGES = {"pt": "causal_lm", "sft": "chat"}
KERNELS = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_NAMES_IN_ITS_LIST = "the dataset_info.json that lists this data set was not found"
_OFF = NotNeeded("off")
TRIED = NotNeeded("try a model with `tui-trainer generate RUN`")
_OF_ANOTHER = NotNeeded("only used by a method that is not enabled")
OWN_ROWS = "each process computes whole layers on its own rows; distributed.strategy splits the weights"
# The same text, whatever the rows are. Not its zephyr, which has a system message of its own, nor its mistral, which
# has no space before [/INST]. Its alpaca and vicuna are these without the token that begins a text.
_TEMPLATES = {
    "alpaca": "alpaca", "chatml": "chatml", "gemma": "gemma", "gemma3": "gemma", "llama3": "llama3", "phi": "phi3",
    "qwen3_nothink": "chatml", "smollm": "chatml", "vicuna": "vicuna", "yi": "chatml",
}  # fmt: skip
# Looked up in its data/template.py and extras/constants.py (ff6d4d1): qwen2_vl puts "You are a helpful assistant."
# where no system message is, as Qwen2.5-VL does, and qwen3_vl_nothink nothing, as Qwen3-VL-Instruct. Its qwen3_vl and
# qwen3_5 put an empty thought before answers that have none, and are refused.
_OWN_TEMPLATES = {
    "qwen": QWEN2_5, "qwen2_vl": QWEN2_5_VL, "qwen3": QWEN3, "qwen3_vl_nothink": QWEN3_VL, "phi4": PHI4,
}  # fmt: skip
_THINKS = "qwen3"


def _template(done: Conversion) -> None:
    found = done.first("template")
    if found and done.given.get("stage") == "pt":
        done.leave(Why.NOT_NEEDED, "plain texts need no chat template", "template")
    elif found:
        name, model = str(found[1]), str(done.given.get("model_name_or_path"))
        earlier = "earlier turns have no empty thinking block here" if name == _THINKS else ""
        write_template(done, "template", name, model, ours=_TEMPLATES, own=_OWN_TEMPLATES, reason=earlier)
        if name == _THINKS and done.first("enable_thinking"):
            why = Why.ALWAYS if done.given["enable_thinking"] is True else Why.REFUSED
            done.leave(why, "an empty thinking block before an answer is trained on here", "enable_thinking")


def _usual_alpha(done: Conversion) -> None:
    """Without `lora_alpha` it takes twice the rank (hparams/finetuning_args.py)."""
    found = done.first("lora_rank")
    rank = whole(found[1]) if found else None
    if rank is not None and not done.has("lora_alpha"):
        done.write("tuning.lora_alpha", 2 * rank, reason="twice lora_rank, LLaMA-Factory's default")


def _neat_packing(done: Conversion) -> None:
    """It switches packing on, whatever `packing` says (hparams/data_args.py)."""
    if done.given.get("neat_packing") is True:
        names = [found[0] for name in ("packing", "neat_packing") if (found := done.first(name))]
        done.write("data.packing", True, *names, reason="packed documents never attend to each other here")


def _pissa(done: Conversion) -> None:
    """By an SVD, or with so many iterations by a fast one; 16 where no number is said (hparams/finetuning_args.py)."""
    if done.given.get("pissa_init") is True:
        count = done.first("pissa_iter")
        number = whole(count[1]) if count else 16
        name = "pissa" if number == -1 else f"pissa_niter_{number}"
        done.write("tuning.init_lora_weights", name, "pissa_init", *([count[0]] if count else []))


_FROZEN = ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")


def _some_layers(done: Conversion) -> None:
    """All weights of the last layers, 2 where no number is said; below 0 of the first (model/adapter.py)."""
    named = done.first("finetuning_type")
    if not named or named[1] != "freeze":
        return
    done.write("tuning.method", "full", named[0], reason="all weights of some layers")
    count, modules, extra = (done.first(name) for name in _FROZEN)
    number = whole(count[1]) if count else 2
    if number:
        end = "last" if number > 0 else "first"
        done.write("tuning.trainable_layers", f"{end} {abs(number)}", *([count[0]] if count else []))
    elif count:
        done.leave(Why.DOES_NOT_FIT, "it must be a whole number of layers, not 0", count[0])
    if modules:
        why = Why.ALWAYS if modules[1] in ("all", ["all"]) else Why.REFUSED
        done.leave(why, f"all modules of a layer are trained; {_BY_NAME}", modules[0])
    if extra:
        done.leave(Why.REFUSED, f"only layers are trained; {_BY_NAME}", extra[0])


_BY_NAME = "to train other weights, set tuning.trainable_layers to a regular expression"


def _packing_of_texts(done: Conversion) -> None:
    """Texts fill whole rows unless `packing` says no (hparams/data_args.py)."""
    if done.given.get("stage") == "pt" and not done.has("packing", "neat_packing"):
        done.write("data.packing", True, reason="the default for stage pt")


def _length(done: Conversion) -> None:
    """What becomes of longer rows there: data/processor/pretrain.py and processor_utils.py."""
    if found := done.first("cutoff_len"):
        reason = "longer rows are truncated; LLaMA-Factory shortens each turn"
        if done.given.get("stage") == "pt":
            packs = done.values.get("data.packing") is True
            there = "cuts all texts into blocks" if packs else "truncates it"
            reason = f"a longer text is split into several rows; LLaMA-Factory {there}"
        done.write("data.max_length", found[1], found[0], reason=reason)


def _learnt_turns(done: Conversion) -> None:
    """`mask_history` learns the last turn, `train_on_prompt` all of them; it refuses both."""
    if done.given.get("mask_history") is True and not done.given.get("train_on_prompt"):
        names = [name for name in ("mask_history", "train_on_prompt") if done.first(name)]
        done.write("task.loss_on", "completion", *names, reason="the last turn of each conversation")


def _data(done: Conversion) -> None:
    """The names in its list of data sets; with dataset_dir ONLINE those of the hub."""
    for key, ours in (("dataset", "data.path"), ("eval_dataset", "data.eval_path")):
        found = done.first(key)
        if not found:
            continue
        names = [name for one in listed(found[1]) if isinstance(one, str) for name in names_in(one)]
        place = done.given.get("dataset_dir", "data")
        path = find_list(done.folder, place) if isinstance(place, str) else None
        if place == "ONLINE" and names:
            done.write(
                ours, [f"{HUB_PREFIX}{name}" for name in names] if len(names) > 1 else f"{HUB_PREFIX}{names[0]}", key
            )
        elif path and names:
            write_listed(done, key, ours, path, names)


def write_listed(done: Conversion, key: str, ours: str, path: Path, names: list[str]) -> None:
    """The data sets of these names in the list at `path`, which the file names as `key`."""
    trained = ours == "data.path"
    try:
        found = read_list(path, names, texts=done.given.get("stage") == "pt")
        settings = dict(found[0].settings)
        if any(one.settings != settings for one in found):
            raise ValueError(
                "the data sets differ in columns, splits or number of rows, but a run uses the same ones for all"
            )
        if not trained and set(settings) - {"data.split"}:
            done.leave(
                Why.NOT_SUPPORTED,
                f"evaluations use the {', '.join(settings)} of the training data; set {ours} to the file itself",
                key,
            )
            return
    except ValueError as error:
        done.leave(Why.REFUSED, str(error), key)
        return
    places = [one.place for one in found]
    done.write(ours, places if len(places) > 1 else places[0], key, reason=f"from {path.name}")
    if not trained and "data.split" not in settings and all(place.startswith(HUB_PREFIX) for place in places):
        done.write("data.eval_split", "train", key, reason="the split that LLaMA-Factory reads")
    for setting, value in settings.items():
        names_read, reason = [key], path.name
        if setting == "data.max_rows":
            reason = f"{path.name}; the first rows are used, but LLaMA-Factory takes random ones"
            limit = done.first("max_samples")
            if limit and whole(limit[1]) and whole(value):
                value, names_read = min(whole(limit[1]) or 0, whole(value) or 0), [key, "max_samples"]
        setting = setting if trained else "data.eval_split"
        done.write(setting, value, *names_read, reason=reason)


def _mixing(done: Conversion) -> None:
    """Sources that are drawn from by chance end at other rows than all of each."""
    found = done.first("mix_strategy")
    if found and found[1] != "concat":
        reason = "random mixing is not supported; set data.weights to how often the rows of each data set are used"
        done.leave(Why.REFUSED, reason, *(name for name in ("mix_strategy", "interleave_probs") if done.first(name)))


IMPORTER = Importer(
    name="llama_factory",
    title="LLaMA-Factory",
    rank=7,
    telltale="""stage finetuning_type lora_rank lora_target cutoff_len template quantization_bit dataset_dir plot_loss
    flash_attn neat_packing train_on_prompt mask_history max_samples val_size""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA,
        {
            "lora_r lora_target_modules lora_target_parameters lora_modules_to_save init_lora_weights": None,
            # What is trained: hparams/finetuning_args.py.
            "stage": To("task.type", values=STAGES),
            "lora_rank": "tuning.r",
            "lora_target": hf.LAYERS,
            "additional_target": hf.WHOLE_LAYERS,
            "create_new_adapter": Always("a new adapter is trained if none is given"),
            "adapter_folder": _OF_ANOTHER,
            "freeze_trainable_layers freeze_trainable_modules freeze_extra_modules": _OF_ANOTHER,
            "module_dropout oft_rank oft_block_size oft_target": _OF_ANOTHER,
            "loraplus_lr_embedding pissa_iter": _OF_ANOTHER,
            "pissa_init": Off("must be true or false", Why.DOES_NOT_FIT),
            "pissa_convert": Always("the adapter is saved as LoRA for the original weights"),
            "pref_* dpo_label_smoothing kto_* simpo_gamma ppo_* ref_model* ld_alpha": _OF_ANOTHER,
            "reward_model_adapters reward_model_quantization_bit reward_model_type": _OF_ANOTHER,
            "galore_* apollo_* badam_* asft_alpha eaft_alpha": _OF_ANOTHER,
            "disable_shuffling": Refused("rows are shuffled in each epoch"),
            "moe_aux_loss_coef": "training.router_aux_loss_coef",
            "use_muon": To("training.optim", values={True: "muon", False: _OFF}),
            "early_stopping_steps": "evaluation.early_stopping_patience",
            "pure_bf16": To("model.dtype", values={True: "bfloat16", False: _OFF}),
            "compute_accuracy": Off("evaluations measure the held-out loss instead"),
            "plot_loss": Always("the loss curve is always shown"),
            "use_mca use_megatron_bridge use_hyper_parallel": Off(hf.SEVERAL_PROCESSES),
            "hyper_parallel_args megatron_pretrained_checkpoint extra_config": Refused(
                "only used by a trainer that is not supported"
            ),
            "hyper_parallel_cp_size *_parallel_size": Same((1,), hf.SEVERAL_PROCESSES, OWN_ROWS, Why.REFUSED),
            "use_swanlab swanlab_*": hf.NOT_SENT,
            # The model: hparams/model_args.py.
            "train_from_scratch": To("model.init", values={True: "scratch", False: "pretrained"}),
            "use_fast_tokenizer": Same((True,), "the fast tokenizer is used", "the fast tokenizer is used here"),
            "split_special_tokens": Refused(
                "set this in tokenizer_config.json for plain texts; in chats, only the special tokens of the template "
                "stay whole"
            ),
            "init_special_tokens": Same(
                ("noise_init",), "new embedding rows start at the mean of the existing ones, without noise",
                "new embedding rows start at the mean of the existing ones, not from descriptions", Why.REFUSED,
            ),
            "resize_vocab": Automatic("embeddings grow when tokens are added"),
            "flash_attn": To("model.attn_implementation", values=KERNELS),
            "use_unsloth": To("model.provider", values={False: _OFF, True: "unsloth"}),
            "use_unsloth_gc use_reentrant_gc": Automatic("checkpointing is always non-reentrant"),
            "enable_liger_kernel": hf.LIGER,
            "use_v1_kernels": hf.OWN_KERNELS,
            "disable_gradient_checkpointing": To(
                "training.gradient_checkpointing", "inverted", values={True: False, False: True}
            ),
            "upcast_layernorm": Off("norms are computed in fp32 and stored in the dtype of the model"),
            "upcast_lmhead_output": Always("the loss is computed in fp32"),
            "use_kt": Refused("experts are trained on the GPU, as the model defines them"),
            "kt_*": _OF_ANOTHER,
            "quantization_bit": Refused("training on quantised weights is only supported in 4 bits"),
            "quantization_type": "quantization.bnb_4bit_quant_type",
            "double_quantization": "quantization.bnb_4bit_use_double_quant",
            "quantization_method": Same(
                ("bnb", "bitsandbytes"), "4-bit weights use bitsandbytes", "4-bit weights need bitsandbytes",
                Why.REFUSED,
            ),
            "quantization_device_map": hf.DEVICE,
            """image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels
            video_fps video_maxlen audio_sampling_rate""": NotNeeded("models are trained on text"),
            "offload_folder use_kv_cache infer_backend infer_dtype vllm_* sglang_*": TRIED,
            "export_*": NotNeeded("only used after training"),
            "hf_hub_token ms_hub_token om_hub_token": NotNeeded("HF_TOKEN is read from the environment"),
            "print_param_status": hf.OTHER_TOOL,
            # The data: hparams/data_args.py.
            "dataset": NotSupported(f"{_NAMES_IN_ITS_LIST}; set data.path to the file itself"),
            "eval_dataset": NotSupported(f"{_NAMES_IN_ITS_LIST}; set data.eval_path to the file itself"),
            "dataset_dir": NotNeeded("set by data.path"),
            "mix_strategy": Same(("concat",), "the rows of all sources are used"),
            "interleave_probs": NotNeeded("not used with this mix_strategy"),
            "template": Off("", Why.DOES_NOT_FIT),
            "default_system": Refused("only the system messages of the data are used"),
            "tool_format": Refused("the format of tools is set by task.chat_template"),
            "enable_thinking": NotNeeded("the template has no thinking blocks"),
            "preserve_thinking": Refused("the template decides which thinking blocks are kept"),
            "train_on_prompt": hf.LOSS_ON_ALL,
            "mask_history": Off("must be true or false, and not combined with train_on_prompt", Why.DOES_NOT_FIT),
            "ignore_pad_token_for_loss": Same((True,), *("padding is excluded from the loss",) * 2, Why.REFUSED),
            "packing": hf.PACKING,
            "neat_packing": To("data.packing", values={False: NotNeeded("set by packing")}),
            "max_samples": To("data.max_rows", "of each source"),
            "val_size": "data.eval_fraction",
            "eval_on_each_dataset": Off("one loss is measured over all held-out rows"),
            "eval_num_beams predict_with_generate sortish_sampler generation_*": TRIED,
            "streaming": "data.streaming",
            "buffer_size": Automatic("rows are shuffled in each epoch"),
            "preprocessing_num_workers": "data.num_proc",
            "preprocessing_batch_size": Automatic("the size is chosen automatically"),
            "overwrite_cache data_shared_file_system": hf.CACHED,
            "tokenized_path": hf.CACHED,
            # Its own arguments of training and of generation: hparams/training_args.py, generating_args.py.
            "fp8_backend fp8_enable_fsdp_float8_all_gather": _OF_ANOTHER,
            "enable_torch_profiler profiler_* profile_modules": Off("the journal records the time of each step"),
            "ray_* master_addr master_port": NotNeeded(hf.SEVERAL_PROCESSES),
            """do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty
            skip_special_tokens""": TRIED,
        },
    ),
    groups=(
        KeyGroup((), _packing_of_texts),
        batch(hf.MICRO, micro_default=8),
        start_adapter("adapter_name_or_path", "model_name_or_path", "adapter_folder", "create_new_adapter"),
        schedule("lr_scheduler_type", has_stable_default=True),
        *hf.GROUPS,
        KeyGroup(("rope_scaling",), rope_by_length),
        tokens("add_tokens", special=("add_special_tokens", "new_special_tokens")),
        KeyGroup(("dataset", "eval_dataset"), _data), rows_held_out("val_size"), KeyGroup(("cutoff_len",), _length),
        KeyGroup(("mix_strategy",), _mixing),
        KeyGroup(("mask_history",), _learnt_turns),
        KeyGroup(("template",), _template),
        KeyGroup((), _usual_alpha),
        KeyGroup(("neat_packing",), _neat_packing),
        KeyGroup(("pissa_init", "pissa_iter"), _pissa),
        KeyGroup(("finetuning_type", *_FROZEN), _some_layers),
        method(
            "finetuning_type", {"lora": "lora", "full": "full"}, four_bit=("quantization_bit",),
            model=("stage", "template", "cutoff_len", "dataset"), otherwise="lora",
        ),
    ),
    defaults={
        **hf.DEFAULTS, "task.type": "chat", "training.gradient_checkpointing": True, "data.max_length": 2048,
        "data.packing": False, "data.eval_fraction": 0, "tuning.r": 8, "tuning.lora_alpha": 16,
    },
)  # fmt: skip
