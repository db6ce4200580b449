"""Store measurements of this machine in one SQLite file of the state folder, each with its conditions and date.

SQLite allows two programs to write at once. A folder that cannot be written is no error, and a damaged file is renamed.
The first screen reads the measurements, so importing this module loads neither pydantic nor the settings.
"""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tui_trainer.hardware.processor import training_threads
from tui_trainer.runs.registry import state_folder
from tui_trainer.terminal.standard_files import print_to_stderr
from tui_trainer.units import utc_now

if TYPE_CHECKING:
    from sqlite3 import Connection

    from tui_trainer.hardware.facts import Gpu, Hardware

T = TypeVar("T")

FILE: Final = "measured.sqlite3"
_ASIDE = "measured.damaged-{}.sqlite3"
STEP_SECONDS, PEAK, MICRO_BATCH, GAIN, MATMULS, TRIAL = (
    "step_seconds", "peak_memory", "micro_batch", "gain", "matmul_rate", "trial"
)  # fmt: skip
# How many records with the same key and part are kept, by kind. The oldest are deleted.
KINDS: Final = {STEP_SECONDS: 12, PEAK: 8, MICRO_BATCH: 1, GAIN: 1, MATMULS: 12, TRIAL: 1}
_MOST_OF_A_KIND = 2000
_FORMAT = 1
# Another program writes for milliseconds.
_WAIT_SECONDS = 5.0
_TABLE = """
CREATE TABLE records (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, task TEXT NOT NULL, shape TEXT NOT NULL, setup TEXT NOT NULL,
    device TEXT NOT NULL, versions TEXT NOT NULL, part TEXT NOT NULL, measured_at TEXT NOT NULL, figures TEXT NOT NULL
)"""
_COLUMNS = "kind, task, shape, setup, device, versions, part, measured_at, figures"
_OF_ONE_KEY = "kind = ? AND task = ? AND shape = ? AND setup = ? AND device = ? AND versions = ?"


def device_key(cpu_name: str, threads: int, card_name: str = "") -> str:
    """Return the device in the key of a record: the name of the GPU, or else `AMD EPYC, 8 threads` for the CPU."""
    return card_name or f"{cpu_name}, {threads} threads"


def trial_device(hardware: "Hardware", gpu: "Gpu | None") -> str:
    """Return the device in the key of a trial (`diagnose --try`): this host and its GPU, or else its CPU."""
    gpu_name = f"{gpu.name} {gpu.cuda_uuid}" if gpu else ""
    return f"{hardware.host}: {device_key(hardware.cpu_name, training_threads(hardware.usable_cores), gpu_name)}"


@dataclass(frozen=True, slots=True)
class Key:
    """Conditions of a measurement, which holds only under equal conditions. Fields that do not apply are empty.

    `shape` is that of the model, with its precision. `setup` is the way of training. `device` is a GPU, or a CPU and
    its threads. `versions` are those of the libraries.
    """

    task: str = ""
    shape: str = ""
    setup: str = ""
    device: str = ""
    versions: str = ""

    def __str__(self) -> str:
        return " || ".join(astuple(self))

    @classmethod
    def read(cls, text: str) -> "Key | None":
        """Return the key that `str(key)` wrote; None for any other text."""
        parts = text.split(" || ")
        return cls(*parts) if len(parts) == 5 else None


@dataclass(frozen=True, slots=True)
class Record:
    """Figures of one measurement. `part` distinguishes records with the same key, for example by batch cut."""

    part: str
    measured_at: str
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KindCount:
    """Count of the records of one kind, with the time and the key of the newest."""

    kind: str
    count: int
    newest_at: str
    newest: Key


def keep_record(kind: str, key: Key, figures: dict[str, Any], part: str = "") -> None:
    """Add a record, and delete all but the newest `KINDS[kind]` records with this key and part."""

    def add(db: "Connection") -> None:
        db.execute("BEGIN IMMEDIATE")
        placeholders = ", ".join("?" * 9)
        values = (kind, *astuple(key), part, utc_now(), json.dumps(figures))
        db.execute(f"INSERT INTO records ({_COLUMNS}) VALUES ({placeholders})", values)
        part_clause = f"FROM records WHERE {_OF_ONE_KEY} AND part = ?"
        db.execute(
            f"DELETE {part_clause} AND number NOT IN (SELECT number {part_clause} ORDER BY number DESC LIMIT ?)",
            (kind, *astuple(key), part, kind, *astuple(key), part, KINDS[kind]),
        )
        surplus_query = "SELECT number FROM records WHERE kind = ? ORDER BY number DESC LIMIT -1 OFFSET ?"
        db.execute(f"DELETE FROM records WHERE number IN ({surplus_query})", (kind, _MOST_OF_A_KIND))
        db.execute("COMMIT")

    _carry_out(add, None, makes_file=True)


def find_records(kind: str, key: Key) -> list[Record]:
    """Return the records of exactly this key, the oldest first."""
    condition, condition_values = _OF_ONE_KEY, (kind, *astuple(key))
    return _carry_out(lambda db: list(_read(db, condition, condition_values)), [])


def records_of_device(kind: str, device: str) -> list[Record]:
    """Return the records of this kind on this device, whatever their other conditions, the oldest first."""
    return _carry_out(lambda db: list(_read(db, "kind = ? AND device = ?", (kind, device))), [])


def count_kinds() -> list[KindCount]:
    def count(db: "Connection") -> list[KindCount]:
        # In SQLite the columns next to max() come from the row of the maximum.
        columns = "kind, count(*), measured_at, task, shape, setup, device, versions, max(number)"
        rows = db.execute(f"SELECT {columns} FROM records GROUP BY kind ORDER BY kind").fetchall()
        return [KindCount(kind, number, newest_at, Key(*key)) for kind, number, newest_at, *key, _ in rows]

    return _carry_out(count, [])


def clear_records(kinds: Collection[str]) -> int:
    """Delete all records of these kinds, and return how many there were."""

    def clear(db: "Connection") -> int:
        placeholders = ", ".join("?" * len(kinds))
        return int(db.execute(f"DELETE FROM records WHERE kind IN ({placeholders})", tuple(kinds)).rowcount)

    return _carry_out(clear, 0)


def records_file() -> Path:
    return state_folder() / FILE


def damaged_files() -> list[Path]:
    """Return the damaged files of measurements, which were renamed."""
    return sorted(state_folder().glob(_ASIDE.format("*")))


def figures_as(kind: type[T], figures: object) -> T | None:
    """Return the figures of a record as an instance of the class `kind`; None if they are damaged."""
    from pydantic import TypeAdapter, ValidationError

    with suppress(ValidationError):
        return TypeAdapter(kind).validate_python(figures)
    return None


def _read(db: "Connection", where: str, values: tuple[str, ...]) -> Iterator[Record]:
    query = f"SELECT part, measured_at, figures FROM records WHERE {where} ORDER BY number"
    for part, measured_at, figures in db.execute(query, values):
        with suppress(ValueError):
            if isinstance(content := json.loads(figures), dict):
                yield Record(part, measured_at, content)


def _carry_out(query: "Callable[[Connection], T]", otherwise: T, *, makes_file: bool = False) -> T:
    """Return the result of `query`, or `otherwise` if the file cannot be used. `makes_file` creates a missing one."""
    path = records_file()
    if not (makes_file or path.exists()):
        return otherwise
    try:
        import sqlite3
    except ImportError:  # a Python that was built without it; `diagnose` says so
        return otherwise
    for _ in range(2):
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
            inode = path.stat().st_ino
            # isolation_level=None turns off Python's implicit transactions.
            with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)) as db:
                return query(db) if _is_ready(db) else otherwise
        except sqlite3.OperationalError:
            return otherwise
        except sqlite3.DatabaseError as error:
            if not _rename_damaged(path, inode, error):
                return otherwise
        except OSError:
            return otherwise
    return otherwise


def _is_ready(db: "Connection") -> bool:
    """Return whether the file has this version's table. A new file gets it, and a later version's is not changed."""
    if (file_format := _format_of(db)) == 0:
        db.execute("BEGIN IMMEDIATE")
        if (file_format := _format_of(db)) == 0:  # another program was as quick
            db.execute(_TABLE)
            db.execute("CREATE INDEX of_key ON records (kind, device, task, shape, setup)")
            db.execute(f"PRAGMA user_version = {_FORMAT}")
            file_format = _FORMAT
        db.execute("COMMIT")
    return file_format == _FORMAT


def _format_of(db: "Connection") -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _rename_damaged(path: Path, inode: int, error: Exception) -> bool:
    """Rename a damaged file, unless another program already did. Return False if it cannot be renamed, else True."""
    new_path = path.with_name(_ASIDE.format(utc_now()[:19].replace(":", "")))
    try:
        if path.stat().st_ino == inode:
            path.rename(new_path)
            problem = f"cannot read the measurements of this machine ({error})"
            print_to_stderr(f"{problem}: {path} was renamed to {new_path.name}")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
