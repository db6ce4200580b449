"""Features of other tools that tui-trainer does not have.

A file that uses one of these features is refused, because without the feature it would be another run. If a feature is
added to tui-trainer, remove it here and add a row to the importers."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tui_trainer.importing.rules import is_off

_REWARDS = "models are not trained with rewards for answers that they generate"
_ARGUMENTS = "transformers trl training_script modelforge llama_factory axolotl"
# Plugins of axolotl that change only kernels or reporting.
_PLUGINS = "*liger*|*cut_cross_entropy*|*swanlab*|*lm_eval*|*lmeval*|*kernels*|*expert_parallel*"
_INITS = "eva|corda|loftq|orthogonal|lora_ga|mica|false"
_LOSSES = "!=cross_entropy|crossentropy|crossentropyloss|cross-entropy|ce|nll|mse|bce*"
# Templates of LLaMA-Factory and axolotl for models with images or sound. Qwen's are not listed: they work for text.
_SEEING = "[!q]*_vl|[!q]*_vl_*|*llava*|*_omni|*paligemma*|pixtral|mllama|minicpm_v|minicpm_o|*internvl*|intern_vl|*_vision|*_audio|glm4v|glm4_5v"  # noqa: E501

# For each reason (written after "cannot be used here: "), the keys of each importer that turn the feature on: `name`
# with any value that is not off, `name=a|b` with values of these patterns, and `name!=a|b` with all other values.
# `table.name` is a key in a table, or in the entries of a list `table`.
MISSING: Mapping[str, Mapping[str, str]] = {
    # The data.
    _REWARDS: {
        _ARGUMENTS: """reward_funcs reward_weights reward_model_path reward_model_name_or_path
        num_generations num_ppo_epochs num_sample_generations""",
        "trl": "reward_model scale_rewards kl_coef cliprange vf_coef missing_eos_penalty judge",
        "training_script modelforge llama_factory": "reward_model",
        "axolotl": "rl=grpo|gdpo|ebft process_reward_model num_labels!=1 nemo_gym_enabled",
        "llama_factory": "stage=ppo|grpo",
    },
    "models are trained on text, not on images, sound or video": {
        _ARGUMENTS: """image_column image_column_name image_folder image_processor_name vision_tower
        freeze_vision_tower freeze_vision_encoder finetune_vision_layers audio_column_name
        feature_extractor_name freeze_feature_encoder""",
        "axolotl": f"""processor_type processor_kwargs is_multimodal image_size image_resize_algorithm
        freeze_mm_modules role_boundaries chat_template={_SEEING}""",
        "llama_factory": f"""image_max_pixels!=589824 image_min_pixels!=1024 image_resolution image_dir media_dir
        video_max_pixels!=65536 video_min_pixels!=256 video_fps!=2|2.0 video_maxlen!=128
        audio_sampling_rate!=16000 use_audio_in_video freeze_multi_modal_projector
        freeze_language_model train_mm_proj_only template={_SEEING}""",
    },
    "the tokens to train on are set by task.loss_on, not by segments of the row": {
        "axolotl": "datasets.type=input_output",
    },
    "distillation from a teacher model is not supported": {
        _ARGUMENTS: """teacher_model teacher_model_path teacher_model_name teacher_model_name_or_path
        distillation_alpha distillation_temperature kd_alpha kd_trainer kd_temperature kd_ce_alpha""",
        "axolotl": "plugins=*.kd.*|*kdplugin* kd_online_server_base_url",
        "trl": "lmbda=* teacher_model_init_kwargs seq_kd",
    },
    "filling in masked tokens is not supported; nearest: causal_lm": {
        _ARGUMENTS: """mlm mlm_probability mlm_prob whole_word_mask noise_density mean_noise_span_length fim_rate
        fim_spm_rate""",
        "axolotl": "diffusion plugins=*diffusion*",
    },
    "'no answer' competes with the 20 best answers of a question, and no threshold can be set": {
        _ARGUMENTS: "null_score_diff_threshold n_best_size!=20",
    },
    # The loss.
    "the loss is always cross entropy": {
        "llama_factory": "use_dft_loss use_asft_loss use_eaft_loss",
        "axolotl": "use_dft use_asft use_eaft eaft dft liger_use_token_scaling",
        "trl": "loss_type=dft",
        "training_script": f"""use_focal_loss focal_loss focal_gamma loss{_LOSSES} loss_fn{_LOSSES}
        loss_type{_LOSSES} loss_function{_LOSSES} criterion{_LOSSES} rdrop_alpha""",
    },
    # Which weights are trained, and from where.
    "set the layers to train with tuning.trainable_layers": {
        _ARGUMENTS: """freeze_layers freeze_backbone freeze_base freeze_encoder freeze_embeddings freeze_embeds
        freeze_bottom_layers num_frozen_layers n_freeze freeze_first_n_layers unfreeze_layers""",
        "llama_factory": "use_llama_pro",
        "axolotl": "spectrum_top_fraction plugins=*spectrum*",
    },
    "training only some layers at a time (LISA, BAdam) is not supported": {
        _ARGUMENTS: "lisa_n_layers lisa_step_interval lisa_layers_attribute lisa_activated_layers use_lisa",
        "llama_factory": "use_badam",
    },
    "optimizers such as GaLore, APOLLO, LOMO and Adam-mini are not supported": {
        _ARGUMENTS.removesuffix(" axolotl"): "optim=*galore*|*apollo*|*lomo*|*badam*|*flora*",
        "llama_factory": "use_galore use_apollo use_adam_mini",
        "axolotl training_script": "optimizer=*galore*|*apollo*|*lomo*|*badam*|*flora* galore_*",
    },
    "adapters are initialised by tuning.init_lora_weights, without the data (no EVA, CorDA, LoftQ, LoRA-GA)": {
        "axolotl": f"peft_init_lora_weights={_INITS} peft.loftq_config loftq_config",
        "peft": f"init_lora_weights={_INITS} loftq_config eva_config corda_config lora_ga_config",
        "training_script transformers trl": f"init_lora_weights={_INITS} use_loftq loftq_config",
    },
    "adapters are merged only after training (no ReLoRA)": {
        _ARGUMENTS: "relora relora_steps relora_prune_ratio use_relora",
        "axolotl": "jagged_restart_steps",
    },
    "only plain adapters with one rank, one scale and no biases are supported": {
        "peft": """bias!=none lora_bias rank_pattern alpha_pattern exclude_modules trainable_token_indices
        use_qalora use_bdlora alora_invocation_tokens arrow_config
        velora_config monteclora_config kasa_config ensure_weight_tying""",
        "axolotl": """peft_trainable_token_indices
        lora_exclude_modules lora_rank_pattern lora_alpha_pattern peft_ensure_weight_tying mora""",
        "training_script transformers trl": "lora_bias=all|lora_only lora_exclude_modules",
    },
    "weights are trained in 16 or 32 bits (no FP8, no quantization-aware training)": {
        _ARGUMENTS: "qat use_qat quantization_aware_training", "llama_factory": "fp8",
        "axolotl": """quantize_during_training fp8 use_onebitllms model_quantization_config nvfp4_merge_aware
        nonexpert_quantization quantize_moe_experts llmcompressor plugins=*llm_compressor*|*llmcompressor*
        gemma4_fp8_nonexpert gemma4_nf4_nonexpert""",
    },
    # The model.
    "the architecture in config.json cannot be changed": {
        "llama_factory": "mixture_of_depths shift_attn",
        "axolotl": """overrides_of_model_kwargs s2_attention scaling_softmax fix_untrained_tokens
        use_pose peft_layer_replication""",
        "peft": "layer_replication",
        "training_script transformers trl": "config_overrides",
    },
    "set new tokens with model.add_tokens; existing tokens keep their text, id and embedding row": {
        "axolotl": "added_tokens_overrides shrink_embeddings tokenizer_use_mistral_common",
        "llama_factory": "new_special_tokens_config",
    },
    # Other features.
    "the effect of custom code is unknown": {
        "axolotl": f"plugins!={_PLUGINS} trainer_cls dense_mixer grokfast_alpha grokfast_lamb hatchery",
    },
}  # fmt: skip


def missing_names(tool: str) -> frozenset[str]:
    """Return the keys of a tool that turn on a missing feature whatever their value is, unless it means off."""
    return frozenset(name for name, condition, _, _ in _rows(tool) if not condition and "*" not in name)


def conditional_names(tool: str) -> frozenset[str]:
    """Return the keys of a tool that turn on a missing feature with only some of their values."""
    return frozenset(name for name, condition, _, _ in _rows(tool) if condition and not {"*", "."} & set(name))


def missing_reason(tool: str, name: str, value: Any) -> str:
    """Return why a file with this key and value is refused; empty if it is not refused."""
    for pattern, condition, values, reason in _rows(tool):
        table, _, inner = pattern.rpartition(".")
        if fnmatchcase(name, pattern):
            given_values = value if isinstance(value, list) else [value]
        elif name == table and isinstance(value, list):
            given_values = [entry[inner] for entry in value if isinstance(entry, dict) and inner in entry]
        else:
            continue
        texts = [str(text).lower() for text in given_values if text is not None]
        text_fits = (any(fnmatchcase(text, pattern) for pattern in values) for text in texts)
        if (condition == "=") in text_fits if condition else not is_off(value):
            return reason
    return ""


@cache
def _rows(tool: str) -> tuple[tuple[str, str, list[str], str], ...]:
    """Return (name, condition, values, reason) for each key of a tool that turns on a missing feature."""
    rows = []
    for reason, keys_by_tools in MISSING.items():
        key_words = [word for tools, keys in keys_by_tools.items() if tool in tools.split() for word in keys.split()]
        for name, operator, values in (word.partition("=") for word in key_words):
            rows.append((name.removesuffix("!"), "!=" if name.endswith("!") else operator, values.split("|"), reason))
    return tuple(rows)
