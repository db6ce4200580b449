"""Keys that mean something only beside each other: the cut of a batch, the precision, cadences, the method.

Each function makes the reader of one such group from the names that a tool has for its parts.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.load import validate
from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import ConfigError
from tui_trainer.importing.conversion import Conversion, KeyGroup
from tui_trainer.importing.detection import find_importer, spread
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import (
    REFUSALS,
    Why,
    file_near,
    is_data_file,
    listed,
    listed_places,
    number,
    off,
    whole,
)
from tui_trainer.methods.lr_schedules import SCHEDULE_KEY
from tui_trainer.methods.tuning_methods import METHOD_KEY
from tui_trainer.models.adapters import CONTINUES_KEY
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
    micro: tuple[str, ...],
    accumulation: tuple[str, ...] = ("gradient_accumulation_steps",),
    *,
    micro_default: int | None = None,
    accumulation_default: int = 1,
) -> KeyGroup:
    """Micro-batch x accumulation x devices is what a step learns from; how it is cut is decided by memory here.

    The defaults are those of the other tool.
    """

    def read(done: Conversion) -> None:
        rows, parts = done.first(*micro), done.first(*accumulation)
        m = whole(rows[1]) if rows else micro_default
        a = whole(parts[1]) if parts else accumulation_default
        names = [found[0] for found in (rows, parts) if found]
        if not names or m is None or a is None or min(m, a) < 1:
            for key, found in ((MICRO, rows), (ACCUMULATION, parts)):
                if found:
                    done.write(key, found[1], found[0])
            return
        reason = per_device(done.devices)
        if len(names) == 1 and m * a != (m if rows else a):
            reason = f"{m} x {a}, with the default of {done.tool}; {reason}"
        rows_of_all, both = m * a * (done.devices or 1), len(names) == 2
        done.write(EFFECTIVE, rows_of_all, *names, reason=reason, product=both, per_device=True)

    return KeyGroup((*micro, *accumulation), read)


def per_device(devices: int | None) -> str:
    """Return how the batch size of one device became the effective batch size."""
    if devices is None:
        return "per device; --processes N multiplies this number by N"
    return f"per device in the file, multiplied here by {devices} devices"


def switches(done: Conversion, *names: str) -> tuple[list[str], list[str], list[Any]]:
    """Of two switches of which at most one may be on: those that are there, those that are on, and what is no switch.

    Where both are on they are left out, and none is there.
    """
    found = [one for name in names if (one := done.first(name))]
    there, on = [name for name, _ in found], [name for name, value in found if value is True]
    if len(on) == 2:
        done.leave(Why.DOES_NOT_FIT, f"only one of {' and '.join(there)} can be true", *there)
        return [], [], []
    return there, on, [value for _, value in found if not isinstance(value, bool)]


def switched(switch: str, *numbers: str) -> KeyGroup:
    """Return the group of a switch whose number is another key."""

    def read(done: Conversion) -> None:
        found, number = done.first(switch), done.first(*numbers)
        if found and number and isinstance(found[1], bool):
            reason = f"set by {number[0]}" if found[1] else "turned off in the file"
            done.leave(Why.NOT_NEEDED, reason, switch, *(() if found[1] else number[:1]))

    return KeyGroup((switch,), read)


def _precision(done: Conversion) -> None:
    key = "training.mixed_precision"
    names, on, others = switches(done, "bf16", "fp16")
    if on:
        done.write(key, on[0], *names)
    elif others and all(same(word, "auto") for word in others):
        done.write(key, "auto", *names)
    elif others:
        done.leave(Why.DOES_NOT_FIT, "must be true, false or auto", *names)
    elif names:
        done.write(key, "no", *names, reason="neither bf16 nor fp16 is on")


def _warmup(done: Conversion) -> None:
    """In transformers the number wins where it is not 0."""
    share, count = done.first("warmup_ratio"), done.first("warmup_steps")
    if not share:
        return
    part = number(share[1])
    if count and not off(count[1]):
        done.leave(Why.NOT_NEEDED, "warmup_steps takes precedence", "warmup_ratio")
    elif part is None or not 0 <= part < 1:
        done.leave(Why.DOES_NOT_FIT, "must be a share of all steps, at least 0, below 1", "warmup_ratio")
    else:
        done.write("training.warmup_steps", part, "warmup_ratio", reason="a share of all steps")
        if count:
            done.leave(Why.NOT_NEEDED, "set by warmup_ratio", "warmup_steps")


_Arguments = Callable[[Conversion, dict[str, Any]], dict[str, Any]]
"""Our settings from a schedule's arguments. Raises ValueError."""


def schedule(*names: str, has_stable_default: bool = False) -> KeyGroup:
    """A schedule that takes arguments, under one of these names, with `lr_scheduler_kwargs`; others have their rows.

    `has_stable_default`: where the file does not say num_stable_steps, the tool takes so many that the decay is not at
    the end of the run. Source: transformers.optimization.get_scheduler, which hands on the arguments.
    """

    def read(done: Conversion) -> None:
        found, beside = done.first(*names), done.first(_SCHEDULE_ARGUMENTS)
        readers: dict[str, _Arguments] = {
            "cosine_with_min_lr": _cosine_floor,
            "warmup_stable_decay": partial(_decay, has_stable_default),
        }
        reader = next((one for word, one in readers.items() if found and same(found[1], word)), None)
        if found is None or reader is None:
            return
        arguments: Any = beside[1] if beside else {}
        # transformers takes JSON in a text as well.
        if isinstance(arguments, str):
            with suppress(ValueError):
                arguments = json.loads(arguments)
        there = [found[0], *beside[:1]] if beside else [found[0]]
        try:
            values = reader(done, dict(arguments))
        except (TypeError, ValueError) as error:
            reason = str(error) if isinstance(arguments, dict) else f"{_SCHEDULE_ARGUMENTS} must be a table"
            done.leave(Why.DOES_NOT_FIT, reason, *there)
            return
        for key, value in values.items():
            done.write(key, value, *(there[:1] if key == SCHEDULE_KEY else there[1:]))

    return KeyGroup((*names, _SCHEDULE_ARGUMENTS), read)


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


def _decay(has_stable_default: bool, done: Conversion, arguments: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError where the decay is not at the end of the run, or something else is said."""
    decay, stable = whole(arguments.pop("num_decay_steps", None)), arguments.pop("num_stable_steps", None)
    if decay is None:
        raise ValueError(f"{_SCHEDULE_ARGUMENTS} must contain num_decay_steps, a whole number")
    if stable is None and has_stable_default:
        raise ValueError(
            "set num_stable_steps so that the decay ends at max_steps (default: a third of the steps after warm-up)"
        )
    if stable is not None:
        warmup, share = done.given.get("warmup_steps"), done.given.get("warmup_ratio")
        parts = [whole(warmup), whole(stable), decay]
        steps = [part for part in parts if part is not None]
        whole_run = len(steps) == len(parts) and sum(steps) == whole(done.given.get("max_steps"))
        if not whole_run or (off(warmup) and not off(share)):
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


def _early_stopping(done: Conversion) -> None:
    """A switch and a number, as our one number: 0 is off."""
    key, patience = "evaluation.early_stopping_patience", "early_stopping_patience"
    switch, count = done.first("early_stopping"), done.first(patience)
    if not switch:
        return
    if off(switch[1]):
        if count:
            done.leave(Why.NOT_NEEDED, "early_stopping is off", patience)
        done.write(key, 0, "early_stopping", reason="0 means off")
    elif count:
        done.write(key, count[1], "early_stopping", patience)
    else:
        reason = f"the number of evaluations to wait is missing; set {key}"
        done.leave(Why.NOT_SUPPORTED, reason, "early_stopping")


def _best_weights(done: Conversion) -> None:
    """The weights of the best evaluation are kept where early stopping is on: here it is, and never stops."""
    found = done.first("load_best_model_at_end")
    if found and found[1] is True:
        if any(not off(done.given.get(name)) for name in ("early_stopping_patience", "early_stopping_steps")):
            done.leave(Why.NOT_NEEDED, "early stopping keeps the best weights", found[0])
        else:
            reason = "keeps the best weights; a patience of this size never stops a run"
            done.write("evaluation.early_stopping_patience", _NEVER, found[0], reason=reason)


def _trackers(done: Conversion) -> None:
    """Names in a list or in one text; those that are no trackers here are left out."""
    found = done.first("report_to")
    if not found:
        return
    names = [name for one in listed(found[1]) if isinstance(one, str) for name in names_in(one)]
    known = [name for name in names if name in tracker_names()]
    here = f"available trackers: {', '.join(tracker_names())}"
    if known:
        others = one_line(", ".join(name for name in names if name not in known), 80)
        reason = f"{others} ignored; {here}" if others else ""
        done.write("logging.report_to", ", ".join(known), found[0], reason=reason)
    elif off(found[1]) or names in (["none"], ["all"]):
        done.leave(Why.NOT_NEEDED, "the run's journal is always written; set trackers with logging.report_to", found[0])
    else:
        done.leave(Why.NOT_SUPPORTED, here, found[0])


def own_files(*names: str) -> KeyGroup:
    """Where else a tokenizer or a config.json is: with the model, or another run."""

    def read(done: Conversion) -> None:
        model = next((done.given[name] for name in _MODELS if done.has(name)), None)
        for name in names:
            if (found := done.first(name)) and same(found[1], model):
                done.leave(Why.NOT_NEEDED, "the same path as that of the model", name)
            elif found:
                reason = "the tokenizer and config.json must be in the model's folder"
                done.leave(Why.REFUSED, reason, name)

    return KeyGroup(names, read)


def usual_layers(*names: str) -> KeyGroup:
    """The layers that PEFT takes where the file names none, as the keys `names` do (peft/utils/constants.py)."""

    def read(done: Conversion) -> None:
        if done.values.get(METHOD_KEY) in ("lora", "qlora") and done.has(*_MODELS) and not done.has(*names):
            reason = "PEFT's default for Llama, Qwen, Mistral, Gemma, OPT and similar; "
            reason += "the layers of other models have other names"
            done.write("tuning.target_modules", "q_proj, v_proj", reason=reason)

    return KeyGroup((), read)


# What an adapter has of its own, as PEFT reads it from its adapter_config.json.
_OF_ADAPTER = (
    "r lora_alpha lora_dropout use_rslora use_dora init_lora_weights target_modules target_parameters modules_to_save"
)


def start_adapter(names: str, models: str, folder: str = "", merge: str = "") -> KeyGroup:
    """Return the group of an adapter to start from, under one of these names. It replaces the key of the model, since
    an adapter names its model itself. `folder` is where it lies inside, `merge` the switch that trains another one on
    the two."""

    def read(done: Conversion) -> None:
        if not (found := done.first(*names.split())):
            return
        name = found[0]
        paths = [path for one in listed(found[1]) for path in names_in(str(one))]
        inside, base = done.first(folder), done.first(*models.split())
        if len(paths) != 1:
            done.leave(Why.REFUSED, "a run starts from one adapter; merge the others into the model first", name)
            return
        place = str(Path(paths[0]) / str(inside[1])) if inside else paths[0]
        reason = "the adapter names its base model"
        done.write(MODEL_KEY, place, name, *(inside[:1] if inside else ()), reason=reason)
        if base:
            done.leave(Why.NOT_NEEDED, "the adapter's adapter_config.json names its base model", base[0])
        done.goes_on = done.given.get(merge) is not True
        if not done.goes_on:
            done.write(CONTINUES_KEY, "merge", merge)

    return KeyGroup(tuple(f"{names} {folder} {merge}".split()), read)


def keep_adapter(done: Conversion) -> None:
    """Take back what an adapter that trains further has of its own."""
    for key in _OF_ADAPTER.split() if done.goes_on else ():
        done.take_back(f"tuning.{key}", Why.NOT_NEEDED, "the continued adapter keeps its own value")


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


def adapted_layers(layers: tuple[str, ...], patterns: tuple[str, ...], targets: str, all_linear: str = "") -> KeyGroup:
    """Return the group of the layers that get an adapter: with the names of `targets`, a regular expression of paths.

    Source: `check_target_module_exists` of peft 0.21: the first number of a path is the layer.
    """

    def read(done: Conversion) -> None:
        if not (found := done.first(*layers)):
            return
        name, pattern, named = found[0], done.first(*patterns), done.first(targets)
        numbers = [whole(one) for one in listed(found[1])]
        words = names_in(named[1]) if named and isinstance(named[1], str) else listed(named[1]) if named else []
        if done.given.get(all_linear) is True or not words or any(is_pattern(str(one)) for one in words):
            why = f"chosen layers become a regular expression in {MODULES_KEY}, so {targets} must list names one by one"
            done.leave(Why.REFUSED, why, name, *(pattern[:1] if pattern else ()))
        elif None in numbers or not numbers:
            done.leave(Why.DOES_NOT_FIT, "must be layer numbers", name)
        else:
            start = rf"(.*\.)?({'|'.join(map(str, listed(pattern[1])))})" if pattern else r"\D+"
            ends = "|".join(re.escape(str(one)) for one in words)
            expression = rf"{start}\.({'|'.join(map(str, numbers))})\.(.*\.)?({ends})"
            done.write(MODULES_KEY, expression, name, targets, *(pattern[:1] if pattern else ()))

    return KeyGroup((*layers, *patterns), read)


def rows_held_out(name: str) -> KeyGroup:
    """Return the group of what is held out where it may be a number of rows: a slice of the one data set."""

    def read(done: Conversion) -> None:
        if (found := done.first(name)) and (whole(found[1]) or 0) >= 1:
            hold_out(done, name, found[1])

    return KeyGroup((name,), read)


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


OWN_FILES = own_files("tokenizer_name", "config_name", "tokenizer_name_or_path")
PRECISION = KeyGroup(("fp16", "bf16"), _precision)
SCHEDULE = schedule("lr_scheduler_type")
WARMUP = KeyGroup(("warmup_ratio", "warmup_steps"), _warmup)
EARLY_STOPPING = KeyGroup(("early_stopping", "early_stopping_patience"), _early_stopping)
BEST_WEIGHTS = KeyGroup(("load_best_model_at_end",), _best_weights)
TRACKERS = KeyGroup(("report_to",), _trackers)


def write_places(done: Conversion, name: str, key: str, why: Why = Why.NOT_SUPPORTED) -> list[dict[str, Any]]:
    """The list of data sets `name` as paths; its entries, none where it has no list of them. `why`: what a list is in
    which a place is not said."""
    found = done.first(name)
    # axolotl takes a data set's name in place of its table.
    entries = [{"path": one} if isinstance(one, str) else one for one in (listed(found[1]) if found else [])]
    if not all(isinstance(one, dict) for one in entries):
        done.leave(why, f"not every entry says where its data is; set {key} to the files", name)
        return []
    by_entry = [listed_places(one) for one in entries]
    if entries and all(by_entry):
        places = [place for some in by_entry for place in some]
        done.write(key, places if len(places) > 1 else places[0], name)
    elif entries:
        which = "the entry does" if len(entries) == 1 else "one of the entries does"
        done.leave(why, f"{which} not say where its data is; set {key} to a file or hub:owner/name", name)
    return entries


def write_part(done: Conversion, name: str, entries: list[dict[str, Any]], *, trained: bool) -> set[str]:
    """The configuration and the split, and the keys that say them; of several data sets those that all have alike."""
    places = [place for one in entries for place in listed_places(one)]
    # A file has no other split there, so that train is all of it.
    usual = "train" if trained or all(is_data_file(place) for place in places) else ""
    parts = [("split", "data.split" if trained else "data.eval_split", usual)]
    parts += [("name", "data.name", "default")] if trained else []
    read = set()
    for key, setting, default in parts:
        values = list({str(one.get(key) or default) for one in entries})
        if values == [default] or (len(places) == 1 and len(values) == 1):
            read |= {key}
        if key in read and values != [default]:
            done.write(setting, values[0], name)
    return read


ZERO_STRATEGIES = {0: "ddp", 1: "fsdp", 2: "deepspeed-2", 3: "deepspeed-3"}


def write_zero(done: Conversion, name: str, stage: Any, offload_devices: Iterable[Any], of: str = "") -> None:
    """What ZeRO of a stage splits, and whether parts stay on the host; `of` is the file that says it, if another."""
    strategy, found = ZERO_STRATEGIES.get(whole(stage) or 0, ""), f"{of}: ZeRO {stage}" if of else f"ZeRO {stage}"
    if whole(stage) is None or not strategy:
        done.leave(Why.DOES_NOT_FIT, f"ZeRO has the stages 0 to 3; set {STRATEGY} instead", name)
        return
    devices = {str(device).lower() for device in offload_devices}
    done.write(STRATEGY, strategy, name, reason=found)
    if "cpu" in devices and strategy.startswith("deepspeed"):
        done.write(OFFLOAD, True, name, reason=f"{of or 'gradients and optimizer state stay in host memory'}")


def read_beside(
    done: Conversion, name: str, place: Path | Mapping[str, Any], kind: str, without: tuple[str, ...] = ()
) -> None:
    """Another tool's file that the key `name` names, or its settings themselves, but for our keys `without`."""
    raw, of = (read_foreign(place), place.name) if isinstance(place, Path) else (place, name)
    importer = find_importer(kind)
    read = Conversion(importer, spread(importer, raw), done.folder, done.devices)
    for one in read.rewrites:
        if one.key not in without:
            done.write(one.key, one.value, name, reason=f"{of}: {', '.join(one.sources)}")
    for left in read.left_out:
        if left.why in REFUSALS:
            done.leave(left.why, f"{of}: {left.key}: {left.reason}", name)


def _deepspeed(done: Conversion) -> None:
    """The settings themselves, or their file where it is near; how it cuts the batch, the rest of this file says."""
    found = done.first("deepspeed")
    path = file_near(done.folder, str(found[1])) if found and isinstance(found[1], str) else None
    place = path or (found[1] if found else None)
    if isinstance(place, Path | dict):
        read_beside(done, "deepspeed", place, "deepspeed", without=(MICRO, ACCUMULATION, "logging.logging_steps"))


DEEPSPEED = KeyGroup(("deepspeed",), _deepspeed)


def keep_whole(done: Conversion) -> None:
    """Take back what the plan refuses with a model that is split: what is learnt is the same without the split."""
    if done.values.get(STRATEGY, "ddp") == "ddp" and not done.values.get(OFFLOAD):
        return
    config = validate(done.values, {}, [])
    for key, what, _ in whole_only(config) if config else ():
        if key == "training.torch_compile":
            done.take_back(key, Why.NOT_SUPPORTED, what)
            continue
        for split in (STRATEGY, OFFLOAD):
            done.take_back(split, Why.NOT_SUPPORTED, f"{what} here: each device has the whole model")


def cadence(
    key: str,
    strategies: tuple[str, ...],
    steps: str,
    *,
    epochs: str = "num_train_epochs",
    epochs_default: float = 3.0,
    per_epoch: str = "",
) -> KeyGroup:
    """How often something is done: in steps, or once an epoch, which is a share of all steps here."""

    def read(done: Conversion) -> None:
        strategy, count = done.first(*strategies), done.first(steps)
        times = done.first(per_epoch) if per_epoch else None
        if times and not count:
            share(done, times[0], number(times[1]))
        if not strategy:
            return
        name, value = strategy
        if same(value, False) or same(value, "no"):
            if count:
                done.leave(Why.NOT_NEEDED, f"{name} is off", steps)
            done.write(key, 0, name, reason="only at the end")
        elif same(value, "epoch"):
            if count:
                done.leave(Why.NOT_NEEDED, f"set by {name}", steps)
            share(done, name, 1)
        elif same(value, "steps") and count:
            done.write(key, count[1], steps, name)
        elif same(value, "steps"):
            done.leave(Why.ALWAYS, f"the file does not say how many steps; set {key}", name)
        else:
            done.leave(Why.NOT_SUPPORTED, "the supported values are no, steps and epoch", name)

    def share(done: Conversion, name: str, times: float | None) -> None:
        total = number(done.given.get(epochs)) or epochs_default
        if times is not None and times >= 0 and (number(done.given.get("max_steps")) or 0) > 0:
            done.leave(
                Why.NOT_SUPPORTED,
                f"max_steps sets the length of the run, so epochs cannot be converted; set {key}",
                name,
            )
        else:
            _write_share(
                done, key, name, times, total, f"{times:g} per epoch, {total:g} epochs in total" if times else ""
            )

    return KeyGroup((*strategies, steps, *((per_epoch,) if per_epoch else ())), read)


def every_epochs(key: str, names: tuple[str, ...], epochs: tuple[str, ...], epochs_default: float) -> KeyGroup:
    """Once in so many epochs, which is a share of all steps here. `epochs` say how many there are."""

    def read(done: Conversion) -> None:
        if not (found := done.first(*names)):
            return
        every = number(found[1])
        said = next((count for name in epochs if (count := number(done.given.get(name)))), None)
        total = said or epochs_default
        what = f"every {every or 0:g} epochs, {total:g} in total{'' if said else ' (from the recipe)'}"
        times = every if every is None or not every > 0 else 1 / every
        _write_share(done, key, found[0], times if total > 0 else None, total, what)

    return KeyGroup(names, read)


def _write_share(done: Conversion, key: str, name: str, times: float | None, epochs: float, what: str) -> None:
    """So many times in each of the epochs as a share of all steps."""
    if times is None or not times >= 0:
        done.leave(Why.DOES_NOT_FIT, "must be a number, at least 0", name)
    elif times * epochs <= 1:
        done.write(key, 0, name, reason="only at the end")
    else:
        done.write(key, round(1 / (times * epochs), 6), name, reason=f"a share of all steps: {what}")


def method(
    adapter: str = "",
    adapters: Mapping[Any, str] | None = None,
    *,
    four_bit: tuple[str, ...] = (),
    lora: tuple[str, ...] = tuple("lora_r lora_rank lora_alpha lora_target_modules adapter_path peft_path".split()),
    model: tuple[str, ...] = (),
    otherwise: str = "",
) -> KeyGroup:
    """Which weights are trained: from the adapter's name, from 4-bit loading, or because the file speaks of LoRA.

    `otherwise` is what the tool does where nothing of this is said, and one of the keys `model` is there.
    """

    def read(done: Conversion) -> None:
        named = done.first(adapter) if adapter else None
        wanted = next((ours for one, ours in (adapters or {}).items() if named and same(named[1], one)), "")
        if named and not wanted:
            done.leave(Why.REFUSED, "the supported methods are full, lora and qlora", adapter)
            return
        bits = next((one for name in four_bit if (one := done.first(name)) and one[1] in (True, 4)), None)
        names = [adapter] if named else []
        if bits and wanted != "full":
            wanted, names = "qlora", [*names, bits[0]]
        if wanted:
            done.write(METHOD_KEY, wanted, *names)
        elif done.has(*lora) and adapter not in done.given:
            done.write(METHOD_KEY, "lora", reason=f"implied by {next(name for name in lora if done.has(name))}")
        elif otherwise and done.has(*model):
            done.write(METHOD_KEY, otherwise, reason=f"the default of {done.tool}")

    return KeyGroup((*((adapter,) if adapter else ()), *four_bit), read)
