"""Apply an importer to a file. Each key of the file becomes one of our settings or is listed as left out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tui_trainer.config.changes import is_same_value
from tui_trainer.importing import rules
from tui_trainer.importing.missing import conditional_names, missing_names, missing_reason
from tui_trainer.importing.rules import OFF, Off, Rule, Same, Skip, Table, To, Why, is_empty, merge, to_setting_type

_AUTO_REASON = "this key is auto, so the value of another key is used"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One of our settings with its value, and the keys of the file that it comes from (none if the tool implies it)."""

    sources: Mapping[str, Any]
    key: str
    value: Any
    reason: str = ""
    is_product: bool = False
    """Whether the setting's value is the product of the values of the source keys."""
    per_device: bool = False
    """Whether the source keys count for one device, and the setting's value for all devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A key of the file that does not become one of our settings, and why."""

    key: str
    value: Any
    why: Why
    reason: str


class Given(NamedTuple):
    """A key of the file with its value."""

    name: str
    value: Any

    @property
    def is_on(self) -> bool:
        """Whether the value is exactly True, and not a number such as 1."""
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
    """Keys of a file that have a meaning only together, and the function that converts them.

    Each of `names` is one key, or several spellings of it separated by blanks. The function is called with the
    Conversion and with one `Given` for each of `names`: the first spelling that has a value and was not read yet, or
    None. It is not called if a parameter that does not allow None would be None. Keys that the function neither writes
    nor leaves out are converted by their rules."""

    def __init__(self, read: Callable[..., None], *names: str, **options: Any) -> None:
        self.names = tuple(" ".join(names).split())
        self._function, self._spellings, self._options = read, names, options
        self._required = [hint is Given for hint in read.__annotations__.values()][1:]

    def read(self, conversion: "Conversion") -> None:
        given_keys = [conversion.first_unread(*spellings.split()) for spellings in self._spellings]
        if all(key or not is_required for key, is_required in zip(given_keys, self._required, strict=False)):
            self._function(conversion, *given_keys, **self._options)


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Definition of how the config of one tool is converted: rules for single keys, and groups of keys.

    `telltale` keys decide between importers that know equally many keys of a file. If several importers convert a file
    to the same settings, the importer with the lowest `rank` is reported. Keys in a table of the file are named with
    dots, unless the table itself has a rule."""

    name: str
    title: str
    rank: int
    telltale: str
    tables: tuple[Table, ...]
    groups: tuple[Keys, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the tool that differ from ours, keyed by our settings."""

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """Rules, keyed by the name of a key in the file or by a pattern of such names."""
        return merge(*self.tables)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all keys that the importer knows by their full name, not by a pattern."""
        in_rules = (name for name in self.rules if "*" not in name)
        in_groups = (name for keys in self.groups for name in keys.names)
        return frozenset([*in_rules, *in_groups, *missing_names(self.name), *conditional_names(self.name)])

    def rule(self, name: str) -> Rule | None:
        """Return the rule for a key by its name or a pattern; None if there is no rule."""
        matching_rules = (rule for pattern, rule in self.rules.items() if "*" in pattern and fnmatchcase(name, pattern))
        return self.rules.get(name) or next(matching_rules, None)

    def knows_key(self, name: str) -> bool:
        """Return whether a key is evidence for this tool: the importer knows its name, or a table that contains it."""
        return name in self.names or any(
            pattern.endswith(".*") and fnmatchcase(name, pattern) for pattern in self.rules if "*" not in pattern[:-1]
        )

    def telltale_in(self, given: Mapping[str, Any]) -> list[str]:
        """Return the keys of a file that are telltale for this tool."""
        return [name for name in given if name in self.telltale.split()]


class Conversion:
    """Conversion of a whole file by one importer: first by its groups of keys, then by rules for the remaining keys.

    `folder` contains the file. `devices` is the number of devices of a run, None if unknown. `template_path` is the
    path for a chat template next to the written config, None if no config is written. `continues_adapter` says whether
    the run continues to train an adapter."""

    def __init__(
        self,
        importer: Importer,
        given: Mapping[str, Any],
        folder: Path = Path(),
        devices: int | None = None,
        template_path: Path | None = None,
    ) -> None:
        self.given, self.folder, self.devices, self.template_path = given, folder, devices, template_path
        self.tool, self.chat_template_text, self.continues_adapter = importer.name, "", False
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
        """Sort the results by the order of their keys in the file. Settings that come from no key are last."""
        positions = {name: position for position, name in enumerate(self.given)}
        last = len(positions)
        self.rewrites.sort(key=lambda rewrite: min((positions[name] for name in rewrite.sources), default=last))
        self.left_out.sort(key=lambda skipped_key: (list(Why).index(skipped_key.why), positions[skipped_key.key]))

    @property
    def values(self) -> dict[str, Any]:
        """Values of the converted settings, by key."""
        return {rewrite.key: rewrite.value for rewrite in self.rewrites}

    def first_unread(self, *names: str) -> Given | None:
        """Return the first of these keys that has a value and was not read yet; None if there is none."""
        return next((Given(name, self._unread[name]) for name in names if not is_empty(self._unread.get(name))), None)

    def file(self, key: Given | None) -> Path | None:
        """Return the path of the file that a key names, if that file exists near the config; else None."""
        return rules.file_near(self.folder, str(key.value)) if key else None

    def has(self, *names: str) -> bool:
        """Return whether one of these keys has a value in the file, whether or not it was read."""
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
        """Add one of our settings to the result. It comes from the keys `sources`, which are marked as read."""
        names = _names(sources)
        try:
            our_value = to_setting_type(key, value)
        except ValueError as error:
            self.leave(Why.DOES_NOT_FIT, str(error), *names)
            return
        if self.values.get(key) == "auto" != our_value:
            self.reject(key, Why.NOT_NEEDED, _AUTO_REASON)
        if our_value == "auto" != self.values.get(key, "auto"):
            self.leave(Why.NOT_NEEDED, _AUTO_REASON, *names)
            return
        if key in self.values and not is_same_value(self.values[key], our_value):
            self.leave(Why.DOES_NOT_FIT, f"an earlier key has set {key} to another value", *names)
            return
        values = {name: self._read(name) for name in names}
        self.rewrites.append(Rewrite(values, key, our_value, reason, is_product=product, per_device=per_device))

    def leave(self, why: Why, reason: str, *sources: Given | str | None) -> None:
        """List keys of the file as left out, with the reason, and mark them as read."""
        for name in _names(sources):
            self.left_out.append(LeftOut(key=name, value=self._read(name), why=why, reason=reason))

    def reject(self, key: str, why: Why, reason: str) -> None:
        """Remove a setting from the result, and list the keys that it came from as left out."""
        self.leave(why, reason, *self._withdraw(key))
        self._sort()

    def change(self, key: str, value: Any, name: str, reason: str) -> None:
        """Replace the value of a setting in the result, and add the key `name` to those that it comes from."""
        self.write(key, value, *dict.fromkeys([*self._withdraw(key), name]), reason=reason)

    def _withdraw(self, key: str) -> list[str]:
        """Remove a setting from the result, and return the keys that it came from."""
        sources = [name for rewrite in self.rewrites if rewrite.key == key for name in rewrite.sources]
        self.rewrites = [rewrite for rewrite in self.rewrites if rewrite.key != key]
        return sources

    def _apply_rules(self, importer: Importer) -> None:
        """Convert the keys that no group has read by their rules."""
        for name, value in list(self._unread.items()):
            if is_empty(value):
                self.leave(Why.NOT_NEEDED, "empty in the file", name)
            elif rule := importer.rule(name):
                self._apply(name, value, rule)
            elif name in conditional_names(importer.name):
                self.leave(Why.ALWAYS, "this value has no effect here", name)
            elif name in importer.names:
                self._apply(name, value, Off("this value is not understood", Why.DOES_NOT_FIT))
            else:
                similar_names = get_close_matches(name, importer.names - {name}, n=1, cutoff=0.8)
                hint = f"did you mean {similar_names[0]}?" if similar_names else f"{importer.name} has no such key"
                self.leave(Why.UNKNOWN, hint, name)

    def _read(self, name: str) -> Any:
        """Mark a key as read and return its value."""
        self._unread.pop(name, None)
        return self.given[name]

    def _apply(self, name: str, value: Any, rule: Rule) -> None:
        match rule:
            case Skip():
                self.leave(rule.why, rule.reason, name)
            case Off():
                self._apply(name, value, OFF if rules.is_off(value) else Skip(rule.why, rule.reason))
            case Same():
                if any(is_same_value(value, usual_value) for usual_value in rule.values):
                    self.leave(Why.ALWAYS, rule.reason, name)
                else:
                    self.leave(rule.why, rule.otherwise.format(rule.reason), name)
            case To():
                try:
                    our_value = rule.translate(value)
                except ValueError as error:
                    self.leave(Why.DOES_NOT_FIT, str(error), name)
                    return
                if isinstance(our_value, Skip | Off):
                    self._apply(name, value, our_value)
                else:
                    self.write(rule.key, our_value, name, reason=rule.reason)


def _names(sources: Iterable[Given | str | None]) -> list[str]:
    return [source if isinstance(source, str) else source.name for source in sources if source]
