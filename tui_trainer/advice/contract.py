"""Declares rules, their findings and their remedies. Files of `rules/` are light to import and load no torch.

A rule looks at facts that were gathered before (`Context`), or at a run as its journal has it (`RunView`), so it takes
no time and changes nothing. What others measured (`published`) is never shown as if it were measured here: that is a
`Gain`.
"""

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal

from tui_trainer.advice import rules
from tui_trainer.advice.context import Context
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.planning.basis import Basis

Status = Literal["pass", "warn", "fail", "n/a", "error"]
Group = Literal["Machine", "Data", "Memory", "Speed", "Learning"]
STATUSES: tuple[Status, ...] = ("error", "fail", "warn", "pass", "n/a")
"""From the worst to what does not apply."""
BAR_SHARE = 0.1
# A GPU that is busy for less of the time waits for something.
IDLE_GPU = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The finding of a rule before a run.

    `evidence` is one sentence with numbers. `advice` names actions that no patch can do. `opposite` is the other
    position of a switch that needs no fix, against which the gain of the switch can be measured.
    """

    status: Status
    evidence: str
    details: tuple[str, ...] = ()
    fix: Patch | None = None
    advice: str = ""
    opposite: Patch | None = None
    switch: str = ""
    """In a few words what is on, or why not, for the list beside a run: `fused AdamW on`, `TF32: no GPU`."""
    reckoned_gain: float | None = None
    """How many times as fast the whole run would be with the fix, where its steps stay the same."""
    reckoned_from: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The finding of a rule during or after a run.

    `cause` and `evidence` are one sentence each, the second with numbers. `fix` is for the next run, and `advice` names
    actions that no patch can do. `share` is the share of the run's time that the cause costs, 0 to 1. A fault spoils or
    ends the run, so faults are listed before causes that only cost time.
    """

    cause: str
    evidence: str
    share: float = 0.0
    advice: str = ""
    fix: Patch | None = None
    is_fault: bool = False
    is_measured: bool = False
    """Steps with the fix were measured on this machine, so that it may contradict a hardware profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """How a rule shows during a run. `look` is pure, of a view of the journal; `why` is the reason.

    `needs_steps`: it is not asked before there are enough steps to judge by.
    """

    look: Callable[[RunView], Cause | None]
    name: str
    title: str
    why: str
    needs_steps: bool = True
    least_share: float = BAR_SHARE
    """A cause that costs less, and is no fault, is no finding."""


def symptom(title: str, **more: Any) -> Callable[[Callable[[RunView], Cause | None]], Symptom]:
    """Return a decorator that makes a symptom of the function that looks at a run. Its docstring says why; `more` are
    the other fields."""
    return lambda look: Symptom(look=look, name=look.__name__, title=title, why=look.__doc__ or "", **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """Settings with which a plan that does not fit takes less memory.

    `rank` is its place in the list of all remedies, the cheapest first. `costs` names its side effects, `needs` a
    library that is not installed. With `cuts_batch`, the steps stay the same, in smaller passes.
    """

    patch: Patch
    rank: int
    costs: str = ""
    needs: str = ""
    drops_data: bool = False
    cuts_batch: bool = False

    @property
    def sentence(self) -> str:
        """`training.gradient_checkpointing = true, about 33 % slower`."""
        needs = f"with {self.needs} installed" if self.needs else ""
        return ", ".join(filter(None, (settings_words(self.patch), self.costs, needs)))


def broken_words(error: Exception) -> str:
    """Return what a finding says of a rule that raised an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _nothing(context: Context) -> Verdict:
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One piece of advice on settings, with all the evidence for it. Adding one adds a function to a file of `rules/`.

    Where `fix` or `opposite` of a verdict change what a step takes, the gain is that of steps measured in turns
    (`check --measure`); where they change how much is done beside the steps, it is reckoned (`Verdict.reckoned_gain`).
    """

    name: str
    title: str = ""
    why: str
    settings: tuple[str, ...] = ()
    """All that it changes, the one that it is about first."""
    before: Callable[[Context], Verdict] = _nothing
    """What it finds in a config before its run; only rules with an `order` are asked."""
    order: int = 0
    """Its place in the checklist; 0: it has nothing to say before a run."""
    group: Group = "Learning"
    """The heading above it on the Checklist screen."""
    during: tuple[Symptom, ...] = ()
    remedies: Callable[[Basis, float], Iterable[Remedy]] | None = None
    """Yields remedies for a plan that does not fit into a budget in bytes, without those that are in force already."""
    fallback: object = None
    """Value of the first of `settings` that a plan can be made with, if its present value is refused; None: unknown."""
    needs_plan: bool = True
    counted: str = ""
    """The name of the count that it needs, for rules that read counts of prepared data or of its first rows."""
    is_for_speed: bool = False
    """Whether its warnings are about time only. A fix that was measured to be slower here is then not proposed."""
    published: str = ""
    """The gain that others measured, with its source."""


def rule(
    title: str, order: int, *settings: str, name: str = "", **more: Any
) -> Callable[[Callable[[Context], Verdict]], Rule]:
    """Return a decorator that makes a rule of the function that looks at a config. The first paragraph of its docstring
    says why; `more` are the other fields. Its group is Speed where it is for speed, else the `GROUP` of its file."""

    def of(before: Callable[[Context], Verdict]) -> Rule:
        why = " ".join((before.__doc__ or "").partition("\n\n")[0].split())
        group = "Speed" if more.get("is_for_speed") else before.__globals__.get("GROUP", "Learning")
        fields: dict[str, Any] = {"name": name or before.__name__, "group": group} | more
        return Rule(title=title, why=why, order=order, settings=settings, before=before, **fields)

    return of


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule of the files of `rules/`, in their order there."""
    modules = [import_module(f"{rules.__name__}.{module.name}") for module in pkgutil.iter_modules(rules.__path__)]
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Rule))


def _verdict(status: Status, evidence: str, *details: str, **more: Any) -> Verdict:
    """Return a verdict; `more` are its other fields."""
    return Verdict(status=status, evidence=evidence, details=details, **more)


passed, warned = partial(_verdict, "pass"), partial(_verdict, "warn")
failed, not_applicable = partial(_verdict, "fail"), partial(_verdict, "n/a")
fault = partial(Cause, share=1.0, is_fault=True)
"""A cause that spoils the run from now on, whatever it costs."""
