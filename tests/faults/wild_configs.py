"""Configs of other tools in the shapes that people have, all made up, each with its right outcome: the config that it
becomes, or why it is refused. `test_wild_configs.py` tries them all.

A new shape is a new line here, and not a test of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Model = Literal["decoder", "encoder", "text to text"]

_TRAINER = {
    "training.effective_batch_size": 8,
    "training.learning_rate": 5e-5,
    "training.lr_scheduler_type": "linear",
    "training.warmup_steps": 0,
}
# What a tool takes where a whole file does not say it.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "transformers": _TRAINER,
    "llama_factory": {**_TRAINER, "training.gradient_checkpointing": True, "data.max_length": 2048,
                      "data.packing": False, "data.eval_fraction": 0},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WildConfig:
    """One file, and what becomes of it.

    `content`: the text of the file, or its keys, which are written as JSON. `beside`: other files of its folder, by
    name. `kind` and `processes` are asked for with --as and --processes. Either `refused` stands in the refusal; or
    `values` are the settings that it becomes, all of them but for the `defaults` of a tool, with each of `told` in
    the report, and the plan takes them with a tiny model of the kind `model`.
    """

    name: str
    content: str | Mapping[str, Any]
    file: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    processes: int | None = None
    model: Model = "decoder"
    defaults: str = ""
    refused: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        for name, text in self.beside.items():
            (folder / name).write_text(text, encoding="utf-8")
        is_text = isinstance(self.content, str)
        path = folder / (self.file or ("config.yaml" if is_text else "config.json"))
        path.write_text(str(self.content) if is_text else json.dumps(self.content, indent=1), encoding="utf-8")
        return path


SCRIPTS = (
    WildConfig(
        name="arguments of a Trainer with a model",
        content={"model_name_or_path": "org/m", "learning_rate": 1e-5, "per_device_train_batch_size": 4, "seed": 1},
        kind="transformers",
        values={
            "model.model_name_or_path": "org/m", "training.learning_rate": 1e-5, "training.seed": 1,
            "training.effective_batch_size": 4, "tuning.method": "full",
        },
        defaults="transformers",
    ),
)  # fmt: skip

DUMPS = (
    WildConfig(
        name="a dump of TrainingArguments, which names no model",
        content={"output_dir": "out", "learning_rate": 2e-5, "num_train_epochs": 2, "weight_decay": 0.1, "seed": 7,
                 "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "adam_beta2": 0.95,
                 "lr_scheduler_type": "cosine", "warmup_steps": 10, "logging_dir": "out/runs", "past_index": -1,
                 "disable_tqdm": False, "log_level": "passive"},
        values={"output.runs_dir": "out", "training.learning_rate": 2e-5, "training.num_train_epochs": 2,
                "training.weight_decay": 0.1, "training.seed": 7, "training.effective_batch_size": 8,
                "training.adam_beta2": 0.95, "training.lr_scheduler_type": "cosine", "training.warmup_steps": 10},
        defaults="transformers",
        told=("not in the file: whether all weights are trained or adapters; set tuning.method = full or lora",),
    ),
)  # fmt: skip

FOREIGN = (
    WildConfig(name="no key is known", content="colour: red\n", refused=("has no key that is known (colour)", "--as")),
    WildConfig(
        name="half of the keys are known",
        content="learning_rate: 1.0e-4\nseed: 1\nruns: 3\nowner: me\n",
        refused=("is of a tool that is not read", "knows 2 of 4 keys", "runs, owner", "--as"),
    ),
    WildConfig(
        name="AutoTrain",
        content="""task: llm-sft
base_model: org/m
project_name: sheep
log: tensorboard
backend: local
data: {path: org/d, train_split: train, valid_split: null, column_mapping: {text_column: text}}
params: {lr: 2.0e-4, epochs: 3, batch_size: 2, peft: true, quantization: int4}
hub: {username: me, push_to_hub: false}
""",
        refused=("looks like a file of AutoTrain", "--as"),
    ),
    WildConfig(
        name="AutoTrain's training_params",
        content={"model": "org/m", "project_name": "sheep", "data_path": "d", "train_split": "train",
                 "valid_split": None, "lr": 2e-4, "epochs": 1, "batch_size": 2, "seed": 42, "warmup_ratio": 0.1,
                 "optimizer": "adamw_torch", "scheduler": "linear", "weight_decay": 0.0, "lora_r": 16,
                 "lora_alpha": 32, "lora_dropout": 0.05, "max_grad_norm": 1.0, "logging_steps": 10},
        refused=("looks like a file of AutoTrain",),
    ),
    WildConfig(
        name="Unsloth Studio",
        content="""model: org/m
data: {dataset: org/d, format_type: auto}
training: {training_type: lora, max_seq_length: 2048, learning_rate: 0.0002, batch_size: 2, random_seed: 3407}
lora: {lora_r: 64, lora_alpha: 16, vision_all_linear: false, use_loftq: false}
logging: {enable_wandb: false}
""",
        refused=("looks like a file of Unsloth Studio",),
    ),
    WildConfig(
        name="torchtune",
        content="""output_dir: /tmp/out
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: /tmp/t}
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8}
optimizer: {_component_: torch.optim.AdamW, lr: 3.0e-4}
batch_size: 2
epochs: 1
gradient_accumulation_steps: 8
seed: null
""",
        refused=("looks like a file of torchtune",),
    ),
    WildConfig(
        name="LitGPT",
        content="""checkpoint_dir: checkpoints/org/m
precision: bf16-true
lora_r: 32
lora_alpha: 16
data: {class_path: litgpt.data.Alpaca2k}
train: {global_batch_size: 8, micro_batch_size: 1, lr_warmup_steps: 10, epochs: 4}
seed: 1337
""",
        refused=("looks like a file of LitGPT",),
    ),
    WildConfig(
        name="NeMo",
        content="""name: sft
trainer: {devices: 8, precision: bf16, max_steps: 100}
exp_manager: {explicit_log_dir: null}
model: {restore_from_path: m.nemo, global_batch_size: 128, micro_batch_size: 4, optim: {name: adam, lr: 1.0e-6}}
""",
        refused=("looks like a file of NeMo",),
    ),
    WildConfig(
        name="Oumi",
        content="""model: {model_name: org/m, model_max_length: 2048}
data: {train: {datasets: [{dataset_name: org/d}]}}
training: {trainer_type: TRL_SFT, per_device_train_batch_size: 2, learning_rate: 2.0e-5, optimizer: adamw_torch}
""",
        refused=("looks like a file of Oumi",),
    ),
    WildConfig(
        name="Ludwig",
        content="""model_type: llm
base_model: org/m
adapter: {type: lora}
input_features: [{name: prompt, type: text}]
output_features: [{name: answer, type: text}]
trainer: {type: finetune, learning_rate: 1.0e-4, batch_size: 1, epochs: 3}
""",
        refused=("looks like a file of Ludwig",),
    ),
    WildConfig(
        name="Kohya's scripts",
        content={"pretrained_model_name_or_path": "org/sd", "train_data_dir": "img", "network_module": "networks.lora",
                 "learning_rate": 1e-4, "seed": 1, "mixed_precision": "bf16", "gradient_checkpointing": True,
                 "gradient_accumulation_steps": 1},
        refused=("looks like a file of Kohya's scripts",),
    ),
    WildConfig(
        name="SimpleTuner",
        content={"--model_family": "flux", "--seed": 42, "--learning_rate": 1e-4, "--lora_rank": 16},
        refused=("looks like a file of SimpleTuner",),
    ),
    WildConfig(
        name="H2O LLM Studio",
        content="""experiment_name: sheep
llm_backbone: org/m
architecture: {backbone_dtype: int4, gradient_checkpointing: true}
training: {batch_size: 2, epochs: 1, learning_rate: 0.0001, lora: true, lora_r: 4}
""",
        refused=("looks like a file of H2O LLM Studio",),
    ),
    WildConfig(
        name="LMFlow",
        content={"model_name_or_path": "org/m", "dataset_path": "d", "use_lisa": 1, "lisa_activated_layers": 2,
                 "learning_rate": 1e-5, "num_train_epochs": 1, "per_device_train_batch_size": 1, "bf16": True},
        refused=("looks like a file of LMFlow",),
    ),
    WildConfig(
        name="Lightning CLI",
        content="""seed_everything: 1
trainer: {max_epochs: 3, accelerator: gpu, devices: 1}
model: {class_path: mine.Model, init_args: {lr: 0.001}}
""",
        refused=("looks like a file of Lightning CLI",),
    ),
    WildConfig(
        name="GPT-NeoX, with DeepSpeed's keys",
        content={"pipe-parallel-size": 1, "num-layers": 12, "hidden-size": 768, "train_micro_batch_size_per_gpu": 4,
                 "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 1}, "fp16": {"enabled": True},
                 "optimizer": {"type": "Adam", "params": {"lr": 6e-4}}, "gradient_clipping": 1.0},
        refused=("looks like a file of GPT-NeoX",),
    ),
    WildConfig(
        name="ms-swift",
        content="model: org/m\ntrain_type: lora\ndataset: [org/d]\nlora_rank: 8\nlearning_rate: 1.0e-4\n",
        refused=("looks like a file of ms-swift",),
    ),
    WildConfig(
        name="OpenRLHF",
        content="pretrain: org/m\nmicro_train_batch_size: 2\nlearning_rate: 5.0e-6\nmax_epochs: 1\nbf16: true\n",
        refused=("looks like a file of OpenRLHF",),
    ),
    WildConfig(
        name="verl",
        content="actor_rollout_ref: {model: {path: org/m}}\nalgorithm: {adv_estimator: grpo}\ntrainer: {nnodes: 1}\n",
        refused=("looks like a file of verl",),
    ),
    WildConfig(
        name="MLX LM",
        content="model: org/m\ntrain: true\ndata: d\niters: 600\nbatch_size: 4\nlora_parameters: {rank: 8}\n",
        refused=("looks like a file of MLX LM",),
    ),
    WildConfig(
        name="a merge by mergekit",
        content="merge_method: slerp\nbase_model: org/m\ndtype: bfloat16\n",
        refused=("is a merge by mergekit, and says nothing about training",),
    ),
    WildConfig(
        name="a merge by LLaMA-Factory",
        content="""model_name_or_path: org/m
adapter_name_or_path: saves/lora
template: llama3
trust_remote_code: true
export_dir: merged
export_size: 5
""",
        refused=("is a merge by LLaMA-Factory",),
    ),
    WildConfig(
        name="an inference by LLaMA-Factory, whose kind is named",
        content="model_name_or_path: org/m\ntemplate: llama3\ninfer_backend: huggingface\ntrust_remote_code: true\n",
        kind="llama_factory",
        refused=("is an inference by LLaMA-Factory",),
    ),
    WildConfig(
        name="the generation_config.json of a model",
        content={"bos_token_id": 1, "eos_token_id": 2, "transformers_version": "5.0"},
        refused=("is a generation_config.json",),
    ),
)  # fmt: skip


def _of(kind: str, reason: str, **keys: Any) -> WildConfig:
    """A plain file of the tool, but for these keys, the first of which is refused."""
    plain = {
        "axolotl": {"base_model": "org/m", "sequence_len": 512, "micro_batch_size": 2, "num_epochs": 1},
        "llama_factory": {"model_name_or_path": "org/m", "stage": "sft", "finetuning_type": "lora",
                          "dataset": "sheep", "template": "chatml", "cutoff_len": 512},
        "trl": {"model_name_or_path": "org/m", "dataset_name": "org/d", "max_length": 512, "use_peft": True},
        "peft": {"peft_type": "LORA", "base_model_name_or_path": "org/m", "r": 8, "target_modules": ["q_proj"]},
        "training_script": {"model_name": "org/m", "batch_size": 4, "epochs": 1, "lr": 1e-4},
    }[kind]  # fmt: skip
    first = next(iter(keys))
    return WildConfig(
        name=f"{kind} with {first}: {keys[first]}"[:60],
        content={**plain, **keys},
        kind=kind,
        refused=(f"{first}: ", f"cannot be trained here: {reason}"),
    )


_LEARNT, _REWARDS, _PLACE = (
    "models learn from texts",
    "models learn from texts and answers here",
    "adapters start beside",
)
METHODS = (
    _of("trl", _REWARDS, reward_funcs=["accuracy"], num_generations=8),
    _of("trl", _REWARDS, beta=0.0),
    _of("trl", "the loss is cross entropy", loss_type="dft"),
    _of("trl", "no noise is added", neftune_noise_alpha=5),
    _of("axolotl", _REWARDS, rl="dpo"),
    _of("axolotl", _LEARNT, processor_type="AutoProcessor"),
    _of("axolotl", "models learn whole", unfrozen_parameters=["lm_head"]),
    _of("axolotl", "weights are trained as numbers", qat={"activation_dtype": "int8"}),
    _of("axolotl", "adapters are merged at the end", relora=True, adapter="lora"),
    _of("axolotl", "layers take turns", lisa_n_layers=4),
    _of("axolotl", "tokens that are left out", plugins=["axolotl.integrations.diffusion.DiffusionPlugin"]),
    _of("axolotl", "gradients are not projected", optimizer="galore_adamw"),
    _of("axolotl", _PLACE, peft_init_lora_weights="pissa", adapter="lora"),
    _of("axolotl", "which parts of a row", datasets=[{"path": "a.jsonl", "type": "input_output"}]),
    _of("axolotl", "an adapter has one learning rate", loraplus_lr_ratio=16, adapter="lora"),
    _of("axolotl", "a new adapter is trained", lora_model_dir="out", adapter="lora"),
    _of("llama_factory", _REWARDS, stage="dpo", pref_beta=0.1),
    _of("llama_factory", _LEARNT, template="qwen2_vl"),
    _of("llama_factory", _LEARNT, image_max_pixels=262144),
    _of("llama_factory", "the loss is cross entropy", use_eaft_loss=True),
    _of("llama_factory", "the loss is cross entropy", use_dft_loss=True),
    _of("llama_factory", "layers take turns", use_badam=True),
    _of("llama_factory", "gradients are not projected", use_galore=True),
    _of("llama_factory", "the model stays", mixture_of_depths="convert"),
    _of("llama_factory", _PLACE, pissa_init=True),
    _of("peft", "every linear layer of a name", rank_pattern={"q_proj": 4}),
    _of("peft", "every linear layer of a name", bias="all"),
    _of("peft", _PLACE, init_lora_weights="pissa_niter_4"),
    WildConfig(
        name="peft with a pattern for target_modules",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "target_modules": r".*\.(q|v)_proj"},
        refused=("target_modules: ", "does not fit: it is a pattern"),
    ),
    _of("training_script", "models learn whole", freeze_layers=6),
    _of("training_script", "the loss is cross entropy", loss_fn="focal"),
    _of("training_script", "tokens that are left out", mlm_probability=0.15),
)

ADAPTERS = (
    WildConfig(
        name="the adapter of a classifier, with PEFT's two names of a head",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "task_type": "SEQ_CLS", "r": 8,
                 "lora_alpha": 16, "target_modules": ["query", "value"], "modules_to_save": ["classifier", "score"],
                 "megatron_config": None, "megatron_core": "megatron.core", "bias": "none", "lora_bias": False,
                 "init_lora_weights": True, "rank_pattern": {}, "layers_to_transform": None},
        model="encoder",
        values={"model.model_name_or_path": "org/m", "tuning.method": "lora", "tuning.r": 8, "tuning.lora_alpha": 16,
                "tuning.target_modules": "query, value", "task.type": "sequence_classification"},
        told=("a classifier's head", "megatron_core: megatron.core (not needed"),
    ),
    WildConfig(
        name="an adapter that trains its embeddings",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "task_type": "CAUSAL_LM", "r": 8,
                 "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        values={"model.model_name_or_path": "org/m", "tuning.method": "lora", "tuning.r": 8,
                "tuning.target_modules": "q_proj", "task.type": "causal_lm", "tuning.modules_to_save": "embed_tokens"},
    ),
    WildConfig(
        name="a script that loads 4 bits",
        content={"model_name": "org/m", "use_lora": True, "load_in_4bit": True, "batch_size": 4, "lr": 1e-4},
        values={"model.model_name_or_path": "org/m", "tuning.method": "qlora", "training.effective_batch_size": 4,
                "training.learning_rate": 1e-4},
    ),
    WildConfig(
        name="a switch of what is missing that is off",
        content={"model_name_or_path": "org/m", "stage": "sft", "finetuning_type": "full", "template": "chatml",
                 "use_galore": False, "pissa_init": False, "neftune_noise_alpha": None},
        values={"model.model_name_or_path": "org/m", "task.type": "chat", "tuning.method": "full",
                "task.chat_template": "chatml"},
        defaults="llama_factory",
    ),
    WildConfig(
        name="DeepSpeed's JSON",
        content={"zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 5e8,
                                       "reduce_bucket_size": 5e8, "contiguous_gradients": True},
                 "train_batch_size": 16, "gradient_clipping": 1.0, "bf16": {"enabled": True}},
        values={"distributed.strategy": "deepspeed-2", "training.effective_batch_size": 16,
                "training.max_grad_norm": 1, "training.mixed_precision": "bf16"},
    ),
)  # fmt: skip

CASES = (*SCRIPTS, *DUMPS, *FOREIGN, *METHODS, *ADAPTERS)
