"""The Runs screen beyond its story: folders of every kind, what is refused, and what is read and when."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import MouseScrollDown

from tests.runs.journals import end, held_out, run_of, start, steps
from tests.ui.canned import CPU, RUNS, CannedRun, open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.labels import labels_of
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.registry import known_runs, listed_roots, remove_from_index
from tui_trainer.ui.screens import runs as runs_module
from tui_trainer.ui.screens.runs import refusal
from tui_trainer.ui.screens.runs_view import COLUMNS, RunsModel, detail_lines, run_row
from tui_trainer.ui.spans import ASCII, UNICODE, text_of
from tui_trainer.ui.starting import take_settings_of


@pytest.fixture
def runs(tmp_path) -> Path:
    return tmp_path / "runs"


@asynccontextmanager
async def opened(size: tuple[int, int] = (80, 24)):
    """The Runs screen, all runs read and measured."""
    async with open_canned(size=size) as screens:
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
    assert remove_from_index(copied.root) is None
    (runs / "thesis").mkdir()
    async with opened() as screens:
        text = await screens.shows("4 runs", "1 gone")
        rows = {line[2:].split()[0]: line for line in text.splitlines()[2:6]}
        assert list(rows) == ["whole", "half", "copied", "thesis"]
        for name, status in (("half", "half deleted"), ("copied", "interrupted"), ("thesis", "no run folder")):
            assert status in rows[name]
        assert "KiB" in rows["copied"] and "KiB" not in rows["thesis"]
        # What an export adds is seen without a key.
        (copied.exports / "merged").mkdir(parents=True)
        (copied.exports / "merged" / "model.safetensors").write_bytes(bytes(3 << 20))
        copied.exports.touch()
        await screens.ticks("3.0 MiB")
        await screens.press("end", "D")
        await screens.shows("not created by a run")
        await screens.press("enter")
        await screens.shows("thesis is not a run folder")

        await screens.press("home", "down", "D")
        await screens.shows("Frees ", "Esc")
        await screens.press("y")
        await screens.shows("freed")
        await screens.press("f9")
        await screens.shows("3 runs")
        assert not (runs / ".deleting-half").exists()
        await screens.press("/", *"gone", "enter", "D")
        await screens.shows("Only the list of runs changes")
        await screens.press("y")
        await screens.until(lambda: runs / "gone" not in listed_roots())
        assert known_runs()[-1].name == "whole"


@pytest.mark.full
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
        await screens.shows("Resume stopped?")
        await screens.press("enter")
        await screens.until(lambda: resumed == [stopped])
        monkeypatch.setattr(type(screens.bench), "is_training_here", True)
        await screens.press("p")
        await screens.shows("a run is already active")
        await screens.press("enter")
        await screens.shows("the Train screen keeps showing it")
    about = {"path": Path("/runs/a"), "step": 0, "total_steps": 5}
    assert not refusal("resume", RunOverview(name="a", status="finished", **about), "S"), "its model is gone"
    waiting = RunOverview(name="a", status="submitted", **about)
    assert refusal("stop", waiting, "S") == "a is waiting in the queue: open the run to stop it"


@pytest.mark.full
@in_event_loop
async def test_runs_are_chosen_by_mouse_found_by_letters_and_their_path_is_copied(runs):
    async with opened((120, 24)) as screens:
        await screens.shows("no runs yet; t starts one")
        for number in range(30):
            run_of(runs, f"run-{number:02}", start(100))
        folder = run_of(runs, "Dcyan", start(100), *steps(1, 20))
        await screens.press("r")
        await screens.shows("31 runs", "Dcyan")
        await screens.pilot._post_mouse_events([MouseScrollDown], offset=(5, 5))
        await screens.until(lambda: names(screens)[0] == "run-27")
        await screens.press("down")
        await screens.shows("\u25b8 run-29")
        await screens.press("end")
        await screens.shows("\u25b8 run-00", "31 of 31")
        await screens.press("home")
        await screens.click("run-28")
        await screens.shows("\u25b8 run-28")

        await screens.press("/", *"5D")
        await screens.shows("no matching runs")
        await screens.press("backspace", "backspace", *"Dcy")
        await screens.shows("1 matching 'dcy'", "Esc clear", gone="run-28")
        await screens.press("enter", "y")
        await screens.until(lambda: screens.app.clipboard == str(folder.root))
        await screens.press("escape")
        await screens.shows("run-28", "\u25b8 Dcyan")
        await screens.click("\u25b8 Dcyan", times=2)
        await screens.shows("interrupted", "of 100", "4 Train interrupted")


@in_event_loop
async def test_a_filter_that_asks_for_nothing_known_and_a_state_folder_that_is_a_file_are_named(runs, private_home):
    run_of(runs, "reviews-tiny-bert-1647", start(100), *steps(1, 20), held_out(10, 4.0, accuracy=0.5))
    async with opened() as screens:
        await screens.press("/", *"acuracy>0.2")
        await screens.shows("no run has 'acuracy'", "score, size_gib, steps, accuracy", "1 matching")
        await screens.press("ctrl+u", *"accuracy>0.6")
        await screens.shows("no matching runs", gone="Names: loss")
        await screens.press("ctrl+u", *"foo:bar")
        await screens.shows("Use model: data: task: state: #tag", "reviews-tiny-bert-1647")
    shutil.rmtree(runs)
    private_home.rename(private_home.with_name("before"))
    private_home.write_text("a file")
    async with opened() as screens:
        await screens.shows("folder;", "TUI_TRAINER_HOME", gone="no runs yet")


@pytest.mark.full
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
        for name, text in (("a", b"training = 3"), ("b", None)):
            path = runs / f"run-{name}" / "config.toml"
            path.unlink() if text is None else path.write_bytes(text)
            await screens.press("/", "ctrl+u", *f"run-{name}", "enter", "c")
            await screens.shows("could not use the config.toml of the run", "5 Runs", gone="Enter edit")


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
        await screens.shows("settings that are not saved")
        assert document.value("training.max_steps") != 77
        await screens.press("enter")
        await screens.shows("recipe char-lm", "the settings of a")
        assert document.value("training.max_steps") == 77 and document.value("output.name") == ""
        assert folder.config != document.file
        await screens.press("u")
        await screens.shows("undid the settings of a")
        assert document.value("training.seed") == 5 and document.value("training.learning_rate") == before
        # As the doctor does: what it would change is listed first.
        for keys, steps_after in (("escape", document.value("training.max_steps")), ("enter", 50)):
            take_settings_of(screens.bench, folder, {"training.max_steps": 50})
            await screens.shows("settings of a with 1 setting changed?", "training.max_steps  77 \u2192 50")
            await screens.press(keys)
            await screens.until(lambda: screens.app.dialog is None)
            assert document.value("training.max_steps") == steps_after
        await screens.shows("the settings of a with training.max_steps = 50;", "to undo")


@pytest.mark.full
@in_event_loop
async def test_a_deletion_that_waits_is_not_lost_when_another_run_is_looked_at(runs):
    kept, waiting = (run_of(runs, name, start(100)) for name in "ab")
    async with opened() as screens:
        go_on = threading.Event()
        await screens.press("D")
        await screens.shows("Frees ")
        screens.bench.background.run_work("slow work", go_on.wait, lambda _: None, "deleting")
        await screens.press("y", "down", "D")
        go_on.set()
        await screens.until(lambda: not waiting.root.exists())
        assert kept.root.exists()


@pytest.mark.full
@in_event_loop
async def test_a_run_that_was_started_here_is_chosen_when_the_list_is_opened_again(runs):
    for name in "abc":
        run_of(runs, name, start(100))
    async with opened() as screens:
        chosen = lambda: screens.app.page.model.chosen.name  # noqa: E731
        await screens.press("down", "2", "5")
        await screens.settled()
        assert chosen() == "b"
        screens.bench.local_run = CannedRun([], False)
        screens.bench.local_run.folder = run_of(runs, "new", start(100))
        await screens.press("2", "5")
        await screens.until(lambda: chosen() == "new")
        await screens.press("down", "2", "5")
        await screens.settled()
        assert chosen() == "c"


def names_of(model: RunsModel) -> list[str]:
    return [one.name.split("-")[0] for one in model.shown_runs if one.is_run]


def test_runs_are_sorted_by_a_column_and_what_has_no_value_comes_last():
    model = RunsModel()
    model.set_runs(RUNS)
    newest_first = names_of(model)
    model.sort_by("loss")
    assert names_of(model) == ["topics", "quickstart", "elsewhere", "quickstart", "help", "too"]
    model.sort_by("loss")
    assert names_of(model) == ["help", "quickstart", "elsewhere", "quickstart", "topics", "too"]
    model.sort_by("size")
    assert names_of(model)[0] == "topics" and model.shown_runs[-1].size_bytes is None
    model.choose(2)
    model.sort_by("run")
    assert model.chosen_index == 0
    titles = []
    for _ in range(20):
        model.sort_by_next(200)
        titles.append(model.order)
    assert {"", "run", "loss", "held out", "began", "size", "task", "model", "data"} <= set(titles)
    while model.order:
        model.sort_by_next(200)
    assert names_of(model) == newest_first


def test_a_name_is_whole_while_there_is_room_and_what_no_run_has_takes_none(subtests):
    name = "a-rather-long-name-of-some-data-tiny-bert-1647"
    long, model = replace(RUNS[1], name=name), RunsModel()
    model.set_runs([RUNS[0], RUNS[3], long])
    for width in range(60, 230):
        with subtests.test(str(width)):
            columns = dict(model.columns(width))
            room = columns["run"]
            assert width - 1 == sum(cells + 1 for cells in columns.values()) and "tags" not in columns
            assert room >= min(len(name), int(width * 0.4))
            for place in range(3):
                line = text_of([run_row(model, place, runs_module._now(), width, UNICODE)])
                assert (model.shown_runs[place].name in line) == (room >= len(model.shown_runs[place].name)), line
                assert " a-rather" in line or place < 2
    assert dict(model.columns(230)).keys() == COLUMNS.keys() - {"tags"}
    model.set_runs([replace(one, tags=("baseline",), model="", scores={}) for one in model.all_runs])
    assert {"tags", "data"} < dict(model.columns(230)).keys() <= COLUMNS.keys() - {"model", "score"}


def test_data_and_model_of_a_run_are_short_and_a_state_has_the_colour_of_its_kind():
    model = RunsModel()
    model.set_runs(RUNS)
    rows = [run_row(model, place, runs_module._now(), 134, UNICODE) for place in range(1, 6)]
    assert "topics         bert-base-uncased" in text_of(rows[2:3]) and "python-re\u2026ence" in text_of(rows[:1])
    roles = {text.strip(): role for row in rows for text, role in row}
    states = {"finished": "good", "interrupted": "warn", "failed": "bad", "stopped": "warn"}
    assert states.items() <= roles.items()


def test_the_filter_takes_words_fields_tags_and_every_metric_and_names_them_where_one_is_wrong(subtests):
    model = RunsModel()
    model.set_runs(RUNS)
    for words, found, problem in (
        ("loss<1.5", ["quickstart", "topics"], ""), ("loss>1.5 quickstart", ["quickstart"], ""),
        ("score>0.9", ["topics"], ""), ("score>0.92", [], ""), ("size_gib>1", ["topics"], ""),
        ("task:chat", ["help"], ""), ("steps<20", ["too"], ""), ("accuracy>=0.913", ["topics"], ""),
        ("macro_F1<0.5", [], ""), ("model:BERT", ["topics"], ""), ("data:topics", ["topics"], ""),
        ("state:running", ["help"], ""), ("state:fin", ["quickstart", "topics"], ""),
        ("f1>0.05 topics", ["topics"], "no run has 'f1'. Write, for example, loss<1.5. Names: loss, held_out, score, "
         "size_gib, steps, accuracy, macro_f1"),
        ("chat foo:bar", ["help"], "'foo:' is unknown. Use model: data: task: state: #tag, or words without a colon"),
        ("loss<<1 chat", ["help"], "'loss<<1' is not a comparison."), ("loss< chat", ["help"], "'loss<' is not"),
        ("loss=1 chat", ["help"], "'loss=1' is not"),
    ):  # fmt: skip
        with subtests.test(words):
            model.narrow(words)
            assert (
                names_of(model) == found and model.problem.startswith(problem) and bool(problem) == bool(model.problem)
            )


@pytest.mark.full
@in_event_loop
async def test_runs_are_sorted_by_key_and_by_click_and_the_chosen_one_stays_in_sight(runs):
    for number in range(40):
        run_of(runs, f"run-{number:03}", start(100), *steps(1, 2 + number % 7))
    async with opened((120, 24)) as screens:
        await screens.shows("run-039")
        await screens.press("o")
        await screens.shows("sorted by run", "run-000")
        await screens.press("O")
        await screens.shows("sorted by run, reversed", "run-039")
        await screens.click("last event")
        await screens.shows("sorted by last event", "\u25belast event")
        await screens.click("last event")
        await screens.shows("sorted by last event, reversed", "\u25b4last event")
        await screens.press("end", "/", *"run-005", "enter")
        await screens.shows("\u25b8 run-005", gone="run-006")
        await screens.press("escape", "down")
        text = await screens.settled()
        assert "\u25b8 run-" in text and "run-005" in text, "the chosen run stays in sight"


@pytest.mark.full
@in_event_loop
async def test_the_cursor_is_seen_without_colours_and_in_ascii(runs, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    for name in "ab":
        run_of(runs, f"run-{name}", start(100), *steps(1, 20))
    async with open_canned(CPU, ASCII) as screens:
        await screens.press("5", "o", "O")
        await screens.settled()
        assert screens.text.isascii() and "vrun" in screens.lines[1] and screens.lines[2].startswith("> run-b")
        rows = screens.app.screen._compositor.render_strips()
        styles = [[segment.style for segment in strip] for strip in rows]
        assert [all(style.reverse for style in line) for line in styles[1:4]] == [False, True, False]
        colours = [colour for line in styles for style in line for colour in (style.color, style.bgcolor)]
        assert all(colour is None or colour.is_default for colour in colours)


@pytest.mark.full
@in_event_loop
async def test_tags_and_a_note_are_kept_with_the_run_shown_and_found(runs):
    for name in ("first", "second", "third"):
        folder = run_of(runs, name, start(100), *steps(1, 20))
    async with opened() as screens:
        with RunLock(folder.lock):
            await screens.press("r", "#", *"a!", "enter")
            await screens.shows("'a!' cannot be a tag")
            await screens.press("ctrl+u", *"#Base, fp8", "enter")
            await screens.shows("#base #fp8", "third training", gone="Esc back")
            await screens.press("e", *"to beat", "enter")
            await screens.shows("to beat", gone="Esc back")
        await screens.press("r", "/", *"#ba", "enter")
        await screens.shows("1 matching '#ba'", "third", gone="second")
        await screens.shows("third interrupted")
        await screens.press("N", "ctrl+u", *"renamed", "enter")
        await screens.shows("renamed to renamed", "#base #fp8", "to beat")
        assert labels_of(RunFolder(runs / "renamed")).note == "to beat"
        await screens.press("escape", "/", *"beat", "enter", "#", "ctrl+u", "enter")
        await screens.shows("renamed interrupted \u2500")
        await screens.press("e", "ctrl+u", "enter")
        await screens.until(lambda: not RunFolder(runs / "renamed").labels.exists())


@pytest.mark.full
@in_event_loop
async def test_the_marked_are_deleted_after_one_question_but_one_that_runs(runs):
    folders = [run_of(runs, f"run-{name}", start(100), *steps(1, 20)) for name in "abcd"]
    with RunLock(folders[3].lock):
        async with opened() as screens:
            await screens.press("*")
            await screens.shows("4 marked", "D delete")
            await screens.press("/", *"run-b", "enter", "D")
            text = await screens.shows("Delete 3 runs?", "run-d is running, so it is kept; S stops it", "y delete 3")
            assert "Frees " in text and "KiB: journals" in text and "2 runs hidden by the filter will be" in text
            await screens.press("y")
            await screens.shows("deleted 3 runs", "KiB freed")
            assert [folder.root.exists() for folder in folders] == [False, False, False, True]
            await screens.press("escape", "D")
            await screens.shows("run-d is running, so it is kept")
            assert folders[3].journal.exists()


@pytest.mark.full
@in_event_loop
async def test_four_runs_are_compared_by_two_metrics_over_any_axis(runs):
    for at, name in enumerate("abcd"):
        evals = [held_out(10 * n, 5 - n / 10, macro_f1=(n + at) / 10) for n in range(1, 5)]
        began = replace(start(100), task="chat" if at else "seq2seq")
        run_of(runs, f"run-{name}", began, *steps(1, 40), *evals)
    async with opened((120, 40)) as screens:
        await screens.press(*["space", "down"] * 4, "C")
        await screens.shows(
            "training loss over steps", "\u25c6 held out", "D run-a", "The tasks differ (chat, seq2seq)"
        )
        await screens.press("v", "V")
        await screens.shows("held-out loss over steps", "\u2500\u2500 training loss over steps")
        # What is drawn already is left out.
        await screens.press("V", "x")
        text = await screens.shows("held-out loss over trained tokens", "macro_f1, held out over trained tokens")
        chart = screens.app.dialog._second
        assert [curve.sign for curve in chart.curves] == list("ABCD")
        assert [x for x, _ in chart.curves[0].points] == [1_000, 2_000, 3_000, 4_000]
        assert [round(y, 1) for _, y in chart.curves[3].points] == [0.1, 0.2, 0.3, 0.4]
        assert all(f" {sign}" in text or f"{sign}" in text for sign in "ABCD")
        await screens.press("x", "Z")
        await screens.shows("macro_f1, held out over seconds, logarithmic")


@pytest.mark.full
@in_event_loop
async def test_beside_the_list_stands_the_chosen_run_with_its_curve_and_what_differs_from_the_one_before(runs):
    def made(name: str, day: int, lr: float, ancestors: list[dict[str, str]]) -> None:
        at = f"2026-11-{day}T00:00:00.000Z"
        folder = run_of(runs, name, replace(start(100), at=at), *steps(1, 20), held_out(10, 4.0, accuracy=0.5))
        plan = {"config": {"training": {"learning_rate": lr, "seed": 1}}, "ancestors": ancestors}
        folder.plan.write_text(json.dumps(plan))

    made("oldest", 10, 1e-3, [])
    made("middle", 11, 2e-3, [])
    made("newest", 12, 3e-3, [{"name": "oldest", "method": "full"}])
    async with opened((120, 35)) as screens:
        await screens.shows("differs from oldest", "started from", "training.learning_rate  0.001 \u2192 0.003")
        await screens.shows("loss  \u2847 steps")
        await screens.press(*["v"] * 6)
        await screens.shows("accuracy, held out")
        await screens.press("down")
        await screens.shows("differs from oldest", "previous run", "0.001 \u2192 0.002", "accuracy, held out")
        await screens.press("down")
        await screens.shows("no earlier run of this task to compare")
        await screens.resize(80, 24)
        await screens.press("v")
        await screens.shows("curves need a terminal of at least 120 columns", gone="differs from")


def test_what_deleting_frees_is_said_where_it_is_not_all_of_a_run():
    def size_of(freed_bytes):
        one = replace(RUNS[1], size_bytes=35 << 20, freed_bytes=freed_bytes)
        lines = text_of(detail_lines(one, runs_module._now(), 200, UNICODE))
        return lines.partition("size       ")[2].partition("\n")[0]

    assert size_of(35 << 20) == size_of(None) == "35.0 MiB"
    assert size_of(34 << 20) == "35.0 MiB (deleting it frees 34.0 MiB)"
