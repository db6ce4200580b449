"""What starts from an adapter learns in several processes what it learns in one: copies and parts (FSDP2)."""

from __future__ import annotations

import pytest

from tests.distributed.outcomes import FULL, LORA, SPLIT, TWO, UNEVEN, check_equal, events, from_model, train
from tests.tiny_models import save_tiny_model
from tui_trainer.runs.events import RunFailed
from tui_trainer.runs.folder import RunFolder

pytestmark = pytest.mark.full
# What rounding adds grows with the rate.
SLOW = {"training.learning_rate": 1e-3}
MERGED = FULL | {"tuning.continue_adapter": "merge"}


def test_an_adapter_goes_on_in_two_processes_as_in_one(tmp_path, forked_ranks, subtests):
    model = save_tiny_model(tmp_path / "base", "llama")
    adapter = train(tmp_path, "adapter", "causal_lm", LORA | from_model(model) | {"evaluation.eval_steps": 0}).model
    for name, how, together in (("continued-in-parts", LORA, SPLIT), ("merged-in-copies", MERGED, TWO)):
        changes = how | from_model(adapter) | UNEVEN | SLOW
        with subtests.test(name):
            alone = train(tmp_path, f"{name}-alone", "causal_lm", changes)
            check_equal(alone, train(tmp_path, f"{name}-in-two", "causal_lm", changes | together))


OTHER_SIGNS = """
from tui_trainer.tuning.adapter_init import InitialAdapters
decompose = InitialAdapters.decompose
def turned(self, init, goes_on):
    decompose(self, init, goes_on)
    for name in self._layers:
        for which in ("lora_A", "lora_B"):
            self._factor(name, which).data.neg_()
    return True
InitialAdapters.decompose = turned
"""


def test_adapters_that_begin_as_a_part_of_the_weights_are_the_same_in_all_processes(tmp_path, forked_ranks):
    """Kernels of another card may find other ones, because singular vectors have two signs: these are refused."""
    model = save_tiny_model(tmp_path / "base", "llama")
    changes = LORA | from_model(model) | UNEVEN | SLOW | {"tuning.init_lora_weights": "pissa"}
    alone = train(tmp_path, "alone", "causal_lm", changes)
    check_equal(alone, train(tmp_path, "two", "causal_lm", changes | TWO))
    forked_ranks.prelude = lambda group, rank: OTHER_SIGNS * rank
    with pytest.raises(AssertionError):
        train(tmp_path, "refused", "causal_lm", changes | TWO)
    [failed] = events(RunFolder(tmp_path / "runs" / "refused"), RunFailed)
    assert "process 1 has initial adapters" in failed.message
