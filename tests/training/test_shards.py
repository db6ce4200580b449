"""Checkpoints of a run: written in files of bounded size, resumed to the bit, and passed over if they are damaged."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from tests.runs.journals import read_all
from tests.trained_runs import stopping_after
from tui_trainer.errors import EXIT_DONE
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.files import shards
from tui_trainer.runs.events import RunProblem, RunStarted
from tui_trainer.training import checkpoint
from tui_trainer.training import checkpoint as checkpoint_tensors
from tui_trainer.training.checkpoint_folder import newest_whole, steps_saved
from tui_trainer.training.session import Session

LIMIT_BYTES = 9000


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", LIMIT_BYTES)


@pytest.fixture
def stop_after(monkeypatch):
    """`stop_after(step)`: the next run is asked to stop after that step; 0: it is not."""
    take = Session.take_step
    return lambda step: monkeypatch.setattr(Session, "take_step", stopping_after(step) if step else take)


class Meter:
    """Counts the bytes of tensors that a writer has on the host at one time."""

    def __init__(self, monkeypatch) -> None:
        self.alive = self.most = self.files = 0
        to_host, save = checkpoint_tensors._on_host, checkpoint_tensors.save_file

        def on_host(tensors, names):
            # Tensors of a card are copied to the host. Without a card, copy them as well.
            return {name: self._counted(tensor.clone()) for name, tensor in to_host(tensors, names).items()}

        def save_file(tensors, *args, **kwargs):
            self.files += 1
            save(tensors, *args, **kwargs)

        monkeypatch.setattr(checkpoint_tensors, "_on_host", on_host)
        monkeypatch.setattr(checkpoint_tensors, "save_file", save_file)

    def _counted(self, tensor):
        self.alive += tensor.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(tensor, self._gone, tensor.nbytes)
        return tensor

    def _gone(self, count: int) -> None:
        self.alive -= count


def test_the_host_never_holds_more_than_one_shard_while_a_checkpoint_is_saved(small_shards, tiny_run, monkeypatch):
    meter = Meter(monkeypatch)
    folder, outcome = tiny_run("one", {"training.max_steps": 2})
    assert outcome.exit_code == EXIT_DONE
    saved = folder.checkpoints / "step-2"
    state = sum(path.stat().st_size for path in saved.glob("optimizer*"))
    assert meter.files > 7 and meter.most <= LIMIT_BYTES < state / 4
    assert meter.alive == 0


def test_a_run_is_resumed_from_shards_to_the_bit(small_shards, tiny_run, stop_after):
    dropout = {"model.scratch.attention_dropout": 0.2}
    whole, _ = tiny_run("whole", dropout)
    stop_after(6)
    parted, _ = tiny_run("parted", dropout)
    assert len(list((parted.checkpoints / "step-6").glob("optimizer-*-of-*.safetensors"))) > 2
    stop_after(0)
    assert execute_run(reopen_run(parted)).exit_code == EXIT_DONE
    for step in ("checkpoints/step-10", "model"):
        ours, others = (sorted((folder.root / step).glob("*.safetensors")) for folder in (whole, parted))
        assert [path.name for path in ours] == [path.name for path in others] and len(ours) > 2
        assert all(one.read_bytes() == other.read_bytes() for one, other in zip(ours, others, strict=True))


@pytest.mark.full
def test_a_run_with_a_damaged_checkpoint_is_resumed_from_the_one_before_to_the_bit(small_shards, tiny_run, stop_after):
    changes = {"checkpoint.save_steps": 4, "model.scratch.attention_dropout": 0.2}
    whole, _ = tiny_run("whole", changes)
    stop_after(8)
    folder, _ = tiny_run("damaged", changes)
    newest = sorted((folder.checkpoints / "step-8").glob("optimizer-*"))
    newest[1].unlink()
    stop_after(0)
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    events = read_all(folder.journal)
    (damage,) = [event for event in events if isinstance(event, RunProblem)]
    assert damage.kind == "checkpoint damaged" and newest[1].name in damage.message
    assert "the run resumes from step 4;" in damage.hint
    assert [event.resumed_from_step for event in events if isinstance(event, RunStarted)] == [None, 4]
    assert tensors_in(folder.checkpoints / "step-10") == tensors_in(whole.checkpoints / "step-10")


@pytest.mark.full
def test_a_run_whose_two_newest_checkpoints_are_damaged_keeps_the_next_ones(tiny_run):
    changes = {"checkpoint.save_steps": 2, "checkpoint.save_total_limit": 3}
    folder, _ = tiny_run("damaged", changes)
    assert steps_saved(folder.checkpoints) == [10, 8, 6]
    for step in (10, 8):
        (folder.checkpoints / f"step-{step}" / "position.json").write_text("{}")
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    assert steps_saved(folder.checkpoints) == [10, 8, 6]
    assert newest_whole(folder.checkpoints, pytest.fail).step == 10


@pytest.mark.full
def test_a_run_whose_checkpoints_are_all_damaged_restarts_beside_them(tiny_run):
    folder, _ = tiny_run("damaged", {"checkpoint.save_steps": 5, "checkpoint.save_total_limit": 2})
    for step in (10, 5):
        (folder.checkpoints / f"step-{step}" / "position.json").write_text("{}")
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    events = read_all(folder.journal)
    hint = [one for one in events if isinstance(one, RunProblem)][-1].hint
    assert "the run starts over, as no checkpoint is left;" in hint
    assert [event.resumed_from_step for event in events if isinstance(event, RunStarted)] == [None, 0]
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    assert names == ["damaged-step-10", "damaged-step-5", "step-10", "step-5"]


@pytest.mark.full
def test_a_run_that_writes_shards_is_resumed_from_a_checkpoint_in_one_file(tiny_run, stop_after, monkeypatch):
    whole, _ = tiny_run("whole")
    stop_after(6)
    parted, _ = tiny_run("parted")
    assert (parted.checkpoints / "step-6" / checkpoint.OPTIMIZER).is_file()
    stop_after(0)
    monkeypatch.setattr(shards, "SHARD_BYTES", LIMIT_BYTES)
    assert execute_run(reopen_run(parted)).exit_code == EXIT_DONE
    assert tensors_in(parted.checkpoints / "step-10") == tensors_in(whole.checkpoints / "step-10")


@pytest.mark.full
def test_transformers_loads_the_shards(small_shards, tiny_run):
    folder, _ = tiny_run("one", {"training.max_steps": 1})
    saved = folder.checkpoints / "step-1"
    index = json.loads((saved / "model.safetensors.index.json").read_bytes())
    assert len(set(index["weight_map"].values())) > 2
    loaded, final = (AutoModelForCausalLM.from_pretrained(path) for path in (saved, folder.model))
    both = zip(loaded.state_dict().values(), final.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


def tensors_in(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.glob("optimizer*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
    return found


def test_tensors_are_split_in_order_and_a_larger_one_has_a_file_of_its_own():
    sizes = {"a": 6, "b": 4, "c": 1, "d": 30, "e": 1}
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    split = shards.split(sizes, "model.safetensors", 10)
    assert sorted(split) == files and sorted(split.values()) == [["a", "b"], ["c", "e"], ["d"]]
    assert shards.split(sizes, "model.safetensors", 1000) == {"model.safetensors": [*sizes]}
    assert shards.split({}, "model.safetensors", 10) == {"model.safetensors": []}


@pytest.mark.full
def test_weights_of_another_model_are_refused(small_shards, tiny_run, stop_after, monkeypatch):
    stop_after(4)
    folder, _ = tiny_run("one")
    stop_after(0)
    names = checkpoint_tensors.SavedTensors.names.fget

    def lacking(saved):
        return {name for name in names(saved) if "lm_head" not in name and "norm" not in name}

    monkeypatch.setattr(checkpoint_tensors.SavedTensors, "names", property(lacking))
    outcome = execute_run(reopen_run(folder))
    assert "does not have the weights of this model" in outcome.failure
