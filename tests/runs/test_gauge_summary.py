"""What readings add up to, and the words for it."""

import math

from tui_trainer.lines.plan_and_events import gauges_line
from tui_trainer.runs.events import GaugesRead, GpuReading
from tui_trainer.runs.state import GaugeSummary

GIB = 1 << 30


def summary_of(*readings):
    summary = GaugeSummary()
    for reading in readings:
        summary.add(reading)
    return summary


def card(share=0.9, used=60 * GIB, watts=500.0, celsius=70.0, index=0):
    return GpuReading(index=index, utilization_share=share, memory_used_bytes=used, memory_bytes=140 * GIB,
                      power_watts=watts, temperature_celsius=celsius)  # fmt: skip


def test_use_and_power_are_means_and_memory_and_temperature_peaks():
    first = GaugesRead(process_memory_bytes=3 * GIB, process_cpu_share=0.5, usable_cores=4.0, gpus=[card()])
    second = GaugesRead(process_memory_bytes=2 * GIB, process_cpu_share=0.25, usable_cores=4.0,
                        gpus=[card(0.5, 61 * GIB, 400.0, 60.0)])  # fmt: skip
    assert gauges_line(1200, summary_of(first, second)) == (
        "step 1200: GPU 70 %, 61.0 of 140.0 GiB, 450 W, 70 \u00b0C; process 3.0 GiB, CPU 1.5 of 4 cores"
    )


def test_memory_and_power_of_several_cards_are_those_of_all():
    reading = GaugesRead(gpus=[card(), card(0.7, index=1, celsius=75.0)])
    assert gauges_line(3, summary_of(reading)) == "step 3: GPU 80 %, 120.0 of 280.0 GiB, 1000 W, 75 \u00b0C"


def test_what_is_not_reported_is_not_shown():
    assert gauges_line(1, summary_of()) is None
    nothing = GaugesRead(gpus=[GpuReading(index=0)])
    assert gauges_line(1, summary_of(nothing)) is None
    some = GaugesRead(process_memory_bytes=GIB, gpus=[GpuReading(index=0, power_watts=80.0)])
    assert gauges_line(1, summary_of(nothing, some)) == "step 1: GPU 80 W; process 1.0 GiB"
    assert gauges_line(1, summary_of(GaugesRead(process_memory_bytes=GIB))) == "step 1: process 1.0 GiB"


def test_a_card_at_rest_is_reported_as_zero():
    assert (
        gauges_line(1, summary_of(GaugesRead(gpus=[GpuReading(index=0, utilization_share=0.0)]))) == "step 1: GPU 0 %"
    )


def test_figures_that_are_not_finite_count_as_not_reported():
    for value in (math.nan, math.inf, -math.inf):
        odd = GaugesRead(process_cpu_share=value, usable_cores=value,
                         gpus=[GpuReading(index=0, utilization_share=value, power_watts=value,
                                          temperature_celsius=value)])  # fmt: skip
        assert gauges_line(1, summary_of(odd)) is None
        assert gauges_line(1, summary_of(odd, GaugesRead(gpus=[card()]), odd)) == gauges_line(
            1, summary_of(GaugesRead(gpus=[card()]))
        )
