"""What a pane sends: only the cells that changed, whatever signs and styles they hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from rich.cells import split_graphemes
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Offset, Region
from textual.selection import Selection

from tests.ui.pictures import picture
from tui_trainer.ui.spans import Line, fit, width_of
from tui_trainer.ui.theme import styles_for
from tui_trainer.ui.widgets.pane import Pane, changed_stretches

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


class RecordingPane(Pane):
    """Remembers what it asked to be sent: regions, or None for all of it; `show` gives it other lines."""

    def __init__(self) -> None:
        self.sent: list[tuple[Region, ...] | None] = []
        self.source: list[Line] = []
        super().__init__(lambda *_: self.source)

    def refresh(self, *regions: Region, **options):
        self.sent.append(regions or None)
        return super().refresh(*regions, **options)

    def show(self, *texts: str | Line) -> list[tuple[Region, ...] | None]:
        """Draw these lines; what was asked to be sent."""
        self.source = [plain(text) if isinstance(text, str) else text for text in texts]
        self.sent.clear()
        self.redraw()
        return list(self.sent)


class OnePane(App[None]):
    """An application with nothing but a pane."""

    CSS = "#long { height: auto; }"

    def __init__(self, *, scrolls: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.pane, self._scrolls = RecordingPane(), scrolls

    def compose(self) -> ComposeResult:
        if self._scrolls:
            self.pane.id = "long"
            with VerticalScroll():
                yield self.pane
        else:
            yield self.pane


def with_pane(work: Callable[[OnePane, Pane, object], Awaitable[None]], **options) -> None:
    async def carry_out() -> None:
        app = OnePane(**options)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            await work(app, app.pane, pilot)

    asyncio.run(carry_out())


def test_a_pane_asks_for_the_changed_stretches_only():
    async def work(app, pane, pilot):
        pane.show("step 1", "loss 2.71", "the same")
        assert pane.show("step 2", "loss 2.68", "the same") == [(Region(5, 0, 1, 1), Region(7, 1, 2, 1))]
        await pilot.pause()
        assert picture(app) == ["step 2", "loss 2.68", "the same"]

    with_pane(work)


def test_the_same_picture_sends_nothing():
    async def work(app, pane, pilot):
        pane.show("one", "two", "three")
        assert pane.show("one", "two", "three") == []
        assert pane.show("one", "two", "three") == []

    with_pane(work)


def test_lines_that_are_missing_are_blank_and_those_below_its_end_are_not_drawn():
    async def work(app, pane, pilot):
        pane.show("one", "two", "three", "four")
        assert pane.show("one", "two") == [(Region(0, 2, 5, 1),)]
        await pilot.pause()
        assert picture(app) == ["one", "two", ""]

    with_pane(work)


def test_a_pane_of_another_size_is_drawn_in_full():
    async def work(app, pane, pilot):
        pane.show("one", "two", "three")
        pane.sent.clear()
        await pilot.resize_terminal(20, 2)
        await pilot.pause()
        assert None in pane.sent, "narrower, without being asked"
        assert picture(app) == ["one", "two"]
        assert {strip.cell_length for strip in app.screen._compositor.render_strips()} == {20}
        assert pane.show("one", "twos") == [(Region(3, 1, 1, 1),)]

    with_pane(work)


def test_a_line_of_the_wrong_length_is_cut_or_filled():
    async def work(app, pane, pilot):
        pane.show("x" * 60, "short", "\u6f22" * 30)
        await pilot.pause()
        assert picture(app) == ["x" * 39 + "\u2026", "short", "\u6f22" * 19 + " \u2026"]
        sent = pane.show("x" * 60, "shoot", "\u6f22" * 30)
        assert sent == [(Region(3, 1, 1, 1),)], "and does not make the next picture a new one"

    with_pane(work)


def test_what_acts_on_a_terminal_is_shown_as_signs():
    async def work(app, pane, pilot):
        pane.show("a\x1b[2Jb\n", "\u202ec")
        await pilot.pause()
        assert picture(app)[0].startswith("a\u241b[2Jb") and "\u202e" not in picture(app)[1]
        assert {strip.cell_length for strip in app.screen._compositor.render_strips()} == {SIZE[0]}

    with_pane(work)


def test_a_pane_as_high_as_its_lines_scrolls_and_grows_with_them():
    async def work(app, pane, pilot):
        pane.show(*(f"line {n}" for n in range(9)))
        await pilot.pause()
        pane.parent.scroll_end(animate=False)
        await pilot.pause()
        assert [line.split("  ")[0] for line in picture(app)] == ["line 6", "line 7", "line 8"]
        pane.show("only this")
        await pilot.pause()
        assert picture(app) == ["only this", "", ""]

    with_pane(work, scrolls=True)


def test_selected_text_is_marked_and_can_be_taken():
    async def work(app, pane, pilot):
        pane.show("first line", "\u6f22\u5b57 line", "third")
        app.screen.selections = {pane: Selection(Offset(6, 0), Offset(2, 1))}
        await pilot.pause()
        assert app.screen.get_selected_text() == "line\n\u6f22\u5b57"
        marked = [segment.text for segment in pane.render_line(0) if segment.style.bgcolor or segment.style.reverse]
        assert "".join(marked).rstrip() == "line"
        assert not [one for one in pane.render_line(2) if one.style.bgcolor or one.style.reverse]

    with_pane(work)


def test_without_colours_every_role_is_drawn_and_none_has_a_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    styles = styles_for("256", no_color=True)
    assert all(style.color is None and style.bgcolor is None for style in styles.values())

    async def work(app, pane, pilot):
        for role in styles:
            pane.show([("one", role), (" two", "text")])
            await pilot.pause()
            assert picture(app)[0] == "one two"
            for strip in [pane.render_line(0), *app.screen._compositor.render_strips()]:
                for segment in strip:
                    assert segment.style is not None, "Textual's filters read it"
                    for colour in (segment.style.color, segment.style.bgcolor):
                        assert colour is None or colour.is_default, (role, segment)

    with_pane(work)
    assert len(styles) > 10
