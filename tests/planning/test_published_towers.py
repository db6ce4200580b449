"""Plans of multimodal checkpoints on a card of 24 GB: each part that somebody has published is as large as there."""

from __future__ import annotations

import pytest

from tests.benchmarks.published_towers import IN_FOUR_BITS, PUBLISHED, frozen_bytes, part_bytes, plan_of
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.models.catalogue import find_shape
from tui_trainer.models.towers import has_towers
from tui_trainer.units import GIB

pytestmark = pytest.mark.dry_run


def test_every_recipe_with_a_multimodal_checkpoint_is_compared():
    names = {
        name: profile.values.get("model", {}).get("model_name_or_path")
        for name, profile in all_profiles("recipes").items()
    }
    found = {name: find_shape(model) for name, model in names.items() if model}
    assert set(PUBLISHED) == {name for name, entry in found.items() if entry and has_towers(entry.config["model_type"])}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_weights_and_towers_are_as_large_as_the_published_files(recipe):
    plan, published = plan_of(recipe), PUBLISHED[recipe]
    assert frozen_bytes(plan) == pytest.approx(published.language_bytes, rel=0.02)
    assert part_bytes(plan, "towers") == pytest.approx(published.tower_bytes, rel=0.02)
    # Two numbers of AdamW for each that trains, and its gradient; none of what is frozen.
    assert part_bytes(plan, "optimizer") == 8 * plan.trained_parameters.value
    assert part_bytes(plan, "gradients") <= 8 * plan.trained_parameters.value
    assert plan.memory_bytes.value <= 24 * GIB


def test_a_qwen_of_today_in_4_bits_is_its_files_with_packed_matrices():
    recipe, change = IN_FOUR_BITS
    plan, published = plan_of(recipe, change), PUBLISHED[recipe]
    packed = sum(linear.matrix_parameters for linear in plan.model_shape().linears if not linear.is_head)
    # Of two bytes each became 4.127 bits (QLoRA, arXiv:2305.14314, section 3).
    wanted = published.language_bytes - (2 - 4.127 / 8) * packed
    assert frozen_bytes(plan) == pytest.approx(wanted, rel=0.02) and wanted < published.language_bytes / 2
    assert part_bytes(plan, "towers") == pytest.approx(published.tower_bytes, rel=0.02)
    assert plan.memory_bytes.value < plan_of(recipe).memory_bytes.value
