"""The declaration of a setting: type, default, bounds, unit, help, and its effect on memory and speed.

The declaration is a pydantic field made by `option`. `settings_of` returns all declarations as `Setting` objects, which
need no knowledge of pydantic."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=10**7)]
WholeNumber = Annotated[int, Field(ge=0, le=10**7)]
PositiveRate = Annotated[float, Field(gt=0, le=10)]
Epochs = Annotated[float, Field(gt=0, le=10**6)]
LossWeight = Annotated[float, Field(ge=0, le=10)]
# A number below 1 is a share of all steps, a larger one a number of steps, and 0 means off.
StepsOrShare = Annotated[float, Field(ge=0)]


def join_with_commas(value: Any, convert: Callable[[str], str] = str) -> Any:
    """Join a list of texts with commas, each after `convert`. Any other value stays unchanged."""
    is_text_list = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return ", ".join(map(convert, value)) if is_text_list else value


# Names in one text, separated by commas. A TOML list of names is accepted too.
Names = Annotated[str, BeforeValidator(join_with_commas)]


def _numbers_with_commas(value: Any) -> Any:
    """Convert a number or a list of numbers to one text with commas; any other value stays unchanged."""
    numbers = value if isinstance(value, list) else [value]
    are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    return ", ".join(f"{number:.12g}" for number in numbers) if are_numbers else join_with_commas(value)


# Numbers in one text, separated by commas. The code that reads the setting checks them.
Numbers = Annotated[str, BeforeValidator(_numbers_with_commas)]


def names_in(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def is_pattern(text: str) -> bool:
    """Return whether a text has characters of a regular expression, which names of modules never have."""
    return not _PATTERN_CHARACTERS.isdisjoint(text)


_PATTERN_CHARACTERS = frozenset("\\^$*+?()[]|{}")


class Form:
    """The required form of a setting's text: a description, and a function that raises ValueError for other texts."""

    def __init__(self, words: str, check: Callable[[str], object]) -> None:
        self.words, self._check = words, check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, text: str) -> str:
        self._check(text)
        return text


class NameIn(Form):
    """The form of a text that must be a key of a table. The rows of the table have a `label` and a `help`."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.table)}

    def _check(self, name: str) -> None:
        if name not in self.table:
            raise ValueError("not one of the choices")


def _check_address(text: str) -> None:
    _, colon, port = text.rpartition(":")
    if text and not (re.fullmatch(r"[A-Za-z0-9._-]*(:[0-9]{1,5})?", text) and (not colon or 0 < int(port) < 65_536)):
        raise ValueError("not an address")


Address = Annotated[str, Form('such as "node1:29500", "node1" or ":29500"', _check_address)]

# The series of values through which a key changes a number. "nines" is 0.9, 0.95, 0.98, 0.99.
Step = Literal["x2", "1-2-5", "x10", "+1", "nines", "+0.05"]
# "files" means several paths separated by commas.
Completes = Literal["file", "files", "folder", "recipe", "hardware profile"]


class SettingsSection(BaseModel):
    """A TOML table of settings. It is immutable and strict: `"1e-4"` is not a number, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False,
                              protected_namespaces=(), use_attribute_docstrings=True)  # fmt: skip

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        json_schema = handler(schema)
        for field in handler.resolve_ref_schema(json_schema).get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())  # on one line
        return json_schema


def option(
    default: Any,
    help: str | None = None,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    unit: str = "",
    memory: str = "",
    speed: str = "",
    step: Step | None = None,
    completes: Completes | None = None,
    advanced: bool = False,
    in_step_key: bool = False,
) -> Any:
    """Declare a setting with `low <= value <= high` or `above < value < below`. The docstring below it is its `help`.

    `memory` and `speed` describe the setting's effect. `step` is the series through which an editor's keys change a
    number, and `completes` the kind of name that a text holds. An `advanced` setting is hidden by default. The measured
    time of a step is reused only if all settings with `in_step_key`, and `measured_steps.StepKey`, are equal."""
    extra: dict[str, Any] = {"unit": unit, "memory": memory, "speed": speed, "step": step, "completes": completes}
    extra |= {"advanced": advanced, "in_step_key": in_step_key}
    nonempty_values = {name: value for name, value in extra.items() if value}
    return Field(default, description=help, ge=low, gt=above, le=high, lt=below, json_schema_extra=nonempty_values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The bounds of a number: `low <= value <= high` and `above < value < below`. None means no bound."""

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None

    def complaint(self, value: float) -> str:
        """Return what is wrong with a number, such as `must be above 0`; empty if the number is within the bounds."""
        if self.low is not None and value < self.low:
            return f"is below the minimum of {self.low:g}"
        if self.above is not None and value <= self.above:
            return f"must be above {self.above:g}"
        if self.high is not None and value > self.high:
            return f"is above the maximum of {self.high:g}"
        if self.below is not None and value >= self.below:
            return f"must be below {self.below:g}"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The declaration of a setting, for the loader, `explain` and the editors."""

    key: str
    kinds: tuple[type, ...]
    choices: tuple[str | int, ...]
    choice_help: tuple[str, ...]
    """Description of each choice, in the order of the choices; empty if there are none."""
    default: Any
    bounds: str
    limits: Limits
    help: str
    unit: str = ""
    memory: str = ""
    speed: str = ""
    step: Step | None = None
    completes: Completes | None = None
    advanced: bool = False
    in_step_key: bool = False

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def table(self) -> str:
        """Name of the TOML table, empty for a setting at the top level."""
        return self.key.rpartition(".")[0]

    @property
    def zero_words(self) -> str:
        """Meaning of 0, which the help declares as in `Maximum rows; 0: all`; empty if 0 has no special meaning."""
        meaning = _ZERO.search(self.help)
        return meaning[1] if meaning else ""

    @property
    def expected_words(self) -> str:
        """Allowed values as text: `a whole number, at least 1, or "auto"`."""
        kind_texts = [_KIND_WORDS[kind] for kind in self.kinds]
        if kind_texts and self.bounds:
            kind_texts[-1] += f", {self.bounds}"
        quoted_choices = [json.dumps(choice) for choice in self.choices]
        if not kind_texts:
            return "one of " + ", ".join(quoted_choices) if len(quoted_choices) > 1 else quoted_choices[0]
        return ", or ".join(kind_texts + quoted_choices)


_ZERO = re.compile(r"[;:] 0: ([^;]+?)(?:;|\.?$)")
_KIND_WORDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def settings_of(model: type[BaseModel]) -> dict[str, Setting]:
    """Return all settings of a table and its inner tables by dotted key, in the order of declaration."""
    schema = model.model_json_schema()
    return {setting.key: setting for setting in _settings(model, "", schema, schema.get("$defs", {}))}


def _settings(
    model: type[BaseModel], prefix: str, schema: Mapping[str, Any], tables: Mapping[str, Any]
) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        field_type = field.annotation
        if isinstance(field_type, type) and issubclass(field_type, BaseModel):
            yield from _settings(field_type, f"{prefix}{name}.", tables[field_type.__name__], tables)
        else:
            yield _setting(f"{prefix}{name}", field, schema["properties"][name])


def _setting(key: str, field: FieldInfo, schema: Mapping[str, Any]) -> Setting:
    """Return the Setting that a pydantic field declares. `schema` is the field's part of the JSON Schema."""
    kinds, choices, limits = list[type](), list[str | int](), dict[str, Any]()
    for alternative in schema.get("anyOf", [schema]):
        choices += alternative.get("enum", [alternative["const"]] if "const" in alternative else [])
        kinds += [] if {"enum", "const"} & alternative.keys() else [_KINDS[alternative["type"]]]
        for bound in _BOUNDS.keys() & alternative.keys():
            limits[_BOUNDS[bound][0]] = alternative[bound]
    bounds = [f"{bound_text} {limits[name]}" for name, bound_text in _BOUNDS.values() if name in limits]
    # A text with a required form shows it in place of bounds.
    bounds += [item.words for item in field.metadata if isinstance(item, Form) and not isinstance(item, NameIn)]
    choice_rows = next((item.table for item in field.metadata if isinstance(item, NameIn)), {})
    return Setting(
        key=key,
        kinds=tuple(kinds),
        choices=tuple(choices),
        choice_help=tuple(f"{name}: {row.label}, {row.help}" for name, row in choice_rows.items()),
        default=field.default,
        bounds=", ".join(bounds),
        limits=Limits(**limits),
        help=schema.get("description", ""),
        **(field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}),  # type: ignore[arg-type]
    )


_KINDS: dict[str, type] = {"integer": int, "number": float, "string": str, "boolean": bool}
_BOUNDS = {
    "minimum": ("low", "at least"),
    "exclusiveMinimum": ("above", "above"),
    "maximum": ("high", "at most"),
    "exclusiveMaximum": ("below", "below"),
}
