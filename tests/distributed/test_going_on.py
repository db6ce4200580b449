"""What goes on from an adapter in several processes learns what one process does: copies and parts (FSDP2)."""

from __future__ import annotations

import pytest

from tests.distributed.outcomes import events
from tests.distributed.test_equal_to_one_process import LORA, UNEVEN, check_equal, train
from tests.tiny_models import save_tiny_model
from tui_trainer.runs.events import RunFailed
from tui_trainer.runs.folder import RunFolder

TWO = {"distributed.processes": 2}
SPLIT = TWO | {"distributed.strategy": "fsdp"}
MERGED = {"tuning.method": "full", "tuning.continue_adapter": "merge"}


@pytest.fixture
def adapter(tmp_path):
    """The folder of an adapter that a run has trained."""
    model = save_tiny_model(tmp_path / "base", "llama")
    made = LORA | {"model.init": "pretrained", "model.model_name_or_path": model}
    return train(tmp_path, "adapter", "causal_lm", made).model


@pytest.mark.parametrize("together", [TWO, SPLIT], ids=["copies", "parts"])
@pytest.mark.parametrize("how", [LORA, MERGED], ids=["continued", "merged"])
def test_an_adapter_goes_on_in_two_processes_as_in_one(how, together, adapter, tmp_path, forked_ranks):
    changes = how | {"model.init": "pretrained", "model.model_name_or_path": adapter} | UNEVEN
    changes |= {"training.learning_rate": 1e-3}  # what rounding adds grows with the rate
    alone = train(tmp_path, "alone", "causal_lm", changes)
    check_equal(alone, train(tmp_path, "two", "causal_lm", changes | together))


def test_adapters_that_begin_as_a_part_of_the_weights_are_the_same_in_two_processes(tmp_path, forked_ranks):
    model = save_tiny_model(tmp_path / "base", "llama")
    changes = LORA | {"model.init": "pretrained", "model.model_name_or_path": model} | UNEVEN
    changes |= {"tuning.init_lora_weights": "pissa", "training.learning_rate": 1e-3}
    alone = train(tmp_path, "alone", "causal_lm", changes)
    check_equal(alone, train(tmp_path, "two", "causal_lm", changes | TWO))


def test_processes_that_began_otherwise_are_refused(tmp_path, forked_ranks):
    """As kernels of another card may: singular vectors have two signs."""
    model = save_tiny_model(tmp_path / "base", "llama")
    changes = LORA | {"model.init": "pretrained", "model.model_name_or_path": model}
    other_signs = """
from tui_trainer.tuning.adapter_init import TakenOut
decompose = TakenOut.decompose
def turned(self, init, goes_on):
    decompose(self, init, goes_on)
    for name in self._layers:
        for which in ("lora_A", "lora_B"):
            self._factor(name, which).data.neg_()
    return True
TakenOut.decompose = turned
"""
    forked_ranks.prelude = lambda group, rank: other_signs * rank
    with pytest.raises(AssertionError):
        train(tmp_path, "two", "causal_lm", changes | TWO | {"tuning.init_lora_weights": "pissa"})
    [failed] = events(RunFolder(tmp_path / "runs" / "two"), RunFailed)
    assert "process 1 has adapters that begin" in failed.message
