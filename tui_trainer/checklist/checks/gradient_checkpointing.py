"""Activations computed twice to save memory: not in this version, and how much it could save."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable
from tui_trainer.units import format_bytes


def look(context: Context) -> Verdict:
    plan, free = context.planned, context.hardware.memory_available_bytes
    kept = sum(part.bytes for part in plan.memory_parts if part.name in ("activations", "passing results"))
    share = f", {format_bytes(plan.memory_bytes.value)} in all, of {format_bytes(free)} that are free" if free else ""
    return not_applicable(f"this version keeps all activations: {format_bytes(kept)}{share}")


CHECK = Check(
    name="gradient_checkpointing",
    order=150,
    title="Gradient checkpointing",
    guides=("C checklist 5", "B training arguments", "D optimisation 4"),
    claim="30-50 % less activation memory, 10-15 % slower (guide C)",
    why="It pays only where memory, and not time, is short.",
    look=look,
)
