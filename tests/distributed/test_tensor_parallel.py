"""Layers that are split by width learn what one process does, and are saved, resumed and written whole."""

from __future__ import annotations

from itertools import product

import pytest

from tests.distributed.outcomes import losses, same
from tests.distributed.test_every_combination import Variant, base_of, check, planned, train_all
from tests.tiny_models import save_tiny_model
from tui_trainer.errors import ConfigError
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.prepare import estimated_plan, read_plan
from tui_trainer.launching.start import open_again
from tui_trainer.planning.plan_file import write_plan_file
from tui_trainer.planning.planned import exact
from tui_trainer.planning.strategies import FAMILIES

BY_WIDTH = {"distributed.processes": 2, "distributed.strategy": "tp"}


def compare(place, model, variants):
    """The same runs in one process and in two with a part of each layer, held against each other."""
    base = base_of(place, "causal_lm") | {"model.model_name_or_path": model}
    alone = {one: planned(place, base, f"alone-{n}", one.settings) for n, one in enumerate(variants)}
    together = {
        (one, "tp", 2): planned(place, base, f"by-width-{n}", one.settings | BY_WIDTH) for n, one in enumerate(variants)
    }
    train_all(place, alone.values(), 1)
    train_all(place, together.values(), 2)
    check(alone, together)


def variants(layouts=(False, True), passes=(1, 3)):
    return [Variant("causal_lm", "full", *chosen) for chosen in product(layouts, passes)]


def test_layers_split_by_width_learn_what_whole_ones_do(tmp_path):
    model = save_tiny_model(tmp_path / "model", "llama", tie_word_embeddings=True)
    compare(tmp_path, model, variants(layouts=(True,), passes=(3,)))


@pytest.mark.e2e
@pytest.mark.parametrize("tied", [True, False])
def test_they_do_whatever_the_layout_and_the_number_of_passes(tmp_path, tied):
    model = save_tiny_model(tmp_path / "model", "llama", tie_word_embeddings=tied)
    compare(tmp_path, model, variants())


@pytest.mark.e2e
@pytest.mark.parametrize("family", sorted(FAMILIES - {"llama"}))
def test_other_families_are_split_by_width_alike(tmp_path, family):
    """Biases, norms of the heads that a process has, soft caps."""
    compare(tmp_path, save_tiny_model(tmp_path / "model", family), variants(layouts=(False,)))


SAVED = BY_WIDTH | {"training.max_steps": 12, "checkpoint.save_steps": 4, "training.effective_batch_size": 6}


def test_what_was_split_by_width_goes_on_alike_or_whole(reference_group, stopped_run):
    """To the bit in as many processes, within rounding in one."""
    reference = reference_group(SAVED)
    folder = stopped_run("alike", SAVED)
    assert carry_out(open_again(folder)).exit_code == 0
    assert same(folder, reference)
    folder = stopped_run("whole", SAVED)
    assert carry_out(open_again(folder, processes=1)).exit_code == 0
    assert losses(folder) == pytest.approx(losses(reference), rel=1e-5)


@pytest.mark.e2e
def test_what_was_split_by_width_goes_on_in_parts(reference_group, stopped_run):
    """With another strategy, which only a changed plan can say."""
    reference = reference_group(SAVED)
    folder = stopped_run("parts", SAVED)
    plan = read_plan(folder)
    write_plan_file(folder, plan.model_copy(update={"strategy": exact("fsdp", "a test")}))
    assert carry_out(open_again(folder)).exit_code == 0
    assert losses(folder) == pytest.approx(losses(reference), rel=1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_of_layers_split_by_width_costs_no_bit(killed_run, rank):
    killed_run(SAVED, rank)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"distributed.processes": 4}, "2 attention heads are not divided by 4 processes"),
        ({"distributed.nodes": 2}, "what layers send each other is too much for the network"),
        ({"training.torch_compile": "true"}, "layers that are split are not compiled here"),
        ({"training.optim": "adafactor"}, "the state of adafactor is not split"),
    ],
)
def test_what_is_not_split_by_width_is_refused(tiny_config, changes, words):
    with pytest.raises(ConfigError, match=words):
        estimated_plan(tiny_config("odd", BY_WIDTH | changes))


@pytest.mark.parametrize(
    ("family", "words"), [("gpt2", "no plan is known that splits the layers of gpt2"), ("llama", "is lora")]
)
def test_models_without_a_plan_and_adapters_are_refused(tmp_path, tiny_config, family, words):
    model = {"model.init": "pretrained", "model.model_name_or_path": save_tiny_model(tmp_path / "model", family)}
    tuning = {"tuning.method": "lora" if family == "llama" else "full"}
    with pytest.raises(ConfigError, match=words):
        estimated_plan(tiny_config("odd", {"task.type": "causal_lm"} | BY_WIDTH | model | tuning))
