"""Tokens are kept under a key of content and settings: a second start tokenises nothing."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, passed
from tui_trainer.tasks import find_task
from tui_trainer.units import format_bytes

_TOKEN_BYTES = 4


@check(
    order=240,
    title="Data is prepared once",
)
def look(context: Context) -> Verdict:
    plan, folder = context.planned, context.cache.path
    tokens = context.all_tokens or plan.train_tokens.value
    data = context.config.data
    tokens = min(tokens, data.max_chars * len(data.paths) or tokens)
    needed = _TOKEN_BYTES * tokens
    rows = plan.train_rows
    if rows.exact:
        return passed(f"{rows.value:,} rows are prepared already ({format_bytes(needed)}): the start uses them again")
    if context.cache.writable is False:
        advice = "choose another place: export TUI_TRAINER_HOME=FOLDER"
        return failed(f"{folder} cannot be written, so no data can be prepared", advice=advice)
    free = context.cache.free_bytes
    waiting = tokens * find_task(context.config.task.type).waiting_bytes
    if free is not None and free < 2 * needed + waiting:
        room = format_bytes(needed + waiting)
        sentence = f"preparing the data needs about {room} in {folder}, {format_bytes(free)} are free"
        return failed(sentence, advice=f"free space, or see what is there: du -sh {folder}")
    return passed(f"the first start prepares about {rows.value:,} rows ({format_bytes(needed)}), later ones reuse them")
