import pytest

from tests.planning.families import config_of, setup_of
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory import dry_run
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.memory.layers import Layer
from tui_trainer.planning.training_setup import LayerBytes


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))
    return tmp_path


def test_a_dry_run_in_a_child_agrees_with_the_formula_and_is_kept(monkeypatch):
    config, setup = config_of("llama"), setup_of("llama", lora=True)
    found = measure_layer(config, setup, 24)
    assert found.layer is not None, found.reason
    assert found.layer.kept == Layer(shape_of(config), setup, 24).kept
    monkeypatch.setattr(dry_run, "ask_child", lambda *question: pytest.fail("the answer was not kept"))
    assert measure_layer(config, setup, 24) == found


def test_what_memory_does_not_depend_on_asks_no_second_time(monkeypatch):
    asked = []
    monkeypatch.setattr(dry_run, "ask_child", lambda *question: asked.append(question) or '{"kept": 1, "made": 2}')
    for changes in ({}, {"optim": "sgd"}, {"packed": True}):
        assert measure_layer(config_of("llama"), setup_of("llama", **changes), 24).layer == LayerBytes(kept=1, made=2)
    assert len(asked) == 2


def test_a_model_that_transformers_does_not_know_is_not_known():
    found = measure_layer({"model_type": "no-such-family"}, setup_of("llama"), 24)
    assert found.layer is None
    assert found.reason.startswith("not known: the dry run ended with: transformers does not know")
    assert "\n" not in found.reason


def test_a_dry_run_that_takes_too_long_is_given_up():
    found = measure_layer(config_of("llama"), setup_of("llama"), 24, timeout_seconds=0.01)
    assert found.layer is None
    assert "took more than" in found.reason


@pytest.mark.parametrize("answer", ["", "{", "[]", '{"kept": 3}', '{"kept": null, "made": 1}'])
def test_an_answer_that_is_none_is_not_known(monkeypatch, answer):
    monkeypatch.setattr(dry_run, "ask_child", lambda *question: answer)
    assert measure_layer(config_of("llama"), setup_of("llama"), 24).layer is None


@pytest.mark.slow
@pytest.mark.parametrize("family", ["olmo2", "gpt_neox", "gemma2"])
def test_families_without_a_formula_are_measured(family):
    config = {**config_of("llama"), "model_type": family}
    found = measure_layer(config, setup_of("llama"), 24)
    assert found.layer is not None, found.reason
    assert found.layer.made > found.layer.kept > 0
