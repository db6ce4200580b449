"""Data and models on this machine that a new run can use, the likeliest first.

The module also reads the first rows of data, and makes the plan for chosen data and a model.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.mixture import paths_in
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY
from tui_trainer.data.columns.row import columns_of
from tui_trainer.data.columns.text_columns import ColumnChoices, head_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.samples import built_in_samples
from tui_trainer.data.sources.hub import cached_data_sets
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.data.sources.source_file import form_of
from tui_trainer.errors import InputError, Problem, system_reason
from tui_trainer.files.hub_layout import SAMPLE_PREFIX, cached_repositories
from tui_trainer.files.local_paths import path_exists
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.fitted_presets import with_columns_found
from tui_trainer.launching.open_run import load_config, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models.config_json import CONFIG_FILE
from tui_trainer.models.facts import ADAPTER_FILE
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder, read_plain_file
from tui_trainer.runs.json_fields import dotted_keys
from tui_trainer.runs.registry import known_runs, state_folder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

FROM_SCRATCH: Final = "(from scratch)"
_RECENT_RUNS: Final = 20
_MOST: Final = 200
# Bounds of the search for files in folders below this one, which may be a home directory on a network disk.
_LEVELS_BELOW, _FOLDERS_PER_LEVEL = 4, 100
_SHOWN_ROWS: Final = 20
_CELL_CHARACTERS: Final = 200
_TEXT_CHARACTERS: Final = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Value that the user can choose for a setting, with a short note."""

    value: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstRows:
    """First rows of data: the column names as written, and the cells as text that is safe to show.

    `source_description` describes the source. `refusal` says why there are no rows; it is empty if there are rows.
    """

    source_description: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    refusal: str = ""


def data_here() -> list[Choice]:
    """Return choices of data: files and folders here, of earlier runs, downloaded, samples, and files further below."""
    data_sets = (Choice(value=name, note="dataset in the Hub cache") for name in cached_data_sets())
    samples = built_in_samples().values()
    shipped = (Choice(value=f"{SAMPLE_PREFIX}{sample.name}", note=f"sample: {sample.title}") for sample in samples)
    below = islice(_files_below(Path()), _MOST)
    return each_path_once((*_data_files(Path()), *_choices_of_earlier_runs(DATA_KEY), *data_sets, *shipped, *below))


def models_here() -> list[Choice]:
    """Return choices of a model: folders here, models of earlier runs, downloaded models, finished runs, no model."""
    runs = (Choice(value=run.name, note="model from this run") for run in _newest_runs() if run.model.is_dir())
    scratch = Choice(value=FROM_SCRATCH, note="small model, random weights")
    models = (*_model_folders(Path()), *_choices_of_earlier_runs(MODEL_KEY), *_fetched_models())
    return each_path_once((*models, *runs, scratch))


def first_rows(path: str) -> FirstRows:
    """Return the first rows of data on this machine as text. The call may wait for a slow disk."""
    try:
        source = ResolvedData(paths=paths_in(path)).parts[0]
        if not source.is_table:
            documents = source.documents(max_rows=_SHOWN_ROWS, max_chars=_TEXT_CHARACTERS)
            texts = tuple((_cell(document.text),) for document in documents)
            return FirstRows(source_description=one_line(source.description), columns=("text",), rows=texts)
        first_read_rows, _ = head_of(source.rows(ProblemList(), choices=ColumnChoices("auto")))
    except InputError as error:
        return FirstRows(source_description="", refusal=one_line(str(error.problems[0])))
    except OSError as error:
        return FirstRows(source_description="", refusal=system_reason(error))
    columns = tuple(columns_of(first_read_rows))
    rows = tuple(tuple(_cell(row.values.get(name)) for name in columns) for row in first_read_rows[:_SHOWN_ROWS])
    return FirstRows(source_description=one_line(source.description), columns=columns, rows=rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedChoice:
    """Config and plan for chosen data and a model, or the problems that prevent them."""

    loaded: LoadedConfig | None = None
    plan: Plan | None = None
    problems: tuple[Problem, ...] = ()
    first: FirstRows = FirstRows(source_description="")


def plan_choice(data: str, model: str, columns: Mapping[str, str] = {}, *, gpu: GpuChoice) -> PlannedChoice:
    """Return the config and the plan for data and a model. `columns` has the columns that the user named, by setting.

    The call may count the parameters of the model, which takes seconds.
    """
    shortcuts = {key: value for key, value in ((DATA_KEY, data), (MODEL_KEY, model)) if value} | dict(columns)
    shown_rows, loaded = first_rows(data), None
    try:
        loaded = with_columns_found(load_config(Request(shortcuts=shortcuts), gpu=gpu))
        plan = estimated_plan(loaded, gpu=gpu)
    except InputError as error:
        return PlannedChoice(loaded=loaded, problems=error.problems, first=shown_rows)
    return PlannedChoice(loaded=loaded, plan=plan, problems=tuple(start_problems(loaded)), first=shown_rows)


def _cell(value: object) -> str:
    return "" if value is None else one_line(str(value), _CELL_CHARACTERS)


def each_path_once(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices without duplicates: choices whose path an earlier choice has, perhaps written differently."""
    choice_of_path: dict[Path, Choice] = {}
    for choice in choices:
        choice_of_path.setdefault(Path(choice.value).absolute(), choice)
    return list(choice_of_path.values())


def _newest_runs() -> list[RunFolder]:
    return known_runs()[-_RECENT_RUNS:][::-1]


def _choices_of_earlier_runs(key: str) -> Iterator[Choice]:
    """Yield the paths or names that the newest runs have for a setting, if they still exist."""
    for run in _newest_runs():
        with suppress(OSError, ValueError, RecursionError):
            written_values = dotted_keys(tomllib.loads(read_plain_file(run.config, MIB).decode()))
            value = written_values.get(key)
            if isinstance(value, str) and value and (not value.startswith("/") or path_exists(value)):
                yield Choice(value=value, note=f"used by run {one_line(run.name, 40)}")


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder that are not hidden or this program's own; an empty list if it cannot be read."""
    with suppress(OSError):
        own_folder = state_folder().absolute()
        entries = (path for path in folder.iterdir() if path.absolute() != own_folder)
        return sorted(path for path in entries if not path.name.startswith("."))[:_MOST]
    return []


def _data_files(folder: Path) -> Iterator[Choice]:
    """Yield the data files in a folder: tables, then texts, then folders that contain tables or texts."""
    ranked_choices: list[tuple[int, Choice]] = []
    for path in _entries(folder):
        with suppress(OSError):
            if _is_data(path) and path.is_file() and (size_bytes := path.stat().st_size):
                is_text = form_of(path) == "text"
                ranked_choices.append((int(is_text), Choice(value=str(path), note=format_bytes(size_bytes))))
            elif path.is_dir() and not _holds_model(path) and (count := sum(map(_is_data, _entries(path)))):
                ranked_choices.append((2, Choice(value=f"{path}/", note=f"folder, data files: {count}")))
    return iter(choice for _, choice in sorted(ranked_choices, key=lambda pair: pair[0]))


def _files_below(folder: Path) -> Iterator[Choice]:
    """Yield data files in the folders below a folder, the nearest first. Folders of models and runs are skipped."""
    folders = [folder]
    for _ in range(_LEVELS_BELOW):
        entries = (path for parent in folders for path in _entries(parent))
        folders = list(islice((path for path in entries if _may_hold_data(path)), _FOLDERS_PER_LEVEL))
        for path in (path for subfolder in folders for path in _entries(subfolder) if _is_data(path)):
            with suppress(OSError):
                if path.is_file():
                    yield Choice(value=str(path), note=format_bytes(path.stat().st_size))


def _may_hold_data(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir() and not _holds_model(path) and not RunFolder(path).journal.exists()
    return False


def _is_data(path: Path) -> bool:
    return form_of(path) not in ("unsupported", "unknown")


def _model_folders(folder: Path) -> Iterator[Choice]:
    for path in _entries(folder):
        for subfolder in (path, *_entries(path)):
            if _holds_model(subfolder):
                yield Choice(value=f"./{subfolder}", note=f"folder, {format_bytes(_weights_bytes(subfolder))}")


def _holds_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG_FILE, ADAPTER_FILE))


def _fetched_models() -> Iterator[Choice]:
    for name, folder in cached_repositories("models"):
        if any(folder.glob("snapshots/*/*config.json")):
            yield Choice(value=name, note=f"in the Hub cache, {format_bytes(_weights_bytes(folder / 'blobs'))}")


def _weights_bytes(folder: Path) -> int:
    with suppress(OSError):
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return 0
