"""Rehearse a run: try parts that the run would reach late, in a separate process.

If memory runs out, settings that need less memory are tried until some work. They are reported as the remedy."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tui_trainer.advice.rules.evaluation_and_saving import SAVE_LIMIT
from tui_trainer.advice.rules.row_length import LENGTH
from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.config.load import Request
from tui_trainer.errors import ConfigError, RunError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.probe import disk_free_bytes
from tui_trainer.hardware.storage import nearest_existing
from tui_trainer.launching.open_run import load_config, name_problems, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.measure.micro_batches import micro_batch_patch, question_of, with_settings
from tui_trainer.planning.basis import EVAL_BATCH
from tui_trainer.planning.batch_cut import MICRO_BATCH_KEY
from tui_trainer.planning.disk import run_bytes, space_words
from tui_trainer.planning.plan import CHECKPOINTING, Plan
from tui_trainer.runs.steps_and_eta import count_due
from tui_trainer.training.job import CHECKPOINT, EVALUATION, FINAL, LOADING, REHEARSAL_PARTS, SAMPLE, TYPICAL
from tui_trainer.units import format_bytes, format_seconds, quantity
from tui_trainer.worker.asking import WorkerFailed, ask

_MOST_TRIES = 6
_SHORTEST = 64

Report = Callable[[dict[str, Any]], None]
"""Callback that gets the name of each part when it begins, and the name with the figures when it has ended."""
Parts = Mapping[str, Mapping[str, Any]]
"""Figures of each part, keyed by the name of the part."""


def rehearse(request: Request, gpu: GpuChoice, report: Report) -> dict[str, Any]:
    """Rehearse a run. Return the figures of all parts, estimates for the run, and the faults that would harm it.

    Each fault has a patch of settings that was tried here and works, if one was found. Raises InputError if the config
    cannot be planned, and RunError if the model cannot be loaded."""
    loaded = load_config(request, gpu=gpu)
    plan = estimated_plan(loaded, gpu=gpu)
    if problems := [*name_problems(loaded), *start_problems(loaded)]:
        raise ConfigError(problems)
    runs = Path(loaded.config.output.runs_dir)
    patch: dict[str, Any] = {}
    first_failed_parts: dict[str, dict[str, Any]] = {}
    remedy_patches: dict[str, Patch] = {}
    for try_number in range(_MOST_TRIES):
        parts = _run_parts(with_settings(request, patch), gpu, runs, report)
        failures = {name: part for name, part in parts.items() if "failed" in part}
        first_failed_parts = first_failed_parts if try_number else failures
        patch |= {key: value for part in failures.values() for key, value in part.get("works_with", {}).items()}
        if MICRO_BATCH_KEY in patch:
            patch |= micro_batch_patch(plan, patch[MICRO_BATCH_KEY])
        # A part also works if the worker itself continued with smaller passes after running out of memory.
        working = {name for name, part in parts.items() if "failed" not in part or "works_with" in part}
        out_of_memory_names = {name for name, part in first_failed_parts.items() if part.get("is_memory")}
        remedy_patches.update((name, dict(patch)) for name in working & out_of_memory_names)
        culprit = next((name for name, part in failures.items() if part.get("is_memory") and name not in working), None)
        remedy_patch = culprit and _memory_saving_patch(plan, patch, culprit, parts[culprit])
        if not remedy_patch:
            break
        patch |= remedy_patch
        report({"trying": dict(patch)})
    faults: list[dict[str, Any]] = [
        {"part": name, "message": part["failed"], "patch": remedy_patches.get(name, {})}
        for name, part in first_failed_parts.items()
    ]
    free_bytes, needed_bytes = disk_free_bytes(runs), _disk_bytes(plan, parts, plan.config.checkpoint.save_total_limit)
    if needed_bytes is not None and free_bytes is not None and needed_bytes > free_bytes:
        faults.append(_disk_fault(plan, parts, needed_bytes, free_bytes))
    run = _about_run(plan, parts)
    return {"is_ready": not faults, "faults": faults, **run, "disk_bytes": needed_bytes, "disk_free_bytes": free_bytes}


def _about_run(plan: Plan, parts: Parts) -> dict[str, Any]:
    """Return estimates for the whole run, such as `run_seconds`, from the figures of its parts."""

    def figure(part: str, name: str) -> float:
        return float(parts.get(part, {}).get(name) or 0.0)

    total_steps = plan.total_steps.value
    sample_steps = plan.sample_every_steps.value
    evaluation_count = count_due(total_steps, plan.eval_every_steps.value) if plan.eval_rows.value else 0
    other_seconds = (
        evaluation_count * figure(EVALUATION, "evaluation_seconds")
        + count_due(total_steps, plan.save_every_steps.value) * figure(CHECKPOINT, "save_seconds")
        + (total_steps // sample_steps if sample_steps else 0) * figure(SAMPLE, "sample_seconds")
        + figure(FINAL, "seconds")
    )
    step_seconds = [figure(TYPICAL, name) for name in ("step_seconds", "least_seconds", "most_seconds")]
    planned_seconds, planned_start = plan.duration_seconds.value, plan.beginning_seconds
    if planned_seconds is not None and planned_start:
        planned_seconds -= planned_start.value or 0.0
    return {
        "parts": {name: dict(figures) for name, figures in parts.items()},
        # On a CPU the peak does not include the memory of the libraries, as in the plan.
        "peak_memory_bytes": max((int(part.get("peak_memory_bytes", 0)) for part in parts.values()), default=0),
        "planned_memory_bytes": plan.memory_bytes.value,
        "step_seconds": step_seconds[0] or None,
        "total_steps": total_steps,
        "run_seconds": [total_steps * seconds + other_seconds for seconds in step_seconds] if step_seconds[0] else None,
        "planned_seconds": planned_seconds,
    }


def _memory_saving_patch(plan: Plan, patch: Patch, part: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the least costly settings to try after `part` ran out of memory; empty if none are left."""
    key = EVAL_BATCH if part == EVALUATION else MICRO_BATCH_KEY
    planned_batch = plan.per_device_eval_batch_size if part == EVALUATION else plan.per_device_train_batch_size
    rows = int(figures.get("rows") or patch.get(key, planned_batch.value))
    if rows > 1:
        return {key: rows // 2} if key == EVAL_BATCH else micro_batch_patch(plan, rows // 2)
    if part != EVALUATION and not (plan.config.training.gradient_checkpointing or CHECKPOINTING in patch):
        return {CHECKPOINTING: True}
    length = int(patch.get(LENGTH, plan.config.data.max_length))
    return {LENGTH: length // 2} if length > _SHORTEST else {}


def _disk_bytes(plan: Plan, parts: Parts, save_total_limit: int) -> int | None:
    """Return the bytes that the run will write, from the sizes of a rehearsed checkpoint and final model, or None."""
    part_bytes = [parts.get(name, {}).get("bytes") for name in (CHECKPOINT, FINAL)]
    if part_bytes[0] is None or part_bytes[1] is None:
        return None
    return run_bytes(
        int(part_bytes[0]),
        int(part_bytes[1]),
        save_total_limit=save_total_limit,
        saves=count_due(plan.total_steps.value, plan.save_every_steps.value),
        keeps_best=plan.config.evaluation.early_stopping_patience > 0,
        total_steps=plan.total_steps.value,
    )[0]


def _disk_fault(plan: Plan, parts: Parts, needed_bytes: int, free_bytes: int) -> dict[str, Any]:
    limits = range(plan.config.checkpoint.save_total_limit - 1, 0, -1)
    fitting_limit = next((limit for limit in limits if (_disk_bytes(plan, parts, limit) or 0) <= free_bytes), None)
    message = space_words("the run writes up to", needed_bytes, free_bytes)
    advice = "" if fitting_limit else "; set output.runs_dir to a folder on a larger disk"
    return {"part": "disk", "message": message + advice, "patch": {SAVE_LIMIT: fitting_limit} if fitting_limit else {}}


def _run_parts(request: Request, gpu: GpuChoice, runs: Path, report: Report) -> dict[str, dict[str, Any]]:
    """Rehearse all parts in one worker, and return their figures. If it is killed, its current part has failed."""
    parts: dict[str, dict[str, Any]] = {}
    current_part = LOADING

    def take_figures(figures: dict[str, Any]) -> None:
        nonlocal current_part
        current_part = figures.pop("part")
        report({"part": current_part, **figures})
        if figures:
            parts[current_part] = figures

    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=nearest_existing(runs)) as folder:
        question = question_of(request, gpu) | {"place": folder, "parts": list(REHEARSAL_PARTS)}
        try:
            ask("rehearse", question, sees_gpus=True, progress=take_figures)
        except WorkerFailed as failure:
            if current_part == LOADING and not failure.is_killed:
                raise RunError(f"the rehearsal could not start: {failure.reason}") from None
            take_figures({"part": current_part, "failed": failure.reason, "is_memory": failure.is_killed})
    return parts


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return sentences about the result of `rehearse`, for example `disk: 2.1 GiB needed, 50 GiB free`."""
    peak_bytes, planned = result["peak_memory_bytes"], result["planned_memory_bytes"]
    sentences = [f"peak memory {format_bytes(peak_bytes)}, planned {format_bytes(planned)}"]
    if result["run_seconds"]:
        run_words, least_words, most_words = map(format_seconds, result["run_seconds"])
        planned = result["planned_seconds"]
        sentences.append(
            f"{format_seconds(result['step_seconds'])}/step: the run of {result['total_steps']:,} steps takes about "
            f"{run_words} ({least_words} to {most_words})" + (f", planned {format_seconds(planned)}" if planned else "")
        )
    if result["disk_bytes"] is not None:
        needed_words, free_words = map(format_bytes, (result["disk_bytes"], result["disk_free_bytes"]))
        sentences.append(f"disk: {needed_words} needed, {free_words} free")
    if not result["faults"]:
        return [*sentences, "nothing failed: the run is ready to start"]
    return sentences + [
        f"FAILED  {fault['part']}: {fault['message']}"
        + (f"; {settings_words(fault['patch'])} works here" if fault["patch"] else "")
        for fault in result["faults"]
    ]


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the lines to show for one JSON object that `rehearse` prints; none when a part begins.

    An example: `largest micro-batch 0.8 s 1.2 GiB 8 rows; row 3 (begins ...`."""
    if "is_ready" in report:
        return result_lines(report)
    if "trying" in report:
        return [f"trying again with {settings_words(report['trying'])}"]
    name_cell = f"{report['part']:<24}"
    if "skipped" in report:
        return [f"{name_cell} skipped: {report['skipped']}"]
    memory_words = format_bytes(report["peak_memory_bytes"]) if "peak_memory_bytes" in report else ""
    cells = [name_cell, f"{format_seconds(report.get('seconds')):>8}", f"{memory_words:>9}", "; ".join(_words(report))]
    return ["  ".join(cells).rstrip()] if len(report) > 1 else []


def _words(figures: Mapping[str, Any]) -> Iterator[str]:
    if "failed" in figures:
        yield f"FAILED: {figures['failed']}"
    if "longest" in figures and "rows" in figures:
        begin_words = f" (begins {figures['begins']!r})" if figures.get("begins") else ""
        row_words = quantity(figures["rows"], "row")
        yield f"{row_words}; row {figures['row']:,}{begin_words} is the longest with {figures['longest']:,} tokens"
    if "step_seconds" in figures:
        low, high = (format_seconds(figures[name]) for name in ("least_seconds", "most_seconds"))
        yield f"{figures['steps']} steps, {format_seconds(figures['step_seconds'])} each ({low} to {high})"
    if "evaluation_seconds" in figures:
        yield f"an evaluation takes {format_seconds(figures['evaluation_seconds'])}"
    if "save_seconds" in figures:
        yield f"{format_bytes(figures['bytes'])} in {format_seconds(figures['save_seconds'])}, read back and verified"
    elif "bytes" in figures:
        yield format_bytes(figures["bytes"])
