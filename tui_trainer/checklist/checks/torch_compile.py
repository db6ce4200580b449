"""Compiled kernels: not in this version."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable


def look(context: Context) -> Verdict:
    steps = context.planned.total_steps.value
    return not_applicable(
        f"this version runs all {steps:,} steps in eager mode; there is no setting to compile",
        switch="torch.compile: not in this version",
    )


CHECK = Check(
    name="torch_compile",
    order=130,
    title="Model compiled",
    guides=("E should see 3", "E optimisation 2", "B advanced 2", "C advanced 3"),
    claim="30-50 % faster (guide E); 15-20 % (guide B); 10-30 % (guide C)",
    why="Small operations fused into few kernels read and write memory less often.",
    look=look,
)
