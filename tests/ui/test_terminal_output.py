"""Last words to a terminal that has almost no room left."""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import suppress

import pytest

from tui_trainer.terminal import standard_files
from tui_trainer.terminal.standard_files import never_blocking_stream

pytestmark = pytest.mark.full

ROOM_CHARACTERS, PATIENCE_SECONDS = 300, 30


def _fill(slave: int, most: int | None = None) -> int:
    """Fill a pseudo-terminal that nobody reads with `most` characters, or until it takes no more. How many it took."""
    os.set_blocking(slave, False)
    filled = 0
    with suppress(BlockingIOError):
        while most is None or filled < most:
            filled += os.write(slave, b"x" * min(500, 500 if most is None else most - filled))
    os.set_blocking(slave, True)
    return filled


@pytest.fixture
def almost_full(monkeypatch):
    """Makes standard output and error a terminal that says it takes text, and has room for 300 characters."""
    descriptors = [*os.openpty(), *os.openpty()]
    master, slave, _, scratch = descriptors
    files = [os.fdopen(slave, "w", closefd=False) for _ in range(2)]

    def make() -> tuple[int, int]:
        """The other end, and how many characters wait there."""
        filled = _fill(slave, _fill(scratch) - ROOM_CHARACTERS)
        poll = select.poll()
        poll.register(slave, select.POLLOUT)
        # The kernel hands on what was written in its own time.
        assert poll.poll(1000 * PATIENCE_SECONDS) == [(slave, select.POLLOUT)]
        monkeypatch.setattr(sys, "stdout", files[0])
        monkeypatch.setattr(sys, "stderr", files[1])
        return master, filled

    yield make
    for file in files:
        file.close()
    for fd in descriptors:
        os.close(fd)


def test_last_words_do_not_hold_the_exit_up(almost_full):
    almost_full()

    def say_them():
        with never_blocking_stream("stdout"), never_blocking_stream("stderr"):
            print("o" * 1000, flush=True)
            print("e" * 1000, file=sys.stderr, flush=True)

    thread = threading.Thread(target=say_them, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_terminal_that_reads_gets_them_in_order(almost_full):
    master, filled = almost_full()
    read = bytearray()

    def read_all():
        while b"third" not in read:
            read.extend(os.read(master, 4096))

    reader = threading.Thread(target=read_all, daemon=True)
    reader.start()
    before = sys.stdout, sys.stderr
    with never_blocking_stream("stdout"), never_blocking_stream("stderr"):
        print("first" * 200, flush=True)
        print("second" * 200, file=sys.stderr, flush=True)
        print("third", flush=True)
    reader.join(PATIENCE_SECONDS)
    expected = "first" * 200 + "\r\n" + "second" * 200 + "\r\n" + "third"
    assert bytes(read[filled:]).startswith(expected.encode())
    assert (sys.stdout, sys.stderr) == before


def test_what_a_stalled_reader_of_errors_has_missed_is_named(monkeypatch):
    """Whole lines; and nobody waits for it."""
    monkeypatch.setattr(standard_files, "_PATIENCE_SECONDS", 0.1)
    reading, writing = os.pipe()
    with os.fdopen(reading) as read, os.fdopen(writing, "w") as errors:
        monkeypatch.setattr(sys, "stderr", errors)
        with never_blocking_stream("stderr"):
            for number in range(3_000):
                print(f"line {number:0100}", file=sys.stderr)
            lines = [read.readline()]
            while "lines were skipped here" not in lines[-1]:
                lines.append(read.readline())
            print("again", file=sys.stderr)
            assert read.readline() == "again\n"
    *kept, lost = lines
    assert 1_000 < len(kept) < 2_000
    assert kept == [f"line {number:0100}\n" for number in range(len(kept))]
    assert (
        lost == f"tui-trainer: {3_000 - len(kept):,} lines were skipped here because the output was not read in time\n"
    )


def test_what_is_no_terminal_is_left_alone(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", None)
        with never_blocking_stream("stdout"), never_blocking_stream("stderr"):
            assert sys.stdout is out and sys.stderr is None
