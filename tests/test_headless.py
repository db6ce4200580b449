"""A run without a screen, in processes of its own: what a hang-up, a closed pipe, SIGTERM and Ctrl+C do to it.

Nothing is timed: each step waits until the journal or a file shows what has to be there.
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
from types import SimpleNamespace

import pyte
import pytest

from tests.programs import Program, start_program
from tui_trainer.lines import headless, journal_printer
from tui_trainer.runs.events import (
    ControlApplied,
    GaugesRead,
    GpuReading,
    RunFinished,
    RunStarted,
    StepDone,
    from_line,
)
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter, read_all
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import overview
from tui_trainer.runs.registry import find_run
from tui_trainer.runs.state import RunState, fold
from tui_trainer.terminal import standard_files
from tui_trainer.terminal.standard_files import ONE_PRESS_SECONDS
from tui_trainer.training.checkpoint_folder import newest_whole

PATIENCE_SECONDS = 120
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
    """`python -m tui_trainer ARGUMENTS` with the standard files of the numbers in `closed` closed; never left alive.

    On one core: two threads that wait for each other take a second a step where others use the cores too.
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


def until(what: Callable[[], object], process: Program | None = None) -> None:
    """Waits for a condition; fails at once when the process that should bring it about is gone."""
    end = monotonic() + PATIENCE_SECONDS
    while not what():
        assert monotonic() < end, "waited too long"
        assert process is None or process.poll() is None or what(), f"ended with {process.returncode}"
        sleep(0.03)


def run_named(name: str, place: Path) -> RunFolder:
    return RunFolder(place / "runs" / name)


def last_step(run: RunFolder) -> int:
    return overview(run).step if run.journal.exists() else 0


def finished(run: RunFolder) -> RunFinished:
    return next(event for event in reversed(read_all(run.journal)) if isinstance(event, RunFinished))


def test_a_run_outlives_its_reader_and_a_hang_up_and_goes_on_after_sigterm_and_ctrl_c(place):
    run = run_named("story", place)
    arguments = ("--no-ui", "my.toml", "--set", "output.name=story")
    # Standard input and error are closed from the beginning, standard output after its first line.
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
    state = fold(read_all(run.journal))
    assert list(state.steps) == list(range(1, finished(run).step + 1))
    assert newest_whole(run.checkpoints, pytest.fail).step == finished(run).step > stopped.step + 20


class Reader:
    """Of what a program prints to `fd`: it reads nothing before `read_all`."""

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
        """From now on nothing more is taken: as by Ctrl+S, or when a pipe is full."""
        if self.kind == "terminal":
            os.write(self._reading, b"\x13")
            return
        # An open file of its own: the program's does not become one that never waits.
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
        """Until nobody can write any more."""
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


# As a model with code of its own may.
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


@pytest.mark.parametrize(
    ("kind", "number", "words", "prelude", "at_once"),
    [
        ("pipe", signal.SIGTERM, ["--json"], "", False),
        ("fifo", signal.SIGUSR1, [], PRINTS, False),
        ("terminal", signal.SIGINT, [], "", True),
    ],
)
def test_a_signal_is_acted_on_while_nobody_reads(kind, number, words, prelude, at_once, place):
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
            until(lambda: last_step(run) > heard + 200, process)
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == 3, process.stacks()
    assert finished(run).reason == "stopped"
    checkpoint = newest_whole(run.checkpoints, pytest.fail)
    assert checkpoint is not None and checkpoint.step == finished(run).step


def test_a_run_whose_first_lines_nobody_reads_trains_and_hears_a_signal(place):
    """And what was not printed is named where somebody reads."""
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
    assert "standard output was not read to its end" in told and str(run.journal) in told


def test_a_slow_reader_gets_every_line(place):
    """The journal is on the disk: what is printed lags behind it."""
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
    """Nothing can be written to any file from now on."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))


def remove_the_folder(process: Program, run: RunFolder) -> None:
    run.root.rename(run.root.with_name("elsewhere"))
    shutil.rmtree(run.root.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("spoil", "saves", "words"),
    [
        (fill_the_disk, 100, "File too large (os error 27). The checkpoint of step"),
        (fill_the_disk, 0, "File too large (os error 27). No checkpoint was saved before"),
        (remove_the_folder, 100, "No such file or directory"),
    ],
)
def test_a_signal_needs_no_file(spoil, saves, words, place):
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


def test_a_second_ctrl_c_leaves_at_once_where_the_first_cannot_be_answered(place):
    """And nobody reads why it has left."""
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
    """Whether one of its threads is in the middle of a write."""
    inside = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/wchan")]
    return any("pipe_write" in name for name in inside)


def test_ctrl_c_ends_the_watching_of_a_run_whose_lines_nobody_reads(place):
    run = RunFolder.create(place / "runs", "watched")
    with RunLock(run.lock), JournalWriter(run.journal) as journal, reader("pipe", place) as nobody:
        nobody.stall()
        arguments = ("attach", str(run.root), "--no-ui", "--json")
        with started(*arguments, stdout=nobody.fd, stderr=nobody.fd) as process:
            # What is there before it looks is not shown.
            until(lambda: journal.append(step(1)) or waits_for_its_reader(process), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0


def test_ctrl_c_ends_a_command_whose_lines_nobody_reads(place):
    with reader("pipe", place) as nobody:
        nobody.stall()
        with started("explain", stdout=nobody.fd, stderr=nobody.fd) as process:
            until(lambda: waits_for_its_reader(process), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 130


def test_an_error_that_nobody_reads_holds_up_no_end(place):
    with reader("terminal", place) as nobody:
        nobody.stall()
        with started("plan", "no.toml", stderr=nobody.fd) as process:
            assert process.wait(PATIENCE_SECONDS) == 2


def test_one_press_that_arrives_twice_is_one_and_sigterm_is_none(monkeypatch):
    """A terminal sends Ctrl+C to the whole group, and a parent may pass it on."""
    clock = iter([10.0, 10.2, 10.4])
    left: list[int] = []
    monkeypatch.setattr(standard_files, "monotonic", lambda: next(clock))
    monkeypatch.setattr(os, "_exit", left.append)
    signals = headless._Signals(lambda: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        signals._note(number, None)
    assert left == []
    signals._note(signal.SIGINT, None)
    assert left == [1]


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        (("plan", "my.toml"), (0, 1, 2), 0),
        (("plan", "no.toml"), (2,), 2),
    ],
)
def test_closed_standard_files_change_no_exit_code(arguments, closed, code, place):
    """An error that standard error cannot take is not printed among the results."""
    before = sorted(place.iterdir())
    reading, writing = os.pipe()
    with started(*arguments, closed=closed, stdout=writing) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as output:
            assert output.read() == b""
        assert process.wait(PATIENCE_SECONDS) == code
    assert sorted(path for path in place.iterdir() if path.name != "home") == before


@pytest.mark.parametrize("name", ["a very long name of a folder", "\u6a21\u578b" * 12])
def test_progress_stays_in_one_line_of_a_narrow_terminal(name, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    screen = pyte.Screen(40, 5)
    for done in range(4):
        standard_files.show_progress(f"evaluating {name}", done, 4, "rows of the held-out data")
    pyte.Stream(screen).feed(capsys.readouterr().err)
    assert screen.display[0].startswith("evaluating") and not any(map(str.strip, screen.display[1:]))
    standard_files.show_progress(name, 4, 4, "")
    pyte.Stream(screen).feed(capsys.readouterr().err + "x" * 50)
    assert screen.display[0] == "x" * 40 and screen.display[1].strip() == "x" * 10, "what follows is wrapped again"


def test_no_file_takes_the_number_of_a_closed_standard_file(place):
    code = (
        "from tui_trainer.terminal.standard_files import open_standard_files; open_standard_files(); "
        "file = open('number.txt', 'w'); file.write(str(file.fileno()))"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, timeout=PATIENCE_SECONDS).returncode == 0
    assert int((place / "number.txt").read_text()) > 2


def test_an_error_nobody_reads_is_an_error_all_the_same(place):
    reading, writing = os.pipe()
    os.close(reading)
    with started("plan", "no.toml", stderr=writing) as process:
        os.close(writing)
        assert process.wait(PATIENCE_SECONDS) == 2


def step(number: int) -> StepDone:
    parts = dict.fromkeys(("data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"), 0.02)
    rates = {"tokens_per_second": 40.0, "samples_per_second": 10.0, "step_seconds": 0.1, "epoch": 0.1}
    return StepDone(
        step=number, loss_sum=8.0, tokens=4, samples=1, lr=1e-3, grad_norm=1.0, peak_memory_bytes=1, **parts, **rates
    )


def test_a_terminal_that_goes_away_ends_the_lines_and_nothing_else(monkeypatch):
    master, slave = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        state = RunState()
        printer = journal_printer._LinePrinter(state)
        printer.show(step(1))
        printer.refresh()
        assert b"step 1/" in os.read(master, 1000)
        os.close(master)
        for number in (2, 3):
            printer.show(step(number))
            printer.refresh()
            printer.note("still here")
        assert not printer.output.open


def used(share: float) -> GaugesRead:
    return GaugesRead(process_memory_bytes=2**30, gpus=[GpuReading(index=0, utilization_share=share)])


def test_every_hundred_steps_and_at_the_end_one_line_says_what_was_used(capsys):
    state = RunState()
    printer = journal_printer._LinePrinter(state)

    def show(*events) -> str:
        for event in events:
            state.apply(event)
            printer.show(event)
        return capsys.readouterr().out

    def gauges(printed: str) -> list[str]:
        return [line for line in printed.splitlines() if "GPU" in line]

    assert gauges(show(step(99), used(0.5), used(0.7))) == []
    assert gauges(show(step(100), step(101))) == ["step 100: GPU 60 %; process 1.0 GiB"]
    assert gauges(show(step(200))) == [], "nothing was read since"
    assert gauges(show(used(0.9), step(299), step(300))) == ["step 300: GPU 90 %; process 1.0 GiB"]
    show(step(301), used(0.1), RunFinished(step=301, reason="done", loss=1.0, eval_loss=None, seconds=9.0))
    folder = SimpleNamespace(name="a", root=Path("a"), model=Path("no-model"))
    printer.end(folder, state)
    assert gauges(capsys.readouterr().out) == [
        "step 301: GPU 10 %; process 1.0 GiB",
        "used           GPU 55 %; process 1.0 GiB (means; memory and temperature: peaks)",
    ]


def test_programs_get_readings_as_the_journal_has_them(capsys):
    journal_printer.Printer().show(used(0.5))
    assert from_line(capsys.readouterr().out.strip()).gpus == used(0.5).gpus


def test_a_terminal_of_one_column_ends_no_run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1")
    printer = journal_printer._LinePrinter(RunState())
    printer.output.is_terminal = True
    printer.note("a word")
    assert "a" in capsys.readouterr().out
