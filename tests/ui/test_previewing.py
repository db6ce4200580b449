"""The preview on the Config screen: made in the background, told how far it is, given up when it is closed."""

from __future__ import annotations

import json
import threading

import pytest

from tests.previews import PREVIEW
from tests.ui.canned import CPU, open_canned
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import DataError
from tui_trainer.launching import preview as launching
from tui_trainer.ui.spans import ASCII, text_of


@in_event_loop
async def test_samples_are_gone_through_with_trained_tokens_marked_and_numbers_one_key_away(monkeypatch):
    monkeypatch.setattr(launching, "make_preview", lambda *_, **__: PREVIEW)
    async with open_canned() as screens:
        await screens.press("2", "v")
        text = await screens.shows("sample 1 of 2", "37 padding")
        assert "\u27e6 An animal.\u27e8<eos>\u27e9\u27e7" in text
        for key, words in (("n", "sample 2 of 2"), ("n", "sample 1 of 2"), ("p", "sample 2 of 2"),
                           ("a", "900 to train, 90 held out, 20 skipped")):  # fmt: skip
            await screens.press(key)
            await screens.shows(words)
        assert "sample 2" not in screens.text
        await screens.press("end")
        await screens.shows("note: the conversations")
        await screens.press("a")
        await screens.shows("sample 2 of 2")
    async with open_canned(CPU, ASCII) as screens:
        await screens.press("2", "v")
        await screens.shows("[[ An animal.{<eos>}]]")


@in_event_loop
async def test_keys_work_while_a_preview_is_made_closing_gives_it_up_and_a_refusal_is_shown(
    monkeypatch,
):
    began, go_on, given_up = threading.Event(), threading.Event(), threading.Event()

    def slow(loaded, count, progress, *, gpu):
        progress("tokenising", 1.0, 4.0, "characters")
        began.set()
        assert go_on.wait(1500)
        try:
            progress("tokenising", 2.0, 4.0, "characters")
        except Exception:
            given_up.set()
            raise
        return PREVIEW

    def refuse(loaded, count, progress, *, gpu):
        raise DataError("the text is empty", where="rows.jsonl, line 9")

    async with open_canned() as screens:
        monkeypatch.setattr(launching, "make_preview", slow)
        await screens.press("2", "v")
        await screens.until(began.is_set)
        screens.app.draw()
        await screens.shows("tokenising, 1 of 4 characters", "cancel")
        await screens.press("escape")
        assert not given_up.is_set(), "the key did not wait for the work"
        await screens.press("down")
        go_on.set()
        await screens.until(given_up.is_set)
        assert "sample 1" not in await screens.settled()

        monkeypatch.setattr(launching, "make_preview", refuse)
        await screens.press("v")
        await screens.shows("line 9: the text is empty")


@pytest.mark.full
@in_event_loop
async def test_the_preview_of_the_quickstart_makes_the_plan_exact():
    async with open_screens() as screens:
        assert not screens.bench.plan.train_rows.exact
        await screens.press("2", "v")
        await screens.shows("sample 1 of 16", "129 tokens, 128 trained (99%), +0 padding")
        await screens.press("n")
        await screens.shows("sample 2 of 16")
        await screens.until(lambda: screens.bench.plan is not None and screens.bench.plan.train_rows.exact)
        await screens.press("q")
        await screens.shows("Enter edit", gone="sample 2 of")


@pytest.mark.full
@in_event_loop
async def test_bad_rows_are_reported_in_the_same_words_by_plan_start_preview_and_lines(tmp_path, capsys):
    turns = [{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}]
    bad = [turns[0], {"role": "critic", "content": "\x1b[31mBad."}]
    rows = [{"id": n, "messages": bad if n in (3, 20, 29) else turns} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"task.type": "chat", "model.init": "scratch", "tuning.method": "full", "data.path": "rows.jsonl"}
    request = Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))
    words = (
        "rows.jsonl, line 4 (also 21, 30): the role 'critic' of message 2 is unknown; "
        "known roles: system, user, assistant, tool; set data.on_bad_rows=skip to skip unusable rows; "
        'the row: {"id": 3, "messages": ["\u2026", {"role": "critic", "content": "\u241b[31mBad."}]}'
    )
    for command in ("plan", "preview", "train"):
        more = ["--no-ui"] if command == "train" else []
        assert main([command, *more, *(part for one in request.assignments for part in ("--set", one))]) == 2
        assert words in capsys.readouterr().err

    async with open_screens(request) as screens:
        await screens.press("2", "!")
        assert words in " ".join((await screens.shows("rows.jsonl, line 4", "Bad.")).split())
        for key, last in (("t", "open settings"), ("v", "close")):
            await screens.press(key)
            await screens.shows("rows.jsonl, line 4", "Bad.", last)
            assert words in " ".join(text_of(screens.app.screen.lines(70)).split())
            await screens.press("escape")
            await screens.shows("help", gone=last)
