"""Weights of one byte are read in a quarter of the time; whether the answers stay is measured at the export."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.units import format_bytes

_IN_8_BITS = ("int8", "onnx-int8")


@check(
    order=530,
    title="Quantised for production",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    earlier = context.earlier
    if earlier is None:
        return not_applicable("no earlier run has such a model here; afterwards: tui-trainer export last --to int8")
    exports = [export for export in earlier.exports if export.format in _IN_8_BITS]
    if not exports:
        hint = f"to try it: tui-trainer export {earlier.name} --to int8"
        return not_applicable(f"run {earlier.name} was exported in 8 bits by nobody yet; {hint}")
    smallest = min(exports, key=lambda export: export.bytes)
    sizes = f"{format_bytes(smallest.trained_bytes)} -> {format_bytes(smallest.bytes)}"
    times = smallest.trained_seconds_per_row / smallest.seconds_per_row if smallest.seconds_per_row else 0.0
    sentence = f"{smallest.format} of run {earlier.name}: {sizes}, {times:.2f} times as fast on held-out rows"
    if smallest.faults:
        return warned(f"{sentence}, but it is not the trained model", advice=f"serve another form: {smallest.faults}")
    return passed(sentence)
