"""Saving a config as TOML: the names of its profiles, and the values that the user set.

A value of the user is written even if it equals the preset. On another machine it then takes precedence over that
machine's hardware profile, and a micro-batch that the user set is not reduced."""

import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from tui_trainer.config.changes import is_same_value
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig, all_settings, flatten, value_of
from tui_trainer.config.paths import absolute
from tui_trainer.config.removed import REMOVED
from tui_trainer.config.sections import SCHEMA_VERSION
from tui_trainer.config.toml_files import file_digest, nest, parse_toml
from tui_trainer.errors import ConfigError, Problem, system_reason
from tui_trainer.terminal.safe_text import one_line

# A larger float would get digits as an integer that the float does not determine.
_WHOLE_BELOW = 1e15
# Prefix of a comment about a problem in the next line of a text that the user continues to edit.
_MARK = "# tui-trainer:"


class OverwriteError(ConfigError):
    """Raised if saving would overwrite a file that is not this config or was changed. The user has to confirm that."""


def to_toml(loaded: LoadedConfig) -> str:
    """Return TOML from which `load` returns the same Config on the same machine."""
    flat_values: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if loaded.recipe:
        name = value_of(loaded.config, "profile") or loaded.recipe.name
        flat_values["profile"] = absolute(name) if name.endswith(".toml") else name
    for key in all_settings():
        # A recipe may have a path relative to its own file, while the run's config has the absolute path.
        is_recipe_path = key == "data.path" and any(map(os.path.isabs, loaded.config.data.paths))
        if (loaded.origin(key).by_user or is_recipe_path) and key not in flat_values:
            flat_values[key] = _whole_as_int(value_of(loaded.config, key))
    return tomli_w.dumps(nest(flat_values))


def _whole_as_int(value: Any) -> Any:
    """Return a whole float as an integer (128 for 128.0), which a setting of type float also accepts."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_BELOW else value


def saved_values(document: ConfigDocument) -> dict[str, Any]:
    """Return the values to save for a document: the recipe and the user's values, with paths as they were written."""
    recipe_value = {"profile": document.recipe_name} if document.recipe_name else {}
    return {"schema_version": SCHEMA_VERSION, **recipe_value, **document.user_values()}


def document_text(document: ConfigDocument) -> str:
    """Return the TOML of a new file for a document."""
    return "\n".join(table_lines({key: toml_text(value) for key, value in saved_values(document).items()})) + "\n"


def line_of(text: str, problem: Problem) -> int:
    """Return the number of the line (from 1) that a problem is about; the last line if that is not known."""
    if match := re.search(r"\bline (\d+)", problem.message):
        return min(int(match[1]), text.count("\n") + 1)
    table, lines = "", text.rstrip("\n").split("\n")
    for number, line in enumerate(lines, 1):
        name = re.sub(r"[\s\"']", "", line.partition("=")[0].partition("#")[0])
        if name.startswith("["):
            table = name.strip("[]")
        key = table if name.startswith("[") else f"{table}.{name}".lstrip(".")
        if problem.key and key == problem.key:
            return number
    return len(lines)


def marked_text(text: str, problems: Sequence[Problem]) -> str:
    """Return the text with a comment about each problem above its line."""
    lines = text.split("\n")
    for line, problem in sorted(((line_of(text, problem), problem) for problem in problems), key=lambda pair: -pair[0]):
        lines.insert(line - 1, f"{_MARK} {one_line(str(replace(problem, where='')))}")
    return "\n".join(lines)


def without_marks(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith(_MARK))


def table_lines(texts: Mapping[str, str]) -> list[str]:
    """Return the lines of a TOML file with these settings. `texts` has the text after the `=` for each dotted key."""
    lines: list[str] = []
    last_table_name = ""
    for key in sorted(texts, key=list(all_settings()).index):
        table_name, _, name = key.rpartition(".")
        if table_name != last_table_name:
            last_table_name = table_name
            lines += ["", f"[{table_name}]"]
        lines.append(f"{name} = {texts[key]}")
    return lines


def save(document: ConfigDocument, path: Path, *, force: bool = False) -> None:
    """Write the document to a file atomically. Keeps comments, order and mode of an existing file.

    Raises ConfigError and leaves the file unchanged if it cannot be written. Without `force`, raises OverwriteError if
    another program changed the document's file, or if `path` is another existing file."""
    document.mark_saved(path, *prepare_save(document, path, force=force)())


def prepare_save(
    document: ConfigDocument, path: Path, *, force: bool = False
) -> Callable[[], tuple[str, dict[str, Any]]]:
    """Return a function that any thread may call to save the present values. It returns the digest and those values."""
    values, new_text, user_values = saved_values(document), document_text(document), document.user_values()
    document_file, document_digest, where = document.file, document.digest, str(path)

    def write() -> tuple[str, dict[str, Any]]:
        resolved_path = _resolve(path)
        digest = file_digest(resolved_path)
        if not force:
            _refuse_to_overwrite(document_file, document_digest, resolved_path, digest, where)
        text = _merged_text(resolved_path, values, where) if digest else new_text
        if digest != file_digest(resolved_path):
            raise ConfigError("was changed by another program just now", where=where, hint="save again")
        try:
            _replace_file(resolved_path, text.encode())
        except OSError as error:
            is_folder_missing = not resolved_path.parent.is_dir()
            hint = "create the folder first, or choose another name" if is_folder_missing else "choose another name"
            reason = f"the folder {resolved_path.parent} does not exist" if is_folder_missing else system_reason(error)
            raise ConfigError(f"cannot be written: {reason}", where=where, hint=hint) from None
        return file_digest(resolved_path) or "", user_values

    return write


def _resolve(path: Path) -> Path:
    """Return the absolute path without links. Raises ConfigError."""
    try:
        return Path(absolute(str(path))).resolve()
    except (OSError, RuntimeError) as error:
        message = f"cannot be written: {system_reason(error)}"
        raise ConfigError(message, where=str(path), hint="use an absolute path") from None


def _refuse_to_overwrite(
    document_file: Path | None, document_digest: str | None, path: Path, digest: str | None, where: str
) -> None:
    is_document_file = document_file is not None and _resolve(document_file) == path
    if is_document_file and digest not in (document_digest, None):
        hint = "reload it, which keeps your edits, or overwrite it"
        raise OverwriteError("was changed by another program since it was read", where=where, hint=hint)
    if not is_document_file and path.exists():
        raise OverwriteError("already exists", where=where, hint="overwrite it, or choose another name")


def _merged_text(path: Path, values: dict[str, Any], where: str) -> str:
    """Return the text of the file at `path` with `values` instead of its settings. Raises ConfigError if that fails."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    hint = "fix it in an editor, or save under another name"
    try:
        tree = tomlkit.parse(path.read_bytes().decode("utf-8-sig"))
        _remove_other_settings(tree, values)
        for key, value in values.items():
            _set_value(tree, key, value)
        text = tomlkit.dumps(tree)
    except (TOMLKitError, OSError, ValueError, TypeError, KeyError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise ConfigError(f"cannot be updated: {reason}", where=where, hint=hint) from None
    # The result is checked, because tomlkit rewrites dotted keys and inline tables.
    written_values = flatten(parse_toml(text, where), where, problems := list[Problem]())
    if problems:
        raise ConfigError(problems)
    has_same_keys = written_values.keys() == values.keys()
    if not has_same_keys or not all(is_same_value(written_values[key], values[key]) for key in values):
        raise ConfigError("cannot be updated", where=where, hint=hint)
    return text


def _remove_other_settings(tree: MutableMapping[str, Any], values: dict[str, Any]) -> None:
    for key in (*all_settings(), *REMOVED):
        *table_names, name = key.split(".")
        table: Any = tree
        for table_name in table_names:
            table = table.get(table_name, {})
        if key not in values and name in table:
            del table[name]


def _set_value(tree: MutableMapping[str, Any], key: str, value: Any) -> None:
    import tomlkit

    *table_names, name = key.split(".")
    table: Any = tree
    for table_name in table_names:
        if table_name not in table:
            table[table_name] = tomlkit.table(is_super_table=None)
        table = table[table_name]
    # An equal value keeps its spelling, such as 0.001 for 1e-3.
    if name not in table or not is_same_value(table[name], value):
        table[name] = tomlkit.parse(f"x = {toml_text(value)}")["x"]


def _replace_file(path: Path, data: bytes) -> None:
    """Write a temporary file, sync it and rename it. Keeps the mode of an existing file. Raises OSError."""
    temporary_path = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary_path.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary_path.unlink()
        raise
