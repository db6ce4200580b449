"""Seconds of a step, of the evaluations and of the whole run."""

from typing import Any

from tui_trainer.hardware.catalogue import find_card
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.batching import BatchCut
from tui_trainer.planning.calibration import read_calibration
from tui_trainer.planning.duration import step_time, training_flops
from tui_trainer.planning.planned import Planned
from tui_trainer.planning.steps import Steps
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.registry import state_folder
from tui_trainer.runs.remaining import EVALUATION_SHARE
from tui_trainer.tasks.contract import DataFacts


def times(
    facts: DataFacts,
    shape: ModelShape,
    setup: TrainingSetup,
    cut: BatchCut,
    steps: Steps,
    *,
    row_tokens: int,
    hardware: Hardware,
    gpu: Gpu | None,
    threads: int,
) -> dict[str, Any]:
    """The fields of a plan that are about time. Seconds are None for a card of which nothing is known."""
    # Of one process: all compute at the same time.
    rows = -(-min(cut.effective, facts.rows) // cut.processes)
    # Attention sees full rows where they are packed, else rows as long as their documents.
    as_documents = facts.row_tokens and not setup.packed
    flops = training_flops(
        shape,
        setup,
        tokens=round(rows * (facts.row_tokens or row_tokens)),
        row_tokens=max(1, round(facts.row_tokens)) if as_documents else row_tokens,
        document_tokens=facts.row_tokens or None,
    )
    # Each computes its part of every layer, and all of the head.
    flops /= setup.widths
    key = shape_key(shape, setup, cut.micro, rows, row_tokens, cut.processes)
    card_name = timed_as(gpu.name or "", setup) if gpu else ""
    calibration = read_calibration(
        state_folder(), hardware.cpu_name, threads, key, flops, precision=setup.precision, card_name=card_name
    )
    card = find_card(gpu.name, gpu.memory_bytes) if gpu else None
    step = step_time(flops, shape.hidden_size, calibration, setup, card)
    total = None
    if step.seconds is not None:
        evaluation = step.seconds / rows * steps.eval_rows / cut.processes * EVALUATION_SHARE
        total = steps.total.value * step.seconds + steps.evaluations * evaluation
    reason = f"{steps.total.value} steps and {steps.evaluations} evaluations; without loading, saving and text samples"
    return {
        "step_seconds": Planned(value=step.seconds, exact=False, reason=step.reason),
        "step_flops": flops,
        "shape_key": key,
        "duration_seconds": Planned(value=total, exact=False, reason=reason),
    }


def timed_as(card_name: str, setup: TrainingSetup) -> str:
    """The name under which the rate of a card is kept: where it waits for the host or for others it is another one."""
    if setup.cpu_offload:
        return f"{card_name}, weights on the host"
    return f"{card_name}, layers split over {setup.widths}" if setup.widths > 1 else card_name


def shape_key(
    shape: ModelShape, setup: TrainingSetup, micro_batch: int, effective_batch: int, row_tokens: int, processes: int = 1
) -> str:
    """Names what decides the time of a step on one machine. `effective_batch`: rows of one process in a step."""
    sizes = [shape.hidden_size, shape.layers, shape.attention_heads, shape.key_value_heads, shape.mlp_size]
    dropout = "d" if shape.attention_dropout else ""
    how = [setup.precision, setup.method if setup.method == "full" else f"{setup.method}{setup.lora_rank}"]
    how += [setup.provider] if setup.provider != "transformers" else []
    how += [f"{processes}processes"] if processes > 1 else []
    how += ["ckpt"] if setup.gradient_checkpointing else []
    how += [f"{setup.widths}widths"] if setup.widths > 1 else []
    how += ["packed"] if setup.packed else []
    how += ["offloaded"] if setup.cpu_offload else []
    how += ["compiled"] if setup.compiled else []
    how += [shape.head] if shape.head != "causal_lm" else []
    how += [f"answers{setup.target_tokens}"] if setup.target_tokens else []
    cut = f"{micro_batch}of{effective_batch}x{row_tokens}{dropout}"
    return "-".join(map(str, [shape.model_type, *sizes, shape.vocabulary, cut, *how]))
