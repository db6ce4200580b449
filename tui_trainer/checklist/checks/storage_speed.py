"""A step cannot begin before its rows are read; what was read once stays in free memory."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.units import format_bytes, format_seconds

_TOKEN_BYTES = 4
_MOST_SHARE = 0.1


@check(
    order=254,
    title="The disk keeps up",
)
def look(context: Context) -> Verdict:
    plan, measured, step = context.planned, context.data_read, context.step_seconds
    if measured is None:
        return not_applicable("nothing to read from a disk yet: the data is small, not here, or made by this program")
    sentence = f"{measured.path} reads at {format_bytes(measured.bytes_per_second)}/s, measured now"
    if step is None:
        return passed(sentence)
    needed, epoch = _TOKEN_BYTES * plan.train_tokens.value, step * plan.steps_per_epoch.value
    reading = needed / measured.bytes_per_second
    sentence += (
        f"; the {format_bytes(needed)} of an epoch take {format_seconds(reading)} of its {format_seconds(epoch)}"
    )
    if reading <= _MOST_SHARE * epoch:
        return passed(sentence)
    return warned(sentence, advice="move the prepared data to a faster disk: export TUI_TRAINER_HOME=FOLDER")
