"""axolotl's YAML.

Source: src/axolotl/utils/schemas/ of axolotl-ai-cloud/axolotl at 067b021c8.
"""

from typing import Any

from tui_trainer.data.sources.hub import MAIN, PREFIX, HubPath
from tui_trainer.importing.conversion import Conversion, Group, Importer
from tui_trainer.importing.groups import PRECISION, TRACKERS, WARMUP, batch, cadence, method
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Same, To, Why
from tui_trainer.importing.values import data_place, off
from tui_trainer.local_paths import is_here
from tui_trainer.safe_text import one_line

_FILES = (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".txt", ".gz", ".md")
_CONVERSATIONS = ("chat_template", "sharegpt", "alpaca")
_NO_REWARDS = "models learn from texts and answers, not from preferences or rewards"
_KERNEL = Automatic("the kernel is chosen where none is asked for")
_OFF = NotNeeded("off")
_WHOLE_LAYERS = "each process computes whole layers; distributed.strategy = fsdp splits their weights"
# Not its alpaca, which has no sentence before the first instruction, nor those of mistral, which put spaces elsewhere.
_TEMPLATES = hf.chat_template(chatml="chatml", gemma="gemma", llama3="llama3", phi_3="phi3", phi_35="phi3")


def _sources(done: Conversion) -> None:
    """The lists of data sets: a path for each entry."""
    for name, key in (
        ("datasets", "data.path"), ("test_datasets", "data.eval_path"), ("pretraining_dataset", "data.path"),
    ):  # fmt: skip
        found = done.first(name)
        if not found:
            continue
        entries = found[1] if isinstance(found[1], list) else [found[1]]
        if not all(isinstance(one, dict) for one in entries):
            done.leave(Why.NOT_SUPPORTED, "not every entry says where its data is; data.path names files", name)
            continue
        by_entry = [_places(one) for one in entries]
        if all(by_entry):
            places = [place for some in by_entry for place in some]
            done.write(key, places if len(places) > 1 else places[0], name, ours=False)
        else:
            which = "it does" if len(entries) == 1 else "one of its entries does"
            reason = f"{which} not say where its data is; give a file or hub:owner/name as {key}"
            done.leave(Why.NOT_SUPPORTED, reason, name)
        read = _part(done, name, entries)
        if name != "test_datasets":
            _task(done, name, entries, read)


def _places(one: dict[str, Any]) -> list[str]:
    """The paths of one entry; empty where it names none."""
    path, files = one.get("path"), one.get("data_files")
    listed = [str(name) for name in files] if isinstance(files, list) else [str(files)] if files else []
    if str(data_place(path)).startswith(PREFIX):
        revision = str(one.get("revision") or MAIN)
        return [str(HubPath(str(path), revision, inside)) for inside in listed or [""]]
    local = listed or ([str(path)] if path else [])
    is_local = (one.endswith(_FILES) or one.startswith(("/", "./", "../", "~")) or is_here(one) for one in local)
    return local if all(is_local) else []


def _part(done: Conversion, name: str, entries: list[dict[str, Any]]) -> set[str]:
    """The configuration and the split of the only data set, and its keys that say them; of several, none."""
    places = [place for one in entries for place in _places(one)]
    if len(entries) != 1 or len(places) != 1:
        return set()
    trained = name != "test_datasets"
    # A file has no other split there, so that train is all of it.
    usual = "train" if trained or places[0].endswith(_FILES) else ""
    parts = [("split", "data.split" if trained else "data.eval_split", usual)]
    parts += [("name", "data.name", "default")] if trained else []
    for key, setting, default in parts:
        if (value := entries[0].get(key)) and value != default:
            done.write(setting, value, name, ours=False)
    return {key for key, _, _ in parts}


def _task(done: Conversion, name: str, entries: list[dict[str, Any]], read: set[str]) -> None:
    """What all entries are read as, where they agree. `read`: their keys that other settings took."""
    forms = list(dict.fromkeys(str(one.get("type")) for one in entries))
    read = read | {"path", "data_files", "ds_type", "revision"}
    if all(form.startswith(_CONVERSATIONS) for form in forms):
        done.write("task.type", "chat", name, reason=f"type {one_line(', '.join(forms), 40)}")
        read |= {"type"}
        if forms == ["alpaca"]:
            _alpaca(done, name)
    elif name == "pretraining_dataset" or all(form == "completion" for form in forms):
        done.write("task.type", "causal_lm", name)
        read |= {"type"}
        columns = {str(one.get("field") or one.get("text_column") or "") for one in entries}
        if len(columns) == 1:
            read |= {"field", "text_column"}
            if column := columns.pop():
                done.write("data.text_column", column, name, ours=False)
    elif forms != ["None"]:
        other = [form for form in forms if form != "completion" and not form.startswith(_CONVERSATIONS)]
        shown = one_line(", ".join("of its own" if form.startswith("{") else form for form in other or forms), 60)
        why = f"no task here reads the type {shown}; nearest: chat_template (chat) and completion (causal_lm)"
        done.leave(Why.REFUSED, why if other else f"one run learns one task, and the types are {shown}", name)
        read |= {"type"}
    unread = (key for one in entries for key, value in one.items() if key not in read and not off(value))
    if rest := list(dict.fromkeys(unread)):
        names = one_line(", ".join(map(str, rest)), 60)
        done.leave(Why.NOT_SUPPORTED, f"not read of it: {names}; the columns of the data say what it is", name)


def _alpaca(done: Conversion, name: str) -> None:
    """The type is a format of its own, whatever chat template is named beside it."""
    reason = "type alpaca; an input stands below its instruction, without a heading, here"
    done.write("task.chat_template", "alpaca", name, reason=reason)
    if done.first("chat_template"):
        done.leave(Why.NOT_NEEDED, "the type alpaca says how rows are written", "chat_template")


def _all_layers(done: Conversion) -> None:
    """`lora_target_linear` is every layer, whatever else is named."""
    found = done.first("lora_target_linear")
    if found and found[1] is True:
        done.write("tuning.target_modules", "all-linear", "lora_target_linear")
        if done.first("lora_target_modules"):
            done.leave(Why.NOT_NEEDED, "lora_target_linear takes all layers", "lora_target_modules")


def _cadence(key: str, strategies: tuple[str, ...], steps: str, per_epoch: str) -> Group:
    return cadence(key, strategies, steps, epochs="num_epochs", epochs_default=1.0, per_epoch=per_epoch)


IMPORTER = Importer(
    name="axolotl",
    title="axolotl",
    rank=8,
    telltale="""base_model sequence_len micro_batch_size num_epochs sample_packing adapter val_set_size
    lora_target_linear datasets dataset_prepared_path optimizer lr_scheduler evals_per_epoch saves_per_epoch
    pad_to_sequence_len wandb_project special_tokens train_on_inputs model_type tokenizer_type lora_model_dir
    flash_attention strict""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS,
        {
            # It calls them num_epochs, lr_scheduler and optimizer.
            "num_train_epochs lr_scheduler_type optim": None,
            "base_model": "model.model_name_or_path",
            "revision_of_model": "model.revision",
            "base_model_config": Automatic("the model's own config.json counts"),
            "model_type": Automatic("the model's own config.json says it"),
            "tokenizer_type tokenizer_config tokenizer_*": Automatic("the tokenizer is the model's own"),
            "reinit_weights": To("model.init", values={True: "scratch", False: "pretrained"}),
            "lora_target_linear": Off("tuning.target_modules names the layers"),
            "lora_fan_in_fan_out": Automatic("the layer's own class says it"),
            "peft_use_rslora": "tuning.use_rslora",
            "peft_use_dora": "tuning.use_dora",
            "lora_on_cpu": Off("an adapter is where its layer is"),
            "sequence_len": "data.max_length",
            "sample_packing": hf.PACKING,
            "eval_sample_packing": Automatic("held-out rows are packed as the others are"),
            "pad_to_sequence_len": Automatic("rows are padded to the longest of their batch, or packed"),
            "excess_length_strategy": Automatic("what is longer than data.max_length is counted and told"),
            "batch_size": "training.effective_batch_size",
            "eval_batch_size": "evaluation.per_device_eval_batch_size",
            "num_epochs": "training.num_train_epochs",
            "optimizer": hf.OPTIMIZER,
            "lr_scheduler": hf.SCHEDULER,
            "gradient_checkpointing": To("training.gradient_checkpointing", values={"offload": True, "unsloth": True}),
            "activation_offloading": Off("activations stay on the GPU; training.gradient_checkpointing saves them"),
            "torch_compile": To("training.torch_compile", values={"auto": Automatic("off where nothing is said")}),
            "val_set_size": "data.eval_fraction",
            "dataset_prepared_path": hf.CACHED,
            "dataset_processes dataset_num_proc": "data.num_proc",
            "dataset_exact_deduplication": "data.dedup",
            "shuffle_merged_datasets": hf.NEW_ORDER,
            "skip_prepare_dataset": Off("data is always prepared"),
            "streaming": hf.PREPARED,
            "datasets": NotSupported("data.path names files and folders"),
            "chat_template": _TEMPLATES,
            "chat_template_jinja": Off("task.chat_template names a .jinja file"),
            "default_system_message": Off("the data's own system messages count"),
            "train_on_inputs": hf.LOSS_ON_ALL,
            "flash_attention": To("model.attn_implementation", values={True: "flash_attention_2"}, otherwise=_KERNEL),
            "sdp_attention": To("model.attn_implementation", values={True: "sdpa"}, otherwise=_KERNEL),
            "flex_attention": To("model.attn_implementation", values={True: "flex_attention"}, otherwise=_KERNEL),
            "eager_attention": To("model.attn_implementation", values={True: "eager"}, otherwise=_KERNEL),
            "xformers_attention": Off("torch's fused attention is used"),
            "*_attention": _KERNEL,
            "float16": To("model.dtype", values={True: "float16", False: _OFF}),
            "bfloat16": To("model.dtype", values={True: "bfloat16", False: _OFF}),
            "special_tokens eot_tokens resize_token_embeddings_to_32x": Off("the tokenizer stays as it is"),
            "loss_watchdog_threshold": Off("a loss that is no number is shown, and nothing stops by itself"),
            "loss_watchdog_patience": NotNeeded("it belongs to the watchdog"),
            "strict": Always("an unknown setting is an error"),
            "auto_resume_from_checkpoints": hf.RESUMED,
            "save_first_step": Off("`tui-trainer ask RUN save` saves at once"),
            "use_tensorboard": Off("the run's own journal is always written"),
            "chunked_cross_entropy cut_cross_entropy liger_* lora_*_kernel fused_*": hf.OWN_KERNELS,
            "gc_steps": To("training.empty_cache_steps", values={-1: NotNeeded("off in the file")}),
            "dp_shard_size": Off(hf.SEVERAL_PROCESSES),
            "tensor_parallel_size context_parallel_size": Same((1,), hf.SEVERAL_PROCESSES, _WHOLE_LAYERS),
            "world_size": NotNeeded(hf.SEVERAL_PROCESSES),
            "wandb_* mlflow_* comet_* swanlab_*": hf.NOT_SENT,
            "peft_* lora_* loraplus_*": Off("plain LoRA is trained"),
            "plugins use_* quantize_* *_implementation flash_* gptq* tiled_*": Off("there is no such part"),
            "reward_* trl vllm ebft kto_* dpo_* orpo_*": Off(_NO_REWARDS),
            "cosine_* lr_* eta_min": Off("the schedules take no arguments"),
            "model_*": Off("the model's own config.json counts"),
        },
    ),
    groups=(
        batch(("micro_batch_size",), micro_default=1, packing="sample_packing"),
        PRECISION, WARMUP, TRACKERS, *hf.FSDP,
        _cadence("evaluation.eval_steps", ("eval_strategy", "evaluation_strategy"), "eval_steps", "evals_per_epoch"),
        _cadence("checkpoint.save_steps", ("save_strategy",), "save_steps", "saves_per_epoch"),
        method(
            "adapter", {"lora": "lora", "qlora": "qlora"}, four_bit=("load_in_4bit",), model=("base_model",),
            otherwise="full",
        ),
        Group(("datasets", "test_datasets", "pretraining_dataset"), _sources),
        Group(("lora_target_linear", "lora_target_modules"), _all_layers),
    ),
    defaults={
        "training.effective_batch_size": 1, "training.num_train_epochs": 1, "data.max_length": 512,
        "data.packing": False, "data.eval_fraction": 0,
    },
)  # fmt: skip
