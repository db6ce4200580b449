"""Too high, and the loss jumps or becomes NaN; too low, and the run ends before it has learnt."""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.planning.learning_rates import KEY, peak_rate, what_trains


@check(
    order=420,
    title="Learning rate in range",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    rate, known, what = context.learning_rate, peak_rate(context.config), what_trains(context.config)
    sentence = f"peak learning rate {rate.value:g}, {rate.reason}"
    if rate.value > known.most:
        return warned(f"{sentence}: above {known.most:g}, where {what} tends to diverge", fix={KEY: "auto"})
    if rate.value < known.least:
        return warned(f"{sentence}: below {known.least:g}, {what} hardly moves", fix={KEY: "auto"})
    return passed(f"{sentence}; {known.least:g} to {known.most:g} for {what}")
