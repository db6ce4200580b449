"""Runs without screens, each in a process of its own: hang-ups, closed pipes, SIGTERM and Ctrl+C.

Nothing is timed: each step waits until the journal or a file shows the expected state. `tests/faults/signals.py` uses
the helpers of this file.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pyte
import pytest

from tests.programs import Program, start_program
from tests.runs.journals import end, read_all, run_of, start, step_done
from tui_trainer.lines.journal_printer import Follower
from tui_trainer.runs.events import (
    ControlApplied,
    Event,
    GaugesRead,
    GpuReading,
    RunFinished,
    RunStarted,
    StepDone,
    from_line,
)
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import overview
from tui_trainer.runs.registry import find_run
from tui_trainer.runs.state import apply_events
from tui_trainer.terminal import standard_files
from tui_trainer.terminal.standard_files import ONE_PRESS_SECONDS, Interrupts
from tui_trainer.training.checkpoint_folder import newest_whole

PATIENCE_SECONDS = 1500.0
CONFIG = """
[task]
type = "char_lm"
[data]
path = "data.txt"
max_length = 16
[model.scratch]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
[training]
max_steps = 500_000
effective_batch_size = 2
[evaluation]
eval_steps = 0
max_eval_rows = 2
[checkpoint]
save_steps = 0
[logging]
logging_steps = 5
sample_steps = 0
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(CONFIG)
    (tmp_path / "data.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 40)
    return tmp_path


@contextmanager
def started(
    *arguments: str,
    closed: Sequence[int] = (),
    stdout: int | None = None,
    stderr: int | None = None,
    prelude: str = "",
):
    """Start `python -m tui_trainer ARGUMENTS`, and kill it at the end. `closed` are numbers of standard files.

    The program runs on one core: two threads that wait for each other take a second per step on a busy machine.
    """
    with Path(os.devnull).open("r+b") as nothing:
        files = [nothing.fileno() if file is None else file for file in (None, stdout, stderr)]
        cores = [max(os.sched_getaffinity(0))]
        program = start_program(arguments, files=files, closed=closed, cores=cores, prelude=prelude)
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def until(condition: Callable[[], object], process: Program | None = None) -> None:
    """Wait for a condition. Fail at once if the process that should bring it about has ended."""
    deadline = monotonic() + PATIENCE_SECONDS
    while not condition():
        assert monotonic() < deadline, "waited too long"
        assert process is None or process.poll() is None or condition(), f"ended with {process.returncode}"
        sleep(0.03)


def run_named(name: str, place: Path) -> RunFolder:
    return RunFolder(place / "runs" / name)


def last_step(run: RunFolder) -> int:
    return overview(run).step if run.journal.exists() else 0


def finished(run: RunFolder) -> RunFinished:
    return next(event for event in reversed(read_all(run.journal)) if isinstance(event, RunFinished))


def test_run_survives_a_closed_pipe_and_a_hang_up_and_resumes_after_sigterm_and_ctrl_c(place):
    run = run_named("story", place)
    arguments = ("--no-ui", "my.toml", "--set", "output.name=story")
    # Standard input and error are closed from the start, standard output after the first line.
    reading, writing = os.pipe()
    with started(*arguments, closed=(0, 2), stdout=writing) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as output:
            assert b"run story in " in output.readline()
        until(lambda: last_step(run) > 0, process)
        process.send_signal(signal.SIGHUP)
        heard = last_step(run)
        until(lambda: last_step(run) > heard + 20, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 3
    stopped = finished(run)
    assert stopped.reason == "stopped" and stopped.step > heard + 20
    checkpoint = newest_whole(run.checkpoints, pytest.fail)
    assert checkpoint is not None and checkpoint.step == stopped.step
    assert overview(find_run("last")).status == "stopped"

    lines_before = run.journal.read_bytes().splitlines()
    printed = place / "printed.jsonl"
    with (
        printed.open("wb") as output,
        started("resume", "last", "--no-ui", "--json", stdout=output.fileno()) as process,
    ):
        until(lambda: last_step(run) > stopped.step + 20, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 3
    assert printed.read_bytes().splitlines() == run.journal.read_bytes().splitlines()[len(lines_before) :]
    events = [from_line(line) for line in printed.read_bytes().splitlines()]
    assert isinstance(events[0], RunStarted) and events[0].resumed_from_step == stopped.step
    assert next(event for event in events if isinstance(event, StepDone)).step == stopped.step + 1
    assert [event.action for event in events if isinstance(event, ControlApplied)] == ["stop"]
    state = apply_events(read_all(run.journal))
    assert list(state.steps) == list(range(1, finished(run).step + 1))
    assert newest_whole(run.checkpoints, pytest.fail).step == finished(run).step > stopped.step + 20


class Reader:
    """Reader of what a program writes to `fd`. It reads nothing before `read_all`."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind = kind
        if kind == "terminal":
            self._reading, self.fd = os.openpty()
            self._filling = os.open(os.ttyname(self.fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        elif kind == "fifo":
            os.mkfifo(place / "fifo")
            self._reading = os.open(place / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            self.fd = os.open(place / "fifo", os.O_WRONLY)
            os.set_blocking(self._reading, True)
        else:
            self._reading, self.fd = os.pipe()
        self._read = bytearray()

    def stall(self) -> None:
        """Take nothing more, as after Ctrl+S in a terminal or when a pipe is full."""
        if self.kind == "terminal":
            os.write(self._reading, b"\x13")
            return
        # A separate open file, so that the program's own does not become non-blocking.
        filling = os.open(f"/proc/self/fd/{self.fd}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(filling, b"-" * 4096)
        with suppress(BlockingIOError):
            while True:
                os.write(filling, b"-")
        os.close(filling)

    def close_writing(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def read_all(self) -> bytes:
        """Return everything that was written, once nobody can write any more."""
        with suppress(OSError):  # a terminal whose other end is closed
            while new := os.read(self._reading, 1 << 16):
                self._read += new
        return bytes(self._read)

    def close(self) -> None:
        for fd in filter(lambda fd: fd >= 0, (self._reading, self.fd)):
            os.close(fd)


@contextmanager
def reader(kind: str, place: Path) -> Iterator[Reader]:
    made = Reader(kind, place)
    try:
        yield made
    finally:
        made.close()


# Code that comes with a model may print.
PRINTS = """
import sys
from tui_trainer.training.session import Session
take = Session.take_step
def take_step(self, step):
    print("x" * 1000)
    print("y" * 1000, file=sys.stderr)
    take(self, step)
Session.take_step = take_step
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "number", "words", "prelude", "at_once"),
    [
        ("pipe", signal.SIGTERM, ["--json"], "", False),
        ("fifo", signal.SIGUSR1, [], PRINTS, False),
        ("terminal", signal.SIGINT, [], "", True),
    ],
)
def test_signals_work_while_nobody_reads_the_output(kind, number, words, prelude, at_once, place):
    run = run_named("stalled", place)
    arguments = ("--no-ui", "my.toml", "--set", "output.name=stalled", *words)
    with reader(kind, place) as nobody:
        if at_once:
            nobody.stall()
        with started(*arguments, stdout=nobody.fd, stderr=nobody.fd, prelude=prelude) as process:
            until(lambda: last_step(run) > 0, process)
            if not at_once:
                nobody.stall()
            heard = last_step(run)
            until(lambda: last_step(run) > heard + 60, process)
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == 3, process.stacks()
    assert finished(run).reason == "stopped"
    checkpoint = newest_whole(run.checkpoints, pytest.fail)
    assert checkpoint is not None and checkpoint.step == finished(run).step


@pytest.mark.full
def test_run_whose_first_lines_nobody_reads_trains_and_reports_the_unread_output(place):
    run = run_named("unread", place)
    with (
        reader("pipe", place) as nobody,
        reader("fifo", place) as errors,
    ):
        nobody.stall()
        with started(
            "--no-ui", "my.toml", "--set", "output.name=unread", stdout=nobody.fd, stderr=errors.fd
        ) as process:
            errors.close_writing()
            until(lambda: last_step(run) > 0, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 3
        told = errors.read_all().decode()
    assert finished(run).reason == "stopped"
    assert "standard output was not read to the end" in told and str(run.journal) in told


@pytest.mark.full
def test_slow_reader_gets_every_line(place):
    run = run_named("slow", place)
    arguments = ("--no-ui", "my.toml", "--set", "output.name=slow", "--json", "--set", "training.max_steps=400")
    with reader("pipe", place) as slow, started(*arguments, stdout=slow.fd) as process:
        slow.close_writing()
        until(lambda: run.model.exists(), process)
        printed = slow.read_all()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert len(printed) > 100_000, "more than a pipe holds"
    assert printed == run.journal.read_bytes()


def fill_the_disk(process: Program, run: RunFolder) -> None:
    """Make every later write to a file fail."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))


def remove_the_folder(process: Program, run: RunFolder) -> None:
    run.root.rename(run.root.with_name("elsewhere"))
    shutil.rmtree(run.root.with_name("elsewhere"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("spoil", "saves", "words"),
    [
        (fill_the_disk, 100, "File too large (os error 27). The checkpoint of step"),
        (fill_the_disk, 0, "File too large (os error 27). There is no earlier checkpoint"),
        (remove_the_folder, 100, "No such file or directory"),
    ],
)
def test_signal_stops_a_run_that_cannot_write_any_file(spoil, saves, words, place):
    run = run_named("full", place)
    settings = (f"checkpoint.save_steps={saves}", "checkpoint.save_total_limit=1000", "output.name=full")
    arguments = [word for setting in settings for word in ("--set", setting)]
    with (
        reader("pipe", place) as output,
        started("--no-ui", "my.toml", *arguments, stdout=output.fd, stderr=output.fd) as process,
    ):
        output.close_writing()
        until(lambda: last_step(run) > 110, process)
        spoil(process, run)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 1, process.stacks()
        told = output.read_all().decode()
    assert "which could not be saved" in told and words in told, told
    assert "Traceback" not in told


STUCK = """
import time
from pathlib import Path
from tui_trainer.training.session import Session
def take_step(self, step):
    Path("stuck").touch()
    time.sleep(1000)
Session.take_step = take_step
"""


@pytest.mark.full
def test_second_ctrl_c_leaves_at_once_if_the_first_cannot_be_answered(place):
    arguments = ("--no-ui", "my.toml", "--set", "output.name=stuck")
    printed = place / "printed.txt"
    with printed.open("wb") as output, reader("terminal", place) as errors:
        errors.stall()
        with started(*arguments, stdout=output.fileno(), stderr=errors.fd, prelude=STUCK) as process:
            until((place / "stuck").exists, process)
            process.send_signal(signal.SIGINT)
            until(lambda: b"stopping at the next step" in printed.read_bytes(), process)
            pressed = monotonic()
            until(lambda: monotonic() > pressed + 2 * ONE_PRESS_SECONDS, process)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 1
    assert overview(find_run("stuck")).status == "interrupted"


def waits_for_its_reader(process: Program) -> bool:
    """Return whether a thread of the process is blocked in a write to a pipe."""
    inside = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/wchan")]
    return any("pipe_write" in name for name in inside)


@pytest.mark.full
def test_ctrl_c_ends_attach_while_nobody_reads_its_lines(place):
    run = RunFolder.create(place / "runs", "watched")
    with RunLock(run.lock), JournalWriter(run.journal) as journal, reader("pipe", place) as nobody:
        nobody.stall()
        arguments = ("attach", str(run.root), "--no-ui", "--json")
        with started(*arguments, stdout=nobody.fd, stderr=nobody.fd) as process:
            # Events from before the start of `attach` are not printed.
            until(lambda: journal.append(step_done(1)) or waits_for_its_reader(process), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0


def test_ctrl_c_ends_a_command_while_nobody_reads_its_lines(place):
    with reader("pipe", place) as nobody:
        nobody.stall()
        with started("explain", stdout=nobody.fd, stderr=nobody.fd) as process:
            until(lambda: waits_for_its_reader(process), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 130


@pytest.mark.full
def test_error_that_nobody_reads_does_not_block_the_exit(place):
    with reader("terminal", place) as nobody:
        nobody.stall()
        with started("plan", "no.toml", stderr=nobody.fd) as process:
            assert process.wait(PATIENCE_SECONDS) == 2


def test_one_ctrl_c_that_arrives_twice_counts_once(monkeypatch):
    """A terminal sends Ctrl+C to the whole process group, and a parent may pass it on."""
    clock = iter([10.0, 10.0 + ONE_PRESS_SECONDS / 2, 10.0 + 2 * ONE_PRESS_SECONDS])
    exits: list[int] = []
    monkeypatch.setattr(standard_files, "monotonic", lambda: next(clock))
    monkeypatch.setattr(os, "_exit", exits.append)
    interrupts = Interrupts()
    interrupts.note()
    interrupts.note()
    assert exits == []
    interrupts.note()
    assert exits == [1]


def test_closed_standard_files_change_no_exit_code(place, subtests):
    """An error that standard error cannot take is not printed among the results."""
    before = sorted(place.iterdir())
    for arguments, closed, code in ((("plan", "my.toml"), (0, 1, 2), 0), (("plan", "no.toml"), (2,), 2)):
        with subtests.test(f"{arguments[1]}, {closed} closed"), reader("pipe", place) as output:
            with started(*arguments, closed=closed, stdout=output.fd) as process:
                output.close_writing()
                assert output.read_all() == b""
                assert process.wait(PATIENCE_SECONDS) == code
            assert sorted(path for path in place.iterdir() if path.name != "home") == before


def test_error_keeps_its_exit_code_if_the_reader_of_standard_error_is_gone(place):
    reading, writing = os.pipe()
    os.close(reading)
    with started("plan", "no.toml", stderr=writing) as process:
        os.close(writing)
        assert process.wait(PATIENCE_SECONDS) == 2


def test_opened_file_does_not_take_the_number_of_a_closed_standard_file(place):
    code = (
        "from tui_trainer.terminal.standard_files import open_standard_files; open_standard_files(); "
        "file = open('number.txt', 'w'); file.write(str(file.fileno()))"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, timeout=PATIENCE_SECONDS).returncode == 0
    assert int((place / "number.txt").read_text()) > 2


def test_progress_stays_in_one_line_of_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name in ("a very long name of a folder", "\u6a21\u578b" * 12):
        screen = pyte.Screen(40, 5)
        for done in range(4):
            standard_files.show_progress(f"evaluating {name}", done, 4, "rows of the held-out data")
        pyte.Stream(screen).feed(capsys.readouterr().err)
        assert screen.display[0].startswith("evaluating") and not any(map(str.strip, screen.display[1:])), name
        standard_files.show_progress(name, 4, 4, "")
        pyte.Stream(screen).feed(capsys.readouterr().err + "x" * 50)
        assert screen.display[0] == "x" * 40 and screen.display[1].strip() == "x" * 10, "later lines wrap again"


# The printed journal of a run that somebody else writes


@pytest.fixture
def followed(tmp_path):
    """Return `followed(as_json)`: a follower of a run, and a function that appends events and prints them."""

    def follow(*, as_json: bool = False):
        run = run_of(tmp_path / "runs", "a", start())
        follower = Follower(run, as_json=as_json)

        def write(*events: Event) -> None:
            with JournalWriter(run.journal) as journal:
                journal.append(*events)
            follower.show_new()

        return follower, write

    return follow


def gauges(share: float) -> GaugesRead:
    return GaugesRead(process_memory_bytes=2**30, gpus=[GpuReading(index=0, utilization_share=share)])


def test_terminal_that_goes_away_ends_the_printing_and_nothing_else(followed, monkeypatch):
    master, slave = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        follower, write = followed()
        write(step_done(1))
        assert b"step 1/" in os.read(master, 10_000)
        os.close(master)
        for number in (2, 3):
            write(step_done(number))
            follower.print("still here")
        assert not follower.output.is_open


def test_hardware_use_is_printed_every_hundred_steps_and_at_the_end(followed, capsys):
    follower, write = followed()

    def printed(*events: Event) -> list[str]:
        write(*events)
        return [line for line in capsys.readouterr().out.splitlines() if "GPU" in line]

    assert printed(step_done(99), gauges(0.5), gauges(0.7)) == []
    assert printed(step_done(100), step_done(101)) == ["step 100: GPU 60 %; process 1.0 GiB with libraries"]
    assert printed(step_done(200)) == [], "no gauges were read since"
    assert printed(gauges(0.9), step_done(299), step_done(300)) == [
        "step 300: GPU 90 %; process 1.0 GiB with libraries"
    ]
    write(step_done(301), gauges(0.1), end(301))
    follower.show_end()
    assert [line for line in capsys.readouterr().out.splitlines() if "GPU" in line] == [
        "step 301: GPU 10 %; process 1.0 GiB with libraries",
        "used           GPU 55 %; process 1.0 GiB with libraries (averages; for memory and temperature, peaks)",
    ]


def test_terminal_of_one_column_ends_no_run(followed, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1")
    follower, _ = followed()
    follower.output.is_terminal = True
    follower.print("a word")
    assert "a" in capsys.readouterr().out
