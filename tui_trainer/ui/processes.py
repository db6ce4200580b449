"""Dialog with the processes that use GPUs and CPU. Users can end their own processes."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from time import monotonic, time
from typing import Final

from rich.cells import cell_len
from textual.widget import Widget

from tui_trainer.hardware.processes import (
    ProcessReader,
    ProcessSnapshot,
    ProcessUse,
    descendants,
    end_process,
    is_running,
)
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import read_lock_owner
from tui_trainer.runs.registry import newest_runs
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, Dialog, Row
from tui_trainer.ui.spans import Line, Role, Span, next_of, pad, paragraph
from tui_trainer.ui.widgets.lists import ChoiceList, LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import format_bytes, format_seconds

PROCESSES: Final = "processes"
_PERIOD_SECONDS, _UNATTENDED_SECONDS, _SECOND_LOOK_SECONDS = 2.0, 7.0, 0.5
# Reading may take at most this share of a core, which matters with thousands of processes.
_SHARE_OF_A_CORE = 0.02
# A process that was asked to end may be killed after this time, in seconds.
PATIENCE_SECONDS = 5.0
_COMMAND_CHARACTERS = 300
_UNKNOWN_SORT_VALUE = -1.0
HEADINGS: Final = {
    "user": "user", "pid": "pid", "cpu": "CPU", "memory": "memory", "card": "GPU", "since": "since",
    "command": "command",
}  # fmt: skip
_RIGHT: Final = ("pid", "cpu", "memory", "since")
SORTS: Final[dict[str, Callable[[ProcessUse], float]]] = {
    "cpu": lambda use: _UNKNOWN_SORT_VALUE if use.cores is None else use.cores,
    "memory": lambda use: use.memory_bytes or 0,
    "card": lambda use: use.bytes_on_cards if use.card_bytes else _UNKNOWN_SORT_VALUE,
    "since": lambda use: use.started_at or 0.0,
}


def sort_processes(processes: Iterable[ProcessUse], name: str) -> list[ProcessUse]:
    """Return the processes sorted by a column, the largest first. Ties are sorted by memory and process id."""
    return sorted(processes, key=lambda use: (-SORTS[name](use), -(use.memory_bytes or 0), use.pid))


def _card_words(use: ProcessUse) -> str:
    """Return the memory that a process uses on each GPU, such as `0: 12.0 GiB`."""
    card_sizes = sorted(use.card_bytes.items())
    return " ".join(f"{index}: {'--' if size is None else format_bytes(size)}" for index, size in card_sizes)


def since_words(started_at: float, now: float) -> str:
    """Return a start time as `14:05` if it is today, `27 Nov` if it is in this year, else `2025-11-27`."""
    start, today = datetime.fromtimestamp(started_at), datetime.fromtimestamp(now)
    if start.date() == today.date():
        return f"{start:%H:%M}"
    return f"{start:%d %b}" if start.year == today.year else f"{start:%Y-%m-%d}"


def cells(use: ProcessUse, now: float) -> dict[str, str]:
    """Return the texts of a process by column. They are safe to show."""
    is_outside = use.started_at is None
    program, _, arguments = use.command.partition(" ")
    # The path of the program is cut here. It is shown for the chosen process.
    command = f"{program.rpartition('/')[2]} {arguments}" if program.startswith("/") else use.command
    return {
        "user": one_line(use.user or "?", 10),
        "pid": str(use.pid),
        "cpu": "--" if use.cores is None else f"{100 * use.cores:.0f} %",
        "memory": "--" if use.memory_bytes is None else format_bytes(use.memory_bytes),
        "card": _card_words(use),
        "since": "--" if use.started_at is None else since_words(use.started_at, now),
        "command": "a process outside this container" if is_outside else one_line(command, _COMMAND_CHARACTERS),
    }


class ProcessTable(ChoiceList[ProcessUse]):
    """Sorted table of processes. A chosen process stays chosen when a new reading is shown."""

    def __init__(self) -> None:
        super().__init__(self._row, titles=self._styled_titles, id="processes")
        self.sorted_by = "cpu"
        self._texts: dict[str, dict[str, str]] = {}
        self._widths: dict[str, int] = {}

    def show_snapshot(self, snapshot: ProcessSnapshot, now: float) -> None:
        self._texts = {use.key: cells(use, now) for use in snapshot.processes}
        names, rows = [name for name in HEADINGS if name != "card" or snapshot.has_cards], self._texts.values()
        self._widths = {name: max(map(cell_len, [self._heading(name), *(row[name] for row in rows)])) for name in names}
        self._arrange(snapshot.processes)

    def _arrange(self, processes: Sequence[ProcessUse]) -> None:
        process, rows = self.chosen, sort_processes(processes, self.sorted_by)
        keys = [use.key for use in rows]
        self.show(rows, keys.index(process.key) if process and process.key in keys else self.place)

    def _heading(self, name: str) -> str:
        # Each heading reserves room for the sort mark, so that columns keep their width.
        return HEADINGS[name] + f" {'v' if name == self.sorted_by else ' '}" * (name in SORTS)

    def _styled_titles(self, _: int) -> list[tuple[str, Span]]:
        # The last title is not padded, because the column of commands may be wider than the screen.
        titles = {name: pad(self._heading(name), width) for name, width in self._widths.items()}
        return [(name, (f" {title.rstrip() if name == 'command' else title} ", "bold"))
                for name, title in titles.items()]  # fmt: skip

    def _row(self, use: ProcessUse, _: int) -> Line:
        parts = []
        for name, width in self._widths.items():
            text = self._texts[use.key][name]
            parts.append(pad(" " * (width - cell_len(text)) * (name in _RIGHT) + text, width))
        return [("  ".join(parts).rstrip(), "text")]

    def sort_by(self, name: str) -> None:
        if name in SORTS and name in self._widths:
            self.sorted_by = name
            self._arrange(self.rows)

    def sort_by_next(self) -> None:
        if names := [name for name in SORTS if name in self._widths]:
            self.sort_by(next_of(names, self.sorted_by))


class ProcessesDialog(Dialog):
    """The table of processes, with notes below it. Ending a process needs the user's confirmation."""

    heading = "Processes"
    keys = (("k", "end"), ("s", "sort"), ("up down", "choose"), ("escape", "close"))

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench, self._reader, self.table = bench, ProcessReader(), ProcessTable()
        self._snapshot: ProcessSnapshot | None = None
        self._end_requests: dict[str, float] = {}
        """Time of the first request to end each process, on the monotonic clock in seconds."""
        self._message: tuple[str, Role] = ("", "text")

    def compose_content(self) -> Iterable[Widget]:
        yield self.table
        yield Pane(lambda width, _: self._notes(width), classes="notes")

    def on_mount(self) -> None:
        self._read()

    def _read(self) -> None:
        if not self.is_closed:
            self._bench.background.run_work(PROCESSES, self._reader.look, self._show_snapshot, PROCESSES)

    def _show_snapshot(self, snapshot: ProcessSnapshot) -> None:
        if not self.is_attached:
            return
        is_first, self._snapshot = self._snapshot is None, snapshot
        self.table.show_snapshot(snapshot, time())
        self.redraw()
        seconds = _UNATTENDED_SECONDS if self._bench.is_unattended else _PERIOD_SECONDS
        # The use of the CPU is known only from the second reading on.
        pause_seconds = _SECOND_LOOK_SECONDS if is_first else max(seconds, snapshot.cpu_seconds / _SHARE_OF_A_CORE)
        self.set_timer(pause_seconds, self._read)

    def _notes(self, width: int) -> list[Line]:
        if self._snapshot is None:
            return [[("checking ...", "dim")]]
        process, lines = self.table.chosen, list[Line]()
        message, role = self._message
        if process is not None and process.command:
            # The row may show only the beginning of the command.
            lines = paragraph(one_line(process.command, 2 * width), width, "dim")
        lines += paragraph(message, width, role) if message else []
        return [*lines, *(line for note in self._snapshot.notes for line in paragraph(one_line(note), width, "warn"))]

    def on_line_list_title_clicked(self, message: LineList.TitleClicked) -> None:
        self.table.sort_by(message.name)
        self.redraw()

    def on_line_list_chosen(self) -> None:
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        if self.table.takes_key(key):
            return True
        if character == "s":
            self.table.sort_by_next()
        elif character == "k" and (process := self.table.chosen):
            work = partial(run_of, process.pid)
            self._bench.background.run_work("run of a process", work, partial(self._ask, process), PROCESSES)
        return True

    def _refusal(self, process: ProcessUse) -> str:
        """Return why a process cannot be ended from this dialog; empty if it can be ended."""
        stop_key, quit_key = self._bench.app.key_of("train.stop"), self._bench.app.key_of("app.quit")
        pids = (
            descendants({use.pid: use for use in self._snapshot.processes}, os.getpid())
            if self._snapshot
            else {os.getpid()}
        )
        if process.started_at is None:
            return "this process can only be ended outside this container, where it runs"
        if process.pid in pids:
            subject = "this is tui-trainer itself" if process.pid == os.getpid() else "it is part of tui-trainer"
            has_run = self._bench.is_training_here
            return f"{subject}: {f'{stop_key} on the Train screen saves and stops the run; ' * has_run}{quit_key} quits"
        if not process.is_own:
            return f"only {one_line(process.user or 'its owner', 40)} and root can end this process"
        return ""

    def _ask(self, process: ProcessUse, run: RunFolder | None, again: bool = False) -> None:
        if not self.is_attached:
            return
        if reason := self._refusal(process):
            self._bench.app.ask("Cannot end this process", [reason], [])
            return
        rows: list[Row] = [one_line(process.command, 300) or "a process without a command"]
        facts = [f"process {process.pid} of {one_line(process.user or '?', 40)}"]
        facts += [f"running for {format_seconds(time() - process.started_at)}"] if process.started_at else []
        facts += [f"memory {format_bytes(process.memory_bytes)}"] * bool(process.memory_bytes)
        facts += [f"on GPU {card}" for card in [_card_words(process)] if card]
        rows.append((", ".join(facts), "dim"))
        if run is not None:
            stop_key = self._bench.app.key_of("runs.stop")
            run_note = f"This is the run {one_line(run.name, 60)}: {stop_key} on the Runs screen saves and stops it."
            rows.append((run_note, "warn"))
        answers: list[Answer] = [("k", "end it (SIGTERM)", partial(self._end, process, run, signal.SIGTERM))]
        asked_at = self._end_requests.get(process.key)
        if asked_at is not None and monotonic() - asked_at >= PATIENCE_SECONDS:
            elapsed = format_seconds(monotonic() - asked_at)
            rows.append((f"The process was asked to end {elapsed} ago, but is still running.", "warn"))
            answers.append(("K", "kill it (SIGKILL)", partial(self._end, process, run, signal.SIGKILL)))
        self._bench.app.ask("Still running" if again else "End this process?", rows, answers)

    def _end(self, process: ProcessUse, run: RunFolder | None, number: signal.Signals) -> None:
        bench, is_kill = self._bench, number == signal.SIGKILL

        def report(reason: str) -> None:
            if reason:
                self._message = f"process {process.pid}: {reason}", "bad"
            else:
                self._message = f"process {process.pid} was {'killed' if is_kill else 'asked to end'}", "good"
                self._end_requests.setdefault(process.key, monotonic())
                if not is_kill and self.is_attached:
                    self.set_timer(PATIENCE_SECONDS, partial(self._ask_again_if_alive, process, run))
            self._read()

        work = partial(end_process, process.pid, process.started_at, kill=is_kill)
        bench.background.run_work(f"end {process.pid}", work, report, PROCESSES)

    def _ask_again_if_alive(self, process: ProcessUse, run: RunFolder | None) -> None:
        def ask(is_alive: bool) -> None:
            if is_alive and self.is_active:
                self._ask(process, run, again=True)

        work = partial(is_running, process.pid, process.started_at)
        self._bench.background.run_work(f"whether {process.pid} lives", work, ask, PROCESSES)


def run_of(pid: int) -> RunFolder | None:
    """Return the run that a process trains; None if it trains none of the newest runs."""
    for folder in reversed(newest_runs()):
        holder = read_lock_owner(folder.lock)
        if holder is not None and holder.is_on_this_host and holder.pid == pid:
            return folder
    return None
