"""Starting a run from a finished run's model: `model.model_name_or_path` is that run's path or name, or `last`.

The name is resolved once, to the folder `model` of the finished run, so that `last` does not change its meaning."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tui_trainer.config.load import LoadedConfig, value_of
from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.errors import ConfigError, FolderError, Problem
from tui_trainer.exporting.trained_model import final_model
from tui_trainer.models.catalogue import find_catalogue_entry
from tui_trainer.models.facts import ADAPTER_FILE
from tui_trainer.models.files.hub_cache import cached_snapshot, local_folder
from tui_trainer.planning.ancestry import run_of_model
from tui_trainer.runs import registry
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks.parts.reference_model import REFERENCE_KEY


def with_run_as_model(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with names of runs, as model or reference, replaced by folders of final models, with notes.

    A folder with a model, and a hub model that is downloaded or in the catalogue, take precedence over a run of that
    name. Raises ConfigError for a run without a final model, and for a name that fits several runs."""
    for key, revision in ((MODEL_KEY, loaded.config.model.revision), (REFERENCE_KEY, "main")):
        try:
            run = _run_named(str(value_of(loaded.config, key)), revision)
            if run is None:
                continue
            folder = run.model if run.model.is_dir() else final_model(run)
        except FolderError as error:
            raise ConfigError(loaded.with_source(replace(problem, key=key)) for problem in error.problems) from None
        loaded = loaded.with_fitted_value(key, str(folder), f"the final model of the run {run.name}")
    return loaded


def changed_model_problems(config: Config) -> list[Problem]:
    """Return a problem if the config's model is the final model of a run and its files have changed since that run."""
    run = run_of_model(Path(config.model.model_name_or_path))
    if run is None or config.is_from_scratch:
        return []
    try:
        final_model(run)
    except FolderError as error:
        return [replace(problem, key=MODEL_KEY) for problem in error.problems]
    return []


def _run_named(name: str, revision: str) -> RunFolder | None:
    """Return the run that `model.model_name_or_path` names; None if the name means a model."""
    try:
        folder = local_folder(name)
    except ConfigError:  # no model is named, or `find_model` says what is wrong
        return None
    if folder:
        if any((folder / file).is_file() for file in ("config.json", ADAPTER_FILE)):
            return None
        with suppress(FolderError):
            return RunFolder.open(folder)
        return None
    if find_catalogue_entry(name) or cached_snapshot(name, revision):
        return None
    run_names = [run.name for run in registry.known_runs()]
    matches_run = name == "last" or any(run.startswith(name) for run in run_names)
    return registry.find_run(name) if run_names and matches_run else None
