"""Reading and writing TOML without surprises: bounded size, one-sentence errors, dotted keys."""

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
# A dotted key of 20,000 parts takes tomllib ten seconds; a line this long is no setting.
MAX_LINE_CHARACTERS = 4096


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError with the file, the place and the reason."""
    hint = "give the path of a TOML file; `tui-trainer profiles` lists the names for --profile"
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
        raise ConfigError(f"cannot be read: {system_reason(error)}", where=where) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES // 1024} KiB, so it is not a config file", where=where)
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
            hint = "choose a file that does not exist yet"
            raise InputError("already exists and is not overwritten", where=str(path), hint=hint)
        if not path.absolute().parent.exists():
            raise InputError("cannot be written: its folder does not exist", where=str(path), hint="create it first")
    if path.suffix != ".toml":
        raise InputError("does not end in .toml", where=str(path), hint=f"write {option} {path.name}.toml")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet. Raises InputError."""
    try:
        # "x": what came into being since is not overwritten either.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot be written: {system_reason(error)}", where=str(path)) from None


# Profiles: one TOML file is one preset. Recipes set a task and a model, hardware profiles what suits a machine.
#
# A profile is a config file with two tables more: `[about]` (title, summary, source) and, for hardware, `[match]`,
# which
# is only data here: `planning/hardware_match.py` compares it with the machine. One for hardware may also have
# `[[batches]]`, which `planning/effective_batch.py` reads.

Kind = Literal["recipes", "hardware"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """Rows behind a step that feed a card, as `source` gives them: for rows of `tokens`, cards with this memory in GiB
    (from, to), and models of at most so many `parameters`."""

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


def own_profiles() -> Path:
    """The folder of the user's own `recipes` and `hardware` profiles."""
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config_home / "tui-trainer" / "profiles"


def _files(kind: Kind) -> dict[str, Path]:
    """Profiles by name, from the installed package, a checkout, and the user's own. Later ones win."""
    package = Path(__file__).resolve().parent.parent
    checkout = [package.parent / "profiles"] if (package.parent / "pyproject.toml").is_file() else []
    folders = [package / "_profiles", *checkout, own_profiles()]
    return {path.stem: path for folder in folders for path in sorted((folder / kind).glob("*.toml"))}


def profile_names(kind: Kind) -> tuple[str, ...]:
    """Without a look into their files."""
    return tuple(_files(kind))


def all_profiles(kind: Kind) -> dict[str, Profile]:
    """Every profile of one kind by name. Raises ConfigError."""
    return {name: read_profile(path, kind) for name, path in _files(kind).items()}


def find_profile(name: str, kind: Kind) -> Profile:
    """A profile by name, or by the path of its file. Raises ConfigError with the nearest names."""
    if name.endswith(".toml"):
        return read_profile(Path(name), kind)
    known = _files(kind)
    if name in known:
        return read_profile(known[name], kind)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}?" if near else "available: " + ", ".join(sorted(known))
    what = "recipe" if kind == "recipes" else "hardware profile"
    raise ConfigError(f"no {what} is named {name!r}", hint=meant)


def read_profile(path: Path, kind: Kind) -> Profile:
    """Return one profile from its file, which is read again only when it has changed. Raises ConfigError."""
    try:
        facts = path.stat()
    except OSError:
        return _read_profile(path, kind, None)  # raises, which is not kept
    return _read_profile(path, kind, (facts.st_mtime_ns, facts.st_size, facts.st_ino))


@cache
def _read_profile(path: Path, kind: Kind, _changed: tuple[int, int, int] | None) -> Profile:
    values = read_toml(path)
    about, match = values.pop("about", {}), values.pop("match", {})
    if not isinstance(about, dict) or not isinstance(match, dict):
        raise ConfigError("[about] and [match] must be tables", where=str(path))
    batches = _batches(values.pop("batches", []), path) if kind == "hardware" else ()
    return Profile(
        name=path.stem,
        kind=kind,
        path=path,
        title=str(about.get("title", path.stem)),
        summary=str(about.get("summary", "")),
        source=str(about.get("source", "")),
        match=match,
        values=values,
        batches=batches,
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def is_range(value: object) -> bool:
    """Whether it is `[at least, at most]`."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(type(part) in (int, float) for part in value) and value[0] <= value[1]


Shapes = dict[str, tuple[Callable[[object], bool], str]]
"""By key of a table: whether a value is right, and what to write where it is not."""


def misfits(table: Mapping[str, object], shapes: Shapes, required: Container[str]) -> list[tuple[str, str]]:
    """The keys that are missing or wrong, each with what to write."""
    return [
        (key, hint)
        for key, (is_right, hint) in shapes.items()
        if (key in table or key in required) and not is_right(table.get(key))
    ]


# Not by pydantic, whose import would be a quarter of the time to the first screen, which names the hardware profile.
_BATCH_SHAPES: Shapes = {
    "tasks": (
        lambda value: isinstance(value, list) and all(isinstance(part, str) for part in value),
        'write tasks = ["causal_lm"], a list of tasks',
    ),
    "tokens": (_is_count, "write tokens = 1024"),
    "rows": (_is_count, "write rows = 64"),
    "memory_gib": (is_range, "write memory_gib = [20, 25]"),
    "parameters_at_most": (_is_count, "write parameters_at_most = 500_000_000"),
    "source": (lambda value: isinstance(value, str), 'give the source of the number, as source = "..."'),
}
_REQUIRED = _BATCH_SHAPES.keys() - {"memory_gib", "parameters_at_most"}


def _batches(tables: Any, path: Path) -> tuple[BatchSize, ...]:
    """Raises ConfigError for the first table that is wrong."""
    where = str(path)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(Problem(message="must be tables", where=where, key="batches", hint="write [[batches]]"))
    for number, table in enumerate(tables, start=1):
        wrong = [(name, "is missing or invalid", hint) for name, hint in misfits(table, _BATCH_SHAPES, _REQUIRED)]
        known = "available: " + ", ".join(_BATCH_SHAPES)
        wrong += [(one_line(name), "is unknown", known) for name in table if name not in _BATCH_SHAPES]
        if wrong:
            raise ConfigError(
                Problem(
                    message=f"{words} in [[batches]] number {number}", where=where, key=f"batches.{name}", hint=hint
                )
                for name, words, hint in wrong
            )
    return tuple(BatchSize(**table) for table in tables)
