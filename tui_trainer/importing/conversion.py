"""Apply an importer to a file. Each key of the file becomes one of our settings or is listed as left out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tui_trainer.config.changes import same
from tui_trainer.importing import rules
from tui_trainer.importing.missing import conditional_names, missing_names, missing_reason
from tui_trainer.importing.rules import OFF, Left, Off, Rule, Same, Table, To, Why, fit, is_empty, merge

_SAYS_MORE = "this key is auto, and another key sets a value"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewrite:
    """One of our settings and the keys of the file that it comes from; none if the importer itself implies it."""

    sources: Mapping[str, Any]
    key: str
    value: Any
    reason: str = ""
    product: bool = False
    """Whether the value is the product of the values of the sources."""
    per_device: bool = False
    """Whether the sources count per device, and the value for all devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Key of the file that does not become one of our settings."""

    key: str
    value: Any
    why: Why
    reason: str


class Given(NamedTuple):
    """Key of the file that has a value."""

    name: str
    value: Any

    @property
    def is_on(self) -> bool:
        """Whether the value is True, not merely a true value such as 1."""
        return self.value is True

    @property
    def is_off(self) -> bool:
        return rules.is_off(self.value)

    @property
    def number(self) -> float | None:
        return rules.number(self.value)

    @property
    def whole(self) -> int | None:
        return rules.whole(self.value)


class Keys:
    """Keys of a file that have a meaning only together, and the function that reads them.

    Each of `names` is one key, or several spellings of it separated by blanks. The function is called with the
    Conversion and, for each of `names`, with the first spelling that has a value and was not read yet, or None. It
    is not called if a parameter that is annotated as `Given` would be None. Rules apply to the keys that it does not
    read."""

    def __init__(self, read: Callable[..., None], *names: str, **options: Any) -> None:
        self.names = tuple(" ".join(names).split())
        self._function, self._spellings, self._options = read, names, options
        self._required = [hint is Given for hint in read.__annotations__.values()][1:]

    def read(self, done: "Conversion") -> None:
        keys = [done.first(*spellings.split()) for spellings in self._spellings]
        if all(key or not is_required for key, is_required in zip(keys, self._required, strict=False)):
            self._function(done, *keys, **self._options)


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Definition of how the config of one tool is read: rules for single keys, and groups of keys.

    `telltale` keys decide between importers that know equally many keys of a file. If a file converts to the same
    settings with several importers, the one with the lowest `rank` is reported. Keys in a table of the file are named
    with dots, unless the table itself has a rule."""

    name: str
    title: str
    rank: int
    telltale: str
    tables: tuple[Table, ...]
    groups: tuple[Keys, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the tool that differ from ours, by our settings."""

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """Rules by the name of the key, or by a pattern of names."""
        return merge(*self.tables)

    @cached_property
    def names(self) -> frozenset[str]:
        """All keys that are known by name."""
        in_rules = (name for name in self.rules if "*" not in name)
        in_groups = (name for keys in self.groups for name in keys.names)
        return frozenset([*in_rules, *in_groups, *missing_names(self.name), *conditional_names(self.name)])

    def rule(self, name: str) -> Rule | None:
        """Return the rule of a key, or None."""
        matching = (rule for pattern, rule in self.rules.items() if "*" in pattern and fnmatchcase(name, pattern))
        return self.rules.get(name) or next(matching, None)

    def counts(self, name: str) -> bool:
        """Return whether a key is evidence for this tool: its name is known, or a whole table that contains it."""
        return name in self.names or any(
            pattern.endswith(".*") and fnmatchcase(name, pattern) for pattern in self.rules if "*" not in pattern[:-1]
        )

    def telltale_in(self, given: Mapping[str, Any]) -> list[str]:
        """Return those keys of a file that are telltale."""
        return [name for name in given if name in self.telltale.split()]


class Conversion:
    """A whole file, read by one importer: first by its groups of keys, then by the rules of the keys that are left.

    `folder` is that of the file. `devices` is the number of devices of a run, None if unknown. `beside` is the path for
    a text that is written next to the result, None if nothing is written. `goes_on` says whether an adapter is trained
    further."""

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
        self._unread = dict(given)
        for name, value in given.items():
            if reason := missing_reason(importer.name, name, value):
                self.leave(Why.REFUSED, reason, name)
        for keys in importer.groups:
            keys.read(self)
        self._apply_rules(importer)
        self._sort()

    def _sort(self) -> None:
        """Sort by the order of keys in the file. Settings that no key sets come last."""
        order = {name: position for position, name in enumerate(self.given)}
        self.rewrites.sort(key=lambda it: min((order[name] for name in it.sources), default=len(order)))
        self.left_out.sort(key=lambda left: (list(Why).index(left.why), order[left.key]))

    @property
    def values(self) -> dict[str, Any]:
        """Converted settings by key."""
        return {rewrite.key: rewrite.value for rewrite in self.rewrites}

    def first(self, *names: str) -> Given | None:
        """Return the first of these keys that has a value and was not read yet."""
        return next((Given(name, self._unread[name]) for name in names if not is_empty(self._unread.get(name))), None)

    def file(self, key: Given | None) -> Path | None:
        """Return the path of the file that a key names, if it exists near the file that is read."""
        return rules.file_near(self.folder, str(key.value)) if key else None

    def has(self, *names: str) -> bool:
        """Return whether one of these keys has a value, read already or not."""
        return any(not is_empty(self.given.get(name)) for name in names)

    def write(
        self,
        key: str,
        value: Any,
        *sources: Given | str | None,
        reason: str = "",
        product: bool = False,
        per_device: bool = False,
    ) -> None:
        """Write one of our settings. The keys that it comes from are then read."""
        names = _names(sources)
        try:
            fitting = fit(key, value)
        except ValueError as error:
            self.leave(Why.DOES_NOT_FIT, str(error), *names)
            return
        if self.values.get(key) == "auto" != fitting:
            self.reject(key, Why.NOT_NEEDED, _SAYS_MORE)
        if fitting == "auto" != self.values.get(key, "auto"):
            self.leave(Why.NOT_NEEDED, _SAYS_MORE, *names)
            return
        if key in self.values and not same(self.values[key], fitting):
            self.leave(Why.DOES_NOT_FIT, f"an earlier key has set {key} to another value", *names)
            return
        values = {name: self._read(name) for name in names}
        self.rewrites.append(
            Rewrite(sources=values, key=key, value=fitting, reason=reason, product=product, per_device=per_device)
        )

    def leave(self, why: Why, reason: str, *sources: Given | str | None) -> None:
        """Leave out keys of the file, for a reason."""
        for name in _names(sources):
            self.left_out.append(LeftOut(key=name, value=self._read(name), why=why, reason=reason))

    def reject(self, key: str, why: Why, reason: str) -> None:
        """Remove a setting that was written, and leave out the keys that it came from."""
        self.leave(why, reason, *self._withdraw(key))
        self._sort()

    def change(self, key: str, value: Any, name: str, reason: str) -> None:
        """Replace the value of a setting. It then comes from the key `name` too."""
        self.write(key, value, *dict.fromkeys([*self._withdraw(key), name]), reason=reason)

    def _withdraw(self, key: str) -> list[str]:
        """Remove a setting and return the keys that it came from."""
        sources = [name for rewrite in self.rewrites if rewrite.key == key for name in rewrite.sources]
        self.rewrites = [rewrite for rewrite in self.rewrites if rewrite.key != key]
        return sources

    def _apply_rules(self, importer: Importer) -> None:
        """Apply rules to the keys that no group has read."""
        for name, value in list(self._unread.items()):
            if is_empty(value):
                self.leave(Why.NOT_NEEDED, "empty in the file", name)
            elif rule := importer.rule(name):
                self._apply(name, value, rule)
            elif name in conditional_names(importer.name):
                self.leave(Why.ALWAYS, "this value changes nothing", name)
            elif name in importer.names:
                self._apply(name, value, Off("this value is not understood", Why.DOES_NOT_FIT))
            else:
                near = get_close_matches(name, importer.names - {name}, n=1, cutoff=0.8)
                hint = f"did you mean {near[0]}?" if near else f"{importer.name} has no such key"
                self.leave(Why.UNKNOWN, hint, name)

    def _read(self, name: str) -> Any:
        """Mark a key as read and return its value."""
        self._unread.pop(name, None)
        return self.given[name]

    def _apply(self, name: str, value: Any, rule: Rule) -> None:
        match rule:
            case Left():
                self.leave(rule.why, rule.reason, name)
            case Off():
                self._apply(name, value, OFF if rules.is_off(value) else Left(rule.why, rule.reason))
            case Same():
                if any(same(value, usual) for usual in rule.values):
                    self.leave(Why.ALWAYS, rule.reason, name)
                else:
                    self.leave(rule.why, rule.otherwise.format(rule.reason), name)
            case To():
                try:
                    ours = rule.translate(value)
                except ValueError as error:
                    self.leave(Why.DOES_NOT_FIT, str(error), name)
                    return
                if isinstance(ours, Left | Off):
                    self._apply(name, value, ours)
                else:
                    self.write(rule.key, ours, name, reason=rule.reason)


def _names(sources: Iterable[Given | str | None]) -> list[str]:
    return [source if isinstance(source, str) else source.name for source in sources if source]
