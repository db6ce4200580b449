"""Reading TOML files with a size limit and one-sentence errors, and the profiles, which are TOML files."""

import hashlib
import os
import tomllib
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tui_trainer.errors import ConfigError, InputError, Problem, system_reason
from tui_trainer.terminal.safe_text import one_line

MAX_BYTES = 256 * 1024
# No setting needs a longer line, and tomllib takes ten seconds for a dotted key of 20,000 parts.
MAX_LINE_CHARACTERS = 4096


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises ConfigError with the file, the line and the reason."""
    hint = "give the path of a TOML file; `tui-trainer profiles` lists the names for --profile"
    return parse_toml(read_config(path, hint), str(path))


def read_config(path: Path, hint: str) -> str:
    """Return the text of a config file of any kind. Raises ConfigError, with the `hint` if the file does not exist."""
    where = str(path)
    try:
        if not path.is_file():
            raise ConfigError("is not a file" if path.exists() else "does not exist", where=where, hint=hint)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {system_reason(error)}", where=where) from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES // 1024} KiB, so it is not a config file", where=where)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"line {line} is not UTF-8", where=where, hint="save the file as UTF-8") from None


def file_digest(path: Path) -> str | None:
    """Return a hash of a config file's content; None if the file cannot be read."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.sha256(file.read(MAX_BYTES + 1)).hexdigest()
    except (OSError, ValueError):
        pass
    return None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ConfigError."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise ConfigError(f"line {number} is longer than {MAX_LINE_CHARACTERS} characters", where=where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError("is nested too deeply", where=where) from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"is not valid TOML: {reason}", where=where) from None


def nest(flat_values: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables for dotted keys: `{"a": {"b": 1}}` for `{"a.b": 1}`."""
    nested: dict[str, Any] = {}
    for key, value in flat_values.items():
        *table_names, name = key.split(".")
        table = nested
        for table_name in table_names:
            table = table.setdefault(table_name, {})
        table[name] = value
    return nested


def refuse_existing(path: Path, option: str = "--fix") -> None:
    """Raise InputError if a new config file cannot be written to `path`. `option` is the option that named the path."""
    # In a folder without permission these checks fail, and the writing will report the reason.
    with suppress(OSError):
        if path.exists() or path.is_symlink():
            hint = "choose a file that does not exist yet"
            raise InputError("already exists and is not overwritten", where=str(path), hint=hint)
        if not path.absolute().parent.exists():
            raise InputError("cannot be written: its folder does not exist", where=str(path), hint="create it first")
    if path.suffix != ".toml":
        raise InputError("does not end in .toml", where=str(path), hint=f"write {option} {path.name}.toml")


def write_new(path: Path, text: str) -> None:
    """Write a new file. Raises InputError."""
    try:
        # The mode "x" also protects a file that was created since the check.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot be written: {system_reason(error)}", where=str(path)) from None


# A profile is a TOML file with presets. Recipes set the task and the model, and hardware profiles suit a machine.
#
# A profile has the tables of a config file, and `[about]` (title, summary, source). A hardware profile also has
# `[match]`, which `planning/hardware_match.py` compares with the machine, and may have `[[batches]]`, which
# `planning/effective_batch.py` reads.

Kind = Literal["recipes", "hardware"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """A number of rows per step that uses a GPU fully, according to `source`.

    It holds for rows of this number of `tokens`, GPUs with `memory_gib` (lowest and highest), and models up to
    `parameters_at_most`."""

    tasks: list[str]
    tokens: int
    rows: int
    memory_gib: list[float] = field(default_factory=lambda: [0, 10**6])
    parameters_at_most: int = 10**15
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    name: str
    kind: Kind
    path: Path
    title: str
    summary: str
    source: str
    match: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    batches: tuple[BatchSize, ...] = ()


def user_profiles_folder() -> Path:
    """Return the folder with the user's `recipes` and `hardware` profiles."""
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config_home / "tui-trainer" / "profiles"


def _profile_files(kind: Kind) -> dict[str, Path]:
    """Return the files of all profiles by name. The user's profiles take precedence over those of the package."""
    package = Path(__file__).resolve().parent.parent
    checkout_folders = [package.parent / "profiles"] if (package.parent / "pyproject.toml").is_file() else []
    folders = [package / "_profiles", *checkout_folders, user_profiles_folder()]
    return {path.stem: path for folder in folders for path in sorted((folder / kind).glob("*.toml"))}


def profile_names(kind: Kind) -> tuple[str, ...]:
    """Return the names of all profiles of one kind, without reading their files."""
    return tuple(_profile_files(kind))


def all_profiles(kind: Kind) -> dict[str, Profile]:
    """Return all profiles of one kind by name. Raises ConfigError."""
    return {name: read_profile(path, kind) for name, path in _profile_files(kind).items()}


def find_profile(name: str, kind: Kind) -> Profile:
    """Return a profile by its name or the path of its file. Raises ConfigError with the most similar name."""
    if name.endswith(".toml"):
        return read_profile(Path(name), kind)
    files = _profile_files(kind)
    if name in files:
        return read_profile(files[name], kind)
    similar_names = get_close_matches(name, files, n=1, cutoff=0.5)
    hint = f"did you mean {similar_names[0]}?" if similar_names else "available: " + ", ".join(sorted(files))
    noun = "recipe" if kind == "recipes" else "hardware profile"
    raise ConfigError(f"no {noun} is named {name!r}", hint=hint)


def read_profile(path: Path, kind: Kind) -> Profile:
    """Return the profile of a file, which is read again only if it has changed. Raises ConfigError."""
    try:
        status = path.stat()
    except OSError:
        return _read_profile(path, kind, None)  # raises ConfigError, which is not cached
    return _read_profile(path, kind, (status.st_mtime_ns, status.st_size, status.st_ino))


@cache
def _read_profile(path: Path, kind: Kind, _signature: tuple[int, int, int] | None) -> Profile:
    values = read_toml(path)
    about_table, match_table = values.pop("about", {}), values.pop("match", {})
    if not isinstance(about_table, dict) or not isinstance(match_table, dict):
        raise ConfigError("[about] and [match] must be tables", where=str(path))
    batches = _read_batches(values.pop("batches", []), path) if kind == "hardware" else ()
    return Profile(
        name=path.stem,
        kind=kind,
        path=path,
        title=str(about_table.get("title", path.stem)),
        summary=str(about_table.get("summary", "")),
        source=str(about_table.get("source", "")),
        match=match_table,
        values=values,
        batches=batches,
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def is_range(value: object) -> bool:
    """Return whether the value is a list `[minimum, maximum]` of numbers."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(type(part) in (int, float) for part in value) and value[0] <= value[1]


Shapes = dict[str, tuple[Callable[[object], bool], str]]
"""For each key of a TOML table, a function that checks its value, and a hint for a wrong value."""


def misfits(table: Mapping[str, object], shapes: Shapes, required: Container[str]) -> list[tuple[str, str]]:
    """Return the keys of a TOML table that are missing or have wrong values, each with its hint."""
    checked = {key: shape for key, shape in shapes.items() if key in table or key in required}
    return [(key, hint) for key, (is_right, hint) in checked.items() if not is_right(table.get(key))]


# The check does without pydantic, whose import would take a quarter of the time to the first screen.
_BATCH_SHAPES: Shapes = {
    "tasks": (
        lambda value: isinstance(value, list) and all(isinstance(part, str) for part in value),
        'write tasks = ["causal_lm"], a list of tasks',
    ),
    "tokens": (_is_count, "write tokens = 1024"),
    "rows": (_is_count, "write rows = 64"),
    "memory_gib": (is_range, "write it as a range, such as memory_gib = [20, 25]"),
    "parameters_at_most": (_is_count, "write parameters_at_most = 500_000_000"),
    "source": (lambda value: isinstance(value, str), 'give the source of the number, as source = "..."'),
}
_REQUIRED = _BATCH_SHAPES.keys() - {"memory_gib", "parameters_at_most"}


def _read_batches(tables: Any, path: Path) -> tuple[BatchSize, ...]:
    """Return the entries of `[[batches]]`. Raises ConfigError for the first invalid one."""
    where = str(path)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(Problem(message="must be tables", where=where, key="batches", hint="write [[batches]]"))
    for number, table in enumerate(tables, start=1):
        mistakes = [(name, "is missing or invalid", hint) for name, hint in misfits(table, _BATCH_SHAPES, _REQUIRED)]
        names_hint = "available: " + ", ".join(_BATCH_SHAPES)
        mistakes += [(one_line(name), "is unknown", names_hint) for name in table if name not in _BATCH_SHAPES]
        if mistakes:
            place = f"in table {number} of [[batches]]"
            raise ConfigError(
                Problem(message=f"{mistake} {place}", where=where, key=f"batches.{name}", hint=hint)
                for name, mistake, hint in mistakes
            )
    return tuple(BatchSize(**table) for table in tables)
