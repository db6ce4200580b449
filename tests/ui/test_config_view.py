"""The Config screen beyond its story: every way to find and change a setting, what is refused, and what is kept."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from textual.events import Key, Paste

from tests.ui.canned import open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.config.explain import groups
from tui_trainer.config.load import all_settings
from tui_trainer.config.save import document_text
from tui_trainer.config.sections import Config
from tui_trainer.data.sources.hub import cached_data_sets
from tui_trainer.launching.drafts import Draft
from tui_trainer.planning.unread_settings import unread_settings
from tui_trainer.tasks import find_task, task_names
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.screens import config_files
from tui_trainer.ui.spans import ASCII, UNICODE

RATE, HEADS = "training.learning_rate", "model.scratch.num_attention_heads"
MICRO, SCHEDULE = "training.per_device_train_batch_size", "training.lr_scheduler_type"
SETTINGS = [setting for _, _, members in groups() for setting in members]


@asynccontextmanager
async def opened(size=(80, 24)):
    """The screen, `value(key)` of a setting, and `press("/ =rate enter")`, which waits for the picture."""
    async with open_canned(size=size) as screens:
        await screens.press("2")
        await screens.shows("Enter edit")

        async def press(keys: str) -> str:
            for key in keys.split():
                if key.startswith("="):
                    screens.app.post_message(Paste(key[1:]))
                    await screens.pilot.pause()
                else:
                    await screens.press(key)
            return await screens.settled()

        yield screens, screens.bench.document.value, press


def first_row(text: str) -> str:
    """The name of the setting under the pointer."""
    (line,) = [line for line in text.splitlines() if line.startswith(UNICODE.pointer)]
    return line.strip("\u25b8\u2717\u25cf ").split()[0]


@pytest.mark.full
@in_event_loop
async def test_a_setting_is_found_by_letters_and_what_is_rarely_changed_or_differs_can_be_shown():
    every = len(SETTINGS)
    async with opened() as (screens, _, press):
        loaded = screens.bench.document.loaded
        unread = unread_settings(loaded.config, has_gpu=False)
        read = {one.key for one in SETTINGS if not one.advanced} - set(unread)
        everyday = len(read | {change.key for change in screens.bench.document.changes()})
        assert f"{everyday} of {every}" in screens.text
        rare = sum(one.advanced and one.key not in unread for one in SETTINGS)
        shown = await press("G")
        assert (
            f"{every - everyday} more settings: {rare} rarely changed, {len(unread)} not used by this run; + shows"
            in shown
        )
        await press("g")
        for letters, best in (("=lr", "learning_rate"), ("=rank", "r"), ("=context", "max_length"),
                              ("=bf16", "mixed_precision"), ("=batch_size", "effective_batch_size"),
                              ("=beta2", "adam_beta2"), ("=freeze", "trainable_layers"), ("=slowed", "beta_slow"),
                              ("=learn", "learning_rate")):  # fmt: skip
            shown = await press(f"/ ctrl+u {letters} enter")
            assert first_row(shown) == best
        assert f"1 of {every}" in shown and "/ learn" in shown
        shown = await press("escape")
        assert "/ learn" not in shown and first_row(shown) == "learning_rate", "it stays where it was found"
        shown = await press("/ =mouse enter")
        assert "Enter edit" not in shown and "no setting matches; : outside this field also finds actions" in shown
        await press("enter")
        await screens.shows("edit: nothing to do now")
        await press("escape o / =max_steps enter")
        await screens.shows("no changed setting matches; o outside this field shows all")
        await press("escape o +")
        await screens.shows("all settings, also settings", f"{every} of {every}", gone="more:")
        shown = await press("+ o")
        assert "learning_rate" in shown and "max_length" not in shown


@in_event_loop
async def test_a_value_is_edited_in_its_row_refused_taken_back_and_nothing_else_moves():
    async with opened() as (screens, value, press):
        before = (await press("/ =learn enter escape")).splitlines()
        after = (await press("right")).splitlines()
        differ = {number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other}
        row = next(number for number, line in enumerate(after) if " learning_rate " in line)
        assert row in differ and differ <= {0, 1, 23, row} | set(range(13, 19)), "nothing moves"
        await press("u")

        shown = await press("enter backspace")
        assert "[2e-" in shown and "\u2191\u2193 accept and move" in shown and value(RATE) == 2e-3
        await press("escape enter enter")
        assert value(RATE) == 2e-3, "who types nothing changes nothing"
        shown = await press("enter ctrl+u 9 9")
        assert "99 is above the maximum of 10" in shown
        await press("enter")
        await screens.shows("the maximum of", "accept and move")
        assert "the maximum of" not in await press("backspace")
        await press("down")
        assert value(RATE) == 9.0 and first_row(screens.text) == "lr_scheduler_type"
        await press("u")
        await screens.shows("learning_rate is 2e-3 again (was 9)")

        await press("/ =data.path enter enter")
        screens.app.post_message(Paste("\r\n1\x1b[2J\t2\u202e\n3\n" + "y" * 99))
        text = await screens.settled()
        assert "yyy" in text and not set(text) & set("\x1b\u202e\t"), "a paste is one harmless line"
        await press("escape escape")

        for key in ("slash", "r", "a", "t", "e"):
            screens.app.post_message(Key(key, "/" if key == "slash" else key))
        await screens.shows("/ rate")
        assert value(RATE) == 2e-3, "keys that come at once are taken in their order"


@in_event_loop
async def test_choices_are_picked_from_a_list_by_steps_letters_and_one_key():
    async with opened() as (_, value, press):
        shown = await press("/ =sched enter enter down")
        assert "[linear " in shown and "\u25b8 linear" in shown and "Enter select" in shown
        await press("p right enter")
        assert value(SCHEDULE) == "inverse_sqrt"
        await press("space")
        assert value(SCHEDULE) == "warmup_stable_decay"
        await press("space")
        assert value(SCHEDULE) == "cosine"
        for keys, expected in (("down enter", False), ("up enter", "auto")):
            await press("escape / =data.packing enter enter")
            await press(keys)
            assert value("data.packing") == expected, "a switch that may be auto has three choices"


@in_event_loop
async def test_an_automatic_value_shows_what_the_plan_makes_of_it_and_why():
    async with opened() as (screens, value, press):
        await press("/ =mixed enter")
        await screens.shows(
            "auto \u2192 fp32", "value    auto \u2192 fp32 (default)", "reason   at hidden size 128, casts"
        )
        shown = await press("right")
        assert "\u2192" not in shown and "reason " not in shown, "a value of one's own is what it says"
        await press("escape / =warmup_steps enter")
        await screens.shows("0.05 \u2192 25 steps", "value    0.05 \u2192 25 steps", "reason   ")
        assert value("training.cpu_threads") == "auto"
        planned_threads = screens.bench.plan.threads.value
        for key, change in (("right", 1), ("left", -1)):
            await press(f"escape / =cpu_threads enter {key}")
            assert value("training.cpu_threads") == planned_threads + change, "auto is changed from its planned value"
            await press("u")
        await press("escape / =cpu_threads enter enter 1 enter")
        assert value("training.cpu_threads") == 1, "typing replaces the word"
    async with open_canned(glyphs=ASCII) as screens:
        await screens.press("2")
        await screens.shows("auto -> ")


@pytest.mark.full
@in_event_loop
async def test_keys_change_a_value_reset_it_and_say_where_they_end():
    async with opened() as (screens, value, press):
        await press("/ =per_device_tr enter right")
        assert value(MICRO) == 32
        await press("r")
        await screens.shows("per_device_train_batch_size reset to 16")
        await press("escape / =total_lim enter left left")
        await screens.shows("save_total_limit cannot be lower")
        await press("y")
        await screens.until(lambda: screens.app.clipboard == "checkpoint.save_total_limit = 1")
        await press("R")
        await screens.shows("reset 3 settings; undo restores")
        await press("u")
        assert value("checkpoint.save_total_limit") == 1
        await press("R R")
        await screens.shows("nothing to reset")
        await press("escape / =data.path enter space")
        await screens.shows("press Enter to edit this setting")

        screens.bench.document.set(HEADS, 3)
        shown = await press("/ =qqq enter !")
        assert first_row(shown) == "num_attention_heads" and "/ qqq" not in shown


@pytest.mark.full
@in_event_loop
async def test_tab_completes_paths_and_data_sets_of_the_cache(tmp_path, monkeypatch):
    for name in ("corpus-a", "corpus-b", "hf/hub/datasets--org--conversations", "hf/hub/models--org--x"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert cached_data_sets() == ["org/conversations"]
    async with opened() as (screens, value, press):
        await press("/ =data.path enter enter ctrl+u c o tab")
        await screens.shows("[corpus-", "Tab complete")
        await press("tab")
        await screens.shows("[corpus-a/", "\u25b8 corpus-a/")
        await press("down enter")
        assert value("data.path") == "corpus-b/"
        await press("enter , space c o tab")
        await screens.shows("corpus-b/, corpus-")
        await press("tab")
        await screens.shows("corpus-b/, corpus-a/")
        await press("enter")
        assert value("data.path") == "corpus-b/, corpus-a/"
        await press("enter ctrl+u s a m tab enter")
        assert str(value("data.path")).startswith("sample:")


@pytest.mark.full
@in_event_loop
async def test_the_mouse_chooses_edits_and_ends_an_editor():
    async with opened() as (screens, _, _):
        await screens.click(" hardware_profile ")
        await screens.until(lambda: first_row(screens.text) == "hardware_profile")
        await screens.click(" type  ", times=2)
        await screens.shows("Enter accept", "[char_lm")
        await screens.click(" name  ")
        await screens.shows("Enter edit", gone="[char_lm")
        assert first_row(screens.text) == "name"


@pytest.mark.full
@in_event_loop
async def test_all_that_is_known_of_a_setting_is_shown_and_wide_screens_add_groups():
    async with opened((200, 50)) as (screens, _, press):
        text = await screens.shows("\u25b8 Start from", "differs from recipe", "a step takes")
        assert all(f" {title} " in text for _, title, _ in groups())
        for letters, key in (("=max_length", "data.max_length"), ("=learn", RATE)):
            await press(f"/ ctrl+u {letters} enter")
            words = " ".join((await screens.settled()).replace("\u2502", " ").split())
            setting = all_settings()[key]
            assert setting.help.split()[0] in words and key in words
        await screens.resize(80, 24)
        await screens.shows("learning_rate", gone="differs from recipe")


@pytest.mark.full
@in_event_loop
async def test_a_text_of_the_editor_that_is_wrong_shows_each_line_and_is_kept_with_marks(monkeypatch):
    opened_with: list[str] = []

    def typed(change) -> None:
        def edit_text_in(app, command, text: str) -> str:
            opened_with.append(text)
            return change(text)

        monkeypatch.setattr(config_files, "edit_text_in", edit_text_in)

    async with opened() as (screens, value, press):
        document = screens.bench.document
        wrong = '[data\nmax_chars = 77\n\n[evaluation]\neval_steps = "often"\n'
        typed(lambda text: text.replace("learning_rate = 2e-3", "learning_rat = 2e-3") + wrong)
        before = document_text(document).split("\n")
        rate, broken = before.index("learning_rate = 2e-3") + 1, len(before)
        await press("e")
        told = f"line {broken}: is not valid TOML", "[data", "edit again", "discard"
        await screens.shows("The edited text has errors", *told)
        typed(lambda text: text.replace("[data\n", "[data]\n"))
        await press("e")
        await screens.shows(f"line {rate}: training.learning_rat: unknown", f"line {broken + 4}: evaluation.eval_steps")
        assert opened_with[-1].split("\n")[broken - 1].startswith("# tui-trainer: is not valid TOML"), "above its line"
        typed(lambda text: text)
        await press("e")
        await screens.shows(f"line {rate}: training.learning_rat: unknown", "edit again")
        marked = opened_with[-1].split("\n")
        assert (
            marked[rate - 1].startswith("# tui-trainer: training.learning_rat")
            and marked[rate] == "learning_rat = 2e-3"
        )
        assert sum(line.startswith("# tui-trainer:") for line in marked) == 2, "marks of before are gone"
        await press("escape")
        assert value(RATE) == 2e-3 and not screens.bench.document.can_undo, "nothing was taken"
        typed(lambda text: text.replace("rat = 2e-3", "rate = 0.5").replace('"often"', "0.25"))
        await press("e")
        await screens.shows("applied the edited settings; u to undo")
        assert (value(RATE), value("evaluation.eval_steps"), value("data.max_chars")) == (0.5, 0.25, 77)
        await press("u")
        await screens.shows("undid the text from the editor")
        typed(lambda text: "nonsense = 1\n")
        await press("e")
        await press("d")
        await screens.shows("discarded the edited text; the settings are unchanged")
        typed(lambda text: text)
        await press("e")
        await screens.shows("nothing changed in the editor")
        assert opened_with[-1] == document_text(document)


@in_event_loop
async def test_undo_and_redo_name_what_they_did():
    async with opened((120, 35)) as (screens, value, press):
        document = screens.bench.document
        await press("/ =per_device_tr enter right")
        assert document.choose_recipe("char-lm") is None
        assert not document.patch({RATE: 0.5, "training.seed": 3}, "what tune found")
        document.reset(RATE)
        steps = (
            ("learning_rate is 0.5 again (was 1e-3)", "learning_rate is 1e-3 again (was 0.5)"),
            ("undid what tune found", "redid what tune found"),
            ("undid the change to recipe char-lm", "redid the change to recipe char-lm"),
            ("per_device_train_batch_size is 16 again (was 32)", "per_device_train_batch_size is 32 again (was 16)"),
        )
        for words, _ in steps:
            await press("u")
            await screens.shows(words)
        assert value(MICRO) == 16 and document.recipe_name == "quickstart"
        for _, words in reversed(steps):
            await press("U")
            await screens.shows(words)


@pytest.mark.full
@in_event_loop
async def test_where_it_cannot_be_saved_that_is_said_and_a_restored_edit_names_the_key_that_takes_it_back(
    tmp_path, monkeypatch
):
    async with opened() as (screens, _, press):
        await press("S ctrl+u ~")
        await screens.press(*"nobody-has-this/x.toml", "enter")
        await screens.shows("create the folder first")
        await press("escape")
        (folder := tmp_path / "gone").mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()
        screens.bench.document.set("output.runs_dir", "./runs")
        await press("S enter")
        await screens.shows("cannot be written")
        await press("escape")
        monkeypatch.chdir(tmp_path)
        draft = Draft(edits={"training.seed": 7}, at="2026-11-20T18:00:00Z", digest=None, subject="recipe quickstart")
        screens.app.keymap = Keymap({"config.undo": ("z",)})
        config_files.offer_draft(screens.bench, screens.bench.document, draft)
        await press("r")
        await screens.shows("1 edit restored; z to undo")


@pytest.mark.full
@in_event_loop
async def test_a_broken_profile_of_the_users_own_ends_nothing(tmp_path, monkeypatch):
    for kind in ("recipes", "hardware"):
        (folder := tmp_path / "tui-trainer" / "profiles" / kind).mkdir(parents=True)
        (folder / "bad.toml").write_text("[about")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with opened() as (screens, _, press):
        await press("enter")
        await screens.settled()
        await press("escape down enter")
        await screens.settled()
        await press("escape 1")
        await screens.until(lambda: "is not valid TOML" in " ".join(screens.text.split()))


@pytest.mark.full
@in_event_loop
async def test_what_the_run_does_not_read_is_folded_says_why_and_is_found_and_a_change_brings_it_back():
    async with opened() as (screens, _, press):
        shown = await press("/ =source_prefix enter")
        assert "source_prefix" in shown and "Not used: the task char_lm does not use it." in shown
        shown = await press("escape G")
        assert "source_prefix" not in shown
        await press("/ =source_prefix enter enter x enter escape")
        await screens.shows("source_prefix")
        await press("u")


def test_every_task_folds_what_is_not_its_own_and_nothing_that_is():
    ends = {key.partition(".")[2] for key in all_settings() if key.startswith("task.")} - {"type"}
    for name in task_names():
        task = find_task(name)
        config = Config.model_validate({"task": {"type": name}, "data": {"path": "data.txt"}})
        folded = unread_settings(config, has_gpu=True)
        assert {key.partition(".")[2] for key in folded if key.startswith("task.")} == ends - set(task.used_settings)
        assert ("data.packing" in folded) != task.can_pack
        assert set(folded) <= set(all_settings())
        assert "tuning.r" in folded and "training.tf32" not in folded
        own = {"tuning": {"method": "qlora"}, "model": {"model_name_or_path": "m"}}
        qlora = Config.model_validate({**config.model_dump(include={"task", "data"}), **own})
        assert not {"tuning.r", "quantization.bnb_4bit_quant_type"} & set(unread_settings(qlora, has_gpu=True))
