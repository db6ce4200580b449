"""What the three calls of `tests.gpu.day` do, in order of value: one process carries out one item after the other.

    python -m tests.gpu.calls CALL --results FILE --work FOLDER [--dry]

Each figure is written as soon as it is known. An item that fails does not end the process, unless it broke the device:
then, as after a crash, `day` starts another process, which goes on with the next item.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any
from unittest.mock import patch

from tests.gpu.results import Outcome, Results, append, now, read

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "benchmarks"))
_WARM_UP_STEPS, _TAIL_LINES, _LINE_CHARACTERS = 2, 12, 300
# Loaded before any fork of a process with threads.
_LIBC, _SET_PDEATHSIG = ctypes.CDLL(None), 1  # linux/prctl.h


class ItemFailed(Exception):
    """The item did not give what it should."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an item works with. `folder` is its own."""

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

    def probe(self, name: str, found: Iterable[tuple[str, Any]]) -> None:
        """Note what is found as it comes. Raises ItemFailed with what is wrong of it."""
        wrong = []
        for key, value in found:
            self.note(**{name: {key: value}})
            one = value if isinstance(value, dict) else {}
            if "bound" in one and not one["off"] <= one["bound"]:
                wrong.append(f"{key}: off by {one['off']:.2g}, allowed are {one['bound']:.2g}")
            elif not one.get("same", True):
                wrong.append(f"{key}: {one.get('reason') or 'not the same'}")
        if wrong:
            raise ItemFailed("; ".join(wrong))

    def program(self, *words: object, answers: Sequence[int] = (0,)) -> str:
        """Run the program's command in this process; return what it printed. Raises ItemFailed with the end of it."""
        from tui_trainer.cli import main

        printed, arguments = self.folder / "printed.txt", [*map(str, words)]
        with printed.open("w", encoding="utf-8") as output, redirect_stdout(output), redirect_stderr(output):
            code = main(arguments)
        text = printed.read_text(encoding="utf-8")
        if code not in answers:
            said = [line for line in text.splitlines() if line.strip()][-_TAIL_LINES:]
            raise ItemFailed("\n".join([f"exit code {code}: {' '.join(arguments[:4])} ...", *said]))
        return text

    def arguments(self, name: str, shape: str, **settings: object) -> list[str]:
        """Return the arguments of a run; `training__max_steps` stands for training.max_steps."""
        model, documents = made(self.models, shape, dry=self.dry)
        chosen = {"output__runs_dir": self.folder, "output__name": name, "logging__sample_steps": 0,
                  **settings, **({"data__max_length": 64} if self.dry else {})}  # fmt: skip
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in chosen.items()]
        words = ["--no-ui", "--model", model, "--data", documents, "--profile", "finetune"]
        return [*map(str, words), *(["--gpu", "none"] if self.dry else []), *(w for p in pairs for w in ("--set", p))]


def made(place: Path, shape: str, *, dry: bool) -> tuple[Path, Path]:
    """Return (model, documents) of a shape of `llamas.py`, or of BERT, made unless they are there.

    Only the 134m model has weights. The weights file of the others is a header and a hole: use `drawn_weights`."""
    from llamas import SHAPES, make, tokenizer_of, write_documents

    small = "tiny" if dry or shape == "bert" else shape
    if shape == "134m":
        return make(place, small)
    folder, documents = place / f"{shape}-hollow", place / f"documents-{shape}.jsonl"
    if documents.exists():
        return folder, documents
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    place.mkdir(parents=True, exist_ok=True)
    part = documents.with_suffix(".part")
    dtype, name, kind = torch.bfloat16, "BF16", AutoModelForCausalLM
    if shape == "bert":
        texts = write_documents(part, replace(SHAPES[small], documents=1000, words=200, most_words=400))
        rows = ({"text": text, "label": str(number % 2)} for number, text in enumerate(texts))
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = AutoConfig.for_model("bert", pad_token_id=0, **(sizes if dry else {}))
        dtype, name, kind = torch.float32, "F32", AutoModelForSequenceClassification
    else:
        texts = write_documents(part, SHAPES[small])
        config = AutoConfig.for_model(**SHAPES[small].config())
    with torch.device("meta"):
        model = kind.from_config(config, dtype=dtype)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tokenizer_of(texts, config.vocab_size).save_pretrained(folder)
    header, end = {}, 0
    for key, tensor in model.state_dict().items():
        if key != "lm_head.weight" or not config.tie_word_embeddings:
            header[key] = {"dtype": name, "shape": [*tensor.shape], "data_offsets": [end, end + tensor.nbytes]}
            end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    part.rename(documents)
    return folder, documents


def drawn_pretrained(
    folder: Path, model: Any, dtype: Any, *, device: Any = None, head: Any = "causal_lm", labels: Any = None,
    pad_token_id: int | None = None, four_bits: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return a model as `load_pretrained` does, with random weights made on the device."""
    import torch
    from transformers import AutoConfig

    from tests.gpu.probes import pack
    from tui_trainer.models.four_bits import bitsandbytes_config
    from tui_trainer.models.heads import auto_class
    from tui_trainer.models.loading import set_padding, use_eager_for_soft_cap

    shape = AutoConfig.from_pretrained(folder, local_files_only=True)
    for name, value in (labels.config_fields() if labels else {}).items():
        setattr(shape, name, value)
    kind: Any = auto_class(head, shape.model_type)
    with torch.device(device or "cpu"):
        made = kind.from_config(shape, dtype=dtype)
    if four_bits:
        config = bitsandbytes_config(four_bits, shape, model, dtype, kind)
        pack(made, kept=("lm_head",), compute_dtype=config.bnb_4bit_compute_dtype)
    use_eager_for_soft_cap(made)
    set_padding(made, head, pad_token_id)
    return made


@contextmanager
def drawn_weights(device: str) -> Iterator[None]:
    """Make models with random weights on the device where the program or a script would load them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def from_pretrained(folder: Path, *, dtype: Any, **_: Any) -> Any:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)

    with (
        patch("tui_trainer.models.loading.load_pretrained", drawn_pretrained),
        patch.object(AutoModelForCausalLM, "from_pretrained", from_pretrained),
    ):
        yield


def run_figures(folder: Path, left_out: range = range(0)) -> dict[str, Any]:
    """Return what a run's plan and journal contain; steps that are left out were not timed fairly."""
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
        "timed_steps": len(timed), "step_seconds": median(event.step_seconds for event in timed),
        "tokens_per_second": median(event.tokens_per_second for event in timed),
        "losses": [round(event.loss, 5) for event in steps], "eval_loss": evals[-1] if evals else None,
        "peak_memory_bytes": max(event.peak_memory_bytes for event in steps),
        "host_peak_bytes": max(host, default=None), "planned_step_seconds": plan["step_seconds"]["value"],
        "planned_allocated_bytes": sum(size for part, size in parts.items() if part not in NOT_ALLOCATED),
        "planned_host_bytes": (plan.get("host_memory_bytes") or {}).get("value"),
        "device": plan["device"], "precision": plan["precision"]["value"], "packing": plan["packing"]["value"],
        "planned_attention": plan.get("attention"), "micro_batch": plan["per_device_train_batch_size"]["value"],
        "problems": [f"{event.kind}: {event.message}" for event in events if isinstance(event, RunProblem)],
    }  # fmt: skip


_CARD_FIELDS = ("name", "memory.total", "driver_version", "compute_cap", "power.limit")


def card() -> dict[str, str] | None:
    """Return the first card by the names of nvidia-smi; None without that program or a card."""
    if not (program := shutil.which("nvidia-smi")):
        return None
    query = [program, f"--query-gpu={','.join(_CARD_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    row = done.stdout.partition("\n")[0]
    return dict(zip(_CARD_FIELDS, row.split(", "), strict=False)) if row and not done.returncode else None


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def machine(work: Work) -> None:
    """Note the allocator, the time of a launch and of a wait, and the card by `diagnose` beside `nvidia-smi`."""
    import torch

    probe(work, "launches")
    if not work.dry:
        torch.zeros(1, device="cuda")
        work.note(allocator=str(torch.cuda.memory._snapshot().get("allocator_settings")))
    ours, theirs = json.loads(work.program("diagnose", "--json", answers=(0, 1))), card()
    gpu, driver = (ours["gpus"] or [{}])[0], ours["driver"] or {}
    memory, power = gpu.get("memory_bytes"), gpu.get("power_limit_watts")
    found = {
        "name": gpu.get("name"), "memory.total": memory and str(round(memory / 2**20)),
        "driver_version": driver.get("version"), "power.limit": power and f"{power:.2f}",
        "compute_cap": gpu.get("capability") and ".".join(map(str, gpu["capability"])),
    }  # fmt: skip
    different = [key for key in found if theirs and found[key] != theirs.get(key)]
    work.note(diagnose=found, nvidia_smi=theirs, different=different, problems=ours["problems"])


def probe(work: Work, *names: str) -> None:
    """Note what the card computes, by `tests/gpu/probes.py`, or how fast, by these names of `card_rates.py`."""
    import card_rates

    from tests.gpu.probes import PROBES

    for name in names or (work.name,):
        work.probe(name, {**PROBES, **card_rates.MEASURED}[name](work.device))


def short_run(work: Work, **settings: object) -> None:
    """Take six steps of the 134m model with evaluations and checkpoints; count all waits from the first step on."""
    from tests.compilations import counted_compilations
    from tests.gpu.trace import counted_in_loop, wait_figures

    waits = Counter[str]()
    with counted_in_loop(waits), counted_compilations() as graphs:
        work.program(*work.arguments("run", "134m", **_SHORT, **settings))
    work.note(**run_figures(work.folder / "run"), **wait_figures(waits), graphs=graphs)
    known = read(work.results).items
    found, expected = (known.get(name, Outcome()).figures.get("eval_loss") for name in (work.name, _FIRST_RUN))
    if settings.get("tuning__method") == "full" and expected and not abs(found / expected - 1) <= _SAME_LOSS:
        raise ItemFailed(f"an evaluation loss of {found:.4f}, where fp32 has {expected:.4f}")
    if any(graphs["take_step"]):
        raise ItemFailed(f"steps compiled so many graphs, which only the start should: {graphs['take_step']}")


def resumed(work: Work, **settings: object) -> None:
    """Resume a run whose last checkpoint and model are deleted: it ends as the first time, to the bit."""
    folder = work.folder / "run"
    work.program(*work.arguments("run", "134m", **_SHORT, **settings))
    whole = fingerprints(folder)
    for path in (folder / "checkpoints" / "step-6", folder / "model"):
        shutil.rmtree(path)
    resume(work, folder)
    same_files(work, whole, fingerprints(folder))


def resume(work: Work, folder: Path) -> None:
    work.program("resume", folder, "--no-ui", *(["--gpu", "none"] if work.dry else []))


def fingerprints(folder: Path) -> dict[str, str]:
    """Return hashes of the weights that a run ended with, and of its optimizer."""
    last = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    files = [*last.rglob("*.safetensors"), *(folder / "model").rglob("*.safetensors")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def same_files(work: Work, one: Mapping[str, str], other: Mapping[str, str]) -> None:
    different = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    work.note(files=len(one), different=different)
    if different or not one:
        raise ItemFailed(f"not the same bits: {', '.join(different) or 'there are none'}")


def kill_and_resume(work: Work) -> None:
    """Kill full tuning in mid-run and resume it: it ends as a run that was never stopped, to the bit."""
    from tests.runs.journals import read_all
    from tui_trainer.runs.events import CheckpointSaved, StepDone

    settings = {**_SHORT, **_FULL, "training__max_steps": 18, "training__deterministic": "true"}
    work.program(*work.arguments("whole", "134m", **settings))
    command = [sys.executable, "-m", "tui_trainer", *work.arguments("killed", "134m", **settings)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             preexec_fn=end_with_parent)  # fmt: skip
    journal, step = work.folder / "killed" / "journal.jsonl", 0
    while child.poll() is None and not step:
        events = read_all(journal) if journal.exists() else []
        saved = [event.step for event in events if isinstance(event, CheckpointSaved)]
        steps = [event.step for event in events if isinstance(event, StepDone)]
        # Between its first two checkpoints.
        if saved and steps and steps[-1] > saved[0]:
            child.kill()
            step = steps[-1]
        sleep(0.02)
    if child.wait() != -signal.SIGKILL:
        raise ItemFailed(f"the run ended with {child.returncode} before it could be killed")
    work.note(killed_at_step=step)
    resume(work, work.folder / "killed")
    same_files(work, *(fingerprints(work.folder / name) for name in ("whole", "killed")))


def steps(work: Work, shape: str, *, count: int, traced: int = 0, apart: bool = False, **settings: object) -> None:
    """Time steps of the program with weights drawn on the card; trace two of them by groups after `traced`."""
    from tests.gpu.trace import traced_steps

    first = min(3, traced) if work.dry else traced + bool(traced)
    last = first + 1 if traced else 0
    settings = {**_STEPS_ONLY, "training__max_steps": (last or 3) if work.dry else count, **settings}
    never = patch("tui_trainer.training.components.fuse_adapters", lambda *_: False) if apart else nullcontext()
    with traced_steps(first, last, lambda found: work.note(**found)), never, drawn_weights(work.device):
        work.program(*work.arguments("run", shape, **settings))
    work.note(**run_figures(work.folder / "run", range(first, last + 1)))


def race(work: Work) -> None:
    """Time steps of 8B LoRA beside transformers' Trainer and a bare loop, on the same rows."""
    import speed

    shape = "tiny" if work.dry else "8b-4096"
    model, documents = made(work.models, "8b-4096", dry=work.dry)
    setup = speed.Setup(llama=speed.SHAPES[shape], model=model, documents=documents, method="lora", settings={},
                        device=work.device, place=work.folder)  # fmt: skip
    with drawn_weights(work.device):
        work.note(**speed.run_race(setup, ("ours", "trainer", "bare"), 1, apart=True))


def tests(work: Work, only: str = "") -> None:
    """Run `pytest -m gpu` by value, each test with a line of its own; in a dry run they are only collected."""
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-n", "0", "--timeout", "100", "-p", "no:cacheprovider",
             "-p", "tests.gpu.noted_tests", "--results", str(work.results), "-k", only,
             "tests/gpu/test_on_a_gpu.py", *(["--collect-only"] if work.dry else [])]  # fmt: skip
    tried = -1
    while True:
        # A kernel that fails ends the session, or its process. A new one goes on with the rest.
        done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              preexec_fn=end_with_parent)  # fmt: skip
        found, before = read(work.results), tried
        call = len(found.machines)
        for name, test in found.tests.items():
            if test.state == "started" and test.call == call:
                reason = f"the process ended with {done.returncode}"
                append(work.results, {"test": name, "state": "failed", "reason": reason})
        tried = sum(test.call == call for test in found.tests.values())
        if done.returncode in (0, 1, 5) or tried == before:
            break
    if work.dry:
        work.note(collected=sum("::" in line for line in done.stdout.splitlines()))
    if done.returncode not in (0, 1, 5):
        raise ItemFailed((done.stdout + done.stderr)[-2000:])
    mine = {name: test for name, test in read(work.results).tests.items() if only in name}
    work.note(**Counter(test.state for test in mine.values()))
    if failed := [name for name, test in mine.items() if test.state == "failed"]:
        raise ItemFailed("\n".join(failed))


@dataclass(frozen=True, kw_only=True)
class Item:
    """`seconds`: longer than that it is stuck. `requires`: modules without which it is skipped."""

    call: str
    carry_out: Callable[..., None]
    seconds: float = 60.0
    requires: tuple[str, ...] = ()
    is_dry: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


CALLS = {
    "A": "is it right, and where does it wait: against float64, rates, and a model of 134M in each precision and way",
    "B": "how fast, in how much memory: 8B LoRA and its variants, 1.7B with all weights, BERT",
    "C": "beside Trainer and a bare loop; out of memory; kill -9 and resume; tests of the GPU by value",
}
CALL_SECONDS = {"A": 200.0, "B": 240.0, "C": 110.0}
# Losses of 6 steps in fp32 and in 16 bits; fp16 leaves out the first ones.
_SAME_LOSS = 0.05
_SHORT: dict[str, Any] = {
    "training__max_steps": 6, "evaluation__eval_steps": 3, "checkpoint__save_steps": 3, "data__max_length": 512,
    "evaluation__max_eval_rows": 8, "training__effective_batch_size": 8, "training__learning_rate": 1e-4,
    "logging__logging_steps": 1,
}  # fmt: skip
_STEPS_ONLY = {"evaluation__eval_steps": 0, "checkpoint__save_steps": 0, "evaluation__max_eval_rows": 4}
_FULL, _LORA, _QLORA = ({"tuning__method": method} for method in ("full", "lora", "qlora"))
BF16, FP32 = {"model__dtype": "bfloat16"}, {"model__dtype": "float32"}
_STRICT = {"training__deterministic": "true"}
# Packed, attention goes by lengths: full rows alone would not ask for it.
_ROWS = {"data__max_length": 4096, "data__packing": "true"}
_ONE = {**_ROWS, **_LORA, "training__per_device_train_batch_size": 1, "training__effective_batch_size": 1}
_TWO = {**_ROWS, **_FULL, "training__per_device_train_batch_size": 2, "training__effective_batch_size": 2}
_TEXTS = {**_FULL, "task__type": "sequence_classification", "data__max_length": 128,
          "training__per_device_train_batch_size": 32, "training__effective_batch_size": 32}  # fmt: skip
_LIGER, _BITS = ("liger_kernel",), ("bitsandbytes",)
_FIRST_RUN, _ONLY_ON_A_CARD = "134m full, fp32", ("qlora", "full, fp16", "full, compiled")
ITEMS: dict[str, Item] = {
    "machine": Item(call="A", carry_out=machine),
    **{
        name: Item(call="A", carry_out=probe, requires=requires)
        for name, requires in {
            "rotary angles": (), "attention by lengths": (), "fused cross entropy": _LIGER, "LoRA function": (),
            "Liger's layers": _LIGER, "copies to the host": (), "a step with infinity": (), "products of experts": (),
        }.items()
    },
    "rates of the card": Item(call="A", carry_out=lambda work: probe(work, "products", "copies", "attention")),
    **{
        f"134m {name}": Item(call="A", carry_out=resumed if "resumed" in name else short_run, settings=settings,
                             seconds=90, requires=_BITS if name == "qlora" else (), is_dry=name not in _ONLY_ON_A_CARD)
        for name, settings in {
            "full, fp32": _FULL | FP32, "full, bf16": _FULL | BF16, "lora": _LORA, "lora, resumed": _LORA | _STRICT,
            "qlora": _QLORA, "full, deterministic": _FULL | _STRICT,
            "full, fp16": _FULL | FP32 | {"training__mixed_precision": "fp16"},
            "full, compiled": _FULL | {"training__torch_compile": "true"},
        }.items()
    },

    "8b lora": Item(call="B", carry_out=partial(steps, shape="8b-4096", count=15, traced=10), settings=_ONE,
                    seconds=90),
    **{
        f"{title}, {name}": Item(call="B", carry_out=partial(steps, shape=shape, count=traced + 4, traced=traced),
                                 settings=settings | dtype)
        for title, shape, traced, settings in (("1.7b full", "1.7b-4096", 6, _TWO), ("bert", "bert", 16, _TEXTS))
        for name, dtype in {"bf16": BF16, "fp32": FP32}.items()
    },
    **{
        f"8b lora, {name}": Item(call="B", carry_out=partial(steps, shape="8b-4096", count=5, apart="adapters" in name),
                                 settings=_ONE | settings, requires=_BITS if name == "NF4" else (),
                                 is_dry=name != "NF4")
        for name, settings in {
            "adapters apart": {}, "kernels none": {"model__kernels": "none"},
            "dense attention": {"data__packing": "false"}, "chunks of 2048": {"training__loss_chunk_tokens": 2048},
            "checkpointing": {"training__gradient_checkpointing": "true"}, "NF4": _QLORA,
        }.items()
    },

    "8b lora beside others": Item(call="C", carry_out=race, seconds=90),
    "tests: out of memory": Item(call="C", carry_out=partial(tests, only="no_memory_for"), seconds=60),
    "kill and resume, full": Item(call="C", carry_out=kill_and_resume, seconds=90),
    "tests": Item(call="C", carry_out=tests, seconds=3600),
}  # fmt: skip


def waiting(results: Results, call: str, *, again: int = 0, dry: bool = False) -> list[str]:
    """Return the items of the calls up to this one, or `all`, that are not done: its own first, failed ones last.

    `again` is the number of the call under way, whose items are not tried twice.
    """
    order = {"": 0, "started": 1, "interrupted": 1}
    found = {name: results.items.get(name) for name, item in ITEMS.items()
             if (call == "all" or item.call <= call) and (item.is_dry or not dry)}  # fmt: skip
    left = {name: (one.state if one else "") for name, one in found.items()
            if one is None or (one.state != "done" and (not again or one.call != again))}  # fmt: skip
    return sorted(left, key=lambda name: (order.get(left[name], 2), call != ITEMS[name].call))


def carry_out(work: Work, item: Item) -> bool:
    """Carry an item out, and note how it ended; False where it broke the device."""
    from tui_trainer.training.process import breaks_the_device, free_run_memory

    append(work.results, {"name": work.name, "state": "started", "at": now()})
    end: dict[str, Any] = {"state": "done"}
    is_whole, started = True, monotonic()
    shutil.rmtree(work.folder, ignore_errors=True)
    work.folder.mkdir(parents=True)
    try:
        if missing := [module for module in item.requires if not find_spec(module)]:
            end = {"state": "skipped", "reason": f"{missing[0]} is not installed"}
        else:
            item.carry_out(work, **item.settings)
    except (Exception, SystemExit) as error:
        lines = str(error).splitlines() if isinstance(error, ItemFailed) else traceback.format_exc().splitlines()
        said = [line[:_LINE_CHARACTERS] for line in lines[-_TAIL_LINES:]]
        end = {"state": "failed", "reason": f"{type(error).__name__}: {error}"[:_LINE_CHARACTERS], "error": said}
        is_whole = not (isinstance(error, Exception) and breaks_the_device(error))
    append(work.results, {"name": work.name, **end, "seconds": (seconds := round(monotonic() - started, 1))})
    words = f"{work.name}: {end['state']} in {seconds} s {end.get('reason', '')}"
    print(words, *end.get("error", ())[-3:], sep="\n  | ", flush=True)
    if is_whole:
        free_run_memory()
    return is_whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=(*CALLS, "all"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    chosen = parser.parse_args()
    end_with_parent()
    # By SIGABRT `day` asks where it is stuck.
    faulthandler.enable()
    from tui_trainer.hardware.environment import prepare_environment

    prepare_environment()
    # Each plan asks a process that has loaded torch; a run would end it before its first step.
    with patch("tui_trainer.worker.asking.shapes_worker.close"):
        while names := waiting(found := read(chosen.results), chosen.call, again=len(found.machines), dry=chosen.dry):
            work = Work(name=names[0], results=chosen.results, folder=chosen.work / "run",
                        models=chosen.work / "models", dry=chosen.dry)  # fmt: skip
            if not carry_out(work, ITEMS[names[0]]):
                return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
