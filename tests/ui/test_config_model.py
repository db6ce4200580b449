"""What the config screen knows without a screen: its rows, what is typed, and what is changed in the document."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.config.document import Document
from tui_trainer.config.groups import groups
from tui_trainer.config.load import Request, all_settings
from tui_trainer.config.profiles import find_profile
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.ui.screens.config_model import ConfigModel, Editor

RATE, HEADS, MICRO = (
    "training.learning_rate",
    "model.scratch.num_attention_heads",
    "training.per_device_train_batch_size",
)
SCHEDULE = "training.lr_scheduler_type"
SETTINGS = [setting for _, _, members in groups() for setting in members]
EVERYDAY = sum(not setting.advanced for setting in SETTINGS)


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


def keys(model: ConfigModel) -> list[str]:
    return [row.key for row in model.rows if row.key]


def typing(model: ConfigModel, key: str, text: str) -> Editor:
    editor = model.edit(key)
    editor.typed(text)
    return editor


def edited() -> ConfigModel:
    model = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-3\n")
    model.document.set(HEADS, 3)
    model.document.set("data.path", "/data/books.txt")
    model.document.set("training.warmup_steps", 20)
    return model


def test_the_filter_finds_letters_in_order_the_best_first():
    model = opened()
    assert RATE not in keys(model)[:1]
    for query, best in (
        ("lr", SCHEDULE),
        ("espa", "evaluation.early_stopping_patience"),
        ("beta2", "training.adam_beta2"),
    ):
        model.filter = query
        assert keys(model)[0] == best
    model.filter = "learn rat"
    assert keys(model) == [RATE] and model.rows[1].matched == (0, 1, 2, 3, 4, 8, 9, 10, 11)
    model.filter = ""
    assert len(keys(model)) == EVERYDAY


def test_what_differs_can_be_shown_alone_and_what_is_advanced_too():
    model = opened("profile = 'char-lm'\n[training]\nadam_beta1 = 0.8\n")
    assert "training.adam_beta1" in keys(model) and "training.adam_beta2" not in keys(model)
    model.show_advanced = True
    assert len(keys(model)) == len(SETTINGS) and model.count == f"{len(SETTINGS)} of {len(SETTINGS)}"
    model.only_changed = True
    assert keys(model) == ["training.adam_beta1"]
    model.reset("training.adam_beta1")
    assert model.rows == []
    assert model.document.undo() == "undid adam_beta1 0.8 -> 0.9" and keys(model) == ["training.adam_beta1"]


def test_a_row_says_what_is_changed_and_what_is_wrong():
    rows = {row.key: row for row in edited().rows}
    assert (rows[RATE].value, rows[RATE].preset, rows[RATE].is_changed) == ("1e-3", "3e-3", True)
    assert rows[HEADS].has_problem and not rows[RATE].has_problem
    assert rows["training.warmup_steps"].value == "20 steps" and rows["data.text_column"].is_placeholder


def test_rows_are_made_anew_only_when_something_changed():
    model = edited()
    rows = model.rows
    assert model.rows is rows
    model.document.set(RATE, 1e-4)
    assert model.rows is not rows


def test_typing_changes_nothing_before_it_is_accepted():
    model = opened()
    editor = typing(model, RATE, "3e-4")
    assert model.document.value(RATE) == 3e-3 and not model.document.is_unsaved
    assert model.take(editor) and model.document.value(RATE) == 3e-4


def test_what_is_wrong_is_said_while_it_is_typed_and_stays_in_the_editor():
    model = opened()
    editor = typing(model, RATE, "99")
    assert "99 is above 10, the largest allowed" in editor.error
    assert not model.take(editor) and "largest allowed" in editor.error
    assert model.document.value(RATE) == 3e-3
    editor.typed("9")
    assert not editor.error and model.take(editor)
    assert model.document.value(RATE) == 9.0
    editor.typed("au")
    assert not editor.error, "it can still become auto"


def test_an_editor_that_nobody_typed_into_writes_nothing():
    model = opened()
    switches = {key for key, setting in all_settings().items() if setting.expected == "true or false"}
    assert len(switches) >= 9
    for key in sorted(set(all_settings()) - switches - {"schema_version", "profile"}):
        assert model.take(model.edit(key)) and not model.document.is_unsaved, key


def test_choices_are_picked_from_a_list_by_steps_and_by_letters():
    model = opened()
    editor = model.edit(SCHEDULE)
    editor.choose(1)
    assert editor.text == "linear"
    editor.jump("p")
    editor.choose(1)
    assert model.take(editor) and model.document.value(SCHEDULE) == "inverse_sqrt"
    editor.jump("c")
    editor.jump("o")
    assert editor.text == "cosine"
    model.toggle(SCHEDULE)
    assert model.document.value(SCHEDULE) == "cosine"


def test_a_path_is_completed_as_far_as_it_is_clear(tmp_path):
    for name in ("corpus-a", "corpus-b"):
        (tmp_path / name).mkdir()
    model = opened()
    editor = typing(model, "data.path", "c")
    editor.complete()
    assert editor.text == "corpus-"
    editor.complete()
    assert editor.text == "corpus-a/"
    editor.choose(1)
    assert model.take(editor) and model.document.value("data.path") == "corpus-b/"
    editor = typing(model, "data.path", "sam")
    editor.complete()
    assert editor.text == "sample:python-reference"


def test_the_last_of_several_paths_is_completed(tmp_path):
    for name in ("corpus-a", "corpus-b"):
        (tmp_path / name).mkdir()
    model = opened()
    editor = typing(model, "data.path", "corpus-a/, co")
    editor.complete()
    assert editor.text == "corpus-a/, corpus-"
    editor.complete()
    editor.choose(1)
    assert model.take(editor) and model.document.value("data.path") == "corpus-a/, corpus-b/"


def test_keys_change_a_value_and_say_where_they_end():
    model = opened()
    model.bump(MICRO, 1)
    assert model.document.value(MICRO) == 32
    limit = "checkpoint.save_total_limit"
    model.bump(limit, -1)
    assert model.bump(limit, -1) == "save_total_limit goes no lower"
    assert model.bump("data.path", 1) == "Enter edits it" and model.toggle("data.path") == "Enter edits it"
    assert model.document.redo() == "" and model.document.undo() == "undid save_total_limit 2 -> 1"
    assert model.reset(limit) == "save_total_limit is as the presets say"
    assert model.reset_all() == "reset 1 setting; undo takes it back" and model.reset_all() == "nothing to reset"
    assert model.document.value(MICRO) == 16
    assert model.copied_text(limit) == "checkpoint.save_total_limit = 2"


def test_the_next_problem_is_found_wherever_it_hides():
    model = opened("[training]\nadam_beta1 = 2.0\nnonsense = 1\n", f"{HEADS}=0")
    model.only_changed, model.filter = True, "rate"
    assert keys(model) == []
    assert model.next_problem(HEADS) == ("training.adam_beta1", "")
    model.reveal("training.adam_beta1")
    assert "training.adam_beta1" in keys(model) and model.filter == ""
    key, elsewhere = model.next_problem("training.adam_beta1")
    assert key == HEADS and "training.nonsense" in elsewhere
    assert opened().next_problem(HEADS) == ("", "no problems")
    assert "not valid TOML" in opened("x = = 1\n", "task.type=char_lm").next_problem("")[1]


def test_a_switch_that_may_be_auto_is_picked_from_all_three():
    model = opened()
    editor = model.edit("data.packing")
    assert editor.options == ("auto", "false", "true") and editor.chosen == 0
    editor.choose(1)
    assert model.take(editor) and model.document.value("data.packing") is False
    editor = model.edit("data.packing")
    editor.choose(-1)
    assert model.take(editor) and model.document.value("data.packing") == "auto"


def test_reset_all_counts_what_it_resets():
    model = opened()
    model.document.set("hardware_profile", "none")
    assert model.reset_all() == "nothing to reset" and not model.document.undo().startswith("undid all")
