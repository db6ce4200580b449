"""axolotl's YAML.

Source: src/axolotl/utils/schemas/ of axolotl-ai-cloud/axolotl at 067b021c8.
"""

from typing import Any

from tui_trainer.data.sources.hub import MAIN, HubPath
from tui_trainer.data.sources.hub import PREFIX as HUB_PREFIX
from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, Refused, Same, To, Together, Why
from tui_trainer.importing.conversion import Conversion, off
from tui_trainer.importing.data_places import data_place
from tui_trainer.local_paths import is_here
from tui_trainer.safe_text import one_line

_FILES = (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".txt", ".gz", ".md")
_TALKS = ("chat_template", "sharegpt", "alpaca", "input_output")
_OWN_TOKENS = Off("the tokenizer stays as it is")
_NO_PART = Off("there is no such part")
_NO_REWARDS = "models learn from texts and answers, not from preferences or rewards"
# What it calls num_epochs, lr_scheduler and optimizer.
_OTHER_NAMES = ("num_train_epochs", "lr_scheduler_type", "optim")
_NOT_SENT = Left(Why.NOT_NEEDED, "nothing is sent anywhere")


def _sources(done: Conversion) -> None:
    """The lists of data sets: a path for each entry."""
    for name, key in (("datasets", "data.path"), ("test_datasets", "data.eval_path"), ("pretraining_dataset", "")):
        found = done.first(name)
        if not found:
            continue
        entries = found[1] if isinstance(found[1], list) else [found[1]]
        if not all(isinstance(one, dict) for one in entries):
            done.leave(Why.NOT_SUPPORTED, "not every entry says where its data is; data.path names files", name)
            continue
        key = key or "data.path"
        found_places = [_places(one) for one in entries]
        places = [place for some in found_places for place in some]
        if all(found_places):
            done.write(key, places if len(places) > 1 else places[0], name, ours=False)
        else:
            which = "it does" if len(entries) == 1 else "one of its entries does"
            reason = f"{which} not say where its data is; give a file or hub:owner/name as {key}"
            done.leave(Why.NOT_SUPPORTED, reason, name)
        if name != "test_datasets":
            _task(done, name, entries)


def _places(one: dict[str, Any]) -> list[str]:
    """The paths of one entry; empty where it names none."""
    path, files = one.get("path"), one.get("data_files")
    listed = [str(name) for name in files] if isinstance(files, list) else [str(files)] if files else []
    place = str(data_place(path))
    if place.startswith(HUB_PREFIX):
        revision = str(one.get("revision") or MAIN)
        return [str(HubPath(str(path), revision, inside)) for inside in listed or [""]]
    local = listed or ([str(path)] if path else [])
    return local if all(map(_is_local, local)) else []


def _is_local(path: str) -> bool:
    return path.endswith(_FILES) or path.startswith(("/", "./", "../", "~")) or is_here(path)


def _task(done: Conversion, name: str, entries: list[dict[str, Any]]) -> None:
    """What all entries are read as, where they agree."""
    forms = list(dict.fromkeys(str(one.get("type")) for one in entries))
    read = {"path", "data_files", "ds_type", "revision"}
    if all(form.startswith(_TALKS) for form in forms):
        done.write("task.type", "chat", name, reason=f"type {one_line(', '.join(forms), 40)}")
        read |= {"type"}
    elif name == "pretraining_dataset" or all(form == "completion" for form in forms):
        done.write("task.type", "causal_lm", name)
        read |= {"type"}
        columns = {str(one.get("field") or one.get("text_column") or "") for one in entries}
        if len(columns) == 1:
            read |= {"field", "text_column"}
            if column := columns.pop():
                done.write("data.text_column", column, name, ours=False)
    elif forms != ["None"]:
        other = [form for form in forms if form != "completion" and not form.startswith(_TALKS)]
        told = one_line(", ".join("of its own" if form.startswith("{") else form for form in other or forms), 60)
        why = f"no task here reads the type {told}; nearest: chat_template (chat) and completion (causal_lm)"
        done.leave(Why.REFUSED, why if other else f"one run learns one task, and the types are {told}", name)
        read |= {"type"}
    unread = (key for one in entries for key, value in one.items() if key not in read and not off(value))
    if rest := list(dict.fromkeys(unread)):
        names = one_line(", ".join(map(str, rest)), 60)
        done.leave(Why.NOT_SUPPORTED, f"not read of it: {names}; the columns of the data say what it is", name)


def _all_layers(done: Conversion) -> None:
    """`lora_target_linear` is every layer, whatever else is named."""
    found = done.first("lora_target_linear")
    if found and found[1] is True:
        done.write("tuning.target_modules", "all-linear", "lora_target_linear")
        if done.first("lora_target_modules"):
            done.leave(Why.NOT_NEEDED, "lora_target_linear takes all layers", "lora_target_modules")


def _kernels(done: Conversion) -> None:
    """One switch a kernel, as our one setting."""
    switches = {
        "flash_attention": "flash_attention_2",
        "sdp_attention": "sdpa",
        "flex_attention": "flex_attention",
        "eager_attention": "eager",
    }
    for name, kernel in switches.items():
        found = done.first(name)
        if found and found[1] is True and not done.has("attn_implementation"):
            done.write("model.attn_implementation", kernel, name)


KIND = Kind(
    name="axolotl",
    title="axolotl",
    rank=8,
    telltale=frozenset(
        {
            "base_model", "sequence_len", "micro_batch_size", "num_epochs", "sample_packing", "adapter", "val_set_size",
            "lora_target_linear", "datasets", "dataset_prepared_path", "optimizer", "lr_scheduler", "evals_per_epoch",
            "saves_per_epoch", "pad_to_sequence_len", "wandb_project", "special_tokens", "train_on_inputs",
            "model_type", "tokenizer_type", "lora_model_dir", "flash_attention", "strict",
        }
    ),
    rules={
        **{name: rule for name, rule in trainer_names.RULES.items() if name not in _OTHER_NAMES},
        **trainer_names.MODEL,
        **trainer_names.LORA,
        **trainer_names.FOUR_BITS,
        "base_model": To("model.model_name_or_path"),
        "revision_of_model": To("model.revision"),
        "base_model_config": Left(Why.AUTOMATIC, "the model's own config.json counts"),
        "model_type": Left(Why.AUTOMATIC, "the model's own config.json says it"),
        "tokenizer_type": Left(Why.AUTOMATIC, "the tokenizer is the model's own"),
        "tokenizer_config": Left(Why.AUTOMATIC, "the tokenizer is the model's own"),
        "processor_type": Off("models learn from texts"),
        "reinit_weights": To("model.init", values={True: "scratch", False: "pretrained"}),
        "lora_target_linear": Off("tuning.target_modules names the layers"),
        "lora_model_dir": Off("a new adapter is trained; `tui-trainer resume RUN` goes on with one"),
        "lora_fan_in_fan_out": Left(Why.AUTOMATIC, "the layer's own class says it"),
        "peft_use_rslora": To("tuning.use_rslora"),
        "peft_use_dora": To("tuning.use_dora"),
        "lora_on_cpu": Off("an adapter is where its layer is"),
        "sequence_len": To("data.max_length"),
        "sample_packing": To("data.packing", "documents in one row do not see each other here"),
        "eval_sample_packing": Left(Why.AUTOMATIC, "held-out rows are packed as the others are"),
        "pad_to_sequence_len": Left(Why.AUTOMATIC, "rows are padded to the longest of their batch, or packed"),
        "excess_length_strategy": Left(Why.AUTOMATIC, "what is longer than data.max_length is counted and told"),
        "batch_size": To("training.effective_batch_size"),
        "eval_batch_size": To("evaluation.per_device_eval_batch_size"),
        "num_epochs": To("training.num_train_epochs"),
        "optimizer": To("training.optim", values=trainer_names.OPTIMISERS),
        "lr_scheduler": To("training.lr_scheduler_type", values=trainer_names.SCHEDULERS),
        "gradient_checkpointing": To("training.gradient_checkpointing", values={"offload": True, "unsloth": True}),
        "activation_offloading": Off("activations stay on the GPU; training.gradient_checkpointing saves them"),
        "torch_compile": To("training.torch_compile", leave={"auto": Left(Why.AUTOMATIC, "off where nothing is said")}),
        "val_set_size": To("data.eval_fraction"),
        "dataset_prepared_path": trainer_names.CACHED,
        "dataset_processes": To("data.num_proc"),
        "dataset_num_proc": To("data.num_proc"),
        "dataset_exact_deduplication": To("data.dedup"),
        "shuffle_merged_datasets": Left(Why.ALWAYS, "rows come in a new order in each epoch"),
        "skip_prepare_dataset": Off("data is always prepared"),
        "streaming": Off("data is prepared before the run"),
        "datasets": Left(Why.NOT_SUPPORTED, "data.path names files and folders"),
        "chat_template": To(
            "task.chat_template",
            values={"chatml": "chatml", "llama3": "llama3"},
            otherwise=Left(Why.AUTOMATIC, "the model's own chat template counts; task.chat_template names another"),
        ),
        "chat_template_jinja": Off("task.chat_template names a .jinja file"),
        "default_system_message": Off("the data's own system messages count"),
        "xformers_attention": Off("torch's fused attention is used"),
        "float16": To("model.dtype", values={True: "float16"}, leave={False: Left(Why.NOT_NEEDED, "off")}),
        "bfloat16": To("model.dtype", values={True: "bfloat16"}, leave={False: Left(Why.NOT_NEEDED, "off")}),
        "special_tokens": _OWN_TOKENS,
        "tokens": _OWN_TOKENS,
        "eot_tokens": _OWN_TOKENS,
        "resize_token_embeddings_to_32x": _OWN_TOKENS,
        "loss_watchdog_threshold": Off("a loss that is no number is shown, and nothing stops by itself"),
        "loss_watchdog_patience": Left(Why.NOT_NEEDED, "it belongs to the watchdog"),
        "plugins": _NO_PART,
        "rl": Refused(_NO_REWARDS),
        "strict": Left(Why.ALWAYS, "an unknown setting is an error"),
        "output_dir": trainer_names.RULES["output_dir"],
        "auto_resume_from_checkpoints": trainer_names.RESUMED,
        "save_first_step": Off("`tui-trainer ask RUN save` saves at once"),
        "use_tensorboard": Off("the run's own journal is always written"),
        "unfrozen_parameters": Off("models learn whole or beside frozen weights"),
        "chunked_cross_entropy": trainer_names.OWN_KERNELS,
        "cut_cross_entropy": trainer_names.OWN_KERNELS,
        "gc_steps": To("training.empty_cache_steps", leave={-1: Left(Why.NOT_NEEDED, "off in the file")}),
        "dp_shard_size": Off(trainer_names.ONE_PROCESS),
        "tensor_parallel_size": Same((1,), trainer_names.ONE_PROCESS, trainer_names.ONE_PROCESS),
        "context_parallel_size": Same((1,), trainer_names.ONE_PROCESS, trainer_names.ONE_PROCESS),
        "world_size": Left(Why.NOT_NEEDED, trainer_names.ONE_PROCESS),
    },
    together=(
        together.batch(("micro_batch_size",), trainer_names.ACCUMULATION, micro_default=1, packing="sample_packing"),
        together.precision(),
        together.warmup(),
        together.cadence(
            "evaluation.eval_steps", ("eval_strategy", "evaluation_strategy"), "eval_steps", epochs="num_epochs",
            epochs_default=1.0, per_epoch="evals_per_epoch",
        ),
        together.cadence(
            "checkpoint.save_steps", ("save_strategy",), "save_steps", epochs="num_epochs", epochs_default=1.0,
            per_epoch="saves_per_epoch",
        ),
        together.loss_on("train_on_inputs"),
        together.method(
            "adapter",
            {"lora": "lora", "qlora": "qlora"},
            four_bit=("load_in_4bit",),
            lora=trainer_names.LORA_NAMES,
            model=("base_model",),
            otherwise="full",
        ),
        Together(("datasets", "test_datasets", "pretraining_dataset"), _sources),
        Together(("lora_target_linear", "lora_target_modules"), _all_layers),
        Together(("flash_attention", "sdp_attention", "flex_attention", "eager_attention"), _kernels),
    ),
    families={
        **trainer_names.FAMILIES,
        "*_attention": Left(Why.AUTOMATIC, "the kernel is chosen where none is asked for"),
        "wandb_*": _NOT_SENT,
        "mlflow_*": _NOT_SENT,
        "comet_*": _NOT_SENT,
        "swanlab_*": _NOT_SENT,
        "liger_*": trainer_names.OWN_KERNELS,
        "lora_*_kernel": trainer_names.OWN_KERNELS,
        "fused_*": trainer_names.OWN_KERNELS,
        "tokenizer_*": Left(Why.AUTOMATIC, "the tokenizer is the model's own"),
        "peft_*": Off("plain LoRA is trained"),
        **dict.fromkeys(("lora_*", "loraplus_*", "relora*"), Off("plain LoRA is trained")),
        **dict.fromkeys(("use_*", "quantize_*", "*_implementation", "flash_*", "gptq*", "qat", "tiled_*"), _NO_PART),
        **dict.fromkeys(("reward_model", "process_reward_model"), Refused(_NO_REWARDS)),
        **dict.fromkeys(("reward_*", "trl", "vllm", "ebft", "kto_*", "dpo_*", "orpo_*"), Off(_NO_REWARDS)),
        **dict.fromkeys(("cosine_*", "lr_*", "eta_min"), Off("the schedules take no arguments")),
        "model_*": Off("the model's own config.json counts"),
    },
    defaults={
        "training.effective_batch_size": 1,
        "training.num_train_epochs": 1,
        "data.max_length": 512,
        "data.packing": False,
        "data.eval_fraction": 0,
    },
)  # fmt: skip
