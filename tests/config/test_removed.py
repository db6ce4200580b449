"""What went with its feature: dropped with a warning where nothing that is learnt depends on it, else refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.load import LoadedConfig, Request, load
from tui_trainer.config.removed import REMOVED, Removed, without_removed
from tui_trainer.config.save import save
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning import plan as planning
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.tasks.contract import DataFacts

LEARNT = Removed(reason="moons are not learnt", hint="leave it out", default="", changes_what_is_learnt=True)
ONE_VALUE = Removed(reason="tf64 went", value="tf64", instead="auto")


@pytest.fixture(autouse=True)
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED, "task.moon", LEARNT)
    monkeypatch.setitem(REMOVED, "training.mixed_precision", ONE_VALUE)


def loaded(text: str = "", *assignments: str) -> LoadedConfig:
    Path("my.toml").write_text(text)
    return load(Request(config_file=Path("my.toml"), assignments=assignments), lambda name: (None, name))


def refused(text: str = "", *assignments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text, *assignments)
    return [str(problem) for problem in caught.value.problems]


def test_what_changes_nothing_is_dropped_with_a_warning():
    told = "is not used: a run has no deadline any more; `tui-trainer plan` says how long it takes"
    found = loaded("[targets]\ndeadline = '3h'\nloss = 1.5\n")
    assert found.config.targets.loss == 1.5
    assert found.notes == (f"my.toml: targets.deadline = '3h' {told}",)
    assert loaded("[targets]\ndeadline = 18:00:00\n").notes == (f"my.toml: targets.deadline = 18:00:00 {told}",)
    assert loaded("", "targets.deadline=3h").notes == (f"--set: targets.deadline = '3h' {told}",)


def test_what_changes_the_result_is_refused_with_the_reason_and_all_else_that_is_wrong():
    told = ["my.toml: task.moon: moons are not learnt; leave it out"]
    assert refused("[task]\nmoon = 'full'\n") == told
    assert refused("[task]\nmoon = 'full'\n", "training.max_steps=-1")[0] == told[0]
    assert refused("", "task.moon=full") == ["--set: task.moon: moons are not learnt; leave it out"]


def test_tensor_parallelism_is_refused_and_other_strategies_are_not():
    told = "distributed.strategy: tensor parallelism was removed; set it to fsdp, which splits each layer's weights"
    assert refused("[distributed]\nstrategy = 'tp'\n") == [f"my.toml: {told} over the cards"]
    assert refused("", "distributed.strategy=tp") == [f"--set: {told} over the cards"]
    assert loaded("[distributed]\nstrategy = 'hsdp'\n").config.distributed.strategy == "hsdp"


def test_at_its_default_it_is_no_news():
    assert loaded("[task]\nmoon = ''\n[targets]\ndeadline = ''\n").notes == ()


def test_of_a_setting_that_stays_only_the_value_is_gone():
    found = loaded("[training]\nmixed_precision = 'tf64'\n")
    assert found.config.training.mixed_precision == "auto"
    assert found.notes == ("my.toml: training.mixed_precision = 'tf64' is not used, 'auto' is: tf64 went",)
    assert loaded("[training]\nmixed_precision = 'bf16'\n").config.training.mixed_precision == "bf16"


def test_a_finished_run_opens_whatever_its_config_says():
    notes, problems = list[str](), list()
    config = {"task": {"moon": "full", "type": "chat"}, "targets": {"deadline": ""}, "distributed": {"strategy": "tp"}}
    assert without_removed(config, "", notes, problems, finished=True) == {
        "task": {"type": "chat"}, "targets": {}, "distributed": {"strategy": "fsdp"},
    }  # fmt: skip
    assert notes == [
        "task.moon = 'full' is not used: moons are not learnt",
        "distributed.strategy = 'tp' is not used, 'fsdp' is: tensor parallelism was removed",
    ]
    assert not problems


def test_the_plan_of_a_finished_run_is_read_whatever_it_says_of_what_is_gone():
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


def test_the_editor_reports_it_and_saving_removes_it():
    Path("my.toml").write_text("[targets]\ndeadline = '3h'  # by noon\n[training]\nmax_steps = 3\n")
    document = ConfigDocument(Request(config_file=Path("my.toml")), lambda name: (None, name))
    assert [note for note in document.loaded.notes if "targets.deadline" in note]
    document.set("training.max_steps", 4)
    save(document, Path("my.toml"))
    assert "deadline" not in Path("my.toml").read_text()


@pytest.mark.parametrize(
    ("key", "default", "set_to", "told"),
    [
        ("task.source_language", "", "eng_Latn", "the language of the texts is no setting any more; name src_lang"),
        ("task.target_language", "", "fra_Latn", "the language of the answers is no setting any more; name src_lang"),
    ],
)
def test_a_language_of_an_old_config_is_refused_and_its_default_is_no_news(key, default, set_to, told):
    table, _, name = key.partition(".")
    assert loaded(f"[{table}]\n{name} = {default!r}\n").notes == ()
    [problem] = refused(f"[{table}]\n{name} = {set_to!r}\n")
    assert problem.startswith(f"my.toml: {key}: {told} and tgt_lang in the tokenizer_config.json of the model")


def test_kernels_of_the_hub_become_what_auto_is():
    found = loaded("[model]\nkernels = 'hub'\n")
    assert found.config.model.kernels == "auto"
    assert found.notes == (
        "my.toml: model.kernels = 'hub' is not used, 'auto' is: kernels of the hub are not taken any more",
    )
    assert loaded("[model]\nkernels = 'liger'\n").notes == ()


def test_the_search_for_kernels_is_taken_without_cuda_graphs():
    found = loaded("[training]\ntorch_compile_mode = 'max-autotune'\n")
    assert found.config.training.torch_compile_mode == "max-autotune-no-cudagraphs"
    assert len(found.notes) == 1 and "'max-autotune-no-cudagraphs' is: the same search for kernels" in found.notes[0]
    assert loaded("[training]\ntorch_compile_mode = 'reduce-overhead'\n").notes == ()
