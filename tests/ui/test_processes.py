"""The table of processes: sorted, followed, and one's own ended after a question; the program and its run never so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

import pytest

from tests.ui.canned import CannedBench, open_canned
from tests.ui.pictures import in_event_loop
from tests.ui.test_hardware_page import CPU_ONLY, HOSTILE
from tui_trainer.hardware.processes import ProcessReader, ProcessSnapshot, ProcessUse
from tui_trainer.ui import processes as room
from tui_trainer.ui.processes import since_words
from tui_trainer.units import GIB, MIB

pytestmark = pytest.mark.full


def use(pid: int, cores: float, memory: int, **more) -> ProcessUse:
    known = {"user": "anna", "command": f"python job-{pid}.py", "started_at": time.time() - 300, "is_own": True}
    return ProcessUse(pid=pid, cores=cores, memory_bytes=memory, **{**known, **more})


FIRST, SECOND = use(4711, 3.5, 2 * GIB), use(4712, 0.25, 40 * GIB, card_bytes={0: 70 * GIB, 1: None})
OF_BERT = use(4713, 0.0, 500 * MIB, user="bert", is_own=False, command=HOSTILE)
OUTSIDE = ProcessUse(pid=99, card_bytes={1: GIB})


class Reader(ProcessReader):
    """Looks at what it is told to see."""

    def __init__(self, *processes: ProcessUse, notes: tuple[str, ...] = (), has_cards: bool = True) -> None:
        self.processes, self.notes, self.has_cards = processes, notes, has_cards

    def look(self) -> ProcessSnapshot:
        return ProcessSnapshot(processes=self.processes, notes=self.notes, cpu_seconds=0.001, has_cards=self.has_cards)


@asynccontextmanager
async def opened(monkeypatch, reader: ProcessReader | None = None, size=(100, 30)):
    monkeypatch.setattr(room, "_PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(room, "_SECOND_LOOK_SECONDS", 0.05)
    if reader is not None:
        monkeypatch.setattr(room, "ProcessReader", lambda: reader)
    async with open_canned(CPU_ONLY, size=size) as screens:
        await screens.press("p")
        await screens.shows("k end ", "command", gone="checking ...")
        yield screens


def order(screens) -> list[str]:
    """Pids of the rows from above."""
    rows = [line.split() for line in screens.lines if "anna" in line or "bert" in line or "\u2502  ?" in line]
    return [next(word for word in row if word.isdigit()) for row in rows]


@in_event_loop
async def test_rows_are_sorted_by_key_and_click_and_the_cursor_stays_on_its_process(monkeypatch):
    reader = Reader(FIRST, SECOND, OF_BERT, OUTSIDE, notes=("GPU 1: 9.0 GiB are in use by nobody listed",))
    async with opened(monkeypatch, reader) as screens:
        text = await screens.shows("350 %", "2.0 GiB", "0: 70.0 GiB 1: --", "GPU 1: 9.0 GiB are in use")
        assert "\u241b[2J" in text and "a process outside this" in text and "CPU v" in text
        assert order(screens)[:4] == ["4711", "4712", "4713", "99"]
        await screens.press("down")
        table = screens.app.dialog.table
        assert table.chosen == SECOND
        reader.processes = (replace(FIRST, cores=0.1), SECOND, OF_BERT, use(4800, 1.0, GIB))
        await screens.shows("job-4800", "10 %", gone="a process outside")
        assert order(screens)[0] == "4800" and table.chosen == SECOND
        await screens.press("s")
        await screens.shows("memory v")
        assert order(screens)[:2] == ["4712", "4711"] and table.chosen == SECOND
        await screens.click("since")
        await screens.shows("since v")


@in_event_loop
async def test_without_a_card_there_is_no_column_for_it_and_80_columns_hold_the_rest(monkeypatch):
    reader = Reader(FIRST, use(1, 0, GIB, command="x" * 300), has_cards=False)
    async with opened(monkeypatch, reader, (80, 24)) as screens:
        text = await screens.shows("4711")
        assert "GPU" not in text and all(len(line) <= 80 for line in screens.lines) and "xxx\u2026" in text


@in_event_loop
async def test_others_outsiders_and_this_program_are_not_ended(monkeypatch):
    me = use(os.getpid(), 9.0, GIB, command="tui-trainer job-me")
    child = use(7, 8.0, GIB, parent=os.getpid(), command="worker job-child")
    async with opened(monkeypatch, Reader(me, child, OF_BERT, OUTSIDE)) as screens:
        for words in ("this is tui-trainer itself: q quits", "it is part of tui-trainer", "only bert and root can end"):
            await screens.press("k")
            await screens.shows("Cannot end this process", words)
            await screens.press("escape", "down")
        await screens.press("k")
        await screens.shows("this process can only be ended outside this container")
        monkeypatch.setattr(CannedBench, "is_training_here", True)
        await screens.press("escape", "home", "k")
        await screens.shows("S on the Train screen")
        monkeypatch.setattr(CannedBench, "is_training_here", False)


def test_since_is_a_time_of_today_or_a_day():
    noon = datetime(2026, 11, 27, 12).timestamp()
    assert [since_words(noon - hours * 3600, noon) for hours in (1, 24, 24 * 360)] == ["11:00", "26 Nov", "2025-12-02"]


@pytest.fixture
def stubborn():
    """A process that does not end when it is asked to."""
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@in_event_loop
async def test_an_own_process_is_asked_to_end_and_then_may_be_killed(monkeypatch, stubborn):
    monkeypatch.setattr(room, "PATIENCE_SECONDS", 0.2)
    # As one that another program has begun.
    monkeypatch.setattr(room, "descendants", lambda processes, pid: {pid})
    async with opened(monkeypatch, size=(120, 50)) as screens:
        table = screens.app.dialog.table
        pids = lambda: [one.pid for one in table.rows]  # noqa: E731
        await screens.until(lambda: stubborn.pid in pids())
        table.place = pids().index(stubborn.pid)
        await screens.press("k")
        text = await screens.shows("End this process?", f"process {stubborn.pid} of", "k end it (SIGTERM)")
        assert "SIGKILL" not in text and "time.sleep(600)" in text
        await screens.press("k")
        await screens.shows("Still running", "was asked to end", "K kill it (SIGKILL)")
        assert stubborn.poll() is None
        await screens.press("K")
        await screens.shows(f"process {stubborn.pid} was killed")
        assert stubborn.wait() == -9
        await screens.until(lambda: stubborn.pid not in pids())


@in_event_loop
async def test_a_machine_without_a_card_shows_its_cores_disks_and_busiest_processes(monkeypatch):
    monkeypatch.setattr("tui_trainer.ui.screens.hardware.ProcessReader", lambda: Reader(SECOND, FIRST))
    async with open_canned(CPU_ONLY, size=(120, 35)) as screens:
        await screens.shows("looking ...", "  2 ", "nvme0n1        reads 11.4 MiB/s, writes 324.2 MiB/s", "sda")
        await screens.ticks("350 %    2.0 GiB  python job-4711.py")
        first, second = (next(y for y, line in enumerate(screens.lines) if f"job-{n}" in line) for n in (4711, 4712))
        assert second == first + 1
        assert any(re.match(r"  2 .{10}  60 %    6 .{10}  50 %", line) for line in screens.lines)
        await screens.resize(200, 50)
        await screens.shows("job-4711", "  7 ")
        await screens.resize(80, 24)
        await screens.shows("cores      \u2588\u2581\u2585\u2581\u2583\u2588\u2585\u2586", gone="job-4711")
