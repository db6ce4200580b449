"""Have steps become slower than they were?"""

from statistics import median

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.runs.state import WARM_UP_STEPS
from tui_trainer.units import format_number, format_seconds

_EARLY_STEPS, _LEAST_STEPS = 100, 200
_SLOWER = 1.3
# What explains it already.
_CROWDED = 0.1


@diagnosis(
    order=300,
    title="Slower than before",
    guides=("E monitor first epoch", "E memory"),
    why="The first epoch may be the slow one, for it compiles; later ones that are slower have another reason.",
)
def look(view: RunView) -> Cause | None:
    seconds = view.state.step_seconds
    done = view.state.steps_since_start - WARM_UP_STEPS
    begin = len(seconds) - done
    if done < _LEAST_STEPS or begin < 0 or (not view.on_gpu and (view.core_wait_share or 0.0) > _CROWDED):
        return None
    early, late = median(seconds[begin : begin + _EARLY_STEPS]), median(seconds[-_EARLY_STEPS:])
    if late < _SLOWER * early:
        return None
    share = 1 - early / late
    newest = view.state.recent
    if sum(done.data_seconds for done in newest) > share / 2 * sum(done.step_seconds for done in newest):
        # What grew is known: the wait for data has a diagnosis of its own.
        return None
    epochs = view.state.epochs
    words = f"; epoch {epochs[0].epoch}: {format_seconds(epochs[0].seconds)}, " if len(epochs) > 1 else ""
    words += f"epoch {epochs[-1].epoch}: {format_seconds(epochs[-1].seconds)}" if words else ""
    return Cause(
        cause="Steps take longer than they did at the beginning.",
        evidence=(
            f"{format_number(1000 * early)} ms a step in the first {_EARLY_STEPS} steps, "
            f"{format_number(1000 * late)} ms now{words}"
        ),
        share=share,
        advice=f"{percent(share)} is lost to what came since: longer rows, memory that swaps, heat, other programs",
    )
