"""Functions that convert keys which have a meaning only together: batch size, precision, intervals, tuning method.

Importers list these functions in `Keys`, with the key names of their tool. Each adds settings to a `Conversion`."""

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
_ENDLESS_PATIENCE = 10**6
# Names that tools use for the key of the model.
_MODEL_KEYS = ("model_name_or_path", "base_model", "base_model_name_or_path", "model_name", "model")


def convert_batch(
    conversion: Conversion,
    micro_batch: Given | None,
    steps: Given | None = None,
    *,
    micro_default: int | None = None,
    accumulation_default: int = 1,
) -> None:
    """Convert `micro_batch` and the `steps` of gradient accumulation to the effective batch size.

    Writes their product with the number of devices, because the plan decides by memory how a batch is split. The
    defaults are those of the other tool."""
    micro_rows = micro_batch.whole if micro_batch else micro_default
    accumulation = steps.whole if steps else accumulation_default
    if not (micro_batch or steps) or micro_rows is None or accumulation is None or min(micro_rows, accumulation) < 1:
        for key, source in ((MICRO_BATCH_KEY, micro_batch), (ACCUMULATION_KEY, steps)):
            if source:
                conversion.write(key, source.value, source)
        return
    reason, has_both = per_device_note(conversion.devices), bool(micro_batch and steps)
    if not has_both and micro_rows * accumulation != (micro_rows if micro_batch else accumulation):
        defaults_note = f"with the default of {conversion.tool}; {reason}"
        reason = f"micro-batch {micro_rows} x accumulation {accumulation}, {defaults_note}"
    effective_rows = micro_rows * accumulation * (conversion.devices or 1)
    sources = (micro_batch, steps)
    conversion.write(EFFECTIVE_BATCH_KEY, effective_rows, *sources, reason=reason, product=has_both, per_device=True)


def batch_of_all(conversion: Conversion, batch: Given, *split_keys: Given | None) -> None:
    """Convert a batch size for all devices, and leave out the keys `split_keys` about how the batch is split."""
    if batch.whole:
        conversion.write(EFFECTIVE_BATCH_KEY, batch.value, batch)
        conversion.leave(Why.NOT_NEEDED, f"{batch.name} sets the rows per step", *split_keys)


def per_device_note(devices: int | None) -> str:
    """Return a note on how a batch size per device became the effective batch size."""
    if devices is None:
        return "the batch size of one device; --processes N multiplies it by N"
    return f"the batch size of one device in the file, multiplied by --processes {devices}"


def switches(conversion: Conversion, *given: Given | None) -> tuple[list[Given], str, list[Any]]:
    """Return the switches with a value, the name of the switch that is on, and the values that are not true or false.

    If several switches are on, they are left out, and all results are empty."""
    given_keys = [switch for switch in given if switch]
    names_on = [switch.name for switch in given_keys if switch.is_on]
    if len(names_on) > 1:
        conversion.leave(Why.DOES_NOT_FIT, f"only one of {' and '.join(names_on)} can be true", *given_keys)
        return [], "", []
    return given_keys, "".join(names_on), [switch.value for switch in given_keys if not isinstance(switch.value, bool)]


def switched(conversion: Conversion, switch: Given, number: Given) -> None:
    """Leave out a switch that turns on the feature of another key `number`, and also that key if the switch is off."""
    if isinstance(switch.value, bool):
        reason = f"set by {number.name}" if switch.value else "turned off in the file"
        conversion.leave(Why.NOT_NEEDED, reason, switch, None if switch.value else number)


def precision(conversion: Conversion, *given: Given | None) -> None:
    """Convert the switches bf16 and fp16 to `training.mixed_precision`."""
    key = "training.mixed_precision"
    switch_keys, name_on, other_values = switches(conversion, *given)
    if name_on:
        conversion.write(key, name_on, *switch_keys)
    elif other_values and all(is_same_value(value, "auto") for value in other_values):
        conversion.write(key, "auto", *switch_keys)
    elif other_values:
        conversion.leave(Why.DOES_NOT_FIT, "must be true, false or auto", *switch_keys)
    elif switch_keys:
        conversion.write(key, "no", *switch_keys, reason="neither bf16 nor fp16 is on")


def warmup(conversion: Conversion, share: Given, steps: Given | None) -> None:
    """Convert the warm-up `share`, unless `steps` is above 0, which takes precedence as in transformers."""
    share_value = share.number
    if steps and not steps.is_off:
        conversion.leave(Why.NOT_NEEDED, "warmup_steps takes precedence", share)
    elif share_value is None or not 0 <= share_value < 1:
        conversion.leave(Why.DOES_NOT_FIT, "must be a share of all steps, at least 0 and below 1", share)
    else:
        conversion.write("training.warmup_steps", share_value, share, reason="a share of all steps")
        conversion.leave(Why.NOT_NEEDED, "set by warmup_ratio", steps)


def schedule(conversion: Conversion, name: Given, extras: Given | None, *, has_stable_default: bool = False) -> None:
    """Convert a learning-rate schedule with arguments (`lr_scheduler_kwargs`). Other schedules have rules.

    `has_stable_default` is true if the tool's own num_stable_steps does not let the decay end with the run.
    Source: transformers.optimization.get_scheduler, which passes the arguments on."""
    if name.value not in ("cosine_with_min_lr", "warmup_stable_decay"):
        return
    arguments: Any = extras.value if extras else {}
    # transformers also accepts a string with JSON.
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    try:
        if name.value == "cosine_with_min_lr":
            our_settings = _cosine_floor(conversion, dict(arguments))
        else:
            our_settings = _decay(conversion, dict(arguments), has_stable_default)
    except (TypeError, ValueError) as error:
        reason = str(error) if isinstance(arguments, dict) else f"{_SCHEDULE_ARGUMENTS} must be a table"
        conversion.leave(Why.DOES_NOT_FIT, reason, name, extras)
        return
    for key, value in our_settings.items():
        conversion.write(key, value, name if key == SCHEDULE_KEY else extras)


def _cosine_floor(conversion: Conversion, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return our settings for a cosine schedule with a lowest rate. Raises ValueError for any other arguments."""
    floor_share, floor_rate = arguments.pop("min_lr_rate", None), arguments.pop("min_lr", None)
    if (floor_share is None) == (floor_rate is None):
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain min_lr_rate or min_lr, not both")
    if floor_share is None:
        floor_value, peak_rate = number(floor_rate), number(conversion.given.get("learning_rate"))
        if floor_value is None or not peak_rate:
            raise ValueError("min_lr becomes a share of learning_rate, so min_lr and learning_rate must be numbers")
        floor_share = floor_value / peak_rate
    _refuse_arguments(arguments, num_cycles=0.5)
    return {SCHEDULE_KEY: "cosine", _FLOOR: floor_share}


def _decay(conversion: Conversion, arguments: dict[str, Any], has_stable_default: bool) -> dict[str, Any]:
    """Return our settings for a schedule with decay. Raises ValueError unless the decay ends with the run."""
    decay_steps, stable_value = whole(arguments.pop("num_decay_steps", None)), arguments.pop("num_stable_steps", None)
    if decay_steps is None:
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain num_decay_steps, a whole number")
    if stable_value is None and has_stable_default:
        default = f"{conversion.tool}'s default: a third of the steps after warm-up"
        raise ValueError(f"set num_stable_steps so that the decay ends at max_steps ({default})")
    if stable_value is not None:
        warmup_count, warmup_share = conversion.given.get("warmup_steps"), conversion.given.get("warmup_ratio")
        step_counts = [whole(warmup_count), whole(stable_value), decay_steps]
        limit = whole(conversion.given.get("max_steps"))
        ends_with_run = None not in step_counts and sum(filter(None, step_counts)) == limit
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
    if other_arguments := [
        name for name in arguments if name not in usual or not is_same_value(arguments[name], usual[name])
    ]:
        usual_text = ", ".join(f"{name} = {value}" for name, value in usual.items())
        names = one_line(", ".join(map(str, other_arguments)), 60)
        raise ValueError(f"unsupported: {names}; supported values: {usual_text}")


def early_stopping(conversion: Conversion, switch: Given, patience: Given | None) -> None:
    """Convert a switch and a number of evaluations to `early_stopping_patience`, in which 0 means off."""
    key = "evaluation.early_stopping_patience"
    if switch.is_off:
        conversion.leave(Why.NOT_NEEDED, "early_stopping is off", patience)
        conversion.write(key, 0, switch, reason="0 means off")
    elif patience:
        conversion.write(key, patience.value, switch, patience)
    else:
        conversion.leave(Why.NOT_SUPPORTED, f"the number of evaluations to wait is missing; set {key}", switch)


def best_weights(conversion: Conversion, switch: Given) -> None:
    """Convert a switch for keeping the best weights to early stopping with a patience that never ends a run."""
    if switch.is_on:
        if any(not is_off(conversion.given.get(name)) for name in ("early_stopping_patience", "early_stopping_steps")):
            conversion.leave(Why.NOT_NEEDED, "early stopping keeps the best weights", switch)
        else:
            reason = "keeps the best weights, but never stops a run early"
            conversion.write("evaluation.early_stopping_patience", _ENDLESS_PATIENCE, switch, reason=reason)


def trackers(conversion: Conversion, given: Given) -> None:
    """Convert a list or a text with names of trackers to `logging.report_to`, without unsupported trackers."""
    names = listed_names(given.value)
    supported_names = [name for name in names if name in tracker_names()]
    available_text = f"available trackers: {', '.join(tracker_names())}"
    if supported_names:
        other_names = one_line(", ".join(name for name in names if name not in supported_names), 80)
        reason = f"not supported: {other_names}; {available_text}" if other_names else ""
        conversion.write("logging.report_to", ", ".join(supported_names), given, reason=reason)
    elif given.is_off or names in (["none"], ["all"]):
        reason = "the journal always has the metrics; set trackers with logging.report_to"
        conversion.leave(Why.NOT_NEEDED, reason, given)
    else:
        conversion.leave(Why.NOT_SUPPORTED, available_text, given)


def model_files(conversion: Conversion, *paths: Given | None) -> None:
    """Leave out keys with the path of the tokenizer or config.json. Any path other than the model's is refused."""
    model_path = next((conversion.given[name] for name in _MODEL_KEYS if conversion.has(name)), None)
    for path in filter(None, paths):
        if is_same_value(path.value, model_path):
            conversion.leave(Why.NOT_NEEDED, "the path is the same as that of the model", path)
        else:
            conversion.leave(Why.REFUSED, "the tokenizer and config.json must be in the model's folder", path)


def default_layers(conversion: Conversion, *, target_key: str) -> None:
    """Write PEFT's default layers for adapters if the file does not name layers under `target_key`.

    Source: peft/utils/constants.py."""
    has_adapter = conversion.values.get(METHOD_KEY) in ("lora", "qlora")
    if has_adapter and conversion.has(*_MODEL_KEYS) and not conversion.has(target_key):
        reason = "PEFT's default for Llama, Qwen, Mistral, Gemma, OPT and similar; "
        reason += "other models need other names of layers"
        conversion.write("tuning.target_modules", "q_proj, v_proj", reason=reason)


# Names of models whose own template writes rows like the tool's, also rows without a system message.
TEMPLATE_MODELS = {
    "Qwen2.5": r"qwen2\.5-(coder-)?[\d.]+b-instruct(-1m)?",
    "Qwen2.5-VL": r"qwen2\.5-vl-[\d.]+b-instruct",
    "Qwen3-VL": r"qwen3-vl-[\d.]+b(-a\d+b)?-instruct",
    "Qwen3": r"qwen3-[\d.]+b(-a\d+b)?(-base)?",
    "Phi-4": "phi-4",
    "any": "(?s:.*)",
}


def write_template(
    conversion: Conversion,
    key: str,
    template: str,
    model: str,
    our_templates: Mapping[str, str],
    model_templates: Mapping[str, str],
    reason: str,
) -> None:
    """Convert a tool's name for a chat template to one of our templates or to the model's own, or refuse it.

    `our_templates` and `model_templates` map the tool's names to our templates and to keys of `TEMPLATE_MODELS`."""
    model_name = Path(model).name.lower()
    if template in our_templates:
        conversion.write(TEMPLATE_KEY, our_templates[template], key, reason=reason)
    elif template in model_templates and re.fullmatch(TEMPLATE_MODELS[model_templates[template]], model_name):
        note = f"; {reason}" if reason else ""
        conversion.leave(Why.ALWAYS, f"this is the model's own chat template, which is used{note}", key)
    else:
        problem = "is not available, and may differ from the model's own"
        problem = "does not match this model" if template in model_templates else problem
        hint = f"use --without {key} for the model's own template, or set {TEMPLATE_KEY}"
        conversion.leave(Why.REFUSED, f"the template {one_line(template, 40)} {problem}; {hint}", key)


def template_text(conversion: Conversion, template: Given) -> None:
    """Convert a key whose value is the text of a chat template."""
    write_text(conversion, str(template.value), template)


def write_text(conversion: Conversion, text: str, *sources: Given | None) -> None:
    """Write the text of a chat template to a file next to the converted config, and set `task.chat_template` to it."""
    if conversion.template_path is None:
        reason = "the template needs a separate file; --to OUT.toml writes that file next to OUT.toml"
        conversion.leave(Why.REFUSED, reason, *sources)
    else:
        conversion.chat_template_text = text
        reason = "the template text, in a file next to the config"
        conversion.write(TEMPLATE_KEY, str(conversion.template_path), *sources, reason=reason)


# Settings that PEFT reads from the adapter_config.json of an adapter.
_ADAPTER_SETTINGS = (
    "r lora_alpha lora_dropout use_rslora use_dora init_lora_weights target_modules target_parameters modules_to_save"
)


def start_adapter(
    conversion: Conversion,
    adapter: Given,
    subfolder: Given | None = None,
    merges: Given | None = None,
    *,
    model_keys: str,
) -> None:
    """Convert an adapter to start from. The keys `model_keys` are left out, because the adapter names its base model.

    `subfolder` contains the adapter. If the switch `merges` is on, the run merges the adapter and trains a new one."""
    paths = listed_names([str(path) for path in listed(adapter.value)])
    if len(paths) != 1:
        reason = "a run can start from only one adapter; merge the others into the model first"
        conversion.leave(Why.REFUSED, reason, adapter)
        return
    folder = str(Path(paths[0]) / str(subfolder.value)) if subfolder else paths[0]
    conversion.write(MODEL_KEY, folder, adapter, subfolder, reason="the base model is read from the adapter")
    model_key = conversion.first_unread(*model_keys.split())
    conversion.leave(Why.NOT_NEEDED, "the base model is read from the adapter's adapter_config.json", model_key)
    conversion.continues_adapter = not merges or not merges.is_on
    if not conversion.continues_adapter:
        conversion.write(CONTINUES_KEY, "merge", merges)


def keep_adapter(conversion: Conversion) -> None:
    """Remove the settings whose values come from the adapter, if the run continues one."""
    for key in _ADAPTER_SETTINGS.split() if conversion.continues_adapter else ():
        conversion.reject(f"tuning.{key}", Why.NOT_NEEDED, "the continued adapter sets this value")


# Parts of model names that mark weights with fewer than 16 bits.
_QUANTIZATION = re.compile(
    r"(?:^|[-_.])(awq|gptq|aqlm|gguf|exl\d|hqq|eetq|bnb|[48]-?bit|int[48]|w\da\d+|nvfp4|mxfp4|fp8)(?![a-z0-9])"
)


def stored_as(model: str) -> str:
    """Return the quantisation of a model's weights, by its config.json or else its name; empty if there is none."""
    try:
        quantization = find_model(model).config.get("quantization_config")
    except ConfigError:
        mark = _QUANTIZATION.search(Path(model).name.lower())
        return f"{mark[1].upper()} (according to the model's name)" if mark else ""
    return one_line(str(quantization.get("quant_method", "quantised")), 40) if isinstance(quantization, dict) else ""


def adapted_layers(
    conversion: Conversion,
    layers: Given,
    pattern: Given | None,
    targets: Given | None,
    all_linear: Given | None = None,
    *,
    target_key: str,
) -> None:
    """Convert the numbers of layers with adapters, and the module names under `target_key`, to a regular expression.

    Source: `check_target_module_exists` of peft 0.21: the first number in a path is the layer."""
    numbers = [whole(number) for number in listed(layers.value)]
    target_names = targets.value if targets else []
    names = list(names_in(target_names)) if isinstance(target_names, str) else listed(target_names)
    if (all_linear and all_linear.is_on) or not names or any(is_pattern(str(name)) for name in names):
        reason = f"layer numbers become a regular expression in {MODULES_KEY}"
        conversion.leave(Why.REFUSED, f"{reason}, so {target_key} must be a list of module names", layers, pattern)
    elif None in numbers or not numbers:
        conversion.leave(Why.DOES_NOT_FIT, "must be layer numbers", layers)
    else:
        prefix = rf"(.*\.)?({'|'.join(map(str, listed(pattern.value)))})" if pattern else r"\D+"
        suffixes = "|".join(re.escape(str(name)) for name in names)
        expression = rf"{prefix}\.({'|'.join(map(str, numbers))})\.(.*\.)?({suffixes})"
        conversion.write(MODULES_KEY, expression, layers, targets, pattern)


def rows_held_out(conversion: Conversion, rows: Given) -> None:
    """Convert a number of held-out rows to a slice of the only data set. A share has a rule."""
    if (rows.whole or 0) >= 1:
        hold_out(conversion, rows.name, rows.value)


def hold_out(conversion: Conversion, name: str, value: Any) -> None:
    """Convert the value of the key `name`, a share or a number of rows to hold out from the training data."""
    rows = whole(value) or 0
    if rows >= 1:
        first_split, *other_parts = str(conversion.values.get(_SPLIT, "train")).split("+")
        paths = listed(conversion.values.get("data.path") or [])
        if len(paths) != 1 or "," in paths[0] or "[" in first_split:
            reason = "a number of rows can only be held out from a single data set; "
            reason += f"set {_SPLIT} = train[{rows}:] and data.eval_split = train[:{rows}] for one data set, "
            conversion.leave(Why.DOES_NOT_FIT, f"{reason}or data.eval_fraction for a share of all rows", name)
            return
        reason = "the first rows are held out, not random ones"
        conversion.write("data.eval_split", f"{first_split}[:{rows}]", name, reason=reason)
        conversion.change(
            _SPLIT, "+".join([f"{first_split}[{rows}:]", *other_parts]), name, "the rows that are not held out"
        )
    elif value is not None:
        conversion.write("data.eval_fraction", value, name)


def unwrap_single(values: list[Any]) -> Any:
    """Return the value itself if the list has only one, else the list."""
    return values if len(values) > 1 else values[0]


def write_paths(
    conversion: Conversion, given: Given, key: str = "data.path", why: Why = Why.NOT_SUPPORTED
) -> tuple[list[dict[str, Any]], set[str]]:
    """Convert a list of data sets to paths, and to a configuration and a split if all entries have the same.

    Returns the entries of the list (empty if it is not a list of data sets), and the entries' keys that were read.
    `why` is the reason for leaving out a list whose entries have no path."""
    # axolotl accepts the name of a data set instead of a table.
    entries = [{"path": entry} if isinstance(entry, str) else entry for entry in listed(given.value)]
    if not all(isinstance(entry, dict) for entry in entries):
        conversion.leave(why, f"not every entry says where its data is; set {key} to the files", given)
        return [], set()
    paths_by_entry = [rules.listed_paths(entry) for entry in entries]
    all_paths = [path for paths in paths_by_entry for path in paths]
    if all(paths_by_entry):
        conversion.write(key, unwrap_single(all_paths), given)
    else:
        subject = "the entry does" if len(entries) == 1 else "one of the entries does"
        conversion.leave(why, f"{subject} not say where its data is; set {key} to a file or hub:owner/name", given)
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
                conversion.write(setting, distinct_values[0], given)
    return entries, read_keys


def refuse_unread(conversion: Conversion, given: Given, entries: list[dict[str, Any]], keys: Iterable[str]) -> None:
    """Refuse a list of data sets if its entries have other keys than `keys`."""
    values_by_key = (item for entry in entries for item in entry.items())
    unread_keys = (str(key) for key, value in values_by_key if key not in keys and not is_off(value))
    if names := one_line(", ".join(dict.fromkeys(unread_keys)), 60):
        conversion.leave(Why.REFUSED, f"unsupported keys: {names}; they could change what is trained on", given)


ZERO_STRATEGIES = {0: "ddp", 1: "fsdp", 2: "deepspeed-2", 3: "deepspeed-3"}


def write_zero(conversion: Conversion, name: str, stage: Any, offloads: Iterable[Any], file_name: str = "") -> None:
    """Convert a ZeRO stage and CPU offload to our settings. `file_name` is the file that sets them, if another one."""
    strategy = ZERO_STRATEGIES.get(whole(stage) or 0, "")
    reason = f"{file_name}: ZeRO {stage}" if file_name else f"ZeRO {stage}"
    if whole(stage) is None or not strategy:
        conversion.leave(Why.DOES_NOT_FIT, f"ZeRO has the stages 0 to 3; set {STRATEGY} instead", name)
        return
    conversion.write(STRATEGY, strategy, name, reason=reason)
    if "cpu" in {str(device).lower() for device in offloads} and strategy.startswith("deepspeed"):
        conversion.write(OFFLOAD, True, name, reason=file_name or "gradients and optimizer state stay in host memory")


def convert_file(
    conversion: Conversion,
    name: str,
    source: Path | Mapping[str, Any],
    importer_name: str,
    excluded: tuple[str, ...] = (),
) -> None:
    """Convert a file of another tool to which the key `name` refers, or a table, except the settings `excluded`."""
    raw, source_name = (read_foreign(source), source.name) if isinstance(source, Path) else (source, name)
    importer = find_importer(importer_name)
    inner_conversion = Conversion(importer, flatten_keys(importer, raw), conversion.folder, conversion.devices)
    for rewrite in inner_conversion.rewrites:
        if rewrite.key not in excluded:
            conversion.write(rewrite.key, rewrite.value, name, reason=f"{source_name}: {', '.join(rewrite.sources)}")
    for left_out in inner_conversion.left_out:
        if left_out.why in REFUSALS:
            conversion.leave(left_out.why, f"{source_name}: {left_out.key}: {left_out.reason}", name)


def deepspeed(conversion: Conversion, given: Given) -> None:
    """Convert DeepSpeed's settings, except batch, accumulation and logging, which the other tool's config sets."""
    path = conversion.file(given) if isinstance(given.value, str) else None
    source = path or given.value
    if isinstance(source, Path | dict):
        excluded = (MICRO_BATCH_KEY, ACCUMULATION_KEY, "logging.logging_steps")
        convert_file(conversion, given.name, source, "deepspeed", excluded)


def drop_sharding(conversion: Conversion) -> None:
    """Remove a distributed strategy that the plan would refuse. The result of training does not depend on it."""
    if conversion.values.get(STRATEGY, "ddp") == "ddp" and not conversion.values.get(OFFLOAD):
        return
    config = validate(conversion.values, {}, [])
    for key, reason, _ in sharding_refusals(config) if config else ():
        if key == "training.torch_compile":
            conversion.reject(key, Why.NOT_SUPPORTED, reason)
            continue
        for setting in (STRATEGY, OFFLOAD):
            conversion.reject(setting, Why.NOT_SUPPORTED, f"{reason}, so each device has the whole model")


def convert_interval(
    conversion: Conversion,
    strategy: Given | None,
    steps: Given | None,
    per_epoch: Given | None = None,
    *,
    key: str,
    epochs: str = "num_train_epochs",
    epochs_default: float = 3.0,
) -> None:
    """Convert an interval in steps, or one or several `per_epoch` per epoch, to the setting `key`.

    A number per epoch becomes a share of all steps. `epochs` is the key with the number of epochs."""

    def write_share(given: Given, per_epoch: float | None) -> None:
        total = number(conversion.given.get(epochs)) or epochs_default
        if per_epoch is not None and per_epoch >= 0 and (number(conversion.given.get("max_steps")) or 0) > 0:
            reason = f"the file has max_steps, so a number of epochs cannot be converted to steps; set {key}"
            conversion.leave(Why.NOT_SUPPORTED, reason, given)
        else:
            reason = f"{per_epoch or 0:g} per epoch, {total:g} epochs in total"
            _write_share(conversion, key, given, per_epoch, total, reason)

    if per_epoch and not steps:
        write_share(per_epoch, per_epoch.number)
    if not strategy:
        return
    if is_same_value(strategy.value, False) or strategy.value == "no":
        conversion.leave(Why.NOT_NEEDED, f"{strategy.name} is off", steps)
        conversion.write(key, 0, strategy, reason="only at the end of the run")
    elif strategy.value == "epoch":
        conversion.leave(Why.NOT_NEEDED, f"set by {strategy.name}", steps)
        write_share(strategy, 1)
    elif strategy.value != "steps":
        conversion.leave(Why.NOT_SUPPORTED, "the supported values are no, steps and epoch", strategy)
    elif steps:
        conversion.write(key, steps.value, steps, strategy)
    else:
        conversion.leave(Why.ALWAYS, f"the file does not set the interval in steps; set {key}", strategy)


def every_epochs(conversion: Conversion, given: Given, *epochs: Given | None, key: str, epochs_default: float) -> None:
    """Convert an interval in epochs to a share of all steps."""
    interval = given.number
    given_epochs = next((count for total in epochs if total and (count := total.number)), None)
    total_epochs = given_epochs or epochs_default
    reason = f"every {interval or 0:g} epochs, {total_epochs:g} in total{'' if given_epochs else ' (from the recipe)'}"
    times_per_epoch = 1 / interval if interval is not None and interval > 0 else interval
    _write_share(conversion, key, given, times_per_epoch if total_epochs > 0 else None, total_epochs, reason)


def _write_share(
    conversion: Conversion, key: str, given: Given, per_epoch: float | None, epochs: float, reason: str
) -> None:
    """Write the setting `key`, an interval of `per_epoch` per epoch, as a share of all steps."""
    if per_epoch is None or not per_epoch >= 0:
        conversion.leave(Why.DOES_NOT_FIT, "must be a number, at least 0", given)
    elif per_epoch * epochs <= 1:
        conversion.write(key, 0, given, reason="only at the end of the run")
    else:
        conversion.write(key, round(1 / (per_epoch * epochs), 6), given, reason=f"a share of all steps: {reason}")


def method(
    conversion: Conversion,
    adapter: Given | None,
    *switches: Given | None,
    adapter_key: str = "",
    methods: Mapping[Any, str] | None = None,
    lora_keys: str = "lora_r lora_rank lora_alpha lora_target_modules adapter_path peft_path",
    model_keys: str = "",
    default: str = "",
) -> None:
    """Convert to `tuning.method`: the adapter's name by `methods`, or switches of 4-bit loading, or any of `lora_keys`,
    which imply LoRA in a file without `adapter_key`. `default` is the tool's default. It is written if nothing else
    decides and one of the keys `model_keys` is in the file."""
    names = methods if methods and adapter else {}
    our_method = next((ours for name, ours in names.items() if adapter and is_same_value(adapter.value, name)), "")
    four_bit_switch = next((switch for switch in switches if switch and switch.value in (True, 4)), None)
    if adapter and not our_method:
        conversion.leave(Why.REFUSED, "the supported methods are full, lora and qlora", adapter)
    elif four_bit_switch and our_method != "full":
        conversion.write(METHOD_KEY, "qlora", adapter, four_bit_switch)
    elif our_method:
        conversion.write(METHOD_KEY, our_method, adapter)
    elif (name := next(filter(conversion.has, lora_keys.split()), "")) and adapter_key not in conversion.given:
        conversion.write(METHOD_KEY, "lora", reason=f"implied by {name}")
    elif default and conversion.has(*model_keys.split()):
        conversion.write(METHOD_KEY, default, reason=f"the default of {conversion.tool}")
