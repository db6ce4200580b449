"""A model that is split over the processes learns what one process does, and is saved, resumed and written whole."""

from __future__ import annotations

import math

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.distributed.outcomes import (
    ACCUMULATED,
    FULL,
    LORA,
    SPLIT,
    UNEVEN,
    at_step,
    check_equal,
    events,
    from_model,
    losses,
    same,
    train,
    weights,
)
from tests.tiny_models import save_tiny_model
from tests.training.test_out_of_memory import stop_at
from tui_trainer.errors import ConfigError
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.prepare import estimated_plan, read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.files import shards
from tui_trainer.planning.plan_file import write_plan_file
from tui_trainer.planning.planned import exact
from tui_trainer.runs.events import RunProblem
from tui_trainer.training.checkpoint import OPTIMIZER, RANDOM, SavedTensors


def saved_tensors(folder, file):
    with SavedTensors(shards.all_files_of(folder, file)) as saved:
        return {name: saved.read(name) for name in saved.names}


@pytest.mark.full
def test_a_split_model_learns_and_saves_what_a_whole_one_does(tmp_path, forked_ranks):
    """Packed, with the loss in chunks of the head, which is whole outside of the model's own forward pass."""
    changes = {"training.loss_chunk_tokens": 16} | UNEVEN
    alone = train(tmp_path, "alone", "causal_lm", changes)
    split = train(tmp_path, "split", "causal_lm", changes | SPLIT)
    check_equal(alone, split)
    checkpoints = [folder.checkpoints / "step-8" for folder in (alone, split)]
    assert [len(list(folder.glob("shard-*-optimizer-*"))) for folder in checkpoints] == [0, 2]
    for file in ("model.safetensors", OPTIMIZER):
        one, other = (saved_tensors(folder, file) for folder in checkpoints)
        assert one.keys() == other.keys()
        assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5
    loaded = AutoModelForCausalLM.from_pretrained(checkpoints[1]).state_dict()
    assert all(loaded[name].equal(tensor) for name, tensor in weights(split).items())


@pytest.mark.full
def test_an_adapter_on_a_split_model_is_the_same(tmp_path, forked_ranks):
    base = LORA | from_model(save_tiny_model(tmp_path / "base", "llama")) | ACCUMULATED | UNEVEN
    alone = train(tmp_path, "alone", "causal_lm", base)
    check_equal(alone, train(tmp_path, "split", "causal_lm", base | SPLIT))


IN_FP16 = """
from tui_trainer.training import components, optimizer
made = components.MixedPrecision
components.MixedPrecision = lambda precision, device: made("fp16", device)
"""
OVERFLOWS = """
collect, calls = optimizer.RunOptimizer.collect, []
def spoilt(self):
    collect(self)
    calls.append(1)
    if len(calls) == 5:
        gradient = self.trained_parameters[0].grad
        getattr(gradient, "_local_tensor", gradient).view(-1)[0] = float("inf")
optimizer.RunOptimizer.collect = spoilt
"""


@pytest.mark.full
def test_an_overflow_of_fp16_in_one_part_is_one_of_all(tmp_path, forked_ranks):
    """The step is passed over and the scale halved in each process."""
    forked_ranks.prelude = lambda group, rank: IN_FP16 + OVERFLOWS * rank
    folder = train(tmp_path, "split", "causal_lm", SPLIT)
    assert float(load_file(folder.checkpoints / "step-8" / RANDOM)["loss_scale"]) == 2**15
    found = list(losses(folder).values())
    assert all(map(math.isfinite, found)) and found[-1] < found[0]
    assert all(tensor.isfinite().all() for tensor in load_file(folder.model / "model.safetensors").values())


SAVED = SPLIT | {"training.max_steps": 12, "checkpoint.save_steps": 4, "training.effective_batch_size": 6}


@pytest.mark.full
def test_a_split_model_goes_on_whole_and_in_copies(reference_group, stopped_run):
    """What is saved is whole: it does not matter how the one before was split."""
    whole = reference_group(SAVED)
    folder = stopped_run("stopped", SAVED)
    assert execute_run(reopen_run(folder, processes=1)).exit_code == 0
    assert losses(folder) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.full
def test_parts_on_the_host_learn_the_same_to_the_bit(reference_group, tiny_run):
    """On a CPU they are there anyway: what is told to torch, saved, loaded and measured is otherwise."""
    whole = reference_group(SAVED)
    folder, outcome = tiny_run("offloaded", SAVED | {"distributed.cpu_offload": "true"})
    assert outcome.exit_code == 0 and same(folder, whole)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_layers_that_are_left_out_by_chance_are_computed_where_they_are_split(tmp_path, forked_ranks):
    """All processes gather each layer together: one that leaves it out would gather the next one with it. M2M100 leaves
    out a layer in twenty."""
    model = save_tiny_model(tmp_path / "base", "bart", encoder_layerdrop=0.5, decoder_layerdrop=0.5)
    folder = train(tmp_path, "split", "seq2seq", from_model(model) | SPLIT)
    [problem] = [one for one in events(folder, RunProblem) if one.kind == "layers kept"]
    assert "skip at random" in problem.message
    whole = save_tiny_model(tmp_path / "whole", "bart")
    check_equal(train(tmp_path, "alone", "seq2seq", from_model(whole)), folder)


NO_MEMORY_BACKWARD = """
import torch
def lose(session):
    [layer] = [module for name, module in session.components.model.named_modules() if name.endswith("layers.0")]
    def fail(*_):
        handle.remove()
        raise torch.OutOfMemoryError("planted")
    handle = layer.register_full_backward_pre_hook(fail)
"""


@pytest.mark.full
def test_one_process_with_its_weights_on_the_host_begins_anew_where_memory_runs_out(
    reference_run, tiny_run, forked_ranks, monkeypatch
):
    """What splits a model is left in the middle of a pass: its next steps would be others. On a CPU only a changed plan
    can say that the weights are on the host."""
    changes = {key: value for key, value in SAVED.items() if not key.startswith("distributed.")}
    whole = reference_run(changes)
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        folder, _ = tiny_run("stopped", changes)
    split = {"strategy": exact("fsdp", "a test"), "cpu_offload": exact(True, "a test")}
    write_plan_file(folder, read_plan(folder).model_copy(update=split))
    forked_ranks.prelude = lambda group, rank: "" if group else NO_MEMORY_BACKWARD + at_step(7, "lose(self)")
    outcome = execute_run(reopen_run(folder))
    assert outcome.exit_code == 0, outcome
    assert losses(folder) == pytest.approx(losses(whole), rel=1e-4)
    assert len(forked_ranks.started) == 2


@pytest.mark.full
def test_a_disk_that_is_full_holds_up_no_process(tiny_run, forked_ranks):
    """Neither the one that commits, at step 4, nor one that writes its part, at step 8."""
    full = (
        "from tui_trainer.training import checkpoint as checkpoint_tensors\nsave = checkpoint_tensors.save_file\n"
        "def failing(tensors, path, **more):\n"
        "    if 'step-{}' in str(path):\n        raise OSError(28, 'No space left on device')\n"
        "    return save(tensors, path, **more)\n"
        "checkpoint_tensors.save_file = failing\n"
    )
    forked_ranks.prelude = lambda group, number: full.format((4, 8)[number])
    folder, outcome = tiny_run("full", SAVED)
    assert outcome.exit_code == 0
    problems = events(folder, RunProblem)
    assert [problem.step for problem in problems] == [4, 8] and "No space left" in problems[0].message
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-12"]


def test_settings_that_a_split_model_does_not_have_are_refused(tiny_config, subtests):
    for changes, words in (
        ({"training.torch_compile": "true"}, "compiled layers cannot be sharded"),
        ({"training.optim": "adafactor"}, "the optimizer state of adafactor cannot be sharded"),
        ({"training.optim": "muon"}, "the optimizer state of muon cannot be sharded"),
    ):
        with subtests.test(words), pytest.raises(ConfigError, match=words):
            estimated_plan(tiny_config("odd", SPLIT | changes))


@pytest.mark.full
def test_models_that_cannot_be_split_are_refused(tiny_config, tmp_path, subtests):
    for family, changes, words in (
        ("mixtral", FULL | {"training.router_aux_loss_coef": 0.5}, "is not tested with a router loss"),
        ("llama", LORA | {"model.add_tokens": "sheep"}, "embeddings with new tokens cannot be sharded"),
    ):
        base = from_model(save_tiny_model(tmp_path / family, family))
        with subtests.test(words), pytest.raises(ConfigError, match=words):
            estimated_plan(tiny_config("odd", SPLIT | base | changes))
