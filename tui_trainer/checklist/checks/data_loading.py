"""Does the training wait for its data? Measured in an earlier run, where there is one."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed, warned

_MOST_SHARE = 0.05
_HOW = "batches are cut from a memory-mapped file between steps, with no worker processes to set"


def look(context: Context) -> Verdict:
    earlier = context.earlier
    if earlier is None:
        return not_applicable(f"{_HOW}; the wait is measured by the first run")
    sentence = f"fetching took {earlier.data_share:.1%} of {earlier.steps:,} steps of run {earlier.name}"
    if earlier.data_share <= _MOST_SHARE:
        return passed(f"{sentence}; {_HOW}")
    advice = "move the prepared data to a faster disk: export TUI_TRAINER_HOME=FOLDER"
    return warned(f"{sentence}, at most {_MOST_SHARE:.0%} is good", advice=advice)


CHECK = Check(
    name="data_loading",
    order=250,
    title="Training does not wait for data",
    guides=("A quick win 4", "D quick win 2", "D quick win 3", "D quick win 4", "E optimisation 7", "C bottleneck 3"),
    claim="30 % faster (guide A); workers 30-50 %, prefetch 20-30 %, persistent 10-15 % (guide D)",
    why="Workers help where rows are decoded or tokenised on the way; for small data they cost more than they give.",
    look=look,
    needs_plan=False,
)
