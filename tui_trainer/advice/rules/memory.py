"""What a run takes of memory, and what makes it less."""

from collections.abc import Iterator
from statistics import fmean

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    Cause,
    Remedy,
    Rule,
    Verdict,
    failed,
    not_applicable,
    passed,
    percent,
    symptom,
    warned,
)
from tui_trainer.advice.remedies import is_short, memory_with, smaller_model, way_to_fit
from tui_trainer.advice.rules.batch import BUSY_TOKENS
from tui_trainer.advice.run_view import RunView
from tui_trainer.errors import ConfigError
from tui_trainer.methods.tuning_methods import BITSANDBYTES
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import MICRO
from tui_trainer.planning.duration import UNPACKING_TIMES, recomputed_share
from tui_trainer.planning.fit import largest_micro_batch
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.events import GaugesRead
from tui_trainer.units import MIB, format_bytes, format_bytes_of

CHECKPOINTING, METHOD = "training.gradient_checkpointing", "tuning.method"
_CHUNK, _CHUNK_TOKENS = "training.loss_chunk_tokens", 1024
_FULL_SHARE, _LEAST_FREE_SHARE = 0.96, 0.03
_INSTALL = f"uv pip install {BITSANDBYTES}, then --set tuning.method=qlora"
_LEAST_READINGS = 6
# A process settles after its first evaluation, sample and checkpoint.
_LEAST_GROWTH, _LEAST_GROWTH_BYTES = 0.1, 64 * MIB


@symptom("Memory nearly full", least_share=0)
def memory_full(view: RunView) -> Cause | None:
    """In this order: half the rows of a pass at twice the accumulation, 4 bits, shorter rows, checkpointing."""
    used, total = view.gpu_mean("memory_used_bytes"), view.gpu_mean("memory_bytes")
    free = view.mean("memory_available_bytes")
    own = view.mean("process_memory_bytes")
    is_card = bool(used and total and used >= _FULL_SHARE * total)
    if used and total and is_card:
        evidence = f"{format_bytes_of(used, total)} of the GPU in use ({percent(used / total)})"
    elif free is not None and own is not None and free < _LEAST_FREE_SHARE * (free + own):
        evidence = f"{format_bytes(free)} of host memory left beside the {format_bytes(own)} of the run"
    else:
        return None
    return Cause(
        cause="The memory is nearly full: a longer row, an evaluation or another process may end the run.",
        evidence=evidence,
        share=0.0,
        is_fault=not is_card,
        fix={CHECKPOINTING: True},
        advice="or fewer rows in a pass, shorter rows, LoRA with a smaller r, 4 bits",
    )


class GradientCheckpointing(Rule):
    """It pays only where memory, and not time, is short.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
    """

    name, title, order = "gradient_checkpointing", "Gradient checkpointing", 150
    settings = (CHECKPOINTING,)
    published = "memory that grows with the root of the layers, for one more forward pass (arXiv:1604.06174)"
    during = (memory_full,)

    def before(self, context: Context) -> Verdict:
        is_on = context.config.training.gradient_checkpointing
        other = context.basis.changed({CHECKPOINTING: not is_on}).setup
        now, changed = context.planned.memory_bytes.value, memory_with(context, setup=other)
        sentence = f"{'on' if is_on else 'off'}: {format_bytes(now)} in all, {format_bytes(changed)} "
        sentence += "without it" if is_on else "with it"
        if is_on:
            return _checkpointing_on(context, other, sentence)
        if is_short(context) and (way_to_fit(context) or {}).get(CHECKPOINTING):
            sentence += f"; memory is short, and steps take {_cost_words(context)}"
            return warned(sentence, fix={CHECKPOINTING: True}, switch="checkpointing: off")
        sentence += f"; steps would take {_cost_words(context)}"
        return passed(sentence, switch="checkpointing: off, not needed", opposite={CHECKPOINTING: True})

    def remedies(self, basis: Basis, budget: float) -> Iterator[Remedy]:
        if not basis.setup.gradient_checkpointing:
            row_tokens = basis.setup.longest_row or basis.config.data.max_length
            slower = percent(recomputed_share(basis.shape, basis.setup, row_tokens))
            yield Remedy(patch={CHECKPOINTING: True}, rank=4, costs=f"about {slower} slower")


def _checkpointing_on(context: Context, without: TrainingSetup, sentence: str) -> Verdict:
    """A batch that can be cut further needs no checkpointing, as long as a pass keeps the processor busy."""
    rows = _rows_without(context, without)
    if rows == 0:
        sentence += f"; memory needs it, and steps take {_cost_words(context)}"
        return passed(sentence, switch="checkpointing on", opposite={CHECKPOINTING: False})
    fits = f"{rows} {'row' if rows == 1 else 'rows'} in a pass fit without it"
    sentence += f"; {fits}, and with it steps take {_cost_words(context)}"
    return warned(sentence, fix={CHECKPOINTING: False}, switch="checkpointing on")


def _cost_words(context: Context) -> str:
    """`33 % longer: its layers are computed forward twice`."""
    if (cost := context.planned.checkpointing_cost) is None:
        share = recomputed_share(context.basis.shape, context.basis.setup, context.planned.longest_row)
        return f"about {percent(share)} longer"
    return f"{percent(cost.value)} longer: {cost.reason}"


def _rows_without(context: Context, without: TrainingSetup) -> int:
    """Rows of a pass that fit without it and keep the processor busy; 0 when there are too few."""
    budget, training = context.basis.room.budget_bytes, context.config.training
    if budget is None:
        return 0
    micro = context.planned.per_device_train_batch_size.value
    if context.loaded.origin(MICRO).by_user and isinstance(training.per_device_train_batch_size, int):
        return micro if memory_with(context, setup=without) <= budget else 0
    basis = context.basis
    rows = largest_micro_batch(basis.shape, without, context.config, basis.room, context.step_rows)
    busy = rows * context.row_tokens >= BUSY_TOKENS[basis.target.device] or rows >= context.step_rows
    return rows if busy and memory_with(context, micro_batch=rows, setup=without) <= budget else 0


class Qlora(Rule):
    """Frozen weights need not be exact; each product unpacks them first, which costs time.

    Source: Dettmers et al., QLoRA, arXiv:2305.14314.
    """

    name, title, order = "four_bits", "Four bits where memory is short", 295
    settings = (METHOD,)
    published = "4.127 bits a parameter (QLoRA, arXiv:2305.14314, section 3)"

    def before(self, context: Context) -> Verdict:
        plan = context.planned
        if context.config.is_from_scratch:
            return not_applicable("every weight of a model from scratch is trained: none can be frozen in 4 bits")
        if plan.device != "cuda":
            return not_applicable("weights in 4 bits are unpacked on a GPU only, and this run is on the CPU")
        weights = sum(part.bytes for part in plan.memory_parts if part.name == "weights")
        if context.config.tuning.in_four_bits:
            return passed(
                f"frozen weights are in 4 bits: {format_bytes(weights)}, and steps take {UNPACKING_TIMES} times"
            )
        sentence = f"weights take {format_bytes(weights)} as {plan.weights_dtype.value}"
        if not is_short(context):
            return passed(
                f"{sentence}, which fits; in 4 bits each step would take about {UNPACKING_TIMES} times as long"
            )
        free = format_bytes(context.basis.room.budget_bytes)
        try:
            needed = memory_with(context, setup=context.basis.changed({METHOD: "qlora"}).setup)
        except ConfigError as error:
            return warned(f"{sentence}, too much for the {free} there", advice=str(error))
        sentence += f", too much; with 4 bits the run needs {format_bytes(needed)} of {free}"
        if context.hardware.libraries.get(BITSANDBYTES) is None:
            return warned(sentence, advice=_INSTALL)
        return warned(sentence, fix={METHOD: "qlora"})

    def remedies(self, basis: Basis, budget: float) -> Iterator[Remedy]:
        if basis.setup.device == "cuda" and not basis.setup.four_bits and not basis.config.is_from_scratch:
            needs = "" if basis.hardware.libraries.get(BITSANDBYTES) else BITSANDBYTES
            yield Remedy(patch={METHOD: "qlora"}, rank=7, costs="a quarter slower", needs=needs)


class LossInChunks(Rule):
    """Logits of a few tokens at a time cost hardly anything."""

    name = "loss_in_chunks"
    settings = (_CHUNK,)

    def remedies(self, basis: Basis, budget: float) -> Iterator[Remedy]:
        if basis.shape.logits and (not basis.setup.loss_chunk_tokens or basis.setup.loss_chunk_tokens > _CHUNK_TOKENS):
            yield Remedy(patch={_CHUNK: _CHUNK_TOKENS}, rank=3)


@symptom("Memory growing")
def memory_growing(view: RunView) -> Cause | None:
    """Memory is stable after two or three steps; what grows on ends in an out-of-memory error, hours later."""
    readings = [(one.step, used) for one in view.all_readings if (used := _used_bytes(one, view)) is not None]
    readings = readings[len(readings) // 5 :]
    if len(readings) < _LEAST_READINGS:
        return None
    third = len(readings) // 3
    low, middle, high = (fmean(used for _, used in readings[at * third : (at + 1) * third]) for at in range(3))
    growth = high - low
    is_steady = middle > low and high - middle >= 0.3 * (middle - low)
    if not is_steady or growth < max(_LEAST_GROWTH * low, _LEAST_GROWTH_BYTES):
        return None
    (first_step, first), (last_step, last) = readings[0], readings[-1]
    steps = max(last_step - first_step, 1)
    each = max(last - first, 0.0) / steps
    total = view.state.total_steps
    at_the_end = last + each * max(total - last_step, 0)
    free = view.mean("memory_available_bytes")
    missing = free is not None and at_the_end - last > free
    share = 1 - (last_step + free / each) / total if missing and free is not None and each and total else 0.0
    will = f", which would be {format_bytes(at_the_end)} at step {total:,}" if last_step < total else ""
    return Cause(
        cause="The memory of the run grows from step to step, and is not given back.",
        evidence=f"{format_bytes(first)} at step {first_step:,}, {format_bytes(last)} at step {last_step:,}{will}",
        share=max(share, 0.0),
        is_fault=True,
        advice="something keeps what a step made: a hook, a model's own code; a resume from a checkpoint begins anew",
    )


class MemoryFits(Rule):
    """A run that fills the memory is killed by the system, or swaps and crawls."""

    name, title, order = "memory", "Memory has room to spare", 330
    during = (memory_growing,)

    def before(self, context: Context) -> Verdict:
        room, needed = context.basis.room, context.planned.memory_bytes.value
        if room.free_bytes is None:
            return not_applicable(f"the run needs {format_bytes(needed)}; how much is free is not reported")
        sentence = (
            f"the run needs {format_bytes(needed)} of {format_bytes(room.free_bytes)} that are free on {room.where}"
        )
        if room.free_bytes:
            sentence += f", {needed / room.free_bytes:.0%}"
        details = [f"{part.name}: {format_bytes(part.bytes)}" for part in context.planned.memory_parts if part.bytes]
        details += [
            f"on the machine, {part.name}: {format_bytes(part.bytes)}" for part in context.planned.host_memory_parts
        ]
        if not is_short(context):
            if shortage := _host_shortage(context):
                return failed(
                    shortage, *details, advice="close other programs, or raise the limit of the container or job"
                )
            return passed(sentence, *details)
        fix = way_to_fit(context)
        verdict = failed if needed > room.free_bytes else warned
        return verdict(sentence, *details, fix=fix, advice="" if fix else _what_fits(context))


def _host_shortage(context: Context) -> str:
    """A run on a GPU for which the machine itself has too little free; empty where it has enough, or nobody knows."""
    needed, free = context.planned.host_memory_bytes, context.hardware.memory_available_bytes
    if needed is None or free is None or needed.value <= free:
        return ""
    wanted = f"the run needs {format_bytes(needed.value)} of the machine's memory beside the GPU's"
    return f"{wanted}, of which {format_bytes(free)} are free"


def _what_fits(context: Context) -> str:
    if with_library := way_to_fit(context, as_if_installed=True):
        settings = ", ".join(f"{key} = {value}" for key, value in with_library.items())
        return f"with bitsandbytes it would fit: uv pip install bitsandbytes, then set {settings}"
    return f"{smaller_model(context)} or lower data.max_length: not even one row at a time fits"


def _used_bytes(reading: GaugesRead, view: RunView) -> float | None:
    if not view.on_gpu:
        return reading.process_memory_bytes
    known = [gpu.process_memory_bytes or gpu.memory_used_bytes for gpu in reading.gpus]
    return sum(filter(None, known)) or None
