"""Gathers what the checks look at. Reads sizes and counters, and hashes the data as `plan` does; no torch."""

import os
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil

from tui_trainer.checklist.contract import Context
from tui_trainer.checklist.earlier_run import newest_measured
from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError, Problem
from tui_trainer.hardware.cgroup import memory_left
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import disk_free_bytes, probe, with_memory_now
from tui_trainer.hardware.processor import load_of_others
from tui_trainer.hardware.storage import ReadRate, prepared_data_folder, read_place, read_rate
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.start import start_problems
from tui_trainer.planning import plan as planning
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.plan import Plan
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts

_ENVIRONMENT = ("OMP_", "MKL_", "GOMP_", "KMP_", "OPENBLAS_", "CUDA_VISIBLE_DEVICES")


def gather(
    loaded: LoadedConfig,
    progress: Progress | None = None,
    *,
    hardware: Hardware | None = None,
    plan: Plan | None = None,
    gpu: GpuChoice = None,
) -> Context:
    """Everything that the checks need. A plan that was made already is taken as it is.

    Of `hardware` the free memory is read anew: it may be as old as the program. `gpu` is the card that was asked for.
    """
    hardware = with_memory_now(hardware or probe())
    facts = _facts(loaded.config, progress)
    problems: tuple[Problem, ...] = ()
    if plan is None:
        plan, problems = _plan(loaded, hardware, facts, progress, gpu)
    basis: Basis | None = None
    with suppress(InputError):
        basis = planning.basis_of(loaded, hardware, plan) if plan else None
    with suppress(InputError):
        # Why a run cannot start that can be planned; what stands against planning is told already.
        problems = problems or tuple(start_problems(loaded))
    swap_used_bytes: int | None = None
    with suppress(OSError, psutil.Error):
        swap_used_bytes = memory_left().swap_used_bytes
    return Context(
        loaded=loaded,
        hardware=hardware,
        plan=plan,
        chosen_gpu=gpu,
        plan_basis=basis,
        facts=facts,
        problems=problems,
        all_tokens=_all_tokens(loaded.config, facts, progress),
        disk_free_bytes=disk_free_bytes(Path(loaded.config.output.runs_dir)),
        cache=read_place("prepared data", prepared_data_folder()),
        load_average=load_of_others(),
        environment={key: value for key, value in os.environ.items() if key.startswith(_ENVIRONMENT)},
        earlier=newest_measured(plan) if plan else None,
        swap_used_bytes=swap_used_bytes,
        data_read=_data_read(loaded.config),
    )


def _data_read(config: Config) -> ReadRate | None:
    """Of the first file that is trained on. Measured again where the file is another one."""
    for path in map(Path, config.data.paths):
        with suppress(OSError):
            if path.is_file():
                return _measured(path, path.stat().st_mtime_ns)
    return None


@cache
def _measured(path: Path, changed: int) -> ReadRate | None:
    return read_rate(path)


def _facts(config: Config, progress: Progress | None) -> DataFacts | None:
    with suppress(InputError):
        return find_task(config.task.type).data_facts(config, prepared_data_folder(), progress)
    return None


def _plan(
    loaded: LoadedConfig, hardware: Hardware, facts: DataFacts | None, progress: Progress | None, gpu: GpuChoice
) -> tuple[Plan | None, tuple[Problem, ...]]:
    """The plan, or what is in its way; where only memory is, both, so that the memory check can say what would fit."""
    try:
        if facts is None or not facts.rows:
            return estimated_plan(loaded, progress, gpu=gpu), ()
        return planning.make(loaded, hardware, facts, chosen_gpu=gpu), ()
    except InputError as error:
        problems = error.problems
    with suppress(InputError):
        if facts and facts.rows:
            # The same machine and cards, of which nobody says how much memory they have in all.
            cards = tuple(replace(card, memory_bytes=None) for card in hardware.gpus)
            unknown = replace(hardware, memory_bytes=None, gpus=cards)
            return planning.make(loaded, unknown, facts, chosen_gpu=gpu), problems
    return None, problems


def _all_tokens(config: Config, facts: DataFacts | None, progress: Progress | None) -> int | None:
    """Tokens of the whole text, held-out part and what `data.max_chars` leaves out counted in."""
    if config.data.max_chars:
        facts = _facts(with_changes(config, {"data.max_chars": 0}), progress)
    return facts.tokens + facts.eval_tokens if facts else None
