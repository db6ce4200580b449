"""The table of settings alone, with made-up rows: keys, mouse, and what is sent when the cursor moves."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App
from textual.events import MouseScrollDown, Paste
from textual.geometry import Region

from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of
from tui_trainer.ui.widgets.fields import LIMIT_CHARACTERS, LineField
from tui_trainer.ui.widgets.lists import Row, SettingsTable, row_line, shortened, value_cells

ROWS = [
    row
    for group in range(5)
    for row in [Row(name=f"Group {group}"), *(Row(key=f"{group}.{n}", name=f"name{n}", value="1") for n in range(8))]
]
KEYS = [row.key for row in ROWS if row.key]


class Alone(App):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.clicked, self.field = SettingsTable(12), [], LineField(classes="field")

    def compose(self):
        with self.table:
            yield self.field

    def on_settings_table_clicked(self, event: SettingsTable.Clicked) -> None:
        self.clicked.append((event.key, event.is_double))


def alone(look) -> None:
    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(80, 12)) as pilot:
            app.table.show(ROWS, KEYS[0])
            app.table._list.redraw()
            await pilot.pause()
            await look(app, app.table, pilot)

    asyncio.run(run())


def seen(app: App) -> list[str]:
    return [strip.text for strip in app.screen._compositor.render_strips()]


def test_moving_goes_from_setting_to_setting_and_keeps_the_heading_in_sight():
    async def look(app, table, pilot) -> None:
        visited = [table.key]
        for _ in range(len(KEYS) + 2):
            table.move(1)
            visited.append(table.key)
            await pilot.pause()
            assert any(line.startswith(UNICODE.pointer) for line in seen(app))
        assert visited[: len(KEYS)] == KEYS and visited[-1] == KEYS[-1]
        table.move_to_end(-1)
        await pilot.pause()
        assert table.key == KEYS[0] and "Group 0" in seen(app)[0]
        table.move_group(1)
        table.move_group(1)
        assert table.key == "2.0"
        table.move_group(-1)
        assert table.key == "1.0"

    alone(look)


def test_moving_the_cursor_sends_two_rows(monkeypatch):
    async def look(app, table, pilot) -> None:
        sent: list[Region] = []
        monkeypatch.setattr(table._list, "refresh", lambda *regions, **_: sent.extend(regions))
        table.move(1)
        assert {region.y for region in sent} == {1, 2}

    alone(look)


def test_the_cursor_stays_on_its_setting_or_goes_to_the_nearest_one_left():
    async def look(app, table, pilot) -> None:
        table.show(ROWS, "2.3")
        table.show([row for row in ROWS if row.key != "1.1"])
        assert table.key == "2.3"
        table.show(ROWS)
        table.show([row for row in ROWS if row.key != "2.3"])
        assert table.key == "2.4"
        table.show([], empty="nothing")
        table._list.redraw()
        table.move(1)
        await pilot.pause()
        assert "nothing" in seen(app)[0]
        for rows in (ROWS, [], ROWS):
            table.show(rows)
            table._list.redraw()
            await pilot.pause()
        assert table.key == "2.4" and any(line.startswith(UNICODE.pointer) for line in seen(app))

    alone(look)


def test_a_click_chooses_a_row_two_edit_it_and_the_wheel_scrolls():
    async def look(app, table, pilot) -> None:
        await pilot.click(table, offset=(10, 0))
        assert app.clicked == [] and table.key == KEYS[0], "a heading is no setting"
        await pilot.click(table, offset=(10, 3))
        await pilot.click(table, offset=(10, 5), times=2)
        assert app.clicked == [("0.2", False), ("0.4", False), ("0.4", True)] and table.key == "0.4"
        for _ in range(3):
            await pilot._post_mouse_events([MouseScrollDown], table)
        await pilot.pause()
        assert table._list.seen_places.start > 0 and table.key == "0.4"

    alone(look)


@pytest.mark.parametrize("key", ["0.0", "4.7"])
def test_a_field_lies_over_the_value_of_the_row_at_every_size(key):
    async def look(app, table, pilot) -> None:
        table.show(ROWS, key)
        app.field.put("abc")
        table.lay(app.field)
        app.field.focus()
        for width, height in ((80, 12), (120, 30), (80, 8)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert app.focused is app.field
            (line,) = [line for line in seen(app) if line.startswith(UNICODE.pointer)]
            assert line.split("[")[1].rstrip() == f"abc{' ' * (value_cells(width, 12) - 5)}]"
        table.lay(None)
        await pilot.pause()
        assert not any("abc" in line for line in seen(app))

    alone(look)


def test_a_paste_of_anything_stays_one_harmless_line_of_bounded_length():
    async def look(app, table, pilot) -> None:
        field = app.field
        table.lay(field)
        field.put("ab")
        field.cursor_position = 1
        field.focus()
        await pilot.pause()
        field.post_message(Paste("\r\n1\x1b[2J\t2\u202e\n3\n"))
        await pilot.pause()
        assert field.value.startswith("a1") and field.value.endswith("3b") and field.value.isprintable()
        field.post_message(Paste("y" * 10 * LIMIT_CHARACTERS))
        await pilot.pause()
        assert len(field.value) == LIMIT_CHARACTERS and field.value.endswith("yb")

    alone(look)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [80, 98, 200])
def test_a_row_is_as_wide_as_the_table_or_less_and_marked_where_the_cursor_is(width, glyphs):
    row = Row(key="k", name="name", value="v" * 90, preset="p" * 90, is_changed=True, has_problem=True, matched=(0, 2))
    for here in (False, True):
        line = row_line(row, width, 28, glyphs, here=here)
        assert width_of(line) <= width and (glyphs.pointer in text_of([line])) is here
        assert {role for _, role in line} == {"cursor"} if here else ("n", "accent") in line
        assert glyphs.bad in text_of([line])


def test_a_long_value_keeps_its_end():
    assert shortened("a/long/path.txt", 9, UNICODE) == "…path.txt"
    assert width_of([(shortened("\u6f22" * 500, 9, UNICODE), "text")]) <= 9
    assert value_cells(10, 28) > 0, "it ends in a table that is too narrow for its columns as well"


def test_a_field_goes_with_its_row_when_another_row_comes_above():
    async def look(app, table, pilot) -> None:
        table.show(ROWS, "0.4")
        app.field.put("abc")
        table.lay(app.field)
        await pilot.pause()
        table.show([*ROWS[:2], Row(key="new", name="new", value="2"), *ROWS[2:]])
        table._list.redraw()
        await pilot.pause()
        (line,) = [line for line in seen(app) if line.startswith(UNICODE.pointer)]
        assert "[abc" in line

    alone(look)
