"""TRL's `SFTConfig`, with the model and data arguments of its command line.

Source: trl/trainer/sft_config.py and trl/trainer/model_config.py of TRL 1.x; older names where they were renamed.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.data.columns.row import columns_of
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import HUB_PREFIX
from tui_trainer.importing.conversion import Conversion, Importer, KeyGroup, write_text
from tui_trainer.importing.groups import (
    batch,
    hold_out,
    method,
    read_beside,
    rows_held_out,
    switches,
    usual_layers,
    write_part,
    write_places,
)  # fmt: skip
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import (
    Automatic,
    NotNeeded,
    Off,
    Refused,
    Same,
    To,
    Why,
    file_near,
    listed,
    off,
    under,
    whole,
)
from tui_trainer.importing.tokens_and_positions import OUTPUT, WEIGHT, rope_table, write_routers
from tui_trainer.planning.batch_cut import PROCESSES
from tui_trainer.planning.processes import NODES, STRATEGY
from tui_trainer.terminal.safe_text import one_line

# Which are found by their names.
_USUAL_COLUMNS = frozenset("messages conversations prompt completion text".split())
_PAIR = frozenset(("prompt", "completion"))
_LORA = ("lora_r", "lora_alpha", "lora_target_modules")
# Its default: data without a split of that name would be refused.
_TRAIN = Automatic("the split train is used if the data has splits")
_BEST_FIT = "rows are packed by best fit"
_SPECIAL_TOKENS, _END = "texts get the tokenizer's own special tokens", "each text ends with an end token"
_OWN_END = "texts end with the tokenizer's own end token"
_HEAD_ROWS = 20
# The files that it brings (trl/accelerate_configs/), for 8 processes each.
_LAUNCHES = {
    "single_gpu": "", "multi_gpu": "ddp", "fsdp1": "fsdp", "fsdp2": "fsdp", "zero1": "fsdp", "zero2": "deepspeed-2",
    "zero3": "deepspeed-3",
}  # fmt: skip
_LAUNCHED_PROCESSES = 8


def _template_file(value: Any) -> Any:
    if not str(value).endswith(".jinja"):
        raise ValueError("a template cannot be read from another tokenizer; save the template as a .jinja file")
    return value


def _launch(done: Conversion) -> None:
    """What its command line hands on to `accelerate launch`: its batch is that of one of so many processes."""
    config, count = done.first("accelerate_config"), done.first("num_processes")
    if config and (path := file_near(done.folder, str(config[1]))):
        read_beside(done, "accelerate_config", path, "accelerate")
    elif config and str(config[1]) in _LAUNCHES:
        if strategy := _LAUNCHES[str(config[1])]:
            done.write(STRATEGY, strategy, "accelerate_config", reason="from TRL's config of this name")
            if not count:
                done.write(
                    PROCESSES,
                    _LAUNCHED_PROCESSES,
                    "accelerate_config",
                    reason="the number of processes in TRL's config of this name",
                )
        else:
            done.leave(Why.NOT_NEEDED, "one process trains the whole model", "accelerate_config")
    if count and done.devices and done.devices != whole(count[1]):
        done.leave(Why.AS_ASKED, "set by --processes", "num_processes")
    elif count:
        done.write(PROCESSES, count[1], "num_processes")
    if done.devices is None and PROCESSES in done.values:
        done.devices = done.values[PROCESSES] * done.values.get(NODES, 1)


def _no_cut(done: Conversion) -> None:
    if done.given.get("max_length", 0) is None:
        done.leave(
            Why.DOES_NOT_FIT,
            "with null, TRL truncates no rows; set data.max_length to the length of the longest row",
            "max_length",
        )


def _mixture(done: Conversion) -> None:
    """Its list of data sets, whose rows are used one after another."""
    entries = write_places(done, "datasets", "data.path", Why.REFUSED)
    if not entries:
        return
    read = {"path", "data_files", "data_dir", *write_part(done, "datasets", entries, trained=True)}
    columns = [one.get("columns") or [] for one in entries]
    if len(columns[0]) == 1 and all(some == columns[0] for some in columns):
        if columns[0][0] not in _USUAL_COLUMNS:
            done.write("data.text_column", columns[0][0], "datasets")
        read |= {"columns"}
    elif all(set(map(str, some)) <= _USUAL_COLUMNS for some in columns):
        read |= {"columns"}
    unread = (str(key) for one in entries for key, value in one.items() if key not in read and not off(value))
    if rest := list(dict.fromkeys(unread)):
        names = one_line(", ".join(rest), 60)
        done.leave(Why.REFUSED, f"unsupported keys: {names}; they could change what is trained on", "datasets")


def _handbook(done: Conversion) -> None:
    """alignment-handbook's lists of data sets: entries with a share each, or in older versions shares by name.

    Source: src/alignment/data.py of huggingface/alignment-handbook at 925acdf.
    """
    found, splits = done.first("dataset_mixture", "dataset_mixer"), done.first("dataset_splits")
    if not found or not isinstance(table := found[1], dict):
        return
    names, entries, of_others = [found[0]], table.get("datasets"), []
    if found[0] == "dataset_mixer":
        names += splits[:1] if splits else []
        wanted = [str(one) for one in listed(splits[1])] if splits else ["train"]
        of_others = [one for one in wanted if "train" not in one]
        entries = [
            {"id": place, "split": split, "weight": share}
            for place, share in table.items()
            for split in wanted
            if split not in of_others
        ]
    if not isinstance(entries, list) or not all(isinstance(one, dict) and one.get("id") for one in entries):
        return
    parts: dict[str, list[tuple[str, str]]] = {}
    shares: dict[str, set[Any]] = {}
    for one in entries:
        part = (str(one.get("config") or "default"), str(one.get("split") or "train"))
        parts.setdefault(str(one["id"]), []).append(part)
        shares.setdefault(str(one["id"]), set()).add(one.get("weight", 1))
    columns = {str(column) for one in entries for column in one.get("columns") or ()}
    unread = sorted(columns - _USUAL_COLUMNS) + sorted({str(key) for one in entries for key in one} - _ENTRY)
    first = next(iter(parts.values()), [])
    configurations, shared = {name for name, _ in first}, any(len(some) > 1 for some in shares.values())
    if unread:
        done.leave(Why.REFUSED, f"unsupported keys: {one_line(', '.join(unread), 60)}", *names)
    elif len(configurations) != 1 or shared or any(some != first for some in parts.values()):
        why = "a run has one configuration and the same splits for all data sets, but this list has several"
        done.leave(Why.REFUSED, f"{why}; nearest: one file with all rows as data.path", *names)
    else:
        done.write("data.path", [f"{HUB_PREFIX}{place}" for place in parts], *names)
        if any(some != {1} for some in shares.values()):
            done.write(
                "data.weights", [some.pop() for some in shares.values()], *names, reason="the share of each data set"
            )
        for key, values, usual in (
            ("data.name", configurations, "default"), ("data.split", [split for _, split in first], "train"),
            ("data.eval_split", of_others, ""),
        ):  # fmt: skip
            if (value := "+".join(values)) != usual:
                done.write(key, value, *names)
        if "seed" in table:
            done.write("data.seed", table["seed"], *names)
        hold_out(done, found[0], table.get("test_split_size"))


_ENTRY = frozenset("id config split columns weight".split())


def _held_out(done: Conversion) -> None:
    """The split that its command measures on, where it measures."""
    split = done.first("dataset_test_split")
    measures = any(not off(done.given.get(name)) for name in ("eval_strategy", "evaluation_strategy"))
    if not measures or done.has("datasets"):
        if split:
            done.leave(Why.NOT_NEEDED, "TRL does not evaluate on this split", split[0])
    elif split:
        done.write("data.eval_split", split[1], split[0])
    elif done.has("dataset_name"):
        done.write("data.eval_split", "test", reason="the split that TRL evaluates on")


def _learnt(done: Conversion) -> None:
    """What is learnt: where no switch says it, that follows from the columns of the data."""
    names, on, _ = switches(done, "assistant_only_loss", "completion_only_loss")
    if on:
        done.write("task.loss_on", on[0].removesuffix("_only_loss"), *names)
        done.write("task.type", "chat", reason=f"{on[0]} refers to turns of conversations")
    elif done.given.get("completion_only_loss") is False:
        done.write("task.loss_on", "all", *names)
    elif names or done.has("model_name_or_path"):
        columns = _columns_near(done)
        if columns >= _PAIR:
            reason = "TRL trains only on the completion of rows with a prompt; here a chat template formats these rows"
            done.write("task.loss_on", "completion", *names, reason=reason)
            done.write("task.type", "chat", reason="rows have a prompt and a completion")
        else:
            reason = 'TRL trains on whole conversations; set task.loss_on = "completion" for rows with a prompt'
            done.write("task.loss_on", "all", *names, reason="TRL trains on whole conversations" if columns else reason)


def _template(done: Conversion) -> None:
    if found := done.first("chat_template"):
        write_text(done, str(found[1]), found[0])


def _framed_by_template(done: Conversion) -> None:
    """Conversations have the tokens of their template and no others, there too; a template is for conversations."""
    template = done.text or ""
    if done.has("chat_template", "chat_template_path"):
        done.write("task.type", "chat", reason="the file has a chat template")
    if done.values.get("task.type") != "chat":
        return
    for name in ("add_special_tokens", "append_concat_token"):
        if found := done.first(f"dataset_kwargs.{name}"):
            done.leave(Why.ALWAYS, "a conversation only has the tokens of its template", found[0])
    if (end := done.first("eos_token")) and str(end[1]) in template:
        done.leave(Why.ALWAYS, "the chat template writes this token at the end of an answer", end[0])


def _routers(done: Conversion) -> None:
    """Arguments of the model's config, where its own argument does not count before them."""
    on, weight = (done.first(f"{_INIT}{name}") for name in (OUTPUT, WEIGHT))
    names = [one[0] for one in (on, weight) if one]
    if names and done.has(WEIGHT):
        done.leave(Why.NOT_NEEDED, f"{WEIGHT} takes precedence", *names)
    elif on:
        write_routers(done, on[1], weight and weight[1], *names)


_INIT = "model_init_kwargs."


def _columns_near(done: Conversion) -> set[str]:
    """The columns of the data, as far as it lies on this machine."""
    places = listed(done.values.get("data.path") or done.given.get("dataset_name") or [])
    found: set[str] = set()
    for place in places:
        path = next((path for path in (done.folder / str(place), Path(str(place))) if path.exists()), None)
        with suppress(DataError):
            if path:
                rows = open_source(str(path)).rows(ProblemList(), max_rows=_HEAD_ROWS, choices=ColumnChoices("auto"))
                found |= set(columns_of(rows))
    return found


def _peft_is_said(done: Conversion) -> None:
    """Without its switch it trains all weights, whatever is said of adapters: a command line may set it."""
    found = done.first(*_LORA, "load_in_4bit")
    if found and not done.has("use_peft") and done.has("model_name_or_path"):
        reason = "TRL trains all weights unless use_peft is true: set use_peft in the file"
        done.leave(Why.REFUSED, reason, found[0])


IMPORTER = Importer(
    name="trl",
    title="TRL SFTConfig",
    rank=2,
    telltale="""dataset_text_field packing_strategy padding_free completion_only_loss assistant_only_loss
    dataset_num_proc dataset_kwargs eval_packing chat_template_path use_peft lora_task_type use_bnb_nested_quant
    dataset_train_split dataset_test_split dataset_streaming datasets test_split_size accelerate_config
    num_of_sequences chars_per_token truncation_mode""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS, hf.HUB_DATA, under("model_init_kwargs", hf.MODEL),
        {
            "max_length max_seq_length": To(
                "data.max_length", "TRL truncates longer rows; a longer text is split into several rows here"
            ),
            "packing": hf.PACKING,
            "eval_packing": Automatic("held-out rows are packed like training rows"),
            "packing_strategy": Same(
                ("bfd", "ffd"), _BEST_FIT, f"{_BEST_FIT} here, and a longer conversation is truncated", Why.REFUSED
            ),
            "num_of_sequences": Automatic(_BEST_FIT),
            "padding_free": Automatic("packed rows have no padding"),
            "pad_to_multiple_of": Automatic("rows are padded to the longest row of their batch"),
            "truncation_mode": Same(
                ("keep_start",), "the start of a long row is kept", "the start of a long row is kept here", Why.REFUSED
            ),
            "shuffle_dataset": hf.NEW_ORDER,
            "dataset_text_field": "data.text_column",
            "dataset_num_proc": "data.num_proc",
            "dataset_batch_size": Automatic("the size is chosen automatically"),
            "dataset_kwargs.skip_prepare_dataset": Refused("data is always prepared"),
            "dataset_kwargs.add_special_tokens": Same(
                (True,), _SPECIAL_TOKENS, f"{_SPECIAL_TOKENS} here", Why.REFUSED
            ),
            "dataset_kwargs.append_concat_token": Same((True,), _END, f"{_END} here", Why.REFUSED),
            "dataset_kwargs*": Refused("[data] sets how data is prepared"),
            "dataset_train_split": To("data.split", values={"train": _TRAIN}),
            "dataset_streaming streaming": "data.streaming",
            "datasets": Refused("set data.path to files, folders or data sets of the Hub"),
            "dataset_mixture dataset_mixer": Refused("the list names no data sets"),
            "dataset_splits": NotNeeded("only used with dataset_mixer"),
            "test_split_size": "data.eval_fraction",
            "chat_template_path": To("task.chat_template", convert=_template_file),
            "eos_token": Same(
                ("<EOS_TOKEN>",), _OWN_END, f"{_OWN_END} here", Why.REFUSED
            ),
            "pad_token": Off("padding is excluded from the loss, so its token does not matter"),
            "model_init_kwargs.revision": "model.revision",
            "chars_per_token": Automatic("tokens are counted, not estimated from characters"),
            "activation_offloading": Off("activations stay on the GPU; training.gradient_checkpointing saves memory"),
            "lora_task_type": Same(("CAUSAL_LM",), *("TRL's SFT trains causal models",) * 2, Why.REFUSED),
            "use_liger": hf.LIGER,
            "env*": NotNeeded("set environment variables in the shell"),
            "ignore_bias_buffers": hf.OTHER_TOOL,
            "model_init_kwargs.use_kernels": hf.LIGER,
            "accelerate_config": Refused("the accelerate file was not found; set distributed.strategy instead"),
            "use_bnb_nested_quant": "quantization.bnb_4bit_use_double_quant",
            "gradient_checkpointing_use_reentrant": Automatic("checkpointing is always non-reentrant"),
        },
    ),
    groups=(
        KeyGroup(("num_processes", "accelerate_config"), _launch),
        batch(hf.MICRO, micro_default=8),
        KeyGroup(("max_length",), _no_cut),
        *hf.GROUPS,
        rope_table("rope_scaling"),
        KeyGroup(("datasets",), _mixture), KeyGroup(("dataset_mixture", "dataset_mixer"), _handbook),
        rows_held_out("test_split_size"),
        KeyGroup(("chat_template",), _template),
        KeyGroup(("dataset_test_split",), _held_out),
        KeyGroup(("assistant_only_loss", "completion_only_loss"), _learnt), KeyGroup((), _framed_by_template),
        KeyGroup((f"{_INIT}{OUTPUT}", f"{_INIT}{WEIGHT}"), _routers),
        KeyGroup((), _peft_is_said),
        method(
            "use_peft", {True: "lora", False: "full"}, four_bit=("load_in_4bit",), model=("model_name_or_path",),
            otherwise="full",
        ),
        usual_layers("lora_target_modules"),
    ),
    defaults={
        **hf.DEFAULTS, "training.learning_rate": 2e-5, "training.gradient_checkpointing": True,
        "data.max_length": 1024, "data.packing": False, "data.eval_fraction": 0, "tuning.lora_dropout": 0.05,
        "quantization.bnb_4bit_use_double_quant": False,
    },
)  # fmt: skip
