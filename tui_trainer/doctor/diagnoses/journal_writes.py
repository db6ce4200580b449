"""Does writing down each step hold the steps up?"""

from tui_trainer.doctor.contract import BAR_SHARE, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

_KEY, _ENOUGH = "logging.logging_steps", 10
# On a GPU each group waits once for the device, which then has nothing queued.
_IDLE_GPU = 0.75


@diagnosis(
    order=250,
    title="Logging too often",
    guides=("D both low 3", "E configuration summary"),
    why="Each group of steps that is written waits once for the device, and for the file.",
)
def look(view: RunView) -> Cause | None:
    group = view.plan.logging_steps if view.plan else None
    share = view.share(view.journal_seconds)
    busy = view.gpu_busy_share
    if group == 1 and busy is not None and busy < _IDLE_GPU and view.share(view.data_seconds) < BAR_SHARE:
        waits = f"each step waits for the device, which is busy {percent(busy)} of the time"
        return _cause(waits, max(share, (1 - busy) / 2), group)
    return _cause(f"the journal {percent(share)} of the time: {view.of_whole(view.journal_seconds)}", share, group)


def _cause(evidence: str, share: float, group: int | None) -> Cause:
    groups = f", steps are written in groups of {group}" if group else ""
    return Cause(
        cause="Writing the steps down holds them up.",
        evidence=evidence + groups,
        share=share,
        fix={_KEY: max(_ENOUGH, 10 * group)} if group else None,
    )
