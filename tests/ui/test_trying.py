"""Trying a model from the screens: one that continues texts goes on with the prompt, another answers below it."""

from types import SimpleNamespace

import pytest

from tests.ui.bare_app import seen
from tui_trainer.errors import DataError
from tui_trainer.exporting import generate
from tui_trainer.runs.state import RunState
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
    )
    before, text = seen(TryDialog(bench, folder=None, prompt="a text"), "enter")
    assert "a text" in before and "weights" not in before
    assert shown in text and key in text
    assert "weights of model" in text


def bench_of(writer: type[FakeWriter], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Work is done at once."""
    monkeypatch.setattr(generate, "Writer", writer)
    return SimpleNamespace(
        run=SimpleNamespace(state=RunState(task="char_lm")),
        background=SimpleNamespace(do=lambda name, work, done: done(work())),
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

        def __init__(self, folder):
            raise DataError("the weights are torn")

    _, text = seen(TryDialog(bench_of(Broken, monkeypatch), None, ""), "enter")
    assert "the weights are torn" in text
