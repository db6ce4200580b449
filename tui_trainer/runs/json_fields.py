"""The values of one line of JSON: read strictly, written so that JSON can hold them.

A reader takes what `parsed` made and returns it, or raises ValueError. A whole number is good where a float is
expected, true is not a number, and a whole number of more than 18 digits is refused.
"""

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_type_hints

import orjson

T = TypeVar("T")
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
    if type(value) is not str:
        raise ValueError("text expected")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false expected")
    return value


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


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _mapping(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {key: read(item) for key, item in _of_type(value, dict).items()}


def _texts(value: Any) -> list[str]:
    return [text(item) for item in _of_type(value, list)]


def _settings(value: Any) -> dict[str, str | int | float | bool]:
    if not all(type(item) in (str, int, float, bool) for item in _of_type(value, dict).values()):
        raise ValueError("values of settings expected")
    return dict(value)


def _numbers(value: Any) -> list[float]:
    return [number(item) for item in _of_type(value, list)]


def _rows(value: Any) -> dict[str, list[float]]:
    return {key: _numbers(row) for key, row in _of_type(value, dict).items()}


def _of_type(value: Any, expected: type) -> Any:
    if type(value) is not expected:
        raise ValueError(f"{expected.__name__} expected")
    return value


READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    str: text, bool: flag, int: whole, float: number,
    str | None: _optional(text), int | None: _optional(whole), float | None: _optional(number),
    bool | None: _optional(flag),
    dict[str, str]: _mapping(text), dict[str, float]: _mapping(number), list[str]: _texts,
    list[float]: _numbers, dict[str, list[float]]: _rows, dict[str, str | int | float | bool]: _settings,
}  # fmt: skip


def dotted_keys(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of tables in tables by dotted key: `{"training": {"seed": 1}}` is `{"training.seed": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= dotted_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def records(cls: type[T]) -> Callable[[Any], list[T]]:
    """A reader of lists of a flat dataclass. Fields that it does not have are left out."""
    readers = {name: READERS[hint] for name, hint in get_type_hints(cls).items()}

    def record(value: Any) -> T:
        items = _of_type(value, dict).items()
        try:
            return cls(**{name: readers[name](item) for name, item in items if name in readers})
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error

    return lambda value: [record(item) for item in _of_type(value, list)]


def parsed(line: bytes) -> Any:
    """The JSON of one line. Raises ValueError. orjson is four times as fast as json, but takes no lone surrogate."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(str(line, "utf-8"), parse_constant=_no_constant)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
