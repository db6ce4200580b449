"""Plans of multimodal checkpoints on a 24 GB card: each part has the published size."""

from __future__ import annotations

import pytest

from tests.benchmarks.published_towers import IN_FOUR_BITS, PUBLISHED, frozen_bytes, part_bytes, plan_of
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.models.catalogue import find_catalogue_entry
from tui_trainer.models.towers import has_towers
from tui_trainer.units import GIB

pytestmark = pytest.mark.dry_run


def test_every_recipe_with_a_multimodal_checkpoint_has_published_sizes():
    names = {
        name: profile.values.get("model", {}).get("model_name_or_path")
        for name, profile in all_profiles("recipes").items()
    }
    found = {name: find_catalogue_entry(model) for name, model in names.items() if model}
    assert set(PUBLISHED) == {name for name, entry in found.items() if entry and has_towers(entry.config["model_type"])}


def test_weights_and_towers_are_as_large_as_the_published_files(subtests):
    for recipe, published in PUBLISHED.items():
        with subtests.test(recipe):
            plan = plan_of(recipe)
            assert frozen_bytes(plan) == pytest.approx(published.language_bytes, rel=0.02)
            assert part_bytes(plan, "towers") == pytest.approx(published.tower_bytes, rel=0.02)
            # AdamW keeps two numbers for each trained weight, and its gradient; none for frozen ones.
            assert part_bytes(plan, "optimizer") == 8 * plan.trained_parameters.value
            assert part_bytes(plan, "gradients") <= 8 * plan.trained_parameters.value
            assert plan.memory_bytes.value <= 24 * GIB


@pytest.mark.full
def test_a_multimodal_model_in_4_bits_takes_its_files_with_packed_matrices():
    recipe, change = IN_FOUR_BITS
    plan, published = plan_of(recipe, change), PUBLISHED[recipe]
    packed = sum(linear.matrix_parameters for linear in plan.model_shape().linears if not linear.is_head)
    # Of two bytes each became 4.127 bits (QLoRA, arXiv:2305.14314, section 3).
    wanted = published.language_bytes - (2 - 4.127 / 8) * packed
    assert frozen_bytes(plan) == pytest.approx(wanted, rel=0.02) and wanted < published.language_bytes / 2
    assert part_bytes(plan, "towers") == pytest.approx(published.tower_bytes, rel=0.02)
    assert plan.memory_bytes.value < plan_of(recipe).memory_bytes.value
