"""Functions that convert keys which have a meaning only together: batch size, precision, intervals, tuning method.

Importers list these functions in `Keys`, with the key names of their tool. A function adds our settings to `done`."""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import is_same_value
from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.load import validate
from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import ConfigError
from tui_trainer.importing import rules
from tui_trainer.importing.conversion import Conversion, Given
from tui_trainer.importing.detection import find_importer, flatten_keys
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import REFUSALS, Why, is_off, listed, listed_names, number, whole
from tui_trainer.methods.lr_schedules import SCHEDULE_KEY
from tui_trainer.methods.tuning_methods import METHOD_KEY
from tui_trainer.models.adapters import CONTINUES_KEY
from tui_trainer.models.chat_rendering import TEMPLATE_KEY
from tui_trainer.models.facts import find_model
from tui_trainer.models.targets import MODULES_KEY
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY
from tui_trainer.planning.processes import OFFLOAD, STRATEGY, sharding_refusals
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tracking.contract import tracker_names

_SPLIT, _FLOOR = "data.split", "training.min_lr_rate"
_SCHEDULE_ARGUMENTS = "lr_scheduler_kwargs"
_NEVER = 10**6
# Names that tools use for the key of the model.
_MODELS = ("model_name_or_path", "base_model", "base_model_name_or_path", "model_name", "model")


def convert_batch(
    done: Conversion,
    rows: Given | None,
    parts: Given | None = None,
    *,
    micro_default: int | None = None,
    accumulation_default: int = 1,
) -> None:
    """Convert micro-batch size (`rows`) and gradient accumulation (`parts`) to the effective batch size.

    Writes their product with the number of devices, because the plan decides by memory how a batch is split. The
    defaults are those of the other tool."""
    micro_rows = rows.whole if rows else micro_default
    accumulation = parts.whole if parts else accumulation_default
    if not (rows or parts) or micro_rows is None or accumulation is None or min(micro_rows, accumulation) < 1:
        for key, source in ((MICRO_BATCH_KEY, rows), (ACCUMULATION_KEY, parts)):
            if source:
                done.write(key, source.value, source)
        return
    reason, has_both = per_device_note(done.devices), bool(rows and parts)
    if not has_both and micro_rows * accumulation != (micro_rows if rows else accumulation):
        reason = f"micro-batch {micro_rows} x accumulation {accumulation}, with the default of {done.tool}; {reason}"
    effective_rows = micro_rows * accumulation * (done.devices or 1)
    done.write(EFFECTIVE_BATCH_KEY, effective_rows, rows, parts, reason=reason, product=has_both, per_device=True)


def batch_of_all(done: Conversion, rows: Given, *cut: Given | None) -> None:
    """Convert a batch size for all devices, and leave out the keys `cut` about how the batch is split."""
    if rows.whole:
        done.write(EFFECTIVE_BATCH_KEY, rows.value, rows)
        done.leave(Why.NOT_NEEDED, f"{rows.name} sets the rows per step", *cut)


def per_device_note(devices: int | None) -> str:
    """Return a note on how a batch size per device became the effective batch size."""
    if devices is None:
        return "the batch size of one device; --processes N multiplies it by N"
    return f"the batch size of one device in the file, multiplied by --processes {devices}"


def switches(done: Conversion, *given: Given | None) -> tuple[list[Given], str, list[Any]]:
    """Return the switches with a value, the name of the switch that is on, and the values that are not true or false.

    If several switches are on, they are left out, and all results are empty."""
    given_keys = [switch for switch in given if switch]
    names_on = [switch.name for switch in given_keys if switch.is_on]
    if len(names_on) > 1:
        done.leave(Why.DOES_NOT_FIT, f"only one of {' and '.join(names_on)} can be true", *given_keys)
        return [], "", []
    return given_keys, "".join(names_on), [switch.value for switch in given_keys if not isinstance(switch.value, bool)]


def switched(done: Conversion, switch: Given, number: Given) -> None:
    """Leave out a switch that turns on the feature of another key `number`, and also that key if the switch is off."""
    if isinstance(switch.value, bool):
        reason = f"set by {number.name}" if switch.value else "turned off in the file"
        done.leave(Why.NOT_NEEDED, reason, switch, None if switch.value else number)


def precision(done: Conversion, *given: Given | None) -> None:
    """Convert the switches bf16 and fp16 to `training.mixed_precision`."""
    key = "training.mixed_precision"
    switch_keys, name_on, other_values = switches(done, *given)
    if name_on:
        done.write(key, name_on, *switch_keys)
    elif other_values and all(is_same_value(value, "auto") for value in other_values):
        done.write(key, "auto", *switch_keys)
    elif other_values:
        done.leave(Why.DOES_NOT_FIT, "must be true, false or auto", *switch_keys)
    elif switch_keys:
        done.write(key, "no", *switch_keys, reason="neither bf16 nor fp16 is on")


def warmup(done: Conversion, share: Given, count: Given | None) -> None:
    """Convert the warm-up `share`, unless there is a `count` above 0, which takes precedence as in transformers."""
    share_value = share.number
    if count and not count.is_off:
        done.leave(Why.NOT_NEEDED, "warmup_steps takes precedence", share)
    elif share_value is None or not 0 <= share_value < 1:
        done.leave(Why.DOES_NOT_FIT, "must be a share of all steps, at least 0 and below 1", share)
    else:
        done.write("training.warmup_steps", share_value, share, reason="a share of all steps")
        done.leave(Why.NOT_NEEDED, "set by warmup_ratio", count)


def schedule(done: Conversion, name: Given, beside: Given | None, *, has_stable_default: bool = False) -> None:
    """Convert a learning-rate schedule with arguments (`lr_scheduler_kwargs`). Other schedules have rules.

    `has_stable_default` is true if the tool's own num_stable_steps does not let the decay end with the run.
    Source: transformers.optimization.get_scheduler, which passes the arguments on."""
    if name.value not in ("cosine_with_min_lr", "warmup_stable_decay"):
        return
    arguments: Any = beside.value if beside else {}
    # transformers also accepts a string with JSON.
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    try:
        if name.value == "cosine_with_min_lr":
            our_settings = _cosine_floor(done, dict(arguments))
        else:
            our_settings = _decay(done, dict(arguments), has_stable_default)
    except (TypeError, ValueError) as error:
        reason = str(error) if isinstance(arguments, dict) else f"{_SCHEDULE_ARGUMENTS} must be a table"
        done.leave(Why.DOES_NOT_FIT, reason, name, beside)
        return
    for key, value in our_settings.items():
        done.write(key, value, name if key == SCHEDULE_KEY else beside)


def _cosine_floor(done: Conversion, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return our settings for a cosine schedule with a lowest rate. Raises ValueError for any other arguments."""
    floor_share, floor_rate = arguments.pop("min_lr_rate", None), arguments.pop("min_lr", None)
    if (floor_share is None) == (floor_rate is None):
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain min_lr_rate or min_lr, not both")
    if floor_share is None:
        floor_value, peak_rate = number(floor_rate), number(done.given.get("learning_rate"))
        if floor_value is None or not peak_rate:
            raise ValueError("min_lr becomes a share of learning_rate, so min_lr and learning_rate must be numbers")
        floor_share = floor_value / peak_rate
    _refuse_arguments(arguments, num_cycles=0.5)
    return {SCHEDULE_KEY: "cosine", _FLOOR: floor_share}


def _decay(done: Conversion, arguments: dict[str, Any], has_stable_default: bool) -> dict[str, Any]:
    """Return our settings for a schedule with decay. Raises ValueError unless the decay ends with the run."""
    decay_steps, stable_value = whole(arguments.pop("num_decay_steps", None)), arguments.pop("num_stable_steps", None)
    if decay_steps is None:
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain num_decay_steps, a whole number")
    if stable_value is None and has_stable_default:
        raise ValueError(
            "set num_stable_steps so that the decay ends at max_steps "
            f"({done.tool}'s default: a third of the steps after warm-up)"
        )
    if stable_value is not None:
        warmup_count, warmup_share = done.given.get("warmup_steps"), done.given.get("warmup_ratio")
        step_counts = [whole(warmup_count), whole(stable_value), decay_steps]
        ends_with_run = None not in step_counts and sum(filter(None, step_counts)) == whole(done.given.get("max_steps"))
        if not ends_with_run or (is_off(warmup_count) and not is_off(warmup_share)):
            raise ValueError("warmup_steps, num_stable_steps and num_decay_steps must add up to max_steps")
    values = {SCHEDULE_KEY: "warmup_stable_decay", "training.num_decay_steps": decay_steps}
    for name, key in (("decay_type", "training.decay_type"), ("min_lr_ratio", _FLOOR)):
        if name in arguments:
            values[key] = arguments.pop(name)
    _refuse_arguments(arguments, num_cycles=0.5, warmup_type="linear")
    return values


def _refuse_arguments(arguments: Mapping[str, Any], **usual: Any) -> None:
    """Raise ValueError if an argument of a schedule is missing in `usual` or has another value there."""
    if others := [
        name for name, value in arguments.items() if name not in usual or not is_same_value(value, usual[name])
    ]:
        usual_text = ", ".join(f"{name} = {value}" for name, value in usual.items())
        names = one_line(", ".join(map(str, others)), 60)
        raise ValueError(f"unsupported: {names}; supported values: {usual_text}")


def early_stopping(done: Conversion, switch: Given, count: Given | None) -> None:
    """Convert a switch and a number of evaluations to `early_stopping_patience`, in which 0 means off."""
    key = "evaluation.early_stopping_patience"
    if switch.is_off:
        done.leave(Why.NOT_NEEDED, "early_stopping is off", count)
        done.write(key, 0, switch, reason="0 means off")
    elif count:
        done.write(key, count.value, switch, count)
    else:
        done.leave(Why.NOT_SUPPORTED, f"the number of evaluations to wait is missing; set {key}", switch)


def best_weights(done: Conversion, switch: Given) -> None:
    """Convert a switch for keeping the best weights to early stopping with a patience that never ends a run."""
    if switch.is_on:
        if any(not is_off(done.given.get(name)) for name in ("early_stopping_patience", "early_stopping_steps")):
            done.leave(Why.NOT_NEEDED, "early stopping keeps the best weights", switch)
        else:
            reason = "keeps the best weights, but never stops a run early"
            done.write("evaluation.early_stopping_patience", _NEVER, switch, reason=reason)


def trackers(done: Conversion, given: Given) -> None:
    """Convert a list or a text with names of trackers to `logging.report_to`, without unsupported trackers."""
    names = listed_names(given.value)
    supported_names = [name for name in names if name in tracker_names()]
    available_text = f"available trackers: {', '.join(tracker_names())}"
    if supported_names:
        other_names = one_line(", ".join(name for name in names if name not in supported_names), 80)
        reason = f"not supported: {other_names}; {available_text}" if other_names else ""
        done.write("logging.report_to", ", ".join(supported_names), given, reason=reason)
    elif given.is_off or names in (["none"], ["all"]):
        done.leave(Why.NOT_NEEDED, "the journal always has the metrics; set trackers with logging.report_to", given)
    else:
        done.leave(Why.NOT_SUPPORTED, available_text, given)


def own_files(done: Conversion, *paths: Given | None) -> None:
    """Leave out keys with the path of the tokenizer or config.json. Any path other than the model's is refused."""
    model_path = next((done.given[name] for name in _MODELS if done.has(name)), None)
    for path in filter(None, paths):
        if is_same_value(path.value, model_path):
            done.leave(Why.NOT_NEEDED, "the path is the same as that of the model", path)
        else:
            done.leave(Why.REFUSED, "the tokenizer and config.json must be in the model's folder", path)


def usual_layers(done: Conversion, *, target_key: str) -> None:
    """Write PEFT's default layers for adapters if the file does not name layers under `target_key`.

    Source: peft/utils/constants.py."""
    if done.values.get(METHOD_KEY) in ("lora", "qlora") and done.has(*_MODELS) and not done.has(target_key):
        reason = "PEFT's default for Llama, Qwen, Mistral, Gemma, OPT and similar; "
        reason += "other models need other names of layers"
        done.write("tuning.target_modules", "q_proj, v_proj", reason=reason)


# Names of models whose own template writes rows like the tool's, also rows without a system message.
OWN_TEMPLATES = {
    "Qwen2.5": r"qwen2\.5-(coder-)?[\d.]+b-instruct(-1m)?",
    "Qwen2.5-VL": r"qwen2\.5-vl-[\d.]+b-instruct",
    "Qwen3-VL": r"qwen3-vl-[\d.]+b(-a\d+b)?-instruct",
    "Qwen3": r"qwen3-[\d.]+b(-a\d+b)?(-base)?",
    "Phi-4": "phi-4",
    "any": "(?s:.*)",
}


def write_template(
    done: Conversion, key: str, template: str, model: str, ours: Mapping[str, str], own: Mapping[str, str], reason: str
) -> None:
    """Convert a tool's name for a chat template to one of our templates or to the model's own, or refuse it.

    `ours` maps the tool's names to our templates. `own` maps the tool's names to keys of `OWN_TEMPLATES`. `model` is
    the model in the file."""
    if template in ours:
        done.write(TEMPLATE_KEY, ours[template], key, reason=reason)
    elif template in own and re.fullmatch(OWN_TEMPLATES[own[template]], Path(model).name.lower()):
        note = f"; {reason}" if reason else ""
        done.leave(Why.ALWAYS, f"this is the model's own chat template, which is used{note}", key)
    else:
        problem = "is not available, and may differ from the model's own"
        problem = "does not match this model" if template in own else problem
        hint = f"use --without {key} for the model's own template, or set {TEMPLATE_KEY}"
        done.leave(Why.REFUSED, f"the template {one_line(template, 40)} {problem}; {hint}", key)


def template_text(done: Conversion, template: Given) -> None:
    """Convert a key whose value is the text of a chat template."""
    write_text(done, str(template.value), template)


def write_text(done: Conversion, text: str, *sources: Given | None) -> None:
    """Write the text of a chat template to a file next to the converted config, and set `task.chat_template` to it."""
    if done.template_path is None:
        reason = "the template needs a separate file; --to OUT.toml writes that file next to OUT.toml"
        done.leave(Why.REFUSED, reason, *sources)
    else:
        done.chat_template_text = text
        done.write(
            TEMPLATE_KEY, str(done.template_path), *sources, reason="the template text, in a file next to the config"
        )


# Settings that PEFT reads from the adapter_config.json of an adapter.
_OF_ADAPTER = (
    "r lora_alpha lora_dropout use_rslora use_dora init_lora_weights target_modules target_parameters modules_to_save"
)


def start_adapter(
    done: Conversion, adapter: Given, inside: Given | None = None, merges: Given | None = None, *, models: str
) -> None:
    """Convert an adapter to start from. The keys `models` are left out, because the adapter names its base model.

    `inside` is the subfolder with the adapter. `merges` is a switch: if it is on, the run merges the adapter and trains
    a new one."""
    paths = listed_names([str(path) for path in listed(adapter.value)])
    if len(paths) != 1:
        done.leave(Why.REFUSED, "a run can start from only one adapter; merge the others into the model first", adapter)
        return
    folder = str(Path(paths[0]) / str(inside.value)) if inside else paths[0]
    done.write(MODEL_KEY, folder, adapter, inside, reason="the base model is read from the adapter")
    model_key = done.first(*models.split())
    done.leave(Why.NOT_NEEDED, "the base model is read from the adapter's adapter_config.json", model_key)
    done.continues_adapter = not merges or not merges.is_on
    if not done.continues_adapter:
        done.write(CONTINUES_KEY, "merge", merges)


def keep_adapter(done: Conversion) -> None:
    """If the run continues an adapter, remove the settings whose values come from that adapter."""
    for key in _OF_ADAPTER.split() if done.continues_adapter else ():
        done.reject(f"tuning.{key}", Why.NOT_NEEDED, "the continued adapter sets this value")


# Parts of model names that mark weights with fewer than 16 bits.
_STORED = re.compile(
    r"(?:^|[-_.])(awq|gptq|aqlm|gguf|exl\d|hqq|eetq|bnb|[48]-?bit|int[48]|w\da\d+|nvfp4|mxfp4|fp8)(?![a-z0-9])"
)


def stored_as(model: str) -> str:
    """Return the quantisation of a model's weights, by its config.json or else its name; empty if there is none."""
    try:
        quantization = find_model(model).config.get("quantization_config")
    except ConfigError:
        mark = _STORED.search(Path(model).name.lower())
        return f"{mark[1].upper()} (according to the model's name)" if mark else ""
    return one_line(str(quantization.get("quant_method", "quantised")), 40) if isinstance(quantization, dict) else ""


def adapted_layers(
    done: Conversion,
    layers: Given,
    pattern: Given | None,
    targets: Given | None,
    all_linear: Given | None = None,
    *,
    target_key: str,
) -> None:
    """Convert the numbers of the layers that get an adapter, together with the module names under `target_key`, to a
    regular expression.

    Source: `check_target_module_exists` of peft 0.21: the first number in a path is the layer."""
    numbers = [whole(number) for number in listed(layers.value)]
    target_names = targets.value if targets else []
    names = list(names_in(target_names)) if isinstance(target_names, str) else listed(target_names)
    if (all_linear and all_linear.is_on) or not names or any(is_pattern(str(name)) for name in names):
        reason = f"layer numbers become a regular expression in {MODULES_KEY}"
        done.leave(Why.REFUSED, f"{reason}, so {target_key} must be a list of module names", layers, pattern)
    elif None in numbers or not numbers:
        done.leave(Why.DOES_NOT_FIT, "must be layer numbers", layers)
    else:
        prefix = rf"(.*\.)?({'|'.join(map(str, listed(pattern.value)))})" if pattern else r"\D+"
        suffixes = "|".join(re.escape(str(name)) for name in names)
        expression = rf"{prefix}\.({'|'.join(map(str, numbers))})\.(.*\.)?({suffixes})"
        done.write(MODULES_KEY, expression, layers, targets, pattern)


def rows_held_out(done: Conversion, rows: Given) -> None:
    """Convert a number of held-out rows to a slice of the only data set. A share has a rule."""
    if (rows.whole or 0) >= 1:
        hold_out(done, rows.name, rows.value)


def hold_out(done: Conversion, name: str, given: Any) -> None:
    """Convert the value of the key `name`, a share or a number of rows to hold out from the training data."""
    rows = whole(given) or 0
    if rows >= 1:
        first, *other_parts = str(done.values.get(_SPLIT, "train")).split("+")
        paths = listed(done.values.get("data.path") or [])
        if len(paths) != 1 or "," in paths[0] or "[" in first:
            reason = "a number of rows can only be held out from a single data set; "
            reason += f"set {_SPLIT} = train[{rows}:] and data.eval_split = train[:{rows}] for one data set, "
            done.leave(Why.DOES_NOT_FIT, f"{reason}or data.eval_fraction for a share of all rows", name)
            return
        done.write("data.eval_split", f"{first}[:{rows}]", name, reason="the first rows are held out, not random ones")
        done.change(_SPLIT, "+".join([f"{first}[{rows}:]", *other_parts]), name, "the rows that are not held out")
    elif given is not None:
        done.write("data.eval_fraction", given, name)


def one_or_all(values: list[Any]) -> Any:
    """Return the value itself if the list has only one, else the list."""
    return values if len(values) > 1 else values[0]


def write_places(
    done: Conversion, given: Given, key: str = "data.path", why: Why = Why.NOT_SUPPORTED
) -> tuple[list[dict[str, Any]], set[str]]:
    """Convert a list of data sets to paths, and to a configuration and a split if all entries have the same.

    Returns the entries of the list (empty if it is not a list of data sets), and the entries' keys that were read.
    `why` is the reason for leaving out a list whose entries have no path."""
    # axolotl accepts the name of a data set instead of a table.
    entries = [{"path": entry} if isinstance(entry, str) else entry for entry in listed(given.value)]
    if not all(isinstance(entry, dict) for entry in entries):
        done.leave(why, f"not every entry says where its data is; set {key} to the files", given)
        return [], set()
    paths_by_entry = [rules.listed_places(entry) for entry in entries]
    all_paths = [path for paths in paths_by_entry for path in paths]
    if all(paths_by_entry):
        done.write(key, one_or_all(all_paths), given)
    else:
        subject = "the entry does" if len(entries) == 1 else "one of the entries does"
        done.leave(why, f"{subject} not say where its data is; set {key} to a file or hub:owner/name", given)
    is_training = key == "data.path"
    # In these tools a file has only the split train.
    usual_split = "train" if is_training or all(rules.is_data_file(path) for path in all_paths) else ""
    keys_and_settings = [("split", "data.split" if is_training else "data.eval_split", usual_split)]
    keys_and_settings += [("name", "data.name", "default")] if is_training else []
    read_keys = set()
    for name, setting, default in keys_and_settings:
        distinct_values = list({str(entry.get(name) or default) for entry in entries})
        if distinct_values == [default] or (len(all_paths) == 1 and len(distinct_values) == 1):
            read_keys |= {name}
            if distinct_values != [default]:
                done.write(setting, distinct_values[0], given)
    return entries, read_keys


def refuse_unread(done: Conversion, given: Given, entries: list[dict[str, Any]], read: Iterable[str]) -> None:
    """Refuse a list of data sets if its entries have keys other than `read`."""
    unread_keys = (
        str(key) for entry in entries for key, value in entry.items() if key not in read and not is_off(value)
    )
    if names := one_line(", ".join(dict.fromkeys(unread_keys)), 60):
        done.leave(Why.REFUSED, f"unsupported keys: {names}; they could change what is trained on", given)


ZERO_STRATEGIES = {0: "ddp", 1: "fsdp", 2: "deepspeed-2", 3: "deepspeed-3"}


def write_zero(done: Conversion, name: str, stage: Any, offload_devices: Iterable[Any], of: str = "") -> None:
    """Convert a ZeRO stage and CPU offload to our settings. `of` names the file in which another file sets them."""
    strategy, reason = ZERO_STRATEGIES.get(whole(stage) or 0, ""), f"{of}: ZeRO {stage}" if of else f"ZeRO {stage}"
    if whole(stage) is None or not strategy:
        done.leave(Why.DOES_NOT_FIT, f"ZeRO has the stages 0 to 3; set {STRATEGY} instead", name)
        return
    done.write(STRATEGY, strategy, name, reason=reason)
    if "cpu" in {str(device).lower() for device in offload_devices} and strategy.startswith("deepspeed"):
        done.write(OFFLOAD, True, name, reason=of or "gradients and optimizer state stay in host memory")


def read_beside(
    done: Conversion, name: str, source: Path | Mapping[str, Any], kind: str, without: tuple[str, ...] = ()
) -> None:
    """Convert a file of another tool to which the key `name` refers, or a table, except the settings `without`."""
    raw, source_name = (read_foreign(source), source.name) if isinstance(source, Path) else (source, name)
    importer = find_importer(kind)
    inner_conversion = Conversion(importer, flatten_keys(importer, raw), done.folder, done.devices)
    for rewrite in inner_conversion.rewrites:
        if rewrite.key not in without:
            done.write(rewrite.key, rewrite.value, name, reason=f"{source_name}: {', '.join(rewrite.sources)}")
    for left_out in inner_conversion.left_out:
        if left_out.why in REFUSALS:
            done.leave(left_out.why, f"{source_name}: {left_out.key}: {left_out.reason}", name)


def deepspeed(done: Conversion, given: Given) -> None:
    """Convert DeepSpeed's settings, except batch, accumulation and logging, which the other tool's config sets."""
    path = done.file(given) if isinstance(given.value, str) else None
    source = path or given.value
    if isinstance(source, Path | dict):
        read_beside(
            done, given.name, source, "deepspeed", without=(MICRO_BATCH_KEY, ACCUMULATION_KEY, "logging.logging_steps")
        )


def keep_whole(done: Conversion) -> None:
    """Remove a distributed strategy that the plan would refuse. The result of training does not depend on it."""
    if done.values.get(STRATEGY, "ddp") == "ddp" and not done.values.get(OFFLOAD):
        return
    config = validate(done.values, {}, [])
    for key, reason, _ in sharding_refusals(config) if config else ():
        if key == "training.torch_compile":
            done.reject(key, Why.NOT_SUPPORTED, reason)
            continue
        for setting in (STRATEGY, OFFLOAD):
            done.reject(setting, Why.NOT_SUPPORTED, f"{reason}, so each device has the whole model")


def convert_interval(
    done: Conversion,
    strategy: Given | None,
    count: Given | None,
    times: Given | None = None,
    *,
    key: str,
    epochs: str = "num_train_epochs",
    epochs_default: float = 3.0,
) -> None:
    """Convert an interval in steps, or one or several `times` per epoch, to the setting `key`.

    A number per epoch becomes a share of all steps. `epochs` is the key with the number of epochs."""

    def write_share(given: Given, times: float | None) -> None:
        total = number(done.given.get(epochs)) or epochs_default
        if times is not None and times >= 0 and (number(done.given.get("max_steps")) or 0) > 0:
            reason = f"max_steps sets the length of the run, so epochs cannot be converted; set {key}"
            done.leave(Why.NOT_SUPPORTED, reason, given)
        else:
            _write_share(done, key, given, times, total, f"{times or 0:g} per epoch, {total:g} epochs in total")

    if times and not count:
        write_share(times, times.number)
    if not strategy:
        return
    if is_same_value(strategy.value, False) or strategy.value == "no":
        done.leave(Why.NOT_NEEDED, f"{strategy.name} is off", count)
        done.write(key, 0, strategy, reason="only at the end of the run")
    elif strategy.value == "epoch":
        done.leave(Why.NOT_NEEDED, f"set by {strategy.name}", count)
        write_share(strategy, 1)
    elif strategy.value != "steps":
        done.leave(Why.NOT_SUPPORTED, "the supported values are no, steps and epoch", strategy)
    elif count:
        done.write(key, count.value, count, strategy)
    else:
        done.leave(Why.ALWAYS, f"the file does not set the interval in steps; set {key}", strategy)


def every_epochs(done: Conversion, given: Given, *epochs: Given | None, key: str, epochs_default: float) -> None:
    """Convert an interval in epochs to a share of all steps."""
    interval = given.number
    given_epochs = next((count for name in epochs if name and (count := name.number)), None)
    total_epochs = given_epochs or epochs_default
    reason = f"every {interval or 0:g} epochs, {total_epochs:g} in total{'' if given_epochs else ' (from the recipe)'}"
    times_per_epoch = 1 / interval if interval is not None and interval > 0 else interval
    _write_share(done, key, given, times_per_epoch if total_epochs > 0 else None, total_epochs, reason)


def _write_share(done: Conversion, key: str, given: Given, times: float | None, epochs: float, reason: str) -> None:
    """Write the setting `key`, an interval of `times` per epoch, as a share of all steps."""
    if times is None or not times >= 0:
        done.leave(Why.DOES_NOT_FIT, "must be a number, at least 0", given)
    elif times * epochs <= 1:
        done.write(key, 0, given, reason="only at the end of the run")
    else:
        done.write(key, round(1 / (times * epochs), 6), given, reason=f"a share of all steps: {reason}")


def method(
    done: Conversion,
    adapter: Given | None,
    *switches: Given | None,
    adapter_key: str = "",
    methods: Mapping[Any, str] | None = None,
    lora: str = "lora_r lora_rank lora_alpha lora_target_modules adapter_path peft_path",
    model: str = "",
    otherwise: str = "",
) -> None:
    """Convert to `tuning.method`: the adapter's name by `methods`, or switches of 4-bit loading, or the keys `lora`.

    The presence of a key `lora` implies LoRA in a file without `adapter_key`. `otherwise` is the tool's default. It is
    written if nothing else decides and one of the keys `model` is in the file."""
    our_method = next(
        (ours for name, ours in (methods or {}).items() if adapter and is_same_value(adapter.value, name)), ""
    )
    four_bit_switch = next((switch for switch in switches if switch and switch.value in (True, 4)), None)
    if adapter and not our_method:
        done.leave(Why.REFUSED, "the supported methods are full, lora and qlora", adapter)
    elif four_bit_switch and our_method != "full":
        done.write(METHOD_KEY, "qlora", adapter, four_bit_switch)
    elif our_method:
        done.write(METHOD_KEY, our_method, adapter)
    elif (name := next((name for name in lora.split() if done.has(name)), "")) and adapter_key not in done.given:
        done.write(METHOD_KEY, "lora", reason=f"implied by {name}")
    elif otherwise and done.has(*model.split()):
        done.write(METHOD_KEY, otherwise, reason=f"the default of {done.tool}")
