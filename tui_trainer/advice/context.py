"""Input of the rules before a run: the config, plan, machine and data, and measurements of an earlier run."""

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
class ExportComparison:
    """An 8-bit export in comparison with the trained model. `faults` describes how its answers differ; empty if not."""

    format: str
    bytes: int
    trained_bytes: int
    seconds_per_row: float
    trained_seconds_per_row: float
    faults: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """Measurements of an earlier run. A figure is None if it was not measured, or not under the conditions of the plan.
    `data_share` is the share of the step time spent on waiting for data."""

    name: str
    steps: int
    data_share: float | None = None
    save_bytes_per_second: float | None = None
    """Speed of saving, with `SAVE_FIXED_BYTES` added to the bytes of each checkpoint."""
    sample_seconds: float | None = None
    evaluation_share: float | None = None
    """Time of a token in an evaluation, as a share of the time of a token in a training step."""
    exports: tuple[ExportComparison, ...] = ()
    step_seconds: float | None = None
    """Median time of a step; None if the plan's steps have another shape."""
    busy_share: float | None = None
    """Share of the time, 0 to 1, in which the GPU was busy, or on a CPU the usable cores with the run's process."""
    unsloth_parts_sentence: str = ""
    """Sentence on the parts of the model that Unsloth computed; empty if the run did not use Unsloth."""
    has_unsloth: bool = False
    """Whether the model contained any of Unsloth's kernels."""
    attention_rejection: str = ""
    """Sentence on why the run's probe rejected the planned attention kernel; empty if it did not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Input of the rules before a run: one config on one machine at one moment.

    `plan` is None if no plan can be made, and `problems` says why. `facts` describe the data; None if it cannot be
    read. `all_token_count` is the size of the whole data in tokens, without limits such as `data.max_rows`.
    `load_average` is the mean number of runnable tasks of other processes over the last minute."""

    loaded: LoadedConfig
    hardware: Hardware
    plan: Plan | None = None
    plan_basis: Basis | None = None
    chosen_gpu: GpuChoice = None
    facts: DataFacts | None = None
    first_rows: DataFacts | None = None
    """Counts in the first rows of large data that has not been prepared; None if they were not requested."""
    problems: tuple[Problem, ...] = ()
    all_token_count: int | None = None
    sample_texts: tuple[str, ...] = ()
    """Some texts of the data; empty if it cannot be read, and for a model from scratch."""
    disk_free_bytes: int | None = None
    cache: Place = field(default_factory=partial(Place, label="prepared data", path=""))
    """Folder for prepared data."""
    load_average: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    earlier: EarlierRun | None = None
    swap_used_bytes: int | None = None
    mark_token_counts: Mapping[str, int] | None = None
    """Number of tokens of each mark of the chat template; None if there are no marks, or if it is not known."""
    missing_frame: tuple[str, ...] | None = None
    """Special tokens with which the model was trained around each text, but which its tokenizer does not add; None if
    that is not known."""

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def counted_facts(self) -> DataFacts | None:
        """The DataFacts that have `counts`, of all data or of its first rows; None if nothing was counted."""
        return self.facts if self.facts and self.facts.counts else self.first_rows

    def is_by_default(self, *keys: str) -> bool:
        """Return whether the user wrote none of these settings."""
        return not any(self.loaded.origin(key).by_user for key in keys)

    @property
    def counts(self) -> Counts:
        """Counts of the data, for rules that set `Rule.needed_count`. Raises LookupError if nothing was counted."""
        if self.counted_facts is None or self.counted_facts.counts is None:
            raise LookupError("the rows of the data have not been counted")
        return self.counted_facts.counts

    @property
    def gpu(self) -> Gpu | None:
        """GPU that the run would use. A GPU that the user chose is returned even if it cannot be used."""
        return choose_gpu(self.hardware, self.chosen_gpu)[0]

    @property
    def device(self) -> Device:
        """Kind of device on which the run trains, also if there is no plan."""
        return self.plan.device if self.plan else training_device(self.hardware, self.gpu, self.chosen_gpu)[0]

    @property
    def required_plan(self) -> Plan:
        """The plan, for rules with `needs_plan`, which are not called without a plan."""
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
        """Planned seconds of an optimizer step; None if they cannot be estimated and no step was measured."""
        return self.required_plan.step_seconds.value

    @property
    def duration_seconds(self) -> float | None:
        """Planned seconds of the whole run; None if they cannot be estimated and no step was measured."""
        return self.required_plan.duration_seconds.value

    @property
    def mean_row_tokens(self) -> int:
        """Average tokens of a row in a pass: `data.max_length` for a packed row, else the length of a document."""
        plan, max_length = self.required_plan, self.config.data.max_length
        if plan.packing.value:
            return max_length
        return max(1, min(max_length, round(plan.train_tokens.value / max(plan.train_rows.value, 1))))

    @property
    def epochs(self) -> float:
        """Planned passes over the training text."""
        return self.required_plan.total_steps.value / self.required_plan.steps_per_epoch.value

    def step_limit_patch(self, steps: int) -> Patch:
        """Return settings that limit the run to `steps` steps (at least 1), as whole epochs if possible."""
        whole_epochs = steps // self.required_plan.steps_per_epoch.value
        if self.config.training.max_steps or whole_epochs < 1:
            return {"training.max_steps": max(1, steps)}
        return {"training.num_train_epochs": float(whole_epochs)}

    @property
    def max_step_rows(self) -> int:
        """Maximum number of rows of a step, which are fewer than the effective batch size if rows are packed."""
        plan = self.required_plan
        if not plan.packing.value:
            return plan.effective_batch_size.value
        return plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value
