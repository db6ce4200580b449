"""Muon, the loss of routers and new tokens: in two processes as in one, and refused where a model is split."""

from __future__ import annotations

import pytest

from tests.distributed.test_equal_to_one_process import ACCUMULATED, LORA, UNEVEN, check_equal, train
from tests.distributed.test_split_model import SPLIT
from tests.tiny_models import save_tiny_model
from tui_trainer.errors import ConfigError

TWO = {"distributed.processes": 2}
FULL = {"tuning.method": "full"}
MUON = FULL | {"training.optim": "muon", "training.weight_decay": 0.1}
# The loss of routers is that of each micro-batch by itself, and one row in each is the same split for any number of
# processes.
ROUTERS = FULL | ACCUMULATED | {"training.router_aux_loss_coef": 0.5, "data.packing": "false"}
TOKENS = {"model.add_tokens": "sheep,runs home"}


def settings(tmp_path, family, changes):
    base = save_tiny_model(tmp_path / family, family)
    told = {"model.init": "pretrained", "model.model_name_or_path": base, "training.learning_rate": 0.003}
    return told | changes | UNEVEN


@pytest.mark.parametrize(
    ("family", "changes", "rel"),
    [
        ("llama", MUON, 5e-5),  # its products of gradients in bf16 round what differs in their last bits
        ("mixtral", ROUTERS, 1e-6),
        ("qwen2", FULL | TOKENS, 1e-6),
        ("llama", LORA | TOKENS, 1e-6),
    ],
    ids=["muon", "routers", "tokens", "tokens beside an adapter"],
)
def test_two_processes_learn_what_one_does(family, changes, rel, tmp_path, forked_ranks):
    given = settings(tmp_path, family, changes)
    alone = train(tmp_path, "alone", "causal_lm", given)
    check_equal(alone, train(tmp_path, "together", "causal_lm", given | TWO), rel=rel, weights_abs=10 * rel)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", MUON, "the state of muon is not split"),
        ("mixtral", ROUTERS, "was not tried with a loss of routers"),
        ("llama", LORA | TOKENS, "tables that get rows for new tokens are not split"),
    ],
)
def test_a_split_model_refuses_them_before_it_begins(family, changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, "split", "causal_lm", settings(tmp_path, family, changes) | SPLIT)
