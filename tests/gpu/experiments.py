"""The experiments of `tests.gpu.day`, by call and in the order of their value; each is a process of its own.

    python -m tests.gpu.experiments NAME --results FILE --work FOLDER --models FOLDER [--dry]

What one finds goes into the results at once, so that it is there whenever it is killed. Exit code 77: there was nothing
to measure here, and the last line says why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from tests.gpu.results import SKIPPED, append, read

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "tests" / "benchmarks"
# What comes back from a server that is lent: so many files of so many bytes. They are in no folder of their own.
MOST_FILES, MOST_FILE_BYTES = 8, 16 * 2**20
_WARM_UP_STEPS, _TRACED_AFTER, _TRACED_STEPS, _TAIL_LINES = 2, 10, 2, 15


class ExperimentFailed(Exception):
    """What an experiment asked for did not come about."""


class Skipped(Exception):
    """There is nothing to measure here."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an experiment works with."""

    name: str
    results: Path
    folder: Path
    models: Path
    dry: bool

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    def note(self, **figures: Any) -> None:
        append(self.results, {"name": self.name, "figures": figures})
        print(json.dumps(figures)[:2000], flush=True)

    def command(self, *words: object, answers: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        """A Python program carried out. Raises ExperimentFailed with the end of what it printed."""
        command = [sys.executable, *map(str, words)]
        print("$ python", *command[1:], flush=True)
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode not in answers:
            said = [line for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()][-_TAIL_LINES:]
            raise ExperimentFailed("\n".join([f"exit code {done.returncode}: {' '.join(command[1:6])} ...", *said]))
        return done

    def benchmark(self, name: str, *words: object) -> Any:
        """The JSON that a command of tests/benchmarks writes."""
        file = self.folder / "figures.json"
        self.command(BENCHMARKS / name, "--device", self.device, "--json", file, *words)
        return json.loads(file.read_text(encoding="utf-8"))

    def program(self, *words: object, answers: Sequence[int] = (0,)) -> str:
        return self.command("-m", "tui_trainer", *words, answers=answers).stdout

    def arguments(self, name: str, *words: object, **settings: object) -> list[str]:
        """Of a run; `training__max_steps` stands for training.max_steps."""
        chosen = {"output__runs_dir": self.folder / "runs", "output__name": name, **settings}
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in chosen.items()]
        gpu = ["--gpu", "none"] if self.dry else []
        return [*map(str, words), *gpu, *(word for pair in pairs for word in ("--set", pair))]

    def trained(self, shape: str) -> list[str]:
        """Arguments that name a model and documents, built unless they are there."""
        done = self.command(BENCHMARKS / "llamas.py", self.models, "--shape", "tiny" if self.dry else shape)
        model, documents = done.stdout.splitlines()[-2:]
        return ["--model", model, "--data", documents, "--profile", "finetune"]

    def keep(self, file: Path, name: str) -> None:
        """Put a file beside the results, where it is small enough to be brought back."""
        target, size = self.results.parent / name, file.stat().st_size
        there = {path.name for path in self.results.parent.iterdir() if path.is_file()} | {self.results.name}
        if size > MOST_FILE_BYTES or len(there - {name}) >= MOST_FILES:
            self.note(left_behind=f"{name} of {size / 1e6:.1f} MB beside {len(there)} files")
        else:
            shutil.copy(file, target)


def run_figures(folder: Path, left_out: range) -> dict[str, Any]:
    """What a run's plan and its journal have; steps that are left out were not timed fairly."""
    from tests.runs.journals import read_all
    from tui_trainer.planning.measured_steps import NOT_ALLOCATED
    from tui_trainer.runs.events import EvalDone, GaugesRead, RunProblem, StepDone

    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    events = read_all(folder / "journal.jsonl")
    steps = [event for event in events if isinstance(event, StepDone)]
    timed = [event for event in steps if event.step > _WARM_UP_STEPS and event.step not in left_out] or steps
    evals = [event.loss for event in events if isinstance(event, EvalDone)]
    host = [e.process_memory_bytes for e in events if isinstance(e, GaugesRead) and e.process_memory_bytes]
    parts = {part["name"]: part["bytes"] for part in plan["memory_parts"]}
    return {
        "device": plan["device"],
        "timed_steps": len(timed),
        "step_seconds": median(event.step_seconds for event in timed),
        "tokens_per_second": median(event.tokens_per_second for event in timed),
        "losses": [round(event.loss, 5) for event in steps],
        "eval_loss": evals[-1] if evals else None,
        "peak_memory_bytes": max(event.peak_memory_bytes for event in steps),
        "host_peak_bytes": max(host, default=None),
        "planned_step_seconds": plan["step_seconds"]["value"],
        "planned_allocated_bytes": sum(size for part, size in parts.items() if part not in NOT_ALLOCATED),
        "planned_host_bytes": (plan.get("host_memory_bytes") or {}).get("value"),
        "parameters": plan["parameters"]["value"],
        "precision": plan["precision"]["value"],
        "packing": plan["packing"]["value"],
        "planned_attention": plan.get("attention"),
        "micro_batch": plan["per_device_train_batch_size"]["value"],
        "problems": [f"{event.kind}: {event.message}" for event in events if isinstance(event, RunProblem)],
    }


# Nothing that would take time beside the steps.
STEPS_ONLY = {"evaluation__eval_steps": 0, "checkpoint__save_steps": 0, "logging__sample_steps": 0,
              "evaluation__max_eval_rows": 4}  # fmt: skip
TINY = {"training__max_steps": 12, "data__max_chars": 20_000, "model__scratch__hidden_size": 32,
        "model__scratch__num_hidden_layers": 1, "evaluation__max_eval_rows": 8}  # fmt: skip


def machine(work: Work) -> None:
    """What `diagnose` finds of the first card beside what `nvidia-smi` has, and how long an import takes."""
    from tests.gpu.day import card

    work.note(import_seconds={name: seconds_to_import(name) for name in ("torch", "transformers", "tui_trainer.cli")})
    # 1: something is wrong with this machine, which may be so.
    work.note(**beside_nvidia_smi(json.loads(work.program("diagnose", "--json", answers=(0, 1))), card()))


def seconds_to_import(module: str) -> float:
    started = monotonic()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return round(monotonic() - started, 2)


def beside_nvidia_smi(ours: Mapping[str, Any], theirs: Mapping[str, str] | None) -> dict[str, Any]:
    """`different` names what is not the same."""
    gpu, driver = (ours["gpus"] or [{}])[0], ours["driver"] or {}
    memory, power = gpu.get("memory_bytes"), gpu.get("power_limit_watts")
    found = {
        "name": gpu.get("name"),
        "memory.total": memory and str(round(memory / 2**20)),
        "driver_version": driver.get("version"),
        "compute_cap": gpu.get("capability") and ".".join(map(str, gpu["capability"])),
        "power.limit": power and f"{power:.2f}",
    }
    different = [key for key in found if theirs and found[key] != theirs.get(key)]
    return {"diagnose": found, "nvidia_smi": theirs, "different": different, "problems": ours["problems"]}


def rates(work: Work, *names: str) -> None:
    """What the card does by itself, by tests/benchmarks/card_rates.py."""
    sys.path.insert(0, str(BENCHMARKS))
    import card_rates

    for name in names:
        found: dict[str, Any] = {}
        for key, value in card_rates.MEASURED[name](work.device):
            found[key] = value
            work.note(**{name: found})


def quickstart(work: Work) -> None:
    """The first run that a user sees, whole."""
    work.program("--no-ui", *work.arguments("quickstart", **(TINY if work.dry else {})))
    work.note(**run_figures(work.folder / "runs" / "quickstart", range(0)))


def steps(
    work: Work, shape: str, *, count: int = _TRACED_AFTER + _TRACED_STEPS, trace: str = "", env: Sequence[str] = (),
    **settings: object,
) -> None:  # fmt: skip
    """A run of the program, its steps timed and two of them traced by groups. `trace` names a file to keep."""
    from tests.gpu.trace import traced_run

    os.environ.update(pair.split("=") for pair in env)  # torch reads them when it is first used
    after = 3 if work.dry else _TRACED_AFTER
    sizes: dict[str, object] = {"training__max_steps": after + _TRACED_STEPS if work.dry else count, **STEPS_ONLY}
    settings = {**sizes, **settings, **({"data__max_length": 64} if work.dry else {})}
    arguments = work.arguments("run", *work.trained(shape), **settings)
    code, watch = traced_run(arguments, after=after, steps=_TRACED_STEPS, found=lambda found: work.note(**found))
    if code:
        raise ExperimentFailed(f"the run ended with {code}")
    work.note(**run_figures(work.folder / "runs" / "run", range(watch.first, watch.last + 1)))
    if trace:
        # The whole of it may be too large, or take too long: all figures are there before.
        watch.export(work.folder / "trace.json.gz")
        work.keep(work.folder / "trace.json.gz", trace)


def race(work: Work, shape: str, method: str, *, contenders: str = "ours,trainer,bare") -> None:
    """Our steps beside a bare loop and transformers' Trainer, on the same rows."""
    shape = "tiny" if work.dry else shape
    rows = work.benchmark("speed.py", "--apart", "--shape", shape, "--method", method, "--contenders", contenders,
                          "--rounds", 1, "--models", work.models)  # fmt: skip
    work.note(**rows[0])


def tests(work: Work, group: str, place: str = "tests/gpu/test_on_a_gpu.py") -> None:
    """Tests of `pytest -m gpu`, each with a line of its own; in a dry run they are only collected."""
    if missing := [name for name in ("pytest", "pytest_timeout", "xdist") if not find_spec(name)]:
        raise Skipped(f"{missing[0]} is not installed")
    words = ["-m", "pytest", "-q", "-m", "gpu", "-n", "0", "--timeout", 100, "-p", "no:cacheprovider",
             "-p", "tests.gpu.noted_tests", "--results", work.results, "--group", group, place]  # fmt: skip
    if work.dry:
        done = work.command(*words, "--collect-only")
        work.note(collected=sum("::" in line for line in done.stdout.splitlines()))
        return
    tried = -1
    while True:
        # A kernel that fails ends the session, or its process: 2, or less than 0. A new one goes on with the rest.
        done = work.command(*words, answers=(0, 1, 2, 5, *range(-64, 0), *range(128, 192)))
        found, before = read(work.results), tried
        call = len(found.machines)
        for name, test in found.tests.items():
            if test.state == "started" and test.call == call:
                reason = f"the process ended with {done.returncode}"
                append(work.results, {"test": name, "state": "failed", "reason": reason})
        tried = sum(test.call == call for test in found.tests.values())
        if done.returncode in (0, 1, 5) or tried == before:
            break
    mine = {name: test for name, test in read(work.results).tests.items() if in_group(name, group)}
    work.note(**Counter(test.state for test in mine.values()))
    if failed := [name for name, test in mine.items() if test.state == "failed"]:
        raise ExperimentFailed("\n".join(failed))


def in_group(test: str, group: str) -> bool:
    from tests.gpu.noted_tests import group_of

    return group_of(test) == group


def kill_and_resume(work: Work, method: str, **more: object) -> None:
    """Killed in mid-run and resumed, a run ends as one that was never stopped, to the bit."""
    settings: dict[str, object] = {"training__max_steps": 12, "checkpoint__save_steps": 4, "logging__sample_steps": 0}
    settings |= {"training__effective_batch_size": 8, "data__max_length": 64 if work.dry else 512}
    settings |= {"evaluation__eval_steps": 6, "evaluation__max_eval_rows": 8, "training__learning_rate": 1e-4}
    settings |= {"logging__logging_steps": 1, "training__deterministic": "true", "tuning__method": method, **more}
    words, runs = work.trained("134m"), work.folder / "runs"
    work.program("--no-ui", *work.arguments("whole", *words, **settings))
    work.note(killed_at_step=kill_in_the_middle(work, work.arguments("killed", *words, **settings)))
    work.program("resume", runs / "killed", "--no-ui", *(["--gpu", "none"] if work.dry else []))
    whole, killed = (fingerprints(runs / name) for name in ("whole", "killed"))
    different = sorted(name for name in whole.keys() | killed.keys() if whole.get(name) != killed.get(name))
    work.note(files=len(whole), different=different)
    if different or not whole:
        raise ExperimentFailed(f"not the same bits: {', '.join(different) or 'there are none'}")


def kill_in_the_middle(work: Work, arguments: Sequence[str]) -> int:
    """Start a run and kill it between its first two checkpoints; the last step in its journal."""
    from tests.runs.journals import read_all
    from tui_trainer.runs.events import CheckpointSaved, StepDone

    journal = work.folder / "runs" / "killed" / "journal.jsonl"
    command = [sys.executable, "-m", "tui_trainer", "--no-ui", *arguments]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        events = read_all(journal) if journal.exists() else []
        saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
        steps = [event.step for event in events if isinstance(event, StepDone)]
        if saved and steps and steps[-1] > saved[0]:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            return int(steps[-1])
        sleep(0.02)
    raise ExperimentFailed(f"the run ended with {child.returncode} before it could be killed")


def fingerprints(folder: Path) -> dict[str, str]:
    """Of the weights that a run ended with, and of its optimizer."""
    last = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    files = [*last.rglob("*.safetensors"), *(folder / "model").rglob("*.safetensors")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def planned_memory(work: Work, case: str) -> None:
    """Planned against measured: a configuration of the grid, four times as wide as on a CPU."""
    found = work.benchmark("memory_grid.py", "--only", case, "--cases", 1, *([] if work.dry else ["--times", 4]))
    work.note(**{key: found["configurations"][0][key] for key in ("name", "predicted_bytes", "measured_bytes")})


def planned_time(work: Work, case: str) -> None:
    """Seconds and memory of a whole run on a machine that is new to the program, planned against measured."""
    sizes = ["--steps", 14] if work.dry else ["--times", 8]
    work.note(**work.benchmark("estimates.py", "--only", case, *sizes)[0])


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """`requires`: modules without which it is skipped. `is_dry`: one of its kind, which a dry run carries out."""

    call: int
    carry_out: Callable[[Work], None]
    requires: tuple[str, ...] = ()
    is_dry: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)


CALLS = {
    1: "does it start, what does the card do, 1.2 billion weights with every wait",
    2: "Llama-3.1-8B with LoRA, 1 x 4096",
    3: "Qwen3-1.7B, all weights, 2 x 4096",
    4: "tests of the GPU by value, kill -9 and resume",
    5: "plans against measurements, padded rows with and without cuDNN, then what failed before",
}
# Limits of each call in minutes, a minute or more below the ten that a server is lent for.
CALL_MINUTES = {1: 8.0, 2: 9.0, 3: 9.0, 4: 9.0, 5: 8.0}
LIGER, PLAIN = {"model__kernels": "liger"}, {"model__kernels": "none"}
BF16, FP32 = {"model__dtype": "bfloat16"}, {"model__dtype": "float32"}
_LIGER_KERNEL = ("liger_kernel",)
# Packed, attention goes by lengths: full rows alone would not ask for it.
_FULL_ROWS: dict[str, object] = {"data__max_length": 4096, "data__packing": "true"}
_ONE_ROW = {**_FULL_ROWS, "training__per_device_train_batch_size": 1, "training__effective_batch_size": 1,
            "tuning__method": "lora"}  # fmt: skip
_TWO_ROWS = {**_FULL_ROWS, "training__per_device_train_batch_size": 2, "training__effective_batch_size": 2,
             "tuning__method": "full"}  # fmt: skip
_DOCUMENTS: dict[str, object] = {"data__max_length": 1024, "training__effective_batch_size": 8}
_COMPILED = {"training__torch_compile": "true"}


def _stepped(
    call: int, shape: str, *settings: Mapping[str, object], requires: tuple[str, ...] = (), is_dry: bool = False,
    **options: Any,
) -> Experiment:  # fmt: skip
    chosen = {key: value for several in settings for key, value in several.items()}
    return Experiment(call=call, carry_out=partial(steps, shape=shape, **options, **chosen), requires=requires,
                      is_dry=is_dry, settings=chosen)  # fmt: skip


def _goal_8b(*settings: Mapping[str, object], **options: Any) -> Experiment:
    return _stepped(2, "8b-4096", _ONE_ROW, *settings, **options)


def _goal_17b(*settings: Mapping[str, object], **options: Any) -> Experiment:
    # Losses of so many steps are compared between settings.
    return _stepped(3, "1.7b-4096", _TWO_ROWS, *settings, count=60, **options)


_NOT_CUDNN = ("TORCH_CUDNN_SDPA_DEPRIORITIZED=1",)
_PADDED: dict[str, object] = {"data__packing": "false"}
EXPERIMENTS: dict[str, Experiment] = {
    "machine": Experiment(call=1, carry_out=machine, is_dry=True),
    "products, copies, launches": Experiment(
        call=1, carry_out=lambda work: rates(work, "products", "copies", "launches"), is_dry=True),
    "attention kernels, cuDNN's plans": Experiment(
        call=1, carry_out=lambda work: rates(work, "attention", "plans"), is_dry=True),
    "1.2b lora": _stepped(1, "1.2b", _DOCUMENTS, {"tuning__method": "lora"}),
    "1.2b full": _stepped(1, "1.2b", _DOCUMENTS, {"tuning__method": "full"}),
    "quickstart": Experiment(call=1, carry_out=quickstart, is_dry=True),

    "8b lora, liger": _goal_8b(LIGER, requires=_LIGER_KERNEL, trace="trace-8b-lora-liger.json.gz"),
    "8b lora": _goal_8b(PLAIN, trace="trace-8b-lora.json.gz", is_dry=True),
    "8b lora, liger, dense attention": _goal_8b(LIGER, _PADDED, requires=_LIGER_KERNEL),
    "8b lora, compiled": _goal_8b(PLAIN, _COMPILED),
    "8b lora, liger, chunks of 2048": _goal_8b(LIGER, {"training__loss_chunk_tokens": 2048}, requires=_LIGER_KERNEL),
    "8b lora, liger, compiled": _goal_8b(LIGER, _COMPILED, requires=_LIGER_KERNEL),
    "8b qlora, liger": _goal_8b(LIGER, {"tuning__method": "qlora"}, requires=("liger_kernel", "bitsandbytes")),
    "8b lora, checkpointing": _goal_8b(PLAIN, {"training__gradient_checkpointing": "true"}),
    "8b lora beside others": Experiment(call=2, carry_out=partial(race, shape="8b-4096", method="lora")),

    "1.7b full, fp32, liger": _goal_17b(FP32, LIGER, requires=_LIGER_KERNEL),
    "1.7b full, bf16, liger": _goal_17b(BF16, LIGER, requires=_LIGER_KERNEL, trace="trace-1.7b-full-liger.json.gz"),
    "1.7b full, fp32": _goal_17b(FP32, PLAIN),
    "1.7b full, bf16": _goal_17b(BF16, PLAIN),
    **{
        f"1.7b full, fp32, liger, chunks of {tokens}": _goal_17b(
            FP32, LIGER, {"training__loss_chunk_tokens": tokens}, requires=_LIGER_KERNEL)
        for tokens in (1024, 2048, 4096)
    },
    "1.7b full, bf16, compiled": _goal_17b(BF16, PLAIN, _COMPILED),
    "1.7b full, bf16, liger, accumulation 8": _stepped(
        3, "1.7b-4096", _TWO_ROWS, BF16, LIGER, {"training__effective_batch_size": 16}, requires=_LIGER_KERNEL),
    "1.7b full beside others": Experiment(
        call=3, carry_out=partial(race, shape="1.7b-4096", method="full"), is_dry=True),

    **{
        f"tests: {group}": Experiment(call=4, carry_out=partial(tests, group=group), is_dry=group == "attention")
        for group in ("attention", "resume", "memory", "4 and 8 bits", "families", "others")
    },
    "kill and resume, full": Experiment(call=4, carry_out=partial(kill_and_resume, method="full"), is_dry=True),
    "kill and resume, lora": Experiment(call=4, carry_out=partial(kill_and_resume, method="lora")),
    "kill and resume, qlora": Experiment(
        call=4, requires=("bitsandbytes",),
        carry_out=partial(kill_and_resume, method="qlora", training__optim="paged_adamw_8bit")),
    "tests: compile": Experiment(call=4, carry_out=partial(tests, group="compile")),

    "padded rows": _stepped(5, "1.2b", _DOCUMENTS, _PADDED, count=40),
    "padded rows without cuDNN": _stepped(5, "1.2b", _DOCUMENTS, _PADDED, count=40, env=_NOT_CUDNN),
    "short documents beside others": Experiment(
        call=5, carry_out=partial(race, shape="1.2b", method="lora", contenders="ours,trainer,trl,bare")),
    **{
        f"memory: {case}": Experiment(call=5, carry_out=partial(planned_memory, case=case), is_dry=dry)
        for case, dry in {
            "llama 6x256 4x256 full": True, "llama 8x768 2x256 lora16 bf16 w16": False, "llama 6x384 4x256": False,
            "llama 8x512 4x256 lora16 bf16 w16 ckpt": False, "gemma 6x384": False, "qwen2 6x512": False,
            "bert 4x256": False, "t5 4x384": False,
        }.items()
    },
    **{
        f"time: {case}": Experiment(call=5, carry_out=partial(planned_time, case=case), is_dry=dry)
        for case, dry in {"16 x 128": True, "8 x 512": False, "4 x 128": False, "64 x 192": False}.items()
    },
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    chosen = parser.parse_args()
    work = Work(name=chosen.name, results=chosen.results, folder=chosen.work, models=chosen.models, dry=chosen.dry)
    work.folder.mkdir(parents=True, exist_ok=True)
    try:
        EXPERIMENTS[chosen.name].carry_out(work)
    except Skipped as reason:
        print(reason, flush=True)
        return SKIPPED
    except ExperimentFailed as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
