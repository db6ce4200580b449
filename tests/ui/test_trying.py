"""Trying a model from the screens: one that continues texts goes on with the prompt, another answers below it."""

from types import SimpleNamespace

import pytest

from tui_trainer.exporting import generate
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import UNICODE
from tui_trainer.ui.spans import text_of
from tui_trainer.ui.trying import TryDialog


class FakeWriter:
    """Stands for the weights."""

    continues = True
    source = SimpleNamespace(name="model")

    def __init__(self, folder):
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
    monkeypatch.setattr(generate, "Writer", FakeWriter)
    bench = SimpleNamespace(
        run=SimpleNamespace(state=RunState(task=task)),
        background=SimpleNamespace(do=lambda name, work, done: done(work())),
        app=SimpleNamespace(draw=lambda: None),
    )
    dialog = TryDialog(bench, folder=None, prompt="a text")
    dialog.press("enter", None)
    text = text_of(dialog.draw(80, 24, UNICODE))
    assert shown in text and key in text
    assert "weights of model" in text
