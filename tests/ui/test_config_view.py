"""The panes of the config screen as lines, and the screen itself: keys, mouse and fields in every state and size."""

from __future__ import annotations

import asyncio
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.events import Key

from tests.combinations import first_by_default
from tests.ui.pictures import screen_text
from tests.ui.test_config_model import HEADS, MICRO, RATE, SCHEDULE, opened
from tests.ui.test_snapshots import CPU, CannedBench
from tui_trainer.config.groups import groups
from tui_trainer.config.load import Request, all_settings
from tui_trainer.launching.drafts import Draft
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.planned import Planned
from tui_trainer.ui import app as app_module
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.screens import config_files
from tui_trainer.ui.screens.config_dialogs import RecipeChooser, preview_lines
from tui_trainer.ui.screens.config_model import Editor
from tui_trainer.ui.screens.config_view import ConfigPanes, PlanSummary, detail_lines, estimate_column, estimate_lines
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

SIZES = [(80, 24), (120, 35), (200, 50)]
# All but the version of the file.
SHOWN = len(all_settings()) - 1
HOSTILE = "\x1b]0;title\x07[bold]x\u202e"


def summary(memory_mib: float = 186.3, free_gib: float | None = 15.0) -> PlanSummary:
    def planned(value: float, exact: bool = False):
        return Planned(value=value, exact=exact, reason="made up")

    plan = SimpleNamespace(
        memory_bytes=planned(int(memory_mib * 2**20)), duration_seconds=planned(70.0), total_steps=planned(500, True),
        disk_bytes=planned(int(35.4 * 2**20)), memory_parts=(),
    )  # fmt: skip
    free = None if free_gib is None else int(free_gib * 2**30)
    return PlanSummary.of(plan, MemoryBudget(free_bytes=free, total_bytes=free, where="the GPU", share=1.0))


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


def with_page(look, *, glyphs=UNICODE, size=SIZES[0], assignments=(), text="") -> None:
    """Runs `look(page, pilot, press)` with the config screen open; `press("2 / a")` presses keys."""

    class Bench(CannedBench):
        def _open_document(self):
            raise AssertionError("nothing is read behind the screens")

    async def run() -> None:
        bench = Bench(lambda: Request(), CPU, glyphs)
        app = app_module.TrainerApp(bench, Keymap())
        async with app.run_test(size=size) as pilot:
            while bench.plan is None:
                await pilot.pause()
            await pilot.press("2")

            async def press(keys: str) -> str:
                await pilot.press(*keys.split())
                await pilot.pause()
                return screen_text(app)

            await look(app.page, pilot, press)
        assert not app.crash

    asyncio.run(run())


def notice(page) -> str:
    return page.bench.notice[0] if page.bench.notice else ""


def test_a_plan_is_one_line_and_estimates_are_marked():
    (line, _) = estimate_lines(summary(), None, False)
    assert text_of([line]) == "plan    memory ~186.3 MiB 1%     time ~1 min 10 s  disk ~35.4 MiB  steps 500"
    assert "%" not in text_of(estimate_lines(summary(free_gib=None), None, False))
    assert "presets ~120.3 MiB <1%" in text_of(estimate_column(summary(), summary(120.3), False))
    assert "none yet" in text_of(estimate_lines(None, None, False))


def test_more_memory_than_there_is_stands_out():
    (line, _) = estimate_lines(summary(9000, 7.3), None, False)
    assert ("bad" in [role for text, role in line if "120%" in text]) and "~8.8 GiB" in text_of([line])


@pytest.mark.parametrize("key", sorted(set(all_settings()) - {"schema_version"}))
def test_all_that_is_known_of_a_setting_finds_room(key):
    model, setting = opened(), all_settings()[key]
    for width, height in ((80, 6), (44, 12)):
        words = " ".join(text_of(detail_lines(model.document, setting, None, width, height, UNICODE)).split())
        assert setting.help in words and setting.expected in words
        assert setting.memory in words and setting.speed in words


def test_a_preview_shows_the_first_changes_and_counts_the_rest_at_every_size():
    chooser = RecipeChooser(opened("", "training.learning_rate=2e-3", "training.warmup_steps=7").document)
    swept = 0
    for place in range(len(chooser.recipes)):
        chooser.choose(place)
        count = len(chooser.preview.changes)
        for width, height, is_low in ((76, 15, True), (96, 22, False), (96, 37, False)):
            lines = text_of(preview_lines(chooser, width, height, UNICODE, is_low=is_low)).splitlines()
            assert len(lines) <= height
            assert "of yours that it does not change" in "".join(lines) or not chooser.preview.stays
            head = next(number for number, line in enumerate(lines) if " It changes " in line)
            rows = list(takewhile(lambda line: line.startswith("   "), lines[head + 2 :]))
            rest = [int(row.split()[2]) for row in rows if row.startswith(f"   {UNICODE.ellipsis} and ")]
            assert len(rows) - len(rest) + sum(rest) == count or not count
            assert len(rows) >= min(count, 8), (chooser.recipe.name, width)
            swept += 1
    assert swept == 3 * len(chooser.recipes) > 30


def test_the_panes_say_what_it_starts_from_and_what_would_be_saved():
    model = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-3\n")
    model.document.set(HEADS, 3)
    model.document.set("data.path", f"/data/{HOSTILE}/books.txt")
    bench = SimpleNamespace(glyphs=UNICODE, plan=None, preset_plan=None, is_planning=False)
    panes = ConfigPanes(bench, model)
    panes.key = RATE
    line = text_of(panes.summary(80, 1))
    assert line.startswith("recipe quickstart") and "my.toml (\u25cf 2 unsaved)" in line and "\u2717 1 problem" in line
    groups_text = text_of(panes.groups(25, 40))
    assert all(title in groups_text for _, title, _ in groups()) and f"{UNICODE.pointer} Training" in groups_text
    toml = panes.toml(60, 30)
    assert ("learning_rate = 1e-3", "text") in [span for line in toml for span in line] and "\x1b" not in text_of(toml)
    assert "more lines" in text_of(panes.toml(60, 5))
    assert text_of(panes.names(80, 1)).split()[-3:] == model.count.split()


@pytest.mark.e2e
@pytest.mark.parametrize("glyphs", first_by_default([ASCII, UNICODE]), ids=["ascii", "unicode"])
def test_every_state_fits_every_size_in_both_sets(glyphs):
    """Unsafe values, an editor, a wrong text, choices, a filter, nothing found, recipes."""

    async def look(page, pilot, press) -> None:
        page.model.document.set("data.path", f"/data/{HOSTILE}/books.txt")
        states = ("", "/ r a t e enter enter x", "escape", "escape", "/ s c h e d enter enter", "escape escape / q q q",
                  "escape p", "down", "escape c", "c x", "/ d a t a . p a t h enter enter", "escape")  # fmt: skip
        for state in states:
            await press(state)
            for size in SIZES:
                await pilot.resize_terminal(*size)
                await pilot.pause()
                strips = page.app.screen._compositor.render_strips()
                text = "\n".join(strip.text for strip in strips)
                assert len(strips) == size[1] and {strip.cell_length for strip in strips} == {size[0]}
                assert not glyphs.ascii or text.isascii(), state
                assert "\x1b" not in text and "\u202e" not in text, state

    with_page(look, glyphs=glyphs)


def test_nothing_moves_when_a_value_changes():
    """Between two states of one screen only the lines of the row, its details, and the top differ."""

    async def look(page, pilot, press) -> None:
        before = (await press("/ r a t e enter escape")).splitlines()
        after = (await press("right")).splitlines()
        differ = {number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other}
        row = next(number for number, line in enumerate(after) if " learning_rate " in line)
        assert row in differ and differ <= {0, 1, 23, row} | set(range(13, 19))

    with_page(look)


def test_the_filter_has_the_focus_while_it_is_typed_and_escape_takes_it_away():
    async def look(page, pilot, press) -> None:
        shown = await press("/ l e a r n")
        assert page.is_typing and "/ learn" in shown and f"1 of {SHOWN}" in shown and "Enter to the table" in shown
        assert page.key == RATE and not page.refusal(next(one for one in page.bench.app.keymap.actions
                                                        if one.id == "config.clear"))  # fmt: skip
        shown = await press("enter")
        assert not page.is_typing and "/ learn" in shown and "Enter edit" in shown
        shown = await press("escape")
        assert "/ learn" not in shown and page.key == RATE and " learning_rate " in shown
        await press("/ x escape")
        assert not page.is_typing and page.model.filter == ""

    with_page(look)


def test_keys_that_come_at_once_are_taken_in_their_order():
    async def look(page, pilot, press) -> None:
        for key in ("slash", "r", "a", "t", "e"):
            page.app.post_message(Key(key, "/" if key == "slash" else key))
        await pilot.pause()
        await pilot.pause()
        assert page.filter_field.value == "rate" and page.model.document.value(RATE) == 2e-3

    with_page(look)


def test_a_value_is_edited_in_its_row():
    async def look(page, pilot, press) -> None:
        shown = await press("/ l e a r n enter enter backspace")
        assert "[2e-" in shown and "\u2191\u2193 accept and move" in shown and page.model.document.value(RATE) == 2e-3
        await press("escape")
        assert not page.is_typing and page.editor is None and page.model.document.value(RATE) == 2e-3
        shown = await press("escape enter ctrl+u 9 9")
        assert "99 is above 10, the largest allowed" in shown
        shown = await press("enter")
        assert page.is_typing and "largest allowed" in shown
        shown = await press("backspace")
        assert "largest allowed" not in shown
        await press("down")
        assert page.model.document.value(RATE) == 9.0 and page.key == SCHEDULE and not page.is_typing
        assert "undid learning_rate 2e-3 -> 9" in (await press("u")) and page.model.document.value(RATE) == 2e-3

    with_page(look)


def test_choices_are_picked_from_the_list_below():
    async def look(page, pilot, press) -> None:
        shown = await press("/ s c h e d enter enter down")
        assert "[linear " in shown and "\u25b8 linear" in shown and "Enter take it" in shown
        await press("p right enter")
        assert page.model.document.value(SCHEDULE) == "inverse_sqrt"
        await press("space")
        assert page.model.document.value(SCHEDULE) == "cosine"

    with_page(look)


def test_tab_completes_a_path_and_shows_the_last_part_of_each(tmp_path, monkeypatch):
    for name in ("corpus-a", "corpus-b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)

    async def look(page, pilot, press) -> None:
        page._show_rows("data.path")
        shown = await press("enter ctrl+u c o tab")
        assert page.value_field.value == "corpus-" and "Tab complete" in shown
        shown = await press("tab")
        assert page.value_field.value == "corpus-a/" and "\u25b8 corpus-a/" in shown
        await press("down enter")
        assert page.model.document.value("data.path") == "corpus-b/"

    with_page(look)


def test_the_mouse_chooses_edits_and_ends_an_editor():
    async def look(page, pilot, press) -> None:
        await pilot.click(page, offset=(10, 5))
        assert page.key == "hardware_profile"
        await pilot.click(page, offset=(10, 7), times=2)
        await pilot.pause()
        assert page.key == "task.type" and page.editor is not None
        await pilot.click(page, offset=(10, 8))
        await pilot.pause()
        assert page.editor is None and page.key == "task.loss_on"

    with_page(look)


def test_keys_that_change_say_what_they_did():
    async def look(page, pilot, press) -> None:
        page._show_rows(MICRO)
        await press("right")
        assert page.model.document.value(MICRO) == 32
        await press("r")
        assert notice(page) == "per_device_train_batch_size is 16 again"
        await press("R")
        assert notice(page) == "reset 2 settings; undo takes it back"
        assert "nothing differs" in await press("c")
        for key in ("r", "space", "enter", "right", "down"):
            await press(key)
        await press("c x")
        assert notice(page) == "advanced settings too" and f"{SHOWN} of {SHOWN}" in screen_text(page.app)

    with_page(look)


def test_the_next_problem_is_shown_out_of_any_filter():
    async def look(page, pilot, press) -> None:
        page.model.document.set(HEADS, 3)
        shown = await press("/ q q q enter !")
        assert page.key == HEADS and "\u2717 num_attention_heads" in shown.replace("\u25b8\u2717 ", "\u2717 ")
        assert page.model.filter == "" == page.filter_field.value

    with_page(look)


def test_a_recipe_is_chosen_with_a_preview_of_what_changes():
    async def look(page, pilot, press) -> None:
        await press("enter")
        dialog = page.app.dialog
        names = [recipe.name for recipe in dialog._chooser.recipes]
        steps = names.index("char-lm") - dialog._chooser.chosen
        shown = await press(" ".join(["down" if steps > 0 else "up"] * abs(steps)))
        assert "char-lm" in shown and "It changes 12 settings" in shown and "max_chars" in shown
        assert "2 settings of yours" in shown
        shown = await press("space")
        assert "your own values go" in shown and "settings of yours" not in shown
        await press("space enter")
        assert notice(page) == "recipe char-lm" and page.app.dialog is None
        assert page.model.document.recipe_name == "char-lm" and page.model.document.value(RATE) == 2e-3
        await press("u p escape")
        assert page.model.document.recipe_name == "quickstart"

    with_page(look, size=SIZES[1])


@pytest.mark.parametrize("size", SIZES)
def test_wide_screens_add_groups_and_the_file(size):
    async def look(page, pilot, press) -> None:
        text = screen_text(page.app)
        assert ("Saved as" in text) is ("\u25b8 Start from" in text) is (size[0] == 200)
        assert ("learning_rate = 2e-3" in text) is (size[0] == 200)
        assert all(f" {title} " in text for _, title, _ in groups()) or size[0] < 200

    with_page(look, size=size)


def test_text_of_the_editor_is_saved_and_read_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def look(page, pilot, press) -> None:
        monkeypatch.setattr(config_files, "edit_text_in", lambda app, command, text: text + "[data]\nmax_chars = 77\n")
        await press("e")
        assert page.model.document.value("data.max_chars") == 77
        await press("s enter")
        assert "max_chars = 77" in Path("tui-trainer.toml").read_text() and not page.model.document.is_unsaved
        monkeypatch.setattr(config_files, "edit_text_in", lambda app, command, text: "nonsense = 1\n")
        await press("e")
        assert notice(page).startswith("not taken: ")
        before: list[str] = []
        monkeypatch.setattr(config_files, "edit_text_in", lambda app, command, text: before.append(text) or text)
        await press("e")
        assert before[0].startswith("# not taken: ") and before[0].endswith("nonsense = 1\n"), "it is not lost"

    with_page(look)


def test_a_home_that_nobody_has_is_told_and_ends_nothing():
    async def look(page, pilot, press) -> None:
        await press("S")
        pilot.app.dialog.field.put("~nobody-has-this/x.toml")
        assert "does not exist" in await press("enter")

    with_page(look)


def test_the_folder_in_which_it_was_started_may_be_deleted_meanwhile(tmp_path, monkeypatch):
    async def look(page, pilot, press) -> None:
        (folder := tmp_path / "gone").mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()
        page.model.document.set("training.seed", 5)
        page.model.document.set("output.runs_dir", "./runs")
        assert "cannot be written" in await press("S enter")

    with_page(look)


def test_one_restored_edit_is_one_and_the_key_that_takes_it_back_is_the_one_that_does():
    keymap = Keymap({"config.undo": ("z",)})

    async def look(page, pilot, press) -> None:
        draft = Draft(edits={"training.seed": 7}, at="2026-11-20T18:00:00Z", digest=None, subject="recipe quickstart")
        page.app.keymap = keymap
        config_files.offer_draft(page.bench, page.model.document, draft)
        await press("r")
        assert notice(page) == "1 edit restored; z takes it back"

    with_page(look)


def test_where_no_setting_is_shown_no_key_for_one_is_offered():
    async def look(page, pilot, press) -> None:
        assert "Enter edit" not in await press("/ q q q enter")
        await press("enter")
        assert notice(page) == "edit: nothing to do now"

    with_page(look)


def test_options_of_wide_signs_stand_in_columns_that_fit():
    document, setting = opened().document, all_settings()["data.path"]
    options = tuple(sign * 10 for sign in "\u6f22\u5b57\u6570\u636e\u8bad\u7ec3")
    editor = Editor(setting=setting, text="", original="", options=options)
    lines = detail_lines(document, setting, editor, 60, 12, UNICODE)
    assert all(option in text_of(lines) for option in options) and max(map(width_of, lines)) <= 60


@pytest.mark.parametrize("kind", ["recipes", "hardware"])
def test_a_broken_profile_of_the_users_own_ends_nothing(kind, tmp_path, monkeypatch):
    (folder := tmp_path / "tui-trainer" / "profiles" / kind).mkdir(parents=True)
    (folder / "bad.toml").write_text("[about")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    async def look(page, pilot, press) -> None:
        for key in ("profile", "hardware_profile"):
            page._show_rows(key)
            await press("enter")
            await press("escape")
        words = " ".join((await press("1")).split())
        assert "training" in words and ("is not valid TOML" in words) == (kind == "hardware")

    with_page(look)
