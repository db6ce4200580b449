"""Does the plan fit in the memory that is free, of the card or of the machine, with room to spare?"""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, failed, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import is_short, way_to_fit
from tui_trainer.planning.choices import is_from_scratch
from tui_trainer.units import format_bytes


def look(context: Context) -> Verdict:
    room, needed = context.basis.room, context.planned.memory_bytes.value
    if room.free_bytes is None:
        return not_applicable(f"the run needs {format_bytes(needed)}; how much is free is not reported")
    sentence = f"the run needs {format_bytes(needed)} of {format_bytes(room.free_bytes)} that are free on {room.where}"
    if room.free_bytes:
        sentence += f", {needed / room.free_bytes:.0%}"
    details = [f"{part.name}: {format_bytes(part.bytes)}" for part in context.planned.memory_parts if part.bytes]
    if not is_short(context):
        return passed(sentence, *details)
    fix = way_to_fit(context)
    verdict = failed if needed > room.free_bytes else warned
    return verdict(sentence, *details, fix=fix, advice="" if fix else _advice(context))


def _advice(context: Context) -> str:
    if with_library := way_to_fit(context, as_if_installed=True):
        settings = ", ".join(f"{key} = {value}" for key, value in with_library.items())
        return f"with bitsandbytes it would fit: uv pip install bitsandbytes, then set {settings}"
    smaller = "lower model.scratch.hidden_size" if is_from_scratch(context.config) else "choose a smaller model"
    return f"{smaller} or lower data.max_length: not even one row at a time fits"


CHECK = Check(
    name="memory",
    order=330,
    title="Memory has room to spare",
    guides=("E memory issues", "C bottleneck 2", "B CUDA out of memory", "D target metrics"),
    claim="",
    why="A run that fills the memory is killed by the system, or swaps and crawls.",
    look=look,
)
