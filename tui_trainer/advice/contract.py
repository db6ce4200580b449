"""Declares rules, their findings and their remedies. Files of `rules/` are light to import and load no torch.

A rule judges facts that were gathered before (`Context`), or a run by its journal (`RunView`), so it takes no time and
changes nothing. A speed-up that others measured (`published_gain`) is always shown apart from one measured on this
machine (`Gain`)."""

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
from tui_trainer.planning.plan import Plan

Status = Literal["pass", "warn", "fail", "n/a", "error"]
Group = Literal["Machine", "Data", "Memory", "Speed", "Learning"]
STATUSES: tuple[Status, ...] = ("error", "fail", "warn", "pass", "n/a")
"""All statuses, the worst first."""
LEAST_CAUSE_SHARE = 0.1
# A GPU that is busy for a smaller share of the time is waiting for something.
IDLE_GPU_SHARE = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The finding of a rule before a run.

    `evidence` is one sentence with numbers. `advice` names actions other than changing settings. `opposite_patch`
    reverses a setting that needs no fix, so that the gain of this setting can be measured."""

    status: Status
    evidence: str
    details: tuple[str, ...] = ()
    fix: Patch | None = None
    advice: str = ""
    setting: str = ""
    """Setting with the problem, if it is not the first of the rule's `settings`."""
    opposite_patch: Patch | None = None
    switch_state: str = ""
    """State of the switch for the list beside a run: `fused AdamW on`, `TF32: no GPU`."""
    reckoned_gain: float | None = None
    """Estimated speed-up of the whole run by a fix that does not change its steps (1.5: 1.5 times as fast)."""
    reckoned_from: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The finding of a rule during or after a run.

    `cause` and `evidence` are one sentence each, the second with numbers. `fix` is for the next run, and `advice` names
    actions other than changing settings. `share` is the share of the run's time that the cause costs, 0 to 1. A fault
    spoils or ends the run, so faults are listed before causes that only cost time."""

    cause: str
    evidence: str
    share: float = 0.0
    advice: str = ""
    fix: Patch | None = None
    is_fault: bool = False
    is_measured: bool = False
    """Whether steps with the fix were measured on this machine. Only then may it contradict a hardware profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """The diagnosis by a rule during or after a run. `find_cause` returns the cause that it finds in the run, or None.

    `why` explains the rule to the user. With `needs_steps`, `find_cause` is not called before there are enough steps.
    """

    find_cause: Callable[[RunView], Cause | None]
    name: str
    title: str
    why: str
    needs_steps: bool = True
    least_share: float = LEAST_CAUSE_SHARE
    """Smallest share of the time that a cause must cost to be reported, unless it is a fault."""
    needs_health: bool = False
    """Whether the cause is reported only if nothing is wrong with the run: a proposal for the next run."""
    can_occur: Callable[[Plan], bool] = lambda plan: True
    """Function that returns whether a run with this plan can have the symptom."""


def symptom(title: str, **more: Any) -> Callable[[Callable[[RunView], Cause | None]], Symptom]:
    """Return a decorator that turns a function into a Symptom. Its docstring becomes `why`. `more` has other fields."""
    return lambda find: Symptom(find_cause=find, name=find.__name__, title=title, why=find.__doc__ or "", **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """Settings that reduce the memory of a plan that does not fit.

    Remedies are tried in the order of `rank`, the cheapest first. `costs` names the side effects of a remedy, and
    `missing_library` a library that it lacks here. A remedy with `cuts_batch` makes smaller passes, with unchanged
    steps."""

    patch: Patch
    rank: int
    costs: str = ""
    missing_library: str = ""
    drops_data: bool = False
    cuts_batch: bool = False

    @property
    def sentence(self) -> str:
        """The remedy as text: `training.gradient_checkpointing = true, about 33 % slower`."""
        needs = f"with {self.missing_library} installed" if self.missing_library else ""
        return ", ".join(filter(None, (settings_words(self.patch), self.costs, needs)))


def broken_words(error: Exception) -> str:
    """Return the text of a finding about a rule that raised an error: `ValueError: the message`."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _no_check(context: Context) -> Verdict:
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One piece of advice on settings. Each rule is a function in a file of `rules/`.

    If the `fix` or `opposite_patch` of a verdict changes the steps, `check --measure` measures its gain with steps of
    both configs in turns. If it changes only the work between steps, its gain is estimated (`reckoned_gain`)."""

    name: str
    title: str = ""
    why: str
    settings: tuple[str, ...] = ()
    """All settings that the rule may change. The first is the setting that the rule is about."""
    judge_config: Callable[[Context], Verdict] = _no_check
    """Function that judges a config before its run. It is called only if the rule has an `order`."""
    order: int = 0
    """Position of the rule in the checklist; 0 if it does not check configs before a run."""
    group: Group = "Learning"
    """Heading of the rule on the Checklist screen."""
    symptoms: tuple[Symptom, ...] = ()
    remedies: Callable[[Basis, float], Iterable[Remedy]] | None = None
    """Function that yields remedies for a plan that exceeds a budget in bytes, except remedies that it already uses."""
    fallback: object = None
    """Value for the first of `settings` that the plan accepts if it refuses the present value; None if unknown."""
    needs_plan: bool = True
    needed_count: str = ""
    """Name of the count that the rule reads from the prepared data or its first rows; empty if it reads none."""
    is_for_speed: bool = False
    """Whether the rule is only about time. It then does not propose a fix that was measured to be slower here."""
    published_gain: str = ""
    """Gain that others measured, with the source; empty if there is none."""


def rule(
    title: str, order: int, *settings: str, name: str = "", **more: Any
) -> Callable[[Callable[[Context], Verdict]], Rule]:
    """Return a decorator that turns a function into a Rule. The first paragraph of its docstring becomes `why`, and
    `more` has other fields. The group is Speed with `is_for_speed`, else the `GROUP` of the file."""

    def make_rule(judge: Callable[[Context], Verdict]) -> Rule:
        why = " ".join((judge.__doc__ or "").partition("\n\n")[0].split())
        group = "Speed" if more.get("is_for_speed") else judge.__globals__.get("GROUP", "Learning")
        fields: dict[str, Any] = {"name": name or judge.__name__, "group": group} | more
        return Rule(title=title, why=why, order=order, settings=settings, judge_config=judge, **fields)

    return make_rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rules of all files of `rules/`, in the order of files and of their definitions."""
    modules = [import_module(f"{rules.__name__}.{module.name}") for module in pkgutil.iter_modules(rules.__path__)]
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Rule))


def _verdict(status: Status, evidence: str, *details: str, **more: Any) -> Verdict:
    """Return a Verdict; `more` are its other fields."""
    return Verdict(status=status, evidence=evidence, details=details, **more)


passed, warned = partial(_verdict, "pass"), partial(_verdict, "warn")
failed, not_applicable = partial(_verdict, "fail"), partial(_verdict, "n/a")
fault = partial(Cause, share=1.0, is_fault=True)
"""Return a Cause that is a fault: it spoils or ends the run, so that its share counts as 1."""
