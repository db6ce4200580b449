"""A file of another tool as a file of ours: read, recognised, rewritten, and read back before it counts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import all_settings, flatten, validate
from tui_trainer.config.profiles import find_profile
from tui_trainer.config.sections import SCHEMA_VERSION
from tui_trainer.config.toml_files import parse_toml
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.importing import find_kind
from tui_trainer.importing.contract import Kind, LeftOut, Rewrite, Why
from tui_trainer.importing.conversion import convert
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.recognise import recognise, spread
from tui_trainer.importing.words import left_out_line, refusal_words, shown, sources_text, unsaid_line
from tui_trainer.safe_text import one_line

_PATH_WIDTH = 200
_MODEL = "model.model_name_or_path"
# A file of fewer settings that names no model is a part of a config: what it does not say stands elsewhere.
_WHOLE_FROM = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What a foreign file says in our words, and what it does not say."""

    path: Path
    kind: Kind
    reason: str
    rewrites: tuple[Rewrite, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def unsaid(self) -> dict[str, Any]:
        """Settings that a whole file does not say, with what the other tool takes for them."""
        if _MODEL not in self.values and len(self.rewrites) < _WHOLE_FROM:
            return {}
        return {key: value for key, value in self.kind.defaults.items() if key not in self.values}

    @property
    def values(self) -> dict[str, Any]:
        """Our settings by key."""
        return {rewrite.key: rewrite.value for rewrite in self.rewrites}

    @property
    def toml(self) -> str:
        """The config file, with where each value comes from, and at its end what was left out."""
        by_key = {rewrite.key: rewrite for rewrite in self.rewrites}
        path = one_line(str(self.path), _PATH_WIDTH)
        lines = [f"# {path}, read as {self.kind.name}", f"schema_version = {SCHEMA_VERSION}"]
        table = ""
        for key in sorted(by_key, key=list(all_settings()).index):
            found, _, name = key.rpartition(".")
            if found != table:
                table = found
                lines += ["", f"[{table}]"]
            lines.append(f"{name} = {toml_text(by_key[key].value)}  # {sources_text(by_key[key])}")
        lines += ["", f"# {unsaid_line(self)}"] if self.unsaid else []
        if self.left_out:
            lines += ["", "# Left out:", *(f"#   {left_out_line(one)}" for one in self.left_out)]
        return "\n".join(lines) + "\n"

    def next_command(self, out: str) -> str:
        """The command that uses the config, with a place for what it does not name."""
        words = ["tui-trainer", "plan", shlex.quote(one_line(out))]
        whole = "profile" in self.values
        if not whole and not self.values.get(_MODEL) and self.values.get("model.init") != "scratch":
            words.append("--model FOLDER")
        if not whole and not self.values.get("data.path"):
            words.append("--data FILE")
        return " ".join(words)


def import_file(path: Path, kind_name: str = "") -> Imported:
    """A YAML or JSON file in our words. Raises ConfigError where it cannot be read or its kind is not clear."""
    raw = read_foreign(path)
    if kind_name:
        kind, reason = find_kind(kind_name), "as asked for"
    else:
        found = recognise(raw, str(path))
        kind, reason = found.kind, found.reason
    done = convert(kind, spread(kind, raw))
    imported = Imported(
        path=path, kind=kind, reason=reason, rewrites=tuple(done.rewrites), left_out=tuple(done.left_out)
    )
    _check(imported)
    return imported


def refuse_other_runs(imported: Imported) -> None:
    """Raises ConfigError for a file that means another kind of training than there is, and for one that sets nothing:
    what it leaves to the defaults would be another run than it describes."""
    path = str(imported.path)
    refused = [one for one in imported.left_out if one.why is Why.REFUSED]
    if refused:
        hint = "take it out of the file to import the rest, and choose what is trained yourself"
        raise ConfigError(Problem(message=refusal_words(one), where=path, hint=hint) for one in refused)
    if not imported.rewrites:
        told = "; ".join(map(left_out_line, imported.left_out))
        raise ConfigError(f"sets nothing that there is here: {told}", where=path)


def write_toml(path: Path, text: str, *, force: bool = False) -> None:
    """Write a new file; an old one only when forced. Raises ConfigError."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError("exists already", where=str(path), hint="--force writes over it") from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", where=str(path)) from None


def _check(imported: Imported) -> None:
    """What is written is what the loader reads. Raises ConfigError."""
    problems: list[Problem] = []
    where = "the imported config"
    found = flatten(parse_toml(imported.toml, where), where, problems)
    validate(found, {}, problems)
    if profile := found.get("profile"):
        find_profile(profile, "recipes")
    for key, value in imported.values.items():
        if key not in found or not same(found[key], value):
            problems.append(Problem(message=f"{shown(value)} was not written as it is", where=where, key=key))
    if problems:
        raise ConfigError(problems)
