"""A run that fills the memory is killed by the system, or swaps and crawls."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import is_short, smaller_model, way_to_fit
from tui_trainer.units import format_bytes


@check(
    order=330,
    title="Memory has room to spare",
)
def look(context: Context) -> Verdict:
    room, needed = context.basis.room, context.planned.memory_bytes.value
    if room.free_bytes is None:
        return not_applicable(f"the run needs {format_bytes(needed)}; how much is free is not reported")
    sentence = f"the run needs {format_bytes(needed)} of {format_bytes(room.free_bytes)} that are free on {room.where}"
    if room.free_bytes:
        sentence += f", {needed / room.free_bytes:.0%}"
    details = [f"{part.name}: {format_bytes(part.bytes)}" for part in context.planned.memory_parts if part.bytes]
    details += [
        f"on the machine, {part.name}: {format_bytes(part.bytes)}" for part in context.planned.host_memory_parts
    ]
    if not is_short(context):
        if shortage := _host_shortage(context):
            return failed(shortage, *details, advice="close other programs, or raise the limit of the container or job")
        return passed(sentence, *details)
    fix = way_to_fit(context)
    verdict = failed if needed > room.free_bytes else warned
    return verdict(sentence, *details, fix=fix, advice="" if fix else _advice(context))


def _host_shortage(context: Context) -> str:
    """A run on a GPU for which the machine itself has too little free; empty where it has enough, or nobody knows."""
    needed, free = context.planned.host_memory_bytes, context.hardware.memory_available_bytes
    if needed is None or free is None or needed.value <= free:
        return ""
    wanted = f"the run needs {format_bytes(needed.value)} of the machine's memory beside the GPU's"
    return f"{wanted}, of which {format_bytes(free)} are free"


def _advice(context: Context) -> str:
    if with_library := way_to_fit(context, as_if_installed=True):
        settings = ", ".join(f"{key} = {value}" for key, value in with_library.items())
        return f"with bitsandbytes it would fit: uv pip install bitsandbytes, then set {settings}"
    return f"{smaller_model(context)} or lower data.max_length: not even one row at a time fits"
