"""Settings and values that were removed: dropped with a note if they change nothing that is learnt, else refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.load import LoadedConfig, Request, load, value_of
from tui_trainer.config.removed import without_removed
from tui_trainer.config.save import save
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning import plan as planning
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.tasks.contract import DataFacts

STRATEGY = "tensor parallelism was removed; set it to fsdp, which splits each layer's weights over the GPUs"
LANGUAGE = "is no longer a setting; set src_lang and tgt_lang in the tokenizer_config.json of the model"
NO_DEADLINE = "is ignored: runs no longer have a deadline; `tui-trainer plan` shows how long a run takes"
# Key, old value as TOML, what replaces it, and the note.
DROPPED = [
    ("targets.deadline", "'3h'", None, f"targets.deadline = '3h' {NO_DEADLINE}"),
    ("model.kernels", "'hub'", "auto", "'auto' is used instead: kernels from the hub are no longer supported"),
    (
        "training.torch_compile_mode",
        "'max-autotune'",
        "max-autotune-no-cudagraphs",
        "the new value tunes",
    ),
]
REFUSED = [
    ("distributed.strategy", "'tp'", STRATEGY),
    ("task.source_language", "'eng_Latn'", f"the language of the texts {LANGUAGE}"),
    ("task.target_language", "'fra_Latn'", f"the language of the answers {LANGUAGE}"),
]
# The defaults of removed settings, and other values of settings that remain.
UNCHANGED = [
    ("targets.deadline", "''"), ("task.source_language", "''"), ("task.target_language", "''"),
    ("model.kernels", "'liger'"), ("training.torch_compile_mode", "'reduce-overhead'"),
    ("distributed.strategy", "'hsdp'"),
]  # fmt: skip


def toml_of(key: str, value: str) -> str:
    table, _, name = key.partition(".")
    return f"[{table}]\n{name} = {value}\n"


def loaded(text: str = "", *assignments: str) -> LoadedConfig:
    Path("my.toml").write_text(text)
    return load(Request(config_file=Path("my.toml"), assignments=assignments), lambda name: (None, name))


def test_what_does_not_change_the_result_is_dropped_with_a_note(subtests):
    for key, value, instead, note in DROPPED:
        with subtests.test(f"{key} = {value}"):
            for config, place in ((loaded(toml_of(key, value)), "my.toml"), (loaded("", f"{key}={value}"), "--set")):
                assert len(config.notes) == 1 and config.notes[0].startswith(f"{place}: {key} = ")
                assert note in config.notes[0]
                assert instead is None or value_of(config.config, key) == instead
    both = loaded("[targets]\ndeadline = 18:00:00\nloss = 1.5\n")
    assert both.config.targets.loss == 1.5
    assert both.notes == (f"my.toml: targets.deadline = 18:00:00 {NO_DEADLINE}",)


def test_what_changes_the_result_is_refused_together_with_all_other_mistakes(subtests):
    for key, value, message in REFUSED:
        with subtests.test(key):
            for text, assignments, place in ((toml_of(key, value), (), "my.toml"), ("", (f"{key}={value}",), "--set")):
                with pytest.raises(ConfigError) as error:
                    loaded(text, *assignments, "training.max_steps=-1")
                assert len(error.value.problems) == 2
                assert str(error.value.problems[0]).startswith(f"{place}: {key}: {message}")


def test_defaults_and_values_that_remain_are_accepted_without_a_note(subtests):
    for key, value in UNCHANGED:
        with subtests.test(f"{key} = {value}"):
            assert loaded(toml_of(key, value)).notes == ()


def test_the_config_of_a_finished_run_is_never_refused():
    notes, problems = list[str](), list()
    config = {
        "task": {"source_language": "x", "type": "chat"},
        "targets": {"deadline": ""},
        "distributed": {"strategy": "tp"},
    }
    assert without_removed(config, "", notes, problems, finished=True) == {
        "task": {"type": "chat"}, "targets": {}, "distributed": {"strategy": "fsdp"},
    }  # fmt: skip
    assert notes == [
        "task.source_language = 'x' is ignored: the language of the texts is no longer a setting",
        "distributed.strategy = 'tp' is ignored, and 'fsdp' is used instead: tensor parallelism was removed",
    ]
    assert not problems


def test_the_plan_of_a_finished_run_is_never_refused():
    facts = DataFacts(rows=100, eval_rows=10, tokens=12_800, eval_tokens=1_280, vocabulary=99, exact=True, reason="")
    plan = planning.make(load_config(Request()), replace(probe(), gpus=()), facts)
    old = json.loads(plan.model_dump_json())
    old["strategy"]["value"] = old["config"]["distributed"]["strategy"] = "tp"
    old["training_setup"]["widths"], old["config"]["targets"]["deadline"] = 2, "3h"
    old["deadline"] = {"at": "2026-11-24T18:00:00+01:00", "start": "2026-11-24T15:00:00+01:00"}
    notes = list[str]()
    found = read_plan_file(json.dumps(old).encode(), notes, finished=True)
    assert len(notes) == 2 and found.strategy.value == "ddp" and found.config.distributed.strategy == "fsdp"
    assert found.model_copy(update={"config": plan.config, "strategy": plan.strategy}) == plan
    with pytest.raises(ConfigError, match=r"plan.json: distributed.strategy: tensor parallelism was removed"):
        read_plan_file(json.dumps(old).encode())


def test_the_editor_reports_a_removed_setting_and_saving_deletes_it():
    Path("my.toml").write_text("[targets]\ndeadline = '3h'  # by noon\n[training]\nmax_steps = 3\n")
    document = ConfigDocument(Request(config_file=Path("my.toml")), lambda name: (None, name))
    assert [note for note in document.loaded.notes if "targets.deadline" in note]
    document.set("training.max_steps", 4)
    save(document, Path("my.toml"))
    assert "deadline" not in Path("my.toml").read_text()
