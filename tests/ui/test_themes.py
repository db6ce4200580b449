"""Every theme of Textual on every screen: no cell without a background of the theme, no foreign colour."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import product

import pytest
from textual.app import App
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES

from tests.ui.canned import CPU, CannedRun, open_canned, stand_still, trained
from tests.ui.pictures import in_event_loop
from tui_trainer.ui.app import TERMINAL_THEME
from tui_trainer.ui.spans import ASCII, UNICODE
from tui_trainer.ui.theme import with_readable_text

pytestmark = pytest.mark.full

SCENES = ("1", "2", "3", "4", "5", "2 /", "2 ?", "2 ? G", "2 ? right right", "2 p", "t", "5 ctrl+p")
INKS = ("foreground", "foreground-muted", "primary", "warning", "text-success", "text-warning", "text-error",
        "foreground-disabled")  # fmt: skip
# A form with fields, lists, a table and a bar of keys.
RICHEST_SCENE = "2"
# Ratios of luminances (WCAG 2), of words and of lines.
LEAST_CONTRAST, LEAST_OF_LINES = 4.5, 1.2
Rgb = tuple[int, int, int]


@pytest.fixture(autouse=True)
def still(monkeypatch):
    stand_still(monkeypatch)


def known_colours(app: App) -> set[Rgb]:
    """The theme's colours, its translucent ones laid on each of the others, and all below a dialog's shade.

    What is mixed may be off by one, as it is rounded at each layer.
    """
    colours = set()
    for value in app.theme_variables.values():
        try:
            colours.add(Color.parse(value))
        except ColorParseError:  # a style, a number
            continue
    plain = {colour for colour in colours if colour.a == 1 and colour.ansi is None}
    plain |= {below + colour for below in plain for colour in colours if colour.a < 1 and colour.auto is False}
    shade = app.screen.styles.background
    return {colour.rgb for colour in plain | {below + shade for below in plain if shade.a < 1}}


def cells(app: App) -> Iterator[tuple[int, int, str, Rgb | None, Rgb | None]]:
    """Column, row, text, colour and background of all that is shown; None for the terminal's own."""
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        x = 0
        for segment in strip:
            ink, ground = (
                tuple(colour.triplet) if colour is not None and colour.triplet is not None else None
                for colour in ((segment.style.color, segment.style.bgcolor) if segment.style else (None, None))
            )
            yield x, y, segment.text, ink, ground
            x += segment.cell_length
        assert x == app.size.width


def contrast(ink: Rgb, ground: Rgb) -> float:
    lights = sorted(map(_luminance, (ink, ground)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: Rgb) -> float:
    red, green, blue = (part / 3294.6 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def least_at(app: App, x: int, y: int, text: str) -> float:
    """Return the contrast that the text needs; what is shaded by a dialog is not to be read."""
    is_shaded = app.screen.get_widget_at(x, y)[0] is app.screen and len(app.screen_stack) > 1
    return LEAST_CONTRAST if any(map(str.isalnum, text)) and not is_shaded else LEAST_OF_LINES


def foreign_cells(app: App) -> list[str]:
    """What stands on a colour that the theme does not have, or can hardly be read."""
    known, wrong = known_colours(app), []
    for x, y, text, ink, ground in cells(app):
        if ground is None or not known & set(product(*((n - 1, n, n + 1) for n in ground))):
            wrong.append(f"{text.strip()[:20]!r} at {x}, {y} is on {ground}")
        elif text.strip() and (ink is None or contrast(ink, ground) < least_at(app, x, y, text)):
            wrong.append(f"{text.strip()[:20]!r} at {x}, {y} is {ink} on {ground}")
    return wrong


async def expect_own_colours(screens, scene: str) -> None:
    """Wait until the whole picture has the colours of the theme: Textual repaints it piece by piece."""
    with contextlib.suppress(AssertionError):
        await screens.until(lambda: not foreign_cells(screens.app))
    assert foreign_cells(screens.app) == [], (screens.app.theme, scene)


@in_event_loop
async def test_no_cell_of_any_theme_on_any_screen_has_a_colour_from_elsewhere():
    """Each theme on a screen with every kind of widget, and each screen in two themes and both kinds of glyphs."""
    for glyphs in (UNICODE, ASCII):
        async with open_canned(CPU, glyphs) as screens:
            screens.bench.run = CannedRun(trained(60), True)
            app = screens.app
            themes = [name for name, theme in app.available_themes.items() if not theme.ansi]
            assert len(themes) > 15
            for number, scene in enumerate(SCENES):
                await screens.press(*scene.split())
                await screens.settled()
                one_theme = [themes[(2 * number + (glyphs is ASCII)) % len(themes)]]
                for app.theme in themes if glyphs is UNICODE and scene == RICHEST_SCENE else one_theme:
                    await screens.pilot.pause()
                    await expect_own_colours(screens, scene)
                await close_all(screens)


@in_event_loop
async def test_a_theme_colours_what_lies_below_a_shade():
    async with open_canned() as screens:
        screens.bench.run, app = CannedRun(trained(60), True), screens.app
        await screens.press("4", "S")
        await screens.shows("Save and stop?")
        for app.theme in ("nord", "solarized-light", "gruvbox"):
            await screens.pilot.pause()
            await expect_own_colours(screens, "4 S")


@in_event_loop
async def test_in_the_terminals_own_colours_no_cell_has_a_background_but_the_chosen_ones():
    async with open_canned() as screens:
        screens.bench.run = CannedRun(trained(60), True)
        assert screens.app.theme == TERMINAL_THEME
        for scene in SCENES:
            await screens.press(*scene.split())
            await screens.settled()
            strips = screens.app.screen._compositor.render_strips()
            on_a_colour = [
                segment.text
                for strip in strips
                for segment in strip
                if segment.style and segment.style.bgcolor is not None and not segment.style.bgcolor.is_default
            ]
            assert sum(map(len, on_a_colour)) < 3 * screens.app.size.width, (scene, on_a_colour)
            await close_all(screens)


def contrasts(colours: dict[str, str]) -> dict[str, float]:
    """Return the least contrast of each ink on the grounds of a theme; translucent inks are laid on its background."""
    grounds = [Color.parse(colours[name]) for name in ("background", "surface", "panel")]
    inks = {name: grounds[0] + Color.parse(colours[name]) for name in INKS}
    return {name: min(contrast(ink.rgb, ground.rgb) for ground in grounds) for name, ink in inks.items()}


def contrast_table() -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Yield each theme with the contrasts of its inks as Textual has them, and as they are drawn here."""
    for name, theme in BUILTIN_THEMES.items():
        if not theme.ansi:
            colours = theme.to_color_system().generate() | theme.variables
            yield name, contrasts(colours), contrasts(with_readable_text(dict(colours)))


def test_words_of_each_theme_have_the_least_contrast_and_lines_that_of_lines(subtests):
    for name, _, drawn in contrast_table():
        with subtests.test(name):
            assert not {ink: ratio for ink, ratio in drawn.items() if ratio < (3 if "disabled" in ink else 4.5)}


async def close_all(screens) -> None:
    while len(screens.app.screen_stack) > 1 or screens.app.page.is_typing:
        await screens.press("escape")
        await screens.pilot.pause()


if __name__ == "__main__":
    print(f"{'least contrast, Textual -> here':<32}" + "".join(f"{ink:>20}" for ink in INKS))
    for theme_name, before, drawn in contrast_table():
        print(f"{theme_name:<32}" + "".join(f"{f'{before[ink]:.2f} -> {drawn[ink]:.2f}':>20}" for ink in INKS))
