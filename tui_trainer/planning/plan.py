"""The plan of a run: all derived figures with their reasons, each exact or estimated.

`make` needs no torch. Before the data is prepared, some figures are estimates. A plan that is made from prepared data
is exact; it is written to `plan.json` before step 1, and a run reads nothing else.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from tui_trainer.config.load import LoadedConfig, Origin, ResolvedLoaded, all_settings
from tui_trainer.config.sections import ResolvedConfig, step_rows
from tui_trainer.data.preparing.row_selection import SourceRows
from tui_trainer.data.sources.splits import SplitUse
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.describe import full_name
from tui_trainer.hardware.diagnosis import Device, GpuChoice
from tui_trainer.hardware.environment import is_spin_automatic
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gpu_models import FLASH_KERNELS
from tui_trainer.hardware.probe import disk_free_bytes
from tui_trainer.models.config_json import fp16_problems
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import CAUSAL, config_label_names
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning import batch_cut, conflicts, duration, effective_batch, fit, measured_steps
from tui_trainer.planning.ancestry import Ancestor, ancestors_of
from tui_trainer.planning.attention import NOT_PLANNED, Attention
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import BatchCut
from tui_trainer.planning.disk import checkpoint_bytes, final_model_bytes, run_bytes
from tui_trainer.planning.effective_batch import resolved, with_decided
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.fused_kernels import NOT_USED, Kernels, fused_kernels, fuses_loss, kernel_problems
from tui_trainer.planning.learning_rates import learning_rate, usual_learning_rate
from tui_trainer.planning.measured_steps import Calibration, StepKey
from tui_trainer.planning.memory.estimate import total_bytes
from tui_trainer.planning.memory.host import host_memory, host_memory_problems
from tui_trainer.planning.memory.parts import MemoryPart, Static
from tui_trainer.planning.planned import Planned, StepGrade, estimated, exact
from tui_trainer.planning.processes import (
    NO_OFFLOAD,
    NOT_SHARDED,
    ONE_PROCESS,
    Group,
    Strategy,
    deepspeed_problems,
    offload_of,
    processes_of,
    requested_threads,
    split_over,
    strategy_of,
    tightest_device,
)
from tui_trainer.planning.records import Key, device_key, trial_device
from tui_trainer.planning.steps import Steps
from tui_trainer.planning.training_setup import Dtype, Precision, TrainingSetup
from tui_trainer.runs.events import ComputeRates
from tui_trainer.runs.state import PADDING
from tui_trainer.runs.steps_and_eta import EVALUATION_SHARE
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import SETTING_NAMES, Figure, figures_of, format_count, format_seconds, quantity

CHECKPOINTING = "training.gradient_checkpointing"


class Plan(BaseModel):
    """All figures and decisions of a run. The names of fields have their units.

    The figures are shown in the order of their fields.
    """

    model_config = ConfigDict(frozen=True)

    plan_version: Literal[4] = 4
    config: ResolvedConfig
    user_keys: tuple[str, ...] = ()
    """Keys of the settings that the user wrote; empty in older plans."""
    recipe: str
    hardware_profile: str
    hardware_reason: str
    hardware_settings: tuple[str, ...] = ()
    """Settings whose values come from the hardware profile."""
    device: Device
    device_name: str
    device_reason: str
    gpu_uuid: str
    nodes: int = 1
    gpu_uuids: tuple[str, ...] = ()
    """UUIDs of the GPUs on the first node, one for each process; empty for a single process."""
    cpu_name: str
    data_key: str = ""
    """Name of the prepared data; empty before the data is prepared."""
    data_fingerprint: str = ""
    """Fingerprint of the sources of the prepared data; empty in older plans."""
    model_key: str = ""
    reference_key: str = ""
    """Fingerprint of the model that `task.reference` names; empty without one, and in older plans."""
    model_commit: str = ""
    """Commit of the model in the hub's cache; empty for a folder, and in older plans."""
    ancestors: tuple[Ancestor, ...] = ()
    """The model that the chain of runs began with, and the runs that trained it since, the oldest first."""
    versions: dict[str, str] = {}
    sources: tuple[SourceRows, ...] = ()
    splits: tuple[SplitUse, ...] = ()
    data_notes: tuple[str, ...] = ()
    """Findings in the data, in words; empty before the data is prepared."""
    train_rows: Annotated[Planned[int], Figure(title="rows to train on")]
    eval_rows: Annotated[Planned[int], Figure(title="rows evaluated")]
    packing: Annotated[Planned[bool], Figure(title="packing", unit="flag")]
    grouping: Annotated[Planned[bool] | None, Figure(title="batches by length", unit="flag")] = None
    """True if each batch has rows of similar length; None in older plans."""
    padding_share: Annotated[Planned[float] | None, PADDING] = None
    """Share of the computed tokens that are padding; None without padding, or if it is not known yet."""
    vocabulary: Annotated[Planned[int], Figure(title="vocabulary")]
    classes: int
    head: Annotated[Planned[str] | None, Figure(title="head", unit="text")] = None
    """Head of a classifier, `kept` or `new`; None for other tasks, or if it is not known."""
    parameters: Annotated[Planned[int], Figure(title="parameters", unit="rounded count")]
    trained_parameters: Annotated[Planned[int], Figure(title="trainable", unit="rounded count")]
    precision: Annotated[Planned[Precision], Figure(title="precision", unit="text")]
    best_precision: Precision | None = None
    """Value of `training.mixed_precision = "auto"` on this machine; None in older plans."""
    attention: Annotated[Attention, Figure(title="attention", unit="text")] = NOT_PLANNED
    weights_dtype: Annotated[Planned[Dtype], Figure(title="weights", unit="text")]
    learning_rate: Annotated[Planned[float], Figure(title="learning rate", unit="number")]
    usual_learning_rate: float | None = None
    """Learning rate that `auto` would give for this model, method and effective batch; None in older plans."""
    loraplus_learning_rate: Annotated[Planned[float] | None, Figure(title="LoRA+ rate", unit="number")] = None
    """Learning rate of the B matrix of each adapter; None if it is `learning_rate`."""
    final_learning_rate: Annotated[Planned[float] | None, Figure(title="final learning rate", unit="number")] = None
    """Learning rate at the end of the schedule; None if it decays to 0."""
    longest_row: int
    packed_width: int = 0
    """Width of packed rows, in tokens, after it was reduced because memory ran out; 0 for `longest_row`."""
    training_setup: TrainingSetup
    loss_chunk_tokens: Annotated[Planned[int], Figure(title="loss chunk tokens")]
    kernels: Annotated[Planned[Kernels], Figure(title="kernels", unit="text")] = NOT_USED
    loader_workers: Annotated[Planned[int], Figure(title="loader threads")]
    train_tokens: Planned[int]
    effective_batch_size: Annotated[Planned[int], Figure(title="effective batch")]
    effective_batch_is_auto: bool = False
    """True if the plan chose the effective batch. `config` then has the chosen number."""
    processes: Annotated[Planned[int], Figure(title="processes")] = ONE_PROCESS
    """Count of processes on all nodes, each of which trains on its share of every step."""
    strategy: Annotated[Planned[Strategy], Figure(title="strategy", unit="text")] = NOT_SHARDED
    cpu_offload: Annotated[Planned[bool], Figure(title="CPU offload", unit="flag")] = NO_OFFLOAD
    per_device_train_batch_size: Annotated[Planned[int], Figure(title="micro-batch")]
    memory_key: str = ""
    """Key under which the run stores its memory peak; empty if the peak would not be comparable."""
    untuned_key: str = ""
    """Key under which the tuned micro-batch is stored; empty if the run does not tune it."""
    gradient_accumulation_steps: Annotated[Planned[int], Figure(title="accumulation")]
    per_device_eval_batch_size: Annotated[Planned[int], Figure(title="evaluation batch")]
    num_train_epochs: Annotated[Planned[float] | None, Figure(title="epochs", unit="number")] = None
    """Epochs that `auto` chose; None if the user or the recipe wrote a number of epochs, or of steps."""
    steps_per_epoch: Annotated[Planned[int], Figure(title="steps per epoch")]
    total_steps: Annotated[Planned[int], Figure(title="steps", config_place=4)]
    warmup_steps: Annotated[Planned[int], Figure(title="warm-up steps")]
    decay_steps: Annotated[Planned[int] | None, Figure(title="decay steps")] = None
    """Count of steps at the end in which `warmup_stable_decay` lowers the rate; None for other schedules."""
    router_aux_loss_coef: Annotated[Planned[float] | None, Figure(title="router loss", unit="number")] = None
    """Weight of the routers' loss in a mixture of experts; None for other models."""
    beta: Annotated[Planned[float] | None, Figure(title="beta", unit="number")] = None
    """Weight of rewards in a loss on preferences; None for other tasks, and in older plans."""
    sft_weight: Annotated[Planned[float] | None, Figure(title="SFT weight", unit="number")] = None
    """Weight of the cross entropy of chosen answers in a loss on preferences; None for other tasks, and without it."""
    answer_rows: Annotated[Planned[int] | None, Figure(title="rows answered")] = None
    """Number of held-out rows that the model answers; None if it generates no answers, and in older plans."""
    answers_interval: int = 1
    """Answers are generated at each evaluation whose number is a multiple of this, and at the last one."""
    eval_every_steps: Annotated[Planned[int], Figure(title="evaluates every")]
    save_every_steps: Annotated[Planned[int], Figure(title="saves every")]
    sample_every_steps: Annotated[Planned[int], Figure(title="samples every")]
    sample_tokens: Annotated[Planned[int], Figure(title="tokens per sample")] = duration.USUAL_SAMPLE_TOKENS
    threads: Annotated[Planned[int], Figure(title="CPU threads")]
    checkpoint_bytes: Annotated[Planned[int], Figure(title="checkpoint", unit="bytes")]
    final_model_bytes: int
    disk_bytes: Annotated[Planned[int], Figure(title="disk", unit="bytes", config_place=3)]
    memory_budget_bytes: int | None = None
    """Bytes of the device's memory that the run may use; None if the memory is unknown."""
    memory_bytes: Annotated[Planned[int], Figure(title="memory", unit="bytes", config_place=1)]
    memory_parts: tuple[MemoryPart, ...]
    host_memory_bytes: Annotated[Planned[int] | None, Figure(title="host memory", unit="bytes")] = None
    """Host memory of a run on a GPU; None on a CPU, where `memory_bytes` is host memory."""
    host_memory_parts: tuple[MemoryPart, ...] = ()
    step_seconds: Annotated[Planned[float | None], Figure(title="time per step", unit="seconds")]
    step_grade: StepGrade = StepGrade.ESTIMATED
    """Source of `step_seconds`; older plans do not have it."""
    step_flops: float
    shape_key: str
    beginning_seconds: Planned[float | None] | None = None
    """Seconds before the first step, a part of `duration_seconds`; None if nothing is computed then."""
    duration_seconds: Annotated[Planned[float | None], Figure(title="time", unit="seconds", config_place=2)]
    checkpointing_cost: Planned[float] | None = None
    """Share by which gradient checkpointing makes a step longer, 0.3 for 30 %; None in older plans."""
    compute_rates: ComputeRates | None = None
    """Rates to which the run's speed is compared; None in older plans, and for a run that resumes on another device."""
    busy_words: str = ""
    out_of_memory_events: int = 0
    """Count of times that passes were made smaller since the run began."""

    @property
    def has_measured_steps(self) -> bool:
        """Whether `step_seconds` comes from steps of this model that were measured on this machine."""
        return self.step_grade != StepGrade.ESTIMATED

    @property
    def is_group(self) -> bool:
        """Whether torchrun starts the run: if it has several processes, or one process with CPU offload."""
        return self.processes.value > 1 or self.cpu_offload.value

    @property
    def processes_per_node(self) -> int:
        return self.processes.value // self.nodes

    def figures(self) -> Iterator[tuple[str, Figure, Planned[Any]]]:
        """Yield the name, declaration and value of each figure whose value is not None."""
        for name, figure in figures_of(Plan).items():
            value = getattr(self, name)
            if isinstance(value, Attention):
                value = exact(value.kernel, value.because) if value.kernel else None
            if value is not None:
                yield name, figure, value

    def shown_figures(self) -> Iterator[tuple[str, Figure, Planned[Any]]]:
        """Yield the `figures` that matter for this run: `grouping`, for example, only without packing."""
        is_used = {
            "grouping": not self.packing.value,
            "trained_parameters": self.trained_parameters.value < self.parameters.value,
            "loss_chunk_tokens": self.loss_chunk_tokens.value or self.device == "cuda",
            "kernels": False,  # the checklist has them
            "loader_workers": self.loader_workers.value,
            "processes": self.is_group,
            "strategy": self.is_group,
            "cpu_offload": self.config.distributed.cpu_offload,
            "sample_tokens": self.sample_every_steps.value and self.sample_tokens.value,
        }
        return (figure for figure in self.figures() if is_used.get(figure[0], True))

    def resolved(self) -> dict[str, Planned[Any]]:
        """Return the planned value of each setting that may be `auto`, by key: `training.learning_rate`."""
        figures = {SETTING_NAMES.get(name, name): value for name, _, value in self.figures()}
        figures["hardware_profile"] = exact(self.hardware_profile or "none", self.hardware_reason)
        return {key: figures[setting.name] for key, setting in all_settings().items() if setting.name in figures}

    def model_shape(self) -> ModelShape:
        """Return the shape of the model in its present files. Raises InputError if the model is missing."""
        return find_task(self.config.task.type).model_shape(self.config, self.vocabulary.value, self.classes)


class MemoryShortage(ConfigError):
    """All problems of a plan that needs more memory than `budget_bytes`. `shortage` is the problem of memory among
    them, and `basis` has the inputs of the plan."""

    def __init__(self, problems: Iterable[Problem], shortage: Problem, basis: Basis, budget_bytes: float) -> None:
        super().__init__(problems)
        self.shortage, self.basis, self.budget_bytes = shortage, basis, budget_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanInputs:
    """Names of the prepared data and of the weights that a plan was made from, and the versions of libraries.

    All fields are empty while data and model are estimates.
    """

    data_key: str = ""
    data_fingerprint: str = ""
    model_key: str = ""
    reference_key: str = ""
    model_commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)


UNKNOWN_INPUTS = PlanInputs()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """The decisions of a plan: the device, the values of `auto` settings, and how a batch is split into passes."""

    loaded: ResolvedLoaded
    target: choices.TrainingDevice
    group: Group
    memory_budget: MemoryBudget
    shape: ModelShape
    setup: TrainingSetup
    cut: BatchCut
    chosen: choices.Chosen
    packing: Planned[bool]
    grouping: Planned[bool]
    padding: float
    """Share of the computed tokens that are padding; 0 for packed rows."""
    threads: Planned[int]
    memory_reason: str
    memory_key: Key
    is_untuned: bool


def make(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts,
    *,
    inputs: PlanInputs = UNKNOWN_INPUTS,
    chosen_gpu: GpuChoice = None,
) -> Plan:
    """Return the plan for a config on this machine. Raises ConfigError with all problems, possibly a MemoryShortage.

    If the hardware profile turns off the recipe's gradient checkpointing and the run then does not fit, it stays on.
    """
    try:
        return _make(loaded, hardware, facts, inputs, chosen_gpu)
    except MemoryShortage:
        if (with_checkpointing := _with_checkpointing_of_recipe(loaded)) is None:
            raise
        return _make(with_checkpointing, hardware, facts, inputs, chosen_gpu)


def _with_checkpointing_of_recipe(loaded: LoadedConfig) -> LoadedConfig | None:
    recipe_values = loaded.recipe.values.get("training", {}) if loaded.recipe else {}
    is_undone = loaded.origin(CHECKPOINTING) == Origin.HARDWARE and not loaded.config.training.gradient_checkpointing
    if not is_undone or not recipe_values.get("gradient_checkpointing"):
        return None
    cause = "gradient checkpointing as in the recipe, because the run does not fit without it"
    reason = "; ".join(filter(None, (loaded.hardware_reason, cause)))
    return replace(loaded.with_fitted_value(CHECKPOINTING, True, cause), hardware_reason=reason)


def _make(
    original: LoadedConfig, hardware: Hardware, facts: DataFacts, inputs: PlanInputs, chosen_gpu: GpuChoice
) -> Plan:
    loaded, facts = effective_batch.with_rows_of_step(original, hardware, facts, chosen_gpu)
    decisions = decide(loaded, hardware, facts, chosen_gpu)
    loaded = decisions.loaded
    plan = _assemble(original, hardware, facts, decisions, inputs)
    budget, config = decisions.memory_budget, loaded.config
    memory_bytes = plan.memory_bytes.value
    problems = conflicts.disk_problems(loaded, plan.disk_bytes.value, disk_free_bytes(Path(config.output.runs_dir)))
    host_problems = host_memory_problems(plan.host_memory_bytes, hardware)
    if budget.total_bytes is not None and memory_bytes > budget.total_bytes:
        shortage, basis = conflicts.memory_problem(loaded, budget, memory_bytes), basis_of(loaded, hardware, plan)
        usable_bytes = budget.usable_share * budget.total_bytes
        raise MemoryShortage([*problems, shortage, *host_problems], shortage, basis, usable_bytes)
    if problems or host_problems:
        raise ConfigError([*problems, *host_problems])
    return plan


def basis_of(loaded: LoadedConfig, hardware: Hardware, plan: Plan) -> Basis:
    """Return the inputs of a plan with the memory that is free now, for computing it again with other settings.

    Raises InputError if the model is missing.
    """
    target = choices.TrainingDevice.planned(hardware, plan.training_setup.device, plan.device_reason, plan.gpu_uuid)
    return Basis(
        loaded=effective_batch.resolved_like(loaded, plan.config),
        hardware=hardware,
        target=target,
        memory_budget=MemoryBudget.of(
            hardware, tightest_device(hardware, target, plan.gpu_uuids), plan.processes_per_node
        ),
        shape=plan.model_shape(),
        setup=plan.training_setup,
        micro_batch=plan.per_device_train_batch_size.value,
        eval_batch=plan.per_device_eval_batch_size.value,
    )


def decide(loaded: ResolvedLoaded, hardware: Hardware, facts: DataFacts, chosen_gpu: GpuChoice = None) -> Decisions:
    """Return the values of `auto` and the cut of the batch. `loaded` and `facts` are results of `with_rows_of_step`.
    Raises ConfigError with all problems."""
    config = loaded.config
    target = choices.TrainingDevice.of(hardware, chosen_gpu)
    problems = conflicts.setting_problems(loaded, facts.eval_rows)
    if problems := problems + choices.precision_problems(loaded, hardware, target):
        raise ConfigError(problems)
    group = processes_of(loaded, hardware, target, chosen_gpu)
    shape = find_task(config.task.type).model_shape(config, facts.vocabulary, facts.class_count)
    processes = group.count.value
    packing_figure = batch_cut.decide_packing(loaded, facts, shape, step_rows(config))
    micro_setting = config.training.per_device_train_batch_size
    rows_per_pass = micro_setting if isinstance(micro_setting, int) else -(-step_rows(config) // processes)
    padding_shares = None
    if facts.padding and not packing_figure.value and rows_per_pass > 1:
        rounding = find_task(config.task.type).width_rounding(shape.model_type)
        padding_shares = facts.padding(min(step_rows(config), facts.rows), rows_per_pass, rounding)
    grouping_figure = batch_cut.decide_grouping(loaded, padding_shares, is_exact=facts.exact)
    initial = loaded
    loaded = resolved(with_decided(initial, batch_cut.GROUP_BY_LENGTH, grouping_figure.value))
    config = loaded.config
    widest_row = batch_cut.longest_row(config, facts, packing_figure.value)
    rows_of_data = TrainingSetup(
        packed=packing_figure.value,
        longest_row=widest_row,
        most_rows=-(-batch_cut.max_rows_of_step(config, facts, packing_figure.value, step_rows(config)) // processes),
        row_documents=facts.row_documents,
        document_tokens=0.0 if packing_figure.value else facts.document_tokens,
        narrowest_pass=padding_shares.of(is_grouped=grouping_figure.value)[1] if padding_shares else 0,
        label_share=_label_share(facts) if shape.head == CAUSAL else 1.0,
        target_tokens=facts.target_tokens,
        fused_loss=fuses_loss(loaded, hardware, target, shape),
        processes=processes,
    )
    setup, chosen_values = choices.choose(loaded, hardware, target, shape, rows_of_data)
    if packing_figure.value and initial.config.data.packing == "auto" and setup.device == "cpu":
        packing_factor = duration.packing_cost_factor(config, facts, shape, setup)
        if packing_factor > duration.MAX_PACKING_COST_FACTOR:
            reason = "auto: packed rows with a mask need more computation than separate rows"
            unpacked = resolved(with_decided(initial, batch_cut.PACKING, value=False, reason=reason))
            unpacked_decisions = decide(unpacked, hardware, facts, chosen_gpu)
            if packing_factor * (1 - unpacked_decisions.padding) > duration.MAX_PACKING_COST_FACTOR:
                return unpacked_decisions
    setup, memory_reason = fit.with_dry_run(config, shape, setup)
    if problems := conflicts.four_bit_problems(loaded, hardware, target, shape, setup):
        raise ConfigError(problems)
    memory_room = MemoryBudget.of(hardware, tightest_device(hardware, target, group.gpu_uuids), group.per_node)
    threads = requested_threads(loaded, hardware, group.per_node)

    is_offloaded = config.distributed.cpu_offload and target.device == "cuda"
    setup = replace(setup, cpu_offload=is_offloaded)

    def fits(shards: int) -> bool:
        budget_bytes, sharded_setup = memory_room.budget_bytes, replace(setup, shards=shards)
        return budget_bytes is None or fit.needed_bytes(shape, sharded_setup, config, 1) <= budget_bytes

    if initial.config.model.dtype == "auto" and setup.method == "full" and setup.weights != "float32" and not fits(1):
        reason = "auto: bf16 weights with fp32 masters do not fit"
        fp32_weights = resolved(with_decided(initial, choices.DTYPE_KEY, value="float32", reason=reason))
        fp32_decisions = decide(fp32_weights, hardware, facts, chosen_gpu)
        if fit.needed_bytes(shape, fp32_decisions.setup, config, 1) <= (memory_room.budget_bytes or 0):
            return fp32_decisions
    strategy = strategy_of(loaded, group, fits, offloads=is_offloaded)
    setup = split_over(setup, strategy.value, processes, group.per_node)
    is_tuning = config.training.per_device_train_batch_size == batch_cut.TUNE
    key = measured_steps.micro_batch_key(loaded, hardware, target.gpu, shape, setup, threads.value, processes)
    setup = replace(setup, measured_peaks=measured_steps.measured_peaks(key))
    tuned = measured_steps.kept_micro_batch(key) if is_tuning else None

    def largest_fit(limit: int) -> int:
        return min(limit, tuned.rows) if tuned else fit.largest_micro_batch(shape, setup, config, memory_room, limit)

    cut = batch_cut.cut_batch(loaded, largest_fit, processes)
    problems = [cut] if isinstance(cut, Problem) else batch_cut.packing_problems(loaded, shape)
    problems += deepspeed_problems(loaded, hardware, strategy.value, setup)
    problems += conflicts.expert_problems(loaded, strategy.value, setup)
    problems += fp16_problems(config, shape.model_type) + kernel_problems(loaded, hardware, target, shape)
    is_fp32 = (setup.device, setup.precision, setup.weights) == ("cuda", "fp32", "float32")
    if is_fp32 and config.model.attn_implementation in FLASH_KERNELS:
        message = f"{config.model.attn_implementation} supports 16 bits only, and this run is in fp32"
        problems.append(loaded.problem("model.attn_implementation", message, "set it to auto, or train in 16 bits"))
    if config.model.attn_implementation == "sdpa" and shape.attention.soft_cap:
        message = f"sdpa does not support the soft cap that {shape.model_type} has on attention scores"
        hint = "set it to auto (eager), or to flex_attention or flash_attention_2, which support it"
        problems.append(loaded.problem("model.attn_implementation", message, hint))
    if problems or isinstance(cut, Problem):
        raise ConfigError(problems)
    if packing_figure.value and facts.packed_rows is not None:
        cut = batch_cut.packed_cut(loaded, cut, facts, widest_row, largest_fit)
    padding = 0.0
    if facts.padding and not packing_figure.value:
        task, padding_of, process_rows = find_task(config.task.type), facts.padding, cut.process_rows_of(facts.rows)
        rounding = task.width_rounding(shape.model_type, size_costs=setup.compiles_each_size)
        padding_of_rows = cache(lambda rows: padding_of(process_rows, rows, rounding))
        # Compiled passes all have one width, and routers are balanced over the rows of a pass.
        has_fixed_cut = setup.compiled or setup.router_logits or grouping_figure.value
        if batch_cut.is_cut_freely(loaded) and setup.device == "cpu" and not has_fixed_cut:
            tokens = duration.launch_tokens(shape, setup, threads.value, round(facts.document_tokens))
            cut = batch_cut.cut_by_length(cut, facts, lambda rows: padding_of_rows(rows).padded, tokens)
        padding, narrowest_pass = padding_of_rows(cut.micro_batch).of(is_grouped=grouping_figure.value)
        setup = replace(setup, narrowest_pass=narrowest_pass)
    if is_tuning:
        reason = tuned.words if tuned else f"{cut.micro_reason}; the fastest micro-batch is measured before training"
        cut = replace(cut, micro_reason=reason)
    # A micro-batch and a count of micro-batches that are both set change the effective batch.
    rows = -(-batch_cut.max_rows_of_step(config, facts, packing_figure.value, cut.effective_batch) // processes)
    cpu_offload = offload_of(loaded, strategy.value, target.device == "cuda")
    return Decisions(
        loaded=loaded,
        target=target,
        group=replace(group, strategy=strategy, cpu_offload=cpu_offload),
        memory_budget=memory_room,
        shape=shape,
        setup=replace(setup, most_rows=rows),
        cut=cut,
        chosen=chosen_values,
        packing=packing_figure,
        grouping=grouping_figure,
        padding=padding,
        threads=threads,
        memory_key=key,
        is_untuned=is_tuning and not tuned,
        memory_reason=memory_reason,
    )


def _label_share(facts: DataFacts) -> float:
    """Return the share of tokens that are trained on; 1, the upper limit, before the data is prepared."""
    if facts.counts is None:
        return 1.0
    input_tokens = facts.counts.train_tokens - facts.counts.train_rows * facts.row_documents
    return min(1.0, facts.counts.train_labels / max(input_tokens, 1))


def _assemble(
    original: LoadedConfig, hardware: Hardware, facts: DataFacts, decided: Decisions, inputs: PlanInputs
) -> Plan:
    """Build the plan from its decisions. Its seconds are None for a GPU whose speed is unknown."""
    loaded, shape, setup, cut = decided.loaded, decided.shape, decided.setup, decided.cut
    group, gpu = decided.group, decided.target.gpu
    config, training, tuning = loaded.config, loaded.config.training, loaded.config.tuning
    task, steps = find_task(config.task.type), Steps(loaded, facts, cut)

    # The model.
    name, trained_count = config.model.model_name_or_path, setup.trained_parameters
    parameter_count = shape.loaded_parameters
    count_source = f"of {name}" if name else "counted from the shape in [model.scratch]"
    if name and not find_model(name, config.model.revision, head=shape.head, labels=shape.labels).folder:
        count_source += ", which has not been downloaded: use `tui-trainer download`"
    count_source += task.changes_words(config)
    is_exact = facts.exact or not config.is_from_scratch
    frozen = ""
    if shape.towers:
        frozen = f"; {format_count(sum(shape.towers.values()))} of them in {', '.join(shape.towers)}, which stay frozen"
        frozen += ", on the host" if setup.towers_on_host else ""
    share_text = (
        f"{trained_count / parameter_count:.2%} of the model" if trained_count < parameter_count else "the whole model"
    )
    decomposition = None
    if tuning.mutates_weights:
        decomposition = duration.Decomposition.of(tuning.init_lora_weights, tuning.r, setup.adapted(shape))
        share_text += f"; adapters are initialised by {decomposition.how} of each of {decomposition.count:,} matrices "
        share_text += f"before the first step ({decomposition.operations:.1e} operations) and saved with rank "
        share_text += f"{2 * tuning.r}"
    peak_rate = learning_rate(original, parameter_count, cut.effective_batch)
    ratio, floor = tuning.loraplus_lr_ratio, training.min_lr_rate
    ratio_reason = f"{ratio:g} times the learning rate, from tuning.loraplus_lr_ratio"
    floor_reason = f"{floor:g} of the peak rate, from training.min_lr_rate"

    # Steps and batches.
    effective_reason = cut.effective_reason
    if facts.rows < cut.effective_batch:
        effective_reason += f"; the data has only {quantity(facts.rows, 'row')}, so every step uses all of them"
    eval_batch, eval_reason = cut.micro_batch, "as in training"
    if (requested := config.evaluation.per_device_eval_batch_size) != "auto":
        eval_batch = min(requested, max(facts.eval_rows, 1))
        eval_reason = f"from {loaded.where('evaluation.per_device_eval_batch_size')}"
    warmup = steps.warmup(training.lr_scheduler_type, training.warmup_steps)
    threads_reason = decided.threads.reason
    if setup.device == "cpu" and is_spin_automatic():
        sleeps = measured_steps.is_busy(hardware.load_of_others, decided.threads.value * group.per_node)
        how = "sleep, because other programs need the cores" if sleeps else "do not sleep, because the cores are free"
        threads_reason += f"; waiting threads {how}"
    loader_workers = choices.loader_workers(loaded, decided.target)

    # Memory and disk.
    parts = fit.parts_of_run(shape, setup, config, cut.micro_batch, eval_batch)
    peak = measured_steps.nearest_peak(setup.measured_peaks, cut.micro_batch, eval_batch)
    memory_reason = f"{measured_steps.measured_words(peak)}; {decided.memory_reason}" if peak else decided.memory_reason
    host_parts, host_bytes = host_memory(shape, setup, config, loader_workers.value, group.per_node)
    checkpoint_size, saved_reason = checkpoint_bytes(shape, setup)
    final_model = final_model_bytes(parameter_count, setup)
    disk_bytes, disk_reason = run_bytes(
        checkpoint_size,
        final_model,
        save_total_limit=config.checkpoint.save_total_limit,
        saves=steps.save_count,
        keeps_best=config.evaluation.early_stopping_patience > 0,
        total_steps=steps.total.value,
    )
    if setup.merged_parameters and setup.has_adapter:
        disk_bytes += parameter_count * Static(shape, setup).weight_number_bytes
        disk_reason += ", and the merged base model of the adapter"

    # Time is that of one process, because all compute at the same time.
    longest_tokens, rows = fit.longest_row_tokens(config, setup), cut.process_rows_of(facts.rows)
    # Attention gets full packed rows, or otherwise rows as long as their documents, with padding.
    computed_tokens = (facts.row_tokens or longest_tokens) / (1 - decided.padding)
    is_by_document = facts.row_tokens and not setup.packed
    row_width = max(1, round(max(facts.document_tokens, computed_tokens))) if is_by_document else longest_tokens
    device = device_key(hardware.cpu_name, decided.threads.value, full_name(gpu) if gpu else "")
    card, tried_on = gpu.card if gpu else None, trial_device(hardware, gpu) if gpu else ""

    def time_of(setup: TrainingSetup) -> tuple[float, StepKey, Planned[float | None], Calibration]:
        """Return the operations of a step, the key of its measurements, its planned seconds, and what was measured."""
        tokens, mean_tokens = round(rows * computed_tokens), facts.document_tokens or None
        flops = duration.training_flops(shape, setup, tokens=tokens, row_tokens=row_width, document_tokens=mean_tokens)
        sizes = cut.micro_batch, rows, longest_tokens, cut.processes
        key = measured_steps.step_key(config, hardware.libraries, shape, setup, *sizes)
        measured_speed = measured_steps.read_calibration(device, key, flops)
        starts = -(-rows // cut.micro_batch) * duration.starting_seconds(shape, setup)
        step = duration.step_time(flops, shape.hidden_size, measured_speed, setup, card, device, starts=starts)
        return flops, key, step, measured_speed

    flops, key, step, calibration = time_of(setup)
    other = time_of(replace(setup, gradient_checkpointing=not setup.gradient_checkpointing))[3]
    with_it, without = (calibration, other) if setup.gradient_checkpointing else (other, calibration)
    offload_figure = group.cpu_offload
    if setup.cpu_offload:
        passes, capability = -(-rows // cut.micro_batch), gpu.capability if gpu else None
        seconds_on_card = time_of(replace(setup, cpu_offload=False))[2].value
        cost_words = duration.offload_words(shape, setup, passes, capability, seconds_on_card)
        offload_figure = offload_figure.model_copy(update={"reason": f"{offload_figure.reason}: {cost_words}"})
    total = training_seconds = None
    if step.value is not None:
        evaluation_seconds = step.value / rows * steps.eval_rows.value / cut.processes * EVALUATION_SHARE
        training_seconds = steps.total.value * step.value
        total = training_seconds + steps.evaluation_count * evaluation_seconds
    answers_figure: Planned[int] | None = None
    interval, answer_rows = 1, min(task.answer_rows(config), steps.eval_rows.value)
    if answer_rows:
        seconds = duration.answer_seconds(shape, setup, card, answer_rows, task.answer_tokens(config))
        setting = config.evaluation.generate_rows if config.evaluation.metric_for_best_model == "loss" else answer_rows
        interval, answers_reason = duration.answers_interval(setting, training_seconds, steps.evaluation_count, seconds)
        answers_figure = Planned(value=answer_rows, exact=steps.eval_rows.exact, reason=answers_reason)
        total = None if total is None else total + seconds * duration.answer_rounds(steps.evaluation_count, interval)
    if total is not None and steps.eval_rows.value and (suite_rows := len(task.suite_rows(config))):
        # They are answered once more before the first step.
        seconds = duration.answer_seconds(shape, setup, card, suite_rows, task.answer_tokens(config))
        total += seconds * (1 + duration.answer_rounds(steps.evaluation_count, interval))
    time_reason = f"{quantity(steps.total.value, 'step')} and {quantity(steps.evaluation_count, 'evaluation')}"
    beginning_figure = None
    if decomposition:
        beginning_figure = decomposition.seconds(card, on_card=setup.device == "cuda")
        time_clause = f"{format_seconds(beginning_figure.value)} for " if beginning_figure.value is not None else ""
        time_reason += f", and {time_clause}{beginning_figure.reason}"
        total = None if total is None or beginning_figure.value is None else total + beginning_figure.value
    time_reason += "; not counting loading, saving and samples"
    load = hardware.load_of_others if setup.device == "cpu" else None
    threads = decided.threads.value * group.per_node
    busy_text = duration.busy_words(load, hardware.usable_cores, threads, calibration.load)
    sample_figure = exact(0, "set by the task")
    if task.continues:
        token_seconds = duration.generated_token_seconds(shape, setup)
        sample_figure = duration.sample_tokens(training_seconds, steps.sample_count, token_seconds)

    return Plan(
        config=config,
        user_keys=tuple(key for key in all_settings() if loaded.origin(key).by_user),
        recipe=loaded.recipe.name if loaded.recipe else "",
        hardware_profile=loaded.hardware_profile.name if loaded.hardware_profile else "",
        hardware_reason=loaded.hardware_reason,
        hardware_settings=tuple(key for key in loaded.layers if loaded.origin(key) is Origin.HARDWARE),
        device=decided.target.device,
        device_name=full_name(gpu) if gpu else hardware.cpu_name,
        device_reason=decided.target.reason,
        gpu_uuid=gpu.cuda_uuid if gpu else "",
        nodes=group.nodes,
        gpu_uuids=group.gpu_uuids,
        cpu_name=hardware.cpu_name,
        data_key=inputs.data_key,
        data_fingerprint=inputs.data_fingerprint,
        model_key=inputs.model_key,
        reference_key=inputs.reference_key,
        model_commit=inputs.model_commit,
        versions=inputs.versions,
        ancestors=ancestors_of(config),
        sources=facts.sources,
        splits=facts.splits,
        data_notes=facts.notes,
        train_rows=Planned(value=facts.rows, exact=facts.exact, reason=facts.reason),
        eval_rows=steps.eval_rows,
        packing=decided.packing,
        grouping=decided.grouping,
        padding_share=estimated(decided.padding, "of the positions that a step computes") if decided.padding else None,
        vocabulary=Planned(
            value=facts.vocabulary, exact=is_exact, reason=facts.reason if config.is_from_scratch else count_source
        ),
        classes=facts.class_count,
        head=_head(loaded, facts, shape),
        parameters=Planned(value=parameter_count, exact=is_exact, reason=count_source + frozen),
        trained_parameters=Planned(value=trained_count, exact=is_exact, reason=share_text),
        precision=decided.chosen.precision,
        best_precision=choices.best_precision(hardware, decided.target, shape).value,
        attention=decided.chosen.attention,
        weights_dtype=decided.chosen.weights_dtype,
        learning_rate=peak_rate,
        usual_learning_rate=usual_learning_rate(original, parameter_count, cut.effective_batch),
        loraplus_learning_rate=None if ratio == 1 else exact(peak_rate.value * ratio, ratio_reason),
        # The share is exact, so the rate is as exact as the peak.
        final_learning_rate=exact(peak_rate.value * floor, floor_reason) if floor else None,
        longest_row=longest_tokens,
        training_setup=setup,
        loss_chunk_tokens=decided.chosen.loss_chunk_tokens,
        kernels=fused_kernels(loaded, hardware, decided.target, shape),
        loader_workers=loader_workers,
        train_tokens=Planned(value=facts.tokens, exact=facts.exact, reason=facts.reason),
        effective_batch_size=exact(cut.effective_batch, effective_reason),
        effective_batch_is_auto=effective_batch.is_automatic(original),
        processes=group.count,
        strategy=group.strategy,
        cpu_offload=offload_figure,
        per_device_train_batch_size=exact(cut.micro_batch, cut.micro_reason),
        memory_key=str(decided.memory_key),
        untuned_key=str(decided.memory_key) if decided.is_untuned else "",
        gradient_accumulation_steps=exact(cut.accumulation, cut.accumulation_reason),
        per_device_eval_batch_size=exact(eval_batch, eval_reason),
        num_train_epochs=effective_batch.epochs_figure(original, loaded),
        steps_per_epoch=steps.per_epoch,
        total_steps=steps.total,
        warmup_steps=warmup,
        decay_steps=steps.decay(training.lr_scheduler_type, training.num_decay_steps, warmup.value),
        router_aux_loss_coef=decided.chosen.router_aux_loss_coef,
        **{name: exact(*figure) for name, figure in task.loss_figures(config).items()},
        eval_every_steps=steps.interval_steps("eval_steps", config.evaluation.eval_steps),
        save_every_steps=steps.interval_steps("save_steps", config.checkpoint.save_steps),
        sample_every_steps=steps.interval_steps("sample_steps", config.logging.sample_steps),
        sample_tokens=sample_figure,
        answer_rows=answers_figure,
        answers_interval=interval,
        threads=exact(decided.threads.value, threads_reason),
        checkpoint_bytes=estimated(checkpoint_size, saved_reason),
        final_model_bytes=final_model,
        disk_bytes=estimated(disk_bytes, disk_reason),
        memory_budget_bytes=decided.memory_budget.budget_bytes,
        memory_bytes=estimated(total_bytes(parts), memory_reason),
        memory_parts=parts,
        host_memory_bytes=host_bytes,
        host_memory_parts=host_parts,
        step_seconds=step,
        step_grade=calibration.grade,
        step_flops=flops,
        shape_key=str(key),
        beginning_seconds=beginning_figure,
        duration_seconds=estimated(total, "; ".join(filter(None, (time_reason, busy_text)))),
        checkpointing_cost=duration.checkpointing_cost(
            duration.recomputed_share(shape, setup, row_width), with_it.step_seconds, without.step_seconds
        ),
        compute_rates=duration.compute_rates(
            flops / rows, shape, setup, device=device, processes=group.per_node, card=card, tried_on=tried_on
        ),
        busy_words=busy_text,
    )


def _head(loaded: LoadedConfig, facts: DataFacts, shape: ModelShape) -> Planned[str] | None:
    """Return `kept` or `new` for the head of a classifier; None if the labels of model or data have no names."""
    config, names = loaded.config, tuple(facts.details.get("names", ()))
    if config.is_from_scratch or not names:
        return None
    model = find_model(config.model.model_name_or_path, config.model.revision, head=shape.head)
    old_labels = config_label_names(model.config)
    if not old_labels or any(re.fullmatch(r"LABEL_\d+", name) for name in (*old_labels, *names)):
        return None
    old_text, new_text = (
        one_line(", ".join(labels[:5]) + (", ..." if len(labels) > 5 else ""), 120) for labels in (old_labels, names)
    )
    if set(old_labels) == set(names):
        return exact("kept", f"the model already has the labels of the data: {old_text}")
    return exact("new", f"the model has the labels {old_text}, but the data has {new_text}")
