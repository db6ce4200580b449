"""Signals to a run whose output nobody reads, or which can write nothing: does it end, how, and how soon?

    uv run python tests/faults/signals.py [TIMES]

Each of them TIMES times (20), by SIGTERM, SIGINT and SIGUSR1 in turns, with the parts of `tests/test_headless.py`.
Prints how many ended as they should, and the longest time from the signal to the end. Exit code 1 where one did not.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.test_headless import (
    CONFIG,
    fill_the_disk,
    finished,
    last_step,
    reader,
    remove_the_folder,
    run_named,
    started,
    until,
)
from tui_trainer.training.checkpoint_folder import newest_whole

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
WITHIN_SECONDS = 60


def ends_unread(kind: str, number: signal.Signals, place: Path) -> float:
    """Seconds from the signal to the end. Raises AssertionError."""
    run = run_named("one", place)
    words = [] if kind == "terminal" else ["--json"]
    arguments = ("--no-ui", "my.toml", "--set", "output.name=one", *words)
    with reader(kind, place) as nobody, started(*arguments, stdout=nobody.fd, stderr=nobody.fd) as process:
        until(lambda: last_step(run) > 0, process)
        nobody.stall()
        heard = last_step(run)
        until(lambda: last_step(run) > heard + 100, process)
        sent = monotonic()
        process.send_signal(number)
        assert process.wait(WITHIN_SECONDS) == 3
        seconds = monotonic() - sent
    checkpoint = newest_whole(run.checkpoints, lambda damage: None)
    assert checkpoint is not None and checkpoint.step == finished(run).step
    return seconds


def ends_unwritable(spoil: str, number: signal.Signals, place: Path) -> float:
    run = run_named("one", place)
    arguments = ("--no-ui", "my.toml", "--set", "output.name=one", "--set", "checkpoint.save_steps=100")
    with reader("pipe", place) as output, started(*arguments, stdout=output.fd, stderr=output.fd) as process:
        output.close_writing()
        until(lambda: last_step(run) > 110, process)
        {"full disk": fill_the_disk, "removed folder": remove_the_folder}[spoil](process, run)
        sent = monotonic()
        process.send_signal(number)
        assert process.wait(WITHIN_SECONDS) == 1
        seconds = monotonic() - sent
        told = output.read_all().decode()
    # Or the third save in a row had failed before.
    assert "could not be" in told and ("stands" in told or "is gone" in told), told
    assert "Traceback" not in told
    return seconds


def main(times: int) -> int:
    cases = [(ends_unread, kind) for kind in ("pipe", "fifo", "terminal")]
    cases += [(ends_unwritable, spoil) for spoil in ("full disk", "removed folder")]
    is_good = True
    for ends, what in cases:
        seconds = []
        for number in islice(cycle(SIGNALS), times):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder).resolve()
                os.environ["TUI_TRAINER_HOME"] = str(place / "home")
                os.chdir(place)
                (place / "my.toml").write_text(CONFIG)
                (place / "data.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 40)
                try:
                    seconds.append(ends(what, number, place))
                except Exception as error:  # counted, whatever it was
                    print(f"{what}, {number.name}: {type(error).__name__}: {error}", flush=True)
                os.chdir("/")
        is_good &= len(seconds) == times
        longest = f"{max(seconds):.1f} s" if seconds else "none"
        print(f"{what}: {len(seconds)} of {times}, the longest {longest}", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 20))
