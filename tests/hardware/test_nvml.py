"""Reading the NVIDIA driver, in good order and with every error."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from threading import Event
from types import SimpleNamespace

import pytest

from tui_trainer.hardware.nvml import Nvml, read_cards, with_memory_now

CODES = (1, 2, 3, 4, 9, 10, 12, 13, 15, 16, 18, 999)
FIELDS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetUtilizationRates": "utilisation_share",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_watts",
    "nvmlDeviceGetMigMode": "mig_enabled",
}


def test_a_healthy_gpu_is_read_in_full(fake_nvml):
    process = SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 << 30)
    library = fake_nvml({"processes": [process]})
    driver, (gpu,) = read_cards(Nvml(library))
    assert (driver.version, driver.cuda, driver.problem) == ("580.65.06", (13, 2), "")
    assert (gpu.name, gpu.capability) == ("NVIDIA H200", (9, 0))
    assert (gpu.memory_bytes, gpu.memory_free_bytes) == (141 << 30, 140 << 30)
    used = (gpu.utilisation_share, gpu.temperature_celsius, gpu.power_watts, gpu.power_limit_watts)
    assert used == (0.25, 41.0, 80.5, 700.0)
    assert [(p.pid, p.name, p.memory_bytes) for p in gpu.processes] == [(os.getpid(), "this program", 5 << 30)]
    import pynvml

    assert len(set(library.calls)) >= 14
    assert [call for call in set(library.calls) if not callable(getattr(pynvml, call, None))] == []
    assert issubclass(pynvml.NVMLError, Exception)


def test_each_error_of_a_call_costs_only_its_field(fake_nvml):
    for (call, lost), code in product(FIELDS.items(), CODES):
        sick, well = Nvml(fake_nvml({}, {}, errors={(call, 0): code})).gpus()
        assert {field for field in FIELDS.values() if getattr(sick, field) is None} == {lost}, (call, code)
        assert all(getattr(well, field) is not None for field in FIELDS.values()), (call, code)


def test_a_driver_that_does_not_start_is_reported_with_the_reason(fake_nvml, subtests):
    reasons = {9: "not loaded", 12: "not found", 18: "updated", 15: "fallen off", 4: "user", 10: "time", 999: "999"}
    for code, word in reasons.items():
        with subtests.test(word):
            driver, gpus = read_cards(Nvml(fake_nvml({}, errors={"nvmlInit": code})))
            assert word in driver.problem
            assert (driver.error_code, driver.version, driver.cuda, gpus) == (code, None, None, ())


def test_an_error_of_the_driver_itself_is_no_problem_of_the_gpu(fake_nvml):
    for call in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount"):
        for code in CODES:
            driver, gpus = read_cards(Nvml(fake_nvml({}, errors={call: code})))
            assert driver.problem == ""
            assert len(gpus) == (0 if call == "nvmlDeviceGetCount" else 1)


def test_a_lost_gpu_or_one_that_needs_a_reset_is_reported(fake_nvml):
    lost, well = Nvml(fake_nvml({}, {}, errors={("nvmlDeviceGetHandleByIndex", 0): 15})).gpus()
    assert "fallen off the bus" in lost.problem and lost.name is None
    assert (well.problem, well.name) == ("", "NVIDIA H200")
    (card,) = Nvml(fake_nvml({}, errors={"nvmlDeviceGetMemoryInfo": 16})).gpus()
    assert "reset" in card.problem


def test_processes_of_a_gpu_may_be_unlisted_or_ended(fake_nvml):
    refused = {"nvmlDeviceGetComputeRunningProcesses": 4, "nvmlDeviceGetGraphicsRunningProcesses": 3}
    (card,) = Nvml(fake_nvml({}, errors=refused)).gpus()
    assert card.processes is None
    (idle,) = Nvml(fake_nvml({})).gpus()
    assert idle.processes == ()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (card,) = Nvml(fake_nvml({"processes": [SimpleNamespace(pid=gone.pid, usedGpuMemory=None)]})).gpus()
    (process,) = card.processes
    assert (process.pid, process.name, process.user, process.memory_bytes) == (gone.pid, None, None, None)


def test_cuda_visible_devices_hides_gpus(fake_nvml, monkeypatch):
    # CUDA shows a process only the MIG instance that it names, which none of these cards has.
    hidden = {"": [], "-1": [], "GPU-": [], "MIG-4b0a": []}
    for value, visible in {"3,1": [1, 3], "GPU-2000": [2], "0,9,1": [0], **hidden}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert [gpu.index for gpu in Nvml(fake_nvml({}, {}, {}, {})).gpus() if gpu.visible] == visible, value


def test_a_driver_that_hangs_is_reported_after_the_deadline(fake_nvml):
    never = Event()
    driver, gpus = read_cards(Nvml(fake_nvml({}, hang=never)), deadline_seconds=0.05)
    assert "did not respond within" in driver.problem and gpus == ()
    never.set()


@pytest.mark.full
def test_a_library_without_a_function_costs_one_field(fake_nvml):
    class Older(fake_nvml):
        def __getattr__(self, name):
            if name == "nvmlDeviceGetMigMode":
                raise AttributeError(name)
            return super().__getattr__(name)

    (card,) = Nvml(Older({"capability": None, "name": "old"})).gpus()
    assert (card.name, card.capability, card.mig_enabled) == ("old", None, None)


def test_a_driver_is_started_once_and_again_only_by_a_full_look(fake_nvml):
    library = fake_nvml({}, errors={"nvmlInit": 9})
    nvml = Nvml(library)
    assert [nvml.live() for _ in range(5)] == [()] * 5
    assert library.calls.count("nvmlInit") == 1
    assert read_cards(nvml)[0].error_code == 9
    library.errors.clear()
    driver, gpus = read_cards(nvml)
    assert (driver.problem, len(gpus), len(nvml.live())) == ("", 1, 1)
    started = library.calls.count("nvmlInit")
    nvml.gpus()
    nvml.live()
    nvml.driver()
    assert library.calls.count("nvmlInit") == started


DIVIDED = {"instances": {"MIG-a1": 17 << 30, "MIG-b2": 4 << 30}}


# CUDA_VISIBLE_DEVICES, and the instance that CUDA gives a process.
INSTANCES = [
    ("MIG-b2", "MIG-b2", 4 << 30),
    ("MIG-b", "MIG-b2", 4 << 30),
    ("MIG-b2,MIG-a1", "MIG-b2", 4 << 30),
    ("GPU-0000", "MIG-a1", 17 << 30),
    (None, "MIG-a1", 17 << 30),
]


def test_a_divided_gpu_has_the_memory_of_the_instance_that_cuda_uses(fake_nvml, monkeypatch, subtests):
    name, capability = "NVIDIA H200 MIG 1g.18gb", (9, 0)
    for visible, uuid, free_bytes in INSTANCES:
        with subtests.test(str(visible)), monkeypatch.context() as patch:
            if visible:
                patch.setenv("CUDA_VISIBLE_DEVICES", visible)
            nvml = Nvml(fake_nvml(DIVIDED, {}))
            card, other = nvml.gpus()
            assert (card.mig_uuid, card.cuda_uuid, card.uuid, card.mig_enabled) == (uuid, uuid, "GPU-0000", True)
            assert (card.memory_bytes, card.memory_free_bytes, card.name) == (18 << 30, free_bytes, name)
            assert (card.capability, card.power_watts, card.problem) == (capability, 80.5, "")
            assert (card.visible, other.visible) == (True, visible is None)
            assert [gpu.memory_free_bytes for gpu in nvml.live()] == [free_bytes, 140 << 30]


def test_gpu_memory_is_read_anew_unless_the_driver_hangs(fake_nvml):
    library = fake_nvml({}, {})
    nvml = Nvml(library)
    before = nvml.gpus()
    library.cards[1]["free"] = 1 << 30
    now = with_memory_now(before, nvml)
    assert [gpu.memory_free_bytes for gpu in now] == [140 << 30, 1 << 30]
    assert [gpu.uuid for gpu in now] == [gpu.uuid for gpu in before]
    assert with_memory_now(before, None) == before
    never = library.hang = Event()
    assert with_memory_now(before, nvml, deadline_seconds=0.05) == before
    never.set()


def test_a_live_look_does_not_list_processes(fake_nvml):
    library = fake_nvml({}, {})
    assert [gpu.memory_free_bytes for gpu in Nvml(library).live()] == [140 << 30] * 2
    assert not [call for call in library.calls if "Process" in call]
