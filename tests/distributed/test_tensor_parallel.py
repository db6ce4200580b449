"""Layers that are split by width learn what one process does, and are saved, resumed and written whole."""

from __future__ import annotations

from itertools import product

import pytest

from tests.distributed.test_every_combination import Variant, base_of, check, planned, train_all
from tests.distributed.test_group_trouble import STOPS, losses, same
from tests.tiny_models import save_tiny_model
from tui_trainer.errors import ConfigError
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.start import open_again
from tui_trainer.planning.plan_file import read_plan, write_plan_file
from tui_trainer.planning.planned import exact

BY_WIDTH = {"distributed.processes": 2, "distributed.strategy": "tp"}


def compare(place, model, variants):
    """The same runs in one process and in two with a part of each layer, held against each other."""
    base = base_of(place, "causal_lm") | {"model.model_name_or_path": model}
    runs = {one: (planned(place, base, f"alone-{n}", one.settings), planned(place, base, f"by-width-{n}", one.settings | BY_WIDTH))
            for n, one in enumerate(variants)}  # fmt: skip
    train_all(place, [alone for alone, _ in runs.values()], 1)
    train_all(place, [together for _, together in runs.values()], 2)
    check(
        {one: alone for one, (alone, _) in runs.items()},
        {(one, "tp", 2): together for one, (_, together) in runs.items()},
    )


def variants(layouts=(False, True), passes=(1, 3)):
    return [Variant("causal_lm", "full", *chosen) for chosen in product(layouts, passes)]


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.e2e)], ids=["tied", "untied"])
def test_layers_split_by_width_learn_what_whole_ones_do(tmp_path, no_dry_run, tied):
    model = save_tiny_model(tmp_path / "model", "llama", tie_word_embeddings=tied)
    compare(tmp_path, model, variants())


@pytest.mark.e2e
@pytest.mark.parametrize("family", ["gemma2", "mistral", "phi", "qwen2", "qwen3"])
def test_other_families_are_split_by_width_alike(tmp_path, no_dry_run, family):
    """Biases, norms of the heads that a process has, soft caps."""
    compare(tmp_path, save_tiny_model(tmp_path / "model", family), variants(layouts=(False,)))
