"""Is a pass too small to keep the processor busy?"""

from tui_trainer.config.changes import Patch
from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.runs.events import PlanMade

# Positions of a pass at which half of its time is fixed cost.
_HALF_AT = {"cpu": 32, "cuda": 256}
_BUSY_GPU = 0.9


@diagnosis(
    order=280,
    title="Small batches",
    guides=("C bottleneck 1", "D low GPU 1", "D both low 2", "E batch size vs throughput"),
    why="The optimizer, the start of each kernel and the Python around it cost the same for one row as for many.",
)
def look(view: RunView) -> Cause | None:
    plan, sums = view.plan, view.sums
    if plan is None or not sums.positions:
        return None
    if (view.gpu_busy_share or 0.0) >= _BUSY_GPU:
        return None
    passes = max(plan.gradient_accumulation_steps, 1)
    positions = sums.positions / sums.steps / passes
    half = _HALF_AT["cuda" if view.on_gpu else "cpu"]
    fixed = half / (half + positions)
    update = view.share(view.optimizer_seconds)
    share = fixed * view.share(view.compute_seconds) + update * fixed
    return Cause(
        cause="Batches are too small: most of a step is what each step costs, however little it learns from.",
        evidence=(
            f"{positions:,.0f} positions in a pass ({plan.per_device_train_batch_size} rows); the optimizer takes "
            f"{percent(update)} of the time"
        ),
        share=share,
        fix=_larger(plan, passes),
    )


def _larger(plan: PlanMade, passes: int) -> Patch:
    """The same rows behind a step in fewer passes; where it is one pass already, more rows."""
    if passes > 1:
        return {"training.per_device_train_batch_size": "auto", "training.gradient_accumulation_steps": "auto"}
    more = {"training.effective_batch_size": max(16, 4 * plan.effective_batch_size)}
    return {"training.per_device_train_batch_size": "auto", **more}
