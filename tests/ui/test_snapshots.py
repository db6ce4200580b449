"""Every screen as text, as it was looked at and found good: all at 80x24, each page also at 200x50, two in ASCII.

The machine, the plan, the checks and the run are made up (`canned.py`), so nothing depends on where the tests run.
`UPDATE_SNAPSHOTS=1 uv run pytest -m "" tests/ui/test_snapshots.py` writes the files; `git diff` shows what changed.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from tests.ui.canned import (
    CPU,
    DONE,
    FAILED,
    GPUS,
    LORA,
    SICK,
    STOPPED,
    WORK,
    CannedRun,
    open_canned,
    stand_still,
    trained,
)
from tests.ui.pictures import in_event_loop
from tui_trainer.hardware.facts import Hardware
from tui_trainer.runs import events as e
from tui_trainer.ui.spans import ASCII

FOLDER = Path(__file__).with_name("snapshots")
UPDATE = bool(os.environ.get("UPDATE_SNAPSHOTS"))
SMALL, LARGE = (80, 24), (200, 50)
# Name: what is pressed, the machine, the journal of a run and whether it is alive. Scenes of one machine share a
# program, so a scene that leaves something behind, such as a filter, comes after those that would show it.
SCENES: dict[str, tuple[str, Hardware, list[e.Event] | None, bool]] = {
    "hardware-cpu": ("1", CPU, None, False),
    "hardware-gpus": ("1", GPUS, None, False),
    "hardware-stale-driver": ("1", SICK, None, False),
    "config": ("2", CPU, None, False),
    "config-recipes": ("2 p", CPU, None, False),
    "help": ("2 ?", CPU, None, False),
    "checklist": ("3", CPU, None, False),
    "start": ("1 t", CPU, None, False),
    "train-no-run": ("4", CPU, None, False),
    "runs": ("5 down", CPU, None, False),
    "compare": ("5 home space down space down space C", CPU, None, False),
    "config-edit": ("2 / r a t e enter escape enter backspace 5", CPU, None, False),
    "train-preparing": ("4", CPU, [*trained(0)[:2], WORK], True),
    "train-finished": ("4", CPU, [*trained(500), DONE], False),
    "train-stopped": ("4", CPU, [*trained(120), STOPPED], False),
    "train-failed": ("4", CPU, [*trained(120), FAILED], False),
    "train-paused": ("4 left left", CPU, [*trained(120), e.PhaseChanged(phase="paused")], True),
    "train": ("4", GPUS, trained(248, **LORA), True),
    "doctor": ("4 d", GPUS, trained(248, **LORA), True),
}  # fmt: skip
ALSO_LARGE = ("hardware-gpus", "config", "checklist", "train", "runs")
ALSO_ASCII = ("config", "train")


async def show(screens, name: str) -> str:
    """The text of a scene, in a window of 80x24."""
    keys, _, events, is_alive = SCENES[name]
    await screens.resize(*SMALL)
    while screens.app.dialog or screens.app.page.is_typing:
        await screens.press("escape")
    if events is not None:
        screens.bench.run = CannedRun(events, is_alive)
        screens.app.run_changed()
    for key in keys.split():
        await screens.press(key)
        if key in "12345":
            await screens.settled()
    return await screens.settled() + "\n"


@pytest.fixture(autouse=True)
def still(monkeypatch):
    stand_still(monkeypatch)


def path_of(name: str, size: tuple[int, int], kind: str = "") -> Path:
    return FOLDER / f"{size[0]}x{size[1]}" / f"{name}{kind}.txt"


def compare(text: str, path: Path) -> None:
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != expected:
        label = str(path.relative_to(FOLDER))
        rows = difflib.unified_diff(expected.split("\n"), text.split("\n"), label, "now", lineterm="", n=1)
        pytest.fail("another picture; UPDATE_SNAPSHOTS=1 takes it over\n" + "\n".join(rows), pytrace=False)


def kind_of(name: str) -> str:
    """The scenes that share a program."""
    _, machine, events, _ = SCENES[name]
    if name == "config-recipes":
        return "recipes"
    return "stale driver" if machine is SICK else "gpus" if machine is GPUS else "runs" if events else "cpu"


@pytest.mark.parametrize(
    "kind", ["cpu", "runs", "gpus", "stale driver", pytest.param("recipes", marks=pytest.mark.full)]
)
@in_event_loop
async def test_screens_look_as_they_did_when_they_were_found_good(kind, subtests):
    names = [name for name in SCENES if kind_of(name) == kind]
    async with open_canned(SCENES[names[0]][1], size=SMALL) as screens:
        for name in names:
            with subtests.test(name):
                compare(await show(screens, name), path_of(name, SMALL))
                if name in ALSO_LARGE:
                    await screens.resize(*LARGE)
                    compare(await screens.settled() + "\n", path_of(name, LARGE))


@pytest.mark.parametrize("name", ALSO_ASCII)
@in_event_loop
async def test_it_is_all_there_where_only_ascii_may_appear(name):
    async with open_canned(SCENES[name][1], ASCII, size=SMALL) as screens:
        text = await show(screens, name)
    assert text.isascii()
    compare(text, path_of(name, SMALL, "-ascii"))


@in_event_loop
async def test_without_colours_a_screen_says_the_same_and_no_cell_has_a_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_canned(SCENES["train"][1], size=SMALL) as screens:
        assert await show(screens, "train") == path_of("train", SMALL).read_text(encoding="utf-8")
        styles = [segment.style for strip in screens.app.screen._compositor.render_strips() for segment in strip]
        colours = [colour for style in styles for colour in (style.color, style.bgcolor)]
        assert len(styles) > 2 * SMALL[1] and all(colour is None or colour.is_default for colour in colours)


def test_every_snapshot_belongs_to_a_scene():
    expected = [path_of(name, SMALL) for name in SCENES] + [path_of(name, LARGE) for name in ALSO_LARGE]
    expected += [path_of(name, SMALL, "-ascii") for name in ALSO_ASCII]
    assert sorted(FOLDER.rglob("*.txt")) == sorted(expected)
