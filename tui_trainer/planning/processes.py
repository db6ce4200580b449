"""How many processes train one model together, and on which cards."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.diagnosis import GpuChoice, usable_gpus
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.automatic_values import Target
from tui_trainer.planning.batching import EFFECTIVE, PROCESSES
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.planning.strategies import (
    NODES,
    OFFLOAD,
    SPLITTING,
    STRATEGY,
    ZERO_STAGES,
    Strategy,
    split_problems,
)
from tui_trainer.planning.training_setup import TrainingSetup

COPIES: Planned[Strategy] = exact("ddp", "one process")
ONE: Planned[int] = exact(1, "one process")
ON_THE_CARDS: Planned[bool] = exact(False, "weights are where they are computed with")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The processes of a run, and the card of each where there are several."""

    count: Planned[int] = ONE
    nodes: int = 1
    strategy: Planned[Strategy] = COPIES
    cpu_offload: Planned[bool] = ON_THE_CARDS
    gpu_uuids: tuple[str, ...] = ()
    """On the first node."""

    @property
    def per_node(self) -> int:
        return self.count.value // self.nodes


def tightest(hardware: Hardware, target: Target, gpu_uuids: tuple[str, ...]) -> Target:
    """Where the process with the least free memory computes."""
    cards = [gpu for gpu in hardware.gpus if gpu.cuda_uuid in gpu_uuids]
    return replace(target, gpu=min(cards, key=lambda gpu: gpu.memory_free_bytes or 0)) if cards else target


def processes_of(loaded: LoadedConfig, hardware: Hardware, target: Target, chosen_gpu: GpuChoice = None) -> Group:
    """As many as the config asks for; `auto`: one for each card like the one of `target`. Of several nodes each has as
    many as this one. Raises ConfigError.
    """
    here, nodes = _here(loaded, hardware, target, chosen_gpu), loaded.config.distributed.nodes
    if nodes == 1:
        return here
    reason = f"{nodes} nodes (from {loaded.where(NODES)}) of {here.count.value}: {here.count.reason}"
    return replace(here, nodes=nodes, count=exact(_with_rows(loaded, nodes * here.count.value), reason))


def _here(loaded: LoadedConfig, hardware: Hardware, target: Target, chosen_gpu: GpuChoice) -> Group:
    requested = loaded.config.distributed.processes
    if is_asked(loaded.config):
        return Group(count=exact(1, "Unsloth trains in one process"))
    if target.gpu is None:
        if requested in ("auto", 1):
            return Group(count=exact(1, "one process has all cores of a CPU"))
        return Group(count=exact(_with_rows(loaded, int(requested)), f"from {loaded.where(PROCESSES)}"))
    cards = cards_for(hardware, target.gpu)
    if requested == "auto":
        return _automatic(loaded, cards, chosen_gpu)
    count = _with_rows(loaded, int(requested))
    if count > len(cards):
        message = f"is {count}, but {len(cards)} {'card' if len(cards) == 1 else 'cards'} can be used"
        raise ConfigError(loaded.problem(PROCESSES, message, f"set it to {len(cards)}, or to auto"))
    return _on(cards[:count], f"from {loaded.where(PROCESSES)}")


def strategy_of(
    loaded: LoadedConfig,
    group: Group,
    fits: Callable[[int], bool],
    *,
    offloads: bool = False,
) -> Planned[Strategy]:
    """Whether each process has a copy of the model or a part of it. `fits(shards)`: whether one row in a pass fits
    where the model is split over so many. `offloads`: cards with weights on the host. Raises ConfigError for what
    cannot be split.
    """
    requested, processes = loaded.config.distributed.strategy, group.count.value
    if processes == 1 and not offloads:
        return COPIES
    has_nodes = group.nodes > 1 and group.per_node > 1
    if requested == "ddp":
        if offloads:
            message = f"is ddp, which has all weights on each card: {OFFLOAD} = true keeps them on the host"
            raise ConfigError(loaded.problem(STRATEGY, message, "set it to fsdp"))
        return exact(requested, f"from {loaded.where(STRATEGY)}")
    if requested == "auto" and offloads:
        if problems := split_problems(loaded):
            raise ConfigError(problems)
        return exact("fsdp", "weights that stay on the host go to a card layer by layer")
    if requested == "auto":
        if fits(1):
            return exact("ddp", "the model fits beside its gradients in each process")
        if problems := split_problems(loaded):
            return exact("ddp", f"the model does not fit beside its gradients, and cannot be split: {problems[0].key}")
        if has_nodes and fits(group.per_node):
            return exact("hsdp", "the model fits in the processes of a node together: its weights stay within each")
        if not fits(processes):
            return exact("fsdp", "the model does not fit beside its gradients: split it comes nearest")
        return exact("fsdp", "only a part of the model fits in a process")
    if requested not in ZERO_STAGES and (problems := split_problems(loaded)):
        raise ConfigError(problems)
    if requested == "hsdp" and not has_nodes:
        message = "is hsdp, which needs several nodes with several processes each"
        raise ConfigError(loaded.problem(STRATEGY, message, "set it to fsdp: it splits over all processes"))
    return exact(requested, f"from {loaded.where(STRATEGY)}")


def split_over(setup: TrainingSetup, strategy: Strategy, processes: int, per_node: int) -> TrainingSetup:
    """What each process has of the model."""
    shards = {"ddp": 1, "hsdp": per_node}.get(strategy, processes)
    return replace(setup, shards=shards, zero_stage=ZERO_STAGES.get(strategy, 0))


def offload_of(loaded: LoadedConfig, strategy: Strategy, on_card: bool) -> Planned[bool]:
    """Whether weights, gradients and optimizer state stay on the host."""
    if not loaded.config.distributed.cpu_offload:
        return ON_THE_CARDS
    reason = f"from {loaded.where(OFFLOAD)}"
    if on_card:
        return exact(True, f"{reason}: weights go to the card in each pass, and the CPU updates them")
    return exact(strategy in (*SPLITTING, *ZERO_STAGES), f"{reason}, which changes nothing on a CPU")


def cards_for(hardware: Hardware, first: Gpu) -> list[Gpu]:
    """Cards that can be used, that one first, then those like it."""
    others = [gpu for gpu in usable_gpus(hardware) if gpu.index != first.index]
    return [first, *sorted(others, key=lambda gpu: (gpu.name != first.name, gpu.index))]


def _automatic(loaded: LoadedConfig, cards: list[Gpu], chosen_gpu: GpuChoice) -> Group:
    if isinstance(chosen_gpu, int):
        return Group(count=exact(1, f"GPU {chosen_gpu} was chosen"))
    alike = [gpu for gpu in cards if gpu.name == cards[0].name]
    if len(alike) == 1:
        return Group(count=exact(1, "one card" if len(cards) == 1 else "the other cards are not alike"))
    rows = loaded.config.training.effective_batch_size
    if rows < len(alike):
        return _on(alike[:rows], f"{len(alike)} cards, but a step has {rows} rows only")
    return _on(alike, f"{len(alike)} cards of one kind")


def _on(cards: list[Gpu], reason: str) -> Group:
    uuids = tuple(gpu.cuda_uuid for gpu in cards) if len(cards) > 1 else ()
    return Group(count=exact(len(cards), reason), gpu_uuids=uuids)


def _with_rows(loaded: LoadedConfig, count: int) -> int:
    rows = loaded.config.training.effective_batch_size
    if count > rows:
        key, is_there, hint = PROCESSES, str(count), f"set it to {rows} or less, or {EFFECTIVE} higher"
        if (nodes := loaded.config.distributed.nodes) > 1:
            key, is_there = NODES, f"{nodes}, which makes {count} processes"
            hint = f"take fewer nodes, or set {EFFECTIVE} higher"
        message = f"is {is_there}, but a step has {rows} rows: each process needs one"
        raise ConfigError(loaded.problem(key, message, hint))
    return count
