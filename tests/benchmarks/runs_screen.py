"""CPU time of a key on the Runs screen with many runs: sorting, filtering and moving, until the picture is there.

    python -m tests.benchmarks.runs_screen [RUNS]

The median and the highest of some keys, at 80x24 and 200x50, of the whole process: key, model, table and picture.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

from tests.ui.canned import CPU, RUNS, CannedBench
from tests.ui.screens import Screens, open_screens
from tui_trainer.config.load import Request
from tui_trainer.runs.overview import Overviews, RunOverview
from tui_trainer.ui import app as app_module
from tui_trainer.ui.spans import UNICODE

LIMIT_SECONDS = 0.05
KEYS = {"sort": ("o",) * 8, "reverse": ("O",) * 4, "filter": tuple("quick-1"), "unfilter": ("backspace",) * 7,
        "move": ("down",) * 8, "to the end": ("end", "home") * 2}  # fmt: skip


def made_up(count: int) -> list[RunOverview]:
    """Runs that differ in every column."""
    runs = [one for one in RUNS if one.is_run]
    found = []
    for number in range(count):
        one, name = runs[number % len(runs)], f"{runs[number % len(runs)].name}-{number}"
        shift = (number * 7919 % count) / count
        losses = tuple(loss + shift for loss in one.loss_curve)
        found.append(
            replace(one, name=name, path=Path("/data/runs") / name, step=number, total_steps=count, size_bytes=number,
                    loss=shift, eval_loss=shift + 1, loss_curve=losses, alive=False)
        )  # fmt: skip
    return found


async def seconds_of(screens: Screens, key: str) -> float:
    started = process_time()
    await screens.press(key)
    await screens.pilot.pause()
    return process_time() - started


async def measure(size: tuple[int, int]) -> float:
    worst = 0.0
    async with open_screens(bench=CannedBench(lambda: Request(), CPU, UNICODE), size=size) as screens:
        await screens.press("5")
        await screens.settled()
        for name, keys in KEYS.items():
            if name == "filter":
                await screens.press("/")
            times = [await seconds_of(screens, key) for key in keys]
            if name == "unfilter":
                await screens.press("enter")
            worst = max(worst, median(times))
            milliseconds = f"median {1000 * median(times):.0f} ms, highest {1000 * max(times):.0f} ms"
            print(f"{size[0]}x{size[1]}  {name:<10}  {milliseconds}")
            await screens.settled()
    return worst


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    runs = made_up(count)
    app_module.TICK_SECONDS = 1e6
    Overviews.read = lambda *_: runs  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as home:
        os.environ["TUI_TRAINER_HOME"] = home
        worst = max(asyncio.run(measure(size)) for size in ((80, 24), (200, 50)))
    print(
        f"{count} runs: the slowest kind of key takes {1000 * worst:.0f} ms (under {1000 * LIMIT_SECONDS:.0f} required)"
    )
    sys.exit(worst > LIMIT_SECONDS)


if __name__ == "__main__":
    main()
