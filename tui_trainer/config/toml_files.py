"""Reading and writing TOML without surprises: bounded size, one-sentence errors, dotted keys."""

import hashlib
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.errors import ConfigError, InputError

MAX_BYTES = 256 * 1024
# A dotted key of 20,000 parts takes tomllib ten seconds; a line this long is no setting.
MAX_LINE_CHARACTERS = 4096


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError with the file, the place and the reason."""
    hint = "give the path of a TOML file; `tui-trainer profiles` lists what --profile takes"
    return parse_toml(read_config(path, hint), str(path))


def read_config(path: Path, hint: str) -> str:
    """The text of a config file of any kind. `hint`: what to do where there is none. Raises ConfigError."""
    where = str(path)
    try:
        if not path.is_file():
            raise ConfigError("is not a file" if path.exists() else "does not exist", where=where, hint=hint)
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=where) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES // 1024} KiB, so it is no config file", where=where)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"line {line} is not UTF-8", where=where, hint="save the file as UTF-8") from None


def file_digest(path: Path) -> str | None:
    """Names what stands in a config file now; None when it is no file that can be read."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.sha256(file.read(MAX_BYTES + 1)).hexdigest()
    except (OSError, ValueError):
        pass
    return None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises ConfigError."""
    long = next((n for n, line in enumerate(text.splitlines(), 1) if len(line) > MAX_LINE_CHARACTERS), None)
    if long is not None:
        raise ConfigError(f"line {long} is longer than {MAX_LINE_CHARACTERS} characters", where=where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError("is nested too deeply", where=where) from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"is not valid TOML: {reason}", where=where) from None


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, name = key.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return nested


def refuse_existing(path: Path, option: str = "--fix") -> None:
    """Raises InputError where a new config file may not be written: `option` names it."""
    # What is in a closed folder cannot be seen: writing there fails with its own words.
    with suppress(OSError):
        if path.exists() or path.is_symlink():
            hint = "name a file that does not exist yet"
            raise InputError("exists, and is not overwritten", where=str(path), hint=hint)
        if not path.absolute().parent.exists():
            raise InputError("cannot be written: its folder does not exist", where=str(path), hint="make it first")
    if path.suffix != ".toml":
        raise InputError("does not end in .toml", where=str(path), hint=f"write {option} {path.name}.toml")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet. Raises InputError."""
    try:
        # "x": what came into being since is not overwritten either.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
