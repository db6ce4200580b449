"""The help of a screen, and the guides, a section at a time."""

from __future__ import annotations

import pytest
from textual.widgets import Markdown

from tests.ui.canned import CPU, open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.lines.guides import guides, sections
from tui_trainer.ui.help import page_section
from tui_trainer.ui.keymap import PLACES, TITLES
from tui_trainer.ui.spans import ASCII


def test_every_line_of_every_guide_is_in_one_of_its_sections_and_every_screen_has_one():
    for name in guides():
        title, text = "", ""
        for section in sections(name):
            title, text = section.title, text + section.text
            assert section.text and (title or section == sections(name)[0])
        assert len(text) > 300
    assert len(guides()) > 15
    assert [page_section(place).title for place in PLACES[1:]] == [TITLES[place] for place in PLACES[1:]]


@pytest.mark.full
@in_event_loop
async def test_help_has_the_keys_of_the_screen_then_its_page_and_leads_to_all_guides(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_canned(CPU, ASCII, size=(100, 40)) as screens:
        await screens.press("3", "?")
        await screens.shows("Keys", "Apply the fix that this check suggests to the config.", "Esc close")
        await screens.press("G")
        await screens.shows("about 60 checks of this machine and config")
        shown = screens.app.screen
        await screens.press("right")
        await screens.shows("the loss curve, the time of each part of a step", gone="Apply the fix")
        assert len(shown.query(Markdown)) == 1 and len(list(shown.walk_children())) < 40
        await screens.press("left")
        await screens.shows("Apply the fix that this check suggests to the config.")
        await screens.press("/", *"exit codes")
        await screens.shows("Guide: For scripts: Exit codes")
        await screens.press("enter")
        text = await screens.shows("For scripts: JSON output, exit codes, signals", "Exit codes")
        assert text.isascii() and "?" not in text
        await screens.press("escape")
        await screens.shows("Apply the fix that this check suggests to the config.")
        assert screens.app.screen is shown, "Escape goes back one step"
        await screens.press("?")
        await screens.shows("3 Checklist", gone="Esc close")
        await screens.press("2", "?")
        text = await screens.shows("Config: most used", "Config: more")
        assert text.index("Show the plan of the run") < text.index("Config: more") < text.index("Redo the change")
        await screens.press("down", "down", "j", "enter")
        await screens.shows("Choose a recipe", gone="most used")


@pytest.mark.full
@in_event_loop
async def test_a_link_of_a_guide_leads_to_its_section_and_one_elsewhere_does_nothing():
    async with open_canned(size=(100, 40)) as screens:
        await screens.press("1", "?")
        dialog = screens.app.screen
        for href, section in (
            ("running.md#when-the-connection-drops", "When the connection drops"),
            ("https://example.org/", "When the connection drops"),
            ("#the-run-folder", "The run folder"),
            ("memory.md", ""),
        ):
            dialog.on_markdown_link_clicked(Markdown.LinkClicked(dialog.query_one(Markdown), href))
            await screens.pilot.pause()
            assert dialog.section.title == section, href
        assert dialog.section.guide == "memory"
