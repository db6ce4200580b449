"""Plans of multimodal checkpoints on a card of 24 GB: each part that somebody has published is as large as there."""

from __future__ import annotations

import pytest

from tests.benchmarks.published_towers import PUBLISHED, frozen_bytes, part_bytes, plan_of
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
