"""One contract for every importer: each key becomes a setting or is left out with a reason, and the result loads."""

import json
from dataclasses import fields
from itertools import cycle
from pathlib import Path

import pytest

from tui_trainer.config.changes import is_same_value
from tui_trainer.config.load import Request, all_settings, load, value_of
from tui_trainer.importing.conversion import Importer
from tui_trainer.importing.detection import all_importers, find_importer, flatten_keys
from tui_trainer.importing.imported import import_file
from tui_trainer.importing.missing import missing_names
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import To, Why

CONFIGS = Path(__file__).parent / "configs"
VALUES = [True, False, 0, 1, -1, 2.5, 10**30, float("nan"), "text", "5e-5", "no", "\x1b[2J\n\ud800", None, "", [], {}]
TABLES = [["a", "b"], [{"path": "x.jsonl"}], {"a": {"b": 1}}]
OF_IMPORTER = {
    "accelerate_fsdp.yaml": "accelerate",
    "adapter_config.json": "peft",
    "axolotl_dpo.yaml": "axolotl",
    "axolotl_full.yaml": "axolotl",
    "axolotl_kto.yaml": "axolotl",
    "axolotl_orpo.yaml": "axolotl",
    "axolotl_qlora.yaml": "axolotl",
    "deepspeed.json": "deepspeed",
    "guide_a_04.yaml": "training_script",
    "guide_c_15.json": "modelforge",
    "guide_d_card_of_12_gb.json": "training_script",
    "guide_e_03.yaml": "char_trainer",
    "llama_factory.yaml": "llama_factory",
    "llama_factory_preferences.yaml": "llama_factory",
    "llama_factory_v1.yaml": "llama_factory_v1",
    "transformers_4.json": "transformers",
    "transformers_5.json": "transformers",
    "trl_dpo.yaml": "trl",
    "trl_old.yaml": "trl",
    "trl_reward.yaml": "trl",
    "trl_sft.yaml": "trl",
    "trl_simpo.yaml": "trl",
}


def loaded(imported, folder):
    path = folder / "imported.toml"
    path.write_text(imported.toml, encoding="utf-8")
    return load(Request(config_file=path), lambda name: (None, ""))


def keys_of(imported):
    """Return the keys of the file that became a setting or were left out."""
    return {name for one in imported.rewrites for name in one.sources} | {one.key for one in imported.left_out}


def test_rules_name_existing_settings(subtests):
    for importer in all_importers().values():
        with subtests.test(importer.name):
            targets = {rule.key for rule in importer.rules.values() if isinstance(rule, To)}
            # accelerate's file says only where a run is.
            assert len(targets) >= (4 if importer.name == "accelerate" else 8)
            assert targets <= set(all_settings())
            assert set(importer.defaults) <= set(all_settings())
            assert all(name in importer.names or importer.rule(name) for name in importer.telltale.split())
            assert not set(importer.rules) & missing_names(importer.name), "what is missing stands in one list"


def test_nothing_that_a_setting_does_is_missing():
    """A missing key has neither the name of a setting, however it is divided, nor several words of one."""
    settings = {name.rpartition(".")[2] for name in all_settings()}
    for name in {name for importer in all_importers().values() for name in missing_names(importer.name)}:
        words = set(name.split("_"))
        assert name.replace("_", "") not in {one.replace("_", "") for one in settings}, name
        assert len(words) == 1 or not [one for one in settings if words <= set(one.split("_"))], name


@pytest.mark.full
def test_every_argument_of_the_installed_libraries_is_known():
    from peft import LoraConfig
    from transformers import Seq2SeqTrainingArguments

    of_kind = {"transformers": Seq2SeqTrainingArguments, "trl": Seq2SeqTrainingArguments, "peft": LoraConfig}
    for kind, arguments in of_kind.items():
        importer, names = find_importer(kind), [field.name for field in fields(arguments)]
        unknown = [name for name in names if name not in importer.names and importer.rule(name) is None]
        assert len(names) > 30 and unknown == []


def check_keys(importer: Importer, given: dict, folder: Path) -> None:
    path = folder / "foreign.json"
    given = given | {"nobody knows this": 1}
    path.write_text(json.dumps(given))
    imported = import_file(path, importer.name)
    assert keys_of(imported) == set(given)
    assert all(left.reason for left in imported.left_out)
    assert [left.why for left in imported.left_out if left.key == "nobody knows this"] == [Why.UNKNOWN]
    assert "\x1b" not in "\n".join(imported.report) + imported.toml
    config = loaded(imported, folder)
    assert all(config.where(key) == str(folder / "imported.toml") for key in imported.values)


def test_keys_with_any_value_are_rewritten_or_left_out_and_the_result_loads(tmp_path, subtests):
    for importer in all_importers().values():
        with subtests.test(importer.name):
            values = cycle(VALUES + TABLES)
            check_keys(importer, {name: next(values) for name in sorted(importer.names)}, tmp_path)


@pytest.mark.full
def test_every_value_under_every_key_is_rewritten_or_left_out_and_the_result_loads(tmp_path, subtests):
    for importer in all_importers().values():
        for value in VALUES + TABLES:
            with subtests.test(f"{importer.name} {value!r}".encode("unicode_escape").decode()):
                check_keys(importer, dict.fromkeys(sorted(importer.names), value), tmp_path)


def test_a_text_that_the_loader_would_refuse_is_left_out(tmp_path):
    path = tmp_path / "foreign.json"
    path.write_text(json.dumps({"model_name": "m" * 5000, "batch_size": 4}))
    imported = import_file(path)
    assert [one.why for one in imported.left_out] == [Why.DOES_NOT_FIT]
    assert loaded(imported, tmp_path).config.training.effective_batch_size == 4


def test_every_importer_has_a_file():
    others = {path.name for path in CONFIGS.iterdir() if not path.name.startswith("guide_")}
    assert others == {name for name in OF_IMPORTER if not name.startswith("guide_")}
    assert set(OF_IMPORTER.values()) == set(all_importers())
    assert len({importer.rank for importer in all_importers().values()}) == len(all_importers())


def test_each_file_is_recognised_and_every_key_is_accounted_for(tmp_path, subtests):
    for name, importer in OF_IMPORTER.items():
        with subtests.test(name=name):
            imported = import_file(CONFIGS / name)
            assert imported.importer.name == importer
            assert keys_of(imported) == set(flatten_keys(imported.importer, read_foreign(CONFIGS / name)))
            assert Why.UNKNOWN not in {one.why for one in imported.left_out}
            config = loaded(imported, tmp_path).config
            assert imported.rewrites
            for key, value in imported.values.items():
                if key not in ("output.runs_dir", "data.path"):  # these are made absolute
                    assert is_same_value(value_of(config, key), value)
