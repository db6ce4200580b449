"""Profiles: one TOML file is one preset. Recipes set a task and a model, hardware profiles what suits a machine.

A profile is a config file with two tables more: `[about]` (title, summary, source) and, for hardware, `[match]`, which
is only data here: `planning/hardware_match.py` compares it with the machine.
"""

import os
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from tui_trainer.config.toml_files import read_toml
from tui_trainer.errors import ConfigError

Kind = Literal["recipes", "hardware"]


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


def _files(kind: Kind) -> dict[str, Path]:
    """Profiles by name, from the installed package, a checkout, and the user's own. Later ones win."""
    package = Path(__file__).resolve().parent.parent
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    checkout = [package.parent / "profiles"] if (package.parent / "pyproject.toml").is_file() else []
    folders = [package / "_profiles", *checkout, config_home / "tui-trainer" / "profiles"]
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
    meant = f"did you mean {near[0]}?" if near else "known: " + ", ".join(sorted(known))
    what = "recipe" if kind == "recipes" else "hardware profile"
    raise ConfigError(f"there is no {what} named {name!r}", hint=meant)


def read_profile(path: Path, kind: Kind) -> Profile:
    """One profile from its file. Raises ConfigError."""
    values = read_toml(path)
    about, match = values.pop("about", {}), values.pop("match", {})
    if not isinstance(about, dict) or not isinstance(match, dict):
        raise ConfigError("[about] and [match] must be tables", where=str(path))
    return Profile(
        name=path.stem,
        kind=kind,
        path=path,
        title=str(about.get("title", path.stem)),
        summary=str(about.get("summary", "")),
        source=str(about.get("source", "")),
        match=match,
        values=values,
    )
