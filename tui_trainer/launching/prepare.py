"""The part of a run before torch is loaded: from a config to an exact plan."""

import json
import platform
import shlex
from contextlib import suppress
from dataclasses import fields, replace
from time import monotonic
from typing import Any

from tui_trainer.advice.measured_gains import KeptGains, Measurable
from tui_trainer.advice.remedies import make_plan
from tui_trainer.config.changes import is_same_value
from tui_trainer.config.load import LoadedConfig, Request, user_layers, validate, value_of
from tui_trainer.config.paths import absolute, data_of, with_absolute_paths
from tui_trainer.data.preparing.cache import PreparedData, compare_rows, read_entry
from tui_trainer.data.preparing.token_rows import evenly_spaced
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import CheckpointError, ConfigError, DataError, FolderError, InputError, Problem, system_reason
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.libraries import RESULT_LIBRARIES, read_versions
from tui_trainer.hardware.probe import probe, with_memory_now
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.fitted_presets import fitted_task_named
from tui_trainer.launching.merged_base import SETTINGS as MERGED
from tui_trainer.measure.micro_batches import tune_micro_batch
from tui_trainer.measure.trial import kept_trial
from tui_trainer.models.facts import find_model
from tui_trainer.planning.ancestry import chain_words
from tui_trainer.planning.automatic_values import PRECISION_KEY
from tui_trainer.planning.batch_cut import EFFECTIVE_BATCH_KEY
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.planning.effective_batch import EPOCHS_KEY
from tui_trainer.planning.learning_rates import peak_rate
from tui_trainer.planning.memory.parts import KERNELS
from tui_trainer.planning.plan import Plan, PlanInputs
from tui_trainer.planning.plan_file import (
    DamagedPlanError,
    changed_base,
    changed_reference,
    commit_of,
    read_plan_file,
    write_plan_file,
)
from tui_trainer.planning.planned import Planned, StepGrade
from tui_trainer.runs.events import BaselinesMeasured, DataPrepared, PlanMade, RunProblem
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import Baselines, DataFacts
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.checkpoint_folder import kept_plan
from tui_trainer.units import figures_of


def estimated_plan(loaded: LoadedConfig, progress: Progress | None = None, *, gpu: GpuChoice = None) -> Plan:
    """Return an estimated plan without preparing data; exact if the data was prepared earlier. Raises InputError."""
    facts = data_facts(loaded, progress)
    try:
        return make_plan(loaded, with_memory_now(probe()), facts, chosen_gpu=gpu)
    except ConfigError as error:
        raise ConfigError(loaded.with_source(problem) for problem in error.problems) from None


def data_facts(loaded: LoadedConfig, progress: Progress | None = None) -> DataFacts:
    """Return the amount of data: estimated, or counted if the data was prepared earlier.

    Hashes the data to find its prepared form, and reports that through `progress`. Raises ConfigError with all
    problems, including those of the settings."""
    config = loaded.config
    try:
        with fitted_task_named(loaded):
            facts = find_task(config.task.type).data_facts(config, loaded.data, prepared_data_folder(), progress)
    except InputError as error:
        problems = setting_problems(loaded, eval_rows=0)
        # Counting may fail because of a setting that is already reported, which is then not reported again.
        keys = {problem.key for problem in problems} - {""}
        other_problems = [loaded.with_source(problem) for problem in error.problems if problem.key not in keys]
        raise ConfigError([*problems, *other_problems]) from None
    if problems := setting_problems(loaded, facts.eval_rows):
        raise ConfigError(problems)
    return facts


def exact_plan(
    loaded: LoadedConfig,
    folder: RunFolder,
    journal: JournalWriter,
    progress: Progress,
    *,
    gpu: GpuChoice,
    tunes: bool = False,
) -> tuple[Plan, PreparedData]:
    """Prepare the data, make the run's exact plan for the memory that is free now, and write the plan.

    With `tunes`, the fastest micro-batch is measured first if the config asks for it. Raises InputError, and RunError
    if every measured micro-batch fails."""
    task, started_at = find_task(loaded.config.task.type), monotonic()
    with fitted_task_named(loaded):
        data = task.prepare(loaded.config, loaded.data, prepared_data_folder(), progress)
    _announce_data(task.choice_count(loaded.config, data), data, started_at, journal)

    def make() -> Plan:
        inputs = PlanInputs(
            data_key=data.folder.name,
            data_fingerprint=data.fingerprint,
            model_key=task.model_key(loaded.config),
            reference_key=task.reference_key(loaded.config),
            model_commit=commit_of(loaded.config),
            versions=versions(),
        )
        facts = task.facts(loaded.config, data)
        return make_plan(loaded, with_memory_now(probe()), facts, inputs=inputs, chosen_gpu=gpu)

    plan = make()
    if tunes and plan.untuned_key:
        tune_micro_batch(loaded, plan, gpu, progress)
        plan = make()
    write_plan_file(folder, plan)
    return plan, data


def planned_data(plan: Plan, journal: JournalWriter, progress: Progress, step: int = 0) -> PreparedData:
    """Return the prepared data with which a run began, from the folder in its plan, or else prepared again.

    The run continues after `step`. Raises InputError if the model has changed, or if the rows would differ."""
    config, sources, task, started_at = plan.config, data_of(plan.config), find_task(plan.config.task.type), monotonic()
    # Check the model first: with another tokenizer the rows would also differ, and the error would blame the data.
    if problem := changed_base(plan) or changed_reference(plan):
        raise ConfigError(problem)
    folder = prepared_data_folder() / plan.data_key
    if data := read_entry(folder):
        with suppress(InputError):  # data that cannot be opened any more keeps the name that it was prepared under
            data = data.with_names_of(sources)
        data = replace(data, splits=plan.splits)
        if change_message := _changed_data(sources, data, config.data.path, progress):
            hint = "the run continues with the rows that were prepared when it started"
            journal.append(RunProblem(step=step, kind="data changed", message=change_message, hint=hint))
    else:
        row_settings = task.row_settings(config)
        rows_difference = compare_rows(sources, row_settings, plan.data_key, plan.data_fingerprint, progress)
        if rows_difference == "other_data":
            hint = "a resumed run would not continue the same loss curve; start a new run, or restore the old data"
            raise DataError("the data changed since this run started", where=config.data.path, hint=hint)
        if rows_difference == "older_version":
            message = "the rows of this run were prepared by an older version, and their folder is missing"
            hint = "this version would prepare different rows, so the loss curve would not be continued; start "
            hint += "a new run, restore the folder, or resume with the version that started the run"
            raise DataError(message, where=str(folder), hint=hint)
        data = task.prepare(config, sources, prepared_data_folder(), progress)
    _announce_data(task.choice_count(config, data), data, started_at, journal)
    return data


def _changed_data(sources: ResolvedData, data: PreparedData, path: str, progress: Progress) -> str:
    """Return how the data files have changed since the rows were prepared from them; empty if they have not."""
    try:
        has_changed = sources.fingerprint(progress) != data.fingerprint
    except DataError as error:
        return f"the data of this run can no longer be read: {one_line(str(error), 300)}"
    return f"the data changed since this run started: {one_line(path, 200)}" if has_changed else ""


def restore_plan_file(folder: RunFolder) -> RunProblem | None:
    """Restore a damaged or missing plan.json from its copy in the newest checkpoint. Return a report if it did.

    Without a checkpoint, remove a damaged plan: the run starts over. Raises FolderError if no checkpoint is intact."""
    damage = "plan.json is missing"
    try:
        read_plan_file(folder.plan.read_bytes())
        return None
    except FileNotFoundError:
        pass
    except DamagedPlanError as error:
        damage = str(error)
    except (OSError, ValueError, ConfigError):
        return None  # `read_plan` says what is wrong with it
    try:
        saved_plan = kept_plan(folder.checkpoints)
    except CheckpointError as error:
        raise FolderError(f"{damage}, and {error}", where=str(folder.root)) from None
    if saved_plan is None:
        if not folder.plan.is_file():
            return None
        folder.plan.unlink()
        hint = "no complete checkpoint is left, so the run starts over with a new plan from config.toml"
        return RunProblem(kind="plan made again", message=damage, hint=hint)
    folder_name, content = saved_plan
    if content is None:
        message = f"{damage}, and the checkpoint {folder_name}, which an earlier version wrote, has no copy of the plan"
        hint = "a new plan from config.toml might differ, so the run cannot be resumed; "
        raise FolderError(message, where=str(folder.root), hint=hint + _new_run_hint(folder))
    folder.write_file(folder.plan, content)
    return RunProblem(kind="plan put back", message=damage, hint=f"plan.json was restored from {folder_name}")


def edited_settings(folder: RunFolder, plan: Plan) -> RunProblem | None:
    """Return a report of the settings whose values in config.toml and in the plan differ; None if all agree."""
    if not folder.config.is_file():
        return None
    problems = list[Problem]()
    layers = user_layers(Request(config_file=folder.config), problems)
    values = {key: value for layer in layers for key, value in layer.values.items()}
    config = validate(values, dict.fromkeys(values, layers[0]), problems) if not problems else None
    if config is None:
        message = f"config.toml was edited, but cannot be read: {one_line(str(problems[0]), 300)}"
    else:
        config, recipe_names = with_absolute_paths(config), (plan.recipe, absolute(plan.config.profile))
        is_auto = {EFFECTIVE_BATCH_KEY: plan.effective_batch_is_auto, EPOCHS_KEY: plan.num_train_epochs is not None}
        value_pairs = {
            key: (value_of(config, key), value_of(plan.config, key))
            for key in values
            if not (key == "profile" and values[key] in recipe_names)
            and not (key in MERGED and plan.config.model.model_name_or_path == str(folder.base))
            and not (values[key] == "auto" and is_auto.get(key))
        }
        edit_texts = [
            f"{key} = {json.dumps(file_value)} ({json.dumps(planned_value)} in this run)"
            for key, (file_value, planned_value) in value_pairs.items()
            if not is_same_value(file_value, planned_value)
        ]
        edit_texts += [f"{key} was removed" for key in plan.user_keys if key not in values]
        if not edit_texts:
            return None
        message = f"config.toml was edited: {one_line('; '.join(edit_texts), 600)}"
    hint = f"a run keeps its original settings; {_new_run_hint(folder)}"
    return RunProblem(kind="config edited", message=message, hint=hint)


def _new_run_hint(folder: RunFolder) -> str:
    # The old name is taken, and the file may contain it.
    command = shlex.join(["tui-trainer", str(folder.config), "--set", f"output.name={folder.name}-anew"])
    return f"start a new run with `{command}`"


def read_plan(folder: RunFolder, notes: list[str] | None = None) -> Plan | None:
    """Return the plan of a run; None if the run has no plan yet. Adds settings that no longer exist to `notes`.

    Raises FolderError if the plan cannot be read, and ConfigError for a removed setting that affects what is learnt."""
    if not folder.plan.is_file():
        return None
    try:
        return read_plan_file(folder.plan.read_bytes(), notes)
    except OSError as error:
        message = f"plan.json cannot be read: {system_reason(error)}"
        raise FolderError(message, where=str(folder.root)) from None
    except ValueError as error:
        hint = f"resume the run with the version that started it and an unchanged plan.json, or {_new_run_hint(folder)}"
        raise FolderError(str(error), where=str(folder.root), hint=hint) from None


def measure_baselines(plan: Plan, data: PreparedData, journal: JournalWriter) -> Baselines | None:
    """Measure the losses and scores of simple models on the rows of evaluation, record them, and return them."""
    row_indices = evenly_spaced(data.counts.eval_rows, plan.eval_rows.value)
    baselines = find_task(plan.config.task.type).baselines(plan.config, data, row_indices)
    if baselines is not None:
        losses, tokens = baselines.losses, baselines.eval_tokens
        journal.append(BaselinesMeasured(losses=losses, eval_tokens=tokens, unit="token", scores=baselines.scores))
    return baselines


def report_changed_versions(plan: Plan, journal: JournalWriter, step: int) -> None:
    """Write to the journal which libraries changed since the run began, because results may then differ in bits."""
    versions_now = versions()
    change_texts = [
        f"{name} {old_version} is now {versions_now.get(name, 'absent')}"
        for name, old_version in plan.versions.items()
        if versions_now.get(name) != old_version
    ]
    if change_texts:
        hint = "the run continues, but may not be bit-identical"
        journal.append(RunProblem(step=step, kind="versions changed", message=", ".join(change_texts), hint=hint))


def announce(plan: Plan, journal: JournalWriter, command: str) -> None:
    """Write the event PlanMade to the journal, with `command`, which starts the run's processes.

    A field of the event with the name of a field of the plan gets the plan's value.
    """
    config = plan.config
    values = {field.name: _announced(plan, field.name) for field in fields(PlanMade) if hasattr(plan, field.name)}
    figure_names = (name for name, figure in figures_of(Plan).items() if figure.in_journal)
    rows, seconds = min(plan.effective_batch_size.value, plan.train_rows.value), plan.step_seconds.value
    values |= {
        "figures": {name: value for name in figure_names if (value := _announced(plan, name)) is not None},
        "command": command,
        "base_model": config.model.model_name_or_path if config.model.init == "pretrained" else "",
        "came_from": chain_words(plan.ancestors),
        "lora_rank": config.tuning.r if config.tuning.has_adapter else None,
        "targets": {name: value for name, value in config.targets.model_dump().items() if value},
        "metric": config.evaluation.metric_for_best_model,
        "early_stopping_patience": config.evaluation.early_stopping_patience,
        "best_precision": plan.best_precision or "",
        "group_by_length": config.data.group_by_length is True,
        "torch_compile": config.training.torch_compile,
        "logging_steps": config.logging.logging_steps,
        "empty_cache_steps": config.training.empty_cache_steps,
        "most_learning_rate": peak_rate(config, plan.parameters.value).most,
        "kernel_bytes": sum(part.bytes for part in plan.memory_parts if part.name == KERNELS),
        "attention": plan.attention.words,
        "best_samples_per_second": rows / seconds if seconds and plan.step_grade == StepGrade.MEASURED else None,
        "gradient_checkpointing": config.training.gradient_checkpointing,
        "tuning_method": config.tuning.method,
        "max_grad_norm": config.training.max_grad_norm,
        "seed": config.training.seed,
        "step_seconds_reason": plan.step_seconds.reason,
        "user_settings": list(plan.user_keys),
        "merged_bytes": _merged_bytes(plan),
        "cpu_threads": plan.threads.value if plan.device == "cpu" else None,
        **_precision_gain(plan),
    }
    journal.append(PlanMade(**values))


def _announced(plan: Plan, name: str) -> Any:
    """Return the value of a field of the plan, without its reason."""
    value = getattr(plan, name)
    value = value.value if isinstance(value, Planned) else value
    return list(value) if isinstance(value, tuple) else value


def _precision_gain(plan: Plan) -> dict[str, Any]:
    """Return the fields of `PlanMade` about how much faster the machine's best precision is than the run's.

    Measured steps (`check --measure precision`) take precedence over measured matmuls (`diagnose --try`)."""
    if plan.best_precision in (None, "", plan.precision.value):
        return {}
    kept_gain = KeptGains.read(Measurable.of(plan)).find({PRECISION_KEY: "auto"})
    if kept_gain and kept_gain.speed_up:
        return {"precision_gain": kept_gain.speed_up, "precision_gain_of": "steps"}
    on_cpu = plan.device == "cpu"
    precisions = (kept_trial(probe(), "none" if on_cpu else None) or {}).get("precisions", {})
    used_precision = "tf32" if plan.precision.value == "fp32" and plan.config.training.tf32 and not on_cpu else "fp32"
    used_rate, best_rate = (precisions.get(name, {}).get("teraflops") for name in (used_precision, plan.best_precision))
    return {"precision_gain": best_rate / used_rate, "precision_gain_of": "matmuls"} if used_rate and best_rate else {}


def _merged_bytes(plan: Plan) -> int | None:
    """Return the bytes of the model with the trained adapter merged, which equal the base model's; None without one."""
    name = plan.config.model.model_name_or_path
    if not plan.config.tuning.has_adapter or not name:
        return None
    head = find_task(plan.config.task.type).head
    return find_model(name, plan.config.model.revision, head=head).weights_bytes


def versions() -> dict[str, str]:
    """Return the versions of Python and the libraries on which results depend, without importing the libraries."""
    all_versions = read_versions(("tui-trainer", *RESULT_LIBRARIES))
    return {"python": platform.python_version()} | {name: version for name, version in all_versions.items() if version}


def _announce_data(choices: int, data: PreparedData, started: float, journal: JournalWriter) -> None:
    counts = data.counts
    journal.append(
        DataPrepared(
            from_cache=data.from_cache,
            rows=counts.train_rows,
            eval_rows=counts.eval_rows,
            tokens=counts.train_tokens,
            eval_tokens=counts.eval_tokens,
            documents=counts.train_documents,
            eval_documents=counts.eval_documents,
            vocabulary=counts.vocabulary,
            seconds=round(monotonic() - started, 3),
            notes=list(data.all_notes),
            choices=choices,
        )
    )
