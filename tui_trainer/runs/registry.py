"""Which runs there are, wherever they were started: a small index in the state folder.

The index is a convenience. Losing it loses no run: a path always works, and a state folder that cannot be written
stops nothing, it is only said.
"""

import difflib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tui_trainer.errors import FolderError, Problem, system_reason
from tui_trainer.runs.folder import RunFolder, read_plain_file, write_atomically
from tui_trainer.runs.lock import folder_lock
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, utc_now

_NEWEST_RUNS: Final = 20
_INDEX_LIMIT_BYTES: Final = 16 * MIB
# No name of a folder is longer, and some systems refuse to look for one.
_NAME_LIMIT: Final = 255
_LINES_BEFORE_COMPACTION: Final = 64


def state_folder() -> Path:
    """`$TUI_TRAINER_HOME`, else `$XDG_STATE_HOME/tui-trainer`, else `~/.local/state/tui-trainer`. May not exist."""
    if home := os.environ.get("TUI_TRAINER_HOME"):
        return Path(home).expanduser()
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "tui-trainer"
    return Path("~/.local/state/tui-trainer").expanduser()


def index_file() -> Path:
    return state_folder() / "runs.jsonl"


def logs_folder() -> Path:
    """What the screens log: warnings of libraries, and reports of crashes."""
    return state_folder() / "logs"


def remember(root: Path) -> Problem | None:
    """Makes the folder known as the newest run. The problem that it could not be noted down stops no run."""
    return _note({"run": str(root.absolute()), "at": utc_now()})


def forget(root: Path) -> Problem | None:
    return _note({"forgotten": str(root.absolute()), "at": utc_now()})


def move(root: Path, new_root: Path) -> Problem | None:
    """The folder is known by its new path from now on, at the same place in the order of runs."""
    return _note({"moved": str(root.absolute()), "to": str(new_root.absolute()), "at": utc_now()})


def listed_roots() -> list[Path]:
    """The folders of the index, newest last, whatever is there now."""
    return list(map(Path, _listed(_index_lines())))


def known_runs() -> list[RunFolder]:
    """The runs of the index whose folders are there, newest last."""
    runs = []
    for root in listed_roots():
        with suppress(FolderError):
            runs.append(RunFolder.open(root))
    return runs


def newest_runs() -> list[RunFolder]:
    """Return the runs of the index among which those that are alive are looked for, newest last."""
    return known_runs()[-_NEWEST_RUNS:]


def find_run(reference: str) -> RunFolder:
    """The run meant by a path, a name, a unique beginning of a name, or `last`.

    Raises FolderError, with the candidates or with the names that come nearest.
    """
    if os.sep in reference:
        return RunFolder.open(Path(reference))
    if len(reference) > _NAME_LIMIT:
        raise FolderError(f"there is no run {one_line(reference, 60)!r}", hint="`tui-trainer runs` lists the runs")
    runs = known_runs()
    if reference == "last" and runs:
        return runs[-1]
    matches = [run for run in runs if run.name == reference]
    if not matches and reference and Path(reference).is_dir():
        with suppress(FolderError):
            return RunFolder.open(Path(reference))
    matches = matches or [run for run in runs if reference and run.name.startswith(reference)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        same_name = len({run.name for run in matches}) < len(matches)
        candidates = [str(run.root) if same_name else run.name for run in matches]
        message = f"{one_line(reference, 80)!r} matches {len(matches)} runs"
        raise FolderError(message, hint=f"candidates: {one_line(', '.join(candidates), 600)}")
    raise _not_found(reference, [run.name for run in runs])


def _note(entry: dict[str, str]) -> Problem | None:
    folder = state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with folder_lock(folder):
            _append_line(index_file(), json.dumps(entry))
            _compact(index_file())
    except OSError as error:
        hint = "the run continues; refer to it by its path. Set TUI_TRAINER_HOME to a writable folder"
        message = f"cannot write the list of runs: {system_reason(error)}"
        return Problem(message=message, where=one_line(str(folder)), hint=hint)
    return None


def list_problem() -> Problem | None:
    """Return why the state folder can hold no list of runs, or None. Writes nothing."""
    folder = state_folder()
    place = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    reason = "" if os.access(place, os.R_OK | os.W_OK | os.X_OK) else "it is not writable"
    # Path.is_dir may raise PermissionError.
    if reason := reason if os.path.isdir(place) else "it is not a folder":  # noqa: PTH112
        message, hint = f"cannot hold the list of runs: {reason}", "set TUI_TRAINER_HOME to a writable folder"
        return Problem(message=message, where=one_line(str(place)), hint=hint)
    return None


def _append_line(path: Path, line: str) -> None:
    """The line begins with its break, so that a torn line before it cannot swallow it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, f"\n{line}\n".encode("ascii"))
    finally:
        os.close(fd)


def _compact(path: Path) -> None:
    """Writes the index anew when more than half of a longer one is of no use any more."""
    lines = _index_lines()
    if len(lines) < _LINES_BEFORE_COMPACTION:
        return
    alive = [root for root in _listed(lines) if Path(root).is_dir()]
    if len(alive) * 2 < len(lines):
        text = "".join(json.dumps({"run": root, "at": utc_now()}) + "\n" for root in alive)
        write_atomically(path, text.encode("ascii"))


def _index_lines() -> list[bytes]:
    try:
        content = read_plain_file(index_file(), _INDEX_LIMIT_BYTES)
    except OSError:
        return []
    return [line for line in content.split(b"\n") if line]


def _listed(lines: Iterable[bytes]) -> list[str]:
    """The roots that were noted and not forgotten since, each once, at the place of its last mention."""
    roots: dict[str, None] = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match entry:
            case {"run": str(root)} if "\0" not in root:
                roots.pop(root, None)
                roots[root] = None
            case {"forgotten": str(root)}:
                roots.pop(root, None)
            case {"moved": str(root), "to": str(new_root)} if root in roots and "\0" not in new_root:
                roots.pop(new_root, None)
                roots = {new_root if one == root else one: None for one in roots}
    return list(roots)


def _not_found(reference: str, names: list[str]) -> FolderError:
    if not names and (problem := list_problem()):
        return FolderError(problem)
    if not names:
        message = f"no run {one_line(reference, 80)!r}: the list of runs is empty"
        return FolderError(message, hint="give the path of a run folder; `tui-trainer --no-ui` starts a run")
    near = ", ".join(difflib.get_close_matches(reference, names, n=3, cutoff=0.4) or names[-3:])
    return FolderError(f"no run {one_line(reference, 80)!r}", hint=f"existing runs: {one_line(near, 300)}")
