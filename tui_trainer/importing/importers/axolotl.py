"""YAML of axolotl.

Source: src/axolotl/utils/schemas/ of axolotl-ai-cloud/axolotl at 067b021c8."""

import math
import re
from collections.abc import Mapping
from typing import Any

from tui_trainer.data.columns.conversations import ROLES
from tui_trainer.importing import groups, preferences, rules
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Always, Automatic, NotNeeded, NotSupported, Off, Only, Refused, Same, To, Why
from tui_trainer.importing.tokens_and_positions import MEAN_ROWS, changed_config, rope_table, write_tokens
from tui_trainer.methods.lr_schedules import WARMUP_KEY
from tui_trainer.models.chat_rendering import TEMPLATE_KEY
from tui_trainer.planning.processes import OFFLOAD, STRATEGY
from tui_trainer.terminal.safe_text import one_line

# Keys of a data set for its location, and keys that do not change its rows.
_LOCATION_KEYS = frozenset("path data_files data_dir ds_type revision trust_remote_code preprocess_shards".split())
_FLASH, _AUTO_KERNEL = "flash_attention_2", Automatic("the kernel is chosen automatically")
# Source: schemas/enums.py. Sage computes in 8 bits and is not a kernel of transformers.
_KERNELS = {
    "xformers": _AUTO_KERNEL, "sage": _AUTO_KERNEL, "fp8": Refused("8-bit attention is not supported in training"),
}  # fmt: skip
_MEASURED = Off("evaluations measure the held-out loss instead")
_OFF = NotNeeded("off")
_OTHER_METHOD = NotNeeded("only used by a method that is not enabled")
_OWN_ROWS = "each process computes whole layers on its own rows; distributed.strategy = fsdp splits the weights"
# Templates equal to ours. Axolotl's alpaca has no sentence before the first instruction, and its mistral other spaces.
_TEMPLATES = {
    "chatml": "chatml", "gemma": "gemma", "gemma3": "gemma", "llama3": "llama3", "phi_3": "phi3", "phi_35": "phi3",
}  # fmt: skip
# Templates equal to a model's own. qwen2_vl.jinja (067b021) equals Qwen2.5-VL's, also without a system message. Axolotl
# has none for Qwen3-VL, and qwen3_5.jinja strips less of a turn than the model's own template.
_MODEL_TEMPLATES = {"tokenizer_default": "any", "qwen_25": "Qwen2.5", "qwen2_vl": "Qwen2.5-VL", "qwen3": "Qwen3"}

# Losses over pairs by the value of `rl`; the losses of dpo are in dpo_loss_type. Source: core/builders/rl.py.
_PAIR_LOSSES = {"dpo": "", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
# Functions of prompt_strategies/dpo/chatml.py and llama3.py, and their columns of prompts. `argilla` is from older
# versions.
_PAIR_COLUMNS = {
    "default": "", "argilla": "instruction", "argilla_chat": "", "icr": "input", "intel": "question",
    "prompt_pairs": "prompt", "ultra": "prompt",
}  # fmt: skip
# The same of prompt_strategies/kto, which has no default. Whole conversations are in the column of answers.
_MARKED_COLUMNS = {
    "argilla": "instruction", "argilla_chat": "completion", "intel": "question", "prompt_pairs": "prompt",
    "ultra": "prompt",
}  # fmt: skip
# Types of data sets by task: their chat template (empty for that of the run) and their column of prompts (empty for
# the usual names, or whole conversations). Those of reward models: prompt_strategies/bradley_terry.
_TYPES = {
    "preference": {
        **dict.fromkeys(("chat_template", "orpo.chat_template"), ("", "")),
        **{f"chat_template.{name}": ("", "") for name in ("default", "argilla", "argilla_chat")},
        **{name: (name, "") for name in ("chatml", "llama3")},
        **{f"{name}.{form}": (name, column) for name in ("chatml", "llama3") for form, column in _PAIR_COLUMNS.items()},
    },
    "reward": {"bradley_terry.chat_template": ("", "input")},
    "kto": {
        f"{name}.{form}": (name, column) for name in ("chatml", "llama3") for form, column in _MARKED_COLUMNS.items()
    },
}
_ANSWER_FIELDS = {"field_chosen": "chosen", "field_rejected": "rejected"}


def _preferences(
    conversion: Conversion,
    kind: Given | None,
    losses: Given | None,
    weights: Given | None,
    smoothing: Given | None,
    trl: Given | None,
    rl_beta: Given | None,
    orpo_alpha: Given | None,
    gamma: Given | None,
    cross_entropy: Given | None,
    desirable: Given | None,
    undesirable: Given | None,
    scores_answers: Given | None,
    centering: Given | None,
) -> None:
    """Convert the loss over answers that `rl` chooses, or a reward model. The first of trl.beta, rl_beta and
    orpo_alpha is beta."""
    name = str(kind.value).lower() if kind else ""
    if scores_answers and scores_answers.is_on:
        preferences.write_reward(conversion, scores_answers, centering=centering)
    if name not in (*_PAIR_LOSSES, "kto"):
        return
    has_beta = trl and isinstance(trl.value, dict) and trl.value.get("beta") is not None
    beta = Given(trl.name, trl.value["beta"]) if trl and has_beta else rl_beta or orpo_alpha
    if name == "kto":
        preferences.write_kto(conversion, kind, beta=beta, weights=(desirable, undesirable))
    elif name == "dpo":
        preferences.write_dpo(conversion, losses, weights, smoothing, kind, beta=beta)
    else:
        preferences.write_loss(conversion, _PAIR_LOSSES[name], kind, beta=beta, gamma=gamma)
        conversion.leave(Why.NOT_NEEDED, f"it has no effect with rl: {name}", losses, weights, smoothing)
    if name == "simpo":
        preferences.write_cross_entropy(conversion, cross_entropy, "axolotl")
    elif name == "orpo":
        reason = "TRL's ORPO adds the cross entropy of prompt and answer, but the paper's that of the answer"
        conversion.write("task.sft_weight", "auto", reason=reason)
    if conversion.continues_adapter and name in ("dpo", "ipo", "kto"):
        reason = f"with rl: {name}, axolotl does not load the weights of the adapter; merge it into the model first"
        conversion.reject("model.model_name_or_path", Why.REFUSED, reason)


def _pairs(conversion: Conversion, given: Given, types: list[str], entries: list[dict[str, Any]]) -> set[str]:
    """Write columns and template of better and worse answers. Return the keys of entries that were read."""
    task = str(conversion.values["task.type"])
    known_types = _TYPES[task]
    unknown_types = [name for name in types if name not in known_types]
    if unknown_types:
        names = one_line(", ".join("a custom type" if name.startswith("{") else name for name in unknown_types), 60)
        reason = f"the type {names} is not supported for this loss; nearest: {next(iter(known_types))}"
        conversion.leave(Why.REFUSED, reason, given)
        return {"type"}
    # The names of other columns are fixed.
    field_keys = {"field_messages", *_ANSWER_FIELDS} if task == "preference" else set()
    choices = []
    for entry in entries:
        fields = {name: str(value) for name, value in entry.items() if value and name in field_keys}
        template, prompt = known_types[str(entry["type"])]
        answers = ",".join(fields.get(name, column) for name, column in _ANSWER_FIELDS.items())
        choices.append(
            (str(template or entry.get("chat_template") or ""), fields.get("field_messages", prompt), answers)
        )
    if len(set(choices)) > 1:
        conversion.leave(Why.REFUSED, "the data sets differ in their chat template or columns", given)
        return {"type"}
    template, prompt, answers = choices[0]
    if template:
        _write_template(conversion, given.name, template, "set by the data set")
        reason = "the data set sets the chat template"
        conversion.leave(Why.NOT_NEEDED, reason, conversion.first_unread("chat_template"))
    if prompt and prompt != "messages":
        conversion.write("data.text_column", prompt, given)
    if answers != ",".join(_ANSWER_FIELDS.values()):
        conversion.write("data.target_column", answers, given)
    return {"type", "chat_template", *field_keys, *_agreeing_turns(entries)}


def _source(conversion: Conversion, given: Given) -> None:
    """Convert a list of data sets, for training or for evaluation, to paths and a task."""
    is_training = given.name != "test_datasets"
    entries, read_keys = groups.write_paths(conversion, given, "data.path" if is_training else "data.eval_path")
    if entries and is_training:
        read_keys |= {*_LOCATION_KEYS, *_task(conversion, given, entries)}
        groups.refuse_unread(conversion, given, entries, read_keys)
    if entries and given.name == "pretraining_dataset":
        conversion.write("data.streaming", True, given, reason="axolotl streams a pretraining_dataset")


def _length(conversion: Conversion, length: Given) -> None:
    """Convert the row length, with a note on how axolotl treats longer rows.

    Source: utils/data/utils.py, prompt_strategies/completion.py, pretrain.py, and encode_streaming in
    utils/data/streaming.py."""
    reason = "longer rows are truncated"
    strategy = str(conversion.given.get("excess_length_strategy") or "drop").lower()
    if conversion.values.get("task.type") == "causal_lm":
        reason = "a longer text is split into several rows"
        if conversion.has("pretraining_dataset"):
            packs = conversion.given.get("sample_packing") is True
            effect = "makes rows that overlap by up to 256 tokens" if packs else "truncates it"
            reason += f", but axolotl {effect}"
    elif (task := conversion.values.get("task.type")) in preferences.TASKS:
        effects = {"raise": "stops the run", "truncate": "cuts the end of the answers"}
        effect = effects["truncate"] if task == "reward" else effects.get(strategy, "drops the row")
        reason = f"{preferences.CUT_PROMPT}, but axolotl {effect}"
    elif strategy != "truncate":
        reason += f", but axolotl {'stops the run' if strategy == 'raise' else 'drops them'}"
    conversion.write("data.max_length", length.value, length, reason=reason)


def _usual_warmup(conversion: Conversion, limit: Given | None) -> None:
    """Write axolotl's default warm-up: 3 % of all steps, at most 100 steps (core/builders/base.py)."""
    warmup = conversion.given.get("warmup_steps", conversion.given.get("warmup_ratio"))
    if warmup is not None or not conversion.has("base_model"):
        return
    reason, steps = "axolotl's default: 3 % of all steps, at most 100", limit.whole if limit else None
    if steps and steps > 0:
        conversion.write(WARMUP_KEY, min(int(_WARMUP_SHARE * steps), _MOST_WARMUP), reason=reason)
    else:
        least_steps = f"{math.ceil(_MOST_WARMUP / _WARMUP_SHARE):,}"
        reason += f": for a run of {least_steps} steps or more, set {WARMUP_KEY} = {_MOST_WARMUP}"
        conversion.write(WARMUP_KEY, _WARMUP_SHARE, reason=reason)


_WARMUP_SHARE, _MOST_WARMUP = 0.03, 100


def _merged_order(conversion: Conversion, given: Given) -> None:
    """Leave out whether merged data sets are shuffled, because the sampler shuffles rows, except streamed data."""
    if not (conversion.has("pretraining_dataset") or conversion.given.get("streaming") is True):
        conversion.leave(Why.ALWAYS, "rows are shuffled in each epoch, as in axolotl", given)


def _is_sharegpt(form: str) -> bool:
    return form.startswith("sharegpt")


def _is_conversation(form: str) -> bool:
    return form == "alpaca" or form.startswith("chat_template") or _is_sharegpt(form)


def _task(conversion: Conversion, given: Given, entries: list[dict[str, Any]]) -> set[str]:
    """Write the task if all data sets have the same. Return the keys of their entries that were read."""
    types = list(dict.fromkeys(str(entry.get("type")) for entry in entries))
    if conversion.values.get("task.type") in preferences.TASKS:
        return _pairs(conversion, given, types, entries)
    if all(map(_is_conversation, types)):
        conversion.write("task.type", "chat", given, reason=f"type {one_line(', '.join(types), 40)}")
        return {"type", *_conversations(conversion, given, types, entries)}
    if given.name == "pretraining_dataset" or all(kind == "completion" for kind in types):
        conversion.write("task.type", "causal_lm", given)
        columns = {str(entry.get("field") or entry.get("text_column") or "") for entry in entries}
        if len(columns) > 1:
            return {"type"}
        if column := columns.pop():
            conversion.write("data.text_column", column, given)
        return {"type", "field", "text_column"}
    if types == ["None"]:
        return set()
    other_types = [kind for kind in types if kind != "completion" and not _is_conversation(kind)]
    names = one_line(", ".join("a custom type" if kind.startswith("{") else kind for kind in other_types or types), 60)
    reason = f"the type {names} is not supported; nearest: chat_template (chat) and completion (causal_lm)"
    several_types = f"a run has one task, but its data sets have the types {names}"
    conversion.leave(Why.REFUSED, reason if other_types else several_types, given)
    return {"type"}


def _conversations(conversion: Conversion, given: Given, forms: list[str], entries: list[dict[str, Any]]) -> set[str]:
    """Write columns, template and trained turns of conversations. Return the keys of entries that were read."""
    template_names = [str(entry.get("chat_template") or entry.get("conversation") or "") for entry in entries]
    entries_and_names = zip(entries, template_names, strict=True)
    templates = ["alpaca" if entry.get("type") == "alpaca" else name for entry, name in entries_and_names]
    templates = list(dict.fromkeys(templates))
    if len(templates) > 1:
        templates_text = one_line(", ".join(template or "the run's template" for template in templates), 60)
        reason = f"a run has one chat template, but its data sets have several: {templates_text}"
        conversion.leave(Why.REFUSED, reason, given)
    elif forms == ["alpaca"]:
        reason = "type alpaca: the input follows the instruction directly, without a heading"
        conversion.write(TEMPLATE_KEY, "alpaca", given, reason=reason)
    elif templates != [""]:
        _write_template(conversion, given.name, templates[0], "set by the data set")
    elif not conversion.has("chat_template", "chat_template_jinja") and any(map(_is_sharegpt, forms)):
        reason = "the format of sharegpt depends on the axolotl version; set a chat_template"
        conversion.leave(Why.REFUSED, reason, given)
    if templates != [""]:
        reason = "the data set sets the chat template"
        conversion.leave(Why.NOT_NEEDED, reason, conversion.first_unread("chat_template"))
    columns = {str(entry.get("field_messages") or "messages") for entry in entries}
    keys = {"chat_template", "conversation", *(["field_messages"] if len(columns) == 1 else [])}
    if len(columns) == 1 and columns != {"messages"}:
        conversion.write("data.text_column", columns.pop(), given)
    role_lists = [entry.get("roles_to_train") for entry in entries]
    roles = [{ROLES.get(str(role).lower()) for role in names} for names in role_lists if isinstance(names, list)]
    learns_all = len(roles) == len(entries) and all({"user", "assistant"} <= names for names in roles)
    if learns_all:
        conversion.write("task.loss_on", "all", given, reason="roles_to_train")
    if learns_all or all(names == {"assistant"} for names in roles):
        keys |= {"roles_to_train"}
    return keys | _agreeing_turns(entries)


def _agreeing_turns(entries: list[dict[str, Any]]) -> set[str]:
    """Return the keys of conversations whose values agree with what this program does in all data sets."""
    turns = [(key, value) for entry in entries for key, value in entry.items() if key in _TURNS]
    return set(_TURNS) - {key for key, value in turns if not rules.is_empty(value) and not _agrees(key, value)}


def _write_template(conversion: Conversion, name: str, template: str, reason: str = "") -> None:
    model = str(conversion.given.get("base_model"))
    groups.write_template(conversion, name, one_line(template, 40), model, _TEMPLATES, _MODEL_TEMPLATES, reason)


def _template_of_run(conversion: Conversion, named: Given | None, file_or_text: Given | None) -> None:
    """Convert the chat template of the run, over which a template of the data set takes precedence."""
    if conversion.values.get("task.type") == "causal_lm":
        conversion.leave(Why.NOT_NEEDED, "plain texts need no chat template", named, file_or_text)
    elif file_or_text and (not named or named.value == "jinja"):
        if not str(file_or_text.value).endswith((".jinja", ".jinja2", ".j2")):
            groups.write_text(conversion, str(file_or_text.value), named, file_or_text)
        elif path := conversion.file(file_or_text):
            conversion.write(TEMPLATE_KEY, str(path), named, file_or_text)
        else:
            conversion.leave(Why.REFUSED, "the file was not found", named, file_or_text)
    elif named:
        _write_template(conversion, named.name, str(named.value))
        conversion.leave(Why.NOT_NEEDED, "chat_template takes precedence", file_or_text)


def _tokens(conversion: Conversion, tokens: Given | None, special: Given | None) -> None:
    """Convert new tokens from two keys. Changes to the tokenizer's own special tokens are refused."""
    # In older versions `tokens` was the name of the table of special tokens.
    table = tokens if tokens and isinstance(tokens.value, dict) else special
    tokens_by_key = {tokens.name: tokens.value} if tokens and tokens is not table and not tokens.is_off else {}
    if table and isinstance(table.value, dict):
        special_tokens = {str(name): token for name, token in table.value.items() if name != "pad_token" and token}
        added_tokens = special_tokens.pop("additional_special_tokens", None)
        if special_tokens:
            text = one_line(", ".join(special_tokens), 60)
            reason = f"the tokenizer's {text} cannot be changed; remove the entries that the tokenizer already has"
            conversion.leave(Why.REFUSED, reason, table)
        elif added_tokens:
            tokens_by_key[table.name] = added_tokens
        else:
            conversion.leave(Why.NOT_NEEDED, "padding is excluded from the loss", table)
    write_tokens(conversion, tokens_by_key, special="special_tokens")


# Keys of conversations, with the values that agree with what this program does.
_TURNS: Mapping[str, tuple[str, ...]] = {
    "message_property_mappings": (), "roles": (), "message_field_role": ("role", "from"),
    "message_field_content": ("content", "value"), "train_on_eos": ("turn",), "train_on_eot": ("turn",),
    "field_system": ("system",), "field_tools": ("tools",),
}  # fmt: skip


def _agrees(key: str, value: Any) -> bool:
    """Return whether a key of a data set of conversations has a value that matches what this program does."""
    if key == "message_property_mappings" and isinstance(value, dict):
        return all(str(theirs) in _TURNS.get(f"message_field_{ours}", (ours,)) for ours, theirs in value.items())
    if key == "roles" and isinstance(value, dict):
        names = ((role, str(name).lower()) for role, names in value.items() for name in rules.listed(names))
        return all(ROLES.get(name) == role for role, name in names)
    return value in _TURNS[key]


def _split(conversion: Conversion) -> None:
    """Convert `fsdp_config`, which turns FSDP on even without `fsdp`."""
    names = [name for name in conversion.given if name.startswith(("fsdp_config.", "fsdp_version"))]
    names = [name for name in names if conversion.has(name)]
    if conversion.has("fsdp") or not names:
        return
    offloads = hf.OFFLOADS.split()
    name = next((name for name in names if name not in (*offloads, *hf.RECOMPUTES.split())), names[0])
    sharding_keys = [name for name in names if name.endswith("sharding_strategy")]
    strategy = hf.fsdp_strategy(conversion.given[sharding_keys[0]])[0] if sharding_keys else ""
    if name in offloads and conversion.given[name] is True:
        conversion.write(OFFLOAD, True, name)
    conversion.write(STRATEGY, strategy or "fsdp", *(sharding_keys or [name]), reason=hf.LAYER_BY_LAYER)


def _full_bf16(conversion: Conversion, given: Given) -> None:
    """Convert the value `full` of the key bf16, with which weights and computation are in bf16."""
    if given.value == "full":
        conversion.write("model.dtype", "bfloat16", given)
        conversion.write("training.mixed_precision", "bf16", reason="bf16: full")


def _all_layers(conversion: Conversion, switch: Given, named: Given | None) -> None:
    """Convert `lora_target_linear`, which selects all linear layers even if the file also names layers."""
    if switch.is_on:
        conversion.write("tuning.target_modules", "all-linear", switch)
        conversion.leave(Why.NOT_NEEDED, "lora_target_linear selects all layers", named)


def _floor(conversion: Conversion, floor: Given, schedule: Given | None) -> None:
    """Convert the lowest learning rate of a cosine schedule, which is axolotl's default schedule.

    Source: axolotl/core/trainers/mixins/scheduler.py; get_cosine_schedule_with_min_lr in axolotl/utils/schedulers.py
    has the formula of transformers."""
    if (conversion.given.get("lr_scheduler") or "cosine") != "cosine":
        conversion.leave(Why.NOT_NEEDED, "only applies to the cosine schedule", floor)
    elif floor.number == 1:
        reason = "the learning rate never decays"
        conversion.write("training.lr_scheduler_type", "constant_with_warmup", schedule, floor, reason=reason)
    else:
        conversion.write("training.min_lr_rate", floor.value, floor)


def _pattern_of_names(value: Any) -> str:
    """Join a list of patterns for weight names to one regular expression.

    As in axolotl (utils/freeze.py), each pattern matches at the beginning of a name, and a point matches only a point
    unless a plus follows. Raises ValueError for invalid patterns."""
    patterns = [str(name_pattern) for name_pattern in rules.listed(value)]
    if any(map(_RANGE.search, patterns)):
        raise ValueError("single rows of a matrix cannot be trained; remove their range, such as [:32000]")
    pattern = "|".join(f"^(?:{_POINT.sub(_LITERAL, name_pattern)})" for name_pattern in patterns)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a valid regular expression: {error}") from None
    return pattern


# In axolotl, [5] or [:32000] at the end selects rows and is not part of the pattern.
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
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS, preferences.KEYS,
        {
            # axolotl names these num_epochs, lr_scheduler, optimizer and base_model.
            "num_train_epochs lr_scheduler_type optim model_name_or_path": None,
            "base_model": "model.model_name_or_path",
            "revision_of_model": "model.revision",
            "reinit_weights": To("model.init", values={True: "scratch", False: "pretrained"}),
            # schemas/model.py
            "special_tokens": Off("must be a table", Why.DOES_NOT_FIT),
            "model_type type_of_model cls_model_config": Automatic("determined by the model's config.json"),
            "tokenizer_type tokenizer_use_fast tokenizer_legacy": Automatic("the model's own tokenizer is used"),
            "tokenizer_save_jinja_files": Always("the template is saved with the model"),
            """model_quantization_config_kwargs bnb_config_kwargs.llm_int8_* loraplus_lr_embedding relora_cpu_offload
            relora_prune_method jagged_restart_warmup_steps jagged_restart_anneal_steps adam_epsilon2 adam_beta3
            torchdistx_path dion_* qgalore_* pose_split_on_token_ids pose_max_context_len pose_num_chunks
            scaling_softmax_factor scaling_softmax_bias eaft_alpha eaft_k fp8_enable_fsdp_float8_all_gather kd_beta
            kd_normalize_topk kd_online_* trl vllm ebft dpo_loss_type dpo_loss_weights dpo_label_smoothing
            kto_desirable_weight kto_undesirable_weight center_rewards_coefficient""": _OTHER_METHOD,
            "reward_model": Off("must be true or false", Why.DOES_NOT_FIT),
            "num_labels": NotNeeded("a reward model has one label"),
            """experimental_skip_move_to_device include_tkps axolotl_config_path is_*_derived_model total_*_tokens""":
            hf.OTHER_TOOL,
            "rope_theta": "model.rope_scaling.*",
            "unfrozen_parameters": To("tuning.trainable_layers", convert=_pattern_of_names),
            # schemas/peft.py
            "lora_target_linear": Off("set the layers with tuning.target_modules"),
            "lora_fan_in_fan_out": Automatic("determined by the class of the layer"),
            "peft_target_parameters": "tuning.target_parameters",
            "peft_use_rslora": "tuning.use_rslora",
            "peft_use_dora": "tuning.use_dora",
            "peft_init_lora_weights": hf.INIT,
            "peft_autocast_adapter_dtype": Same((True,), "adapters are stored in fp32"),
            "lora_on_cpu": Off("an adapter is on the device of its layer"),
            "load_in_8bit": Refused("training on 8-bit weights is not supported; use 16-bit or 4-bit weights"),
            "gptq": Refused("4-bit weights are only supported with bitsandbytes"),
            "bnb_config_kwargs.bnb_4bit_quant_type": "quantization.bnb_4bit_quant_type",
            "bnb_config_kwargs.bnb_4bit_use_double_quant": "quantization.bnb_4bit_use_double_quant",
            "bnb_config_kwargs.bnb_4bit_compute_dtype": hf.FOUR_BITS["bnb_4bit_compute_dtype"],
            "bnb_config_kwargs.bnb_4bit_quant_storage": Automatic("4-bit weights are stored as bytes"),
            "merge_lora merge_method": NotNeeded("adapters are merged when they are exported"),
            "qlora_sharded_model_loading": NotNeeded("this key only changes how weights are loaded"),
            # schemas/training.py
            "batch_size": "training.effective_batch_size",
            "eval_batch_size": "evaluation.per_device_eval_batch_size",
            "num_epochs": "training.num_train_epochs",
            "optimizer": hf.OPTIMIZER,
            "optim_args": Refused("the only supported optimizer arguments are the settings in [training]"),
            "lr_scheduler": hf.SCHEDULER,
            "cosine_constant_lr_ratio lr_div_factor lr_quadratic_warmup": Refused(
                "the only supported argument of a schedule is cosine_min_lr_ratio"
            ),
            "embedding_lr embedding_lr_scale lr_groups": Refused("all weights have one learning rate"),
            # Rows: schemas/config.py, and schemas/datasets.py above.
            "excess_length_strategy": Automatic("the note on data.max_length explains what happens to longer rows"),
            "eval_sequence_len": Off("held-out rows have the same maximum length as training rows"),
            "min_sample_len": Refused("short rows cannot be left out"),
            "sample_packing": hf.PACKING,
            """sample_packing_group_size sample_packing_bin_size sample_packing_sequentially sample_packing_eff_est
            sample_packing_mp_start_method multipack_real_batches batch_flattening streaming_multipack_buffer_size
            pretrain_multipack_buffer_size""": Automatic("rows are packed wherever they fit"),
            "eval_sample_packing": Automatic("held-out rows are packed like training rows"),
            "pretrain_multipack_attn": Same((True,), "packed documents do not attend to each other here"),
            "pretraining_sample_concatenation": hf.PACKING,
            "pad_to_sequence_len pad_to_multiple_of": Automatic("rows are padded to the longest of a batch, or packed"),
            "curriculum_sampling": Refused("rows are shuffled in each epoch"),
            "shuffle_merged_datasets": Only((True,), "streamed rows are always shuffled here"),
            "shuffle_before_merging_datasets": Always("rows are shuffled in each epoch"),
            "dataset_shard_num dataset_shard_idx": Refused("choose rows with data.split or data.max_rows"),
            "val_set_size": "data.eval_fraction",
            """dataset_prepared_path num_dataset_shards_to_save dataset_keep_in_memory is_preprocess preprocess_iterable
            push_dataset_to_hub""": hf.CACHED,
            "dataset_processes dataset_num_proc": "data.num_proc",
            "dataset_exact_deduplication": "data.dedup",
            "skip_prepare_dataset": Refused("rows must be texts, not tokens"),
            "streaming": "data.streaming",
            "datasets": NotSupported("set data.path to files or folders"),
            "hf_use_auth_token": NotNeeded("HF_TOKEN is read from the environment"),
            "chat_template chat_template_jinja": Off("must be the name of a template", Why.DOES_NOT_FIT),
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
            "tf32": To("training.tf32", values={"auto": Automatic("used if the GPU supports TF32")}),
            "fp32_norms fp32_norm_classes embeddings_skip_upcast": Off("all weights of a model have one dtype"),
            "resize_token_embeddings_to_32x": Automatic("embeddings grow to a multiple of 64 rows"),
            "mean_resizing_embeddings": Automatic(MEAN_ROWS),
            "flash_attention": To("model.attn_implementation", values={True: _FLASH}, otherwise=_AUTO_KERNEL),
            "sdp_attention": To("model.attn_implementation", values={True: "sdpa"}, otherwise=_AUTO_KERNEL),
            "flex_attention": To("model.attn_implementation", values={True: "flex_attention"}, otherwise=_AUTO_KERNEL),
            "eager_attention": To("model.attn_implementation", values={True: "eager"}, otherwise=_AUTO_KERNEL),
            "xformers_attention sage_attention large_head_attention": Off("torch's fused attention is used"),
            """flash_attn_d512 flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum
            flex_attn_compile_kwargs gemma4_hybrid_attn_impl sdpa_varlen fused_attn_kernel experts_implementation
            use_kernels llama4_linearized_experts tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp
            chunked_cross_entropy chunked_cross_entropy_num_chunks cut_cross_entropy lora_mlp_kernel lora_qkv_kernel
            lora_o_kernel lora_embedding_kernel liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm
            liger_swiglu liger_glu_activation liger_cross_entropy liger_fused_linear_cross_entropy expert_backend
            moe_grouped_backend use_scattermoe use_sonicmoe""": hf.OWN_KERNELS,
            "plugins": Automatic("these plugins change how axolotl computes or reports, not what is trained"),
            "quantization": NotNeeded("only used after training"),
            "gc_steps": To("training.empty_cache_steps", values={-1: rules.OFF}),
            "gc_collect_steps": Automatic("garbage is collected when memory is low"),
            "max_memory gpu_memory_limit": Automatic("the plan determines what fits into memory"),
            # Several devices.
            "dp_shard_size dp_replicate_size deepcompile ddp device": Off(hf.SEVERAL_PROCESSES),
            """tensor_parallel_size context_parallel_size sequence_parallel_degree
            expert_parallel_size""": Only((1,), hf.SEVERAL_PROCESSES, _OWN_ROWS),
            """heads_k_stride ring_attn_func expert_parallel_* world_size use_ray ray_run_name ray_num_workers
            resources_per_worker""": NotNeeded(hf.SEVERAL_PROCESSES),
            # What is watched and saved.
            "strict": Always("unknown settings are always an error"),
            "auto_resume_from_checkpoints": hf.RESUMED,
            "save_first_step dynamic_checkpoint": Off("`tui-trainer ask RUN save` saves at any time"),
            "loss_watchdog_threshold": Off("a NaN or infinite loss is reported, but does not stop the run"),
            "loss_watchdog_patience": NotNeeded("only used with loss_watchdog_threshold"),
            """do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split eval_table_size
            eval_max_new_tokens lm_eval_*""": _MEASURED,
            """generate_samples num_generation_samples generation_max_new_tokens generation_temperature generation_top_p
            generation_top_k generation_prompt_ratio generation_do_sample""": Off("set logging.sample_steps instead"),
            "use_tensorboard": Off("metrics are always written to the run's journal"),
            "profiler_steps profiler_steps_start": Off("the journal records the time of each step"),
            """use_wandb wandb_* use_mlflow mlflow_* hf_mlflow_log_artifacts use_comet comet_* use_swanlab swanlab_*
            use_trackio trackio_* use_otel_metrics otel_*""": hf.NOT_SENT,
            "gradio_*": NotNeeded("try a model with `tui-trainer generate RUN`"),
            # Preferences.
            "rl": Refused(f"the supported values are {', '.join(_PAIR_LOSSES)}, kto"),
            "dpo_use_weighting": Refused("all pairs have the same weight"),
            "dpo_padding_free": Automatic("packed rows have no padding"),
            "dpo_use_liger_kernel": hf.OWN_KERNELS,
            "dpo_use_logits_to_keep dpo_generate_during_eval dpo_norm_loss": NotNeeded("axolotl ignores this key"),
            "rpo_alpha": NotNeeded("axolotl ignores this key; task.sft_weight has this effect"),
            "max_prompt_len": preferences.WHOLE_PROMPTS,
            "rl_adapter_ref_model": Automatic("no second model is loaded for the reference"),
        },
    ),
    groups=(
        Keys(groups.batch_of_all, "batch_size", "micro_batch_size", "gradient_accumulation_steps"),
        Keys(groups.convert_batch, "micro_batch_size", "gradient_accumulation_steps", micro_default=1),
        Keys(_full_bf16, "bf16"), hf.PRECISION, hf.WARMUP, hf.TRACKERS, hf.DEEPSPEED, *hf.FSDP, Keys(_split),
        Keys(groups.schedule, "lr_scheduler", "lr_scheduler_kwargs"),
        Keys(_floor, "cosine_min_lr_ratio", "lr_scheduler"),
        Keys(
            groups.convert_interval, "eval_strategy evaluation_strategy", "eval_steps", "evals_per_epoch",
            key="evaluation.eval_steps", epochs="num_epochs", epochs_default=1.0,
        ),
        Keys(
            groups.convert_interval, "save_strategy", "save_steps", "saves_per_epoch",
            key="checkpoint.save_steps", epochs="num_epochs", epochs_default=1.0,
        ),
        Keys(
            groups.method, "adapter", "load_in_4bit", adapter_key="adapter", methods={"lora": "lora", "qlora": "qlora"},
            model_keys="base_model", default="full",
        ),
        Keys(groups.start_adapter, "lora_model_dir", model_keys="base_model"),
        Keys(
            _preferences, "rl", "dpo_loss_type", "dpo_loss_weights", "dpo_label_smoothing", "trl", "rl_beta dpo_beta",
            "orpo_alpha", "simpo_gamma", "cpo_alpha", "kto_desirable_weight", "kto_undesirable_weight",
            "reward_model", "center_rewards_coefficient",
        ),
        *(Keys(_source, name) for name in ("datasets", "test_datasets", "pretraining_dataset")),
        Keys(_length, "sequence_len"), Keys(_usual_warmup, "max_steps"), Keys(groups.rows_held_out, "val_set_size"),
        Keys(_merged_order, "shuffle_merged_datasets"),
        Keys(
            groups.adapted_layers, "peft_layers_to_transform lora_layers_to_transform",
            "peft_layers_pattern lora_layers_pattern", "lora_target_modules", "lora_target_linear",
            target_key="lora_target_modules",
        ),
        Keys(_template_of_run, "chat_template", "chat_template_jinja"),
        Keys(_tokens, "tokens", "special_tokens"),
        Keys(rope_table, "rope_scaling"), Keys(changed_config, "overrides_of_model_config model_config"),
        Keys(groups.model_files, "base_model_config", "tokenizer_config"),
        Keys(_all_layers, "lora_target_linear", "lora_target_modules"),
    ),
    defaults={
        "training.effective_batch_size": 1, "training.num_train_epochs": 1, "data.max_length": 512,
        "data.packing": False, "data.eval_fraction": 0,
    },
)  # fmt: skip
