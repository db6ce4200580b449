"""What a row of an importer's table says of a key of the file: our key, or why it has none.

A table is a mapping. Its keys are the other tool's names: several with blanks between them where one row is about all
of them, with `*` in them for all names of a pattern, which count where there is no row of the name itself. A row is a
rule. A text is the key of our setting, `training.*` the one of the same name in [training]; None takes a row of an
earlier table back.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.config.editing import toml_text
from tui_trainer.config.fields import Setting, is_pattern, names_in
from tui_trainer.config.load import all_settings, validate, value_of
from tui_trainer.config.toml_files import MAX_LINE_CHARACTERS
from tui_trainer.data.sources.hub import MAIN, HubPath
from tui_trainer.errors import Problem
from tui_trainer.files.hub_layout import HUB_PREFIX, could_be_on_the_hub, is_hub_name
from tui_trainer.files.local_paths import is_here
from tui_trainer.methods import optimizers
from tui_trainer.tasks import task_names
from tui_trainer.terminal.safe_text import one_line


class Why(StrEnum):
    """Why a key of the file has no line in ours; what needs a decision comes first.

    The first three are refused: without the key, the rest could be another run. The others change nothing learnt.
    """

    REFUSED = "cannot be trained here"
    DOES_NOT_FIT = "cannot be imported"
    UNKNOWN = "is not known"
    NOT_SUPPORTED = "not supported"
    AS_ASKED = "as asked"
    AUTOMATIC = "automatic here"
    ALWAYS = "always so here"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Left:
    """The key has no line in ours, whatever its value."""

    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class Off:
    """Something that tui-trainer does not have: no loss where the file has it off."""

    reason: str
    why: Why = Why.NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class Same:
    """These values are what tui-trainer does anyway; others are not supported, or refused where they change the run."""

    values: tuple[Any, ...]
    reason: str
    otherwise: str = "{}"
    """The reason for all other values, in which {} is the usual one."""
    why: Why = Why.NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class To:
    """The key is one of our settings. `values` translates spellings, or says which of them need no line.

    `convert` is asked for every other value; it raises ValueError with what is wrong with one. With `otherwise`, no
    other value is taken.
    """

    key: str
    reason: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)
    convert: Callable[[Any], Any] | None = None
    otherwise: Left | Off | None = None

    def translate(self, value: Any) -> Any:
        """Return the value of our setting, or the rule for this value. Raise ValueError with what is wrong with it."""
        for spelling, ours in self.values.items():
            if same(value, spelling):
                return ours
        return self.otherwise or (self.convert(value) if self.convert else value)


Rule = To | Left | Off | Same
Table = Mapping[str, Rule | str | None]

Only = partial(Same, why=Why.REFUSED)
Refused = partial(Off, why=Why.REFUSED)
Automatic = partial(Left, Why.AUTOMATIC)
Always = partial(Left, Why.ALWAYS)
NotNeeded = partial(Left, Why.NOT_NEEDED)
NotSupported = partial(Left, Why.NOT_SUPPORTED)
OFF = NotNeeded("turned off in the file")

REFUSALS = (Why.REFUSED, Why.DOES_NOT_FIT, Why.UNKNOWN)


def merge(*tables: Table) -> dict[str, Rule]:
    """Return one rule for each name; a later table wins."""
    rules: dict[str, Rule] = {}
    for names, rule in (row for table in tables for row in table.items()):
        for name in names.split():
            if rule is None:
                del rules[name]
            else:
                rules[name] = To(rule.replace("*", name)) if isinstance(rule, str) else rule
    return rules


def under(prefix: str, table: Table) -> dict[str, Rule]:
    """Return the rules of the same names inside a table of the file."""
    return {f"{prefix}.{name}": rule for name, rule in merge(table).items()}


# Values of other tools' files: what they say, whether one of our settings takes one, and in what form.
#
# The config's own schema is asked, nothing else. What reads a spelling raises ValueError with what is wrong with one.

# As a whole number it would have more digits than a float is sure of.
_WHOLE_BELOW = 1e15
_FOLDERS_ABOVE = 3
_FILES = (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".txt", ".gz", ".md")


def fit(key: str, value: Any) -> Any:
    """Return the value as the setting holds it. Raises ValueError with what the setting takes."""
    setting = all_settings()[key]
    problems: list[Problem] = []
    config = validate({key: _number(setting, value)}, {}, problems)
    if config is None:
        raise ValueError(f"{key} must be {setting.expected}")
    fitting = value_of(config, key)
    if key == "task.type" and fitting not in task_names():
        raise ValueError(f"{key} must be one of {', '.join(task_names())}")
    if isinstance(fitting, float):
        return fitting if whole(fitting) is None else int(fitting)
    if isinstance(fitting, str):
        try:
            fitting.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{key} must be valid Unicode text") from None
        if len(toml_text(fitting)) + len(key) + 8 > MAX_LINE_CHARACTERS:
            raise ValueError(f"{key} must be a text of fewer than {MAX_LINE_CHARACTERS} characters")
    return fitting


def number(value: Any) -> float | None:
    """Return a number, also one in quotes; None for everything else. YAML reads `5e-5`, without a point, as a text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value) if len(value) < 40 else None
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def whole(value: Any) -> int | None:
    """Return a whole number, also one like `8.0`; None for everything else."""
    given = number(value)
    return int(given) if given is not None and abs(given) < _WHOLE_BELOW and given == int(given) else None


def empty(value: Any) -> bool:
    """Return whether a key stands there without saying anything."""
    return value is None or value in ("", [], {})


def file_near(folder: Path, name: str) -> Path | None:
    """Return a file that a config in `folder` names: other tools look for it where they are started, which is that
    folder, one above it or the current one."""
    steps = (folder, *list(folder.absolute().parents)[:_FOLDERS_ABOVE], Path())
    with suppress(OSError, ValueError):
        return next((path for step in steps if (path := step / name).is_file()), None)
    return None


def off(value: Any) -> bool:
    return empty(value) or value is False or value in (0, "none", "no", "off", "false")


def _number(setting: Setting, value: Any) -> Any:
    """Return the number that a setting of numbers takes from a text, or else the value."""
    if str in setting.kinds or value in setting.choices:
        return value
    for kind, read in ((int, whole), (float, number)):
        if kind in setting.kinds and (given := read(value)) is not None:
            return given
    return value


DTYPES: Mapping[Any, Any] = {
    **dict.fromkeys(("bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "half", "torch.float16"), "float16"),
    **dict.fromkeys(("fp32", "float", "torch.float32"), "float32"),
}
OPTIMIZERS: Mapping[Any, Any] = {
    **{alias: name for name, optimizer in optimizers.OPTIMIZERS.items() for alias in optimizer.aliases},
    # The default of older versions of transformers, so mostly nobody's choice: the fused one makes the same update.
    "adamw_torch": optimizers.DEFAULT,
}
SCHEDULERS: Mapping[Any, Any] = {"warmup_linear": "linear", "constant_warmup": "constant_with_warmup"}

# What is nearest by its meaning, where the name does not tell. The names are those of Hugging Face's pipelines and
# of peft's task types.
_NEAREST: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("text-classification", "sentiment-analysis"), ("sequence_classification",)),
    **dict.fromkeys(("named-entity-recognition", "ner"), ("token_classification",)),
    **dict.fromkeys(("translation", "text2text-generation"), ("seq2seq",)),
    **dict.fromkeys(("conversational", "instruction-tuning"), ("chat",)),
}


def module_names(value: Any) -> Any:
    """Return names of layers as one text, or a regular expression; `all` as `all-linear`."""
    names = listed(value)
    if isinstance(value, list) and any(isinstance(name, str) and is_pattern(name) for name in names):
        raise ValueError("a list must contain layer names; give a regular expression as a single string")
    return "all-linear" if value == "all" or names in (["all"], ["all-linear"]) else value


def percent(value: Any) -> Any:
    share = number(value)
    return value if share is None else share / 100


def metric_name(value: Any) -> Any:
    """Return `eval_loss` as `loss`."""
    return value.removeprefix("eval_") if isinstance(value, str) else value


def data_place(value: Any) -> Any:
    """Return `owner/name` as `hub:owner/name` where no such path is here; everything else as it is.

    Most tools take a path and a name on the hub in the same place.
    """
    is_name = isinstance(value, str) and "/" in value and could_be_on_the_hub(value) and not is_here(value)
    return f"{HUB_PREFIX}{value}" if is_name else value


def listed(value: Any) -> list[Any]:
    """Return a list as it is, another value as the only one."""
    return value if isinstance(value, list) else [value]


def listed_names(value: Any) -> list[str]:
    """Return the names in a list or a text, in which commas divide them."""
    return [name for text in listed(value) if isinstance(text, str) for name in names_in(text)]


def is_data_file(place: str) -> bool:
    return place.endswith(_FILES)


def listed_places(one: Mapping[str, Any]) -> list[str]:
    """Return the paths of one entry of a list of data sets, as `datasets` is asked for it; none where it names none."""
    path = one.get("path")
    files = [str(name) for name in listed(one.get("data_files") or [])]
    if str(data_place(path)).startswith(HUB_PREFIX):
        revision = str(one.get("revision") or MAIN)
        return [str(HubPath(str(path), revision, inside)) for inside in files or [str(one.get("data_dir") or "")]]
    local = files or ([str(path)] if path else [])
    is_local = (is_data_file(one) or one.startswith(("/", "./", "../", "~")) or is_here(one) for one in local)
    return local if all(is_local) else []


def data_set_name(value: Any) -> Any:
    """Return the same where the name is never a file's. Raise ValueError for a name without its owner."""
    if isinstance(value, str) and is_hub_name(value) and "/" not in value and not is_here(value):
        raise ValueError("data sets on the Hub need the name of their owner; set data.path to hub:owner/name")
    return data_place(value)


def task_by(names: Mapping[str, str]) -> Callable[[Any], str]:
    """Return the reader of a tool's own names for tasks, in any spelling: case, blanks and underscores do not matter.

    Of all other names it says the nearest tasks.
    """
    known = {_plain(name): task for name, task in names.items()}

    def task(value: Any) -> str:
        tasks = f"tasks: {', '.join(task_names())}"
        if not isinstance(value, str):
            raise ValueError(f"not a task; {tasks}")
        name = _plain(value)
        if name in known:
            return known[name]
        spelt = {**{_plain(task): task for task in task_names()}, **known}
        near = _NEAREST.get(name) or [f"{spelt[found]} ({found})" for found in get_close_matches(name, spelt, n=2)]
        nearest = f"nearest: {', '.join(near)}" if near else tasks
        raise ValueError(f"no matching task; {nearest}")

    return task


def _plain(name: str) -> str:
    return "-".join(one_line(name, 60).lower().replace("_", " ").replace("-", " ").split())
