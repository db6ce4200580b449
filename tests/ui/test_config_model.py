"""What the keys of the config screen mean, seen in the document and in what is drawn."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.config.document import Document
from tui_trainer.config.groups import groups
from tui_trainer.config.load import Request, all_settings
from tui_trainer.config.profiles import find_profile
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.ui.glyphs import UNICODE, Glyphs
from tui_trainer.ui.screens.config_estimate import Figure, PlanSummary
from tui_trainer.ui.screens.config_model import ConfigModel
from tui_trainer.ui.screens.config_view import draw_config, page_rows
from tui_trainer.ui.spans import text_of, width_of

RATE, HEADS, MICRO = (
    "training.learning_rate",
    "model.scratch.num_attention_heads",
    "training.per_device_train_batch_size",
)
SCHEDULE = "training.lr_scheduler_type"
SETTINGS = [setting for _, _, members in groups() for setting in members]
EVERYDAY = sum(not setting.advanced for setting in SETTINGS)


def summary(memory_mib: float = 186.3, share: float | None = 0.012) -> PlanSummary:
    return PlanSummary(
        memory_bytes=Figure(value=memory_mib * 2**20),
        memory_share=share,
        duration_seconds=Figure(value=70.0),
        disk_bytes=Figure(value=35.4 * 2**20),
        total_steps=Figure(value=500, exact=True),
    )


def opened(text: str = "", *assignments: str) -> ConfigModel:
    path = Path("my.toml") if text else None
    if path:
        path.write_text(text)
    request = Request(config_file=path, assignments=assignments)
    hardware = find_profile("cpu", "hardware")
    document = Document(
        request, lambda requested: (hardware, "") if requested == "auto" else (None, ""), setting_problems
    )
    return ConfigModel(document, {"data.path": ["sample:python-reference"]})


def drawn(model: ConfigModel, width: int = 80, height: int = 22, glyphs: Glyphs = UNICODE, **more) -> str:
    lines = draw_config(model, width=width, height=height, glyphs=glyphs, **{"plan": summary(), **more})
    assert len(lines) == height and {width_of(line) for line in lines} == {width}
    return text_of(lines)


def keys(model: ConfigModel) -> list[str]:
    return [row.setting.key for row in model.rows if row.setting]


def edited() -> ConfigModel:
    model = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-3\n")
    model.document.set(HEADS, 3)
    model.document.set("data.path", "/data/books.txt")
    model.document.set("training.warmup_steps", 20)
    return model


def test_moving_goes_from_setting_to_setting_and_keeps_the_heading_in_sight():
    model = opened()
    model.resize(page_rows(80, 22))
    every = keys(model)
    seen = [model.key]
    for _ in range(len(every) + 2):
        model.move(1)
        seen.append(model.key)
        assert model.scroll <= model.cursor < model.scroll + model.page_rows
    assert seen[: len(every)] == every and seen[-1] == every[-1]
    model.go_to_end(-1)
    assert (model.key, model.scroll) == (every[0], 0)
    model.next_group(1)
    model.next_group(1)
    assert model.key == "data.path"
    model.next_group(-1)
    assert model.key == "task.type"
    model.page(1)
    assert keys(model).index(model.key) == keys(model).index("task.type") + page_rows(80, 22) - 1


def test_the_filter_finds_letters_in_order_and_escape_clears_it():
    model = opened()
    assert RATE not in keys(model)[:1]
    model.start_filter()
    for query, best in (
        ("lr", SCHEDULE),
        ("espa", "evaluation.early_stopping_patience"),
        ("beta2", "training.adam_beta2"),
    ):
        model.filter.put("")
        model.type_text(query)
        assert model.key == best
    model.filter.put("")
    model.type_text("learn rat")
    assert keys(model) == [RATE] and model.rows[1].matched == (0, 1, 2, 3, 4, 8, 9, 10, 11)
    model.accept()
    assert not model.is_typing and keys(model) == [RATE]
    assert model.cancel() and len(keys(model)) == EVERYDAY and model.key == RATE
    assert not model.cancel()


def test_what_differs_can_be_shown_alone_and_what_is_advanced_too():
    model = opened("profile = 'char-lm'\n[training]\nadam_beta1 = 0.8\n")
    assert "training.adam_beta1" in keys(model) and "training.adam_beta2" not in keys(model)
    model.toggle_advanced()
    assert len(keys(model)) == model.setting_count == len(SETTINGS)
    model.toggle_changed_only()
    assert keys(model) == ["training.adam_beta1"] == [model.key]
    model.reset()
    assert keys(model) == [] and model.setting is None and "nothing differs" in drawn(model)
    for act in (model.reset, model.toggle, model.edit, lambda: model.bump(1), lambda: model.move(1)):
        assert act() is None
    assert model.undo() == "undid adam_beta1 0.8 -> 0.9" and keys(model) == ["training.adam_beta1"]


def test_typing_changes_nothing_before_it_is_accepted():
    model = opened()
    model.show(RATE)
    model.edit()
    assert model.is_typing and model.editor.line.text == "3e-3"
    model.erase()
    model.type_text("4")
    assert "[3e-4 " in drawn(model) and model.document.value(RATE) == 3e-3
    assert model.cancel() and not model.is_typing and not model.document.is_unsaved
    model.edit("5")
    model.type_text("e-4")
    assert model.accept(then_move=1) is None
    assert model.document.value(RATE) == 5e-4 and model.key == SCHEDULE


def test_a_wrong_text_stays_in_the_editor_with_the_reason():
    model = opened()
    model.show(RATE)
    model.edit("9")
    model.type_text("9")
    assert model.accept() is None
    assert model.is_typing and "99 is above 10, the largest allowed" in drawn(model)
    assert model.document.value(RATE) == 3e-3
    model.erase()
    assert "largest allowed" not in drawn(model)
    model.accept()
    assert model.document.value(RATE) == 9.0


def test_an_editor_that_nobody_typed_into_writes_nothing():
    model = opened()
    switches = {key for key, setting in all_settings().items() if setting.expected == "true or false"}
    assert len(switches) >= 9
    for key in sorted(set(all_settings()) - switches - {"schema_version", "profile"}):
        model.show(key)
        model.edit()
        model.accept()
        assert not model.document.is_unsaved and model.editor is None, key


def test_choices_are_picked_from_a_list():
    model = opened()
    model.show(SCHEDULE)
    model.edit()
    model.move(1)
    assert "\u25b8 linear" in drawn(model)
    model.type_text("p")
    model.move_in_text(1)
    model.accept()
    assert model.document.value(SCHEDULE) == "inverse_sqrt"
    model.toggle()
    assert model.document.value(SCHEDULE) == "cosine"


def test_a_path_is_completed_as_far_as_it_is_clear(tmp_path):
    for name in ("corpus-a", "corpus-b"):
        (tmp_path / name).mkdir()
    model = opened()
    model.show("data.path")
    model.edit("c")
    model.complete()
    assert model.editor.line.text == "corpus-"
    model.complete()
    assert model.editor.line.text == "corpus-a/" and "\u25b8 corpus-a/" in drawn(model)
    model.move(1)
    model.accept()
    assert model.document.value("data.path") == "corpus-b/"
    model.edit("sam")
    model.complete()
    assert model.editor.line.text == "sample:python-reference"


def test_the_last_of_several_paths_is_completed_and_shown_alone(tmp_path):
    for name in ("corpus-a", "corpus-b"):
        (tmp_path / name).mkdir()
    model = opened()
    model.show("data.path")
    model.edit("corpus-a/, co")
    model.complete()
    assert model.editor.line.text == "corpus-a/, corpus-"
    model.complete()
    assert "\u25b8 corpus-a/" in drawn(model) and "\u25b8 corpus-a/, " not in drawn(model)
    model.move(1)
    model.accept()
    assert model.document.value("data.path") == "corpus-a/, corpus-b/"


def test_keys_change_a_value_and_say_where_they_end():
    model = opened()
    model.show(MICRO)
    model.bump(1)
    assert model.document.value(MICRO) == 32
    model.show("checkpoint.save_total_limit")
    model.bump(-1)
    assert model.bump(-1) == "save_total_limit goes no lower"
    assert model.redo() == "nothing to redo" and model.undo() == "undid save_total_limit 2 -> 1"
    assert model.reset() == "save_total_limit is as the presets say"
    assert model.reset_all() == "reset 1 setting; undo takes it back" and model.reset_all() == "nothing to reset"
    assert model.document.value(MICRO) == 16
    assert model.copied_text() == "checkpoint.save_total_limit = 2"


def test_the_next_problem_is_found_wherever_it_hides():
    model = opened("[training]\nadam_beta1 = 2.0\nnonsense = 1\n", f"{HEADS}=0")
    model.toggle_changed_only()
    model.filter.put("rate")
    assert model.key == HEADS and keys(model) == []
    assert model.next_problem() is None and model.key == "training.adam_beta1" and model.key in keys(model)
    assert "training.nonsense" in model.next_problem() and model.key == HEADS
    assert opened().next_problem() == "no problems"
    assert "not valid TOML" in opened("x = = 1\n", "task.type=char_lm").next_problem()


def test_a_recipe_is_chosen_with_a_preview_of_what_changes():
    model = edited()
    model.show("profile")
    model.edit()
    model.move([recipe.name for recipe in model.chooser.recipes].index("char-lm") - model.chooser.chosen)
    text = drawn(model, 120, 33)
    assert "char-lm" in text and "It changes 11 settings" in text and "max_chars" in text
    assert "3 settings of yours" in text and "20" in text
    assert model.toggle() == "your own values go" and "settings of yours" not in drawn(model, 120, 33)
    assert model.accept() == "recipe char-lm"
    assert model.chooser is None and model.document.recipe_name == "char-lm" and model.document.value(RATE) == 1e-3
    assert model.undo() == "undid recipe quickstart -> char-lm"
    model.open_recipes()
    assert model.cancel() and model.document.recipe_name == "quickstart"


def test_a_switch_that_may_be_auto_is_picked_from_all_three():
    model = opened()
    model.show("data.packing")
    model.edit()
    assert model.editor.options == ("auto", "false", "true") and model.editor.chosen == 0
    model.move(1)
    model.accept()
    assert model.document.value("data.packing") is False
    model.edit()
    model.move(-1)
    model.accept()
    assert model.document.value("data.packing") == "auto"
