"""Gathers the input of the rules before a run: reads sizes and counters, and hashes the data, without loading torch.

Measurements of an earlier run are read from the end of its journal. They are used if its task, model, device and
libraries are those of the plan. Some measurements also need the same training settings, or the same disk."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psutil

from tui_trainer.advice.context import Context, EarlierRun, ExportComparison
from tui_trainer.advice.remedies import make_plan
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig
from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError, Problem
from tui_trainer.exporting.contract import all_formats
from tui_trainer.hardware.cgroup import memory_left
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import disk_free_bytes, probe, with_memory_now
from tui_trainer.hardware.processor import load_of_others
from tui_trainer.hardware.storage import prepared_data_folder, read_place
from tui_trainer.launching.fitted_presets import fitted_task_named
from tui_trainer.launching.open_run import start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models import unsloth
from tui_trainer.planning import plan as planning
from tui_trainer.planning.disk import SAVE_FIXED_BYTES
from tui_trainer.planning.measured_steps import StepKey
from tui_trainer.planning.plan import Plan
from tui_trainer.reporting.facts import certificates
from tui_trainer.runs.events import ATTENTION_CHANGED, PACKED_WITH_MASK, RunProblem
from tui_trainer.runs.folder import RunFolder, read_fields
from tui_trainer.runs.journal import END_BYTES, events_in, last_events
from tui_trainer.runs.registry import known_runs
from tui_trainer.runs.state import RunState, apply_events
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.terminal.safe_text import one_line

_Answer = TypeVar("_Answer")
# Number of earlier runs to look at. Only the plan is read of a run that does not match.
_MOST_RUNS = 20
_ENOUGH_STEPS = 20
_ENVIRONMENT = ("OMP_", "MKL_", "GOMP_", "KMP_", "OPENBLAS_", "CUDA_VISIBLE_DEVICES")


def gather(
    loaded: LoadedConfig,
    progress: Progress | None = None,
    *,
    hardware: Hardware | None = None,
    plan: Plan | None = None,
    gpu: GpuChoice = None,
    counts: bool = False,
) -> Context:
    """Return the Context with everything that the rules need. A given plan is used unchanged.

    With `counts`, also count skipped and truncated rows: in all rows of small data, which is prepared for this, and in
    the first rows of large data.

    The free memory in `hardware` may be outdated, so it is read again. `gpu` is the requested GPU."""
    config, hardware = loaded.config, with_memory_now(hardware or probe())
    task = find_task(config.task.type)
    facts = facts_of(loaded, progress)
    first_rows: DataFacts | None = None
    problems, data_problems = tuple[Problem, ...](), tuple[Problem, ...]()
    if counts and facts and not facts.counts:
        try:
            with fitted_task_named(loaded):
                counted = task.counted(config, loaded.data, prepared_data_folder(), progress)
            facts, first_rows = (counted, None) if counted and counted.exact else (facts, counted)
        except InputError as error:
            data_problems = tuple(loaded.with_source(problem) for problem in error.problems)
    if plan is None:
        plan, problems = plan_or_problems(loaded, hardware, facts, progress, gpu)
    if plan and facts:
        facts = facts.of_batch(plan.effective_batch_size.value)
    basis = None
    with suppress(InputError):
        basis = planning.basis_of(loaded, hardware, plan) if plan else None
    with suppress(InputError):
        # Reasons why a run cannot start although it can be planned; reasons against planning are in `problems` already.
        problems = problems or data_problems or tuple(start_problems(loaded))
    swap_used_bytes: int | None = None
    with suppress(OSError, psutil.Error):
        swap_used_bytes = memory_left().swap_used_bytes
    sample_texts = None
    if not config.is_from_scratch:
        sample_texts = _result_or_none(lambda: task.sample_texts(config, loaded.data))
    return Context(
        loaded=loaded,
        hardware=hardware,
        plan=plan,
        chosen_gpu=gpu,
        plan_basis=basis,
        facts=facts,
        first_rows=first_rows,
        problems=problems,
        all_token_count=_all_tokens(loaded, facts, progress),
        sample_texts=sample_texts or (),
        disk_free_bytes=disk_free_bytes(Path(config.output.runs_dir)),
        cache=read_place("prepared data", prepared_data_folder()),
        load_average=load_of_others(),
        environment={key: value for key, value in os.environ.items() if key.startswith(_ENVIRONMENT)},
        earlier=newest_earlier_run(plan) if plan else None,
        swap_used_bytes=swap_used_bytes,
        mark_token_counts=_result_or_none(lambda: task.marks(config)),
        missing_frame=_result_or_none(lambda: task.missing_frame(config)),
    )


def _result_or_none(question: Callable[[], _Answer]) -> _Answer | None:
    """Return the result of a function, or None if it raises InputError because config or data cannot be read."""
    with suppress(InputError):
        return question()
    return None


def facts_of(loaded: LoadedConfig, progress: Progress | None = None) -> DataFacts | None:
    """Return the amount of data; None if the data cannot be read."""
    config, folder = loaded.config, prepared_data_folder()
    return _result_or_none(lambda: find_task(config.task.type).data_facts(config, loaded.data, folder, progress))


def plan_or_problems(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts | None,
    progress: Progress | None = None,
    gpu: GpuChoice = None,
) -> tuple[Plan | None, tuple[Problem, ...]]:
    """Return the plan, or the problems that prevent it. Return both if only memory is short, so that the memory check
    can propose settings that fit."""
    try:
        if facts is None:
            return estimated_plan(loaded, progress, gpu=gpu), ()
        return make_plan(loaded, hardware, facts, chosen_gpu=gpu), ()
    except InputError as error:
        problems = error.problems
    with suppress(InputError):
        if facts:
            # A plan is not refused for its memory if the size of the machine's memory is unknown.
            gpus = tuple(replace(card, memory_bytes=None) for card in hardware.gpus)
            unknown_hardware = replace(hardware, memory_bytes=None, gpus=gpus)
            return make_plan(loaded, unknown_hardware, facts, chosen_gpu=gpu), problems
    return None, problems


def _all_tokens(loaded: LoadedConfig, facts: DataFacts | None, progress: Progress | None) -> int | None:
    """Return the tokens of all data, including held-out data and data beyond limits such as `data.max_rows`."""
    if loaded.config.data.max_chars or loaded.config.data.max_rows:
        full_config = with_changes(loaded.config, {"data.max_chars": 0, "data.max_rows": 0})
        facts = facts_of(replace(loaded, config=full_config), progress)
    return facts.tokens + facts.eval_tokens if facts else None


def newest_earlier_run(plan: Plan) -> EarlierRun | None:
    """Return the measurements of the newest run in the index with the plan's model and device and enough steps; None
    if there is none. A run whose journal cannot be read is skipped."""
    planned_key = StepKey.read(plan.shape_key)
    if planned_key is None:
        return None
    planned_device = _device(plan.model_dump(include={"device", "device_name", "threads"}))
    for folder in reversed(known_runs()[-_MOST_RUNS:]):
        plan_fields = read_fields(folder.plan)
        run_key = StepKey.read(plan_fields.get("shape_key"))
        if run_key is None or run_key.model != planned_key.model or _device(plan_fields) != planned_device:
            continue
        with suppress(OSError):
            if run := earlier_run_of(folder.name, apply_events(last_events(folder.journal))):
                run = replace(run, exports=tuple(_exports(folder)), **_facts_at_start(folder.journal))
                if not run_key.has_setup_of(planned_key):
                    run = replace(run, data_share=None, evaluation_share=None, attention_rejection="")
                    run = replace(run, busy_share=None, unsloth_parts_sentence="", has_unsloth=False)
                if run_key != planned_key:
                    run = replace(run, step_seconds=None)
                is_on_disk = folder.root.parent.resolve() == Path(plan.config.output.runs_dir).resolve()
                return run if is_on_disk else replace(run, save_bytes_per_second=None)
    return None


def _device(plan: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the fields of a plan that identify its device: GPU or CPU, its name, and on a CPU the threads."""
    device, threads = plan.get("device"), plan.get("threads")
    thread_count = threads.get("value") if device == "cpu" and isinstance(threads, dict) else None
    return device, plan.get("device_name"), thread_count


def earlier_run_of(name: str, state: RunState) -> EarlierRun | None:
    """Return the measurements of a run from its state, which may cover only its last events; None below 20 steps."""
    run_seconds = sum(state.step_seconds)
    if len(state.steps) < _ENOUGH_STEPS or not run_seconds:
        return None
    view, run_tokens = RunView(state), sum(state.token_counts)
    save_rates = [(save.bytes + SAVE_FIXED_BYTES) / save.seconds for save in state.checkpoints if save.seconds > 0]
    sample_seconds = [sample.seconds for sample in state.samples if sample.seconds > 0]
    # Seconds per token in evaluations.
    token_costs = [event.seconds / event.tokens for event in state.evals if event.scheduled and event.tokens]
    has_cards = any(reading.gpus for reading in view.readings)
    busy_share = view.gpu_mean("utilization_share") if has_cards else view.mean("process_cpu_share")
    if not view.readings:
        # The newest start ended before its first reading.
        shares = map(state.gauge_summary.mean, ("utilization_share", "process_cpu_share"))
        busy_share = next((share for share in shares if share is not None), None)
    return EarlierRun(
        name=name,
        steps=len(state.steps),
        data_share=sum(state.data_seconds) / run_seconds,
        save_bytes_per_second=median(save_rates) if save_rates else None,
        sample_seconds=median(sample_seconds) if sample_seconds else None,
        evaluation_share=median(token_costs) / (run_seconds / run_tokens) if token_costs and run_tokens else None,
        step_seconds=median(state.step_seconds),
        busy_share=busy_share,
    )


def _exports(folder: RunFolder) -> Iterator[ExportComparison]:
    """Yield the 8-bit exports of a run that were compared with its trained model."""
    format_names = [export.name for export in all_formats() if export.in_8_bits]
    for certificate in (export for export in certificates(folder).values() if export.get("format") in format_names):
        with suppress(KeyError, TypeError, ValueError):
            trained, exported = certificate["trained"], certificate["exported"]
            yield ExportComparison(
                format=certificate["format"],
                bytes=int(exported["bytes"]),
                trained_bytes=int(trained["bytes"]),
                seconds_per_row=float(exported["seconds_per_row"]),
                trained_seconds_per_row=float(trained["seconds_per_row"]),
                faults=one_line("; ".join(map(str, certificate["faults"])), 200),
            )


def _facts_at_start(path: Path) -> dict[str, Any]:
    """Return the fields of `EarlierRun` that come from events at the start of the journal: attention and Unsloth."""
    with path.open("rb") as file:
        events = events_in(file.read(END_BYTES))
    fields: dict[str, Any] = {}
    for problem in (event for event in events if isinstance(event, RunProblem)):
        if problem.kind in (ATTENTION_CHANGED, PACKED_WITH_MASK):
            fields.setdefault("attention_rejection", problem.message)
        elif problem.kind in (unsloth.KERNELS_IN_MODEL, unsloth.KERNELS_MISSING):
            has_unsloth = problem.kind == unsloth.KERNELS_IN_MODEL
            fields |= {"unsloth_parts_sentence": problem.message, "has_unsloth": has_unsloth}
    return fields
