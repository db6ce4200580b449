"""Is the GPU idle although nothing else holds the run up?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

_IDLE_GPU = 0.75


@diagnosis(
    order=180,
    title="Launch-bound",
    guides=("C bottleneck 1", "D low GPU 1", "D low GPU 4", "B slow training 1", "E still slow 1"),
    why="A kernel takes about 10 microseconds to start; larger batches and compiled layers have fewer of them a token.",
)
def look(view: RunView) -> Cause | None:
    busy, plan = view.gpu_busy_share, view.plan
    if busy is None or busy >= _IDLE_GPU:
        return None
    explained = 1 - view.share(view.compute_seconds + view.optimizer_seconds)
    share = 1 - busy - explained
    rows = plan.per_device_train_batch_size if plan else None
    cut = plan is not None and plan.gradient_accumulation_steps > 1
    return Cause(
        cause="The GPU waits for its kernels to be started: each of them is small.",
        evidence=f"GPU {percent(busy)} busy, data and interruptions explain {percent(max(explained, 0.0))}",
        share=share,
        fix={"training.per_device_train_batch_size": 2 * rows} if rows and cut else {"training.torch_compile": True},
        advice="a larger effective batch, or longer rows" if not cut else "",
    )
