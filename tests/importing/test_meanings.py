"""The meaning of other tools' keys: the settings that they become, and the reasons why some are left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.importing.checks import check, reasons
from tui_trainer.config.load import all_settings
from tui_trainer.errors import ConfigError
from tui_trainer.importing.imported import import_file
from tui_trainer.importing.rules import REFUSALS, Why

CONFIGS = Path(__file__).parent / "configs"
MODEL, METHOD, TASK, LENGTH = "model.model_name_or_path", "tuning.method", "task.type", "data.max_length"
BATCH, RATE, OPTIM = "training.effective_batch_size", "training.learning_rate", "training.optim"
LOSS, BETA, GAMMA, SFT_WEIGHT = "task.loss_type", "task.beta", "task.simpo_gamma", "task.sft_weight"
DESIRABLE, CENTERING, MARGINS = "task.desirable_weight", "task.center_rewards_coefficient", "data.label_column"
SCHEDULE, WARMUP, SAVE = "training.lr_scheduler_type", "training.warmup_steps", "checkpoint.save_steps"
ATTENTION, DTYPE, ROPE = "model.attn_implementation", "model.dtype", "model.rope_scaling"
WITH_SCRIPTS = ("transformers", "trl", "axolotl", "llama_factory", "modelforge", "training_script")
LORA, SFT = {"peft_type": "LORA", "r": 4}, {"stage": "sft", "finetuning_type": "lora"}
AXOLOTL = {"base_model": "a/b"}


# By file: settings, and why keys are left out.
FILES: dict[str, tuple[dict, dict]] = {
    "transformers_4.json": (
        {
            WARMUP: 0.1, "evaluation.eval_steps": 0.2,  # once in each of 5 epochs
            SAVE: 200, BATCH: 16, OPTIM: "adamw_torch_fused", "data.group_by_length": True, DTYPE: "bfloat16",
            "evaluation.metric_for_best_model": "loss", "evaluation.early_stopping_patience": 10**6,
        },
        {"logging_dir": Why.NOT_NEEDED, "max_steps": Why.NOT_NEEDED},
    ),
    "transformers_5.json": (
        {
            "training.gradient_checkpointing": True, "data.group_by_length": True, "evaluation.eval_steps": 0.25,
            SAVE: 0, "training.max_steps": 1000, "training.torch_compile_mode": "max-autotune-no-cudagraphs",
        },
        {"lr_scheduler_type": Why.DOES_NOT_FIT},
    ),
    "axolotl_qlora.yaml": (
        {
            METHOD: "qlora", BATCH: 8, "evaluation.eval_steps": 0.125,  # four times in each of 2 epochs
            SAVE: 0.5, "tuning.target_modules": "all-linear", "data.path": "./conversations.jsonl",
            "task.loss_on": "assistant", RATE: 2e-4,  # which YAML reads as a text
            ATTENTION: "flash_attention_2",
        },
        {"special_tokens": Why.NOT_NEEDED, "wandb_project": Why.NOT_NEEDED},
    ),
    "axolotl_full.yaml": (
        {
            METHOD: "full",  # there is no adapter
            BATCH: 64, TASK: "preference", "training.mixed_precision": None,  # both are on
            OPTIM: "muon", "data.path": "hub:org/texts",
        },
        {
            "fp16": Why.DOES_NOT_FIT, "bf16": Why.DOES_NOT_FIT, "datasets": Why.REFUSED,  # texts for rl: dpo
            "evals_per_epoch": Why.NOT_SUPPORTED,
        },
    ),
    "llama_factory.yaml": (
        {
            METHOD: "qlora", "tuning.lora_alpha": 16,  # twice the rank, which the file does not give
            "tuning.target_modules": "all-linear", "training.gradient_checkpointing": True,  # it is not disabled
            "task.loss_on": "all", "task.chat_template": "chatml", "evaluation.eval_steps": 500,
        },
        {"dataset": Why.NOT_SUPPORTED},
    ),
    "llama_factory_preferences.yaml": (
        {
            TASK: "preference", LOSS: "simpo", BETA: 0.2, GAMMA: 0.5, SFT_WEIGHT: 0.1, RATE: 5e-6, LENGTH: 2048,
            "tuning.lora_dropout": 0,  # LLaMA-Factory turns all dropout off for pairs
            "task.loss_on": None,
        },
        {"dataset": Why.NOT_SUPPORTED},
    ),
    "axolotl_dpo.yaml": (
        {
            TASK: "preference", LOSS: "sigmoid", BETA: 0.2, "data.path": "hub:org/preferences",
            "data.text_column": "conversation", "data.target_column": None, "task.chat_template": "llama3",
            "tuning.lora_dropout": 0, SFT_WEIGHT: None,
        },
        {},
    ),
    "axolotl_kto.yaml": (
        {
            TASK: "kto", BETA: 0.5, DESIRABLE: 0.2, METHOD: "qlora", "tuning.lora_dropout": 0,
            "task.chat_template": "llama3", "data.text_column": "prompt", MARGINS: None,
        },
        {},
    ),
    "trl_reward.yaml": (
        {
            TASK: "reward", RATE: 1e-4, LENGTH: 2048, "tuning.lora_dropout": 0, "tuning.modules_to_save": "score",
            CENTERING: None, MARGINS: None, BETA: None,
        },
        {},
    ),
    "axolotl_orpo.yaml": ({TASK: "preference", LOSS: "orpo", BETA: 0.05, SFT_WEIGHT: "auto", METHOD: "qlora"}, {}),
    "trl_dpo.yaml": (
        {
            TASK: "preference", LOSS: "sigmoid", BETA: 0.01, RATE: 5e-7, LENGTH: 1024, "task.loss_on": None,
            "data.path": "hub:org/preferences", "data.split": "train_prefs", "data.eval_split": "test_prefs",
            "task.label_smoothing": None,
        },
        {
            "label_smoothing": Why.NOT_NEEDED,  # TRL ignores it for this loss
            "precompute_ref_log_probs": Why.AUTOMATIC, "max_prompt_length": Why.AUTOMATIC,
            "truncation_mode": Why.AUTOMATIC,
        },
    ),
    "trl_simpo.yaml": (
        {TASK: "preference", LOSS: "simpo", BETA: 2, GAMMA: 1, SFT_WEIGHT: 0, RATE: 1e-6, "tuning.lora_dropout": 0}, {},
    ),
    "adapter_config.json": (
        {
            MODEL: "org/small-model", "model.revision": "v2", METHOD: "lora", "tuning.r": 8, "tuning.lora_alpha": 64,
            "tuning.target_modules": "query, value", "tuning.modules_to_save": "classifier", "tuning.use_dora": True,
        },
        {},
    ),
    "trl_sft.yaml": (
        {
            "model.revision": "abc", "task.loss_on": "assistant", "data.num_proc": 4,
            "evaluation.eval_steps": 0,  # YAML reads `no` as false
        },
        {},
    ),
    "trl_old.yaml": ({LENGTH: 512, "data.text_column": "body", "task.loss_on": "all", METHOD: "full"}, {}),
}  # fmt: skip


def test_whole_files_keep_their_meaning(subtests):
    for name, (settings, left_out) in FILES.items():
        with subtests.test(name):
            check(import_file(CONFIGS / name), settings, left_out)


# Kind ("" where the file is recognised), keys, settings, and why keys are left out.
KEYS: list[tuple[str, dict, dict, dict]] = [
    # What does not fit is left out, and its default is not taken from the other tool.
    ("trl", {"model_name_or_path": "a/b", "assistant_only_loss": True, "lr_scheduler_type": "cosine_with_min_lr"},
     {SCHEDULE: None, RATE: 2e-5}, {"lr_scheduler_type": Why.DOES_NOT_FIT}),
    ("trl", {"model_name_or_path": "a/b", "max_length": None}, {LENGTH: None}, {"max_length": Why.DOES_NOT_FIT}),
    ("trl", {"model_name_or_path": "a/b"}, {LENGTH: 1024}, {}),
    ("", {"warmup_ratio": 1, "seed": 3}, {"training.seed": 3, WARMUP: None}, {"warmup_ratio": Why.DOES_NOT_FIT}),
    ("", {"stage": "pt", "disable_gradient_checkpointing": 1}, {},
     {"disable_gradient_checkpointing": Why.DOES_NOT_FIT}),
    # Two keys for one setting.
    ("", {"torch_dtype": "float16", "dtype": "bfloat16"}, {DTYPE: "float16"}, {"dtype": Why.DOES_NOT_FIT}),
    ("axolotl", {"base_model": "m", "attn_implementation": "sdpa", "flash_attention": True}, {ATTENTION: "sdpa"},
     {"flash_attention": Why.DOES_NOT_FIT}),
    ("axolotl", {"base_model": "m", "attn_implementation": "sdpa", "flash_attention": False}, {ATTENTION: "sdpa"},
     {"flash_attention": Why.AUTOMATIC}),
    ("", {"warmup_ratio": 0.03, "warmup_steps": 0}, {WARMUP: 0.03}, {}),
    ("", {"warmup_ratio": 0.03, "warmup_steps": 100}, {WARMUP: 100}, {}),
    ("", {"warmup_steps": 100}, {WARMUP: 100}, {}),
    # Preferences.
    ("trl", {"model_name_or_path": "m", "beta": 0.3}, {TASK: "preference", LOSS: "sigmoid", BETA: 0.3, RATE: 1e-6}, {}),
    ("trl", {"model_name_or_path": "m", "loss_type": "nll"}, {TASK: None, LOSS: None, RATE: 2e-5}, {}),
    ("trl", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.2], "max_length": 9},
     {LOSS: "sigmoid", BETA: 0.1, SFT_WEIGHT: 0.2, LENGTH: 9}, {}),
    ("trl", {"loss_type": "ipo", "rpo_alpha": 0.5}, {LOSS: "ipo", SFT_WEIGHT: 0.5}, {}),
    ("trl", {"loss_type": "robust", "label_smoothing": 0.1}, {LOSS: "robust", "task.label_smoothing": 0.1}, {}),
    ("trl", {"loss_type": "robust"}, {LOSS: "sigmoid", "task.label_smoothing": None}, {}),
    ("trl", {"loss_type": "sigmoid_norm", "beta": 5}, {LOSS: "sigmoid_norm", BETA: 5}, {}),
    ("trl", {"cpo_alpha": 0.5, "use_peft": True, "disable_dropout": False},
     {LOSS: "cpo", BETA: 0.1, SFT_WEIGHT: 0.5, "tuning.lora_dropout": None}, {}),
    ("trl", {"loss_type": "simpo"}, {LOSS: "simpo", BETA: 0.1, GAMMA: 0.5, SFT_WEIGHT: 1}, {}),
    ("trl", {"simpo_gamma": 0.5, "completion_only_loss": True}, {LOSS: "cpo", GAMMA: None, "task.loss_on": None},
     {"simpo_gamma": Why.NOT_NEEDED, "completion_only_loss": Why.NOT_NEEDED}),
    *(("trl", given, {SFT_WEIGHT: None}, {key: Why.REFUSED}) for key, given in (
        ("loss_type", {"loss_type": "hinge"}), ("loss_type", {"loss_type": ["sigmoid", "ipo"]}),
        ("loss_weights", {"loss_type": ["sigmoid", "sft"], "loss_weights": [2.0, 1.0]}),
        ("loss_type", {"loss_type": "alphapo"}), ("label_smoothing", {"cpo_alpha": 1.0, "label_smoothing": 0.1}),
        ("sync_ref_model", {"beta": 0.1, "sync_ref_model": True}), ("ld_alpha", {"ld_alpha": 0.5}),
        ("use_weighting", {"beta": 0.1, "use_weighting": True}))),
    # Marked answers, and reward models.
    ("trl", {"model_name_or_path": "m", "desirable_weight": 1.2, "max_length": 9},
     {TASK: "kto", DESIRABLE: 1.2, "task.undesirable_weight": None, BETA: 0.1, RATE: 1e-6, LENGTH: 9, LOSS: None}, {}),
    ("trl", {"loss_type": "kto", "beta": 0.3, "use_peft": True},
     {TASK: "kto", BETA: 0.3, "tuning.lora_dropout": 0}, {}),
    ("trl", {"loss_type": "apo_zero_unpaired", "desirable_weight": 1.0}, {TASK: None}, {"loss_type": Why.REFUSED}),
    ("trl", {"model_name_or_path": "m", "center_rewards_coefficient": 0.01, "assistant_only_loss": False},
     {TASK: "reward", CENTERING: 0.01, RATE: 1e-4, BETA: None}, {"assistant_only_loss": Why.NOT_NEEDED}),
    ("trl", {"center_rewards_coefficient": 0.01, "loss_type": "sigmoid"}, {TASK: None}, {"loss_type": Why.REFUSED}),
    ("trl", {"loss_type": "kto", "train_sampling_strategy": "sequential"}, {TASK: "kto"},
     {"train_sampling_strategy": Why.AUTOMATIC}),
    ("llama_factory", {"stage": "kto", "kto_chosen_weight": 0.8, "pref_beta": 0.2},
     {TASK: "kto", DESIRABLE: 0.8, BETA: 0.2}, {}),
    ("llama_factory", {"stage": "kto", "pref_ftx": 0.1}, {}, {"pref_ftx": Why.REFUSED}),
    ("llama_factory", {"stage": "rm", "kto_chosen_weight": 0.8, "lora_dropout": 0.1},
     {TASK: "reward", BETA: None, DESIRABLE: None, MARGINS: "", "tuning.lora_dropout": 0.1},
     {"kto_chosen_weight": Why.NOT_NEEDED}),
    *(("llama_factory", {**given, "ref_model": "r"}, {"task.reference": None}, {"ref_model": Why.NOT_NEEDED})
      for given in ({"stage": "rm"}, {"stage": "dpo", "pref_loss": "orpo"})),
    ("axolotl", {"rl": "kto", "kto_undesirable_weight": 0.2, "rl_beta": 0.3,
                 "datasets": [{"path": "a.jsonl", "type": "llama3.intel"}]},
     {TASK: "kto", "task.undesirable_weight": 0.2, BETA: 0.3, "data.text_column": "question"}, {}),
    ("axolotl", {"rl": "kto", "datasets": [
        {"path": "a.jsonl", "type": "chatml.argilla_chat", "chat_template": "gemma"}]},
     {"task.chat_template": "chatml", "data.text_column": "completion"}, {}),
    ("axolotl", {"reward_model": True, "num_labels": 1, "center_rewards_coefficient": 0.01,
                 "datasets": [{"path": "a.jsonl", "type": "bradley_terry.chat_template"}]},
     {TASK: "reward", CENTERING: 0.01, MARGINS: "", "data.text_column": "input"}, {"num_labels": Why.NOT_NEEDED}),
    ("axolotl", {"reward_model": True, "datasets": [
        {"path": "a.jsonl", "type": "bradley_terry.chat_template", "field_chosen": "good"}]}, {},
     {"datasets": Why.REFUSED}),
    ("axolotl", {"reward_model": True, "datasets": [{"path": "a.jsonl", "type": "alpaca"}]}, {},
     {"datasets": Why.REFUSED}),
    ("llama_factory", {"stage": "dpo", "pref_loss": "orpo", "pref_ftx": 0.5, "mask_history": True},
     {LOSS: "orpo", BETA: 0.1, SFT_WEIGHT: 1.5, GAMMA: None, "task.loss_on": None}, {"mask_history": Why.NOT_NEEDED}),
    ("llama_factory", {"stage": "dpo", "simpo_gamma": 0.5}, {LOSS: "sigmoid"}, {"simpo_gamma": Why.NOT_NEEDED}),
    *(("llama_factory", {"stage": "dpo", **given}, {}, {key: Why.REFUSED}) for key, given in (
        ("pref_loss", {"pref_loss": "kto_pair"}), ("dpo_label_smoothing", {"dpo_label_smoothing": 0.1}),
        ("ref_model_adapters", {"ref_model": "org/m", "ref_model_adapters": "a"}),
        ("pref_bco_weight", {"pref_bco_weight": 1.0}), ("ld_alpha", {"ld_alpha": 0.5}))),
    *(("llama_factory", {"stage": "dpo", "model_name_or_path": "m", "adapter_name_or_path": "a", **given},
       {MODEL: "a", "task.reference": reference}, {}) for given, reference in (({}, "m"), ({"ref_model": "r"}, "r"))),
    ("llama_factory", {"stage": "dpo", "adapter_name_or_path": "a", "create_new_adapter": True},
     {MODEL: "a", LOSS: "sigmoid"}, {}),
    ("llama_factory_v1", {"model": "m", "pref_beta": 0.2, "peft_config": {"name": "lora", "lora_dropout": 0.05}},
     {TASK: "preference", LOSS: "sigmoid", BETA: 0.2, "tuning.lora_dropout": 0.05}, {}),
    ("axolotl", {**AXOLOTL, "rl": "dpo", "orpo_alpha": 0.3, "trl": {"beta": 0.2}}, {LOSS: "sigmoid", BETA: 0.2},
     {"orpo_alpha": Why.NOT_NEEDED}),
    ("axolotl", {**AXOLOTL, "rl": "dpo", "dpo_beta": 0.3, "dpo_loss_type": ["robust"], "dpo_label_smoothing": 0.1},
     {LOSS: "robust", BETA: 0.3, "task.label_smoothing": 0.1}, {}),
    ("axolotl", {**AXOLOTL, "rl": "ipo", "dpo_label_smoothing": 0.1}, {LOSS: "ipo", "task.label_smoothing": None},
     {"dpo_label_smoothing": Why.NOT_NEEDED}),
    ("axolotl", {**AXOLOTL, "rl": "simpo", "simpo_gamma": 1.5}, {LOSS: "simpo", BETA: 0.1, GAMMA: 1.5, SFT_WEIGHT: 1},
     {}),
    ("axolotl", {**AXOLOTL, "rl": "simpo", "cpo_alpha": 0, "rpo_alpha": 1}, {SFT_WEIGHT: 0},
     {"rpo_alpha": Why.NOT_NEEDED}),
    ("axolotl", {**AXOLOTL, "rl": "dpo", "lora_model_dir": "a"}, {MODEL: None}, {"lora_model_dir": Why.REFUSED}),
    *(("axolotl", {**AXOLOTL, "rl": "dpo", "datasets": [{"path": "a.jsonl", "type": name}]},
       {"task.chat_template": template, "data.text_column": column}, {})
      for name, template, column in (("chatml.intel", "chatml", "question"), ("llama3.argilla_chat", "llama3", None),
                                     ("llama3.icr", "llama3", "input"), ("chat_template.default", None, None))),
    ("axolotl", {**AXOLOTL, "rl": "dpo", "datasets": [
        {"path": "a.jsonl", "type": "chat_template.default", "field_chosen": "good", "field_rejected": "bad"}]},
     {"data.target_column": "good,bad"}, {}),
    *(("axolotl", {**AXOLOTL, "rl": "dpo", "datasets": [{"path": "a.jsonl", "type": name}]}, {},
       {"datasets": Why.REFUSED}) for name in ("zephyr.nectar", "passthrough", {"prompt_format": "{prompt}"})),
    # Packing of LLaMA-Factory.
    ("llama_factory", {"stage": "sft", "neat_packing": False, "packing": True}, {"data.packing": True},
     {"neat_packing": Why.NOT_NEEDED}),
    ("llama_factory", {"stage": "sft", "neat_packing": False, "packing": False}, {"data.packing": False},
     {"neat_packing": Why.NOT_NEEDED}),
    ("llama_factory", {"stage": "sft", "neat_packing": True}, {"data.packing": True}, {}),
    ("llama_factory", {"stage": "sft", "neat_packing": True, "packing": False}, {"data.packing": True}, {}),
    # Epochs as shares of all steps.
    ("", {"save_strategy": "epoch", "num_train_epochs": 1}, {SAVE: 0}, {}),
    ("", {"save_strategy": "epoch", "num_train_epochs": 4}, {SAVE: 0.25}, {}),
    ("", {"save_strategy": "epoch", "max_steps": 100}, {SAVE: None}, {"save_strategy": Why.NOT_SUPPORTED}),
    ("", {"training": {"save_every": 5}}, {SAVE: 0.2}, {}),  # of the recipe's 25 epochs
    ("", {"training": {"save_every": 5, "epochs": 10}}, {SAVE: 0.5}, {}),
    ("", {"training": {"save_every": 3, "num_epochs": 9}}, {SAVE: 0.333333}, {}),
    ("", {"training": {"save_every": 10, "epochs": 10}}, {SAVE: 0}, {}),
    ("", {"training": {"save_every": 0}}, {SAVE: 0}, {}),
    ("", {"training": {"save_every": "often", "batch_size": 4}}, {SAVE: None},
     {"training.save_every": Why.DOES_NOT_FIT}),
    # Batches.
    ("transformers", {"per_device_train_batch_size": "auto"},
     {"training.per_device_train_batch_size": "auto", BATCH: None}, {}),
    ("modelforge", {"gradient_accumulation_steps": 4}, {BATCH: 4}, {}),
    # Adapters.
    *(("llama_factory", {**SFT, "model_name_or_path": "m", **given},
       {"tuning.r": rank, "tuning.lora_alpha": alpha}, {})
      for given, rank, alpha in (({}, 8, 16), ({"lora_rank": 32}, 32, 64), ({"lora_alpha": 8}, 8, 8))),
    ("llama_factory_v1", {"quant_config": {"name": "bnb"}, "model": "m"}, {METHOD: "qlora"}, {}),
    ("llama_factory_v1", {"peft_config": {"name": "lora", "r": 8, "bias": "none"}, "model": "m"},
     {METHOD: "lora", "tuning.r": 8}, {"peft_config.bias": Why.UNKNOWN}),
    ("", {"peft_type": "LORA", "r": 8.0, "lora_alpha": "16", "lora_dropout": "5e-2"},
     {"tuning.r": 8, "tuning.lora_alpha": 16, "tuning.lora_dropout": 0.05}, {}),
    ("", {"base_model": "m", "adapter": None, "lora_r": 8}, {METHOD: "full"}, {}),
    ("axolotl", {"base_model": "m", "lora_r": 8}, {METHOD: "lora"}, {}),
    ("", {**LORA, "target_modules": r".*\.(q|v)_proj", "target_parameters": ["experts.up", "experts.down"]},
     {"tuning.target_modules": r".*\.(q|v)_proj", "tuning.target_parameters": "experts.up, experts.down"}, {}),
    ("", {**LORA, "target_modules": ["q_proj", ".*v_proj"]}, {}, {"target_modules": Why.DOES_NOT_FIT}),
    ("peft", {**LORA, "init_lora_weights": "pissa_niter_4"}, {"tuning.init_lora_weights": "pissa_niter_4"}, {}),
    ("peft", {**LORA, "init_lora_weights": True}, {"tuning.init_lora_weights": "default"}, {}),
    *(("axolotl", {"adapter": "lora", "peft_init_lora_weights": name}, {"tuning.init_lora_weights": name}, {})
      for name in ("olora", "gaussian")),
    ("training_script", {"init_lora_weights": "pissa"}, {"tuning.init_lora_weights": "pissa"}, {}),
    ("llama_factory", {**SFT, "pissa_init": True}, {"tuning.init_lora_weights": "pissa_niter_16"}, {}),
    ("llama_factory", {**SFT, "pissa_init": True, "pissa_iter": 4, "pissa_convert": True},
     {"tuning.init_lora_weights": "pissa_niter_4"}, {}),
    ("llama_factory", {**SFT, "pissa_init": True, "pissa_iter": -1}, {"tuning.init_lora_weights": "pissa"}, {}),
    ("training_script", {"use_pissa": True}, {"tuning.init_lora_weights": "pissa"}, {}),
    *((kind, {model: "org/m", name: "a"}, {MODEL: "a", METHOD: "lora"}, {model: Why.NOT_NEEDED})
      for kind, model, name in (("transformers", "model_name_or_path", "adapter_path"),
                                ("training_script", "model_name", "peft_path"))),
    # Frozen layers.
    *(("llama_factory", {"stage": "sft", "finetuning_type": "freeze", "freeze_trainable_layers": number,
                         "freeze_trainable_modules": "all"}, {METHOD: "full", "tuning.trainable_layers": layers}, {})
      for number, layers in ((3, "last 3"), (-2, "first 2"), (None, "last 2"))),
    ("training_script", {"unfreeze_last_n_layers": 2}, {"tuning.trainable_layers": "last 2"}, {}),
    ("axolotl", {"base_model": "m", "unfrozen_parameters": ["^model.embed_tokens.weight$[:32000]"]}, {},
     {"unfrozen_parameters": Why.DOES_NOT_FIT}),
    # Methods and providers.
    ("transformers", {"optim": "adafactor", "learning_rate": 1e-4, "per_device_train_batch_size": 4},
     {OPTIM: "adafactor", RATE: 1e-4}, {}),
    ("", {"stage": "sft", "finetuning_type": "full", "use_muon": True, "moe_aux_loss_coef": 0.02},
     {OPTIM: "muon", "training.router_aux_loss_coef": 0.02}, {}),
    *(("", {"model_name": "org/m", "use_4bit": four_bits, "task": "text-generation", **strategy}, {METHOD: method}, {})
      for strategy, four_bits, method in (({"strategy": "sft"}, False, "lora"), ({"strategy": "sft"}, True, "qlora"),
                                          ({"strategy": "qlora"}, True, "qlora"), ({}, False, "lora"))),
    ("modelforge", {"provider": "unsloth", "learning_rate": 1e-4}, {"model.provider": "unsloth"}, {}),
    ("llama_factory", {"use_unsloth": True, "learning_rate": 1e-4}, {"model.provider": "unsloth"}, {}),
    ("axolotl", {"base_model": "m", "tensor_parallel_size": 1}, {}, {"tensor_parallel_size": Why.ALWAYS}),
    *((kind, {**(SFT if kind == "llama_factory" else {}), "neftune_noise_alpha": 5, "loraplus_lr_ratio": 16.0},
       {"training.neftune_noise_alpha": 5, "tuning.loraplus_lr_ratio": 16}, {})
      for kind in ("transformers", "trl", "axolotl", "llama_factory")),
    ("training_script", {"use_neftune": True, "neftune_alpha": 5, "use_loraplus": False, "loraplus_ratio": 16},
     {"training.neftune_noise_alpha": 5, "tuning.loraplus_lr_ratio": None}, {"use_neftune": Why.NOT_NEEDED}),
    ("training_script", {"trainable_layers": 0, "unfreeze_last_n_layers": 0, "lora_plus_lr_ratio": 0,
                         "use_neftune": False, "learning_rate": 1e-4}, {"tuning.trainable_layers": None},
     {"trainable_layers": Why.NOT_NEEDED, "unfreeze_last_n_layers": Why.NOT_NEEDED,
      "lora_plus_lr_ratio": Why.NOT_NEEDED, "use_neftune": Why.NOT_NEEDED}),
    ("training_script", {"unfreeze_last_n_layers": 2, "max_steps": 9}, {"tuning.trainable_layers": "last 2"}, {}),
    ("training_script", {"unfreeze_last_n_layers": False, "max_steps": 9}, {"tuning.trainable_layers": None},
     {"unfreeze_last_n_layers": Why.DOES_NOT_FIT}),
    ("training_script", {"use_neftune": True, "lora_plus_lr_ratio": 16}, {"tuning.loraplus_lr_ratio": 16},
     {"use_neftune": Why.REFUSED}),
    # Tasks in each of their spellings.
    *(("", {**LORA, "task_type": name}, {TASK: task}, {}) for name, task in (
        ("SEQ_CLS", "sequence_classification"), ("TOKEN_CLS", "token_classification"), ("CAUSAL_LM", "causal_lm"),
        ("QUESTION_ANS", "question_answering"), ("SEQ_2_SEQ_LM", "seq2seq"))),
    *(("modelforge", {"task": name, "learning_rate": 1e-4}, {TASK: task}, {}) for name, task in (
        ("text-generation", "causal_lm"), ("Text Generation", "causal_lm"), ("TEXT_GENERATION", "causal_lm"),
        ("summarization", "seq2seq"), (" Summarisation ", "seq2seq"), ("question-answering", "question_answering"),
        ("extractive-question-answering", "question_answering"),
        ("Extractive Question Answering", "question_answering"))),
    # Longer positions.
    *((kind, {**given, "rope_scaling": rope}, {f"{ROPE}.rope_type": "yarn", f"{ROPE}.factor": 4}, {})
      for kind, given, rope in (
        ("axolotl", AXOLOTL, {"type": "yarn", "factor": 4.0}),
        ("transformers", {"learning_rate": 1e-4, "warmup_steps": 1}, {"rope_type": "yarn", "factor": 4}),
        ("trl", {"assistant_only_loss": True}, {"rope_type": "yarn", "factor": 4}))),
    ("axolotl", {**AXOLOTL, "rope_theta": 10000}, {f"{ROPE}.rope_theta": 10000}, {}),
    ("axolotl", {**AXOLOTL, "overrides_of_model_config": {"rope_scaling": {"rope_type": "yarn", "factor": 4}}},
     {f"{ROPE}.rope_type": "yarn", f"{ROPE}.factor": 4}, {}),
]  # fmt: skip


def test_keys_become_settings_or_are_left_out_with_a_reason(read, subtests):
    for kind, given, settings, left_out in KEYS:
        with subtests.test(f"{kind} {given}"):
            imported = read(given, kind)
            check(imported, settings, left_out)
            if not left_out:
                imported.refuse_other_runs()


NEW_TOKENS = [
    ("axolotl", {**AXOLOTL, "tokens": ["<|im_start|>", "a, b"]}, "<|im_start|>, a\\, b"),
    ("llama_factory", {"stage": "sft", "add_tokens": "gene, protein", "add_special_tokens": "<|cell|>",
                       "resize_vocab": True}, "gene, protein, <|cell|>"),
    ("training_script", {"model_name": "a/b", "lr": 1e-4, "new_tokens": ["gene"]}, "gene"),
    ("axolotl", {**AXOLOTL, "tokens": ["gene"],
                 "special_tokens": {"pad_token": "<pad>", "additional_special_tokens": ["<|cell|>"]}},
     "gene, <|cell|>"),
]  # fmt: skip
# Tokens and positions that mean something else here.
REFUSED_KEYS = [
    ("llama_factory", {"stage": "sft", "add_special_tokens": "gene"}, "add_special_tokens"),
    ("llama_factory", {"stage": "sft", "init_special_tokens": "desc_init"}, "init_special_tokens"),
    ("axolotl", {**AXOLOTL, "added_tokens_overrides": {9: "<|im_start|>"}}, "added_tokens_overrides"),
    ("axolotl", {**AXOLOTL, "tokens": [1, 2]}, "tokens"),
    ("axolotl", {**AXOLOTL, "special_tokens": {"bos_token": "<s>"}}, "special_tokens"),
    ("axolotl", {**AXOLOTL, "special_tokens": {"additional_special_tokens": ["gene"]}}, "special_tokens"),
    ("axolotl", {**AXOLOTL, "rope_scaling": {"type": "ntk", "factor": 2}}, "rope_scaling"),
    ("axolotl", {**AXOLOTL, "rope_scaling": {"type": "yarn", "alpha": 2}}, "rope_scaling"),
    ("axolotl", {**AXOLOTL, "model_config": {"attention_dropout": 0}}, "model_config"),
    ("llama_factory", {"stage": "sft", "rope_scaling": "dynamic"}, "rope_scaling"),
    ("llama_factory", {"stage": "sft", "rope_scaling": "yarn", "model_name_or_path": "no/where"}, "rope_scaling"),
]


def test_new_tokens_are_added_and_other_tokens_and_positions_refused(read, subtests):
    for kind, given, tokens in NEW_TOKENS:
        with subtests.test(f"{kind} {given}"):
            imported = read(given, kind)
            assert imported.values["model.add_tokens"] == tokens
            assert not set(reasons(imported).values()) & set(REFUSALS)
    for kind, given, key in REFUSED_KEYS:
        with subtests.test(f"{kind} {given}"):
            assert reasons(read(given, kind))[key] in REFUSALS


def test_other_trackers_are_left_out(read, subtests):
    key = "logging.report_to"
    for kind in WITH_SCRIPTS:
        with subtests.test(kind):
            assert read({"report_to": ["tensorboard", "mlflow"]}, kind).values[key] == "tensorboard, mlflow"
            some = read({"report_to": ["comet_ml", "wandb"]}, kind)
            assert some.values[key] == "wandb"
            assert any("not supported: comet_ml; available trackers:" in line for line in some.report)
            for value, reason in {"azure_ml": Why.NOT_SUPPORTED, "none": Why.NOT_NEEDED, "all": Why.NOT_NEEDED}.items():
                check(read({"report_to": value}, kind), {key: None}, {"report_to": reason})


def test_the_effective_batch_is_the_product_of_its_parts(read, subtests):
    for given, effective, reason in (
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, 16, "one device"),
        ({"per_device_train_batch_size": 6}, 6, "--processes N multiplies it"),
        ({"gradient_accumulation_steps": 4}, 32, "micro-batch 8 x accumulation 4, with the default of"),
    ):
        with subtests.test(given=given):
            [rewrite] = read(given, "transformers").rewrites
            assert (rewrite.key, rewrite.value) == (BATCH, effective)
            assert reason in rewrite.reason
    assert read({"model_name_or_path": "org/m"}, "trl", devices=4).values[BATCH] == 32
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "packing": True}
    assert any("the batch size is a number of documents" in rewrite.reason for rewrite in read(given, "trl").rewrites)


def test_values_that_do_not_fit_are_refused_with_the_range(read, tmp_path):
    imported = read({"lora_r": 100_000, "lora_alpha": 16, "use_peft": True, "learning_rate": "fast"})
    assert imported.values == {"tuning.lora_alpha": 16, METHOD: "lora"}
    with pytest.raises(ConfigError) as error:
        imported.refuse_other_runs()
    first, second = map(str, error.value.problems)
    where, expected = tmp_path / "foreign.json", all_settings()["tuning.r"].expected_words
    assert first == f"{where}: lora_r: 100000 cannot be imported: tuning.r must be {expected}"
    assert f"{where}: learning_rate: fast cannot be imported: training.learning_rate must be" in second
    assert "--without lora_r,learning_rate imports the rest" in second
    with pytest.raises(ConfigError, match="max_length: null cannot be imported: with null, TRL truncates no rows"):
        read({"model_name_or_path": "a/b", "max_length": None}, "trl").refuse_other_runs()


def test_tensor_parallelism_is_refused_with_a_reason(read):
    [left] = read({"base_model": "m", "tensor_parallel_size": 2}, "axolotl").left_out
    assert (left.key, left.why) == ("tensor_parallel_size", Why.REFUSED) and "whole layers" in left.reason


def test_a_misspelt_key_is_left_out_with_the_nearest_one(read):
    [left] = read({"learning_rat": 1e-4, "seed": 1, "num_train_epochs": 1}).left_out
    assert (left.why, left.reason) == (Why.UNKNOWN, "did you mean learning_rate?")


def test_an_ambiguous_file_is_refused(read):
    with pytest.raises(ConfigError) as error:
        read({"gradient_accumulation_steps": 4})
    assert "different results: transformers" in str(error.value)
    assert "--as: transformers, trl, peft" in str(error.value)


def test_a_whole_file_brings_the_defaults_of_its_tool(read):
    whole = read({"model_name_or_path": "org/m", "learning_rate": 1e-4}, "transformers")
    check(whole, {SCHEDULE: "linear", RATE: 1e-4})
    assert 'not in the file -> training.lr_scheduler_type = "linear" (the default of transformers)' in whole.report
    assert 'lr_scheduler_type = "linear"  # not in the file: the default of transformers' in whole.toml
    assert read({"learning_rate": 1e-4}, "transformers").values == {RATE: 1e-4}


def test_without_leaves_out_keys(read):
    given = {"learning_rate": 1e-4, "optim_args": "a=5", "runs": 3}
    imported = read(given, "trl", excluded_keys=["runs", "optim_args"])
    imported.refuse_other_runs()
    assert imported.values == {RATE: 1e-4}
    assert reasons(imported) == {"runs": Why.AS_ASKED, "optim_args": Why.AS_ASKED}
    with pytest.raises(ConfigError, match="--without: the file has no key 'seed'; available: learning_rate"):
        read(given, "trl", excluded_keys=["seed"])


def test_patterns_of_axolotl_become_one_pattern(read):
    patterns = ["^lm_head.weight$", "model.layers.3[01].mlp", "layers.5", "model.norm.+"]
    found = read({"base_model": "org/m", "unfrozen_parameters": patterns}, "axolotl").values["tuning.trainable_layers"]
    names = ["lm_head.weight", "model.layers.30.mlp.up_proj.weight", "model.layers.5.mlp.up_proj.weight",
             "modelxlayers.31.mlp", "model.norm.weight", "model.layers.32.mlp"]  # fmt: skip
    assert [name for name in names if re.search(found, name)] == [names[0], names[1], names[4]]


FLOOR, DECAY = {"lr_scheduler_type": "cosine_with_min_lr"}, {"lr_scheduler_type": "warmup_stable_decay"}
SCHEDULES = [
    ("transformers", {**FLOOR, "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}, "cosine", {"min_lr_rate": 0.1}),
    ("trl", {**FLOOR, "lr_scheduler_kwargs": '{"min_lr_rate": 0.1, "num_cycles": 0.5}'}, "cosine",
     {"min_lr_rate": 0.1}),
    ("transformers", {**FLOOR, "learning_rate": "2e-4", "lr_scheduler_kwargs": {"min_lr": 5e-5}}, "cosine",
     {"min_lr_rate": 0.25, "learning_rate": 2e-4}),
    ("modelforge", {**DECAY, "lr_scheduler_kwargs": {"num_decay_steps": 20}}, "warmup_stable_decay",
     {"num_decay_steps": 20}),
    ("transformers", {**DECAY, "lr_scheduler_kwargs": {
        "num_decay_steps": 20, "decay_type": "1-sqrt", "min_lr_ratio": 0.1, "warmup_type": "linear"}},
     "warmup_stable_decay", {"num_decay_steps": 20, "decay_type": "1-sqrt", "min_lr_rate": 0.1}),
    ("llama_factory", {**DECAY, "max_steps": 100, "warmup_steps": 10,
                       "lr_scheduler_kwargs": {"num_stable_steps": 70, "num_decay_steps": 20}},
     "warmup_stable_decay", {"num_decay_steps": 20, "max_steps": 100, "warmup_steps": 10}),
    ("axolotl", {"lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}, "cosine", {"min_lr_rate": 0.1}),
    ("axolotl", {"cosine_min_lr_ratio": 0.1}, None, {"min_lr_rate": 0.1}),
    ("axolotl", {"lr_scheduler": "linear", "cosine_min_lr_ratio": 0.1}, "linear", {}),
    ("axolotl", {"lr_scheduler": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.2}}, "cosine",
     {"min_lr_rate": 0.2}),
    ("training_script", {"scheduler": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 20}},
     "warmup_stable_decay", {"num_decay_steps": 20}),
]  # fmt: skip


def test_schedules_are_imported_with_their_arguments(read, subtests):
    for kind, given, schedule, arguments in SCHEDULES:
        with subtests.test(f"{kind} {given}"):
            imported = read(given, kind)
            expected = {f"training.{key}": value for key, value in arguments.items()}
            expected |= {SCHEDULE: schedule} if schedule else {}
            assert {rewrite.key: rewrite.value for rewrite in imported.rewrites if rewrite.sources} == expected
            assert not set(reasons(imported).values()) & set(REFUSALS)


# All but one are files of transformers.
WRONG_ARGUMENTS = [
    ({**FLOOR}, None, "must contain min_lr_rate or min_lr, not both"),
    ({**FLOOR}, {"min_lr_rate": 0.1, "min_lr": 1e-5}, "not both"),
    ({**FLOOR}, {"min_lr": 1e-5}, "min_lr becomes a share of learning_rate"),
    ({**FLOOR}, {"min_lr_rate": 0.1, "num_cycles": 2}, "num_cycles; supported values: num_cycles = 0.5"),
    ({**FLOOR}, {"min_lr_rate": 1.5}, "training.min_lr_rate must be"),
    ({**FLOOR}, [0.1], "lr_scheduler_kwargs must be a table"),
    ({**FLOOR}, "min_lr_rate", "lr_scheduler_kwargs must be a table"),
    ({**DECAY}, None, "must contain num_decay_steps, a whole number"),
    ({**DECAY}, {"num_decay_steps": 0.1}, "a whole number"),
    ({**DECAY}, {"num_decay_steps": 9, "decay_type": "log"}, "training.decay_type must be"),
    ({**DECAY}, {"num_decay_steps": 9, "warmup_type": "cosine"}, "0.5, warmup_type = linear"),
    ({**DECAY, "max_steps": 90}, {"num_decay_steps": 9, "num_stable_steps": 9}, "must add up to max_steps"),
    ({**DECAY, "max_steps": 18, "warmup_steps": 0, "warmup_ratio": 0.1}, {"num_decay_steps": 9, "num_stable_steps": 9},
     "must add up to max_steps"),
    ({**DECAY, "stage": "sft"}, {"num_decay_steps": 9}, "default: a third"),
    ({"lr_scheduler_type": "cosine"}, {"min_lr_rate": 0.1}, "only the schedules cosine_with_min_lr and"),
]  # fmt: skip


def test_schedules_with_other_arguments_are_refused(read, subtests):
    for given, arguments, reason in WRONG_ARGUMENTS:
        with subtests.test(f"{given} {arguments}"):
            given = given if arguments is None else {**given, "lr_scheduler_kwargs": arguments}
            imported = read(given, "llama_factory" if "stage" in given else "transformers")
            with pytest.raises(ConfigError, match=re.escape(reason)):
                imported.refuse_other_runs()


TEMPLATES_WITH_TOWERS = [
    ("llama_factory", "qwen2_vl", "Qwen/Qwen2.5-VL-7B-Instruct", Why.ALWAYS),
    ("llama_factory", "qwen3_vl_nothink", "Qwen/Qwen3-VL-4B-Instruct", Why.ALWAYS),
    ("llama_factory", "qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct", Why.REFUSED),
    ("llama_factory", "qwen3_vl", "Qwen/Qwen3-VL-4B-Thinking", Why.REFUSED),
    ("llama_factory", "qwen3_5", "Qwen/Qwen3.5-4B", Why.REFUSED),
    ("llama_factory", "kimi_vl", "moonshotai/Kimi-VL-A3B-Instruct", Why.REFUSED),
    ("axolotl", "qwen2_vl", "Qwen/Qwen2.5-VL-7B-Instruct", Why.ALWAYS),
    ("axolotl", "qwen2_vl", "Qwen/Qwen3-VL-4B-Instruct", Why.REFUSED),
    ("axolotl", "qwen3_5", "Qwen/Qwen3.5-4B", Why.REFUSED),
]


def test_only_the_own_template_of_a_model_with_towers_is_imported(read, subtests):
    for kind, template, model, reason in TEMPLATES_WITH_TOWERS:
        with subtests.test(f"{kind} {template} {model}"):
            given, key = {**SFT, "template": template, "model_name_or_path": model}, "template"
            if kind == "axolotl":
                given, key = {"base_model": model, "chat_template": template, "adapter": "lora"}, "chat_template"
                given |= {"datasets": [{"path": "a.jsonl", "type": "chat_template"}]}
            assert reasons(read(given, kind))[key] is reason


def test_positions_of_llama_factory_follow_from_length_and_model(read, tmp_path, subtests):
    """`configure_rope` of LLaMA-Factory makes a factor of 4 of rows of 100 tokens and 32 positions."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
    about = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32}
    (tmp_path / "config.json").write_text(json.dumps(about | shape))
    for kind in ("linear", "yarn", "llama3"):
        with subtests.test(kind):
            given = {"stage": "sft", "model_name_or_path": str(tmp_path), "rope_scaling": kind}
            settings = {f"{ROPE}.rope_type": kind, f"{ROPE}.factor": 4}
            settings |= {f"{ROPE}.original_max_position_embeddings": None if kind == "linear" else 32}
            if kind == "llama3":
                settings |= {f"{ROPE}.low_freq_factor": 1, f"{ROPE}.high_freq_factor": 4}
            check(read({**given, "cutoff_len": 100}, "llama_factory"), settings)
            short = read({**given, "cutoff_len": 32}, "llama_factory")
            assert reasons(short)["rope_scaling"] == Why.NOT_NEEDED
