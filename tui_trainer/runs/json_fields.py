"""Strict reading of the values of a line of JSON, and their conversion to values that JSON can hold.

A reader is a function that returns a value parsed from JSON if its type is right, and raises ValueError otherwise.
Readers accept an integer for a float. They refuse true for a number, and integers of more than 18 digits.
"""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import orjson

T = TypeVar("T")
# Smaller integers fit into a column of 64 bits.
WHOLE_LIMIT: Final = 10**18
_SHORT_TEXT: Final = 2_000
_SHORT_LIST: Final = 20


def replace_non_finite(value: Any) -> Any:
    """Return the value with infinite numbers and NaN as strings, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: replace_non_finite(item) for key, item in value.items()}
    return [replace_non_finite(item) for item in value] if isinstance(value, list | tuple) else value


def shorten_values(value: Any) -> Any:
    """Return the value with long texts, lists and dicts cut, so that no event takes more than 960 KB of ASCII."""
    if isinstance(value, str):
        return value if len(value) <= _SHORT_TEXT else value[:_SHORT_TEXT] + " [cut]"
    if isinstance(value, dict):
        return {shorten_values(key): shorten_values(item) for key, item in list(value.items())[:_SHORT_LIST]}
    return [shorten_values(item) for item in value[:_SHORT_LIST]] if isinstance(value, list | tuple) else value


def read_whole_number(value: Any) -> int:
    if type(value) is not int or abs(value) >= WHOLE_LIMIT:
        raise ValueError("whole number expected")
    return value


_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: Any) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    return value if type(value) is float else read_whole_number(value)


def _of_type(expected: type, value: Any) -> Any:
    if type(value) is not expected:
        raise ValueError(f"{expected.__name__} expected")
    return value


def make_reader(hint: Any) -> Callable[[Any], Any]:
    """Return a reader for values of a type hint. For a dataclass, the reader ignores keys that are not its fields."""
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_record, hint, {name: make_reader(inner) for name, inner in get_type_hints(hint).items()})
    kind, inner = get_origin(hint), [make_reader(argument) for argument in get_args(hint)]
    if kind is list:
        return lambda value: [inner[0](item) for item in _of_type(list, value)]
    if kind is dict:
        return lambda value: {inner[0](key): inner[1](item) for key, item in _of_type(dict, value).items()}
    if inner:
        return partial(_any_of, inner)
    return {int: read_whole_number, float: _number}.get(hint) or partial(_of_type, hint)


def _record(cls: type[T], readers: dict[str, Callable[[Any], Any]], value: Any) -> T:
    try:
        return cls(**{name: readers[name](item) for name, item in _of_type(dict, value).items() if name in readers})
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from error


def _any_of(readers: list[Callable[[Any], Any]], value: Any) -> Any:
    for read in readers:
        with suppress(ValueError):
            return read(value)
    raise ValueError("the value has an unexpected type")


def dotted_keys(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys: `{"training": {"seed": 1}}` becomes `{"training.seed": 1}`."""
    flat_table: dict[str, Any] = {}
    for name, value in table.items():
        flat_table |= dotted_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat_table


def parsed(line: bytes) -> Any:
    """Parse one line of JSON. Raises ValueError."""
    # orjson is four times as fast as json, but refuses lone surrogates.
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(str(line, "utf-8"), parse_constant=_no_constant)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
