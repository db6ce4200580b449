"""The values of one line of JSON: read strictly, written so that JSON can hold them.

A reader takes what `parsed` made and returns it, or raises ValueError. A whole number is good where a float is
expected, true is not a number, and a whole number of more than 18 digits is refused.
"""

import json
import math
from collections.abc import Callable
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

import orjson

# Every whole number fits a column of 64 bits.
WHOLE_LIMIT: Final = 10**18
_SHORT_TEXT: Final = 2_000
_SHORT_LIST: Final = 20


def finite(value: Any) -> Any:
    """`value` with the numbers that JSON does not have as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def shortened(value: Any) -> Any:
    """`value` with its texts and lists cut, so that no event takes more than 960 KB of ASCII."""
    if isinstance(value, str):
        return value if len(value) <= _SHORT_TEXT else value[:_SHORT_TEXT] + " [cut]"
    if isinstance(value, dict):
        return {shortened(key): shortened(item) for key, item in list(value.items())[:_SHORT_LIST]}
    return [shortened(item) for item in value[:_SHORT_LIST]] if isinstance(value, list | tuple) else value


def text(value: Any) -> str:
    return _of_type(value, str)  # type: ignore[no-any-return]


def whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= WHOLE_LIMIT:
        raise ValueError("whole number expected")
    return value


_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def number(value: Any) -> float:
    if type(value) is float or (type(value) is int and abs(value) < WHOLE_LIMIT):
        return value
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise ValueError("number expected")


def _of_type(value: Any, *expected: type) -> Any:
    if type(value) not in expected:
        raise ValueError(f"{' or '.join(one.__name__ for one in expected)} expected")
    return value


def reader(hint: Any) -> Callable[[Any], Any]:
    """Of values of a type: plain ones, lists, dictionaries by text, None beside them, and flat dataclasses, of which
    fields that are not known are left out."""
    if hint in (int, float):
        return whole if hint is int else number
    inner = get_args(hint)
    if not inner:
        return _record(hint) if is_dataclass(hint) else lambda value: _of_type(value, hint)
    if (origin := get_origin(hint)) is list:
        read = reader(inner[0])
        return lambda value: [read(item) for item in _of_type(value, list)]
    if origin is dict:
        read = reader(inner[1])
        return lambda value: {key: read(item) for key, item in _of_type(value, dict).items()}
    if inner[1:] == (NoneType,):
        read = reader(inner[0])
        return lambda value: None if value is None else read(value)
    return lambda value: _of_type(value, *inner)


def _record(cls: Any) -> Callable[[Any], Any]:
    readers = {name: reader(hint) for name, hint in get_type_hints(cls).items()}

    def read(value: Any) -> Any:
        items = _of_type(value, dict).items()
        try:
            return cls(**{name: readers[name](item) for name, item in items if name in readers})
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error

    return read


def dotted_keys(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of tables in tables by dotted key: `{"training": {"seed": 1}}` is `{"training.seed": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= dotted_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def parsed(line: bytes) -> Any:
    """The JSON of one line. Raises ValueError. orjson is four times as fast as json, but takes no lone surrogate."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(str(line, "utf-8"), parse_constant=_no_constant)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
