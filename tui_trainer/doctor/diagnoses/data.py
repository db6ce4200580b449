"""Does the run wait for its data, or compute what is none?"""

from tui_trainer.doctor.contract import BAR_SHARE, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.tasks import find_task, task_names
from tui_trainer.units import MIB, format_bytes

_LEAST_BYTES_PER_SECOND = 0.5 * MIB
_STALLED_SHARE = 0.5
# Of what a batch has in prepared data: less comes from storage where other files of the run are read.
_LEAST_SHARE, _TOKEN_BYTES = 0.5, 4


def _disk_bytes_per_second(view: RunView) -> float | None:
    """What the run waits for when it waits for data: much comes from storage, or what a batch has, and storage stalls
    this machine. None where it lies in memory already, or that is not counted."""
    read, seconds = view.mean("disk_read_bytes"), view.seconds_between_readings
    if read is None or not seconds:
        return None
    rate, stall = read / seconds, view.mean("io_stall_share") or 0.0
    batch_bytes = _TOKEN_BYTES * view.sums.input_tokens / max(view.sums.steps, 1)
    from_storage = rate > 0 and rate * view.whole_seconds >= _LEAST_SHARE * batch_bytes
    return rate if rate >= _LEAST_BYTES_PER_SECOND or (from_storage and stall >= _STALLED_SHARE) else None


@diagnosis("Slow disk")
def slow_disk(view: RunView) -> Cause | None:
    """Prepared data is read through the memory that is free; what does not fit there comes from the disk each time."""
    share, rate = view.share(view.data_seconds), _disk_bytes_per_second(view)
    if rate is None:
        return None
    return Cause(
        cause="Training waits for the disk that its data is on.",
        evidence=(
            f"data {percent(share)} of the time: {view.of_whole(view.data_seconds)}, "
            f"{format_bytes(rate)}/s read from the disk meanwhile"
        ),
        share=share,
        advice="put the prepared data on a faster disk: export TUI_TRAINER_HOME=FOLDER; or free memory to cache it in",
    )


@diagnosis("Waiting for data")
def waiting_for_data(view: RunView) -> Cause | None:
    """A processor that waits for its batch computes nothing meanwhile."""
    share, workers = view.share(view.data_seconds), view.plan.loader_workers if view.plan else None
    if _disk_bytes_per_second(view) is not None:
        return None
    return Cause(
        cause="Training waits for its data.",
        evidence=f"data {percent(share)} of the time: {view.of_whole(view.data_seconds)}",
        share=share,
        fix=None if workers is None else {"dataloader.num_workers": 2 * workers or 1},
        advice="" if workers is None else "batches are then made by threads while the step before computes",
    )


@diagnosis("Padding")
def padding(view: RunView) -> Cause | None:
    """Rows of one pass are as long as its longest; grouping like with like, or packing, avoids it."""
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
