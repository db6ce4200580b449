"""Do checkpoints take too much of the time?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_bytes, format_seconds


@diagnosis(
    order=230,
    title="Many checkpoints",
    guides=("B evaluation and checkpointing", "D both low 3"),
    why="Training waits while a checkpoint is written and made safe on the disk.",
)
def look(view: RunView) -> Cause | None:
    saves, every = view.state.checkpoints, view.plan.save_every_steps if view.plan else None
    if not saves or (len(saves) < 3 and every and view.state.total_steps <= 2 * every):
        # One on the way is what a crash leaves: no fix takes it away.
        return None
    share, each = view.share(view.checkpoint_seconds), sum(one.seconds for one in saves) / len(saves)
    often = f", every {every} steps" if every else ""
    return Cause(
        cause="Checkpoints take the time of training.",
        evidence=(
            f"checkpoints {percent(share)} of the time: {format_seconds(each)} and {format_bytes(saves[-1].bytes)} "
            f"each{often}"
        ),
        share=share,
        fix={"checkpoint.save_steps": view.seldom(each, view.checkpoint_seconds)},
    )
