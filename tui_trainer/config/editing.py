"""Between a setting's value and the text that a person reads or types.

What is shown and what is edited are two functions: a placeholder such as `empty` is never the text of an editor.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tui_trainer.config.fields import Setting
from tui_trainer.config.mixture import escaped, last_path
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
# From here on digits are grouped, below it a float is written with an exponent.
_GROUPED_FROM, _EXPONENT_BELOW = 10_000, 0.01


def number_text(value: float) -> str:
    """The shortest text that TOML reads as this number: `3e-4`, `0.05`, `1_000_000`, `3`."""
    if isinstance(value, int) or value.is_integer():
        whole = int(value)
        if abs(whole) < 10**15 or isinstance(value, int):
            return f"{whole:_}" if abs(whole) >= _GROUPED_FROM else str(whole)
    if abs(value) >= _EXPONENT_BELOW and "e" not in repr(value):
        return repr(value)
    short = min((f"{value:.{places}e}" for places in range(17) if float(f"{value:.{places}e}") == value), key=len)
    digits, _, exponent = short.partition("e")
    return f"{digits}e{int(exponent)}"


def edit_text(setting: Setting, value: Any) -> str:
    """What an editor begins with: text that `parse` turns into the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    text = _listed(setting, value) if isinstance(value, list) else str(value)
    return toml_text(text) if text and parse(setting, text) != text and "\n" not in text else text


def display_text(setting: Setting, value: Any) -> str:
    """What a table shows, on one line and without control characters; an empty text is `empty`."""
    if value == "":
        return EMPTY
    if isinstance(value, list):
        return one_line(_listed(setting, value))
    return one_line(str(value)) if isinstance(value, str) else edit_text(setting, value)


def _listed(setting: Setting, values: list[Any]) -> str:
    """What a file writes as a list, in the one text that the setting holds."""
    words = (number_text(value) if isinstance(value, int | float) else str(value) for value in values)
    return ", ".join(map(escaped, words) if setting.completes == "files" else words)


def unit_text(setting: Setting, value: Any) -> str:
    """The unit behind a shown value: `rows`; a step setting below 1 is a share `of all steps`."""
    if not setting.unit or not isinstance(value, int | float):
        return ""
    if setting.unit == "steps" and float in setting.kinds and value < 1:
        return "of all steps" if value > 0 else ""
    return setting.unit


def toml_text(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return ("true" if value else "false") if isinstance(value, bool) else number_text(value)
    import tomli_w

    return tomli_w.dumps({"x": value}).partition("=")[2].strip()


def refused_values(
    settings: Mapping[str, tuple[object, Sequence[object]]], why: str, otherwise: str = ""
) -> Iterator[Problem]:
    """Yield a problem for each setting that has none of its allowed values. `settings` has the value and the allowed
    values of each; the hint names the first of these, and what to do `otherwise`."""
    for key, (value, allowed) in settings.items():
        if value not in allowed:
            hint = f"set it to {toml_text(allowed[0])}{otherwise}"
            message = f"is {toml_text(value)}, which {why}"
            yield Problem(message=message, key=key, hint=hint, suggested=allowed[0])


def parse(setting: Setting, text: str) -> Any:
    """The value that was typed, or a Problem with the setting's key.

    Takes `2e-4`, `1_000`, `8k` (8000), `8ki` (8192), `1.5M`, `10%`, `yes`, `off`, `none` where empty is allowed, and
    texts with or without quotes.
    """
    bare = text.strip()
    quoted = len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'"
    if str in setting.kinds:
        return _text(setting, bare, quoted)
    bare = bare[1:-1].strip() if quoted else bare
    for choice in setting.choices:
        if bare.lower() == str(choice).lower():
            return choice
    if bool in setting.kinds and bare.lower() in (*_TRUE, *_FALSE):
        return bare.lower() in _TRUE
    number = _number(bare) if {int, float} & set(setting.kinds) else None
    if number is None:
        return _problem(setting, f"{one_line(bare, 40)!r} is not valid" if bare else "no value was entered")
    if float not in setting.kinds and int(number) != number:
        return _problem(setting, f"{bare} is not a whole number")
    if complaint := setting.limits.complaint(number):
        return _problem(setting, f"{bare} {complaint}")
    return float(number) if float in setting.kinds else int(number)


def choices(setting: Setting) -> tuple[Any, ...]:
    """The values of a setting that takes nothing else; empty for one that is typed."""
    if setting.kinds == (bool,):
        return (*setting.choices, False, True)
    return () if setting.kinds else setting.choices


def completions(setting: Setting, text: str, *, names: Iterable[str] = ()) -> list[str]:
    """Texts that go on from what is typed: paths, profiles, choices, and the setting's own `names`; at most 100."""
    if setting.completes == "files":
        before, last = last_path(text)
        here = [*(name for name in names if name.startswith(last)), *map(escaped, _paths(last, folders_only=False))]
        return [before + path for path in here[:MOST_COMPLETIONS]]
    if setting.completes in ("file", "folder"):
        # A setting that takes names takes a file as an exception.
        is_name = any(name.startswith(text) for name in names)
        found = [] if is_name else _paths(text, folders_only=setting.completes == "folder")
    elif setting.completes == "recipe":
        found = [name for name in profile_names("recipes") if name.startswith(text)]
    elif setting.completes == "hardware profile":
        found = [name for name in ("auto", "none", *profile_names("hardware")) if name.startswith(text)]
    else:
        found = [str(choice) for choice in setting.choices if str(choice).startswith(text.lower())]
    found = [*(name for name in names if name.startswith(text)), *found]
    return found[:MOST_COMPLETIONS]


def _paths(text: str, *, folders_only: bool) -> list[str]:
    """Files and folders that begin with the text, folders with a slash; hidden ones only when asked for."""
    start, _, name = text.rpartition("/")
    folder = f"{start}/" if "/" in text else ""
    try:
        entries = sorted((Path(folder).expanduser() if folder else Path()).iterdir(), key=lambda path: path.name)
        known = [(path.name, path.is_dir()) for path in entries]
    except (OSError, ValueError, RuntimeError):
        return []
    wanted = [
        f"{folder}{entry}{'/' if is_folder else ''}"
        for entry, is_folder in known
        if entry.startswith(name) and (is_folder or not folders_only) and (name.startswith(".") or entry[0] != ".")
    ]
    return [path for path in wanted if one_line(path) == path]


def _number(text: str) -> float | None:
    bare = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    match = _NUMBER.fullmatch(bare)
    if not match or len(bare) > _LONGEST_NUMBER:
        return None
    try:
        # The largest seeds are whole numbers that no float holds.
        number = int(match[1]) if re.fullmatch(r"[+-]?[\d_]+", match[1]) else float(match[1])
        suffix = (match[2] or "").lower()
        number = number / 100 if suffix == "%" else number * _FACTORS[suffix]
    except (ValueError, OverflowError):
        return None
    return number if abs(number) != float("inf") else None


def _text(setting: Setting, bare: str, quoted: bool) -> Any:
    if quoted:
        return _unquoted(bare)
    if bare.lower() in ("", EMPTY) or (bare.lower() == "none" and setting.default == ""):
        return "" if setting.default == "" else _problem(setting, "it must not be empty")
    return bare


def _unquoted(text: str) -> str:
    """A TOML string where it is one; otherwise what stands between the quotes."""
    try:
        return str(parse_toml(f"x = {text}", "")["x"])
    except ConfigError:
        return text[1:-1]


def _problem(setting: Setting, message: str) -> Problem:
    return Problem(message=message, key=setting.key, hint=f"enter {setting.expected}")


# More and less with one key: the value next to a value, in steps that suit the setting.

Direction = Literal[1, -1]
# Where a series that never reaches zero gives way to it.
_SMALLEST_SHARE = 1e-3
_FIRST_COUNT, _FIRST_SHARE = 100, 0.01


def bump(setting: Setting, value: Any, direction: Direction) -> Any:
    """The next value up or down within the bounds, or the value itself where there is none.

    Choices and booleans go round. `auto` lies below the smallest number. A text stays.
    """
    if closed := choices(setting):
        place = closed.index(value) if value in closed else -direction
        return closed[(place + direction) % len(closed)]
    if not {int, float} & set(setting.kinds):
        return value
    whole = float not in setting.kinds
    if isinstance(value, str):
        return int(setting.limits.low or 1) if direction > 0 else value
    if value <= 0 and direction < 0:
        return value
    if value <= 0:
        moved: float = _first(setting, whole)
    else:
        moved = _SERIES[setting.step or ("+1" if whole else "1-2-5")](value, direction)
    least = 1 if whole else _SMALLEST_SHARE
    if setting.limits.low == 0 and moved < least * 0.999:
        moved = 0
    if setting.limits.complaint(moved):
        return setting.choices[0] if setting.choices and direction < 0 else _edge(setting, value, direction)
    return int(moved) if whole else float(moved)


def _first(setting: Setting, whole: bool) -> float:
    """What follows 0, which often means off: the default, else a usual beginning."""
    if isinstance(setting.default, int | float) and setting.default:
        return setting.default
    if setting.step in ("+1", "+0.05", "nines") or (whole and setting.step is None):
        return _SERIES[setting.step or "+1"](0, 1)
    return _FIRST_COUNT if whole else _FIRST_SHARE


def _edge(setting: Setting, value: Any, direction: Direction) -> Any:
    """The bound itself, where the next step would go beyond it."""
    edge = setting.limits.high if direction > 0 else setting.limits.low
    if edge is None or (edge - value) * direction <= 0:
        return value
    return int(edge) if float not in setting.kinds else float(edge)


def _one_two_five(value: float, direction: Direction) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    exponent = math.floor(math.log10(value) + 1e-9)
    series = [_scaled(digit, power) for power in (exponent - 1, exponent, exponent + 1) for digit in (1, 2, 5)]
    if direction > 0:
        return next(number for number in series if number > value * (1 + 1e-9))
    return next(number for number in reversed(series) if number < value * (1 - 1e-9))


def _tenfold(value: float, direction: Direction) -> float:
    exponent = math.log10(value)
    return _scaled(1, math.floor(exponent + 1e-9) + 1 if direction > 0 else math.ceil(exponent - 1e-9) - 1)


def _scaled(digit: int, power: int) -> float:
    # A product of floats would give 0.30000000000000004; the text gives the nearest float.
    return float(f"{digit}e{power}")


def _nines(value: float, direction: Direction) -> float:
    """Nearer to 1 or further away: 0.9, 0.95, 0.98, 0.99, 0.995; below 0.5 down to 0."""
    if value < 0.5 or (value == 0.5 and direction < 0):
        return 0.5 if direction > 0 else 0
    gap = _one_two_five(1 - value, 1 if direction < 0 else -1)
    return round(1 - gap, 9)


def _twentieth(value: float, direction: Direction) -> float:
    steps = value * 20
    return round((math.floor(steps + 1e-6) + 1 if direction > 0 else math.ceil(steps - 1e-6) - 1) / 20, 2)


_SERIES: dict[str, Callable[[float, Direction], float]] = {
    # The next power of two times the odd part: 32 gives 64 and 16, 24 gives 48 and 12, 3 gives 6 and 1.
    "x2": lambda value, direction: value * 2 if direction > 0 else value // 2,
    "1-2-5": _one_two_five,
    "x10": _tenfold,
    "+1": lambda value, direction: math.floor(value + 1) if direction > 0 else math.ceil(value - 1),
    "nines": _nines,
    "+0.05": _twentieth,
}
