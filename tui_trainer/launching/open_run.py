"""Opening a run: its folder, its lock and its entry in the index. A run with wrong input is refused here."""

import os
import re
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from tui_trainer.config.load import LoadedConfig, Request, load
from tui_trainer.config.mixture import paths_in
from tui_trainer.config.paths import with_absolute_paths
from tui_trainer.config.save import to_toml
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.exporting.trained_model import rewriting_words
from tui_trainer.files.local_paths import short_name
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import probe, with_memory_now
from tui_trainer.launching.fitted_presets import with_fitted_presets, with_nodes_of_step, with_unread_noted
from tui_trainer.launching.prepare import edited_settings, estimated_plan, read_plan, restore_plan_file
from tui_trainer.launching.run_as_model import changed_model_problems
from tui_trainer.models.facts import find_model
from tui_trainer.models.problems import model_problems
from tui_trainer.models.unsloth import environment_problems
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import with_own_commit, write_plan_file
from tui_trainer.planning.retarget import retarget_plan, retarget_processes
from tui_trainer.runs import registry
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.events import RunProblem
from tui_trainer.runs.folder import RunFolder, check_name
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import RunLock
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import shell_word

# A file name has room for data and model with this many characters each, the time and a number, in any script.
_PART_CHARACTERS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRun:
    """A run whose lock this process holds. A new run has a config and no plan yet; a resumed run has its plan.

    `gpu` is the requested GPU. `moved_words` says where the run continues, if not on the GPU of its plan. `reports` are
    problems with the run's files, to be written to the journal."""

    folder: RunFolder
    lock: RunLock
    controls: Controls
    journal: JournalWriter
    is_in_index: bool
    loaded: LoadedConfig | None
    plan: Plan | None = None
    is_new: bool = True
    gpu: GpuChoice = None
    moved_words: str = ""
    reports: tuple[RunProblem, ...] = ()


def load_config(request: Request, *, gpu: GpuChoice = None, hardware: Hardware | None = None) -> LoadedConfig:
    """Return the config for `hardware` (default: this machine), with fitted presets. Raises ConfigError."""
    hardware = hardware or probe()
    loaded = load(request, lambda requested: choose_hardware_profile(requested, hardware, gpu))
    return with_unread_noted(with_fitted_presets(with_nodes_of_step(loaded)), has_gpu=bool(hardware.gpus))


def fit_presets(plain: LoadedConfig) -> LoadedConfig:
    """Return a config that the user has edited, with presets that fit its model and data, as `load_config` does.

    The model and the data are looked up again, which may take long on a slow disk."""
    return with_fitted_presets(replace(plain, config=with_absolute_paths(plain.config), data=ResolvedData()))


def name_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return the problems with the run name that the user chose; empty if the name can be used."""
    output = loaded.config.output
    if not output.name:
        return []
    problem = check_name(output.name)
    if problem is None and os.path.lexists(Path(output.runs_dir) / output.name):
        hint = f"run `tui-trainer resume {shell_word(output.name)}` to resume it, or choose another name"
        problem = Problem(message="this run already exists", hint=hint)
    return [replace(problem, key="output.name")] if problem else []


def start_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return why a planned run cannot start: files of its model, or requirements of Unsloth, are missing."""
    model, problems = loaded.config.model, environment_problems(loaded.config)
    if model.model_name_or_path:
        facts = find_model(model.model_name_or_path, model.revision, head=find_task(loaded.config.task.type).head)
        problems += [] if facts.folder else model_problems(facts, model.init, model.trust_remote_code)
        problems += changed_model_problems(loaded.config)
    return [loaded.with_source(problem) for problem in problems]


def open_new(loaded: LoadedConfig, estimate: Plan | None = None, *, gpu: GpuChoice = None) -> OpenRun:
    """Create the run folder and write the config into it. `estimate` is the estimated plan, if the caller has it.

    Raises InputError for problems that are known in advance, before a folder is created."""
    if estimate is None:
        estimated_plan(loaded, gpu=gpu)
    if problems := start_problems(loaded):
        raise ConfigError(problems)
    folder = RunFolder.create(Path(loaded.config.output.runs_dir), free_name(loaded))
    lock = RunLock(folder.lock)
    try:
        lock.acquire()
        controls = Controls(folder.control)
        folder.write_file(folder.config, to_toml(loaded).encode())
        journal = JournalWriter(folder.journal)
    except BaseException:
        lock.release()
        folder.discard()
        raise
    is_indexed = registry.add_to_index(folder.root) is None
    return OpenRun(
        folder=folder, lock=lock, controls=controls, journal=journal, is_in_index=is_indexed, loaded=loaded, gpu=gpu
    )


def reopen_run(
    folder: RunFolder, *, gpu: GpuChoice = None, processes: int | None = None, nodes: int | None = None
) -> OpenRun:
    """Open an existing run to continue it. By default it keeps its GPU and its numbers of processes and nodes.

    Raises FolderError if the run is in use or has damaged files, and InputError if it cannot continue here."""
    lock = RunLock(folder.lock)
    lock.acquire()
    # Requests from before this moment were meant for an earlier start.
    controls = Controls(folder.control)
    try:
        notes = list[str]()
        reports = [restore_plan_file(folder)]
        if message := rewriting_words(folder):
            reports += [RunProblem(kind="model gone", message=message)]
        plan, moved_text = read_plan(folder, notes), ""
        if plan:
            reports += [edited_settings(folder, plan)]
            reports += [RunProblem(kind="setting not used", message=note) for note in notes]
            if (pinned_plan := with_own_commit(plan)) != plan:
                write_plan_file(folder, plan := pinned_plan)
            if problems := environment_problems(plan.config):
                raise ConfigError(problems)
            hardware = with_memory_now(probe())
            plan, moved_text = retarget_plan(plan, hardware, gpu)
            plan, processes_text = retarget_processes(plan, hardware, processes, nodes)
            moved_text = "; ".join(filter(None, (moved_text, processes_text)))
        loaded = None if plan else load_config(Request(config_file=folder.config), gpu=gpu)
        journal = JournalWriter(folder.journal)
    except BaseException:
        lock.release()
        raise
    is_indexed = registry.add_to_index(folder.root) is None
    return OpenRun(
        folder=folder, lock=lock, controls=controls, journal=journal, is_in_index=is_indexed, loaded=loaded, gpu=gpu,
        plan=plan, is_new=False, moved_words=moved_text, reports=tuple(filter(None, reports)),
    )  # fmt: skip


def name_prefix(loaded: LoadedConfig) -> str:
    """Return the first part of a run's default name: data and model, or the recipe if that brings its own data."""
    config, names = loaded.config, [loaded.recipe.name if loaded.recipe else loaded.config.task.type]
    if any(loaded.origin(key).by_user for key in (DATA_KEY, MODEL_KEY)):
        data_name = short_name(paths_in(config.data.path)[0])
        names = [data_name, short_name(config.model.model_name_or_path) or names[0]]
    pieces = ("".join("-" if check_name(f"a{char}") else char for char in word)[:_PART_CHARACTERS] for word in names)
    return "-".join(filter(None, (re.sub("-{2,}", "-", part).strip("-._") for part in pieces))) or "run"


def free_name(loaded: LoadedConfig) -> str:
    """Return the name that the user chose, else a free name like DATA-MODEL-HHMM, if necessary with a number."""
    output, first_name = loaded.config.output, f"{name_prefix(loaded)}-{datetime.now():%H%M}"
    candidate_names = chain([first_name], (f"{first_name}-{number}" for number in count(2)))
    return output.name or next(name for name in candidate_names if not os.path.lexists(Path(output.runs_dir) / name))
