"""What `tui-trainer diagnose` reports about machines in all states."""

from __future__ import annotations

import json

import pytest

from tui_trainer.errors import InputError
from tui_trainer.hardware.diagnosis import diagnose, usable_gpus
from tui_trainer.hardware.facts import Driver, GpuProcess, Place
from tui_trainer.hardware.nvml import Nvml, read_cards
from tui_trainer.lines import diagnose as command
from tui_trainer.planning.processes import cards_for

GIB = 1 << 30
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\r\n\u202e"


def test_training_runs_on_the_gpu_if_torch_can_use_it_and_else_on_the_cpu_with_a_reason(machine, gpu):
    found = diagnose(machine(gpus=(gpu(),)))
    assert (found.device, found.device_reason, found.gpu_reason) == ("cuda", "GPU 0, NVIDIA H200", "the only GPU")
    assert found.gpu.card.title == "H200 SXM" and found.gpu.abilities.bf16 and found.problems == ()
    for hardware, reason in (
        (machine(), "no NVIDIA GPU"),
        (machine(gpus=(gpu(capability=(3, 7)),)), "too old"),
        (machine(gpus=(gpu(),), torch_cuda=None), "without CUDA"),
        (machine(gpus=(gpu(visible=False),)), "no GPU of this machine"),
    ):
        found = diagnose(hardware)
        assert found.device == "cpu" and reason in found.device_reason
    without = diagnose(machine())
    assert (without.gpu, without.problems, without.is_bad) == (None, (), False)
    asked = diagnose(machine(gpus=(gpu(),)), "none")
    assert (asked.device, asked.gpu, asked.device_reason) == ("cpu", None, "requested with --gpu none")
    assert not asked.gpu_is_chosen


def test_the_gpu_with_most_free_memory_is_chosen_then_the_least_used(machine, gpu):
    free = {"memory_free_bytes": 100 * GIB}
    cards = (gpu(0, memory_free_bytes=GIB), gpu(1, **free, utilisation_share=0.9), gpu(2, **free))
    assert diagnose(machine(gpus=cards)).gpu.index == 2
    assert diagnose(machine(gpus=cards), 1).gpu.index == 1
    silent = (gpu(0, memory_free_bytes=None), gpu(1, memory_free_bytes=GIB))
    assert diagnose(machine(gpus=silent)).gpu.index == 1


def test_gpus_that_are_lost_hidden_or_not_served_by_torch_are_not_chosen(machine, gpu):
    old = gpu(0, name="Tesla P40", capability=(6, 1), memory_free_bytes=139 * GIB)
    both = machine(gpus=(old, gpu(1, memory_free_bytes=100 * GIB)), torch_cuda=(13, 0))
    found = diagnose(both)
    assert (found.device, found.gpu.index, found.gpu_reason) == ("cuda", 1, "the only usable GPU")
    assert [gpu.index for gpu in cards_for(both, both.gpus[1])] == [1]
    found = diagnose(both, 0)
    assert (found.device, found.gpu.index) == ("cpu", 0) and "cannot use GPU 0" in found.device_reason
    cards = (gpu(0, problem="has fallen off the bus"), gpu(1, visible=False), gpu(2, memory_free_bytes=GIB))
    found = diagnose(machine(gpus=cards))
    assert found.gpu.index == 2
    sentences = [(problem.severity, problem.sentence) for problem in found.problems]
    assert ("bad", "GPU 0 has fallen off the bus") in sentences
    assert ("info", "CUDA_VISIBLE_DEVICES hides GPU 1") in sentences
    assert diagnose(machine(gpus=cards), 0).is_bad and diagnose(machine(gpus=cards[:2])).gpu is None
    with pytest.raises(InputError, match="hidden by CUDA_VISIBLE_DEVICES"):
        diagnose(machine(gpus=cards), 1)
    for index in (3, -1):
        with pytest.raises(InputError, match=r"no GPU .*GPUs here: 0, 1, 2"):
            diagnose(machine(gpus=cards), index)
        with pytest.raises(InputError, match="this machine has no GPU"):
            diagnose(machine(), index)


OLD_DRIVER = Driver(version="550.54", cuda=(12, 4))
HOLDER = GpuProcess(pid=4711, name="python", user="anna", memory_bytes=120 * GIB)
HOLDERS = (GpuProcess(pid=1, memory_bytes=GIB), HOLDER)
# What differs from a machine with one healthy GPU; severity, and words of the sentence and its remedy.
PROBLEMS = [
    ({"driver": OLD_DRIVER}, {}, "bad", "torch is built for CUDA 13.2, but the driver supports 12.4",
     "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"),
    ({"driver": OLD_DRIVER, "libraries": {"torch": "2", "pip": None}}, {}, "bad", "", "uv pip install"),
    ({"torch_cuda": None}, {}, "bad", "without CUDA", "whl/cu130"),
    ({"driver": Driver(cuda=(11, 4))}, {}, "bad", "", "newer NVIDIA driver"),
    ({}, {"capability": (7, 0)}, "bad", "GPU 0: CUDA 13 supports compute capability 7.5 and newer", "whl/cu126"),
    ({}, {"capability": (3, 7)}, "", "too old", ""),
    ({}, {"memory_free_bytes": 2 * GIB, "processes": HOLDERS}, "warn",
     "GPU 0 has only 2.0 GiB of 141.0 GiB free: python of anna (pid 4711) holds 120.0 GiB", ""),
]  # fmt: skip


def test_each_problem_with_a_gpu_is_named_with_a_remedy(machine, gpu, subtests):
    for differs, of_gpu, severity, sentence, remedy in PROBLEMS:
        with subtests.test(sentence or remedy):
            (problem,) = diagnose(machine(gpus=(gpu(**of_gpu),), **differs)).problems
            assert sentence in problem.sentence and remedy in problem.remedy
            assert problem.severity == (severity or problem.severity)
    assert diagnose(machine(gpus=(gpu(),), driver=Driver(cuda=(13, 0)))).problems == (), "an older minor version"
    of_2_11 = {"torch_cuda": (12, 8), "libraries": {"torch": "2.11.0+cu128"}}
    assert not usable_gpus(machine(gpus=(gpu(capability=(7, 0)),), **of_2_11))


def test_a_gpu_without_a_driver_that_answers_has_a_remedy(machine, fake_nvml, subtests):
    (unseen,) = diagnose(machine(nvidia_pci_devices=2)).problems
    assert (unseen.severity, unseen.sentence) == (
        "bad",
        "2 NVIDIA GPUs are on the PCI bus, but no NVIDIA driver was found",
    )
    for code, remedy in ((18, "sudo reboot"), (9, "sudo modprobe nvidia"), (12, "docker run --gpus all")):
        with subtests.test(remedy):
            driver, gpus = read_cards(Nvml(fake_nvml({}, errors={"nvmlInit": code})))
            diagnosis = diagnose(machine(driver=driver, gpus=gpus, nvidia_pci_devices=1))
            (problem,) = diagnosis.problems
            assert problem.severity == "bad" and remedy in problem.remedy
            assert "driver does not respond" in diagnosis.device_reason
    leftover = Driver(problem="the NVIDIA driver is installed but not loaded", error_code=9)
    assert not diagnose(machine(driver=leftover, nvidia_pci_devices=0)).is_bad, "without a card it is only a warning"


def test_full_disks_are_named_with_the_variable_that_moves_the_folder(machine):
    places = (
        Place(label="runs", path="/r", free_bytes=100 * GIB, total_bytes=200 * GIB, writable=True),
        Place(label="model cache", path="/c", free_bytes=5 * GIB, total_bytes=200 * GIB, writable=True),
        Place(label="temporary", path="/t", free_bytes=GIB // 2, total_bytes=200 * GIB, writable=True),
        Place(label="prepared data", path="/p", free_bytes=100 * GIB, total_bytes=200 * GIB, writable=False),
    )
    found = [(one.severity, one.remedy.split("=")[0]) for one in diagnose(machine(places=places)).problems]
    assert found == [("bad", "export TMPDIR"), ("bad", "export TUI_TRAINER_HOME"), ("warn", "export HF_HOME")]


def test_bytecode_that_python_does_not_keep_is_named_with_the_command(machine):
    for obstacle, remedy in (("variable", "unset PYTHONDONTWRITEBYTECODE"), ("folder", "export PYTHONPYCACHEPREFIX=")):
        (problem,) = diagnose(machine(bytecode_obstacle=obstacle)).problems
        assert problem.severity == "info" and problem.remedy.startswith(remedy)


@pytest.mark.full
def test_limits_of_a_container_and_a_weak_machine_are_reported(machine):
    flags = frozenset({"sse4_2", "avx"})
    found = diagnose(
        machine(memory_bytes=2 * GIB, usable_cores=2, cpu_flags=flags, memory_available_bytes=GIB)
    ).problems
    assert [problem.severity for problem in found] == ["warn", "warn", "info", "info"]
    text = " ".join(problem.sentence for problem in found)
    for words in (
        "2.0 GiB of memory is very little",
        "2.0 GiB of the machine's 64.0 GiB",
        "2 of the machine's 8 cores",
        "no AVX2",
    ):
        assert words in text


@pytest.mark.full
def test_a_gpu_that_reports_nothing_is_diagnosed(machine, fake_nvml):
    of_card = "Name UUID CudaComputeCapability MemoryInfo UtilizationRates Temperature PowerUsage EnforcedPowerLimit"
    of_card += " ComputeRunningProcesses GraphicsRunningProcesses MigMode"
    errors = dict.fromkeys([f"nvmlDeviceGet{name}" for name in of_card.split()], 3)
    errors["nvmlSystemGetCudaDriverVersion_v2"] = 3
    driver, gpus = read_cards(Nvml(fake_nvml({}, errors=errors)))
    hardware = machine(driver=driver, gpus=gpus)
    found = diagnose(hardware)
    assert (found.gpu.index, found.gpu.card, found.gpu.abilities, found.problems) == (0, None, None, ())
    text = "\n".join(command.diagnosis_lines(hardware, found, ("cpu", "why"), 80))
    assert "not reported" in text and "not in the catalogue" in text


def test_control_characters_in_names_are_not_printed(machine, gpu):
    process = GpuProcess(pid=1, name=HOSTILE, user=HOSTILE, memory_bytes=140 * GIB)
    names = {"name": HOSTILE, "memory_free_bytes": 0, "processes": (process,)}
    place = Place(label="runs", path=f"/{HOSTILE}", free_bytes=1, total_bytes=2, writable=True)
    hardware = machine(
        gpus=(gpu(**names), gpu(1, **names)), driver=Driver(version=HOSTILE, cuda=(12, 0)), host=HOSTILE,
        cpu_name=HOSTILE, libraries={"torch": HOSTILE}, places=(place,),
    )  # fmt: skip
    diagnosis = diagnose(hardware, 0)
    lines = command.diagnosis_lines(hardware, diagnosis, (HOSTILE, HOSTILE), 80)
    printed = "".join(lines) + "".join(one.sentence + one.remedy for one in diagnosis.problems)
    assert "owned" in printed and not set(printed) & set("\x1b\x07\r\n\u202e")
    assert "\x1b" not in json.dumps(command.as_document(hardware, diagnosis, ("", "")))


def test_lines_fit_the_terminal_and_json_has_the_same_keys_for_every_machine(machine, gpu):
    two = machine(gpus=(gpu(), gpu(1)), driver=Driver(version="550", cuda=(12, 4)))
    for width in (60, 80, 200):
        lines = command.diagnosis_lines(two, diagnose(two), ("cpu", "it trains on the CPU"), width)
        words = [line for line in lines if "https://" not in line]
        assert max(map(len, words)) <= width and len(words) > 20
    machines = (machine(), machine(gpus=(gpu(), gpu(1))), machine(driver=Driver(problem="no", error_code=9)))
    none, some, sick = (
        json.loads(json.dumps(command.as_document(one, diagnose(one), ("", "none")))) for one in machines
    )
    assert none.keys() == some.keys() == sick.keys()
    assert none["gpu"] is None and none["hardware_profile"] is None
    assert some["gpus"][0]["card"]["teraflops"]["bf16"] == 989 and some["host"] == "test-box"


def test_diagnose_prints_this_machine_and_exits_with_1_for_a_bad_problem(capsys, monkeypatch, machine):
    code = command.print_diagnosis(gpu=None, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert code == (1 if any(problem["severity"] == "bad" for problem in document["problems"]) else 0)
    assert command.print_diagnosis(gpu=None, as_json=False) == code
    printed = capsys.readouterr().out
    assert printed.startswith("training\n  device          CPU: ")
    assert document["device_reason"] in " ".join(printed.split())
    for cards, expected in ((1, 1), (0, 0)):
        monkeypatch.setattr(command, "probe", lambda cards=cards: machine(nvidia_pci_devices=cards))
        assert command.print_diagnosis(gpu=None, as_json=False) == expected
        assert ("bad   " in capsys.readouterr().out) == bool(expected)
    with pytest.raises(InputError):
        command.print_diagnosis(gpu=0, as_json=True)
