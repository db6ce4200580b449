"""Is it computed in fp32 where 16 bits are native?"""

from tui_trainer.doctor.contract import Cause, diagnosis
from tui_trainer.doctor.view import RunView

# Times as fast as fp32. CPU: measured from width 256 on (planning/automatic_values.py); GPU: tensor cores have 2 to 8
# times the matmuls a second.
_GAIN = {"cpu": 1.5, "cuda": 2.0}


@diagnosis(
    order=140,
    title="fp32 where 16 bits are native",
    guides=("A quick win 2", "C quick win 2", "C troubleshooting 3", "D optimisation 3", "E optimisation 6"),
    why="Matmuls in 16 bits are faster and halve activations, where the processor has them natively.",
)
def look(view: RunView) -> Cause | None:
    plan = view.plan
    if plan is None or plan.precision != "fp32" or plan.best_precision in ("", "fp32"):
        return None
    gain = _GAIN["cuda" if view.on_gpu else "cpu"]
    share = (1 - 1 / gain) * view.share(view.compute_seconds)
    return Cause(
        cause=f"The run computes in fp32, and {plan.best_precision} is native here.",
        evidence=(
            f"fp32 for {view.of_whole(view.compute_seconds)} of forward and backward; {plan.best_precision} is about "
            f"{gain:g} times as fast"
        ),
        share=share,
        fix={"training.mixed_precision": "auto"},
    )
