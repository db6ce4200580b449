"""A foreign config on its way into ours: every key ends as a rewrite or as left out, none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tui_trainer.config.changes import same
from tui_trainer.config.load import all_settings
from tui_trainer.importing.contract import Kind, Left, LeftOut, Off, Refused, Rewrite, Rule, Same, To, Why
from tui_trainer.importing.fitting import fit

_EMPTY = "empty in the file"
_OFF = "off in the file"
# What a run learns, and which of its weights: a file that means another value of these is another run.
_DECISIVE = frozenset({"task.type", "tuning.method"})
_TILL_THEN = "until it is set, the preset or the default counts"


class Conversion:
    """What is still to be read, and what has come of the rest."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.rewrites: list[Rewrite] = []
        self.left_out: list[LeftOut] = []
        self._waiting = dict(given)

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
        self, key: str, value: Any, *names: str, reason: str = "", product: bool = False, ours: bool = True
    ) -> bool:
        """One of our settings, from these keys of the file, which are read with it. Returns whether it was taken.

        `ours`: the value is of our choosing, so that a setting that refuses it is one that does not take it yet.
        """
        if key not in all_settings():
            why, reason = (Why.NOT_NEEDED, _OFF) if off(value) else (Why.NOT_YET, f"there is no setting {key} yet")
            self.leave(why, reason, *names)
            return False
        try:
            fitting = fit(key, value)
        except ValueError as error:
            why = Why.NOT_YET if ours and isinstance(value, str) else Why.DOES_NOT_FIT
            self.leave_unfit(key, error, *names, why=why)
            return False
        if key in self.values and not same(self.values[key], fitting):
            why = Why.REFUSED if key in _DECISIVE else Why.DOES_NOT_FIT
            self.leave(why, f"{key} has another value already, from a key before", *names)
            return False
        for name in names:
            self._waiting.pop(name, None)
        sources = {name: self.given[name] for name in names}
        self.rewrites.append(Rewrite(sources=sources, key=key, value=fitting, reason=reason, product=product))
        return True

    def leave(self, why: Why, reason: str, *names: str) -> None:
        """These keys have no line in ours."""
        for name in names:
            self._waiting.pop(name, None)
            self.left_out.append(LeftOut(key=name, value=self.given[name], why=why, reason=reason))

    def leave_unfit(self, key: str, error: ValueError, *names: str, why: Why = Why.DOES_NOT_FIT) -> None:
        """The setting `key` does not take what these keys say."""
        if key in _DECISIVE:
            self.leave(Why.REFUSED, str(error), *names)
        else:
            self.leave(why, f"{error}; {_TILL_THEN}", *names)

    def apply_rules(self, kind: Kind) -> None:
        """What still waits, key by key."""
        for name, value in list(self._waiting.items()):
            rule = kind.rule(name)
            if empty(value):
                self.leave(Why.NOT_NEEDED, _EMPTY, name)
            elif rule is not None:
                self._apply(name, value, rule)
            else:
                near = get_close_matches(name, kind.names() - {name}, n=1, cutoff=0.8)
                hint = f"did you mean {near[0]}?" if near else f"{kind.name} has no key of that name here"
                self.leave(Why.UNKNOWN, hint, name)

    def sort(self) -> None:
        """In the order of the file; what no key says comes last."""
        order = {name: place for place, name in enumerate(self.given)}
        self.rewrites.sort(key=lambda one: min((order[name] for name in one.sources), default=len(order)))
        self.left_out.sort(key=lambda one: (list(Why).index(one.why), order[one.key]))

    def _apply(self, name: str, value: Any, rule: Rule) -> None:
        match rule:
            case To():
                self._translate(name, value, rule)
            case Left():
                self.leave(rule.why, rule.reason, name)
            case Off():
                why, reason = (Why.NOT_NEEDED, _OFF) if off(value) else (Why.NOT_SUPPORTED, rule.reason)
                self.leave(why, reason, name)
            case Refused():
                why, reason = (Why.NOT_NEEDED, _OFF) if off(value) else (Why.REFUSED, rule.reason)
                self.leave(why, reason, name)
            case Same():
                usual = any(alike(value, one) for one in rule.values)
                why, reason = (Why.ALWAYS, rule.reason) if usual else (Why.NOT_SUPPORTED, rule.otherwise)
                self.leave(why, reason, name)

    def _translate(self, name: str, value: Any, rule: To) -> None:
        for one, left in rule.leave.items():
            if alike(value, one):
                self.leave(left.why, left.reason, name)
                return
        for one, ours in rule.values.items():
            if alike(value, one):
                self.write(rule.key, ours, name, reason=rule.reason)
                return
        if rule.otherwise:
            self.leave(rule.otherwise.why, rule.otherwise.reason, name)
            return
        try:
            value = rule.convert(value) if rule.convert else value
        except ValueError as error:
            self.leave_unfit(rule.key, error, name)
            return
        self.write(rule.key, value, name, reason=rule.reason, ours=False)


def convert(kind: Kind, given: Mapping[str, Any]) -> Conversion:
    """The whole file, read as this kind."""
    done = Conversion(given)
    for group in kind.together:
        group.act(done)
    done.apply_rules(kind)
    done.sort()
    return done


def empty(value: Any) -> bool:
    """Whether a key stands there without saying anything."""
    return value is None or value in ("", [], {})


def off(value: Any) -> bool:
    """Whether a value says no."""
    return empty(value) or value is False or value in (0, "none", "no", "off", "false")


def alike(one: Any, other: Any) -> bool:
    """Equal, and `true` is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
