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


def sentences(diagnosis):
    return [(problem.severity, problem.sentence) for problem in diagnosis.problems]


def test_a_machine_without_gpu_trains_on_the_cpu_without_a_problem(machine):
    diagnosis = diagnose(machine())
    assert (diagnosis.device, diagnosis.gpu, diagnosis.problems) == ("cpu", None, ())
    assert "no NVIDIA GPU" in diagnosis.device_reason
    assert not diagnosis.is_bad


def test_a_gpu_is_used_if_torch_supports_it(machine, gpu):
    diagnosis = diagnose(machine(gpus=(gpu(),)))
    assert (diagnosis.device, diagnosis.device_reason) == ("cuda", "GPU 0, NVIDIA H200")
    assert diagnosis.gpu.card.title == "H200 SXM"
    assert diagnosis.gpu.abilities.bf16
    assert diagnosis.gpu_reason == "as the only one"
    assert diagnosis.problems == ()


def test_a_gpu_that_torch_cannot_use_stays_idle_with_a_reason(machine, gpu):
    too_old = machine(gpus=(gpu(capability=(3, 7)),))
    cpu_build = machine(gpus=(gpu(),), torch_cuda=None)
    hidden = machine(gpus=(gpu(visible=False),))
    for hardware, reason in ((too_old, "too old"), (cpu_build, "without CUDA"), (hidden, "no GPU of this machine")):
        diagnosis = diagnose(hardware)
        assert diagnosis.device == "cpu" and reason in diagnosis.device_reason


def test_the_gpu_with_most_free_memory_is_chosen_then_the_least_used(machine, gpu):
    free = {"memory_free_bytes": 100 * GIB}
    cards = (gpu(0, memory_free_bytes=GIB), gpu(1, **free, utilisation_share=0.9), gpu(2, **free))
    assert diagnose(machine(gpus=cards)).gpu.index == 2
    assert diagnose(machine(gpus=cards), 1).gpu.index == 1
    silent = (gpu(0, memory_free_bytes=None), gpu(1, memory_free_bytes=GIB))
    assert diagnose(machine(gpus=silent)).gpu.index == 1


def test_a_gpu_that_torch_can_use_is_preferred(machine, gpu):
    old = gpu(0, name="Tesla P40", capability=(6, 1), memory_free_bytes=139 * GIB)
    both = machine(gpus=(old, gpu(1, memory_free_bytes=100 * GIB)), torch_cuda=(13, 0))
    diagnosis = diagnose(both)
    assert (diagnosis.device, diagnosis.gpu.index) == ("cuda", 1)
    assert diagnosis.gpu_reason == "as the only one that can be used"
    assert [gpu.index for gpu in cards_for(both, both.gpus[1])] == [1]
    diagnosis = diagnose(both, 0)
    assert (diagnosis.device, diagnosis.gpu.index) == ("cpu", 0) and "cannot use GPU 0" in diagnosis.device_reason


def test_no_gpu_is_used_on_request(machine, gpu):
    diagnosis = diagnose(machine(gpus=(gpu(),)), "none")
    assert (diagnosis.device, diagnosis.gpu, diagnosis.device_reason) == ("cpu", None, "asked for with --gpu none")
    assert not diagnosis.gpu_is_chosen


def test_lost_and_hidden_gpus_are_not_chosen(machine, gpu):
    cards = (gpu(0, problem="has fallen off the bus"), gpu(1, visible=False), gpu(2, memory_free_bytes=GIB))
    diagnosis = diagnose(machine(gpus=cards))
    assert diagnosis.gpu.index == 2
    assert diagnosis.gpu_reason == "as the only one that can be used"
    assert ("bad", "GPU 0 has fallen off the bus") in sentences(diagnosis)
    assert ("info", "CUDA_VISIBLE_DEVICES hides GPU 1") in sentences(diagnosis)
    with pytest.raises(InputError, match="hidden by CUDA_VISIBLE_DEVICES"):
        diagnose(machine(gpus=cards), 1)
    assert diagnose(machine(gpus=cards), 0).is_bad
    assert diagnose(machine(gpus=cards[:2])).gpu is None


def test_an_unknown_gpu_number_is_refused_with_the_known_ones(machine, gpu):
    for index in (2, -1):
        with pytest.raises(InputError, match=r"no GPU .*GPUs here: 0, 1"):
            diagnose(machine(gpus=(gpu(0), gpu(1))), index)
        with pytest.raises(InputError, match="this machine shows none"):
            diagnose(machine(), index)


def test_a_torch_that_the_driver_cannot_serve_is_named_with_a_command(machine, gpu):
    stale = machine(gpus=(gpu(),), driver=Driver(version="550.54", cuda=(12, 4)))
    (problem,) = diagnose(stale).problems
    assert problem.severity == "bad"
    assert problem.sentence == "torch is built for CUDA 13.2, the driver serves 12.4: it will train on the CPU"
    assert problem.remedy == "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
    (problem,) = diagnose(machine(gpus=stale.gpus, driver=stale.driver, libraries={"torch": "2", "pip": None})).problems
    assert problem.remedy.startswith("uv pip install")


def test_an_older_minor_version_of_cuda_in_the_driver_is_no_problem(machine, gpu):
    assert diagnose(machine(gpus=(gpu(),), driver=Driver(cuda=(13, 0)))).problems == ()


def test_a_build_of_torch_that_does_not_fit_the_gpu_is_named_with_a_remedy(machine, gpu):
    (volta,) = diagnose(machine(gpus=(gpu(capability=(7, 0)),))).problems
    assert "cannot use GPU 0: CUDA 13 serves compute capability 7.5 and newer" in volta.sentence
    assert "whl/cu126" in volta.remedy
    (cpu_build,) = diagnose(machine(gpus=(gpu(),), torch_cuda=None)).problems
    assert "without CUDA" in cpu_build.sentence and "whl/cu130" in cpu_build.remedy
    (old_driver,) = diagnose(machine(gpus=(gpu(),), driver=Driver(cuda=(11, 4)))).problems
    assert "newer NVIDIA driver" in old_driver.remedy
    of_2_11 = {"torch_cuda": (12, 8), "libraries": {"torch": "2.11.0+cu128"}}
    assert not usable_gpus(machine(gpus=(gpu(capability=(7, 0)),), **of_2_11))
    (kepler,) = diagnose(machine(gpus=(gpu(capability=(3, 7)),))).problems
    assert "too old" in kepler.sentence


def test_a_gpu_without_a_driver_is_found_on_the_pci_bus(machine):
    diagnosis = diagnose(machine(nvidia_pci_devices=2))
    assert sentences(diagnosis) == [("bad", "2 NVIDIA cards on the PCI bus, but no NVIDIA driver to be seen")]
    assert diagnose(machine(nvidia_pci_devices=0)).problems == ()


def test_a_driver_that_does_not_answer_has_a_remedy(machine, fake_nvml, subtests):
    for code, remedy in ((18, "sudo reboot"), (9, "sudo modprobe nvidia"), (12, "docker run --gpus all")):
        with subtests.test(remedy):
            driver, gpus = read_cards(Nvml(fake_nvml({}, errors={"nvmlInit": code})))
            diagnosis = diagnose(machine(driver=driver, gpus=gpus, nvidia_pci_devices=1))
            (problem,) = diagnosis.problems
            assert problem.severity == "bad" and remedy in problem.remedy
            assert "driver does not answer" in diagnosis.device_reason
    leftover = Driver(problem="the NVIDIA driver is installed but not loaded", error_code=9)
    assert not diagnose(machine(driver=leftover, nvidia_pci_devices=0)).is_bad, "without a card it is only a warning"


def test_processes_that_fill_a_gpu_are_named(machine, gpu):
    holders = (
        GpuProcess(pid=1, memory_bytes=GIB),
        GpuProcess(pid=4711, name="python", user="anna", memory_bytes=120 * GIB),
    )
    (problem,) = diagnose(machine(gpus=(gpu(memory_free_bytes=2 * GIB, processes=holders),))).problems
    assert problem.severity == "warn"
    assert problem.sentence == "GPU 0 has only 2.0 GiB of 141.0 GiB free: python of anna (pid 4711) holds 120.0 GiB"


def test_full_disks_are_named_with_the_variable_that_moves_the_folder(machine):
    places = (
        Place(label="runs", path="/r", free_bytes=100 * GIB, total_bytes=200 * GIB, writable=True),
        Place(label="model cache", path="/c", free_bytes=5 * GIB, total_bytes=200 * GIB, writable=True),
        Place(label="temporary", path="/t", free_bytes=GIB // 2, total_bytes=200 * GIB, writable=True),
        Place(label="prepared data", path="/p", free_bytes=100 * GIB, total_bytes=200 * GIB, writable=False),
    )
    found = diagnose(machine(places=places)).problems
    assert [problem.severity for problem in found] == ["bad", "bad", "warn"]
    assert [problem.remedy.split("=")[0] for problem in found] == [
        "export TMPDIR",
        "export TUI_TRAINER_HOME",
        "export HF_HOME",
    ]


@pytest.mark.full
def test_limits_of_a_container_and_a_weak_machine_are_reported(machine):
    small = machine(
        memory_bytes=2 * GIB, usable_cores=2, cpu_flags=frozenset({"sse4_2", "avx"}), memory_available_bytes=GIB
    )
    found = sentences(diagnose(small))
    assert [severity for severity, _ in found] == ["warn", "warn", "info", "info"]
    text = " ".join(sentence for _, sentence in found)
    assert "2.0 GiB of memory is little" in text
    assert "2.0 GiB of the machine's 64.0 GiB" in text
    assert "2 of the machine's 8 cores" in text
    assert "no AVX2" in text


@pytest.mark.full
def test_a_gpu_that_reports_nothing_is_diagnosed(machine, fake_nvml):
    of_card = "Name UUID CudaComputeCapability MemoryInfo UtilizationRates Temperature PowerUsage EnforcedPowerLimit"
    of_card += " ComputeRunningProcesses GraphicsRunningProcesses MigMode"
    errors = dict.fromkeys([f"nvmlDeviceGet{name}" for name in of_card.split()], 3)
    errors["nvmlSystemGetCudaDriverVersion_v2"] = 3
    driver, gpus = read_cards(Nvml(fake_nvml({}, errors=errors)))
    hardware = machine(driver=driver, gpus=gpus)
    diagnosis = diagnose(hardware)
    assert (diagnosis.gpu.index, diagnosis.gpu.card, diagnosis.gpu.abilities) == (0, None, None)
    assert diagnosis.problems == ()
    text = "\n".join(command.diagnosis_lines(hardware, diagnosis, ("cpu", "why"), 80))
    assert "not reported" in text
    assert "not in the catalogue" in text


def test_control_characters_in_names_are_not_printed(machine, gpu):
    process = GpuProcess(pid=1, name=HOSTILE, user=HOSTILE, memory_bytes=140 * GIB)
    card = gpu(name=HOSTILE, memory_free_bytes=0, processes=(process,), problem="")
    hardware = machine(
        gpus=(card, gpu(1, name=HOSTILE, processes=(process,), memory_free_bytes=0)),
        driver=Driver(version=HOSTILE, cuda=(12, 0)),
        host=HOSTILE,
        cpu_name=HOSTILE,
        libraries={"torch": HOSTILE},
        places=(Place(label="runs", path=f"/{HOSTILE}", free_bytes=1, total_bytes=2, writable=True),),
    )
    diagnosis = diagnose(hardware, 0)
    lines = command.diagnosis_lines(hardware, diagnosis, (HOSTILE, HOSTILE), 80)
    printed = "".join(lines) + "".join(p.sentence + p.remedy for p in diagnosis.problems)
    assert "owned" in printed
    assert not set(printed) & set("\x1b\x07\r\n\u202e")
    assert "\x1b" not in json.dumps(command.as_document(hardware, diagnosis, ("", "")))


@pytest.mark.full
def test_lines_keep_to_the_width_of_the_terminal(machine, gpu):
    hardware = machine(gpus=(gpu(), gpu(1)), driver=Driver(version="550", cuda=(12, 4)))
    for width in (60, 80, 200):
        lines = command.diagnosis_lines(hardware, diagnose(hardware), ("cpu", "it trains on the CPU"), width)
        words = [line for line in lines if "https://" not in line]
        assert max(map(len, words)) <= width
        assert len(words) > 20


def test_json_has_the_same_keys_for_every_machine(machine, gpu):
    documents = []
    for hardware in (machine(), machine(gpus=(gpu(), gpu(1))), machine(driver=Driver(problem="no", error_code=9))):
        documents.append(json.loads(json.dumps(command.as_document(hardware, diagnose(hardware), ("", "none")))))
    assert documents[0].keys() == documents[1].keys() == documents[2].keys()
    assert documents[0]["gpu"] is None
    assert documents[0]["hardware_profile"] is None
    assert documents[1]["gpus"][0]["card"]["teraflops"]["bf16"] == 989
    assert documents[1]["host"] == "test-box"


def test_diagnose_describes_this_machine_as_text_and_as_json(capsys):
    code = command.print_diagnosis(gpu=None, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert code == (1 if any(problem["severity"] == "bad" for problem in document["problems"]) else 0)
    assert command.print_diagnosis(gpu=None, as_json=False) == code
    printed = capsys.readouterr().out
    assert printed.startswith("training\n  device          CPU: ")
    assert document["device_reason"] in " ".join(printed.split())


def test_the_exit_code_is_1_for_a_bad_problem(monkeypatch, capsys, machine):
    monkeypatch.setattr(command, "probe", lambda: machine(nvidia_pci_devices=1))
    assert command.print_diagnosis(gpu=None, as_json=False) == 1
    assert "bad   " in capsys.readouterr().out
    monkeypatch.setattr(command, "probe", lambda: machine())
    assert command.print_diagnosis(gpu=None, as_json=False) == 0
    with pytest.raises(InputError):
        command.print_diagnosis(gpu=0, as_json=True)
