"""A data set of the hub, after a question and never without one: its own files, as they lie in the repository.

Only files that can be read are fetched, and the README.md that may say which of them is what. Code that comes with a
data set is neither fetched nor run.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.declared_splits import ABOUT, README
from tui_trainer.data.sources.hub import HubPath, chosen_names, data_names, no_such_part
from tui_trainer.downloading.hub import Ask, HubFile, Kind, counted, download
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

DATA_SET = Kind(
    word="data set", repository="datasets", refuse=DataError, option="--data", revision_key="the part behind the @"
)
# The branch into which the hub writes a copy of most data sets. Source: "List Parquet files", docs of the hub.
_COPY = "refs/convert/parquet"
_MOST_SHOWN = 5


def download_data(wanted: HubPath, *, ask: Ask, progress: Progress | None = None) -> Path | None:
    """Fetch a data set, or the part of it that is wanted, and return the snapshot's folder; None when `ask` says no.

    Raises DataError for a name, a revision or a part that the hub does not have, for a data set that may not be had
    without an account, and for one without a file that can be read; FolderError when the disk is too small; RunError
    when the network fails and on Ctrl+C.
    """

    def choose(_: Any, listed: list[HubFile]) -> tuple[Sequence[HubFile], str]:
        files = files_to_fetch(wanted, listed)
        return files, _left_out(listed, files)

    return download(DATA_SET, wanted.name, wanted.revision, choose, ask=ask, progress=progress)


def files_to_fetch(wanted: HubPath, listed: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """The data that is wanted of a repository. Raises DataError where there is none."""
    names = [file.name for file in listed]
    chosen = {*chosen_names(names, wanted.inside)}
    if not chosen:
        raise no_such_part(wanted, names) if data_names(names) else _nothing_to_read(wanted, names)
    return tuple(file for file in listed if file.name in chosen or file.name == README)


def _nothing_to_read(wanted: HubPath, names: Sequence[str]) -> DataError:
    copy = f"the hub keeps a copy of many in Parquet: try {HubPath(wanted.name, _COPY)}"
    if any("/" not in name and name.endswith(".py") for name in names):
        what = f"{wanted.name} has a loading script and no data of its own, and code of data sets is not run here"
        return DataError(what, hint=copy)
    shown = _endings(names)
    what = f"{wanted.name} has no data that can be read{f': only {shown}' if shown else ', it is empty'}"
    return DataError(what, hint=f"read are .parquet .arrow .jsonl .json .csv .tsv .conll .txt, and .gz of them; {copy}")


def _left_out(listed: Iterable[HubFile], files: Sequence[HubFile]) -> str:
    """What of the repository is not fetched, in words."""
    untold = {*(file.name for file in files), ".gitattributes", *ABOUT}
    rest = [file.name for file in listed if file.name not in untold]
    return f"{counted(rest)} ({_endings(rest)})" if rest else ""


def _endings(names: Iterable[str]) -> str:
    counts = Counter(PurePosixPath(name).suffix.lower() or PurePosixPath(name).name for name in sorted(names))
    return one_line(", ".join(f"{count:,} {ending}" for ending, count in counts.most_common(_MOST_SHOWN)), 120)
