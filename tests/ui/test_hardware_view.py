"""The Hardware screen as text, for machines of all kinds, at all sizes, in both sets of signs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from tui_trainer.hardware.diagnosis import diagnose
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.hardware.gauges import Gauges, GpuGauge
from tui_trainer.ui.glyphs import ASCII, UNICODE
from tui_trainer.ui.screens.hardware_view import draw_hardware, machine_summary, most_scroll
from tui_trainer.ui.spans import text_of, width_of

GIB = 1 << 30
SIZES = ((80, 22), (120, 33), (200, 48), (100, 24), (80, 5))
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
        GpuGauge(
            index=card.index,
            utilisation_share=share,
            memory_used_bytes=int(share * 141 * GIB),
            memory_bytes=141 * GIB,
            temperature_celsius=100 * share,
            power_watts=700 * share,
            power_limit_watts=700.0,
        )
        for card in hardware.gpus
    )
    return Gauges(cpu_share=share, memory_used_bytes=int(share * 64 * GIB), memory_bytes=64 * GIB, gpus=cards)


def draw(hardware, width=80, height=22, *, glyphs=UNICODE, scroll=0, now=None, chosen=None, profile=PROFILE):
    return draw_hardware(
        diagnose(hardware, chosen),
        hardware,
        now,
        profile=profile,
        scroll=scroll,
        width=width,
        height=height,
        glyphs=glyphs,
    )


def everything(hardware, width, height=22, **rest) -> str:
    """All that can be scrolled to."""
    return text_of(draw(hardware, width, 400, **rest))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("name", MACHINES)
def test_the_picture_has_exactly_the_asked_size(name, glyphs):
    hardware = MACHINES[name]
    for width, height in SIZES:
        for scroll in (0, 3, 10_000):
            lines = draw(hardware, width, height, glyphs=glyphs, scroll=scroll, now=gauges(hardware))
            assert len(lines) == height
            assert {width_of(line) for line in lines} == {width}
            text = text_of(lines)
            assert not set(text) & set("\x1b\x07\r\u202e")
            if glyphs.ascii:
                assert text.isascii()


@pytest.mark.parametrize("name", sorted(set(MACHINES) - {"hostile"}))
def test_nothing_is_cut_at_any_width(name):
    for width in (80, 100, 120, 150, 180, 200):
        assert UNICODE.ellipsis not in everything(MACHINES[name], width)


def test_the_text_of_wide_signs_is_cut_by_cells_and_not_by_letters():
    wide = replace(CPU_ONLY, cpu_name="\u6f22\u5b57" * 60)
    lines = draw(wide, 80, 40)
    assert max(cell_len(line) for line in text_of(lines).splitlines()) <= 80
    assert text_of(lines).count("\u6f22") == 60


def test_what_is_used_and_what_is_wrong_come_first():
    lines = text_of(draw(MACHINES["stale driver"])).splitlines()
    assert lines[1].startswith("device     CPU: torch is built for CUDA 13.2, the driver serves 12.4")
    problem = next(index for index, line in enumerate(lines) if "problems: 1" in line)
    assert problem < 8
    assert lines[problem + 1].startswith("\u2717  torch is built for CUDA 13.2, the driver serves 12.4")
    assert "\u2192 pip install --force-reinstall torch" in lines[problem + 3]


def test_a_machine_without_gpu_fills_its_screen_and_needs_no_scrolling():
    text = text_of(draw(CPU_ONLY, now=gauges(CPU_ONLY)))
    for words in (
        "no NVIDIA GPU was found",
        "7, of 8 cores one is left free (8 physical, 16 logical)",
        "bf16 natively (avx512_bf16)",
    ):
        assert words in text
    assert "none found" in text
    assert "70.0 GiB free of 252.0 GiB  /data/model cache" in text
    assert "not here   peft, datasets" in text
    assert len(text.splitlines()) > 17
    options = {"profile": PROFILE, "width": 80, "height": 22, "glyphs": UNICODE}
    assert most_scroll(diagnose(CPU_ONLY), CPU_ONLY, **options) == 0


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


def test_wide_screens_add_panes_and_lose_nothing():
    narrow, wide = (" ".join(everything(MACHINES["eight"], width).split()) for width in (80, 200))
    assert "peak rates, dense" in wide
    assert "peak rates, dense" not in narrow
    assert "python 3.11.7" in wide
    for words in ("NVIDIA H200 data sheet", "on the other GPUs", "prepared data", "transformers"):
        assert words in wide
        assert words in narrow


def test_scrolling_shows_every_line_and_says_what_is_left():
    hardware = MACHINES["eight"]
    whole = text_of(draw(hardware, 80, 400)).rstrip().splitlines()
    options = {"profile": PROFILE, "width": 80, "height": 22, "glyphs": UNICODE}
    furthest = most_scroll(diagnose(hardware), hardware, **options)
    assert furthest > 0
    seen: list[str] = []
    for top in range(furthest + 1):
        *body, position = text_of(draw(hardware, scroll=top)).splitlines()
        seen += body[len(seen) - top :]
        assert (f"{furthest - top} more below" in position) == (top < furthest)
        assert (f"{top} above" in position) == (top > 0)
    assert [line for line in seen if line] == [line for line in whole if line]
    assert text_of(draw(hardware, scroll=furthest)) == text_of(draw(hardware, scroll=10_000))


def test_gauges_move_nothing():
    for name, width, height in (("eight", 80, 22), ("one", 120, 33), ("eight", 200, 48)):
        hardware = MACHINES[name]
        pictures = [
            draw(hardware, width, height, now=now) for now in (None, *(gauges(hardware, s) for s in (0, 0.07, 1)))
        ]
        shapes = [[[len(text) for text, _ in line] for line in lines] for lines in pictures]
        assert all(shape == shapes[0] for shape in shapes)
        changed = sum(a != b for a, b in zip(pictures[1], pictures[3], strict=True))
        assert 0 < changed <= 2 + len(hardware.gpus)


def test_old_figures_are_not_shown_as_the_present():
    table = next(line for line in text_of(draw(MACHINES["one"])).splitlines() if "0 H200" in line)
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
