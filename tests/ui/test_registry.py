"""One list of actions: keys, footer, help and list of commands agree on it, on every page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.combinations import first_by_default
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.runs.events import CheckpointSaved, PhaseChanged, RunFinished, RunStarted, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import fold
from tui_trainer.safe_text import one_line
from tui_trainer.ui import app as app_module
from tui_trainer.ui.actions import ACTIONS, PLACES, Action, key_sign
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import HelpDialog, footer_hints, hint_at, hints_line
from tui_trainer.ui.keymap import FAILING_KEYS, ActionCommands, Keymap
from tui_trainer.ui.page import KeyHints, header, machine_summary
from tui_trainer.ui.spans import ASCII, UNICODE, Line, text_of, width_of
from tui_trainer.ui.workbench import Workbench

WIDTHS = range(80, 221)
PAGES = ("hardware", "config", "checklist", "train", "runs")
STATES = ("no run", "running", "paused", "stopped")
STEP = StepDone(
    step=1, epoch=0.1, loss_sum=2.0, tokens=1, samples=1, lr=1e-3, grad_norm=0.5, step_seconds=0.1, data_seconds=0.0,
    forward_seconds=0.0, backward_seconds=0.0, optimizer_seconds=0.0, tokens_per_second=10.0, samples_per_second=10.0,
    peak_memory_bytes=1,
)  # fmt: skip
BEGUN = [
    RunStarted(name="run", task="char_lm", device="cpu", pid=1, total_steps=100),
    PhaseChanged(phase="training"),
    STEP,
    CheckpointSaved(step=1, path="checkpoints/step-1", bytes=1, seconds=0.1, reason="asked"),
]
JOURNALS = {
    "running": BEGUN,
    "paused": [*BEGUN, PhaseChanged(phase="paused")],
    "stopped": [*BEGUN, RunFinished(step=1, reason="stopped", loss=2.0, eval_loss=None, seconds=1.0)],
}


def run_in(state: str):
    """What the screens ask of a run, or None."""
    if state == "no run":
        return None
    folder = RunFolder(Path("/runs/run"))
    return SimpleNamespace(
        doctor=SimpleNamespace(verdict=None),
        state=fold(JOURNALS[state]), alive=state != "stopped", is_ours=True, is_interrupted=False, folder=folder,
        events=[], poll=lambda: False, ask=lambda requested: "",
    )  # fmt: skip


@asynccontextmanager
async def opened(keymap: Keymap | None = None, size: tuple[int, int] = (80, 24), hardware: Hardware | None = None):
    """The application with its config read and nothing planned."""
    bench = Workbench(lambda: Request(profile="quickstart"), hardware or probe(), UNICODE)
    app = TrainerApp(bench, keymap or Keymap())
    async with app.run_test(size=size) as pilot:
        while not bench.findings:
            await pilot.pause(0.02)
        yield app, pilot
    assert not app.crash


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


# ------------------------------------------------------------------- the list


def key_problems(actions: Iterator[Action]) -> list[str]:
    """What is wrong with keys: none, one of two actions of a page, one of a page and of everywhere, one that fails."""
    problems, owners = [], {}
    for action in actions:
        problems += [f"{action.id} has no key"] * (not action.keys)
        for key in action.keys:
            problems += [f"{action.id}: {key} fails in terminals"] * (key in FAILING_KEYS)
            places = PLACES if action.place == "app" else ("app", action.place)
            problems += [f"{action.id} and {owners[place, key]}: {key}" for place in places if (place, key) in owners]
            owners[action.place, key] = action.id
    return problems


def test_every_action_has_a_key_of_its_own_that_terminals_pass_on():
    assert key_problems(iter(ACTIONS)) == []
    assert Keymap().problems == [] and Keymap().actions == list(ACTIONS)
    assert len({action.id for action in ACTIONS}) == len(ACTIONS) > 60


def test_wrong_keys_are_noticed():
    first, second = ACTIONS[0], next(action for action in ACTIONS if action.place == "train")
    for wrong in (replace(second, keys=()), replace(second, keys=first.keys), replace(second, keys=("ctrl+i",))):
        assert len(key_problems(iter([first, wrong]))) == 1, wrong


def test_every_action_is_carried_out_by_a_method_of_its_page():
    async def look() -> int:
        async with opened() as (app, _):
            pages = {place: app.pages[place] for place in PLACES[1:]}
            assert tuple(pages) == PAGES
            swept = 0
            for action in ACTIONS:
                owner = app if action.place == "app" else pages[action.place]
                is_screen = action.name.removeprefix("go_") in PAGES
                assert is_screen or callable(getattr(owner, f"action_{action.name}", None)), action.id
                swept += 1
            for place, owner in {"app": app, **pages}.items():
                named = {name.removeprefix("action_") for name in vars(type(owner)) if name.startswith("action_")}
                known = {action.name for action in ACTIONS if action.place == place}
                # A field that has the focus asks its screen for these.
                fields = {"choose", "complete", "take", "cancel"} if place in ("config", "runs") else set()
                assert named - {"do"} - fields <= known, "a method without an action"
            return swept

    assert asyncio.run(look()) == len(ACTIONS)


def test_sentences_and_labels_are_short_plain_and_all_there():
    for action in ACTIONS:
        assert action.help[-1] in ".?" and action.help[0].isupper() and 8 < len(action.help) < 80, action.id
        assert action.label and len(action.label) <= 17 and action.label.isascii(), action.id


# ------------------------------------------------- footer, help and commands


def keys_in(line: Line) -> list[str]:
    return [text for text, role in line if role == "key"]


@pytest.mark.parametrize("state", first_by_default(STATES))
def test_footer_help_and_commands_offer_the_same_actions_on_every_page(state):
    async def look() -> int:
        swept = 0
        async with opened(size=(220, 60)) as (app, pilot):
            app.bench.run = run_in(state)
            for number, place in enumerate(PAGES):
                app.bench.go(number)
                await pilot.pause()
                offered = app.offered_actions
                ids = [action.id for action in sorted(offered, key=lambda one: one.footer or 100)]
                assert ("app.start" in ids) == (state in ("no run", "stopped"))
                if place == "train":
                    assert ("train.stop" in ids) == (state in ("running", "paused"))
                commands = [hit async for hit in ActionCommands(app.screen).discover()]
                assert [hit.command.args[0] for hit in commands] == ids
                app.action_help()
                await pilot.pause()
                assert isinstance(app.dialog, HelpDialog)
                text = " ".join(text_of(app.dialog.lines(90)).split())
                for action in app.keymap.of(place) + app.keymap.of("app"):
                    assert " ".join(key_sign(key) for key in action.keys) in text
                    assert " ".join(action.help.split()[:5]) in text, action.id
                    swept += 1
                await pilot.press("escape")
                shown = keys_in(app.page.query_one(KeyHints).lines[0])
                possible = {key_sign(action.keys[0]) for action in offered if action.footer} | {"?"}
                assert len(shown) > 2 and set(shown) <= possible and shown[-1] == "?"
        return swept

    assert asyncio.run(look()) == len(ACTIONS) + 4 * len([one for one in ACTIONS if one.place == "app"])


@pytest.mark.parametrize("state", first_by_default(STATES, 2))
def test_the_footer_never_overflows(state):
    async def look() -> int:
        swept = 0
        two = tuple(Gpu(index=index, name="NVIDIA H200", memory_bytes=1, memory_free_bytes=1) for index in range(2))
        machine = replace(probe(), gpus=two, driver=Driver(version="580.65", cuda=(13, 2)))
        async with opened(hardware=machine) as (app, pilot):
            app.bench.run = run_in(state)
            for number in range(len(PAGES)):
                app.bench.go(number)
                await pilot.pause()
                offered = app.offered_actions
                fewest = 0
                for width in WIDTHS:
                    for glyphs in (UNICODE, ASCII):
                        hints = footer_hints(offered, app.page.label_of, width)
                        line = hints_line(hints, width, glyphs)
                        assert width_of(line) == width, (PAGES[number], width)
                        assert text_of([line]).endswith("? help"), (PAGES[number], width)
                        labels = [text for text, role in line if role == "dim"]
                        assert all(text.startswith(" ") for text in labels), "a label was cut"
                        assert not glyphs.ascii or text_of([line]).isascii()
                        swept += 1
                    assert len(keys_in(line)) >= max(fewest, 2), "more room shows no fewer keys"
                    fewest = len(keys_in(line))
        return swept

    assert asyncio.run(look()) == len(PAGES) * len(WIDTHS) * 2


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_a_click_on_a_key_of_the_footer_is_that_key_and_one_beside_it_is_none(glyphs):
    swept = 0
    for place in PAGES:
        actions = [action for action in ACTIONS if action.place in (place, "app")]
        for width in WIDTHS:
            hints = footer_hints(actions, lambda action: action.label, width)
            text = text_of([hints_line(hints, width, glyphs)])
            for hint in hints:
                words = text_of([hint.line(glyphs)])
                if (x := text.find(words)) >= 0:
                    assert hint_at(hints, x, width, glyphs) == hint_at(hints, x + len(words) - 1, width, glyphs) == hint
                    swept += 1
            gap = len(text.removesuffix("? help").rstrip()) + 4
            assert gap >= len(text) - len("? help") or hint_at(hints, gap, width, glyphs) is None
    assert swept > 4 * len(PAGES) * len(WIDTHS)


@pytest.mark.parametrize("host", ["", "gpu-box", "a-very-long-host-name-of-a-cluster.example.org", "\u6f22\u5b57" * 12])
def test_the_header_never_overflows_and_always_shows_the_tabs(host):
    swept = 0
    for card in ("NVIDIA H200", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "\u6f22\u5b57\x1b[2J" * 9):
        hardware = replace(probe(), host=host, gpus=(Gpu(index=0, name=card, memory_bytes=141 << 30),) * 8)
        shown_host, machine = one_line(host, 24), machine_summary(hardware, 30)
        for train in ("", "37%", "99% paused", "preparing", "finished"):
            tabs = list(
                zip(
                    ("Hardware", "Config", "Checklist", "Train", "Runs"),
                    ("", "\u25cf", "12 x 23 !", train, ""),
                    strict=True,
                )
            )
            for width in WIDTHS:
                line = header(shown_host, machine, tabs, 3, width)
                text = text_of([line])
                assert width_of(line) == width and "\x1b" not in text
                assert all(f"{number} {title}" in text for number, (title, _) in enumerate(tabs, 1)), (width, text)
                left = text.split("1 Hardware")[0].replace(shown_host, "").replace(machine, "")
                whole = ["tui-trainer"] if width > 90 else left.split() and ["tui-trainer"]
                assert left.split() == whole, "program, host and machine are shown whole or not at all"
                swept += 1
    assert swept == 3 * 5 * len(WIDTHS)
