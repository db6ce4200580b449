"""Rules for the keys of a file: which of our settings a key becomes, or why it becomes none.

A table maps key names of another tool to rules. An entry may be for several names separated by blanks, or for a pattern
with `*`, which applies to names without an entry. A rule that is a string is the key of our setting; in `training.*`
the star stands for the tool's name. The rule None removes the entry of an earlier table."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import is_same_value
from tui_trainer.config.editing import toml_text
from tui_trainer.config.fields import Setting, is_pattern, names_in
from tui_trainer.config.load import all_settings, validate, value_of
from tui_trainer.config.toml_files import MAX_LINE_CHARACTERS
from tui_trainer.data.sources.hub import MAIN, HubPath
from tui_trainer.errors import Problem
from tui_trainer.files.hub_layout import HUB_PREFIX, could_be_on_the_hub, is_hub_name
from tui_trainer.files.local_paths import path_exists
from tui_trainer.methods import optimizers
from tui_trainer.tasks import task_names
from tui_trainer.terminal.safe_text import one_line


class Why(StrEnum):
    """Reason why a key of the file does not become a setting. Reasons that need a decision come first.

    A file with one of the first three reasons is refused, because without the key it could be another run. The other
    reasons do not change what is learned."""

    REFUSED = "cannot be used here"
    DOES_NOT_FIT = "cannot be imported"
    UNKNOWN = "is not known"
    NOT_SUPPORTED = "not supported"
    AS_ASKED = "as requested"
    AUTOMATIC = "automatic here"
    ALWAYS = "always the case"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Skip:
    """Rule: the key does not become a setting, whatever its value."""

    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class Off:
    """Rule for a key of a feature that tui-trainer does not have. A value that turns the feature off is accepted."""

    reason: str
    why: Why = Why.NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class Same:
    """Rule: tui-trainer always does what these values mean. Other values are left out for the reason `why`."""

    values: tuple[Any, ...]
    reason: str
    otherwise: str = "{}"
    """Explanation for all other values, in which {} stands for `reason`."""
    why: Why = Why.NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class To:
    """Rule: the key becomes one of our settings. `values` maps values of the file to ours, or to rules.

    `convert` translates values that are not in `values`, and raises ValueError for invalid values. With `otherwise`,
    only the values in `values` are accepted."""

    key: str
    reason: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)
    convert: Callable[[Any], Any] | None = None
    otherwise: Skip | Off | None = None

    def translate(self, value: Any) -> Any:
        """Return our setting's value for a value of the file, or a rule for it. Raises ValueError if it is invalid."""
        for spelling, ours in self.values.items():
            if is_same_value(value, spelling):
                return ours
        return self.otherwise or (self.convert(value) if self.convert else value)


Rule = To | Skip | Off | Same
Table = Mapping[str, Rule | str | None]

Only = partial(Same, why=Why.REFUSED)
Refused = partial(Off, why=Why.REFUSED)
Automatic = partial(Skip, Why.AUTOMATIC)
Always = partial(Skip, Why.ALWAYS)
NotNeeded = partial(Skip, Why.NOT_NEEDED)
NotSupported = partial(Skip, Why.NOT_SUPPORTED)
OFF = NotNeeded("turned off in the file")

REFUSALS = (Why.REFUSED, Why.DOES_NOT_FIT, Why.UNKNOWN)


def merge(*tables: Table) -> dict[str, Rule]:
    """Merge tables of rules to one rule for each name. Later tables take precedence."""
    rules: dict[str, Rule] = {}
    for names, rule in (row for table in tables for row in table.items()):
        for name in names.split():
            if rule is None:
                del rules[name]
            else:
                rules[name] = To(rule.replace("*", name)) if isinstance(rule, str) else rule
    return rules


def with_prefix(prefix: str, table: Table) -> dict[str, Rule]:
    """Return the rules of a table with `prefix.` before each name, for keys inside the table `prefix` of a file."""
    return {f"{prefix}.{name}": rule for name, rule in merge(table).items()}


# Floats represent all whole numbers below this exactly.
_WHOLE_BELOW = 1e15
_FOLDERS_ABOVE = 3
_FILES = (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".txt", ".gz", ".md")


def to_setting_type(key: str, value: Any) -> Any:
    """Return a value in the type of our setting `key`. Raises ValueError if the setting does not accept the value."""
    setting = all_settings()[key]
    problems: list[Problem] = []
    config = validate({key: _number(setting, value)}, {}, problems)
    if config is None:
        raise ValueError(f"{key} must be {setting.expected_words}")
    our_value = value_of(config, key)
    if key == "task.type" and our_value not in task_names():
        raise ValueError(f"{key} must be one of {', '.join(task_names())}")
    if isinstance(our_value, float):
        return our_value if whole(our_value) is None else int(our_value)
    if isinstance(our_value, str):
        try:
            our_value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{key} must be valid Unicode text") from None
        if len(toml_text(our_value)) + len(key) + 8 > MAX_LINE_CHARACTERS:
            raise ValueError(f"{key} must be a text of fewer than {MAX_LINE_CHARACTERS} characters")
    return our_value


def number(value: Any) -> float | None:
    """Return a value or text as a number; None for other values. YAML reads `5e-5`, without a point, as a text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value) if len(value) < 40 else None
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def whole(value: Any) -> int | None:
    """Return a value as a whole number, 8 for `8.0` or "8"; None for other values."""
    parsed = number(value)
    return int(parsed) if parsed is not None and abs(parsed) < _WHOLE_BELOW and parsed == int(parsed) else None


def is_empty(value: Any) -> bool:
    """Return whether a value in the file means that its key is not set."""
    return value is None or value in ("", [], {})


def file_near(folder: Path, name: str) -> Path | None:
    """Return the path of the file `name` to which a config in `folder` refers; None if it does not exist. It is looked
    for where the other tool may have been started: in `folder`, the folders above it, and the current folder."""
    folders = (folder, *list(folder.absolute().parents)[:_FOLDERS_ABOVE], Path())
    with suppress(OSError, ValueError):
        return next((path for parent in folders if (path := parent / name).is_file()), None)
    return None


def is_off(value: Any) -> bool:
    """Return whether a value turns a feature off."""
    return is_empty(value) or value is False or value in (0, "none", "no", "off", "false")


def _number(setting: Setting, value: Any) -> Any:
    """Return the number that a text contains if the setting is a number; else the value unchanged."""
    if str in setting.kinds or value in setting.choices:
        return value
    for kind, parse in ((int, whole), (float, number)):
        if kind in setting.kinds and (parsed_number := parse(value)) is not None:
            return parsed_number
    return value


DTYPES: Mapping[Any, Any] = {
    **dict.fromkeys(("bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "half", "torch.float16"), "float16"),
    **dict.fromkeys(("fp32", "float", "torch.float32"), "float32"),
}
OPTIMIZERS: Mapping[Any, Any] = {
    **{alias: name for name, optimizer in optimizers.OPTIMIZERS.items() for alias in optimizer.aliases},
    # Default of older versions of transformers, rarely chosen on purpose. The fused optimizer makes equal updates.
    "adamw_torch": optimizers.DEFAULT,
}
SCHEDULERS: Mapping[Any, Any] = {"warmup_linear": "linear", "constant_warmup": "constant_with_warmup"}

# The nearest task for names that are not similar to ours, from Hugging Face's pipelines and peft's task types.
_NEAREST: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("text-classification", "sentiment-analysis"), ("sequence_classification",)),
    **dict.fromkeys(("named-entity-recognition", "ner"), ("token_classification",)),
    **dict.fromkeys(("translation", "text2text-generation"), ("seq2seq",)),
    **dict.fromkeys(("conversational", "instruction-tuning"), ("chat",)),
}


def module_names(value: Any) -> Any:
    """Return the names of layers unchanged, and `all` as `all-linear`. Raises ValueError for a pattern in a list."""
    names = listed(value)
    if isinstance(value, list) and any(isinstance(name, str) and is_pattern(name) for name in names):
        raise ValueError("a list must contain layer names; give a regular expression as a single string")
    return "all-linear" if value == "all" or names in (["all"], ["all-linear"]) else value


def percent_to_share(value: Any) -> Any:
    share = number(value)
    return value if share is None else share / 100


def metric_name(value: Any) -> Any:
    """Return the name of a metric without the prefix `eval_`: `loss` for `eval_loss`."""
    return value.removeprefix("eval_") if isinstance(value, str) else value


def data_path(value: Any) -> Any:
    """Return `hub:owner/name` for `owner/name`, unless that is a local path. Other values stay unchanged.

    Most tools accept a path or a name on the Hub in the same key."""
    is_name = isinstance(value, str) and "/" in value and could_be_on_the_hub(value) and not path_exists(value)
    return f"{HUB_PREFIX}{value}" if is_name else value


def listed(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list with this value."""
    return value if isinstance(value, list) else [value]


def listed_names(value: Any) -> list[str]:
    """Return the names in a list or in a text with commas."""
    return [name for text in listed(value) if isinstance(text, str) for name in names_in(text)]


def is_data_file(path: str) -> bool:
    return path.endswith(_FILES)


def listed_paths(entry: Mapping[str, Any]) -> list[str]:
    """Return the paths that an entry in a list of data sets names, resolved as by `datasets`; empty if none."""
    path = entry.get("path")
    names = [str(name) for name in listed(entry.get("data_files") or [])]
    if str(data_path(path)).startswith(HUB_PREFIX):
        revision = str(entry.get("revision") or MAIN)
        return [str(HubPath(str(path), revision, subpath)) for subpath in names or [str(entry.get("data_dir") or "")]]
    paths = names or ([str(path)] if path else [])
    are_local = (is_data_file(path) or path.startswith(("/", "./", "../", "~")) or path_exists(path) for path in paths)
    return paths if all(are_local) else []


def data_set_name(value: Any) -> Any:
    """Convert `owner/name` to `hub:owner/name`, like `data_path`. Raises ValueError for a name without an owner."""
    if isinstance(value, str) and is_hub_name(value) and "/" not in value and not path_exists(value):
        raise ValueError("data sets on the Hub need the name of their owner; set data.path to hub:owner/name")
    return data_path(value)


def task_by(names: Mapping[str, str]) -> Callable[[Any], str]:
    """Return a function that converts a tool's name for a task to ours, ignoring case, blanks and underscores.

    For an unknown name, the function raises ValueError with the nearest tasks."""
    by_name = {_plain(name): task for name, task in names.items()}

    def task(value: Any) -> str:
        tasks_text = f"tasks: {', '.join(task_names())}"
        if not isinstance(value, str):
            raise ValueError(f"not a task; {tasks_text}")
        name = _plain(value)
        if name in by_name:
            return by_name[name]
        task_by_name = {**{_plain(task): task for task in task_names()}, **by_name}
        matches = get_close_matches(name, task_by_name, n=2)
        nearest = _NEAREST.get(name) or [f"{task_by_name[match]} ({match})" for match in matches]
        nearest_text = f"nearest: {', '.join(nearest)}" if nearest else tasks_text
        raise ValueError(f"no matching task; {nearest_text}")

    return task


def _plain(name: str) -> str:
    return "-".join(one_line(name, 60).lower().replace("_", " ").replace("-", " ").split())
