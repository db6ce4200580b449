"""Every setting: it says what it is, somebody reads it, and the JSON Schema knows it."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tui_trainer
from tui_trainer.cli import main
from tui_trainer.config import sections
from tui_trainer.config.explain import describe, find_settings
from tui_trainer.config.fields import SettingsSection, option, settings_of
from tui_trainer.config.load import Request, all_settings, load
from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError
from tui_trainer.tasks import task_names

PACKAGE = Path(tui_trainer.__file__).parent
# Read by the loader itself, before there is a Config.
READ_BY_LOADER = {"schema_version", "profile", "hardware_profile"}


@pytest.fixture
def loaded():
    return load(Request(assignments=("training.max_steps=7",)), lambda requested: (None, ""))


def test_every_setting_has_one_sentence_of_help_and_says_what_it_takes():
    assert len(all_settings()) >= 40
    for setting in all_settings().values():
        assert setting.help.endswith((".", ")")) and len(setting.help) < 160, setting.key
        assert setting.kinds or setting.choices, setting.key
        assert setting.expected, setting.key


def test_the_task_is_explained_with_all_tasks():
    words = all_settings()["task.type"].help
    assert set(task_names()) == set(
        words.removeprefix("What is learnt: ").rstrip(".").replace(" or ", ", ").split(", ")
    )


@pytest.mark.parametrize(("words", "meant"), [
    ("training.lr", "training.learning_rate"), ("lr", "training.learning_rate"), ("trainig", "training"),
    ("data.seq_len", "data.max_length"), ("model_name", "model.model_name_or_path"),
])  # fmt: skip
def test_explain_names_the_setting_that_was_meant(words, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?"):
        find_settings(words)


def test_explain_prints_every_setting(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["explain"]) == 0
    printed = capsys.readouterr().out
    for setting in all_settings().values():
        assert f"{setting.key}\n  {setting.help}\n  takes:   {setting.expected}\n" in printed
        assert not setting.memory or f"  memory:  {setting.memory}\n" in printed
        assert not setting.speed or f"  speed:   {setting.speed}\n" in printed
    assert printed.count("  now:     ") == len(all_settings())


def test_explain_shows_default_unit_value_and_its_place(loaded):
    assert describe(all_settings()["training.max_steps"], loaded)[-2:] == [
        "  default: 0 steps",
        "  now:     7  (from --set)",
    ]
    assert describe(all_settings()["output.name"], loaded)[-1] == "  now:     empty  (from default)"


def test_explain_writes_values_as_a_config_file_does(loaded):
    told = {setting.key: describe(setting, loaded) for setting in all_settings().values()}
    switches = [key for key, setting in all_settings().items() if setting.kinds == (bool,) and not setting.choices]
    assert len(switches) > 5
    for key in switches:
        assert told[key][-1].startswith(("  now:     true ", "  now:     false ")), told[key]
    assert not [lines for lines in told.values() if any(word in "\n".join(lines) for word in ("True", "False", "None"))]


@pytest.mark.parametrize(
    ("words", "count", "first"),
    [
        ("max_length", 1, "data.max_length"),
        ("seed", 2, "data.seed"),
        ("model.scratch", 6, "model.scratch.hidden_size"),
        ("logging", 2, "logging.logging_steps"),
    ],
)
def test_settings_are_found_by_key_name_or_table(words, count, first):
    found = [setting.key for setting in find_settings(words)]
    assert len(found) >= count and found[0] == first


def test_a_setting_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no setting 'traning'; did you mean training\?"):
        find_settings("traning")


def test_a_declaration_says_in_words_what_it_takes():
    class Things(SettingsSection):
        share: float = option(0.5, "A.", above=0, below=1)
        count: int = option(1, "B.", low=1, high=9)

    found = settings_of(Things)
    assert found["share"].expected == "a number, above 0, below 1"
    assert found["count"].expected == "a whole number, at least 1, at most 9"
    known = all_settings()
    assert known["schema_version"].expected == "1"
    assert known["training.per_device_train_batch_size"].expected.endswith('at most 10000000, or "auto", or "tune"')
    assert known["training.gradient_accumulation_steps"].expected.endswith('at most 10000000, or "auto"')


def test_the_json_schema_names_every_setting_with_help_and_default(capsys):
    assert main(["explain", "--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    found = set()

    def walk(table: dict, prefix: str) -> None:
        assert table["additionalProperties"] is False
        for name, entry in table["properties"].items():
            reference = entry.get("$ref", "").rpartition("/")[2]
            if reference:
                walk(schema["$defs"][reference], f"{prefix}{name}.")
                continue
            setting = all_settings()[f"{prefix}{name}"]
            assert entry["description"] == setting.help and entry["default"] == setting.default
            found.add(setting.key)

    walk(schema, "")
    assert found == set(all_settings())


@dataclass
class Reads:
    """The settings that a text reads, as `table.name`: `config.data.seed`, or `seed` of a name that stands for data.

    A name stands for a table after `data = config.data`, also in a tuple, and as an argument `data: DataSection`.
    """

    names: dict[str, set[str]] = field(default_factory=dict)
    found: set[str] = field(default_factory=set)

    def of(self, text: str) -> set[str]:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._learn(target, node.value)
            elif (
                isinstance(node, ast.arg)
                and node.annotation
                and (table := (TABLE_OF | PROTOCOL_OF).get(ast.unparse(node.annotation)))
            ):
                self.names.setdefault(node.arg, set()).add(table)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self.found |= {f"{table}.{node.attr}" for table in self._tables(node.value)}
        return self.found

    def _learn(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its_value in zip(target.elts, value.elts, strict=True):
                self._learn(one, its_value)
        elif isinstance(target, ast.Name) and isinstance(value, ast.Attribute) and value.attr in TABLE_OF.values():
            self.names.setdefault(target.id, set()).add(value.attr)

    def _tables(self, node: ast.expr) -> set[str]:
        if isinstance(node, ast.Attribute):
            return {node.attr}
        return self.names.get(node.id, set()) if isinstance(node, ast.Name) else set()


TABLE_OF = {
    "TaskSection": "task", "ScratchSection": "scratch",
    "RopeScalingSection": "rope_scaling", "ModelSection": "model", "DataSection": "data",
    "QuantizationSection": "quantization",
    "TrainingSection": "training", "EvaluationSection": "evaluation", "CheckpointSection": "checkpoint",
    "DistributedSection": "distributed",
    "TargetsSection": "targets",
    "LoggingSection": "logging", "OutputSection": "output", "TuningSection": "tuning",
    "DataloaderSection": "dataloader",
}  # fmt: skip
PROTOCOL_OF = {"AdamSettings": "training"}


def read_settings() -> set[str]:
    """`table.name` of what is read outside of config/; a property of a table reads what it is made of."""
    paths = [
        path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("config", "_profiles")
    ]
    assert len(paths) >= 50
    found = {key for path in paths for key in Reads().of(path.read_text(encoding="utf-8"))}
    for table in ast.parse(Path(sections.__file__).read_text(encoding="utf-8")).body:
        for part in table.body if isinstance(table, ast.ClassDef) and table.name in TABLE_OF else []:
            if isinstance(part, ast.FunctionDef) and f"{TABLE_OF[table.name]}.{part.name}" in found:
                own = [node for node in ast.walk(part) if isinstance(node, ast.Attribute)]
                found |= {f"{TABLE_OF[table.name]}.{node.attr}" for node in own if ast.unparse(node.value) == "self"}
    return found


def test_every_table_is_known_to_the_sweep():
    tables = {name for name in vars(sections) if name.endswith("Section") and name != "SettingsSection"}
    assert tables == set(TABLE_OF)


def test_every_setting_is_read_by_something():
    found = read_settings()
    unread = [key for key in all_settings() if ".".join(key.split(".")[-2:]) not in found]
    assert set(unread) == READ_BY_LOADER
    assert set(Config.model_fields) >= READ_BY_LOADER


def test_the_sweep_tells_what_is_read_from_what_is_not():
    text = (
        "def f(config, training: TrainingSection):\n data, x = config.data, 1\n return data.seed + training.lr + x.low"
    )
    assert Reads().of(text) >= {"data.seed", "training.lr"}
    assert Reads().of("config.data.path.strip()") >= {"data.path"}
    assert not Reads().of("config.data.path = 3") & {"data.path"}
    assert not Reads().of("def f(rows): return rows.seed") & {"data.seed", "training.seed"}
    assert "data.no_such_setting" not in read_settings()


def test_the_version_in_a_file_is_checked_by_the_loader():
    with pytest.raises(ConfigError, match="schema_version: 2 does not fit"):
        load(Request(assignments=("schema_version=2",)), lambda requested: (None, ""))
