"""Steps of several processes against torch's DistributedDataParallel in a bare loop, over the very same batches.

    python -m tests.benchmarks.processes [--processes 2] [--rounds 12]

Both train a copy of one Llama in the same processes and take turns, five steps each; the figure is the median of the
rounds' ratios of the first process. On a machine with that many GPUs each process has one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from tui_trainer.config.load import Request
from tui_trainer.hardware.environment import prepare_environment
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import exact_plan
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.components import Components
from tui_trainer.training.job import Job
from tui_trainer.training.process import device_of, settings_of, use_device
from tui_trainer.training.ranks import Ranks, join_ranks
from tui_trainer.training.step import take_step

STEPS_A_TURN, WARM_UP_TURNS = 5, 1


def job_of(place: Path, processes: int) -> Job:
    settings = {
        "distributed.processes": processes,
        "model.scratch.hidden_size": 128,
        "model.scratch.num_hidden_layers": 2,
        "data.max_length": 64,
        "data.packing": "false",
        "training.max_steps": 10_000,
        "training.lr_scheduler_type": "constant",
        "training.weight_decay": 0.0,
        "training.mixed_precision": "no",
        "output.runs_dir": place,
    }
    loaded = load_config(
        Request(profile="scratch-llama", assignments=tuple(f"{key}={value}" for key, value in settings.items()))
    )
    folder = RunFolder.create(place, f"turn-{os.environ.get('RANK', 0)}")
    with JournalWriter(folder.journal) as journal:
        plan, data = exact_plan(loaded, folder, journal, lambda *_: None, gpu=None)
    return Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions={})


class Ours:
    """The program's own components and step."""

    def __init__(self, components: Components) -> None:
        self._components = components

    def step(self, number: int) -> float:
        parts = self._components
        report = take_step(
            lambda: parts.micro_batches_of(number), parts.loss, parts.optimizer, parts.mixed_precision, parts.clock,
            lr=1e-3, max_grad_norm=1.0, ranks=parts.ranks, collectives=parts.collectives,
        )  # fmt: skip
        return float(report.loss_sum)


class Bare:
    """What a person writes by hand."""

    def __init__(self, model: torch.nn.Module, components: Components, ranks: Ranks) -> None:
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._components, self._ranks = components, ranks

    def step(self, number: int) -> float:
        [batch] = self._components.micro_batches_of(number)
        labels = torch.tensor(batch.label_count, device=self._components.device)
        torch.distributed.all_reduce(labels)
        logits = self._model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.label_positions]
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        (loss * self._ranks.world_size / labels).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        summed = loss.detach()
        torch.distributed.all_reduce(summed)
        return float(summed)


def race(job: Job, rounds: int) -> None:
    """In each of the processes."""
    plan = job.plan
    if plan.gpu_uuids:
        plan = plan.model_copy(update={"gpu_uuid": plan.gpu_uuids[int(os.environ["RANK"])]})
    with settings_of(plan):
        use_device(device_of(plan))
        ranks = join_ranks(device_of(plan))
        told: list[str] = []
        components = Components(job, lambda *words: told.append(": ".join(words[:2])), ranks)
        contenders = {"ours": Ours(components), "bare": Bare(deepcopy(components.model), components, ranks)}
        ratios = []
        for turn in range(rounds + WARM_UP_TURNS):
            seconds, losses = {}, {}
            for name in sorted(contenders, reverse=bool(turn % 2)):
                started = perf_counter()
                steps = range(turn * STEPS_A_TURN + 1, (turn + 1) * STEPS_A_TURN + 1)
                losses[name] = [contenders[name].step(step) for step in steps]
                seconds[name] = (perf_counter() - started) / STEPS_A_TURN
            if turn >= WARM_UP_TURNS:
                ratios.append(seconds["bare"] / seconds["ours"])
            if ranks.is_first:
                shown = ", ".join(f"{name} {1e3 * seconds[name]:.1f} ms" for name in contenders)
                print(f"{shown}; largest difference of a loss {_difference(losses):.1e}", flush=True)
        if ranks.is_first:
            print(f"ours does {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of the bare loop's steps")
        torch.distributed.barrier()
    components.close()
    torch.distributed.destroy_process_group()


def _difference(losses: dict[str, list[float]]) -> float:
    return max(abs(one - two) / abs(two) for one, two in zip(losses["ours"], losses["bare"], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    chosen = parser.parse_args()
    if "RANK" in os.environ:
        with tempfile.TemporaryDirectory() as place:
            race(job_of(Path(place), chosen.processes), chosen.rounds)
        return
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HF_HUB_OFFLINE": "1", "TUI_TRAINER_HOME": home}
        # The data is prepared once, before the processes look for it.
        job = job_of(Path(home), chosen.processes)
        os.environ["OMP_NUM_THREADS"] = str(job.plan.threads.value)
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={chosen.processes}"]
        sys.exit(
            subprocess.run([sys.executable, *command, "-m", "tests.benchmarks.processes", *sys.argv[1:]]).returncode
        )


if __name__ == "__main__":
    prepare_environment()
    main()
