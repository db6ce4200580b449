"""What a check is and what it finds. Files in `checks/` are light to import and load no torch.

A check looks at facts that were gathered before (`Context`), so it takes no time and changes nothing. What others
measured (`published`) is never shown as if it were measured here: that is a `Gain`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from sys import modules
from typing import Any, Literal

from tui_trainer.checklist.earlier_run import EarlierRun
from tui_trainer.config.changes import Change, Patch
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem
from tui_trainer.hardware.diagnosis import Device, GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware, Place
from tui_trainer.hardware.storage import ReadRate
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.learning_rates import learning_rate
from tui_trainer.planning.measured_gains import Gain, is_of_steps
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.planned import Planned
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.terminal.safe_text import one_line

ALL = "all"
"""For every check, where names of checks are asked for."""
_SHOWN_VALUE = 60
Status = Literal["pass", "warn", "fail", "n/a", "error"]
STATUSES: tuple[Status, ...] = ("error", "fail", "warn", "pass", "n/a")
"""From the worst to what does not apply."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What all checks look at: one config on one machine at one moment.

    `plan` is None when none can be made; `problems` says why. `facts` are those of the data, None when it cannot be
    read. `all_tokens` is the size of the whole text in tokens, without `data.max_chars`. `load_average` is the mean of
    runnable tasks over the last minute, of other processes.
    """

    loaded: LoadedConfig
    hardware: Hardware
    plan: Plan | None = None
    plan_basis: Basis | None = None
    chosen_gpu: GpuChoice = None
    facts: DataFacts | None = None
    problems: tuple[Problem, ...] = ()
    all_tokens: int | None = None
    disk_free_bytes: int | None = None
    cache: Place = field(default_factory=partial(Place, label="prepared data", path=""))
    """Where prepared data goes."""
    load_average: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    earlier: EarlierRun | None = None
    swap_used_bytes: int | None = None
    data_read: ReadRate | None = None
    """Of the file that is trained on, measured; None for data that is small or not in a file of this machine."""

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def gpu(self) -> Gpu | None:
        """The card that would be used; a chosen one even where it cannot be."""
        return choose_gpu(self.hardware, self.chosen_gpu)[0]

    @property
    def device(self) -> Device:
        """What training runs on, with or without a plan."""
        return self.plan.device if self.plan else training_device(self.hardware, self.gpu, self.chosen_gpu)[0]

    @property
    def planned(self) -> Plan:
        """The plan, for checks with `needs_plan`: the runner does not call them without one."""
        if self.plan is None:
            raise LookupError("there is no plan")
        return self.plan

    @property
    def basis(self) -> Basis:
        """What the plan was reckoned from, for checks with `needs_plan`."""
        if self.plan_basis is None:
            raise LookupError("what the plan was made from is no longer there")
        return self.plan_basis

    @property
    def step_seconds(self) -> float | None:
        """Seconds of an optimizer step; None: only a measured step can tell."""
        return self.planned.step_seconds.value

    @property
    def duration_seconds(self) -> float | None:
        """Seconds of the whole run; None: only a measured step can tell."""
        return self.planned.duration_seconds.value

    @property
    def learning_rate(self) -> Planned[float]:
        """The peak rate, with or without a plan; `auto` is resolved."""
        return learning_rate(self.loaded, self.plan.effective_batch_size.value if self.plan else None)

    @property
    def row_tokens(self) -> int:
        """Tokens that a row puts into a pass, on average: packed rows are full, others as long as their documents."""
        plan, longest = self.planned, self.config.data.max_length
        if plan.packing.value:
            return longest
        return max(1, min(longest, round(plan.train_tokens.value / max(plan.train_rows.value, 1))))

    @property
    def epochs(self) -> float:
        """Planned passes over the training text."""
        return self.planned.total_steps.value / self.planned.steps_per_epoch.value

    def at_most_steps(self, steps: int) -> Patch:
        """At most so many steps, at least one; a whole number of epochs where that is possible."""
        whole_epochs = steps // self.planned.steps_per_epoch.value
        if self.config.training.max_steps or whole_epochs < 1:
            return {"training.max_steps": max(1, steps)}
        return {"training.num_train_epochs": float(whole_epochs)}

    @property
    def step_rows(self) -> int:
        """The most rows that a step takes in; packed ones are fewer than the documents behind them."""
        plan = self.planned
        if not plan.packing.value:
            return plan.effective_batch_size.value
        return plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one look found. `evidence` is one sentence with numbers; `advice` is for what no patch can do. `opposite`
    is the other position of a switch that needs no fix: what it gains can be measured against that."""

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


Look = Callable[[Context], Verdict]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One item of the checklist. `published`: the gain that others measured, with its source.

    Its name is that of its file, and `why` the first line of that. `is_for_speed`: what it warns of costs time and
    nothing else, so that a fix which was measured to be slower here is none. `fallback`: what mends a setting that no
    plan can be made with, by its key.
    """

    look: Look = field(kw_only=False)
    order: int
    title: str
    published: str = ""
    why: str = ""
    is_for_speed: bool = False
    needs_plan: bool = True
    fallback: Patch = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.look.__module__.rpartition(".")[2])
        object.__setattr__(self, "why", self.why or (modules[self.look.__module__].__doc__ or "").partition("\n")[0])


def check(**facts: Any) -> Callable[[Look], Check]:
    """Makes a check of the function that looks; `facts` are its other fields."""
    return lambda look: Check(look, **facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A check with what it found; `changes` is its fix beside today's values. Texts pass `safe_text` where shown.

    `gain` is that of the fix, or that of the config as it is over the opposite; None: not measured.
    """

    check: Check
    verdict: Verdict
    changes: tuple[Change, ...] = ()
    gain: Gain | None = None

    @property
    def name(self) -> str:
        return self.check.name

    @property
    def title(self) -> str:
        return self.check.title

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def fix(self) -> Patch | None:
        return self.verdict.fix

    @property
    def is_open(self) -> bool:
        """Whether somebody should look at it."""
        return self.status in ("error", "fail", "warn")

    @property
    def alternative(self) -> Patch | None:
        """Settings that the config can be measured against: those of the fix, or the other position of the switch."""
        return self.verdict.fix or self.verdict.opposite

    @property
    def why_not_measured(self) -> str:
        """Why no steps can be measured; empty: they can."""
        if not self.alternative:
            return "there is nothing to switch here"
        if not any(map(is_of_steps, self.alternative)):
            return "no speed to measure, the steps stay the same"
        return ""

    @property
    def measured_gain(self) -> float | None:
        """How many times as fast, as measured on this machine; None: not measured."""
        return self.gain.speed_up if self.gain else None

    @property
    def gain_words(self) -> str:
        """What was measured here; that nothing was, is said."""
        if self.gain is None and self.verdict.reckoned_gain:
            return f"{self.verdict.reckoned_gain:.2f} times as fast, reckoned {self.verdict.reckoned_from}"
        if self.gain is None:
            return self.why_not_measured or "not measured yet"
        return self.gain.words("" if self.fix else patch_words(self.alternative or {}))


def patch_words(patch: Patch) -> str:
    """`data.packing = false`, as it is written."""
    return ", ".join(f"{key} = {one_line(json.dumps(value), _SHOWN_VALUE)}" for key, value in patch.items())


def _verdict(status: Status, evidence: str, *details: str, **more: Any) -> Verdict:
    """`more`: its other fields."""
    return Verdict(status=status, evidence=evidence, details=details, **more)


passed, warned = partial(_verdict, "pass"), partial(_verdict, "warn")
failed, not_applicable = partial(_verdict, "fail"), partial(_verdict, "n/a")
