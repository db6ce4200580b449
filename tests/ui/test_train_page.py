"""The Train screen: what it says in each phase of a run, what keys and the mouse read off it, and what it costs."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.events import MouseScrollDown, MouseScrollUp

from tests.ui.canned import CPU, DONE, FAILED, GIB, GPUS, LORA, STOPPED, WORK, CannedBench, NewsRun, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs import events as e
from tui_trainer.ui import app as app_module
from tui_trainer.ui.preferences import Preferences
from tui_trainer.ui.spans import UNICODE

BEGUN = trained(0)[:2]
STARTED_AGAIN = e.RunStarted(name="q", task="t", device="cpu", pid=1, total_steps=500, resumed_from_step=100)
READ = e.GaugesRead(
    step=40, process_memory_bytes=2 * GIB, process_cpu_share=0.5, usable_cores=8,
    gpus=[e.GpuReading(index=0, utilization_share=0.9, memory_used_bytes=60 * GIB, memory_bytes=139 * GIB)],
)  # fmt: skip
# A model that writes bytes stopped within a character.
SAMPLED = e.TextSampled(step=148, prompt="The ", text="an e with an accent: \ufffd")
TARGETS = {"samples_per_second": 100.0, "memory_gib": 0.1, "model_size_gib": 0.5, "loss": 1.6}
SAVED = e.CheckpointSaved(step=148, path="checkpoints/step-148", bytes=9_900_000, seconds=0.02, reason="asked for")
CLASSES = [f"class {n}" for n in range(8)]
SCORED = e.EvalDone(
    step=148, loss_sum=5, tokens=10, loss=0.5, seconds=1, scheduled=True, best=True, scores={"accuracy": 0.834},
    table_title="true class / predicted", table_columns=CLASSES,
    table_rows={name: [10.0 * (name == other) for other in CLASSES] for name in CLASSES},
)  # fmt: skip


class Bench(CannedBench):
    """Gauges that a test moves."""

    share = 0.6

    @property
    def gauges(self):
        return Gauges(cpu_share=self.share, memory_used_bytes=12 * GIB, memory_bytes=32 * GIB)


@pytest.fixture(autouse=True)
def still(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    monkeypatch.setattr("tui_trainer.ui.workbench.monotonic", lambda: 100.0)
    monkeypatch.delenv("NO_COLOR", raising=False)


@asynccontextmanager
async def opened(events=(), size=(80, 24), hardware=CPU, alive=True):
    """The Train screen, on a run with these events."""
    async with open_screens(bench=Bench(lambda: Request(), hardware, UNICODE), size=size) as screens:
        if events:
            screens.bench.run = NewsRun(events, alive)
        await screens.press("4")
        await screens.settled()
        yield screens


def step(number: int, loss: float = 2.0, seconds: float = 0.125) -> e.StepDone:
    (last,) = [event for event in trained(1) if isinstance(event, e.StepDone)]
    return replace(last, step=number, loss_sum=loss * 2048, step_seconds=seconds, tokens_per_second=2048 / seconds)


async def show(screens, events, *, alive: bool, **of_run) -> str:
    run = NewsRun(events, alive)
    for name, value in of_run.items():
        setattr(run, name, value)
    screens.bench.run = run
    screens.app.run_changed()
    screens.app.draw()
    return await screens.settled()


@in_event_loop
async def test_every_phase_of_a_run_says_where_it_is_and_what_can_be_done():
    async with opened(size=(200, 50)) as screens:
        await screens.shows("Press t to start", "500 steps", "CPU")
        for events, alive, expected in (
            ([*BEGUN, WORK], True, ("preparing", "tokenising", "35 % of 1.2 M characters")),
            (trained(148), True, ("training", "step 148 of 500", "ETA", "29 %", "epoch 0.90 of 3.0", "held out 1.7463",
                                  "16.4 k tokens/s", "128 rows/s", "lr 2.11e-03", "171.7 of 186.0 MiB planned",
                                  "saved at step 100,   48 steps ago", "16 rows (8 rows x 2)")),
            (trained(148, targets=TARGETS), True, ("samples/s 128 (at least 100)", "(at most 102.4 MiB)", "loss")),
            (trained(148, memory_bytes=100 * 2**20), True, ("171.7 MiB, 71.7 MiB more than planned",
                                                            "memory is free; later plans use")),
            (trained(148, **LORA), True, ("TinyLlama-1.1B", "r 16, 6.7 k of 818 k parameters (0.82 %)")),
            ([*trained(148, processes=4), e.RanksTimed(step=148, communication_seconds=[0.018, 0.019, 0.0181, 0.006])],
             True, ("slowest: rank 3", "communication")),
            ([*trained(148), e.PhaseChanged(phase="paused")], True, ("paused", "step 148 of 500")),
            ([*trained(148), STARTED_AGAIN, WORK], True, ("step 100 of 500",)),
            ([*trained(148), STARTED_AGAIN, e.PhaseChanged(phase="training")], True, ("resumed from step 100",)),
            ([*trained(148), replace(SAMPLED, prompt="of many words " * 40)], True,
             ("... many words of many words", "words -> an e with", "writes: ... ")),
            ([*trained(148), replace(SAMPLED, prompt="It was superb. ", text=" -> positive 0.46")], True,
             ("writes: It was superb. -> positive",)),
            ([*trained(500), DONE], False, ("Finished after 500 steps, 1 min 05 s of training.",
                                            "2.4768  bigram baseline", "beaten",
                                            "not beaten", "/model", "w continue a text you type   x export",
                                            "an earlier evaluation was better")),
            ([*trained(120), STOPPED], False, ("Stopped at step 120 of 500.", "press p",
                                               "from step 100, exactly as if it had never stopped")),
            ([*BEGUN, replace(STOPPED, step=0)], False, ("from the beginning",)),
            ([*trained(120), FAILED], False, ("failed", "CUDA out of memory", "logs/run.log")),
            ([*BEGUN, FAILED], False, ("failed", "CUDA out of memory")),
        ):  # fmt: skip
            text = await show(screens, events, alive=alive)
            assert [words for words in expected if words not in text] == [], text
        text = await show(screens, trained(148), alive=False)
        assert (
            "interrupted" in text
            and "the process stopped at step 148 without an error; p resumes from step 100" in text
            and "ETA" not in text
        )
        for events, alive, gone in (
            ([*trained(148), SAMPLED], True, "\ufffd"),
            ([*BEGUN, replace(WORK, done=WORK.total)], True, "tokenising"),
            ([*trained(500), DONE], True, "p pause"),  # its process writes the report
        ):
            assert gone not in await show(screens, events, alive=alive)
        for planned_mib, words in ((130, "planned 130.0 MiB"), (120, "51.7 MiB more than planned, fine while")):
            text = await show(screens, trained(148, memory_bytes=planned_mib * 2**20), alive=True)
            assert f"171.7 MiB, {words}" in text
        text = await show(screens, [STARTED_AGAIN, *trained(148, memory_bytes=100 * 2**20)[1:]], alive=True)
        assert "memory is free" in text and "later plans" not in text
        text = await show(screens, [*trained(148), READ], alive=True, is_trained_here=False)
        assert "GPU 90 %, 60.0 of 139.0 GiB" in text and "read at step 40" in text
        await screens.resize(60, 20)
        text = await show(screens, trained(148, total=1_000_000), alive=True)
        assert "step       148 of 1,000,000" in text, "the name is cut first"
        assert " more\n" in await show(screens, [*trained(500), DONE], alive=False), "lines do not fit"


@pytest.mark.full
@in_event_loop
async def test_a_finished_run_names_its_menu_and_a_gate_that_cannot_judge_it_says_why_at_once():
    label = replace(trained(0)[0], task="sequence_classification")
    async with opened() as screens:
        for begun, keys, words in (
            (trained(0)[0], "g", "the general suite shows what a base model has lost"),
            (label, "g", "the general suite has no labels"),
            (replace(label, task="token_classification"), "G", "predict neither texts nor labels"),
        ):
            assert "M more..." in await show(screens, [begun, *trained(500)[1:], DONE], alive=False)
            await screens.press("M", keys)
            await screens.shows(words, gone="More actions")
        assert not screens.bench.tools
        await show(screens, [*trained(148), e.PhaseChanged(phase="paused")], alive=True)
        await screens.press("&")
        await screens.shows("Detach the run?", "paused now; the background process continues it")


@pytest.mark.full
@in_event_loop
async def test_a_run_that_stopped_early_says_one_thing_in_heading_bar_and_result():
    scheduled = {"loss_sum": 1.0, "tokens": 1, "seconds": 0.1, "scheduled": True}
    events = [
        *trained(40, 102, metric="macro_f1", targets={}),
        e.EvalDone(step=30, loss=0.9, best=True, scores={"accuracy": 0.8, "macro_f1": 0.81}, **scheduled),
        e.EvalDone(step=40, loss=0.7, best=False, scores={"accuracy": 0.9, "macro_f1": 0.75}, **scheduled),
    ]
    kept = {"eval_loss": 0.9, "model_step": 30, "scores": {"accuracy": 0.8, "macro_f1": 0.81}}
    last = replace(DONE, step=40, reason="early stopping", **kept)
    async with opened([*events, last], alive=False) as screens:
        text = await screens.settled()
        assert all(len(line) <= 80 for line in text.splitlines())
        head, bar = text.splitlines()[1:3]
        assert "stopped early" in head and "step  40 of 102" in head
        assert " 39 %" in bar and "held out 0.9000   macro F1 0.810" in bar
        await screens.shows(
            "Stopped early at step 40; kept step 30: macro F1 0.810", "held out 0.9000 ", ", at step 30"
        )


@pytest.mark.full
@in_event_loop
async def test_wide_screens_have_the_scores_with_their_best_what_is_to_be_beaten_and_what_is_kept():
    scheduled = {"loss_sum": 1.0, "tokens": 1, "seconds": 0.1, "scheduled": True}
    to_beat = e.BaselinesMeasured(
        losses={"class shares": 0.8}, eval_tokens=1, unit="row", scores={"accuracy of the most frequent class": 0.95}
    )
    optimistic = "optimistic_calibration_error"
    events = [
        *trained(45, 102, metric="macro_f1", targets={}, early_stopping_patience=3), to_beat,
        replace(trained(45)[-1], sums={"margin": 3.5}, counts={"margin": 2}),
        e.EvalDone(step=20, loss=0.9, best=True, scores={"accuracy": 0.8, "macro_f1": 0.81}, **scheduled),
        e.EvalDone(step=30, loss=0.7, best=False, scores={"accuracy": 0.9, "macro_f1": 0.75}, **scheduled),
        e.EvalDone(
            step=40, loss=0.8, best=False, scores={"accuracy": 0.9, "macro_f1": 0.79, optimistic: 0.1}, **scheduled
        ),
    ]  # fmt: skip
    async with opened(events, size=(200, 50)) as screens:
        text = await screens.settled()
        for pattern in (
            r"held-out loss +0\.8000 +0\.7000 +30  ✗ 0\.8000",
            r"accuracy +0\.900 +0\.900 +30  ✗ 0\.950 ",
            r"macro F1 +0\.790 +0\.810 +20",
            r"margin, training +1\.750",
            r"optimistic calibration",
            r"best +step 20, macro F1 0\.810",
            r"patience +2 of 3 evaluations without improvement",
            r"final +weights of step 20",
            r"step 40: held-out loss 0\.8000 \(2 of 3 evaluations",
        ):
            assert re.search(pattern, text), f"{pattern}\n{text}"
        last = replace(DONE, step=45, reason="early stopping", eval_loss=0.9, model_step=20)
        text = await show(screens, [*events, last], alive=False)
        assert re.search(r"final +weights of step 20", text) and "patience" not in text
        await screens.resize(120, 35)
        await screens.shows("plan", gone="final ")


@pytest.mark.full
@in_event_loop
async def test_scores_stand_beside_the_loss_their_table_opens_and_the_end_says_what_was_beaten():
    to_beat = e.BaselinesMeasured(
        losses={}, eval_tokens=10, unit="token", scores={"accuracy of the most frequent class": 0.31}
    )
    async with opened([*trained(148), to_beat], (120, 35)) as screens:
        await screens.press("C")
        await screens.shows("no evaluation of this run has a table")
        screens.bench.run.waiting = (SCORED,)
        screens.app.tick()
        await screens.shows("held out 0.5000   accuracy 0.834", gone="true class / predicted")
        screens.bench.run.waiting = (replace(trained(149)[-1], sums={"margin": 3.5}, counts={"margin": 2}),)
        screens.app.tick()
        await screens.shows("margin 1.750")
        await screens.resize(80, 24)
        await screens.shows("C scores")
        screens.app.perform_action("train.table")
        text = await screens.shows("scores: true class / predicted", "after step 148")
        assert all(f"{n + 1} class {n}" in text for n in range(8))
        assert screens.app.page.query_one("#chart").size.height >= 6
        await show(screens, trained(148), alive=True)
        await screens.shows("rows/s", gone="true class")
        await show(screens, [*trained(148), to_beat, SCORED], alive=True)
        screens.app.perform_action("train.table")
        await screens.shows("scores: true class / predicted")
        await screens.resize(120, 35)
        await screens.press("C", "L")
        await screens.shows("nothing has been written", gone="true class / predicted")
        await screens.press("L")
        await screens.resize(200, 50)
        end = replace(DONE, step=148, eval_loss=0.5)
        text = await show(screens, [*trained(148), to_beat, SCORED, end], alive=False)
        assert re.search(r"accuracy +0\.834  . beaten  0\.310 most frequent class", text), text


@in_event_loop
async def test_news_and_gauges_come_with_a_tick_and_a_picture_that_is_held_still_waits():
    async with opened(trained(248, **LORA), hardware=GPUS) as screens:
        app, bench = screens.app, screens.bench
        bench.share, bench.run.waiting = 0.9, (step(249),)
        app.tick()
        await screens.shows("90 %", "step 249 of 500")
        await screens.press("space")
        await screens.shows("frozen: Space unfreezes")
        held = screens.lines[1:-2]
        bench.share, bench.run.waiting = 0.3, (step(250), e.PhaseChanged(phase="paused"))
        app.tick()
        for key in ("L", "up", "C", "z"):
            await screens.press(key)
            await screens.shows("the display is frozen")
        assert screens.lines[1:-2] == held
        await screens.press("space")
        await screens.shows("step 250 of 500", "paused", gone="frozen")
        await screens.press("1")
        bench.run.waiting = (step(251),)
        app.tick()
        await screens.press("4")
        await screens.shows("step 251 of 500")


@in_event_loop
async def test_each_part_is_made_large_by_one_key_and_all_are_back_by_another():
    async with opened(trained(148)) as screens:
        for title, gone in (("loss", "speed"), ("events", "loss"), ("samples", "events")):
            await screens.press("W")
            await screens.shows(f"── {title} ", "step 148 of 500", gone=f"── {gone} ")
        assert "after step 50" in screens.text, "older ones as well"
        await screens.press("escape")
        await screens.shows("── loss ", "── speed ", "── events ", gone="── samples")
        await screens.press("L", "W")
        await screens.shows("── loss ", gone="── log ")
        await show(screens, trained(60), alive=True)
        await screens.shows("── log ", "── loss ", "── events ")


@in_event_loop
async def test_a_run_goes_on_behind_whatever_is_asked():
    async with opened(trained(248)) as screens:
        for at, action in enumerate(("train.doctor", "train.try_model", "train.stop", "train.detach", "app.quit"), 249):
            screens.app.perform_action(action)
            await screens.until(lambda: screens.app.dialog)
            screens.bench.run.waiting = (step(at),)
            screens.app.tick()
            await screens.shows(f"step {at} of 500")
            await screens.press("escape")


@pytest.mark.full
@in_event_loop
async def test_keys_and_the_mouse_read_values_off_the_chart_and_go_back_in_the_events():
    async with opened(trained(248, **LORA), hardware=GPUS) as screens:
        pilot = screens.pilot
        await pilot.click("#chart", offset=(44, 3))
        await screens.shows("step 130  loss")
        await pilot.mouse_down("#chart", offset=(44, 3))
        await pilot.hover("#chart", offset=(62, 3))
        await screens.shows("step 194  loss")
        await pilot.mouse_up("#chart", offset=(62, 3))
        await screens.press("left")
        await screens.shows("step 190  loss")
        await screens.press("escape")
        await screens.shows("\u2500\u2500 loss ", gone="step 190")
        await pilot._post_mouse_events([MouseScrollUp], "#chart", offset=(44, 3))
        await screens.shows("zoom 2x")
        await screens.press("0")
        await screens.shows("\u2500\u2500 loss ", gone="zoom")
        await screens.press("Z", "v")
        await screens.shows("\u2500\u2500 learning rate ")

        await screens.press("0")
        newest = screens.lines[-2]
        await screens.press("up", "up")
        await screens.until(lambda: newest not in screens.lines)
        await pilot._post_mouse_events([MouseScrollDown] * 2, "#events", offset=(4, 2))
        await screens.until(lambda: screens.lines[-2] == newest)

        await screens.press("left", "+")
        text = await show(screens, [*trained(500), DONE], alive=False)
        assert "Finished after 500 steps" in text and "zoom" not in text, "another run is shown whole"


@pytest.mark.full
@in_event_loop
async def test_events_and_the_log_are_filtered_by_words(monkeypatch):
    log = ["plain", "a Warning of torch", "done"]
    monkeypatch.setattr("tui_trainer.ui.screens.train.tail_of", lambda *_: log)
    async with opened([*trained(248), *[SCORED] * 2], (80, 30)) as screens:
        screens.bench.guard = SimpleNamespace(log_path=Path("run.log"))
        # Keys that come faster than a picture are letters all the same: `S` would stop the run.
        for key in ("slash", *"SAVED"):
            screens.app.simulate_key(key)
        await screens.press("space", *"10")
        # Letters go to the field, and the log is filtered while they are typed.
        await screens.shows("SAVED 10", "events with SAVED 10: 1 of ", "saved checkpoints", gone="to beat")
        assert len([line for line in screens.lines if "saved checkpoints" in line]) == 1
        await screens.press("enter")
        await screens.shows("events with", "p pause")
        # A new event that has the words is shown, another one is not.
        screens.bench.run.waiting = (replace(SAVED, step=1000), e.PhaseChanged(phase="paused"))
        screens.app.tick()
        await screens.shows("events with SAVED 10: 2 of ", "step 1000")
        await screens.press("/", "ctrl+u", *"warn", "enter", "L")
        await screens.shows("a Warning of torch", gone="plain")
        await screens.press("escape")
        await screens.shows("plain", "done", gone="events with")


@pytest.mark.full
@in_event_loop
async def test_two_curves_are_chosen_from_all_numbers_and_are_kept_for_the_task(monkeypatch, tmp_path):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    scored = [*trained(148), SCORED, READ, replace(step(149), sums={"margin": 3.5}, counts={"margin": 2})]
    async with opened(scored) as screens:
        app = screens.app
        await screens.press("V")
        await screens.shows("Choose one or two curves", "learning rate", "16.4 k")
        await screens.press(*"accur")
        await screens.shows("accuracy, held out", "0.8340", gone="learning rate")
        await screens.press("enter")
        await screens.shows("── accuracy, held out ", gone="── loss ")
        # Space adds one to those that are drawn; it is no letter of the field.
        await screens.press("V", *"margin", "space")
        await screens.shows("● margin, training")
        await screens.press("enter")
        text = await screens.shows("── accuracy, held out ", "── margin, training ")
        assert text.index("── accuracy") < text.index("── margin")
        assert Preferences.load().curves == {"char_lm": ["accuracy, held out", "margin, training"]}
        upper, lower = app.page.query_one("#chart"), app.page.query_one("#second")
        assert abs(upper.size.height - lower.size.height) <= 1 and upper.size.height >= 3
        # Of both the same steps are shown, and read.
        await screens.press("+", "left")
        await screens.until(lambda: lower.view.halvings == upper.view.halvings == 1)
        await screens.until(lambda: lower.view.cross_step and lower.view.cross_step == upper.view.cross_step)
        await screens.press("escape")
        await screens.until(lambda: lower.view.cross_step is None)
        # A third one takes the place of the first.
        await screens.press("V", *"gradient", "space", "enter")
        await screens.shows("── margin, training ", "── gradient norm ", gone="── accuracy")
        await screens.press("V", "space", "space", "escape")
        await screens.shows("── gradient norm ", gone="Choose one or two")

        # Another run of the task has no margin so far: it comes with the first step that has one.
        text = await show(screens, trained(148), alive=True)
        assert "── gradient norm " in text and "── margin" not in text and "── loss " not in text
        screens.bench.run.waiting = (scored[-1],)
        app.tick()
        await screens.shows("── margin, training ", "── gradient norm ")
        started, *rest = trained(148)
        text = await show(screens, [replace(started, task="chat"), *rest], alive=True)
        assert "── loss " in text and "── gradient" not in text
        await screens.press("v")
        await screens.shows("── learning rate ", gone="── loss ")
        assert Preferences.load().curves["chat"] == ["learning rate"]


@pytest.mark.full
@in_event_loop
async def test_a_terminal_of_a_few_cells_ends_nothing():
    failed = [*trained(500), e.RunFailed(step=500, message="it failed " * 9)]
    async with opened(failed, alive=False) as screens:
        for keys in (["L"], ["2", "S"]):
            await screens.press(*keys)
            for size in ((1, 1), (80, 24)):
                await screens.resize(*size)
        await screens.shows("Save as")
