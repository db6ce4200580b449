"""control.json: requests to a run, for example to pause. Any process writes them, and the run reads them between steps.

The file is replaced as a whole, so no reader sees it half written. The run confirms an executed request with
ControlApplied in the journal. The run's own process can stop it without the file, so a full disk cannot prevent that.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from tui_trainer.errors import FolderError, system_reason
from tui_trainer.runs.folder import read_plain_file, write_atomically
from tui_trainer.runs.lock import folder_lock, read_lock_owner
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import utc_now

ControlAction = Literal["pause", "resume", "save", "evaluate", "stop"]
CONTROL_ACTIONS: Final[tuple[ControlAction, ...]] = ("pause", "resume", "save", "evaluate", "stop")
_MOST_KEPT_REQUESTS: Final = 100
_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlRequest:
    id: int
    action: ControlAction
    at: str


def request(path: Path, action: ControlAction) -> int:
    """Add a request to the file and return its id. A damaged file is replaced.

    The file is not synced to the disk, because a request concerns only a live run. Raises FolderError when the file
    cannot be written.
    """
    if action not in CONTROL_ACTIONS:
        raise ValueError(f"no such action: {action}")
    try:
        with folder_lock(path.parent):
            earlier_requests = _read(path)
            new_request = ControlRequest(id=_last_id(earlier_requests) + 1, action=action, at=utc_now())
            content = {"requests": [asdict(entry) for entry in [*earlier_requests, new_request][-_MOST_KEPT_REQUESTS:]]}
            write_atomically(path, json.dumps(content).encode("ascii"), durable=False)
    except OSError as error:
        holder = read_lock_owner(path.with_name("run.lock")) if action == "stop" else None
        hint = f"use `kill {holder.pid}` instead" if holder and holder.is_on_this_host else ""
        message = f"cannot request {action}: {system_reason(error)}"
        raise FolderError(message, where=one_line(str(path)), hint=hint) from error
    return new_request.id


class Controls:
    """Reader with which a run receives its requests. Ignores requests that were written before this object was created.

    `last_earlier_id` is the id of the last request to ignore, if another process of the run has already read it.
    """

    def __init__(self, path: Path, last_earlier_id: int | None = None) -> None:
        self._path = str(path)
        self._stamp: tuple[int, int, int] | None = None
        # The set holds whole requests rather than ids, because ids restart at 1 if the file was deleted or damaged.
        self._seen: set[ControlRequest] = set()
        self._waiting: list[ControlRequest] = []
        self.is_stopped_here = False
        """Whether a thread or a signal handler of this process requested a stop."""
        self._has_returned_stop = False
        present_requests = self.take_requests()
        self.last_earlier_id = _last_id(present_requests) if last_earlier_id is None else last_earlier_id
        if last_earlier_id is not None:
            self._waiting = [entry for entry in present_requests if entry.id > last_earlier_id]

    def stop(self) -> None:
        """Request a stop from within this process, without the file."""
        self.is_stopped_here = True

    def has_stop(self) -> bool:
        return self.is_stopped_here or any(request.action == "stop" for request in self.peek_requests())

    def has_news(self) -> bool:
        return self.is_stopped_here or bool(self.peek_requests())

    def take_requests(self, *, of_file: bool = True) -> list[ControlRequest]:
        """Return the requests since the last call, each once. `of_file` false leaves out the requests in the file."""
        requests = list[ControlRequest]()
        if of_file:
            requests, self._waiting = self.peek_requests(), []
        if self.is_stopped_here and not self._has_returned_stop:
            self._has_returned_stop = True
            # All processes of a run create this same request, and the run merges equal requests into one.
            requests.append(ControlRequest(id=0, action="stop", at=""))
        return requests

    def peek_requests(self) -> list[ControlRequest]:
        """Return the requests that `take_requests` has not returned yet, and leave them to it. Never raises.

        An unchanged file costs one `stat`. A change is detected by inode, time and size, because two changes may fall
        into one clock tick of the file system.
        """
        with suppress(OSError):
            status = os.stat(self._path)  # noqa: PTH116 - half the time of Path.stat
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                new_requests = [entry for entry in _read(Path(self._path)) if entry not in self._seen]
                # The stamp is set after the reading, so that a failed reading (too many open files) is repeated.
                self._stamp = stamp
                self._seen.update(new_requests)
                self._waiting += new_requests
        return self._waiting


def _read(path: Path) -> list[ControlRequest]:
    """Return the valid requests of the file, sorted by id; an empty list if the file is missing or damaged."""
    try:
        content = json.loads(read_plain_file(path, _LIMIT_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    entries = content.get("requests") if isinstance(content, dict) else None
    requests = []
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case {"id": int(request_id), "action": action} if type(request_id) is int and action in CONTROL_ACTIONS:
                if isinstance(timestamp := entry.get("at", ""), str):
                    requests.append(ControlRequest(id=request_id, action=action, at=timestamp))
    return sorted(requests, key=lambda request: request.id)


def _last_id(requests: list[ControlRequest]) -> int:
    return max((entry.id for entry in requests), default=0)
