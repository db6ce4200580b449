"""The presets that are shipped, and those that people write."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import tui_trainer
from tests.planning.test_profiles_on_machines import machine as with_card
from tui_trainer.cli import main
from tui_trainer.config.load import Request, load
from tui_trainer.config.toml_files import all_profiles, find_profile
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.probe import probe
from tui_trainer.planning import plan as planning
from tui_trainer.tasks.contract import DataFacts

FOLDER = Path(tui_trainer.__file__).resolve().parent.parent / "profiles"
FILES = sorted(FOLDER.rglob("*.toml"))
FACTS = DataFacts(
    rows=5000, eval_rows=500, tokens=640_000, eval_tokens=64_000, vocabulary=100, exact=True, reason="made up"
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    return tmp_path


def test_every_file_is_a_preset():
    assert len(FILES) >= 3
    found = {profile.path.resolve() for kind in ("hardware", "recipes") for profile in all_profiles(kind).values()}
    assert found == set(FILES)


def test_every_preset_loads_can_be_planned_and_has_a_source(subtests):
    for path in FILES:
        with subtests.test(f"{path.parent.name}/{path.stem}"):
            about = tomllib.loads(path.read_text(encoding="utf-8"))["about"]
            assert about["title"] and (about.get("source") or about.get("summary"))
            if path.parent.name == "hardware":
                hardware = find_profile(path.stem, "hardware")
                assert hardware.match, "a hardware profile says what it matches"
                loaded = load(Request(), lambda _, hardware=hardware: (hardware, "test"))
                assert loaded.hardware_profile == hardware
            else:
                # The one that is for any model is planned with one that the catalogue knows.
                model = {"model.model_name_or_path": "gpt2"} if path.stem == "finetune" else {}
                loaded = load(Request(profile=path.stem, shortcuts=model), lambda requested: (None, ""))
                assert loaded.recipe is not None and loaded.recipe.name == path.stem
            machine = replace(probe(), memory_bytes=1 << 42, memory_available_bytes=1 << 42)
            if loaded.config.tuning.method == "qlora":
                machine = with_card("NVIDIA GeForce RTX 4090", (8, 9), 24564)
            plan = planning.make(loaded, machine, FACTS)
            assert plan.total_steps.value >= 1 and plan.memory_bytes.value > 0
            used = loaded.layers and {layer.where.split()[-1] for layer in loaded.layers.values()}
            assert path.stem in used


def test_presets_can_be_listed_and_shown(capsys):
    assert main(["profiles"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line[:2] in ("  ", "* ")]
    assert len(rows) == len(FILES) and all(row[21] == " " != row[22] for row in rows), "titles stand in one column"
    assert all(path.stem in printed for path in FILES)
    for path in (FILES[0], FILES[-1]):
        assert main(["profiles", path.stem]) == 0
        assert capsys.readouterr().out == path.read_text(encoding="utf-8")


def test_presets_of_the_user_replace_those_of_the_same_name_and_can_be_files(place):
    folder = place / "settings" / "tui-trainer" / "profiles" / "recipes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("[about]\ntitle = 'Mine'\n[training]\nseed = 7\n")
    (folder / "quickstart.toml").write_text("[training]\nseed = 8\n")
    (folder / "unfinished.toml").write_text("[training")
    assert find_profile("mine", "recipes").title == "Mine"
    assert load(Request(profile="mine"), lambda requested: (None, "")).config.training.seed == 7
    assert load(Request(), lambda requested: (None, "")).config.training.seed == 8
    # A preset can be given as a file.
    (place / "here.toml").write_text("[training]\nseed = 9\n")
    assert load(Request(profile="here.toml"), lambda requested: (None, "")).config.training.seed == 9


BROKEN = [
    ("about = 3", "must be tables"),
    ("[training]\nsead = 1", "training.sead: unknown setting"),
    ("[training", "not valid TOML"),
]


def test_a_broken_preset_names_its_file(place, subtests):
    for text, words in BROKEN:
        with subtests.test(text=text):
            (place / "here.toml").write_text(text)
            with pytest.raises(ConfigError, match=rf"^here.toml: .*{words}"):
                load(Request(profile="here.toml"), lambda requested: (None, ""))


UNKNOWN = [("quikstart", "did you mean quickstart?"), ("zzz", "available: bart-summarisation, char-lm, ")]


def test_an_unknown_preset_is_reported_with_the_nearest_or_all(subtests):
    for name, words in UNKNOWN:
        with subtests.test(name=name):
            with pytest.raises(ConfigError) as caught:
                find_profile(name, "recipes")
            assert caught.value.problems[0].hint.startswith(words)
