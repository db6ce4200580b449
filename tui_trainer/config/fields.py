"""How a setting is declared: type, default, bounds, unit, one sentence of help, effect on memory and speed.

The declaration is a pydantic field. Loader, `explain`, the JSON Schema and every editor read it from here;
`setting(key)` gives it in a form that needs no knowledge of pydantic.
"""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=10**7)]
# Below 1 a share of all steps, from 1 on a number of steps; 0 is off.
StepsOrShare = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """One TOML table. Immutable; an unknown key is an error; `"1e-4"` is no number and `1` no boolean."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    unit: str = "",
    memory: str = "",
    speed: str = "",
) -> Any:
    """Declare one setting: `low <= value <= high`, `above < value < below`; what it does to memory and to speed."""
    extra = {"unit": unit, "memory": memory, "speed": speed}
    return Field(
        default,
        description=help,
        ge=low,
        gt=above,
        le=high,
        lt=below,
        json_schema_extra={name: text for name, text in extra.items() if text},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One declared setting, as the loader, `explain` and the editors see it."""

    key: str
    kinds: tuple[type, ...]
    choices: tuple[str | int, ...]
    default: Any
    bounds: str
    help: str
    unit: str
    memory: str
    speed: str

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


_KIND_WORDS: dict[type, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def settings_of(model: type[BaseModel], prefix: str = "") -> dict[str, Setting]:
    """All settings of a table and of the tables in it, by dotted key, in the order of declaration."""
    found: dict[str, Setting] = {}
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= settings_of(field.annotation, f"{key}.")
        else:
            found[key] = _setting(key, field)
    return found


def _setting(key: str, field: FieldInfo) -> Setting:
    kinds, choices, bounds = _parts(field.annotation)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return Setting(
        key=key,
        kinds=kinds,
        choices=choices,
        default=field.default,
        bounds=", ".join(filter(None, [_bounds(field.metadata), bounds])),
        help=field.description or "",
        unit=str(extra.get("unit", "")),
        memory=str(extra.get("memory", "")),
        speed=str(extra.get("speed", "")),
    )


def _parts(annotation: Any) -> tuple[tuple[type, ...], tuple[str | int, ...], str]:
    """The plain types, the literal choices and the bounds inside one annotation."""
    origin = get_origin(annotation)
    if origin is Literal:
        return (), get_args(annotation), ""
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        kinds, choices, _ = _parts(inner)
        fields = [item for item in metadata if isinstance(item, FieldInfo)]
        return kinds, choices, ", ".join(_bounds(field.metadata) for field in fields)
    if origin in (Union, types.UnionType):
        parts = [_parts(part) for part in get_args(annotation)]
        kinds = tuple(kind for part in parts for kind in part[0])
        choices = tuple(choice for part in parts for choice in part[1])
        return kinds, choices, ", ".join(filter(None, (part[2] for part in parts)))
    return (annotation,), (), ""


def _bounds(metadata: list[Any]) -> str:
    words = []
    for item in metadata:
        match item:
            case annotated_types.Ge(ge=limit):
                words.append(f"at least {limit}")
            case annotated_types.Gt(gt=limit):
                words.append(f"above {limit}")
            case annotated_types.Le(le=limit):
                words.append(f"at most {limit}")
            case annotated_types.Lt(lt=limit):
                words.append(f"below {limit}")
    return ", ".join(words)
