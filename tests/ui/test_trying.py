"""Trying a model from the screens: one that continues texts goes on with the prompt, another answers below it."""

from __future__ import annotations

import re
import shutil
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from threading import Event

import pytest

from tests.ui.canned import CannedRun, open_canned, trained
from tests.ui.pictures import in_event_loop
from tui_trainer.errors import DataError, FolderError, RunError
from tui_trainer.launching.model_process import ChildWriter, ModelDevice, ModelProcess
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.ui import run_dialogs


class FakeWriter:
    """Stands for the weights. A conversation is answered with how many messages there were, and how freely."""

    continues = True
    source, has_moved_to_cpu = "model", False

    def __init__(self, process, folder, base=False):
        self.name = "base" if base else "tuned"

    def continue_text(self, prompt, sampling, show):
        show(" and more")

    def answer(self, prompt, sampling):
        return "joy 0.93\nanger 0.07"

    def reply(self, messages, sampling, show):
        show(f"{self.name} heard {len(messages)} from {messages[0]['role']} at {sampling.temperature:g}")
        return 0


@asynccontextmanager
async def trying(monkeypatch, writer=FakeWriter, task="char_lm", base="", find_device=None):
    """The dialog over a finished run of a task, with a writer in place of its weights."""
    place = ModelDevice(words="on GPU 0, where it fits")
    monkeypatch.setattr(run_dialogs, "ChildWriter", writer)
    monkeypatch.setattr(run_dialogs, "find_device", find_device or (lambda *_, **__: place))
    # There is no folder that loading would keep in its place.
    monkeypatch.setattr("tui_trainer.runs.lock.keep_in_use", lambda folder, command: nullcontext())
    begun, *events = trained(148, base_model=base)
    async with open_canned(run=CannedRun([replace(begun, task=task), *events], False)) as screens:
        await screens.press("4", "w")
        await screens.shows("Try the model", "GPU 0")
        yield screens


async def ask(screens, text: str, *words: str, gone: str = "") -> str:
    await screens.press("ctrl+u", *text, "enter")
    return await screens.shows(*words, gone=gone)


@in_event_loop
async def test_a_text_is_continued_and_other_tasks_answer_below_the_prompt(monkeypatch):
    for task, shown, key in (("char_lm", "a text and more", "continue the text"),
                             ("sequence_classification", "joy 0.93", "ask the model")):  # fmt: skip
        monkeypatch.setattr(FakeWriter, "continues", task == "char_lm")
        async with trying(monkeypatch, task=task, base="org/base") as screens:
            assert "weights" not in screens.text and key in screens.text
            assert ("compare base model" in screens.text) == (task == "char_lm")
            await screens.press(*"my own")
            assert screens.app.dialog.field.value == "my own", "it takes the place of the example"
            await ask(screens, "a text", shown, "weights of model, on GPU 0, where it fits")


@pytest.mark.full
@in_event_loop
async def test_letters_are_the_prompt_and_arrows_scroll_the_text(monkeypatch):
    class Long(FakeWriter):
        """Writes more than the box shows."""

        def continue_text(self, prompt, sampling, show):
            show("".join(f"\nline {n}" for n in range(30)))

    async with trying(monkeypatch, Long) as screens:
        text = await ask(screens, "jqkG", "jqkG", "line 0", gone="line 29")
        last = max(int(number) for number in re.findall(r"line (\d+)", text))
        await screens.press("down")
        await screens.shows(f"line {last + 1} ")
        await screens.press("pagedown")
        await screens.shows(f"line {last + 5} ", gone="line 0 ")
        await screens.press("escape")
        await screens.shows("? help", gone="Try the model")


@in_event_loop
async def test_the_reason_why_weights_cannot_be_loaded_stands_below_whole(monkeypatch):
    class Broken(FakeWriter):
        """Cannot be loaded."""

        def __init__(self, process, folder, base=False):
            raise DataError("the weights are torn", hint="a sentence of many words " * 6 + "that is read to its end")

    async with trying(monkeypatch, Broken) as screens:
        await screens.press("enter")
        text = await screens.shows("the weights are torn")
        assert "read to its end" in " ".join(text.replace("\u2502", " ").split())


@pytest.mark.full
@in_event_loop
async def test_a_conversation_goes_on_and_takes_the_commands_of_chat(monkeypatch):
    async with trying(monkeypatch, task="chat") as screens:
        assert "base model" not in screens.text, "a run from scratch has none"
        await ask(screens, "hi", "> hi", "tuned heard 1 from user at 0.8")
        await ask(screens, "and", "tuned heard 3 from user")
        await ask(screens, "/undo", "removed the last")
        await ask(screens, "/temperature 0", "temperature: 0")
        await ask(screens, "so", "> so", "heard 3 from user at 0 ")
        await ask(screens, "/system x")
        await ask(screens, "so", "heard 2 from system")
        await ask(screens, "/quit", gone="Try the model")


@pytest.mark.full
@in_event_loop
async def test_a_question_waits_for_the_answer_to_the_one_before(monkeypatch):
    loaded, asked = Event(), []

    class Slow(FakeWriter):
        """Is loaded when the test says so."""

        def __init__(self, process, folder, base=False):
            assert loaded.wait(1500)
            super().__init__(process, folder, base)

        def reply(self, messages, sampling, show):
            asked.append(messages[-1]["content"])
            return super().reply(messages, sampling, show)

    async with trying(monkeypatch, Slow, "chat") as screens:
        await ask(screens, "first?", "> first?", "loading the weights")
        await ask(screens, "second?", "second?", gone="> second?")
        loaded.set()
        await screens.ticks("tuned heard 1", gone="loading")
        assert asked == ["first?"]


@pytest.mark.full
@in_event_loop
async def test_the_base_model_answers_beside_the_trained_one_where_there_is_room_for_both(monkeypatch):
    """What the first process holds of the card would count as taken, so it ends before the second is loaded."""
    asked, ended = [], []

    def find_device(*_, models=1, **__):
        asked.append(models)
        return ModelDevice(words=f"on GPU 0 for {models}", card_uuid="GPU-1", card_bytes=1)

    monkeypatch.setattr(ModelProcess, "close", lambda process: ended.append(process.place.words))
    async with trying(monkeypatch, task="chat", base="llama", find_device=find_device) as screens:
        await ask(screens, "hi", "tuned heard 1", gone="base heard")
        await screens.press("tab")
        await screens.shows("each prompt goes to the base model, then to the trained model")
        await ask(screens, "so", "[base] base heard 1", "[tuned] tuned heard 1", "on GPU 0 for 2")
        await screens.press("tab")
        await ask(screens, "but", "> but", "tuned heard 1", gone="base heard")
        assert asked == [1, 1, 2] and ended == ["on GPU 0 for 1"], "and none for the one model again"


@pytest.mark.full
@in_event_loop
async def test_a_base_model_that_is_gone_is_named_and_the_trained_one_answers(monkeypatch):
    class WithoutBase(FakeWriter):
        """Has no base model."""

        def __init__(self, process, folder, base=False):
            if base:
                raise FolderError("the base model llama is not on this disk")
            super().__init__(process, folder)

    async with trying(monkeypatch, WithoutBase, "chat", "llama") as screens:
        await screens.press("tab")
        await ask(screens, "hi", "llama is not on this disk")
        await ask(screens, "so", "tuned heard 1")


@in_event_loop
async def test_a_run_is_tried_once_it_has_a_checkpoint_and_only_with_a_task_of_this_version():
    async with open_canned(run=CannedRun(trained(40), alive=True)) as screens:
        await screens.press("4", "w")
        await screens.shows("no checkpoint to try yet: press s to save one")
        screens.bench.run = CannedRun(trained(148), alive=True)
        await screens.press("w")
        await screens.shows("latest checkpoint: step 100, training continues; on the CPU")
        await screens.press("escape")
        begun, *events = trained(148)
        screens.bench.run = CannedRun([replace(begun, task="of another version"), *events], alive=True)
        await screens.press("w")
        await screens.shows("there is no task 'of another version'")
        screens.bench.run = CannedRun([replace(begun, task="reward"), *events], alive=True)
        await screens.press("w")
        await screens.shows("a reward model writes no text: `tui-trainer predict` scores")


@pytest.mark.full
def test_the_newest_checkpoint_is_tried_in_a_process_of_its_own(finished, tmp_path):
    import torch

    run = RunFolder(shutil.copytree(finished("char_lm").root, tmp_path / "char_lm"))
    # As while it trains: no model and no end, and a process that owns it.
    shutil.rmtree(run.model)
    lines = run.journal.read_text().splitlines(keepends=True)
    run.journal.write_text("".join(line for line in lines if '"RunFinished"' not in line))
    assert len(run.journal.read_text().splitlines()) < len(lines)
    sampling = Sampling(max_new_tokens=4, temperature=0.8, seed=1)
    before, process, texts = torch.get_rng_state(), ModelProcess(), []
    with RunLock(run.lock):
        try:
            writer = ChildWriter(process, run)
            assert writer.source == "step-30" and writer.continues
            for _ in range(2):
                pieces: list[str] = []
                assert writer.continue_text("The sheep", sampling, pieces.append) == 0
                texts.append("".join(pieces))
            assert texts[0] and texts[0] == texts[1], "the same seed writes the same text"
            with pytest.raises(RunError, match="has no base model"):
                ChildWriter(process, run, base=True)
        finally:
            process.cancel()
            process.close()
    assert torch.equal(before, torch.get_rng_state())
