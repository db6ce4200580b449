"""Every screen as text, as it was looked at and found good: at three sizes, in both sets of signs, and without colours.

The machine, the plan, the checks and the run are made up here, so nothing depends on where the tests run.
`UPDATE_SNAPSHOTS=1 uv run pytest tests/ui/test_snapshots.py` writes the files anew; `git diff` shows what changed.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.combinations import first_by_default
from tests.previews import PREVIEW
from tests.ui.made_up_runs import CERTIFICATE_WORDS, CHOICES, COMPARISON, NOW, RUNS
from tests.ui.tuned import FakeTune
from tui_trainer.checklist.contract import Change, Check, Finding, Verdict
from tui_trainer.config.document import Document
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.launching.export import Outcome
from tui_trainer.planning import plan as planning
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.runs import events as e
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.ui import app as app_module
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.run_dialogs import ExportDialog
from tui_trainer.ui.screens.config_dialogs import PreviewDialog, TuneDialog
from tui_trainer.ui.spans import ASCII, UNICODE
from tui_trainer.ui.watch import WatchedRun
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench

FOLDER = Path(__file__).with_name("snapshots")
UPDATE = bool(os.environ.get("UPDATE_SNAPSHOTS"))
SIZES = ((80, 24), (120, 35), (200, 50))
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
    check = Check(name=name, order=order, title=f"The {name} suits the run",
                  why="Time is money.", published="2x faster (arXiv:1234.56789)", look=lambda _: verdict)  # fmt: skip
    patch = {key.replace("__", "."): value for key, value in fix.items()}
    changes = tuple(Change(key=key, old=0.1, new=new) for key, new in patch.items())
    switch = f"{name}: on" if order < 4 else ""
    verdict = Verdict(status=status, evidence=evidence, fix=patch or None, switch=switch)
    return Finding(check=check, verdict=verdict, changes=changes)


FINDINGS = [
    finding(
        "weight decay", "warn", 1, "0.1 for 818 k parameters, which is far above 0.01", training__weight_decay=0.01
    ),
    finding("disk", "fail", 2, "the run writes 35.4 MiB and 2.0 MiB are free"),
    *(finding(f"part {n:02}", "pass", n, f"takes {n} of 34 seconds") for n in range(3, 30)),
    finding("card", "n/a", 30, "no GPU on this machine"),
]


def trained(steps: int, total: int = 500, device: str = "cpu", **more) -> list[e.Event]:
    """The journal of a run that has done so many steps."""
    events: list[e.Event] = [
        e.RunStarted(name="quickstart-20261120-180238", task="char_lm", device=device, pid=1, total_steps=total),
        e.PhaseChanged(phase="preparing"),
        e.DataPrepared(from_cache=False, rows=2626, eval_rows=292, tokens=336_000, eval_tokens=37_000, documents=45,
                       eval_documents=12, vocabulary=106, seconds=0.162),
        e.BaselinesMeasured(losses={"order 1": 2.4768, "order 2": 1.5}, eval_tokens=37_000, unit="token"),
        e.PlanMade(total_steps=total, steps_per_epoch=165, effective_batch_size=16, per_device_train_batch_size=8,
                   gradient_accumulation_steps=2, parameters=818_000, memory_bytes=195_000_000, disk_bytes=37_000_000,
                   duration_seconds=70, **more),
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
    is_ours = True

    def __init__(self, events: list[e.Event], alive: bool) -> None:
        super().__init__(RunFolder(Path("/data/runs/quickstart-20261120-180238")))
        self.alive = alive
        for event in events:
            self.state.apply(event)
            self._note(event)
        self.doctor.look()

    def poll(self) -> bool:
        return False


class CannedBench(Workbench):
    """Facts instead of work: nothing is read, measured or planned behind the screens."""

    @property
    def memory_free_bytes(self) -> int | None:
        return self.hardware.memory_available_bytes

    def begin(self) -> None:
        request = Request(
            profile="quickstart", assignments=("training.learning_rate=2e-3", "output.runs_dir=/data/runs")
        )
        self.document = Document(request, self._choose_hardware, setting_problems)
        plan = planning.make(self.document.loaded, self.hardware, FACTS)
        seconds = plan.duration_seconds.model_copy(update={"value": 70.0})
        self.plan = plan.model_copy(update={"duration_seconds": seconds})
        self._planned_revision = self.document.revision
        self._checked(FINDINGS)

    def config_changed(self) -> None:
        self._planned_revision = self.document.revision if self.document else -1

    @property
    def gauges(self) -> Gauges:
        cards = tuple(
            Gpu(index=gpu.index, name=gpu.name, utilisation_share=0.93, memory_free_bytes=80 * GIB,
                     power_watts=512.0, memory_bytes=141 * GIB, temperature_celsius=71.0, power_limit_watts=700.0)
            for gpu in self.hardware.gpus
        )  # fmt: skip
        return Gauges(cpu_share=0.6, memory_used_bytes=12 * GIB, memory_bytes=64 * GIB,
                      disk_used_bytes=182 * GIB, disk_bytes=252 * GIB, gpus=cards)  # fmt: skip


LORA = {"device": "cuda:0", "base_model": "TinyLlama/TinyLlama-1.1B", "lora_rank": 16, "trained_parameters": 6_700}
# Name: what is pressed, the machine, the journal of a run and whether it is alive.
SCENES: dict[str, tuple[str, Hardware, list[e.Event] | None, bool]] = {
    "hardware-cpu": ("1", CPU, None, False),
    "hardware-gpus": ("1", GPUS, None, False),
    "hardware-stale-driver": ("1", SICK, None, False),
    "config": ("2", CPU, None, False),
    "config-edit": ("2 / r a t e enter escape enter backspace 5", CPU, None, False),
    "config-rejected": ("2 / w a r m u p enter escape enter ctrl+w ctrl+w - 3 enter", CPU, None, False),
    "config-recipes": ("2 p", CPU, None, False),
    "preview": ("2", CPU, None, False),
    "tune": ("2", CPU, None, False),
    "checklist": ("3", CPU, None, False),
    "checklist-open": ("3 o down", CPU, None, False),
    "start": ("t", CPU, None, False),
    "train-no-run": ("4", CPU, None, False),
    "train-preparing": ("4", CPU, [*trained(0)[:2], WORK], True),
    "train": ("4", GPUS, trained(248, **LORA), True),
    "train-paused": ("4 left left", CPU, [*trained(120), e.PhaseChanged(phase="paused")], True),
    "train-finished": ("4", CPU, [*trained(500), DONE], False),
    "train-stopped": ("4", CPU, [*trained(120), STOPPED], False),
    "train-failed": ("4", CPU, [*trained(120), FAILED], False),
    "doctor": ("4 d", GPUS, trained(248, **LORA), True),
    "quit": ("4 q", CPU, trained(120), True),
    "help": ("2 ?", CPU, None, False),
    "commands": ("4 : s t e p", CPU, trained(120), True),
    "runs": ("5 down", CPU, None, False),
    "runs-filter": ("5 / t e d", CPU, None, False),
    "runs-delete": ("5 down D", CPU, None, False),
    "export": ("5 down", CPU, None, False),
    "compare": ("5 space space space C", CPU, None, False),
    "try": ("4 w", CPU, [*trained(500), DONE], False),
}  # fmt: skip


async def answered(pilot) -> None:
    """Nothing is worked on any more behind the screens."""
    background = pilot.app.bench.background
    while background._waiting or background._busy_with:
        await pilot.pause(0.01)
    await pilot.pause()


async def _pictures(name: str, glyphs) -> dict[tuple[int, int], list[str]]:
    keys, hardware, events, alive = SCENES[name]
    bench = CannedBench(lambda: Request(), hardware, glyphs)
    app = app_module.TrainerApp(bench, Keymap())
    async with app.run_test(size=SIZES[0]) as pilot:
        while bench.plan is None:
            await pilot.pause()
        if events is not None:
            bench.run = CannedRun(events, alive)
        first, *others = keys.split()
        await pilot.press(first)
        await answered(pilot)
        await pilot.press(*others)
        await answered(pilot)
        if name == "commands":
            await app.workers.wait_for_complete()
        if name == "try":
            text = 'The such objects, such an\n"iterator" of the'
            app.dialog._wrote((text, "weights of model; Enter writes another one"))
        if name == "preview":
            # Without the work behind it, which would read a data set.
            bench.background.do = lambda *_: None
            dialog = PreviewDialog(bench, bench.document.loaded)
            app.open(dialog)
            await pilot.pause()
            dialog._made(PREVIEW)
        if name == "tune":
            bench.tunings.process = FakeTune(is_over=True)
            app.open(TuneDialog(bench))
            await pilot.pause()
        if name == "export":
            bench.background.do = lambda *_: None
            folder = RunFolder(RUNS[1].path)
            outcome = Outcome(is_good=True, words=CERTIFICATE_WORDS, folder=f"{folder.root}/export/merged")
            bench.exports.process = SimpleNamespace(
                progress=(),
                run=folder,
                name="merged",
                outcome=outcome,
                alive=False,
                is_cancelled=False,
                let_go=lambda: None,
            )
            dialog = ExportDialog(bench, folder)
            app.open(dialog)
            await pilot.pause()
            dialog._found((CHOICES, 13 * GIB))
        pictures = {}
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            strips = app.screen._compositor.render_strips()
            pictures[size] = [strip.text.rstrip() for strip in strips]
            assert len(strips) == size[1] and {strip.cell_length for strip in strips} == {size[0]}
            if os.environ.get("NO_COLOR"):
                # What is sent, and what the panes give before Textual's filters, which would hide a colour.
                of_panes = [strip for pane in app.screen.query(Pane) for strip in pane._strips]
                styles = [segment.style for strip in [*strips, *of_panes] for segment in strip]
                colours = [colour for style in styles for colour in (style.color, style.bgcolor)]
                assert len(styles) > 2 * size[1] and all(colour is None or colour.is_default for colour in colours)
        assert not app.crash
        return pictures


@pytest.fixture(autouse=True)
def made_up_runs(monkeypatch):
    monkeypatch.setattr("tui_trainer.ui.screens.runs._now", lambda: NOW)
    monkeypatch.setattr("tui_trainer.runs.overview.Overviews.read", lambda *_: RUNS)
    monkeypatch.setattr("tui_trainer.runs.at_rest.bytes_to_free", lambda _: RUNS[1].freed_bytes)
    monkeypatch.setattr("tui_trainer.ui.screens.runs_view.compare", lambda _: COMPARISON)


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """No tick comes between a key and its picture, and no colour is taken from where the tests run."""
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.dry_run
@pytest.mark.parametrize("glyphs", first_by_default([UNICODE, ASCII]), ids=["unicode", "ascii"])
@pytest.mark.parametrize("name", SCENES)
def test_a_screen_looks_as_it_did_when_it_was_found_good(name, glyphs):
    pictures = asyncio.run(_pictures(name, glyphs))
    for (width, height), picture in pictures.items():
        text = "\n".join(picture) + "\n"
        assert not glyphs.ascii or text.isascii()
        path = FOLDER / f"{width}x{height}" / f"{name}{'-ascii' * glyphs.ascii}.txt"
        if UPDATE:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            label = str(path.relative_to(FOLDER))
            rows = difflib.unified_diff(expected.split("\n"), text.split("\n"), label, "now", lineterm="", n=1)
            pytest.fail("another picture; UPDATE_SNAPSHOTS=1 takes it over\n" + "\n".join(rows), pytrace=False)


@pytest.mark.dry_run
@pytest.mark.parametrize("name", first_by_default(SCENES))
def test_without_colours_a_screen_says_the_same_and_no_cell_has_a_colour(name, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    for (width, height), picture in asyncio.run(_pictures(name, UNICODE)).items():
        expected = (FOLDER / f"{width}x{height}" / f"{name}.txt").read_text(encoding="utf-8")
        assert "\n".join(picture) + "\n" == expected


def test_every_snapshot_belongs_to_a_scene():
    written = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.txt"))
    names = [f"{name}{kind}" for name in SCENES for kind in ("", "-ascii")]
    assert written == sorted(f"{width}x{height}/{name}.txt" for width, height in SIZES for name in names)
