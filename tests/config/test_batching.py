"""How the effective batch is divided into micro-batches and accumulation, whichever numbers were given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui_trainer.config.load import LoadedConfig, Request, load
from tui_trainer.config.toml_files import Profile
from tui_trainer.errors import Problem
from tui_trainer.planning.batch_cut import BatchCut, batch_problems, cut_batch, effective_rows
from tui_trainer.planning.learning_rates import learning_rate

NAMES = {
    "e": "effective_batch_size",
    "m": "per_device_train_batch_size",
    "a": "gradient_accumulation_steps",
}


def loaded(user: dict[str, int | str], profile: dict[str, int | str] | None = None) -> LoadedConfig:
    values = {"training": {NAMES[short]: value for short, value in (profile or {}).items()}}
    card = Profile(name="card", kind="hardware", path=Path("c"), title="", summary="", source="", values=values)
    sets = tuple(f"training.{NAMES[short]}={value}" for short, value in user.items())
    return load(Request(profile="char-lm", assignments=sets), lambda requested: (card, ""))


def cut(user, profile=None, *, fits: int = 10**9) -> BatchCut | Problem:
    return cut_batch(loaded(user, profile), lambda limit: min(limit, fits))


# The recipe asks for an effective batch of 128.
CUTS = [
    ({}, {}, 10**9, (128, 128, 1)),
    ({"e": 32}, {}, 10**9, (32, 32, 1)),
    ({"e": 32}, {}, 20, (32, 16, 2)),
    ({"e": 30}, {}, 7, (30, 6, 5)),
    ({"e": 31}, {}, 30, (31, 16, 2)),
    ({"e": 32}, {}, 1, (32, 1, 32)),
    ({"e": 1}, {}, 10**9, (1, 1, 1)),
    ({"e": 32, "m": 8}, {}, 10**9, (32, 8, 4)),
    ({"e": 32, "m": 5}, {}, 10**9, (32, 5, 7)),
    ({"e": 32, "m": 64}, {}, 10**9, (32, 32, 1)),
    ({"e": 32, "m": 8}, {}, 2, (32, 8, 4)),
    ({"m": 8}, {}, 10**9, (128, 8, 16)),
    ({"e": 32, "a": 4}, {}, 10**9, (32, 8, 4)),
    ({"e": 32, "a": 5}, {}, 10**9, (32, 7, 5)),
    ({"e": 32, "a": 100}, {}, 10**9, (32, 1, 32)),
    ({"a": 4}, {}, 10**9, (128, 32, 4)),
    ({"m": 8, "a": 3}, {}, 10**9, (24, 8, 3)),
    ({"e": 32, "m": 4, "a": 8}, {}, 10**9, (32, 4, 8)),
    ({}, {"m": 16}, 10**9, (128, 16, 8)),
    ({"e": 30}, {"m": 16}, 10**9, (30, 15, 2)),
    ({"e": 8}, {"m": 16}, 10**9, (8, 8, 1)),
    ({"e": 32}, {"m": 16}, 10, (32, 8, 4)),
    ({"e": 32}, {"a": 2}, 10**9, (32, 16, 2)),
    ({"e": 32, "m": 8}, {"a": 2}, 10**9, (32, 8, 4)),
    ({"e": 32, "a": 4}, {"m": 16}, 10**9, (32, 8, 4)),
    ({"m": "auto", "e": 32}, {"m": 4}, 10**9, (32, 32, 1)),
    ({"m": 4, "a": 3}, {"e": 64}, 10**9, (12, 4, 3)),
]


def test_the_division_follows_the_numbers_that_were_given(subtests):
    for user, profile, fits, expected in CUTS:
        with subtests.test(user=user, profile=profile, fits=fits):
            found = cut(user, profile, fits=fits)
            assert isinstance(found, BatchCut)
            assert (found.effective_batch, found.micro_batch, found.accumulation) == expected


def test_three_numbers_that_disagree_are_reported_together(subtests):
    found = cut({"e": 32, "m": 4, "a": 3})
    assert isinstance(found, Problem)
    assert found.key == "training.effective_batch_size" and found.where == "--set"
    for words in ("32", NAMES["m"], NAMES["a"], "4 x 3 = 12"):
        assert words in found.message
    assert found.hint == "remove one of these settings"
    # Numbers that agree or are missing are accepted.
    for user in AGREEING:
        with subtests.test(user=user):
            assert batch_problems(loaded(user, {"e": 7, "m": 2, "a": 2} if len(user) < 3 else None)) == []


AGREEING = [{"e": 12, "m": 4, "a": 3}, {"m": 4, "a": 3}, {"e": 32, "m": 4}, {"e": 32, "a": 3}, {}]


def test_every_row_has_a_place_and_no_micro_batch_is_empty():
    for effective in (1, 2, 3, 7, 8, 12, 23, 24):
        for given in ({}, {"m": 3}, {"m": 24}, {"a": 5}, {"a": 24}):
            for fits in (1, 2, 7, 24):
                found = cut({"e": effective, **given}, fits=fits)
                assert found.effective_batch == effective
                assert (
                    found.micro_batch * (found.accumulation - 1) < effective <= found.micro_batch * found.accumulation
                )


REASONS = [
    ({"e": 32}, {}, 10**9, "the whole effective batch fits"),
    ({"e": 32}, {}, 20, "fits in memory (up to 20 rows fit)"),
    ({"e": 32}, {"m": 16}, 10**9, "at most 16 rows, from hardware profile card"),
    ({"e": 32, "m": 8}, {}, 10**9, "from --set"),
    ({"e": 32, "a": 4}, {}, 10**9, "gradient_accumulation_steps from --set"),
]


def test_each_division_has_a_reason(subtests):
    for user, profile, fits, words in REASONS:
        with subtests.test(user=user, profile=profile, fits=fits):
            assert words in cut(user, profile, fits=fits).micro_reason
    # A micro-batch is never larger than the effective batch.
    assert cut({"e": 8, "m": 8}).micro_reason == "from --set"
    assert "where it is 9, but limited to the effective batch" in cut({"e": 8, "m": 9}).micro_reason
    # The effective batch has a reason too.
    assert cut({}).effective_reason == "from recipe char-lm"
    assert cut({"m": 8, "a": 3}).effective_reason == "micro-batch x accumulation"


def test_tune_divides_like_auto_and_excludes_a_number_of_passes():
    tunes = {"e": 32, "m": "tune"}
    found = cut(tunes, fits=20)
    assert isinstance(found, BatchCut) and (found.effective_batch, found.micro_batch, found.accumulation) == (32, 16, 2)
    # A number of passes from a hardware profile is no order of the user's.
    found = cut(tunes, {"a": 8})
    assert isinstance(found, BatchCut) and found.micro_batch == 32
    [problem] = batch_problems(loaded({**tunes, "a": 4}))
    assert problem.key == "training.gradient_accumulation_steps" and "tune" in problem.message


def rate(*assignments: str, profile: str = "quickstart"):
    loaded = load(Request(profile=profile, assignments=assignments), lambda requested: (None, ""))
    return learning_rate(loaded, 800_000, effective_rows(loaded))


def test_lr_scaling_scales_the_learning_rate_with_the_batch(subtests):
    for scaling, expected in [("none", 0.003), ("sqrt", 0.006), ("linear", 0.012)]:
        with subtests.test(scaling=scaling):
            found = rate(f"training.lr_scaling={scaling}", "training.effective_batch_size=64")
            assert found.value == pytest.approx(expected)
            words = f"{scaling} scaling from 16 (recipe quickstart) to 64 rows: 0.003 -> {expected:g}"
            assert (words in found.reason) == (scaling != "none")


def test_the_learning_rate_is_scaled_from_the_batch_it_was_chosen_for():
    assert rate("training.lr_scaling=sqrt").value == 0.003
    assert "the 16 rows that this rate is meant for, so it is not scaled" in rate("training.lr_scaling=sqrt").reason
    own = rate("training.lr_scaling=linear", "training.effective_batch_size=64", "training.learning_rate=0.001")
    assert own.value == 0.001 and "a rate that you set is not scaled" in own.reason
    # Both written: the effective batch is their product.
    cut_by_hand = ("training.per_device_train_batch_size=16", "training.gradient_accumulation_steps=16")
    assert rate("training.lr_scaling=sqrt", *cut_by_hand).value == pytest.approx(0.012)
    # auto is for the batch that the presets have, or the default.
    auto = "training.learning_rate=auto"
    scaled = rate("training.lr_scaling=sqrt", auto, "training.effective_batch_size=64")
    assert scaled.value == pytest.approx(2 * rate(auto).value)
    smaller = rate("training.lr_scaling=linear", "training.effective_batch_size=4")
    assert smaller.value == pytest.approx(0.00075)
