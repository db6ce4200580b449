"""`SFTConfig`, `DPOConfig`, `CPOConfig`, `KTOConfig` and `RewardConfig` of TRL, with the arguments of its command line
for model and data.

A file does not say which config it is for: keys of preference losses decide. A file for `ORPOConfig` has no key of its
own, and is read as one for `DPOConfig`, with a note.
Source: trl/trainer/sft_config.py, dpo_config.py and model_config.py, trl/experimental/cpo/cpo_config.py and
orpo/orpo_config.py of TRL 1.x, and older names of renamed arguments."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.data.columns.row import columns_of
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import HUB_PREFIX
from tui_trainer.importing import groups, preferences
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Automatic, NotNeeded, Off, Only, Refused, To, Why, is_off, listed, with_prefix
from tui_trainer.importing.tokens_and_positions import OUTPUT, WEIGHT, rope_table, write_routers
from tui_trainer.planning.batch_cut import PROCESSES
from tui_trainer.planning.processes import NODES, STRATEGY
from tui_trainer.terminal.safe_text import one_line

# Columns that this program finds without a setting.
_USUAL_COLUMNS = frozenset("messages conversations prompt completion text".split())
_PAIR = frozenset(("prompt", "completion"))
# The default of TRL. As a setting, it would refuse data without a split of that name.
_TRAIN = Automatic("the split train is used if the data has splits")
_BEST_FIT = "rows are packed by best fit"
_HEAD_ROWS = 20
# Files that come with TRL (trl/accelerate_configs/), each for 8 processes.
_LAUNCHES = {
    "single_gpu": "", "multi_gpu": "ddp", "fsdp1": "fsdp", "fsdp2": "fsdp", "zero1": "fsdp", "zero2": "deepspeed-2",
    "zero3": "deepspeed-3",
}  # fmt: skip
_LAUNCHED_PROCESSES = 8
_SFT_LOSSES = ("nll", "chunked_nll")
# Losses of CPOConfig, and their names here.
_CPO_LOSSES = {"sigmoid": "cpo", "simpo": "simpo"}
_CPO_KEYS = ("cpo_alpha", "simpo_gamma", "alpha")
_DPO_KEYS = """beta label_smoothing loss_weights precompute_ref_log_probs precompute_ref_batch_size rpo_alpha
max_prompt_length sync_ref_model f_divergence_type ld_alpha use_weighting reference_free disable_dropout"""
_OF_ANSWERS = Automatic("answers are not generated in training, and are truncated at data.max_length")
_ORDER = "train_sampling_strategy"
# Default rates of configs for preferences.
_RATES = {"preference": 1e-6, "kto": 1e-6, "reward": 1e-4}


def _preferences(
    conversion: Conversion,
    losses: Given | None,
    weights: Given | None,
    beta: Given | None,
    smoothing: Given | None,
    gamma: Given | None,
    cross_entropy: Given | None,
    desirable: Given | None,
    undesirable: Given | None,
    centering: Given | None,
    head: Given | None,
) -> None:
    """Convert the loss of a file for a config of preferences, recognized by its keys, and their defaults."""
    names = [str(name) for name in listed(losses.value)] if losses else []
    is_cpo = conversion.has(*_CPO_KEYS) or bool({"simpo", "alphapo"} & set(names))
    is_kto = "kto" in names or bool(desirable or undesirable)
    trains_head = head is not None and head.value == "SEQ_CLS"
    is_reward = centering is not None or trains_head
    is_known = names or is_cpo or is_kto or is_reward or conversion.has(*_DPO_KEYS.split())
    if set(names) & set(_SFT_LOSSES) or not is_known:
        return
    has_dropout = conversion.given.get("disable_dropout") is False
    if is_reward and losses:
        conversion.leave(Why.REFUSED, "RewardConfig has no loss_type", losses)
    elif is_reward:
        saved_modules = listed(conversion.given.get("lora_modules_to_save") or [])
        is_frozen = conversion.given.get("use_peft") is True and not (trains_head or "score" in saved_modules)
        reason = "the head is trained, too, but by TRL only with lora_task_type = SEQ_CLS" if is_frozen else ""
        preferences.write_reward(
            conversion, head or centering, centering=centering, reason=reason, has_margins=True, has_dropout=has_dropout
        )
    elif is_kto and names not in ([], ["kto"]):
        conversion.leave(Why.REFUSED, "the supported loss of KTOConfig is kto", losses)
    elif is_kto:
        source, marks = losses or desirable or undesirable, (desirable, undesirable)
        preferences.write_kto(conversion, source, beta=beta, weights=marks, has_dropout=has_dropout)
        if conversion.given.get(_ORDER) == "sequential":
            conversion.leave(Why.AUTOMATIC, "rows may be shuffled, as the KL term does not need their order", _ORDER)
    elif not is_cpo:
        reason = "" if names else "read as a DPOConfig; else set task.loss_type = orpo, or task.type = kto or reward"
        preferences.write_dpo(conversion, losses, weights, smoothing, beta=beta, reason=reason, has_dropout=has_dropout)
    elif len(names) > 1 or (loss_type := _CPO_LOSSES.get(names[0] if names else "sigmoid")) is None:
        conversion.leave(Why.REFUSED, f"the supported losses of CPOConfig are {', '.join(_CPO_LOSSES)}", losses)
    elif smoothing and not smoothing.is_off:
        conversion.leave(Why.REFUSED, "smoothing is only supported in the loss robust of DPOConfig", smoothing)
    else:
        preferences.write_loss(conversion, loss_type, losses, beta=beta, gamma=gamma, has_dropout=has_dropout)
        preferences.write_cross_entropy(conversion, cross_entropy, "CPOConfig")
    task = conversion.values.get("task.type")
    if cross_entropy and not is_cpo and task == "preference":
        conversion.write("task.sft_weight", cross_entropy.value, cross_entropy)
    if task in _RATES and conversion.has("model_name_or_path") and not conversion.has("learning_rate"):
        conversion.write("training.learning_rate", _RATES[task], reason="TRL's default for this loss")
    if length := conversion.first_unread("max_length"):
        effect = "leaves out the row" if task == "reward" else "cuts the end of the answer"
        reason = f"{preferences.CUT_PROMPT}, but TRL {effect}"
        conversion.write("data.max_length", length.value, length, reason=reason)
    cut = conversion.first_unread("truncation_mode")
    conversion.leave(Why.AUTOMATIC, f"{preferences.CUT_PROMPT}, then the answer its end", cut)


def _template_file(value: Any) -> Any:
    if not str(value).endswith(".jinja"):
        raise ValueError("a template cannot be read from another tokenizer; save the template as a .jinja file")
    return value


def _launch(conversion: Conversion, config: Given | None, count: Given | None) -> None:
    """Convert what the command line passes to `accelerate launch`: a config of accelerate, a number of processes."""
    if config and (config_file := conversion.file(config)):
        groups.convert_file(conversion, config.name, config_file, "accelerate")
    elif config and (strategy := _LAUNCHES.get(str(config.value))):
        conversion.write(STRATEGY, strategy, config, reason="from TRL's config of this name")
        if not count:
            reason = "the number of processes in TRL's config of this name"
            conversion.write(PROCESSES, _LAUNCHED_PROCESSES, config, reason=reason)
    elif config and strategy == "":
        conversion.leave(Why.NOT_NEEDED, "one process trains the whole model", config)
    if count and conversion.devices and conversion.devices != count.whole:
        conversion.leave(Why.AS_ASKED, "set by --processes", count)
    elif count:
        conversion.write(PROCESSES, count.value, count)
    if conversion.devices is None and PROCESSES in conversion.values:
        conversion.devices = conversion.values[PROCESSES] * conversion.values.get(NODES, 1)


def _no_cut(conversion: Conversion) -> None:
    if conversion.given.get("max_length", 0) is None:
        reason = "with null, TRL truncates no rows; set data.max_length to the length of the longest row"
        conversion.leave(Why.DOES_NOT_FIT, reason, "max_length")


def _mixture(conversion: Conversion, given: Given) -> None:
    """Convert a list of data sets, whose rows TRL concatenates."""
    entries, read_keys = groups.write_paths(conversion, given, why=Why.REFUSED)
    if not entries:
        return
    columns = [entry.get("columns") or [] for entry in entries]
    if len(columns[0]) == 1 and all(column_names == columns[0] for column_names in columns):
        if columns[0][0] not in _USUAL_COLUMNS:
            conversion.write("data.text_column", columns[0][0], given)
        read_keys |= {"columns"}
    elif all(set(map(str, column_names)) <= _USUAL_COLUMNS for column_names in columns):
        read_keys |= {"columns"}
    groups.refuse_unread(conversion, given, entries, {"path", "data_files", "data_dir", *read_keys})


def _handbook(conversion: Conversion, mixture: Given, splits: Given | None) -> None:
    """Convert alignment-handbook's list of data sets. Each entry has a share; older versions have a table of shares.

    Source: src/alignment/data.py of huggingface/alignment-handbook at 925acdf."""
    if not isinstance(table := mixture.value, dict):
        return
    source_keys: list[Given | None] = [mixture]
    entries, other_splits = table.get("datasets"), []
    if mixture.name == "dataset_mixer":
        source_keys.append(splits)
        all_splits = [str(split) for split in listed(splits.value)] if splits else ["train"]
        other_splits = [split for split in all_splits if "train" not in split]
        train_splits = [split for split in all_splits if split not in other_splits]
        splits_and_shares = [(split, name, share) for name, share in table.items() for split in train_splits]
        entries = [{"id": name, "split": split, "weight": share} for split, name, share in splits_and_shares]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and entry.get("id") for entry in entries):
        return
    parts_by_name: dict[str, list[tuple[str, str]]] = {}
    shares_by_name: dict[str, set[Any]] = {}
    for entry in entries:
        part = (str(entry.get("config") or "default"), str(entry.get("split") or "train"))
        parts_by_name.setdefault(str(entry["id"]), []).append(part)
        shares_by_name.setdefault(str(entry["id"]), set()).add(entry.get("weight", 1))
    columns = {str(column) for entry in entries for column in entry.get("columns") or ()}
    unread_keys = sorted(columns - _USUAL_COLUMNS) + sorted({str(key) for entry in entries for key in entry} - _ENTRY)
    first_parts = next(iter(parts_by_name.values()), [])
    configurations = {name for name, _ in first_parts}
    has_several_shares = any(len(weights) > 1 for weights in shares_by_name.values())
    if unread_keys:
        conversion.leave(Why.REFUSED, f"unsupported keys: {one_line(', '.join(unread_keys), 60)}", *source_keys)
        return
    if len(configurations) != 1 or has_several_shares or any(part != first_parts for part in parts_by_name.values()):
        why = "a run has one configuration and the same splits for all data sets, but the listed data sets differ"
        conversion.leave(Why.REFUSED, f"{why}; set data.path to one file with all rows", *source_keys)
        return
    conversion.write("data.path", [f"{HUB_PREFIX}{name}" for name in parts_by_name], *source_keys)
    weights = [share for weights in shares_by_name.values() for share in weights]
    if any(weight != 1 for weight in weights):
        conversion.write("data.weights", weights, *source_keys, reason="the share of each data set")
    for key, values, usual_value in (
        ("data.name", configurations, "default"),
        ("data.split", [split for _, split in first_parts], "train"),
        ("data.eval_split", other_splits, ""),
    ):
        if (value := "+".join(values)) != usual_value:
            conversion.write(key, value, *source_keys)
    if "seed" in table:
        conversion.write("data.seed", table["seed"], *source_keys)
    groups.hold_out(conversion, mixture.name, table.get("test_split_size"))


_ENTRY = frozenset("id config split columns weight".split())


def _held_out(conversion: Conversion, split: Given | None) -> None:
    """Convert the split on which TRL's command evaluates, if it evaluates."""
    evaluates = any(not is_off(conversion.given.get(name)) for name in ("eval_strategy", "evaluation_strategy"))
    if not evaluates or conversion.has("datasets"):
        conversion.leave(Why.NOT_NEEDED, "TRL does not evaluate on this split", split)
    elif split:
        conversion.write("data.eval_split", split.value, split)
    elif conversion.has("dataset_name"):
        conversion.write("data.eval_split", "test", reason="the split that TRL evaluates on")


def _learnt(conversion: Conversion, *given: Given | None) -> None:
    """Convert the switches for the tokens to train on. Without a switch, the columns of the data decide."""
    if conversion.values.get("task.type") in preferences.TASKS:
        return
    switch_keys, name_on, _ = groups.switches(conversion, *given)
    if name_on:
        conversion.write("task.loss_on", name_on.removesuffix("_only_loss"), *switch_keys)
        conversion.write("task.type", "chat", reason=f"{name_on} refers to turns of conversations")
    elif conversion.given.get("completion_only_loss") is False:
        conversion.write("task.loss_on", "all", *switch_keys)
    elif switch_keys or conversion.has("model_name_or_path"):
        column_names = _columns_near(conversion)
        if column_names >= _PAIR:
            reason = "TRL trains only on the completion of rows with a prompt; here a chat template formats these rows"
            conversion.write("task.loss_on", "completion", *switch_keys, reason=reason)
            conversion.write("task.type", "chat", reason="rows have a prompt and a completion")
        else:
            reason = "TRL trains on whole conversations"
            if not column_names:
                reason += '; set task.loss_on = "completion" for rows with a prompt'
            conversion.write("task.loss_on", "all", *switch_keys, reason=reason)


def _leave_out_framing_tokens(conversion: Conversion, end_token: Given | None, *framing: Given | None) -> None:
    """Leave out tokens around a text if the data are conversations, which have only the tokens of their template."""
    if conversion.has("chat_template", "chat_template_path") and "task.type" not in conversion.values:
        conversion.write("task.type", "chat", reason="the file has a chat template")
    if conversion.values.get("task.type") in ("chat", *preferences.TASKS):
        conversion.leave(Why.ALWAYS, "a conversation only has the tokens of its template", *framing)
        if end_token and str(end_token.value) in conversion.chat_template_text:
            conversion.leave(Why.ALWAYS, "the chat template writes this token at the end of an answer", end_token)


def _routers(conversion: Conversion, on: Given | None, weight: Given | None) -> None:
    """Convert arguments for routers in the model's config, unless TRL's own argument takes precedence."""
    if conversion.has(WEIGHT):
        conversion.leave(Why.NOT_NEEDED, f"{WEIGHT} takes precedence", on, weight)
    elif on:
        write_routers(conversion, on.value, weight.value if weight else None, on, weight)


_INIT = "model_init_kwargs."


def _columns_near(conversion: Conversion) -> set[str]:
    """Return the columns of the data that are on this machine; empty for other data."""
    columns: set[str] = set()
    for name in listed(conversion.values.get("data.path") or conversion.given.get("dataset_name") or []):
        path = next((path for path in (conversion.folder / str(name), Path(str(name))) if path.exists()), None)
        with suppress(DataError):
            if path:
                rows = open_source(str(path)).rows(ProblemList(), max_rows=_HEAD_ROWS, choices=ColumnChoices("auto"))
                columns |= set(columns_of(rows))
    return columns


def _require_peft(conversion: Conversion, adapter: Given) -> None:
    """Refuse adapter settings without `use_peft`, which the file or TRL's command line would have to set."""
    if not conversion.has("use_peft") and conversion.has("model_name_or_path"):
        reason = "TRL trains all weights unless use_peft is true: set use_peft in the file"
        conversion.leave(Why.REFUSED, reason, adapter)


IMPORTER = Importer(
    name="trl",
    title="TRL",
    rank=2,
    telltale="""dataset_text_field packing_strategy padding_free completion_only_loss assistant_only_loss
    dataset_num_proc dataset_kwargs eval_packing chat_template_path use_peft lora_task_type use_bnb_nested_quant
    dataset_train_split dataset_test_split dataset_streaming datasets test_split_size accelerate_config
    num_of_sequences chars_per_token truncation_mode beta max_prompt_length precompute_ref_log_probs rpo_alpha
    cpo_alpha loss_weights desirable_weight undesirable_weight center_rewards_coefficient""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS, hf.HUB_DATA, with_prefix("model_init_kwargs", hf.MODEL),
        preferences.KEYS,
        {
            "max_length max_seq_length": To(
                "data.max_length", "TRL truncates longer rows, but here a longer text is split into several rows"
            ),
            "packing": hf.PACKING,
            "eval_packing": Automatic("held-out rows are packed like training rows"),
            "packing_strategy": Only(
                ("bfd", "ffd"), _BEST_FIT, "{} here, and conversations longer than a row are truncated"
            ),
            "num_of_sequences": Automatic(_BEST_FIT),
            "padding_free": Automatic("packed rows have no padding"),
            "pad_to_multiple_of": Automatic("rows are padded to the longest row of their batch"),
            "truncation_mode": Only(("keep_start",), "the start of a long row is kept", "{} here"),
            "shuffle_dataset": hf.NEW_ORDER,
            "dataset_text_field": "data.text_column",
            "dataset_num_proc preprocessing_num_workers": "data.num_proc",
            "dataset_batch_size": Automatic("the size is chosen automatically"),
            "dataset_kwargs.skip_prepare_dataset": Refused("data is always prepared"),
            "dataset_kwargs.add_special_tokens": Only(
                (True,), "texts get the tokenizer's own special tokens", "{} here"
            ),
            "dataset_kwargs.append_concat_token": Only((True,), "each text ends with an end token", "{} here"),
            "dataset_kwargs*": Refused("[data] sets how data is prepared"),
            "dataset_train_split": To("data.split", values={"train": _TRAIN}),
            "dataset_streaming streaming": "data.streaming",
            "datasets": Refused("set data.path to files, folders or data sets of the Hub"),
            "dataset_mixture dataset_mixer": Refused("the list names no data sets"),
            "dataset_splits": NotNeeded("only used with dataset_mixer"),
            "test_split_size": "data.eval_fraction",
            "chat_template_path": To("task.chat_template", convert=_template_file),
            "eos_token": Only(("<EOS_TOKEN>",), "texts end with the tokenizer's own end token", "{} here"),
            "pad_token": Off("padding is excluded from the loss, so the pad token does not matter"),
            "model_init_kwargs.revision": "model.revision",
            "chars_per_token": Automatic("tokens are counted, not estimated from characters"),
            "activation_offloading": Off("activations stay on the GPU; training.gradient_checkpointing saves memory"),
            "lora_task_type": Only(("CAUSAL_LM",), "TRL's SFT trains causal models"),
            "use_liger": hf.LIGER,
            "env*": NotNeeded("set environment variables in the shell"),
            "ignore_bias_buffers": hf.OTHER_TOOL,
            "model_init_kwargs.use_kernels": hf.LIGER,
            "accelerate_config": Refused("the accelerate file was not found; set distributed.strategy instead"),
            "use_bnb_nested_quant": "quantization.bnb_4bit_use_double_quant",
            "gradient_checkpointing_use_reentrant": Automatic("checkpointing is always non-reentrant"),
            # Preferences.
            "loss_type": Only(_SFT_LOSSES, "the loss is cross entropy", "the loss is cross entropy, or one of pairs"),
            "precompute_ref_batch_size": preferences.COMPUTED_ONCE,
            "max_prompt_length": preferences.WHOLE_PROMPTS,
            "max_completion_length": Refused(_OF_ANSWERS.reason),
            "generate_during_eval": _OF_ANSWERS,
            "alpha": Refused("AlphaPO is not supported"),
            "use_weighting": Refused("all pairs have the same weight"),
            "ld_alpha": Only((1,), "all tokens of an answer have the same weight"),
            "f_divergence_type": Only(("reverse_kl", "FDivergenceType.REVERSE_KL"), "the divergence is the reverse KL"),
            "sync_ref_model": Refused("the reference stays the same during the run"),
            "ref_model_mixup_alpha ref_model_sync_steps": NotNeeded("only used with sync_ref_model"),
            "reference_free force_use_ref_model model_adapter_name ref_adapter_name": Refused(
                "the reference is the model before training"
            ),
            "ref_model_init_kwargs": Refused("the reference is loaded like the model"),
            "disable_dropout": Automatic("tuning.lora_dropout decides"),
            "is_encoder_decoder": Off("only causal models are trained on pairs", Why.REFUSED),
            "label_pad_token_id padding_value": NotNeeded("padding is excluded from the loss"),
            "use_num_logits_to_keep use_logits_to_keep": hf.OWN_KERNELS,
        },
    ),
    groups=(
        Keys(
            _preferences, "loss_type", "loss_weights", "beta", "label_smoothing", "simpo_gamma",
            "cpo_alpha rpo_alpha", "desirable_weight", "undesirable_weight", "center_rewards_coefficient",
            "lora_task_type",
        ),
        Keys(_launch, "accelerate_config", "num_processes"), hf.BATCH, Keys(_no_cut), *hf.GROUPS,
        Keys(rope_table, "rope_scaling"),
        Keys(_mixture, "datasets"), Keys(_handbook, "dataset_mixture dataset_mixer", "dataset_splits"),
        Keys(groups.rows_held_out, "test_split_size"),
        Keys(groups.template_text, "chat_template"),
        Keys(_held_out, "dataset_test_split"),
        Keys(_learnt, "assistant_only_loss", "completion_only_loss"),
        Keys(
            _leave_out_framing_tokens, "eos_token", "dataset_kwargs.add_special_tokens",
            "dataset_kwargs.append_concat_token",
        ),
        Keys(_routers, f"{_INIT}{OUTPUT}", f"{_INIT}{WEIGHT}"),
        Keys(_require_peft, "lora_r lora_alpha lora_target_modules load_in_4bit"),
        Keys(
            groups.method, "use_peft", "load_in_4bit", adapter_key="use_peft", methods={True: "lora", False: "full"},
            model_keys="model_name_or_path", default="full",
        ),
        Keys(groups.default_layers, target_key="lora_target_modules"),
    ),
    defaults={
        **hf.DEFAULTS, "training.learning_rate": 2e-5, "training.gradient_checkpointing": True,
        "data.max_length": 1024, "data.packing": False, "data.eval_fraction": 0, "tuning.lora_dropout": 0.05,
        "quantization.bnb_4bit_use_double_quant": False,
    },
)  # fmt: skip
