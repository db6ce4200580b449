"""Read a YAML, JSON or TOML file of another tool as keys and values. JSON may have comments and trailing commas.

Duplicate keys and text after the end raise errors, because most readers ignore them silently."""

import json
import re
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tui_trainer.config.toml_files import parse_toml, read_config
from tui_trainer.errors import ConfigError
from tui_trainer.terminal.safe_text import one_line

# PyYAML reads about 20 kB per second.
MAX_YAML_BYTES = 64 * 1024
# With YAML's aliases, a few lines can become billions of values.
MAX_VALUES = 10_000
MAX_DEPTH = 20
MAX_NUMBER_BITS = 1024

_ADAPTER = "adapter_config.json"
_PROSE = (".py", ".ipynb", ".md", ".sh", ".txt")

_JSON_TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_JSON_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])', re.DOTALL)


def read_foreign(path: Path) -> dict[str, Any]:
    """Read a config file as keys and values. Raises ConfigError with the file, the line and the reason."""
    where = str(path)
    if path.suffix.lower() in _PROSE:
        hint = "copy the keys and values into a YAML file"
        raise ConfigError("is a program or a text, not a config", where=where, hint=hint)
    hint, adapter_file = "use a config in YAML or JSON", path / _ADAPTER
    with suppress(OSError):
        hint = f"use {adapter_file}" if adapter_file.is_file() else hint
    text = read_config(path, hint)
    if path.suffix.lower() == ".toml":
        return parse_toml(text, where)
    is_json = path.suffix.lower() in (".json", ".jsonc") or text.lstrip().startswith("{")
    if not is_json and len(text) > MAX_YAML_BYTES:
        raise ConfigError(f"is larger than {MAX_YAML_BYTES // 1024} KiB, so it is not a config file", where=where)
    try:
        content = parse_json(text, where) if is_json else parse_yaml(text, where)
        _refuse_too_much(content, where)
    except RecursionError:
        raise ConfigError("is nested too deeply", where=where) from None
    if not isinstance(content, dict):
        message = "is empty" if content is None else f"is a single {type(content).__name__}, not keys with values"
        raise ConfigError(message, where=where, hint="use a config in YAML or JSON")
    if not content:
        raise ConfigError("contains no keys", where=where)
    return {str(key): value for key, value in content.items()}


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON text. Raises ConfigError with the line."""
    # Comments become spaces, but line breaks remain so that errors have the right line.
    plain = _JSON_TOKENS.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), text)
    plain = _JSON_LAST_COMMA.sub(lambda match: match[1] or " ", plain)
    try:
        return json.loads(plain, object_pairs_hook=lambda pairs: _unique(pairs, where))
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} is not valid JSON: {error.msg}"
        raise ConfigError(reason, where=where) from None
    except ValueError as error:  # a whole number with more digits than Python reads
        raise ConfigError(f"cannot be read: {one_line(str(error), 80)}", where=where) from None


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return the key-value pairs of a JSON object as a dictionary. Raises ConfigError for a duplicate key."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ConfigError(f"has the key {one_line(key, 60)!r} twice", where=where, hint="remove one key")
        values[key] = value
    return values


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML loader for plain values that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in names:
                    reason = f"the key {one_line(key.value, 60)!r} appears twice"
                    raise yaml.MarkedYAMLError(problem=reason, problem_mark=key.start_mark)
                names.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML text. Raises ConfigError with the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line_text = f"line {mark.line + 1} " if mark else ""
        reason = one_line(error.problem or error.context or "cannot be read", 120)
        raise ConfigError(f"{line_text}is not valid YAML: {reason}", where=where) from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        reason = f"the character U+{error.character:04X} is not allowed"
        raise ConfigError(f"line {line_number} is not valid YAML: {reason}", where=where) from None
    except ValueError as error:  # for example an impossible date or a number with too many digits
        raise ConfigError(f"cannot be read: {one_line(str(error), 80)}", where=where) from None


def _refuse_too_much(value: Any, where: str) -> None:
    """Raise ConfigError if a file has too many values or levels. The values of an alias count at each use."""
    count = 0
    unvisited = [(value, 0)]
    while unvisited:
        item, depth = unvisited.pop()
        count += 1
        if count > MAX_VALUES:
            raise ConfigError(f"contains more than {MAX_VALUES} values, so it is not a config file", where=where)
        if isinstance(item, int) and item.bit_length() > MAX_NUMBER_BITS:
            raise ConfigError("contains a number with too many digits", where=where)
        if depth > MAX_DEPTH:
            raise ConfigError("is nested too deeply", where=where)
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple | set) else ()
        unvisited.extend((child, depth + 1) for child in children)
