"""Conversion between a setting's value and the text that a user reads or types, and completion of such text.

Text for display and text for an editor come from two functions, because an editor never starts with a placeholder such
as `empty`."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tui_trainer.config.fields import Setting
from tui_trainer.config.mixture import escape_commas, last_path
from tui_trainer.config.toml_files import parse_toml, profile_names
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.terminal.safe_text import one_line

EMPTY = "empty"
MOST_COMPLETIONS = 100
_LONGEST_NUMBER = 60
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:e[+-]?\d+)?)\s*(%|[kmg]i?)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
# Numbers above the first value are written with grouped digits, and floats below the second with an exponent.
_GROUPED_FROM, _EXPONENT_BELOW = 10_000, 0.01


def number_text(value: float) -> str:
    """Return the shortest text that TOML reads as this number: `3e-4`, `0.05`, `1_000_000`, `3`."""
    if isinstance(value, int) or value.is_integer():
        integer = int(value)
        if abs(integer) < 10**15 or isinstance(value, int):
            return f"{integer:_}" if abs(integer) >= _GROUPED_FROM else str(integer)
    if abs(value) >= _EXPONENT_BELOW and "e" not in repr(value):
        return repr(value)
    texts = (f"{value:.{decimals}e}" for decimals in range(17))
    digits, _, exponent = min((text for text in texts if float(text) == value), key=len).partition("e")
    return f"{digits}e{int(exponent)}"


def edit_text(setting: Setting, value: Any) -> str:
    """Return a value as the text that an editor starts with. `parse` turns the text back into the value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    text = _listed(setting, value) if isinstance(value, list) else str(value)
    return toml_text(text) if text and parse(setting, text) != text and "\n" not in text else text


def display_text(setting: Setting, value: Any) -> str:
    """Return the value for a table, on one line and without control characters; `empty` for an empty text."""
    if value == "":
        return EMPTY
    if isinstance(value, list):
        return one_line(_listed(setting, value))
    return one_line(str(value)) if isinstance(value, str) else edit_text(setting, value)


def _listed(setting: Setting, values: list[Any]) -> str:
    """Return a TOML list as the text with commas that the setting holds."""
    texts = (number_text(value) if isinstance(value, int | float) else str(value) for value in values)
    return ", ".join(map(escape_commas, texts) if setting.completes == "files" else texts)


def unit_text(setting: Setting, value: Any) -> str:
    """Return the unit to show after a value, such as `rows`, or `of all steps` for a share of the steps."""
    if not setting.unit or not isinstance(value, int | float):
        return ""
    if setting.unit == "steps" and float in setting.kinds and value < 1:
        return "of all steps" if value > 0 else ""
    return setting.unit.removesuffix("s") if value == 1 else setting.unit


def value_text(setting: Setting, value: Any) -> str:
    """Return the value with its unit: `8 rows`, `0.05 of all steps`, `auto`. 0 has its meaning instead: `0 (off)`."""
    if type(value) in (int, float) and value == 0 and setting.zero_words:
        return f"0 ({setting.zero_words})"
    return f"{display_text(setting, value)} {unit_text(setting, value)}".rstrip()


def toml_text(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return ("true" if value else "false") if isinstance(value, bool) else number_text(value)
    import tomli_w

    return tomli_w.dumps({"x": value}).partition("=")[2].strip()


def refused_values(
    settings: Mapping[str, tuple[object, Sequence[object]]], why: str, otherwise: str = ""
) -> Iterator[Problem]:
    """Yield a problem for each setting whose value is not allowed. `settings` maps keys to (value, allowed values).

    The hint suggests the first allowed value, followed by `otherwise`."""
    for key, (value, allowed_values) in settings.items():
        if value not in allowed_values:
            hint = f"set it to {toml_text(allowed_values[0])}{otherwise}"
            message = f"is {toml_text(value)}, which {why}"
            yield Problem(message=message, key=key, hint=hint, suggested=((key, allowed_values[0]),))


def parse(setting: Setting, text: str) -> Any:
    """Return the value that a typed text means, or a Problem with the setting's key if the text is invalid.

    Accepts `2e-4`, `1_000`, `8k` (8000), `8ki` (8192), `1.5M`, `10%`, `yes`, `off`, `none` if empty is allowed, and
    texts with or without quotes."""
    bare_text = text.strip()
    is_quoted = len(bare_text) >= 2 and bare_text[0] == bare_text[-1] and bare_text[0] in "\"'"
    if str in setting.kinds:
        return _parse_text(setting, bare_text, is_quoted)
    bare_text = bare_text[1:-1].strip() if is_quoted else bare_text
    for choice in setting.choices:
        if bare_text.lower() == str(choice).lower():
            return choice
    if bool in setting.kinds and bare_text.lower() in (*_TRUE, *_FALSE):
        return bare_text.lower() in _TRUE
    number = _parse_number(bare_text) if {int, float} & set(setting.kinds) else None
    if number is None:
        return _problem(setting, f"{one_line(bare_text, 40)!r} is not valid" if bare_text else "no value was entered")
    if float not in setting.kinds and int(number) != number:
        return _problem(setting, f"{bare_text} is not a whole number")
    if complaint := setting.limits.complaint(number):
        return _problem(setting, f"{bare_text} {complaint}")
    return float(number) if float in setting.kinds else int(number)


def choices(setting: Setting) -> tuple[Any, ...]:
    """Return all values that a setting with fixed choices accepts; empty for a setting with free text or numbers."""
    if setting.kinds == (bool,):
        return (*setting.choices, False, True)
    return () if setting.kinds else setting.choices


def completions(setting: Setting, text: str, *, names: Iterable[str] = ()) -> list[str]:
    """Return up to 100 completions of a typed text: paths, profiles, choices, and the `names` given for the setting."""
    if setting.completes == "files":
        head, tail = last_path(text)
        paths = [name for name in names if name.startswith(tail)]
        paths += map(escape_commas, _paths(tail, folders_only=False))
        return [head + path for path in paths[:MOST_COMPLETIONS]]
    matching_names = [name for name in names if name.startswith(text)]
    if setting.completes in ("file", "folder"):
        # Paths are offered only if no name matches, because files are rare for settings with names.
        other_texts = [] if matching_names else _paths(text, folders_only=setting.completes == "folder")
    elif setting.completes == "recipe":
        other_texts = [name for name in profile_names("recipes") if name.startswith(text)]
    elif setting.completes == "hardware profile":
        other_texts = [name for name in ("auto", "none", *profile_names("hardware")) if name.startswith(text)]
    else:
        other_texts = [str(choice) for choice in setting.choices if str(choice).startswith(text.lower())]
    return [*matching_names, *other_texts][:MOST_COMPLETIONS]


def _paths(text: str, *, folders_only: bool) -> list[str]:
    """Return paths that begin with the text, folders with a slash. Hidden files are included if the text has a dot."""
    parent_text, _, name = text.rpartition("/")
    folder = f"{parent_text}/" if "/" in text else ""
    try:
        entries = sorted((Path(folder).expanduser() if folder else Path()).iterdir(), key=lambda path: path.name)
        named_entries = [(path.name, path.is_dir()) for path in entries]
    except (OSError, ValueError, RuntimeError):
        return []
    paths = [
        f"{folder}{entry}{'/' if is_folder else ''}"
        for entry, is_folder in named_entries
        if entry.startswith(name) and (is_folder or not folders_only) and (name.startswith(".") or entry[0] != ".")
    ]
    return [path for path in paths if one_line(path) == path]


def _parse_number(text: str) -> float | None:
    digits = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    match = _NUMBER.fullmatch(digits)
    if not match or len(digits) > _LONGEST_NUMBER:
        return None
    try:
        # A float would not hold the largest seeds exactly.
        number = int(match[1]) if re.fullmatch(r"[+-]?[\d_]+", match[1]) else float(match[1])
        suffix = (match[2] or "").lower()
        number = number / 100 if suffix == "%" else number * _FACTORS[suffix]
    except (ValueError, OverflowError):
        return None
    return number if abs(number) != float("inf") else None


def _parse_text(setting: Setting, bare_text: str, is_quoted: bool) -> Any:
    if is_quoted:
        try:
            return str(parse_toml(f"x = {bare_text}", "")["x"])
        except ConfigError:
            return bare_text[1:-1]
    if bare_text.lower() in ("", EMPTY) or (bare_text.lower() == "none" and setting.default == ""):
        return "" if setting.default == "" else _problem(setting, "the value must not be empty")
    return bare_text


def _problem(setting: Setting, message: str) -> Problem:
    return Problem(message=message, key=setting.key, hint=f"enter {setting.expected_words}")


# The next value up or down, for keys that change a setting in steps.

Direction = Literal[1, -1]
# A series of shares would never reach zero, so the next value below this one is 0.
_SMALLEST_SHARE = 1e-3
_FIRST_COUNT, _FIRST_SHARE = 100, 0.01


def bump(setting: Setting, value: Any, direction: Direction) -> Any:
    """Return the next value up (1) or down (-1) in the setting's series; at a bound, the value itself.

    Choices and booleans wrap around. `auto` is below the smallest number. The value of a text setting does not change.
    """
    if values := choices(setting):
        index = values.index(value) if value in values else -direction
        return values[(index + direction) % len(values)]
    if not {int, float} & set(setting.kinds):
        return value
    is_whole = float not in setting.kinds
    if isinstance(value, str):
        return int(setting.limits.low or 1) if direction > 0 else value
    if value <= 0 and direction < 0:
        return value
    if value <= 0:
        next_value: float = _first_above_zero(setting, is_whole)
    else:
        next_value = _SERIES[setting.step or ("+1" if is_whole else "1-2-5")](value, direction)
    smallest_value = 1 if is_whole else _SMALLEST_SHARE
    if setting.limits.low == 0 and next_value < smallest_value * 0.999:
        next_value = 0
    if setting.limits.complaint(next_value):
        return setting.choices[0] if setting.choices and direction < 0 else _bound(setting, value, direction)
    return int(next_value) if is_whole else float(next_value)


def _first_above_zero(setting: Setting, is_whole: bool) -> float:
    """Return the next value after 0, which often means off: the default, or else the first value of the series."""
    if isinstance(setting.default, int | float) and setting.default:
        return setting.default
    if setting.step in ("+1", "+0.05", "nines") or (is_whole and setting.step is None):
        return _SERIES[setting.step or "+1"](0, 1)
    return _FIRST_COUNT if is_whole else _FIRST_SHARE


def _bound(setting: Setting, value: Any, direction: Direction) -> Any:
    """Return the bound in this direction; the value itself if it is at the bound or if there is no bound."""
    bound = setting.limits.high if direction > 0 else setting.limits.low
    if bound is None or (bound - value) * direction <= 0:
        return value
    return int(bound) if float not in setting.kinds else float(bound)


def _one_two_five(value: float, direction: Direction) -> float:
    """Return the next number of the series 1, 2, 5, 10, 20, 50 and so on, up or down from the value."""
    exponent = math.floor(math.log10(value) + 1e-9)
    series = [_decimal(digit, power) for power in (exponent - 1, exponent, exponent + 1) for digit in (1, 2, 5)]
    if direction > 0:
        return next(number for number in series if number > value * (1 + 1e-9))
    return next(number for number in reversed(series) if number < value * (1 - 1e-9))


def _tenfold(value: float, direction: Direction) -> float:
    exponent = math.log10(value)
    return _decimal(1, math.floor(exponent + 1e-9) + 1 if direction > 0 else math.ceil(exponent - 1e-9) - 1)


def _decimal(digit: int, power: int) -> float:
    # A product of floats is not always the nearest float: 3 * 0.1 is 0.30000000000000004.
    return float(f"{digit}e{power}")


def _nines(value: float, direction: Direction) -> float:
    """Return the next number of the series 0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995 and so on, up or down."""
    if value < 0.5 or (value == 0.5 and direction < 0):
        return 0.5 if direction > 0 else 0
    gap = _one_two_five(1 - value, 1 if direction < 0 else -1)
    return round(1 - gap, 9)


def _twentieth(value: float, direction: Direction) -> float:
    twentieths = value * 20
    return round((math.floor(twentieths + 1e-6) + 1 if direction > 0 else math.ceil(twentieths - 1e-6) - 1) / 20, 2)


_SERIES: dict[str, Callable[[float, Direction], float]] = {
    # 32 gives 64 and 16, and 3 gives 6 and 1.
    "x2": lambda value, direction: value * 2 if direction > 0 else value // 2,
    "1-2-5": _one_two_five,
    "x10": _tenfold,
    "+1": lambda value, direction: math.floor(value + 1) if direction > 0 else math.ceil(value - 1),
    "nines": _nines,
    "+0.05": _twentieth,
}
