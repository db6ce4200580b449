"""Which precision is used, and which this machine could do."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable

_NATIVE = ("amx_bf16", "avx512_bf16")


def look(context: Context) -> Verdict:
    hardware = context.hardware
    native = [flag for flag in _NATIVE if flag in hardware.cpu_flags]
    if native:
        could = f"this CPU could do bf16 natively ({', '.join(native)}), which this version does not use yet"
    elif hardware.cpu_flags:
        could = "this CPU has neither amx_bf16 nor avx512_bf16, and emulated bf16 is slower"
    else:
        could = "what this CPU could do is not reported"
    return not_applicable(f"trains in fp32 on the CPU; {could}; fp16 is for GPUs", switch="precision: fp32")


CHECK = Check(
    name="precision",
    order=100,
    title="Mixed precision",
    guides=("A quick win 2", "C quick win 2", "C checklist 2", "D optimisation 3", "E optimisation 6", "B advanced 3"),
    claim="2x faster, 50 % less memory (guide A); 20-30 % (guide C); 2-3x (guide E)",
    why="Products in 16 bits are faster and halve activations, where the processor has them natively.",
    look=look,
    needs_plan=False,
)
