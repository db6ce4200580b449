"""A table applied to a file: every key of it ends as a rewrite into ours or as left out, none is lost."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.importing.missing import conditional_names, missing_names, missing_reason
from tui_trainer.importing.rules import Left, Off, Rule, Same, Table, To, Why, empty, fit, merge, off
from tui_trainer.models.chat_rendering import TEMPLATE_KEY
from tui_trainer.terminal.safe_text import one_line

_OFF = "turned off in the file"
_NOT_READ = "this value is not understood"
_SAYS_MORE = "this key is auto, and another key sets a value"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewrite:
    """One of our settings and the keys of the file that it comes from; none where the importer itself implies it."""

    sources: Mapping[str, Any]
    key: str
    value: Any
    reason: str = ""
    product: bool = False
    """Whether the value is the product of the sources."""
    per_device: bool = False
    """Whether the sources are of one device, and the value of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A key of the file without a line in ours."""

    key: str
    value: Any
    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Keys that are read beside each other; `read` takes those that it understands, the rest have rules."""

    names: tuple[str, ...]
    read: "Callable[[Conversion], None]"


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One tool's config: its rows, and the groups of keys that mean something only beside each other.

    `telltale` are keys that speak for it where others know as many keys of a file. Keys inside a table of the file are
    named with dots where that table has no rule of its own. Where a file could be of several tools and means the same
    in each, the one with the lowest `rank` is named.
    """

    name: str
    title: str
    rank: int
    telltale: str
    tables: tuple[Table, ...]
    groups: tuple[KeyGroup, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Our settings with the values that the tool takes where a file does not say them, as far as ours differ."""

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """By name, or by pattern."""
        return merge(*self.tables)

    @cached_property
    def names(self) -> frozenset[str]:
        """All keys that are known by name."""
        single = (name for name in self.rules if "*" not in name)
        of_groups = (name for group in self.groups for name in group.names)
        return frozenset([*single, *of_groups, *missing_names(self.name), *conditional_names(self.name)])

    def rule(self, name: str) -> Rule | None:
        """What becomes of one key; None: the key is not known."""
        matching = (rule for pattern, rule in self.rules.items() if "*" in pattern and fnmatchcase(name, pattern))
        return self.rules.get(name) or next(matching, None)

    def knows(self, name: str) -> bool:
        return name in self.names or self.rule(name) is not None

    def counts(self, name: str) -> bool:
        """Whether a key speaks for this tool: it is known by name, or stands in a table of which all is known."""
        return name in self.names or any(
            pattern.endswith(".*") and fnmatchcase(name, pattern) for pattern in self.rules if "*" not in pattern[:-1]
        )

    def spoken_for(self, given: Mapping[str, Any]) -> list[str]:
        """The telltale keys among those of a file."""
        telltale = self.telltale.split()
        return [name for name in given if name in telltale]


class Conversion:
    """A whole file, read by one importer: its groups take what is still waiting to be read, then each key its rule.

    `folder` is where the file lies, `devices` those that its run trains on; None: nobody says how many. `beside` is the
    file that takes a text of this one, None where nothing is written. `goes_on`: an adapter trains further.
    """

    def __init__(
        self,
        importer: Importer,
        given: Mapping[str, Any],
        folder: Path = Path(),
        devices: int | None = None,
        beside: Path | None = None,
    ) -> None:
        self.given, self.folder, self.devices, self.beside = given, folder, devices, beside
        self.tool, self.text, self.goes_on = importer.name, "", False
        self.rewrites: list[Rewrite] = []
        self.left_out: list[LeftOut] = []
        self._waiting = dict(given)
        self._read_all(importer)
        self._sort()

    def _sort(self) -> None:
        """In the order of the file; what no key says comes last."""
        order = {name: place for place, name in enumerate(self.given)}
        self.rewrites.sort(key=lambda one: min((order[name] for name in one.sources), default=len(order)))
        self.left_out.sort(key=lambda one: (list(Why).index(one.why), order[one.key]))

    @property
    def values(self) -> dict[str, Any]:
        """Our settings by key, as far as they are found."""
        return {rewrite.key: rewrite.value for rewrite in self.rewrites}

    def first(self, *names: str) -> tuple[str, Any] | None:
        """The first of these keys that has a value and waits to be read."""
        return next(((name, self._waiting[name]) for name in names if not empty(self._waiting.get(name))), None)

    def has(self, *names: str) -> bool:
        """Whether the file says something under one of these keys, read already or not."""
        return any(not empty(self.given.get(name)) for name in names)

    def write(
        self,
        key: str,
        value: Any,
        *names: str,
        reason: str = "",
        product: bool = False,
        per_device: bool = False,
    ) -> None:
        """One of our settings, from these keys of the file, which are read with it."""
        try:
            fitting = fit(key, value)
        except ValueError as error:
            self.leave(Why.DOES_NOT_FIT, str(error), *names)
            return
        if self.values.get(key) == "auto" != fitting:
            self.take_back(key, Why.NOT_NEEDED, _SAYS_MORE)
        if fitting == "auto" != self.values.get(key, "auto"):
            self.leave(Why.NOT_NEEDED, _SAYS_MORE, *names)
            return
        if key in self.values and not same(self.values[key], fitting):
            self.leave(Why.DOES_NOT_FIT, f"an earlier key has set {key} to another value", *names)
            return
        sources = {name: self.given[name] for name in names}
        self._read(*names)
        self.rewrites.append(
            Rewrite(sources=sources, key=key, value=fitting, reason=reason, product=product, per_device=per_device)
        )

    def leave(self, why: Why, reason: str, *names: str) -> None:
        """These keys have no line in ours."""
        self._read(*names)
        self.left_out += [LeftOut(key=name, value=self.given[name], why=why, reason=reason) for name in names]

    def take_back(self, key: str, why: Why, reason: str) -> None:
        """What became this setting has no line in ours after all."""
        taken = [one for one in self.rewrites if one.key == key]
        self.rewrites = [one for one in self.rewrites if one.key != key]
        for one in taken:
            self.leave(why, reason, *one.sources)
        self._sort()

    def change(self, key: str, value: Any, name: str, reason: str) -> None:
        """Write another value for a setting, from the key `name` and those that it came from."""
        before = [one for one in self.rewrites if one.key == key]
        self.rewrites = [one for one in self.rewrites if one.key != key]
        sources = dict.fromkeys([*(source for one in before for source in one.sources), name])
        self.write(key, value, *sources, reason=reason)

    def _read_all(self, importer: Importer) -> None:
        for name, value in self.given.items():
            if reason := missing_reason(importer.name, name, value):
                self.leave(Why.REFUSED, reason, name)
        for group in importer.groups:
            group.read(self)
        for name, value in list(self._waiting.items()):
            if empty(value):
                self.leave(Why.NOT_NEEDED, "empty in the file", name)
            elif rule := importer.rule(name):
                self._apply(name, value, rule)
            elif name in conditional_names(importer.name):
                self.leave(Why.ALWAYS, "this value changes nothing", name)
            elif name in importer.names:
                self.leave(*((Why.NOT_NEEDED, _OFF) if off(value) else (Why.DOES_NOT_FIT, _NOT_READ)), name)
            else:
                near = get_close_matches(name, importer.names - {name}, n=1, cutoff=0.8)
                hint = f"did you mean {near[0]}?" if near else f"{importer.name} has no such key"
                self.leave(Why.UNKNOWN, hint, name)

    def _read(self, *names: str) -> None:
        for name in names:
            self._waiting.pop(name, None)

    def _apply(self, name: str, value: Any, rule: Rule) -> None:
        match rule:
            case To():
                self._translate(name, value, rule)
            case Left():
                self.leave(rule.why, rule.reason, name)
            case Off():
                why, reason = (Why.NOT_NEEDED, _OFF) if off(value) else (rule.why, rule.reason)
                self.leave(why, reason, name)
            case Same():
                usual = any(same(value, one) for one in rule.values)
                why = Why.ALWAYS if usual else rule.why
                self.leave(why, rule.reason if usual else rule.otherwise or rule.reason, name)

    def _translate(self, name: str, value: Any, rule: To) -> None:
        spelt = next((spelling for spelling in rule.values if same(value, spelling)), None)
        found = None if spelt is None else rule.values[spelt]
        if isinstance(found, Left | Off):
            self._apply(name, value, found)
        elif spelt is not None:
            self.write(rule.key, found, name, reason=rule.reason)
        elif rule.otherwise:
            self._apply(name, value, rule.otherwise)
        else:
            try:
                value = rule.convert(value) if rule.convert else value
            except ValueError as error:
                self.leave(Why.DOES_NOT_FIT, str(error), name)
            else:
                self.write(rule.key, value, name, reason=rule.reason)


# What becomes of another tool's name for a chat template: one of those here, the model's own, or a refusal.

# How a model is called whose own template is meant: those that give a row without a system message the same one.
QWEN2_5 = re.compile(r"qwen2\.5-(coder-)?[\d.]+b-instruct(-1m)?")
QWEN2_5_VL = re.compile(r"qwen2\.5-vl-[\d.]+b-instruct")
QWEN3_VL = re.compile(r"qwen3-vl-[\d.]+b(-a\d+b)?-instruct")
QWEN3 = re.compile(r"qwen3-[\d.]+b(-a\d+b)?(-base)?")
PHI4 = re.compile("phi-4")


def write_template(
    done: Conversion,
    key: str,
    template: str,
    model: str,
    *,
    ours: Mapping[str, str],
    own: Mapping[str, re.Pattern[str]],
    reason: str = "",
) -> None:
    """`ours`: the tool's names for those that are here, `own`: its names for those that models of such a name have.
    `model` is the one of the file.
    """
    if template in ours:
        done.write(TEMPLATE_KEY, ours[template], key, reason=reason)
    elif template in own and own[template].fullmatch(Path(model).name.lower()):
        more = f"; {reason}" if reason else ""
        done.leave(Why.ALWAYS, f"this is the model's own chat template, which is used{more}", key)
    else:
        why = (
            "does not match this model" if template in own else "is not available, and may differ from the model's own"
        )
        hint = f"use --without {key} for the model's own template, or set {TEMPLATE_KEY}"
        done.leave(Why.REFUSED, f"the template {one_line(template, 40)} {why}; {hint}", key)


def write_text(done: Conversion, text: str, *names: str) -> None:
    """Write a template that stands in the file itself into a file beside the result."""
    if done.beside is None:
        done.leave(
            Why.REFUSED, "the template needs a file of its own; --to OUT.toml writes this file next to OUT.toml", *names
        )
    else:
        done.text = text
        done.write(TEMPLATE_KEY, str(done.beside), *names, reason="the template text, in a file next to the config")
