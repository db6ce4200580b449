"""Who uses the cards and the CPU: a table of processes that follows the machine, and how one's own are ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from tui_trainer.hardware.processes import ProcessLook, ProcessReader, ProcessUse, descendants, end_process, lives
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, Dialog, Row
from tui_trainer.ui.spans import Line, Role, Span, next_of, pad, paragraph
from tui_trainer.ui.widgets.lists import ChoiceList, LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from textual.widget import Widget

    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.workbench import Workbench

PROCESSES: Final = "processes"
_PERIOD_SECONDS, _UNATTENDED_SECONDS, _SECOND_LOOK_SECONDS = 2.0, 7.0, 0.5
# Looking at thousands of processes is to take no more of a core than this.
_SHARE_OF_A_CORE = 0.02
# One that has not ended so long after it was asked to may be killed.
PATIENCE_SECONDS = 5.0
_COMMAND_CHARACTERS = 300
_NEVER = -1.0
HEADINGS: Final = {
    "user": "user", "pid": "pid", "cpu": "CPU", "memory": "memory", "card": "GPU", "since": "since",
    "command": "command",
}  # fmt: skip
_RIGHT: Final = ("pid", "cpu", "memory", "since")
SORTS: Final[dict[str, Callable[[ProcessUse], float]]] = {
    "cpu": lambda one: _NEVER if one.cores is None else one.cores,
    "memory": lambda one: one.memory_bytes or 0,
    "card": lambda one: one.bytes_on_cards if one.card_bytes else _NEVER,
    "since": lambda one: one.started_at or 0.0,
}


def in_order(processes: Iterable[ProcessUse], name: str) -> list[ProcessUse]:
    """Return those with most first; of equal ones those with more memory, and then always in the same order."""
    return sorted(processes, key=lambda one: (-SORTS[name](one), -(one.memory_bytes or 0), one.pid))


def _card_words(one: ProcessUse) -> str:
    """`0: 12.0 GiB`, of each card that it is on."""
    sizes = sorted(one.card_bytes.items())
    return " ".join(f"{index}: {'--' if size is None else format_bytes(size)}" for index, size in sizes)


def since_words(started_at: float, now: float) -> str:
    """`14:05` of today, else `27 Nov`, else `2025-11-27`; it changes once a day."""
    began, today = datetime.fromtimestamp(started_at), datetime.fromtimestamp(now)
    if began.date() == today.date():
        return f"{began:%H:%M}"
    return f"{began:%d %b}" if began.year == today.year else f"{began:%Y-%m-%d}"


def cells(one: ProcessUse, now: float) -> dict[str, str]:
    """What the columns show of a process, as safe text."""
    here = one.started_at is not None
    program, _, rest = one.command.partition(" ")
    # Where the program lies is said of the chosen one.
    command = f"{program.rpartition('/')[2]} {rest}" if program.startswith("/") else one.command
    return {
        "user": one_line(one.user or "?", 10),
        "pid": str(one.pid),
        "cpu": "--" if one.cores is None else f"{100 * one.cores:.0f} %",
        "memory": "--" if one.memory_bytes is None else format_bytes(one.memory_bytes),
        "card": _card_words(one),
        "since": "--" if one.started_at is None else since_words(one.started_at, now),
        "command": one_line(command, _COMMAND_CHARACTERS) if here else "a process outside this container",
    }


class ProcessTable(ChoiceList[ProcessUse]):
    """The processes of the last look, sorted; the pointer stays on its process."""

    def __init__(self) -> None:
        super().__init__(self._row, titles=lambda _: self._titled, id="processes")
        self.sorted_by = "cpu"
        self._texts: dict[str, dict[str, str]] = {}
        self._widths: dict[str, int] = {}

    def show_look(self, look: ProcessLook, now: float) -> None:
        self._texts = {one.key: cells(one, now) for one in look.processes}
        names = [name for name in HEADINGS if name != "card" or look.has_cards]
        self._widths = {
            name: max([cell_len(self._heading(name)), *(cell_len(texts[name]) for texts in self._texts.values())])
            for name in names
        }
        self._arrange(look.processes)

    def _arrange(self, processes: Sequence[ProcessUse]) -> None:
        chosen, rows = self.chosen, in_order(processes, self.sorted_by)
        keys = [one.key for one in rows]
        self.show(rows, keys.index(chosen.key) if chosen and chosen.key in keys else self.place)

    def _heading(self, name: str) -> str:
        # With room for the mark: a column does not grow by its title afterwards.
        return HEADINGS[name] + f" {'v' if name == self.sorted_by else ' '}" * (name in SORTS)

    @property
    def _titled(self) -> list[tuple[str, Span]]:
        # The last one is not padded: commands are longer than the screen.
        titles = {name: pad(self._heading(name), cells) for name, cells in self._widths.items()}
        return [
            (name, (f" {title.rstrip() if name == 'command' else title} ", "bold")) for name, title in titles.items()
        ]

    def _row(self, one: ProcessUse, width: int) -> Line:
        texts = self._texts[one.key]
        padded = [
            " " * (cells - cell_len(texts[name])) * (name in _RIGHT) + texts[name]
            for name, cells in self._widths.items()
        ]
        return [("  ".join(map(pad, padded, self._widths.values())).rstrip(), "text")]

    def sort_by(self, name: str) -> None:
        if name in SORTS and name in self._widths:
            self.sorted_by = name
            self._arrange(self.rows)

    def sort_by_next(self) -> None:
        if names := [name for name in SORTS if name in self._widths]:
            self.sort_by(next_of(names, self.sorted_by))


class ProcessesDialog(Dialog):
    """The table, what it does not show, and a question before anything is ended."""

    heading = "Processes"
    keys = (("k", "end"), ("s", "sort"), ("up down", "choose"), ("escape", "close"))
    CSS = """
    ProcessesDialog {
        #box { width: 100%; height: 100%; }
        .notes { height: auto; max-height: 6; }
    }
    ProcessesDialog.-wide #box { max-width: 100%; }
    """

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench, self._reader, self.table = bench, ProcessReader(), ProcessTable()
        self._look: ProcessLook | None = None
        self._asked: dict[str, float] = {}
        """When each was asked to end."""
        self._said: tuple[str, Role] = ("", "text")

    def inside(self) -> Iterable[Widget]:
        yield self.table
        yield Pane(lambda width, _: self._notes(width), classes="notes")

    def on_mount(self) -> None:
        self._read()

    def _read(self) -> None:
        if not self.is_closed:
            self._bench.background.do(PROCESSES, self._reader.look, self._found, PROCESSES)

    def _found(self, look: ProcessLook) -> None:
        if not self.is_attached:
            return
        is_first, self._look = self._look is None, look
        self.table.show_look(look, time())
        self.redraw()
        seconds = _UNATTENDED_SECONDS if self._bench.is_unattended else _PERIOD_SECONDS
        # What each keeps busy is known from the second look on.
        self.set_timer(
            _SECOND_LOOK_SECONDS if is_first else max(seconds, look.cpu_seconds / _SHARE_OF_A_CORE), self._read
        )

    def _notes(self, width: int) -> list[Line]:
        if self._look is None:
            return [[("checking ...", "dim")]]
        chosen, lines = self.table.chosen, list[Line]()
        said, role = self._said
        if chosen is not None and chosen.command:
            # What was cut in its row.
            lines = paragraph(one_line(chosen.command, 2 * width), width, "dim")
        lines += paragraph(said, width, role) if said else []
        return [*lines, *(line for note in self._look.notes for line in paragraph(one_line(note), width, "warn"))]

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
        elif character == "k" and (chosen := self.table.chosen):
            self._bench.background.do(
                "run of a process", partial(run_of, chosen.pid), partial(self._ask, chosen), PROCESSES
            )
        return True

    def _refusal(self, one: ProcessUse) -> str:
        stop, leave = self._bench.app.key_of("train.stop"), self._bench.app.key_of("app.quit")
        ours = descendants({use.pid: use for use in self._look.processes}, os.getpid()) if self._look else {os.getpid()}
        if one.started_at is None:
            return "it runs outside this container and can only be ended there"
        if one.pid in ours:
            what = "this is tui-trainer itself" if one.pid == os.getpid() else "it is part of tui-trainer"
            of_run = (
                f"{stop} on the Train screen saves and stops the run; " if self._bench.run_is_ours_and_alive else ""
            )
            return f"{what}: {of_run}{leave} quits"
        if not one.is_own:
            return f"it belongs to {one_line(one.user or 'another user', 40)}: only that user or root can end it"
        return ""

    def _ask(self, one: ProcessUse, run: RunFolder | None, again: bool = False) -> None:
        if not self.is_attached:
            return
        if reason := self._refusal(one):
            self._bench.app.ask("Cannot end this process", [reason], [])
            return
        rows: list[Row] = [one_line(one.command, 300) or "a process without a command"]
        words = [f"process {one.pid} of {one_line(one.user or '?', 40)}"]
        words += [f"running for {format_seconds(time() - one.started_at)}"] if one.started_at else []
        words += [f"memory {format_bytes(one.memory_bytes)}"] * bool(one.memory_bytes)
        words += [f"on GPU {card}" for card in [_card_words(one)] if card]
        rows.append((", ".join(words), "dim"))
        if run is not None:
            stop = self._bench.app.key_of("runs.stop")
            whose = f"This is the run {one_line(run.name, 60)}: {stop} on the Runs screen saves and stops it."
            rows.append((whose, "warn"))
        answers: list[Answer] = [("k", "end it (SIGTERM)", partial(self._end, one, run, signal.SIGTERM))]
        asked = self._asked.get(one.key)
        if asked is not None and monotonic() - asked >= PATIENCE_SECONDS:
            ago = format_seconds(monotonic() - asked)
            rows.append((f"The process was asked to end {ago} ago, but is still running.", "warn"))
            answers.append(("K", "kill it (SIGKILL)", partial(self._end, one, run, signal.SIGKILL)))
        self._bench.app.ask("Still running" if again else "End this process?", rows, answers)

    def _end(self, one: ProcessUse, run: RunFolder | None, number: signal.Signals) -> None:
        bench, is_kill = self._bench, number == signal.SIGKILL

        def ended(reason: str) -> None:
            if reason:
                self._said = f"process {one.pid}: {reason}", "bad"
            else:
                self._said = f"process {one.pid} was {'killed' if is_kill else 'asked to end'}", "good"
                self._asked.setdefault(one.key, monotonic())
                if not is_kill and self.is_attached:
                    self.set_timer(PATIENCE_SECONDS, partial(self._look_whether_it_lives, one, run))
            self._read()

        work = partial(end_process, one.pid, one.started_at, kill=is_kill)
        bench.background.do(f"end {one.pid}", work, ended, PROCESSES)

    def _look_whether_it_lives(self, one: ProcessUse, run: RunFolder | None) -> None:
        def looked(is_there: bool) -> None:
            if is_there and self.is_active:
                self._ask(one, run, again=True)

        work = partial(lives, one.pid, one.started_at)
        self._bench.background.do(f"whether {one.pid} lives", work, looked, PROCESSES)


def run_of(pid: int) -> RunFolder | None:
    """The run that this process carries out, of the newest."""
    from tui_trainer.runs.lock import owner
    from tui_trainer.runs.registry import newest_runs

    for folder in reversed(newest_runs()):
        holder = owner(folder.lock)
        if holder is not None and holder.here and holder.pid == pid:
            return folder
    return None
