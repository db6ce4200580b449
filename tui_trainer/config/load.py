"""Merging defaults, profiles, config file and command line into one Config, with the origin of each value.

Precedence: defaults < recipe < hardware profile < config file < `--set`. All mistakes are reported together."""

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
from tui_trainer.config.paths import data_of, resolve_relative_paths, with_absolute_paths
from tui_trainer.config.removed import REMOVED, nearest_setting, without_removed
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY, Config, ResolvedConfig
from tui_trainer.config.toml_files import Profile, find_profile, nest, parse_toml, profile_names, read_toml
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.files.local_paths import is_utf8, path_exists, printable_path
from tui_trainer.terminal.safe_text import one_line, shell_word

DEFAULT_RECIPE, DEFAULT_RECIPE_FOR_A_MODEL = "quickstart", "finetune"
# Settings with their own options on the command line.
OPTIONS = {DATA_KEY: "--data", "task.type": "--task", MODEL_KEY: "--model", "profile": "--profile"}
_DATA_SUFFIXES = (".txt", ".jsonl", ".md", ".gz")


class Origin(StrEnum):
    """The origin of a value, in the order of precedence."""

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
    """Arguments that select a config: a config file, a recipe, `KEY=VALUE` settings, and options like `--data`."""

    config_file: Path | None = None
    profile: str = ""
    assignments: tuple[str, ...] = ()
    shortcuts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Values of settings from one source, such as the config file, by dotted key."""

    origin: Origin
    where: str
    values: dict[str, Any]
    notes: tuple[str, ...] = ()
    """Sentences about values that are ignored."""
    fitted_because: str = ""
    """Reason for replacing a preset that does not suit the user's choices; empty if no preset was replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedConfig:
    """A Config, the Layer that set each value which is not a default, and the profiles."""

    config: Config
    layers: dict[str, Layer]
    recipe: Profile | None
    hardware_profile: Profile | None
    hardware_reason: str = ""
    notes: tuple[str, ...] = ()
    """Sentences about presets that were replaced and values that are ignored."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns detected for settings such as `data.text_column`; empty before the data was read."""
    unused_columns: tuple[str, ...] = ()
    """Columns that a task of plain texts does not read, such as labels; empty before the data was read."""
    data: ResolvedData = field(default_factory=ResolvedData, compare=False)
    """Files of the data that `config` names, looked up once for this config and all configs derived from it."""

    def __post_init__(self) -> None:
        if self.data != (data := data_of(self.config)):
            object.__setattr__(self, "data", data)

    def origin(self, key: str) -> Origin:
        return self.layers[key].origin if key in self.layers else Origin.DEFAULT

    def where(self, key: str) -> str:
        """Return the source of the value: `recipe quickstart`, `my.toml`, `--set`, `default`."""
        return self.layers[key].where if key in self.layers else "default"

    def fitted_because(self, key: str) -> str:
        """Return the reason why `with_fitted_value` replaced the preset of this setting; empty if it did not."""
        return self.layers[key].fitted_because if key in self.layers else ""

    def problem(self, key: str, message: str, hint: str = "") -> Problem:
        """Return a problem with one setting. If the user wrote the value, the problem names the value's source."""
        return self.with_source(Problem(message=message, key=key, hint=hint))

    def with_source(self, problem: Problem) -> Problem:
        """Return the problem with `where` filled in, if it is empty and the user wrote the setting's value."""
        needs_source = not problem.where and self.origin(problem.key).by_user
        return replace(problem, where=self.where(problem.key)) if needs_source else problem

    def with_notes_of(self, layers: Iterable[Layer]) -> Self:
        """Return a copy of this config with the notes of the layers added."""
        return replace(self, notes=(*self.notes, *(note for layer in layers for note in layer.notes)))

    def with_fitted_value(self, key: str, value: Any, why: str) -> Self:
        """Return this config with another value in place of a preset or default that does not suit the user's choices.

        The note about the change and the value's source contain `why`. Do not call this for a value that the user
        wrote: an unsuitable one must be refused."""
        preset, where = value_of(self.config, key), self.where(key)
        layer = Layer(origin=self.origin(key), where=f"{where}, but {why}", values={key: value}, fitted_because=why)
        return replace(
            self,
            config=with_changes(self.config, {key: value}),
            layers={**self.layers, key: layer},
            notes=(*self.notes, f"{key} is {value} instead of {preset if preset != '' else 'empty'} ({where}): {why}"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLoaded(LoadedConfig):
    """A LoadedConfig whose effective batch size and epochs are numbers, as planning needs them."""

    config: ResolvedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets:
    """The recipe and the hardware profile, and the Layer of each value that they set. `recipe` may not be found."""

    recipe_name: str = ""
    recipe: Profile | None = None
    hardware_profile: Profile | None = None
    hardware_reason: str = ""
    layers: Mapping[str, Layer] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about values of the profiles that are ignored."""

    def value(self, key: str) -> Any:
        """Return the value that the profiles or the defaults give."""
        return self.layers[key].values[key] if key in self.layers else all_settings()[key].default

    def loaded(self, config: Config, layers: Mapping[str, Layer]) -> LoadedConfig:
        """Return a LoadedConfig of these profiles for a config and the layers of its values."""
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
    """Return the names of all tables: `training`, `model`, `model.scratch`."""
    split_keys = [key.split(".") for key in all_settings()]
    return frozenset(".".join(key_parts[:length]) for key_parts in split_keys for length in range(1, len(key_parts)))


def load(request: Request, choose_hardware: HardwareChoice) -> LoadedConfig:
    """Merge all layers and check every value. Raises ConfigError with all problems.

    `choose_hardware(name)` returns the hardware profile, and the reason for choosing it."""
    problems: list[Problem] = []
    written_layers = user_layers(request, problems)
    user_layer = {key: layer for layer in written_layers for key in layer.values}
    recipe_name = _last_text("profile", written_layers, default_recipe(request, written_layers))
    presets = find_presets(recipe_name, {key: layer.values[key] for key, layer in user_layer.items()}, choose_hardware)
    layer_of_key = {**presets.layers, **user_layer}
    for problem in presets.problems:
        where = layer_of_key[problem.key].where if problem.key in layer_of_key else ""
        problems.append(problem if problem.where else replace(problem, where=where))
    config = validate({key: layer.values[key] for key, layer in layer_of_key.items()}, layer_of_key, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return presets.loaded(with_absolute_paths(config), layer_of_key).with_notes_of(written_layers)


def user_layers(request: Request, problems: list[Problem]) -> list[Layer]:
    """Return the layers of the config file and the command line, weakest first. Adds mistakes to `problems`."""
    layers = []
    path = request.config_file
    if path is not None and (option := option_for(str(path))):
        problems.append(Problem(message="is not a config file", where=str(path), hint=f"write {option}"))
    elif path is not None and (path.suffix in _DATA_SUFFIXES or (path_exists(str(path)) and path.is_dir())):
        hint = f"use --data {path}"
        problems.append(Problem(message="is data, not a config file", where=str(path), hint=hint))
    elif path is not None:
        try:
            tables = read_toml(path)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            where, notes = str(path), list[str]()
            values = resolve_relative_paths(flatten(tables, where, problems, notes), path, notes)
            layers.append(Layer(origin=Origin.FILE, where=where, values=values, notes=tuple(notes)))
    layers += [_option_layer(key, value) for key, value in request.shortcuts.items()]
    notes = []
    assigned_values = _assigned_values(request.assignments, problems, notes)
    for key, value in request.shortcuts.items():
        if assigned_values.get(key, value) != value:
            notes.append(f"{OPTIONS[key]} {one_line(value, 60)} is ignored, because --set {key} is given")
    layers.append(Layer(origin=Origin.COMMAND_LINE, where="--set", values=assigned_values, notes=tuple(notes)))
    return [*layers, _option_layer("profile", request.profile)] if request.profile else layers


def _option_layer(key: str, value: str) -> Layer:
    return Layer(origin=Origin.COMMAND_LINE, where=OPTIONS.get(key, "--set"), values={key: value})


def find_presets(recipe_name: str, user_values: Mapping[str, Any], choose_hardware: HardwareChoice) -> Presets:
    """Return the recipe and the hardware profile for the user's values, with a problem if one does not exist."""
    problems: list[Problem] = []
    notes: list[str] = []
    layers: dict[str, Layer] = {}

    def add_layer(origin: Origin, profile: Profile) -> None:
        values = flatten(profile.values, str(profile.path), problems, notes)
        layer = Layer(origin=origin, where=f"{origin.value} {profile.name}", values=values)
        layers.update(dict.fromkeys(values, layer))

    recipe = hardware = None
    hardware_reason = ""
    try:
        if recipe_name:
            recipe = find_profile(recipe_name, "recipes")
            add_layer(Origin.RECIPE, recipe)
    except ConfigError as error:
        problems += [replace(problem, key="profile") for problem in error.problems]
    key = "hardware_profile"
    candidate_names = [user_values.get(key), layers[key].values[key] if key in layers else None, "auto"]
    try:
        hardware, hardware_reason = choose_hardware(next(name for name in candidate_names if isinstance(name, str)))
        if hardware:
            add_layer(Origin.HARDWARE, hardware)
    except ConfigError as error:
        problems += [replace(problem, key=key) for problem in error.problems]
    return Presets(
        recipe_name=recipe_name,
        recipe=recipe,
        hardware_profile=hardware,
        hardware_reason=hardware_reason,
        layers=layers,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def default_recipe(request: Request, user_layers: list[Layer]) -> str:
    """Return the recipe if the user names none: `finetune` for a pretrained model, `quickstart` without any config."""
    if _last_text(MODEL_KEY, user_layers, ""):
        return DEFAULT_RECIPE_FOR_A_MODEL if _last_text("model.init", user_layers, "pretrained") == "pretrained" else ""
    return "" if request.config_file else DEFAULT_RECIPE


def _last_text(key: str, layers: list[Layer], default: str) -> str:
    values = [layer.values[key] for layer in layers if isinstance(layer.values.get(key), str)]
    return values[-1] if values else default


def _assigned_values(assignments: tuple[str, ...], problems: list[Problem], notes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            hint = f"write {key}=VALUE" if key in all_settings() else did_you_mean(key)
            message = f"{one_line(assignment, 60)!r} is not of the form KEY=VALUE"
            problems.append(Problem(message=message, where="--set", hint=hint))
        elif key not in all_settings() and key not in REMOVED:
            problems.append(_unknown_setting(key, "--set"))
        else:
            value = _parse_value(key, text.strip())
            if key in values and values[key] != value:
                ignored_text = one_line(str(values[key]), 60)
                notes.append(f"{key} is given twice with --set: the last value is used, {ignored_text} is ignored")
            values[key] = value
    return flatten(nest(values), "--set", problems, notes)


def _parse_value(key: str, text: str) -> Any:
    """Return the TOML value that a text is, or the text itself if it is not exactly one TOML value."""
    try:
        # In a list, a comment or a line break within the text makes the TOML invalid.
        parsed_table = parse_toml(f"value = [{text}, 0]", "")
    except ConfigError:
        return text
    if len(parsed_table) > 1 or len(parsed_table["value"]) != 2:
        return text
    value = parsed_table["value"][0]
    is_text_only = key in REMOVED or all_settings()[key].kinds == (str,)
    return text if is_text_only and not isinstance(value, str | list) else value


def flatten(raw: dict[str, Any], where: str, problems: list[Problem], notes: list[str] | None = None) -> dict[str, Any]:
    """Return the settings of nested tables by dotted key. Reports unknown and removed settings."""
    flat_values: dict[str, Any] = {}
    table_names = all_tables()

    def walk(table: dict[str, Any], prefix: str) -> None:
        for name, value in table.items():
            key = f"{prefix}{name}"
            if key in table_names and isinstance(value, dict):
                walk(value, f"{key}.")
            elif key in table_names:
                problems.append(Problem(message="must be a table", where=where, key=key, hint=f"write [{key}]"))
            elif key in all_settings():
                flat_values[key] = value
            elif isinstance(value, dict) and (similar_tables := get_close_matches(key, table_names, n=1)):
                hint = f"did you mean [{similar_tables[0]}]?"
                problems.append(Problem(message="unknown table", where=where, key=key[:80], hint=hint))
            else:
                problems.append(_unknown_setting(key, where))

    walk(without_removed(raw, where, notes if notes is not None else [], problems), "")
    return flat_values


def _unknown_setting(key: str, where: str) -> Problem:
    return Problem(message="unknown setting", where=where, key=key[:80], hint=did_you_mean(key))


def did_you_mean(key: str) -> str:
    """Return a hint for an unknown key: the setting with the most similar name, or the command that lists settings."""
    similar_key = nearest_setting(key, all_settings())
    return f"did you mean {similar_key}?" if similar_key else "`tui-trainer explain` lists all settings"


def option_for(word: str) -> str:
    """Return the command-line option that was probably forgotten before a word, such as `--profile NAME`, or ""."""
    if path_exists(word):
        return ""
    key, equals, _ = word.partition("=")
    if equals and (key in all_settings() or re.fullmatch(r"\w+(\.\w+)+", key)):
        return f"--set {shell_word(word)}"
    return f"--profile {word}" if word in profile_names("recipes") else ""


def validate(values: dict[str, Any], layers: dict[str, Layer], problems: list[Problem]) -> Config | None:
    """Return the Config with these values by dotted key. If values are invalid, add their problems and return None."""
    non_utf8_values = {key: value for key, value in values.items() if isinstance(value, str) and not is_utf8(value)}
    for key, value in non_utf8_values.items():
        message, where = f"is not UTF-8: {printable_path(value)}", layers[key].where if key in layers else ""
        problems.append(Problem(message=message, key=key, where=where, hint="rename the file or folder"))
    if non_utf8_values:
        return None
    try:
        return Config.model_validate(nest(values))
    except ValidationError as error:
        keys = {_key_of(item["loc"]): None for item in error.errors()}
        for key in keys:
            # pydantic reports one error for each member of a union. The declaration gives one sentence for all.
            invalid_value = values.get(key)
            text = str(invalid_value).lower() if isinstance(invalid_value, bool) else one_line(repr(invalid_value), 60)
            message = f"{text} is not valid; it must be {all_settings()[key].expected_words}"
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
