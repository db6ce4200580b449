"""The Runs screen beyond its story: folders of every kind, what is refused, and what is read and when."""

from __future__ import annotations

import shutil
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.events import MouseScrollDown

from tests.runs.journals import end, held_out, run_of, start, steps
from tests.ui.canned import CPU, RUNS, CannedBench
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.runs import overview
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.registry import forget, known_runs, listed_roots
from tui_trainer.ui import app as app_module
from tui_trainer.ui.screens.runs import refusal
from tui_trainer.ui.screens.runs_view import RunsModel
from tui_trainer.ui.spans import UNICODE


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@pytest.fixture
def runs(tmp_path) -> Path:
    return tmp_path / "runs"


@asynccontextmanager
async def opened(size: tuple[int, int] = (80, 24)):
    """The Runs screen, all runs read and measured."""
    async with open_screens(bench=CannedBench(lambda: Request(), CPU, UNICODE), size=size) as screens:
        await screens.press("5")
        await screens.settled()
        yield screens


def names(screens) -> list[str]:
    """The runs of the list, in their order; a pointer or a mark may stand before a name."""
    rows = (line[2:].split() for line in screens.lines[2:] if line[2:].strip() and "\u2500\u2500" not in line[:4])
    listed = []
    for row in rows:
        if row[0] in ("t", "no"):
            break
        listed.append(row[0])
    return listed


@in_event_loop
async def test_every_kind_of_folder_is_listed_for_what_it_is_and_what_is_left_of_it_can_go(runs):
    for name in ("gone", "half", "whole"):
        run_of(runs, name, start(500), *steps(1, 100))
    shutil.rmtree(runs / "gone")
    (runs / "half").rename(runs / ".deleting-half")
    copied = run_of(runs, "copied", start(100), *steps(1, 50))
    assert forget(copied.root) is None
    (runs / "thesis").mkdir()
    async with opened() as screens:
        text = await screens.shows("4 here", "1 gone")
        rows = {line[2:].split()[0]: line for line in text.splitlines()[2:6]}
        assert list(rows) == ["whole", "half", "copied", "thesis"]
        for name, status in (("half", "half deleted"), ("copied", "interrupted"), ("thesis", "no run folder")):
            assert status in rows[name]
        assert "KiB" in rows["copied"] and "KiB" not in rows["thesis"]
        await screens.press("end", "D")
        await screens.shows("no run made this folder")
        await screens.press("enter")
        await screens.shows("thesis is no run folder")

        await screens.press("home", "down", "D")
        await screens.shows("freed", "Esc")
        await screens.press("D")
        await screens.shows("3 here")
        assert not (runs / ".deleting-half").exists()
        await screens.press("/", *"gone", "enter", "D")
        await screens.shows("only taken off the list")
        await screens.press("D")
        await screens.until(lambda: runs / "gone" not in listed_roots())
        assert known_runs()[-1].name == "whole"


@in_event_loop
async def test_a_run_that_lives_is_neither_deleted_nor_renamed_nor_resumed(runs):
    folder = run_of(runs, "a", start(100), *steps(1, 20))
    with RunLock(folder.lock):
        async with opened() as screens:
            for key in ("D", "N", "p"):
                await screens.press(key)
                await screens.shows("a is running; S stops it")
    async with opened() as screens:
        with RunLock(folder.lock):
            await screens.press("D")
            await screens.shows("in use by"), "it began to live since the list was read"
            assert folder.journal.exists()


@in_event_loop
async def test_resume_asks_and_is_refused_for_what_cannot_go_on(runs, monkeypatch):
    resumed = []
    monkeypatch.setattr("tui_trainer.ui.starting._resume", lambda bench, folder: resumed.append(folder))
    stopped = run_of(runs, "stopped", start(100), *steps(1, 20), end(20, "stopped"))
    run_of(runs, "finished", start(20), *steps(1, 20), end(20)).model.mkdir()
    async with opened() as screens:
        await screens.press("p")
        await screens.shows("finished is finished")
        await screens.press("down", "p")
        await screens.shows("Go on with stopped?")
        await screens.press("enter")
        assert resumed == [stopped]
        monkeypatch.setattr(type(screens.bench), "run_is_ours_and_alive", True)
        await screens.press("p")
        await screens.shows("one at a time")
        await screens.press("enter")
        await screens.shows("the Train screen stays with it")
    about = {"path": Path("/runs/a"), "step": 0, "total_steps": 5}
    assert not refusal("resume", RunOverview(name="a", status="finished", **about), "S"), "its model is gone"
    waiting = RunOverview(name="a", status="submitted", **about)
    assert refusal("stop", waiting, "S") == "a waits in the queue: open it, and stop it there"


@in_event_loop
async def test_runs_are_chosen_by_mouse_found_by_letters_and_their_path_is_copied(runs):
    async with opened((120, 24)) as screens:
        await screens.shows("no run yet; t starts one")
        for number in range(30):
            run_of(runs, f"run-{number:02}", start(100))
        folder = run_of(runs, "Dcyan", start(100), *steps(1, 20))
        await screens.press("r")
        await screens.shows("31 here", "Dcyan")
        await screens.pilot._post_mouse_events([MouseScrollDown], offset=(5, 5))
        await screens.until(lambda: names(screens)[0] == "run-28")
        await screens.press("down")
        await screens.shows("\u25b8 run-29")
        await screens.press("end")
        await screens.shows("\u25b8 run-00", "31 of 31")
        await screens.press("home")
        await screens.click("run-28")
        await screens.shows("\u25b8 run-28")

        await screens.press("/", *"5D")
        await screens.shows("no run matches the filter")
        await screens.press("backspace", "backspace", *"Dcy")
        await screens.shows("1 with 'dcy'", "Esc clear", gone="run-28")
        await screens.press("enter", "y")
        await screens.until(lambda: screens.app.clipboard == str(folder.root))
        await screens.press("escape")
        await screens.shows("run-28", "\u25b8 Dcyan")
        await screens.click("\u25b8 Dcyan", times=2)
        await screens.shows("interrupted", "of 100", "4 Train 20%")


@in_event_loop
async def test_no_more_than_six_runs_are_compared_and_a_config_that_cannot_be_read_is_refused(runs):
    for name in "gfedcba":
        run_of(runs, f"run-{name}", start(100), *steps(1, 20), held_out(10, 4.9))
    async with opened() as screens:
        await screens.press("C")
        await screens.shows("ark two to six runs with")
        await screens.press("*")
        await screens.shows("7 marked", "\u25cf run-a")
        await screens.press("C")
        await screens.shows("ark two to six runs with")
        await screens.press("space")
        await screens.shows("6 marked", "A run-b")
        await screens.press("*", "*")
        await screens.shows("5 Runs", gone="marked")
        await screens.press("y", "escape")
        for name, text in (("a", b"training = 3"), ("b", None), ("c", b"\xff"), ("d", b"[training]\nmax_stepz = 3")):
            path = runs / f"run-{name}" / "config.toml"
            path.unlink() if text is None else path.write_bytes(text)
            await screens.press("/", "ctrl+u", *f"run-{name}", "enter", "c")
            await screens.shows("its config.toml cannot be used", "5 Runs", gone="Enter edit")


@in_event_loop
async def test_the_settings_of_a_run_become_those_of_a_new_one_without_its_name_after_a_question(runs):
    folder = run_of(runs, "a", start(100))
    folder.config.write_text(
        'schema_version = 1\nprofile = "char-lm"\n[training]\nmax_steps = 77\n[output]\nname = "a"\n'
    )
    async with opened() as screens:
        document = screens.bench.document
        before = document.value("training.learning_rate")
        document.set("training.seed", 5)
        await screens.press("c")
        await screens.shows("are in no file yet")
        assert document.value("training.max_steps") != 77
        await screens.press("enter")
        await screens.shows("recipe char-lm", "the settings of a")
        assert document.value("training.max_steps") == 77 and document.value("output.name") == ""
        assert folder.config != document.file
        await screens.press("u")
        await screens.shows("undid the settings of a")
        assert document.value("training.seed") == 5 and document.value("training.learning_rate") == before


@in_event_loop
async def test_journals_are_read_once_and_only_while_the_list_is_shown(runs, monkeypatch):
    opened_journals, reads = [], []
    summary, read = overview._summary, overview.Overviews.read
    monkeypatch.setattr(overview, "_summary", lambda *about: opened_journals.append(1) or summary(*about))
    monkeypatch.setattr(overview.Overviews, "read", lambda self, folders: reads.append(1) or read(self, folders))
    for number in range(100):
        folder = runs / f"run-{number:03}"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("")
        (folder / "journal.jsonl").write_text('{"event": "RunStarted", "name": "a", "task": "chat"}\n')
    async with opened() as screens:
        assert len(opened_journals) == 100
        await screens.press("1")
        await screens.settled()
        before = len(reads)
        for _ in range(10):
            screens.app.tick()
        await screens.settled()
        assert len(reads) == before
        await screens.press("5")
        await screens.settled()
        living = run_of(runs, "new", start(100))
        with RunLock(living.lock):
            for _ in range(3):
                screens.app.tick()
            await screens.shows("101 here", "new")
            await screens.settled()
            assert len(opened_journals) == 101
            (living.root / "model").mkdir()
            (living.root / "model" / "model.safetensors").write_bytes(bytes(200_000))
        living.lock.unlink(missing_ok=True)
        await screens.press("r")
        await screens.until(lambda: any("new" in line and "19" in line for line in screens.lines))


@in_event_loop
async def test_a_deletion_that_waits_is_not_lost_when_another_run_is_looked_at(runs):
    kept, waiting = (run_of(runs, name, start(100)) for name in "ab")
    async with opened() as screens:
        go_on = threading.Event()
        await screens.press("D")
        await screens.shows("freed")
        screens.bench.background.do("slow work", go_on.wait, lambda _: None)
        await screens.press("D", "down", "D")
        go_on.set()
        await screens.until(lambda: not waiting.root.exists())
        assert kept.root.exists()


def names_of(model: RunsModel) -> list[str]:
    return [one.name.split("-")[0] for one in model.shown if one.is_run]


def test_runs_are_sorted_by_a_column_and_what_has_no_value_comes_last():
    model = RunsModel()
    model.take(RUNS)
    newest_first = names_of(model)
    model.sort_by("loss")
    assert names_of(model) == ["topics", "quickstart", "elsewhere", "quickstart", "chat", "too"]
    model.sort_by("loss")
    assert names_of(model) == ["chat", "quickstart", "elsewhere", "quickstart", "topics", "too"]
    model.sort_by("size")
    assert names_of(model)[0] == "topics" and model.shown[-1].size_bytes is None
    model.choose(2)
    model.sort_by("run")
    assert model.place == 0
    titles = []
    for _ in range(20):
        model.sort_by_next(200)
        titles.append(model.order)
    assert {"", "run", "loss", "held out", "began", "size", "task", "model"} <= set(titles)
    while model.order:
        model.sort_by_next(200)
    assert names_of(model) == newest_first


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("loss<1.5", ["quickstart", "topics"]),
        ("loss>1.5 quickstart", ["quickstart"]),
        ("score>0.9", ["topics"]),
        ("score>0.92", []),
        ("size_gib>1", ["topics"]),
        ("task:chat", ["chat"]),
        ("steps<20", ["too"]),
        ("loss<", []),
    ],
)
def test_the_filter_takes_numbers(words, found):
    model = RunsModel()
    model.take(RUNS)
    model.narrow(words)
    assert names_of(model) == found


@in_event_loop
async def test_three_hundred_runs_are_sorted_by_key_and_by_click(runs):
    for number in range(300):
        run_of(runs, f"run-{number:03}", start(100), *steps(1, 2 + number % 7))
    async with opened((120, 24)) as screens:
        await screens.shows("run-299")
        await screens.press("o")
        await screens.shows("sorted by run", "run-000")
        await screens.press("O")
        await screens.shows("sorted by run, reversed", "run-299")
        await screens.click("last event")
        await screens.shows("sorted by last event", "\u25belast event")
        await screens.click("last event")
        await screens.shows("sorted by last event, reversed", "\u25b4last event")
