"""Trying a model from the screens: one that continues texts goes on with the prompt, another answers below it."""

import os
import re
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest
import torch
from textual.events import Paste

from tests.ui.bare_app import seen
from tests.ui.canned import CPU, CannedBench, CannedRun, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.errors import DataError, FolderError, RunError
from tui_trainer.launching.model_process import ChildWriter, ModelProcess, Place
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.state import RunState
from tui_trainer.ui import run_dialogs
from tui_trainer.ui.run_dialogs import TryDialog, offer_try
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import TRYING


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
    """There is no folder that loading would keep in its place."""
    monkeypatch.setattr("tui_trainer.runs.lock.in_use", lambda folder, command: nullcontext())


class FakeWriter:
    """Stands for the weights."""

    continues = True
    source = "model"
    moved = False

    def __init__(self, process, folder):
        pass

    def continue_text(self, prompt, sampling, show):
        show(" and more")

    def answer(self, prompt, sampling):
        return "joy 0.93\nanger 0.07"


@pytest.mark.parametrize(("task", "continues", "shown", "key"), [
    ("char_lm", True, "a text and more", "continue the text"),
    ("sequence_classification", False, "joy 0.93", "ask the model"),
])  # fmt: skip
def test_what_the_model_makes_of_a_prompt_is_shown(task, continues, shown, key, monkeypatch):
    monkeypatch.setattr(FakeWriter, "continues", continues)
    bench = bench_of(FakeWriter, monkeypatch)
    bench.run.state.task = task
    before, text = seen(TryDialog(bench, folder=None, prompt="a text"), "enter")
    assert "a text" in before and "weights" not in before
    assert shown in text and key in text
    assert "on GPU 0, where it fits" in before and "weights of model, on GPU 0, where it fits" in text


def bench_of(writer: type[FakeWriter], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Work is done at once."""
    monkeypatch.setattr(run_dialogs, "ChildWriter", writer)
    monkeypatch.setattr(run_dialogs, "find_place", lambda *_, **__: Place(words="on GPU 0, where it fits"))
    return SimpleNamespace(
        run=SimpleNamespace(state=RunState(task="char_lm"), alive=False),
        chosen_gpu=None,
        hardware=CPU,
        background=SimpleNamespace(do=lambda name, work, done, lane: done(work())),
    )


def test_letters_are_the_prompt_and_arrows_scroll_what_was_written(monkeypatch):
    class Long(FakeWriter):
        """Writes more than the box shows."""

        def continue_text(self, prompt, sampling, show):
            show("".join(f"\nline {n}" for n in range(30)))

    texts = seen(TryDialog(bench_of(Long, monkeypatch), None, "j"), *"qkG", "enter", "down", "pagedown", "escape")
    assert "jqkG" in texts[3]
    assert "jqkG" in texts[4].split("line 0")[0] and "line 29" not in texts[4]
    assert "line 9 " not in texts[4] and "line 9 " in texts[5] and "line 19" in texts[6]
    assert texts[7] == ""


def test_what_the_weights_refuse_stands_below(monkeypatch):
    class Broken(FakeWriter):
        """Cannot be loaded."""

        def __init__(self, process, folder):
            raise DataError("the weights are torn", hint="a sentence of many words " * 6 + "that is read to its end")

    _, text = seen(TryDialog(bench_of(Broken, monkeypatch), None, ""), "enter")
    assert "the weights are torn" in text and "read to its end" in " ".join(text.replace("\u2502", " ").split())


class Chatting(FakeWriter):
    """Answers with how many messages it was asked with, the first of them, and how freely."""

    continues = False
    name = "tuned"

    def __init__(self, process, folder, base=False):
        self.name = "base" if base else "tuned"

    def reply(self, messages, sampling, show):
        show(f"{self.name} heard {len(messages)} from {messages[0]['role']} at {sampling.temperature:g}")
        return 0


def typed(*lines: str) -> list[str | Paste]:
    return [key for line in lines for key in (Paste(line), "enter")]


def chatting(monkeypatch, base: str = "") -> SimpleNamespace:
    bench = bench_of(Chatting, monkeypatch)
    bench.run.state = RunState(task="chat", plan=SimpleNamespace(base_model=base))
    return bench


def test_a_model_that_chats_goes_on_with_all_that_was_said_and_takes_the_commands(monkeypatch):
    lines = ("hi", "and", "/undo", "/temperature 0", "so")
    text = seen(TryDialog(chatting(monkeypatch), None, ""), *typed(*lines))
    assert "tuned heard 1 from user at 0.8" in text[2] and "tuned heard 3 from user" in text[4]
    assert "taken back" in text[6] and "the temperature is 0" in text[8] and "heard 3 from user at 0 " in text[10]
    assert "> so" in text[10] and "base model" not in text[10], "a run from scratch has none"


def test_that_of_a_run_that_trains_names_its_checkpoint(monkeypatch):
    bench = chatting(monkeypatch)
    bench.run.alive, bench.run.state.checkpoints = True, [SimpleNamespace(step=150)]
    text = seen(TryDialog(bench, None, ""))[0]
    words = " ".join(text.replace("\u2502", " ").split())
    assert "the newest checkpoint is step 150, training goes on; on GPU 0, where it fits; /help lists" in words


def test_a_question_is_there_while_the_weights_are_loaded(monkeypatch):
    bench = chatting(monkeypatch)
    bench.background.do = lambda name, work, done, lane: None
    text = seen(TryDialog(bench, None, ""), *typed("why so slow?"))
    assert "> why so slow?" in text[-1] and "loading the weights" in text[-1]


def test_a_system_prompt_begins_anew_and_quit_closes(monkeypatch):
    text = seen(TryDialog(chatting(monkeypatch), None, ""), *typed("hi", "/system x", "so", "/quit"))
    assert "heard 2 from system" in text[6] and text[7] and text[8] == ""


def test_the_base_model_answers_beside_the_trained_one(monkeypatch):
    text = seen(TryDialog(chatting(monkeypatch, "llama"), None, ""), "tab", *typed("hi"), "tab", *typed("so"))
    assert "base model beside it" in text[0] and "the base model answers first" in text[1]
    assert "[base] base heard 1" in text[3] and "[tuned] tuned heard 1" in text[3]
    assert "tuned heard 1" in text[-1] and "base heard" not in text[-1], "with another one it begins anew"


def test_a_base_model_that_is_gone_is_told(monkeypatch):
    class OfRunAlone(Chatting):
        """Has no base model."""

        def __init__(self, process, folder, base=False):
            if base:
                raise FolderError("the base model llama is not on this disk")
            super().__init__(process, folder)

    bench = chatting(monkeypatch, "llama")
    monkeypatch.setattr(run_dialogs, "ChildWriter", OfRunAlone)
    text = seen(TryDialog(bench, None, ""), "tab", *typed("hi"), *typed("so"))
    assert "llama is not on this disk" in text[3] and "tuned heard 1" in text[-1]


def test_a_question_waits_for_the_answer_to_the_one_before(monkeypatch):
    bench, asked = chatting(monkeypatch), []
    bench.background.do = lambda name, work, done, lane: asked.append(work) if name == TRYING else None
    text = seen(TryDialog(bench, None, ""), *typed("first?", "second?"))[-1]
    assert len(asked) == 1 and "> first?" in text and "> second?" not in text and "second?" in text


def test_a_run_of_a_task_that_there_is_not_is_told_and_ends_nothing(monkeypatch):
    bench, told = bench_of(FakeWriter, monkeypatch), []
    bench.run = SimpleNamespace(state=RunState(task="of another version"), folder=None)
    bench.app = SimpleNamespace(open=None)
    bench.tell = lambda words, role: told.append(words)
    offer_try(bench)
    assert "there is no task 'of another version'" in told[0]


@in_event_loop
async def test_a_run_that_trains_is_tried_once_it_has_a_checkpoint():
    async with open_canned() as screens:
        screens.bench.run = CannedRun(trained(40), alive=True)
        await screens.press("4", "w")
        await screens.shows("there is no checkpoint to try yet: s saves one")
        screens.bench.run = CannedRun(trained(148), alive=True)
        await screens.press("w")
        await screens.shows("the newest checkpoint is step 100, training goes on; on the CPU")


def test_the_base_model_beside_it_on_a_card_asks_for_room_for_both(monkeypatch):
    """What the first process holds of the card would count as taken."""
    asked, ended = [], []

    def placed(*_, models, **__):
        asked.append(models)
        return Place(words=f"on GPU 0 for {models}", card_uuid="GPU-1", card_bytes=1)

    bench = chatting(monkeypatch, "llama")
    monkeypatch.setattr(run_dialogs, "find_place", placed)
    monkeypatch.setattr(ModelProcess, "close", lambda process: ended.append(process.place.words))
    text = seen(TryDialog(bench, None, ""), *typed("hi"), "tab", *typed("so"), "tab", *typed("but"))
    assert asked == [1, 1, 2] and ended == ["on GPU 0 for 1"], "and none for the one model again"
    assert "on GPU 0 for 2" in text[-1]


def test_the_newest_checkpoint_is_tried_in_a_process_of_its_own(finished, tmp_path):
    run = RunFolder(shutil.copytree(finished("char_lm").root, tmp_path / "char_lm"))
    # As while it trains: no model and no end, and a process that owns it.
    shutil.rmtree(run.model)
    lines = run.journal.read_text().splitlines(keepends=True)
    run.journal.write_text(
        "".join(line for line in lines if '"RunFinished"' not in line and '"run_finished"' not in line)
    )
    assert len(run.journal.read_text().splitlines()) < len(lines)
    sampling = Sampling(max_new_tokens=4, temperature=0.8, seed=1)
    before, process, pieces = torch.get_rng_state(), ModelProcess(), []

    def hear(piece: str) -> None:
        child = process._worker._process
        assert child is not None and child.pid != os.getpid() and psutil.Process(child.pid).nice() == 19
        pieces.append(piece)

    with RunLock(run.lock):
        try:
            writer = ChildWriter(process, run)
            assert writer.source == "step-30" and writer.continues
            assert writer.continue_text("The sheep", sampling, hear) == 0
            written = "".join(pieces)
            assert written
            pieces.clear()
            writer.continue_text("The sheep", sampling, hear)
            assert "".join(pieces) == written, "the same seed writes the same text"
            with pytest.raises(RunError, match="has no base model"):
                ChildWriter(process, run, base=True)
        finally:
            process.end()
            process.close()
    assert torch.equal(before, torch.get_rng_state()) and process._worker._process is None


@pytest.mark.e2e
def test_a_run_of_another_process_is_tried_while_it_goes_on(open_terminal, small_config):
    trains = open_terminal(small_config(steps=100_000))
    trains.start_run()
    trains.wait_for_steps(5)
    watches = open_terminal("attach", "last")
    watches.wait_for("p pause", "s save")
    watches.press("s")
    watches.wait_for("saved at step")
    watches.press("w")
    status = watches.wait_for("training goes on; on the CPU")
    saved = re.search(r"the newest checkpoint is step (\d+),", status)
    assert saved and int(saved[1]) >= 5
    watches.press(*"3 times", "enter")
    watches.wait_for("weights of step-", "on the CPU")
    watches.press("escape")
    steps = len(trains.steps)
    trains.wait_for_steps(steps + 20)
    watches.press("q")
    assert watches.wait_for_end() == 0 and trains.alive
