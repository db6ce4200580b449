"""Made-up machines, findings, journals and runs for the screens: nothing in them depends on where the tests run."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest

from tests.ui.screens import Screens, open_screens
from tui_trainer.advice.checklist import Finding
from tui_trainer.advice.contract import Group, Rule, Verdict
from tui_trainer.config.changes import Change
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.hardware.gauges import DiskRate, Gauges
from tui_trainer.launching.export_process import ExportChoice
from tui_trainer.planning import plan as planning
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.planning.planned import estimated
from tui_trainer.runs import events as e
from tui_trainer.runs.comparison import ComparedRun, Comparison, CurvePoint, Difference
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.overview import RunOverview, RunResult
from tui_trainer.runs.state import RunState
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.ui import app as app_module
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import UNICODE, Glyphs
from tui_trainer.ui.watch import WatchedRun
from tui_trainer.ui.workbench import Workbench

GIB = 2**30
CPU = Hardware(
    cpu_name="AMD EPYC 9654 96-Core Processor", usable_cores=8, physical_cores=8, logical_cores=16, host="gpu-box",
    memory_bytes=64 * GIB, machine_memory_bytes=64 * GIB, memory_available_bytes=60 * GIB, platform="Linux-6.8-x86_64",
    python_version="3.11.7", cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16"}), torch_cuda=(13, 2),
    libraries={"torch": "2.15.0", "transformers": "5.23.0", "numpy": "2.4.6", "textual": "8.2.8", "peft": None},
    places=tuple(
        Place(label=label, path=path, free_bytes=70 * GIB, total_bytes=252 * GIB, writable=True)
        for label, path in (("runs", "/data/runs"), ("prepared data", "/home/anna/.cache"), ("temporary", "/tmp"))
    ),
)  # fmt: skip
BUSY = GpuProcess(pid=4711, name="python", user="bert", memory_bytes=120 * GIB)
CARDS = tuple(
    Gpu(index=n, name="NVIDIA H200", capability=(9, 0), memory_bytes=141 * GIB, processes=(BUSY,) * n,
        memory_free_bytes=(21 if n else 140) * GIB, utilisation_share=0.9 * n)
    for n in range(2)
)  # fmt: skip
GPUS = replace(CPU, gpus=CARDS, driver=Driver(version="580.65", cuda=(13, 2)), nvidia_pci_devices=2)
SICK = replace(GPUS, driver=Driver(version="550.54", cuda=(12, 4)), gpus=CARDS[:1])
FACTS = DataFacts(
    rows=2626, eval_rows=292, tokens=336_000, eval_tokens=37_000, vocabulary=106, exact=False, reason="made up"
)


def finding(name: str, status: str, order: int, evidence: str, **fix) -> Finding:
    rule = Rule(name=name, order=order, title=f"The {name} suits the run", why="Time is money.",
                published_gain="2x faster (arXiv:1234.56789)", group=get_args(Group)[order // 7])  # fmt: skip
    patch = {key.replace("__", "."): value for key, value in fix.items()}
    changes = tuple(Change(key=key, old=0.1, new=new) for key, new in patch.items())
    switch = f"{name}: on" if order < 4 else ""
    verdict = Verdict(status=status, evidence=evidence, fix=patch or None, switch_state=switch)
    return Finding(rule=rule, verdict=verdict, changes=changes)


FINDINGS = [
    finding(
        "weight decay", "warn", 1, "0.1 for 818 k parameters, which is far above 0.01", training__weight_decay=0.01
    ),
    finding("disk", "fail", 2, "the run writes 35.4 MiB, 2.0 MiB are free"),
    *(finding(f"part {n:02}", "pass", n, f"takes {n} of 34 seconds") for n in range(3, 30)),
    finding("card", "n/a", 30, "no GPU on this machine"),
]


PLANNED_TIMES = {
    "step_seconds": 0.133, "step_seconds_reason": "measured here, from 2 measured runs of the same steps",
    "cpu_threads": 8,
    "compute_rates": e.ComputeRates(row_flops=1.3e9, usual_share=0.5, measured=4e11, measured_of="fp32 matmuls"),
}  # fmt: skip


def trained(steps: int, total: int = 500, device: str = "cpu", **more) -> list[e.Event]:
    """The journal of a run that has done so many steps."""
    events: list[e.Event] = [
        e.RunStarted(name="quickstart-1802", task="char_lm", device=device, pid=1, total_steps=total),
        e.PhaseChanged(phase="preparing"),
        e.DataPrepared(from_cache=False, rows=2626, eval_rows=292, tokens=336_000, eval_tokens=37_000, documents=45,
                       eval_documents=12, vocabulary=106, seconds=0.162),
        e.BaselinesMeasured(losses={"bigram baseline": 2.4768, "trigram baseline": 1.5}, eval_tokens=37_000,
                            unit="token"),
        e.PlanMade(total_steps=total, steps_per_epoch=165, effective_batch_size=16, per_device_train_batch_size=8,
                   gradient_accumulation_steps=2, parameters=818_000, disk_bytes=37_000_000, duration_seconds=70,
                   **{"memory_bytes": 195_000_000, **PLANNED_TIMES, **more}),
        e.LibrariesLoaded(resident_bytes=240_000_000 if device == "cpu" else None),
        e.PhaseChanged(phase="training"),
    ]  # fmt: skip
    for n in range(1, steps + 1):
        loss = 1.4 + 3 * math.exp(-n / 40) + 0.15 * math.sin(n * 1.7)
        events.append(e.StepDone(
            step=n, epoch=n / 165, loss_sum=loss * 2048, tokens=2048, samples=16, lr=3e-3 * (1 - n / total),
            grad_norm=0.5 + 0.2 * math.cos(n), step_seconds=0.125, data_seconds=0.002, forward_seconds=0.04,
            backward_seconds=0.07, optimizer_seconds=0.01, tokens_per_second=16_384, samples_per_second=128,
            peak_memory_bytes=420_000_000,
        ))  # fmt: skip
        if n % 50 == 0:
            loss = 1.5 + 3 * math.exp(-n / 40)
            events += [
                e.EvalDone(step=n, loss_sum=loss, tokens=1, loss=loss, seconds=0.7, scheduled=True, best=True),
                e.CheckpointSaved(
                    step=n, path=f"checkpoints/step-{n}", bytes=9_900_000, seconds=0.02, reason="scheduled"
                ),
                e.TextSampled(step=n, prompt="The ", text='such objects also "provide" an iterator of the executed'),
            ]
        if n % 165 == 0:
            events.append(e.EpochDone(step=n, epoch=n // 165, mean_loss=1.6, seconds=22.1, samples_per_second=119.0,
                                      tokens_per_second=15_200.0))  # fmt: skip
    return events


DONE = e.RunFinished(step=500, reason="done", loss=1.4, eval_loss=1.5427, seconds=65.0, model_path="model")
STOPPED = e.RunFinished(step=120, reason="stopped", loss=1.6, eval_loss=None, seconds=15.0)
FAILED = e.RunFailed(step=120, message="CUDA out of memory. Tried to allocate 2.00 GiB", log_path="logs/run.log")
WORK = e.Progress(what="tokenising", done=420_000, total=1.2e6, unit="characters")


class CannedRun(WatchedRun):
    """A run whose journal is given, and that is alive when it is said so."""

    alive = False
    is_trained_here = True

    def __init__(self, events: list[e.Event], alive: bool) -> None:
        super().__init__(RunFolder(Path("/data/runs/quickstart-1802")))
        self.alive = alive
        for event in events:
            self.state.apply(event)
            self._note(event)
        self.doctor.examine_news()

    def read_new_events(self) -> None:
        pass

    def apply_new_events(self) -> bool:
        return False


class NewsRun(CannedRun):
    """A run that can have news."""

    waiting: tuple[e.Event, ...] = ()

    def apply_new_events(self) -> bool:
        news, self.waiting = self.waiting, ()
        for event in news:
            self.state.apply(event)
            self._note(event)
        return bool(news)


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands, no colour is taken from the environment, and the runs are these."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("tui_trainer.ui.screens.runs._now", lambda: NOW)
    monkeypatch.setattr("tui_trainer.runs.overview.Overviews.read", lambda *_: RUNS)
    compared = "tui_trainer.ui.screens.compare_dialog.compare_and_states"
    monkeypatch.setattr(compared, lambda _: (COMPARISON, [RunState()] * 3))


class CannedBench(Workbench):
    """Facts instead of work: nothing is read, measured or planned behind the screens."""

    @property
    def memory_free_bytes(self) -> int | None:
        return self.hardware.memory_available_bytes

    def begin(self) -> None:
        request = Request(
            profile="quickstart", assignments=("training.learning_rate=2e-3", "output.runs_dir=/data/runs")
        )
        self.document = ConfigDocument(request, self._choose_hardware)
        plan = planning.make(self.document.loaded, self.hardware, FACTS)
        seconds = plan.duration_seconds.model_copy(update={"value": 70.0})
        step = estimated(
            0.138, "numpy matmuls reach 150 GFLOP/s here; training at this hidden size reaches about 46% of that"
        )
        self.plan = plan.model_copy(update={"duration_seconds": seconds, "step_seconds": step})
        self._planned_revision = self.document.revision
        self._checked(FINDINGS)

    def config_changed(self) -> None:
        if self.document and self.document.unfitted:
            self.document.set_fitted(self.document.unfitted, setting_problems(self.document.unfitted))
        self._planned_revision = self._checked_revision = self.document.revision if self.document else -1

    @property
    def gauges(self) -> Gauges:
        cards = tuple(
            Gpu(index=gpu.index, name=gpu.name, utilisation_share=0.93, memory_free_bytes=80 * GIB,
                     power_watts=512.0, memory_bytes=141 * GIB, temperature_celsius=71.0, power_limit_watts=700.0)
            for gpu in self.hardware.gpus
        )  # fmt: skip
        return Gauges(
            cpu_share=0.6, core_shares=(1.0, 0.05, 0.62, 0.0, 0.3, 0.98, 0.5, 0.75), memory_used_bytes=12 * GIB,
            memory_bytes=64 * GIB, disk_used_bytes=182 * GIB, disk_bytes=252 * GIB, gpus=cards,
            disk_rates=(DiskRate("nvme0n1", 12e6, 340e6), DiskRate("sda", 0.0, 4096.0)),
        )  # fmt: skip


@asynccontextmanager
async def open_canned(
    hardware: Hardware = CPU,
    glyphs: Glyphs = UNICODE,
    *,
    size: tuple[int, int] = (80, 24),
    run: WatchedRun | None = None,
    bench: Workbench | None = None,
    keymap: Keymap | None = None,
) -> AsyncIterator[Screens]:
    """The program on a made-up machine. Its clock stands: only `app.tick()` moves it."""
    bench = bench or CannedBench(lambda: Request(), hardware, glyphs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "TICK_SECONDS", 1e6)
        async with open_screens(bench=bench, size=size, keymap=keymap) as screens:
            bench.run = run
            yield screens


LORA = {"device": "cuda:0", "base_model": "TinyLlama/TinyLlama-1.1B", "lora_rank": 16, "trained_parameters": 6_700}

NOW = datetime(2026, 11, 20, 18, 30, tzinfo=UTC)
MIB = 2**20
_FOLDER = Path("/data/runs")


def made_up(name: str, status: str, step: int, loss: float | None, **more) -> RunOverview:
    curve = tuple(loss + 3 * math.exp(-n / 4) for n in range(24)) if loss else ()
    about = RunOverview(
        name=name, path=_FOLDER / name, status=status, task="char_lm", step=step, total_steps=500, epoch=step / 165,
        data="sample:python-reference" * bool(loss), loss_curve=curve,
        loss=loss, eval_loss=loss and loss + 0.1, best=loss and loss + 0.1,
        started_at="2026-11-20T18:02:38.000Z", last_event_at="2026-11-20T18:04:00.000Z", size_bytes=35 * MIB,
        freed_bytes=34 * MIB,
    )  # fmt: skip
    return replace(about, **more)


RUNS = [
    made_up("help-Qwen2.5-0.5B-1827", "training", 210, 1.92, alive=True, task="chat", model="Qwen/Qwen2.5-0.5B",
            data="/data/help.jsonl", last_event_at="2026-11-20T18:29:59.500Z"),
    made_up("quickstart-1802", "finished", 500, 1.42, out_of_memory_events=2),
    made_up("quickstart-0915", "interrupted", 120, 1.71, last_event_at="2026-11-19T09:17:00.000Z"),
    made_up("topics-bert-base-uncased-2201", "finished", 300, 0.31, task="sequence_classification",
            model="google-bert/bert-base-uncased", scores={"accuracy": 0.913, "macro_f1": 0.901}, total_steps=300,
            data="/data/topics.csv", metric="accuracy", best=0.916, size_bytes=1340 * MIB,
            last_event_at="2026-11-18T22:40:00.000Z"),
    made_up("too-far-1010", "failed", 17, math.nan, loss_curve=(4.1, math.nan), eval_loss=None, best=None,
            last_event_at="2026-11-17T10:11:00.000Z"),
    made_up("elsewhere-20261116-000000", "stopped", 250, 1.5, last_event_at="2027-01-01T00:00:00.000Z"),
    made_up("old", "half deleted", 0, None, path=_FOLDER / ".deleting-old", total_steps=0),
    made_up("thesis", "no run folder", 0, None, total_steps=0, size_bytes=None),
    made_up("away", "gone", 0, None),
]  # fmt: skip


def compared(one: RunOverview, final: float, seconds_per_step: float, eval_steps: int) -> ComparedRun:
    curve = [
        CurvePoint(step=n, tokens=2_048 * n, seconds=seconds_per_step * n, loss=final + 3 * math.exp(-n / 60))
        for n in range(5, one.step + 1, 5)
    ]
    held_out = [replace(point, loss=point.loss + 0.1) for point in curve if point.step % eval_steps == 0]
    return ComparedRun(
        **{item.name: getattr(one, item.name) for item in fields(RunResult)}, best_eval_loss=one.eval_loss,
        best_eval_step=one.step, best_step=one.step, seconds=seconds_per_step * one.step, tokens=2_048 * one.step,
        tokens_per_second=2_048 / seconds_per_step, peak_memory_bytes=0, training_memory_bytes=420 * MIB,
        parameters=818_000, trained_parameters=818_000, train_curve=tuple(curve), eval_curve=tuple(held_out),
    )  # fmt: skip


COMPARISON = Comparison(
    runs=(compared(RUNS[0], 1.9, 0.21, 50), compared(RUNS[1], 1.4, 0.125, 100), compared(RUNS[2], 1.6, 0.125, 60)),
    differences=(
        Difference(key="training.learning_rate", values=(2e-4, 3e-3, 1e-3)),
        Difference(key="data.path", values=("/data/conversations.jsonl", "sample:topics", "sample:topics")),
        Difference(key="training.effective_batch_size", values=(8, 16, 16)),
    ),
)

CHOICES = tuple(
    ExportChoice(
        name=name, title=title, size_bytes=size * MIB, needed_bytes=size * MIB, free_bytes=10**10, refusal=refusal,
        is_there=name == "int8", expected_seconds=41.0 if name == "adapter" else None,
    )
    for name, title, size, refusal in (
        ("adapter", "adapter for peft", 4, ""),
        ("gguf", "GGUF for llama.cpp", 2000,
         "llama.cpp's converter was not found: run `tui-trainer install gguf`"),
        ("int8", "int8 for CPUs (torchao)", 2000, ""),
        ("merged", "full model, adapter merged", 1000, ""),
        ("onnx", "ONNX for ONNX Runtime", 2000, ""),
    )
)  # fmt: skip
CERTIFICATE_WORDS = (
    "reloaded in a fresh process and compared on 200 held-out rows:",
    "  logits differ by 2.1e-06 of the largest (allowed 1e-04)",
    "  held-out loss 1.4210 -> 1.4210",
    "  942.3 MiB -> 942.3 MiB, 31 -> 30 ms/row on the CPU",
)
