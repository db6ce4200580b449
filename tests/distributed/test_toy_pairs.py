"""A task of pairs learns the same packed, padded, one by one, in halved passes and in two processes."""

from __future__ import annotations

import json

import pytest
import torch

from tests.distributed.outcomes import events, weights
from tests.toy_tasks import toy_pairs
from tests.trained_runs import ANIMALS, SETTINGS
from tui_trainer.config.load import Request
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.start import load_config, open_new
from tui_trainer.runs.events import EvalDone, MicroBatchReduced, StepDone
from tui_trainer.training import components as components_module

STEPS = 5
PACKED = {"data.packing": "true"}
PADDED = {"data.packing": "false"}


@pytest.fixture(autouse=True)
def toy():
    toy_pairs.install()
    yield
    toy_pairs.uninstall()


@pytest.fixture
def open_pairs(tmp_path):
    """`open_pairs(name, changes)`: a run of five steps on pairs of uneven lengths, not begun."""
    rows = []
    for n in range(30):
        one, other = ANIMALS[n % 4], ANIMALS[(n + 1 + n % 2) % 4]
        chosen = f"{one} {'runs ' * (n % 5)}home"
        rows.append({"prompt": f"The {one} number {n}", "chosen": chosen, "rejected": f"{other} {'sleeps ' * (n % 3)}"})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name, changes):
        settings = SETTINGS | {
            "task.type": "toy_pairs",
            "data.max_length": 64,
            "training.max_steps": STEPS,
            "training.per_device_train_batch_size": 4,
            "training.adam_epsilon": 1e-3,
            "evaluation.eval_steps": 2,
            "output.runs_dir": tmp_path / "runs",
            "output.name": name,
        }
        assignments = tuple(f"{key}={value}" for key, value in (settings | changes).items())
        return open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(path)})))

    return make


@pytest.fixture
def train(open_pairs):
    def run(name, changes):
        opened = open_pairs(name, changes)
        outcome = carry_out(opened)
        assert outcome.exit_code == 0, (outcome, *(path.read_text() for path in opened.folder.logs.glob("rank-*.txt")))
        return opened.folder

    return run


def check_equal(mine, theirs, *, places=1e-6):
    steps, other = events(mine, StepDone), events(theirs, StepDone)
    assert len(steps) == len(other) == STEPS
    for one, two in zip(steps, other, strict=True):
        assert (one.tokens, one.input_tokens, one.samples, one.counts) == (
            two.tokens, two.input_tokens, two.samples, two.counts,
        )  # fmt: skip
        assert two.loss_sum == pytest.approx(one.loss_sum, rel=places)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=places)
        # Margins are small differences of many nats.
        assert two.sums == pytest.approx(one.sums, rel=places, abs=places * one.sums["likelihood"])
    held_out = list(zip(events(mine, EvalDone), events(theirs, EvalDone), strict=True))
    assert len(held_out) == 3
    for one, two in held_out:
        assert (one.tokens, two.loss) == (two.tokens, pytest.approx(one.loss, rel=places))
        nats = one.scores["likelihood"] * one.tokens
        assert two.scores == pytest.approx(one.scores, rel=places, abs=places * nats)
    first, second = weights(mine), weights(theirs)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor - second[name]).abs().max() < 1e-5, name


def test_pairs_are_learnt_the_same_however_their_passes_are_cut(train):
    whole = train("padded", PADDED | {"training.per_device_train_batch_size": 8})
    steps = events(whole, StepDone)
    for step in steps:
        assert step.tokens == step.counts["preference"] == step.counts["accuracy"] == step.samples == 8 or (
            step.step == 3 and step.samples < 8
        )
        assert step.loss == pytest.approx(step.scores["preference"] + step.scores["likelihood"])
        assert step.counts["likelihood"] > step.counts["preference"]
    assert steps[-1].scores["margin"] > steps[0].scores["margin"], "it learns"
    check_equal(whole, train("one-by-one", PADDED | {"training.per_device_train_batch_size": 1}))
    packed = train("packed", PACKED)
    assert events(packed, StepDone)[0].positions < steps[0].positions, "packed rows have less padding"
    check_equal(whole, packed)


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_two_processes_learn_of_pairs_what_one_does(train, forked_ranks, layout):
    forked_ranks.prelude = lambda group, rank: toy_pairs.INSTALL
    uneven = layout | {"training.effective_batch_size": 7}
    check_equal(train("alone", uneven), train("of-two", uneven | {"distributed.processes": 2}))


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed-2"][:1])
def test_a_split_model_learns_of_pairs_what_a_whole_one_does(train, forked_ranks, strategy):
    forked_ranks.prelude = lambda group, rank: toy_pairs.INSTALL
    # Fewer rows than passes of the others at the end of an epoch.
    uneven = PADDED | {"training.effective_batch_size": 7, "training.per_device_train_batch_size": 1}
    more = {"distributed.processes": 2, "distributed.strategy": strategy}
    check_equal(train("alone", uneven), train("of-two", uneven | more))


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_pairs_are_halved_as_wholes_where_memory_runs_out(train, open_pairs, monkeypatch, layout):
    whole = train("whole", layout)
    take_step = components_module.take_step

    def short(fetch, *given, **more):
        def fetched():
            window = fetch()
            if any(batch.samples > 2 for batch in window):
                raise torch.OutOfMemoryError("planted")
            return window

        return take_step(fetched, *given, **more)

    monkeypatch.setattr(components_module, "take_step", short)
    opened = open_pairs("halved", layout)
    assert carry_out(opened).exit_code == 0
    assert events(opened.folder, MicroBatchReduced)
    check_equal(whole, opened.folder)
