"""Whether the data of a run comes from storage, or lies in memory already."""

from tui_trainer.doctor.view import RunView
from tui_trainer.units import MIB

_LEAST_BYTES_PER_SECOND = 0.5 * MIB
_STALLED_SHARE = 0.5
# Of what a batch has in prepared data: less comes from storage where other files of the run are read.
_LEAST_SHARE, _TOKEN_BYTES = 0.5, 4


def disk_bytes_per_second(view: RunView) -> float | None:
    """From storage, by this process, in the newest readings; None where it is not counted."""
    read = view.mean(lambda reading: reading.disk_read_bytes)
    seconds = view.seconds_between_readings
    return None if read is None or not seconds else read / seconds


def reads_from_disk(view: RunView) -> bool:
    """What the run waits for when it waits for data: much comes from storage, or what a batch has, and storage stalls
    this machine."""
    rate = disk_bytes_per_second(view)
    if rate is None:
        return False
    stall = view.mean(lambda reading: reading.io_stall_share) or 0.0
    batch_bytes = _TOKEN_BYTES * view.sums.input_tokens / max(view.sums.steps, 1)
    from_storage = rate * view.whole_seconds >= _LEAST_SHARE * batch_bytes
    return rate >= _LEAST_BYTES_PER_SECOND or (rate > 0 and from_storage and stall >= _STALLED_SHARE)
