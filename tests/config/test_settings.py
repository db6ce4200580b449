"""Every setting: it has help, something reads it, `explain` prints it, and the JSON Schema contains it."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import tui_trainer
from tui_trainer.cli import main
from tui_trainer.config import sections
from tui_trainer.config.explain import describe, find_settings
from tui_trainer.config.fields import SettingsSection, option, settings_of
from tui_trainer.config.load import Request, all_settings, all_tables, load
from tui_trainer.errors import ConfigError
from tui_trainer.tasks import task_names

PACKAGE = Path(tui_trainer.__file__).parent


@pytest.fixture
def loaded():
    return load(Request(assignments=("training.max_steps=7",)), lambda requested: (None, ""))


def test_every_setting_has_one_sentence_of_help_and_describes_its_values():
    assert len(all_settings()) >= 40
    for setting in all_settings().values():
        assert setting.help.endswith((".", ")")) and len(setting.help) < 160, setting.key
        assert setting.kinds or setting.choices, setting.key
        assert setting.expected_words, setting.key
    tasks = all_settings()["task.type"].help.removeprefix("The task: ").rstrip(".").replace(" or ", ", ")
    assert set(task_names()) == set(tasks.split(", "))


def test_every_setting_is_read_outside_of_config():
    """A setting that nothing reads would be ignored in silence."""
    read = set[str]()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("config", "_profiles"):
            read |= set(re.findall(r"\.(\w+)\b(?!\s*=[^=])", path.read_text(encoding="utf-8")))
    # A property of a section counts for the settings that it reads.
    read |= set(re.findall(r"\bself\.(\w+)", Path(sections.__file__).read_text(encoding="utf-8")))
    # The journal has all of [targets], by name, and config.json all of [model.rope_scaling].
    others = (key for key in all_settings() if not key.startswith(("targets.", "model.rope_scaling.")))
    assert {key for key in others if key.rpartition(".")[2] not in read} <= {
        "schema_version",
        "hardware_profile",
    }


# Settings that change the memory or time of a step, and that decide a word of `StepKey` or the shape of the model.
IN_WORDS = """
    task.max_target_length model.provider model.towers model.text_only model.add_tokens model.scratch.hidden_size
    model.scratch.num_hidden_layers model.scratch.num_key_value_heads model.scratch.vocab_size data.max_length
    data.packing tuning.method tuning.trainable_layers tuning.r training.effective_batch_size
    training.per_device_train_batch_size training.router_aux_loss_coef training.mixed_precision
    training.gradient_checkpointing training.torch_compile distributed.processes distributed.nodes
    distributed.cpu_offload
""".split()
BETWEEN_STEPS = """
    data.num_proc tuning.init_lora_weights evaluation.eval_steps evaluation.generate_rows evaluation.gate_suite
    checkpoint.save_steps checkpoint.save_in_background logging.logging_steps logging.report_to
""".split()


def test_each_setting_that_costs_memory_or_time_is_part_of_the_key_of_measurements():
    """A measurement made with another value of it would be reused otherwise."""
    costs = {key for key, setting in all_settings().items() if setting.memory or setting.speed}
    of_key = {key for key, setting in all_settings().items() if setting.in_step_key}
    assert costs - of_key == {*IN_WORDS, *BETWEEN_STEPS}


def test_every_name_of_a_setting_in_the_package_is_one_and_has_at_most_one_constant():
    tables = sorted({table.partition(".")[0] for table in all_tables()})
    name = re.compile(rf"(?:{'|'.join(tables)})(?:\.[a-z_0-9]+)+")
    # These have the names of other tools and of earlier versions.
    others = ("importing/importers", "importing/detection.py", "config/removed.py")
    files = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    unknown = {
        f"{path}:{node.lineno} {node.value}"
        for path, tree in files.items()
        if not path.startswith(others)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and name.fullmatch(node.value)
        and not node.value.endswith((".pkl", ".safetensors", ".json", ".gguf"))
        and node.value not in {*all_settings(), *all_tables()}
    }
    assert unknown == set()
    assigned = [node for tree in files.values() for node in tree.body if isinstance(node, ast.Assign)]
    values = [
        one
        for node in assigned
        for one in (getattr(node.value, "elts", []) if isinstance(node.targets[0], ast.Tuple) else [node.value])
    ]
    names = [one.value for one in values if isinstance(one, ast.Constant) and one.value in all_settings()]
    constants = Counter(one for one in names if "." in one)
    assert len(constants) > 40 and [key for key, count in constants.items() if count > 1] == []


MEANT = [
    ("training.lr", "training.learning_rate"), ("lr", "training.learning_rate"), ("trainig", "training"),
    ("data.seq_len", "data.max_length"), ("model_name", "model.model_name_or_path"), ("traning", "training"),
]  # fmt: skip
FOUND = [
    ("max_length", 1, "data.max_length"),
    ("seed", 2, "data.seed"),
    ("model.scratch", 6, "model.scratch.hidden_size"),
    ("logging", 2, "logging.logging_steps"),
]


def test_settings_are_found_by_key_name_or_table_and_misspelt_ones_are_corrected(subtests):
    for words, count, first in FOUND:
        with subtests.test(words):
            found = [setting.key for setting in find_settings(words)]
            assert len(found) >= count and found[0] == first
    for words, meant in MEANT:
        with subtests.test(words), pytest.raises(ConfigError, match=f"did you mean {meant}\\?"):
            find_settings(words)


def test_explain_prints_every_setting(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["explain"]) == 0
    printed = capsys.readouterr().out
    for setting in all_settings().values():
        assert f"{setting.key}\n  {setting.help}\n  type:    {setting.expected_words}\n" in printed
        assert not setting.memory or f"  memory:  {setting.memory}\n" in printed
        assert not setting.speed or f"  speed:   {setting.speed}\n" in printed
    assert printed.count("  now:     ") == len(all_settings())


def test_explain_shows_the_value_its_origin_and_the_spelling_of_config_files(loaded):
    described = {setting.key: describe(setting, loaded) for setting in all_settings().values()}
    assert described["training.max_steps"][-2:] == [
        "  default: 0 (num_train_epochs decides)",
        "  now:     7  (from --set)",
    ]
    assert described["output.name"][-1] == "  now:     empty  (from default)"
    switches = [key for key, setting in all_settings().items() if setting.kinds == (bool,) and not setting.choices]
    assert len(switches) > 5
    for key in switches:
        assert described[key][-1].startswith(("  now:     true ", "  now:     false ")), described[key]
    assert not re.search("True|False|None", "\n".join(line for lines in described.values() for line in lines))


def test_bounds_and_words_are_part_of_the_expected_value():
    class Things(SettingsSection):
        share: float = option(0.5, "A.", above=0, below=1)
        count: int = option(1, "B.", low=1, high=9)

    found = settings_of(Things)
    assert found["share"].expected_words == "a number, above 0, below 1"
    assert found["count"].expected_words == "a whole number, at least 1, at most 9"
    known = all_settings()
    assert known["schema_version"].expected_words == "1"
    assert known["training.per_device_train_batch_size"].expected_words.endswith(
        'at most 10000000, or "auto", or "tune"'
    )
    assert known["training.gradient_accumulation_steps"].expected_words.endswith('at most 10000000, or "auto"')
    with pytest.raises(ConfigError, match="schema_version: 2 is not valid"):
        load(Request(assignments=("schema_version=2",)), lambda requested: (None, ""))


def test_the_json_schema_has_every_setting_with_help_and_default(capsys):
    assert main(["explain", "--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    found = set()

    def walk(table: dict, prefix: str) -> None:
        assert table["additionalProperties"] is False
        for name, entry in table["properties"].items():
            if reference := entry.get("$ref", "").rpartition("/")[2]:
                walk(schema["$defs"][reference], f"{prefix}{name}.")
                continue
            setting = all_settings()[f"{prefix}{name}"]
            assert entry["description"] == setting.help and entry["default"] == setting.default
            assert entry.get("advanced", False) == setting.advanced
            found.add(setting.key)

    walk(schema, "")
    assert found == set(all_settings())
