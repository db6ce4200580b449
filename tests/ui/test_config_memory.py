"""The bar of the memory beside the settings: proportions, signs, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.planning import plan as planning
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.planned import estimated
from tui_trainer.planning.summary import moved_words
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.ui.screens.config_view import OTHERS, REST, MemoryUse, memory_budget, memory_lines
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

GIB = 2**30
LORA = {"weights": 2.1, "optimizer": 0.1, "activations": 4.8, "head and loss": 0.75, "pieces": 0.25, "context": 0.7}
FULL = {"weights": 6, "gradients": 6, "optimizer": 12, "activations": 3, "16-bit copies": 3, "evaluation": 0}


def card(total: float, free: float) -> MemoryBudget:
    return MemoryBudget(total_bytes=int(total * GIB), free_bytes=int(free * GIB), where="the GPU", usable_share=0.9)


def bar(parts: dict[str, float], room: MemoryBudget, width: int = 80, glyphs=UNICODE):
    return memory_lines(MemoryUse.of([(name, int(gib * GIB)) for name, gib in parts.items()], room), width, glyphs)


def test_segments_are_as_long_as_their_parts_and_the_rest_is_free():
    for width in (72, 80, 120):
        line = text_of(bar({"weights": 4, "activations": 8, "some new part": 2}, card(32, 28), width)[:1])
        cells = width - 8 - len(" 32.0 GiB")
        for sign, gib in ((OTHERS.sign, 4), ("█", 4), ("▒", 8), (REST.sign, 2), ("·", 14)):
            assert abs(line.count(sign) - cells * gib / 32) <= 1, sign
        assert line.startswith("card    ///") and line.endswith(" 32.0 GiB") and len(line) == width


def test_two_lines_that_fit_whatever_is_drawn():
    for parts in (LORA, FULL, {"weights": 1e-6}, {}):
        for room in (card(15, 14.5), card(141, 21), card(24, 0), card(0, 0)):
            for width in (120, 72, 10):
                lines = bar(parts, room, width, ASCII)
                assert len(lines) == 2 and text_of(lines).isascii()
                assert width < 72 or all(width_of(line) <= width for line in lines)


def test_the_legend_names_the_largest_first_and_what_is_free_or_too_much():
    legend = text_of(bar(LORA, card(15, 14.5))[1:])
    assert legend.split("  ")[-3:] == ["▒ activations 4.8 GiB", "█ weights 2.1 GiB", "· 5.8 GiB free"]
    line, legend = bar(FULL, card(24, 23))
    assert text_of([line]).count("│") == 1 and "✗ 7.0 GiB more than there is" in text_of([legend])
    unknown = MemoryBudget(total_bytes=None, free_bytes=None, where="the GPU", usable_share=0.9)
    assert bar(LORA, unknown) == [[], []]


def test_the_memory_is_that_of_the_card_that_the_plan_names(tiny_config):
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


def test_a_plan_whose_step_takes_another_time_names_the_reason_but_not_where_the_steps_are_others(tiny_config):
    machine = Hardware(cpu_name="Test CPU", usable_cores=2, memory_bytes=16 * GIB, memory_available_bytes=8 * GIB,
                       platform="Linux", python_version="3.11")  # fmt: skip
    facts = DataFacts(rows=9, eval_rows=2, tokens=999, eval_tokens=99, vocabulary=50, exact=True, reason="made up")
    plan = planning.make(tiny_config("a"), machine, facts)
    reason = "measured here, from 1 measured run of the same steps"
    before, now = (plan.model_copy(update={"step_seconds": estimated(seconds, reason)}) for seconds in (0.138, 0.914))
    assert moved_words(before, now) == f"a step is now planned to take 914 ms instead of 138 ms: {reason}"
    assert moved_words(before, before) == moved_words(before, now.model_copy(update={"shape_key": "others"})) == ""
