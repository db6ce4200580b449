"""The Hardware screen: machines of all kinds, columns, scrolling, the minutes behind the gauges, the runs' folder."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from threading import Event

import pytest

from tests.hardware.test_trial import GOOD
from tests.ui.canned import open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.hardware import probe as probe_module
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.ui.page import machine_summary
from tui_trainer.ui.screens import hardware as page_module
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of
from tui_trainer.ui.widgets.gauge import CPU_TARGET, Gauge, curve_lines, gauge_line, target_bar

GIB = 1 << 30
NAN = float("nan")
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\r\n[bold]\u202e\u6f22\u5b57"
CPU_ONLY = Hardware(
    cpu_name="Test CPU",
    usable_cores=8,
    physical_cores=8,
    logical_cores=16,
    memory_bytes=64 * GIB,
    machine_memory_bytes=64 * GIB,
    memory_available_bytes=60 * GIB,
    platform="Linux-x86_64",
    python_version="3.11.7",
    host="test-box",
    cpu_flags=frozenset({"sse4_2", "avx2", "avx512f", "avx512_bf16"}),
    libraries={"torch": "2.15.0", "transformers": "5.23.0", "pip": "26.0", "peft": None, "datasets": None},
    torch_cuda=(13, 2),
    places=tuple(
        Place(label=label, path=f"/data/{label}", free_bytes=70 * GIB, total_bytes=252 * GIB, writable=True)
        for label in ("runs", "prepared data", "model cache", "temporary")
    ),
)


def gpu(index: int, **differs) -> Gpu:
    idle = Gpu(
        index=index,
        name="NVIDIA H200",
        capability=(9, 0),
        memory_bytes=141 * GIB,
        memory_free_bytes=(140 - index) * GIB,
        utilisation_share=0.0,
        processes=(),
    )
    return replace(idle, **differs)


ANNA = GpuProcess(pid=4711, name="python", user="anna", memory_bytes=120 * GIB)
FINE = Driver(version="580.65", cuda=(13, 2))
MACHINES = {
    "no gpu": CPU_ONLY,
    "sick driver": replace(CPU_ONLY, driver=Driver(problem="the NVIDIA driver was updated", error_code=18)),
    "one": replace(CPU_ONLY, gpus=(gpu(0, processes=(ANNA,)),), driver=FINE),
    "eight": replace(CPU_ONLY, gpus=tuple(gpu(i, processes=(ANNA,)) for i in range(8)), driver=FINE),
    "silent": replace(CPU_ONLY, gpus=(Gpu(index=0),), driver=Driver()),
    "lost": replace(CPU_ONLY, gpus=(gpu(0, problem="has fallen off the bus"), gpu(1, visible=False)), driver=FINE),
    "hostile": replace(
        CPU_ONLY,
        gpus=(gpu(0, name=HOSTILE, processes=(GpuProcess(pid=1, name=HOSTILE, user=HOSTILE),), memory_free_bytes=1),),
        driver=Driver(version=HOSTILE, cuda=(12, 4)),
        cpu_name=HOSTILE,
        host=HOSTILE,
        platform=HOSTILE,
        libraries={"torch": HOSTILE, "peft": None},
        places=(Place(label="runs", path=f"/{HOSTILE}", free_bytes=1, total_bytes=2, writable=False),),
    ),
}


# What is said of each, in one column or in three.
SAID = {
    "no gpu": ("no NVIDIA GPU was found", "7, leaving one of 8 cores free (8 physical, 16 logical)", "none found",
               "bf16 natively (avx512_bf16)", "70.0 GiB free of 252.0 GiB", "/data/model cache",
               "missing    peft, datasets"),
    "sick driver": ("problems: 1", "the NVIDIA driver was updated"),
    "one": ("NVIDIA H200, 141.0 GiB, compute capability 9.0", "fp32, fp16 on tensor cores, bf16, tf32, fp8",
            "flash attention", "python of anna", "580.65, supports CUDA 13.2; torch is built for CUDA 13.2",
            "NVIDIA H200 data sheet"),
    "eight": ("8 GPUs", "GPU 7", "python of anna"),
    "silent": ("GPU 0",),
    "lost": ("has fallen off the bus", "hidden by CUDA_VISIBLE_DEVICES"),
    "hostile": ("\u241b]0;owned\u2407\u241b[2J",),
}  # fmt: skip


@asynccontextmanager
async def shown(hardware: Hardware, size=(80, 24)):
    async with open_canned(hardware, size=size) as screens:
        await screens.settled()
        yield screens


def body(screens) -> list[str]:
    return screens.lines[1:-1]


@pytest.mark.full
@in_event_loop
async def test_every_machine_is_described_in_as_many_columns_as_fit(monkeypatch):
    async with shown(MACHINES["one"], (80, 80)) as screens:
        for name, hardware in MACHINES.items():
            monkeypatch.setattr(probe_module, "read_hardware", lambda hardware=hardware: hardware)
            await screens.resize(80, 80)
            await screens.press("r")
            for size, columns in (((80, 80), 1), ((120, 60), 2), ((200, 60), 3))[: 3 if name == "one" else 1]:
                await screens.resize(*size)
                text = await screens.settled()
                first = next(line for line in body(screens) if line.startswith("\u2500\u2500 training"))
                assert len(re.findall(r"\u2500\u2500 \w", first)) == columns
                assert not set(text) & set("\x1b\x07\r\u202e")
                assert name in ("hostile", "lost") or UNICODE.ellipsis not in text
                flat = " ".join(text.split())
                missing = [words for words in SAID[name] if " ".join(words.split()) not in flat]
                assert size[0] > 80 or not missing, (name, missing, text)
        probe_module.probe.cache_clear()


@pytest.mark.full
@in_event_loop
async def test_the_last_minutes_stand_below_the_gauges_where_there_is_room(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("tui_trainer.ui.workbench.monotonic", lambda: now)
    async with shown(MACHINES["eight"], (200, 50)) as screens:
        assert "\u2587" not in screens.text and "GPU 0: the last 5 minutes" in screens.text
        for _ in range(20):
            now += 5
            screens.app.tick()
        await screens.settled()
        lines = body(screens)
        busy = next(row for row, line in enumerate(lines) if line[68:].startswith("busy"))
        assert "93 %    71 C  512 W" in lines[busy]
        assert [len(line[68:132].strip()) for line in lines[busy + 1 : busy + 4]] == [20, 20, 20]
        await screens.resize(120, 35)
        await screens.shows("\u2582\u2582\u2582\u2582", "12.0/64.0 GiB", gone="the last 5 minutes")
        await screens.resize(200, 50)
        await screens.press("space", "space")
        await screens.shows("GPU 1, chosen by you", "\u25b8 1 H200", "GPU 1: the last 5 minutes")


@in_event_loop
async def test_the_folder_of_the_runs_is_the_one_of_the_config(tmp_path):
    async with shown(MACHINES["no gpu"], (170, 50)) as screens:
        screens.bench.document.set("output.runs_dir", str(tmp_path / "mine"))
        screens.app.draw()
        await screens.until(lambda: "mine" in screens.text)


def test_the_header_gets_the_longest_summary_that_fits():
    for name, width, summary in (
        ("no gpu", 30, "CPU, 8 cores, 64 GiB"), ("no gpu", 15, "CPU, 8 cores"), ("no gpu", 3, "CPU"),
        ("one", 30, "1x H200 141 GiB"), ("one", 10, "1x H200"), ("eight", 6, "8 GPUs"), ("eight", 2, ""),
    ):  # fmt: skip
        assert machine_summary(MACHINES[name], width) == summary
    mixed = replace(CPU_ONLY, gpus=(gpu(0), gpu(1), gpu(2, name="Tesla T4", memory_bytes=15 * GIB)))
    assert machine_summary(mixed, 60) == "2x H200 141 GiB + 1x T4 15 GiB"


def test_a_gauge_shows_its_target_its_curve_and_dashes_for_what_is_not_reported():
    assert text_of([target_bar(0.3, 10, CPU_TARGET, UNICODE)]) == "███··░░░··"
    assert text_of([target_bar(0.6, 10, CPU_TARGET, ASCII)]) == "######==.."
    assert text_of([target_bar(None, 10, CPU_TARGET, UNICODE)]) == "--"
    values = [0.0, 0.5, 1.0, NAN, 2.0]
    assert text_of(curve_lines(values, 6, 2, None, UNICODE)) == "   █ █\n ▁██ █"
    gauge = Gauge("CPU", 0.6, (0.5, 0.8), "12.0/31.2 GiB", "any")
    for width in (40, 58, 120):
        line = gauge_line(gauge, {"any": [0.5] * 60}, width, UNICODE, most_parts=60)
        assert width_of(line) == width and "12.0/31.2 GiB" in text_of([line]) and "60 %" in text_of([line])


def shows_a_trial(monkeypatch, kept=None, tried=None) -> None:
    """What was tried here before, and what trying finds now."""
    monkeypatch.setattr(page_module, "kept_trial", lambda hardware, chosen: kept)
    monkeypatch.setattr(page_module, "try_machine", tried or (lambda *_: {**GOOD, "problems": []}))


@pytest.mark.full
@in_event_loop
async def test_the_machine_is_tried_with_a_key_and_what_is_wrong_has_its_remedy(monkeypatch):
    shows_a_trial(monkeypatch)
    async with shown(MACHINES["eight"], (200, 50)) as screens:
        await screens.shows("m tests speed")
        await screens.press("m")
        await screens.shows("benchmarks: measured here", "TFLOP/s", "tokens/s", "2026-11-23 10:00")
    problem = {"severity": "warn", "sentence": "bf16 matmuls reach 100 of 989", "remedy": "nvidia-smi -q"}
    shows_a_trial(monkeypatch, kept={**GOOD, "problems": [problem]})
    async with shown(MACHINES["eight"], (200, 50)) as screens:
        await screens.shows("bf16 matmuls reach 100 of 989", "nvidia-smi -q")


@pytest.mark.full
@in_event_loop
async def test_what_was_tried_of_one_card_is_not_shown_of_another_one(monkeypatch):
    go_on = Event()
    shows_a_trial(monkeypatch, tried=lambda *_: go_on.wait(1500) and {**GOOD, "problems": []})
    async with shown(MACHINES["eight"], (200, 50)) as screens:
        await screens.press("m", "space")
        go_on.set()
        await screens.settled()
        await screens.shows("m tests speed", gone="benchmarks: measured here")
