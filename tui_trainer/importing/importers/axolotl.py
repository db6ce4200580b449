"""axolotl's YAML.

Source: src/axolotl/utils/schemas/ of axolotl-ai-cloud/axolotl at 067b021c8.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tui_trainer.data.columns.conversations import ROLES
from tui_trainer.importing.conversion import Conversion, Group, Importer
from tui_trainer.importing.groups import (
    DEEPSPEED,
    EFFECTIVE,
    OFFLOAD,
    PRECISION,
    STRATEGY,
    TRACKERS,
    WARMUP,
    batch,
    cadence,
    method,
    write_part,
    write_places,
)
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Same, To, Why
from tui_trainer.importing.values import empty, off, whole
from tui_trainer.safe_text import one_line

_CONVERSATIONS = ("chat_template", "sharegpt")
# Of one data set: where it is, and what changes none of its rows.
_SOURCE_KEYS = frozenset("path data_files data_dir ds_type revision trust_remote_code preprocess_shards".split())
_OWN_TEMPLATE = "the model's own chat template counts"
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
        if not (entries := write_places(done, name, key)):
            continue
        read = write_part(done, name, entries, trained=name != "test_datasets")
        if name != "test_datasets":
            _task(done, name, entries, read)
        if name == "pretraining_dataset":
            done.write("data.streaming", True, name, reason="it reads such data while it trains")
            if not done.has("sample_packing"):
                done.write("data.packing", True, name, reason="it fills whole rows with such texts")


def _is_conversation(form: str) -> bool:
    return form.startswith(_CONVERSATIONS) or form == "alpaca"


def _task(done: Conversion, name: str, entries: list[dict[str, Any]], read: set[str]) -> None:
    """What all entries are read as, where they agree. `read`: their keys that other settings took."""
    forms = list(dict.fromkeys(str(one.get("type")) for one in entries))
    read = {*read, *_SOURCE_KEYS}
    if all(map(_is_conversation, forms)):
        done.write("task.type", "chat", name, reason=f"type {one_line(', '.join(forms), 40)}")
        read |= {"type", *_conversations(done, name, forms, entries)}
    elif name == "pretraining_dataset" or all(form == "completion" for form in forms):
        done.write("task.type", "causal_lm", name)
        read |= {"type"}
        columns = {str(one.get("field") or one.get("text_column") or "") for one in entries}
        if len(columns) == 1:
            read |= {"field", "text_column"}
            if column := columns.pop():
                done.write("data.text_column", column, name)
    elif forms != ["None"]:
        other = [form for form in forms if form != "completion" and not _is_conversation(form)]
        shown = one_line(", ".join("of its own" if form.startswith("{") else form for form in other or forms), 60)
        why = f"no task here reads the type {shown}; nearest: chat_template (chat) and completion (causal_lm)"
        done.leave(Why.REFUSED, why if other else f"one run learns one task, and the types are {shown}", name)
        read |= {"type"}
    unread = (key for one in entries for key, value in one.items() if key not in read and not off(value))
    if rest := list(dict.fromkeys(unread)):
        names = one_line(", ".join(map(str, rest)), 60)
        done.leave(Why.REFUSED, f"not read of it: {names}; it could change which rows and turns are learnt", name)


def _conversations(done: Conversion, name: str, forms: list[str], entries: list[dict[str, Any]]) -> set[str]:
    """How turns are found and written, and which are learnt; the keys that say what is so here."""
    templates = list(dict.fromkeys("alpaca" if one.get("type") == "alpaca" else _template(one) for one in entries))
    if len(templates) > 1:
        shown = one_line(", ".join(template or "that of the run" for template in templates), 60)
        done.leave(Why.REFUSED, f"a run has one chat template, and its data sets have several: {shown}", name)
    elif forms == ["alpaca"]:
        _write_template(done, name, "alpaca", "type alpaca; an input stands below its instruction, without a heading")
    elif templates != [""]:
        if ours := _TEMPLATES.values.get(templates[0]):
            _write_template(done, name, str(ours), "of the data set")
        else:
            done.leave(Why.AUTOMATIC, f"{one_line(templates[0], 40)}: {_OWN_TEMPLATE}", name)
    read = {"chat_template", "conversation"}
    columns = {str(one.get("field_messages") or "messages") for one in entries}
    if len(columns) == 1:
        read |= {"field_messages"}
        if (column := columns.pop()) != "messages":
            done.write("data.text_column", column, name)
    trained = [one.get("roles_to_train") for one in entries]
    roles = [{ROLES.get(str(role).lower()) for role in some} for some in trained if isinstance(some, list)]
    if roles and len(roles) == len(entries) and all({"user", "assistant"} <= some for some in roles):
        done.write("task.loss_on", "all", name, reason="roles_to_train")
        read |= {"roles_to_train"}
    elif all(some == {"assistant"} for some in roles):
        read |= {"roles_to_train"}
    for key, is_so_here in _TURNS.items():
        if all(is_so_here(one[key]) for one in entries if not empty(one.get(key))):
            read |= {key}
    return read


def _template(one: dict[str, Any]) -> str:
    return str(one.get("chat_template") or one.get("conversation") or "")


def _write_template(done: Conversion, name: str, template: str, reason: str) -> None:
    """The data set's is the one that counts, whatever is named beside it."""
    done.write("task.chat_template", template, name, reason=reason)
    if done.first("chat_template"):
        done.leave(Why.NOT_NEEDED, "the data set says how rows are written", "chat_template")


def _usual_roles(roles: Any) -> bool:
    """Whether `roles`, names in the data by their role, says what is read anyway."""
    listed = {role: names if isinstance(names, list) else [names] for role, names in dict(roles).items()}
    return all(ROLES.get(str(name).lower()) == role for role, names in listed.items() for name in names)


def _usual_properties(names: Any) -> bool:
    usual = {"role": ("role", "from"), "content": ("content", "value")}
    return all(str(theirs) in usual.get(ours, (ours,)) for ours, theirs in dict(names).items())


# Of a data set of conversations: which values say what is so here.
_TURNS: Mapping[str, Callable[[Any], bool]] = {
    "message_property_mappings": lambda names: isinstance(names, dict) and _usual_properties(names),
    "message_field_role": lambda name: name in ("role", "from"),
    "message_field_content": lambda name: name in ("content", "value"),
    "roles": lambda roles: isinstance(roles, dict) and _usual_roles(roles),
    "train_on_eos": lambda which: which == "turn",
    "train_on_eot": lambda which: which == "turn",
    "field_system": lambda name: name == "system",
    "field_tools": lambda name: name == "tools",
}


def _batch_of_all(done: Conversion) -> None:
    """`batch_size` is that of all devices, and decides how often gradients are summed."""
    rows = done.first("batch_size")
    if rows and whole(rows[1]):
        done.write(EFFECTIVE, rows[1], rows[0])
        for name in ("micro_batch_size", "gradient_accumulation_steps"):
            if done.first(name):
                done.leave(Why.NOT_NEEDED, "batch_size says the rows behind a step", name)


def _split(done: Conversion) -> None:
    """`fsdp_config` turns FSDP on, whatever `fsdp` says."""
    names = [name for name in done.given if name.startswith(("fsdp_config.", "fsdp_version")) and done.has(name)]
    if done.has("fsdp") or not names:
        return
    offloads = hf.OFFLOADS.split()
    name = next((name for name in names if name not in (*offloads, *hf.RECOMPUTES)), names[0])
    sharding = [name for name in names if name.endswith("sharding_strategy")]
    strategy = hf.splits(done.given[sharding[0]])[0] if sharding else "fsdp"
    if name in offloads and done.given[name] is True:
        done.write(OFFLOAD, True, name)
    done.write(STRATEGY, strategy or "fsdp", *(sharding or [name]), reason=hf.LAYER_BY_LAYER)


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
            "streaming": "data.streaming",
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
        Group(("batch_size",), _batch_of_all),
        batch(("micro_batch_size",), micro_default=1, packing="sample_packing"),
        PRECISION, WARMUP, TRACKERS, DEEPSPEED, *hf.FSDP, Group((), _split),
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
