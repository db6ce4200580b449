"""Which sources [data] names, and how often the rows of each are used in an epoch."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

from tui_trainer.config.fields import names_in, with_commas
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.files.local_paths import is_here
from tui_trainer.terminal.safe_text import one_line

WEIGHTS_KEY = "data.weights"
# Rows that are used so often fill a disk, and teach a model one source by heart.
MOST_WEIGHT = 1000
_COMMA = re.compile(r"(?<!\\),")


def escaped(path: str) -> str:
    """One path as it stands between others."""
    return path.replace(",", "\\,")


# Paths in one text, with commas between them; a comma that is part of a path is written as \, in it. A TOML list is
# taken as well.
Paths = Annotated[str, BeforeValidator(partial(with_commas, each=escaped))]


def paths_in(text: str) -> tuple[str, ...]:
    """The single paths of a `Paths` setting. Where a file or folder has the whole text as its name, it is that one."""
    if "," not in text or is_here(text):
        return (text,)
    paths = (part.strip().replace("\\,", ",") for part in _COMMA.split(text))
    return tuple(path for path in paths if path) or (text,)


def last_path(text: str) -> tuple[str, str]:
    """What stands before the last path of a text that is being typed, with its comma, and that path."""
    comma = max((found.end() for found in _COMMA.finditer(text)), default=0)
    last = text[comma:].lstrip()
    return text[: len(text) - len(last)], last.replace("\\,", ",")


def joined(paths: Sequence[str]) -> str:
    """The text that `paths_in` takes apart again."""
    return paths[0] if len(paths) == 1 and paths_in(paths[0]) == (paths[0],) else ", ".join(map(escaped, paths))


def weights_of(paths: Sequence[str], weights: str) -> tuple[float, ...]:
    """The weight of each path of data.path, by data.weights; () where every row is used once. Raises ConfigError."""
    words = names_in(weights)
    if not words:
        return ()
    if len(words) != len(paths):
        sources = "1 source" if len(paths) == 1 else f"{len(paths)} sources"
        numbers = "1 number" if len(words) == 1 else f"{len(words)} numbers"
        raise _wrong(f"has {numbers}, but data.path has {sources}", "give one number for each, in the same order")
    found = tuple(map(_weight, words))
    return () if all(weight == 1 for weight in found) else found


def _weight(word: str) -> float:
    shown = one_line(repr(word), 40)
    try:
        weight = float(word)
    except ValueError:
        raise _wrong(f"{shown} is not a number", "2 uses each row twice, 0.5 half of the rows") from None
    if not 0 < weight <= MOST_WEIGHT:
        hint = "to leave out a source, remove it from data.path" if weight <= 0 else "1 uses each row once"
        raise _wrong(f"{shown} must be above 0 and at most {MOST_WEIGHT:,}", hint)
    return weight


def _wrong(message: str, hint: str) -> ConfigError:
    return ConfigError(Problem(message=message, key=WEIGHTS_KEY, hint=hint))
