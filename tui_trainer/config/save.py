"""A Config as TOML: only what the user wrote, on top of the profiles it starts from.

A value of the user's own is written even where it equals the preset: it wins over the hardware profile of another
machine, and a micro-batch that somebody asked for is not made smaller.
"""

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

from tui_trainer.config.changes import same
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig, all_settings, flatten, value_of
from tui_trainer.config.paths import absolute
from tui_trainer.config.removed import REMOVED
from tui_trainer.config.sections import SCHEMA_VERSION
from tui_trainer.config.toml_files import file_digest, nest, parse_toml
from tui_trainer.errors import ConfigError, Problem, system_reason
from tui_trainer.terminal.safe_text import one_line

# As a whole number it would have more digits than a float is sure of.
_WHOLE_BELOW = 1e15
# Before what is wrong in the next line, in a text that somebody goes on with.
_MARK = "# tui-trainer:"


class OverwriteError(ConfigError):
    """A file stands in the way that may be overwritten when somebody says so."""


def to_toml(loaded: LoadedConfig) -> str:
    """TOML that `load` turns into the same Config on the same machine."""
    flat: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if loaded.recipe:
        name = value_of(loaded.config, "profile") or loaded.recipe.name
        flat["profile"] = absolute(name) if name.endswith(".toml") else name
    for key in all_settings():
        # A recipe may name its data from where it lies: the run has the whole path.
        from_recipe = key == "data.path" and any(map(os.path.isabs, loaded.config.data.paths))
        if (loaded.origin(key).by_user or from_recipe) and key not in flat:
            flat[key] = _plain(value_of(loaded.config, key))
    return tomli_w.dumps(nest(flat))


def _plain(value: Any) -> Any:
    """`128` instead of `128.0`: a setting that takes fractions reads both as the same."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_BELOW else value


def saved_values(document: ConfigDocument) -> dict[str, Any]:
    """What a file of this document says: the recipe, and the user's own values as they were written."""
    named = {"profile": document.recipe_name} if document.recipe_name else {}
    return {"schema_version": SCHEMA_VERSION, **named, **document.own_values()}


def document_text(document: ConfigDocument) -> str:
    """The TOML of a new file, one table after the other."""
    return "\n".join(table_lines({key: toml_text(value) for key, value in saved_values(document).items()})) + "\n"


def line_of(text: str, problem: Problem) -> int:
    """The line of a TOML text, from 1 on, that a problem is about: it names the line, or the setting or table; the last
    one where it is about the end."""
    if found := re.search(r"\bline (\d+)", problem.message):
        return min(int(found[1]), text.count("\n") + 1)
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
    """The text with a comment above each line that a problem is about."""
    lines = text.split("\n")
    for line, problem in sorted(((line_of(text, one), one) for one in problems), key=lambda pair: -pair[0]):
        lines.insert(line - 1, f"{_MARK} {one_line(str(replace(problem, where='')))}")
    return "\n".join(lines)


def without_marks(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith(_MARK))


def table_lines(texts: Mapping[str, str]) -> list[str]:
    """One table after the other, in the order of declaration, of settings with what stands behind their `=`."""
    lines: list[str] = []
    table = ""
    for key in sorted(texts, key=list(all_settings()).index):
        found, _, name = key.rpartition(".")
        if found != table:
            table = found
            lines += ["", f"[{table}]"]
        lines.append(f"{name} = {texts[key]}")
    return lines


def save(document: ConfigDocument, path: Path, *, force: bool = False) -> None:
    """Write the document to a file, atomically. Comments and order of a file that is there are kept, and its mode.

    Raises ConfigError, and then the file is as it was: when its folder is missing, when it cannot be written, and,
    unless forced, when it was changed since it was read or is not this document's file at all.
    """
    document.mark_saved(path, *writing(document, path, force=force)())


def writing(document: ConfigDocument, path: Path, *, force: bool = False) -> Callable[[], tuple[str, dict[str, Any]]]:
    """The same with the values of now, to be done by any thread: what `mark_saved` takes behind the path."""
    wanted, new_text, own_values = saved_values(document), document_text(document), document.own_values()
    own_file, own_digest, where = document.file, document.digest, str(path)

    def write() -> tuple[str, dict[str, Any]]:
        whole = _whole(path)
        before = file_digest(whole)
        if not force:
            _refuse_to_overwrite(own_file, own_digest, whole, before, where)
        text = _merged(whole, wanted, where) if before else new_text
        if before != file_digest(whole):
            raise ConfigError("was changed by another program just now", where=where, hint="save again")
        try:
            _replace_file(whole, text.encode())
        except OSError as error:
            missing = not whole.parent.is_dir()
            hint = "create the folder first, or choose another name" if missing else "choose another name"
            reason = f"the folder {whole.parent} does not exist" if missing else system_reason(error)
            raise ConfigError(f"cannot be written: {reason}", where=where, hint=hint) from None
        return file_digest(whole) or "", own_values

    return write


def _whole(path: Path) -> Path:
    """From the root, and without links. Raises ConfigError."""
    try:
        return Path(absolute(str(path))).resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"cannot be written: {system_reason(error)}", where=str(path), hint="use an absolute path"
        ) from None


def _refuse_to_overwrite(
    own_file: Path | None, own_digest: str | None, path: Path, digest: str | None, where: str
) -> None:
    own = own_file is not None and _whole(own_file) == path
    if own and digest not in (own_digest, None):
        hint = "reload it, which keeps your edits, or overwrite it"
        raise OverwriteError("was changed by another program since it was read", where=where, hint=hint)
    if not own and path.exists():
        raise OverwriteError("already exists", where=where, hint="overwrite it, or choose another name")


def _merged(path: Path, wanted: dict[str, Any], where: str) -> str:
    """The file's text with these values in it. Raises ConfigError where that cannot be done."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    hint = "fix it in an editor, or save under another name"
    try:
        tree = tomlkit.parse(path.read_bytes().decode("utf-8-sig"))
        _remove_others(tree, wanted)
        for key, value in wanted.items():
            _put(tree, key, value)
        text = tomlkit.dumps(tree)
    except (TOMLKitError, OSError, ValueError, TypeError, KeyError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise ConfigError(f"cannot be updated: {reason}", where=where, hint=hint) from None
    # Dotted keys and inline tables are rewritten by a library: what it made is read back before it counts.
    found = flatten(parse_toml(text, where), where, problems := list[Problem]())
    if problems:
        raise ConfigError(problems)
    if found.keys() != wanted.keys() or not all(same(found[key], wanted[key]) for key in wanted):
        raise ConfigError("cannot be updated", where=where, hint=hint)
    return text


def _remove_others(tree: MutableMapping[str, Any], wanted: dict[str, Any]) -> None:
    for key in (*all_settings(), *REMOVED):
        *tables, name = key.split(".")
        table: Any = tree
        for part in tables:
            table = table.get(part, {})
        if key not in wanted and name in table:
            del table[name]


def _put(tree: MutableMapping[str, Any], key: str, value: Any) -> None:
    import tomlkit

    *tables, name = key.split(".")
    table: Any = tree
    for part in tables:
        if part not in table:
            table[part] = tomlkit.table(is_super_table=None)
        table = table[part]
    # What is right already keeps its spelling, 1e-3 or 0.001.
    if name not in table or not same(table[name], value):
        table[name] = tomlkit.parse(f"x = {toml_text(value)}")["x"]


def _replace_file(path: Path, data: bytes) -> None:
    """Writes beside the file, syncs, renames. The mode of a file that is there is kept. Raises OSError."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
