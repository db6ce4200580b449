"""axolotl's YAML.

Source: src/axolotl/utils/schemas/ of axolotl-ai-cloud/axolotl at 067b021c8.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.data.columns.conversations import ROLES
from tui_trainer.importing.conversion import (
    QWEN2_5,
    QWEN2_5_VL,
    QWEN3,
    Conversion,
    Importer,
    KeyGroup,
    write_template,
    write_text,
)
from tui_trainer.importing.groups import (
    DEEPSPEED,
    PRECISION,
    TRACKERS,
    WARMUP,
    adapted_layers,
    batch,
    cadence,
    method,
    own_files,
    rows_held_out,
    schedule,
    start_adapter,
    write_part,
    write_places,
)
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
    empty,
    file_near,
    listed,
    number,
    off,
    whole,
)
from tui_trainer.importing.tokens_and_positions import changed_config, rope_table, write_tokens
from tui_trainer.methods.lr_schedules import WARMUP_KEY
from tui_trainer.models.chat_rendering import TEMPLATE_KEY
from tui_trainer.planning.batch_cut import EFFECTIVE
from tui_trainer.planning.processes import OFFLOAD, STRATEGY
from tui_trainer.terminal.safe_text import one_line

_CONVERSATIONS = ("chat_template", "sharegpt")
# Of one data set: where it is, and what changes none of its rows.
_SOURCE_KEYS = frozenset("path data_files data_dir ds_type revision trust_remote_code preprocess_shards".split())
_KERNEL = Automatic("the kernel is chosen automatically")
# schemas/enums.py. Sage computes with 8 bits, and is no kernel of transformers.
_KERNELS = {"xformers": _KERNEL, "sage": _KERNEL, "fp8": Refused("8-bit attention is not supported in training")}
_MEASURED = Off("evaluations measure the held-out loss instead")
_OFF = NotNeeded("off")
_OF_ANOTHER = NotNeeded("only used by a method that is not enabled")
_OWN_ROWS = "each process computes whole layers on its own rows; distributed.strategy = fsdp splits the weights"
# Not its alpaca, which has no sentence before the first instruction, nor those of mistral, which put spaces elsewhere.
_TEMPLATES = {
    "chatml": "chatml", "gemma": "gemma", "gemma3": "gemma", "llama3": "llama3", "phi_3": "phi3", "phi_35": "phi3",
}  # fmt: skip
_ANY_MODEL = re.compile(".*", re.DOTALL)
# Its qwen2_vl.jinja (067b021) writes text as Qwen2.5-VL's own does, "You are a helpful assistant." where no system
# message is; it has none of Qwen3-VL, and its qwen3_5.jinja strips less of a turn than the model's own.
_OWN_TEMPLATES = {"tokenizer_default": _ANY_MODEL, "qwen_25": QWEN2_5, "qwen2_vl": QWEN2_5_VL, "qwen3": QWEN3}


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
            done.write("data.streaming", True, name, reason="axolotl streams such data")


def _length(done: Conversion) -> None:
    """What becomes of longer rows there: utils/data/utils.py, prompt_strategies/completion.py and pretrain.py,
    encode_streaming in utils/data/streaming.py."""
    found, excess = done.first("sequence_len"), str(done.given.get("excess_length_strategy") or "drop").lower()
    if not found:
        return
    reason = {
        "truncate": "longer rows are truncated",
        "raise": "longer rows are truncated; axolotl stops the run",
    }.get(excess, "longer rows are truncated; axolotl drops them")
    if done.values.get("task.type") == "causal_lm":
        reason = "a longer text is split into several rows"
        if done.has("pretraining_dataset"):
            packs = done.given.get("sample_packing") is True
            there = "makes rows that overlap by up to 256 tokens" if packs else "truncates it"
            reason += f"; axolotl {there}"
    done.write("data.max_length", found[1], found[0], reason=reason)


def _usual_warmup(done: Conversion) -> None:
    """3 % of all steps where the file says no warm-up, and no more than 100 (core/builders/base.py)."""
    if not done.has("base_model") or done.given.get("warmup_steps", done.given.get("warmup_ratio")) is not None:
        return
    reason, steps = "axolotl's default: 3 % of all steps, at most 100", whole(done.given.get("max_steps"))
    if steps and steps > 0:
        done.write(WARMUP_KEY, min(int(_WARMUP_SHARE * steps), _MOST_WARMUP), reason=reason)
    else:
        more = (
            f"for a run of {math.ceil(_MOST_WARMUP / _WARMUP_SHARE):,} steps or more, set {WARMUP_KEY} = {_MOST_WARMUP}"
        )
        done.write(WARMUP_KEY, _WARMUP_SHARE, reason=f"{reason}: {more}")


_WARMUP_SHARE, _MOST_WARMUP = 0.03, 100


def _merged_order(done: Conversion) -> None:
    """Its sampler draws rows by chance whatever the order of the data is; what it streams it reads in order."""
    found = done.first("shuffle_merged_datasets")
    if found and not (done.has("pretraining_dataset") or done.given.get("streaming") is True):
        done.leave(Why.ALWAYS, "rows are shuffled in each epoch, as in axolotl", found[0])


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
        shown = one_line(", ".join("a custom type" if form.startswith("{") else form for form in other or forms), 60)
        why = f"the type {shown} is not supported; nearest: chat_template (chat) and completion (causal_lm)"
        done.leave(Why.REFUSED, why if other else f"a run has one task, but its data sets have the types {shown}", name)
        read |= {"type"}
    unread = (key for one in entries for key, value in one.items() if key not in read and not off(value))
    if rest := list(dict.fromkeys(unread)):
        names = one_line(", ".join(map(str, rest)), 60)
        done.leave(Why.REFUSED, f"unsupported keys: {names}; they could change what is trained on", name)


def _conversations(done: Conversion, name: str, forms: list[str], entries: list[dict[str, Any]]) -> set[str]:
    """How turns are found and written, and which are learnt; the keys that say what is so here."""
    templates = list(dict.fromkeys("alpaca" if one.get("type") == "alpaca" else _template(one) for one in entries))
    if len(templates) > 1:
        shown = one_line(", ".join(template or "the run's" for template in templates), 60)
        done.leave(Why.REFUSED, f"a run has one chat template, but its data sets have several: {shown}", name)
    elif forms == ["alpaca"]:
        reason = "type alpaca: the input follows the instruction directly, without a heading"
        done.write(TEMPLATE_KEY, "alpaca", name, reason=reason)
    elif templates != [""]:
        _write_template(done, name, one_line(templates[0], 40), "of the data set")
    elif not done.has("chat_template", "chat_template_jinja") and any(form.startswith("sharegpt") for form in forms):
        done.leave(Why.REFUSED, "the format of sharegpt depends on the axolotl version; set a chat_template", name)
    if templates != [""] and done.first("chat_template"):
        done.leave(Why.NOT_NEEDED, "the data set sets the chat template", "chat_template")
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


def _write_template(done: Conversion, name: str, template: str, reason: str = "") -> None:
    model = str(done.given.get("base_model"))
    write_template(done, name, template, model, ours=_TEMPLATES, own=_OWN_TEMPLATES, reason=reason)


def _template_of_run(done: Conversion) -> None:
    """The one of the data set counts before it."""
    named, own = done.first("chat_template"), done.first("chat_template_jinja")
    if not named and not own:
        return
    if done.values.get("task.type") == "causal_lm":
        done.leave(Why.NOT_NEEDED, "plain texts need no chat template", *(one[0] for one in (named, own) if one))
    elif own and (not named or named[1] == "jinja"):
        names = [one[0] for one in (named, own) if one]
        if not str(own[1]).endswith((".jinja", ".jinja2", ".j2")):
            write_text(done, str(own[1]), *names)
        elif path := file_near(done.folder, str(own[1])):
            done.write(TEMPLATE_KEY, str(path), *names)
        else:
            done.leave(Why.REFUSED, "the file was not found", *names)
    elif named:
        _write_template(done, "chat_template", one_line(str(named[1]), 40))
        if own:
            done.leave(Why.NOT_NEEDED, "chat_template takes precedence", own[0])


def _tokens(done: Conversion) -> None:
    """New ones, of two keys; special ones under other names are another tokenizer."""
    # `tokens` was a table before, and the name of the other one.
    is_table = isinstance(done.given.get("tokens"), dict)
    ordinary = None if is_table else done.first("tokens")
    found = done.first("tokens", "special_tokens") if is_table else done.first("special_tokens")
    given = dict([ordinary]) if ordinary and not off(ordinary[1]) else {}
    if found and isinstance(found[1], dict):
        named = {str(name): token for name, token in found[1].items() if name != "pad_token" and token}
        added = named.pop("additional_special_tokens", None)
        if named:
            others = one_line(", ".join(named), 60)
            why = f"the tokenizer's {others} cannot be changed; remove the entries that the tokenizer already has"
            done.leave(Why.REFUSED, why, found[0])
        elif added:
            given[found[0]] = added
        else:
            done.leave(Why.NOT_NEEDED, "padding is excluded from the loss", found[0])
    write_tokens(done, given, special=("special_tokens",))


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
                done.leave(Why.NOT_NEEDED, "batch_size sets the rows per step", name)


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


def _full_bf16(done: Conversion) -> None:
    """Weights and all that is computed are bf16."""
    if done.given.get("bf16") == "full":
        done.write("model.dtype", "bfloat16", "bf16")
        done.write("training.mixed_precision", "bf16", reason="bf16: full")


def _all_layers(done: Conversion) -> None:
    """`lora_target_linear` is every layer, whatever else is named."""
    found = done.first("lora_target_linear")
    if found and found[1] is True:
        done.write("tuning.target_modules", "all-linear", "lora_target_linear")
        if done.first("lora_target_modules"):
            done.leave(Why.NOT_NEEDED, "lora_target_linear selects all layers", "lora_target_modules")


def _floor(done: Conversion) -> None:
    """Only its cosine, which is its schedule where none is named, has this floor.

    Source: axolotl/core/trainers/mixins/scheduler.py; the formula of axolotl/utils/schedulers.py,
    get_cosine_schedule_with_min_lr, is that of transformers.
    """
    if found := done.first("cosine_min_lr_ratio"):
        if same(done.given.get("lr_scheduler") or "cosine", "cosine"):
            if number(found[1]) == 1:
                names = [one[0] for one in (done.first("lr_scheduler"), found) if one]
                done.write(
                    "training.lr_scheduler_type",
                    "constant_with_warmup",
                    *names,
                    reason="the learning rate never decays",
                )
            else:
                done.write("training.min_lr_rate", found[1], found[0])
        else:
            done.leave(Why.NOT_NEEDED, "only applies to the cosine schedule", found[0])


def _cadence(key: str, strategies: tuple[str, ...], steps: str, per_epoch: str) -> KeyGroup:
    return cadence(key, strategies, steps, epochs="num_epochs", epochs_default=1.0, per_epoch=per_epoch)


def _pattern_of_names(value: Any) -> str:
    """Its patterns as one: each is looked for where a name begins, and a point in them is one but before a plus
    (utils/freeze.py)."""
    patterns = [str(one) for one in listed(value)]
    if any(_RANGE.search(one) for one in patterns):
        raise ValueError("single rows of a matrix cannot be trained; use a pattern without [ ] at its end")
    pattern = "|".join(f"^(?:{_POINT.sub(_LITERAL, one)})" for one in patterns)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    return pattern


# [5], [:32000] and their like at the end are no part of the pattern there, though [0-9] may look alike.
_RANGE, _POINT, _LITERAL = re.compile(r"\[\d*(:\d*)?\]$"), re.compile(r"\.(?!\+)"), r"\\."


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
            # It calls them num_epochs, lr_scheduler, optimizer and base_model.
            "num_train_epochs lr_scheduler_type optim model_name_or_path": None,
            "base_model": "model.model_name_or_path",
            "revision_of_model": "model.revision",
            "reinit_weights": To("model.init", values={True: "scratch", False: "pretrained"}),
            # schemas/model.py
            "special_tokens": Off("must be a table", Why.DOES_NOT_FIT),
            "model_type type_of_model cls_model_config": Automatic("determined by the model's config.json"),
            "tokenizer_type tokenizer_use_fast tokenizer_legacy": Automatic("the model's own tokenizer is used"),
            "tokenizer_save_jinja_files": Always("the template is saved with the model"),
            "model_quantization_config_kwargs": _OF_ANOTHER,
            "experimental_skip_move_to_device": hf.OTHER_TOOL,
            "rope_theta": "model.rope_scaling.*",
            "unfrozen_parameters": To("tuning.trainable_layers", convert=_pattern_of_names),
            # schemas/peft.py
            "lora_target_linear": Off("set the layers with tuning.target_modules"),
            "lora_fan_in_fan_out": Automatic("determined by the class of the layer"),
            "peft_target_parameters": "tuning.target_parameters",
            "peft_use_rslora": "tuning.use_rslora",
            "peft_use_dora": "tuning.use_dora",
            "peft_init_lora_weights": hf.INIT,
            "peft_autocast_adapter_dtype": Same((True,), *("adapters are stored in fp32",) * 2),
            "lora_on_cpu": Off("an adapter is on the device of its layer"),
            "load_in_8bit": Refused("training on 8-bit weights is not supported; use 16-bit or 4-bit weights"),
            "gptq": Refused("4-bit weights are only supported with bitsandbytes"),
            "bnb_config_kwargs.bnb_4bit_quant_type": "quantization.bnb_4bit_quant_type",
            "bnb_config_kwargs.bnb_4bit_use_double_quant": "quantization.bnb_4bit_use_double_quant",
            "bnb_config_kwargs.bnb_4bit_compute_dtype": hf.FOUR_BITS["bnb_4bit_compute_dtype"],
            "bnb_config_kwargs.bnb_4bit_quant_storage": Automatic("4-bit weights are stored as bytes"),
            "bnb_config_kwargs.llm_int8_*": _OF_ANOTHER,
            "merge_lora merge_method": NotNeeded("adapters are merged when they are exported"),
            "qlora_sharded_model_loading": NotNeeded("it only changes how weights are loaded"),
            "loraplus_lr_embedding relora_cpu_offload relora_prune_method": _OF_ANOTHER,
            "jagged_restart_warmup_steps jagged_restart_anneal_steps": _OF_ANOTHER,
            # schemas/training.py
            "batch_size": "training.effective_batch_size",
            "eval_batch_size": "evaluation.per_device_eval_batch_size",
            "num_epochs": "training.num_train_epochs",
            "optimizer": hf.OPTIMIZER,
            "optim_args": Refused("the only supported optimizer arguments are those in [training]"),
            "lr_scheduler": hf.SCHEDULER,
            "cosine_constant_lr_ratio lr_div_factor lr_quadratic_warmup": Refused(
                "the only supported argument of a schedule is cosine_min_lr_ratio"
            ),
            "embedding_lr embedding_lr_scale lr_groups": Refused("all weights have one learning rate"),
            "adam_epsilon2 adam_beta3 torchdistx_path dion_* qgalore_*": _OF_ANOTHER,
            # Rows: schemas/config.py, and schemas/datasets.py above.
            "excess_length_strategy": Automatic("see data.max_length for what happens to longer rows"),
            "eval_sequence_len": Off("held-out rows have the same maximum length as training rows"),
            "min_sample_len": Refused("short rows are trained on as well"),
            "sample_packing": hf.PACKING,
            """sample_packing_group_size sample_packing_bin_size sample_packing_sequentially sample_packing_eff_est
            sample_packing_mp_start_method multipack_real_batches batch_flattening streaming_multipack_buffer_size
            pretrain_multipack_buffer_size""": Automatic("rows are packed wherever they fit"),
            "eval_sample_packing": Automatic("held-out rows are packed like training rows"),
            "pretrain_multipack_attn": Same((True,), *("packed documents do not attend to each other here",) * 2),
            "pretraining_sample_concatenation": hf.PACKING,
            "pad_to_sequence_len pad_to_multiple_of": Automatic("rows are padded to the longest in a batch, or packed"),
            "curriculum_sampling": Refused("rows are shuffled in each epoch"),
            "shuffle_merged_datasets": Same((True,), *("streamed rows are shuffled here",) * 2, Why.REFUSED),
            "shuffle_before_merging_datasets": Always("rows are shuffled in each epoch"),
            "dataset_shard_num dataset_shard_idx": Refused("choose rows with data.split or data.max_rows"),
            "pose_split_on_token_ids pose_max_context_len pose_num_chunks": _OF_ANOTHER,
            "val_set_size": "data.eval_fraction",
            "dataset_prepared_path num_dataset_shards_to_save dataset_keep_in_memory": hf.CACHED,
            "is_preprocess preprocess_iterable push_dataset_to_hub": hf.CACHED,
            "dataset_processes dataset_num_proc": "data.num_proc",
            "dataset_exact_deduplication": "data.dedup",
            "skip_prepare_dataset": Refused("rows must be texts, not tokens"),
            "streaming": "data.streaming",
            "datasets": NotSupported("set data.path to files or folders"),
            "hf_use_auth_token": NotNeeded("HF_TOKEN is read from the environment"),
            "chat_template chat_template_jinja": Off("must be a name", Why.DOES_NOT_FIT),
            "chat_template_kwargs": Refused("arguments of a chat template are not supported"),
            "eot_tokens": Automatic("the loss includes the stop token of a turn"),
            "default_system_message": Refused("only the system messages of the data are used"),
            "train_on_inputs": hf.LOSS_ON_ALL,
            # How it computes.
            "gradient_checkpointing": To(
                "training.gradient_checkpointing", values={"offload": True, "offload_disk": True, "unsloth": True}
            ),
            "selective_checkpointing layer_offloading activation_offloading": Off(
                "activations stay on the GPU; training.gradient_checkpointing saves memory"
            ),
            "torch_compile": To("training.torch_compile", values={"auto": Automatic("off by default")}),
            "torch_compile_options": Automatic("set by torch_compile_mode"),
            "attn_implementation": To("model.attn_implementation", values=_KERNELS),
            "float16": To("model.dtype", values={True: "float16", False: _OFF}),
            "bfloat16": To("model.dtype", values={True: "bfloat16", False: _OFF}),
            "float32": To("model.dtype", values={True: "float32", False: _OFF}),
            "tf32": To("training.tf32", values={"auto": Automatic("on if the GPU supports it")}),
            "fp32_norms fp32_norm_classes embeddings_skip_upcast": Off("all weights of a model have one dtype"),
            "resize_token_embeddings_to_32x": Automatic("embeddings grow to a multiple of 64 rows"),
            "mean_resizing_embeddings": Automatic("new embedding rows start at the mean of the existing ones"),
            "flash_attention": To("model.attn_implementation", values={True: "flash_attention_2"}, otherwise=_KERNEL),
            "sdp_attention": To("model.attn_implementation", values={True: "sdpa"}, otherwise=_KERNEL),
            "flex_attention": To("model.attn_implementation", values={True: "flex_attention"}, otherwise=_KERNEL),
            "eager_attention": To("model.attn_implementation", values={True: "eager"}, otherwise=_KERNEL),
            "xformers_attention sage_attention large_head_attention": Off("torch's fused attention is used"),
            """flash_attn_d512 flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum
            flex_attn_compile_kwargs gemma4_hybrid_attn_impl sdpa_varlen fused_attn_kernel experts_implementation
            use_kernels llama4_linearized_experts tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp
            chunked_cross_entropy chunked_cross_entropy_num_chunks cut_cross_entropy lora_mlp_kernel lora_qkv_kernel
            lora_o_kernel lora_embedding_kernel liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm
            liger_swiglu liger_glu_activation liger_cross_entropy liger_fused_linear_cross_entropy expert_backend
            moe_grouped_backend use_scattermoe use_sonicmoe""": hf.OWN_KERNELS,
            "plugins": Automatic("these plugins change how axolotl computes or reports, not what is trained"),
            "scaling_softmax_factor scaling_softmax_bias eaft_alpha eaft_k": _OF_ANOTHER,
            "fp8_enable_fsdp_float8_all_gather": _OF_ANOTHER,
            "quantization": NotNeeded("only used after training"),
            "kd_beta kd_normalize_topk kd_online_*": _OF_ANOTHER,
            "gc_steps": To("training.empty_cache_steps", values={-1: NotNeeded("turned off in the file")}),
            "gc_collect_steps": Automatic("garbage is collected when memory is low"),
            "max_memory gpu_memory_limit": Automatic("the plan determines what fits"),
            # Several devices.
            "dp_shard_size dp_replicate_size deepcompile ddp device": Off(hf.SEVERAL_PROCESSES),
            """tensor_parallel_size context_parallel_size sequence_parallel_degree
            expert_parallel_size""": Same((1,), hf.SEVERAL_PROCESSES, _OWN_ROWS, Why.REFUSED),
            "heads_k_stride ring_attn_func expert_parallel_*": NotNeeded(hf.SEVERAL_PROCESSES),
            "world_size use_ray ray_run_name ray_num_workers resources_per_worker": NotNeeded(hf.SEVERAL_PROCESSES),
            # What is watched and saved.
            "strict": Always("unknown settings are always an error"),
            "auto_resume_from_checkpoints": hf.RESUMED,
            "save_first_step dynamic_checkpoint": Off("save at any time with `tui-trainer ask RUN save`"),
            "loss_watchdog_threshold": Off("a NaN or infinite loss is reported, but does not stop the run"),
            "loss_watchdog_patience": NotNeeded("only used with loss_watchdog_threshold"),
            "do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split": _MEASURED,
            "eval_table_size eval_max_new_tokens lm_eval_*": _MEASURED,
            """generate_samples num_generation_samples generation_max_new_tokens generation_temperature generation_top_p
            generation_top_k generation_prompt_ratio generation_do_sample""": Off("set logging.sample_steps instead"),
            "use_tensorboard": Off("the run's journal is always written"),
            "profiler_steps profiler_steps_start": Off("the journal records the time of each step"),
            """use_wandb wandb_* use_mlflow mlflow_* hf_mlflow_log_artifacts use_comet comet_* use_swanlab swanlab_*
            use_trackio trackio_* use_otel_metrics otel_*""": hf.NOT_SENT,
            "gradio_*": NotNeeded("try a model with `tui-trainer generate RUN`"),
            "include_tkps axolotl_config_path is_*_derived_model total_*_tokens": hf.OTHER_TOOL,
            # Preferences, which `rl` and `reward_model` switch on.
            "trl vllm ebft dpo_* orpo_alpha simpo_gamma cpo_alpha rpo_alpha kto_* rl_beta max_prompt_len": _OF_ANOTHER,
            "precompute_ref_log_probs": _OF_ANOTHER,
        },
    ),
    groups=(
        KeyGroup(("batch_size",), _batch_of_all),
        batch(("micro_batch_size",), micro_default=1),
        KeyGroup(("bf16",), _full_bf16), PRECISION, WARMUP, TRACKERS, DEEPSPEED, *hf.FSDP, KeyGroup((), _split),
        schedule("lr_scheduler"), KeyGroup(("cosine_min_lr_ratio",), _floor),
        _cadence("evaluation.eval_steps", ("eval_strategy", "evaluation_strategy"), "eval_steps", "evals_per_epoch"),
        _cadence("checkpoint.save_steps", ("save_strategy",), "save_steps", "saves_per_epoch"),
        method(
            "adapter", {"lora": "lora", "qlora": "qlora"}, four_bit=("load_in_4bit",), model=("base_model",),
            otherwise="full",
        ),
        start_adapter("lora_model_dir", "base_model"),
        KeyGroup(("datasets", "test_datasets", "pretraining_dataset"), _sources),
        KeyGroup(("sequence_len",), _length), KeyGroup((), _usual_warmup), rows_held_out("val_set_size"),
        KeyGroup(("shuffle_merged_datasets",), _merged_order),
        adapted_layers(
            ("peft_layers_to_transform", "lora_layers_to_transform"), ("peft_layers_pattern", "lora_layers_pattern"),
            "lora_target_modules", "lora_target_linear",
        ),
        KeyGroup(("chat_template", "chat_template_jinja"), _template_of_run),
        KeyGroup(("tokens", "special_tokens"), _tokens),
        rope_table("rope_scaling"), changed_config("overrides_of_model_config", "model_config"),
        own_files("base_model_config", "tokenizer_config"),
        KeyGroup(("lora_target_linear", "lora_target_modules"), _all_layers),
    ),
    defaults={
        "training.effective_batch_size": 1, "training.num_train_epochs": 1, "data.max_length": 512,
        "data.packing": False, "data.eval_fraction": 0,
    },
)  # fmt: skip
