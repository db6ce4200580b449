"""`diagnose --try`: the machine is tried in a child process; results are kept, shown, and problems have a remedy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.answered_here import answered_by, answered_here
from tui_trainer.cli import main
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.nvml import Nvml, gpu_reports
from tui_trainer.hardware.probe import probe
from tui_trainer.measure import trial as trials
from tui_trainer.units import GIB, MIB
from tui_trainer.worker.asking import WorkerFailed

H200 = Gpu(index=0, name="NVIDIA H200", uuid="GPU-1", capability=(9, 0), memory_bytes=141 * GIB)
GOOD = {
    "at": "2026-11-23T10:00:00Z", "device": "cuda", "name": "NVIDIA H200", "torch": "2.11.0", "ended": "",
    "precisions": {"fp32": {"teraflops": 50.0}, "tf32": {"teraflops": 350.0}, "bf16": {"teraflops": 700.0},
                   "fp16": {"teraflops": 700.0}, "fp8": {"teraflops": 1300.0}},
    "memory": {"gigabytes_per_second": 4300.0},
    "attention": {"flash": {"seconds": 0.001}, "plain": {"seconds": 0.01}},
    "disks": [{"label": "runs", "path": "/runs", "read_bytes_per_second": 1e9, "write_bytes_per_second": 5e8}],
    "loader": {"tokens_per_second": 1e8}, "long": {"slower_at_the_end": 1.02, "slowed_by": "", "clock_share": 0.98},
    "shm_bytes": 64 * GIB, "limit_memory_bytes": None, "limit_cores": None,
    "ecc": {"corrected": 0, "uncorrected": 0, "remapping_pending": False}, "kernel_reports": [],
}  # fmt: skip


@pytest.fixture
def no_conflicts(monkeypatch):
    monkeypatch.setattr(trials, "version_conflicts", lambda libraries: iter(()))


def problems(**changes):
    machine = replace(probe(), gpus=(H200,))
    return trials.problems_of(GOOD | changes, machine, H200)


PROBLEMS = [
    ({"precisions": {"bf16": {"teraflops": 100.0}}}, "bf16 matmuls reach 100.0 of 989", "nvidia-smi"),
    ({"precisions": {"bf16": {"reason": "no kernel image"}}}, "bf16 failed", "tui-trainer diagnose"),
    ({"memory": {"gigabytes_per_second": 900.0}}, "memory reaches only 900 of 4,800 GB/s", "nvidia-smi"),
    ({"long": {"slower_at_the_end": 1.1, "slowed_by": "heat", "clock_share": 0.5}}, "50% of its clock because of heat",
     "nvidia-smi"),
    ({"long": {"slower_at_the_end": 2.0, "slowed_by": ""}}, "2.0 times as long", "top"),
    ({"disks": [{"label": "runs", "path": "/r", "read_bytes_per_second": 1e6, "write_bytes_per_second": None}]},
     "reads only", "output.runs_dir"),
    ({"shm_bytes": 64 << 20}, "/dev/shm has 64.0 MiB", "--shm-size"),
    ({"loader": {"tokens_per_second": 1e5}}, "only 100 k tokens/s", "top"),
    ({"ecc": {"corrected": 3, "uncorrected": 2}}, "2 errors that could not be corrected", "nvidia-smi"),
    ({"ecc": {"corrected": 0, "uncorrected": 0, "remapping_pending": True}}, "waiting to be remapped", "gpu-reset"),
    ({"kernel_reports": ["NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."]}, "Xid", "dmesg"),
    ({"ended": "trying attention was killed, probably because memory ran out"}, "trying attention", "python -c"),
    ({"attention": {"flash_attn": {"reason": "undefined symbol"}}}, "cannot be imported", "--reinstall"),
]  # fmt: skip


def test_each_problem_has_a_remedy_that_can_be_typed(no_conflicts, subtests):
    assert problems() == []
    for changes, sentence, remedy in PROBLEMS:
        with subtests.test(sentence):
            (found,) = problems(**changes)
            assert sentence in found.sentence and remedy in found.remedy


@pytest.mark.full
def test_conflicting_versions_are_reported_with_the_command(monkeypatch):
    class Distribution:
        version = "0.20"
        requires = ("torch>=99", "numpy", "transformers>=1; extra == 'x'")

    monkeypatch.setattr(trials.metadata, "distribution", lambda name: Distribution())
    monkeypatch.setattr(trials.metadata, "version", lambda name: "2.15")
    (first, *_) = trials.version_conflicts({"peft": "0.20", "torch": None})
    assert first == ("peft 0.20 needs torch>=99, installed: 2.15", "uv pip install 'torch>=99'")


def test_memory_errors_are_read_from_the_driver(nvml_answers):
    card = nvml_answers(nvmlDeviceGetTotalEccErrors=lambda handle, kind, over: 7 if kind else 40,
                        nvmlDeviceGetRemappedRows=lambda handle: (0, 1, 1, 0))  # fmt: skip
    assert Nvml(card).ecc(0) == {"corrected": 40, "uncorrected": 7, "remapping_pending": True}
    assert Nvml(nvml_answers()).ecc(0) is None


@pytest.fixture
def nvml_answers():
    class Fake:
        class NVMLError(Exception):
            value = 3

        def __init__(self, **answers):
            self.answers = answers

        def __getattr__(self, name):
            if name in ("nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlSystemGetDriverVersion"):
                return lambda *arguments: "1"
            if name == "nvmlSystemGetCudaDriverVersion_v2":
                return lambda: 13000
            if name in self.answers:
                return self.answers[name]
            raise AttributeError(name)

    return lambda **answers: Fake(**answers)


@pytest.mark.full
def test_kernel_reports_of_the_gpu_are_read(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;usb 1-1: new\n4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n")
    assert gpu_reports(log) == ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."]
    assert gpu_reports(tmp_path / "none") == []


@pytest.fixture
def small_here(monkeypatch):
    """Run the child's work in this process, with small matrices and for moments."""
    for name, value in {
        "_SECONDS": {"cpu": 0.02}, "_LONG_SECONDS": 0.05, "_SIDE": {"cpu": 128}, "_LENGTH": 64, "_TRIAL_BYTES": 4 * MIB,
    }.items():  # fmt: skip
        monkeypatch.setattr(trials, name, value)

    def ask(question, asked, **more):
        return answered_here(question, asked | {"threads": 1}, **more)

    monkeypatch.setattr(trials, "ask", ask)


@pytest.mark.parametrize("where", ["small_here", pytest.param("in_a_child", marks=pytest.mark.e2e)])
def test_a_trial_of_the_machine_is_kept_and_shown(capsys, request, where):
    if where == "small_here":
        request.getfixturevalue(where)
    assert trials.kept_trial(probe(), "none") is None
    assert main(["diagnose", "--try", "--gpu", "none", "--json"]) in (0, 1)
    tried = json.loads(capsys.readouterr().out)["tried"]
    assert tried["ended"] == "" and tried["device"] == "cpu" and tried["at"]
    assert tried["precisions"]["fp32"]["teraflops"] > 0 and tried["memory"]["gigabytes_per_second"] > 0
    assert tried["attention"]["plain"]["seconds"] > 0
    assert any(disk["write_bytes_per_second"] for disk in tried["disks"])
    assert tried["loader"]["tokens_per_second"] > 0 and "slower_at_the_end" in tried["long"]
    assert trials.kept_trial(probe(), "none") == tried
    main(["diagnose", "--gpu", "none"])
    text = capsys.readouterr().out
    assert "benchmarks\n" in text and "GFLOP/s" in text and "tokens/s" in text


def test_results_before_the_child_died_are_kept(monkeypatch):
    def dying(_):
        yield {"part": "disks"}
        yield {"part": "disks", "found": []}
        yield {"part": "precisions"}
        raise WorkerFailed("failed: Segmentation fault")

    monkeypatch.setattr(trials, "ask", answered_by(dying))
    trial = trials.try_machine(probe(), "none")
    assert trial["disks"] == [] and trial["ended"] == "trying precisions failed: Segmentation fault"
    assert any("Segmentation fault" in one["sentence"] for one in trial["problems"])
    assert trials.trial_rows(trial, probe())


@pytest.mark.full
def test_a_damaged_trial_is_shown_as_far_as_it_goes():
    assert trials.trial_problems({"problems": [{"nonsense": 1}, 7]}) == []
    assert trials.trial_rows({"at": "x", "device": "cpu"}, probe())
