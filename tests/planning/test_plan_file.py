"""A plan.json of another version is refused with its field, its version and a way to go on."""

import json
from dataclasses import replace

import pytest

from tui_trainer.config.load import Request, load
from tui_trainer.errors import FolderError
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.prepare import read_plan
from tui_trainer.planning import plan as planning
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks.contract import DataFacts

FACTS = DataFacts(rows=100, eval_rows=10, tokens=12_800, eval_tokens=1_280, vocabulary=99, exact=True,
                  reason="counted", row_tokens=128.0, longest_row=128)  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    hardware = replace(probe(), gpus=())
    loaded = load(Request(profile="quickstart"), lambda requested: choose_hardware_profile(requested, hardware))
    return planning.make(loaded, hardware, FACTS, inputs=planning.PlanInputs(versions={"tui-trainer": "0.0.9"}))


def refused(folder, content):
    """Return the problem with a run folder that has this plan.json."""
    run = RunFolder(folder / "a run")
    run.root.mkdir(parents=True)
    run.plan.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(FolderError) as caught:
        read_plan(run)
    return caught.value.problems[0]


def test_a_plan_is_read_as_it_was_written(plan, tmp_path):
    run = RunFolder(tmp_path)
    run.plan.write_text(plan.model_dump_json())
    assert read_plan(run) == plan


def test_a_plan_of_an_earlier_version_is_refused_with_its_missing_fields_and_a_way_to_go_on(plan, tmp_path):
    fields = json.loads(plan.model_dump_json())
    del fields["training_setup"], fields["longest_row"]
    problem = refused(tmp_path, fields | {"plan_version": 2})
    known = fields["plan_version"]
    assert problem.message == (
        f"plan.json was written by tui-trainer 0.0.9 (plan_version 2, but this version needs {known}): "
        "missing: longest_row, training_setup"
    )
    config = tmp_path / "a run" / "config.toml"
    assert f"start a new run with `tui-trainer '{config}' --set 'output.name=a run-anew'`" in problem.hint
    assert "resume the run with the version that started it" in problem.hint


def test_an_unknown_field_or_a_changed_value_is_named(plan, tmp_path):
    fields = json.loads(plan.model_dump_json())
    later = refused(tmp_path / "later", fields | {"plan_version": 99, "moons": 2})
    assert "plan_version 99" in later.message and later.message.endswith("unknown: moons")
    fields["total_steps"]["value"] = "many"
    edited = refused(tmp_path / "edited", fields)
    assert edited.message.startswith("plan.json is not a plan of this version: total_steps.value: ")


def test_a_damaged_plan_is_called_damaged(tmp_path):
    for content in ("", "{", "[]"):
        assert refused(tmp_path / repr(content), content).message.startswith("plan.json is damaged: ")
