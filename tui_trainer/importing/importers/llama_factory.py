"""YAML of LLaMA-Factory. LLaMA-Factory v1 has a separate importer.

Source: src/llamafactory/hparams/ and src/llamafactory/data/template.py of hiyouga/LLaMA-Factory at ff6d4d12e."""

from pathlib import Path

from tui_trainer.files.hub_layout import HUB_PREFIX
from tui_trainer.importing import groups, preferences, rules
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.dataset_info import find_list, read_list
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Only, Refused, Same, To, Why
from tui_trainer.importing.tokens_and_positions import MEAN_ROWS, convert_tokens, rope_by_length
from tui_trainer.methods.preference_losses import PREFERENCE_LOSSES

STAGES = {"pt": "causal_lm", "sft": "chat", "dpo": "preference", "kto": "kto", "rm": "reward"}
# Losses of stage dpo that this program has under the same name. Source: train/dpo/trainer.py.
_PAIR_LOSSES = ("sigmoid", "ipo", "orpo", "simpo")
# Its class ValueHead is that of older versions of TRL.
_HEAD = "a linear head without a bias; LLaMA-Factory's head has a bias and a dropout of 0.1"
KERNELS = {"auto": "auto", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_LIST_NOT_FOUND = "the dataset_info.json that lists this data set was not found"
_OFF = NotNeeded("off")
TRIED = NotNeeded("try a model with `tui-trainer generate RUN`")
_OTHER_METHOD = NotNeeded("only used by a method that is not enabled")
OWN_ROWS = "each process computes whole layers on its own rows; distributed.strategy splits the weights"
# Templates that write the same text as ours for all rows, except that LLaMA-Factory's alpaca and vicuna have no begin
# token. Two others differ and are missing: zephyr has a system message, and mistral no space before [/INST].
_TEMPLATES = {
    "alpaca": "alpaca", "chatml": "chatml", "gemma": "gemma", "gemma3": "gemma", "llama3": "llama3", "phi": "phi3",
    "qwen3_nothink": "chatml", "smollm": "chatml", "vicuna": "vicuna", "yi": "chatml",
}  # fmt: skip
# Templates equal to a model's own. Without a system message, qwen2_vl writes "You are a helpful assistant." like
# Qwen2.5-VL, and qwen3_vl_nothink nothing, like Qwen3-VL-Instruct. qwen3_vl and qwen3_5 are refused: they would add an
# empty thought to answers without one. Source: data/template.py, extras/constants.py (ff6d4d1).
_MODEL_TEMPLATES = {
    "qwen": "Qwen2.5", "qwen2_vl": "Qwen2.5-VL", "qwen3": "Qwen3", "qwen3_vl_nothink": "Qwen3-VL", "phi4": "Phi-4",
}  # fmt: skip
_THINKS = "qwen3"
_SPECIAL_TOKENS = "add_special_tokens new_special_tokens"


PREFERENCE_KEYS: rules.Table = {
    """pref_loss pref_beta pref_ftx simpo_gamma dpo_label_smoothing kto_chosen_weight
    kto_rejected_weight""": _OTHER_METHOD,
    "pref_bco_weight": Refused("the loss of BCO is not supported"),
    "ld_alpha": Only((1,), "all tokens of an answer have the same weight"),
}


def _template(conversion: Conversion, template: Given, thinking: Given | None) -> None:
    if conversion.given.get("stage") == "pt":
        conversion.leave(Why.NOT_NEEDED, "plain texts need no chat template", template)
        return
    name, model = str(template.value), str(conversion.given.get("model_name_or_path"))
    thinking_note = "earlier turns have no empty thinking block here" if name == _THINKS else ""
    groups.write_template(conversion, "template", name, model, _TEMPLATES, _MODEL_TEMPLATES, thinking_note)
    if name == _THINKS and thinking:
        why = Why.ALWAYS if thinking.is_on else Why.REFUSED
        conversion.leave(why, "an empty thinking block before an answer is trained on here", thinking)


def _usual_alpha(conversion: Conversion, rank: Given, alpha: Given | None) -> None:
    """Write the tool's default of `lora_alpha`, twice the rank (hparams/finetuning_args.py)."""
    if (rank_number := rank.whole) is not None and not alpha:
        conversion.write("tuning.lora_alpha", 2 * rank_number, reason="twice lora_rank, LLaMA-Factory's default")


def _neat_packing(conversion: Conversion, switch: Given, packing: Given | None) -> None:
    """Convert `neat_packing`, which turns packing on whatever the value of `packing` is (hparams/data_args.py)."""
    if switch.is_on:
        reason = "packed documents never attend to each other here"
        conversion.write("data.packing", True, packing, switch, reason=reason)


def _pissa(conversion: Conversion, switch: Given, count: Given | None) -> None:
    """Convert PiSSA, by a full SVD (-1) or by a fast SVD with a number of iterations (default 16).

    Source: hparams/finetuning_args.py."""
    if switch.is_on:
        iterations = count.whole if count else 16
        init_name = "pissa" if iterations == -1 else f"pissa_niter_{iterations}"
        conversion.write("tuning.init_lora_weights", init_name, switch, count)


def _some_layers(
    conversion: Conversion, method: Given, count: Given | None, modules: Given | None, extra: Given | None
) -> None:
    """Convert the number of layers to train: the last ones (default 2), or the first if negative.

    Source: model/adapter.py of LLaMA-Factory."""
    if method.value != "freeze":
        return
    conversion.write("tuning.method", "full", method, reason="all weights of some layers")
    if layer_count := count.whole if count else 2:
        layers = f"{'last' if layer_count > 0 else 'first'} {abs(layer_count)}"
        conversion.write("tuning.trainable_layers", layers, count)
    else:
        conversion.leave(Why.DOES_NOT_FIT, "must be a whole number of layers, not 0", count)
    regex_hint = "to train other weights, set tuning.trainable_layers to a regular expression"
    why = Why.ALWAYS if modules and modules.value in ("all", ["all"]) else Why.REFUSED
    conversion.leave(why, f"a layer is always trained with all its modules; {regex_hint}", modules)
    conversion.leave(Why.REFUSED, f"only the weights of layers are trained; {regex_hint}", extra)


def _packing_of_texts(conversion: Conversion) -> None:
    """Write the tool's default for plain texts (stage pt), which is packing (hparams/data_args.py)."""
    if conversion.given.get("stage") == "pt" and not conversion.has("packing", "neat_packing"):
        conversion.write("data.packing", True, reason="the default for stage pt")


def _length(conversion: Conversion, length: Given) -> None:
    """Convert the row length, with a note on how LLaMA-Factory treats longer rows.

    Source: data/processor/pretrain.py, processor_utils.py."""
    reason = "longer rows are truncated, but LLaMA-Factory shortens each turn"
    if conversion.values.get("task.type") in preferences.TASKS:
        reason = f"{preferences.CUT_PROMPT}, but LLaMA-Factory shortens the prompt and the answer at their ends"
    if conversion.given.get("stage") == "pt":
        packs = conversion.values.get("data.packing") is True
        effect = "cuts all texts into blocks" if packs else "truncates it"
        reason = f"a longer text is split into several rows, but LLaMA-Factory {effect}"
    conversion.write("data.max_length", length.value, length, reason=reason)


def _learnt_turns(conversion: Conversion, only_last: Given, all_turns: Given | None) -> None:
    """Convert `mask_history`, which trains on the last turn only. LLaMA-Factory refuses it with `train_on_prompt`."""
    if only_last.is_on and not conversion.given.get("train_on_prompt"):
        reason = "the last turn of each conversation"
        conversion.write("task.loss_on", "completion", only_last, all_turns, reason=reason)


def _preferences(
    conversion: Conversion,
    stage: Given,
    reference: Given | None,
    desirable: Given | None,
    undesirable: Given | None,
    loss: Given | None,
    beta: Given | None,
    cross_entropy: Given | None,
    *other_keys: Given | None,
) -> None:
    """Convert the loss over answers that `stage` chooses, and its reference."""
    if stage.value == "rm":
        preferences.write_reward(conversion, stage, reason=_HEAD, has_dropout=True)
    elif stage.value == "kto":
        preferences.write_kto(conversion, stage, beta=beta, weights=(desirable, undesirable))
        if cross_entropy and not cross_entropy.is_off:
            conversion.leave(Why.REFUSED, "KTO has no cross entropy that is added to its loss", cross_entropy)
    elif stage.value == "dpo":
        write_preferences(conversion, stage, loss, beta, cross_entropy, *other_keys)
    loss_type = PREFERENCE_LOSSES.get(str(conversion.values.get("task.loss_type")))
    model = conversion.given.get("model_name_or_path")
    if stage.value != "kto" and not (loss_type and loss_type.has_reference):
        conversion.leave(Why.NOT_NEEDED, "this loss compares the model with no reference", reference)
    elif conversion.continues_adapter and model and not reference:
        conversion.write("task.reference", model, reason="LLaMA-Factory compares with the model without the adapter")


def write_preferences(
    conversion: Conversion,
    stage: Given | None,
    loss: Given | None,
    beta: Given | None,
    cross_entropy: Given | None,
    gamma: Given | None,
    smoothing: Given | None,
    *,
    has_dropout: bool = False,
) -> None:
    """Convert the keys of a loss over pairs of answers."""
    loss_type = str(loss.value) if loss else "sigmoid"
    if loss_type not in _PAIR_LOSSES:
        conversion.leave(Why.REFUSED, f"the supported losses are {', '.join(_PAIR_LOSSES)}", loss)
        return
    preferences.write_loss(conversion, loss_type, stage, loss, beta=beta, gamma=gamma, has_dropout=has_dropout)
    if cross_entropy and cross_entropy.number:
        # ORPO contains the cross entropy once.
        weight = cross_entropy.number + (loss_type == "orpo")
        reason = "a mean over the tokens of all chosen answers, but LLaMA-Factory takes the mean of each answer first"
        conversion.write("task.sft_weight", weight, cross_entropy, reason=reason)
    if smoothing and not smoothing.is_off:
        reason = "this is the smoothing of cDPO, which is not supported; nearest: task.loss_type = robust"
        conversion.leave(Why.REFUSED, reason, smoothing)


def _data(conversion: Conversion, given: Given, *, key: str) -> None:
    """Convert names of data sets in the tool's list of data sets, or on the Hub if dataset_dir is ONLINE."""
    names, folder = rules.listed_names(given.value), conversion.given.get("dataset_dir", "data")
    path = find_list(conversion.folder, folder) if isinstance(folder, str) else None
    if folder == "ONLINE" and names:
        conversion.write(key, groups.unwrap_single([f"{HUB_PREFIX}{name}" for name in names]), given)
    elif path and names:
        write_listed(conversion, given, key, path, names)


def write_listed(conversion: Conversion, given: Given, key: str, path: Path, names: list[str]) -> None:
    """Look up data sets by name in the tool's list at `path`, and write their paths to our setting `key`."""
    is_training = key == "data.path"
    try:
        task = STAGES.get(str(conversion.given.get("stage")), "chat")
        data_sets = read_list(path, names, task=conversion.values.get("task.type", task))
        settings = dict(data_sets[0].settings)
        if any(data_set.settings != settings for data_set in data_sets):
            reason = "the data sets differ in columns, splits or number of rows, so one run cannot use all of them"
            raise ValueError(reason)
    except ValueError as error:
        conversion.leave(Why.REFUSED, str(error), given)
        return
    if not is_training and set(settings) - {"data.split"}:
        reason = f"{', '.join(settings)} cannot differ for held-out data; set {key} to the file itself"
        conversion.leave(Why.NOT_SUPPORTED, reason, given)
        return
    paths = [data_set.path for data_set in data_sets]
    conversion.write(key, groups.unwrap_single(paths), given, reason=f"from {path.name}")
    are_on_hub = all(data_path.startswith(HUB_PREFIX) for data_path in paths)
    if not is_training and "data.split" not in settings and are_on_hub:
        conversion.write("data.eval_split", "train", given, reason="the split that LLaMA-Factory reads")
    for setting, value in settings.items():
        limit_key, reason = None, path.name
        if setting == "data.max_rows":
            reason = f"{path.name}; the first rows are used, but LLaMA-Factory takes random ones"
            limit_key = conversion.first_unread("max_samples")
            most_rows, list_rows = limit_key.whole if limit_key else None, rules.whole(value)
            limit_key, value = (limit_key, min(most_rows, list_rows)) if most_rows and list_rows else (None, value)
        conversion.write(setting if is_training else "data.eval_split", value, given, limit_key, reason=reason)


def _mixing(conversion: Conversion, strategy: Given, shares: Given | None) -> None:
    """Refuse random mixing of data sets, because not all rows of each would be used."""
    if strategy.value != "concat":
        reason = "random mixing is not supported; set data.weights to how often the rows of each data set are used"
        conversion.leave(Why.REFUSED, reason, strategy, shares)


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
            # Trained weights: hparams/finetuning_args.py.
            "stage": To("task.type", values=STAGES),
            "lora_rank": "tuning.r",
            "lora_target": hf.LAYERS,
            "additional_target": hf.WHOLE_LAYERS,
            "create_new_adapter": Always("a new adapter is trained if none is given"),
            """adapter_folder freeze_trainable_layers freeze_trainable_modules freeze_extra_modules module_dropout
            oft_rank oft_block_size oft_target loraplus_lr_embedding pissa_iter ppo_* reward_model_adapters
            reward_model_quantization_bit reward_model_type
            galore_* apollo_* badam_* asft_alpha eaft_alpha kt_* fp8_backend fp8_enable_fsdp_float8_all_gather""":
            _OTHER_METHOD,
            "pissa_init": Off("must be true or false", Why.DOES_NOT_FIT),
            "pissa_convert": Always("the adapter is saved as LoRA for the original weights"),
            **PREFERENCE_KEYS,
            "ref_model": "task.reference",
            "ref_model_adapters ref_model_quantization_bit": Refused("the reference is loaded like the model"),
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
            "hyper_parallel_cp_size *_parallel_size": Only((1,), hf.SEVERAL_PROCESSES, OWN_ROWS),
            "use_swanlab swanlab_*": hf.NOT_SENT,
            # The model: hparams/model_args.py.
            "train_from_scratch": To("model.init", values={True: "scratch", False: "pretrained"}),
            "use_fast_tokenizer": Same((True,), "the fast tokenizer is used", "{} here"),
            "split_special_tokens": Refused(
                "for plain texts, set this key in tokenizer_config.json; in chats, special tokens are always split in "
                "messages and never in the template"
            ),
            "init_special_tokens": Only(
                ("noise_init",), f"{MEAN_ROWS}, without noise", f"{MEAN_ROWS}, not from descriptions"
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
            "quantization_bit": Refused("training on quantised weights is only supported in 4 bits"),
            "quantization_type": "quantization.bnb_4bit_quant_type",
            "double_quantization": "quantization.bnb_4bit_use_double_quant",
            "quantization_method": Only(
                ("bnb", "bitsandbytes"), "4-bit weights use bitsandbytes", "4-bit weights need bitsandbytes"
            ),
            "quantization_device_map": hf.DEVICE,
            """image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels
            video_fps video_maxlen audio_sampling_rate""": NotNeeded("models are trained on text"),
            """offload_folder use_kv_cache infer_backend infer_dtype vllm_* sglang_* eval_num_beams
            predict_with_generate sortish_sampler generation_* do_sample temperature top_p top_k num_beams max_length
            max_new_tokens repetition_penalty length_penalty skip_special_tokens""": TRIED,
            "export_*": NotNeeded("only used after training"),
            "hf_hub_token ms_hub_token om_hub_token": NotNeeded("HF_TOKEN is read from the environment"),
            "print_param_status": hf.OTHER_TOOL,
            # The data: hparams/data_args.py.
            "dataset": NotSupported(f"{_LIST_NOT_FOUND}; set data.path to the file itself"),
            "eval_dataset": NotSupported(f"{_LIST_NOT_FOUND}; set data.eval_path to the file itself"),
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
            "ignore_pad_token_for_loss": Only((True,), "padding is excluded from the loss"),
            "packing": hf.PACKING,
            "neat_packing": To("data.packing", values={False: NotNeeded("set by packing")}),
            "max_samples": To("data.max_rows", "for each data set"),
            "val_size": "data.eval_fraction",
            "eval_on_each_dataset": Off("one loss is measured over all held-out rows"),
            "streaming": "data.streaming",
            "buffer_size": Automatic("rows are shuffled in each epoch"),
            "preprocessing_num_workers": "data.num_proc",
            "preprocessing_batch_size": Automatic("the size is chosen automatically"),
            """overwrite_cache data_shared_file_system tokenized_path""": hf.CACHED,
            # Its own arguments of training and of generation: hparams/training_args.py, generating_args.py.
            "enable_torch_profiler profiler_* profile_modules": Off("the journal records the time of each step"),
            "ray_* master_addr master_port": NotNeeded(hf.SEVERAL_PROCESSES),
        },
    ),
    groups=(
        Keys(_packing_of_texts), hf.BATCH,
        Keys(
            groups.start_adapter, "adapter_name_or_path", "adapter_folder", "create_new_adapter",
            model_keys="model_name_or_path",
        ),
        Keys(
            _preferences, "stage", "ref_model", "kto_chosen_weight", "kto_rejected_weight", "pref_loss", "pref_beta",
            "pref_ftx", "simpo_gamma", "dpo_label_smoothing",
        ),
        Keys(groups.schedule, "lr_scheduler_type", "lr_scheduler_kwargs", has_stable_default=True),
        *hf.GROUPS,
        Keys(rope_by_length, "rope_scaling"),
        Keys(convert_tokens, "add_tokens", *_SPECIAL_TOKENS.split(), special=_SPECIAL_TOKENS),
        Keys(_data, "dataset", key="data.path"), Keys(_data, "eval_dataset", key="data.eval_path"),
        Keys(groups.rows_held_out, "val_size"), Keys(_length, "cutoff_len"),
        Keys(_mixing, "mix_strategy", "interleave_probs"),
        Keys(_learnt_turns, "mask_history", "train_on_prompt"),
        Keys(_template, "template", "enable_thinking"),
        Keys(_usual_alpha, "lora_rank", "lora_alpha"),
        Keys(_neat_packing, "neat_packing", "packing"),
        Keys(_pissa, "pissa_init", "pissa_iter"),
        Keys(
            _some_layers, "finetuning_type", "freeze_trainable_layers", "freeze_trainable_modules",
            "freeze_extra_modules",
        ),
        Keys(
            groups.method, "finetuning_type", "quantization_bit", adapter_key="finetuning_type",
            methods={"lora": "lora", "full": "full"}, model_keys="stage template cutoff_len dataset", default="lora",
        ),
    ),
    defaults={
        **hf.DEFAULTS, "task.type": "chat", "training.gradient_checkpointing": True, "data.max_length": 2048,
        "data.packing": False, "data.eval_fraction": 0, "tuning.r": 8, "tuning.lora_alpha": 16,
    },
)  # fmt: skip
