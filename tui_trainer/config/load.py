"""From profiles, file and command line to one Config, and where each value came from.

Precedence: defaults < recipe < hardware profile < config file < `--set`. All mistakes are reported together.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from tui_trainer.config.changes import with_changes
from tui_trainer.config.fields import Setting, settings_of
from tui_trainer.config.paths import data_of, with_absolute_paths, with_paths_beside
from tui_trainer.config.removed import REMOVED, nearest_setting, without_removed
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY, Config, ResolvedConfig
from tui_trainer.config.toml_files import Profile, find_profile, nest, parse_toml, profile_names, read_toml
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.files.local_paths import as_bytes, is_here, is_utf8
from tui_trainer.terminal.safe_text import one_line, shell_word

DEFAULT_RECIPE, DEFAULT_RECIPE_FOR_A_MODEL = "quickstart", "finetune"
# Settings that have an option of their own on the command line.
OPTIONS = {DATA_KEY: "--data", "task.type": "--task", MODEL_KEY: "--model", "profile": "--profile"}
_DATA_SUFFIXES = (".txt", ".jsonl", ".md", ".gz")
_VALUE_AND_END = 2


class Origin(StrEnum):
    """Who set a value, from the weakest to the strongest."""

    DEFAULT = "default"
    RECIPE = "recipe"
    HARDWARE = "hardware profile"
    FILE = "config file"
    COMMAND_LINE = "command line"
    EDITED = "edited here"

    @property
    def by_user(self) -> bool:
        return self in (Origin.FILE, Origin.COMMAND_LINE, Origin.EDITED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line says: a config file, a recipe, single settings (`KEY=VALUE`), and those of `OPTIONS`."""

    config_file: Path | None = None
    profile: str = ""
    assignments: tuple[str, ...] = ()
    shortcuts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Values from one place, by dotted key."""

    origin: Origin
    where: str
    values: dict[str, Any]
    notes: tuple[str, ...] = ()
    """What was written and is not used any more, a sentence each."""
    fitted_because: str = ""
    """Why the value replaces a preset that does not suit what the user chose; empty where it replaces none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedConfig:
    """The Config, the layer behind each value that is no default, and the profiles that took part."""

    config: Config
    layers: dict[str, Layer]
    recipe: Profile | None
    hardware_profile: Profile | None
    hardware_reason: str = ""
    notes: tuple[str, ...] = ()
    """What was made of presets that do not fit, and what is not used any more, a sentence each."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns that settings such as `data.text_column` stand for, where the data was looked at."""
    data: ResolvedData = field(default_factory=ResolvedData, compare=False)
    """The data that `config` names, looked up once for this config and for every other that is derived from it."""

    def __post_init__(self) -> None:
        if self.data != (data := data_of(self.config)):
            object.__setattr__(self, "data", data)

    def origin(self, key: str) -> Origin:
        return self.layers[key].origin if key in self.layers else Origin.DEFAULT

    def where(self, key: str) -> str:
        """`recipe quickstart`, `my.toml`, `--set`; `default` when nothing set it."""
        return self.layers[key].where if key in self.layers else "default"

    def fitted_because(self, key: str) -> str:
        """Return why a preset was replaced, as `fitted` got it; empty where it was not."""
        return self.layers[key].fitted_because if key in self.layers else ""

    def problem(self, key: str, message: str, hint: str = "") -> Problem:
        """A mistake in one setting, with the place where it was written."""
        return self.placed(Problem(message=message, key=key, hint=hint))

    def placed(self, problem: Problem) -> Problem:
        """The same mistake with the place where its setting was written, if it names a setting and no place."""
        by_user = not problem.where and self.origin(problem.key).by_user
        return replace(problem, where=self.where(problem.key)) if by_user else problem

    def noting(self, layers: Iterable[Layer]) -> Self:
        """The same with what these layers have to note."""
        return replace(self, notes=(*self.notes, *(note for layer in layers for note in layer.notes)))

    def fitted(self, key: str, value: Any, why: str) -> Self:
        """The same with another value for a setting, where a preset or a default does not fit what the user chose.
        `why` ends the note that tells it, and what is said of the place that the value comes from.

        What the user wrote is refused where it does not fit, and not changed.
        """
        before, origin = value_of(self.config, key), self.where(key)
        layer = Layer(origin=self.origin(key), where=f"{origin}, but {why}", values={key: value}, fitted_because=why)
        return replace(
            self,
            config=with_changes(self.config, {key: value}),
            layers={**self.layers, key: layer},
            notes=(*self.notes, f"{key} is {value} instead of {before if before != '' else 'empty'} ({origin}): {why}"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLoaded(LoadedConfig):
    """A LoadedConfig whose effective batch size and epochs are numbers, as planning needs them."""

    config: ResolvedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets:
    """The two profiles in force and the layer behind each value that they set. `recipe_name` is the one asked for."""

    recipe_name: str = ""
    recipe: Profile | None = None
    hardware_profile: Profile | None = None
    hardware_reason: str = ""
    layers: Mapping[str, Layer] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """What a profile sets and is not used any more."""

    def value(self, key: str) -> Any:
        """What the profiles and the defaults give. `profile` itself is the recipe that was asked for."""
        return self.layers[key].values[key] if key in self.layers else all_settings()[key].default

    def under(self, config: Config, layers: Mapping[str, Layer]) -> LoadedConfig:
        """A whole config that was made on these profiles, with the layers behind its values."""
        return LoadedConfig(
            config=config,
            layers=dict(layers),
            recipe=self.recipe,
            hardware_profile=self.hardware_profile,
            hardware_reason=self.hardware_reason,
            notes=self.notes,
        )


HardwareChoice = Callable[[str], tuple[Profile | None, str]]


@cache
def all_settings() -> dict[str, Setting]:
    return settings_of(Config)


@cache
def all_tables() -> frozenset[str]:
    """The names of all tables: `training`, `model`, `model.scratch`."""
    parts = [key.split(".") for key in all_settings()]
    return frozenset(".".join(part[:length]) for part in parts for length in range(1, len(part)))


def load(request: Request, choose_hardware: HardwareChoice) -> LoadedConfig:
    """Merge all layers and check every value. `choose_hardware(name)` finds the hardware profile and says why.

    Raises ConfigError with all problems.
    """
    problems: list[Problem] = []
    written = user_layers(request, problems)
    own = {key: layer for layer in written for key in layer.values}
    recipe_name = _last("profile", written, default_recipe(request, written))
    presets = find_presets(recipe_name, {key: layer.values[key] for key, layer in own.items()}, choose_hardware)
    by_key = {**presets.layers, **own}
    for problem in presets.problems:
        place = by_key[problem.key].where if problem.key in by_key else ""
        problems.append(problem if problem.where else replace(problem, where=place))
    config = validate({key: layer.values[key] for key, layer in by_key.items()}, by_key, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return presets.under(with_absolute_paths(config), by_key).noting(written)


def user_layers(request: Request, problems: list[Problem]) -> list[Layer]:
    """What the user wrote, the weakest layer first. Mistakes are added to `problems`."""
    layers = []
    path = request.config_file
    if path is not None and (option := option_for(str(path))):
        problems.append(Problem(message="is not a config file", where=str(path), hint=f"write {option}"))
    elif path is not None and (path.suffix in _DATA_SUFFIXES or (is_here(str(path)) and path.is_dir())):
        hint = f"use --data {path}"
        problems.append(Problem(message="is data, not a config file", where=str(path), hint=hint))
    elif path is not None:
        try:
            raw = read_toml(path)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            where, notes = str(path), list[str]()
            values = with_paths_beside(flatten(raw, where, problems, notes), path, notes)
            layers.append(Layer(origin=Origin.FILE, where=where, values=values, notes=tuple(notes)))
    layers += [_option(key, value) for key, value in request.shortcuts.items()]
    notes = []
    assigned = _assignments(request.assignments, problems, notes)
    for key, value in request.shortcuts.items():
        if assigned.get(key, value) != value:
            notes.append(f"{OPTIONS[key]} {one_line(value, 60)} is ignored, because --set {key} is given")
    layers.append(Layer(origin=Origin.COMMAND_LINE, where="--set", values=assigned, notes=tuple(notes)))
    return [*layers, _option("profile", request.profile)] if request.profile else layers


def _option(key: str, value: str) -> Layer:
    return Layer(origin=Origin.COMMAND_LINE, where=OPTIONS.get(key, "--set"), values={key: value})


def find_presets(recipe_name: str, own: Mapping[str, Any], choose_hardware: HardwareChoice) -> Presets:
    """The profiles for a recipe and for the user's own choice of hardware. What cannot be found becomes a problem."""
    problems: list[Problem] = []
    notes: list[str] = []
    layers: dict[str, Layer] = {}

    def take(origin: Origin, profile: Profile) -> None:
        values = flatten(profile.values, str(profile.path), problems, notes)
        layer = Layer(origin=origin, where=f"{origin.value} {profile.name}", values=values)
        layers.update(dict.fromkeys(values, layer))

    recipe = hardware = None
    reason = ""
    try:
        if recipe_name:
            recipe = find_profile(recipe_name, "recipes")
            take(Origin.RECIPE, recipe)
    except ConfigError as error:
        problems += [replace(problem, key="profile") for problem in error.problems]
    key = "hardware_profile"
    candidates = [own.get(key), layers[key].values[key] if key in layers else None, "auto"]
    try:
        hardware, reason = choose_hardware(next(name for name in candidates if isinstance(name, str)))
        if hardware:
            take(Origin.HARDWARE, hardware)
    except ConfigError as error:
        problems += [replace(problem, key=key) for problem in error.problems]
    return Presets(
        recipe_name=recipe_name,
        recipe=recipe,
        hardware_profile=hardware,
        hardware_reason=reason,
        layers=layers,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def default_recipe(request: Request, user_layers: list[Layer]) -> str:
    """What a run starts from where no recipe is named: with a model, tuning it; else the quickstart."""
    if _last(MODEL_KEY, user_layers, ""):
        return DEFAULT_RECIPE_FOR_A_MODEL if _last("model.init", user_layers, "pretrained") == "pretrained" else ""
    return "" if request.config_file else DEFAULT_RECIPE


def _last(key: str, layers: list[Layer], default: str) -> str:
    found = [layer.values[key] for layer in layers if isinstance(layer.values.get(key), str)]
    return found[-1] if found else default


def _assignments(assignments: tuple[str, ...], problems: list[Problem], notes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            hint = f"write {key}=VALUE" if key in all_settings() else did_you_mean(key)
            problems.append(
                Problem(message=f"{one_line(assignment, 60)!r} is not of the form KEY=VALUE", where="--set", hint=hint)
            )
        elif key not in all_settings() and key not in REMOVED:
            problems.append(_unknown(key, "--set"))
        else:
            value = _value(key, text.strip())
            if key in values and values[key] != value:
                before = one_line(str(values[key]), 60)
                notes.append(f"{key} is given twice with --set: the last value is used, {before} is ignored")
            values[key] = value
    return flatten(nest(values), "--set", problems, notes)


def _value(key: str, text: str) -> Any:
    """A value as TOML reads it, if it is one and nothing else; a text needs no quotes."""
    try:
        # Behind a comment or a line of its own, what ends the list would be missing.
        parsed = parse_toml(f"value = [{text}, 0]", "")
    except ConfigError:
        return text
    if len(parsed) > 1 or len(parsed["value"]) != _VALUE_AND_END:
        return text
    value = parsed["value"][0]
    wants_text_only = key in REMOVED or all_settings()[key].kinds == (str,)
    return text if wants_text_only and not isinstance(value, str | list) else value


def flatten(raw: dict[str, Any], where: str, problems: list[Problem], notes: list[str] | None = None) -> dict[str, Any]:
    """Known settings by dotted key; what is unknown becomes a problem, what is gone one or a note (`removed.py`)."""
    flat: dict[str, Any] = {}
    tables = all_tables()

    def walk(table: dict[str, Any], prefix: str) -> None:
        for name, value in table.items():
            key = f"{prefix}{name}"
            if key in tables and isinstance(value, dict):
                walk(value, f"{key}.")
            elif key in tables:
                problems.append(Problem(message="must be a table", where=where, key=key, hint=f"write [{key}]"))
            elif key in all_settings():
                flat[key] = value
            elif isinstance(value, dict) and (near := get_close_matches(key, tables, n=1)):
                hint = f"did you mean [{near[0]}]?"
                problems.append(Problem(message="unknown table", where=where, key=key[:80], hint=hint))
            else:
                problems.append(_unknown(key, where))

    walk(without_removed(raw, where, notes if notes is not None else [], problems), "")
    return flat


def _unknown(key: str, where: str) -> Problem:
    hint = did_you_mean(key)
    return Problem(message="unknown setting", where=where, key=key[:80], hint=hint)


def did_you_mean(key: str) -> str:
    """A sentence that names the nearest setting, or where to find them all."""
    near = nearest_setting(key, all_settings())
    return f"did you mean {near}?" if near else "`tui-trainer explain` lists all settings"


def option_for(word: str) -> str:
    """Return what was meant by a word without an option: `--set KEY=VALUE`, `--profile NAME`, or nothing."""
    if is_here(word):
        return ""
    key, equals, _ = word.partition("=")
    if equals and (key in all_settings() or re.fullmatch(r"\w+(\.\w+)+", key)):
        return f"--set {shell_word(word)}"
    return f"--profile {word}" if word in profile_names("recipes") else ""


def validate(values: dict[str, Any], layers: dict[str, Layer], problems: list[Problem]) -> Config | None:
    """The Config of values by dotted key; what does not fit its own setting is added to `problems`."""
    unwritable = {key: value for key, value in values.items() if isinstance(value, str) and not is_utf8(value)}
    for key, value in unwritable.items():
        message, where = f"is not UTF-8: {as_bytes(value)}", layers[key].where if key in layers else ""
        problems.append(Problem(message=message, key=key, where=where, hint="rename the file or folder"))
    if unwritable:
        return None
    try:
        return Config.model_validate(nest(values))
    except ValidationError as error:
        keys = {_key_of(item["loc"]): None for item in error.errors()}
        for key in keys:
            # A value inside a union fails once for each member: one sentence from the declaration says it all.
            wrong = values.get(key)
            shown = str(wrong).lower() if isinstance(wrong, bool) else one_line(repr(wrong), 60)
            message = f"{shown} is not valid; it must be {all_settings()[key].expected}"
            problems.append(Problem(message=message, where=layers[key].where if key in layers else "", key=key))
        return None


def _key_of(location: tuple[int | str, ...]) -> str:
    parts: list[str] = []
    for part in location:
        parts.append(str(part))
        if ".".join(parts) in all_settings():
            break
    return ".".join(parts)


def value_of(config: BaseModel, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
