"""The parts of `tests.gpu.day`, each a process of its own: it asks the program and the benchmarks, and writes figures.

    python -m tests.gpu.parts NAME --work FOLDER --models FOLDER --seconds LIMIT [--dry]

FOLDER/figures.json is written anew with each figure, so that what was measured before a failure or the limit is kept.
Exit code 77: there was nothing to measure here, and the figure `skipped` says why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from tests.gpu.day import FIGURES, ROOT, SKIPPED, card
from tui_trainer.planning.measured_memory import NOT_ALLOCATED

BENCHMARKS = ROOT / "tests" / "benchmarks"
_WARM_UP_STEPS, _TAIL_LINES = 2, 15


# The longest last: 8 billion weights that all train.
METHODS = ("lora", "qlora", "full")
NEEDS: dict[str, tuple[str, ...]] = {"full": (), "lora": ("peft",), "qlora": ("peft", "bitsandbytes")}


class PartFailed(Exception):
    """What a part asked for did not come about."""


class Skipped(Exception):
    """Here is nothing to measure."""


@dataclass(frozen=True)
class Part:
    """Where a part works, and the figures that it has so far."""

    work: Path
    models: Path
    dry: bool
    until: float
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    def limit(self, count: int) -> float:
        """Seconds for the next of so many things to do: twice its share, but never all that is left."""
        left = max(self.until - monotonic(), 1.0)
        return left * min(2.0 / count, 0.95)

    def note(self, **figures: Any) -> None:
        self.figures.update(figures)
        path = self.work / FIGURES
        path.with_suffix(".part").write_text(json.dumps(self.figures, indent=1), encoding="utf-8")
        path.with_suffix(".part").replace(path)
        print(json.dumps(figures)[:2000], flush=True)

    def command(
        self, *words: object, answers: Sequence[int] = (0,), limit_seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A Python program carried out. Raises PartFailed with the end of what it said."""
        command = [sys.executable, *map(str, words)]
        print("$ python", *command[1:], flush=True)
        try:
            done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  check=False, timeout=limit_seconds)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise PartFailed(f"not done in {limit_seconds:.0f} s: {' '.join(command[1:6])} ...") from error
        if done.returncode not in answers:
            said = [line for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()][-_TAIL_LINES:]
            raise PartFailed("\n".join([f"exit code {done.returncode}: {' '.join(command[1:6])} ...", *said]))
        return done

    def program(self, *words: object, answers: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        return self.command("-m", "tui_trainer", *words, answers=answers)

    def run(self, name: str, *words: object, **settings: object) -> dict[str, Any]:
        """A run of the program to its end; its figures."""
        started = monotonic()
        self.program("--no-ui", *self.words_of(name, *words, **settings))
        return {"seconds": round(monotonic() - started, 1), **run_figures(self.work / "runs" / name)}

    def words_of(self, name: str, *words: object, **settings: object) -> list[object]:
        """Arguments of a run; `training__max_steps` stands for training.max_steps."""
        chosen = {"output__runs_dir": self.work / "runs", "output__name": name, **settings}
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in chosen.items()]
        gpu = ["--gpu", "none"] if self.dry else []
        return [*words, *gpu, *(word for pair in pairs for word in ("--set", pair))]

    def llama(self, shape: str) -> tuple[Path, Path]:
        """(model, documents) of a shape, made by whoever needs them first."""
        shape = "tiny" if self.dry else shape
        done = self.command(BENCHMARKS / "llamas.py", self.models, "--shape", shape)
        model, documents = done.stdout.splitlines()[-2:]
        return Path(model), Path(documents)


def run_figures(folder: Path) -> dict[str, Any]:
    """What a run's plan and its journal say."""
    from tui_trainer.runs.events import EvalDone, GaugesRead, RunProblem, StepDone
    from tui_trainer.runs.journal import read_all

    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    events = read_all(folder / "journal.jsonl")
    steps = [event for event in events if isinstance(event, StepDone)]
    timed = steps[_WARM_UP_STEPS:] or steps
    evals = [event.loss for event in events if isinstance(event, EvalDone)]
    host = [e.process_memory_bytes for e in events if isinstance(e, GaugesRead) and e.process_memory_bytes]
    parts = {part["name"]: part["bytes"] for part in plan["memory_parts"]}
    return {
        "device": plan["device"],
        "steps": len(steps),
        "step_seconds": median(event.step_seconds for event in timed),
        "tokens_per_second": median(event.tokens_per_second for event in timed),
        "first_loss": steps[0].loss,
        "last_loss": steps[-1].loss,
        "eval_loss": evals[-1] if evals else None,
        "peak_memory_bytes": max(event.peak_memory_bytes for event in steps),
        "host_peak_bytes": max(host, default=None),
        "planned_step_seconds": plan["step_seconds"]["value"],
        "planned_allocated_bytes": sum(size for part, size in parts.items() if part not in NOT_ALLOCATED),
        "planned_host_bytes": (plan.get("host_memory_bytes") or {}).get("value"),
        "parameters": plan["parameters"]["value"],
        "precision": plan["precision"]["value"],
        "packing": plan["packing"]["value"],
        "problems": [f"{event.kind}: {event.message}" for event in events if isinstance(event, RunProblem)],
    }


# Nothing that would take time beside the steps.
STEPS_ONLY = {"evaluation__eval_steps": 0, "checkpoint__save_steps": 0, "logging__sample_steps": 0}
TINY = {"training__max_steps": 12, "data__max_chars": 20_000, "model__scratch__hidden_size": 32,
        "model__scratch__num_hidden_layers": 1, "evaluation__max_eval_rows": 8}  # fmt: skip


def start(part: Part) -> None:
    """Does it start: the card's facts, the quickstart, and a model of 1.2 billion weights made from its config."""
    part.note(facts=facts_beside_nvidia_smi(part))
    part.note(quickstart=part.run("quickstart", **(TINY if part.dry else {})))
    model, documents = part.llama("1.2b")
    sizes = {"data__max_length": 64 if part.dry else 1024, "training__effective_batch_size": 8}
    words = ("--model", model, "--data", documents, "--profile", "finetune")
    part.note(llama=part.run("llama", *words, training__max_steps=12, **sizes, **STEPS_ONLY))


def facts_beside_nvidia_smi(part: Part) -> dict[str, Any]:
    """What `diagnose` says of the first card beside what `nvidia-smi` says; `different` names what is not the same."""
    # 1: something is wrong with this machine, which may be so.
    ours = json.loads(part.program("diagnose", "--json", answers=(0, 1)).stdout)
    gpu, driver, theirs = (ours["gpus"] or [{}])[0], ours["driver"] or {}, card()
    if theirs is None:
        return {"ours": {"gpus": len(ours["gpus"])}, "nvidia_smi": None, "different": []}
    memory, power = gpu.get("memory_bytes"), gpu.get("power_limit_watts")
    found = {
        "name": gpu.get("name"),
        "memory.total": memory and str(round(memory / 2**20)),
        "driver_version": driver.get("version"),
        "compute_cap": gpu.get("capability") and ".".join(map(str, gpu["capability"])),
        "power.limit": power and f"{power:.2f}",
    }
    return {"ours": found, "nvidia_smi": theirs, "different": [key for key in found if found[key] != theirs.get(key)],
            "problems": ours["problems"]}  # fmt: skip


def tests(part: Part) -> None:
    """`pytest -m gpu`; in a dry run they are only collected."""
    if missing := [name for name in ("pytest", "pytest_timeout", "xdist") if not find_spec(name)]:
        raise Skipped(f"{missing[0]} is not installed")
    report = part.work / "tests.xml"
    words = ["-m", "pytest", "-q", "-m", "gpu", "-n", "0", "-p", "no:cacheprovider", "tests/gpu"]
    if part.dry:
        done = part.command(*words, "--collect-only")
        part.note(collected=sum("::" in line for line in done.stdout.splitlines()))
        return
    done = part.command(*words, f"--junitxml={report}", answers=(0, 1))
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    reasons = [case.find("skipped") for case in cases]
    skipped = [reason.get("message", "") for reason in reasons if reason is not None]
    part.note(passed=len(cases) - len(failed) - len(skipped), skipped=sorted(set(skipped)), skipped_count=len(skipped),
              failed={str(case.get("name")): _last_words(case) for case in failed})  # fmt: skip
    if failed:
        raise PartFailed("\n".join(done.stdout.splitlines()[-_TAIL_LINES:]))


def _last_words(case: ElementTree.Element) -> str:
    node = case.find("failure")
    node = case.find("error") if node is None else node
    return (node.get("message") or "")[:300] if node is not None else ""


def memory(part: Part) -> None:
    """Planned against measured: 30 configurations, four times as wide as on a CPU."""
    file = part.work / "grid.json"
    sizes = ["--cases", 1, "--only", "llama 6x256"] if part.dry else ["--cases", 30, "--times", 4]
    try:
        part.command(BENCHMARKS / "memory_grid.py", "--device", part.device, *sizes, "--json", file)
    finally:
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            rows = [{key: row[key] for key in ("name", "predicted_bytes", "measured_bytes")}
                    for row in found["configurations"]]  # fmt: skip
            part.note(configurations=rows, failed=[text[:300] for text in found["failed"]])


def speed(part: Part) -> None:
    """Against a bare loop and the trainers that are here, on the same rows: each shape and method."""
    part.note(races=[], left_out={})
    if not part.dry:
        here = "it changes transformers for its whole process: run it in an environment of its own"
        part.note(left_out={"unsloth": here if find_spec("unsloth") else "not installed"})
    races = [(shape, method) for shape in (["tiny"] if part.dry else ["1.2b", "8b"]) for method in METHODS]
    for number, (shape, method) in enumerate(races):
        name = f"{method} {shape}"
        if why := not_here(method, part):
            part.note(left_out={**part.figures["left_out"], name: why})
        else:
            race_and_note(part, shape, method, name, limit_seconds=part.limit(len(races) - number))


def not_here(method: str, part: Part) -> str:
    """Why a method cannot be trained on this machine; empty: it can."""
    if method == "qlora" and part.dry:
        return "weights in 4 bits need a card"
    missing = [name for name in NEEDS[method] if not find_spec(name)]
    return f"{missing[0]} is not installed" if missing else ""


def race_and_note(part: Part, shape: str, method: str, name: str, *, limit_seconds: float) -> None:
    file = part.work / f"{name.replace(' ', '-')}.json"
    contenders = "ours,trainer,bare" if part.dry else "ours,trainer,trl,bare"
    rounds = 1 if part.dry else 2
    # What 8 billion weights need to train in fp32 is more than a card has: bf16 with fp32 copies is no less.
    settings = ["--set", "model.dtype=bfloat16"] if (shape, method) == ("8b", "full") else []
    try:
        part.command(BENCHMARKS / "speed.py", "--apart", "--shape", shape, "--method", method, "--device", part.device,
                     "--contenders", contenders, "--rounds", rounds, "--models", part.models, "--json", file,
                     *settings, limit_seconds=limit_seconds)  # fmt: skip
    except PartFailed as error:
        words = str(error).splitlines()
        part.note(left_out={**part.figures["left_out"], name: " ".join(words[-2:])[:500]})
        if part.dry:
            raise
        return
    part.note(races=[*part.figures["races"], *json.loads(file.read_text(encoding="utf-8"))])


def switches(part: Part) -> None:
    """Each switch on and off, in turns with the run as it is by itself."""
    part.note(switches=[], left_out={})
    found, left_out = available_switches(dry=part.dry)
    part.note(left_out=left_out)
    shape = "tiny" if part.dry else "1.2b"
    for number, (title, method, settings) in enumerate(found):
        limit = part.limit(len(found) - number) / (2 if part.dry else 4)
        name = f"{title} ({method})"
        rates: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
        try:
            for _ in range(1 if part.dry else 2):
                for side, chosen in settings.items():
                    rates[side].append(alone(part, shape, method, chosen, limit_seconds=limit))
        except PartFailed as error:
            part.note(left_out={**part.figures["left_out"], name: " ".join(str(error).splitlines()[-2:])[:500]})
            if part.dry:
                raise
            continue
        row = {"switch": title, "method": method, "settings": settings}
        row |= {side: {"tokens_per_second": median(rate["median_tokens_per_second"] for rate in several),
                       "peak_memory_bytes": max(rate["peak_memory_bytes"] for rate in several),
                       "problems": several[0]["problems"]}
                for side, several in rates.items()}  # fmt: skip
        part.note(switches=[*part.figures["switches"], row])


def alone(part: Part, shape: str, method: str, settings: Mapping[str, str], *, limit_seconds: float) -> dict[str, Any]:
    """Our own speed with some settings, in a process of its own: kernels and compilers change all of it."""
    file = part.work / "alone.json"
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    part.command(BENCHMARKS / "speed.py", "--apart", "--shape", shape, "--method", method, "--device", part.device,
                 "--contenders", "ours", "--rounds", 1, "--models", part.models, "--json", file, *words,
                 limit_seconds=limit_seconds)  # fmt: skip
    figures = json.loads(file.read_text(encoding="utf-8"))[0]
    if "ours" not in figures["contenders"]:
        raise PartFailed(str(figures["left_out"].get("ours", "no figures")))
    return {**figures["contenders"]["ours"], "problems": figures["problems"]}


Switch = tuple[str, str, dict[str, dict[str, str]]]
_ATTENTION = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flex_attention": "triton",
}


def available_switches(*, dry: bool) -> tuple[list[Switch], dict[str, str]]:
    """(title, method, settings off and on) of what the config has and what is installed; what is left out, and why."""
    known = choices_of_settings()
    found: list[Switch] = [
        ("packing", "full", {"off": {"data.packing": "false"}, "on": {"data.packing": "true"}}),
    ]
    left_out: dict[str, str] = {}
    if dry:
        return found, {"all but packing": "left out of a dry run"}
    for method in ("full", "lora"):
        compiled = {"off": {"training.torch_compile": "false"}, "on": {"training.torch_compile": "true"}}
        found.append(("compile", method, compiled))
        if find_spec("liger_kernel"):
            sides = {"off": {"model.kernels": "none"}, "on": {"model.kernels": "liger"}}
            found.append(("kernels liger", method, sides))
        else:
            left_out["kernels liger"] = "liger_kernel is not installed"
    for attention in known["model.attn_implementation"]:
        package = _ATTENTION.get(attention)
        if package and not find_spec(package):
            left_out[attention] = f"{package} is not installed"
        elif package:
            off = {"model.attn_implementation": "auto"}
            found.append((attention, "full", {"off": off, "on": {"model.attn_implementation": attention}}))
    checkpointing = "training.gradient_checkpointing"
    found.append(("checkpointing", "full", {"off": {checkpointing: "false"}, "on": {checkpointing: "true"}}))
    for optim in optimizers_in_fewer_bits():
        off = {"training.optim": "adamw_torch_fused"}
        found.append((optim, "full", {"off": off, "on": {"training.optim": optim}}))
    return found, left_out


def choices_of_settings() -> dict[str, list[str]]:
    """Every setting of the program, with its named values."""
    from tui_trainer.config.load import all_settings

    return {key: [str(choice) for choice in (setting.choices or ())] for key, setting in all_settings().items()}


def optimizers_in_fewer_bits() -> list[str]:
    """Of those whose library is here."""
    from tui_trainer.optimizers import OPTIMIZERS

    known = {name: spec for name, spec in OPTIMIZERS.items() if "8bit" in name or "4bit" in name}
    return [name for name, spec in known.items() if all(find_spec(module.split(".")[0]) for module in spec.modules)]


def resume(part: Part) -> None:
    """Killed in mid-run and resumed, a run ends as one that was never stopped; that one, repeated, too."""
    part.note(runs=[], left_out={})
    model, documents = part.llama("134m")
    sizes: dict[str, object] = {"training__max_steps": 12, "checkpoint__save_steps": 4, "logging__sample_steps": 0}
    sizes |= {"training__effective_batch_size": 8, "data__max_length": 64 if part.dry else 512}
    sizes |= {"evaluation__eval_steps": 6, "evaluation__max_eval_rows": 8, "training__learning_rate": 1e-4}
    sizes |= {"logging__logging_steps": 1, "training__deterministic": "true"}
    ways: dict[str, dict[str, object]] = {"full": {}, "lora": {}, "qlora": {"training__optim": "paged_adamw_8bit"}}
    for method, more in ways.items():
        if why := "left out of a dry run" if part.dry and method == "lora" else not_here(method, part):
            part.note(left_out={**part.figures["left_out"], method: why})
            continue
        settings = {**sizes, "tuning__method": method, **more}
        words = ("--model", model, "--data", documents, "--profile", "finetune")
        runs = part.work / "runs"
        part.run(f"{method}-whole", *words, **settings)
        part.run(f"{method}-again", *words, **settings)
        killed_at = kill_in_the_middle(part, part.words_of(f"{method}-killed", *words, **settings), f"{method}-killed")
        part.program("resume", runs / f"{method}-killed", "--no-ui", *(["--gpu", "none"] if part.dry else []))
        whole, again, killed = (fingerprints(runs / f"{method}-{name}") for name in ("whole", "again", "killed"))
        row = {"method": method, **more, "killed_at_step": killed_at, "files": sorted(whole),
               "equal": killed == whole, "repeated_equal": again == whole,
               "different": sorted(name for name in whole if whole[name] != killed.get(name))}  # fmt: skip
        part.note(runs=[*part.figures["runs"], row])
    wrong = [row["method"] for row in part.figures["runs"] if not (row["equal"] and row["repeated_equal"])]
    if wrong:
        raise PartFailed(f"not the same bits: {', '.join(wrong)}")


def kill_in_the_middle(part: Part, words: Sequence[object], name: str) -> int:
    """Start a run and kill it between its first two checkpoints; the last step in its journal."""
    from tui_trainer.runs.events import CheckpointSaved, StepDone
    from tui_trainer.runs.journal import read_all

    journal = part.work / "runs" / name / "journal.jsonl"
    command = [sys.executable, "-m", "tui_trainer", "--no-ui", *map(str, words)]
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
    raise PartFailed(f"the run ended with {child.returncode} before it could be killed")


def fingerprints(folder: Path) -> dict[str, str]:
    """Of the weights that a run ended with, and of its optimizer."""
    last = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    files = [*last.rglob("*.safetensors"), *(folder / "model").rglob("*.safetensors")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def time(part: Part) -> None:
    """Seconds and memory, planned against measured, in whole runs on a machine that is new to the program."""
    file = part.work / "estimates.json"
    sizes = ["--only", "16 x 128", "--steps", 14] if part.dry else ["--times", 8]
    try:
        part.command(BENCHMARKS / "estimates.py", "--device", part.device, *sizes, "--json", file)
    finally:
        if file.exists():
            part.note(configurations=json.loads(file.read_text(encoding="utf-8")))


def trace(part: Part) -> None:
    """A profile of ten steps, with every synchronisation; and what a compiled run compiles anew."""
    model, documents = part.llama("1.2b")
    file = part.work / "trace-figures.json"
    settings: dict[str, object] = {"training__max_steps": 17, "data__max_length": 64 if part.dry else 1024}
    settings |= {"training__effective_batch_size": 8, **STEPS_ONLY}
    words = part.words_of("traced", "--model", model, "--data", documents, "--profile", "finetune", **settings)
    part.command("-m", "tests.gpu.trace", file, "--trace", part.work / "trace.json.gz", "--", *words)
    part.note(**json.loads(file.read_text(encoding="utf-8")))
    # Evaluations of several sizes, and texts of several lengths.
    settings |= {"training__torch_compile": "true", "evaluation__eval_steps": 5, "evaluation__max_eval_rows": 7}
    settings |= {"logging__sample_steps": 5, "evaluation__per_device_eval_batch_size": 2}
    words = part.words_of("compiled", "--model", model, "--data", documents, "--profile", "finetune", **settings)
    file = part.work / "compiled-figures.json"
    part.command("-m", "tests.gpu.trace", file, *(["--eager"] if part.dry else []), "--", *words)
    found = json.loads(file.read_text(encoding="utf-8"))
    part.note(compiled={key: found[key] for key in ("step_seconds", "graphs", "unexpected")})


PARTS: dict[str, Callable[[Part], None]] = {
    "start": start, "tests": tests, "memory": memory, "speed": speed, "switches": switches, "resume": resume,
    "time": time, "trace": trace,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--dry", action="store_true")
    chosen = parser.parse_args()
    part = Part(work=chosen.work, models=chosen.models, dry=chosen.dry, until=monotonic() + chosen.seconds)
    part.work.mkdir(parents=True, exist_ok=True)
    part.note()
    try:
        PARTS[chosen.name](part)
    except Skipped as reason:
        part.note(skipped=str(reason))
        return SKIPPED
    except PartFailed as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
