"""The bar of the memory: proportions, signs, what does not fit, at three sizes and in both sets of signs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.ui.screens.config_view import (
    KINDS,
    OTHERS,
    REST,
    MemoryUse,
    memory_budget,
    memory_lines,
)
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

GIB, MIB = 2**30, 2**20
LORA = {"weights": 2.1, "optimizer": 0.1, "activations": 4.8, "head and loss": 0.75, "pieces": 0.25, "context": 0.7}
FULL = {"weights": 6, "gradients": 6, "optimizer": 12, "activations": 3, "16-bit copies": 3, "evaluation": 0}
WIDTHS = (80, 120, 72)


def card(total: float, free: float, where: str = "the GPU") -> MemoryBudget:
    return MemoryBudget(total_bytes=int(total * GIB), free_bytes=int(free * GIB), where=where, share=0.9)


def use_of(parts: dict[str, float], room: MemoryBudget) -> MemoryUse:
    return MemoryUse.of([(name, int(gib * GIB)) for name, gib in parts.items()], room)


def bar_of(parts: dict[str, float], room: MemoryBudget, width: int = 80, glyphs=UNICODE) -> str:
    return text_of(memory_lines(use_of(parts, room), width, glyphs)).splitlines()[0]


@pytest.mark.parametrize("width", WIDTHS)
def test_segments_are_as_long_as_their_parts_and_the_rest_is_free(width):
    bar = bar_of({"weights": 4, "activations": 8, "some new part": 2}, card(32, 28), width)
    cells = width - 8 - len(" 32.0 GiB")
    for sign, gib in ((OTHERS.sign, 4), ("█", 4), ("▒", 8), (REST.sign, 2), ("·", 14)):
        assert abs(bar.count(sign) - cells * gib / 32) <= 1, sign
    assert bar.startswith("card    ///") and bar.endswith(" 32.0 GiB") and len(bar) == width


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [*WIDTHS, 30, 10])
def test_two_lines_that_fit_whatever_is_drawn(width, glyphs):
    swept = 0
    for parts in (LORA, FULL, {"weights": 1e-6}, {}):
        for room in (
            card(15, 14.5),
            card(141, 21),
            card(24, 24),
            card(24, 0),
            card(0, 0),
            card(64, 60, "this machine"),
        ):
            lines = memory_lines(use_of(parts, room), width, glyphs)
            assert len(lines) == 2
            assert width < 72 or all(width_of(line) <= width for line in lines)
            assert not glyphs.ascii or text_of(lines).isascii()
            swept += 1
    assert swept == 24


def test_signs_differ_without_colours_and_so_do_the_colours():
    for glyphs in (UNICODE, ASCII):
        signs = [kind.drawn(glyphs) for kind in (*KINDS, OTHERS)]
        assert len({*signs, glyphs.bar_empty}) == len(signs) + 1
    assert len({kind.role for kind in KINDS}) == len(KINDS)


def test_parts_of_one_kind_are_one_segment_and_one_entry():
    legend = text_of(memory_lines(use_of(FULL, card(141, 141)), 120, UNICODE)).splitlines()[1]
    assert "weights 9.0 GiB" in legend and "16-bit" not in legend and "evaluation" not in legend
    assert legend.index("optimizer") < legend.index("weights") < legend.index("gradients") < legend.index("free")


def test_the_legend_names_the_largest_first_and_always_what_is_free():
    for width, names in ((72, 2), (80, 2), (120, 4)):
        legend = text_of(memory_lines(use_of(LORA, card(15, 14.5)), width, UNICODE)).splitlines()[1]
        assert legend.strip().startswith("▒ activations 4.8 GiB  █ weights 2.1 GiB") and legend.endswith(
            "· 5.8 GiB free"
        )
        assert legend.count("iB") == names + 1


def test_what_does_not_fit_stands_behind_a_line_and_is_told():
    bar, legend = memory_lines(use_of(FULL, card(24, 23)), 80, UNICODE)
    assert text_of([bar]).count("│") == 1 and "✗ 7.0 GiB too much" in text_of([legend])
    line = next(index for index, (text, _) in enumerate(bar) if "│" in text)
    assert all(role == "bad" for _, role in bar[line:-1]) and all(role != "bad" for _, role in bar[:line])
    assert "│" not in text_of(memory_lines(use_of(FULL, card(141, 141)), 80, UNICODE))


def test_a_plan_that_takes_next_to_nothing_is_seen_all_the_same():
    bar = bar_of({"weights": 3 * MIB / GIB, "activations": 90 * MIB / GIB}, card(64, 60, "this machine"))
    assert bar.count("▒") == 1 and bar.startswith("machine ") and "█" not in bar


def test_a_memory_of_unknown_size_is_not_drawn():
    unknown = MemoryBudget(total_bytes=None, free_bytes=None, where="the GPU", share=0.9)
    assert memory_lines(use_of(LORA, unknown), 80, UNICODE) == memory_lines(None, 80, UNICODE) == [[], []]


def test_the_memory_is_that_of_the_card_that_the_plan_names(tiny_config):
    from tui_trainer.planning import plan as planning
    from tui_trainer.tasks.contract import DataFacts

    cards = tuple(
        Gpu(index=n, name="H200", uuid=f"GPU-{n}", memory_bytes=141 * GIB, memory_free_bytes=(20 + 100 * n) * GIB)
        for n in range(2)
    )
    machine = Hardware(cpu_name="Test CPU", usable_cores=2, memory_bytes=16 * GIB, memory_available_bytes=8 * GIB,
                       platform="Linux", python_version="3.11")  # fmt: skip
    facts = DataFacts(rows=9, eval_rows=2, tokens=999, eval_tokens=99, vocabulary=50, exact=True, reason="made up")
    loaded = tiny_config("a", {"output.runs_dir": Path("runs")})
    on_cpu = memory_budget(planning.make(loaded, machine, facts), machine, 7 * GIB)
    assert (on_cpu.total_bytes, on_cpu.free_bytes) == (16 * GIB, 7 * GIB)
    with_cards = replace(machine, gpus=cards)
    on_card = memory_budget(planning.make(loaded, with_cards, facts), with_cards, 7 * GIB)
    assert (on_card.total_bytes, on_card.free_bytes, on_card.where) == (141 * GIB, 120 * GIB, "the GPU")


PICTURES = {
    (80, UNICODE): """\
card    //█████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▞▞▞▞░░░░························ 15.0 GiB
        ▒ activations 4.8 GiB  █ weights 2.1 GiB  · 5.8 GiB free""",
    (80, ASCII): """\
card    //#########====================oooo::::........................ 15.0 GiB
        = activations 4.8 GiB  # weights 2.1 GiB  . 5.8 GiB free""",
    (120, UNICODE): """\
card    ///███████████████▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▞▞▞▞▞▞░░░░░░········································ 15.0 GiB
        ▒ activations 4.8 GiB  █ weights 2.1 GiB  ░ the rest 972.8 MiB  ▞ head and loss 768.0 MiB  · 5.8 GiB free""",
    (72, UNICODE): """\
card    //████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▞▞▞░░░░····················· 15.0 GiB
        ▒ activations 4.8 GiB  █ weights 2.1 GiB  · 5.8 GiB free""",
}


@pytest.mark.parametrize(("width", "glyphs"), PICTURES, ids=lambda value: getattr(value, "ascii", value))
def test_the_bar_looks_as_it_did_when_it_was_found_good(width, glyphs):
    """At 80, 120 and in the column of a screen of 200 cells."""
    assert text_of(memory_lines(use_of(LORA, card(15, 14.5)), width, glyphs)) == PICTURES[width, glyphs]
