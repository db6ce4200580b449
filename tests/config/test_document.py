"""A config document: presets below, the user's values above, and every change can be undone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tui_trainer.config.changes import PRESET, Change
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.load import Origin, Request, all_settings, load
from tui_trainer.config.paths import with_absolute_paths
from tui_trainer.config.toml_files import find_profile
from tui_trainer.errors import ConfigError
from tui_trainer.planning.conflicts import setting_problems

RATE, SEED, HEADS = "training.learning_rate", "training.seed", "model.scratch.num_attention_heads"
MICRO = "training.per_device_train_batch_size"


def choose_hardware(requested: str):
    if requested in ("auto", "cpu"):
        return find_profile("cpu", "hardware"), "a CPU"
    if requested == "none":
        return None, ""
    return find_profile(requested, "hardware"), ""


def opened(text: str = "", *assignments: str, profile: str = "") -> ConfigDocument:
    path = Path("my.toml") if text else None
    if path:
        path.write_text(text)
    request = Request(config_file=path, assignments=assignments, profile=profile)
    return ConfigDocument(request, choose_hardware)


def state(document: ConfigDocument):
    return {key: (document.value(key), document.where(key)) for key in all_settings()}


def test_an_unedited_document_equals_the_loaded_config():
    for document in (opened(), opened('profile = "char-lm"\n[data]\nmax_length = 64\n', f"{SEED}=7")):
        plain = load(document.request, choose_hardware)
        assert document.loaded is not None and document.problems == ()
        config = with_absolute_paths(document.loaded.config)
        assert config.model_copy(update={"profile": ""}) == plain.config.model_copy(update={"profile": ""})
        assert all(document.loaded.origin(key) is plain.origin(key) for key in all_settings() if key != "profile")
        assert not document.is_unsaved and not document.can_undo


def test_an_edited_value_wins_and_is_reported_as_edited():
    document = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-3\n", f"{SEED}=7")
    assert document.where(RATE) == "my.toml" and document.where(SEED) == "--set"
    assert document.set(RATE, 5) is None
    assert document.loaded.config.training.learning_rate == 5.0 and document.value(RATE) == 5.0
    assert document.loaded.origin(RATE) is Origin.EDITED and Origin.EDITED.by_user
    assert document.where(RATE) == "edited here"
    assert document.is_edited(RATE) and not document.is_edited(SEED)
    assert document.preset_value(RATE) == 3e-3 and document.is_changed(RATE)
    assert document.changes() == (Change(key=RATE, old=3e-3, new=5.0), Change(key=SEED, old=42, new=7))


REFUSED = [
    (RATE, "fast", "must be a number"),
    (RATE, -1.0, "must be a number, above 0"),
    ("training.learning_rat", 1, "unknown setting"),
    ("profile", "quikstart", "no recipe is named"),
    ("hardware_profile", "gpu9", "no hardware profile is named"),
    (SEED, True, "whole number"),
]


def test_a_value_that_does_not_fit_changes_nothing(subtests):
    for key, value, words in REFUSED:
        with subtests.test(key=key, value=value):
            document = opened()
            before, revision = state(document), document.revision
            problem = document.set(key, value)
            assert problem is not None and problem.key == key and words in problem.message
            assert state(document) == before and document.revision == revision and not document.can_undo


def test_values_that_conflict_are_kept_and_reported():
    document = opened()
    assert document.set(HEADS, 3) is None
    for _ in range(2):
        document.set_fitted(document.unfitted, setting_problems(document.unfitted))
        (problem,) = document.problems_of(HEADS)
    assert "does not divide hidden_size 128" in problem.message
    assert document.loaded is not None and document.value(HEADS) == 3
    document.set(HEADS, 8)
    assert document.problems == ()


def test_a_file_with_mistakes_opens_and_can_be_corrected():
    document = opened("[task]\ntype = 'char_lm'\n[training]\nlearning_rate = 'fast'\nseed = 3\n[trainig]\nx = 1\n")
    assert document.loaded is None and document.value(RATE) == "fast"
    assert [problem.key for problem in document.problems] == ["trainig", RATE]
    assert document.set(RATE, 1e-3) is None
    assert document.loaded is not None and [problem.key for problem in document.problems] == ["trainig"]
    document.undo()
    assert document.loaded is None and document.value(RATE) == "fast"
    # A file that is not TOML opens with its problem.
    document = opened("learning_rate = = 3\n")
    assert "not valid TOML" in document.problems[0].message


def test_every_kind_of_change_is_undone_and_redone():
    document = opened("profile = 'quickstart'\n[training]\nseed = 3\n")
    steps = [
        lambda: document.set(RATE, 2e-4),
        lambda: document.reset(SEED),
        lambda: document.patch({HEADS: 8, "data.max_length": 64}, "fix of heads"),
        lambda: document.choose_recipe("char-lm"),
        lambda: document.set("hardware_profile", "none"),
        lambda: document.reset_all(),
        lambda: document.replace_values("profile = 'quickstart'\n[data]\nmax_length = 32\n"),
    ]
    states = [state(document)]
    for step in steps:
        assert not step()
        states.append(state(document))
    assert all(one != other for one, other in pairwise(states))
    labels = []
    for expected in reversed(states[:-1]):
        labels.append(document.undo())
        assert state(document) == expected
    assert document.undo() == "" and not document.can_undo and not document.is_unsaved
    assert labels[-1] == "learning_rate is 3e-3 again (was 2e-4)" and labels[-3] == "undid fix of heads"
    assert labels[-2] == "seed is 3 again (was 42)" and labels[-4] == "undid the change to recipe char-lm"
    for expected in states[1:]:
        assert "redid " in (message := document.redo()) or " again (was " in message
        assert state(document) == expected
    assert document.redo() == ""
    # A change after an undo ends what could be redone.
    document = opened()
    document.set(RATE, 1e-4)
    document.undo()
    document.set(SEED, 1)
    assert not document.can_redo and document.redo() == ""


def test_a_patch_is_applied_as_a_whole_or_not_at_all():
    document = opened()
    problems = document.patch({SEED: 1, RATE: -1.0, "nothing": 2}, "fix")
    assert [problem.key for problem in problems] == [RATE, "nothing"]
    assert not document.is_unsaved and not document.can_undo


def test_setting_the_preset_value_again_leaves_no_edit():
    document = opened()
    document.set(RATE, 1e-4)
    document.set(RATE, 3e-3)
    assert not document.is_unsaved and document.where(RATE) == "recipe quickstart"
    document = opened("profile = 'quickstart'\n[training]\nlearning_rate = 3e-3\n")
    document.set(RATE, 1e-4)
    document.set(RATE, 3e-3)
    assert document.where(RATE) == "my.toml" and not document.is_unsaved


def test_reset_returns_to_the_preset():
    document = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-4\n")
    document.reset(RATE)
    assert document.value(RATE) == 3e-3 and document.unsaved_values() == {RATE: PRESET}
    assert document.loaded.origin(RATE) is Origin.RECIPE
    # A reset of everything keeps the recipe.
    document = opened("profile = 'char-lm'\nhardware_profile = 'none'\n[training]\nlearning_rate = 1e-4\n")
    document.set(SEED, 1)
    document.reset_all()
    assert document.recipe_name == "char-lm" and document.value("hardware_profile") == "none"
    assert document.changes() == (Change(key="hardware_profile", old="auto", new="none"),)


def test_the_hardware_profile_gives_values_and_can_be_switched_off():
    document = opened()
    assert document.value(MICRO) == 16 and document.where(MICRO) == "hardware profile cpu"
    assert document.set("hardware_profile", "none") is None
    assert document.value(MICRO) == "auto"


def test_choosing_a_recipe_does_what_its_preview_shows(subtests):
    for keep_own in [True, False]:
        with subtests.test(keep_own=keep_own):
            document = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-4\nseed = 7\n")
            before = {key: document.value(key) for key in all_settings()}
            preview = document.preview_recipe("char-lm", keep_own=keep_own)
            assert {key: document.value(key) for key in all_settings()} == before
            assert document.choose_recipe("char-lm", keep_own=keep_own) is None
            changed = {key: (before[key], document.value(key)) for key in before if before[key] != document.value(key)}
            assert changed.pop("profile") == ("quickstart", "char-lm")
            assert {change.key: (change.old, change.new) for change in preview.changes} == changed and len(changed) > 8
            kept = (Change(key=RATE, old=1e-4, new=1e-3), Change(key=SEED, old=7, new=42))
            assert preview.kept_changes == (kept if keep_own else ())
            assert document.value(RATE) == (1e-4 if keep_own else 1e-3)
    # An unknown recipe has no preview.
    with pytest.raises(ConfigError, match="no recipe is named"):
        opened().preview_recipe("quikstart")


def test_text_from_an_editor_replaces_the_document():
    document = opened()
    document.replace_values("profile = 'char-lm'\n[training]\nlearning_rate = 3e-3\n")
    assert document.recipe_name == "char-lm" and document.value(RATE) == 3e-3
    with pytest.raises(ConfigError, match="must be a number"):
        document.replace_values("[training]\nlearning_rate = 'x'\n")
    assert document.value(RATE) == 3e-3


def test_fitted_values_stay_until_they_are_fitted_again_and_never_replace_user_values():
    document, key, taken = opened(), "data.max_length", []
    document.set_fitted(document.unfitted.with_fitted_value(key, 64, "this model has learnt 64 positions"))
    preset, revision = document.unfitted.config.data.max_length, document.revision
    assert document.value(key) == document.loaded.config.data.max_length == 64 != preset
    document.set(SEED, 9)
    assert document.value(key) == document.loaded.config.data.max_length == 64 and not document.is_changed(key)
    assert document.unfitted.config.data.max_length == preset and document.revision == revision + 1
    document.set_fitted(document.unfitted.with_fitted_value(key, 64, "this model has learnt 64 positions"))
    assert document.revision == revision + 1, "nothing else came out"
    document.preview_recipe("char-lm", fit=lambda plain: taken.append(plain) or plain)
    assert taken[0].config.data.max_length != 64, "another recipe is fitted by itself"
    document.set_fitted(document.unfitted)
    assert document.value(key) == preset and document.revision == revision + 2
    document.set_fitted(document.unfitted.with_fitted_value(key, 64, "this model has learnt 64 positions"))
    document.set(key, 100)
    assert document.value(key) == document.loaded.config.data.max_length == 100 and document.is_changed(key)
