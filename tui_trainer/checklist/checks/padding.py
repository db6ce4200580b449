"""How much of a batch is padding."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed


def look(context: Context) -> Verdict:
    plan, length = context.planned, context.config.data.max_length
    if context.config.task.type != "char_lm":
        return not_applicable(f"how rows are padded is not known for the task {context.config.task.type}")
    rows = plan.train_rows.value
    missing = -(plan.train_tokens.value - 1) % length
    return passed(
        f"rows are cut from one stream of text, so only the last of {rows:,} is shorter: "
        f"{missing / (rows * length):.2%} padding"
    )


CHECK = Check(
    name="padding",
    order=220,
    title="No time spent on padding",
    guides=("C data loading 2", "C data loading 3", "B training arguments"),
    claim="10-20 % by grouping, 20-40 % by packing (guide C)",
    why="Padding is computed and thrown away; grouping or packing rows avoids it where rows differ in length.",
    look=look,
)
