"""The paths of `data.path`, and the weight of each path: how often its rows are used in an epoch."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

from tui_trainer.config.fields import join_with_commas, names_in
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.files.local_paths import path_exists
from tui_trainer.terminal.safe_text import one_line

WEIGHTS_KEY = "data.weights"
# With a larger weight a source would fill the disk, and the model would memorize it.
MOST_WEIGHT = 1000
_COMMA = re.compile(r"(?<!\\),")


def escape_commas(path: str) -> str:
    """Return a path or name with its commas escaped, for use in a text that separates paths by commas."""
    return path.replace(",", "\\,")


# Paths in one text, separated by commas. A comma within a path is written as \,. A TOML list is accepted too.
Paths = Annotated[str, BeforeValidator(partial(join_with_commas, convert=escape_commas))]


def paths_in(text: str) -> tuple[str, ...]:
    """Return the paths of a `Paths` setting. The text is a single path if it names an existing file or folder."""
    if "," not in text or path_exists(text):
        return (text,)
    return tuple(split_at_commas(text)) or (text,)


def split_at_commas(text: str) -> list[str]:
    """Split a text at the commas that are not escaped. Returns the pieces unescaped, without empty pieces."""
    parts = (part.strip().replace("\\,", ",") for part in _COMMA.split(text))
    return [part for part in parts if part]


def last_path(text: str) -> tuple[str, str]:
    """Split a text that is being typed after its last comma. Returns the text before unchanged, and the last path."""
    comma_end = max((match.end() for match in _COMMA.finditer(text)), default=0)
    last_part = text[comma_end:].lstrip()
    return text[: len(text) - len(last_part)], last_part.replace("\\,", ",")


def join_paths(paths: Sequence[str]) -> str:
    """Join paths with commas to a text that `paths_in` splits again."""
    return paths[0] if len(paths) == 1 and paths_in(paths[0]) == (paths[0],) else ", ".join(map(escape_commas, paths))


def parse_weights(paths: Sequence[str], weights: str) -> tuple[float, ...]:
    """Return the weight of each path from the text of data.weights; () if all are 1. Raises ConfigError."""
    number_texts = names_in(weights)
    if not number_texts:
        return ()
    if len(number_texts) != len(paths):
        sources = "1 source" if len(paths) == 1 else f"{len(paths)} sources"
        numbers = "1 number" if len(number_texts) == 1 else f"{len(number_texts)} numbers"
        raise _error(f"has {numbers}, but data.path has {sources}", "give one number per source, in the same order")
    weight_values = tuple(map(_parse_weight, number_texts))
    return () if all(value == 1 for value in weight_values) else weight_values


def _parse_weight(word: str) -> float:
    quoted = one_line(repr(word), 40)
    try:
        weight = float(word)
    except ValueError:
        raise _error(f"{quoted} is not a number", "2 uses each row twice, and 0.5 uses half of the rows") from None
    if not 0 < weight <= MOST_WEIGHT:
        hint = "to leave out a source, remove it from data.path" if weight <= 0 else "1 uses each row once"
        raise _error(f"{quoted} must be above 0 and at most {MOST_WEIGHT:,}", hint)
    return weight


def _error(message: str, hint: str) -> ConfigError:
    return ConfigError(Problem(message=message, key=WEIGHTS_KEY, hint=hint))
