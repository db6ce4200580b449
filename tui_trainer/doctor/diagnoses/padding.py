"""How much of what is computed is padding?"""

from tui_trainer.doctor.contract import BAR_SHARE, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.tasks import find_task, task_names


@diagnosis(
    order=270,
    title="Padding",
    guides=("C data loading 2", "C data loading 3", "B training arguments"),
    why="Rows of one pass are as long as its longest; grouping like with like, or packing, avoids it.",
)
def look(view: RunView) -> Cause | None:
    sums, plan = view.sums, view.plan
    if not (sums.positions and sums.input_tokens):
        return None
    padded = 1 - sums.input_tokens / sums.positions
    share = padded * view.share(view.compute_seconds)
    if share < BAR_SHARE:
        return None
    can_pack = view.state.task in task_names() and find_task(view.state.task).packs
    is_packed, is_grouped = (plan.packing, plan.group_by_length) if plan else (None, None)
    if is_grouped and not can_pack:
        # What is left between rows of about one length cannot be spared.
        return None
    tokens, positions = sums.input_tokens / sums.steps, sums.positions / sums.steps
    return Cause(
        cause="Much of each batch is padding, which is computed and thrown away.",
        evidence=f"{percent(padded)} padding: {tokens:,.0f} tokens in {positions:,.0f} positions a step",
        share=share,
        fix={"data.group_by_length": True} if is_grouped is False else None,
        advice='data.packing = "auto": documents can share rows' if can_pack and not is_packed else "",
    )
