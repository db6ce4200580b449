"""A rehearsal: what a run would come to late, tried at once in a process of its own, with what it says about the run.

Where memory runs out, settings that take less are tried until some work: they are the remedy that is told.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tui_trainer.advice.fixes import as_request
from tui_trainer.advice.rules.evaluation_and_saving import SAVE_LIMIT
from tui_trainer.advice.rules.row_length import LENGTH
from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.errors import ConfigError, RunError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.probe import disk_free_bytes
from tui_trainer.hardware.storage import nearest_existing
from tui_trainer.launching.command_process import SENTENCE, JsonProcess
from tui_trainer.launching.micro_batches import cut_patch, question_of, with_settings
from tui_trainer.launching.open_run import load_config, name_problems, start_problems
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.planning.basis import EVAL_BATCH
from tui_trainer.planning.batch_cut import MICRO
from tui_trainer.planning.disk import run_bytes, space_words
from tui_trainer.planning.plan import CHECKPOINTING, Plan
from tui_trainer.runs.steps_and_eta import times
from tui_trainer.training.job import CHECKPOINT, EVALUATION, FINAL, LOADING, PARTS, SAMPLE, TYPICAL
from tui_trainer.units import format_bytes, format_seconds
from tui_trainer.worker.asking import WorkerFailed, ask

_MOST_TRIES = 6
_SHORTEST = 64

Heard = Callable[[dict[str, Any]], None]
"""Told each part that begins, and again when it is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What would have ended or harmed the run. `patch` is what works instead, tried here; empty: nothing was found."""

    part: str
    message: str
    patch: Patch = field(default_factory=dict)
    is_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsed:
    """`parts`: figures of each part by its name. `disk_free_bytes` where runs are written; None: not known."""

    plan: Plan
    parts: Mapping[str, Mapping[str, Any]]
    faults: tuple[Fault, ...]
    disk_bytes: int | None
    disk_free_bytes: int | None

    def figure(self, part: str, name: str) -> float:
        return float(self.parts.get(part, {}).get(name) or 0.0)

    @property
    def peak_bytes(self) -> int:
        """Of all parts: on a CPU what they add to the libraries, as the plan counts."""
        return max((int(part.get("peak_memory_bytes", 0)) for part in self.parts.values()), default=0)

    def run_seconds(self, step_seconds: float) -> float:
        """Of the whole run: its steps, evaluations, checkpoints, texts and the final model."""
        plan = self.plan
        total = plan.total_steps.value
        saves, samples = times(total, plan.save_every_steps.value), plan.sample_every_steps.value
        evaluations = times(total, plan.eval_every_steps.value) if plan.eval_rows.value else 0
        return (
            total * step_seconds
            + evaluations * self.figure(EVALUATION, "evaluation_seconds")
            + saves * self.figure(CHECKPOINT, "save_seconds")
            + (total // samples if samples else 0) * self.figure(SAMPLE, "sample_seconds")
            + self.figure(FINAL, "seconds")
        )

    def _planned_seconds(self) -> float | None:
        """From the first step on, as `run_seconds`."""
        whole, beginning = self.plan.duration_seconds.value, self.plan.beginning_seconds
        return whole - (beginning.value or 0.0) if whole is not None and beginning else whole

    def as_json(self) -> dict[str, Any]:
        step = self.figure(TYPICAL, "step_seconds")
        least, most = (self.run_seconds(self.figure(TYPICAL, name)) for name in ("least_seconds", "most_seconds"))
        return {
            "is_ready": not self.faults,
            "faults": [{"part": one.part, "message": one.message, "patch": dict(one.patch)} for one in self.faults],
            "parts": {name: dict(figures) for name, figures in self.parts.items()},
            "peak_memory_bytes": self.peak_bytes,
            "planned_memory_bytes": self.plan.memory_bytes.value,
            "step_seconds": step or None,
            "total_steps": self.plan.total_steps.value,
            "run_seconds": [self.run_seconds(step), least, most] if step else None,
            "planned_seconds": self._planned_seconds(),
            "disk_bytes": self.disk_bytes,
            "disk_free_bytes": self.disk_free_bytes,
        }


def rehearse(request: Request, gpu: GpuChoice, heard: Heard) -> Rehearsed:
    """Raises InputError for what the plan refuses, RunError where no model could be made."""
    loaded = load_config(request, gpu=gpu)
    plan = estimated_plan(loaded, gpu=gpu)
    if problems := [*name_problems(loaded), *start_problems(loaded)]:
        raise ConfigError(problems)
    runs = Path(loaded.config.output.runs_dir)
    patch: dict[str, Any] = {}
    faults: list[Fault] = []
    for number in range(_MOST_TRIES):
        parts = _rehearsed(with_settings(request, patch), gpu, runs, heard)
        failed = {name: one for name, one in parts.items() if "failed" in one}
        if number == 0:
            faults = [
                Fault(part=name, message=one["failed"], is_memory=one.get("is_memory", False))
                for name, one in failed.items()
            ]
        patch |= {key: value for one in failed.values() for key, value in one.get("works_with", {}).items()}
        if MICRO in patch:
            patch |= cut_patch(plan, patch[MICRO])
        # What no longer runs out of memory, or went on in this very process with smaller passes.
        works = {name for name, one in parts.items() if "failed" not in one or "works_with" in one}
        faults = [replace(one, patch=dict(patch)) if one.is_memory and one.part in works else one for one in faults]
        short = next((name for name, one in failed.items() if one.get("is_memory") and "works_with" not in one), None)
        less = short and _less(plan, patch, short, parts[short])
        if not less:
            break
        patch |= less
        heard({"trying": dict(patch)})
    free, needed = disk_free_bytes(runs), _disk_bytes(plan, parts, plan.config.checkpoint.save_total_limit)
    if needed is not None and free is not None and needed > free:
        faults.append(_disk_fault(plan, parts, needed, free))
    return Rehearsed(plan=plan, parts=parts, faults=tuple(faults), disk_bytes=needed, disk_free_bytes=free)


def _less(plan: Plan, patch: Patch, part: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What takes less memory and was not tried yet, the cheapest first; empty: nothing."""
    key = EVAL_BATCH if part == EVALUATION else MICRO
    planned = plan.per_device_eval_batch_size if part == EVALUATION else plan.per_device_train_batch_size
    rows = int(found.get("rows") or patch.get(key, planned.value))
    if rows > 1:
        return {key: rows // 2} if key == EVAL_BATCH else cut_patch(plan, rows // 2)
    if part != EVALUATION and not (plan.config.training.gradient_checkpointing or CHECKPOINTING in patch):
        return {CHECKPOINTING: True}
    length = int(patch.get(LENGTH, plan.config.data.max_length))
    return {LENGTH: length // 2} if length > _SHORTEST else {}


def _disk_bytes(plan: Plan, parts: Mapping[str, Mapping[str, Any]], kept: int) -> int | None:
    """What the run writes, by what a checkpoint and the final model took here; None where they were not written."""
    sizes = [parts.get(name, {}).get("bytes") for name in (CHECKPOINT, FINAL)]
    if sizes[0] is None or sizes[1] is None:
        return None
    return run_bytes(
        int(sizes[0]),
        int(sizes[1]),
        save_total_limit=kept,
        saves=times(plan.total_steps.value, plan.save_every_steps.value),
        keeps_best=plan.config.evaluation.early_stopping_patience > 0,
        total_steps=plan.total_steps.value,
    )[0]


def _disk_fault(plan: Plan, parts: Mapping[str, Mapping[str, Any]], needed: int, free: int) -> Fault:
    limits = range(plan.config.checkpoint.save_total_limit - 1, 0, -1)
    kept = next((one for one in limits if (_disk_bytes(plan, parts, one) or 0) <= free), None)
    message = space_words("the run writes up to", needed, free)
    elsewhere = "" if kept else "; set output.runs_dir to a folder on a larger disk"
    return Fault(part="disk", message=message + elsewhere, patch={SAVE_LIMIT: kept} if kept else {})


def _rehearsed(request: Request, gpu: GpuChoice, runs: Path, heard: Heard) -> dict[str, dict[str, Any]]:
    """What one process found; of a part in which it was killed, that it was."""
    parts: dict[str, dict[str, Any]] = {}
    current = LOADING

    def hear(told: dict[str, Any]) -> None:
        nonlocal current
        current = told.pop("part")
        heard({"part": current, **told})
        if told:
            parts[current] = told

    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=nearest_existing(runs)) as place:
        question = question_of(request, gpu) | {"place": place, "parts": list(PARTS)}
        try:
            ask("rehearse", question, sees_gpus=True, progress=hear)
        except WorkerFailed as failure:
            if current == LOADING and not failure.is_killed:
                raise RunError(f"the rehearsal could not start: {failure.reason}") from None
            parts[current] = {"failed": failure.reason, "is_memory": failure.is_killed}
            heard({"part": current, **parts[current]})
    return parts


def result_lines(found: Mapping[str, Any]) -> list[str]:
    """What came of it, for people; `found` as `Rehearsed.as_json` gives it."""
    peak, planned = found["peak_memory_bytes"], found["planned_memory_bytes"]
    said = [f"peak memory {format_bytes(peak)}, planned {format_bytes(planned)}"]
    if found["run_seconds"]:
        seconds, least, most = map(format_seconds, found["run_seconds"])
        planned = found["planned_seconds"]
        said.append(
            f"{format_seconds(found['step_seconds'])}/step: the run of {found['total_steps']:,} steps takes about "
            f"{seconds} ({least} to {most})" + (f", planned {format_seconds(planned)}" if planned else "")
        )
    if found["disk_bytes"] is not None:
        said.append(f"disk: {format_bytes(found['disk_bytes'])} needed, {format_bytes(found['disk_free_bytes'])} free")
    if not found["faults"]:
        return [*said, "nothing failed: the run is ready to start"]
    return said + [
        f"FAILED  {one['part']}: {one['message']}"
        + (f"; {settings_words(one['patch'])} works here" if one["patch"] else "")
        for one in found["faults"]
    ]


def trying_line(patch: Patch) -> str:
    return f"trying again with {settings_words(patch)}"


def part_line(name: str, figures: Mapping[str, Any]) -> str:
    """`largest micro-batch  8 rows, the longest 512 tokens ...  1.2 GiB  0.8 s`."""
    if "skipped" in figures:
        return f"{name:<24} skipped: {figures['skipped']}"
    cells = [f"{name:<24}", f"{format_seconds(figures.get('seconds')):>8}"]
    cells.append(f"{format_bytes(figures.get('peak_memory_bytes')) if 'peak_memory_bytes' in figures else '':>9}")
    return "  ".join([*cells, "; ".join(_words(figures))]).rstrip()


def _words(figures: Mapping[str, Any]) -> Iterator[str]:
    if "failed" in figures:
        yield f"FAILED: {figures['failed']}"
    if "longest" in figures and "rows" in figures:
        begins = f", which begins {figures['begins']!r}" if figures.get("begins") else ""
        rows = f"{figures['rows']} rows" if figures["rows"] != 1 else "1 row"
        yield f"{rows}, the longest {figures['longest']:,} tokens: row {figures['row']:,}{begins}"
    if "step_seconds" in figures:
        least, most = (format_seconds(figures[name]) for name in ("least_seconds", "most_seconds"))
        yield f"{figures['steps']} steps, {format_seconds(figures['step_seconds'])} each ({least} to {most})"
    if "evaluation_seconds" in figures:
        yield f"an evaluation takes {format_seconds(figures['evaluation_seconds'])}"
    if "save_seconds" in figures:
        yield f"{format_bytes(figures['bytes'])} in {format_seconds(figures['save_seconds'])}, read back and verified"
    elif "bytes" in figures:
        yield format_bytes(figures["bytes"])


# Commands about a config, in processes that the screens begin.


class ConfigProcess(JsonProcess):
    """A command of the program about a config, with its lines as they come."""

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice, command: Sequence[str], *options: str) -> None:
        """Raises OSError where no process can be started."""
        settings = [part for one in as_request(loaded, {}).assignments for part in ("--set", one)]
        card = [] if gpu is None else ["--gpu", str(gpu)]
        super().__init__([*command, *settings, *options, *card], {})
        self.outcomes: dict[str, bool] = {}
        """The lines that say whether something worked."""

    @property
    def verdict(self) -> tuple[str, bool]:
        raise NotImplementedError

    def _take(self, told: dict[str, Any]) -> None:
        pass


class RehearsalProcess(ConfigProcess):
    cancelled = "cancelled; nothing was saved"

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, ["rehearse"])

    @property
    def patch(self) -> dict[str, Any]:
        found = self.result or {}
        return {key: value for fault in found.get("faults", []) for key, value in fault["patch"].items()}

    @property
    def verdict(self) -> tuple[str, bool]:
        if self.result:
            return self.lines[-1], bool(self.result["is_ready"])
        return f"not rehearsed: {self.reason}", False

    def _take(self, told: dict[str, Any]) -> None:
        if "is_ready" in told:
            self.result = told
            self.lines += result_lines(told)
            self.outcomes |= dict.fromkeys(self.lines[-max(len(told["faults"]), 1) :], bool(told["is_ready"]))
        elif "trying" in told:
            self.lines.append(trying_line(told["trying"]))
        elif len(told) > 1:
            self.lines.append(part_line(told["part"], told))
            if "failed" in told:
                self.outcomes[self.lines[-1]] = False
        else:
            self.part = str(told["part"])


class TuneProcess(ConfigProcess):
    """The fastest settings. Its sentences are kept."""

    cancelled = "cancelled before any result"
    _command: Sequence[str] = ("tune",)

    def __init__(self, loaded: LoadedConfig, gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, self._command)

    @property
    def patch(self) -> dict[str, Any]:
        return dict(self.result["patch"]) if self.result else {}

    @property
    def verdict(self) -> tuple[str, bool]:
        return (self.result["sentence"], True) if self.result else (f"not tuned: {self.reason}", False)

    def _take(self, told: dict[str, Any]) -> None:
        if "sentence" in told:
            self.result = told

    def _hear(self, line: str) -> None:
        super()._hear(line)
        if line.startswith(SENTENCE):
            self.lines.append(self.part)


class SizesProcess(TuneProcess):
    """How many rows behind a step make the machine full, not the fastest settings at as many."""

    _command = ("tune", "--effective")


class SwitchesProcess(TuneProcess):
    """What each switch of training gains here. Nothing is chosen."""

    _command = ("bench", "train")

    @property
    def patch(self) -> dict[str, Any]:
        return {}

    @property
    def verdict(self) -> tuple[str, bool]:
        return ("all training options measured", True) if self.result else (f"not measured: {self.reason}", False)

    def _take(self, told: dict[str, Any]) -> None:
        if "variants" in told:
            self.result = told


class GainProcess(ConfigProcess):
    """The checks of these `names`, or of `all`. Each gain is kept as soon as it is measured."""

    def __init__(self, loaded: LoadedConfig, names: Sequence[str], gpu: GpuChoice) -> None:
        super().__init__(loaded, gpu, ["check"], *(f"--measure={name}" for name in names))

    @property
    def check(self) -> str:
        return self.part.partition(":")[0]
