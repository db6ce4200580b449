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
                      "data.packing": False, "data.eval_fraction": 0, "task.type": "chat"},
    "llama_factory_v1": {"task.type": "chat", "training.effective_batch_size": 1, "training.learning_rate": 1e-4,
                         "training.lr_scheduler_type": "constant", "training.warmup_steps": 0,
                         "training.weight_decay": 0.01, "training.mixed_precision": "bf16",
                         "training.gradient_checkpointing": True, "data.max_length": 2048, "data.packing": False,
                         "data.eval_fraction": 0},
    "axolotl": {"training.effective_batch_size": 1, "training.num_train_epochs": 1, "training.warmup_steps": 0.03,
                "data.max_length": 512, "data.packing": False, "data.eval_fraction": 0},
    "trl": {**_TRAINER, "training.learning_rate": 2e-5, "training.gradient_checkpointing": True,
            "data.max_length": 1024, "data.packing": False, "data.eval_fraction": 0},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WildConfig:
    """One file, and what becomes of it.

    `content`: the text of the file, or its keys, which are written as JSON. `beside`: other files of its folder, by
    name. `kind` and `processes` are asked for with --as and --processes. Either `refused` stands in the refusal; or
    `values` are the settings that it becomes, all of them but for the `defaults` of a tool, with each of `told` in
    the report, and the plan takes them with a tiny model of the kind `model`, unless `planned` is off: it is no mixture
    of experts and no adapter, and its rows are of one source.
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
    planned: bool = True

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
        told=("the file does not choose between all weights and an adapter; set tuning.method = full or lora",),
    ),
)  # fmt: skip

FOREIGN = (
    WildConfig(name="no key is known", content="colour: red\n", refused=("known key (keys found: colour)", "--as")),
    WildConfig(
        name="half of the keys are known", content="learning_rate: 1.0e-4\nseed: 1\nruns: 3\nowner: me\n",
        refused=("is from an unsupported tool", "knows 2 of 4 keys", "runs, owner", "--as"),
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
        name="a merge by mergekit", content="merge_method: slerp\nbase_model: org/m\ndtype: bfloat16\n",
        refused=("is a mergekit merge config, not a training config",),
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
        refused=("is a LLaMA-Factory merge config",),
    ),
    WildConfig(
        name="an inference by LLaMA-Factory, whose kind is named",
        content="model_name_or_path: org/m\ntemplate: llama3\ninfer_backend: huggingface\ntrust_remote_code: true\n",
        kind="llama_factory",
        refused=("is a LLaMA-Factory inference config",),
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
        refused=(f"{first}: ", f"cannot be used here: {reason}"),
    )


_LEARNT, _REWARDS, _PLACE = (
    "models are trained on text",
    "models are not trained with rewards",
    "adapters are initialised by tuning.init_lora_weights",
)
METHODS = (
    _of("trl", _REWARDS, reward_funcs=["accuracy"], num_generations=8),
    _of("trl", "the supported losses are sigmoid", loss_type="hinge", beta=0.1),
    _of("trl", "the loss is always cross entropy", loss_type="dft"),
    _of("axolotl", "the supported values are dpo", rl="ppo"),
    _of("axolotl", _LEARNT, processor_type="AutoProcessor"),
    _of("axolotl", "set the layers to train with tuning.trainable_layers", spectrum_top_fraction=0.5),
    _of("axolotl", "weights are trained in 16 or 32 bits", qat={"activation_dtype": "int8"}),
    _of("axolotl", "adapters are merged only after training", relora=True, adapter="lora"),
    _of("axolotl", "training only some layers at a time", lisa_n_layers=4),
    _of("axolotl", "filling in masked tokens", plugins=["axolotl.integrations.diffusion.DiffusionPlugin"]),
    _of("axolotl", "optimizers such as GaLore", optimizer="galore_adamw"),
    _of("axolotl", _PLACE, peft_init_lora_weights="loftq", adapter="lora"),
    _of("axolotl", "the tokens to train on", datasets=[{"path": "a.jsonl", "type": "input_output"}]),
    _of("llama_factory", "the supported losses are sigmoid", pref_loss="hinge", stage="dpo"),
    _of("llama_factory", "the template qwen2_vl does not match this model", template="qwen2_vl"),
    _of("llama_factory", _LEARNT, image_max_pixels=262144),
    _of("llama_factory", "the loss is always cross entropy", use_eaft_loss=True),
    _of("llama_factory", "the loss is always cross entropy", use_dft_loss=True),
    _of("llama_factory", "training only some layers at a time", use_badam=True),
    _of("llama_factory", "optimizers such as GaLore", use_galore=True),
    _of("llama_factory", "the architecture in config.json", mixture_of_depths="convert"),
    _of("peft", "only plain adapters", rank_pattern={"q_proj": 4}),
    _of("peft", "only plain adapters", bias="all"),
    _of("peft", _PLACE, init_lora_weights="eva"),
    WildConfig(
        name="peft with a pattern among names of target_modules",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "target_modules": ["k_proj", ".*v_proj"]},
        refused=("target_modules: ", "give a regular expression as a single string"),
    ),
    _of("training_script", "set the layers to train with tuning.trainable_layers", freeze_layers=6),
    _of("training_script", "the loss is always cross entropy", loss_fn="focal"),
    _of("training_script", "filling in masked tokens", mlm_probability=0.15),
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
                "tuning.target_modules": "query, value", "task.type": "sequence_classification",
                "tuning.init_lora_weights": "default"},
        told=("the head of a classifier", "megatron_core: megatron.core (not needed"),
    ),
    WildConfig(
        name="an adapter that trains its embeddings",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "task_type": "CAUSAL_LM", "r": 8,
                 "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        values={"model.model_name_or_path": "org/m", "tuning.method": "lora", "tuning.r": 8,
                "tuning.target_modules": "q_proj", "task.type": "causal_lm", "tuning.modules_to_save": "embed_tokens",
                "tuning.lora_alpha": 8},
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


def _list(**data_sets: Any) -> dict[str, str]:
    """LLaMA-Factory's list of data sets, beside its config."""
    return {"dataset_info.json": json.dumps(data_sets)}


_SHAREGPT = {
    "formatting": "sharegpt", "columns": {"messages": "conversations"},
    "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
             "system_tag": "system"},
}  # fmt: skip
_ZERO_3 = json.dumps({"zero_optimization": {"stage": 3, "overlap_comm": True}, "bf16": {"enabled": "auto"},
                      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})  # fmt: skip
_SFT = {"model_name_or_path": "org/m", "stage": "sft", "do_train": True, "finetuning_type": "lora",
        "template": "llama3"}  # fmt: skip
_SFT_VALUES = {"model.model_name_or_path": "org/m", "tuning.method": "lora", "tuning.r": 8, "tuning.lora_alpha": 16,
               "task.chat_template": "llama3"}  # fmt: skip
_FULL = {**_SFT, "finetuning_type": "full"}
_FULL_VALUES = {"model.model_name_or_path": "org/m", "tuning.method": "full", "task.chat_template": "llama3"}

LLAMA_FACTORY = (
    WildConfig(
        name="LLaMA-Factory: LoRA on instructions, as its examples are written",
        content="""### model
model_name_or_path: org/Qwen3-4B-Instruct-2507
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all

### dataset
dataset: sheep
template: qwen3_nothink
cutoff_len: 1024
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4

### output
output_dir: saves/sheep
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
""",
        beside=_list(sheep={"file_name": "sheep.json"}),
        values={
            "model.model_name_or_path": "org/Qwen3-4B-Instruct-2507", "model.trust_remote_code": True,
            "task.type": "chat", "task.chat_template": "chatml", "tuning.method": "lora", "tuning.r": 8,
            "tuning.lora_alpha": 16, "tuning.target_modules": "all-linear", "data.path": "sheep.json",
            "data.max_length": 1024, "data.max_rows": 1000, "data.num_proc": 16, "dataloader.num_workers": 4,
            "output.runs_dir": "saves/sheep", "logging.logging_steps": 10, "checkpoint.save_steps": 500,
            "training.effective_batch_size": 8, "training.learning_rate": 1e-4, "training.num_train_epochs": 3,
            "training.lr_scheduler_type": "cosine", "training.warmup_steps": 0.1, "training.mixed_precision": "bf16",
        },
        defaults="llama_factory",
        told=("(from dataset_info.json)", "(the batch size of one device; --processes N multiplies it"),
    ),
    WildConfig(
        name="LLaMA-Factory: all weights on conversations, split by ZeRO 3 over 8 devices",
        content={**_FULL, "dataset": "talks", "deepspeed": "examples/deepspeed/ds_z3_config.json", "packing": False,
                 "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": "1e-5",
                 "val_size": 0.1, "eval_strategy": "steps", "eval_steps": 200, "per_device_eval_batch_size": 1,
                 "save_total_limit": 3, "warmup_steps": 20, "ddp_timeout": 180000000},
        beside=_list(talks={"file_name": "talks.jsonl", **_SHAREGPT}), processes=8,
        values={**_FULL_VALUES, "data.path": "talks.jsonl", "data.packing": False,
                "training.effective_batch_size": 32, "training.learning_rate": 1e-5, "data.eval_fraction": 0.1,
                "evaluation.eval_steps": 200, "evaluation.per_device_eval_batch_size": 1,
                "checkpoint.save_total_limit": 3, "training.warmup_steps": 20},
        defaults="llama_factory",
        told=("multiplied by --processes 8",
              "the DeepSpeed file was not found; set distributed.strategy = deepspeed-2 or deepspeed-3"),
    ),
    WildConfig(
        name="LLaMA-Factory: ZeRO 3 whose file is near, and tags of other names that mean the same",
        content={**_FULL, "dataset": "talks", "deepspeed": "ds_z3_config.json", "bf16": True, "flash_attn": "fa2",
                 "enable_liger_kernel": True},
        beside={**_list(talks={"file_name": "talks.jsonl", "formatting": "sharegpt",
                               "columns": {"messages": "messages"},
                               "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                                        "assistant_tag": "assistant", "system_tag": "system"}}),
                "ds_z3_config.json": _ZERO_3},
        values={**_FULL_VALUES, "data.path": "talks.jsonl", "distributed.strategy": "deepspeed-3",
                "training.mixed_precision": "bf16", "model.attn_implementation": "flash_attention_2",
                "model.kernels": "auto"},
        defaults="llama_factory", told=("(ds_z3_config.json: zero_optimization",),
    ),
    WildConfig(
        name="LLaMA-Factory: QLoRA with Unsloth",
        content={**_SFT, "quantization_bit": 4, "quantization_method": "bnb", "double_quantization": True,
                 "use_unsloth": True, "lora_rank": 32, "lora_dropout": 0.05, "lora_target": "q_proj,v_proj",
                 "dataset": "sheep", "optim": "adamw_8bit", "upcast_layernorm": True},
        beside=_list(sheep={"file_name": "sheep.json",
                            "columns": {"prompt": "question", "response": "answer"}}),
        values={**_SFT_VALUES, "tuning.method": "qlora", "quantization.bnb_4bit_use_double_quant": True,
                "model.provider": "unsloth", "tuning.r": 32, "tuning.lora_alpha": 64, "tuning.lora_dropout": 0.05,
                "tuning.target_modules": "q_proj,v_proj", "training.optim": "adamw_8bit", "data.path": "sheep.json",
                "data.text_column": "question", "data.target_column": "answer"},
        defaults="llama_factory", told=("twice lora_rank",),
    ),
    WildConfig(
        name="LLaMA-Factory: QLoRA and FSDP, which is not split here",
        content={**_SFT, "quantization_bit": 4, "fsdp": "full_shard auto_wrap", "dataset": "sheep"},
        beside=_list(sheep={"file_name": "sheep.json"}),
        values={**_SFT_VALUES, "tuning.method": "qlora", "data.path": "sheep.json"}, defaults="llama_factory",
        told=("fsdp: full_shard auto_wrap (not supported", "each device has the whole model"),
    ),
    WildConfig(
        name="LLaMA-Factory: FSDP with all weights",
        content={**_FULL, "fsdp": "full_shard auto_wrap", "dataset": "sheep", "disable_gradient_checkpointing": True},
        beside=_list(sheep={"hf_hub_url": "org/sheep", "split": "train_sft"}),
        values={**_FULL_VALUES, "distributed.strategy": "fsdp", "data.path": "hub:org/sheep",
                "data.split": "train_sft", "training.gradient_checkpointing": False},
        defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: texts, which fill whole rows",
        content={"model_name_or_path": "org/m", "stage": "pt", "finetuning_type": "full", "dataset": "wool",
                 "template": "llama3", "cutoff_len": 4096, "learning_rate": 1e-5, "bf16": True},
        beside=_list(wool={"file_name": "wool.jsonl", "columns": {"prompt": "text"}}),
        values={"model.model_name_or_path": "org/m", "task.type": "causal_lm", "tuning.method": "full",
                "data.path": "wool.jsonl", "data.text_column": "text", "data.max_length": 4096,
                "data.packing": True, "training.learning_rate": 1e-5, "training.mixed_precision": "bf16"},
        defaults="llama_factory", told=("the default for stage pt", "template: llama3 (not needed"),
    ),
    WildConfig(
        name="LLaMA-Factory: a stream of texts, a row each",
        content={"model_name_or_path": "org/m", "stage": "pt", "finetuning_type": "full", "dataset": "wool",
                 "packing": False, "streaming": True, "buffer_size": 128, "max_steps": 300, "eval_dataset": "held"},
        beside=_list(wool={"hf_hub_url": "org/wool", "subset": "en", "columns": {"prompt": "text"}},
                     held={"hf_hub_url": "org/wool", "split": "test"}),
        values={"model.model_name_or_path": "org/m", "task.type": "causal_lm", "tuning.method": "full",
                "data.path": "hub:org/wool", "data.name": "en", "data.text_column": "text", "data.packing": False,
                "data.streaming": True, "training.max_steps": 300, "data.eval_path": "hub:org/wool",
                "data.eval_split": "test"},
        defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: the last turns, packed, and weights in bf16",
        content={**_FULL, "dataset": "talks", "mask_history": True, "train_on_prompt": False, "neat_packing": True,
                 "pure_bf16": True, "per_device_train_batch_size": 4},
        beside=_list(talks={"file_name": "talks.jsonl", **_SHAREGPT}),
        values={**_FULL_VALUES, "data.path": "talks.jsonl", "task.loss_on": "completion", "data.packing": True,
                "model.dtype": "bfloat16", "training.effective_batch_size": 4},
        defaults="llama_factory", told=("the last turn of each conversation", "a number of packed rows in"),
    ),
    WildConfig(
        name="LLaMA-Factory: what is held out decides when to stop",
        content={**_SFT, "dataset": "sheep", "eval_dataset": "held", "eval_strategy": "epoch", "save_strategy": "epoch",
                 "num_train_epochs": 4, "load_best_model_at_end": True, "early_stopping_steps": 3,
                 "metric_for_best_model": "eval_loss", "greater_is_better": False, "compute_accuracy": True},
        beside=_list(sheep={"file_name": "sheep.json"}, held={"file_name": "held.json"}),
        values={**_SFT_VALUES, "data.path": "sheep.json", "data.eval_path": "held.json", "evaluation.eval_steps": 0.25,
                "checkpoint.save_steps": 0.25, "training.num_train_epochs": 4,
                "evaluation.early_stopping_patience": 3, "evaluation.metric_for_best_model": "loss"},
        defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: the arguments that its Board saves",
        content="""bf16: true
cutoff_len: 2048
dataset: sheep, more
dataset_dir: data
ddp_timeout: 180000000
do_train: true
enable_thinking: true
finetuning_type: lora
flash_attn: auto
freeze_trainable_layers: 2
freeze_trainable_modules: all
gradient_accumulation_steps: 8
include_num_input_tokens_seen: true
learning_rate: 5.0e-05
logging_steps: 5
lora_alpha: 16
lora_dropout: 0
lora_rank: 8
lora_target: all
lr_scheduler_type: cosine
max_grad_norm: 1.0
max_samples: 100000
model_name_or_path: org/Qwen3-8B
num_train_epochs: 3.0
optim: adamw_torch
output_dir: saves/Qwen3-8B/lora/train
packing: false
per_device_train_batch_size: 2
plot_loss: true
preprocessing_num_workers: 16
report_to: none
save_steps: 100
stage: sft
template: qwen3
trust_remote_code: true
warmup_steps: 0
""",
        values={
            "training.mixed_precision": "bf16", "data.max_length": 2048, "tuning.method": "lora",
            "model.attn_implementation": "auto", "training.effective_batch_size": 16, "training.learning_rate": 5e-5,
            "logging.logging_steps": 5, "tuning.lora_alpha": 16, "tuning.lora_dropout": 0, "tuning.r": 8,
            "tuning.target_modules": "all-linear", "training.lr_scheduler_type": "cosine",
            "training.max_grad_norm": 1, "data.max_rows": 100000, "model.model_name_or_path": "org/Qwen3-8B",
            "training.num_train_epochs": 3, "training.optim": "adamw_torch_fused",
            "output.runs_dir": "saves/Qwen3-8B/lora/train", "data.packing": False, "data.num_proc": 16,
            "checkpoint.save_steps": 100, "task.type": "chat", "model.trust_remote_code": True,
            "training.warmup_steps": 0,
        },
        defaults="llama_factory",
        told=("dataset: sheep, more (not supported: the dataset_info.json that lists this data set was not found",
              "template: qwen3 (always the case: this is the model's own chat template, which is used",
              "the file does not name the training data; set data.path"),
    ),
    WildConfig(
        name="LLaMA-Factory: data sets of the hub by their names",
        content={**_SFT, "dataset": "org/sheep,org/goats", "dataset_dir": "ONLINE"},
        values={**_SFT_VALUES, "data.path": "hub:org/sheep, hub:org/goats"}, defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: defaults of methods that are not switched on",
        content={**_SFT, "dataset": "a,b", "mix_strategy": "concat", "pissa_iter": 16, "pissa_init": False,
                 "loraplus_lr_ratio": None, "loraplus_lr_embedding": 1e-6, "galore_rank": 16, "use_galore": False,
                 "badam_mode": "layer", "pref_beta": 0.1, "image_max_pixels": 589824, "video_fps": 2.0,
                 "ignore_pad_token_for_loss": True, "disable_shuffling": False, "resize_vocab": False,
                 "temperature": 0.95, "max_length": 1024, "tensor_model_parallel_size": 1},
        beside=_list(a={"file_name": "a.json"}, b={"file_name": "b.json"}),
        values={**_SFT_VALUES, "data.path": "a.json, b.json"}, defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: a file of few words, whose method is its default",
        content="model_name_or_path: org/m\ndataset: sheep\ntemplate: vicuna\ntrain_on_prompt: true\ncutoff_len: 512\n",
        kind="llama_factory",
        values={"model.model_name_or_path": "org/m", "tuning.method": "lora", "tuning.r": 8, "tuning.lora_alpha": 16,
                "task.chat_template": "vicuna", "task.loss_on": "all", "data.max_length": 512},
        defaults="llama_factory", told=("task.type = \"chat\" (the default of llama_factory)",),
    ),
    *(
        WildConfig(
            name=f"LLaMA-Factory: {name}",
            content={**_SFT, "dataset": "sheep,goats", **keys},
            beside=_list(sheep={"file_name": "sheep.json"}, goats={"file_name": "goats.json", **entry}),
            refused=words,
        )
        for name, keys, entry, words in (
            ("two kinds of rows", {}, _SHAREGPT | {"columns": {"messages": "talk"}},
             ("dataset: ", "the data sets differ in columns, splits or number of rows")),
            ("preferences in its list", {}, {"ranking": True}, ("goats in dataset_info.json: the rows are pairs",)),
            ("images in its list", {}, {"columns": {"images": "images"}}, ("the rows have images",)),
            ("a name that its list does not have", {"dataset": "sheap"}, {},
             ("dataset_info.json has no data set 'sheap'", "sheep")),
            ("sources mixed by chance", {"mix_strategy": "interleave_under", "interleave_probs": "0.7,0.3"}, {},
             ("random mixing is not supported",)),
            ("rows in their own order", {"disable_shuffling": True}, {}, ("disable_shuffling: true", "shuffled")),
            ("a system message of the run", {"default_system": "You are a sheep."}, {}, ("default_system: ",)),
            ("weights in 8 bits", {"quantization_bit": 8}, {}, ("quantization_bit: 8", "training on quantised")),
            ("weights in 4 bits by HQQ", {"quantization_bit": 4, "quantization_method": "hqq"}, {},
             ("quantization_method: hqq",)),
            ("new tokens", {"add_special_tokens": "<a>,<b>", "resize_vocab": True}, {},
             ("add_special_tokens: ", "--without add_special_tokens")),
            ("a template that is not here", {"template": "default"}, {},
             ("template: default cannot be used here", "--without template")),
            ("the template of another model", {"template": "qwen", "model_name_or_path": "Qwen/Qwen2-7B-Instruct"}, {},
             ("the template qwen does not match this model",)),
            ("thoughts that are not learnt",
             {"template": "qwen3", "model_name_or_path": "Qwen/Qwen3-8B", "enable_thinking": False}, {},
             ("enable_thinking: false",)),
            ("a part of the last layers", {"finetuning_type": "freeze", "freeze_trainable_modules": "mlp"}, {},
             ("freeze_trainable_modules: mlp", "tuning.trainable_layers")),
            ("OFT", {"finetuning_type": "oft", "oft_block_size": 32}, {}, ("finetuning_type: oft",)),
            ("FP8", {"fp8": True, "fp8_backend": "torchao"}, {}, ("fp8: true", "no FP8")),
            ("a number of rows held out", {"val_size": 200}, {},
             ("val_size: 200", "a number of rows can only be held out")),
            ("both kinds of what is learnt", {"mask_history": True, "train_on_prompt": True}, {}, ("mask_history: ",)),
            ("tensor parallelism", {"tensor_model_parallel_size": 2}, {}, ("tensor_model_parallel_size: 2",)),
        )
    ),
    WildConfig(
        name="LLaMA-Factory v1: LoRA, with a list beside it",
        content="""model: org/Qwen3-4B
model_class: llm
peft_config:
  name: lora
  r: 16
  lora_alpha: 32
  lora_dropout: 0.05
  target_modules: all
kernel_config:
  name: auto
train_dataset: data/sheep.yaml
output_dir: ./outputs/sheep
micro_batch_size: 1
cutoff_len: 1024
learning_rate: 1.0e-4
max_steps: 10
sample_backend: hf
max_new_tokens: 128
""",
        values={"model.model_name_or_path": "org/Qwen3-4B", "tuning.method": "lora", "tuning.r": 16,
                "tuning.lora_alpha": 32, "tuning.lora_dropout": 0.05, "tuning.target_modules": "all-linear",
                "output.runs_dir": "./outputs/sheep", "training.effective_batch_size": 1, "data.max_length": 1024,
                "training.learning_rate": 1e-4, "training.max_steps": 10},
        defaults="llama_factory_v1",
        told=("train_dataset: data/sheep.yaml (not supported: this list of data sets was not found",),
    ),
    WildConfig(
        name="LLaMA-Factory v1: all weights, split by FSDP2, with its own defaults",
        content={"model": "org/m", "model_class": "llm", "dist_config": {"name": "fsdp2", "dcp_path": None},
                 "train_dataset": "sheep.yaml", "micro_batch_size": 2, "global_batch_size": 32, "quant_config": None},
        beside={"sheep.yaml": "sheep:\n  path: sheep.json\n  source: local\n  converter: alpaca\n"},
        values={"model.model_name_or_path": "org/m", "tuning.method": "full", "distributed.strategy": "fsdp",
                "data.path": "sheep.json", "training.effective_batch_size": 32},
        defaults="llama_factory_v1",
    ),
    WildConfig(
        name="LLaMA-Factory v1: QLoRA with a data set of the hub",
        content={"model": "org/m", "peft_config": {"name": "lora"}, "quant_config": {"name": "bnb"},
                 "train_dataset": "talks.yaml", "micro_batch_size": 2, "bf16": False},
        beside={"talks.yaml": "talks:\n  path: org/talks\n  converter: sharegpt\n  size: 500\n"}, processes=4,
        values={"model.model_name_or_path": "org/m", "tuning.method": "qlora", "tuning.r": 8, "tuning.lora_alpha": 16,
                "tuning.lora_dropout": 0.05, "data.path": "hub:org/talks", "data.max_rows": 500,
                "training.effective_batch_size": 8, "training.mixed_precision": "no"},
        defaults="llama_factory_v1",
        told=("4 bits by default", "the first rows are used, but LLaMA-Factory takes random ones",
              "a conversation is one row here, but LLaMA-Factory makes one row per answer"),
    ),
    WildConfig(
        name="LLaMA-Factory v1: DeepSpeed, whose file is near",
        content={"model": "org/m", "model_class": "llm", "train_dataset": "org/talks", "output_dir": "out",
                 "dist_config": {"name": "deepspeed", "config_file": "ds.json"}, "cutoff_len": 512, "save_epochs": 1},
        beside={"ds.json": _ZERO_3},
        values={"model.model_name_or_path": "org/m", "tuning.method": "full", "data.path": "hub:org/talks",
                "output.runs_dir": "out", "distributed.strategy": "deepspeed-3", "data.max_length": 512,
                "checkpoint.save_steps": 0.333333},
        defaults="llama_factory_v1",
    ),
    *(
        WildConfig(
            name=f"LLaMA-Factory v1: {name}",
            content={"model": "org/m", "model_class": "llm", "train_dataset": "org/talks", **keys},
            refused=words,
        )
        for name, keys, words in (
            ("the last layers only", {"peft_config": {"name": "freeze", "freeze_trainable_layers": 2}},
             ("peft_config.name: freeze",)),
            ("Muon", {"optim_config": {"name": "muon", "wd": 0.1}}, ("optim_config: ", "nearest: adamw_torch")),
            ("preferences", {"pref_loss": "hinge", "pref_beta": 0.1}, ("pref_loss: hinge", "supported losses")),
            ("batches of tokens", {"batching_strategy": "dynamic_batching", "max_steps": 10},
             ("batching_strategy: dynamic_batching",)),
            ("a classifier", {"model_class": "cls"}, ("model_class: cls",)),
        )
    ),
)  # fmt: skip

_LORA = {"base_model": "org/m", "adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True,
         "learning_rate": 2e-4}  # fmt: skip
_LORA_VALUES = {
    "model.model_name_or_path": "org/m",
    "tuning.method": "lora",
    "tuning.r": 16,
    "tuning.lora_alpha": 32,
    "tuning.target_modules": "all-linear",
    "training.learning_rate": 2e-4,
}
_TALKS = {"path": "org/talks", "type": "chat_template"}

AXOLOTL = (
    WildConfig(
        name="axolotl: QLoRA on completions, as its examples are written",
        content="""base_model: org/m
model_type: LlamaForCausalLM
tokenizer_type: LlamaTokenizer
load_in_8bit: false
load_in_4bit: true
strict: false

datasets:
  - path: org/texts
    type: completion
    field: body
dataset_prepared_path: last_run_prepared
val_set_size: 0.05
output_dir: ./outputs/qlora-out

adapter: qlora
lora_model_dir:
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules:
lora_target_linear: true

wandb_project:
wandb_entity:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_32bit
lr_scheduler: cosine
learning_rate: 0.0002

bf16: auto
tf32: false
gradient_checkpointing: true
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
warmup_steps: 10
evals_per_epoch: 1
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<pad>"
""",
        values={
            "model.model_name_or_path": "org/m", "task.type": "causal_lm", "data.path": "hub:org/texts",
            "data.text_column": "body", "data.eval_fraction": 0.05, "output.runs_dir": "./outputs/qlora-out",
            "tuning.method": "qlora", "data.max_length": 4096, "data.packing": True, "tuning.r": 32,
            "tuning.lora_alpha": 16, "tuning.lora_dropout": 0.05, "tuning.target_modules": "all-linear",
            "training.effective_batch_size": 8, "training.num_train_epochs": 4, "training.optim": "paged_adamw_32bit",
            "training.lr_scheduler_type": "cosine", "training.learning_rate": 2e-4, "training.mixed_precision": "auto",
            "training.tf32": False, "training.gradient_checkpointing": True, "logging.logging_steps": 1,
            "model.attn_implementation": "flash_attention_2", "training.warmup_steps": 10,
            "evaluation.eval_steps": 0.25, "checkpoint.save_steps": 0.25, "training.weight_decay": 0,
        },
        told=("special_tokens: {\"pad_token\": \"<pad>\"} (not needed: padding is excluded from the loss",
              "in the other tool; for 32,768 tokens per step, divide 32,768 by the tokens per document",
              "data.max_length = 4096 (a longer text is split into several rows)"),
    ),
    WildConfig(
        name="axolotl: LoRA on conversations, whose answers are learnt",
        content={**_LORA, "sequence_len": 2048, "chat_template": "llama3", "train_on_inputs": False,
                 "datasets": [{**_TALKS, "field_messages": "conversations", "split": "train_sft",
                               "message_property_mappings": {"role": "from", "content": "value"},
                               "roles": {"user": ["human"], "assistant": ["gpt"]}, "roles_to_train": ["assistant"],
                               "train_on_eos": "turn"}],
                 "micro_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": True, "eot_tokens": ["<|eot_id|>"],
                 "plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_rope": True, "liger_rms_norm": True},
        values={**_LORA_VALUES, "data.max_length": 2048, "task.chat_template": "llama3",
                "task.loss_on": "assistant", "task.type": "chat", "data.path": "hub:org/talks",
                "data.text_column": "conversations", "data.split": "train_sft", "training.effective_batch_size": 8,
                "training.mixed_precision": "bf16"},
        defaults="axolotl", told=("at most 100: for a run of 3,334 steps or more, set training.warmup_steps = 100",
                                  "longer rows are truncated, but axolotl drops them"),
    ),
    WildConfig(
        name="axolotl: all weights and whole conversations, split by FSDP 2",
        content={"base_model": "org/m", "learning_rate": 1e-5, "chat_template": "tokenizer_default",
                 "datasets": [{**_TALKS, "roles_to_train": ["system", "user", "assistant"]}],
                 "optimizer": "adamw_torch", "sequence_len": 1024, "gradient_checkpointing": True,
                 "excess_length_strategy": "truncate", "fsdp_version": 2,
                 "fsdp_config": {"offload_params": False, "cpu_ram_efficient_loading": True,
                                 "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "state_dict_type": "FULL_STATE_DICT",
                                 "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
                                 "reshard_after_forward": True}},
        values={"model.model_name_or_path": "org/m", "tuning.method": "full", "training.learning_rate": 1e-5,
                "task.type": "chat", "task.loss_on": "all", "data.path": "hub:org/talks",
                "training.optim": "adamw_torch_fused", "data.max_length": 1024,
                "training.gradient_checkpointing": True, "distributed.strategy": "fsdp"},
        defaults="axolotl", told=("chat_template: tokenizer_default (always the case: this is the model's own",),
    ),
    WildConfig(
        name="axolotl: FSDP 1, whose parts stay on the host",
        content={"base_model": "org/m", "learning_rate": 1e-5, "datasets": [{"path": "a.jsonl", "type": "completion"}],
                 "fsdp": ["full_shard", "auto_wrap"], "bf16": "full",
                 "fsdp_config": {"fsdp_offload_params": True, "fsdp_use_orig_params": False,
                                 "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}},
        values={"model.model_name_or_path": "org/m", "tuning.method": "full", "training.learning_rate": 1e-5,
                "task.type": "causal_lm", "data.path": "a.jsonl", "distributed.strategy": "fsdp",
                "distributed.cpu_offload": True, "model.dtype": "bfloat16", "training.mixed_precision": "bf16"},
        defaults="axolotl",
    ),
    WildConfig(
        name="axolotl: DeepSpeed beside it, on 4 devices",
        content={**_LORA, "datasets": [{"path": "a.jsonl", "type": "completion"}], "deepspeed": "zero3.json",
                 "micro_batch_size": 2, "gradient_accumulation_steps": 2, "warmup_ratio": 0.1},
        beside={"zero3.json": _ZERO_3}, processes=4,
        values={**_LORA_VALUES, "task.type": "causal_lm", "data.path": "a.jsonl",
                "distributed.strategy": "deepspeed-3", "training.effective_batch_size": 16,
                "training.warmup_steps": 0.1},
        defaults="axolotl", told=("(zero3.json: zero_optimization", "multiplied by --processes 4"),
    ),
    WildConfig(
        name="axolotl: a stream of texts",
        content={"base_model": "org/m", "reinit_weights": True, "learning_rate": 3e-4, "max_steps": 1000,
                 "pretraining_dataset": [{"path": "org/web", "name": "en", "type": "pretrain", "text_column": "body"}],
                 "sequence_len": 1024, "streaming_multipack_buffer_size": 5000, "pretrain_multipack_attn": True},
        values={"model.model_name_or_path": "org/m", "model.init": "scratch", "training.learning_rate": 3e-4,
                "training.max_steps": 1000, "data.path": "hub:org/web", "data.name": "en", "data.text_column": "body",
                "task.type": "causal_lm", "data.streaming": True, "data.max_length": 1024, "tuning.method": "full",
                "training.warmup_steps": 30},
        defaults="axolotl", told=("several rows, but axolotl truncates it", "3 % of all steps, at most 100"),
    ),
    WildConfig(
        name="axolotl: a stream that is named in one word",
        content={"base_model": "org/m", "learning_rate": 3e-4, "max_steps": 1000, "pretraining_dataset": "org/web"},
        values={"model.model_name_or_path": "org/m", "training.learning_rate": 3e-4, "training.max_steps": 1000,
                "data.path": "hub:org/web", "task.type": "causal_lm", "data.streaming": True, "tuning.method": "full",
                "training.warmup_steps": 30},
        defaults="axolotl",
    ),
    WildConfig(
        name="axolotl: several data sets, measured on another",
        content={**_LORA, "datasets": [_TALKS, {"path": "more.jsonl", "ds_type": "json", "type": "chat_template"}],
                 "test_datasets": [{"path": "held.jsonl", "ds_type": "json", "type": "chat_template",
                                    "split": "train"}],
                 "chat_template": "chatml", "eval_steps": 50, "save_steps": 100, "save_total_limit": 2,
                 "early_stopping_patience": 3, "use_wandb": True, "wandb_project": "sheep"},
        values={**_LORA_VALUES, "task.type": "chat", "data.path": "hub:org/talks, more.jsonl",
                "data.eval_path": "held.jsonl", "task.chat_template": "chatml", "evaluation.eval_steps": 50,
                "checkpoint.save_steps": 100, "checkpoint.save_total_limit": 2,
                "evaluation.early_stopping_patience": 3},
        defaults="axolotl",
    ),
    WildConfig(
        name="axolotl: instructions, in the words of Alpaca",
        content={**_LORA, "datasets": [{"path": "org/alpaca", "type": "alpaca"}], "chat_template": "chatml",
                 "dataset_exact_deduplication": True, "batch_size": 64, "micro_batch_size": 4},
        values={**_LORA_VALUES, "task.type": "chat", "data.path": "hub:org/alpaca", "task.chat_template": "alpaca",
                "data.dedup": True, "training.effective_batch_size": 64},
        defaults="axolotl", told=("type alpaca: the input follows the instruction directly, without a heading",),
    ),
    WildConfig(
        name="axolotl: a template in a file beside it, and 4 bits of its own kind",
        content={**_LORA, "adapter": "qlora", "load_in_4bit": True, "datasets": [_TALKS], "chat_template": "jinja",
                 "chat_template_jinja": "talk.jinja", "bnb_config_kwargs": {"bnb_4bit_quant_type": "fp4"}},
        beside={"talk.jinja": "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"},
        values={**_LORA_VALUES, "tuning.method": "qlora", "task.type": "chat", "data.path": "hub:org/talks",
                "task.chat_template": "talk.jinja", "quantization.bnb_4bit_quant_type": "fp4"},
        defaults="axolotl",
    ),
    *(
        WildConfig(name=f"axolotl: {name}", content={**_LORA, "datasets": [{**_TALKS, **entry}], **keys}, refused=words)
        for name, keys, entry, words in (
            ("a stream in its own order", {"shuffle_merged_datasets": False, "streaming": True}, {},
             ("shuffle_merged_datasets: false", "streamed rows")),
            ("a curriculum", {"curriculum_sampling": True}, {}, ("curriculum_sampling: true",)),
            ("special tokens", {"special_tokens": {"eos_token": "<|im_end|>", "pad_token": "<pad>"}}, {},
             ("special_tokens: ", "the tokenizer's eos_token cannot be changed")),
            ("another tokenizer's tokens", {"added_tokens_overrides": {"7": "<a>"}}, {}, ("added_tokens_overrides: ",)),
            ("another tokenizer", {"tokenizer_config": "org/other"}, {}, ("tokenizer_config: org/other",)),
            ("another config", {"base_model_config": "org/other"}, {}, ("base_model_config: org/other",)),
            ("a system message of the run", {"default_system_message": "You are a sheep."}, {},
             ("default_system_message: ",)),
            ("weights in 8 bits", {"load_in_8bit": True}, {}, ("load_in_8bit: true", "training on 8-bit weights")),
            ("a floor that is no share", {"cosine_min_lr_ratio": 10}, {}, ("ratio: 10 cannot be imported",)),
            ("a floor before the end", {"cosine_min_lr_ratio": 0.1, "cosine_constant_lr_ratio": 0.8}, {},
             ("cosine_constant_lr_ratio: 0.8",)),
            ("arguments of the schedule", {"lr_scheduler_kwargs": {"num_cycles": 2}}, {}, ("lr_scheduler_kwargs: ",)),
            ("a schedule that is not here", {"lr_scheduler": "rex"}, {}, ("lr_scheduler: rex",)),
            ("a learning rate of the embeddings", {"embedding_lr": 1e-5}, {}, ("embedding_lr: ",)),
            ("a loss of each token's share", {"liger_use_token_scaling": True}, {},
             ("liger_use_token_scaling: true", "the loss is always cross entropy")),
            ("a plugin of its own", {"plugins": ["mine.Plugin"]}, {}, ("plugins: ", "the effect of custom code")),
            ("a template that is not here", {"chat_template": "mistral_v3_tekken"}, {},
             ("chat_template: mistral_v3_tekken cannot be used here", "--without chat_template")),
            ("arguments of a template", {"chat_template_kwargs": {"enable_thinking": False}}, {},
             ("chat_template_kwargs: ",)),
            ("the end of the last turn only", {}, {"train_on_eos": "last"}, ("unsupported keys: train_on_eos",)),
            ("turns that are chosen in the data", {}, {"message_field_training": "train"},
             ("unsupported keys: message_field_training",)),
            ("a shard of its rows", {}, {"shards": 10}, ("unsupported keys: shards",)),
            ("ShareGPT, whose template went with its version", {}, {"type": "sharegpt"}, ("set a chat_template",)),
            ("FP8", {"fp8": True}, {}, ("fp8: true", "no FP8")),
            ("ranks of each layer", {"lora_rank_pattern": {"q_proj": 4}}, {}, ("lora_rank_pattern: ",)),
            ("sequences that are split", {"context_parallel_size": 2}, {}, ("context_parallel_size: 2",)),
            ("a trainer of its own", {"trainer_cls": "mine.Trainer"}, {}, ("trainer_cls: mine.Trainer",)),
        )
    ),
)  # fmt: skip

# Keys of public files in which something was read wrongly or refused for no reason, with other names and numbers. Of
# axolotl's examples/ at 067b021, LLaMA-Factory's at ff6d4d1 and alignment-handbook's recipes/ at 925acdf.
_TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
_MIXTRAL = {"base_model": "org/m", "datasets": [{"path": "org/a", "type": "alpaca"}], "learning_rate": 2e-4}
_MIXTRAL_VALUES = {"model.model_name_or_path": "org/m", "task.type": "chat", "task.chat_template": "alpaca",
                   "data.path": "hub:org/a", "training.learning_rate": 2e-4, "tuning.method": "full"}  # fmt: skip
_HANDBOOK = {"model_name_or_path": "org/m", "torch_dtype": "bfloat16", "chat_template": _TEMPLATE,
             "max_seq_length": 2048, "learning_rate": 2e-5}  # fmt: skip
_HANDBOOK_VALUES = {"model.model_name_or_path": "org/m", "model.dtype": "bfloat16", "task.type": "chat",
                    "task.chat_template": "imported.jinja", "task.loss_on": "all", "data.max_length": 2048,
                    "tuning.method": "full"}  # fmt: skip
PUBLIC = (
    WildConfig(
        name="axolotl mixtral.yml: the loss of its routers",
        content={**_MIXTRAL, "model_config": {"output_router_logits": True}},
        values={**_MIXTRAL_VALUES, "training.router_aux_loss_coef": "model"}, defaults="axolotl", planned=False,
    ),
    WildConfig(
        name="axolotl: the loss of routers with a weight, and positions",
        content={**_MIXTRAL, "model_config": {"output_router_logits": True, "router_aux_loss_coef": 0.02,
                                              "rope_scaling": {"type": "linear", "factor": 2.0}}},
        values={**_MIXTRAL_VALUES, "training.router_aux_loss_coef": 0.02, "model.rope_scaling.rope_type": "linear",
                "model.rope_scaling.factor": 2},
        defaults="axolotl", planned=False,
    ),
    WildConfig(
        name="axolotl: routers that have no loss",
        content={**_MIXTRAL, "overrides_of_model_config": {"output_router_logits": False}},
        values={**_MIXTRAL_VALUES, "training.router_aux_loss_coef": 0}, defaults="axolotl",
    ),
    WildConfig(
        name="axolotl: another weight for routers whose loss may be off",
        content={**_MIXTRAL, "model_config": {"router_aux_loss_coef": 0.02}},
        refused=("except for model.rope_scaling and training.router_aux_loss_coef; unsupported: router_aux_loss_coef",),
    ),
    WildConfig(
        name="axolotl bigstral-ds-zero3.yaml: a precision that is automatic, and one in DeepSpeed's file",
        content={**_MIXTRAL, "bf16": "auto", "fp16": False, "deepspeed": "zero3.json"},
        beside={"zero3.json": json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})},
        values={**_MIXTRAL_VALUES, "training.mixed_precision": "bf16", "distributed.strategy": "deepspeed-3"},
        defaults="axolotl", told=("bf16: auto (not needed: this key is auto, so the value of another key is used)",),
    ),
    WildConfig(
        name="axolotl: an adapter that trains further",
        content={**_LORA, "lora_model_dir": "out/first", "lora_dropout": 0.05, "datasets": [_TALKS],
                 "loraplus_lr_ratio": 4},
        values={"model.model_name_or_path": "out/first", "tuning.method": "lora", "training.learning_rate": 2e-4,
                "task.type": "chat", "data.path": "hub:org/talks", "tuning.loraplus_lr_ratio": 4},
        defaults="axolotl", told=("lora_r: 16 (not needed: the continued adapter sets this value)",
                                  "base_model: org/m (not needed: the base model is read from"),
    ),
    WildConfig(
        name="LLaMA-Factory: an adapter that trains further",
        content={**_SFT, "adapter_name_or_path": "saves/first", "adapter_folder": "last", "lora_rank": 8,
                 "val_size": 0.1, "lora_target": "all"},
        values={"model.model_name_or_path": "saves/first/last", "tuning.method": "lora",
                "task.chat_template": "llama3", "data.eval_fraction": 0.1},
        defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: a new adapter beside one that is merged",
        content={**_SFT, "adapter_name_or_path": "saves/first", "create_new_adapter": True},
        values={**_SFT_VALUES, "model.model_name_or_path": "saves/first", "tuning.continue_adapter": "merge"},
        defaults="llama_factory", planned=False,
    ),
    WildConfig(
        name="LLaMA-Factory: several adapters", content={**_SFT, "adapter_name_or_path": "a, b", "lora_rank": 8},
        refused=("adapter_name_or_path: a, b cannot be used here: a run can start from only one adapter",),
    ),
    WildConfig(
        name="LLaMA-Factory v1 train_lora.yaml: an adapter that trains further, and a template of its own",
        content={"model": "org/m", "model_class": "llm", "train_dataset": "org/talks",
                 "custom_chat_template": _TEMPLATE,
                 "peft_config": {"name": "lora", "adapter_name_or_path": "out", "r": 16}},
        values={"model.model_name_or_path": "out", "data.path": "hub:org/talks", "tuning.method": "lora",
                "task.chat_template": "imported.jinja"},
        defaults="llama_factory_v1",
    ),
    WildConfig(
        name="LLaMA-Factory llama3_lora_sft_awq.yaml: weights in 4 bits of another kind",
        content={**_SFT, "model_name_or_path": "org/Llama-3-8B-Instruct-AWQ"},
        values={**_SFT_VALUES, "model.model_name_or_path": "org/Llama-3-8B-Instruct-AWQ"}, defaults="llama_factory",
        told=("the weights are stored as AWQ (according to the model's name), which cannot be trained",),
    ),
    WildConfig(
        name="LLaMA-Factory: the older name of new special tokens",
        content={**_SFT, "new_special_tokens": "<|note|>,<|end_note|>"},
        values={**_SFT_VALUES, "model.add_tokens": "<|note|>, <|end_note|>"}, defaults="llama_factory",
    ),
    WildConfig(
        name="LLaMA-Factory: a number of rows is held out",
        content={**_SFT, "dataset": "sheep", "val_size": 200}, beside=_list(sheep={"file_name": "sheep.json"}),
        values={**_SFT_VALUES, "data.path": "sheep.json", "data.split": "train[200:]",
                "data.eval_split": "train[:200]"},
        defaults="llama_factory", told=("the first rows are held out, not random ones",),
    ),
    WildConfig(
        name="LLaMA-Factory: a text in blocks", content={**_SFT, "stage": "pt", "cutoff_len": 512, "lora_rank": 8},
        values={"model.model_name_or_path": "org/m", "task.type": "causal_lm", "tuning.method": "lora", "tuning.r": 8,
                "tuning.lora_alpha": 16, "data.max_length": 512, "data.packing": True},
        defaults="llama_factory",
        told=("several rows, but LLaMA-Factory cuts all texts into blocks", "for 4,096 tokens per step"),
    ),
    WildConfig(
        name="axolotl: a number of rows is held out of a split",
        content={**_LORA, "datasets": [{**_TALKS, "split": "train_sft"}], "val_set_size": 64},
        values={**_LORA_VALUES, "task.type": "chat", "data.path": "hub:org/talks", "data.split": "train_sft[64:]",
                "data.eval_split": "train_sft[:64]"},
        defaults="axolotl",
    ),
    WildConfig(
        name="axolotl: a number of rows is held out of several data sets",
        content={**_LORA, "datasets": [_TALKS, {**_TALKS, "path": "org/more"}], "val_set_size": 64},
        refused=("val_set_size: 64 cannot be imported: a number of rows can only be held out",),
    ),
    WildConfig(
        name="axolotl: the order of the data, which is drawn anew anyway",
        content={**_LORA, "datasets": [_TALKS], "shuffle_merged_datasets": False},
        values={**_LORA_VALUES, "task.type": "chat", "data.path": "hub:org/talks"},
        defaults="axolotl", told=("shuffle_merged_datasets: false (always the case",),
    ),
    WildConfig(
        name="axolotl: adapters on some layers",
        content={**_LORA, "lora_target_linear": None, "lora_target_modules": ["q_proj", "v_proj"],
                 "lora_layers_to_transform": [0, 1], "datasets": [_TALKS]},
        values={**_LORA_VALUES, "task.type": "chat", "data.path": "hub:org/talks",
                "tuning.target_modules": r"\D+\.(0|1)\.(.*\.)?(q_proj|v_proj)"},
        defaults="axolotl",
    ),
    WildConfig(
        name="axolotl: adapters on some layers, all of each",
        content={**_LORA, "peft_layers_to_transform": [0], "datasets": [_TALKS]},
        refused=("peft_layers_to_transform: ", "lora_target_modules must be a list of module names"),
    ),
    WildConfig(
        name="peft: adapters on some layers, by a pattern",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "r": 8, "task_type": "CAUSAL_LM",
                 "target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
        values={"model.model_name_or_path": "org/m", "tuning.method": "lora", "tuning.r": 8, "tuning.lora_alpha": 8,
                "task.type": "causal_lm", "tuning.target_modules": r"(.*\.)?(layers)\.(1)\.(.*\.)?(q_proj)"},
    ),
    WildConfig(
        name="peft: layers that are there several times",
        content={"peft_type": "LORA", "base_model_name_or_path": "org/m", "r": 8, "layer_replication": [[0, 1], [0, 1]],
                 "target_modules": ["q_proj"]},
        refused=("layer_replication: ", "the architecture in config.json cannot be changed"),
    ),
    WildConfig(
        name="axolotl llama3-8b-fsdp2 and others: a floor that is the peak",
        content={**_MIXTRAL, "lr_scheduler": "cosine", "cosine_min_lr_ratio": 1.0, "warmup_steps": 10},
        values={**_MIXTRAL_VALUES, "training.lr_scheduler_type": "constant_with_warmup", "training.warmup_steps": 10},
        defaults="axolotl", told=("the learning rate never decays",),
    ),
    WildConfig(
        name="axolotl: a kernel of its own, rows that end the run, and a stream with packing",
        content={"base_model": "org/m", "learning_rate": 1e-4, "max_steps": 10000, "attn_implementation": "xformers",
                 "pretraining_dataset": [{"path": "org/web", "type": "pretrain"}], "sample_packing": True,
                 "sequence_len": 2048, "micro_batch_size": 4},
        values={"model.model_name_or_path": "org/m", "training.learning_rate": 1e-4, "training.max_steps": 10000,
                "data.path": "hub:org/web", "task.type": "causal_lm", "data.streaming": True, "data.packing": True,
                "data.max_length": 2048, "training.effective_batch_size": 4, "tuning.method": "full",
                "training.warmup_steps": 100},
        defaults="axolotl", told=("rows that overlap by up to 256 tokens", "for 8,192 tokens per step"),
    ),
    WildConfig(
        name="axolotl: attention in 8 bits", content={**_MIXTRAL, "attn_implementation": "fp8"},
        refused=("attn_implementation: fp8 cannot be used here: 8-bit attention",),
    ),
    WildConfig(
        name="axolotl pythia and others: the older name of special tokens",
        content={**_MIXTRAL, "tokens": {"pad_token": "<pad>"}, "excess_length_strategy": "truncate",
                 "sequence_len": 512},
        values={**_MIXTRAL_VALUES, "data.max_length": 512}, defaults="axolotl",
        told=("tokens: {\"pad_token\": \"<pad>\"} (not needed: padding",
              "data.max_length = 512 (longer rows are truncated)"),
    ),
    WildConfig(
        name="axolotl: a template that stands in the file",
        content={**_LORA, "datasets": [_TALKS], "chat_template": "jinja", "chat_template_jinja": _TEMPLATE},
        values={**_LORA_VALUES, "task.type": "chat", "data.path": "hub:org/talks",
                "task.chat_template": "imported.jinja"},
        defaults="axolotl", told=("the template text, in a file next to the config",),
    ),
    WildConfig(
        name="alignment-handbook zephyr-7b-beta: two splits of one data set, of which 1,000 rows are held out",
        content={**_HANDBOOK, "dataset_mixture": {"datasets": [
            {"id": "org/chat", "config": "default", "split": "train_sft", "columns": ["messages"], "weight": 1.0},
            {"id": "org/chat", "config": "default", "split": "test_sft", "columns": ["messages"], "weight": 1.0},
        ], "test_split_size": 1000, "seed": 0}, "dataset_num_proc": 12},
        values={**_HANDBOOK_VALUES, "data.path": "hub:org/chat", "data.split": "train_sft[1000:]+test_sft",
                "data.eval_split": "train_sft[:1000]", "data.seed": 0, "data.num_proc": 12},
        defaults="trl",
    ),
    WildConfig(
        name="alignment-handbook: a part of each data set, and tokens of the template alone",
        content={**_HANDBOOK, "dataset_mixture": {"datasets": [{"id": "org/a", "weight": 0.5}, {"id": "org/b"}],
                                                  "test_split_size": 0.1},
                 "dataset_kwargs": {"add_special_tokens": False, "append_concat_token": False},
                 "eos_token": "<|im_end|>", "packing": True, "packing_strategy": "ffd"},
        values={**_HANDBOOK_VALUES, "data.path": "hub:org/a, hub:org/b", "data.weights": "0.5, 1",
                "data.eval_fraction": 0.1, "data.packing": True},
        defaults="trl", told=("eos_token: <|im_end|> (always the case: the chat template writes this",), planned=False,
    ),
    WildConfig(
        name="alignment-handbook of 2023: shares by name",
        content={**_HANDBOOK, "dataset_mixer": {"org/a": 1.0, "org/b": 0.25},
                 "dataset_splits": ["train_sft", "test_sft"]},
        values={**_HANDBOOK_VALUES, "data.path": "hub:org/a, hub:org/b", "data.weights": "1, 0.25",
                "data.split": "train_sft", "data.eval_split": "test_sft"},
        defaults="trl", planned=False,
    ),
    WildConfig(
        name="TRL: a mixture whose routers have a loss",
        content={"model_name_or_path": "org/m", "dataset_name": "org/d", "max_length": 512,
                 "model_init_kwargs": {"output_router_logits": True, "router_aux_loss_coef": 0.01}},
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "data.max_length": 512,
                "training.router_aux_loss_coef": 0.01, "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl", planned=False,
    ),
    WildConfig(
        name="TRL: the weight of the routers' loss",
        content={"model_name_or_path": "org/m", "dataset_name": "org/d", "router_aux_loss_coef": 0.0,
                 "model_init_kwargs": {"output_router_logits": True}, "max_length": 512},
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "data.max_length": 512,
                "training.router_aux_loss_coef": 0, "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl",
    ),
)  # fmt: skip

TRL = (
    WildConfig(
        name="TRL: the YAML of its command, whole conversations of a data set of the hub",
        content="""model_name_or_path: org/m
dataset_name: org/d
dataset_num_proc: 4
report_to: none
learning_rate: 1.0e-4
lr_scheduler_type: cosine
env: {WANDB_PROJECT: sheep}
""",
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "data.num_proc": 4,
                "training.learning_rate": 1e-4, "training.lr_scheduler_type": "cosine", "tuning.method": "full",
                "task.loss_on": "all"},
        defaults="trl", told=("TRL trains on whole conversations; set task.loss_on = \"completion\" for rows",),
    ),
    WildConfig(
        name="TRL: names of older versions",
        content="""model_name_or_path: org/m
torch_dtype: bfloat16
dataset_name: org/d
dataset_text_field: body
max_seq_length: 512
bf16: true
evaluation_strategy: steps
eval_steps: 100
save_strategy: epoch
num_train_epochs: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
warmup_ratio: 0.1
use_liger: false
""",
        values={"model.model_name_or_path": "org/m", "model.dtype": "bfloat16", "data.path": "hub:org/d",
                "data.text_column": "body", "data.max_length": 512, "training.mixed_precision": "bf16",
                "evaluation.eval_steps": 100, "checkpoint.save_steps": 0.5, "training.num_train_epochs": 2,
                "training.effective_batch_size": 16, "training.warmup_steps": 0.1, "model.kernels": "none",
                "data.eval_split": "test", "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl", told=("the split that TRL evaluates on", "here a longer text is split into several rows"),
    ),
    WildConfig(
        name="TRL: a list of data sets, which is not axolotl's",
        content="""model_name_or_path: org/m
datasets:
  - {path: org/a, split: train}
  - {path: org/b, columns: [messages]}
test_split_size: 0.1
eval_strategy: steps
eval_steps: 50
learning_rate: 2.0e-5
""",
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/a, hub:org/b", "data.eval_fraction": 0.1,
                "evaluation.eval_steps": 50, "training.learning_rate": 2e-5, "tuning.method": "full",
                "task.loss_on": "all"},
        defaults="trl",
    ),
    WildConfig(
        name="TRL: adapters on all layers",
        content="""model_name_or_path: org/m
dataset_name: org/d
use_peft: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.1
lora_target_modules: all-linear
lora_task_type: CAUSAL_LM
use_rslora: true
packing: true
packing_strategy: bfd
max_length: 4096
per_device_train_batch_size: 2
""",
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "tuning.method": "lora", "tuning.r": 32,
                "tuning.lora_alpha": 16, "tuning.lora_dropout": 0.1, "tuning.target_modules": "all-linear",
                "tuning.use_rslora": True, "data.packing": True, "data.max_length": 4096,
                "training.effective_batch_size": 2, "task.loss_on": "all"},
        defaults="trl", told=("the batch size is a number of documents here, but a number of packed rows in",),
    ),
    WildConfig(
        name="TRL: adapters whose layers are not named",
        content={"model_name_or_path": "org/m", "dataset_name": "org/d", "use_peft": True, "lora_r": 8,
                 "gradient_checkpointing": False, "eval_strategy": "no"},
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "tuning.method": "lora", "tuning.r": 8,
                "tuning.target_modules": "q_proj, v_proj", "tuning.lora_dropout": 0.05,
                "training.gradient_checkpointing": False, "evaluation.eval_steps": 0, "task.loss_on": "all"},
        defaults="trl", told=("PEFT's default for Llama",),
    ),
    WildConfig(
        name="TRL: QLoRA of the answers",
        content="""model_name_or_path: org/m
attn_implementation: sdpa
dataset_name: org/d
dataset_config: en
use_peft: true
load_in_4bit: true
bnb_4bit_quant_type: fp4
lora_target_modules: [q_proj, k_proj]
assistant_only_loss: true
optim: paged_adamw_8bit
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
""",
        values={"model.model_name_or_path": "org/m", "model.attn_implementation": "sdpa", "data.path": "hub:org/d",
                "data.name": "en", "tuning.method": "qlora", "quantization.bnb_4bit_quant_type": "fp4",
                "quantization.bnb_4bit_use_double_quant": False, "tuning.target_modules": "q_proj, k_proj",
                "tuning.lora_dropout": 0.05, "task.loss_on": "assistant", "task.type": "chat",
                "training.optim": "paged_adamw_8bit", "training.effective_batch_size": 8},
        defaults="trl",
    ),
    WildConfig(
        name="TRL: the completions alone, as a switch",
        content={"model_name_or_path": "org/m", "dataset_name": "org/d", "completion_only_loss": True,
                 "max_length": 256},
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "task.loss_on": "completion",
                "task.type": "chat", "data.max_length": 256, "tuning.method": "full"},
        defaults="trl",
    ),
    WildConfig(
        name="TRL: the completions alone, because the rows beside it have them",
        content="""model_name_or_path: org/m
datasets: [{path: json, data_files: pairs.jsonl}]
assistant_only_loss: false
padding_free: false
""",
        beside={"pairs.jsonl": '{"prompt": "What sings?", "completion": "A sheep."}\n'},
        values={"model.model_name_or_path": "org/m", "data.path": "pairs.jsonl", "task.loss_on": "completion",
                "task.type": "chat", "tuning.method": "full"},
        defaults="trl", told=("TRL trains only on the completion of rows with a prompt",),
    ),
    WildConfig(
        name="TRL: whole conversations, because the rows beside it are some",
        content={"model_name_or_path": "org/m", "dataset_name": "talks.jsonl", "dataset_num_proc": 1},
        beside={"talks.jsonl": '{"messages": [{"role": "user", "content": "a"},'
                               ' {"role": "assistant", "content": "b"}]}\n'},
        values={"model.model_name_or_path": "org/m", "data.path": "talks.jsonl", "data.num_proc": 1,
                "task.loss_on": "all", "tuning.method": "full"},
        defaults="trl",
    ),
    WildConfig(
        name="TRL: streaming, whose length is steps",
        content="""model_name_or_path: org/m
dataset_name: org/d
dataset_streaming: true
dataset_train_split: train
max_steps: 1000
save_strategy: steps
save_steps: 200
save_total_limit: 2
logging_steps: 5
""",
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "data.streaming": True,
                "training.max_steps": 1000, "checkpoint.save_steps": 200, "checkpoint.save_total_limit": 2,
                "logging.logging_steps": 5, "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl",
    ),
    WildConfig(
        name="TRL: measured and saved once an epoch",
        content="""model_name_or_path: org/m
dataset_name: org/d
dataset_train_split: train_sft
dataset_test_split: test_sft
eval_strategy: epoch
save_strategy: epoch
num_train_epochs: 4
per_device_eval_batch_size: 8
seed: 7
hub_model_id: me/m
push_to_hub: false
""",
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "data.split": "train_sft",
                "data.eval_split": "test_sft", "evaluation.eval_steps": 0.25, "checkpoint.save_steps": 0.25,
                "training.num_train_epochs": 4, "evaluation.per_device_eval_batch_size": 8, "training.seed": 7,
                "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl",
    ),
    WildConfig(
        name="TRL: two processes by its own name of a launch file",
        content="""model_name_or_path: org/m
dataset_name: org/d
packing: false
accelerate_config: zero3
num_processes: 2
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
""",
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "data.packing": False,
                "distributed.strategy": "deepspeed-3", "distributed.processes": 2, "training.effective_batch_size": 16,
                "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl", told=("the batch size of one device in the file, multiplied by --processes 2",),
    ),
    WildConfig(
        name="TRL: a launch file beside it",
        content={"model_name_or_path": "org/m", "dataset_name": "org/d", "accelerate_config": "launch.yaml"},
        beside={"launch.yaml": "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n"},
        values={"model.model_name_or_path": "org/m", "data.path": "hub:org/d", "distributed.strategy": "ddp",
                "distributed.processes": 2, "training.mixed_precision": "bf16", "training.effective_batch_size": 16,
                "tuning.method": "full", "task.loss_on": "all"},
        defaults="trl",
    ),
    _of("trl", "the start of a long row is kept", truncation_mode="keep_end"),
    _of("trl", "texts end with the tokenizer's own", eos_token="<|im_end|>"),
    _of("trl", "only the schedules cosine_with_min_lr and", lr_scheduler_kwargs={"num_cycles": 2}),
    _of("trl", "the only supported optimizer arguments", optim_args="betas=0.9"),
    _of("trl", "one optimizer updates all", optim_target_modules=["attn"]),
    _of("trl", "adapters are trained on 16-bit", load_in_8bit=True),
    _of("trl", "on 4-bit weights, only adapters", load_in_4bit=True, use_peft=False),
    _of("trl", "TRL trains all weights unless use_peft", lora_r=8, use_peft=None),
    _of("trl", "rows are packed by best fit here", packing_strategy="wrapped", packing=True),
    _of("trl", "the entry does not say where its data is", datasets=[{"path": "imdb"}]),
    _of("trl", "a run has one configuration and the same splits",
        dataset_mixture={"datasets": [{"id": "org/a", "config": "en"}, {"id": "org/b", "split": "sft"}]}),
    _of("trl", "unsupported keys: chat_template_kwargs",
        dataset_mixture={"datasets": [{"id": "org/a", "columns": ["messages", "chat_template_kwargs"]}]}),
    _of("trl", "the tokenizer and config.json must be", tokenizer_name="org/other"),
    WildConfig(
        name="TRL: data that is prepared already",
        content={"model_name_or_path": "org/m", "dataset_kwargs": {"skip_prepare_dataset": True}, "packing": False},
        refused=("dataset_kwargs.skip_prepare_dataset: true cannot be used here",),
    ),
    WildConfig(
        name="TRL: the template of another model",
        content={"model_name_or_path": "org/m", "dataset_name": "org/d", "chat_template_path": "org/other"},
        refused=("chat_template_path: org/other cannot be imported: a template cannot be read from another tokenizer",),
    ),
)  # fmt: skip

ACCELERATE = (
    WildConfig(
        name="accelerate: two GPUs",
        content="""compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
""",
        values={"distributed.strategy": "ddp", "distributed.processes": 2, "training.mixed_precision": "fp16"},
    ),
    WildConfig(
        name="accelerate: FSDP 1, which recomputes",
        content="""distributed_type: FSDP
mixed_precision: bf16
num_processes: 2
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: 1
  fsdp_activation_checkpointing: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_use_orig_params: true
""",
        values={"distributed.strategy": "fsdp", "distributed.processes": 2, "training.mixed_precision": "bf16",
                "training.gradient_checkpointing": True},
    ),
    WildConfig(
        name="accelerate: FSDP 2, whose parts stay on the host",
        content={"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 2,
                 "num_machines": 1, "mixed_precision": "bf16",
                 "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": True,
                                 "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_cpu_ram_efficient_loading": True}},
        values={"distributed.strategy": "fsdp", "distributed.processes": 2, "distributed.cpu_offload": True,
                "training.mixed_precision": "bf16"},
    ),
    WildConfig(
        name="accelerate: DeepSpeed 2",
        content="""distributed_type: DEEPSPEED
num_processes: 2
mixed_precision: bf16
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
""",
        values={"distributed.strategy": "deepspeed-2", "distributed.processes": 2, "training.mixed_precision": "bf16"},
        told=("set by the training script",),
    ),
    WildConfig(
        name="accelerate: DeepSpeed 3, whose parts stay on the host",
        content="""distributed_type: DEEPSPEED
num_processes: 2
deepspeed_config: {offload_optimizer_device: cpu, offload_param_device: cpu, zero3_init_flag: true, zero_stage: 3}
""",
        values={"distributed.strategy": "deepspeed-3", "distributed.processes": 2, "distributed.cpu_offload": True},
    ),
    WildConfig(
        name="accelerate: DeepSpeed, whose own file lies beside it",
        content="""distributed_type: DEEPSPEED
num_processes: 2
num_machines: 1
deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: true}
""",
        beside={"ds.json": '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": true},'
                           ' "gradient_clipping": 0.5, "train_batch_size": "auto"}'},
        values={"distributed.strategy": "deepspeed-3", "distributed.processes": 2, "training.max_grad_norm": 0.5},
        told=("ds.json: zero_optimization.stage",),
    ),
    WildConfig(
        name="accelerate: DeepSpeed, whose own file is not near",
        content="distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
        refused=("the file ds.json, which says what DeepSpeed splits, was not found",),
    ),
    WildConfig(
        name="accelerate: two machines",
        content="""distributed_type: MULTI_GPU
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29500
mixed_precision: bf16
num_machines: 2
num_processes: 4
rdzv_backend: c10d
same_network: true
""",
        values={"distributed.strategy": "ddp", "distributed.processes": 2, "distributed.nodes": 2,
                "distributed.rendezvous": "10.0.0.1:29500", "training.mixed_precision": "bf16"},
        told=("run `tui-trainer join --node-rank` on each further machine",),
    ),
    WildConfig(
        name="accelerate: numbers of 8 bits",
        content='distributed_type: "NO"\nmixed_precision: fp8\nfp8_config: {backend: TE, fp8_format: E4M3}\n',
        refused=("mixed_precision: fp8 cannot be used here: 8-bit training",),
    ),
    WildConfig(
        name="accelerate: a Mac",
        content="compute_environment: LOCAL_MACHINE\ndistributed_type: MPS\nmixed_precision: 'no'\nnum_processes: 1\n",
        values={"distributed.processes": 1, "training.mixed_precision": "no"},
        told=("distributed_type: MPS (not supported: training runs on NVIDIA GPUs or a CPU)",),
    ),
    WildConfig(
        name="accelerate: a TPU",
        content="distributed_type: XLA\nmixed_precision: bf16\nnum_processes: 2\ntpu_name: sheep\n",
        values={"distributed.processes": 2, "training.mixed_precision": "bf16"},
        told=("distributed_type: XLA (not supported",),
    ),
    WildConfig(
        name="accelerate: layers that several processes share",
        content={"distributed_type": "FSDP", "num_processes": 8, "num_machines": 1, "fsdp_config": {"fsdp_version": 2},
                 "parallelism_config": {"parallelism_config_cp_size": 4, "parallelism_config_dp_shard_size": 2,
                                        "parallelism_config_tp_size": 1}},
        refused=("parallelism_config.parallelism_config_cp_size: 4 cannot be used here: each process",),
    ),
    WildConfig(
        name="accelerate: Megatron",
        content={"distributed_type": "MEGATRON_LM", "num_processes": 8,
                 "megatron_lm_config": {"megatron_lm_tp_degree": 2}},
        refused=("distributed_type: MEGATRON_LM cannot be used here",),
    ),
)  # fmt: skip

ARGUMENTS = (
    WildConfig(
        name="run_clm: texts that fill whole rows",
        content={"model_name_or_path": "org/m", "tokenizer_name": "org/m", "train_file": "a.txt", "block_size": 128,
                 "validation_file": "b.txt", "do_train": True, "do_eval": True, "output_dir": "out",
                 "overwrite_output_dir": True, "per_device_train_batch_size": 2, "num_train_epochs": 1},
        values={"model.model_name_or_path": "org/m", "data.path": "a.txt", "data.eval_path": "b.txt",
                "data.max_length": 128, "data.packing": True, "output.runs_dir": "out",
                "training.effective_batch_size": 2, "training.num_train_epochs": 1, "tuning.method": "full"},
        defaults="transformers", told=("tokenizer_name: org/m (not needed", "the batch size is a number of documents"),
    ),
    WildConfig(
        name="run_clm: the tokenizer of another model",
        content={"model_name_or_path": "org/m", "tokenizer_name": "org/other", "train_file": "a.txt",
                 "block_size": 128},
        refused=("tokenizer_name: org/other cannot be used here: the tokenizer and config.json must be",),
    ),
    WildConfig(
        name="run_summarization: an input and its summary",
        content={"model_name_or_path": "org/t5", "train_file": "a.csv", "text_column": "body", "summary_column": "gist",
                 "max_source_length": 256, "max_target_length": 64, "val_max_target_length": 64, "num_beams": 4,
                 "source_prefix": "summarize: ", "predict_with_generate": True, "do_train": True},
        kind="transformers", model="text to text",
        values={"model.model_name_or_path": "org/t5", "data.path": "a.csv", "data.text_column": "body",
                "data.target_column": "gist", "data.max_length": 256, "task.max_target_length": 64,
                "task.source_prefix": "summarize: ", "tuning.method": "full"},
        defaults="transformers",
    ),
    WildConfig(
        name="run_translation: the languages of a translation",
        content={"model_name_or_path": "org/t5", "train_file": "a.json", "source_lang": "en", "target_lang": "ro",
                 "max_source_length": 128, "do_train": True},
        refused=("source_lang: en cannot be used here", "target_lang: ro cannot be used here"),
    ),
    WildConfig(
        name="TrainingArguments of version 4 with adafactor, which wins over optim",
        content={"model_name_or_path": "org/m", "adafactor": True, "optim": "adamw_hf", "learning_rate": 1e-3,
                 "logging_dir": "logs", "no_cuda": False, "past_index": -1},
        values={"model.model_name_or_path": "org/m", "training.optim": "adafactor", "training.learning_rate": 1e-3,
                "tuning.method": "full"},
        defaults="transformers", told=("optim: adamw_hf (not needed: adafactor takes precedence)",),
    ),
    WildConfig(
        name="TrainingArguments that end with the best weights",
        content={"model_name_or_path": "org/m", "load_best_model_at_end": True, "eval_strategy": "steps",
                 "eval_steps": 50, "metric_for_best_model": "eval_loss", "greater_is_better": False,
                 "logging_dir": "logs", "per_device_train_batch_size": 8},
        values={"model.model_name_or_path": "org/m", "evaluation.early_stopping_patience": 1000000,
                "evaluation.eval_steps": 50, "evaluation.metric_for_best_model": "loss", "tuning.method": "full"},
        defaults="transformers", told=("keeps the best weights",),
    ),
    WildConfig(
        name="TrainingArguments whose DeepSpeed file has a schedule of its own",
        content={"model_name_or_path": "org/m", "deepspeed": "ds.json", "learning_rate": 1e-5, "logging_dir": "logs",
                 "per_device_train_batch_size": 4, "bf16": True},
        beside={"ds.json": '{"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 50}},'
                           ' "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}'},
        values={"model.model_name_or_path": "org/m", "distributed.strategy": "deepspeed-2", "training.warmup_steps": 50,
                "training.lr_scheduler_type": "constant_with_warmup", "training.learning_rate": 1e-5,
                "training.effective_batch_size": 4, "training.mixed_precision": "bf16", "tuning.method": "full"},
        defaults="transformers", told=("ds.json: scheduler.type",),
    ),
    WildConfig(
        name="a script that says the usual loss",
        content="model_name: org/m\nloss: cross_entropy\nbatch_size: 4\nepochs: 3\nlr: 5.0e-5\nuse_qlora: false\n",
        values={"model.model_name_or_path": "org/m", "training.effective_batch_size": 4,
                "training.num_train_epochs": 3, "training.learning_rate": 5e-5},
        told=("loss: cross_entropy (always the case",),
    ),
    _of("training_script", "on 4-bit weights, only adapters", use_qlora=True, use_lora=False),
    _of("training_script", "the tokenizer and config.json must be", tokenizer="org/other"),
    _of("peft", "only plain adapters", velora_config={"rank": 1}),
    _of("peft", "only plain LoRA is supported", use_something_new=True),
    WildConfig(
        name="DeepSpeed's JSON with Adam of another kind",
        content={"zero_optimization": {"stage": 2}, "train_batch_size": 8, "gradient_clipping": 1.0,
                 "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "adam_w_mode": False}}},
        refused=("optimizer.params.adam_w_mode: false cannot be used here",),
    ),
)  # fmt: skip

TOML = (
    WildConfig(
        name="TOML of torchtitan",
        content="""[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
tensor_parallel_degree = 1
""",
        file="llama3_8b.toml",
        refused=("looks like a file of torchtitan, which is not supported",),
    ),
    WildConfig(
        name="TOML of Kohya's scripts",
        content="""pretrained_model_name_or_path = "org/sd"
network_module = "networks.lora"
train_data_dir = "img"
learning_rate = 1e-4
""",
        file="lora.toml",
        refused=("looks like a file of Kohya's scripts",),
    ),
    WildConfig(
        name="a pyproject.toml",
        content='[project]\nname = "sheep"\nversion = "0.1"\n[build-system]\nrequires = ["hatchling"]\n',
        file="pyproject.toml",
        refused=("is a pyproject.toml, not a training config",),
    ),
    WildConfig(
        name="TOML of nobody's", content='[flock]\nsheep = 3\n', file="flock.toml",
        refused=("of all supported tools are YAML or JSON (keys found: flock)",),
    ),
    WildConfig(
        name="TOML of this program", content='schema_version = 1\n[training]\nlearning_rate = 1e-4\n', file="mine.toml",
        refused=("is already a config of tui-trainer", "tui-trainer plan mine.toml"),
    ),
)  # fmt: skip

GROUPS: Mapping[str, tuple[WildConfig, ...]] = {
    "scripts, methods and adapters": (*SCRIPTS, *DUMPS, *FOREIGN, *METHODS, *ADAPTERS, *TOML),
    "LLaMA-Factory": LLAMA_FACTORY,
    "Axolotl": AXOLOTL,
    "public examples": PUBLIC,
    "TRL and Accelerate": (*TRL, *ACCELERATE, *ARGUMENTS),
}
