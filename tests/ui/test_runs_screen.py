"""The Runs screen: what it shows of each folder, and what can be done with a run."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from textual.events import MouseScrollDown

from tests.combinations import first_by_default
from tests.runs.journals import end, held_out, run_of, start, steps
from tests.ui.pictures import screen_text
from tests.ui.test_snapshots import CPU, CannedBench
from tui_trainer.config.load import Request
from tui_trainer.runs import controls, overview
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.registry import forget, known_runs, listed_roots
from tui_trainer.ui import app as app_module
from tui_trainer.ui.actions import ACTIONS
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import ChoiceDialog, TextDialog
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.screens.runs import RunsPage
from tui_trainer.ui.screens.runs_view import RunsModel, detail_lines, head, refusal, run_row, summary
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of
from tui_trainer.ui.widgets.lists import LineList

WIDTHS = (80, 120, 200)
NOW = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)
PATIENCE_LOOKS = 1_500
LOOK_SECONDS = 0.02


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runs(tmp_path) -> Path:
    return tmp_path / "runs"


async def until(pilot, ready) -> None:
    for _ in range(PATIENCE_LOOKS):
        if ready():
            return
        await pilot.pause(LOOK_SECONDS)
    raise AssertionError(screen_text(pilot.app))


@asynccontextmanager
async def opened(size: tuple[int, int] = (80, 24)):
    """The application on its Runs screen, all runs read and measured."""
    app = TrainerApp(CannedBench(lambda: Request(), CPU, UNICODE), Keymap())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.bench.plan is not None)
        await pilot.press("5")
        await settled(pilot)
        yield app, pilot
    assert not app.crash


async def settled(pilot) -> None:
    """Nothing is read or measured any more."""
    page = pilot.app.pages["runs"]
    works = ("list of runs", "sizes of runs", "deleting", "comparison")
    busy = pilot.app.bench.background.is_busy
    await until(pilot, lambda: page.model.found is not None and not any(map(busy, works)))
    await pilot.pause()
    await until(pilot, lambda: not any(map(busy, works)))
    await pilot.pause()


def names(app: TrainerApp) -> list[str]:
    return [one.name for one in app.pages["runs"].model.shown]


def made(name: str = "a", **more) -> RunOverview:
    about = RunOverview(
        name=name, path=Path("/data/runs") / name, status="finished", task="chat", model="meta/llama", step=120,
        total_steps=500, epoch=1.5, loss=1.4, loss_curve=(3.0, 2.0, 1.5), eval_loss=1.5, scores={"macro_f1": 0.83},
        started_at="2026-11-20T13:00:00.000Z", last_event_at="2026-11-20T13:45:00.000Z", size_bytes=5_000,
        freed_bytes=4_096,
    )  # fmt: skip
    return replace(about, **more)


# -------------------------------------------------------------------- lines


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_fits_and_says_what_is_known(width, glyphs):
    long = made("quickstart-with-a-name-that-is-long-20261120-180238-" + "x" * 70, task="\u6f22" * 30)
    model = RunsModel()
    model.take([made(), long, made("b", path=Path("/b"), status="gone")])
    for one in (made(), long, made(status="no run folder"), made(loss=None, eval_loss=None, total_steps=0)):
        line = run_row(one, model, width, NOW, glyphs)
        assert width_of(line) == width == width_of(head(width))
        assert not glyphs.ascii or text_of([line]).replace("\u6f22", "").isascii()
    text = text_of([run_row(made(), model, width, NOW, glyphs)])
    assert all(words in text for words in ("finished", "24%", "1.500", "15 min 00 s", "4.9 KiB"))
    assert all((words in text) == (width == 200) for words in ("llama", "chat"))
    assert ("macro F1 0.830" in text and "1.400" in text) == (width >= 120)


def test_a_long_name_keeps_its_end_which_is_its_time():
    model = RunsModel()
    assert "20261120-180238 finished" in text_of([
        run_row(made("quickstart-20261120-180238"), model, 80, NOW, UNICODE)
    ])  # fmt: skip


def test_a_clock_that_is_ahead_gives_no_age():
    one = made(last_event_at="2027-01-01T00:00:00.000Z")
    assert "clock ahead" in text_of([run_row(one, RunsModel(), 80, NOW, UNICODE)])
    assert "last event clock ahead," in text_of(detail_lines(one, NOW, 80, UNICODE))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("status", ["half deleted", "no run folder", "unreadable", "gone", "finished"])
def test_the_details_say_what_it_is_and_where(width, status):
    lines = detail_lines(made(status=status), NOW, width, UNICODE)
    assert len(lines) <= 6 and all(width_of(line) <= width for line in lines)
    assert status in text_of(lines[:1]) and "/data/runs/a" in text_of(lines)


def test_the_filter_looks_at_name_state_task_and_model_and_keeps_what_is_gone_out():
    model = RunsModel()
    assert summary(model) == "reading ..."
    gone = made("gone", path=Path("/g"), status="gone")
    model.take([made("a"), made("b", path=Path("/b"), task="char_lm", status="failed"), gone])
    found = {}
    for words in ("", "FAIL", "chat fin", "llama", "char_lm failed", "nothing", "gone"):
        model.narrow(words)
        found[words] = [one.name for one in model.shown]
    assert found == {"": ["a", "b"], "FAIL": ["b"], "chat fin": ["a"], "llama": ["a", "b"], "char_lm failed": ["b"],
                     "nothing": [], "gone": ["gone"]}  # fmt: skip
    assert summary(model) == "2 here, 1 with 'gone', 1 gone"


def test_the_choice_stays_with_its_run_and_marks_go_with_theirs():
    model = RunsModel()
    found = [made(name, path=Path("/") / name) for name in "abcdefg"]
    model.take(found)
    for place in range(6):
        model.choose(place)
        assert model.toggle_mark() == "" and (model.can_compare == (place > 0))
    model.choose(6)
    assert "no more than 6" in model.toggle_mark() and len(model.marked) == 6
    model.choose(3)
    model.take([made("new", path=Path("/new")), *found[2:]])
    assert model.chosen.name == "d" and [path.name for path in model.marked] == ["c", "d", "e", "f"]
    model.take(found[:2])
    assert model.chosen.name == "b" and model.marked == []


# --------------------------------------------------------------- the screen


def test_every_kind_of_folder_is_listed_for_what_it_is(runs):
    async def go() -> None:
        for name in ("gone", "half", "whole"):
            run_of(runs, name, start(500), *steps(1, 100))
        shutil.rmtree(runs / "gone")
        (runs / "half").rename(runs / ".deleting-half")
        copied = run_of(runs, "copied", start(100), *steps(1, 50))
        assert forget(copied.root) is None
        (runs / "thesis").mkdir()
        async with opened() as (app, pilot):
            text = screen_text(app)
            assert names(app) == ["whole", "half", "copied", "thesis"] and "1 gone" in text
            rows = {line[2:].split()[0]: line for line in text.splitlines()[2:6]}
            for name, status in (("half", "half deleted"), ("copied", "interrupted"), ("thesis", "no run folder")):
                assert status in rows[name]
            assert "KiB" in rows["copied"] and "KiB" not in rows["thesis"]
            await pilot.press("end", "D")
            assert app.dialog is None and "no run made this folder" in screen_text(app)
            await pilot.press("enter")
            assert "thesis is no run folder" in screen_text(app) and app.bench.current == 4

    asyncio.run(go())


def test_a_run_is_opened_by_enter_and_by_a_double_click_and_chosen_by_a_click(runs):
    async def go() -> None:
        for name in "abc":
            run_of(runs, name, start(100), *steps(1, 20))
        async with opened() as (app, pilot):
            await pilot.click(LineList, offset=(5, 1))
            assert app.pages["runs"].model.chosen.name == "b" and app.bench.current == 4
            await pilot.click(LineList, offset=(5, 2), times=2)
            await pilot.pause()
            assert app.bench.run.folder.name == "a" and app.bench.current == 3
            await pilot.press("5", "home", "enter")
            assert app.bench.run.folder.name == "c" and "20" in screen_text(app)

    asyncio.run(go())


def test_the_wheel_scrolls_and_a_key_brings_the_chosen_run_back(runs):
    async def go() -> None:
        for number in range(40):
            run_of(runs, f"run-{number:02}", start(100))
        async with opened() as (app, pilot):
            shown = app.screen.query_one(LineList)
            assert shown.seen_places.start == 0 and f"1-{shown.seen_places.stop} of 40" in screen_text(app)
            await pilot._post_mouse_events([MouseScrollDown], LineList)
            await pilot.pause()
            assert shown.seen_places.start == 3 and f"4-{shown.seen_places.stop} of 40" in screen_text(app)
            await pilot.press("down")
            assert 1 in shown.seen_places
            await pilot.press("end")
            assert shown.seen_places.stop == 40 and "run-00" in screen_text(app)

    asyncio.run(go())


def test_delete_says_what_is_freed_and_deletes_after_one_more_key(runs):
    async def go() -> None:
        folder = run_of(runs, "a", start(100))
        kept = run_of(runs, "b", start(100))
        (folder.logs / "big").write_bytes(bytes(3 << 20))
        async with opened() as (app, pilot):
            await pilot.press("down", "D")
            await until(pilot, lambda: isinstance(app.dialog, ChoiceDialog))
            assert "3.0 MiB are freed" in screen_text(app) and str(folder.root)[:40] in screen_text(app)
            await pilot.press("escape")
            assert folder.root.exists()
            await pilot.press("D")
            await until(pilot, lambda: isinstance(app.dialog, ChoiceDialog))
            await pilot.press("D")
            await until(pilot, lambda: names(app) == ["b"])
            assert not folder.root.exists() and known_runs() == [kept]
            assert "deleted a: 3.0 MiB freed" in screen_text(app)

    asyncio.run(go())


def test_the_rest_of_a_half_deleted_run_goes_and_one_that_is_gone_is_forgotten(runs):
    async def go() -> None:
        run_of(runs, "half", start(100)).root.rename(runs / ".deleting-half")
        shutil.rmtree(run_of(runs, "gone", start(100)).root)
        async with opened() as (app, pilot):
            await pilot.press("D")
            await until(pilot, lambda: app.dialog is not None)
            await pilot.press("D")
            await until(pilot, lambda: names(app) == [])
            assert not (runs / ".deleting-half").exists()
            await pilot.press("/", *"gone", "enter", "D")
            await until(pilot, lambda: app.dialog is not None)
            assert "only taken off the list" in screen_text(app)
            await pilot.press("D")
            await until(pilot, lambda: not listed_roots())

    asyncio.run(go())


def test_a_run_that_lives_is_neither_deleted_nor_renamed_nor_resumed_and_can_be_stopped(runs):
    async def go() -> None:
        folder = run_of(runs, "a", start(100), *steps(1, 20))
        asked = controls.Controls(folder.control)
        with RunLock(folder.lock):
            async with opened() as (app, pilot):
                for key in ("D", "n", "p"):
                    await pilot.press(key)
                    assert app.dialog is None and "a is running; S stops it" in screen_text(app), key
                await pilot.press("S")
                assert "Save and stop?" in screen_text(app) and not asked.wanted()
                await pilot.press("enter")
                assert [one.action for one in asked.wanted()] == ["stop"]

    asyncio.run(go())


def test_a_run_that_began_to_live_since_the_list_was_read_is_not_deleted(runs):
    async def go() -> None:
        folder = run_of(runs, "a", start(100))
        async with opened() as (app, pilot):
            with RunLock(folder.lock):
                await pilot.press("D")
                await until(pilot, lambda: "in use by" in screen_text(app))
                assert app.dialog is None and folder.journal.exists()

    asyncio.run(go())


def test_rename_renames_refuses_what_cannot_be_and_the_train_screen_follows(runs):
    async def go() -> None:
        run_of(runs, "a", start(100), *steps(1, 20))
        run_of(runs, "b", start(100))
        async with opened() as (app, pilot):
            await pilot.press("down", "enter", "5", "n")
            assert isinstance(app.dialog, TextDialog)
            await pilot.press("ctrl+u", "b", "enter")
            await until(pilot, lambda: "this exists already" in screen_text(app))
            await pilot.press("ctrl+u", *"better", "enter")
            await until(pilot, lambda: names(app) == ["b", "better"])
            assert [run.name for run in known_runs()] == ["better", "b"]
            assert app.pages["runs"].model.chosen.name == "better"
            assert app.bench.run.folder == RunFolder(runs / "better") and len(app.bench.run.state.steps) == 20

    asyncio.run(go())


def test_resume_asks_and_is_refused_for_what_cannot_go_on(runs, monkeypatch):
    resumed = []
    monkeypatch.setattr("tui_trainer.ui.starting._resume", lambda bench, folder: resumed.append(folder))

    async def go() -> None:
        stopped = run_of(runs, "stopped", start(100), *steps(1, 20), end(20, "stopped"))
        run_of(runs, "finished", start(20), *steps(1, 20), end(20))
        async with opened() as (app, pilot):
            await pilot.press("p")
            assert app.dialog is None and "finished is finished" in screen_text(app)
            await pilot.press("down", "p")
            assert "Go on with stopped?" in screen_text(app)
            await pilot.press("enter")
            assert resumed == [stopped]
            monkeypatch.setattr(type(app.bench), "run_is_ours_and_alive", True)
            await pilot.press("p")
            assert app.dialog is None and "one at a time" in screen_text(app)
            await pilot.press("enter")
            assert app.bench.run is None and "the Train screen stays with it" in screen_text(app)

    asyncio.run(go())


def test_the_path_is_copied_and_shown(runs):
    async def go() -> None:
        folder = run_of(runs, "a", start(100))
        async with opened((200, 50)) as (app, pilot):
            await pilot.press("y")
            assert app.clipboard == str(folder.root) and f"{folder.root}  copied" in screen_text(app)

    asyncio.run(go())


def test_the_filter_is_typed_and_taken_away_and_no_letter_is_an_action(runs):
    async def go() -> None:
        for name in ("Dcyan", "beige", "blue"):
            run_of(runs, name, start(100))
        async with opened() as (app, pilot):
            await pilot.press("/", *"5b")
            assert names(app) == [] and app.bench.current == 4
            await pilot.press("backspace", "backspace", "b")
            assert names(app) == ["blue", "beige"] and app.takes_text and "Esc clear" in screen_text(app)
            await pilot.press("down", "enter")
            assert (
                not app.takes_text
                and app.pages["runs"].model.chosen.name == "beige"
                and "2 with 'b'" in screen_text(app)
            )
            await pilot.press("escape")
            assert len(names(app)) == 3 and app.pages["runs"].model.chosen.name == "beige"
            await pilot.press("/", *"Dcy")
            assert names(app) == ["Dcyan"]
            await pilot.press("escape")
            assert len(names(app)) == 3 and not app.takes_text

    asyncio.run(go())


def test_where_no_run_is_shown_it_says_what_to_do(runs):
    async def work():
        async with opened() as (app, pilot):
            assert "no run yet; t starts one" in screen_text(app)
            await pilot.click("#runs", offset=(3, 0), times=2)
            await pilot.press("enter")
            assert app.bench.run is None
            run_of(runs, "alone", start(100))
            await pilot.press("r")
            await until(pilot, lambda: "alone" in screen_text(app))
            await pilot.press("/", *"none", "enter")
            await until(pilot, lambda: "no run matches the filter" in screen_text(app))

    asyncio.run(work())


def test_the_settings_of_a_run_become_those_of_a_new_one_without_its_name_after_a_question(runs):
    async def go() -> None:
        folder = run_of(runs, "a", start(100))
        folder.config.write_text(
            'schema_version = 1\nprofile = "char-lm"\n[training]\nmax_steps = 77\n[output]\nname = "a"\n'
        )
        async with opened() as (app, pilot):
            document = app.bench.document
            before = document.value("training.learning_rate")
            document.set("training.seed", 5)
            await pilot.press("c")
            assert "are in no file yet" in screen_text(app) and document.value("training.max_steps") != 77
            await pilot.press("enter")
            assert app.bench.current == 1 and document.loaded is not None
            assert document.recipe_name == "char-lm" and document.value("training.max_steps") == 77
            assert document.value("output.name") == "" and not document.own_problems
            assert folder.config != document.file
            assert "the settings of a" in document.undo()
            assert document.value("training.seed") == 5 and document.value("training.learning_rate") == before

    asyncio.run(go())


@pytest.mark.parametrize("text", first_by_default([b"training = 3", None, b"\xff", b"[training]\nmax_stepz = 3"]))
def test_a_config_that_cannot_be_read_is_refused_with_a_sentence(runs, text):
    async def go() -> None:
        folder = run_of(runs, "a", start(100))
        folder.config.unlink() if text is None else folder.config.write_bytes(text)
        async with opened() as (app, pilot):
            document = app.bench.document
            before = document.own_values()
            await pilot.press("c")
            assert "its config.toml cannot be used" in screen_text(app) and app.bench.current == 4
            assert document.own_values() == before

    asyncio.run(go())


def test_runs_are_marked_and_compared_over_steps_tokens_and_seconds(runs):
    async def go() -> None:
        first = run_of(runs, "first", start(300), *steps(1, 300), held_out(150, 4.9, macro_f1=0.8), end(300))
        second = run_of(runs, "second", start(300), *steps(1, 200), held_out(100, 4.8))
        first.config.write_text("[training]\nlearning_rate = 1e-3\n")
        second.config.write_text("[training]\nlearning_rate = 2e-3\n")
        async with opened((120, 50)) as (app, pilot):
            await pilot.press("C")
            assert app.dialog is None and "mark two to six runs with space" in screen_text(app).lower()
            await pilot.press("space")
            await pilot.press("C")
            assert app.dialog is None
            await pilot.press("space", "C")
            await settled(pilot)
            text = screen_text(app)
            for words in ("A second", "B first", "training loss over steps", "steps", "macro F1", "0.800", "2 min 30 s",
                          "peak memory", "training.learning_rate", "0.002", "300 steps"):  # fmt: skip
                assert words in text, words
            await pilot.press("x")
            assert "over tokens" in screen_text(app) and "30k tokens" in screen_text(app)
            await pilot.press("x", "y")
            assert "over seconds, logarithmic" in screen_text(app) and "0 seconds \u2502" in screen_text(app)
            await pilot.press("escape")
            assert app.dialog is None
            await pilot.press("escape")
            assert not app.pages["runs"].model.marked and "2 marked" not in screen_text(app)

    asyncio.run(go())


def test_nothing_is_read_while_another_screen_is_shown_and_it_is_read_anew_now_and_then(runs, monkeypatch):
    reads = []
    read = overview.Overviews.read
    monkeypatch.setattr(overview.Overviews, "read", lambda self, folders: reads.append(1) or read(self, folders))

    async def go() -> None:
        run_of(runs, "a", start(100))
        async with opened() as (app, pilot):
            await pilot.press("1")
            await settled(pilot)
            before = len(reads)
            for _ in range(10):
                app.tick()
            await settled(pilot)
            assert len(reads) == before
            await pilot.press("5")
            await settled(pilot)
            run_of(runs, "b", start(100))
            for _ in range(3):
                app.tick()
            await until(pilot, lambda: names(app) == ["b", "a"])

    asyncio.run(go())


def test_300_runs_are_read_once_and_only_the_rows_that_are_seen_are_drawn(runs, monkeypatch):
    opened_journals, drawn = [], []
    read_ends, draw_row = overview.read_ends, RunsPage._row
    monkeypatch.setattr(overview, "read_ends", lambda fd: opened_journals.append(fd) or read_ends(fd))
    monkeypatch.setattr(RunsPage, "_row", lambda self, *place: drawn.append(place) or draw_row(self, *place))

    async def go() -> None:
        for number in range(300):
            folder = runs / f"run-{number:03}"
            folder.mkdir(parents=True)
            (folder / "config.toml").write_text("")
            (folder / "journal.jsonl").write_text('{"event": "RunStarted", "name": "a", "task": "chat"}\n')
        async with opened() as (app, pilot):
            await until(pilot, lambda: all(one.size_bytes is not None for one in app.pages["runs"].model.found))
            assert len(names(app)) == len(opened_journals) == 300
            drawn.clear()
            await pilot.press("down")
            await pilot.press("end")
            assert 0 < len(drawn) <= 2 * 2 * 24
            app.pages["runs"]._read()
            await settled(pilot)
            assert len(opened_journals) == 300

    asyncio.run(go())


def test_the_size_of_a_run_is_measured_again_when_it_has_ended(runs):
    async def go() -> None:
        folder = run_of(runs, "a", start(), *steps(1, 5))
        with RunLock(folder.lock):
            async with opened() as (app, pilot):
                before = app.pages["runs"].model.found[0].size_bytes
                (folder.root / "model").mkdir()
                (folder.root / "model" / "model.safetensors").write_bytes(bytes(100_000))
                app.pages["runs"]._read()
                await settled(pilot)
                assert app.pages["runs"].model.found[0].size_bytes == before, "once a minute while it trains"
                folder.lock.unlink()
                app.pages["runs"]._read()
                await settled(pilot)
                assert app.pages["runs"].model.found[0].size_bytes > 100_000

    asyncio.run(go())


def test_each_action_of_the_screen_has_a_method():
    named = {action.name for action in ACTIONS if action.place == "runs"}
    assert len(named) == 20
    assert all(callable(getattr(RunsPage, f"action_{name}", None)) for name in named)


def test_out_of_memory_events_stand_in_the_table_and_below():
    one = RunOverview(name="a", path=Path("/runs/a"), status="finished", step=5, total_steps=5, out_of_memory_events=2)
    model = RunsModel()
    assert "OOM" in text_of([head(160)]) and "OOM" not in text_of([head(80)])
    row = text_of([run_row(one, model, 160, NOW, UNICODE)])
    assert row[text_of([head(160)]).index("OOM") :][:3].strip() == "2"
    assert "out of memory 2 times" in text_of(detail_lines(one, NOW, 100, UNICODE))
    calm = replace(one, out_of_memory_events=0)
    assert "out of memory" not in text_of(detail_lines(calm, NOW, 100, UNICODE))


def test_a_deletion_that_waits_is_not_lost_when_another_run_is_looked_at(runs):
    async def go() -> None:
        kept, waiting = (run_of(runs, name, start(100)) for name in "ab")
        async with opened() as (app, pilot):
            go_on = threading.Event()
            app.bench.background.do("slow work", go_on.wait, lambda _: None)
            app.page._delete(app.page.model.chosen)
            await pilot.press("down", "D")
            go_on.set()
            await until(pilot, lambda: app.dialog is not None and names(app) == ["a"])
            assert kept.root.exists() and not waiting.root.exists()

    asyncio.run(go())


def test_what_waits_in_the_queue_says_where_it_is_stopped():
    about = {"path": Path("/runs/a"), "step": 0, "total_steps": 5}
    said = [refusal("stop", RunOverview(name="a", status=status, **about), "S") for status in ("submitted", "stopped")]
    assert said == ["a waits in the queue: open it, and stop it there", "a is not running"]
