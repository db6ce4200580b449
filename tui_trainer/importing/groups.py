"""Keys that mean something only beside each other: the cut of a batch, the precision, cadences, the method.

Importers list these functions in `Keys`, with the names that their tool has for the keys.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.load import validate
from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import ConfigError
from tui_trainer.importing import rules
from tui_trainer.importing.conversion import Conversion, Given
from tui_trainer.importing.detection import find_importer, spread
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import REFUSALS, Why, listed, listed_names, number, off, whole
from tui_trainer.methods.lr_schedules import SCHEDULE_KEY
from tui_trainer.methods.tuning_methods import METHOD_KEY
from tui_trainer.models.adapters import CONTINUES_KEY
from tui_trainer.models.chat_rendering import TEMPLATE_KEY
from tui_trainer.models.facts import find_model
from tui_trainer.models.targets import MODULES_KEY
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO
from tui_trainer.planning.processes import OFFLOAD, STRATEGY, whole_only
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tracking.contract import tracker_names

_SPLIT, _FLOOR = "data.split", "training.min_lr_rate"
_SCHEDULE_ARGUMENTS = "lr_scheduler_kwargs"
_NEVER = 10**6
# How the tools call the model.
_MODELS = ("model_name_or_path", "base_model", "base_model_name_or_path", "model_name", "model")


def batch(
    done: Conversion,
    rows: Given | None,
    parts: Given | None = None,
    *,
    micro_default: int | None = None,
    accumulation_default: int = 1,
) -> None:
    """Read micro-batch x accumulation x devices, the rows of one step: here memory decides how it is cut.

    The defaults are those of the other tool.
    """
    m = rows.whole if rows else micro_default
    a = parts.whole if parts else accumulation_default
    if not (rows or parts) or m is None or a is None or min(m, a) < 1:
        for key, given in ((MICRO, rows), (ACCUMULATION, parts)):
            if given:
                done.write(key, given.value, given)
        return
    reason, both = per_device(done.devices), bool(rows and parts)
    if not both and m * a != (m if rows else a):
        reason = f"{m} x {a}, with the default of {done.tool}; {reason}"
    rows_of_all = m * a * (done.devices or 1)
    done.write(EFFECTIVE, rows_of_all, rows, parts, reason=reason, product=both, per_device=True)


def batch_of_all(done: Conversion, rows: Given, *cut: Given | None) -> None:
    """Read a batch size of all devices, which counts before the keys that cut a batch."""
    if rows.whole:
        done.write(EFFECTIVE, rows.value, rows)
        done.leave(Why.NOT_NEEDED, f"{rows.name} sets the rows per step", *cut)


def per_device(devices: int | None) -> str:
    """Return how the batch size of one device became the effective batch size."""
    if devices is None:
        return "per device; --processes N multiplies this number by N"
    return f"per device in the file, multiplied here by {devices} devices"


def switches(done: Conversion, *given: Given | None) -> tuple[list[Given], str, list[Any]]:
    """Return the switches that are there, the name of the one that is on, and values that are no switch.

    If several are on they are left out, and none is there.
    """
    there = [switch for switch in given if switch]
    on = [switch.name for switch in there if switch.is_on]
    if len(on) > 1:
        done.leave(Why.DOES_NOT_FIT, f"only one of {' and '.join(on)} can be true", *there)
        return [], "", []
    return there, "".join(on), [switch.value for switch in there if not isinstance(switch.value, bool)]


def switched(done: Conversion, switch: Given, number: Given) -> None:
    """Read a switch whose number is another key."""
    if isinstance(switch.value, bool):
        reason = f"set by {number.name}" if switch.value else "turned off in the file"
        done.leave(Why.NOT_NEEDED, reason, switch, None if switch.value else number)


def precision(done: Conversion, *given: Given | None) -> None:
    """Read the two switches of mixed precision."""
    key = "training.mixed_precision"
    there, on, others = switches(done, *given)
    if on:
        done.write(key, on, *there)
    elif others and all(same(word, "auto") for word in others):
        done.write(key, "auto", *there)
    elif others:
        done.leave(Why.DOES_NOT_FIT, "must be true, false or auto", *there)
    elif there:
        done.write(key, "no", *there, reason="neither bf16 nor fp16 is on")


def warmup(done: Conversion, share: Given, count: Given | None) -> None:
    """Read the share of the warm-up. In transformers the number wins where it is not 0."""
    part = share.number
    if count and not count.is_off:
        done.leave(Why.NOT_NEEDED, "warmup_steps takes precedence", share)
    elif part is None or not 0 <= part < 1:
        done.leave(Why.DOES_NOT_FIT, "must be a share of all steps, at least 0, below 1", share)
    else:
        done.write("training.warmup_steps", part, share, reason="a share of all steps")
        done.leave(Why.NOT_NEEDED, "set by warmup_ratio", count)


def schedule(done: Conversion, name: Given, beside: Given | None, *, has_stable_default: bool = False) -> None:
    """Read a schedule that takes arguments, and `lr_scheduler_kwargs` beside it; other schedules have their rows.

    `has_stable_default`: where the file does not say num_stable_steps, the tool takes so many that the decay is not at
    the end of the run. Source: transformers.optimization.get_scheduler, which hands on the arguments.
    """
    if name.value not in ("cosine_with_min_lr", "warmup_stable_decay"):
        return
    arguments: Any = beside.value if beside else {}
    # transformers takes JSON in a text as well.
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    try:
        if name.value == "cosine_with_min_lr":
            values = _cosine_floor(done, dict(arguments))
        else:
            values = _decay(done, dict(arguments), has_stable_default)
    except (TypeError, ValueError) as error:
        reason = str(error) if isinstance(arguments, dict) else f"{_SCHEDULE_ARGUMENTS} must be a table"
        done.leave(Why.DOES_NOT_FIT, reason, name, beside)
        return
    for key, value in values.items():
        done.write(key, value, name if key == SCHEDULE_KEY else beside)


def _cosine_floor(done: Conversion, arguments: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError where the floor is not said once, or something else is said."""
    share, rate = arguments.pop("min_lr_rate", None), arguments.pop("min_lr", None)
    if (share is None) == (rate is None):
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain min_lr_rate or min_lr, not both")
    if share is None:
        floor, peak = number(rate), number(done.given.get("learning_rate"))
        if floor is None or not peak:
            raise ValueError("min_lr becomes a share of learning_rate, so both must be numbers; or set min_lr_rate")
        share = floor / peak
    _refuse_arguments(arguments, num_cycles=0.5)
    return {SCHEDULE_KEY: "cosine", _FLOOR: share}


def _decay(done: Conversion, arguments: dict[str, Any], has_stable_default: bool) -> dict[str, Any]:
    """Raises ValueError where the decay is not at the end of the run, or something else is said."""
    decay, stable = whole(arguments.pop("num_decay_steps", None)), arguments.pop("num_stable_steps", None)
    if decay is None:
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain num_decay_steps, a whole number")
    if stable is None and has_stable_default:
        raise ValueError(
            "set num_stable_steps so that the decay ends at max_steps (default: a third of the steps after warm-up)"
        )
    if stable is not None:
        count, share = done.given.get("warmup_steps"), done.given.get("warmup_ratio")
        steps = [whole(count), whole(stable), decay]
        ends_with_run = None not in steps and sum(filter(None, steps)) == whole(done.given.get("max_steps"))
        if not ends_with_run or (off(count) and not off(share)):
            raise ValueError("warmup_steps, num_stable_steps and num_decay_steps must add up to max_steps")
    values = {SCHEDULE_KEY: "warmup_stable_decay", "training.num_decay_steps": decay}
    for name, key in (("decay_type", "training.decay_type"), ("min_lr_ratio", _FLOOR)):
        if name in arguments:
            values[key] = arguments.pop(name)
    _refuse_arguments(arguments, num_cycles=0.5, warmup_type="linear")
    return values


def _refuse_arguments(arguments: Mapping[str, Any], **usual: Any) -> None:
    """Raises ValueError for arguments of a schedule that are not the usual ones."""
    if others := [name for name, value in arguments.items() if name not in usual or not same(value, usual[name])]:
        known = ", ".join(f"{name} = {value}" for name, value in usual.items())
        raise ValueError(f"unsupported: {one_line(', '.join(map(str, others)), 60)}; supported values: {known}")


def early_stopping(done: Conversion, switch: Given, count: Given | None) -> None:
    """Read a switch and a number as our one number: 0 is off."""
    key = "evaluation.early_stopping_patience"
    if switch.is_off:
        done.leave(Why.NOT_NEEDED, "early_stopping is off", count)
        done.write(key, 0, switch, reason="0 means off")
    elif count:
        done.write(key, count.value, switch, count)
    else:
        done.leave(Why.NOT_SUPPORTED, f"the number of evaluations to wait is missing; set {key}", switch)


def best_weights(done: Conversion, switch: Given) -> None:
    """Read whether the best weights are kept: early stopping keeps them here, with a patience that never ends."""
    if switch.is_on:
        if any(not off(done.given.get(name)) for name in ("early_stopping_patience", "early_stopping_steps")):
            done.leave(Why.NOT_NEEDED, "early stopping keeps the best weights", switch)
        else:
            reason = "keeps the best weights; a patience of this size never stops a run"
            done.write("evaluation.early_stopping_patience", _NEVER, switch, reason=reason)


def trackers(done: Conversion, given: Given) -> None:
    """Read names in a list or in one text; those that are no trackers here are left out."""
    names = listed_names(given.value)
    known = [name for name in names if name in tracker_names()]
    here = f"available trackers: {', '.join(tracker_names())}"
    if known:
        others = one_line(", ".join(name for name in names if name not in known), 80)
        reason = f"{others} ignored; {here}" if others else ""
        done.write("logging.report_to", ", ".join(known), given, reason=reason)
    elif given.is_off or names in (["none"], ["all"]):
        done.leave(Why.NOT_NEEDED, "the run's journal is always written; set trackers with logging.report_to", given)
    else:
        done.leave(Why.NOT_SUPPORTED, here, given)


def own_files(done: Conversion, *places: Given | None) -> None:
    """Read where else a tokenizer or a config.json is: with the model, or another run."""
    model = next((done.given[name] for name in _MODELS if done.has(name)), None)
    for place in filter(None, places):
        if same(place.value, model):
            done.leave(Why.NOT_NEEDED, "the same path as that of the model", place)
        else:
            done.leave(Why.REFUSED, "the tokenizer and config.json must be in the model's folder", place)


def usual_layers(done: Conversion, *, target_key: str) -> None:
    """Write the layers that PEFT takes where the file names none under `target_key`.

    Source: peft/utils/constants.py.
    """
    if done.values.get(METHOD_KEY) in ("lora", "qlora") and done.has(*_MODELS) and not done.has(target_key):
        reason = "PEFT's default for Llama, Qwen, Mistral, Gemma, OPT and similar; "
        reason += "the layers of other models have other names"
        done.write("tuning.target_modules", "q_proj, v_proj", reason=reason)


# How a model is called whose own template is meant: those that give a row without a system message the same one.
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
    """Write what becomes of another tool's name for a chat template: one of those here, the model's own, or a refusal.

    `ours`: the tool's names for those that are here, `own`: its names for those of `OWN_TEMPLATES`. `model` is the one
    of the file.
    """
    if template in ours:
        done.write(TEMPLATE_KEY, ours[template], key, reason=reason)
    elif template in own and re.fullmatch(OWN_TEMPLATES[own[template]], Path(model).name.lower()):
        more = f"; {reason}" if reason else ""
        done.leave(Why.ALWAYS, f"this is the model's own chat template, which is used{more}", key)
    else:
        why = "is not available, and may differ from the model's own"
        why = "does not match this model" if template in own else why
        hint = f"use --without {key} for the model's own template, or set {TEMPLATE_KEY}"
        done.leave(Why.REFUSED, f"the template {one_line(template, 40)} {why}; {hint}", key)


def template_text(done: Conversion, template: Given) -> None:
    """Read a chat template whose text stands in the file."""
    write_text(done, str(template.value), template)


def write_text(done: Conversion, text: str, *sources: Given | None) -> None:
    """Write a template that stands in the file itself into a file beside the result."""
    if done.beside is None:
        reason = "the template needs a file of its own; --to OUT.toml writes this file next to OUT.toml"
        done.leave(Why.REFUSED, reason, *sources)
    else:
        done.text = text
        done.write(TEMPLATE_KEY, str(done.beside), *sources, reason="the template text, in a file next to the config")


# What an adapter has of its own, as PEFT reads it from its adapter_config.json.
_OF_ADAPTER = (
    "r lora_alpha lora_dropout use_rslora use_dora init_lora_weights target_modules target_parameters modules_to_save"
)


def start_adapter(
    done: Conversion, adapter: Given, inside: Given | None = None, merges: Given | None = None, *, models: str
) -> None:
    """Read an adapter to start from. It replaces the key of the model, since an adapter names its model itself.

    `inside` is the folder where it lies inside, `merges` the switch that trains another one on the two, `models` are
    the keys of the model.
    """
    paths = listed_names([str(path) for path in listed(adapter.value)])
    if len(paths) != 1:
        done.leave(Why.REFUSED, "a run starts from one adapter; merge the others into the model first", adapter)
        return
    place = str(Path(paths[0]) / str(inside.value)) if inside else paths[0]
    done.write(MODEL_KEY, place, adapter, inside, reason="the adapter names its base model")
    model = done.first(*models.split())
    done.leave(Why.NOT_NEEDED, "the adapter's adapter_config.json names its base model", model)
    done.goes_on = not merges or not merges.is_on
    if not done.goes_on:
        done.write(CONTINUES_KEY, "merge", merges)


def keep_adapter(done: Conversion) -> None:
    """Take back what an adapter that trains further has of its own."""
    for key in _OF_ADAPTER.split() if done.goes_on else ():
        done.reject(f"tuning.{key}", Why.NOT_NEEDED, "the continued adapter keeps its own value")


# How people name versions of a model whose weights are no numbers of 16 or 32 bits.
_STORED = re.compile(
    r"(?:^|[-_.])(awq|gptq|aqlm|gguf|exl\d|hqq|eetq|bnb|[48]-?bit|int[48]|w\da\d+|nvfp4|mxfp4|fp8)(?![a-z0-9])"
)


def stored_as(model: str) -> str:
    """Return how the weights of a model are quantised, by its config.json or else by its name; empty: they are not."""
    try:
        told = find_model(model).config.get("quantization_config")
    except ConfigError:
        found = _STORED.search(Path(model).name.lower())
        return f"{found[1].upper()} (according to the model's name)" if found else ""
    return one_line(str(told.get("quant_method", "quantised")), 40) if isinstance(told, dict) else ""


def adapted_layers(
    done: Conversion,
    layers: Given,
    pattern: Given | None,
    targets: Given | None,
    all_linear: Given | None = None,
    *,
    target_key: str,
) -> None:
    """Read the layers that get an adapter: with the names under `target_key`, a regular expression of paths.

    Source: `check_target_module_exists` of peft 0.21: the first number of a path is the layer.
    """
    numbers = [whole(number) for number in listed(layers.value)]
    given = targets.value if targets else []
    names = list(names_in(given)) if isinstance(given, str) else listed(given)
    if (all_linear and all_linear.is_on) or not names or any(is_pattern(str(name)) for name in names):
        reason = f"chosen layers become a regular expression in {MODULES_KEY}"
        done.leave(Why.REFUSED, f"{reason}, so {target_key} must list names one by one", layers, pattern)
    elif None in numbers or not numbers:
        done.leave(Why.DOES_NOT_FIT, "must be layer numbers", layers)
    else:
        start = rf"(.*\.)?({'|'.join(map(str, listed(pattern.value)))})" if pattern else r"\D+"
        ends = "|".join(re.escape(str(name)) for name in names)
        expression = rf"{start}\.({'|'.join(map(str, numbers))})\.(.*\.)?({ends})"
        done.write(MODULES_KEY, expression, layers, targets, pattern)


def rows_held_out(done: Conversion, rows: Given) -> None:
    """Read what is held out where it may be a number of rows: a slice of the one data set."""
    if (rows.whole or 0) >= 1:
        hold_out(done, rows.name, rows.value)


def hold_out(done: Conversion, name: str, given: Any) -> None:
    """Write what is held out, a share of the rows or a number of them, as the key `name` has it."""
    rows = whole(given) or 0
    if rows >= 1:
        first, *more = str(done.values.get(_SPLIT, "train")).split("+")
        places = listed(done.values.get("data.path") or [])
        if len(places) != 1 or "," in places[0] or "[" in first:
            why = "the number counts rows of all data sets; "
            why += f"set {_SPLIT} = train[{rows}:] and data.eval_split = train[:{rows}] for rows of one data set, "
            done.leave(Why.DOES_NOT_FIT, f"{why}or data.eval_fraction for a share", name)
            return
        done.write("data.eval_split", f"{first}[:{rows}]", name, reason="the first rows, not random ones")
        done.change(_SPLIT, "+".join([f"{first}[{rows}:]", *more]), name, "without the held-out rows")
    elif given is not None:
        done.write("data.eval_fraction", given, name)


def one_or_all(values: list[Any]) -> Any:
    """Return the only value, or the list of several."""
    return values if len(values) > 1 else values[0]


def write_places(
    done: Conversion, given: Given, key: str = "data.path", why: Why = Why.NOT_SUPPORTED
) -> tuple[list[dict[str, Any]], set[str]]:
    """Write a list of data sets as paths, with their configuration and split where all have the same.

    Return its entries, none where it has no list of them, and the keys of entries that were read. `why`: what a list is
    in which a place is not said.
    """
    # axolotl takes a data set's name in place of its table.
    entries = [{"path": entry} if isinstance(entry, str) else entry for entry in listed(given.value)]
    if not all(isinstance(entry, dict) for entry in entries):
        done.leave(why, f"not every entry says where its data is; set {key} to the files", given)
        return [], set()
    by_entry = [rules.listed_places(entry) for entry in entries]
    places = [place for some in by_entry for place in some]
    if all(by_entry):
        done.write(key, one_or_all(places), given)
    else:
        which = "the entry does" if len(entries) == 1 else "one of the entries does"
        done.leave(why, f"{which} not say where its data is; set {key} to a file or hub:owner/name", given)
    trained = key == "data.path"
    # A file has no other split there, so that train is all of it.
    usual = "train" if trained or all(rules.is_data_file(place) for place in places) else ""
    parts = [("split", "data.split" if trained else "data.eval_split", usual)]
    parts += [("name", "data.name", "default")] if trained else []
    read = set()
    for name, setting, default in parts:
        values = list({str(entry.get(name) or default) for entry in entries})
        if values == [default] or (len(places) == 1 and len(values) == 1):
            read |= {name}
            if values != [default]:
                done.write(setting, values[0], given)
    return entries, read


def refuse_unread(done: Conversion, given: Given, entries: list[dict[str, Any]], read: Iterable[str]) -> None:
    """Refuse a list of data sets whose entries have other keys than `read`."""
    unread = (str(key) for entry in entries for key, value in entry.items() if key not in read and not off(value))
    if names := one_line(", ".join(dict.fromkeys(unread)), 60):
        done.leave(Why.REFUSED, f"unsupported keys: {names}; they could change what is trained on", given)


ZERO_STRATEGIES = {0: "ddp", 1: "fsdp", 2: "deepspeed-2", 3: "deepspeed-3"}


def write_zero(done: Conversion, name: str, stage: Any, offload_devices: Iterable[Any], of: str = "") -> None:
    """Write what ZeRO of a stage splits, and whether parts stay on the host; `of` is the file that says it, if
    another."""
    strategy, reason = ZERO_STRATEGIES.get(whole(stage) or 0, ""), f"{of}: ZeRO {stage}" if of else f"ZeRO {stage}"
    if whole(stage) is None or not strategy:
        done.leave(Why.DOES_NOT_FIT, f"ZeRO has the stages 0 to 3; set {STRATEGY} instead", name)
        return
    done.write(STRATEGY, strategy, name, reason=reason)
    if "cpu" in {str(device).lower() for device in offload_devices} and strategy.startswith("deepspeed"):
        done.write(OFFLOAD, True, name, reason=of or "gradients and optimizer state stay in host memory")


def read_beside(
    done: Conversion, name: str, place: Path | Mapping[str, Any], kind: str, without: tuple[str, ...] = ()
) -> None:
    """Read another tool's file that the key `name` names, or its settings themselves, but for our keys `without`."""
    raw, of = (read_foreign(place), place.name) if isinstance(place, Path) else (place, name)
    importer = find_importer(kind)
    beside = Conversion(importer, spread(importer, raw), done.folder, done.devices)
    for rewrite in beside.rewrites:
        if rewrite.key not in without:
            done.write(rewrite.key, rewrite.value, name, reason=f"{of}: {', '.join(rewrite.sources)}")
    for left in beside.left_out:
        if left.why in REFUSALS:
            done.leave(left.why, f"{of}: {left.key}: {left.reason}", name)


def deepspeed(done: Conversion, given: Given) -> None:
    """Read the settings themselves, or their file where it is near; the rest of this file says how a batch is cut."""
    path = done.file(given) if isinstance(given.value, str) else None
    place = path or given.value
    if isinstance(place, Path | dict):
        read_beside(done, given.name, place, "deepspeed", without=(MICRO, ACCUMULATION, "logging.logging_steps"))


def keep_whole(done: Conversion) -> None:
    """Take back what the plan refuses with a model that is split: what is learnt is the same without the split."""
    if done.values.get(STRATEGY, "ddp") == "ddp" and not done.values.get(OFFLOAD):
        return
    config = validate(done.values, {}, [])
    for key, what, _ in whole_only(config) if config else ():
        if key == "training.torch_compile":
            done.reject(key, Why.NOT_SUPPORTED, what)
            continue
        for split in (STRATEGY, OFFLOAD):
            done.reject(split, Why.NOT_SUPPORTED, f"{what} here: each device has the whole model")


def cadence(
    done: Conversion,
    strategy: Given | None,
    count: Given | None,
    times: Given | None = None,
    *,
    key: str,
    epochs: str = "num_train_epochs",
    epochs_default: float = 3.0,
) -> None:
    """Read how often something is done: in steps, once an epoch, or so many `times` in each, a share of all steps here.

    `epochs` is the key that says how many there are.
    """

    def share(given: Given, times: float | None) -> None:
        total = number(done.given.get(epochs)) or epochs_default
        if times is not None and times >= 0 and (number(done.given.get("max_steps")) or 0) > 0:
            reason = f"max_steps sets the length of the run, so epochs cannot be converted; set {key}"
            done.leave(Why.NOT_SUPPORTED, reason, given)
        else:
            _write_share(done, key, given, times, total, f"{times or 0:g} per epoch, {total:g} epochs in total")

    if times and not count:
        share(times, times.number)
    if not strategy:
        return
    if same(strategy.value, False) or strategy.value == "no":
        done.leave(Why.NOT_NEEDED, f"{strategy.name} is off", count)
        done.write(key, 0, strategy, reason="only at the end")
    elif strategy.value == "epoch":
        done.leave(Why.NOT_NEEDED, f"set by {strategy.name}", count)
        share(strategy, 1)
    elif strategy.value != "steps":
        done.leave(Why.NOT_SUPPORTED, "the supported values are no, steps and epoch", strategy)
    elif count:
        done.write(key, count.value, count, strategy)
    else:
        done.leave(Why.ALWAYS, f"the file does not say how many steps; set {key}", strategy)


def every_epochs(done: Conversion, given: Given, *epochs: Given | None, key: str, epochs_default: float) -> None:
    """Read what is done once in so many epochs, a share of all steps here."""
    interval = given.number
    said = next((count for one in epochs if one and (count := one.number)), None)
    total = said or epochs_default
    reason = f"every {interval or 0:g} epochs, {total:g} in total{'' if said else ' (from the recipe)'}"
    times = 1 / interval if interval is not None and interval > 0 else interval
    _write_share(done, key, given, times if total > 0 else None, total, reason)


def _write_share(done: Conversion, key: str, given: Given, times: float | None, epochs: float, reason: str) -> None:
    """Write so many times in each of the epochs as a share of all steps."""
    if times is None or not times >= 0:
        done.leave(Why.DOES_NOT_FIT, "must be a number, at least 0", given)
    elif times * epochs <= 1:
        done.write(key, 0, given, reason="only at the end")
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
    """Read which weights are trained: the adapter's name in `methods`, switches of 4-bit loading, or the keys `lora`.

    The last count where the file has no `adapter_key`. `otherwise` is what the tool does where nothing of this is said,
    and one of the keys `model` is there.
    """
    named = next((ours for name, ours in (methods or {}).items() if adapter and same(adapter.value, name)), "")
    bits = next((switch for switch in switches if switch and switch.value in (True, 4)), None)
    if adapter and not named:
        done.leave(Why.REFUSED, "the supported methods are full, lora and qlora", adapter)
    elif bits and named != "full":
        done.write(METHOD_KEY, "qlora", adapter, bits)
    elif named:
        done.write(METHOD_KEY, named, adapter)
    elif (name := next((name for name in lora.split() if done.has(name)), "")) and adapter_key not in done.given:
        done.write(METHOD_KEY, "lora", reason=f"implied by {name}")
    elif otherwise and done.has(*model.split()):
        done.write(METHOD_KEY, otherwise, reason=f"the default of {done.tool}")
