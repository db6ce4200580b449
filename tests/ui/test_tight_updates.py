"""What reaches the terminal when a part of a line changed: that part. Fails when Textual's private names change."""

from __future__ import annotations

import asyncio

import pytest
from textual import _compositor
from textual.app import App, ComposeResult
from textual.screen import Screen

from tests.ui.pictures import picture
from tui_trainer.ui.driver import tighten
from tui_trainer.ui.widgets.pane import Pane

SIZE = (60, 4)


class OnePane(Screen[None]):
    """A pane with given lines, and perhaps another one beside it."""

    CSS = "OnePane { layout: horizontal; }"

    def __init__(self, *, tight: bool = True, panes: int = 1) -> None:
        super().__init__()
        if tight:
            tighten(self)
        self.lines = [""] * SIZE[1]
        self._panes = panes

    def compose(self) -> ComposeResult:
        for _ in range(self._panes):
            yield Pane(lambda *_: [[(line, "text")] for line in self.lines])

    def redraw(self) -> None:
        for pane in self.query(Pane):
            pane.redraw()


def sent(screen: OnePane, *pictures: list[str]) -> tuple[str, list[str]]:
    """What is written for the pictures after the first, and the lines of the screen at the end."""

    async def look(patch: pytest.MonkeyPatch):
        app: App[None] = App()
        written: list[str] = []
        async with app.run_test(size=SIZE) as pilot:
            await app.push_screen(screen)
            for number, lines in enumerate(pictures):
                if number == 1:
                    patch.setattr(type(app._driver), "is_headless", False)
                    patch.setattr(app._driver, "write", written.append)
                screen.lines = lines
                screen.redraw()
                await pilot.pause()
            return "".join(written), picture(app)

    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(look(patch))


def test_a_changed_stretch_is_cut_at_both_ends():
    text, shown = sent(OnePane(), ["beginning 1 end"], ["beginning 2 end"])
    assert "2" in text and "beginning" not in text and "end" not in text
    assert "\x1b[1;11H" in text, "and written where it stands"
    assert shown[0] == "beginning 2 end"


def test_textual_itself_would_send_what_stands_before_it():
    text, _ = sent(OnePane(tight=False), ["beginning 1 end"], ["beginning 2 end"])
    assert "beginning 2" in text, "the reason for all of this has gone"


def test_two_stretches_of_a_line_and_those_of_other_lines_are_each_written_alone():
    far = "x" * 20
    text, shown = sent(OnePane(), [f"1{far}1", "same", "2"], [f"3{far}3", "same", "4"])
    assert text.count("3") >= 2 and "4" in text and far not in text and "same" not in text
    assert shown[:3] == [f"3{far}3", "same", "4"]


def test_a_stretch_of_one_pane_sends_nothing_of_the_one_beside_it():
    text, shown = sent(OnePane(panes=2), ["one 1 end"], ["one 2 end"])
    assert "\x1b[1;5H" in text and "\x1b[1;35H" in text and "one" not in text and "end" not in text
    assert shown[0] == "one 2 end".ljust(30) + "one 2 end"


@pytest.mark.parametrize("name", ["ChopsUpdate", "Compositor"])
def test_a_textual_that_has_other_names_sends_its_own_updates(name, monkeypatch):
    screen = OnePane(tight=False)
    before = screen._compositor
    monkeypatch.delattr(_compositor, name)
    tighten(screen)
    assert screen._compositor is before


def test_a_screen_without_the_expected_compositor_still_draws(monkeypatch):
    screen = OnePane(tight=False)

    class Another(type(screen._compositor)):
        """Stands for one of another name."""

    monkeypatch.setattr(_compositor, "Compositor", type("Unrelated", (), {}))
    tighten(screen)
    text, shown = sent(screen, ["beginning 1 end"], ["beginning 2 end"])
    assert "2" in text and shown[0] == "beginning 2 end"
