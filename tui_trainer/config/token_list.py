"""The tokens of `model.add_tokens`, which lists them or names a file with one token per line."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from tui_trainer.config.fields import join_with_commas
from tui_trainer.config.mixture import escape_commas, split_at_commas
from tui_trainer.errors import ConfigError, Problem, system_reason
from tui_trainer.files.local_paths import absolute_path
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

ADD_TOKENS_KEY = "model.add_tokens"
_ENDING = ".txt"
_FILE_LIMIT_BYTES = MIB


def _tokens_with_commas(value: Any) -> Any:
    """Return a list of tokens as one text with commas. A list with a token that ends in a backslash stays invalid."""
    is_ambiguous = isinstance(value, list) and any(isinstance(token, str) and token.endswith("\\") for token in value)
    return value if is_ambiguous else join_with_commas(value, convert=escape_commas)


# Tokens in one text, separated by commas. A comma within a token is written as \,. A TOML list is accepted too.
Tokens = Annotated[str, BeforeValidator(_tokens_with_commas)]


def tokens_in(text: str) -> tuple[str, ...]:
    """Return the tokens in `model.add_tokens` or its file. Raises ConfigError if one is repeated or a file has none."""
    return _check_unique(split_at_commas(replace_token_file(text))) if text.strip() else ()


def replace_token_file(text: str) -> str:
    """Return the value of `model.add_tokens`, with a file replaced by the tokens in the file. Raises ConfigError."""
    if not text.strip().endswith(_ENDING) or "," in text.replace("\\,", ""):
        return text
    path = absolute_path(text.strip())
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_LIMIT_BYTES + 1)
        if len(content) > _FILE_LIMIT_BYTES:
            raise _problem(f"{_shown(path)} is not a list of tokens: it is larger than a megabyte", "use another file")
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except OSError as error:
        raise _problem(f"{_shown(path)} cannot be read: {system_reason(error)}", "check the path of the file") from None
    except UnicodeDecodeError:
        raise _problem(f"{_shown(path)} is not UTF-8", "save it as UTF-8") from None
    tokens = [line for line in lines if line]
    if invalid := next((token for token in tokens if token.endswith("\\")), ""):
        raise _problem(f"the token {one_line(invalid, 40)!r} ends in a backslash, which is not supported", "remove it")
    return ", ".join(map(escape_commas, _check_unique(tokens)))


def _check_unique(tokens: list[str]) -> tuple[str, ...]:
    if not tokens:
        raise _problem("the setting has no tokens", "remove it, or list tokens separated by commas")
    if repeated_token := next((token for token in tokens if tokens.count(token) > 1), ""):
        raise _problem(f"the token {one_line(repeated_token, 40)!r} is listed twice", "list it once")
    return tuple(tokens)


def _shown(path: Path) -> str:
    return one_line(str(path), 120)


def _problem(message: str, hint: str) -> ConfigError:
    return ConfigError(Problem(message=message, key=ADD_TOKENS_KEY, hint=hint))
