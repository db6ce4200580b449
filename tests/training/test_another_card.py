"""Runs on machines with simulated cards: which card computes, and how a run is resumed without its own card."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.hardware.conftest import FakeNvml
from tests.runs.journals import read_all
from tests.trained_runs import stopping_after
from tui_trainer.cli import main
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED, ConfigError, InputError, RunError
from tui_trainer.hardware.facts import Driver, Gpu
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan, read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning import plan as planning
from tui_trainer.planning.attention import NOT_PLANNED
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fit import GPU_SHARE, parts_of_run
from tui_trainer.planning.memory import estimate as memory
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.processes import threads_of
from tui_trainer.planning.retarget import retarget_plan, setup_of
from tui_trainer.runs.events import RunProblem
from tui_trainer.training import process, session
from tui_trainer.training import process as device

GIB = 1 << 30
OLD = "GPU-0000-0ld"
ON_CARD = {"device": "cuda", "gpu_uuid": OLD, "device_name": "NVIDIA H100 80GB HBM3"}
CARD = Gpu(
    index=0, name="NVIDIA H200", uuid="GPU-0000", capability=(9, 0), memory_bytes=141 * GIB,
    memory_free_bytes=140 * GIB, processes=(),
)  # fmt: skip
SECOND = replace(CARD, index=1, uuid="GPU-1000", memory_free_bytes=100 * GIB)


@pytest.fixture
def machine(monkeypatch):
    """`machine(CARD, ...)`: from now on this machine has these cards and no others."""

    def make(*gpus: Gpu):
        driver = Driver(version="580.65.06", cuda=(13, 2)) if gpus else None
        hardware = replace(probe(), gpus=gpus, driver=driver, torch_cuda=(13, 0), nvidia_pci_devices=len(gpus))
        for module in ("open_run", "prepare"):
            monkeypatch.setattr(f"tui_trainer.launching.{module}.probe", lambda: hardware)
        monkeypatch.setattr("tui_trainer.hardware.probe.probe", lambda: hardware)
        monkeypatch.setattr("tui_trainer.hardware.nvml.session", lambda **_: None)
        return hardware

    return make


@pytest.fixture
def stopped(tiny_run, monkeypatch):
    """`stopped(name)`: a run that was stopped after step 6, whose plan then names a card."""

    def make(name: str):
        with monkeypatch.context() as stopping:
            stopping.setattr(session.Session, "take_step", stopping_after(6))
            folder, outcome = tiny_run(name)
        assert outcome.exit_code == EXIT_STOPPED
        folder.plan.write_text(json.dumps(json.loads(folder.plan.read_bytes()) | ON_CARD))
        return folder

    return make


@pytest.fixture
def begun(tiny_config):
    """The plan of a run that began on a card which is not here."""
    return estimated_plan(tiny_config("one")).model_copy(update=ON_CARD)


def problems(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, RunProblem) and event.kind == kind]


# ------------------------------------------------------------- which card


def two_cards(monkeypatch, *uuids):
    """CUDA is at work already, as after an earlier run of this program, and shows these cards in this order."""
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    return used


def plan_for(uuid, **settings):
    training = SimpleNamespace(deterministic=False, tf32=False)
    return SimpleNamespace(
        device="cuda", gpu_uuid=uuid, threads=SimpleNamespace(value=torch.get_num_threads()),
        config=SimpleNamespace(training=training), attention=NOT_PLANNED, **settings,
    )  # fmt: skip


def test_a_second_run_of_a_program_computes_on_the_card_that_is_chosen_for_it(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    used = two_cards(monkeypatch, "aaaa-1", "BBBB-2")
    for uuid, index in (("GPU-aaaa-1", 0), ("GPU-bbbb-2", 1), ("GPU-aaaa-1", 0)):
        with process.settings_of(plan_for(uuid)):
            assert device.device_of(plan_for(uuid)) == used[-1] == torch.device("cuda", index)
            assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_cuda_visible_devices_of_the_user_stays_as_it_was(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b2")
    used = two_cards(monkeypatch, "of-the-whole-card")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with process.settings_of(plan_for("MIG-b2")):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-b2"
    assert used == [torch.device("cuda", 0)], "a process gets one instance, under whatever name"


def test_a_card_that_cuda_does_not_show_is_named_with_what_shows_it(monkeypatch):
    two_cards(monkeypatch, "aaaa-1", "bbbb-2")
    with pytest.raises(RunError, match=r"does not show GPU GPU-c.*CUDA_VISIBLE_DEVICES=GPU-c"):
        device.device_of(plan_for("GPU-c"))
    two_cards(monkeypatch)
    with pytest.raises(RunError, match="torch finds no GPU"):
        device.device_of(plan_for("GPU-aaaa-1"))


@pytest.mark.gpu
def test_the_card_of_a_plan_is_found_under_the_name_that_the_driver_gives_it():
    for gpu in probe().gpus:
        if gpu.visible:
            found = device.device_of(plan_for(gpu.cuda_uuid))
            device.use_device(found)
            assert torch.cuda.current_device() == found.index
            assert torch.cuda.get_device_name(found) in gpu.name


def test_a_chosen_card_is_planned_for_and_no_other(machine, tiny_config):
    machine(CARD, SECOND)
    loaded = tiny_config("one")
    plans = {choice: estimated_plan(loaded, gpu=choice) for choice in (None, 0, 1, "none")}
    uuids = {choice: plan.gpu_uuid for choice, plan in plans.items()}
    assert uuids == {None: "GPU-0000", 0: "GPU-0000", 1: "GPU-1000", "none": ""}
    # Without a choice each card of the kind has a process.
    assert [len(plan.gpu_uuids) for plan in plans.values()] == [2, 0, 0, 0]
    opened = open_new(loaded, gpu=1)
    outcome = execute_run(opened)
    # There is no such card for torch: what counts is the plan that the run made for itself.
    assert "torch finds no GPU" in outcome.failure and read_plan(opened.folder).gpu_uuid == "GPU-1000"
    with pytest.raises(InputError, match="there is no GPU 2"):
        estimated_plan(loaded, gpu=2)


def test_free_memory_of_a_card_is_read_again_for_each_plan(machine, tiny_config, monkeypatch):
    machine(CARD)
    library = FakeNvml({})
    monkeypatch.setattr("tui_trainer.hardware.nvml.session", lambda **_: Nvml(library))
    real, seen = planning.make, []

    def make(loaded, hardware, facts, **rest):
        seen.append(hardware.gpus[0].memory_free_bytes // GIB)
        return real(loaded, hardware, facts, **rest)

    monkeypatch.setattr(planning, "make", make)
    library.cards[0]["free"] = 70 * GIB
    opened = open_new(tiny_config("one"))
    library.cards[0]["free"] = 2 * GIB
    execute_run(opened)
    assert seen == [70, 2], "one when the run is opened, one right before it starts"


def test_the_command_takes_a_number_or_none(capsys):
    for word in ("one", "-1", "1.5"):
        assert main(["plan", f"--gpu={word}"]) == EXIT_BAD_INPUT
        assert "must be the number of a GPU or none" in capsys.readouterr().err
    assert main(["plan", "--gpu", "99"]) == EXIT_BAD_INPUT
    assert "there is no GPU 99" in capsys.readouterr().err


# ---------------------------------------------------------- resumed elsewhere


def test_a_run_is_resumed_on_another_card_and_reports_it(machine, stopped):
    folder = stopped("one")
    machine(CARD, SECOND)
    before = read_plan(folder)
    opened = reopen_run(folder)
    assert (opened.plan.gpu_uuid, opened.plan.device_name) == ("GPU-0000", "NVIDIA H200")
    execute_run(opened)
    (event,) = problems(folder, "another device")
    assert event.message == (
        "resuming on GPU 0 (NVIDIA H200) instead of the planned GPU (NVIDIA H100 80GB HBM3), which is not available"
    )
    after = read_plan(folder)
    assert after.gpu_uuid == "GPU-0000" and after.effective_batch_size == before.effective_batch_size
    opened = reopen_run(folder, gpu=1)
    assert opened.plan.gpu_uuid == "GPU-1000"
    assert opened.moved_words == "resuming on GPU 1 (NVIDIA H200) instead of the planned GPU (NVIDIA H200)"
    opened.lock.release()


def test_a_run_stays_on_its_own_card_with_the_plan_as_it_is(machine, begun):
    plan = begun
    hardware = machine(SECOND, replace(CARD, uuid=OLD, memory_free_bytes=GIB // 2))
    assert retarget_plan(plan, hardware, None) == (plan, "")
    hidden = replace(hardware, gpus=(SECOND, replace(CARD, uuid=OLD, visible=False)))
    assert retarget_plan(plan, hidden, None)[0].gpu_uuid == "GPU-1000"


def test_on_a_smaller_card_the_step_is_split_into_smaller_passes(machine, begun):
    plan = begun
    target = TrainingDevice.of(machine(CARD), 0)
    shape, setup = setup_of(plan, target)
    needed = {
        rows: memory.total_bytes(parts_of_run(shape, setup, plan.config, rows, min(rows, 4))) for rows in (1, 2, 3, 4)
    }
    assert plan.per_device_train_batch_size.value == 4 and needed[2] < needed[3] < needed[4]
    small = replace(CARD, memory_free_bytes=int(needed[2] / GPU_SHARE) + 1, memory_bytes=2 * GIB)
    changed, words = retarget_plan(plan, machine(small), None)
    split = (changed.per_device_train_batch_size.value, changed.gradient_accumulation_steps.value)
    assert split == (2, 2) and changed.per_device_eval_batch_size.value == 2
    assert changed.effective_batch_size == plan.effective_batch_size and changed.total_steps == plan.total_steps
    assert words.endswith("with micro-batches of 2 rows instead of 4")
    assert changed.memory_bytes.value == needed[2] and changed.per_device_train_batch_size.reason == words
    tiny = replace(CARD, memory_free_bytes=GIB // 2, memory_bytes=GIB // 2)
    with pytest.raises(ConfigError, match=r"needs about .* with a micro-batch of 1, but the GPU has 512"):
        retarget_plan(plan, machine(tiny), None)


def test_without_a_card_a_run_is_resumed_on_the_cpu_only_on_request(machine, stopped, tiny_run, capsys):
    whole, _ = tiny_run("whole")
    folder = stopped("one")
    machine()
    assert main(["resume", "one", "--no-ui"]) == EXIT_BAD_INPUT
    refusal = capsys.readouterr().err
    assert "this run trains on a GPU (NVIDIA H100 80GB HBM3), and no NVIDIA GPU" in refusal
    assert "--gpu none" in refusal and "Traceback" not in refusal
    assert main(["resume", "one", "--no-ui", "--gpu", "none"]) == EXIT_DONE
    assert (folder.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
    (event,) = problems(folder, "another device")
    assert "resuming on the CPU instead of the planned GPU" in event.message
    assert (read_plan(folder).device, read_plan(folder).gpu_uuid) == ("cpu", "")


def test_settings_that_the_cpu_cannot_compute_are_refused_before_the_start(machine, begun):
    for changes, words in (
        ({"precision": {"value": "fp16", "exact": True, "reason": ""}}, "computes in fp16, which needs a GPU"),
        ({"optim": "paged_adamw_8bit"}, "the optimizer paged_adamw_8bit runs on a GPU only"),
    ):
        content = begun.model_dump()
        (content["config"]["training"] if "optim" in changes else content).update(changes)
        with pytest.raises(ConfigError, match=words):
            retarget_plan(Plan.model_validate(content), machine(), "none")


def test_a_card_without_bf16_does_not_take_over_a_run_in_bf16(machine, begun):
    plan = begun.model_copy(update={"precision": begun.precision.model_copy(update={"value": "bf16"})})
    old = replace(CARD, name="Tesla T4", capability=(7, 5), memory_bytes=16 * GIB, memory_free_bytes=15 * GIB)
    with pytest.raises(ConfigError, match=r"computes in bf16, which a GPU of compute capability 7\.5 does not support"):
        retarget_plan(plan, machine(old), None)


def test_a_run_on_the_cpu_is_moved_to_a_card_only_on_request(machine, begun):
    hardware = machine(CARD)
    plan, _ = retarget_plan(begun, hardware, "none")
    assert plan.device == "cpu" and plan.threads.value == threads_of(hardware).value
    assert retarget_plan(plan, hardware, None) == (plan, "") == retarget_plan(plan, hardware, "none")
    back, words = retarget_plan(plan, hardware, 0)
    assert (back.device, back.gpu_uuid) == ("cuda", CARD.uuid) and words.endswith("instead of the CPU")
    assert back.training_setup.device == "cuda"


def test_a_run_is_not_moved_where_its_library_is_not_installed(machine, begun):
    training = begun.config.training.model_copy(update={"optim": "adamw_8bit"})
    plan = begun.model_copy(update={"config": begun.config.model_copy(update={"training": training})})
    with pytest.raises(ConfigError, match="needs bitsandbytes, which is not installed here"):
        retarget_plan(plan, replace(machine(CARD), libraries={}), None)
