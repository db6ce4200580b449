"""How a setting is declared: type, default, bounds, unit, one sentence of help, effect on memory and speed.

The declaration is a pydantic field. Loader, `explain`, the JSON Schema and every editor read it from here;
`setting(key)` gives it in a form that needs no knowledge of pydantic.
"""

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
RouterWeight = Annotated[float, Field(ge=0, le=10)]
# Below 1 a share of all steps, from 1 on a number of steps; 0 is off.
StepsOrShare = Annotated[float, Field(ge=0)]


def with_commas(value: Any, each: Callable[[str], str] = str) -> Any:
    """A list of texts, as other tools write it, in our one form."""
    is_list = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return ", ".join(map(each, value)) if is_list else value


# Names in one text, with commas between them; a TOML list of names is taken as well.
Names = Annotated[str, BeforeValidator(with_commas)]


def _numbers_with_commas(value: Any) -> Any:
    """A number, or a list of numbers, as such a text."""
    numbers = value if isinstance(value, list) else [value]
    plain = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    return ", ".join(f"{number:.12g}" for number in numbers) if plain else with_commas(value)


# The same for numbers, which whoever reads the setting checks.
Numbers = Annotated[str, BeforeValidator(_numbers_with_commas)]


def names_in(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def is_pattern(text: str) -> bool:
    """Whether a text is a regular expression and no names with commas: no name of a module has such characters."""
    return not _NO_NAMES.isdisjoint(text)


_NO_NAMES = frozenset("\\^$*+?()[]|{}")


class Form:
    """A text of a form of its own: in words, and by what raises ValueError for a text of another form."""

    def __init__(self, words: str, check: Callable[[str], object]) -> None:
        self.words, self._check = words, check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, text: str) -> str:
        self._check(text)
        return text


class NameIn(Form):
    """A text that is a name in a table: its names are the choices, as the table is when they are asked for. Each row
    has a `label` and a `help`."""

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

# How a key changes a number: doubling, the series 1 2 5 10, a power of ten, one more, 0.9 0.95 0.98 0.99, 0.05 more.
Step = Literal["x2", "1-2-5", "x10", "+1", "nines", "+0.05"]
# "files": several paths with commas between them.
Completes = Literal["file", "files", "folder", "recipe", "hardware profile"]


class SettingsSection(BaseModel):
    """One TOML table. Immutable; an unknown key is an error; `"1e-4"` is no number and `1` no boolean."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)  # with help in one line
        for field in handler.resolve_ref_schema(found).get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
        return found


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
    """Declare one setting: `low <= value <= high`, `above < value < below`; what it does to memory and to speed. The
    text below is its help, where `help` gives none.

    `step` is what an editor's key for more or less does, `completes` what a text names; an `advanced` setting is
    shown only when asked for. Measurements of a step hold for one value of each setting that is `in_step_key`; those
    that decide a word of `measured_steps.StepKey` need not be.
    """
    extra: dict[str, Any] = {"unit": unit, "memory": memory, "speed": speed, "step": step, "completes": completes}
    extra |= {"advanced": advanced, "in_step_key": in_step_key}
    known = {name: fact for name, fact in extra.items() if fact}
    return Field(default, description=help, ge=low, gt=above, le=high, lt=below, json_schema_extra=known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The bounds of a number: `low <= value <= high`, `above < value < below`; None: no bound."""

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None

    def complaint(self, value: float) -> str:
        """What is wrong with a number, as the end of a sentence that begins with it; empty when it fits."""
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
    """One declared setting, as the loader, `explain` and the editors see it."""

    key: str
    kinds: tuple[type, ...]
    choices: tuple[str | int, ...]
    choice_help: tuple[str, ...]
    """A line for each choice, where a table describes them."""
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
        """The TOML table, empty for the settings at the top."""
        return self.key.rpartition(".")[0]

    @property
    def expected(self) -> str:
        """`a whole number, at least 1, or "auto"`."""
        words = [_KIND_WORDS[kind] for kind in self.kinds]
        if words and self.bounds:
            words[-1] += f", {self.bounds}"
        quoted = [json.dumps(choice) for choice in self.choices]
        if not words:
            return "one of " + ", ".join(quoted) if len(quoted) > 1 else quoted[0]
        return ", or ".join(words + quoted)


_KIND_WORDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def settings_of(model: type[BaseModel]) -> dict[str, Setting]:
    """All settings of a table and of the tables in it, by dotted key, in the order of declaration."""
    schema = model.model_json_schema()
    return {setting.key: setting for setting in _settings(model, "", schema, schema.get("$defs", {}))}


def _settings(
    model: type[BaseModel], prefix: str, schema: Mapping[str, Any], tables: Mapping[str, Any]
) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _settings(inner, f"{prefix}{name}.", tables[inner.__name__], tables)
        else:
            yield _setting(f"{prefix}{name}", field, schema["properties"][name])


def _setting(key: str, field: FieldInfo, schema: Mapping[str, Any]) -> Setting:
    """From a field, and its part of the JSON Schema."""
    kinds, choices, limits = list[type](), list[str | int](), dict[str, Any]()
    for part in schema.get("anyOf", [schema]):
        choices += part.get("enum", [part["const"]] if "const" in part else [])
        kinds += [] if {"enum", "const"} & part.keys() else [_KINDS[part["type"]]]
        for bound in _BOUNDS.keys() & part.keys():
            limits[_BOUNDS[bound][0]] = part[bound]
    words = [f"{word} {limits[name]}" for name, word in _BOUNDS.values() if name in limits]
    # A text of a form of its own has the form instead of bounds.
    words += [item.words for item in field.metadata if isinstance(item, Form) and not isinstance(item, NameIn)]
    table = next((item.table for item in field.metadata if isinstance(item, NameIn)), {})
    return Setting(
        key=key,
        kinds=tuple(kinds),
        choices=tuple(choices),
        choice_help=tuple(f"{name}: {row.label}, {row.help}" for name, row in table.items()),
        default=field.default,
        bounds=", ".join(words),
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
