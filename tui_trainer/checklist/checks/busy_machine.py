"""Programs beside a run take its cores: threads then wait for one another at every matmul."""

import os

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.units import format_bytes

# One core of two taken away halves the speed of a step; a quarter is noticed. What nobody notices is a minute that
# began with starting this program.
_BUSY_SHARE, _LEAST_LOAD = 0.25, 0.75


@check(order=40, title="The machine is free", needs_plan=False)
def look(context: Context) -> Verdict:
    hardware = context.hardware
    guests = [
        f"GPU {gpu.index}: {process.name or 'process'} {process.pid}, {format_bytes(process.memory_bytes)}"
        for gpu in hardware.gpus
        for process in gpu.processes or ()
        if process.pid != os.getpid()
    ]
    load, cores = context.load_average, hardware.usable_cores
    if load is None:
        return not_applicable("this system does not report its load", *guests)
    sentence = f"other programs' load of the last minute {load:.1f} on {cores} usable cores"
    cards = f", {len(guests)} processes on the GPUs" if guests else ""
    if load > max(_BUSY_SHARE * cores, _LEAST_LOAD) or guests:
        return warned(f"{sentence}{cards}", *guests, advice="see who works here: top")
    return passed(sentence)
