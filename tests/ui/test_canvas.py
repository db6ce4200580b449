"""What the canvas sends: only the cells that changed, whatever signs and styles they hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from rich.cells import split_graphemes
from textual.app import App, ComposeResult
from textual.geometry import Region
from tui_trainer.ui.widgets.canvas import Canvas, changed_stretches

from tui_trainer.ui.spans import Line, fit, width_of
from tui_trainer.ui.theme import styles_for

SIZE = (40, 3)
SIGNS = ["a", " ", "\u6f22", "\u5b57", "e\u0301", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\u28ff", "\u2588", "\u2026"]
ROLES = ("text", "dim", "accent")


def plain(text: str) -> Line:
    return [(text, "text")]


@pytest.mark.parametrize(
    ("before", "now", "stretches"),
    [
        ("loss 2.71", "loss 2.71", []),
        ("loss 2.71", "loss 2.68", [(7, 2)]),
        ("a" * 20, "b" + "a" * 18 + "b", [(0, 1), (19, 1)]),
        ("a" * 20, "b" + "a" * 5 + "b" + "a" * 13, [(0, 7)]),
        ("a" * 20, "b" + "a" * 6 + "b" + "a" * 12, [(0, 1), (7, 1)]),
        ("short", "shorter", [(5, 2)]),
        ("shorter", "short", [(5, 2)]),
        ("", "", []),
        ("\u6f22 x", "\u5b57 x", [(0, 2)]),
        ("\u6f22x", "abx", [(0, 2)]),
        ("\u6f22 1", "\u6f22 2", [(3, 1)]),
        ("e x", "e\u0301 x", [(0, 1)]),
        ("e\u0301 1", "e\u0301 2", [(2, 1)]),
        ("\u2764\ufe0f 1", "\u2764\ufe0f 2", [(3, 1)]),
        ("\u2764 12345678", "\u2764\ufe0f12345678", [(0, 2)]),
    ],
)
def test_changed_cells_are_found_by_their_place_on_the_screen(before, now, stretches):
    assert changed_stretches(plain(before), plain(now)) == stretches


def test_a_change_of_the_role_alone_is_a_change_of_its_cells():
    before: Line = [("one ", "text"), ("\u6f22", "text"), (" three", "text")]
    now: Line = [("one ", "text"), ("\u6f22", "accent"), (" three", "text")]
    assert changed_stretches(before, now) == [(4, 2)]


def test_other_bounds_of_spans_are_no_change():
    assert changed_stretches([("one", "text"), ("two", "text")], [("onet", "text"), ("wo", "text")]) == []


def random_line(chance: random.Random) -> Line:
    line: Line = [
        ("".join(chance.choices(SIGNS, k=chance.randint(1, 6))), chance.choice(ROLES))
        for _ in range(chance.randint(1, 6))
    ]
    return fit(line, SIZE[0])


def painted(line: Line) -> list[tuple[str, str, bool]]:
    """What each cell shows: its sign, its role, and whether it is the second half."""
    cells = []
    for text, role in line:
        for start, end, width in split_graphemes(text)[0]:
            cells += [(text[start:end], role, part > 0) for part in range(width)]
    return cells


def test_a_terminal_that_gets_only_the_stretches_shows_the_new_line():
    chance = random.Random(7)
    sent = 0
    for _ in range(500):
        before, now = random_line(chance), random_line(chance)
        if chance.random() < 0.5:
            now = [*before[:-1], (before[-1][0], "accent")]
        assert width_of(before) == SIZE[0]
        screen, wanted = painted(before), painted(now)
        for x, length in changed_stretches(before, now):
            screen[x : x + length] = wanted[x : x + length]
            sent += length
        assert screen == wanted
    assert 500 < sent < 500 * SIZE[0], "something changed, and not everything was sent"


class RecordingCanvas(Canvas):
    """Remembers what it asked to be sent: regions, or None for all of it."""

    def __init__(self, styles) -> None:
        super().__init__(styles)
        self.sent: list[tuple[Region, ...] | None] = []

    def refresh(self, *regions: Region, **options):
        if hasattr(self, "sent"):
            self.sent.append(regions or None)
        return super().refresh(*regions, **options)


class OneCanvas(App[None]):
    """An application with nothing but a canvas."""

    def __init__(self, no_color: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.canvas = RecordingCanvas(styles_for("256", no_color=no_color))

    def compose(self) -> ComposeResult:
        yield self.canvas

    def shown(self) -> list[str]:
        """The lines as the compositor has them."""
        return [strip.text for strip in self.screen._compositor.render_strips()]


def with_canvas(work: Callable[[OneCanvas, object], Awaitable[None]], **options) -> None:
    async def carry_out() -> None:
        app = OneCanvas(**options)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            app.canvas.sent.clear()
            await work(app, pilot)

    asyncio.run(carry_out())


def picture(*texts: str, width: int = SIZE[0]) -> list[Line]:
    return [fit(plain(text), width) for text in texts]


def test_the_canvas_asks_for_the_changed_stretches_only():
    async def work(app, pilot):
        app.canvas.show(picture("step 1", "loss 2.71", "the same"))
        assert app.canvas.sent == [None], "the first picture is sent in full"
        app.canvas.sent.clear()
        app.canvas.show(picture("step 2", "loss 2.68", "the same"))
        assert app.canvas.sent == [(Region(5, 0, 1, 1), Region(7, 1, 2, 1))]
        await pilot.pause()
        assert [line.rstrip() for line in app.shown()] == ["step 2", "loss 2.68", "the same"]

    with_canvas(work)


def test_the_same_picture_sends_nothing():
    async def work(app, pilot):
        app.canvas.show(picture("one", "two", "three"))
        app.canvas.sent.clear()
        app.canvas.show(picture("one", "two", "three"))
        assert app.canvas.sent == []
        app.canvas.repaint()
        assert app.canvas.sent == [None], "unless somebody asks for it"

    with_canvas(work)


def test_a_picture_of_another_size_is_drawn_in_full():
    async def work(app, pilot):
        app.canvas.show(picture("one", "two", "three"))
        app.canvas.sent.clear()
        app.canvas.show(picture("one", "two"))
        assert app.canvas.sent == [None]
        await pilot.pause()
        assert [line.rstrip() for line in app.shown()] == ["one", "two", ""]

        await pilot.resize_terminal(20, 2)
        await pilot.pause()
        app.canvas.sent.clear()
        app.canvas.show(picture("one", "two", width=20))
        assert app.canvas.sent == [None], "as many lines as before, but narrower"
        await pilot.pause()
        assert app.shown() == ["one".ljust(20), "two".ljust(20)]

    with_canvas(work)


def test_a_line_of_the_wrong_length_is_cut_or_filled():
    async def work(app, pilot):
        app.canvas.show([plain("x" * 60), plain("short"), plain("\u6f22" * 30)])
        await pilot.pause()
        assert app.shown() == ["x" * 40, "short".ljust(40), "\u6f22" * 20]
        app.canvas.sent.clear()
        app.canvas.show([plain("x" * 60), plain("shoot"), plain("\u6f22" * 30)])
        assert app.canvas.sent == [(Region(3, 1, 1, 1),)], "and does not make the next picture a new one"

    with_canvas(work)


def test_without_colours_every_role_is_drawn_and_none_has_a_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    styles = styles_for("256", no_color=True)
    assert all(style.color is None and style.bgcolor is None for style in styles.values())

    async def work(app, pilot):
        for role in styles:
            app.canvas.show([fit([("one", role), (" two", "text")], SIZE[0])])
            await pilot.pause()
            assert app.shown()[0].rstrip() == "one two"
            for strip in app.screen._compositor.render_strips():
                for segment in strip:
                    assert segment.style is not None, "Textual's filters read it"
                    for colour in (segment.style.color, segment.style.bgcolor):
                        assert colour is None or colour.is_default, (role, segment)

    with_canvas(work, no_color=True)
    assert len(styles) > 10
