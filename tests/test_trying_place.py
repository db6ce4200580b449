"""Device on which a model of a run is tried: a GPU with enough free memory beside the runs on it, else the CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.hardware.conftest import FakeNvml
from tests.simulated_card.cases import open_run
from tests.simulated_card.machine import H200, UUID, simulated_card
from tui_trainer.errors import RunError
from tui_trainer.exporting import generate
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.hardware import nvml as nvml_room
from tui_trainer.hardware import probe
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.launching.model_process import ON_THE_CPU, find_device
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning.memory.gpu import CONTEXT_BYTES
from tui_trainer.runs.lock import RunLock
from tui_trainer.units import GIB

pytestmark = pytest.mark.full

SAMPLING = {"max_new_tokens": 4, "temperature": 0.8, "seed": 1}


@pytest.fixture(scope="module")
def on_card(tmp_path_factory):
    """A finished run of a tiny model on the simulated GPU, and the facts of its machine."""
    place = tmp_path_factory.mktemp("card")
    with simulated_card():
        opened = open_run(place, place, "causal_lm", {}, "run")
        assert execute_run(opened).exit_code == 0
        machine = probe.probe()
    return opened.folder, machine


@pytest.fixture
def card(monkeypatch):
    """Return `card(free_gib, held_gib)`, which sets what the driver reports. None: it does not know the process."""
    machine = FakeNvml({"uuid": UUID})

    def says(free_gib: float, held_gib: float | None = None) -> None:
        processes = [] if held_gib is None else [SimpleNamespace(pid=os.getpid(), usedGpuMemory=int(held_gib * GIB))]
        machine.cards[0].update(free=int(free_gib * GIB), processes=processes)

    nvml = Nvml(machine)
    nvml.driver()
    monkeypatch.setattr(nvml_room, "session", lambda: nvml)
    return says


@pytest.fixture
def planned_peak(on_card, monkeypatch):
    """Return `planned_peak(gib)`, which sets the planned memory of the run."""
    read = TrainedModel.of(on_card[0]).plan

    def plan(gib: float) -> None:
        peak = read.memory_bytes.model_copy(update={"value": int(gib * GIB)})
        found = read.model_copy(update={"memory_bytes": peak})
        monkeypatch.setattr("tui_trainer.launching.model_process.plan_of", lambda folder: found)

    return plan


def test_finished_run_leaves_all_free_memory(on_card, card, planned_peak):
    folder, machine = on_card
    assert TrainedModel.of(folder).plan.gpu_uuid == UUID
    planned_peak(100)
    card(20)
    place = find_device(folder, machine, 240)
    assert place.card_uuid == UUID and place.words.startswith("on GPU 0: the model needs ")
    assert place.words.endswith("of 18.0 GiB free") and place.card_bytes == int(0.9 * 20 * GIB) - CONTEXT_BYTES


@pytest.mark.parametrize(
    ("free", "held", "seen", "still", "fits"),
    [
        (60, 60, 0, "40.0 GiB", True),
        (41, 60, 0, "40.0 GiB", False),  # 0.9 GiB of it, and its context alone takes 0.7
        (60, None, 0, "100.0 GiB", False),  # nothing is known of what it has
        (60, None, 60, "40.0 GiB", True),  # its journal tells its peak
        (20, 100, 0, "", True),  # it has taken all that it was planned to
    ],
)
def test_running_run_keeps_its_planned_peak(free, held, seen, still, fits, on_card, card, planned_peak, monkeypatch):
    folder, machine = on_card
    planned_peak(100)
    card(free, held)
    monkeypatch.setattr("tui_trainer.launching.model_process.answering_bytes", lambda *_: GIB)
    with RunLock(folder.lock):
        place = find_device(folder, machine, 240, seen_bytes=seen * GIB)
    assert bool(place.card_uuid) == fits
    assert place.words.startswith(
        "on GPU 0: the model needs 1.0 GiB of " if fits else "on the CPU: the model needs 1.0 GiB, but GPU 0 has "
    )
    assert (f"besides {still} reserved for runs on this GPU" in place.words) == bool(still)


def test_two_models_need_memory_for_both(on_card, card, planned_peak, monkeypatch):
    folder, machine = on_card
    card(10)
    monkeypatch.setattr("tui_trainer.launching.model_process.answering_bytes", lambda *_: 5 * GIB)
    assert find_device(folder, machine, 240).card_uuid == UUID
    assert not find_device(folder, machine, 240, models=2).card_uuid


def test_cpu_is_used_without_a_gpu_or_on_request(on_card, card):
    folder, machine = on_card
    card(100)
    assert find_device(folder, replace(machine, gpus=()), 240) == ON_THE_CPU
    assert find_device(folder, machine, 240, gpu="none") == ON_THE_CPU
    assert find_device(folder, machine, 240, gpu=0).card_uuid == UUID


def test_needed_memory_grows_with_the_tokens_and_counts_base_and_adapter(on_card, card):
    folder, machine = on_card
    card(100)
    trained = TrainedModel.of(folder)
    taken = [find_device(folder, machine, tokens).words for tokens in (240, 2_000_000)]
    assert taken[0] != taken[1], "more tokens take more"
    adapter = sum(path.stat().st_size for path in trained.folder.glob("*.safetensors"))
    assert trained.base and trained.loaded_bytes == trained.weight_bytes + adapter > trained.weight_bytes


@pytest.fixture
def asked(on_card, monkeypatch):
    """A question to the worker, which is answered in this process."""
    monkeypatch.setattr(generate, "_writers", {})
    monkeypatch.setattr(generate, "_uses_cpu", False)
    return {"run": str(on_card[0].root), "base": False, "card": {"uuid": UUID, "bytes": 2 * GIB}, "text": "The sheep",
            "sampling": SAMPLING}  # fmt: skip


def test_worker_limits_its_memory_on_the_gpu(asked, monkeypatch):
    limits = []
    with simulated_card() as card:
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *of: limits.append(of))
        answer = generate.try_model(asked, lambda **_: None)
        assert card.peak_bytes > 0
    assert limits == [(2 * GIB / H200.memory_bytes, 0)] and answer["moved"] is False


def test_worker_moves_to_the_cpu_if_the_gpu_is_full(asked, monkeypatch):
    told = []
    with simulated_card():
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: None)
        go_on, calls = generate.Writer.continue_text, []

        def full(writer, prompt, sampling, show):
            calls.append(writer._model.device.type)
            if len(calls) == 3:
                show("a piece")
            if calls[-1] == "cuda":
                raise torch.OutOfMemoryError("CUDA out of memory")
            return go_on(writer, prompt, sampling, show)

        monkeypatch.setattr(generate.Writer, "continue_text", full)
        answer = generate.try_model(asked, lambda **piece: told.append(piece))
        assert answer["moved"] is True and calls == ["cuda", "cpu"] and told
        monkeypatch.setattr(generate, "_writers", {})
        monkeypatch.setattr(generate, "_uses_cpu", False)
        with pytest.raises(RunError, match="the next text is generated on the CPU"):
            generate.try_model(asked, lambda **_: None)
        assert generate.try_model(asked, lambda **_: None)["moved"] is True
