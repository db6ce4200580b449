"""A run that starts from what another has left: where it begins, what it says of its origin, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.tiny_models import save_tiny_model
from tui_trainer.errors import ConfigError
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import open_new
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.overview import overview

# So small that the evaluation behind the only step is that of the model as the run began.
STILL = {"training.learning_rate": 1e-12, "training.max_steps": 1}
FROM = "model.model_name_or_path"


@pytest.fixture
def go_on(tiny_config, tmp_path):
    """`go_on(name, changes)`: a finished run that starts from a model; from a tiny Llama where none is named."""

    def make(name, changes=None):
        changes = {"model.init": "pretrained", "tuning.r": 4, "profile": "finetune", **(changes or {})}
        if FROM not in changes:
            folder = tmp_path / "llama"
            changes[FROM] = folder if folder.exists() else save_tiny_model(folder, "llama")
        if changes.get("tuning.method") == "full":
            del changes["tuning.r"]
        run = open_new(tiny_config(name, changes))
        assert carry_out(run).exit_code == 0
        return run.folder

    return make


def plan_of(run):
    return read_plan_file(run.plan.read_bytes())


def loss_of(run):
    return overview(run).eval_loss


@pytest.mark.parametrize("named", ["path", "name", "beginning", "last"])
def test_a_finished_run_is_named_as_everywhere_and_resolved_once(go_on, tiny_config, named, tmp_path):
    first = go_on("first", {"tuning.method": "full"})
    reference = {"path": str(first.root), "name": "first", "beginning": "fir", "last": "last"}[named]
    loaded = tiny_config("second", {FROM: reference, "profile": "finetune"})
    assert loaded.config.model.model_name_or_path == str(first.model)
    assert any("the final model of the run first" in note for note in loaded.notes)


def test_a_run_begins_where_the_one_before_ended_and_says_where_it_comes_from(go_on):
    first = go_on("first", {"tuning.method": "full"})
    second = go_on("second", {FROM: "first", "tuning.method": "full", **STILL})
    assert loss_of(second) == pytest.approx(loss_of(first), abs=1e-5)
    third = go_on("third", {FROM: str(second.root), "tuning.method": "lora"})
    chain = "llama > run first (all weights, 10 steps) > run second (all weights, 1 step)"
    assert overview(third).came_from == chain and overview(first).came_from == ""
    card = (third.model / "README.md").read_text()
    assert "run second (all weights, 1 step)" in card and str(third.root.parent) not in card
    assert chain in third.report.read_text().replace("&gt;", ">")
    # A chain outlives its runs.
    shutil.rmtree(first.root)
    assert [one.name for one in plan_of(third).ancestors[1:]] == ["first", "second"]


def test_what_is_a_model_is_not_taken_for_a_run(go_on, tiny_config, tmp_path, monkeypatch):
    first = go_on("first", {"tuning.method": "full"})
    assert tiny_config("x", {FROM: str(first.model)}).config.model.model_name_or_path == str(first.model)
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "first", "gpt2")
    assert tiny_config("x", {FROM: "first"}).config.model.model_name_or_path == str(tmp_path / "first")


def test_a_run_without_a_final_model_is_refused(go_on, tiny_config):
    first = go_on("first", {"tuning.method": "full"})
    go_on("firsts", {"tuning.method": "full"})
    with pytest.raises(ConfigError, match="'fir' may be any of 2 runs"):
        tiny_config("second", {FROM: "fir"})
    shutil.rmtree(first.model)
    with pytest.raises(ConfigError, match="its folder `model` is gone"):
        tiny_config("second", {FROM: "first"})


def test_a_final_model_that_was_changed_is_refused(go_on, tiny_config):
    first = go_on("first", {"tuning.method": "full"})
    config = json.loads((first.model / "config.json").read_bytes())
    (first.model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    with pytest.raises(ConfigError, match=r"config\.json in its folder `model` is not what the run wrote"):
        open_new(tiny_config("second", {FROM: "first", "profile": "finetune"}))
