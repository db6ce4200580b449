"""How many steps a run has, and on how many of them something is saved."""

import pytest

from tui_trainer.config.load import Request
from tui_trainer.launching.start import load_config
from tui_trainer.planning.assemble import Steps
from tui_trainer.planning.batching import BatchCut
from tui_trainer.tasks.contract import DataFacts

# 100 steps an epoch.
FACTS = DataFacts(
    rows=3200, eval_rows=10, tokens=3200, eval_tokens=10, vocabulary=9, exact=True, reason="counted", row_tokens=1.0
)
CUT = BatchCut(effective=32, micro=32, accumulation=1, effective_reason="", micro_reason="", accumulation_reason="")


def steps(*assignments: str) -> Steps:
    return Steps(load_config(Request(profile="finetune", assignments=assignments)), FACTS, CUT)


@pytest.mark.parametrize(("epochs", "total"), [(0.07, 7), (0.071, 8), (0.0001, 1), (1, 100), (2.5, 250), (1.1, 110)])
def test_a_share_of_an_epoch_is_rounded_up_and_not_by_the_last_bit_of_a_float(epochs, total):
    found = steps(f"training.num_train_epochs={epochs}", "training.max_steps=0")
    assert (found.per_epoch.value, found.total.value) == (100, total)


def test_with_early_stopping_every_evaluation_may_save():
    settings = ("training.max_steps=100", "evaluation.eval_steps=10", "checkpoint.save_steps=50")
    assert (steps(*settings).saves, steps(*settings).evaluations) == (2, 10)
    assert steps(*settings, "evaluation.early_stopping_patience=3").saves == 2 + 10


@pytest.mark.parametrize(
    ("total", "setting", "warmup"), [(1, 0.05, 0), (2, 0.05, 1), (3, 0.9, 2), (1, 1, 1), (100, 0.05, 5)]
)
def test_a_share_of_the_steps_never_warms_up_through_the_last_one(total, setting, warmup):
    assert steps(f"training.max_steps={total}").warmup("cosine", setting).value == warmup
