"""Jump mode: a letter over everything that can be pressed, and it presses it."""

from __future__ import annotations

import pytest

from tests.ui.canned import open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.ui.jump import JumpDialog

pytestmark = pytest.mark.full


async def jump_to(screens, text: str) -> None:
    """Press `f`, and the letter over the beginning of a text of the screen."""
    await screens.shows(text)
    lines = screens.lines
    y = next(y for y, line in enumerate(lines) if text in line)
    x = lines[y].index(text)
    await screens.press("f")
    dialog = screens.app.screen
    assert isinstance(dialog, JumpDialog)
    _, sign = max((spot.x, sign) for sign, spot in dialog.spots.items() if spot.y == y and spot.x <= x)
    spot = dialog.spots[sign]
    await screens.until(lambda: screens.lines[y][spot.x :].startswith(sign))
    await screens.press(*sign)
    await screens.until(lambda: screens.app.screen is not dialog)


@in_event_loop
async def test_screens_rows_and_keys_are_pressed_by_a_letter():
    async with open_canned() as screens:
        await jump_to(screens, "3 Checklist")
        await screens.until(lambda: screens.app.page.place == "checklist")
        await screens.settled()
        await jump_to(screens, "2 Config")
        await screens.until(lambda: screens.app.page.place == "config")
        await screens.shows("Enter edit")
        before = screens.app.page.key
        rows = [line.split()[0] for line in screens.lines[5:12] if "  " in line.strip() and line.startswith("   ")]
        await jump_to(screens, f"{rows[-1]} ")
        await screens.until(lambda: screens.app.page.key != before)
        headings = {y for y, line in enumerate(screens.lines) if line.startswith("\u2500\u2500 ")}
        await screens.press("f")
        await screens.until(lambda: isinstance(screens.app.screen, JumpDialog))
        assert headings and not headings & {spot.y for spot in screens.app.screen.spots.values()}, "nothing to press"
        await screens.press("escape")
        await jump_to(screens, "? help")
        await screens.shows("Keys", "Esc close")


@in_event_loop
async def test_what_a_dialog_offers_is_pressed_too_and_what_is_typed_stays_text():
    async with open_canned() as screens:
        await screens.press("2", "?")
        await screens.shows("Esc close")
        await jump_to(screens, "Esc close")
        await screens.shows("Enter edit", gone="Esc close")
        await screens.press("/", "f")
        await screens.until(lambda: screens.app.page.filter_field.value == "f")
