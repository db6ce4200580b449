"""DeepSpeed's ZeRO 2 and 3 in two processes on the CPU: they learn what one process does, and what is saved is whole.

The largest differences are printed: pytest -rP.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from tests.distributed.outcomes import FULL, LORA, events, from_model, losses
from tests.distributed.test_every_combination import (
    LOSS,
    NORM,
    WEIGHT,
    base_of,
    differences,
    planned,
    positions,
    train_all,
)
from tests.tiny_models import save_tiny_model
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs import controls
from tui_trainer.runs.events import StepDone
from tui_trainer.training.session import Session

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]
STAGES = ("deepspeed-2", "deepspeed-3")
THREE_PASSES = {"training.gradient_accumulation_steps": 3}
CASES = {
    "causal_lm": {
        "full": FULL,
        "full, three passes": FULL | THREE_PASSES,
        "full, packed": FULL | THREE_PASSES | {"data.packing": "true"},
        "full, not clipped": FULL | {"training.max_grad_norm": 0},
        "full, SGD": FULL | {"training.optim": "sgd"},
        "full, checkpointed": FULL | {"training.gradient_checkpointing": "true"},
        "LoRA": LORA,
        "LoRA, three passes": LORA | THREE_PASSES,
        "LoRA, checkpointed": LORA | {"training.gradient_checkpointing": "true"},
    },
    "seq2seq": {"full": FULL, "LoRA, three passes": LORA | THREE_PASSES},
    "sequence_classification": {"full, three passes": FULL | THREE_PASSES, "LoRA": LORA},
}
# On the host with three passes in a step, where sums go there and back.
OFFLOADED = ("full", "full, three passes", "LoRA, three passes")


@pytest.mark.parametrize("task", CASES)
def test_two_processes_of_deepspeed_learn_what_one_process_does(tmp_path, task):
    base, alone, together = base_of(tmp_path, task) | {"data.packing": "false"}, {}, {}
    for number, (name, settings) in enumerate(CASES[task].items()):
        alone[name] = planned(tmp_path, base, f"alone-{number}", settings)
        for strategy in STAGES:
            for offload in (False, True) if name in OFFLOADED and task == "causal_lm" else (False,):
                changes = {"distributed.processes": 2, "distributed.strategy": strategy}
                changes |= {"distributed.cpu_offload": "true"} if offload else {}
                key = f"{strategy}{' offloaded' if offload else ''}"
                together[name, key] = planned(tmp_path, base, f"{key}-{number}".replace(" ", "-"), settings | changes)
    train_all(tmp_path, alone.values(), 1)
    train_all(tmp_path, together.values(), 2)
    if task == "causal_lm":
        assert positions(alone["full, packed"]) != positions(alone["full, three passes"])
    wrong = []
    for (name, key), folder in together.items():
        found = differences(alone[name], folder)
        shown = f"{task} {name}, {key}: " + ", ".join(f"{part} {value:.1e}" for part, value in found.items())
        print(shown)
        allowed = {"loss": LOSS, "norm": NORM, "scores": LOSS, "weight": WEIGHT}
        wrong += [shown] * any(found[part] > allowed[part] for part in allowed)
    assert not wrong, "\n".join(wrong)


def test_weights_of_sixteen_bits_have_their_fp32_copies_in_parts(tmp_path):
    base = base_of(tmp_path, "causal_lm") | FULL | {"model.dtype": "bfloat16", "training.mixed_precision": "no"}
    alone = planned(tmp_path, base, "alone", {})
    train_all(tmp_path, [alone], 1)
    split = [planned(tmp_path, base, name, {"distributed.processes": 2, "distributed.strategy": name})
             for name in STAGES]  # fmt: skip
    train_all(tmp_path, split, 2)
    for folder in split:
        one, two = (events(run, StepDone) for run in (alone, folder))
        assert [step.loss_sum for step in two] == pytest.approx([step.loss_sum for step in one], rel=4e-3)
        # The sum of the first step is of the very same weights.
        assert two[0].grad_norm == pytest.approx(one[0].grad_norm, rel=2e-3)


SAVED = {
    "distributed.processes": 2,
    "training.max_steps": 12,
    "checkpoint.save_steps": 4,
    "training.effective_batch_size": 6,
    "training.gradient_accumulation_steps": 3,
}


def settings_of(tmp_path, strategy, method):
    changes = SAVED | {"distributed.strategy": strategy}
    if method == "lora":
        model = save_tiny_model(tmp_path / "base", "llama")
        changes |= LORA | {"task.type": "causal_lm"} | from_model(model)
    return changes


@pytest.mark.parametrize("strategy", STAGES)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_killed_process_of_deepspeed_costs_no_bit(tmp_path, killed_run, strategy, method):
    killed_run(settings_of(tmp_path, strategy, method), 1)


def goes_on(folder, processes, strategy="ddp"):
    """Resume what has stopped, with the model split otherwise."""
    path = folder.root / "plan.json"
    plan = json.loads(path.read_text())
    plan["strategy"]["value"] = strategy
    path.write_text(json.dumps(plan))
    return execute_run(reopen_run(folder, processes=processes))


@pytest.mark.parametrize("strategies", [STAGES, STAGES[::-1]], ids=" then ".join)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_run_of_deepspeed_goes_on_in_one_process_and_back(
    tmp_path, reference_group, stopped_run, forked_ranks, monkeypatch, method, strategies
):
    """What is saved is whole: it does not matter how the one before was split."""
    changes = settings_of(tmp_path, strategies[0], method)
    whole = reference_group(changes)
    folder = stopped_run("stopped", changes)
    take_step = Session.take_step

    def stopping(session, step):
        if step == 9:
            controls.request(session.job.folder.control, "stop")
        return take_step(session, step)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "take_step", stopping)
        assert goes_on(folder, 1).exit_code == 3
    assert goes_on(folder, 2, strategies[1]).exit_code == 0
    assert len(forked_ranks.started) == 2
    found, wanted = losses(folder), losses(whole)
    assert list(found) == list(wanted) and list(found.values()) == pytest.approx(list(wanted.values()), rel=1e-5)
