"""Two and four processes learn what one does: losses, norms of gradients, scores and weights.

Tasks, layouts and numbers of passes with one another are in `test_every_combination.py`; here are the way through the
launcher and what it has not: another optimizer, checkpointed layers, no clipping, weights of 16 bits.
"""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.config.load import Request
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.runs.events import EvalDone, StepDone
from tui_trainer.runs.journal import read_all

STEPS = 8
# In each process: Liger's kernel of the loss, by its formula.
FUSED = """
import sys
from types import SimpleNamespace
from tests.simulated_card.liger_stand_in import CrossEntropyKernel, calls
from tui_trainer.losses.fused_cross_entropy import find_kernel
from tui_trainer.losses.next_token import NextTokenLoss
sys.modules["liger_kernel.ops.cross_entropy"] = SimpleNamespace(liger_cross_entropy_kernel=CrossEntropyKernel())
kernel, made = find_kernel(), NextTokenLoss.__init__
def told(*given, **more):
    calls.losses or print("the loss is fused", flush=True)
    return kernel(*given, **more)
def fused(loss, *given, **more):
    made(loss, *given, **more)
    loss.kernel = told
NextTokenLoss.__init__ = fused
"""
LORA = {"tuning.method": "lora", "tuning.r": 4, "tuning.target_modules": "all-linear"}
ACCUMULATED = {"training.per_device_train_batch_size": 1}
# Rows that two and four do not divide, and fewer than processes at the end of an epoch.
UNEVEN = {"training.effective_batch_size": 7}
MORE = {"training.optim": "sgd", "training.gradient_checkpointing": "true", "training.max_grad_norm": 0}


def train(tmp_path, name, task, changes):
    data = write_rows(tmp_path / f"{task}.jsonl", [training_row(task, n) for n in range(41)])
    settings = SETTINGS | {
        "task.type": task,
        "training.max_steps": STEPS,
        "evaluation.eval_steps": 4,
        "logging.logging_steps": 3,
        "output.runs_dir": tmp_path / "runs",
        "output.name": name,
        # A step of Adam is as large for a gradient that is nearly 0.
        "training.adam_epsilon": 1e-3,
    }
    assignments = tuple(f"{key}={value}" for key, value in (settings | changes).items())
    run = open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(data)})))
    outcome = carry_out(run)
    assert outcome.exit_code == 0, (outcome, *(path.read_text() for path in run.folder.logs.glob("rank-*.txt")))
    return run.folder


def events(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def weights(folder):
    [path] = [path for path in folder.model.glob("*.safetensors")]
    return load_file(path)


def check_equal(alone, together, rel=1e-6, weights_abs=1e-5):
    steps, other = events(alone, StepDone), events(together, StepDone)
    assert len(steps) == len(other) == STEPS
    for one, two in zip(steps, other, strict=True):
        assert (one.step, one.tokens, one.input_tokens, one.samples) == (
            two.step, two.tokens, two.input_tokens, two.samples,
        )  # fmt: skip
        assert two.loss_sum == pytest.approx(one.loss_sum, rel=rel)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=rel)
    for one, two in zip(events(alone, EvalDone), events(together, EvalDone), strict=True):
        assert (one.tokens, one.table_rows) == (two.tokens, two.table_rows)
        assert two.loss == pytest.approx(one.loss, rel=rel)
        assert one.scores == pytest.approx(two.scores, rel=rel)
    mine, theirs = weights(alone), weights(together)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert (tensor - theirs[name]).abs().max() < weights_abs, name


def compare(tmp_path, task, changes, processes):
    alone = train(tmp_path, "alone", task, changes)
    check_equal(alone, train(tmp_path, "together", task, changes | {"distributed.processes": processes}))


def test_two_processes_learn_what_one_does(tmp_path, forked_ranks):
    compare(tmp_path, "sequence_classification", UNEVEN, 2)
    assert len(forked_ranks.started) == 1


@pytest.mark.e2e
def test_four_processes_learn_what_one_does(tmp_path, forked_ranks):
    compare(tmp_path, "causal_lm", MORE, 4)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.e2e)])
@pytest.mark.parametrize("prelude", ["", FUSED], ids=["torch's operations", "a kernel"])
def test_a_loss_in_chunks_is_that_of_all_logits_in_one_process(tmp_path, forked_ranks, strategy, prelude):
    """Three rows a step: one of two processes has nothing in the second pass."""
    forked_ranks.prelude = lambda group, rank: prelude
    rows = {"training.effective_batch_size": 3, "training.per_device_train_batch_size": 1}
    alone = train(tmp_path, "alone", "causal_lm", rows | {"training.loss_chunk_tokens": 0})
    split = {"distributed.processes": 2, "distributed.strategy": strategy, "training.loss_chunk_tokens": 16}
    together = train(tmp_path, "together", "causal_lm", rows | split)
    check_equal(alone, together)
    logs = "".join(path.read_text() for path in together.logs.glob("rank-*.txt"))
    assert logs.count("the loss is fused") == (2 if prelude else 0)


def test_weights_of_sixteen_bits_are_summed_in_their_fp32_copies(tmp_path, forked_ranks):
    changes = {"model.dtype": "bfloat16", "training.mixed_precision": "no"} | ACCUMULATED
    alone = train(tmp_path, "alone", "causal_lm", changes)
    together = train(tmp_path, "of-2", "causal_lm", changes | {"distributed.processes": 2})
    one, two = (events(folder, StepDone) for folder in (alone, together))
    assert [step.loss_sum for step in two] == pytest.approx([step.loss_sum for step in one], rel=2e-3)
    # The sum of the first step is of the very same weights.
    assert two[0].grad_norm == pytest.approx(one[0].grad_norm, rel=1e-3)
