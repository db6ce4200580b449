"""control.json: what people ask of a run. Any process writes requests, the run reads them between two steps.

The file is replaced as a whole, so that it is never seen half written. Asking is not doing: the run answers with
ControlApplied in the journal. A stop by the process that carries out the run needs no file, which a full disk would
refuse.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from tui_trainer.errors import FolderError, system_reason
from tui_trainer.runs.folder import read_plain_file, write_atomically
from tui_trainer.runs.lock import folder_lock, owner
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import utc_now

Action = Literal["pause", "resume", "save", "evaluate", "stop"]
ACTIONS: Final[tuple[Action, ...]] = ("pause", "resume", "save", "evaluate", "stop")
_KEPT: Final = 100
_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlRequest:
    id: int
    action: Action
    at: str


def request(path: Path, action: Action) -> int:
    """Adds a request and returns its id; a file that cannot be understood is replaced.

    Not synced to the disk: a request is for the run that is alive now. Raises FolderError when it cannot be written.
    """
    if action not in ACTIONS:
        raise ValueError(f"no such action: {action}")
    try:
        with folder_lock(path.parent):
            asked = _read(path)
            new = ControlRequest(id=max((one.id for one in asked), default=0) + 1, action=action, at=utc_now())
            content = {"requests": [asdict(one) for one in [*asked, new][-_KEPT:]]}
            write_atomically(path, json.dumps(content).encode("ascii"), durable=False)
    except OSError as error:
        holder = owner(path.with_name("run.lock")) if action == "stop" else None
        hint = f"use `kill {holder.pid}` instead" if holder and holder.here else ""
        message = f"cannot request {action}: {system_reason(error)}"
        raise FolderError(message, where=one_line(str(path)), hint=hint) from error
    return new.id


class Controls:
    """The run's side. What was asked before it began is not for it.

    `asked_before`: the last request of that time, where another process knows it.
    """

    def __init__(self, path: Path, asked_before: int | None = None) -> None:
        self._path = str(path)
        self._stamp: tuple[int, int, int] | None = None
        # Whole requests, not ids: those begin again at 1 when the file was deleted or damaged meanwhile.
        self._seen: set[ControlRequest] = set()
        self._waiting: list[ControlRequest] = []
        self.is_stopped_here = False
        """By a thread or a signal handler of this process: it needs no file."""
        self._has_told_it = False
        arrived = self.wanted()
        self.asked_before = max((one.id for one in arrived), default=0) if asked_before is None else asked_before
        if asked_before is not None:
            self._waiting = [one for one in arrived if one.id > asked_before]

    def stop(self) -> None:
        """As a request, from this process."""
        self.is_stopped_here = True

    def has_stop(self) -> bool:
        return self.is_stopped_here or any(request.action == "stop" for request in self.waiting())

    def has_news(self) -> bool:
        return self.is_stopped_here or bool(self.waiting())

    def wanted(self, *, of_file: bool = True) -> list[ControlRequest]:
        """The requests that came since the last call, each once, in order. Never raises."""
        requests = list[ControlRequest]()
        if of_file:
            requests, self._waiting = self.waiting(), []
        if self.is_stopped_here and not self._has_told_it:
            self._has_told_it = True
            # The same in each process that is told.
            requests.append(ControlRequest(id=0, action="stop", at=""))
        return requests

    def waiting(self) -> list[ControlRequest]:
        """The requests that nobody has answered; all of them wait on. Never raises.

        Made for every step: one `stat` when nothing changed. The time alone would not do, since two changes may fall
        into one tick of the clock of the file system; a replaced file also has another inode.
        """
        with suppress(OSError):
            status = os.stat(self._path)  # noqa: PTH116 - half the time of Path.stat
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                new = [one for one in _read(Path(self._path)) if one not in self._seen]
                # Not before it was read: with too many open files it is looked at once more.
                self._stamp = stamp
                self._seen.update(new)
                self._waiting += new
        return self._waiting


def _read(path: Path) -> list[ControlRequest]:
    """The well-formed requests of the file, in the order of their ids; [] when it is missing or garbage."""
    try:
        data = json.loads(read_plain_file(path, _LIMIT_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    listed = data.get("requests") if isinstance(data, dict) else None
    found = []
    for one in listed if isinstance(listed, list) else []:
        match one:
            case {"id": int(number), "action": action} if type(number) is int and action in ACTIONS:
                if isinstance(at := one.get("at", ""), str):
                    found.append(ControlRequest(id=number, action=action, at=at))
    return sorted(found, key=lambda one: one.id)
