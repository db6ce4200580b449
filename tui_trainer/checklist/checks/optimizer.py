"""AdamW as one fused kernel: what `training/optimiser.py` builds, always."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, passed
from tui_trainer.units import format_bytes, format_count


def look(context: Context) -> Verdict:
    parameters = context.planned.parameters.value
    return passed(
        f"fused AdamW on {format_count(parameters)} parameters, {format_bytes(8 * parameters)} of state; "
        "gradients are set to None, not to zero",
        "on a CPU 7.7 ms fused, 21.5 ms as a loop, 28.9 ms foreach (measured when it was built)",
        switch="fused AdamW on",
    )


CHECK = Check(
    name="optimizer",
    order=120,
    title="Fused AdamW",
    guides=("E should see 2", "E optimisation 4", "E optimisation 9", "B training arguments"),
    claim="5-15 % faster optimiser step (guide E); +10 % (guide B)",
    why="One pass over the weights instead of one for each operation and each tensor.",
    look=look,
)
