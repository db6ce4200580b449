"""What the screens cost: time to the first one, work while nothing happens, bytes to the terminal, time from key to
picture, speed of training.

    uv run python tests/benchmarks/screens.py                  # all of it, about 25 minutes
    uv run python tests/benchmarks/screens.py traffic          # one of: first, idle, traffic, keys, throughput, link,
                                                               # stalled (which takes eleven minutes)
    PYTHONPATH=OTHER uv run python tests/benchmarks/screens.py traffic     # of the program in the folder OTHER
    uv run python tests/benchmarks/screens.py idle --beside PYTHON   # of two programs at once

Run it on a machine that does nothing else. The program runs under a real pseudo-terminal, with the quickstart recipe.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections import deque
from pathlib import Path
from statistics import median

import psutil
import pyte

SIZES = ((80, 24), (200, 50))
STEADY_SECONDS = 60.0
IDLE_SECONDS = 100.0
# Nobody has pressed a key for longer than `workbench.UNATTENDED_SECONDS`, or `UNATTENDED_WATCH_SECONDS`.
LEFT_ALONE_SECONDS, WATCHED_SECONDS = 75.0, 315.0
PAGES = "12345"
PAIRS = 5
# Small enough for more than five steps a second on two cores, evaluating and saving as usual.
FAST = ("--set", "training.effective_batch_size=8", "--set", "training.max_steps=100000")
# Half a minute of training: in ten seconds the first second, in which the screens are drawn and kernels are made ready,
# is a tenth of the whole, and the pairs of an idle machine went from 0.89 to 1.09.
SHORT = ("--set", "training.max_steps=500", "--set", "training.effective_batch_size=8")
# Of a link over an ocean, to the one side.
DELAY_SECONDS = 0.1
# Without, each start would compile what it imports, which only the first one after an installation does.
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
# Far more than any buffer on the way holds.
STALLED_SECONDS = 600.0
# For the end of a run, beside other work as well.
PATIENCE_SECONDS = 900.0
STARTS = 15


class Program:
    """The program in a pseudo-terminal."""

    def __init__(self, home: Path, size: tuple[int, int], *arguments: str, python: str = sys.executable) -> None:
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.bytes_read = 0
        environment = os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TUI_TRAINER_HOME": str(home)}
        for name in ("SSH_CONNECTION", "NO_COLOR", "COLORTERM", _NO_BYTECODE):
            environment.pop(name, None)
        self.started = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            home.mkdir(exist_ok=True)
            os.chdir(home)
            os.execve(python, [python, "-m", "tui_trainer", *arguments], environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def read(self, seconds: float) -> bool:
        """Take in what comes first within so many seconds; whether anything came."""
        if not select.select([self.fd], [], [], max(seconds, 0))[0]:
            return False
        data = os.read(self.fd, 65536)
        self.bytes_read += len(data)
        self._stream.feed(data)
        return True

    def wait_for(self, text: str, seconds: float = 120.0) -> float:
        """The time at which the screen shows `text`."""
        until = time.perf_counter() + seconds
        while not any(text in line for line in self.screen.display):
            if time.perf_counter() > until:
                raise SystemExit(f"{text!r} did not come:\n" + "\n".join(self.screen.display))
            self.read(0.5)
        return time.perf_counter()

    def press(self, keys: str) -> float:
        os.write(self.fd, keys.encode())
        return time.perf_counter()

    def drain(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            self.read(left)

    def start_run(self) -> None:
        self.wait_for("t start")
        self.press("t")
        self.wait_for("Enter start")
        self.press("\r")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


class FarProgram(Program):
    """The same behind a link: what is sent arrives a tenth of a second later, in both directions."""

    def __init__(self, home: Path, size: tuple[int, int], *arguments: str) -> None:
        self._keys: deque[tuple[float, bytes]] = deque()
        self._pictures: deque[tuple[float, bytes]] = deque()
        super().__init__(home, size, *arguments)

    def read(self, seconds: float) -> bool:
        until = time.perf_counter() + max(seconds, 0)
        while True:
            now = time.perf_counter()
            while self._keys and self._keys[0][0] <= now:
                os.write(self.fd, self._keys.popleft()[1])
            if self._pictures and self._pictures[0][0] <= now:
                data = self._pictures.popleft()[1]
                self.bytes_read += len(data)
                self._stream.feed(data)
                return True
            if now >= until:
                return False
            soonest = min([until, *(due for due, _ in (*list(self._keys)[:1], *list(self._pictures)[:1]))])
            if select.select([self.fd], [], [], max(soonest - now, 0))[0]:
                try:
                    self._pictures.append((time.perf_counter() + DELAY_SECONDS, os.read(self.fd, 65536)))
                except OSError:  # the program has ended
                    time.sleep(max(soonest - now, 0))

    def press(self, keys: str) -> float:
        self._keys.append((time.perf_counter() + DELAY_SECONDS, keys.encode()))
        return time.perf_counter()


def link() -> None:
    """Start, watch, leave, come back and compare over a link of 200 ms, at 80x24: from each key to its picture."""
    print(f"over a link of {2000 * DELAY_SECONDS:.0f} ms, in ms:", flush=True)

    def step(program: Program, what: str, keys: str, text: str) -> None:
        show(what, program.press(keys), program.wait_for(text))

    def show(what: str, begun: float, shown: float) -> None:
        print(f"  {what} {1000 * (shown - begun):.0f}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        train_headless(folder, *SHORT, "--set", "training.max_steps=20")
        first = FarProgram(Path(folder), SIZES[0], *SHORT)
        show("first screen", first.started, first.wait_for("t start"))
        first.drain(3.0)
        step(first, "plan", "t", "Enter start")
        step(first, "start", "\r", "reading and preparing")
        first.wait_for("ETA")
        before = first.bytes_read
        first.drain(5.0)
        print(f"  while watching {(first.bytes_read - before) / 5.0:,.0f} bytes/s", flush=True)
        step(first, "question before leaving", "q", "train on in")
        step(first, "left", "l", "close this terminal")
        second = FarProgram(Path(folder), SIZES[0], "attach")
        show("back", second.started, second.wait_for("step"))
        second.wait_for("finished", PATIENCE_SECONDS)
        step(second, "runs", "5", "2 here")
        step(second, "marked", " ", "1 marked")
        step(second, "marked", " ", "2 marked")
        step(second, "compared", "C", "training loss over")
        second.kill()
        first.kill()


def first_screen() -> None:
    """Seconds that pass, and those of the processor, which other work on the machine changes less."""
    environment = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    imports, screens = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(STARTS):
            before, used = time.perf_counter(), children_seconds()
            subprocess.run([sys.executable, "-c", "import textual.app"], check=True, env=environment)
            imports.append((time.perf_counter() - before, children_seconds() - used))
            program = Program(Path(folder), (80, 24))
            passed = program.wait_for("t start") - program.started
            screens.append((passed, cpu_seconds(program)))
            program.kill()
    for place, what in enumerate(("from the start of the process", "of the processor")):
        screen, textual = (median(pair[place] for pair in pairs) for pairs in (screens, imports))
        print(
            f"first screen: {screen:.2f} s {what}; a process that only imports textual.app: {textual:.2f} s; "
            f"ratio {screen / textual:.2f} (wanted: at most 1.5)"
        )


def idle(*pythons: str) -> None:
    """Shares of a core of programs that wait for a key, one for each page, all at the same time; then of those that
    watch a run, which trains in a program of its own.
    """
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            kinds = [(python, page) for python in pythons for page in PAGES]
            alone = [left_alone(Path(folder), size, page, python) for python, page in kinds]
            show_shares(size, alone, kinds, LEFT_ALONE_SECONDS)
            homes = [Path(folder) / f"run-{place}" for place in range(len(pythons))]
            training = [Program(home, SIZES[0], *FAST, python=each) for home, each in zip(homes, pythons, strict=True)]
            for program in training:
                program.start_run()
                program.wait_for("ETA")
            kinds = [(python, "a run alive") for python in pythons]
            watched = [watching(home, size, each) for home, each in zip(homes, pythons, strict=True)]
            show_shares(size, watched, kinds, WATCHED_SECONDS)
            for program in training:
                program.kill()


def show_shares(
    size: tuple[int, int], programs: list[Program], kinds: list[tuple[str, str]], left_seconds: float
) -> None:
    drain_all(programs, left_seconds)
    before = [(cpu_seconds(program), program.bytes_read) for program in programs]
    drain_all(programs, IDLE_SECONDS)
    for program, kind, (seconds, count) in zip(programs, kinds, before, strict=True):
        share = (cpu_seconds(program) - seconds) / IDLE_SECONDS
        sent = (program.bytes_read - count) / IDLE_SECONDS
        print(f"{size[0]}x{size[1]} {kind[1]}: {share:.2%} of a core, {sent:.0f} bytes/s ({kind[0]})", flush=True)
        program.kill()


def left_alone(folder: Path, size: tuple[int, int], page: str, python: str) -> Program:
    """The program on a page that nobody touches any more."""
    program = Program(folder / f"alone-{len(list(folder.iterdir()))}", size, python=python)
    program.wait_for("t start")
    program.press(page)
    return program


def watching(home: Path, size: tuple[int, int], python: str) -> Program:
    program = Program(home, size, "attach", "last", python=python)
    program.wait_for("step")
    return program


def children_seconds() -> float:
    """Processor time of all processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds(program: Program) -> float:
    return float(sum(psutil.Process(program.pid).cpu_times()[:2]))


def drain_all(programs: list[Program], seconds: float) -> None:
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        for fd in select.select([program.fd for program in programs], [], [], left)[0]:
            next(program for program in programs if program.fd == fd).read(0)


def traffic() -> None:
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            program = Program(Path(folder), size, *FAST)
            program.wait_for("t start")
            program.drain(1.5)
            first_paint = program.bytes_read
            program.start_run()
            program.wait_for("ETA")
            program.drain(5.0)
            steps_before, bytes_before = steps_of(folder), program.bytes_read
            program.drain(STEADY_SECONDS)
            rate = (program.bytes_read - bytes_before) / STEADY_SECONDS
            steps = (steps_of(folder) - steps_before) / STEADY_SECONDS
            program.kill()
        wanted = 3000 if size[0] == 80 else 10_000
        print(
            f"traffic at {size[0]}x{size[1]}: {rate:,.0f} bytes/s over {STEADY_SECONDS:.0f} s of training at "
            f"{steps:.1f} steps/s (wanted: under {wanted:,}); first screen {first_paint:,} bytes"
        )


def keys() -> None:
    pages = (("2", "setting, "), ("3", " pass "), ("1", "libraries"), ("4", " speed "))
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), (80, 24), *FAST)
        program.start_run()
        program.wait_for("ETA")
        seconds = []
        for turn in range(15):
            for key, text in pages:
                program.drain(0.15 + 0.07 * (turn % 5))
                pressed = program.press(key)
                seconds.append(program.wait_for(text) - pressed)
        program.kill()
    milliseconds = sorted(1000 * value for value in seconds)
    print(
        f"key to screen while training: median {median(milliseconds):.0f} ms, 95 % within "
        f"{milliseconds[int(len(milliseconds) * 0.95)]:.0f} ms, {len(milliseconds)} keys (wanted: median under 100 ms)"
    )


def throughput() -> None:
    ratios = []
    for pair in range(PAIRS):
        both = [without_screens, with_screens]
        seconds = {run: run() for run in (both if pair % 2 == 0 else reversed(both))}
        ratios.append(seconds[without_screens] / seconds[with_screens])
        print(
            f"  pair {pair + 1}: {seconds[without_screens]:.2f} s without, {seconds[with_screens]:.2f} s with screens"
        )
    ratios.sort()
    print(
        f"throughput with screens / without: median {median(ratios):.3f} of {PAIRS} pairs, from {ratios[0]:.3f} to "
        f"{ratios[-1]:.3f} (wanted: at least 0.97)"
    )


def without_screens() -> float:
    with tempfile.TemporaryDirectory() as folder:
        train_headless(folder, *SHORT)
        return training_seconds(folder)


def train_headless(folder: str, *settings: str) -> None:
    environment = os.environ | {"TUI_TRAINER_HOME": folder}
    command = [sys.executable, "-m", "tui_trainer", "--no-ui", *settings]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def with_screens() -> float:
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), (80, 24), *SHORT)
        program.start_run()
        program.wait_for("finished", PATIENCE_SECONDS)
        program.kill()
        return training_seconds(folder)


def stalled() -> None:
    """Of two runs side by side one has a terminal that nobody reads any more, as behind a link that is gone: how fast
    each trains, and what SIGTERM and a hang-up do then."""
    with tempfile.TemporaryDirectory() as read, tempfile.TemporaryDirectory() as unread:
        programs = {folder: Program(Path(folder), SIZES[1], *FAST) for folder in (read, unread)}
        for program in programs.values():
            program.start_run()
            program.wait_for("ETA")
        first = {folder: steps_of(folder) for folder in programs}
        programs[read].drain(STALLED_SECONDS)
        made = {folder: steps_of(folder) - first[folder] for folder in programs}
        print(f"unread for {STALLED_SECONDS:.0f} s: {made[unread]:,} steps; {made[read]:,} beside it with one read")
        end_by_signal(programs[unread], unread, "SIGTERM, terminal unread")
        time.sleep(STALLED_SECONDS / 20)
        os.close(programs[read].fd)
        closed, before = time.perf_counter(), steps_of(read)
        while steps_of(read) < before + 20:
            time.sleep(0.1)
        print(f"hang-up, terminal unread: 20 more steps in {time.perf_counter() - closed:.1f} s")
        end_by_signal(programs[read], read, "SIGTERM after the hang-up")


def end_by_signal(program: Program, folder: str, what: str) -> None:
    heard, sent = steps_of(folder), time.perf_counter()
    os.kill(program.pid, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1])
    steps, seconds = steps_of(folder) - heard, time.perf_counter() - sent
    print(f"{what}: {steps} steps after it, ended after {seconds:.1f} s with {code}, {events_of(folder)[-1]['reason']}")


def events_of(folder: str) -> list[dict[str, float]]:
    (journal,) = Path(folder).glob("runs/*/journal.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]


def steps_of(folder: str) -> int:
    return max(int(event["step"]) for event in events_of(folder))


def training_seconds(folder: str) -> float:
    return float(events_of(folder)[-1]["seconds"])


def main() -> None:
    *chosen, beside = [*sys.argv[1:], ""] if "--beside" not in sys.argv else [*sys.argv[1:-2], sys.argv[-1]]
    for name, measure in (
        ("first", first_screen),
        ("idle", lambda: idle(sys.executable, *filter(None, [beside]))),
        ("keys", keys),
        ("traffic", traffic),
        ("throughput", throughput),
        ("link", link),
        ("stalled", stalled),
    ):
        if not chosen or name in chosen:
            measure()


if __name__ == "__main__":
    main()
