"""Does the data come from storage that is too slow for it?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.storage import disk_bytes_per_second, reads_from_disk
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_bytes


@diagnosis(
    order=190,
    title="Slow disk",
    guides=("C bottleneck 3", "D both low 1", "E common issues"),
    why="Prepared data is read through the memory that is free; what does not fit there comes from the disk each time.",
)
def look(view: RunView) -> Cause | None:
    share = view.share(view.data_seconds)
    if not reads_from_disk(view):
        return None
    rate = disk_bytes_per_second(view)
    return Cause(
        cause="Training waits for the disk that its data is on.",
        evidence=(
            f"data {percent(share)} of the time: {view.of_whole(view.data_seconds)}, "
            f"{format_bytes(rate)}/s read from the disk meanwhile"
        ),
        share=share,
        advice="put the prepared data on a faster disk: export TUI_TRAINER_HOME=FOLDER; or free memory to cache it in",
    )
