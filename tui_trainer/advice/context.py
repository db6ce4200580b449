"""A config before its run, as rules look at it: the plan, the machine, the data, and what an earlier run measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.errors import Problem
from tui_trainer.hardware.diagnosis import Device, GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware, Place
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.plan import Plan
from tui_trainer.tasks.contract import DataFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """An export in 8 bits, compared with the trained model; `faults` names where its answers differ."""

    format: str
    bytes: int
    trained_bytes: int
    seconds_per_row: float
    trained_seconds_per_row: float
    faults: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """Measured parts of a run. `data_share` is of the step's time; None where the run did not do it, or did it in
    another way than is planned now."""

    name: str
    steps: int
    data_share: float | None = None
    save_bytes_per_second: float | None = None
    sample_seconds: float | None = None
    evaluation_share: float | None = None
    """Time of a token in an evaluation, as a share of its time in a step."""
    exports: tuple[Exported, ...] = ()
    step_seconds: float | None = None
    """The median; None where a step had other rows."""
    busy_share: float | None = None
    """How busy the card was, or the usable cores by this process, 0 to 1."""
    unsloth: str = ""
    """A sentence that says which parts of the model Unsloth computed; empty if the run did not use it."""
    has_unsloth: bool = False
    """Whether any of its kernels was in the model."""
    attention: str = ""
    """A sentence that says why its probe rejected the planned attention kernel; empty if it did not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Input of the rules before a run: one config on one machine at one moment.

    `plan` is None if no plan can be made, and `problems` says why. `facts` describe the data; None if it cannot be
    read. `all_tokens` is the size of the whole text in tokens, without a limit. `load_average` is the mean of
    runnable tasks over the last minute, of other processes.
    """

    loaded: LoadedConfig
    hardware: Hardware
    plan: Plan | None = None
    plan_basis: Basis | None = None
    chosen_gpu: GpuChoice = None
    facts: DataFacts | None = None
    first_rows: DataFacts | None = None
    """What was counted in the first rows of data that is large and was not prepared; None: not asked for."""
    problems: tuple[Problem, ...] = ()
    all_tokens: int | None = None
    sample: tuple[str, ...] = ()
    """Some texts of the data; none where it cannot be read, or no stored model is trained."""
    disk_free_bytes: int | None = None
    cache: Place = field(default_factory=partial(Place, label="prepared data", path=""))
    """Where prepared data goes."""
    load_average: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    earlier: EarlierRun | None = None
    swap_used_bytes: int | None = None
    marks: Mapping[str, int] | None = None
    """How many tokens each mark of the chat template is; None: there are no such marks, or nobody can tell."""
    missing_frame: tuple[str, ...] | None = None
    """Special tokens that the model was trained with around each text, and that its tokenizer leaves out; None: nobody
    can tell."""

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def counted(self) -> DataFacts | None:
        """Facts with `counts`: of all of the data, or of its first rows; None: nothing was counted."""
        return self.facts if self.facts and self.facts.counts else self.first_rows

    def is_by_default(self, *keys: str) -> bool:
        """Return whether the user wrote none of these settings."""
        return not any(self.loaded.origin(key).by_user for key in keys)

    @property
    def counts(self) -> Counts:
        """Counts of the data. Only rules with `counted` may read them. Raises LookupError if nothing was counted."""
        if self.counted is None or self.counted.counts is None:
            raise LookupError("the rows of the data have not been counted")
        return self.counted.counts

    @property
    def gpu(self) -> Gpu | None:
        """The card that would be used; a chosen one even where it cannot be."""
        return choose_gpu(self.hardware, self.chosen_gpu)[0]

    @property
    def device(self) -> Device:
        """The kind of processor that the run trains on, with or without a plan."""
        return self.plan.device if self.plan else training_device(self.hardware, self.gpu, self.chosen_gpu)[0]

    @property
    def planned(self) -> Plan:
        """The plan, for rules with `needs_plan`: they are not asked without one."""
        if self.plan is None:
            raise LookupError("there is no plan")
        return self.plan

    @property
    def basis(self) -> Basis:
        """Inputs of the plan, for rules with `needs_plan`."""
        if self.plan_basis is None:
            raise LookupError("the inputs of the plan are no longer available")
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
        """Return settings for at most `steps` steps and at least one, as whole epochs if possible."""
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
