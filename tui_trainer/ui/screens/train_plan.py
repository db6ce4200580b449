"""What the plan said of a run, beside what happens: memory, time, and which weights are trainable."""

from __future__ import annotations

from typing import Final

from tui_trainer.runs.events import PlanMade
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.train_panes import shown
from tui_trainer.ui.spans import Line, Role
from tui_trainer.units import format_bytes, format_bytes_of, format_count, format_seconds

# The promise is 10 % (DESIGN.md): beyond it a plan was wrong.
_CLEARLY_MORE: Final = 1.1


def training_memory_bytes(state: RunState) -> int | None:
    """The peak so far, counted as the plan counts it; None where that is not known.

    On a GPU what was allocated on the card, on a CPU what training has added to the process with its libraries.
    """
    if state.last_step is None:
        return None
    peak = state.last_step.peak_memory_bytes
    if state.device.startswith("cuda"):
        return peak
    before = state.resident_bytes_before
    return None if before is None else max(peak - before, 0)


def memory_words(state: RunState) -> str:
    """`2.1 of 2.4 GiB planned`; what is known where the peak cannot be compared."""
    if state.plan is None:
        return ""
    measured, planned = training_memory_bytes(state), state.plan.memory_bytes
    if measured is not None:
        return f"{format_bytes_of(measured, planned)} planned"
    process = f", process {format_bytes(state.last_step.peak_memory_bytes)}" if state.last_step else ""
    return f"{format_bytes(planned)} planned{process}"


def memory_title(state: RunState) -> str:
    """The same for the rule of a pane."""
    return f"memory {words}" if (words := memory_words(state)) else ""


def tuning_line(state: RunState, glyphs: Glyphs) -> list[Line]:
    """`LoRA r 16 on TinyLlama-1.1B: 9.01 M of 1.1 G parameters are trainable (0.82 %)`; nothing from scratch."""
    plan = state.plan
    if plan is None or not plan.base_model or plan.trained_parameters is None:
        return []
    how = f"LoRA r {plan.lora_rank} on " if plan.lora_rank else ""
    line: Line = [(how, "dim"), (_name(plan, glyphs), "text"), (": ", "dim"), (_moving(plan), "text")]
    return [[*line, (f" parameters are trainable{_share_words(plan)}", "dim")]]


def plan_rows(state: RunState, glyphs: Glyphs) -> list[Line]:
    """What the plan said, to be compared with what happens."""
    plan, data = state.plan, state.data
    if plan is None:
        return []
    cut = f" = {plan.gradient_accumulation_steps} {glyphs.times} {plan.per_device_train_batch_size}"
    rows = [
        *_model_rows(plan, shown(state.device, glyphs) or "--", glyphs),
        ("data", f"{data.rows:,} rows, {format_count(data.tokens)} tokens" if data else "--"),
        ("batch", f"{plan.effective_batch_size} rows" + (cut if plan.gradient_accumulation_steps > 1 else "")),
        ("steps", f"{plan.total_steps:,}, {plan.steps_per_epoch:,} in an epoch"),
        ("time", f"about {format_seconds(plan.duration_seconds)}"),
    ]
    lines: list[Line] = [[(f"{name:<11}", "dim"), (text, "text")] for name, text in rows]
    return [*lines, [(f"{'memory':<11}", "dim"), (memory_words(state), memory_role(state))]]


def memory_role(state: RunState) -> Role:
    """A warning where training takes clearly more than was planned."""
    measured = training_memory_bytes(state)
    is_more = measured is not None and state.plan is not None and measured > _CLEARLY_MORE * state.plan.memory_bytes
    return "warn" if is_more else "text"


def _model_rows(plan: PlanMade, device: str, glyphs: Glyphs) -> list[tuple[str, str]]:
    if not plan.base_model or plan.trained_parameters is None:
        return [("model", f"{format_count(plan.parameters)} parameters on {device}")]
    moving = f"{_moving(plan)}{_share_words(plan)}"
    method = ("LoRA", f"r {plan.lora_rank}, {moving}") if plan.lora_rank else ("trains", f"{moving} parameters")
    return [("model", f"{_name(plan, glyphs)} on {device}"), method]


def _name(plan: PlanMade, glyphs: Glyphs) -> str:
    return shown(plan.base_model.rstrip("/").rpartition("/")[2], glyphs)


def _moving(plan: PlanMade) -> str:
    trained, every = plan.trained_parameters or 0, plan.parameters
    return f"{format_count(trained)} of {format_count(every)}" if trained < every else f"all {format_count(every)}"


def _share_words(plan: PlanMade) -> str:
    trained = plan.trained_parameters or 0
    if not 0 < trained < plan.parameters:
        return ""
    percent = 100 * trained / plan.parameters
    return f" ({percent:.0f} %)" if percent >= 10 else f" ({percent:.2g} %)"
