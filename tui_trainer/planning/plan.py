"""The plan: what will happen, each derived number with its reason, each exact or estimated.

`make` needs no torch. Made before the data is prepared, some numbers are estimates; made again with the prepared data's
facts, they are exact, and that plan is written to `plan.json` before step 1. A run reads nothing else.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tui_trainer.config.load import LoadedConfig, Origin, ResolvedLoaded
from tui_trainer.config.sections import ResolvedConfig, step_rows
from tui_trainer.data.preparing.row_selection import SourceRows
from tui_trainer.data.sources.splits import SplitUse
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import Device, GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gpu_models import FLASH_KERNELS
from tui_trainer.hardware.probe import disk_free_bytes
from tui_trainer.models.config_json import fp16_problems
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.ancestry import Ancestor, ancestors_of
from tui_trainer.planning.assemble import Decisions, assemble, requested_threads
from tui_trainer.planning.attention import NOT_PLANNED, Attention
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import (
    GROUP_BY_LENGTH,
    PACKING,
    TUNE,
    cut_batch,
    cut_by_length,
    grouping,
    is_cut_freely,
    longest_row,
    most_rows,
    packed_cut,
    packing,
    packing_problems,
)
from tui_trainer.planning.conflicts import (
    disk_problems,
    expert_problems,
    four_bit_problems,
    memory_problem,
    setting_problems,
)
from tui_trainer.planning.duration import MOST_TIMES_OF_PACKING, SAMPLE_TOKENS, starting_tokens, times_of_packing
from tui_trainer.planning.effective_batch import decided, is_automatic, resolved, with_rows, with_rows_of_step
from tui_trainer.planning.fit import MemoryBudget, largest_micro_batch, needed_bytes, with_dry_run
from tui_trainer.planning.fused_kernels import NOT_USED, Kernels, fuses_loss, kernel_problems
from tui_trainer.planning.learning_rates import learning_rate
from tui_trainer.planning.measured_steps import kept_micro_batch, measured_peaks, micro_batch_key
from tui_trainer.planning.memory.host import host_memory_problems
from tui_trainer.planning.memory.parts import MemoryPart
from tui_trainer.planning.planned import Planned, StepGrade, exact
from tui_trainer.planning.processes import (
    COPIES,
    ON_THE_CARDS,
    ONE,
    Strategy,
    deepspeed_problems,
    offload_of,
    processes_of,
    split_over,
    strategy_of,
    tightest,
)
from tui_trainer.planning.training_setup import Dtype, Precision, TrainingSetup
from tui_trainer.runs.events import ComputeRates
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts

CHECKPOINTING = "training.gradient_checkpointing"


class Plan(BaseModel):
    """Everything a run needs to know. Bytes, seconds, rows and steps as the names say."""

    model_config = ConfigDict(frozen=True)

    plan_version: Literal[4] = 4
    config: ResolvedConfig
    user_keys: tuple[str, ...] = ()
    """Of the settings that the user wrote; empty in plans that do not say."""
    recipe: str
    hardware_profile: str
    hardware_reason: str
    hardware_settings: tuple[str, ...] = ()
    """Settings whose values come from the hardware profile."""
    device: Device
    device_name: str
    device_reason: str
    gpu_uuid: str
    processes: Planned[int] = ONE
    """That train together, each with its share of every step: on all nodes."""
    nodes: int = 1
    strategy: Planned[Strategy] = COPIES
    cpu_offload: Planned[bool] = ON_THE_CARDS
    gpu_uuids: tuple[str, ...] = ()
    """The card of each process, where there are several; on the first node."""
    cpu_name: str
    data_key: str
    data_fingerprint: str = ""
    """Of the sources that the prepared data was made from; empty in plans that do not say."""
    model_key: str
    model_commit: str = ""
    """Of the model in the hub's cache; empty for a folder, and in plans that do not say."""
    ancestors: tuple[Ancestor, ...] = ()
    """The runs that trained its model before, the oldest first, behind the model that the first of them began with."""
    versions: dict[str, str]
    threads: Planned[int]
    vocabulary: Planned[int]
    classes: int
    head: Planned[str] | None = None
    """Of a classifier: kept or new; None where that is not known, or there was none."""
    parameters: Planned[int]
    trained_parameters: Planned[int]
    precision: Planned[Precision]
    best_precision: Precision | None = None
    """What `training.mixed_precision = "auto"` is here; None in plans that do not say."""
    memory_budget_bytes: int | None = None
    """What the plan may take of the memory that it counts; None where that is not known."""
    weights_dtype: Planned[Dtype]
    learning_rate: Planned[float]
    router_aux_loss_coef: Planned[float] | None = None
    """Of a mixture of experts; None for other models."""
    attention: Attention = NOT_PLANNED
    packing: Planned[bool]
    grouping: Planned[bool] | None = None
    """Whether batches are drawn by length; None in plans of before."""
    longest_row: int
    packed_width: int = 0
    """Of packed rows that were made narrower when memory ran out; 0: `longest_row`."""
    training_setup: TrainingSetup
    loss_chunk_tokens: Planned[int]
    kernels: Planned[Kernels] = NOT_USED
    loader_workers: Planned[int]
    sources: tuple[SourceRows, ...] = ()
    splits: tuple[SplitUse, ...] = ()
    data_notes: tuple[str, ...] = ()
    """What was found in the data, in words; none before it is prepared."""
    train_rows: Planned[int]
    eval_rows: Planned[int]
    train_tokens: Planned[int]
    effective_batch_size: Planned[int]
    effective_batch_is_auto: bool = False
    """The number was left to the plan, and `config` has it."""
    per_device_train_batch_size: Planned[int]
    memory_key: str = ""
    """Under which its peak of memory is kept; empty: it would not be that of such a run."""
    untuned_key: str = ""
    """Under which its micro-batch is kept once it is measured; empty: nothing is to be measured."""
    gradient_accumulation_steps: Planned[int]
    per_device_eval_batch_size: Planned[int]
    steps_per_epoch: Planned[int]
    total_steps: Planned[int]
    warmup_steps: Planned[int]
    decay_steps: Planned[int] | None = None
    """The last steps, in which warmup_stable_decay goes down; None: another schedule."""
    eval_every_steps: Planned[int]
    save_every_steps: Planned[int]
    sample_every_steps: Planned[int]
    sample_tokens: Planned[int] = exact(SAMPLE_TOKENS, "in each text")
    memory_parts: tuple[MemoryPart, ...]
    memory_bytes: Planned[int]
    host_memory_parts: tuple[MemoryPart, ...] = ()
    host_memory_bytes: Planned[int] | None = None
    """Of the machine, for a run on a GPU; None on a CPU, where `memory_bytes` is the machine's."""
    checkpoint_bytes: Planned[int]
    final_model_bytes: int
    disk_bytes: Planned[int]
    step_seconds: Planned[float | None]
    step_grade: StepGrade = StepGrade.ESTIMATED
    """Where `step_seconds` comes from. Plans of earlier versions do not say it."""
    step_flops: float
    shape_key: str
    beginning_seconds: Planned[float | None] | None = None
    """Of `duration_seconds`, what is computed once before the first step; None where nothing is."""
    duration_seconds: Planned[float | None]
    checkpointing_cost: Planned[float] | None = None
    """How much longer a step is with gradient checkpointing than without it, as a share; None in plans that do not
    say."""
    compute_rates: ComputeRates | None = None
    """By which the rate that a run reaches is graded; None in plans that do not say, and where it goes on elsewhere."""
    busy_words: str = ""
    out_of_memory_events: int = 0
    """How often passes were made smaller since the run began."""

    @property
    def has_measured_steps(self) -> bool:
        """Whether `step_seconds` comes from steps of this model that were measured on this machine."""
        return self.step_grade != StepGrade.ESTIMATED

    @property
    def is_group(self) -> bool:
        """Whether torchrun starts it, if only in one process: with weights on the host as well."""
        return self.processes.value > 1 or self.cpu_offload.value

    @property
    def processes_per_node(self) -> int:
        return self.processes.value // self.nodes

    def model_shape(self) -> ModelShape:
        """Of its model, as it is now. Raises InputError where that is no longer there."""
        return find_task(self.config.task.type).model_shape(self.config, self.vocabulary.value, self.classes)


class MemoryShortage(ConfigError):
    """All problems of a plan that needs more memory than there is. `shortage` says so; with `basis` the plan was
    reckoned, and `budget_bytes` are what it may take."""

    def __init__(self, problems: Iterable[Problem], shortage: Problem, basis: Basis, budget_bytes: float) -> None:
        super().__init__(problems)
        self.shortage, self.basis, self.budget_bytes = shortage, basis, budget_bytes


def make(loaded: LoadedConfig, hardware: Hardware, facts: DataFacts, **known: Any) -> Plan:
    """The plan for a config on this machine. Raises ConfigError with all problems, MemoryShortage among them.

    Where a hardware profile undoes the recipe's checkpointing and the run does not fit without, the recipe's counts.

    `data_key` names the prepared data that `facts` were counted on, `data_fingerprint` what it was made from, and
    `model_key` and `model_commit` the weights that the run starts from; empty while they are estimates. `versions` are
    those of the libraries that the run begins with.
    """
    try:
        return _make(loaded, hardware, facts, **known)
    except MemoryShortage:
        if (checkpointed := _with_checkpointing_of_recipe(loaded)) is None:
            raise
        return _make(checkpointed, hardware, facts, **known)


def _with_checkpointing_of_recipe(loaded: LoadedConfig) -> LoadedConfig | None:
    recipe = loaded.recipe.values.get("training", {}) if loaded.recipe else {}
    is_undone = loaded.origin(CHECKPOINTING) == Origin.HARDWARE and not loaded.config.training.gradient_checkpointing
    if not is_undone or not recipe.get("gradient_checkpointing"):
        return None
    why = "gradient checkpointing as in the recipe: the run does not fit without it"
    reason = "; ".join(filter(None, (loaded.hardware_reason, why)))
    return replace(loaded.fitted(CHECKPOINTING, True, why), hardware_reason=reason)


def _make(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts,
    *,
    data_key: str = "",
    data_fingerprint: str = "",
    model_key: str = "",
    model_commit: str = "",
    versions: dict[str, str] | None = None,
    chosen_gpu: GpuChoice = None,
) -> Plan:
    asked = loaded
    loaded, facts = with_rows_of_step(asked, hardware, facts, chosen_gpu)
    decisions = decide(loaded, hardware, facts, chosen_gpu)
    loaded = decisions.loaded
    numbers = assemble(hardware, facts, decisions)
    plan = Plan(
        **numbers,
        learning_rate=learning_rate(asked, numbers["parameters"].value, decisions.cut.effective),
        effective_batch_is_auto=is_automatic(asked),
        data_key=data_key,
        data_fingerprint=data_fingerprint,
        model_key=model_key,
        model_commit=model_commit,
        ancestors=ancestors_of(loaded.config),
        versions=versions or {},
    )
    room, config = decisions.room, loaded.config
    needed = plan.memory_bytes.value
    problems = disk_problems(loaded, plan.disk_bytes.value, disk_free_bytes(Path(config.output.runs_dir)))
    on_host = host_memory_problems(plan.host_memory_bytes, hardware)
    if room.total_bytes is not None and needed > room.total_bytes:
        shortage, basis = memory_problem(loaded, room, needed), basis_of(loaded, hardware, plan)
        raise MemoryShortage([*problems, shortage, *on_host], shortage, basis, room.share * room.total_bytes)
    if problems or on_host:
        raise ConfigError([*problems, *on_host])
    return plan


def basis_of(loaded: LoadedConfig, hardware: Hardware, plan: Plan) -> Basis:
    """What a plan was reckoned from, with the memory that is free now: for all who ask how it would be otherwise.

    Raises InputError where the model is no longer what it was when the plan was made.
    """
    is_auto = loaded.config.training.effective_batch_size == "auto"
    target = choices.TrainingDevice.planned(hardware, plan.training_setup.device, plan.device_reason, plan.gpu_uuid)
    return Basis(
        loaded=with_rows(loaded, step_rows(plan.config)) if is_auto else resolved(loaded),
        hardware=hardware,
        target=target,
        room=MemoryBudget.of(hardware, tightest(hardware, target, plan.gpu_uuids), plan.processes_per_node),
        shape=plan.model_shape(),
        setup=plan.training_setup,
        micro_batch=plan.per_device_train_batch_size.value,
        eval_batch=plan.per_device_eval_batch_size.value,
    )


def decide(loaded: ResolvedLoaded, hardware: Hardware, facts: DataFacts, chosen_gpu: GpuChoice = None) -> Decisions:
    """What `auto` becomes, and how the batch is cut. `loaded` and `facts` are those of `with_rows_of_step`. Raises
    ConfigError with all problems."""
    config = loaded.config
    target = choices.TrainingDevice.of(hardware, chosen_gpu)
    problems = setting_problems(loaded, facts.eval_rows) + choices.precision_problems(loaded, hardware, target)
    if problems:
        raise ConfigError(problems)
    group = processes_of(loaded, hardware, target, chosen_gpu)
    shape = find_task(config.task.type).model_shape(config, facts.vocabulary, facts.classes)
    processes = group.count.value
    packed = packing(loaded, facts, shape, step_rows(config))
    micro = config.training.per_device_train_batch_size
    pass_rows = micro if isinstance(micro, int) else -(-step_rows(config) // processes)
    shares = None
    if facts.padding and not packed.value and pass_rows > 1:
        shares = facts.padding(min(step_rows(config), facts.rows), pass_rows)
    grouped = grouping(loaded, shares, is_exact=facts.exact)
    asked, loaded = loaded, resolved(decided(loaded, GROUP_BY_LENGTH, grouped.value))
    config = loaded.config
    widest = longest_row(config, facts, packed.value)
    rows_of_data = TrainingSetup(
        packed=packed.value,
        longest_row=widest,
        most_rows=-(-most_rows(config, facts, packed.value, step_rows(config)) // processes),
        row_documents=facts.row_documents,
        document_tokens=0.0 if packed.value else facts.document_tokens,
        narrowest_pass=shares.of(is_grouped=grouped.value)[1] if shares else 0,
        label_share=_label_share(facts) if shape.head == CAUSAL else 1.0,
        target_tokens=facts.target_tokens,
        fused_loss=fuses_loss(loaded, hardware, target, shape),
    )
    setup, chosen = choices.choose(loaded, hardware, target, shape, rows_of_data)
    if packed.value and asked.config.data.packing == "auto" and setup.device == "cpu":
        times = times_of_packing(config, facts, shape, setup)
        if times > MOST_TIMES_OF_PACKING:
            reason = "auto: packed rows with a mask need more computation than separate rows"
            alone = decide(resolved(decided(asked, PACKING, value=False, reason=reason)), hardware, facts, chosen_gpu)
            if times * (1 - alone.padding) > MOST_TIMES_OF_PACKING:
                return alone
    setup, memory_reason = with_dry_run(config, shape, setup)
    if problems := four_bit_problems(loaded, hardware, target, shape, setup):
        raise ConfigError(problems)
    room = MemoryBudget.of(hardware, tightest(hardware, target, group.gpu_uuids), group.per_node)
    threads = requested_threads(loaded, hardware, group.per_node)

    offloads = config.distributed.cpu_offload and target.device == "cuda"
    setup = replace(setup, cpu_offload=offloads)

    def fits(shards: int) -> bool:
        one_row = replace(setup, shards=shards)
        return room.budget_bytes is None or needed_bytes(shape, one_row, config, 1) <= room.budget_bytes

    strategy = strategy_of(loaded, group, fits, offloads=offloads)
    setup = split_over(setup, strategy.value, processes, group.per_node)
    tunes = config.training.per_device_train_batch_size == TUNE
    key = micro_batch_key(loaded, hardware, target.gpu, shape, setup, threads.value, processes)
    setup = replace(setup, measured_peaks=measured_peaks(key))
    kept = kept_micro_batch(key) if tunes else None

    def largest_fit(limit: int) -> int:
        return min(limit, kept.rows) if kept else largest_micro_batch(shape, setup, config, room, limit)

    cut = cut_batch(loaded, largest_fit, processes)
    problems = [cut] if isinstance(cut, Problem) else packing_problems(loaded, shape)
    problems += deepspeed_problems(loaded, hardware, strategy.value, setup)
    problems += expert_problems(loaded, strategy.value, setup)
    problems += fp16_problems(config, shape.model_type) + kernel_problems(loaded, hardware, target, shape)
    in_fp32 = (setup.device, setup.precision, setup.weights) == ("cuda", "fp32", "float32")
    if in_fp32 and config.model.attn_implementation in FLASH_KERNELS:
        message = f"{config.model.attn_implementation} supports 16 bits only, and this run is in fp32"
        problems.append(loaded.problem("model.attn_implementation", message, "set it to auto, or train in 16 bits"))
    if config.model.attn_implementation == "sdpa" and shape.attention.soft_cap:
        message = f"sdpa does not support the soft cap on the scores of {shape.model_type}"
        hint = "set it to auto (eager), or to flex_attention or flash_attention_2, which support it"
        problems.append(loaded.problem("model.attn_implementation", message, hint))
    if problems or isinstance(cut, Problem):
        raise ConfigError(problems)
    if packed.value and facts.packed_rows is not None:
        cut = packed_cut(loaded, cut, facts, widest, largest_fit)
    padding = 0.0
    if facts.padding and not packed.value:
        of_rows = cache(partial(facts.padding, cut.share_of(facts.rows)))
        # Compiled passes all have one width, and routers are balanced over the rows of a pass.
        is_bound = setup.compiled or setup.router_logits or grouped.value
        if is_cut_freely(loaded) and setup.device == "cpu" and not is_bound:
            tokens = starting_tokens(shape, setup, threads.value, round(facts.document_tokens))
            cut = cut_by_length(cut, facts, lambda rows: of_rows(rows).padded, tokens)
        padding, narrowest = of_rows(cut.micro).of(is_grouped=grouped.value)
        setup = replace(setup, narrowest_pass=narrowest)
    if tunes:
        words = kept.words if kept else f"{cut.micro_reason}; the fastest is measured before the start"
        cut = replace(cut, micro_reason=words)
    # A micro-batch and a number of parts that were both written make another effective batch.
    rows = -(-most_rows(config, facts, packed.value, cut.effective) // processes)
    return Decisions(
        loaded=loaded,
        target=target,
        group=replace(
            group, strategy=strategy, cpu_offload=offload_of(loaded, strategy.value, target.device == "cuda")
        ),
        room=room,
        shape=shape,
        setup=replace(setup, most_rows=rows),
        cut=cut,
        chosen=chosen,
        packing=packed,
        grouping=grouped,
        padding=padding,
        threads=threads,
        memory_key=key,
        is_untuned=tunes and not kept,
        memory_reason=memory_reason,
    )


def _label_share(facts: DataFacts) -> float:
    """1 before the data is prepared: all that is read is learnt, at the most."""
    if facts.counts is None:
        return 1.0
    inputs = facts.counts.train_tokens - facts.counts.train_rows * facts.row_documents
    return min(1.0, facts.counts.train_labels / max(inputs, 1))
