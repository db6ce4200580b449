"""Makes the pictures in this folder: `uv run python screenshots/make.py`, about two minutes.

It opens the application without a terminal, trains the quickstart recipe in it, presses keys and keeps what is shown,
at both sizes, as SVG and as plain text. Only the host's name is replaced; it works in `/tmp/demo`, so paths are short.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from tui_trainer.ui.app import TrainerApp

HERE = Path(__file__).resolve().parent
WORK = Path("/tmp/demo")
SIZES = ((80, 24), (200, 50))
HOST = "gpu-box"
PATIENCE_SECONDS = 600.0
LOOK_SECONDS = 0.2


class Photographer:
    """Drives one application, and keeps its pictures by name until they are written."""

    def __init__(self, app: TrainerApp, pilot: Pilot[None]) -> None:
        self.app, self._pilot = app, pilot
        self.texts: dict[str, str] = {}
        self.drawings: dict[str, str] = {}

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def until(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait for something that happens in another thread."""
        for _ in range(int(PATIENCE_SECONDS / LOOK_SECONDS)):
            if ready():
                return
            await self._pilot.pause(LOOK_SECONDS)
        raise SystemExit(f"{what} did not come within {PATIENCE_SECONDS:.0f} seconds")

    async def take(self, name: str) -> None:
        """What is shown now, at both sizes."""
        from svg import to_svg

        print(name, flush=True)
        for columns, rows in SIZES:
            await self._pilot.resize_terminal(columns, rows)
            await self._pilot.pause()
            self.app.draw()
            await self._pilot.pause()
            # The one list of all that is shown, dialogs and all; Textual has no public name for it.
            lines = self.app.screen._compositor.render_strips()
            if len(lines) != rows:
                raise SystemExit(f"{name}: {len(lines)} lines instead of {rows}")
            place = f"{columns}x{rows}/{name}"
            self.texts[place] = "\n".join(line.text.rstrip() for line in lines) + "\n"
            self.drawings[place] = to_svg([list(line) for line in lines], f"tui-trainer: {name}, {columns}x{rows}")


async def session(app: TrainerApp) -> Photographer:
    """From the first screen to a trained model, with a picture of every screen."""
    bench = app.bench
    async with app.run_test(size=SIZES[-1]) as pilot:
        camera = Photographer(app, pilot)
        await camera.until("the checklist", lambda: bool(bench.findings) and not bench.background.is_busy("checks"))
        await camera.until("a look at the machine", lambda: bool(bench.gauges and bench.gauges.cpu_share is not None))
        await camera.take("hardware")

        await camera.press("2")
        await camera.take("config")
        await camera.press("/", *"learning_rate", "enter", "escape", "enter", *["backspace"] * 8, *"2e-3")
        await camera.take("config-edit")
        await camera.press("enter")
        await camera.until("the plan of an edit", lambda: not bench.is_planning)
        await camera.take("config-changed")
        await camera.press("u", "p")
        await camera.take("config-recipes")
        await camera.press("escape")

        await camera.until("the checks", lambda: not bench.is_planning and not bench.background.is_busy("checks"))
        await camera.press("3", "home")
        await camera.take("checklist")
        await camera.press("?")
        await camera.take("help")
        await camera.press("escape", ":", *"fix")
        await camera.take("commands")
        await camera.press("escape", "t")
        await camera.take("start")
        await camera.press("enter")
        await train(camera)
    if bench.run is not None:
        bench.run.wait(PATIENCE_SECONDS)
    return camera


async def train(camera: Photographer) -> None:
    """The run that was just started, to its end, and a word with the model."""
    from tui_trainer.ui.workbench import TRYING

    bench = camera.app.bench

    def step() -> int:
        return bench.run.state.step if bench.run else 0

    try:
        await camera.until("the middle of the run", lambda: step() * 2 >= bench.run.state.total_steps > 0)
        await camera.take("train")
        await camera.until("the end of the run", lambda: not bench.run_is_alive)
    finally:
        if bench.run_is_alive and bench.run is not None:
            bench.run.ask("stop")
    bench.poll_run()
    await camera.take("train-finished")
    await camera.press("w", *["backspace"] * 60, *"The ", "enter")
    await camera.until("a text", lambda: not bench.background.is_busy(TRYING))
    await camera.take("try")
    await camera.press("escape", "5")
    await camera.until("the size of the run", lambda: not bench.background.is_busy("sizes of runs"))
    await camera.take("runs")


def application() -> TrainerApp:
    """The application as `main` opens it, on a machine of another name."""
    from tui_trainer.config.load import Request
    from tui_trainer.hardware.probe import probe
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.keymap import Keymap
    from tui_trainer.ui.spans import UNICODE
    from tui_trainer.ui.workbench import Workbench

    hardware = replace(probe(), host=HOST)
    assignments = tuple(f"training.max_steps={steps}" for steps in sys.argv[1:])
    return TrainerApp(Workbench(lambda: Request(assignments=assignments), hardware, UNICODE), Keymap())


def give_away(texts: dict[str, str]) -> list[str]:
    """Which pictures show where they were made."""
    secrets = [re.escape(str(HERE.parent)), re.escape(str(Path.home())) + "/", rf"\b{re.escape(platform.node())}\b"]
    return [f"{name}: {secret}" for name, text in texts.items() for secret in secrets if re.search(secret, text)]


def main() -> None:
    try:
        WORK.mkdir(mode=0o700)
    except FileExistsError:
        raise SystemExit(f"{WORK} is in the way: another picture is being made, or was broken off; remove it") from None
    for name, folder in (("TUI_TRAINER_HOME", "state"), ("XDG_CONFIG_HOME", "config"), ("HF_HOME", "huggingface")):
        os.environ[name] = str(WORK / folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ("NO_COLOR", "CUDA_VISIBLE_DEVICES", "HF_HUB_CACHE"):
        os.environ.pop(name, None)
    os.chdir(WORK)
    try:
        camera = asyncio.run(session(application()))
    finally:
        os.chdir(HERE)
        shutil.rmtree(WORK, ignore_errors=True)
    if found := give_away(camera.texts):
        raise SystemExit("these show where they were made:\n" + "\n".join(found))
    for suffix, pictures in (("txt", camera.texts), ("svg", camera.drawings)):
        for name, text in pictures.items():
            path = HERE / f"{name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(f"{len(camera.texts)} pictures in {HERE}")


if __name__ == "__main__":
    main()
