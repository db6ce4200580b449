"""The index of all runs on this machine, a small file in the state folder.

The index is a convenience. Without the index, users can still name runs by their paths. If the index cannot be written,
the functions return a problem to report, and the run continues.
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
# No folder has a longer name, and some systems raise an error for a longer name.
_NAME_LIMIT: Final = 255
_LINES_BEFORE_COMPACTION: Final = 64


def state_folder() -> Path:
    """Return `$TUI_TRAINER_HOME`, `$XDG_STATE_HOME/tui-trainer` or `~/.local/state/tui-trainer`. It may not exist."""
    if home := os.environ.get("TUI_TRAINER_HOME"):
        return Path(home).expanduser()
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "tui-trainer"
    return Path("~/.local/state/tui-trainer").expanduser()


def index_file() -> Path:
    return state_folder() / "runs.jsonl"


def logs_folder() -> Path:
    """Return the folder for log files of the screens: warnings of libraries and reports of crashes."""
    return state_folder() / "logs"


def add_to_index(root: Path) -> Problem | None:
    """Add a folder to the index as the newest run. Returns a problem if the index cannot be written."""
    return _add_entry({"run": str(root.absolute()), "at": utc_now()})


def remove_from_index(root: Path) -> Problem | None:
    return _add_entry({"forgotten": str(root.absolute()), "at": utc_now()})


def move_in_index(root: Path, new_root: Path) -> Problem | None:
    """Change the path of a run without changing its position. Returns a problem if the index cannot be written."""
    return _add_entry({"moved": str(root.absolute()), "to": str(new_root.absolute()), "at": utc_now()})


def listed_roots() -> list[Path]:
    """Return the run folders of the index, newest last, including those that no longer exist."""
    return list(map(Path, _listed(_index_lines())))


def known_runs() -> list[RunFolder]:
    """Return the runs of the index whose folders exist, newest last."""
    runs = []
    for root in listed_roots():
        with suppress(FolderError):
            runs.append(RunFolder.open(root))
    return runs


def newest_runs() -> list[RunFolder]:
    """Return the last 20 runs of the index, newest last. A search for active runs looks only at these."""
    return known_runs()[-_NEWEST_RUNS:]


def find_run(reference: str) -> RunFolder:
    """Return the run that `reference` means: a path, a name, a unique prefix of a name, or `last`.

    Raises FolderError if no run or several runs match. The hint has the candidates or the most similar names.
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
        has_equal_names = len({run.name for run in matches}) < len(matches)
        candidate_names = [str(run.root) if has_equal_names else run.name for run in matches]
        message = f"{one_line(reference, 80)!r} matches {len(matches)} runs"
        raise FolderError(message, hint=f"candidates: {one_line(', '.join(candidate_names), 600)}")
    raise _not_found(reference, [run.name for run in runs])


def _add_entry(entry: dict[str, str]) -> Problem | None:
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
    """Return the problem that would prevent writing the index, or None. Writes nothing."""
    folder = state_folder()
    existing_path = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    reason = "" if os.access(existing_path, os.R_OK | os.W_OK | os.X_OK) else "the folder is not writable"
    # Path.is_dir may raise PermissionError.
    if reason := reason if os.path.isdir(existing_path) else "this is not a folder":  # noqa: PTH112
        message, hint = f"cannot hold the list of runs: {reason}", "set TUI_TRAINER_HOME to a writable folder"
        return Problem(message=message, where=one_line(str(existing_path)), hint=hint)
    return None


def _append_line(path: Path, line: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)
        # The leading line break separates it from an incomplete line.
        os.write(fd, f"\n{line}\n".encode("ascii"))
    finally:
        os.close(fd)


def _compact(path: Path) -> None:
    """Rewrite the index if it is long and fewer than half of its lines are about existing runs."""
    lines = _index_lines()
    if len(lines) < _LINES_BEFORE_COMPACTION:
        return
    existing_roots = [root for root in _listed(lines) if Path(root).is_dir()]
    if len(existing_roots) * 2 < len(lines):
        text = "".join(json.dumps({"run": root, "at": utc_now()}) + "\n" for root in existing_roots)
        write_atomically(path, text.encode("ascii"))


def _index_lines() -> list[bytes]:
    try:
        content = read_plain_file(index_file(), _INDEX_LIMIT_BYTES)
    except OSError:
        return []
    return [line for line in content.split(b"\n") if line]


def _listed(lines: Iterable[bytes]) -> list[str]:
    """Return the run folders that the lines of the index add and no later line removes, newest addition last."""
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
                roots = {new_root if listed_root == root else listed_root: None for listed_root in roots}
    return list(roots)


def _not_found(reference: str, names: list[str]) -> FolderError:
    if not names and (problem := list_problem()):
        return FolderError(problem)
    if not names:
        message = f"no run {one_line(reference, 80)!r}: the list of runs is empty"
        return FolderError(message, hint="give the path of a run folder; `tui-trainer --no-ui` starts a run")
    similar_names = ", ".join(difflib.get_close_matches(reference, names, n=3, cutoff=0.4) or names[-3:])
    return FolderError(f"no run {one_line(reference, 80)!r}", hint=f"existing runs: {one_line(similar_names, 300)}")
