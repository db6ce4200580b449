"""The Hardware screen as text, for machines of all kinds, at all sizes, in both sets of signs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from tui_trainer.hardware.diagnosis import diagnose
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.ui.page import machine_summary
from tui_trainer.ui.screens.hardware import Machine
from tui_trainer.ui.spans import ASCII, UNICODE, Line, text_of, width_of

GIB = 1 << 30
PARTS = (
    Machine.device_section, Machine.problems_section, Machine.gpu_table, Machine.card_section,
    Machine.peak_section, Machine.users_section, Machine.trail_title, Machine.processor_section,
    Machine.disk_section, Machine.libraries_section, Machine.system_section,
)  # fmt: skip
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\r\n[bold]\u202e\u6f22\u5b57"
PROFILE = ("cpu", "trains on the CPU (Test CPU, 8 cores)")
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
    "no driver": replace(CPU_ONLY, nvidia_pci_devices=1),
    "sick driver": replace(CPU_ONLY, driver=Driver(problem="the NVIDIA driver was updated", error_code=18)),
    "stale driver": replace(CPU_ONLY, gpus=(gpu(0),), driver=Driver(version="550.54", cuda=(12, 4))),
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


def gauges(hardware: Hardware, share: float = 0.5) -> Gauges:
    cards = tuple(
        Gpu(
            index=card.index,
            utilisation_share=share,
            memory_free_bytes=141 * GIB - int(share * 141 * GIB),
            memory_bytes=141 * GIB,
            temperature_celsius=100 * share,
            power_watts=700 * share,
            power_limit_watts=700.0,
        )
        for card in hardware.gpus
    )
    return Gauges(cpu_share=share, memory_used_bytes=int(share * 64 * GIB), memory_bytes=64 * GIB, gpus=cards)


def machine(hardware, width=80, *, glyphs=UNICODE, now=None, chosen=None, wide=False) -> Machine:
    diagnosis = diagnose(hardware, chosen)
    return Machine(
        diagnosis=diagnosis, hardware=hardware, gauges=now, profile=PROFILE, wide=wide, width=width, glyphs=glyphs
    )


def drawn(hardware, width=80, **rest) -> list[Line]:
    """All parts in a column of so many cells."""
    return [line for part in PARTS for line in part(machine(hardware, width, **rest))]


def everything(hardware, width=80, **rest) -> str:
    return text_of(drawn(hardware, width, **rest))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("name", MACHINES)
def test_no_line_is_wider_than_its_column_and_none_does_harm(name, glyphs, wide):
    hardware = MACHINES[name]
    for width in (58, 64, 80, 119):
        lines = drawn(hardware, width, glyphs=glyphs, now=gauges(hardware), wide=wide)
        assert len(lines) > 15 and max(map(width_of, lines)) == width
        assert not set(text_of(lines)) & set("\x1b\x07\r\u202e")
        if glyphs.ascii:
            signs = {sign for line in lines for text, role in line if role in ("rule", "accent") for sign in text}
            assert all(sign.isascii() for sign in signs)


def test_the_text_of_wide_signs_is_cut_by_cells_and_not_by_letters():
    wide = replace(CPU_ONLY, cpu_name="\u6f22\u5b57" * 60)
    text = everything(wide)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert text.count("\u6f22") == 60


def test_what_is_used_and_what_is_wrong_come_first():
    lines = everything(MACHINES["stale driver"]).splitlines()
    assert lines[1].startswith("device     CPU: torch is built for CUDA 13.2, the driver serves 12.4")
    problem = next(index for index, line in enumerate(lines) if "problems: 1" in line)
    assert problem < 8
    assert lines[problem + 1].startswith("\u2717  torch is built for CUDA 13.2, the driver serves 12.4")
    assert "\u2192 pip install --force-reinstall torch" in lines[problem + 3]


def test_a_machine_without_gpu_is_described_and_needs_no_scrolling():
    text = everything(CPU_ONLY, now=gauges(CPU_ONLY))
    for words in (
        "no NVIDIA GPU was found",
        "7, of 8 cores one is left free (8 physical, 16 logical)",
        "bf16 natively (avx512_bf16)",
    ):
        assert words in text
    assert "none found" in text
    assert "70.0 GiB free of 252.0 GiB  /data/model cache" in text
    assert "not here   peft, datasets" in text
    assert 15 < len(text.splitlines()) < 20


def test_a_card_is_described_with_its_source_and_its_guests():
    text = everything(MACHINES["one"], 80)
    for words in (
        "card       NVIDIA H200, 141.0 GiB, compute capability 9.0",
        "computes   fp32, fp16 on tensor cores, bf16, tf32, fp8",
        "attention  flash attention",
        "bf16 989",
        "(NVIDIA H200 data sheet)",
        "used by    python of anna (pid 4711) holds 120.0 GiB",
        "580.65, serves CUDA 13.2; torch is built for CUDA 13.2",
    ):
        assert " ".join(words.split()) in " ".join(text.split())


def test_beside_other_columns_there_are_more_parts_and_nothing_is_lost():
    narrow, wide = (" ".join(everything(MACHINES["eight"], 80, wide=wide).split()) for wide in (False, True))
    assert "peak rates, dense" in wide
    assert "peak rates, dense" not in narrow
    assert "python 3.11.7" in wide
    for words in ("NVIDIA H200 data sheet", "GPU 7 python of anna", "prepared data", "transformers"):
        assert words in wide
        assert words in narrow


def test_beside_other_columns_it_is_said_of_each_card_who_uses_it():
    idle = replace(MACHINES["eight"], gpus=(gpu(0), gpu(1, processes=(ANNA, replace(ANNA, user="bert")))))
    for wide, rows in ((True, ["GPU 0      nobody", "GPU 1      python of anna", "           python of bert"]),
                       (False, ["used by    nobody", "GPU 1      python of anna"])):  # fmt: skip
        text = everything(idle, 80, wide=wide)
        assert all(row in text for row in rows)
        assert ("used by" in text) == (not wide)


def test_gauges_move_nothing():
    for name in ("eight", "one"):
        hardware = MACHINES[name]
        tables = [
            Machine.gpu_table(machine(hardware, 80, now=now))
            for now in (None, *(gauges(hardware, share) for share in (0, 0.07, 1)))
        ]
        shapes = [[[len(text) for text, _ in line] for line in lines] for lines in tables]
        assert all(shape == shapes[0] for shape in shapes)
        changed = sum(a != b for a, b in zip(tables[1], tables[3], strict=True))
        assert changed == len(hardware.gpus)


def test_old_figures_are_not_shown_as_the_present():
    table = next(line for line in everything(MACHINES["one"]).splitlines() if "0 H200" in line)
    assert "--" in table
    assert "0 %" not in table


def test_the_pointer_stands_at_the_card_that_is_taken():
    hardware = MACHINES["eight"]
    for chosen, index, words in ((None, 0, "the card that would be used"), (5, 5, "the card that you chose")):
        text = everything(hardware, 80, chosen=chosen)
        assert f"\u25b8 {index} H200" in text
        assert text.count("\u25b8") == 1
        assert f"GPU {index}: {words}" in text


def test_columns_of_the_table_are_left_out_before_they_are_cut():
    long = replace(MACHINES["eight"], gpus=(gpu(0, name="NVIDIA RTX 6000 Ada Generation With A Longer Name"), gpu(1)))
    for width in (80, 120, 180):
        text = everything(long, width, now=gauges(long))
        assert "RTX 6000 Ada Generation With A Longer Name" in text
        assert UNICODE.ellipsis not in text


@pytest.mark.parametrize(
    ("name", "width", "summary"),
    [
        ("no gpu", 30, "CPU, 8 cores, 64 GiB"),
        ("no gpu", 15, "CPU, 8 cores"),
        ("no gpu", 3, "CPU"),
        ("one", 30, "1x H200 141 GiB"),
        ("one", 10, "1x H200"),
        ("eight", 6, "8 GPUs"),
        ("eight", 2, ""),
        ("silent", 30, "1x GPU"),
    ],
)
def test_the_header_gets_the_longest_summary_that_fits(name, width, summary):
    assert machine_summary(MACHINES[name], width) == summary


def test_the_summary_counts_kinds_and_is_safe():
    mixed = replace(CPU_ONLY, gpus=(gpu(0), gpu(1), gpu(2, name="Tesla T4", memory_bytes=15 * GIB)))
    assert machine_summary(mixed, 60) == "2x H200 141 GiB + 1x T4 15 GiB"
    assert "\x1b" not in machine_summary(MACHINES["hostile"], 200)
