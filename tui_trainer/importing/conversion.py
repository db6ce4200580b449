"""A table applied to a file: every key of it ends as a rewrite into ours or as left out, none is lost."""

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
from tui_trainer.importing.rules import OFF, Left, Off, Rule, Same, Table, To, Why, empty, fit, merge

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


class Given(NamedTuple):
    """A key of the file that has a value."""

    name: str
    value: Any

    @property
    def is_on(self) -> bool:
        """Whether it is true, and not only like it."""
        return self.value is True

    @property
    def is_off(self) -> bool:
        return rules.off(self.value)

    @property
    def number(self) -> float | None:
        return rules.number(self.value)

    @property
    def whole(self) -> int | None:
        return rules.whole(self.value)


class Keys:
    """Keys of a file that mean something only beside each other, and the function that reads them.

    Each of `names` is a key, or several spellings of one with blanks between them. The function gets the first spelling
    of each that has a value and no line yet, or None. It is called if all are there that it annotates as `Given`. Keys
    that it leaves have rules.
    """

    def __init__(self, read: Callable[..., None], *names: str, **options: Any) -> None:
        self.names = tuple(" ".join(names).split())
        self._function, self._spellings, self._options = read, names, options
        self._required = [hint is Given for hint in read.__annotations__.values()][1:]

    def read(self, done: "Conversion") -> None:
        given = [done.first(*spellings.split()) for spellings in self._spellings]
        if all(key or not is_required for key, is_required in zip(given, self._required, strict=False)):
            self._function(done, *given, **self._options)


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
    groups: tuple[Keys, ...] = ()
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
        of_groups = (name for keys in self.groups for name in keys.names)
        return frozenset([*single, *of_groups, *missing_names(self.name), *conditional_names(self.name)])

    def rule(self, name: str) -> Rule | None:
        """Return what becomes of one key; None: it has no rule."""
        matching = (rule for pattern, rule in self.rules.items() if "*" in pattern and fnmatchcase(name, pattern))
        return self.rules.get(name) or next(matching, None)

    def counts(self, name: str) -> bool:
        """Return whether a key speaks for this tool: it is known by name, or in a table of which all is known."""
        return name in self.names or any(
            pattern.endswith(".*") and fnmatchcase(name, pattern) for pattern in self.rules if "*" not in pattern[:-1]
        )

    def telltale_in(self, given: Mapping[str, Any]) -> list[str]:
        """Return the telltale keys among those of a file."""
        return [name for name in given if name in self.telltale.split()]


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
        for name, value in given.items():
            if reason := missing_reason(importer.name, name, value):
                self.leave(Why.REFUSED, reason, name)
        for keys in importer.groups:
            keys.read(self)
        self._apply_rules(importer)
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

    def first(self, *names: str) -> Given | None:
        """The first of these keys that has a value and waits to be read."""
        return next((Given(name, self._waiting[name]) for name in names if not empty(self._waiting.get(name))), None)

    def file(self, key: Given | None) -> Path | None:
        """Return the file that a key names, if it is near the one that is read."""
        return rules.file_near(self.folder, str(key.value)) if key else None

    def has(self, *names: str) -> bool:
        """Whether the file says something under one of these keys, read already or not."""
        return any(not empty(self.given.get(name)) for name in names)

    def write(
        self,
        key: str,
        value: Any,
        *sources: Given | str | None,
        reason: str = "",
        product: bool = False,
        per_device: bool = False,
    ) -> None:
        """Write one of our settings, from these keys of the file, which are read with it."""
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
        """Leave out these keys of the file."""
        for name in _names(sources):
            self.left_out.append(LeftOut(key=name, value=self._read(name), why=why, reason=reason))

    def reject(self, key: str, why: Why, reason: str) -> None:
        """Leave out the keys that became this setting after all."""
        self.leave(why, reason, *self._withdraw(key))
        self._sort()

    def change(self, key: str, value: Any, name: str, reason: str) -> None:
        """Write another value for a setting, from the key `name` and those that it came from."""
        self.write(key, value, *dict.fromkeys([*self._withdraw(key), name]), reason=reason)

    def _withdraw(self, key: str) -> list[str]:
        """Remove a setting, and return the keys that it came from."""
        sources = [name for rewrite in self.rewrites if rewrite.key == key for name in rewrite.sources]
        self.rewrites = [rewrite for rewrite in self.rewrites if rewrite.key != key]
        return sources

    def _apply_rules(self, importer: Importer) -> None:
        """Apply to each key that no group has read its rule."""
        for name, value in list(self._waiting.items()):
            if empty(value):
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
        """Return the value of a key, which has been read with that."""
        self._waiting.pop(name, None)
        return self.given[name]

    def _apply(self, name: str, value: Any, rule: Rule) -> None:
        match rule:
            case Left():
                self.leave(rule.why, rule.reason, name)
            case Off():
                self._apply(name, value, OFF if rules.off(value) else Left(rule.why, rule.reason))
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
