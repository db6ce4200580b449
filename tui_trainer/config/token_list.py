"""The tokens that `model.add_tokens` names: in the setting itself, or in a file with one a line."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from tui_trainer.config.fields import with_commas
from tui_trainer.config.mixture import escaped
from tui_trainer.errors import ConfigError, Problem, system_reason
from tui_trainer.files.local_paths import from_the_root
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

TOKENS = "model.add_tokens"
_ENDING = ".txt"
_LARGEST = MIB
_COMMA = re.compile(r"(?<!\\),")


def _tokens_with_commas(value: Any) -> Any:
    """A list as one text; as a list it stays, and is refused, where a token ends in what escapes a comma."""
    ends = isinstance(value, list) and any(isinstance(token, str) and token.endswith("\\") for token in value)
    return value if ends else with_commas(value, each=escaped)


# Tokens in one text, with commas between them; a comma that is part of one is written as \, in it. A TOML list is taken
# as well.
Tokens = Annotated[str, BeforeValidator(_tokens_with_commas)]


def tokens_in(text: str) -> tuple[str, ...]:
    """The single tokens, without blanks around them. Raises ConfigError where the text names a file that cannot be
    read, a token twice, or none."""
    return _refused_twice(_split(with_file_read(text))) if text.strip() else ()


def with_file_read(text: str) -> str:
    """The same setting with the tokens themselves in place of their file, which may change. Raises ConfigError."""
    if not text.strip().endswith(_ENDING) or _COMMA.search(text):
        return text
    path = from_the_root(text.strip())
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise _problem(f"{_shown(path)} is not a list of tokens: it is larger than a megabyte", "use another file")
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except OSError as error:
        raise _problem(f"{_shown(path)} cannot be read: {system_reason(error)}", "check the path of the file") from None
    except UnicodeDecodeError:
        raise _problem(f"{_shown(path)} is not UTF-8", "save it as UTF-8") from None
    tokens = [line for line in lines if line]
    if odd := next((token for token in tokens if token.endswith("\\")), ""):
        raise _problem(f"the token {one_line(odd, 40)!r} ends in a backslash, which is not supported", "remove it")
    return ", ".join(map(escaped, _refused_twice(tokens)))


def _split(text: str) -> list[str]:
    parts = (part.strip().replace("\\,", ",") for part in _COMMA.split(text))
    return [part for part in parts if part]


def _refused_twice(tokens: list[str]) -> tuple[str, ...]:
    if not tokens:
        raise _problem("the setting has no tokens", "remove it, or list tokens separated by commas")
    if twice := next((token for token in tokens if tokens.count(token) > 1), ""):
        raise _problem(f"the token {one_line(twice, 40)!r} is listed twice", "list it once")
    return tuple(tokens)


def _shown(path: Path) -> str:
    return one_line(str(path), 120)


def _problem(message: str, hint: str) -> ConfigError:
    return ConfigError(Problem(message=message, key=TOKENS, hint=hint))
