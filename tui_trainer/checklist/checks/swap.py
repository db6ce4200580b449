"""A step that waits for pages from a disk takes a hundred times as long."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.units import MIB, format_bytes

# A little of what nobody looks at any more lies there on healthy machines too.
_MOST_BYTES, _MOST_SHARE = 512 * MIB, 0.05


@check(
    order=45,
    title="Nothing is swapped out",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    used = context.swap_used_bytes
    if used is None:
        return not_applicable("this system does not report its swap")
    sentence = f"{format_bytes(used)} of swap in use"
    memory = context.hardware.memory_bytes or 0
    if used <= max(_MOST_BYTES, _MOST_SHARE * memory):
        return passed(sentence)
    available = format_bytes(context.hardware.memory_available_bytes)
    return warned(f"{sentence}, {available} of memory available", advice="see who has it: ps aux --sort=-rss | head")
